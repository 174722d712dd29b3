//! What objects of any kind have in common.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};

use crate::error::WireError;

/// An object's `metadata`. Absent texts are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Meta {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// RFC 3339 in whole seconds; times in this format can be compared as text.
    pub creation_timestamp: Option<String>,
    /// Set while the object is being deleted.
    pub deletion_timestamp: Option<String>,
    #[serde(deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "or_default")]
    pub owner_references: Vec<Owner>,
}

/// An entry of `ownerReferences`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Owner {
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// An entry of `status.conditions`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    pub status: String,
    #[serde(deserialize_with = "or_default")]
    pub reason: String,
    #[serde(deserialize_with = "or_default")]
    pub message: String,
    pub last_transition_time: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AnyObject {
    #[serde(deserialize_with = "or_default")]
    metadata: Meta,
}

impl Meta {
    /// Reads the metadata of an object of any kind.
    ///
    /// # Errors
    /// The bytes are not an object of Kubernetes in JSON.
    pub fn parse(object: &[u8]) -> Result<Self, WireError> {
        Ok(serde_json::from_slice::<AnyObject>(object)?.metadata)
    }

    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels.get(key).map(String::as_str)
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }

    /// True if the object with this uid is one of the owners.
    pub fn is_owned_by(&self, uid: &str) -> bool {
        self.owner_references.iter().any(|owner| owner.uid == uid)
    }
}

impl Condition {
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// Null counts as absent, as API servers have it.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    value: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_read_from_any_object() {
        let read = |text: &str| Meta::parse(text.as_bytes());
        let meta = read(
            r#"{"kind":"Secret","metadata":{"name":"a","uid":"u","labels":{"k":"v"},"annotations":null,
                "creationTimestamp":null,"deletionTimestamp":"2026-01-01T00:00:00Z",
                "ownerReferences":[{"kind":"Job","name":"j","uid":"o","controller":true}]},"data":{}}"#,
        )
        .unwrap();
        assert_eq!((meta.name.as_str(), meta.label("k")), ("a", Some("v")));
        assert!(meta.is_deleting() && meta.is_owned_by("o") && !meta.is_owned_by("u"));
        assert_eq!(read("{}"), Ok(Meta::default()));
        assert_eq!(read(r#"{"metadata":null}"#), Ok(Meta::default()));
        for broken in ["", "7", r#"{"metadata":{"labels":[]}}"#, r#"{"metadata":{"name":1}}"#] {
            assert!(read(broken).is_err(), "{broken}");
        }
    }
}
