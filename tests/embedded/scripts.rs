//! The commands for drivers that are scripts: `posse ready`, `idle` and `wait`, and the probes of
//! `driver.ready`.

use std::process::Output;

use crate::support::posse::{printed, scripted};

/// Runs this script as the driver of one executor.
fn run(ready: &str, script: &str) -> Output {
    let pod = r#"{"spec": {"terminationGracePeriodSeconds": 1,
        "containers": [{"name": "a", "image": "a", "command": ["sleep", "600"]}]}}"#;
    let config = format!(
        "app: scripts\ndriver: {{ready: '{ready}'}}\nexecutors: [{{count: 1, pod: {pod}}}]\n"
    );
    scripted(&config, script)
}

/// No executor is created before the driver is ready: the wait for one gives up.
const NOT_YET: &str = r#"! "$POSSE_EXE" wait --running 1 --timeout 1s || exit 9
"#;
const THEN: &str = r#""$POSSE_EXE" wait --running 1 --timeout 60s
echo one"#;

pub fn executors_wait_for_the_drivers_call() {
    printed(&run("control", &format!("{NOT_YET}\n\"$POSSE_EXE\" ready\n{THEN}")), "one\n");
}

pub fn executors_wait_for_the_drivers_file() {
    // A file of an earlier run says nothing.
    printed(
        &run("file:up", &format!("touch -d '1 hour ago' up\n{NOT_YET}\ntouch up\n{THEN}")),
        "one\n",
    );
}

pub fn a_script_reports_idle_executors() {
    let script = format!(
        r#"{THEN}
"$POSSE_EXE" idle
"$POSSE_EXE" kill 1
"$POSSE_EXE" idle 1
! "$POSSE_EXE" idle 1 77 || exit 9
! "$POSSE_EXE" wait --running 1 --group none || exit 9
"$POSSE_EXE" kill --no-replace 1 | head -1"#
    );
    let output = run("none", &script);
    printed(&output, "one\nbusy, not killed (use --force): 1\nkilled: 1\n");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.contains("no such executor: 77"), "{errors}");
    assert!(errors.contains("there is no group none; the run has: default"), "{errors}");
}
