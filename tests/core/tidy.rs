//! The house keeps its rooms: imports point one way, the core stays pure, files and functions stay
//! small, nothing lies about unused. Each rule is a function from a text to complaints, and each is
//! shown a text that it must complain about.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// A room may use those to its right, and itself.
const ROOMS: [&str; 11] = [
    "cli", "submit", "stage", "dev", "runtime", "control", "serve", "kube", "wire", "clock", "core",
];

/// These stand beside one another, and none knows the other.
const BESIDE: [&str; 3] = ["submit", "stage", "dev"];

const CORE_LINES_MAX: usize = 400;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

/// What the core must not reach for: clocks, threads, locks, files, sockets, the process.
const IMPURE: [&str; 15] = [
    "Instant",
    "SystemTime",
    "std::thread",
    "std::fs",
    "std::io",
    "std::env",
    "std::process",
    "std::os",
    "Mutex",
    "RwLock",
    "Condvar",
    "sync::mpsc",
    "sync::atomic",
    "TcpStream",
    "UdpSocket",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder, by their path from the root, in order.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found.iter().map(|path| path.strip_prefix(root()).unwrap().to_owned()).collect()
}

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let rust = files(folder).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    rust.map(|path| (path.clone(), fs::read_to_string(root().join(&path)).unwrap())).collect()
}

/// Applies a rule to every source and fails with all complaints at once.
#[track_caller]
fn check(folders: &[&str], rule: impl Fn(&Path, &str) -> Vec<String>) {
    let mut complaints = Vec::new();
    let mut n_files = 0;
    for (path, text) in folders.iter().flat_map(|folder| sources(folder)) {
        n_files += 1;
        let found = rule(&path, &text);
        complaints.extend(found.into_iter().map(|what| format!("{}:{what}", path.display())));
    }
    assert!(n_files > 0, "no sources in {folders:?}");
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// The text before its test module, each line with its number, comments and blank lines left out.
fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let tests = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let lines = text[..tests].lines().enumerate().map(|(i, line)| (i + 1, line));
    lines.filter(|(_, line)| !line.trim().is_empty() && !line.trim_start().starts_with("//"))
}

/// The names that directly follow `prefix` in a line; braces give several.
fn names_after<'a>(line: &'a str, prefix: &str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for (at, _) in line.match_indices(prefix) {
        let before = line[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let rest = &line[at + prefix.len()..];
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let list = rest.split([';', '}']).next().unwrap_or_default();
        for part in list.split(',') {
            let part = part.trim_start();
            let end = part.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(part.len());
            names.push(&part[..end]);
            if !line[at + prefix.len()..].starts_with('{') {
                break;
            }
        }
    }
    names
}

fn room_of(path: &Path) -> Option<usize> {
    let room = path.components().nth(1)?.as_os_str().to_str()?;
    ROOMS.iter().position(|name| *name == room || format!("{name}.rs") == room)
}

fn imports_point_right(path: &Path, text: &str) -> Vec<String> {
    let Some(own) = room_of(path) else { return Vec::new() };
    let mut complaints = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for name in names_after(line, "crate::") {
            match ROOMS.iter().position(|room| *room == name) {
                Some(other) if other != own && are_beside(own, other) => {
                    complaints.push(format!("{}: {} stands beside {name}", i + 1, ROOMS[own]))
                }
                Some(other) if other < own => complaints.push(format!(
                    "{}: {} must not know {name}, which stands to its left",
                    i + 1,
                    ROOMS[own]
                )),
                Some(_) => {}
                None => complaints.push(format!("{}: no room is called {name:?}", i + 1)),
            }
        }
        if line.contains("super::super") {
            complaints.push(format!("{}: say crate::room:: instead of super::super", i + 1));
        }
    }
    complaints
}

fn are_beside(own: usize, other: usize) -> bool {
    BESIDE.contains(&ROOMS[own]) && BESIDE.contains(&ROOMS[other])
}

fn core_is_pure(path: &Path, text: &str) -> Vec<String> {
    if room_of(path) != Some(ROOMS.len() - 1) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (number, line) in code(text) {
        if let Some(import) = line.trim_start().trim_start_matches("pub ").strip_prefix("use ") {
            let first = import.split("::").next().unwrap_or_default();
            // A capital begins a type's name: an enum of the same file, whose variants are meant.
            let local = first.starts_with(char::is_uppercase);
            if !local && !matches!(first, "std" | "crate" | "self" | "super") {
                complaints.push(format!("{number}: the core uses std alone, not {first}"));
            }
        }
        for word in IMPURE.iter().filter(|word| line.contains(**word)) {
            complaints.push(format!("{number}: the core must not know {word}"));
        }
    }
    complaints
}

fn says_what_it_owns(_: &Path, text: &str) -> Vec<String> {
    if text.starts_with("//! ") { Vec::new() } else { vec!["1: no `//!` line".to_owned()] }
}

fn files_are_small(path: &Path, text: &str) -> Vec<String> {
    let cap = if path.starts_with("src/core") { CORE_LINES_MAX } else { FILE_LINES_MAX };
    let n_lines = code(text).count();
    if n_lines > cap { vec![format!("1: {n_lines} lines of code, over {cap}")] } else { Vec::new() }
}

