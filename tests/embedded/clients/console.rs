//! A terminal session: commands and their expected output.
//!
//! ```text
//! $ kubectl get pods
//! > --no-headers
//! a   1/1   Running   0   [..]
//! ```
//!
//! `$` begins a command and `>` continues it; the output, including standard error, follows. `[..]`
//! matches any text within a line, a line `...` matches any lines, a last line `[3]` means exit
//! code 3. Spaces count as one. A command after `# only: WORD...` runs only if all of the words
//! hold; other lines that begin with `#` are comments.

use std::fmt::Write as _;

/// A command and its expected output.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    pub command: String,
    expected: Vec<String>,
    code: i32,
    only: Vec<String>,
}

/// Parses a session and leaves out commands whose `# only:` words do not hold.
pub fn steps(text: &str, holds: impl Fn(&str) -> bool) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut only: Vec<String> = Vec::new();
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("# only: ") {
            only = words.split(' ').map(str::to_owned).collect();
        } else if line.starts_with('#') {
        } else if let Some(command) = line.strip_prefix("$ ") {
            let only = std::mem::take(&mut only);
            steps.push(Step { command: command.to_owned(), only, ..Step::default() });
        } else if let Some(step) = steps.last_mut() {
            let code = line.strip_prefix('[').and_then(|l| l.strip_suffix(']')?.parse().ok());
            match (line.strip_prefix('>'), code) {
                (Some(more), _) if step.expected.is_empty() => {
                    write!(step.command, "\n{}", more.strip_prefix(' ').unwrap_or(more)).unwrap();
                }
                (_, Some(code)) => step.code = code,
                _ => step.expected.push(plain(line)),
            }
        }
    }
    for step in &mut steps {
        while step.expected.last().is_some_and(String::is_empty) {
            step.expected.pop();
        }
    }
    steps.retain(|step| step.only.iter().all(|word| holds(word)));
    steps
}

/// One script of all commands, which prints a marker after each.
pub fn script(steps: &[Step]) -> String {
    let mut script = String::from(PRELUDE);
    for (i, step) in steps.iter().enumerate() {
        write!(script, "{}\nprintf '\\n@@%d %d\\n' {i} $?\n", step.command).unwrap();
    }
    script
}

/// `until_says FILE PATTERN` waits for a line, `until_fails COMMAND` waits until something is gone. `made KIND ARGS` is
/// `kubectl create KIND ARGS` in JSON: by itself a newer kubectl sends protobuf, which the embedded cluster refuses.
const PRELUDE: &str = r#"exec 2>&1
trap 'kill $(jobs -p) 2>/dev/null' EXIT
patiently() { local n=0; until "$@"; do n=$((n+1)); [ $n -lt 3000 ] || return 1; sleep 0.1; done; }
until_says() { patiently grep -qs -e "$2" "$1" || { echo "$1 never said $2:"; cat "$1"; return 1; }; }
fails() { ! "$@" >/dev/null 2>&1; }
made() { kubectl create "$1" --dry-run=client -o=yaml "${@:2}" | kubectl create -f -; }
until_fails() { patiently fails "$@" || { echo "never failed: $*"; return 1; }; }
"#;

/// The differences from the expected output; empty if there is none.
pub fn differences(steps: &[Step], output: &str) -> String {
    let mut found = String::new();
    let mut rest = output;
    for (i, step) in steps.iter().enumerate() {
        let mark = format!("\n@@{i} ");
        let Some((text, after)) = rest.split_once(&mark) else {
            write!(found, "\n$ {}\nnever ended; it said:\n{rest}", step.command).unwrap();
            return found;
        };
        let (code, after) = after.split_once('\n').unwrap_or((after, ""));
        rest = after;
        let lines: Vec<String> = text.trim_end().lines().map(plain).collect();
        if code != step.code.to_string() || !match_lines(&step.expected, &lines) {
            write!(
                found,
                "\n$ {}\n--- expected, with code {}\n{}\n--- printed, with code {code}\n{}\n",
                step.command,
                step.code,
                step.expected.join("\n"),
                text.trim_end()
            )
            .unwrap();
        }
    }
    found
}

/// Collapses runs of spaces and trims the line.
fn plain(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn match_lines(expected: &[String], lines: &[String]) -> bool {
    match expected {
        [] => lines.is_empty(),
        [any, rest @ ..] if any == "..." => {
            (0..=lines.len()).any(|from| match_lines(rest, &lines[from..]))
        }
        [first, rest @ ..] => lines
            .split_first()
            .is_some_and(|(line, lines)| match_line(first, line) && match_lines(rest, lines)),
    }
}

fn match_line(pattern: &str, line: &str) -> bool {
    match pattern.split_once("[..]") {
        None => pattern == line,
        Some((head, tail)) => line.strip_prefix(head).is_some_and(|rest| {
            let mut ends = rest.char_indices().map(|(i, _)| i).chain([rest.len()]);
            ends.any(|from| match_line(tail, &rest[from..]))
        }),
    }
}

/// Tests `differences` itself.
pub fn check_itself() {
    let text = "# why\n$ a\n> b\nx [..] y\n...\n[3]\n# only: real\n$ c\n\n$ d\n1   2\n\n";
    let steps = steps(text, |word| word != "real");
    assert_eq!(steps.len(), 2, "{steps:?}");
    assert_eq!(steps[0].command, "a\nb");
    let good = "x anything  y\nand\nmore\n\n@@0 3\n1 2\n\n@@1 0\n";
    assert_eq!(differences(&steps, good), "");
    for bad in [
        "x anything y\n\n@@0 0\n1 2\n\n@@1 0\n",
        "x anything z\n\n@@0 3\n1 2\n\n@@1 0\n",
        "x anything y\n\n@@0 3\n1 2\n3\n\n@@1 0\n",
        "x anything y\n\n@@0 3\n1 2\n",
    ] {
        assert_ne!(differences(&steps, bad), "", "{bad}");
    }
}
