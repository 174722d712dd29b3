//! Reads one page of a list of pods, or of objects of any kind.

use std::borrow::Cow;
use std::io::{BufRead, Read};

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::error::WireError;
use crate::fields::fields;
use crate::k8s::labels::Selection;
use crate::k8s::object::or_default;
use crate::pod::RawPod;
use posse_core::model::ids::Version;
use posse_core::model::input::PodAnswer;
use posse_core::model::pod::Pod;
use posse_encoding::fields::{Fields, Value};
use posse_encoding::json;
use posse_encoding::protobuf::{MAGIC, message};
use posse_encoding::protobuf_stream::read_object;

/// The kind of a list of pods.
const POD_LIST: &str = "PodList";
/// The kind of a list of any objects of which only the metadata was asked for.
const METADATA_LIST: &str = "PartialObjectMetadataList";

/// One page, or several of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// This instance's pods.
    pub pods: Vec<Pod>,
    /// The list's resourceVersion. None: it is not a number.
    pub version: Option<Version>,
    /// Text of the list's resourceVersion.
    pub version_text: String,
    /// Token of the next page. None on the last one.
    pub next: Option<String>,
}

/// Reads a page to its end. In protobuf one pod after another, so that its bytes are never held together.
///
/// # Errors
/// The body ends early, or is not a list of pods. One unreadable pod makes the whole page unreadable: a list
/// without it would look as if that executor had been deleted.
pub fn read_page(body: &mut dyn BufRead, selection: &Selection) -> Result<Page, WireError> {
    let mut pods = Vec::new();
    let meta = read_pods(body, &mut |pod| {
        if let PodAnswer::Ours(pod) = pod.seen(selection)? {
            pods.push(pod);
        }
        Ok(())
    })?;
    let version_text = version_of(meta.version)?;
    let next = Some(meta.next).filter(|token| !token.is_empty());
    Ok(Page { pods, version: Version::parse(&version_text), version_text, next })
}

/// One page of a list of any kind, in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemsPage<T> {
    pub items: Vec<T>,
    /// Text of the list's resourceVersion.
    pub version_text: String,
    /// Token of the next page. None on the last one.
    pub next: Option<String>,
}

#[derive(Deserialize)]
struct RawItemsPage<'a> {
    #[serde(default, deserialize_with = "or_default")]
    kind: String,
    #[serde(default, deserialize_with = "or_default")]
    metadata: RawItemsMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct RawItemsMeta {
    #[serde(deserialize_with = "or_default")]
    resource_version: String,
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// Reads a page of objects of this kind, each by `read`.
///
/// # Errors
/// The bytes are not such a list in JSON, or `read` fails for one of the objects.
pub fn parse_items<T>(
    bytes: &[u8],
    kind: &str,
    read: &dyn Fn(&[u8]) -> Result<T, WireError>,
) -> Result<ItemsPage<T>, WireError> {
    let page: RawItemsPage<'_> = serde_json::from_slice(bytes)?;
    if page.kind != METADATA_LIST {
        require_kind(&page.kind, &format!("{kind}List"))?;
    }
    let items = page.items.unwrap_or_default().into_iter();
    let items: Result<Vec<T>, WireError> = items.map(|item| read(item.get().as_bytes())).collect();
    Ok(ItemsPage {
        items: items?,
        version_text: version_of(page.metadata.resource_version)?,
        next: page.metadata.next.filter(|token| !token.is_empty()),
    })
}

/// Another object must not count as a list without items.
fn require_kind(came: &str, wanted: &str) -> Result<(), WireError> {
    // A list without the field is told by its version.
    if came.is_empty() || came == wanted {
        return Ok(());
    }
    Err(WireError::Kind { kind: came.to_owned(), wanted: wanted.to_owned() })
}

/// Each list has a version. What has none, as a Status, must not count as a list without items.
fn version_of(text: String) -> Result<String, WireError> {
    if text.is_empty() { Err(WireError::Missing("metadata.resourceVersion")) } else { Ok(text) }
}

/// The fields of a list in protobuf.
const META_NUMBER: u32 = 1;
const ITEM_NUMBER: u32 = 2;

/// Calls `each` for every pod of a page.
fn read_pods(
    body: &mut dyn BufRead,
    each: &mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
) -> Result<RawListMeta, WireError> {
    let mut bytes = Vec::new();
    body.take(MAGIC.len() as u64).read_to_end(&mut bytes)?;
    if bytes == MAGIC {
        let mut meta = RawListMeta::default();
        read_object(body, POD_LIST, |number, bytes| {
            match number {
                META_NUMBER => meta = message(bytes)?,
                ITEM_NUMBER => each(message(bytes)?)?,
                _ => {}
            }
            Ok::<_, WireError>(())
        })?;
        return Ok(meta);
    }
    body.read_to_end(&mut bytes)?;
    let mut list =
        RawList { kind: Cow::default(), meta: RawListMeta::default(), each, seen: Ok(()) };
    json::fill(&bytes, &mut list)?;
    require_kind(&list.kind, POD_LIST)?;
    list.seen?;
    Ok(list.meta)
}

/// A list of pods in JSON, each of which is handed on once it is read.
struct RawList<'a, 'e> {
    kind: Cow<'a, str>,
    meta: RawListMeta,
    each: &'e mut dyn FnMut(RawPod<'_>) -> Result<(), WireError>,
    /// The first error of `each`.
    seen: Result<(), WireError>,
}

