//! Runs programs in such a way that none of their descendants outlives them or this process.
//!
//! A supervisor is a process of its own: this program with the hidden command `COMMAND`. It starts
//! the programs of one driver or container as its children. As a child subreaper (prctl(2)) it also
//! becomes the parent of their descendants whose own parents have ended, whatever their session or
//! process group. It kills all of them when its connection to this process is closed. The kernel
//! closes that connection even if this process is killed with SIGKILL. Only Linux has subreapers.

use std::ffi::OsString;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process_group};

/// The hidden command of this program that runs a supervisor.
pub const COMMAND: &str = "supervise";

/// How long the supervisor may take to start a program.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a supervisor's end is awaited. It is longer only if a process is in uninterruptible
/// sleep; then the supervisor goes on without this process.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// A request is one byte: a signal's number, or one of these. This one comes with `FILES` files: the
/// program's channel, stdin, stdout, stderr.
pub(super) const START: u8 = 0;
/// The same for a program whose stdin becomes the controlling terminal of a new session.
pub(super) const START_ON_TERMINAL: u8 = 0xff;
/// Gives that terminal to that program, and continues it.
pub(super) const LEND_TERMINAL: u8 = 0xfe;
pub(super) const FILES: usize = 4;
/// The supervisor's messages on a program's channel are a tag and a number: the process id, the
/// number of the system's error, the signal that stopped a program on the terminal, or the wait status
/// (wait(2)).
pub(super) const STARTED: u8 = b's';
pub(super) const FAILED: u8 = b'f';
pub(super) const STOPPED: u8 = b't';
pub(super) const ENDED: u8 = b'e';
pub(super) const MESSAGE_BYTES: usize = 5;

/// A program to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// A path, or a name to look for in PATH.
    pub program: OsString,
    pub args: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// The working directory. Empty: that of this process when the supervisor was started.
    pub dir: OsString,
}

impl Launch {
    /// The program with its arguments, environment and folder.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        let env = self.env.iter().map(|(name, value)| (name, value));
        command.args(&self.args).env_clear().envs(env);
        if !self.dir.is_empty() {
            command.current_dir(&self.dir);
        }
        command
    }

    /// The fields, each with a zero byte at its end.
    fn encode(&self) -> io::Result<Vec<u8>> {
        let n_args = OsString::from(self.args.len().to_string());
        let env = self.env.iter().flat_map(|(name, value)| [name, value]);
        let fields = [&self.program, &self.dir, &n_args].into_iter().chain(&self.args).chain(env);
        let mut bytes = Vec::new();
        for field in fields {
            if field.as_bytes().contains(&0) {
                let message = "nul byte found in provided data";
                return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
            }
            bytes.extend_from_slice(field.as_bytes());
            bytes.push(0);
        }
        Ok(bytes)
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut fields = bytes
            .split_inclusive(|byte| *byte == 0)
            .map(|field| field.strip_suffix(&[0]).map(|field| OsString::from_vec(field.to_vec())));
        let mut next = || fields.next().flatten();
        let (program, dir, n_args) = (next()?, next()?, next()?);
        let n_args: usize = n_args.to_str()?.parse().ok()?;
        let args = (0..n_args).map(|_| next()).collect::<Option<_>>()?;
        let mut env = Vec::new();
        while let Some(name) = next() {
            env.push((name, next()?));
        }
        Some(Self { program, args, env, dir })
    }
}

/// A started supervisor. Dropping it kills its programs with all of their descendants, and waits
/// for their end for up to `END_TIMEOUT`.
#[derive(Debug)]
pub struct Supervisor {
    link: Link,
    child: Child,
}

impl Supervisor {
    /// Starts `program`, which is this program: usually `this_program`.
    pub fn start(program: &Path) -> io::Result<Self> {
        let mut command = Command::new(program);
        // A process group of its own, because a terminal sends its signals to this process's group.
        Self::spawn(command.process_group(0))
    }

    /// The same for a program on a terminal. Only a process that does not lead a group can begin the new
    /// session.
    pub fn start_for_terminal(program: &Path) -> io::Result<Self> {
        Self::spawn(&mut Command::new(program))
    }

