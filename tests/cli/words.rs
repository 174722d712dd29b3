//! What posse says at the start, on a failure and at the end of a run on the embedded cluster, and about files
//! that the environment or a flag names.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::conventions::{Folder, Run, wait_for};
use super::folder::text;

#[test]
fn a_run_says_where_it_is_why_executors_fail_and_whose_exit_code_it_has() {
    let folder = Folder::new();
    let config = "\
app: hands
executors: [{group: bad, count: 1, command: [sh, -c, 'echo no such table; exit 4']}]
failures: {app: off}
";
    fs::write(folder.path().join("posse.yaml"), config).unwrap();
    // The driver waits until the words are in the log.
    let driver =
        "for i in $(seq 1200); do grep -q 'wrote: no such table' log && exit 2; sleep 0.1; done";
    let mut command = folder.command(&["run", "--dev", "--", "sh", "-c", driver]);
    let log = File::create(folder.path().join("log")).unwrap();
    let status = command.stdout(Stdio::null()).stderr(log).status().unwrap();
    let said = fs::read_to_string(folder.path().join("log")).unwrap();
    assert_eq!(status.code(), Some(2), "{said}");
    for words in [
        "embedded cluster: export KUBECONFIG=/",
        "the control API is at unix:",
        "container: exit code 4",
        "wrote: no such table",
        "driver ended: exit code 2",
        "posse ends with the driver's exit code: 2",
        "failed pods, gone with the embedded cluster: hands-",
    ] {
        assert!(said.contains(words), "no {words:?}:\n{said}");
    }
    assert_eq!(said.matches("wrote: ").count(), 1, "once for each group:\n{said}");
}

#[test]
fn a_run_has_no_control_api_if_the_flag_says_so() {
    let output = Folder::new().posse(&["run", "--dev", "--control", "off", "--", "true"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(!said.contains("control API"), "{said}");
}

/// posse finds the cluster of a run by itself.
#[test]
fn commands_find_the_embedded_cluster_of_a_run() {
    let run = Run::start();
    let report = run.folder.printed(&["explain", "1", "--logs", "5"]);
    assert!(report.contains("pod hands-") && report.contains("Running"), "{report}");
    assert_eq!(run.folder.printed(&["logs", "hands/1"]), "");
    let listed = run.folder.printed(&["cleanup", "--app", "hands"]);
    assert!(listed.contains("there is nothing to remove"), "{listed}");
    // A driver that posse has not started has no log.
    let output = run.folder.posse(&["logs", "hands"]);
    let said = text(&output.stderr);
    assert!(said.contains("`posse logs hands --executors` prints"), "{said}");
}

#[test]
fn files_that_cannot_be_used_are_named_with_who_names_them() {
    let folder = Folder::new();
    let refused = |args: &[&str], words: &str| {
        let mut command = folder.command(args);
        let output = command.env("KUBECONFIG", "/nowhere/config").output().unwrap();
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "no {words:?}: {said}");
    };
    refused(
        // No run on this host is in that namespace.
        &["apps", "-n", "none"],
        "posse: kubeconfig /nowhere/config: $KUBECONFIG names this file, which does not exist",
    );
    let events = ["run", "--dev", "--events", "/nowhere/events", "--", "true"];
    refused(&events, "--events: /nowhere/events: cannot be written: No such file");
    let config = "{app: a, executors: [{group: g, template: nowhere.yaml}]}";
    fs::write(folder.path().join("posse.yaml"), config).unwrap();
    refused(&["render"], "posse.yaml: executors[0].template: nowhere.yaml: cannot be read: ");
}

#[test]
fn a_cluster_says_how_other_programs_find_it() {
    let folder = Folder::new();
    let log = folder.path().join("log");
    let mut command = folder.command(&["dev", "--simulate"]);
    let mut child =
        command.stdout(Stdio::piped()).stderr(File::create(&log).unwrap()).spawn().unwrap();
    wait_for("the line for the shell", || {
        let said = fs::read_to_string(&log).unwrap();
        said.contains("in another shell: export KUBECONFIG=/")
    });
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success(), "its folder is gone with it");
}

/// An empty file is valid: flags may say all. But who wrote it wanted something.
#[test]
fn an_empty_configuration_is_told() {
    let folder = Folder::new();
    for (config, is_told) in [("", true), ("# executors: []\n", true), ("app: words", false)] {
        fs::write(folder.path().join("posse.yaml"), config).unwrap();
        let output = folder.posse(&["run", "--dev", "--", "true"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert_eq!(said.contains("WARN posse.yaml sets nothing"), is_told, "{config:?}: {said}");
    }
}
