//! Owns reading one page of a LIST of pods. Following pages, and when to begin again, are `kube/`'s.

use std::borrow::Cow;

use crate::core::model::ids::Version;
use crate::core::model::input::PodAnswer;
use crate::core::model::pod::Pod;
use crate::wire::json::{Bad, Json};
use crate::wire::labels::Selection;
use crate::wire::pod::{Fields, RawPod, WireError, object};

/// One page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Our pods in it.
    pub pods: Vec<Pod>,
    /// The list's resourceVersion, where it compares.
    pub version: Option<Version>,
    /// The same as it is written; empty where absent.
    pub version_text: String,
    /// The token of the next page; none on the last one.
    pub next: Option<String>,
    /// How many pods in it match the selector but are not ours all the same.
    pub n_foreign: usize,
}

/// Reads a page.
///
/// # Errors
/// When the bytes are not a list of pods: one unreadable pod makes the whole page unreadable, for a
/// list with a hole in it would end an executor that is alive.
pub fn parse_page(bytes: &[u8], selection: &Selection) -> Result<Page, WireError> {
    let mut page = Page::default();
    let ends = read_pods(bytes, &mut |pod| {
        match pod.seen(selection)? {
            PodAnswer::Foreign(_) => page.n_foreign += 1,
            PodAnswer::Ours(pod) => page.pods.push(pod),
        }
        Ok(())
    })?;
    page.version = Version::parse(&ends.version_text);
    Ok(Page { version_text: ends.version_text, next: ends.next, ..page })
}

/// What a page says besides its pods.
pub(super) struct Ends {
    /// The list's resourceVersion; empty where absent.
    version_text: String,
    /// The token of the next page; none on the last one.
    pub(super) next: Option<String>,
}

/// Hands over each pod of a page.
pub(super) fn read_pods(
    bytes: &[u8],
    each: &mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
) -> Result<Ends, WireError> {
    let (mut meta, mut all) = (None, Ok(()));
    let mut json = Json::new(bytes)?;
    json.object(&mut |key, json| {
        match key {
            "metadata" => meta = object::<RawListMeta<'_>>(json)?,
            "items" => {
                json.list(&mut |json| {
                    let pod = object::<RawPod<'_>>(json)?.unwrap_or_default();
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
    let meta = meta.ok_or(WireError::Missing("metadata"))?;
    all?;
    Ok(Ends {
        version_text: meta.version.unwrap_or_default().into_owned(),
        next: meta.next.map(Cow::into_owned).filter(|token| !token.is_empty()),
    })
}

#[derive(Default)]
struct RawListMeta<'a> {
    version: Option<Cow<'a, str>>,
    next: Option<Cow<'a, str>>,
}

impl<'a> Fields<'a> for RawListMeta<'a> {
    fn field(&mut self, key: &str, json: &mut Json<'a>) -> Result<(), Bad> {
        match key {
            "resourceVersion" => self.version = json.text()?,
            "continue" => self.next = json.text()?,
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
        assert_eq!((first.pods.len(), first.n_foreign), (5, 0));
        assert_eq!((second.pods.len(), second.n_foreign), (3, 0));
        assert!(first.next.is_some() && second.next.is_none());
        assert_eq!(first.version_text, second.version_text);
        assert_eq!(first.version.map(|v| v.to_string()), Some(first.version_text));
        let other = Selection { app: "wordcount".to_owned(), instance: "other".to_owned() };
        let page = parse_page(pages[0].as_bytes(), &other).unwrap();
        assert_eq!((page.pods.len(), page.n_foreign), (0, 5));
    }

    #[test]
    fn odd_pages() {
        let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
        let page = |text: &str| parse_page(text.as_bytes(), &selection);
        assert_eq!(page(r#"{"metadata":{},"items":null}"#), Ok(Page::default()));
        for broken in ["", "{}", r#"{"metadata":{},"items":{}}"#, r#"{"metadata":{},"items":[{}]}"#]
        {
            assert!(page(broken).is_err(), "{broken}");
        }
    }
}
