//! Reads YAML (and so JSON) into a tree with a line and column for every node. Plain scalars have
//! the meaning that kubectl gives them.
//!
//! This is hand-written on top of a YAML parser because serde-saphyr gives plain scalars another
//! meaning than kubectl (`08` becomes 8.0, `oN` true), and its errors carry no key path.

use std::collections::{BTreeMap, BTreeSet};

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Span, StrInput, Tag};
use serde_json::{Number, Value};

/// Larger files are refused: etcd takes no object beyond 1.5 MiB.
const FILE_BYTES_MAX: usize = 1 << 20;
/// Deeper documents are refused, also if only aliases make them deep, because the tree is built and
/// walked recursively.
const DEPTH_MAX: usize = 64;
/// Limits of values and of bytes of text after aliases are expanded: a small file must not become a
/// large tree.
const NODES_MAX: usize = 100_000;
const TEXT_BYTES_MAX: usize = 4 << 20;

/// A thread that calls `Node::read` and `to_json` needs this stack. Without optimisation the deepest
/// document fits into 640 KiB, and overflows 512 KiB.
pub const STACK_BYTES: usize = 1 << 20;

/// Position of a node, counted from 1. 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub line: u64,
    pub column: u64,
}

/// A syntax error, or a value beyond the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    pub at: Position,
    pub message: String,
}

/// One value of the document.
#[derive(Clone, Debug)]
pub struct Node {
    pub at: Position,
    /// A scalar as it was written, so that `1.10` and `off` can be read as texts.
    pub written: Option<String>,
    pub kind: Kind,
}

/// Value of a node.
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
    /// Reads the only document in `text`.
    ///
    /// # Errors
    /// The text is not exactly one valid YAML document, or it exceeds the limits.
    pub fn read(text: &str) -> Result<Self, YamlError> {
        Self::read_with(text, true)
    }

    /// The same, as client-go reads a kubeconfig: the last one of equal keys counts, and the first document.
    ///
    /// # Errors
    /// As for `read`.
    pub fn read_loosely(text: &str) -> Result<Self, YamlError> {
        Self::read_with(text, false)
    }

    fn read_with(text: &str, is_strict: bool) -> Result<Self, YamlError> {
        if text.len() > FILE_BYTES_MAX {
            let message = format!("is larger than {FILE_BYTES_MAX} bytes");
            return Err(YamlError { at: Position::default(), message });
        }
        // Generators like to end a file with a separator and nothing after it.
        let text = text.trim_end().strip_suffix("\n---").unwrap_or(text);
        Composer::new(text, is_strict).document()
    }

    /// For "expected ..., found ...".
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

    /// A scalar's text as it was written. None for null, lists and maps.
    pub fn scalar(&self) -> Option<String> {
        match &self.kind {
            Kind::Text(text) => Some(text.clone()),
            Kind::Bool(value) => Some(self.written.clone().unwrap_or_else(|| value.to_string())),
            Kind::Number(value) => Some(self.written.clone().unwrap_or_else(|| value.to_string())),
            Kind::List(_) | Kind::Map(_) | Kind::Null => None,
        }
    }

    /// The node as JSON.
    pub fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Bool(value) => Value::Bool(*value),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect()
            }
            Kind::Null => Value::Null,
            Kind::Number(value) => Value::Number(value.clone()),
            Kind::Text(text) => Value::String(text.clone()),
        }
    }
}

impl From<Value> for Node {
    /// The value without a position.
    fn from(value: Value) -> Self {
        let at = Position::default();
        let kind = match value {
            Value::Null => Kind::Null,
            Value::Bool(value) => Kind::Bool(value),
            Value::Number(value) => Kind::Number(value),
            Value::String(text) => Kind::Text(text),
            Value::Array(items) => Kind::List(items.into_iter().map(Self::from).collect()),
            Value::Object(fields) => {
                let entry = |(key, value): (String, Value)| Entry { at, key, value: value.into() };
                Kind::Map(fields.into_iter().map(entry).collect())
            }
        };
        Self { at, written: None, kind }
    }
}

