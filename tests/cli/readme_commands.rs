//! What docs/CLI.md says of commands and flags is what `--help` says: UPDATE_DOCS=1 writes it. The text after the
//! table of a command is written by hand.

#![allow(clippy::unwrap_used)]

use std::fs;

use super::readme::{commands, posse, read, root, section, slug};

const PAGE: &str = "docs/CLI.md";
const FLAGS: &str = "| flag | meaning |";
/// Flags of many commands: their section, a command that has them, and the headings of its help.
const SHARED: [(&str, &str, &[&str]); 5] = [
    (CONFIGURATION, "run", &["Configuration", "Executors, if there is only one group"]),
    (CONTROL, "status", &["Which run"]),
    (SERVER, "run", &["API server"]),
    ("Task flags", "task wait", &["Which group"]),
    ("Output flags", "status", &["Output"]),
];
const CONFIGURATION: &str = "Configuration flags";
const CONTROL: &str = "Control flags";
/// The flags of every command that has one of the other two.
const SERVER: &str = "Server flags";
const GLOBAL: &str = "Global flags";

struct Help {
    about: String,
    usage: String,
    /// Each flag's heading, and its row.
    flags: Vec<(String, String)>,
}

impl Help {
    fn of(command: &str) -> Self {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let text = posse(&words);
        let (about, rest) = text.split_once("\n\n").unwrap();
        let (usage, rest) = rest.split_once("\n\n").unwrap();
        Self {
            about: joined(about),
            usage: joined(usage.trim_start_matches("Usage:")),
            flags: flags(rest),
        }
    }

    fn has(&self, heading: &str) -> bool {
        self.flags.iter().any(|(of, _)| of == heading)
    }

    fn rows(&self, headings: &[&str]) -> Vec<String> {
        let found = self.flags.iter().filter(|(of, _)| headings.contains(&of.as_str()));
        found.map(|(_, row)| row.clone()).collect()
    }
}

fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn flags(help: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String, String)> = Vec::new();
    let (mut heading, mut is_open) = (String::new(), false);
    for line in help.lines() {
        let words = line.trim_start();
        if !line.starts_with(' ') && line.ends_with(':') {
            (heading, is_open) = (line.trim_end_matches(':').to_owned(), false);
        } else if line.starts_with(' ') && words.starts_with('-') && !words.starts_with("- ") {
            let (name, text) = words.split_once("  ").unwrap_or((words, ""));
            found.push((heading.clone(), name.to_owned(), text.to_owned()));
            is_open = true;
        } else if let Some((_, _, text)) = found.last_mut().filter(|_| is_open) {
            match words.strip_prefix("- ").map(|value| value.split_once(':').unwrap_or((value, "")))
            {
                Some((value, "")) => text.push_str(&format!("; `{value}`")),
                Some((value, meaning)) => {
                    text.push_str(&format!("; `{value}`: {}", meaning.trim_start()))
                }
                None if ["", "Possible values:"].contains(&words) => {}
                None => text.push_str(&format!(" {words}")),
            }
        }
    }
    let found = found
        .into_iter()
        .filter(|(_, name, _)| !["-h, --help", "-V, --version"].contains(&name.as_str()));
    found
        .map(|(of, name, text)| (of, format!("| `{}` | {} |", joined(&name), joined(&text))))
        .collect()
}

fn table_of(rows: &[String]) -> String {
    format!("{FLAGS}\n|---|---|\n{}", rows.join("\n"))
}

/// The flags of a section of shared ones.
fn shared(heading: &str) -> Vec<String> {
    if heading == GLOBAL {
        return Help::of("").rows(&["Options"]);
    }
    let (_, command, headings) = SHARED.into_iter().find(|(of, _, _)| *of == heading).unwrap();
    Help::of(command).rows(headings)
}

/// What stands under the heading of a command.
fn told(command: &str) -> String {
    let help = Help::of(command);
    let has = |headings: &[&str]| headings.iter().any(|heading| help.has(heading));
    let all = SHARED.iter().filter(|(_, _, headings)| has(headings)).map(|(of, _, _)| *of);
    let mut linked: Vec<&str> = all.collect();
    let known: Vec<String> = linked.iter().copied().chain([GLOBAL]).flat_map(shared).collect();
    if linked.iter().any(|of| [CONFIGURATION, CONTROL].contains(of)) {
        assert!(linked.contains(&SERVER), "posse {command} has no server flags");
        linked.retain(|of| *of != SERVER);
    }
    let links = linked.iter().map(|of| format!(" [{}](#{})", of.to_lowercase(), slug(of)));
    let links = links.collect::<Vec<_>>().join(",");
    let also = if links.is_empty() { links } else { format!(" Also:{links}.") };
    let mut text = format!("{}: `{}`.{also}", help.about, help.usage);
    let own: Vec<String> =
        help.flags.into_iter().map(|(_, row)| row).filter(|row| !known.contains(row)).collect();
    if !own.is_empty() {
        text.push_str(&format!("\n\n{}", table_of(&own)));
    }
    text
}

/// The page with `new` in place of the first paragraph of a section, and of its table of flags.
fn replaced(page: &str, heading: &str, new: &str) -> String {
    let text = section(page, heading);
    let mut parts = text.trim_start().splitn(3, "\n\n");
    let mut by_hand: Vec<&str> = parts.by_ref().skip(1).collect();
    by_hand.retain(|part| !part.starts_with(FLAGS));
    let by_hand: String = by_hand.iter().map(|part| format!("\n\n{}", part.trim_end())).collect();
    with_section(page, heading, &format!("\n{new}{by_hand}\n"))
}

fn with_section(page: &str, heading: &str, text: &str) -> String {
    let start = format!("\n## {heading}\n");
    page.replace(&format!("{start}{}", section(page, heading)), &format!("{start}{text}"))
}

#[test]
fn the_commands_are_told_in_the_words_of_their_help() {
    let page = read(PAGE);
    let mut wanted = page.clone();
    for heading in SHARED.iter().map(|(of, _, _)| *of).chain([GLOBAL]) {
        let text = section(&wanted, heading);
        let old = text.split("\n\n").map(str::trim).find(|part| part.starts_with(FLAGS)).unwrap();
        let new = text.replace(old, &table_of(&shared(heading)));
        wanted = with_section(&wanted, heading, &new);
    }
    for command in commands().keys() {
        wanted = replaced(&wanted, &format!("`posse {command}`"), &told(command));
    }
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(root().join(PAGE), &wanted).unwrap();
        return;
    }
    for (line, (is, want)) in page.lines().zip(wanted.lines()).enumerate() {
        assert_eq!(is, want, "{PAGE}:{}: UPDATE_DOCS=1 writes it", line + 1);
    }
    assert_eq!(page.len(), wanted.len(), "{PAGE}: UPDATE_DOCS=1 writes it");
}
