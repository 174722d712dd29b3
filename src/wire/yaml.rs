//! Owns the reading of YAML (and so of JSON) into a tree whose every node knows its line and
//! column. Knows nothing of what the keys mean.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Location, MessageFormatter as _, Spanned};

/// A file larger than this is not a configuration: etcd takes no object beyond 1.5 MiB.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Deeper documents are refused; the tree is walked recursively.
const DEPTH_MAX: usize = 64;
/// Nodes after aliases were followed: small anchors must not make a large tree.
const NODES_MAX: usize = 100_000;

/// Where a node begins, counted from 1; 0 where that is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub line: u64,
    pub column: u64,
}

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub at: Position,
    pub message: String,
}

/// One value of the document.
#[derive(Clone, Debug)]
pub struct Node {
    pub at: Position,
    /// A scalar as it was written, so that `1.10` and `off` may still be texts.
    pub written: Option<String>,
    pub kind: Kind,
}

/// What a node is.
#[derive(Clone, Debug)]
pub enum Kind {
    Bool(bool),
    List(Vec<Node>),
    Map(Vec<Entry>),
    Null,
    Number(Number),
    Text(String),
}

/// One key of a map and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    pub at: Position,
    pub key: String,
    pub value: Node,
}

impl Node {
    /// Reads the only document of `text`.
    ///
    /// # Errors
    /// Text that is not one document of sound YAML, or is beyond the limits.
    pub fn read(text: &str) -> Result<Self, Mistake> {
        if text.len() > FILE_BYTES_MAX {
            let message = format!("is larger than {FILE_BYTES_MAX} bytes");
            return Err(Mistake { at: Position::default(), message });
        }
        // A separator with nothing after it, as generators like to write.
        let text = text.trim_end().strip_suffix("\n---").unwrap_or(text);
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! { max_depth: DEPTH_MAX, max_nodes: NODES_MAX },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: NODES_MAX },
        };
        let raw: Raw =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| mistake(&error))?;
        Ok(raw.into_node(text))
    }

    /// What the node is, for "expected ..., found ...".
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.kind {
            Kind::Bool(_) | Kind::Number(_) | Kind::Text(_) => {
                let text = self.scalar().unwrap_or_default();
                format!("`{}`", text.chars().take(40).collect::<String>())
            }
            Kind::List(_) => "a list".to_owned(),
            Kind::Map(_) => "a map".to_owned(),
            Kind::Null => "nothing".to_owned(),
        }
    }

    /// A scalar's text, as it was written; none for null, lists and maps.
    #[must_use]
    pub fn scalar(&self) -> Option<String> {
        match &self.kind {
            Kind::Text(text) => Some(text.clone()),
            Kind::Bool(value) => Some(self.written.clone().unwrap_or_else(|| value.to_string())),
            Kind::Number(value) => Some(self.written.clone().unwrap_or_else(|| value.to_string())),
            Kind::List(_) | Kind::Map(_) | Kind::Null => None,
        }
    }

    /// The node as JSON, positions left behind.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Bool(value) => Value::Bool(*value),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => {
                let pairs = entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json()));
                Value::Object(pairs.collect::<Map<_, _>>())
            }
            Kind::Null => Value::Null,
            Kind::Number(value) => Value::Number(value.clone()),
            Kind::Text(text) => Value::String(text.clone()),
        }
    }
}

/// The tree as serde hands it over; what was written is cut from the source afterwards.
struct Raw(Spanned<RawKind>);

enum RawKind {
    Bool(bool),
    List(Vec<Raw>),
    Map(Vec<(Spanned<String>, Raw)>),
    Null,
    Number(Number),
    Text(String),
}

impl Raw {
    fn into_node(self, source: &str) -> Node {
        let Spanned { value, referenced, defined } = self.0;
        let mut written = None;
        let kind = match value {
            RawKind::Bool(value) => {
                written = cut(source, defined);
                Kind::Bool(value)
            }
            RawKind::List(items) => {
                Kind::List(items.into_iter().map(|item| item.into_node(source)).collect())
            }
            RawKind::Map(pairs) => {
                Kind::Map(pairs.into_iter().map(|(key, value)| entry(key, value, source)).collect())
            }
            RawKind::Null => Kind::Null,
            RawKind::Number(value) => {
                written = cut(source, defined);
                Kind::Number(value)
            }
            RawKind::Text(text) => Kind::Text(text),
        };
        Node { at: position(referenced), written, kind }
    }
}

fn entry(key: Spanned<String>, value: Raw, source: &str) -> Entry {
    let at = position(key.referenced);
    Entry { at, key: key.value, value: value.into_node(source) }
}

