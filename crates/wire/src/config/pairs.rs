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

/// Labels without posse's prefix.
pub(super) fn labels(section: &Section<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let labels = pairs(section, "labels")?;
    for (key, value) in &labels {
        if let Some(why) = names::label_error(&format!("{key}={value}")) {
            return Err(section.error("labels", why));
        }
    }
    Ok(labels)
}
