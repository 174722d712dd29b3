//! `posse task list --from FILE`: the ended tasks of a run that is over.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::process::Output;

use posse_testing::program;
use serde_json::Value;

use super::conventions::text;

const RECORD: &str = r#"{"run":"r","seq":1,"time":"2026-01-01T00:00:00Z","event":"started","version":"1","format":1}
{"run":"r","seq":9,"time":"2026-01-01T00:00:05Z","event":"task_ended","group":"default","key":"sim-2","outcome":"failed","exit_code":3,"reason":"app_error","message":"exit code 3","attempts":2,"executor":2}
half a line
{"run":"r","seq":8,"time":"2026-01-01T00:00:04Z","event":"task_ended","group":"default","key":"sim-1","outcome":"succeeded","exit_code":0,"reason":null,"message":null,"attempts":1,"executor":1}
{"run":"r","seq":10,"event":"task_en"#;

fn list(record: &str, args: &[&str]) -> Output {
    let path = std::env::temp_dir().join(format!(
        "posse-record-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    fs::write(&path, record).unwrap();
    let mut command = program(env!("CARGO_BIN_EXE_posse"));
    let output = command.args(["task", "list", "--from"]).arg(&path).args(args).output().unwrap();
    fs::remove_file(&path).unwrap();
    output
}

#[test]
fn the_ended_tasks_of_a_file_are_listed_without_a_run() {
    let output = list(RECORD, &["-o", "wide"]);
    let want = "\
KEY    STATE      EXECUTOR  ATTEMPTS  EXIT  REASON
sim-1  succeeded  1         1         0     -
sim-2  failed     2         2         3     app_error: exit code 3
";
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), want.to_owned()));
    let said = text(&output.stderr);
    assert!(said.contains("line 3 is not an event of posse"), "{said}");
    assert!(said.contains("line 5 is cut off"), "{said}");
    let json: Value = serde_json::from_slice(&list(RECORD, &["-o", "json"]).stdout).unwrap();
    assert_eq!((json[1]["key"].as_str(), json[1]["exit_code"].as_i64()), (Some("sim-2"), Some(3)));
}

#[test]
fn a_file_without_tasks_and_one_that_is_missing() {
    assert_eq!(text(&list("", &[]).stdout), "there are no tasks\n");
    let mut command = program(env!("CARGO_BIN_EXE_posse"));
    let output = command.args(["task", "list", "--from", "/nowhere/e"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("/nowhere/e"), "{said}");
}
