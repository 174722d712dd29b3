//! A command in a process group of its own, which ends with it. It takes the place of a supervisor on systems other than
//! Linux. A process that has left the group goes on, and the whole group does if this process is killed.

use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::supervisor::{Asks, Launch};

/// How often the command's end is looked for.
const PAUSE: Duration = Duration::from_millis(10);

/// A command to come. Dropping it kills the command's group.
#[derive(Debug)]
pub(crate) struct Supervisor(Link);

impl Supervisor {
    /// Needs no other program.
    pub(crate) fn start(_: &Path) -> io::Result<Self> {
        Ok(Self(Link(Arc::default())))
    }

    /// For the command.
    pub(crate) fn link(&self) -> &Link {
        &self.0
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.0.signal(Signal::KILL);
    }
}

/// The group, once the command has started.
#[derive(Clone, Debug)]
pub(crate) struct Link(Arc<OnceLock<Pid>>);

impl Link {
    /// Starts the command.
    ///
    /// # Errors
    /// It cannot be executed.
    pub(crate) fn run(&self, launch: &Launch, files: [BorrowedFd<'_>; 3]) -> io::Result<Running> {
        let [stdin, stdout, stderr] = files.map(|file| file.try_clone_to_owned());
        let mut command = launch.command();
        command.stdin(stdin?).stdout(stdout?).stderr(stderr?);
        let child = command.process_group(0).spawn()?;
        // There is one command.
        self.0.get_or_init(|| Pid::from_child(&child));
        Ok(Running(child))
    }

    /// Sends a signal to the group. Its number means no other group as long as one of its processes is there.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(group) = self.0.get() {
            let _ = kill_process_group(*group, signal);
        }
    }
}

/// A command that was started. Dropping it kills the command, but not its descendants.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    /// Waits for the end, for ever without a `timeout`. `None` while it runs.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Option<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Ok(Some(status)) = self.0.try_wait() {
                return Some(status);
            }
            if timeout.is_some_and(|timeout| began.elapsed() >= timeout) {
                return None;
            }
            thread::park_timeout(PAUSE);
        }
    }

    /// The same. That the command asks for a terminal is not seen.
    pub(crate) fn wait_or_asks(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, Asks> {
        Ok(self.wait(Some(timeout)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::process::Command;

    use super::*;

    /// Longer than any command here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn sh(script: &str) -> (Supervisor, Running) {
        let args = ["-c", script].map(OsString::from).into();
        let env = std::env::vars_os().collect();
        let launch = Launch { program: "sh".into(), args, env, dir: OsString::new() };
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        let supervisor = Supervisor::start(Path::new("")).unwrap();
        let running = supervisor.link().run(&launch, [null.as_fd(); 3]).unwrap();
        (supervisor, running)
    }

    /// The processes whose command line has `mark`.
    fn left(mark: &str) -> String {
        let found = Command::new("pgrep").args(["-f", mark]).output().unwrap();
        String::from_utf8(found.stdout).unwrap()
    }

    #[test]
    fn the_group_ends_with_its_command() {
        let mark = |n: u8| format!("2000{n}.{}", std::process::id());
        for (script, ends) in [
            (format!("sleep {} & exit 3", mark(1)), true),
            (format!("sleep {} & sleep {}", mark(2), mark(2)), false),
        ] {
            let (supervisor, mut running) = sh(&script);
            let limit = if ends { PATIENCE } else { Duration::from_millis(50) };
            let end = running.wait_or_asks(limit).unwrap();
            assert_eq!(end.and_then(|end| end.code()), ends.then_some(3), "{script}");
            drop((supervisor, running));
        }
        for n in [1, 2] {
            let began = Instant::now();
            while !left(&mark(n)).is_empty() {
                assert!(began.elapsed() < PATIENCE, "{}", left(&mark(n)));
                thread::park_timeout(PAUSE);
            }
        }
    }

    #[test]
    fn another_thread_can_end_the_command() {
        let (supervisor, mut running) = sh("sleep 600");
        supervisor.link().clone().signal(Signal::KILL);
        assert!(running.wait(Some(PATIENCE)).is_some_and(|end| !end.success()));
    }
}
