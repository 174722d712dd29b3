//! `posse run --dev` without a configuration file, and the projects of `posse init --for`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};
use std::thread;

use crate::support::posse::{command, said};
use crate::support::scene::TempDir;

/// `posse ARGS` in this folder.
fn posse(dir: &Path, args: &[&str]) -> Output {
    command(dir).args(args).stdin(Stdio::null()).output().expect("the binary can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each run has three executors of its own and reaches its own control API. Both programs are paths
/// relative to the current folder.
pub fn three_runs_of_one_command_at_once() {
    let dir = TempDir::new("runs");
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "worker.sh",
        r#"test "$1" = "two words" && : >"up.$POSSE_INSTANCE.$POSSE_EXECUTOR_ID" && exec sleep 600"#,
    );
    script(
        "my_driver.sh",
        r#"until [ "$(ls up."$POSSE_INSTANCE".* 2>/dev/null | wc -l)" -ge 3 ]; do sleep 0.1; done
        "$POSSE_EXE" status --json >"status.$POSSE_INSTANCE" || exit 7
        echo "$POSSE_APP has $(ls up."$POSSE_INSTANCE".* | wc -l)""#,
    );
    let args = ["run", "--dev", "--executors", "3", "--command", "./worker.sh 'two words'"];
    let args = [&args[..], &["--", "./my_driver.sh"]].concat();
    let outputs: Vec<Output> = thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| posse(dir.path(), &args))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", said(output));
        assert_eq!(stdout(output), "my-driver has 3\n", "{}", said(output));
    }
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let n_runs = names.filter(|name| name.to_string_lossy().starts_with("status.")).count();
    assert_eq!(n_runs, 3, "each run has an instance of its own");
}

pub fn project_python() {
    if has_python() {
        project("python", "sum of squares: 338350");
    }
}

pub fn project_shell() {
    project("shell", "sum of squares: 9455");
}

pub fn project_job() {
    if has_python() {
        let output = project("job", "4 of 4 commands succeeded");
        assert!(output.contains("\ntask 2\n") || output.starts_with("task 2\n"), "{output}");
    }
}

fn has_python() -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("python3").exists()));
    if !found {
        println!("NOT TESTED: this machine has no python3");
    }
    found
}

/// Writes the project, and runs it as its README says, twice at once. Returns what a driver printed.
fn project(kind: &str, last_line: &str) -> String {
    let dir = TempDir::new(kind);
    let made = posse(dir.path(), &["init", "--for", kind, "project"]);
    assert!(made.status.success(), "{}", said(&made));
    let folder = dir.path().join("project");
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(readme.contains(last_line), "{readme}");
    let outputs = thread::scope(|scope| {
        [(); 2]
            .map(|()| scope.spawn(|| posse(&folder, &["run", "--dev"])))
            .map(|run| run.join().unwrap())
    });
    for output in &outputs {
        assert!(output.status.success(), "{kind}: {}", said(output));
        assert_eq!(stdout(output).lines().last(), Some(last_line), "{kind}: {}", said(output));
    }
    stdout(&outputs[0])
}