/// Builds the tree from the parser's events.
struct Composer<'a> {
    /// Refuses a second document and equal keys.
    is_strict: bool,
    parser: Parser<'a, StrInput<'a>>,
    /// Finished nodes by anchor number.
    anchors: BTreeMap<usize, (Node, Size)>,
    /// Of everything so far, with the copies that aliases and anchors make.
    n_nodes: usize,
    n_bytes: usize,
}

/// Size of a node with everything in it.
#[derive(Clone, Copy, Debug)]
struct Size {
    /// Levels below the node.
    depth: usize,
    n_nodes: usize,
    /// Bytes of keys and scalars.
    n_bytes: usize,
}

impl<'a> Composer<'a> {
    fn new(text: &'a str, is_strict: bool) -> Self {
        let mut options = Options::default();
        (options.flow_nesting_limit, options.block_nesting_limit) = (DEPTH_MAX, DEPTH_MAX);
        let parser = Parser::new_from_str_with_options(text, options);
        Self { parser, is_strict, anchors: BTreeMap::new(), n_nodes: 0, n_bytes: 0 }
    }

    /// The only document. An empty file is null.
    fn document(mut self) -> Result<Node, YamlError> {
        let mut root = None;
        loop {
            match (self.next()?, root.take()) {
                ((Event::StreamEnd, at), None) => {
                    return Ok(Node { at, written: None, kind: Kind::Null });
                }
                ((Event::StreamEnd, _), Some(node)) => return Ok(node),
                ((Event::DocumentStart(..), _), Some(node)) if !self.is_strict => return Ok(node),
                ((Event::DocumentStart(..), at), Some(_)) => {
                    return Err(error_at(
                        at,
                        "contains several documents; exactly one is expected",
                    ));
                }
                (
                    (Event::StreamStart | Event::DocumentStart(..) | Event::DocumentEnd, _),
                    before,
                ) => {
                    root = before;
                }
                ((event, at), _) => root = Some(self.node(event, at, 0)?),
            }
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Position), YamlError> {
        match self.parser.next_event() {
            Some(Ok((event, span))) => Ok((event, position(&span))),
            Some(Err(error)) => Err(scan_error(&error)),
            None => Ok((Event::StreamEnd, Position::default())),
        }
    }

    /// The node that starts with `event`. The parser's enum is non_exhaustive, and no other event
    /// starts a node.
    #[allow(clippy::wildcard_enum_match_arm)]
    fn node(&mut self, event: Event<'a>, at: Position, depth: usize) -> Result<Node, YamlError> {
        check_depth(depth, at)?;
        let (node, anchor) = match event {
            Event::Alias(anchor) => {
                // An alias inside of its own anchor: the anchor's node is not finished.
                let size = self.anchors.get(&anchor).map(|(_, size)| *size);
                let size = size.ok_or_else(|| error_at(at, "the alias refers to itself"))?;
                check_depth(depth + size.depth, at)?;
                self.count(size.n_nodes, size.n_bytes, at)?;
                let (node, _) = &self.anchors[&anchor];
                return Ok(Node { at, ..node.clone() });
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1, text.len(), at)?;
                (scalar(text.into_owned(), style, tag.as_deref(), at)?, anchor)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.count(1, 0, at)?;
                check_tag(tag.as_deref(), "seq", at)?;
                (Node { at, written: None, kind: Kind::List(self.items(depth)?) }, anchor)
            }
            Event::MappingStart(_, anchor, tag) => {
                self.count(1, 0, at)?;
                check_tag(tag.as_deref(), "map", at)?;
                (Node { at, written: None, kind: Kind::Map(self.entries(depth)?) }, anchor)
            }
            _ => return Err(error_at(at, "a value is expected")),
        };
        if anchor > 0 {
            let size = node.size();
            self.count(size.n_nodes, size.n_bytes, at)?;
            self.anchors.insert(anchor, (node.clone(), size));
        }
        Ok(node)
    }

