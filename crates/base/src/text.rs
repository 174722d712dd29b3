//! Makes texts from servers and programs safe to print: one line, limited length, no characters that
//! a terminal obeys or does not show, no passwords of URLs.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Marks where a text was cut.
const CUT: &str = "...";

/// The beginning of `text` on one line of at most `bytes_max` bytes. Line ends and tabs, with the
/// spaces after them, become one space. Control and bidirectional formatting characters are escaped
/// like `\u{1b}`. A sanitized line stays the same.
pub fn sanitize(text: &str, bytes_max: usize) -> String {
    let mut line = String::new();
    let mut is_gap = false;
    for c in text.trim().chars() {
        if is_line_end(c) {
            is_gap = true;
            continue;
        }
        if is_gap && c == ' ' {
            continue;
        }
        if is_gap && !line.ends_with(' ') {
            line.push(' ');
        }
        is_gap = false;
        push_safe(&mut line, c);
        if line.len() > bytes_max {
            line.truncate(line.floor_char_boundary(bytes_max.saturating_sub(CUT.len())));
            line.push_str(CUT);
            break;
        }
    }
    line
}

/// The same, but keeps the end of the text: programs print the error last.
pub fn sanitize_end(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    if text.len() <= bytes_max {
        return sanitize(text, bytes_max);
    }
    let available = bytes_max.saturating_sub(CUT.len());
    let end = &text[text.ceil_char_boundary(text.len() - available)..];
    sanitize(&format!("{CUT}{end}"), bytes_max)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// The text on one line: each line end and tab becomes a space, other unsafe characters are escaped
/// like `\u{1b}`. For a name or a message inside a line.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escape_all(text, |line, c| if is_line_end(c) { line.push(' ') } else { push_safe(line, c) })
}

/// The text as a terminal may show it: line feeds and tabs stay, other unsafe characters are escaped
/// like `\u{1b}`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_all(text, |line, c| match c {
        '\n' | '\t' => line.push(c),
        c => push_safe(line, c),
    })
}

/// JSON with its unsafe characters as escapes of JSON: the same value, safe to print. They can only
/// be inside of strings. Line feeds stay.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    escape_all(json, |line, c| {
        if c == '\n' || !is_unsafe(c) {
            return line.push(c);
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            push_format(line, format_args!("\\u{unit:04x}"));
        }
    })
}

/// Borrowed if the text has no unsafe characters.
fn escape_all(text: &str, mut push: impl FnMut(&mut String, char)) -> Cow<'_, str> {
    if !text.chars().any(is_unsafe) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    text.chars().for_each(|c| push(&mut escaped, c));
    Cow::Owned(escaped)
}

fn push_safe(line: &mut String, c: char) {
    match is_unsafe(c) {
        true => push_format(line, format_args!("\\u{{{:x}}}", u32::from(c))),
        false => line.push(c),
    }
}

fn push_format(line: &mut String, what: std::fmt::Arguments<'_>) {
    line.write_fmt(what).expect("a String takes whatever is written to it");
}

/// True for characters that a terminal obeys, that change the order or the look of the text around
/// them, or that it does not show: controls (C0, DEL, C1), bidirectional controls (Unicode TR 9),
/// zero-width characters, line separators, tags.
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// A URL for errors and log lines: without user, password and query. Also for texts that are not quite
/// URLs: everything before the last `@` is left out, because a password may contain any character.
pub fn without_secrets(url: &str) -> String {
    let start = url.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = url.split_at(start);
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    let (path, query) = rest.split_once('?').map_or((rest, ""), |(path, _)| (path, "?***"));
    format!("{scheme}{user}{path}{query}")
}

