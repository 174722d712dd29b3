//! Reads one page of a list of pods.

use std::borrow::Cow;

use crate::core::model::ids::Version;
use crate::core::model::input::PodAnswer;
use crate::core::model::pod::Pod;
use crate::wire::fields::{Fields, Value};
use crate::wire::json::Json;
use crate::wire::labels::Selection;
use crate::wire::pod::{RawPod, WireError};
use crate::wire::protobuf::{Envelope, Reader, message};

/// One page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// This instance's pods.
    pub pods: Vec<Pod>,
    /// The list's resourceVersion. None: it is not a number.
    pub version: Option<Version>,
    /// Text of the list's resourceVersion. Empty: absent.
    pub version_text: String,
    /// Token of the next page. None on the last one.
    pub next: Option<String>,
}

/// Reads a page.
///
/// # Errors
/// The bytes are not a list of pods. One unreadable pod makes the whole page unreadable: a list
/// without it would look as if that executor had been deleted.
pub fn parse_page(bytes: &[u8], selection: &Selection) -> Result<Page, WireError> {
    let mut page = Page::default();
    let end = read_pods(bytes, &mut |pod| {
        if let PodAnswer::Ours(pod) = pod.seen(selection)? {
            page.pods.push(pod);
        }
        Ok(())
    })?;
    page.version = Version::parse(&end.version_text);
    Ok(Page { version_text: end.version_text, next: end.next, ..page })
}

/// A page without its pods.
pub(super) struct PageEnd {
    /// Text of the list's resourceVersion. Empty: absent.
    version_text: String,
    /// Token of the next page. None on the last one.
    pub(super) next: Option<String>,
}

/// Calls `each` for every pod of a page.
pub(super) fn read_pods(
    bytes: &[u8],
    each: &mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
) -> Result<PageEnd, WireError> {
    let meta = match Envelope::message_of(bytes, "PodList")? {
        Some(list) => read_protobuf(list, each)?,
        None => read_json(bytes, each)?,
    };
    let meta = meta.ok_or(WireError::Missing("metadata"))?;
    Ok(PageEnd {
        version_text: meta.version.unwrap_or_default().into_owned(),
        next: meta.next.map(Cow::into_owned).filter(|token| !token.is_empty()),
    })
}

fn read_protobuf<'a>(
    list: &'a [u8],
    each: &mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
) -> Result<Option<RawListMeta<'a>>, WireError> {
    let mut meta = None;
    let mut reader = Reader { bytes: list };
    while let Some((number, part)) = reader.next()? {
        match number {
            1 => meta = Some(message(part.bytes()?)?),
            2 => each(message(part.bytes()?)?)?,
            _ => {}
        }
    }
    Ok(meta)
}

fn read_json<'a>(
    bytes: &'a [u8],
    each: &mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
) -> Result<Option<RawListMeta<'a>>, WireError> {
    let (mut meta, mut all) = (None, Ok(()));
    let mut json = Json::new(bytes)?;
    json.object(&mut |key, json| {
        match key {
            "metadata" => meta = json.fields()?,
            "items" => {
                json.list(&mut |json| {
                    let pod = json.fields()?.unwrap_or_default();
                    if all.is_ok() {
                        all = each(pod);
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    json.end()?;
    all.map(|()| meta)
}

#[derive(Default)]
struct RawListMeta<'a> {
    version: Option<Cow<'a, str>>,
    next: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for RawListMeta<'a> {
    const NUMBERS: &'static [(u32, &'static str)] = &[(2, "resourceVersion"), (3, "continue")];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        match key {
            "resourceVersion" => self.version = value.text()?,
            "continue" => self.next = value.text()?,
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_real_server() {
        let selection = Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() };
        let pages = [
            include_str!("../../fixtures/pods/page1.json"),
            include_str!("../../fixtures/pods/page2.json"),
        ];
        let [first, second] = pages.map(|page| parse_page(page.as_bytes(), &selection).unwrap());
        assert_eq!(first.pods.len(), 5);
        assert_eq!(second.pods.len(), 3);
        assert!(first.next.is_some() && second.next.is_none());
        assert_eq!(first.version_text, second.version_text);
        assert_eq!(first.version.map(|v| v.to_string()), Some(first.version_text));
        let other = Selection { app: "wordcount".to_owned(), instance: "other".to_owned() };
        assert_eq!(parse_page(pages[0].as_bytes(), &other).unwrap().pods, []);
    }

    #[test]
    fn empty_and_malformed_pages() {
        let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
        let page = |text: &str| parse_page(text.as_bytes(), &selection);
        assert_eq!(page(r#"{"metadata":{},"items":null}"#), Ok(Page::default()));
        for broken in ["", "{}", r#"{"metadata":{},"items":{}}"#, r#"{"metadata":{},"items":[{}]}"#]
        {
            assert!(page(broken).is_err(), "{broken}");
        }
    }
}
