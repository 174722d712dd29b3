//! Finds the placeholders in a text: `{{EXECUTOR_ID}}` and the others.

use std::fmt;

/// The known placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    App,
    Attempt,
    DriverHost,
    DriverPort,
    ExecutorId,
    Group,
    HostIp,
    Instance,
    NodeName,
    PodName,
    Slot,
}

/// A part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    Text(&'a str),
    Word(Word),
}

/// An invalid placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceholderError {
    /// There is no placeholder of this name.
    Unknown(String),
    /// The text is not a placeholder, but the name in it is known: with spaces or in lower case.
    Misspelt { text: String, meant: &'static str },
}

const WORDS: [(&str, Word); 11] = [
    ("APP", Word::App),
    ("ATTEMPT", Word::Attempt),
    ("DRIVER_HOST", Word::DriverHost),
    ("DRIVER_PORT", Word::DriverPort),
    ("EXECUTOR_ID", Word::ExecutorId),
    ("GROUP", Word::Group),
    ("HOST_IP", Word::HostIp),
    ("INSTANCE", Word::Instance),
    ("NODE_NAME", Word::NodeName),
    ("POD_NAME", Word::PodName),
    ("SLOT", Word::Slot),
];

impl fmt::Display for PlaceholderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self {
            Self::Unknown(word) => word,
            Self::Misspelt { text, meant } => {
                return write!(
                    f,
                    "{text} is not a placeholder: write {{{{{meant}}}}}, in capitals and without \
                     spaces, or {{{{{text}}}}} for the text {text}"
                );
            }
        };
        write!(f, "unknown placeholder {{{{{word}}}}}; known:")?;
        for (i, (name, _)) in WORDS.iter().enumerate() {
            write!(f, "{} {{{{{name}}}}}", if i == 0 { "" } else { "," })?;
        }
        write!(f, "; {{{{{{{{{word}}}}}}}}} is a literal {{{{{word}}}}}")
    }
}

/// Splits a text into literal text and placeholders. Only `{{[A-Z_]+}}` is a placeholder;
/// `{{{{X}}}}` is a literal `{{X}}`.
///
/// # Errors
/// A placeholder is unknown, or a known one is misspelt.
pub fn split(text: &str) -> Result<Vec<Piece<'_>>, PlaceholderError> {
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
            let (_, word) = known.ok_or_else(|| PlaceholderError::Unknown(name.to_owned()))?;
            pieces.push(Piece::Text(before));
            pieces.push(Piece::Word(*word));
            (rest, from) = (&tail[name.len() + 4..], 0);
        } else {
            check_spelling(tail)?;
            from = start + 1;
        }
    }
    pieces.push(Piece::Text(rest));
    pieces.retain(|piece| *piece != Piece::Text(""));
    Ok(pieces)
}

/// An error if the text starts with a known placeholder in another spelling: `{{ SLOT }}`, `{{slot}}`.
/// Other text in braces may be meant for somebody else.
fn check_spelling(text: &str) -> Result<(), PlaceholderError> {
    let Some((inner, _)) = text.strip_prefix("{{").and_then(|rest| rest.split_once("}}")) else {
        return Ok(());
    };
    let name = inner.trim().to_ascii_uppercase().replace('-', "_");
    match WORDS.iter().find(|(known, _)| *known == name) {
        Some((meant, _)) => {
            Err(PlaceholderError::Misspelt { text: format!("{{{{{inner}}}}}"), meant })
        }
        None => Ok(()),
    }
}

/// The X of a text that starts with `{{X}}`.
pub(super) fn word(text: &str) -> Option<&str> {
    let text = text.strip_prefix("{{")?;
    let len = text.bytes().take_while(|c| c.is_ascii_uppercase() || *c == b'_').count();
    (len > 0 && text[len..].starts_with("}}")).then(|| &text[..len])
}

/// The length of the `{{{{X}}}}` that a text starts with. X may be misspelt: it is literal text then.
fn quoted_len(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("{{")?;
    let len = match word(inner) {
        Some(word) => word.len(),
        None => check_spelling(inner).err().and_then(|_| inner.find("}}"))? - 2,
    } + 8;
    text.get(..len)?.ends_with("}}}}").then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = match split(text) {
            Err(PlaceholderError::Unknown(word)) => format!("unknown {word}"),
            Err(PlaceholderError::Misspelt { meant, .. }) => format!("meant {meant}"),
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
        check("{{NODE_NAME}}:{{HOST_IP}}", "<NodeName>:<HostIp>");
        check("tcp://{{DRIVER_HOST}}:{{DRIVER_PORT}}", "tcp://<DriverHost>:<DriverPort>");
        check("{{FOO}}", "unknown FOO");
        check("{{{{FOO}}}}", "{{FOO}}");
        check("x{{{{APP}}}}y{{APP}}", "x{{APP}}y<App>");
        check("{{{APP}}}", "{<App>}");
        check("{{{{APP}}", "{{<App>");
        check("{{APP1}} {{}} {{ x }} {{", "{{APP1}} {{}} {{ x }} {{");
        check("{{.Values.x}}", "{{.Values.x}}");
        check("{{APP}", "{{APP}");
        check("é{{é{{APP}}é", "é{{é<App>é");
        check("{{{{{{{{APP}}}}}}}}", "{{{{{{APP}}}}}}");
        check("$(POSSE_EXECUTOR_ID)", "$(POSSE_EXECUTOR_ID)");
    }

    #[test]
    fn a_known_placeholder_in_another_spelling_is_an_error() {
        check("{{app}}", "meant APP");
        check("a{{APP}}{{ EXECUTOR_ID }}", "meant EXECUTOR_ID");
        check("{{slot}}", "meant SLOT");
        check("{{ executor-id}}", "meant EXECUTOR_ID");
        check("a{{{{ slot }}}}b{{{{app}}}}", "a{{ slot }}b{{app}}");
        let said = split("{{ slot }}").unwrap_err().to_string();
        let want = "{{ slot }} is not a placeholder: write {{SLOT}}, in capitals and without spaces, \
                    or {{{{ slot }}}} for the text {{ slot }}";
        assert_eq!(said, want);
    }

    #[test]
    fn the_error_for_an_unknown_word_lists_the_known_ones() {
        let text = PlaceholderError::Unknown("FOO".to_owned()).to_string();
        assert!(text.starts_with(
            "unknown placeholder {{FOO}}; known: {{APP}}, {{ATTEMPT}}, {{DRIVER_HOST}}"
        ));
        assert!(text.ends_with("{{{{FOO}}}} is a literal {{FOO}}"), "{text}");
    }
}
