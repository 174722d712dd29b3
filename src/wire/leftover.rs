//! Owns reading what `posse cleanup` looks at: pods of any instance, and the pods that own them.

use serde::Deserialize;

use crate::core::ids::Uid;
use crate::core::leftover::{Leftover, OwnerPod};
use crate::core::pod::Phase;
use crate::wire::pod::{Text, WireError, phase};

/// One page of a LIST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    pub pods: Vec<Leftover>,
    /// The token of the next page; none on the last one.
    pub next: Option<String>,
}

#[derive(Deserialize)]
struct RawPage<'a> {
    #[serde(borrow)]
    metadata: Option<RawListMeta<'a>>,
    #[serde(borrow)]
    items: Option<Vec<RawPod<'a>>>,
}

#[derive(Deserialize)]
struct RawListMeta<'a> {
    #[serde(borrow, rename = "continue")]
    next: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct RawPod<'a> {
    #[serde(borrow)]
    metadata: Option<RawMeta<'a>>,
    #[serde(borrow)]
    status: Option<RawStatus<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMeta<'a> {
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    #[serde(borrow)]
    labels: Option<RawLabels<'a>>,
    #[serde(borrow)]
    owner_references: Option<Vec<RawOwner<'a>>>,
}

#[derive(Deserialize)]
struct RawLabels<'a> {
    #[serde(borrow, rename = "posse.dev/instance")]
    instance: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct RawOwner<'a> {
    #[serde(borrow)]
    kind: Option<Text<'a>>,
    #[serde(borrow)]
    name: Option<Text<'a>>,
    #[serde(borrow)]
    uid: Option<Text<'a>>,
    controller: Option<bool>,
}

#[derive(Deserialize)]
struct RawStatus<'a> {
    #[serde(borrow)]
    phase: Option<Text<'a>>,
}

/// Reads a page.
///
/// # Errors
/// When the bytes are not a list of pods, each with a name and a uid.
pub fn parse_page(bytes: &[u8]) -> Result<Page, WireError> {
    let raw: RawPage<'_> = serde_json::from_slice(bytes)?;
    let meta = raw.metadata.ok_or(WireError::Missing("metadata"))?;
    let pods = raw.items.unwrap_or_default().into_iter().map(leftover);
    Ok(Page {
        pods: pods.collect::<Result<_, _>>()?,
        next: meta.next.map(|token| token.0.into_owned()).filter(|token| !token.is_empty()),
    })
}

/// Reads the uid and the phase of a pod.
///
/// # Errors
/// When the bytes are not a pod with a uid.
pub fn parse_owner(bytes: &[u8]) -> Result<(Uid, Phase), WireError> {
    let raw: RawPod<'_> = serde_json::from_slice(bytes)?;
    let uid = raw.metadata.and_then(|meta| meta.uid).ok_or(WireError::Missing("metadata.uid"))?;
    let text = raw.status.and_then(|status| status.phase);
    Ok((Uid::new(&uid.0), phase(text.as_ref())))
}

fn leftover(raw: RawPod<'_>) -> Result<Leftover, WireError> {
    let meta = raw.metadata.ok_or(WireError::Missing("items[].metadata"))?;
    let name = meta.name.ok_or(WireError::Missing("items[].metadata.name"))?;
    let uid = meta.uid.ok_or(WireError::Missing("items[].metadata.uid"))?;
    let instance = meta.labels.and_then(|labels| labels.instance);
    Ok(Leftover {
        name: name.0.into_owned(),
        uid: Uid::new(&uid.0),
        instance: instance.map(|text| text.0.into_owned()).filter(|text| !text.is_empty()),
        owner: owner_pod(meta.owner_references.unwrap_or_default()),
    })
}

fn owner_pod(owners: Vec<RawOwner<'_>>) -> Option<OwnerPod> {
    let owner = owners.into_iter().find(|owner| owner.controller == Some(true))?;
    owner.kind.filter(|kind| kind.0 == "Pod")?;
    Some(OwnerPod { name: owner.name?.0.into_owned(), uid: Uid::new(&owner.uid?.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_matters() {
        let page =
            br#"{"kind":"PodList","metadata":{"resourceVersion":"7","continue":"t"},"items":[
            {"metadata":{"name":"a-k-exec-1","uid":"u1","labels":{"posse.dev/instance":"k","x":"y"},
             "ownerReferences":[{"kind":"Pod","name":"other","uid":"o0"},
                                {"kind":"Pod","name":"driver","uid":"o1","controller":true}]}},
            {"metadata":{"name":"b","uid":"u2","ownerReferences":
              [{"kind":"Job","name":"driver","uid":"o1","controller":true}]},"status":null}]}"#;
        let first = Leftover {
            name: "a-k-exec-1".to_owned(),
            uid: Uid::new("u1"),
            instance: Some("k".to_owned()),
            owner: Some(OwnerPod { name: "driver".to_owned(), uid: Uid::new("o1") }),
        };
        let second =
            Leftover { name: "b".to_owned(), uid: Uid::new("u2"), instance: None, owner: None };
        let want = Page { pods: vec![first, second], next: Some("t".to_owned()) };
        assert_eq!(parse_page(page), Ok(want));
        assert_eq!(parse_page(br#"{"metadata":{},"items":null}"#), Ok(Page::default()));
        for bad in [&b"[]"[..], b"{}", br#"{"metadata":{},"items":[{"metadata":{"name":"a"}}]}"#] {
            assert!(parse_page(bad).is_err());
        }
        let driver = br#"{"metadata":{"uid":"o1"},"status":{"phase":"Succeeded"}}"#;
        assert_eq!(parse_owner(driver), Ok((Uid::new("o1"), Phase::Succeeded)));
        let young = br#"{"metadata":{"uid":"o1"}}"#;
        assert_eq!(parse_owner(young), Ok((Uid::new("o1"), Phase::Pending)));
        assert!(parse_owner(br#"{"metadata":{}}"#).is_err());
    }
}
