//! Makes texts from servers and programs safe to print: one line, limited length, no control
//! characters.

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
        if c.is_control() || is_bidi_control(c) {
            line.push_str(&format!("\\u{{{:x}}}", u32::from(c)));
        } else {
            line.push(c);
        }
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

fn is_bidi_control(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

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