/// The code is formatted, so a function ends where a brace stands under its first line. The tests'
/// tables are data and may be longer.
fn functions_are_small(path: &Path, text: &str) -> Vec<String> {
    let lines: Vec<(usize, &str)> = code(text).collect();
    let mut complaints = Vec::new();
    if path.ends_with("tests.rs") {
        return complaints;
    }
    for (i, (number, line)) in lines.iter().enumerate() {
        let code = line.trim_start();
        let is_function = code.starts_with("fn ")
            || (code.starts_with("pub") || code.starts_with("const ")) && code.contains(" fn ");
        if !is_function {
            continue;
        }
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        let n_lines = lines[i..].iter().position(|(_, line)| *line == end).unwrap_or(0);
        if n_lines > FUNCTION_LINES_MAX {
            complaints.push(format!("{number}: a function of {n_lines} lines"));
        }
    }
    complaints
}

#[test]
fn every_import_points_right() {
    check(&["src"], imports_point_right);
    let left = "use crate::kube::client::Client;\n";
    assert_eq!(imports_point_right(Path::new("src/core/plan.rs"), left).len(), 1);
    let beside = "use crate::dev::kind::Kind;\n";
    assert_eq!(imports_point_right(Path::new("src/submit/plan.rs"), beside).len(), 1);
    let braces = "use crate::{core::ids, runtime::engine};\n";
    assert_eq!(imports_point_right(Path::new("src/wire/pod.rs"), braces).len(), 1);
    assert_eq!(imports_point_right(Path::new("src/cli/mod.rs"), braces), [""; 0]);
    let deep = "    let now = crate::runtime::now(super::super::x);\n";
    assert_eq!(imports_point_right(Path::new("src/control/mod.rs"), deep).len(), 2);
}

#[test]
fn the_core_stays_pure() {
    check(&["src"], core_is_pure);
    let path = Path::new("src/core/plan.rs");
    for planted in ["use log::info;", "use std::time::Instant;", "    std::thread::yield_now();"] {
        assert_eq!(core_is_pure(path, planted).len(), 1, "{planted}");
    }
    assert_eq!(core_is_pure(Path::new("src/kube/mod.rs"), "use log::info;"), [""; 0]);
}

#[test]
fn every_file_says_what_it_owns() {
    check(&["src", "tests"], says_what_it_owns);
    assert_eq!(says_what_it_owns(Path::new("src/x.rs"), "use std::fs;\n").len(), 1);
}

#[test]
fn files_and_functions_stay_small() {
    check(&["src", "tests"], files_are_small);
    check(&["src", "tests"], functions_are_small);
    let long = "fn f() {}\n".repeat(CORE_LINES_MAX + 1);
    assert_eq!(files_are_small(Path::new("src/core/plan.rs"), &long).len(), 1);
    assert_eq!(files_are_small(Path::new("src/wire/pod.rs"), &long), [""; 0]);
    let function = format!("    pub(crate) fn f() {{\n{}    }}\n", "        g();\n".repeat(71));
    assert_eq!(functions_are_small(Path::new("src/x.rs"), &function).len(), 1);
}

/// A file that no `mod` names is compiled by nobody.
#[test]
fn every_module_is_declared() {
    let mut orphans = Vec::new();
    let code = files("src").into_iter().chain(files("tests/support"));
    for path in code.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let folder = path.parent().unwrap();
        let is_root = folder == Path::new("src") && matches!(name.as_str(), "main" | "lib");
        if is_root || path == Path::new("tests/support/mod.rs") {
            continue;
        }
        let (parent, child) = match name.as_str() {
            "mod" => (folder.parent().unwrap(), folder.file_name().unwrap().to_str().unwrap()),
            _ => (folder, name.as_str()),
        };
        let beside = parent.with_extension("rs");
        let candidates = [parent.join("mod.rs"), parent.join("lib.rs"), beside];
        let declared = candidates.iter().any(|file| {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            text.lines().any(|line| line.trim_end().ends_with(&format!("mod {child};")))
        });
        if !declared {
            orphans.push(path.display().to_string());
        }
    }
    assert!(orphans.is_empty(), "declared by no mod: {orphans:?}");
}

/// A fixture is used where its name is written, or its name without the ending, in quotes, or the
/// folder that it is in.
#[test]
fn no_fixture_is_unused() {
    let mut texts = String::new();
    for folder in ["src", "tests", "examples", ".ci"] {
        for path in files(folder) {
            // Data that is no text names no fixture.
            texts.push_str(&fs::read_to_string(root().join(path)).unwrap_or_default());
        }
    }
    let mut unused = Vec::new();
    for path in files("fixtures") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let quoted = format!("\"{}\"", path.file_stem().unwrap().to_str().unwrap());
        let folder = format!("\"{}\"", path.parent().unwrap().display());
        if ![name, &quoted, &folder].iter().any(|name| texts.contains(*name)) {
            unused.push(path.display().to_string());
        }
    }
    assert!(unused.is_empty(), "no source names these: {unused:?}");
}