    /// Counts values and bytes of text before they are copied.
    fn count(&mut self, n_nodes: usize, n_bytes: usize, at: Position) -> Result<(), YamlError> {
        self.n_nodes = self.n_nodes.saturating_add(n_nodes);
        self.n_bytes = self.n_bytes.saturating_add(n_bytes);
        if self.n_nodes > NODES_MAX {
            return Err(error_at(at, &format!("expands to more than {NODES_MAX} values")));
        }
        if self.n_bytes > TEXT_BYTES_MAX {
            let message = format!("expands to more than {TEXT_BYTES_MAX} bytes of text");
            return Err(error_at(at, &message));
        }
        Ok(())
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Node>, YamlError> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn entries(&mut self, depth: usize) -> Result<Vec<Entry>, YamlError> {
        let mut entries: Vec<Entry> = Vec::new();
        let mut merged = Vec::new();
        let mut keys = BTreeSet::new();
        loop {
            let (key, at, is_plain) = match self.next()? {
                (Event::MappingEnd, _) => break,
                (Event::Scalar(text, style, ..), at) => {
                    (text.into_owned(), at, style == ScalarStyle::Plain)
                }
                (_, at) => return Err(error_at(at, "a key must be a text")),
            };
            self.count(0, key.len(), at)?;
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, depth + 1)?;
            if key == "<<" && is_plain {
                merged.extend(mergeable(value)?);
                continue;
            }
            if !keys.insert(key.clone()) {
                if self.is_strict {
                    return Err(error_at(at, &format!("duplicate mapping key: {key}")));
                }
                entries.retain(|entry| entry.key != key);
            }
            entries.push(Entry { at, key, value });
        }
        // Written keys win over merged ones, earlier merged maps over later ones.
        for entry in merged {
            if keys.insert(entry.key.clone()) {
                entries.push(entry);
            }
        }
        Ok(entries)
    }
}

impl Node {
    fn size(&self) -> Size {
        let n_bytes = match &self.kind {
            Kind::Text(text) => text.len(),
            Kind::Bool(_) | Kind::List(_) | Kind::Map(_) | Kind::Null | Kind::Number(_) => {
                self.written.as_ref().map_or(0, String::len)
            }
        };
        let mut size = Size { depth: 0, n_nodes: 1, n_bytes };
        let mut add = |child: &Self, key_bytes: usize| {
            let Size { depth, n_nodes, n_bytes } = child.size();
            size.depth = size.depth.max(depth + 1);
            size.n_nodes += n_nodes;
            size.n_bytes += n_bytes + key_bytes;
        };
        match &self.kind {
            Kind::List(items) => items.iter().for_each(|item| add(item, 0)),
            Kind::Map(entries) => {
                entries.iter().for_each(|entry| add(&entry.value, entry.key.len()));
            }
            Kind::Bool(_) | Kind::Null | Kind::Number(_) | Kind::Text(_) => {}
        }
        size
    }
}

/// The entries that `<<` adds: those of a map, or of every map in a list.
fn mergeable(value: Node) -> Result<Vec<Entry>, YamlError> {
    match value.kind {
        Kind::Map(entries) => Ok(entries),
        Kind::List(items) => {
            let mut all = Vec::new();
            for item in items {
                all.extend(mergeable(item)?);
            }
            Ok(all)
        }
        Kind::Bool(_) | Kind::Null | Kind::Number(_) | Kind::Text(_) => {
            Err(error_at(value.at, "`<<` takes a map or a list of maps"))
        }
    }
}

fn scalar(
    text: String,
    style: ScalarStyle,
    tag: Option<&Tag>,
    at: Position,
) -> Result<Node, YamlError> {
    let is_text = match tag {
        Some(tag) => match tag.core_suffix() {
            Some("str") => true,
            Some("bool" | "float" | "int" | "null") => false,
            _ => return Err(unknown_tag(tag, at)),
        },
        None => style != ScalarStyle::Plain,
    };
    let kind = if is_text { None } else { resolve(&text, at)? };
    Ok(match kind {
        Some(kind) => Node { at, written: Some(text), kind },
        None => Node { at, written: None, kind: Kind::Text(text) },
    })
}

fn check_depth(depth: usize, at: Position) -> Result<(), YamlError> {
    match depth > DEPTH_MAX {
        true => Err(error_at(at, &format!("is nested deeper than {DEPTH_MAX}"))),
        false => Ok(()),
    }
}

fn check_tag(tag: Option<&Tag>, expected: &str, at: Position) -> Result<(), YamlError> {
    tag.filter(|tag| tag.core_suffix() != Some(expected))
        .map_or(Ok(()), |tag| Err(unknown_tag(tag, at)))
}

