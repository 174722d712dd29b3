//! What cargo cannot keep: the core stays pure, no modules of a crate import each other in a circle, files and
//! functions stay small, and every file is used. Each rule is a function from a text to complaints, and each is shown
//! a text that it must complain about.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const CORE_LINES_MAX: usize = 400;
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;

const CORE: &str = "crates/core/src";

/// The layers of the core: each knows only those before it.
const LAYERS: [&str; 5] = ["model", "state", "policy", "machines", "reconciler"];

/// The folders of all crates: the program's, and those below `crates/`.
const SOURCES: [&str; 2] = ["src", "crates"];

/// The modules of `base` that the core may use.
const PURE_BASE: [&str; 4] = ["backoff", "rng", "text", "time"];

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

/// The repository.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// All files below a folder, or the file of that name, by their path from the root, in order.
fn files(folder: &str) -> Vec<PathBuf> {
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
    let inside = found.iter().map(|path| path.strip_prefix(root()).unwrap().to_owned());
    inside.filter(|path| !path.components().any(|part| part.as_os_str() == "target")).collect()
}

/// The Rust sources below a folder; the pages, if it is a folder or file of pages.
fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    let is_text = |path: &PathBuf| path.extension().is_some_and(|e| e == "rs" || e == "md");
    let texts = files(folder).into_iter().filter(is_text);
    texts.map(|path| (path.clone(), fs::read_to_string(root().join(&path)).unwrap())).collect()
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

