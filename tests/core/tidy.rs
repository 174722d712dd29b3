//! The house keeps its rooms: a room imports only the rooms that it may know, no modules import
//! each other in a circle, the core stays pure, files and functions stay small, and the names are
//! the field's. Each rule is a function from a text to complaints, and each is shown a text that
//! it must complain about.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms that it may import, besides itself. The order is that of
/// docs/ARCHITECTURE.md: a room knows only rooms below it.
const ROOMS: [(&str, &[&str]); 13] = [
    (
        "cli",
        &[
            "runtime", "submit", "stage", "dev", "control", "serve", "kube", "wire", "clock",
            "files", "process", "core",
        ],
    ),
    ("runtime", &["control", "serve", "kube", "wire", "clock", "files", "process", "core"]),
    ("submit", &["kube", "wire", "core"]),
    ("stage", &["kube", "serve", "wire", "files", "core"]),
    ("dev", &["serve", "wire", "clock", "files", "process", "core"]),
    ("control", &["serve", "wire", "core"]),
    ("kube", &["wire", "core"]),
    ("serve", &["core"]),
    ("wire", &["core"]),
    ("clock", &["core"]),
    ("files", &[]),
    ("process", &[]),
    ("core", &[]),
];

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

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All files below a folder, or the file of that name, by their path from the root, in order.
pub fn files(folder: &str) -> Vec<PathBuf> {
    if root().join(folder).is_file() {
        return vec![PathBuf::from(folder)];
    }
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

/// The Rust sources below a folder; the pages, if it is a folder or file of pages.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let is_text = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs" || e == "md");
    let texts = files(folder).into_iter().filter(is_text);
    texts.map(|path| (path.clone(), fs::read_to_string(root().join(&path)).unwrap())).collect()
}

