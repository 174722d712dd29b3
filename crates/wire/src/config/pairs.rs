//! Maps of texts, such as labels and annotations.

use crate::config::key::Type;
use crate::config::section::{ConfigError, Section};
use crate::names;
use posse_encoding::yaml::{Entry, Kind};

/// A map of texts, in the order of the file.
pub(super) fn pairs(
    section: &Section<'_>,
    key: &str,
) -> Result<Vec<(String, String)>, ConfigError> {
    let Some(node) = section.get(key) else { return Ok(Vec::new()) };
    let expected = || section.expected(key, node, Type::Pairs);
    let Kind::Map(entries) = &node.kind else { return Err(expected()) };
    let pair = |entry: &Entry| {
        entry.value.scalar().map(|text| (entry.key.clone(), text)).ok_or_else(expected)
    };
    entries.iter().map(pair).collect()
}

/// The same without the pairs in which `error_in` finds something. The error is at the pair.
pub(super) fn pairs_but(
    section: &Section<'_>,
    key: &str,
    error_in: impl Fn(&str, &str) -> Option<String>,
) -> Result<Vec<(String, String)>, ConfigError> {
    let pairs = pairs(section, key)?;
    for (name, value) in &pairs {
        if let Some(why) = error_in(name, value) {
            let map = section.section(key)?;
            let entry = map.entries().iter().find(|entry| entry.key == *name);
            let mut error = section.error(key, why);
            error.at = entry.map_or(error.at, |entry| entry.at);
            return Err(error);
        }
    }
    Ok(pairs)
}

/// Labels without posse's own.
pub(super) fn labels(section: &Section<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    labels_but(section, |_, _| None)
}

/// Labels without posse's own, and without those in which `error_in` finds something.
pub(super) fn labels_but(
    section: &Section<'_>,
    error_in: impl Fn(&str, &str) -> Option<String>,
) -> Result<Vec<(String, String)>, ConfigError> {
    pairs_but(section, "labels", |key, value| {
        names::label_error(&format!("{key}={value}")).or_else(|| error_in(key, value))
    })
}