/// A module's path within its crate, as its segments; none for `main.rs` and `lib.rs`.
fn module_of(path: &Path, sources: &str) -> Option<Vec<String>> {
    let inside = path.strip_prefix(sources).ok()?.with_extension("");
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
                let n_up = path.iter().take_while(|part| *part == "super").count();
                let parent = module.len().saturating_sub(n_up);
                path.splice(..n_up, module[..parent].iter().cloned());
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

/// The folders with sources: one for each crate.
fn crates() -> Vec<String> {
    let names = fs::read_dir(root().join("crates")).unwrap();
    let mut folders: Vec<String> = names
        .map(|entry| format!("crates/{}/src", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    folders.push("src".to_owned());
    folders.sort();
    folders
}

fn modules_of(folder: &str) -> BTreeMap<Vec<String>, String> {
    let texts = sources(folder).into_iter();
    texts.filter_map(|(path, text)| Some((module_of(&path, folder)?, text))).collect()
}

fn core_is_pure(path: &Path, text: &str) -> Vec<String> {
    if !path.starts_with(CORE) {
        return Vec::new();
    }
    let mut complaints = Vec::new();
    for (number, line) in code(text) {
        if let Some(import) = line.trim_start().trim_start_matches("pub ").strip_prefix("use ") {
            let first = import.split("::").next().unwrap_or_default();
            // A capital begins a type's name: an enum of the same file, whose variants are meant.
            let local = first.starts_with(char::is_uppercase);
            let is_own = matches!(first, "std" | "crate" | "self" | "super");
            let base = import.strip_prefix("posse_base::").unwrap_or_default();
            let is_pure_base = PURE_BASE.iter().any(|module| {
                base.strip_prefix(module).is_some_and(|rest| rest.starts_with([':', ';']))
            });
            if !local && !is_own && !is_pure_base {
                complaints.push(format!("{number}: the core must not use {import}"));
            }
        }
        for word in IMPURE.iter().filter(|word| line.contains(**word)) {
            complaints.push(format!("{number}: the core must not know {word}"));
        }
    }
    complaints
}

/// What each module of the core imports from a later layer, or from outside of the layers.
fn bends_of_layers(modules: &BTreeMap<Vec<String>, String>) -> Vec<String> {
    let layer = |path: &[String]| LAYERS.iter().position(|layer| *layer == path[0]);
    let mut complaints = Vec::new();
    for (module, text) in modules {
        let own = layer(module);
        if own.is_none() {
            complaints.push(format!("{} is in no layer", module.join("::")));
        }
        for path in imports(module, text, modules) {
            if layer(&path).is_none_or(|other| Some(other) > own) {
                complaints.push(format!("{} imports {}", module.join("::"), path.join("::")));
            }
        }
    }
    complaints
}

fn says_what_it_does(_: &Path, text: &str) -> Vec<String> {
    if text.starts_with("//! ") { Vec::new() } else { vec!["1: no `//!` line".to_owned()] }
}

fn files_are_small(path: &Path, text: &str) -> Vec<String> {
    let cap = if path.starts_with(CORE) { CORE_LINES_MAX } else { FILE_LINES_MAX };
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
        // What a trait requires has no body.
        if !is_function || code.ends_with(';') {
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
fn no_modules_import_each_other_in_a_circle() {
    for folder in crates() {
        let found = circles(&modules_of(&folder));
        assert!(found.is_empty(), "circles of imports in {folder}:\n{}", found.join("\n"));
    }

    let planted = |texts: &[(&str, &str)]| circles(&planted(texts));
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

/// Modules from pairs of path and text.
fn planted(texts: &[(&str, &str)]) -> BTreeMap<Vec<String>, String> {
    let modules = texts.iter().map(|(module, text)| {
        (module.split("::").map(str::to_owned).collect(), (*text).to_owned())
    });
    modules.collect()
}

#[test]
fn each_layer_of_the_core_knows_only_those_before_it() {
    let found = bends_of_layers(&modules_of(CORE));
    assert!(found.is_empty(), "\n{}", found.join("\n"));

    let modules = [
        ("model", ""),
        ("model::pod", "use crate::state::slots::Slots;\n"),
        ("state", ""),
        ("state::slots", "use crate::model::pod::Pod;\nuse super::super::policy::plan;\n"),
        ("policy", ""),
        ("policy::plan", "use crate::state::slots;\nfn f() { crate::machines::watch::g() }\n"),
        ("machines", ""),
        ("machines::watch", "use crate::{model::pod, loss::classify};\n"),
        ("loss", "use crate::model::pod::Pod;\n"),
        ("reconciler", "use crate::machines::watch;\nuse crate::policy::plan::plan;\n"),
    ];
    let want = [
        "loss is in no layer",
        "loss imports model::pod",
        "machines::watch imports loss",
        "model::pod imports state::slots",
        "policy::plan imports machines::watch",
        "state::slots imports policy::plan",
    ];
    assert_eq!(bends_of_layers(&planted(&modules)), want);
}

#[test]
fn the_core_stays_pure() {
    check(&SOURCES, core_is_pure);
    let path = Path::new("crates/core/src/plan.rs");
    for planted in [
        "use log::info;",
        "use std::time::Instant;",
        "    std::thread::yield_now();",
        "use posse_base::clock::Clock;",
    ] {
        assert_eq!(core_is_pure(path, planted).len(), 1, "{planted}");
    }
    assert_eq!(core_is_pure(Path::new("crates/kube/src/lib.rs"), "use log::info;"), [""; 0]);
}

#[test]
fn every_file_says_what_it_does() {
    check(&["src", "crates", "tests"], says_what_it_does);
    assert_eq!(says_what_it_does(Path::new("src/x.rs"), "use std::fs;\n").len(), 1);
}

#[test]
fn files_and_functions_stay_small() {
    check(&["src", "crates", "tests"], files_are_small);
    check(&["src", "crates", "tests"], functions_are_small);
    let long = "fn f() {}\n".repeat(CORE_LINES_MAX + 1);
    assert_eq!(files_are_small(Path::new("crates/core/src/plan.rs"), &long).len(), 1);
    assert_eq!(files_are_small(Path::new("crates/wire/src/pod/mod.rs"), &long), [""; 0]);
    let function = format!("    pub(crate) fn f() {{\n{}    }}\n", "        g();\n".repeat(71));
    assert_eq!(functions_are_small(Path::new("src/x.rs"), &function).len(), 1);
}

/// A file that no `mod` names is compiled by nobody.
#[test]
fn every_module_is_declared() {
    let mut orphans = Vec::new();
    let folders = crates().into_iter().chain(["tests/support".to_owned()]);
    let code = folders.flat_map(|folder| files(&folder));
    for path in code.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let folder = path.parent().unwrap();
        let is_root = folder.ends_with("src") && matches!(name.as_str(), "main" | "lib");
        if is_root || path == Path::new("tests/support/mod.rs") {
            continue;
        }
        let (parent, child) = match name.as_str() {
            "mod" => (folder.parent().unwrap(), folder.file_name().unwrap().to_str().unwrap()),
            _ => (folder, name.as_str()),
        };
        let candidates = ["mod.rs", "lib.rs", "main.rs"].map(|name| parent.join(name));
        let declared = candidates.iter().any(|file| {
            let text = fs::read_to_string(root().join(file)).unwrap_or_default();
            let (module, path) = (format!("mod {child};"), format!("path = \"{child}.rs\""));
            text.lines().any(|line| line.trim_end().ends_with(&module) || line.contains(&path))
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
    for folder in ["src", "crates", "tests", "examples", ".ci"] {
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