/// The source text of a scalar; none where the parser does not know where it lies.
fn cut(source: &str, location: Location) -> Option<String> {
    let span = location.span();
    let start = usize::try_from(span.byte_offset()?).ok()?;
    let len = usize::try_from(span.byte_len()?).ok()?;
    source.get(start..start.checked_add(len)?).map(|text| text.trim().to_owned())
}

fn position(location: Location) -> Position {
    Position { line: location.line(), column: location.column() }
}

fn mistake(error: &serde_saphyr::Error) -> Mistake {
    let error = error.without_snippet();
    let at = error.location().map_or_else(Position::default, position);
    let message = if matches!(error, serde_saphyr::Error::MultipleDocuments { .. }) {
        "holds several documents; one is expected".to_owned()
    } else {
        serde_saphyr::UserMessageFormatter.format_message(error).into_owned()
    };
    Mistake { at, message }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Spanned::deserialize(deserializer).map(Self)
    }
}

impl<'de> Deserialize<'de> for RawKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = RawKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<RawKind, E> {
        Ok(RawKind::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<RawKind, E> {
        Ok(RawKind::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<RawKind, E> {
        Ok(RawKind::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<RawKind, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("not a finite number"))?;
        Ok(RawKind::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<RawKind, E> {
        Ok(RawKind::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<RawKind, E> {
        Ok(RawKind::Text(value))
    }

    fn visit_unit<E>(self) -> Result<RawKind, E> {
        Ok(RawKind::Null)
    }

    fn visit_none<E>(self) -> Result<RawKind, E> {
        Ok(RawKind::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<RawKind, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(RawKind::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawKind, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(RawKind::Map(pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree in a line: JSON, or the mistake with its place.
    fn summary(text: &str) -> String {
        match Node::read(text) {
            Ok(node) => node.to_json().to_string(),
            Err(Mistake { at, message }) => format!("{}:{} {message}", at.line, at.column),
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = summary(text);
        assert!(got == want || got.starts_with(&format!("{want} ")), "{text:?}: {got}");
    }

    #[test]
    fn yaml_and_json_are_read_alike() {
        check(
            "a: 1\nb: [x, 'y', \"z\"]\nc: {d: null}",
            r#"{"a":1,"b":["x","y","z"],"c":{"d":null}}"#,
        );
        check("{\n\t\"a\": \"\\ud83d\\ude00 \\/\",\n\t\"b\": [1]\n}", r#"{"a":"😀 /","b":[1]}"#);
        check(
            "a: &x {q: 1}\nb: *x\nc: {<<: *x, r: 2}",
            r#"{"a":{"q":1},"b":{"q":1},"c":{"q":1,"r":2}}"#,
        );
        check("a: |\n  x\n  y\nb: 0x10", r#"{"a":"x\ny\n","b":16}"#);
        check("off: y", r#"{"off":true}"#);
        check("", "null");
        check("# nothing", "null");
        check("---\na: 1\n...\n", r#"{"a":1}"#);
        check("---\na: 1\n---\n", r#"{"a":1}"#);
    }

    #[test]
    fn mistakes_have_a_place() {
        check("a: 1\na: 2", "2:1 duplicate mapping key: a");
        check("a: 1\n---\nb: 2\n", "3:1 holds several documents; one is expected");
        check("a: [1, 2\nb: 3", "2:2 illegal placement of ':' indicator");
        check("? [a]\n: y\n", "1:3 expected string scalar");
        check("a: 1e999", "1:4 value `1e999` is not a finite number");
        check(&"x".repeat(FILE_BYTES_MAX + 1), "0:0 is larger than 1048576 bytes");
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(Node::read(&deep).is_err(), "deeper than {DEPTH_MAX}");
        // Each line doubles what the one before stands for.
        let mut bomb = "a0: &a0 [x, x]\n".to_owned();
        for i in 1..30 {
            bomb.push_str(&format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1));
        }
        assert!(Node::read(&bomb).is_err(), "more than {NODES_MAX} nodes");
    }

    #[test]
    fn scalars_keep_how_they_were_written() {
        for (text, want) in [
            ("1.10", "1.10"),
            ("off", "off"),
            ("0x10", "0x10"),
            ("1e3", "1e3"),
            ("'1.10'", "1.10"),
            ("é # c", "é"),
        ] {
            let node = Node::read(&format!("ü: {text}")).unwrap();
            let Kind::Map(entries) = node.kind else { panic!("{text}") };
            assert_eq!(entries[0].value.scalar().as_deref(), Some(want));
            assert_eq!(entries[0].value.at, Position { line: 1, column: 4 });
        }
    }
}
