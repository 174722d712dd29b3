//! Owns reading one page of a LIST of pods. Following pages, and when to begin again, are `kube/`'s.

use serde::Deserialize;

use crate::core::ids::Version;
use crate::core::input::Seen;
use crate::core::pod::Pod;
use crate::wire::labels::Selection;
use crate::wire::pod::{RawPod, Text, WireError};

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

#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(borrow)]
    metadata: Option<RawListMeta<'a>>,
    #[serde(borrow)]
    items: Option<Vec<RawPod<'a>>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawListMeta<'a> {
    #[serde(borrow)]
    resource_version: Option<Text<'a>>,
    #[serde(borrow, rename = "continue")]
    next: Option<Text<'a>>,
}

/// Reads a page.
///
/// # Errors
/// When the bytes are not a list of pods: one unreadable pod makes the whole page unreadable, for a
/// list with a hole in it would end an executor that is alive.
pub fn parse_page(bytes: &[u8], selection: &Selection) -> Result<Page, WireError> {
    let raw: RawPage<'_> = serde_json::from_slice(bytes)?;
    let Some(meta) = raw.metadata else { return Err(WireError::Missing("metadata")) };
    let version_text = meta.resource_version.unwrap_or_default().0.into_owned();
    let items = raw.items.unwrap_or_default();
    let mut page = Page {
        pods: Vec::with_capacity(items.len()),
        version: Version::parse(&version_text),
        version_text,
        next: meta.next.map(|token| token.0.into_owned()).filter(|token| !token.is_empty()),
        n_foreign: 0,
    };
    for item in items {
        match item.seen(selection)? {
            Seen::Foreign(_) => page.n_foreign += 1,
            Seen::Ours(pod) => page.pods.push(pod),
        }
    }
    Ok(page)
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
