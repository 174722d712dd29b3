//! Prints JSON values as YAML in block style. Strings are quoted unless they are clearly strings.
//! Hand-written, because the YAML crate's writer needs further crates.

use std::io::Write;

use serde_json::{Value, json};

use crate::args::Output;
use crate::exit::{Code, Failure};
use crate::terminal;
use posse_base::text::printable_json;

/// Words that some YAML version does not read as a string.
const RESERVED_WORDS: [&str; 10] =
    ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];

/// Prints manifests as YAML documents or as a JSON List.
pub fn print<'a>(
    manifests: impl Iterator<Item = &'a Value>,
    output: Output,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let text = match output {
        Output::Yaml => manifests.map(document).collect(),
        Output::Json => {
            let items: Value = manifests.cloned().collect();
            let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
            format!("{list:#}\n")
        }
    };
    // Strings of YAML in double quotes have the escapes of JSON; plain ones have only safe characters.
    terminal::print_json(out, &text).map(|()| Code::Clean)
}

/// A YAML document with its separator.
pub fn document(value: &Value) -> String {
    let mut text = "---\n".to_owned();
    block(value, 0, &mut text);
    text
}

/// Writes a value that starts on a new line.
fn block(value: &Value, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (i, (key, item)) in map.iter().enumerate() {
                // The first key of a map in a list follows the dash.
                if i > 0 || !text.ends_with("- ") {
                    text.push_str(&indent);
                }
                text.push_str(&scalar(key));
                text.push(':');
                nested(item, depth, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.iter().enumerate() {
                if i > 0 || !text.ends_with("- ") {
                    text.push_str(&indent);
                }
                text.push_str("- ");
                block(item, depth + 1, text);
            }
        }
        Value::String(line) => text.push_str(&format!("{}\n", scalar(line))),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            text.push_str(&format!("{value}\n"));
        }
    }
}

/// Writes the value of a key.
fn nested(value: &Value, depth: usize, text: &mut String) {
    let has_keys = value.as_object().is_some_and(|map| !map.is_empty());
    let has_items = value.as_array().is_some_and(|items| !items.is_empty());
    text.push(if has_keys || has_items { '\n' } else { ' ' });
    block(value, depth + usize::from(has_keys), text);
}

/// A YAML string: plain if that is unambiguous, otherwise a JSON string, which is valid YAML.
fn scalar(text: &str) -> String {
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_./".contains(&c))
        && !RESERVED_WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_plain {
        return text.to_owned();
    }
    // JSON does not escape these characters, but YAML reads them as line breaks or rejects them.
    let mut quoted = String::new();
    for c in Value::String(text.to_owned()).to_string().chars() {
        match c {
            '\u{fffe}' | '\u{ffff}' => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => quoted.push(c),
        }
    }
    printable_json(&quoted).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_encoding::yaml::Node;

    #[test]
    fn printed_documents_can_be_parsed() {
        let words = [
            "",
            "a",
            "a b",
            "yes",
            "NO",
            "null",
            "~",
            "1",
            "1.0",
            "-",
            "- a",
            "a: b",
            "#",
            "a#",
            "'",
            "\"",
            "\\",
            "\n",
            "a\nb\n",
            "\t",
            " x ",
            "é",
            "😀",
            "\u{85}",
            "\u{2028}",
            "\u{7f}",
            "\u{202e}\u{200b}",
            "\u{e0041}",
            "{",
            "[",
            "*a",
            "&a",
            "!x",
            "%",
            "@",
            "`",
            "0x10",
            "1e3",
            "inf",
            ".inf",
            "a/b.c-d_e",
        ];
        for word in words {
            let value = serde_json::json!({
                "list": [word, [word, [word]], { word: word, "b": [{ "c": word }] }, {}, []],
                "map": { "k": word, "n": null, "t": true, "f": 1.5, "i": -3, "e": {}, "l": [] },
            });
            let text = document(&value);
            let read = Node::read(&text).unwrap_or_else(|e| panic!("{word:?}: {e:?}\n{text}"));
            assert_eq!(read.to_json(), value, "{word:?}\n{text}");
        }
    }

    #[test]
    fn a_document_is_in_block_style() {
        let value = serde_json::json!({
            "kind": "Pod",
            "spec": { "containers": [{ "args": ["-c", "echo 1"], "name": "a" }], "many": 1 },
        });
        let want = "---\nkind: Pod\nspec:\n  containers:\n  - args:\n    - \"-c\"\n    \
                    - \"echo 1\"\n    name: a\n  many: 1\n";
        assert_eq!(document(&value), want);
    }
}