/// An age in the format of kubectl: at most two units.
pub fn age(seconds: i64) -> String {
    let s = seconds.max(0);
    let (m, h, d) = (s / 60, s / 3_600, s / 86_400);
    match () {
        () if s < 120 => format!("{s}s"),
        () if m < 10 => format!("{m}m{}s", s % 60),
        () if m < 180 => format!("{m}m"),
        () if h < 8 => format!("{h}h{}m", m % 60),
        () if h < 48 => format!("{h}h"),
        () if d < 8 => format!("{d}d{}h", h % 24),
        () => format!("{d}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_printed_as_kubectl_does() {
        for (s, want) in [
            (-1, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (601, "10m"),
            (4 * 3_600 + 60, "4h1m"),
            (20 * 3_600, "20h"),
            (3 * 86_400, "3d0h"),
            (30 * 86_400, "30d"),
        ] {
            assert_eq!(age(s), want);
        }
    }

    #[test]
    fn a_text_becomes_one_bounded_line() {
        for (text, bytes_max, want) in [
            ("", 8, ""),
            ("all good", 8, "all good"),
            ("  a\n\n\tb \r\n c\n", 80, "a b c"),
            ("\u{1b}[2Jgone\u{7}", 80, "\\u{1b}[2Jgone\\u{7}"),
            ("a\u{202e}b\u{2028}c\u{9b}", 80, "a\\u{202e}b c\\u{9b}"),
            ("123456789", 8, "12345..."),
            ("1234\u{e4}6789", 8, "1234..."),
            ("\u{1b}\u{1b}", 8, "\\u{1b..."),
        ] {
            let got = sanitize(text, bytes_max);
            assert_eq!(got, want, "{text:?}");
            assert_eq!(sanitize(&got, bytes_max), got, "a sanitized line stays the same");
        }
    }

    #[test]
    fn no_unsafe_character_stays() {
        let samples = "\0\u{7}\u{8}\r\u{b}\u{1b}[31m\u{7f}\u{80}\u{9b}2J\u{ad}\u{61c}\u{180e}\u{200b}\u{200d}\
            \u{200f}\u{2028}\u{2029}\u{202a}\u{202e}\u{2060}\u{2066}\u{2069}\u{feff}\u{fffb}\u{e0041}\t\n";
        let safe = |text: &str| !text.contains(|c| is_unsafe(c) && c != '\n' && c != '\t');
        assert!(safe(&printable(samples)) && printable(samples).ends_with("\\u{e0041}\t\n"));
        assert!(!one_line(samples).contains(is_unsafe));
        assert!(!sanitize(samples, 4_096).contains(is_unsafe));
        assert!(safe(&printable_json(samples)));
        for plain in ["", "a \u{e4} \u{1F600} {\"b\": [1]}"] {
            assert!(matches!(one_line(plain), Cow::Borrowed(text) if text == plain));
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        }
        assert_eq!(one_line("a\nFAKE b\t\r\nc"), "a FAKE b   c");
        assert_eq!(printable_json("{\n\"\u{202e}\u{e0041}\"}"), "{\n\"\\u202e\\udb40\\udc41\"}");
    }

    #[test]
    fn passwords_are_left_out_of_urls() {
        for (url, want) in [
            ("https://host:6443/a", "https://host:6443/a"),
            ("https://me:secret@host/a", "https://***@host/a"),
            ("https://me:sec/ret@host", "https://***@host"),
            ("https://me:sec@ret@host", "https://***@host"),
            ("me:secret@host", "***@host"),
            ("tcp:me:secret@host", "***@host"),
            ("https://secret@", "https://***@"),
            ("https://host/?token=secret", "https://host/?***"),
            ("https://me:sec?ret@host/?a", "https://***@host/?***"),
        ] {
            assert_eq!(without_secrets(url), want);
        }
    }

    #[test]
    fn the_end_of_a_long_text_is_kept() {
        for (text, bytes_max, want) in [
            ("short\n", 8, "short"),
            ("Traceback\nKeyError", 11, "...KeyError"),
            ("123456\u{e4}89", 8, "...6\u{e4}89"),
            ("1234\u{e4}6789", 8, "...6789"),
        ] {
            assert_eq!(sanitize_end(text, bytes_max), want, "{text:?}");
        }
    }
}
