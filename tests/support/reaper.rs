//! Ends the servers that tests start, even if the test program is killed. A `sh` reads a pipe from
//! this process; when the pipe closes (also after SIGKILL) it kills the processes on its list.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};

use rustix::process::{Pid, Signal, kill_process};

use super::wait::{PATIENCE, wait_for};

const SCRIPT: &str = r#"
pids=
while read -r word pid; do
  case $word in
  watch) pids="$pids $pid" ;;
  forget) pids=$(for p in $pids; do [ "$p" = "$pid" ] || printf ' %s' "$p"; done) ;;
  esac
done
for p in $pids; do kill -9 "$p" 2>/dev/null; done
"#;

static REAPER: OnceLock<Mutex<Child>> = OnceLock::new();

fn tell(word: &str, pid: u32) {
    let reaper = REAPER.get_or_init(|| {
        let reaper = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A separate process group, so that an interrupt from the terminal does not end it
            // first.
            .process_group(0)
            .spawn()
            .expect("sh is there");
        Mutex::new(reaper)
    });
    let mut reaper = reaper.lock().expect("nobody panics in here");
    let pipe = reaper.stdin.as_mut().expect("its input is a pipe");
    // An error means that the reaper has ended.
    let _ = writeln!(pipe, "{word} {pid}");
}

/// A child process that does not outlive the test program.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
}

impl Guarded {
    /// Starts `command` in a separate process group.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        posse_testing::let_children_hear_signals();
        let child = command.stdin(Stdio::null()).process_group(0).spawn()?;
        tell("watch", child.id());
        Ok(Self { child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// True if the process has ended.
    pub fn is_over(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }

    /// The exit status, if the process has ended.
    pub fn status(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal to the process only, not to its group.
    pub fn signal(&mut self, signal: Signal) {
        // After the end was noticed, another process may have its pid.
        if self.is_over() {
            return;
        }
        let pid = i32::try_from(self.child.id()).expect("pids are small");
        if let Some(pid) = Pid::from_raw(pid) {
            // An error means that the process has just ended.
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops it with SIGSTOP, and waits until each of its threads has stopped: on a busy machine
    /// that takes a while.
    pub fn freeze(&mut self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.id());
        wait_for(PATIENCE, "a process to stand still", || {
            let tasks = std::fs::read_dir(&tasks).expect("a process that lives has threads");
            tasks.flatten().all(|task| {
                // The state comes after the name, which may contain anything. A thread that has
                // ended counts as stopped.
                let stat = std::fs::read_to_string(task.path().join("stat"));
                stat.map_or(true, |stat| {
                    stat.rsplit(") ").next().unwrap_or_default().starts_with('T')
                })
            })
        });
    }

    /// Kills it and waits for its end.
    pub fn kill(&mut self) {
        // A process that has ended cannot be killed, so an error does not matter.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.kill();
        tell("forget", self.child.id());
    }
}
