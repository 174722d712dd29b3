//! Typed access to one map of a configuration. Every getter returns a checked value, or an error
//! with file, line, column and the key's full path.

use std::fmt;

use serde_json::Value;

use crate::config::duration;
use crate::config::key::Type;
use crate::pod::arguments::{argument_error, arguments_error};
use posse_encoding::yaml::{Entry, Kind, Node, Position};

/// An error in a configuration. Printed as `posse.yaml:12:5: executors[0].count: ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    pub file: String,
    pub at: Position,
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, at: Position { line, column }, message } = self;
        match line {
            0 => write!(f, "{file}: {message}"),
            line => write!(f, "{file}:{line}:{column}: {message}"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// The words of a key, for errors.
fn one_of<T>(words: &[(&str, T)]) -> String {
    let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
    words.join(" or ")
}

/// A scalar's text. A tool that reads `off` as YAML 1.1 writes false.
pub(super) fn word(node: &Node) -> Option<String> {
    if matches!(node.kind, Kind::Bool(false)) { Some("off".to_owned()) } else { node.scalar() }
}

/// One map of the configuration.
#[derive(Debug)]
pub struct Section<'a> {
    pub file: &'a str,
    /// Path of this map, like `executors[0]`. Empty at the top.
    pub(super) path: String,
    at: Position,
    pub entries: &'a [Entry],
}

impl<'a> Section<'a> {
    /// Wraps `node`, which must be a map. `path` is its path.
    pub fn new(file: &'a str, path: String, node: &'a Node) -> Result<Self, ConfigError> {
        let entries = match &node.kind {
            Kind::Map(entries) => entries.as_slice(),
            Kind::Null => &[],
            Kind::Bool(_) | Kind::List(_) | Kind::Number(_) | Kind::Text(_) => {
                let what = if path.is_empty() { "the file" } else { &path };
                let message = format!("{what}: expected a map, found {}", node.describe());
                return Err(ConfigError { file: file.to_owned(), at: node.at, message });
            }
        };
        Ok(Self { file, path, at: node.at, entries })
    }

    /// Full path of a key.
    pub fn path_of(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    /// An error about a key: at its value if the key is present, else at the map.
    pub fn error(&self, key: &str, message: impl fmt::Display) -> ConfigError {
        let at = self.get(key).map_or(self.at, |node| node.at);
        let message = format!("{}: {message}", self.path_of(key));
        ConfigError { file: self.file.to_owned(), at, message }
    }

    /// The value of a key. Null counts as absent.
    pub fn get(&self, key: &str) -> Option<&'a Node> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!matches!(entry.value.kind, Kind::Null)).then_some(&entry.value)
    }

    /// A text. Numbers and booleans are taken as they were written.
    pub fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match node.scalar() {
            Some(text) if !text.is_empty() => Ok(Some(text)),
            Some(_) => Err(self.error(key, "is empty; leave the key out instead")),
            None => Err(self.expected(key, node, Type::Text)),
        }
    }

    /// A text. An empty one counts as absent: kubeconfigs often contain empty texts.
    pub fn given(&self, key: &str) -> Result<Option<String>, ConfigError> {
        let empty = |node: &Node| node.scalar().is_some_and(|text| text.is_empty());
        if self.get(key).is_some_and(empty) { Ok(None) } else { self.text(key) }
    }

    /// One of the words in `words`.
    pub fn word<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, ConfigError> {
        self.chosen(key, words).map(|chosen| chosen.unwrap_or(default))
    }

    /// The same without a default.
    pub fn chosen<T: Copy>(
        &self,
        key: &str,
        words: &[(&str, T)],
    ) -> Result<Option<T>, ConfigError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        let text = word(node);
        let found = words.iter().find(|(word, _)| Some(*word) == text.as_deref());
        let found = found.map(|(_, value)| Some(*value));
        found.ok_or_else(|| self.expected(key, node, one_of(words)))
    }

    /// A whole number from 0.
    pub fn number(&self, key: &str) -> Result<Option<u32>, ConfigError> {
        self.number_up_to(key, u32::MAX)
    }

    /// A whole number from 0 to `max`.
    pub fn number_up_to(&self, key: &str, max: u32) -> Result<Option<u32>, ConfigError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        match &node.kind {
            Kind::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()),
            Kind::Bool(_) | Kind::List(_) | Kind::Map(_) | Kind::Null | Kind::Text(_) => None,
        }
        .filter(|n| *n <= max)
        .map(Some)
        .ok_or_else(|| self.expected(key, node, format_args!("{} from 0 to {max}", Type::Integer)))
    }

    /// A duration, in milliseconds.
    pub fn duration_ms(&self, key: &str, default: u64) -> Result<u64, ConfigError> {
        let Some(node) = self.get(key) else { return Ok(default) };
        node.scalar()
            .and_then(|text| duration::parse_ms(&text))
            .ok_or_else(|| self.expected(key, node, Type::Duration))
    }

    /// true or false.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Node { kind: Kind::Bool(value), .. }) => Ok(Some(*value)),
            Some(node) => Err(self.expected(key, node, Type::Boolean)),
        }
    }

    pub fn list(&self, key: &str) -> Result<Option<&'a [Node]>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Node { kind: Kind::List(items), .. }) => Ok(Some(items)),
            Some(node) => Err(self.expected(key, node, Type::List)),
        }
    }

    /// A list of texts.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(items) = self.list(key)? else { return Ok(None) };
        let text = |(i, item): (usize, &Node)| {
            let wrong = || self.expected(&format!("{key}[{i}]"), item, Type::Text);
            item.scalar().ok_or_else(|| ConfigError { at: item.at, ..wrong() })
        };
        items.iter().enumerate().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// The arguments of a program.
    pub fn words(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let words = self.texts(key)?;
        for (i, word) in words.iter().flatten().enumerate() {
            if let Some(why) = argument_error(word.len()) {
                let item = self.list(key)?.and_then(|items| items.get(i));
                let at = item.map_or(self.at, |item| item.at);
                return Err(ConfigError { at, ..self.error(&format!("{key}[{i}]"), why) });
            }
        }
        match arguments_error(words.iter().flatten().map(String::len)) {
            Some(why) => Err(self.error(key, why)),
            None => Ok(words),
        }
    }

    /// A list of maps. An absent list is empty.
    pub fn sections(&self, key: &str) -> Result<Vec<Self>, ConfigError> {
        let items = self.list(key)?.unwrap_or_default().iter().enumerate();
        let path = |i: usize| format!("{}[{i}]", self.path_of(key));
        items.map(|(i, item)| Self::new(self.file, path(i), item)).collect()
    }

    /// A map. An absent map is empty.
    pub fn section(&self, key: &str) -> Result<Self, ConfigError> {
        match self.get(key) {
            Some(node) => Self::new(self.file, self.path_of(key), node),
            None => {
                Ok(Self { file: self.file, path: self.path_of(key), at: self.at, entries: &[] })
            }
        }
    }

    pub fn json_map(&self, key: &str) -> Result<Option<Value>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(node @ Node { kind: Kind::Map(_), .. }) => Ok(Some(node.to_json())),
            Some(node) => Err(self.expected(key, node, Type::Map)),
        }
    }

    /// An error about a value of the wrong type.
    pub fn expected(&self, key: &str, node: &Node, what: impl fmt::Display) -> ConfigError {
        self.error(key, format_args!("expected {what}, found {}", node.describe()))
    }
}
