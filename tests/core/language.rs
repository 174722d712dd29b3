//! One language: `src/`, README and docs use the field's terms. A word that a standard term has
//! replaced must not come back.

use std::path::{Path, PathBuf};

use super::tidy::{check, files, root};

/// Replaced words and their standard terms. A word counts alone and as a part of an identifier:
/// `chore`, `on_chore_due` and `ChoreKind` all contain `chore`.
const WORDS: [(&str, &str); 20] = [
    ("brake", "create throttle"),
    ("brakes", "create throttle"),
    ("chore", "pending mutation"),
    ("chores", "pending mutations"),
    ("decider", "main container"),
    ("draft", "dry run"),
    ("drafts", "dry runs"),
    ("evidence", "retained pods"),
    ("hearing", "driver reports"),
    ("insist", "ensure deleted"),
    ("insists", "ensures deleted"),
    ("investigate", "explain"),
    ("leftover", "orphan"),
    ("leftovers", "orphans"),
    ("pulse", "liveness"),
    ("story", "executor report"),
    ("stray", "unresolved create"),
    ("strays", "unresolved creates"),
    ("trouble", "problem or ...Error"),
    ("witness", "executor lookup"),
];

/// Replaced phrases and names, exactly as they were written, with what to write.
const PHRASES: [(&str, &str); 23] = [
    ("//! Owns ", "say what the module does"),
    ("Class::Rights", "RefusalClass::Forbidden"),
    ("Class::Template", "RefusalClass::Invalid"),
    ("Class::Unknown", "RefusalClass::OutcomeUnknown"),
    ("deciding container", "main container"),
    ("enum Identity", "a noun in front"),
    ("enum Owner ", "a noun in front"),
    ("enum Step ", "a noun in front"),
    ("enum Verdict ", "a noun in front"),
    ("fn settle(", "refresh_state"),
    ("fn spend(", "retire"),
    ("fn words(", "describe"),
    ("go_back", "roll_back"),
    ("history goes back", "resourceVersion rollback"),
    ("history went back", "resourceVersion rollback"),
    ("keep_away", "node affinity"),
    ("struct Bad ", "...Error"),
    ("struct Identity", "a noun in front"),
    ("struct Mark ", "Watermark"),
    ("struct Mistake ", "...Error"),
    ("struct Place ", "Permit"),
    ("struct Stuck ", "a noun in front"),
    ("young death", "crash loop"),
];

/// Names that files had before their modules got standard names.
const FILES: [&str; 9] = [
    "ask.rs",
    "edge.rs",
    "ground.rs",
    "hold.rs",
    "prepare.rs",
    "rbac.rs",
    "reach.rs",
    "refused.rs",
    "story.rs",
];

/// The words of a line, with identifiers taken apart: `on_chore` and `OnChore` are `on`, `chore`.
fn words_of(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in line.chars() {
        let begins = !c.is_ascii_alphabetic() || (c.is_ascii_uppercase() && was_lower);
        if begins {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphabetic()) {
            word.push(c.to_ascii_lowercase());
        }
        was_lower = c.is_ascii_lowercase();
    }
    words
}

fn uses_standard_terms(_: &Path, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let words = words_of(line);
        for (word, term) in WORDS.iter().filter(|(word, _)| words.iter().any(|w| w == word)) {
            complaints.push(format!("{}: {word:?}: write {term:?}", i + 1));
        }
        for (phrase, term) in PHRASES.iter().filter(|(phrase, _)| line.contains(phrase)) {
            complaints.push(format!("{}: {phrase:?}: {term}", i + 1));
        }
    }
    complaints
}

#[test]
fn sources_and_docs_use_the_standard_terms() {
    check(&["src", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md"], uses_standard_terms);
    for (planted, n) in [
        ("    self.on_chore_due(now);", 1),
        ("struct ChoreKind;", 1),
        ("// The leftovers of a run.", 1),
        ("//! Owns the window.", 1),
        ("// Without a draft, history goes back.", 2),
        ("let history = brakeless(aftershock);", 0),
    ] {
        assert_eq!(uses_standard_terms(Path::new("x.rs"), planted).len(), n, "{planted}");
    }
}

#[test]
fn files_have_standard_names() {
    let found: Vec<_> = files("src")
        .into_iter()
        .filter(|path| path.file_name().is_some_and(|name| FILES.iter().any(|old| name == *old)))
        .collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The paths that the page names in backticks exist, from the root, `tests/`, `src/` or a room.
#[test]
fn the_architecture_page_names_only_files_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).unwrap_or_default();
    let named = text.split('`').skip(1).step_by(2).filter(|path| {
        path.contains('/')
            && path.starts_with(|c: char| c.is_ascii_lowercase())
            && !path.contains(' ')
    });
    let mut rooms = vec![PathBuf::new(), "tests".into(), "src".into(), "src/core/machines".into()];
    let entries = std::fs::read_dir(root().join("src")).into_iter().flatten().flatten();
    rooms.extend(entries.map(|entry| entry.path()));
    let mut n_paths = 0;
    for path in named {
        let exists = rooms.iter().any(|room| root().join(room).join(path).exists());
        // Names of labels, media types and URLs are no paths.
        let is_path = path.ends_with(".rs") || path.ends_with('/');
        assert!(exists || !is_path, "docs/ARCHITECTURE.md names {path}, which does not exist");
        n_paths += usize::from(is_path);
    }
    assert!(n_paths > 40, "only {n_paths} paths found");
}
