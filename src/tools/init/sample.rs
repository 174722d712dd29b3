//! The commented posse.yaml that `posse init` writes, from the description of each key.

use posse_wire::config::{Key, Preset, SECTIONS};

const HEAD: &str = "\
# posse.yaml: the configuration of `posse run`. docs/CONFIGURATION.md explains every key.
# JSON works too. Unknown keys are errors. A line with `#` and no space after it is an example: remove the `#` to
# set the key. The other lines set keys to their defaults. Durations are written 90s, 5m, 1h, 1m30s, 1d, 250ms.
";

/// What makes the sample run: the path of a key and its value.
const SET: [(&str, &str); 5] = [
    ("app", "my-app"),
    ("executors[].count", "2"),
    ("executors[].image", "busybox"),
    (
        "executors[].command",
        r#"[sh, -c, 'echo "executor $POSSE_EXECUTOR_ID of $POSSE_APP"; exec sleep 3600']"#,
    ),
    ("executors[].security", "restricted"),
];

/// The column at which comments begin that stand beside their key, and the longest line.
const COMMENT_COLUMN: usize = 35;
const COLUMNS_MAX: usize = 115;

/// The text of the file.
pub fn sample() -> String {
    let mut text = HEAD.to_owned();
    for key in section("").unwrap_or_default() {
        let inner = [key.name.to_owned(), format!("{}[]", key.name)];
        let inner = inner.iter().find_map(|place| Some((place.as_str(), section(place)?)));
        match inner.filter(|_| example(key).is_empty()) {
            None => {
                text.push('\n');
                put(&mut text, "", key, "");
            }
            Some((place, keys)) => {
                text.push('\n');
                put_comment(&mut text, "", &comment(key));
                text += &format!("{}:\n", key.name);
                let is_list = place.ends_with("[]");
                for (i, key) in keys.iter().enumerate() {
                    let indent = match (is_list, i) {
                        (true, 0) => "  - ",
                        (true, _) => "    ",
                        (false, _) => "  ",
                    };
                    put(&mut text, indent, key, place);
                }
            }
        }
    }
    text
}

fn section(place: &str) -> Option<&'static [Key]> {
    SECTIONS.iter().find(|(known, _)| *known == place).map(|(_, keys)| *keys)
}

fn example(key: &Key) -> &'static str {
    match key.default {
        Preset::Is(value) => value,
        Preset::Told { example, .. } => example,
    }
}

/// Writes a key of a section with its comment.
fn put(text: &mut String, indent: &str, key: &Key, place: &str) {
    let path = if place.is_empty() { key.name.to_owned() } else { format!("{place}.{}", key.name) };
    let set = SET.iter().find(|(known, _)| *known == path).map(|(_, value)| *value);
    let is_set = set.is_some() || matches!(key.default, Preset::Is(_));
    let sign = if is_set { "" } else { "#" };
    let line = format!("{indent}{sign}{}: {}", key.name, set.unwrap_or_else(|| example(key)));
    let comment = comment(key);
    if line.len() < COMMENT_COLUMN && COMMENT_COLUMN + comment.len() + 2 <= COLUMNS_MAX {
        *text += &format!("{line:<COMMENT_COLUMN$}# {comment}\n");
    } else {
        put_comment(text, indent, &comment);
        *text += &format!("{line}\n");
    }
}

/// Writes lines of their own.
fn put_comment(text: &mut String, indent: &str, comment: &str) {
    let mut line = format!("{indent}#");
    for word in comment.split(' ') {
        if line.len() + 1 + word.len() > COLUMNS_MAX {
            *text += &format!("{line}\n");
            line = format!("{indent}#");
        }
        line += &format!(" {word}");
    }
    *text += &format!("{line}\n");
}

/// What the key means in short: its words, the first sentence of its text, what single values mean, and a default
/// that is no value.
fn comment(key: &Key) -> String {
    let page = key.value.page();
    let words = page.starts_with('`').then(|| format!("{}.", page.replace('`', "")));
    let text = without_links(key.text);
    let sentences = text.split_inclusive(". ").enumerate();
    let kept = sentences.filter(|(i, sentence)| *i == 0 || sentence.starts_with('`'));
    let kept = kept.map(|(_, sentence)| sentence.trim_end().to_owned());
    let default = match key.default {
        Preset::Told { words: "none", .. } | Preset::Is(_) => None,
        Preset::Told { words, .. } => Some(match words.strip_prefix("required") {
            Some(when) => format!("Required{when}."),
            None => format!("Default: {words}."),
        }),
    };
    words.into_iter().chain(kept).chain(default).collect::<Vec<String>>().join(" ")
}

/// Markdown with the texts of its links alone.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("](") {
        let (before, shown) = before.rsplit_once('[').unwrap_or((before, ""));
        plain += &format!("{before}{shown}");
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    plain + rest
}
