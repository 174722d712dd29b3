//! docs/STABILITY.md against the program, and what a version promised against this one.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use posse_wire::config::{Config, Preset, SECTIONS, Stability};

use super::readme::{commands, first_cells, read, root, section, slug, table};

const PAGE: &str = "docs/STABILITY.md";
/// What 0.1 had and 0.2 left: what is in these files works until version 1.
const FIRST: &str = "fixtures/compat/0.1";
const FIRST_FILES: &str = "fixtures/compat/0.1/files";

/// Kind, name and word of everything that is not stable.
fn rows() -> Vec<(String, String, Stability)> {
    let mut rows = Vec::new();
    for cells in table(&read(PAGE), "| kind | beta | experimental |") {
        let [kind, beta, experimental] = <[String; 3]>::try_from(cells).unwrap();
        for (cell, word) in [(beta, Stability::Beta), (experimental, Stability::Experimental)] {
            let names = cell.split('`').skip(1).step_by(2);
            rows.extend(names.map(|name| (kind.clone(), name.to_owned(), word)));
        }
    }
    rows
}

/// Kind and name -> word.
fn told() -> BTreeMap<(String, String), Stability> {
    rows().into_iter().map(|(kind, name, word)| ((kind, name), word)).collect()
}

/// `executors[].scale`: the place of a section, or a key with its place.
fn path(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// The names that a user may rely on, by kind. Other tests compare the tables of the pages with the program.
fn known(kind: &str) -> BTreeSet<String> {
    let of = |page: &str, heading: &str, head: &str| -> BTreeSet<String> {
        first_cells(section(&read(page), heading), head).into_iter().collect()
    };
    match kind {
        "command" => commands().into_keys().map(|command| format!("posse {command}")).collect(),
        "flag" => {
            let of_command = |(command, flags): (String, BTreeSet<String>)| {
                let names = flags.into_iter().flat_map(|flag| names(&flag));
                names.map(move |name| format!("posse {command} {name}")).collect::<Vec<_>>()
            };
            commands().into_iter().flat_map(of_command).collect()
        }
        "call" => of("docs/CONTROL_API.md", "Calls", "| call |"),
        "event" => of("docs/CONTROL_API.md", "Events", "| event |"),
        "reason" => of("docs/CONTROL_API.md", "Reasons for a loss", "| reason |"),
        "metric" => {
            let cells = of("docs/MONITORING.md", "Metrics", "| metric |");
            let names = cells.iter().flat_map(|cell| cell.split(", "));
            names.map(|name| name.split('{').next().unwrap().to_owned()).collect()
        }
        "exit code" => of("docs/CLI.md", "Exit codes", "| code |"),
        "variable" => {
            let cells = of("docs/CLI.md", "Environment", "| variable |");
            cells.iter().flat_map(|cell| cell.split(", ").map(str::to_owned)).collect()
        }
        other => panic!("{other} is no kind"),
    }
}

/// `-f` and `--config` of `-f, --config <FILE>`.
fn names(flag: &str) -> Vec<String> {
    let words = flag.split([' ', ',', '=', '[', '.']).filter(|word| word.starts_with('-'));
    words.map(str::to_owned).collect()
}

#[test]
fn what_is_not_stable_exists_and_has_one_of_the_words() {
    let page = read(PAGE);
    let words: Vec<&str> = Stability::ALL.into_iter().map(Stability::as_str).collect();
    assert_eq!(first_cells(&page, "| word | promise |"), words);
    let told = told();
    assert!(told.len() > 30, "{told:?}");
    assert_eq!(rows().len(), told.len(), "{PAGE} names something twice");
    for (kind, name) in told.into_keys() {
        assert!(known(&kind).contains(&name), "{PAGE}: there is no {kind} {name}");
    }
}

/// The word of a key stands in its description. A flag that sets a key has the word of the key.
#[test]
fn flags_of_keys_have_their_words() {
    let told = told();
    let flags = known("flag");
    let mut n_flags = 0;
    let (_, keys) = SECTIONS.iter().find(|(place, _)| place.is_empty()).unwrap();
    for key in keys.iter().filter(|key| key.stability != Stability::Stable) {
        let flag = format!("posse run --{}", key.name.replace('_', "-"));
        if flags.contains(&flag) {
            let word = told.get(&("flag".to_owned(), flag.clone()));
            assert_eq!(word, Some(&key.stability), "{flag}");
            n_flags += 1;
        }
    }
    assert!(n_flags > 0);
}

fn kept(name: &str) -> Vec<Vec<String>> {
    let text = read(&format!("{FIRST}/{name}"));
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

#[test]
fn a_file_of_the_first_version_loads() {
    let mut n_files = 0;
    for entry in fs::read_dir(root().join(FIRST_FILES)).unwrap() {
        let path = entry.unwrap().path();
        let text = fs::read_to_string(&path).unwrap();
        let name = path.display().to_string();
        Config::parse(&name, &text).unwrap_or_else(|error| panic!("{error}"));
        n_files += 1;
    }
    assert!(n_files > 30, "{n_files}");
}

/// A key, and what it means if nobody writes it.
#[test]
fn the_keys_of_the_first_version_have_their_defaults() {
    let kept = kept("keys.tsv");
    for line in &kept {
        let [place, name, default] = &line[..] else { panic!("{line:?}") };
        let (_, keys) = SECTIONS.iter().find(|(known, _)| known == place).unwrap();
        let key = keys.iter().find(|key| key.name == name);
        let key = key.unwrap_or_else(|| panic!("{} was a key of 0.1", path(place, name)));
        let now = match key.default {
            Preset::Is(value) => format!("`{value}`"),
            Preset::Told { words, .. } => words.to_owned(),
        };
        if !CHANGED.contains(&path(place, name).as_str()) {
            assert_eq!(now, *default, "the default of {}", path(place, name));
        }
    }
    assert!(kept.len() > 100, "{}", kept.len());
}

/// Keys whose default is another one now. docs/UPGRADING.md tells them.
const CHANGED: [&str; 3] = ["driver.container", "executors[].container", "failures.start"];

#[test]
fn changed_defaults_are_told() {
    let page = read("docs/UPGRADING.md");
    for key in CHANGED {
        assert!(page.contains(&format!("`{key}`")), "docs/UPGRADING.md does not name {key}");
    }
}

/// Flags that are gone. docs/UPGRADING.md tells what to write instead.
const GONE: [(&str, &str); 7] = [
    ("posse kill", "--replace"),
    ("posse logs", "--executor"),
    ("posse render", "--server-check"),
    ("posse run", "--progress"),
    ("posse status", "-w"),
    ("posse status", "--watch"),
    ("posse submit", "--wait"),
];

#[test]
fn flags_that_are_gone_are_told() {
    let page = read("docs/UPGRADING.md");
    for (command, flag) in GONE {
        assert!(page.contains(&format!("`{command} {flag}")), "{command} {flag}");
    }
}

#[test]
fn the_names_of_the_first_version_are_known() {
    let mut n_names = 0;
    for line in kept("names.tsv") {
        match &line[..] {
            [kind, heading, flag] if kind == "flag" => {
                let now = flags_of(&read("docs/CLI.md"), &shown(heading));
                for name in names(flag) {
                    let is_gone = GONE.contains(&(heading.as_str(), name.as_str()));
                    assert!(is_gone != now.contains(&name), "{heading} had {name}");
                }
            }
            [kind, name] => assert!(known(kind).contains(name), "{kind} {name} of 0.1 is gone"),
            other => panic!("{other:?}"),
        }
        n_names += 1;
    }
    assert!(n_names > 250, "{n_names}");
}

/// The names of the flags of a section, and of the sections of shared flags to which it leads.
fn flags_of(page: &str, heading: &str) -> BTreeSet<String> {
    let text = section(page, heading);
    let cells = table(text, "| flag |").into_iter().map(|cells| cells[0].replace('`', ""));
    let mut found: BTreeSet<String> = cells.flat_map(|flag| names(&flag)).collect();
    for shared in ["Control flags", "Server flags"] {
        if shared != heading && text.contains(&format!("](#{})", slug(shared))) {
            found.extend(flags_of(page, shared));
        }
    }
    found
}

/// The heading of a command or of shared flags.
fn shown(heading: &str) -> String {
    if heading.starts_with("posse ") { format!("`{heading}`") } else { heading.to_owned() }
}
