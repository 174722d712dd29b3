//! Owns making words of others harmless: one line, bounded, nothing that moves a terminal. Says
//! nothing about what they mean.

/// What stands where words were cut.
const CUT: &str = "...";

/// `text` on one line of at most `bytes_max` bytes, from its beginning. Line ends and tabs, with
/// the spaces after them, become one space; what would steer a terminal or turn the direction of writing is written as `\u{1b}`.
/// Words that are harmless already stay as they are.
#[must_use]
pub fn harmless(text: &str, bytes_max: usize) -> String {
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
        if c.is_control() || turns_writing(c) {
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

/// The same from its end: there a program's last words say what happened.
#[must_use]
pub fn harmless_end(text: &str, bytes_max: usize) -> String {
    let text = text.trim();
    if text.len() <= bytes_max {
        return harmless(text, bytes_max);
    }
    let room = bytes_max.saturating_sub(CUT.len());
    let end = &text[text.ceil_char_boundary(text.len() - room)..];
    harmless(&format!("{CUT}{end}"), bytes_max)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\t'..='\r' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn turns_writing(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_one_bounded_line() {
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
            let got = harmless(text, bytes_max);
            assert_eq!(got, want, "{text:?}");
            assert_eq!(harmless(&got, bytes_max), got, "what is harmless stays");
        }
    }

    #[test]
    fn of_last_words_the_end_stays() {
        for (text, bytes_max, want) in [
            ("short\n", 8, "short"),
            ("Traceback\nKeyError", 11, "...KeyError"),
            ("123456\u{e4}89", 8, "...6\u{e4}89"),
            ("1234\u{e4}6789", 8, "...6789"),
        ] {
            assert_eq!(harmless_end(text, bytes_max), want, "{text:?}");
        }
    }
}