impl<'a> Fields<'a> for RawList<'a, '_> {
    const NUMBERS: &'static [(u32, &'static str)] =
        &[(META_NUMBER, "metadata"), (ITEM_NUMBER, "items")];

    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error> {
        match key {
            "kind" => self.kind = value.text()?,
            "metadata" => self.meta = value.fields()?.unwrap_or_default(),
            "items" => value.each(&mut |pod: Option<RawPod<'a>>| {
                if self.seen.is_ok() {
                    self.seen = (self.each)(pod.unwrap_or_default());
                }
            })?,
            _ => {}
        }
        Ok(())
    }
}

#[derive(Default)]
struct RawListMeta {
    version: String,
    next: String,
}

fields!(RawListMeta: |self, value|
    "resourceVersion"(2) => self.version = value.text()?.into_owned(),
    "continue"(3) => self.next = value.text()?.into_owned(),
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_real_server() {
        let selection = Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() };
        let pages = [
            include_str!("../../../../fixtures/pods/page1.json"),
            include_str!("../../../../fixtures/pods/page2.json"),
        ];
        let [first, second] =
            pages.map(|page| read_page(&mut page.as_bytes(), &selection).unwrap());
        assert_eq!(first.pods.len(), 5);
        assert_eq!(second.pods.len(), 3);
        assert!(first.next.is_some() && second.next.is_none());
        assert_eq!(first.version_text, second.version_text);
        assert_eq!(first.version.map(|v| v.to_string()), Some(first.version_text));
        let other = Selection { app: "wordcount".to_owned(), instance: "other".to_owned() };
        assert_eq!(read_page(&mut pages[0].as_bytes(), &other).unwrap().pods, []);
    }

    #[test]
    fn objects_of_any_kind_are_read_one_by_one() {
        let length = |item: &[u8]| Ok(item.len());
        let page = |text: &str| parse_items(text.as_bytes(), "Pod", &length);
        let found =
            page(r#"{"metadata":{"resourceVersion":"7","continue":"t"},"items":[{}, [1]]}"#);
        let want = ItemsPage {
            items: vec![2, 3],
            version_text: "7".to_owned(),
            next: Some("t".to_owned()),
        };
        assert_eq!(found, Ok(want));
        let last =
            page(r#"{"metadata":{"resourceVersion":"7","continue":""},"items":null}"#).unwrap();
        assert_eq!((last.items, last.next), (vec![], None));
        let meta = page(
            r#"{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7"},"items":[{}]}"#,
        );
        assert_eq!(meta.unwrap().items, [2]);
        let unreadable = |_: &[u8]| Err::<(), _>(WireError::Missing("metadata.uid"));
        let list = br#"{"metadata":{"resourceVersion":"7"},"items":[{}]}"#;
        assert_eq!(parse_items(list, "Pod", &unreadable), Err(WireError::Missing("metadata.uid")));
    }

    #[test]
    fn what_is_no_list_is_not_an_empty_one() {
        let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
        let answers = |text: &str| {
            let items = parse_items(text.as_bytes(), "Pod", &|item| Ok(item.len()));
            let page = read_page(&mut text.as_bytes(), &selection);
            [page.map(|page| page.pods.len()), items.map(|page| page.items.len())]
        };
        for empty in [
            r#"{"kind":"PodList","metadata":{"resourceVersion":"7"},"items":null}"#,
            r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#,
        ] {
            assert_eq!(answers(empty), [Ok(0), Ok(0)], "{empty}");
        }
        let no_version = WireError::Missing("metadata.resourceVersion");
        let other =
            |kind: &str| WireError::Kind { kind: kind.to_owned(), wanted: "PodList".to_owned() };
        for (answer, why) in [
            (r#"{"metadata":{}}"#, &no_version),
            (r#"{"metadata":{},"items":[]}"#, &no_version),
            (r#"{"metadata":{"resourceVersion":""},"items":[]}"#, &no_version),
            (r#"{"metadata":{"resourceVersion":null},"items":[]}"#, &no_version),
            (r#"{"kind":"Status","metadata":{},"status":"Failure","code":503}"#, &other("Status")),
            (r#"{"kind":"Pod","metadata":{"resourceVersion":"7"}}"#, &other("Pod")),
            (
                r#"{"items":[],"metadata":{"resourceVersion":"7"},"kind":"NodeList"}"#,
                &other("NodeList"),
            ),
        ] {
            assert_eq!(answers(answer), [Err(why.clone()), Err(why.clone())], "{answer}");
        }
        for broken in ["", "7", "{}", r#"{"metadata":{"resourceVersion":"7"},"items":{}}"#] {
            assert!(answers(broken).iter().all(Result::is_err), "{broken}");
        }
        let no_name = r#"{"metadata":{"resourceVersion":"7"},"items":[{}]}"#;
        assert!(read_page(&mut no_name.as_bytes(), &selection).is_err());
    }
}
