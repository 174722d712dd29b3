//! SUPPORT.md's table, and `.ci/support`, which compares it with what ran.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::Command;

use posse_testing::Folder;

use super::readme::{read, root, table};

const HEAD: &str = "| what | versions | by |";
/// No step of each change tells these.
const UNTOLD: [&str; 1] = ["Spark, before a release"];

const PAGE: &str = "# Support

| what | versions | by |
|---|---|---|
| server | 1.36 | `a` |
| older server | 1.20 | `a` |
| Python | those of the machine, from 3.9 | `b` |
| dask | 2026.8, 2026.9 | `c` |
| helm | 4.1 | `d` |

After it.
";

/// SUPPORT.md says by which command each version is tested.
#[test]
fn what_is_supported_is_tested_by_something() {
    let mut n_commands = 0;
    for cells in table(&read("SUPPORT.md"), "| what | versions | by |") {
        for command in cells[2].split('`').skip(1).step_by(2) {
            let program = command.split(' ').next().unwrap();
            let is_there = program == "cargo" || root().join(program).is_file();
            assert!(is_there, "SUPPORT.md names {command}");
            n_commands += 1;
        }
    }
    assert!(n_commands >= 10, "{n_commands}");
}

/// Otherwise a row would be NOT TESTED for ever.
#[test]
fn each_row_is_told_by_a_check() {
    let checks = fs::read_dir(root().join(".ci")).unwrap().map(|file| file.unwrap().path());
    let checks = checks.filter(|path| path.is_file()).chain([root().join("examples/spark/run.sh")]);
    let checks: String = checks.map(|path| fs::read_to_string(path).unwrap()).collect();
    let rows = table(&read("SUPPORT.md"), HEAD);
    for row in rows.iter().map(|cells| cells[0].as_str()).filter(|row| !UNTOLD.contains(row)) {
        let told =
            ["tell ", "tell_program ", "tell_kubelet ", "tell(", "\"tell\", "].iter().any(|word| {
                ["", "'", "\""]
                    .iter()
                    .any(|quote| checks.contains(&format!("{word}{quote}{row}{quote}")))
            });
        // `.ci/examples` tells the package that an example is run with.
        let used = checks.lines().any(|line| {
            let is_run = ["engine ", "tell ", "example "].iter().any(|word| line.contains(word));
            is_run && line.ends_with(&format!(" {row}"))
        });
        assert!(told || used, "no check tells {row}");
    }
}

/// Exit code, stdout and stderr.
fn support(page: &Path, words: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(root().join(".ci/support"));
    let done = command
        .args(words)
        .env("SUPPORT", page)
        .env("TESTED", page.with_file_name("tested"))
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (done.status.code().unwrap(), text(done.stdout), text(done.stderr))
}

/// A page and, below the folder, the file of lines.
fn tell(folder: &Path, told: &[(&str, &str)]) -> (std::path::PathBuf, String) {
    let page = folder.join("page.md");
    fs::write(&page, PAGE).unwrap();
    fs::write(folder.join("tested"), "").unwrap();
    for (row, version) in told {
        let (code, out, err) = support(&page, &["tell", row, version]);
        assert_eq!((code, out), (0, format!("tested: {row}: {version}\n")), "{err}");
    }
    (page, folder.join("tested").to_str().unwrap().to_owned())
}

#[test]
fn what_ran_stands_beside_what_did_not() {
    let folder = Folder::new();
    let same = [
        ("dask", "2026.9.1"),
        ("server", "v1.36.0"),
        ("older server", "v0.0.0-master+faecb19"),
        ("Python", "3.11"),
    ];
    let (page, tested) =
        tell(folder.path(), &[&same[..], &[("dask", "2026.8.0"), ("Python", "3.9")]].concat());
    let (code, out, err) = support(&page, &["compare", &tested]);
    assert_eq!(code, 0, "{err}");
    let want = "| what | versions | by |
|---|---|---|
| server | 1.36 | `a` |
| older server | it ran, and does not say its version | `a` |
| Python | 3.9, 3.11 | `b` |
| dask | 2026.8, 2026.9 | `c` |
| helm | NOT TESTED | `d` |
";
    assert_eq!(out, want);
    assert_eq!(support(&page, &["write", &tested]).0, 0);
    assert_eq!(fs::read_to_string(&page).unwrap(), PAGE);
}

#[test]
fn a_row_with_another_version_than_ran_is_named_and_written_anew() {
    let folder = Folder::new();
    let (page, tested) =
        tell(folder.path(), &[("dask", "2026.8.3"), ("server", "v1.37.1"), ("Python", "3.13")]);
    let (code, out, err) = support(&page, &["compare", &tested]);
    assert_eq!(code, 1, "{err}");
    assert!(out.contains("| server | 1.37 | `a` |"), "{out}");
    assert!(err.contains("page.md, line 5: `server` says 1.36, and 1.37 ran"), "{err}");
    assert!(err.contains("line 8: `dask` says 2026.8, 2026.9, and 2026.8 ran"), "{err}");
    assert!(err.contains(&format!("`.ci/support write {tested}` changes the rows")), "{err}");
    assert!(!err.contains("Python") && !err.contains("helm"), "{err}");

    assert_eq!(support(&page, &["write", &tested]).0, 0);
    let want = PAGE
        .replace("| server | 1.36 |", "| server | 1.37 |")
        .replace("| 2026.8, 2026.9 |", "| 2026.8 |");
    assert_eq!(fs::read_to_string(&page).unwrap(), want);
    assert_eq!(support(&page, &["compare", &tested]).0, 0);
}

#[test]
fn a_wrong_word_fails_at_its_step() {
    let folder = Folder::new();
    let (page, _) = tell(folder.path(), &[]);
    for (words, why) in [
        (vec!["tell", "nothing", "1.2"], "page.md has no row nothing"),
        (vec!["tell", "server", ""], "server told no version"),
    ] {
        let (code, _, err) = support(&page, &words);
        assert!(code == 1 && err.contains(why), "{err}");
    }
    assert_eq!(support(&page, &["tell", "server"]).0, 2);
}