fn unknown_tag(tag: &Tag, at: Position) -> YamlError {
    error_at(at, &format!("the tag {} is not supported", tag.original()))
}

/// The meaning that kubectl gives to a plain scalar. None: a text.
fn resolve(text: &str, at: Position) -> Result<Option<Kind>, YamlError> {
    Ok(Some(match text {
        "" | "~" | "null" | "Null" | "NULL" => Kind::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "true" | "True" | "TRUE" => {
            Kind::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "false" | "False" | "FALSE" => {
            Kind::Bool(false)
        }
        text => {
            let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
            let is_infinite = matches!(digits, ".inf" | ".Inf" | ".INF" | ".nan" | ".NaN" | ".NAN");
            if !is_infinite
                && !digits.trim_start_matches('.').starts_with(|c: char| c.is_ascii_digit())
            {
                return Ok(None);
            }
            match number(&text.replace('_', "")) {
                Some(number) => Kind::Number(number),
                None if is_infinite || digits.parse().is_ok_and(f64::is_infinite) => {
                    return Err(error_at(at, &format!("value `{text}` is not a finite number")));
                }
                None => return Ok(None),
            }
        }
    }))
}

/// An integer in one of the bases that Go accepts, or a float.
fn number(text: &str) -> Option<Number> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(text)),
    };
    let (base, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', b'0'..=b'7', ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    // A second sign is not a digit.
    if digits.starts_with(['+', '-']) {
        return None;
    }
    if sign.is_empty()
        && let Ok(whole) = u64::from_str_radix(digits, base)
    {
        return Some(whole.into());
    }
    if let Ok(whole) = i64::from_str_radix(&format!("{sign}{digits}"), base) {
        return Some(whole.into());
    }
    // `1e3` and `08` are floats. Words such as `inf`, which Rust would accept, are not.
    let is_fraction =
        text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    text.parse().ok().filter(|_| is_fraction).and_then(Number::from_f64)
}

fn position(span: &Span) -> Position {
    Position { line: span.start.line() as u64, column: span.start.col() as u64 + 1 }
}

fn error_at(at: Position, message: &str) -> YamlError {
    YamlError { at, message: message.to_owned() }
}

