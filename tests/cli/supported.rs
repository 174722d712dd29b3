//! SUPPORT.md's table, and what the checks say that they tested.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Command;

use posse_testing::Folder;

use super::readme::{read, root, table};

const HEAD: &str = "| what | version | last tested | by |";

const PAGE: &str = "# Support

| what | version | last tested | by |
|---|---|---|---|
| server | 1.36 | 2026-01-02 | `a` |
| server | 1.33 | 2026-01-02, by hand | `a` |
| Prometheus | that of the machine | 2026-01-02 | `b` |

After it.
";

/// SUPPORT.md says by which command each version is tested, and when that was.
#[test]
fn what_is_supported_is_tested_by_something() {
    let rows = table(&read("SUPPORT.md"), HEAD);
    assert!(rows.len() >= 20, "{}", rows.len());
    for cells in rows {
        let by = cells[3].split('`').nth(1).unwrap();
        let program = by.split(' ').next().unwrap();
        let is_there = program == "cargo" || root().join(program).is_file();
        assert!(is_there, "SUPPORT.md names {by}");
        let day = cells[2].trim_end_matches(", by hand");
        let is_day = day.len() == 10 && day.bytes().all(|b| b == b'-' || b.is_ascii_digit());
        assert!(
            is_day || day == "not recorded",
            "SUPPORT.md says that {} was tested on {day}",
            cells[0]
        );
    }
}

/// `.ci/check` has what `.ci/costs` lists.
#[test]
fn every_check_is_known() {
    let costs = read(".ci/costs");
    let rows: Vec<Vec<&str>> = costs
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split_whitespace().collect())
        .collect();
    let check = read(".ci/check");
    let number = |text: &str| text.parse::<u32>().unwrap();
    for row in &rows {
        let [name, kind, seconds, processors] = row[..] else { panic!("four words: {row:?}") };
        assert!(matches!(kind, "change" | "release"), "{row:?}");
        assert!(number(seconds) > 0 && number(processors) > 0, "{row:?}");
        let function = format!("\n{}() {{", name.replace('-', "_"));
        let is_known = check.contains(&function) || root().join(".ci").join(name).is_file();
        assert!(is_known || name.starts_with("mutants-"), "nothing does {name}");
    }
}

/// Exit code, stdout and stderr of `.ci/support`, and the page after it.
fn support(folder: &Folder, words: &[&str]) -> (i32, String, String, String) {
    let page = folder.path().join("page.md");
    if !page.exists() {
        fs::write(&page, PAGE).unwrap();
    }
    let mut command = Command::new(root().join(".ci/support"));
    command.args(words).env("SUPPORT", &page).env("TESTED", folder.path().join("tested"));
    let done = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let page = fs::read_to_string(page).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr), page)
}

#[test]
fn what_was_tested_gets_its_day() {
    let folder = Folder::new();
    for (what, version) in [("server", "v1.36.2"), ("Prometheus", "2.42.0"), ("server", "1.20")] {
        let (code, out, err, _) = support(&folder, &[what, version]);
        assert!(code == 0 && out.starts_with(&format!("tested: {what}: ")), "{out}{err}");
    }
    let tested = folder.path().join("tested");
    let today = fs::read_to_string(&tested).unwrap();
    let today = today.lines().next().unwrap().rsplit(' ').next().unwrap().to_owned();
    let (code, _, err, page) = support(&folder, &["--write", tested.to_str().unwrap()]);
    assert_eq!((code, err.as_str()), (0, "page.md has no row for server 1.20: add one\n"));
    let want = PAGE
        .replace("1.36 | 2026-01-02", &format!("1.36 | {today}"))
        .replace("machine | 2026-01-02", &format!("machine | {today}"));
    assert_eq!(page, want);
    // The page knows a newer day than the first line, and none in the second one's row.
    fs::write(&tested, "tested: server: 1.36: 2026-01-01\ntested: server: 1.33: 2026-01-01\n")
        .unwrap();
    let page = want.replace("2026-01-02, by hand", "not recorded, by hand");
    fs::write(folder.path().join("page.md"), page).unwrap();
    let (_, _, _, page) = support(&folder, &["--write", tested.to_str().unwrap()]);
    assert_eq!(page, want.replace("2026-01-02, by hand", "2026-01-01"));
}

#[test]
fn a_wrong_word_fails_at_its_check() {
    let folder = Folder::new();
    for words in [["nothing", "1.2"], ["server", ""]] {
        let (code, _, err, _) = support(&folder, &words);
        assert!(code == 1 && err.contains(words[0]), "{err}");
    }
    assert_eq!(support(&folder, &["server"]).0, 2);
}
