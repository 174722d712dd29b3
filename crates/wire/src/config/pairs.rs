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
    for (entry, (name, value)) in section.section(key)?.entries.iter().zip(&pairs) {
        if let Some(why) = error_in(name, value) {
            return Err(ConfigError { at: entry.at, ..section.error(key, why) });
        }
    }
    Ok(pairs)
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