    fn spawn(command: &mut Command) -> io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        command.arg(COMMAND);
        // It must not hold the files of this process, such as a pipe that somebody reads to its end.
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { child: command.spawn()?, link: Link(Arc::new(ours)) })
    }

    /// The supervisor's process, which is a child of this one.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// For requests.
    pub fn link(&self) -> &Link {
        &self.link
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.link.0.shutdown(Shutdown::Write);
        if is_readable(&self.link.0, Some(Instant::now() + END_TIMEOUT)) {
            let _ = self.child.wait();
        } else {
            let pid = self.child.id();
            log::warn!("processes below process {pid} do not end; it goes on killing them");
        }
    }
}

/// The connection to a supervisor.
#[derive(Clone, Debug)]
pub struct Link(Arc<UnixStream>);

impl Link {
    /// Starts a program. The first one leads a new process group; those that are started while it
    /// runs join that group.
    ///
    /// # Errors
    /// The system's error if the program cannot be executed; otherwise the supervisor has ended.
    pub fn run(&self, launch: &Launch, files: [BorrowedFd<'_>; 3]) -> io::Result<Running> {
        self.start(START, launch, files)
    }

    /// The same for a program whose stdin is a terminal that controls no session yet. The program begins
    /// in the background, so that the system stops it when it reads the terminal or sets its modes, and
    /// `Running::take_stop` tells so. The supervisor is from `start_for_terminal`.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_on_terminal(
        &self,
        launch: &Launch,
        files: [BorrowedFd<'_>; 3],
    ) -> io::Result<Running> {
        self.start(START_ON_TERMINAL, launch, files)
    }

    fn start(
        &self,
        request: u8,
        launch: &Launch,
        [stdin, stdout, stderr]: [BorrowedFd<'_>; 3],
    ) -> io::Result<Running> {
        let launch = launch.encode()?;
        let (mut channel, theirs) = UnixStream::pair()?;
        channel.set_read_timeout(Some(START_TIMEOUT))?;
        channel.set_write_timeout(Some(START_TIMEOUT))?;
        let files = [theirs.as_fd(), stdin, stdout, stderr];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let request = [request];
        let request = [IoSlice::new(&request)];
        retry_on_intr(|| sendmsg(&self.0, &request, &mut ancillary, SendFlags::empty()))?;
        drop(theirs);
        channel.write_all(&launch)?;
        channel.shutdown(Shutdown::Write)?;
        match read_message(&mut channel)? {
            (STARTED, pid) => {
                let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Running { pid, channel, stop: None, end: None })
            }
            (FAILED, number) => Err(io::Error::from_raw_os_error(number)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Brings the program on the terminal to the foreground, and continues it.
    pub fn lend_terminal(&self) {
        self.send(LEND_TERMINAL);
    }

    /// Sends a signal to the process group of the first program; if that program has ended, to all
    /// descendants that it left behind. SIGKILL always goes to all programs and their descendants.
    pub fn signal(&self, signal: Signal) {
        if let Ok(number) = u8::try_from(signal.as_raw()) {
            self.send(number);
        }
    }

    fn send(&self, request: u8) {
        // An error means that the supervisor has ended, or that hundreds of requests wait for it.
        let _ = retry_on_intr(|| rustix::net::send(&self.0, &[request], SendFlags::DONTWAIT));
    }
}

/// The program has read a terminal that is not its own, or set its modes, and stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asks;

/// A program that a supervisor has started. Dropping it kills the program, but not its descendants.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    channel: UnixStream,
    stop: Option<Signal>,
    end: Option<ExitStatus>,
}

impl Running {
    /// The program's process, which is not a child of this one.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Waits for the program's end, for ever without a `timeout`. `None` while it runs. This process
    /// gets a SIGCHLD after the end, as if the program were its child.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Option<ExitStatus> {
        self.wait_while(timeout, |running| running.end.is_none())
    }

    /// The same for a program that has no terminal.
    pub fn wait_or_asks(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, Asks> {
        let end = self
            .wait_while(Some(timeout), |running| running.end.is_none() && running.stop.is_none());
        match self.take_stop() {
            Some(_) if end.is_none() => Err(Asks),
            Some(_) | None => Ok(end),
        }
    }

    fn wait_while(
        &mut self,
        timeout: Option<Duration>,
        goes_on: impl Fn(&Self) -> bool,
    ) -> Option<ExitStatus> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        while goes_on(self) {
            if !is_readable(&self.channel, deadline) {
                return None;
            }
            match read_message(&mut self.channel) {
                Ok((STOPPED, signal)) => self.stop = Signal::from_named_raw(signal),
                Ok((ENDED, status)) => self.end = Some(ExitStatus::from_raw(status)),
                // Somebody has killed the supervisor.
                Ok(_) | Err(_) => {
                    let _ = kill_process_group(self.pid, Signal::KILL);
                    self.end = Some(ExitStatus::from_raw(Signal::KILL.as_raw()));
                }
            }
        }
        self.end
    }

    /// The signal that has stopped the program, once for each stop that `wait` has seen. A program that has no terminal
    /// is seen to stop only if it asks for one.
    pub fn take_stop(&mut self) -> Option<Signal> {
        self.stop.take()
    }
}

/// True as soon as something can be read, or the other end is closed; false after `deadline`.
fn is_readable(stream: &UnixStream, deadline: Option<Instant>) -> bool {
    loop {
        let rest = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let rest = rest.and_then(|rest| Timespec::try_from(rest).ok());
        match poll(&mut [PollFd::new(stream, PollFlags::IN)], rest.as_ref()) {
            Ok(n) => return n > 0,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return true,
        }
    }
}

fn read_message(channel: &mut UnixStream) -> io::Result<(u8, i32)> {
    let mut message = [0; MESSAGE_BYTES];
    channel.read_exact(&mut message)?;
    let [tag, number @ ..] = message;
    Ok((tag, i32::from_le_bytes(number)))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::thread;

    use super::*;
    use crate::{enter, this_program, tree};

    /// Much longer than any step takes.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Not a test: `Supervisor::start` runs this program, and the name of this function is what it asks for.
    #[test]
    fn supervise() {
        if std::env::args().nth(1).as_deref() == Some(COMMAND) {
            enter().unwrap();
        }
    }

    fn start() -> Supervisor {
        Supervisor::start(&this_program().unwrap()).unwrap()
    }

    fn launch(words: &[&str]) -> Launch {
        let mut words = words.iter().map(OsString::from);
        let program = words.next().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        Launch { program, args: words.collect(), env: vec![("PATH".into(), path)], dir: "/".into() }
    }

    fn run(link: &Link, words: &[&str]) -> io::Result<Running> {
        let null = File::options().read(true).write(true).open("/dev/null").unwrap();
        link.run(&launch(words), [null.as_fd(); 3])
    }

    fn sh(link: &Link, script: &str) -> Running {
        run(link, &["sh", "-c", script]).unwrap()
    }

    /// The processes whose command line contains `mark`, which no other test uses.
    fn processes(mark: &str) -> Vec<u32> {
        let is_it = |pid: &u32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<_> = line.split(|byte| *byte == 0).collect();
            words.first() == Some(&&b"sleep"[..]) && words.get(1) == Some(&mark.as_bytes())
        };
        tree::processes().map(|(pid, _)| pid).filter(is_it).collect()
    }

    #[track_caller]
    fn eventually(what: &str, is: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is() {
            assert!(Instant::now() < deadline, "{what}");
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// One in the group, one in another session, one without its parent in another session.
    fn with_descendants(number: u32) -> (String, String) {
        let mark = format!("10000.{}{number}", std::process::id());
        let script = format!("sleep {mark} & setsid sleep {mark} & (setsid sleep {mark} &);");
        (mark, script)
    }

    #[test]
    fn a_launch_is_read_as_it_was_written() {
        let mut whole = launch(&["a", "", "-c \u{fc}"]);
        whole.env.push(("X".into(), "".into()));
        whole.args.push(OsString::from_vec(vec![0xff, b'\n']));
        let bytes = whole.encode().unwrap();
        assert_eq!(Launch::decode(&bytes), Some(whole.clone()));
        for cut in [0, 1, bytes.len() - 1] {
            assert_eq!(Launch::decode(&bytes[..cut]), None, "{cut}");
        }
        whole.args.push("a\0b".into());
        assert_eq!(whole.encode().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn ends_and_errors_are_those_of_the_system() {
        let supervisor = start();
        for (script, code, signal) in
            [("exit 0", Some(0), None), ("exit 77", Some(77), None), ("kill -9 $$", None, Some(9))]
        {
            let end = sh(supervisor.link(), script).wait(Some(PATIENCE)).unwrap();
            assert_eq!((end.code(), end.signal()), (code, signal), "{script}");
        }
        for (program, kind) in [
            ("no-such-program", io::ErrorKind::NotFound),
            ("/etc/passwd", io::ErrorKind::PermissionDenied),
        ] {
            let error = run(supervisor.link(), &[program]).unwrap_err();
            assert_eq!(error.kind(), kind, "{program}");
        }
    }

    #[test]
    fn no_descendant_outlives_a_dropped_supervisor() {
        let (mark, script) = with_descendants(1);
        let supervisor = start();
        let mut running = sh(supervisor.link(), &format!("{script} wait"));
        eventually("three to run", || processes(&mark).len() == 3);
        let child = supervisor.pid().as_raw_nonzero();
        drop(supervisor);
        assert_eq!(processes(&mark), [0; 0]);
        assert_eq!(running.wait(Some(PATIENCE)).unwrap().signal(), Some(9));
        assert!(!Path::new(&format!("/proc/{child}")).exists(), "it is reaped");
    }

    #[test]
    fn signals_reach_the_group_and_after_the_programs_end_all_that_it_left() {
        let (mark, script) = with_descendants(2);
        let supervisor = start();
        let mut running = sh(supervisor.link(), &format!("{script} wait"));
        eventually("three to run", || processes(&mark).len() == 3);
        supervisor.link().signal(Signal::TERM);
        assert_eq!(running.wait(Some(PATIENCE)).unwrap().signal(), Some(15));
        eventually("the group's end", || processes(&mark).len() == 2);
        supervisor.link().signal(Signal::TERM);
        eventually("the others' end", || processes(&mark).is_empty());
    }

    #[test]
    fn a_kill_ends_every_descendant() {
        let (mark, script) = with_descendants(3);
        let supervisor = start();
        let mut running = sh(supervisor.link(), &format!("trap '' TERM; {script} wait"));
        eventually("three to run", || processes(&mark).len() == 3);
        supervisor.link().signal(Signal::KILL);
        assert_eq!(running.wait(Some(PATIENCE)).unwrap().signal(), Some(9));
        eventually("all ends", || processes(&mark).is_empty());
    }

    #[test]
    fn a_second_program_joins_the_group_and_is_killed_if_nobody_wants_it() {
        let supervisor = start();
        let first = sh(supervisor.link(), "while :; do sleep 1; done");
        let second = sh(supervisor.link(), "while :; do sleep 1; done");
        let group = |running: &Running| {
            let pid = running.pid();
            rustix::process::getpgid(Some(pid)).map(|group| group == first.pid()).unwrap_or(false)
        };
        assert!(group(&first) && group(&second));
        let pid = second.pid().as_raw_nonzero();
        drop(second);
        eventually("its end", || !Path::new(&format!("/proc/{pid}")).exists());
        assert!(group(&first), "the first one goes on");
    }

    #[test]
    fn signals_to_the_supervisor_itself_change_nothing() {
        let supervisor = start();
        let mut running = sh(supervisor.link(), "while :; do sleep 1; done");
        for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1] {
            rustix::process::kill_process(supervisor.pid(), signal).unwrap();
        }
        let mut third = sh(supervisor.link(), "exit 3");
        assert_eq!(third.wait(Some(PATIENCE)).unwrap().code(), Some(3));
        assert_eq!(running.wait(Some(Duration::ZERO)), None);
    }
}
