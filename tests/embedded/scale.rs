//! `executors[].scale` and `dev` in runs on the embedded cluster.

use std::fs;
use std::process::{Output, Stdio};

use crate::support::posse::{command, printed, scripted};
use crate::support::scene::TempDir;

/// Runs this script as the driver.
fn run(executors: &str, script: &str) -> Output {
    scripted(&format!("app: scale\nexecutors: {executors}\n"), script)
}

/// A queue may need a password.
pub fn the_command_of_a_queue_finds_the_credentials() {
    let executors = r#"
- group: w
  max: 6
  command: [sleep, "600"]
  credentials: []
  scale: {command: [sh, -c, 'cat "$PASSWORD_FILE"'], every: 100ms}
credentials:
- {name: p, command: [sh, -c, 'echo 3 >{{DIR}}/p'], every: 1h, secret: p, mount: /p, env: {PASSWORD_FILE: "{{MOUNT}}/p"}}"#;
    printed(
        &run(executors, r#"cat "$PASSWORD_FILE"; "$POSSE_EXE" wait --running 3 --timeout 60s"#),
        "3\n",
    );
}

pub fn the_target_follows_a_queue() {
    let executors = r#"
- group: w
  max: 6
  command: [sleep, "600"]
  scale: {command: [cat, queue], per_executor: 10, every: 100ms, idle_after: 2s}"#;
    let script = r#"
posse() { "$POSSE_EXE" "$@"; }
# The command never sees half a number.
queue() { echo "$1" >queue.new; mv queue.new queue; }
until_says() {
  n=0
  until posse status --json | tr -d '\n' | sed 's/": /":/g; s/,  *"/,"/g' | grep -q "$1"; do n=$((n + 1)); [ $n -le 600 ] || exit 8; sleep 0.1; done
  echo "$1"
}
until_says '"waiting":"scale_command"'
posse explain | grep -o 'cat: queue: No such file or directory'
queue 0
until_says '"max":6,.*"min":0,.*"pending":0,.*"requested":0,"running":0,.*"target":0,.*"waiting":null'
queue 45
posse wait --running 5 --timeout 120s
! posse scale 2 --group w 2>&1 || exit 9
! posse kill 1 --target 3 2>&1 || exit 9
# What a kill lowers, the next reading restores.
posse kill --no-replace 1
posse wait --running 5 --timeout 120s
queue many
until_says '"waiting":"scale_command"'
until_says 'printed `many` instead of a whole number'
until_says '"target":5,'
queue 1000000
posse wait --running 6 --timeout 120s
until_says '"waiting":null'
before=$(date +%s%3N)
queue 0
until_says '"target":0,'
at=$(posse events -o json | grep '"target_changed".*"target":0' | tail -n 1 | sed 's/.*"time":"\([^"]*\)".*/\1/')
test $(($(date -d "$at" +%s%3N) - before)) -ge 1900 && echo "after idle_after"
until_says '"running":0,'
"#;
    let refused = "the command of `scale` sets the target of group w";
    let output = run(executors, script);
    let want = format!(
        r#""waiting":"scale_command"
cat: queue: No such file or directory
"max":6,.*"min":0,.*"pending":0,.*"requested":0,"running":0,.*"target":0,.*"waiting":null
posse: refused: target: {refused} (400)
posse: refused: target: {refused} (400)
killed: 1
the target is 4 now
"waiting":"scale_command"
printed `many` instead of a whole number
"target":5,
"waiting":null
"target":0,
after idle_after
"running":0,
"#
    );
    printed(&output, &want);
    let errors = String::from_utf8_lossy(&output.stderr);
    for (n, words) in [
        (2, "the command of `scale` works again"),
        (1, "the command of `scale` ended with exit code 1: cat: queue: No such file"),
        (1, "the command of `scale` printed `many` instead of a whole number; the target stays"),
    ] {
        assert_eq!(errors.matches(words).count(), n, "{words}: {errors}");
    }
}

pub fn dev_replaces_the_command_on_this_machine() {
    let executors = r#"
- image: example.com/image:1
  command: [/not/on/this/machine]
  args: ['echo "$POSSE_EXECUTOR_ID $LEVEL $KEPT"; sleep 600']
  env: {LEVEL: info, KEPT: 'yes'}
  dev: {command: [sh, -c], env: {LEVEL: debug}}
driver:
  command: [/not/there]
  dev: {command: [sh, -eu, driver.sh]}"#;
    let dir = TempDir::new("dev");
    fs::write(dir.path().join("posse.yaml"), format!("app: dev\nexecutors: {executors}\n"))
        .unwrap();
    let script = r#"
"$POSSE_EXE" wait --running 1 --timeout 120s
n=0
until "$POSSE_EXE" logs 1 | grep debug; do n=$((n + 1)); [ $n -le 600 ] || exit 8; sleep 0.1; done"#;
    fs::write(dir.path().join("driver.sh"), script).unwrap();
    let run = |args: &[&str]| command(dir.path()).args(args).stdin(Stdio::null()).output().unwrap();
    printed(&run(&["run", "--dev"]), "1 debug yes\n");
    // Everything else ignores it.
    let rendered = run(&["render", "-o", "json"]);
    let pod = String::from_utf8_lossy(&rendered.stdout).into_owned();
    assert!(pod.contains("/not/on/this/machine") && !pod.contains("debug"), "{pod}");
}
