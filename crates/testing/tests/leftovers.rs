//! What the program `leftovers` finds.

#![allow(clippy::unwrap_used)]

use std::process::Command;

use posse_testing::Folder;

/// The exit code, and what it says was left behind, by this script.
fn left_by(script: &str) -> (Option<i32>, Vec<String>) {
    let folder = Folder::new();
    let output = Command::new(env!("CARGO_BIN_EXE_leftovers"))
        .args(["sh", "-c", script])
        .env("TMPDIR", folder.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let left = said.lines().filter_map(|line| line.strip_prefix("LEFT BEHIND: "));
    (output.status.code(), left.map(str::to_owned).collect())
}

#[test]
fn nothing_is_left() {
    // Its grandchild ends by itself.
    assert_eq!(left_by("touch $TMPDIR/a; (sleep 0.2 &); rm $TMPDIR/a"), (Some(0), vec![]));
}

#[test]
fn a_failure_keeps_its_exit_code_and_its_files() {
    assert_eq!(left_by("touch $TMPDIR/a; exit 7"), (Some(7), vec![]));
    assert_eq!(left_by("kill -9 $$"), (Some(137), vec![]));
}

#[test]
fn what_is_left_is_named() {
    let (code, left) = left_by("touch $TMPDIR/kept; (setsid sleep 1234 &)");
    assert_eq!((code, left.len()), (Some(1), 2), "{left:?}");
    assert!(left[0].ends_with("/kept"), "{left:?}");
    assert!(left[1].ends_with(": sleep 1234"), "{left:?}");
}