/// Applies a rule to every source and fails with all complaints at once.
#[track_caller]
pub fn check(folders: &[&str], rule: impl Fn(&Path, &str) -> Vec<String>) {
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

/// The room that a file belongs to, and the rooms that it may import.
fn room_of(path: &Path) -> Option<(&'static str, &'static [&'static str])> {
    let room = path.components().nth(1)?.as_os_str().to_str()?;
    let room = room.strip_suffix(".rs").unwrap_or(room);
    ROOMS.iter().find(|(name, _)| *name == room).copied()
}

fn rooms_know_only_rooms_below(path: &Path, text: &str) -> Vec<String> {
    let Some((own, allowed)) = room_of(path) else { return Vec::new() };
    let mut complaints = Vec::new();
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for name in names_after(line, "crate::") {
            let is_room = ROOMS.iter().any(|(room, _)| *room == name);
            if !is_room {
                complaints.push(format!("{}: no room is called {name:?}", i + 1));
            } else if name != own && !allowed.contains(&name) {
                complaints.push(format!("{}: {own} must not import {name}", i + 1));
            }
        }
        if line.contains("super::super") {
            complaints.push(format!("{}: say crate::room:: instead of super::super", i + 1));
        }
        if line.contains("pub(in ") {
            complaints.push(format!("{}: share by a parent module instead of pub(in ...)", i + 1));
        }
    }
    complaints
}

/// A module's path below `src`, as its segments; none for `main.rs` and `lib.rs`.
fn module_of(path: &Path) -> Option<Vec<String>> {
    let inside = path.strip_prefix("src").ok()?.with_extension("");
    let mut segments: Vec<String> =
        inside.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if segments.last().is_some_and(|last| last == "mod") {
        segments.pop();
    }
    let is_root = segments == ["lib"] || segments == ["main"];
    let is_test = segments.iter().any(|part| part == "tests" || part == "testing");
    (!is_root && !is_test).then_some(segments)
}

/// The paths that a `use` names, braces resolved.
fn imported_paths(tree: &str) -> Vec<Vec<String>> {
    let segments = |text: &str| -> Vec<String> {
        let parts = text.split("::").map(|part| part.split_whitespace().next().unwrap_or(""));
        parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    let Some((head, rest)) = tree.split_once('{') else { return vec![segments(tree)] };
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut paths = Vec::new();
    let (mut depth, mut from) = (0, 0);
    for (at, c) in inner.char_indices().chain([(inner.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                for path in imported_paths(inner[from..at].trim()) {
                    paths.push(segments(head).into_iter().chain(path).collect());
                }
                from = at + 1;
            }
            _ => {}
        }
    }
    paths
}

/// The modules that a file imports, each as far as it is a file of its own. A module and its
/// parents are one module: a child may use what its parent keeps private.
fn imports(
    module: &[String],
    text: &str,
    modules: &BTreeMap<Vec<String>, String>,
) -> BTreeSet<Vec<String>> {
    let text: String = code(text).map(|(_, line)| format!("{line}\n")).collect();
    let mut found = BTreeSet::new();
    let mut add = |mut path: Vec<String>| {
        match path.first().map(String::as_str) {
            Some("crate") => drop(path.remove(0)),
            Some("super") => {
                path.splice(..1, module[..module.len() - 1].iter().cloned());
            }
            Some("self") => {
                path.splice(..1, module.iter().cloned());
            }
            _ => return,
        }
        while !path.is_empty() && !modules.contains_key(&path) {
            path.pop();
        }
        if !path.is_empty() && !path.starts_with(module) && !module.starts_with(&path) {
            found.insert(path);
        }
    };
    for (at, _) in text.match_indices("use ") {
        let before = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        let is_start = matches!(before, "" | "pub" | "pub(crate)" | "pub(super)");
        if is_start && let Some(end) = text[at..].find(';') {
            imported_paths(&text[at + "use ".len()..at + end]).into_iter().for_each(&mut add);
        }
    }
    for (at, _) in text.match_indices("crate::") {
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
        imported_paths(&rest[..end.unwrap_or(rest.len())]).into_iter().for_each(&mut add);
    }
    found
}

/// Modules that import each other, directly or through others: each circle in one line.
fn circles(modules: &BTreeMap<Vec<String>, String>) -> Vec<String> {
    let edges: BTreeMap<&Vec<String>, BTreeSet<Vec<String>>> =
        modules.iter().map(|(module, text)| (module, imports(module, text, modules))).collect();
    let reachable = |from: &Vec<String>| {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&Vec<String>> = edges[from].iter().collect();
        while let Some(next) = open.pop() {
            if seen.insert(next) {
                open.extend(&edges[next]);
            }
        }
        seen
    };
    let reached: BTreeMap<&Vec<String>, BTreeSet<&Vec<String>>> =
        modules.keys().map(|module| (module, reachable(module))).collect();
    let mut found = BTreeSet::new();
    for (module, seen) in &reached {
        let both = seen.iter().filter(|other| reached[**other].contains(module));
        let circle: BTreeSet<String> = both.map(|other| other.join("::")).collect();
        if !circle.is_empty() {
            found.insert(circle.into_iter().collect::<Vec<_>>().join(", "));
        }
    }
    found.into_iter().collect()
}

fn modules_of_sources() -> BTreeMap<Vec<String>, String> {
    let named =
        sources("src").into_iter().filter_map(|(path, text)| Some((module_of(&path)?, text)));
    named.collect()
}

fn core_is_pure(path: &Path, text: &str) -> Vec<String> {
    if room_of(path).is_none_or(|(room, _)| room != "core") {
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

fn says_what_it_does(_: &Path, text: &str) -> Vec<String> {
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
fn every_room_imports_only_rooms_below() {
    check(&["src"], rooms_know_only_rooms_below);
    for (path, planted, n) in [
        ("src/core/loss.rs", "use crate::kube::api::Client;\n", 1),
        ("src/submit/plan.rs", "use crate::dev::storage::Kind;\n", 1),
        ("src/kube/api/mod.rs", "use crate::serve::Server;\n", 1),
        ("src/wire/pod.rs", "use crate::{core::model, runtime::engine};\n", 1),
        ("src/cli/mod.rs", "use crate::{core::model, runtime::engine};\n", 0),
        ("src/control/mod.rs", "    let now = crate::runtime::now(super::super::x);\n", 2),
        ("src/core/state/ids.rs", "pub(in crate::core) fn f() {}\n", 1),
    ] {
        let found = rooms_know_only_rooms_below(Path::new(path), planted);
        assert_eq!(found.len(), n, "{path}: {planted}{found:?}");
    }
}

#[test]
fn no_modules_import_each_other_in_a_circle() {
    let found = circles(&modules_of_sources());
    assert!(found.is_empty(), "circles of imports:\n{}", found.join("\n"));

    let planted = |texts: &[(&str, &str)]| {
        let modules = texts.iter().map(|(module, text)| {
            (module.split("::").map(str::to_owned).collect(), (*text).to_owned())
        });
        circles(&modules.collect())
    };
    let direct = [
        ("a::x", "use crate::b::y::Y;\n"),
        ("b::y", "use super::super::c;\nuse crate::{c, a::x::{X, Z}};\n"),
    ];
    assert_eq!(planted(&direct), ["a::x, b::y"]);
    let through_a_third = [
        ("a::x", "use super::y;\n"),
        ("a::y", "fn f() { crate::b::g() }\n"),
        ("b", "pub use crate::a::x::X;\n"),
    ];
    assert_eq!(planted(&through_a_third), ["a::x, a::y, b"]);
    let parent_and_child = [("a", "use self::x::X;\n"), ("a::x", "use super::A;\n")];
    assert_eq!(planted(&parent_and_child), [""; 0]);
    let only_in_tests = [
        ("a", "use crate::b::B;\n"),
        ("b", "\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
    ];
    assert_eq!(planted(&only_in_tests), [""; 0]);
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
fn every_file_says_what_it_does() {
    check(&["src", "tests"], says_what_it_does);
    assert_eq!(says_what_it_does(Path::new("src/x.rs"), "use std::fs;\n").len(), 1);
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
