//! Owns reading one page of a LIST of pods. Following pages, and when to begin again, are `kube/`'s.

use std::borrow::Cow;

use crate::core::ids::Version;
use crate::core::input::Seen;
use crate::core::pod::Pod;
use crate::wire::json::Json;
use crate::wire::labels::Selection;
use crate::wire::pod::{RawPod, WireError, object};

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
    let (mut has_meta, mut unread) = (false, None);
    let mut json = Json::new(bytes)?;
    json.object(&mut |key, json| {
        match key {
            "metadata" => {
                has_meta = json.object(&mut |key, json| {
                    match key {
                        "resourceVersion" => {
                            page.version_text = json.text()?.unwrap_or_default().into_owned();
                        }
                        "continue" => page.next = json.text()?.map(Cow::into_owned),
                        _ => {}
                    }
                    Ok(())
                })?;
            }
            "items" => {
                json.list(&mut |json| {
                    let pod = object::<RawPod<'_>>(json)?.unwrap_or_default();
                    match pod.seen(selection) {
                        Ok(Seen::Foreign(_)) => page.n_foreign += 1,
                        Ok(Seen::Ours(pod)) => page.pods.push(pod),
                        Err(error) => unread = Some(error),
                    }
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(())
    })?;
    json.end()?;
    if !has_meta {
        return Err(WireError::Missing("metadata"));
    }
    page.version = Version::parse(&page.version_text);
    page.next = page.next.filter(|token| !token.is_empty());
    unread.map_or(Ok(page), Err)
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
