//! Finds duplicate keys in JSON. A parsed `Value` no longer shows them.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// The paths of duplicate keys; empty if the text is not JSON.
pub(crate) fn duplicates(body: &[u8]) -> Vec<String> {
    let mut found = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let walk = Walk { path: String::new(), found: &mut found };
    if walk.deserialize(&mut deserializer).is_err() {
        found.clear();
    }
    found
}

/// Walks over a value and its path.
struct Walk<'a> {
    path: String,
    found: &'a mut Vec<String>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut i = 0;
        loop {
            let path = format!("{}[{i}]", self.path);
            if items.next_element_seed(Walk { path, found: self.found })?.is_none() {
                return Ok(());
            }
            i += 1;
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut seen = BTreeSet::new();
        while let Some(key) = members.next_key::<String>()? {
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{key}", self.path);
            if !seen.insert(key) && !self.found.contains(&path) {
                self.found.push(path.clone());
            }
            members.next_value_seed(Walk { path, found: self.found })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duplicate_key_is_reported_once() {
        for (body, paths) in [
            (r#"{"a":1,"b":{"a":2}}"#, &[][..]),
            (r#"{"a":1,"b":[{"c":2,"c":3,"c":null}],"a":"x"}"#, &["b[0].c", "a"]),
            (r#"{"a":1,"a":"#, &[]),
        ] {
            assert_eq!(duplicates(body.as_bytes()), paths, "{body}");
        }
    }
}
