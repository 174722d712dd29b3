//! The description of a key of posse.yaml.

use std::fmt;

use crate::config::duration;

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    pub name: &'static str,
    pub value: Type,
    pub default: Preset,
    /// What it means, in Markdown. The first sentence says it alone.
    pub text: &'static str,
    pub stability: Stability,
}

/// What docs/STABILITY.md promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// It stays as it is.
    Stable,
    /// It stays, but may change after a warning.
    Beta,
    /// It may change or go in any version.
    Experimental,
}

impl Stability {
    pub const ALL: [Self; 3] = [Self::Stable, Self::Beta, Self::Experimental];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stable => "stable",
            Self::Beta => "beta",
            Self::Experimental => "experimental",
        }
    }
}

/// What a key has if it is not written.
#[derive(Clone, Copy, Debug)]
pub enum Preset {
    /// This value.
    Is(&'static str),
    /// No value, or one that the words tell (Markdown). The example is a value that one may write; empty: that of
    /// the map around the key shows it.
    Told { words: &'static str, example: &'static str },
}

/// The values of a key. Its text is what an error expects.
#[derive(Clone, Copy, Debug)]
pub enum Type {
    /// A quantity of Kubernetes.
    Amount,
    Boolean,
    Duration,
    Integer,
    List,
    Map,
    /// A list of maps.
    Maps,
    Name,
    /// A map of texts.
    Pairs,
    Path,
    Text,
    /// One of these.
    Words(&'static [&'static str]),
    /// Another type with a limit, which the page tells.
    With(&'static Self, &'static str),
    /// One of a key of its own, for the page and for errors.
    Own {
        page: &'static str,
        expected: &'static str,
    },
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Boolean => "true or false",
            Self::Duration => duration::EXPECTED,
            Self::Integer => "a whole number",
            Self::List | Self::Maps => "a list",
            Self::Map => "a map",
            Self::Pairs => "a map of NAME: text",
            Self::Name | Self::Path | Self::Amount | Self::Text => "a text",
            Self::Words(words) => return f.write_str(&words.join(" or ")),
            Self::With(other, _) => return other.fmt(f),
            Self::Own { expected, .. } => expected,
        })
    }
}

impl Type {
    /// How docs/CONFIGURATION.md tells it, in Markdown.
    pub fn page(&self) -> String {
        let name = match self {
            Self::Amount => "quantity",
            Self::Boolean => "boolean",
            Self::Duration => "duration",
            Self::Integer => "integer",
            Self::List => "list",
            Self::Map | Self::Pairs => "map",
            Self::Maps => "list of maps",
            Self::Name => "name",
            Self::Path => "path",
            Self::Text => "text",
            Self::Own { page, .. } => page,
            Self::With(other, limit) => return other.page() + limit,
            Self::Words(words) => {
                let words = words.join("`, `");
                let or = words.rsplit_once(", ").map(|(most, last)| format!("{most} or {last}"));
                return format!("`{}`", or.unwrap_or(words));
            }
        };
        name.to_owned()
    }
}

pub(super) const fn key(
    name: &'static str,
    value: Type,
    default: Preset,
    text: &'static str,
) -> Key {
    Key { name, value, default, text, stability: Stability::Stable }
}

impl Key {
    pub(super) const fn beta(self) -> Self {
        Self { stability: Stability::Beta, ..self }
    }

    pub(super) const fn experimental(self) -> Self {
        Self { stability: Stability::Experimental, ..self }
    }
}

/// The default of a duration among these keys, in milliseconds; 0 where there is none.
pub(super) fn preset_ms(keys: &[Key], name: &str) -> u64 {
    let key = keys.iter().find(|key| key.name == name);
    let preset = key.and_then(|key| match key.default {
        Preset::Is(text) => duration::parse_ms(text),
        Preset::Told { .. } => None,
    });
    preset.unwrap_or(0)
}

/// The key has no default.
pub(super) const fn none(example: &'static str) -> Preset {
    told("none", example)
}

pub(super) const fn told(words: &'static str, example: &'static str) -> Preset {
    Preset::Told { words, example }
}

/// The words of a list that the parser reads.
pub(super) const fn words<T, const N: usize>(list: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut i = 0;
    while i < N {
        words[i] = list[i].0;
        i += 1;
    }
    words
}