fn scan_error(error: &ScanError) -> YamlError {
    let marker = error.marker();
    let at = Position { line: marker.line() as u64, column: marker.col() as u64 + 1 };
    error_at(at, &error.info())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tree as one line of JSON, or the error with its position.
    fn summary(text: &str) -> String {
        match Node::read(text) {
            Ok(node) => node.to_json().to_string(),
            Err(YamlError { at, message }) => format!("{}:{} {message}", at.line, at.column),
        }
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = summary(text);
        assert!(got == want || got.starts_with(&format!("{want} ")), "{text:?}: {got}");
    }

    #[test]
    fn yaml_and_json_are_read() {
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

    /// Each of these was compared with kubectl.
    #[test]
    fn plain_scalars_mean_what_they_mean_to_kubectl() {
        for (text, want) in [
            ("0644", "420"),
            ("08", "8"),
            ("0o17", "15"),
            ("0b11", "3"),
            ("-0x1F", "-31"),
            ("1_000", "1000"),
            ("+1", "1"),
            ("-0", "0"),
            (".5", "0.5"),
            ("5.", "5.0"),
            ("12e03", "12000.0"),
            ("18446744073709551615", "18446744073709551615"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("~", "null"),
            ("On", "true"),
            ("NO", "false"),
            ("oN", "\"oN\""),
            ("1:30", "\"1:30\""),
            ("2024-01-01", "\"2024-01-01\""),
            ("0x", "\"0x\""),
            ("0x-1", "\"0x-1\""),
            ("1.2.3", "\"1.2.3\""),
            ("1Gi", "\"1Gi\""),
            ("1e", "\"1e\""),
            ("-", "[null]"),
            ("--", "\"--\""),
            ("!!str 1", "\"1\""),
            ("!!int '1'", "1"),
        ] {
            check(text, want);
        }
        check("<<: [{a: 1}, {a: 2, b: 3}]\nb: 4", r#"{"a":1,"b":4}"#);
        check("\"<<\": 1", r#"{"<<":1}"#);
    }

    #[test]
    fn errors_have_a_position() {
        check("a: 1\na: 2", "2:1 duplicate mapping key: a");
        check("a: 1\n---\nb: 2\n", "2:1 contains several documents; exactly one is expected");
        check("a: [1, 2\nb: 3", "2:2 illegal placement of ':' indicator");
        check("? [a]\n: y\n", "1:3 a key must be a text");
        check("a: 1e999", "1:4 value `1e999` is not a finite number");
        check("a: -.inf", "1:4 value `-.inf` is not a finite number");
        check("a: &x [*x]", "1:8 the alias refers to itself");
        check("a: *x", "1:4 while parsing node, found unknown anchor");
        check("a: !thing 1", "1:11 the tag !thing is not supported");
        check("<<: 1", "1:5 `<<` takes a map or a list of maps");
        check(&"x".repeat(FILE_BYTES_MAX + 1), "0:0 is larger than 1048576 bytes");
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(Node::read(&deep).is_err(), "deeper than {DEPTH_MAX}");
        // Each line doubles the number of nodes.
        let mut bomb = "a0: &a0 [x, x]\n".to_owned();
        for i in 1..30 {
            bomb.push_str(&format!("a{i}: &a{i} [*a{0}, *a{0}]\n", i - 1));
        }
        assert!(Node::read(&bomb).is_err(), "more than {NODES_MAX} nodes");
    }

    /// Lines `aI: &aI [... *aJ ...]`, of which each adds `by` levels to the one before it.
    fn nested_by_aliases(lines: usize, by: usize) -> String {
        let (open, close) = ("[".repeat(by), "]".repeat(by));
        let mut text = format!("a0: &a0 {open}x{close}\n");
        for i in 1..lines {
            text.push_str(&format!("a{i}: &a{i} {open}*a{}{close}\n", i - 1));
        }
        text
    }

    /// Each of these was a process out of stack, or hundreds of megabytes, before there were limits after
    /// aliases.
    #[test]
    fn aliases_make_no_deep_and_no_large_tree() {
        let deep = "is nested deeper than 64";
        for (text, want) in [
            (nested_by_aliases(90, 60), deep),
            (nested_by_aliases(2, 32), deep),
            (
                format!("a: &a {}\nb: [{}]", "x".repeat(64 << 10), "*a, ".repeat(1_000)),
                "expands to more than 4194304 bytes of text",
            ),
            (
                format!("a: &a {{{}: 1}}\nb: [{}]", "k".repeat(900), "*a, ".repeat(10_000)),
                "expands to more than 4194304 bytes of text",
            ),
            (
                format!("a: &a [{}]\nb: [{}]", "x, ".repeat(1_000), "*a, ".repeat(1_000)),
                "expands to more than 100000 values",
            ),
            // Each anchor keeps a copy of all levels below it.
            (
                format!("{}[{}]{}", "&a [".repeat(60), "x, ".repeat(9_000), "]".repeat(60)),
                "expands to more than 100000 values",
            ),
        ] {
            let got = summary(&text);
            assert!(got.contains(want), "{}: {}", &text[..40], &got[..got.len().min(80)]);
        }
        assert!(Node::read(&nested_by_aliases(2, 31)).is_ok(), "within the limit");
    }

    /// Tests are not optimised: the optimised program needs less.
    #[test]
    fn the_deepest_document_fits_into_a_small_stack() {
        let key = format!("{}1{}", "{a: ".repeat(DEPTH_MAX - 1), "}".repeat(DEPTH_MAX - 1));
        let list = format!("{}1{}", "[".repeat(DEPTH_MAX), "]".repeat(DEPTH_MAX));
        let blocks: String = (0..DEPTH_MAX).map(|i| format!("{:i$}a:\n", "")).collect();
        for text in [key, list, blocks, nested_by_aliases(2, 31), nested_by_aliases(90, 60)] {
            let read = move || Node::read(&text).map(|node| node.to_json().to_string().len());
            let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(read);
            let _ = thread.unwrap().join().unwrap();
        }
    }

    #[test]
    fn scalars_keep_their_written_text() {
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
