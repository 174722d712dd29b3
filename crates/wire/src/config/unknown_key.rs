//! Keys that nobody knows: the error, and the word that was probably meant.

use crate::config::key::Key;
use crate::config::keys::{REMOVED, SECTIONS};
use crate::config::section::{ConfigError, Section};
use posse_encoding::yaml::Entry;

/// The word that was probably meant: the most similar one, if it is as similar as `min`, from 0 (nothing in
/// common) to 1 (the same but for case and `_-`).
pub fn similar<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    min: f64,
) -> Option<&'a str> {
    // Long enough for every key, and the comparison costs the product of the lengths.
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let word = word.to_lowercase().replace(['_', '-'], "");
    let score = |known: &&'a str| {
        let plain = known.to_lowercase().replace(['_', '-'], "");
        strsim::jaro_winkler(&word, &plain)
    };
    let scored = known.into_iter().map(|known| (score(&known), known));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(score, _)| *score >= min).map(|(_, known)| known)
}

/// The longest word that is compared, in bytes.
const WORD_BYTES_MAX: usize = 64;

/// What is similar enough for a suggestion among the words of one place.
pub const SIMILARITY_MIN: f64 = 0.85;

/// The hint that suggests a similar word.
pub fn did_you_mean<'a>(
    word: &str,
    known: impl IntoIterator<Item = &'a str>,
    min: f64,
) -> Option<String> {
    similar(word, known, min).map(|known| format!(" (did you mean `{known}`?)"))
}

impl Section<'_> {
    /// Rejects the first key that is not in `known`.
    pub fn only(&self, known: &[&str]) -> Result<(), ConfigError> {
        self.only_or(known, |key| did_you_mean(key, known.iter().copied(), SIMILARITY_MIN))
    }

    /// The same with another hint about an unknown key.
    pub fn only_or(
        &self,
        known: &[&str],
        hint: impl FnOnce(&str) -> Option<String>,
    ) -> Result<(), ConfigError> {
        let unknown = self.entries.iter().find(|entry| !known.contains(&entry.key.as_str()));
        let Some(Entry { at, key, value: _ }) = unknown else { return Ok(()) };
        let mut message = format!("unknown key{}", hint(key).unwrap_or_default());
        if !known.is_empty() {
            message.push_str(&format!("; known here: {}", known.join(", ")));
        }
        Err(ConfigError { at: *at, ..self.error(key, message) })
    }
}

/// A word that is this similar is hardly meant otherwise, although most words resemble one of all keys.
const SIMILARITY_CLOSE: f64 = 0.9;

/// The most places that a hint names.
const PLACES_MAX: usize = 3;

/// Rejects keys that this section does not have.
pub(super) fn only(section: &Section<'_>, keys: &[Key]) -> Result<(), ConfigError> {
    let mut known: Vec<&str> = keys.iter().map(|key| key.name).collect();
    known.sort_unstable();
    let here = place_of_path(&section.path);
    section.only_or(&known, |key| removed(key, &here).or_else(|| hint(key, &here, &known)))
}

/// The map at a key, which may have these keys; `None` if it is absent.
pub(super) fn map_at<'a>(
    parent: &Section<'a>,
    key: &str,
    keys: &[Key],
) -> Result<Option<Section<'a>>, ConfigError> {
    if parent.get(key).is_none() {
        return Ok(None);
    }
    let section = parent.section(key)?;
    only(&section, keys)?;
    Ok(Some(section))
}

/// What stands for a key that was known here once.
fn removed(key: &str, here: &str) -> Option<String> {
    let (_, _, instead) = REMOVED.iter().find(|(place, name, _)| *place == here && *name == key)?;
    Some(format!(" (it was removed: {instead})"))
}

/// What a person probably meant by a key that is unknown here. The same word in another section says more
/// than a word here that is only a little similar.
fn hint(key: &str, here: &str, known: &[&'static str]) -> Option<String> {
    // So Kubernetes calls them.
    let key = match (key, here) {
        ("replicas", _) => "count",
        ("name", "executors[]") => "group",
        _ => key,
    };
    let all = || SECTIONS.iter().flat_map(|(_, keys)| keys.iter().map(|key| key.name));
    let similar_here = |min| did_you_mean(key, known.iter().copied(), min);
    let similar_elsewhere = |min| belongs(similar(key, all(), min)?, here);
    similar_here(SIMILARITY_CLOSE)
        .or_else(|| similar_elsewhere(1.0))
        .or_else(|| similar_here(SIMILARITY_MIN))
        .or_else(|| similar_elsewhere(SIMILARITY_CLOSE))
}

/// Where a key belongs: the sections that are nearest to `here`.
fn belongs(key: &str, here: &str) -> Option<String> {
    let having = SECTIONS.iter().filter(|(_, keys)| keys.iter().any(|known| known.name == key));
    let places: Vec<&str> = having.map(|(place, _)| *place).collect();
    let nearest = places.iter().map(|place| distance(here, place)).min()?;
    let near = places.iter().filter(|place| distance(here, place) == nearest);
    let near: Vec<String> = near.map(|place| shown(place)).collect();
    if near.len() > PLACES_MAX {
        return None;
    }
    // If it has another meaning elsewhere, this place is a guess.
    let verb = if near.len() == places.len() { "belongs" } else { "is known" };
    Some(format!(" (`{key}` {verb} {})", near.join(" or ")))
}

/// The place of a path with numbers, like `executors[0].scale`.
fn place_of_path(path: &str) -> String {
    path.chars().filter(|c| !c.is_ascii_digit()).collect()
}

fn shown(place: &str) -> String {
    if place.is_empty() { "at the top".to_owned() } else { format!("in `{place}`") }
}

/// The number of steps up and down from one place to another.
fn distance(from: &str, to: &str) -> usize {
    let parts = |place: &str| -> Vec<String> {
        place.split('.').filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let (from, to) = (parts(from), parts(to));
    let n_common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    from.len() + to.len() - 2 * n_common
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_key_is_suggested() {
        let known = ["count", "group", "image", "scale_down", "template", "min", "max"];
        let long = "c".repeat(100);
        for (word, want) in [
            ("cout", Some("count")),
            ("scaleDown", Some("scale_down")),
            ("scale-down", Some("scale_down")),
            ("Image", Some("image")),
            ("tempalte", Some("template")),
            ("replicas", None),
            ("", None),
            (long.as_str(), None),
        ] {
            assert_eq!(similar(word, known, SIMILARITY_MIN), want, "{word}");
        }
    }
}
