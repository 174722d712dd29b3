//! `posse logs --follow` of executors: it ends with the run.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use posse_testing::{Folder, Wait};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(120);
/// A watch of the pods that nothing ends takes 30 s.
const END: Duration = Duration::from_secs(25);
const POLL: Duration = Duration::from_millis(50);

fn posse(folder: &Folder, args: &[&str]) -> Command {
    let mut command = super::folder::posse(folder.path(), args);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    command
}

/// Ends a process that a failed test leaves.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn followed_logs_end_with_the_run() {
    let folder = Folder::new();
    let command = "sh -c 'echo it works; sleep 1000'";
    let run = ["run", "--dev", "--app", "followed", "--executors", "2", "--command", command];
    let mut run = Running(posse(&folder, &run).stdout(Stdio::null()).spawn().unwrap());
    let wait = ["wait", "followed", "--running", "2", "--timeout", "100s"];
    assert!(posse(&folder, &wait).status().unwrap().success());
    let follow = |args: &[&str]| {
        let mut child =
            posse(&folder, &[&["logs", "followed", "-f"], args].concat()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("it works"), "{line}");
        Running(child)
    };
    let mut followers = [follow(&["1"]), follow(&["--executors"])];
    kill_process(Pid::from_child(&run.0), Signal::TERM).unwrap();
    assert!(run.0.wait().unwrap().success());
    let ended = Instant::now();
    let mut wait = Wait::new("the followers to end", PATIENCE);
    while followers.iter_mut().any(|one| one.0.try_wait().unwrap().is_none()) && wait.goes_on() {
        std::thread::sleep(POLL);
    }
    assert!(ended.elapsed() < END, "{:?}", ended.elapsed());
}
