//! Finds the placeholders in a text: `{{EXECUTOR_ID}}` and the others.

use std::fmt;

/// The known placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    App,
    DriverHost,
    ExecutorId,
    Group,
    Instance,
    PodName,
    Slot,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Text(&'a str),
    Word(Word),
}

/// An unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord(pub String);

const WORDS: [(&str, Word); 7] = [
    ("APP", Word::App),
    ("DRIVER_HOST", Word::DriverHost),
    ("EXECUTOR_ID", Word::ExecutorId),
    ("GROUP", Word::Group),
    ("INSTANCE", Word::Instance),
    ("POD_NAME", Word::PodName),
    ("SLOT", Word::Slot),
];

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word) = self;
        write!(f, "unknown placeholder {{{{{word}}}}}; known:")?;
        for (i, (name, _)) in WORDS.iter().enumerate() {
            write!(f, "{} {{{{{name}}}}}", if i == 0 { "" } else { "," })?;
        }
        write!(f, "; {{{{{{{{{word}}}}}}}}} is a literal {{{{{word}}}}}")
    }
}

/// Splits a text into literal text and placeholders. Only `{{[A-Z_]+}}` is a placeholder;
/// `{{{{X}}}}` is a literal `{{X}}`.
pub fn split(text: &str) -> Result<Vec<Piece<'_>>, UnknownWord> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut from = 0;
    while let Some(found) = rest.get(from..).and_then(|tail| tail.find("{{")) {
        let start = from + found;
        let (before, tail) = rest.split_at(start);
        if let Some(len) = quoted_len(tail) {
            pieces.push(Piece::Text(before));
            pieces.push(Piece::Text(&tail[2..len - 2]));
            (rest, from) = (&tail[len..], 0);
        } else if let Some(name) = word(tail) {
            let known = WORDS.iter().find(|(known, _)| *known == name);
            let (_, word) = known.ok_or_else(|| UnknownWord(name.to_owned()))?;
            pieces.push(Piece::Text(before));
            pieces.push(Piece::Word(*word));
            (rest, from) = (&tail[name.len() + 4..], 0);
        } else {
            from = start + 1;
        }
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| *piece != Piece::Text(""));
    Ok(pieces)
}

/// The X of a text that starts with `{{X}}`.
fn word(text: &str) -> Option<&str> {
    let text = text.strip_prefix("{{")?;
    let len = text.bytes().take_while(|c| c.is_ascii_uppercase() || *c == b'_').count();
    (len > 0 && text[len..].starts_with("}}")).then(|| &text[..len])
}

/// The length of the `{{{{X}}}}` that a text starts with.
fn quoted_len(text: &str) -> Option<usize> {
    let inner = word(text.strip_prefix("{{")?)?;
    let len = inner.len() + 8;
    text.get(..len)?.ends_with("}}}}").then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = match split(text) {
            Err(UnknownWord(word)) => format!("unknown {word}"),
            Ok(pieces) => pieces
                .iter()
                .map(|piece| match piece {
                    Piece::Text(text) => (*text).to_owned(),
                    Piece::Word(word) => format!("<{word:?}>"),
                })
                .collect(),
        };
        assert_eq!(got, want, "{text:?}");
    }

    #[test]
    fn only_upper_case_words_in_two_braces_are_placeholders() {
        check("", "");
        check("plain", "plain");
        check("{{APP}}", "<App>");
        check("a{{EXECUTOR_ID}}b{{SLOT}}", "a<ExecutorId>b<Slot>");
        check("{{GROUP}}{{INSTANCE}}{{POD_NAME}}", "<Group><Instance><PodName>");
        check("tcp://{{DRIVER_HOST}}:7077", "tcp://<DriverHost>:7077");
        check("{{FOO}}", "unknown FOO");
        check("{{{{FOO}}}}", "{{FOO}}");
        check("x{{{{APP}}}}y{{APP}}", "x{{APP}}y<App>");
        check("{{{APP}}}", "{<App>}");
        check("{{{{APP}}", "{{<App>");
        check("{{app}} {{ APP }} {{APP1}} {{}} {{", "{{app}} {{ APP }} {{APP1}} {{}} {{");
        check("{{.Values.x}}", "{{.Values.x}}");
        check("{{APP}", "{{APP}");
        check("é{{é{{APP}}é", "é{{é<App>é");
        check("{{{{{{{{APP}}}}}}}}", "{{{{{{APP}}}}}}");
        check("$(POSSE_EXECUTOR_ID)", "$(POSSE_EXECUTOR_ID)");
    }

    #[test]
    fn the_error_for_an_unknown_word_lists_the_known_ones() {
        let text = UnknownWord("FOO".to_owned()).to_string();
        assert!(text.starts_with("unknown placeholder {{FOO}}; known: {{APP}}, {{DRIVER_HOST}}"));
        assert!(text.ends_with("{{{{FOO}}}} is a literal {{FOO}}"), "{text}");
    }
}
