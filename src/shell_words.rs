//! Splits a command into words as a POSIX shell does, without starting a shell. The crate shlex says only that a text cannot be
//! split: not which quote has no end, nor that an operator needs a shell.

use std::str::Chars;

/// What a shell reads as an operator if it is not quoted. No program would get these characters.
const OPERATORS: &str = "|&;<>`";

/// The words of a command. Quotes and backslashes mean what they mean to a shell. Variables, `~` and
/// wildcards are not expanded.
///
/// # Errors
/// There is no word, a quote has no end, or an operator of the shell is not quoted.
pub fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            ' ' | '\t' | '\r' | '\n' => words.extend(word.take()),
            '\'' => single_quoted(&mut rest, word.get_or_insert_default())?,
            '"' => double_quoted(&mut rest, word.get_or_insert_default())?,
            '\\' => match rest.next() {
                Some('\n') => {}
                Some(escaped) => word.get_or_insert_default().push(escaped),
                None => return Err("nothing follows the last `\\`".to_owned()),
            },
            c if OPERATORS.contains(c) => {
                return Err(format!(
                    "posse starts no shell for it, and `{c}` needs one: write sh -c '...', or quote \
                     the `{c}`"
                ));
            }
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    match words.first() {
        None => Err("there is no word in it".to_owned()),
        Some(program) if program.is_empty() => Err("its first word is empty".to_owned()),
        Some(_) => Ok(words),
    }
}

fn single_quoted(rest: &mut Chars<'_>, word: &mut String) -> Result<(), String> {
    for c in rest {
        match c {
            '\'' => return Ok(()),
            c => word.push(c),
        }
    }
    Err("a `'` has no end".to_owned())
}

/// Between double quotes a backslash escapes only the characters that are special there (POSIX,
/// Shell Command Language 2.2.3).
fn double_quoted(rest: &mut Chars<'_>, word: &mut String) -> Result<(), String> {
    while let Some(c) = rest.next() {
        match c {
            '"' => return Ok(()),
            '\\' => match rest.next() {
                Some('\n') => {}
                Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                Some(c) => word.extend(['\\', c]),
                None => break,
            },
            c => word.push(c),
        }
    }
    Err("a `\"` has no end".to_owned())
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn words_are_those_of_a_shell() {
        for (text, want) in [
            ("python3 worker.py", &["python3", "worker.py"][..]),
            ("  a\t b \n", &["a", "b"]),
            (r#"sh -c 'echo "$A" | wc -l; exit'"#, &["sh", "-c", r#"echo "$A" | wc -l; exit"#]),
            (r#"a "b 'c' \"d\" \$e \n" f"#, &["a", r#"b 'c' "d" $e \n"#, "f"]),
            (r"a\ b \'c \\ d\|e", &["a b", "'c", r"\", "d|e"]),
            ("a'b'\"c\"d '' \"\"", &["abcd", "", ""]),
            ("a \\\n b", &["a", "b"]),
            (
                "w --to=$(POSSE_DRIVER_HOST):1 {{SLOT}} *.txt ~ #x",
                &["w", "--to=$(POSSE_DRIVER_HOST):1", "{{SLOT}}", "*.txt", "~", "#x"],
            ),
            ("ü '数据'", &["ü", "数据"]),
        ] {
            assert_eq!(split(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn what_needs_a_shell_or_has_no_end_is_an_error() {
        for (text, want) in [
            ("", "there is no word"),
            (" \n", "there is no word"),
            ("'' a", "its first word is empty"),
            ("it's", "a `'` has no end"),
            ("a \"b", "a `\"` has no end"),
            ("a \"b\\", "a `\"` has no end"),
            ("a \\", "nothing follows"),
            ("a | b", "`|` needs one: write sh -c"),
            ("a>b", "`>` needs one"),
            ("a&", "`&` needs one"),
            ("a;b", "`;` needs one"),
            ("a `b`", "quote the ```"),
        ] {
            let error = split(text).unwrap_err();
            assert!(error.contains(want), "{text:?}: {error}");
        }
    }
}
