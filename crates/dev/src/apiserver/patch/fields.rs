//! Sets of fields in the form of `fieldsV1`, and their intersection and difference.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

/// A field and its subfields. A path element is `f:NAME`, `k:{KEYS}` or `v:VALUE`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// The field itself is in the set.
    pub(crate) member: bool,
    pub(crate) below: BTreeMap<String, Self>,
}

impl Fields {
    /// A field in the set without subfields.
    pub(crate) fn leaf() -> Self {
        Self { member: true, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }

    /// Adds a subset; an empty one is not added.
    pub(crate) fn put(&mut self, element: String, fields: Self) {
        if !fields.is_empty() {
            self.below.insert(element, fields);
        }
    }

    /// Parses `fieldsV1`.
    pub(crate) fn read(value: &Value) -> Self {
        let mut fields = Self::default();
        for (element, inner) in value.as_object().into_iter().flatten() {
            if element == "." {
                continue;
            }
            let mut below = Self::read(inner);
            below.member = inner.as_object().is_none_or(|o| o.is_empty() || o.contains_key("."));
            fields.below.insert(element.clone(), below);
        }
        fields
    }

    /// Encodes as `fieldsV1`.
    pub(crate) fn written(&self) -> Value {
        let mut members = Map::new();
        for (element, inner) in &self.below {
            let mut value = inner.written();
            if inner.member && !inner.below.is_empty() {
                value["."] = json!({});
            }
            members.insert(element.clone(), value);
        }
        Value::Object(members)
    }

    pub(crate) fn union(mut self, other: &Self) -> Self {
        self.member |= other.member;
        for (element, theirs) in &other.below {
            let own = self.below.remove(element).unwrap_or_default();
            self.below.insert(element.clone(), own.union(theirs));
        }
        self
    }

    /// The fields that are also in `other`.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut fields = Self { member: self.member && other.member, ..Self::default() };
        for (element, own) in &self.below {
            if let Some(theirs) = other.below.get(element) {
                fields.put(element.clone(), own.intersection(theirs));
            }
        }
        fields
    }

    /// The fields that are not in `other`. A field there does not include its subfields.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let mut fields = Self { member: self.member && !other.member, ..Self::default() };
        for (element, own) in &self.below {
            let left = match other.below.get(element) {
                Some(theirs) => own.difference(theirs),
                None => own.clone(),
            };
            fields.put(element.clone(), left);
        }
        fields
    }

    /// The paths in messages: all of a level before those below it.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.push_paths("", &mut paths);
        paths
    }

    fn push_paths(&self, at: &str, paths: &mut Vec<String>) {
        let path = |element: &str| format!("{at}{}", shown(element));
        let members = self.below.iter().filter(|(_, below)| below.member);
        paths.extend(members.map(|(element, _)| path(element)));
        for (element, below) in &self.below {
            below.push_paths(&path(element), paths);
        }
    }
}

/// A path element in messages.
pub(crate) fn shown(element: &str) -> String {
    match element.split_at_checked(2) {
        Some(("f:", name)) => format!(".{name}"),
        Some(("k:", keys)) => {
            let keys: Map<String, Value> = serde_json::from_str(keys).unwrap_or_default();
            let keys: Vec<String> = keys.iter().map(|(key, v)| format!("{key}={v}")).collect();
            format!("[{}]", keys.join(","))
        }
        Some(("v:", value)) => format!("[={value}]"),
        Some(_) | None => format!("[{element}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Fields {
        Fields::read(&serde_json::from_str(text).expect("JSON"))
    }

    const ONE: &str =
        r#"{"f:a":{".":{},"f:b":{},"k:{\"n\":\"x\",\"p\":1}":{".":{},"f:c":{}}},"f:d":{}}"#;

    #[test]
    fn an_encoded_set_equals_the_parsed_one() {
        assert_eq!(read(ONE).written().to_string(), ONE);
        assert_eq!(
            read(ONE).paths(),
            [".a", ".d", ".a.b", r#".a[n="x",p=1]"#, r#".a[n="x",p=1].c"#]
        );
        assert_eq!(read(r#"{"f:s":{"v:\"x\"":{}}}"#).paths(), [r#".s[="x"]"#]);
    }

    #[test]
    fn intersection_and_difference_of_sets() {
        let other = read(r#"{"f:a":{"f:b":{},"f:e":{}},"f:d":{"f:x":{}}}"#);
        let check = |got: Fields, want: &str| assert_eq!(got.written().to_string(), want);
        check(read(ONE).intersection(&other), r#"{"f:a":{"f:b":{}}}"#);
        check(other.difference(&read(ONE)), r#"{"f:a":{"f:e":{}},"f:d":{"f:x":{}}}"#);
        check(
            read(ONE).difference(&other),
            r#"{"f:a":{".":{},"k:{\"n\":\"x\",\"p\":1}":{".":{},"f:c":{}}},"f:d":{}}"#,
        );
        check(
            read(r#"{"f:a":{"f:b":{}}}"#).union(&read(r#"{"f:a":{}}"#)),
            r#"{"f:a":{".":{},"f:b":{}}}"#,
        );
    }
}
