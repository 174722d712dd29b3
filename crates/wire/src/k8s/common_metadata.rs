//! The labels and annotations that every object of posse has, as the policies of a company ask for.

use serde_json::{Map, Value, json};

/// The labels and annotations of `posse.yaml` for all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonMetadata {
    pub labels: Vec<(String, String)>,
    pub annotations: Vec<(String, String)>,
}

impl CommonMetadata {
    /// Adds them to an object's metadata. What the object has already stays: its template, its group and posse itself
    /// know better.
    pub fn lay_under(&self, metadata: &mut Map<String, Value>) {
        for (field, pairs) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if pairs.is_empty() {
                continue;
            }
            let map = metadata.entry(field).or_insert(Value::Null);
            if map.is_null() {
                *map = json!({});
            }
            for (key, value) in pairs {
                if let Some(map) = map.as_object_mut() {
                    map.entry(key).or_insert_with(|| json!(value));
                }
            }
        }
    }

    /// The same for a whole object.
    pub fn lay_under_object(&self, object: &mut Value) {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            self.lay_under(metadata);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_object_has_stays() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let common = CommonMetadata {
            labels: vec![pair("team", "a"), pair("part-of", "shop")],
            annotations: vec![pair("owner", "me")],
        };
        let all =
            json!({"labels": {"team": "a", "part-of": "shop"}, "annotations": {"owner": "me"}});
        for (before, after) in [
            (json!({}), all.clone()),
            (json!({"labels": null, "annotations": null}), all),
            (
                json!({"name": "x", "labels": {"team": "b"}, "annotations": {"other": ""}}),
                json!({"name": "x", "labels": {"team": "b", "part-of": "shop"},
                    "annotations": {"other": "", "owner": "me"}}),
            ),
            // The server refuses what is no map, with better words.
            (json!({"labels": "x", "annotations": []}), json!({"labels": "x", "annotations": []})),
        ] {
            let mut object = json!({"metadata": before});
            common.lay_under_object(&mut object);
            assert_eq!(object["metadata"], after, "{before}");
            let mut object = json!({"metadata": before});
            CommonMetadata::default().lay_under_object(&mut object);
            assert_eq!(object["metadata"], before);
        }
        let mut none = json!({"kind": "Pod"});
        common.lay_under_object(&mut none);
        assert_eq!(none, json!({"kind": "Pod"}));
    }
}
