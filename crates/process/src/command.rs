//! Runs commands to their end: with a time-out, so that no process of them is left, also after this process was killed
//! (`group` says what differs without Linux), and so that what they print stays bounded. The standard output is where tools print tokens, so it is never shown.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write, pipe};
use std::os::fd::AsFd;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

#[cfg(not(target_os = "linux"))]
use crate::group::{Link, Running, Supervisor};
use crate::supervisor::{Asks, Launch};
#[cfg(target_os = "linux")]
use crate::supervisor::{Link, Running, Supervisor};
use crate::this_program;
use posse_base::sync::lock;
use posse_base::text::sanitize_end;

/// How much of the end of each output is kept, in bytes, if the caller needs no more.
const OUTPUT_BYTES_MAX: usize = 4 << 10;
/// The longest message of a command, in bytes.
const MESSAGE_BYTES_MAX: usize = 512;
/// The outputs are complete when all processes of the command have ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(5);
/// The stack of a thread that reads an output, bytes.
const STACK_BYTES: usize = 128 << 10;

/// The command that runs now, so that another thread can end it.
#[derive(Clone, Debug, Default)]
pub struct RunningCommand(Arc<Mutex<Slot>>);

#[derive(Debug, Default)]
enum Slot {
    #[default]
    Idle,
    Running(Link),
    /// No command may start any more.
    Closed,
}

impl RunningCommand {
    /// Ends the command that runs, and starts none any more.
    pub fn close(&self) {
        if let Slot::Running(link) = std::mem::replace(&mut *lock(&self.0), Slot::Closed) {
            link.signal(Signal::KILL);
        }
    }

    /// Starts a command. `close` waits until that is done, so that it ends the command.
    fn start(
        &self,
        link: &Link,
        start: impl FnOnce() -> Result<Running, String>,
    ) -> Result<Running, String> {
        let mut slot = lock(&self.0);
        if matches!(*slot, Slot::Closed) {
            return Err("was not started: the run ends".to_owned());
        }
        let started = start()?;
        *slot = Slot::Running(link.clone());
        Ok(started)
    }

    fn end(&self) {
        let mut slot = lock(&self.0);
        if matches!(*slot, Slot::Running(_)) {
            *slot = Slot::Idle;
        }
    }
}

/// Why a command gave nothing.
#[derive(Debug, PartialEq, Eq)]
pub struct Failure {
    /// A phrase that begins with a verb.
    pub what: String,
    /// The last line of its standard error, safe to print.
    pub said: String,
    /// The end of its standard error.
    pub errors: Output,
}

impl From<String> for Failure {
    fn from(what: String) -> Self {
        Self { what, said: String::new(), errors: Output::default() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.said.as_str() {
            "" => f.write_str(&self.what),
            said => write!(f, "{}: {said}", self.what),
        }
    }
}

/// Runs a command in this process's folder and environment. Returns the end of its standard output.
///
/// # Errors
/// It does not start, or does not end well and in time.
pub fn run(
    words: &[String],
    timeout: Duration,
    running: &RunningCommand,
) -> Result<String, Failure> {
    let env = std::env::vars_os().collect();
    run_with(words, env, timeout, running, OUTPUT_BYTES_MAX).map(|output| output.end)
}

/// The same with this environment. Returns the last `output_bytes_max` bytes of the output.
pub fn run_with(
    words: &[String],
    env: Vec<(OsString, OsString)>,
    timeout: Duration,
    running: &RunningCommand,
    output_bytes_max: usize,
) -> Result<Output, Failure> {
    let words = words.iter().map(OsString::from).collect();
    run_call(Call { words, env, timeout, output_bytes_max, live: None }, running)
}

/// A command and its limits.
pub struct Call {
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    pub timeout: Duration,
    /// How much of the end of its standard output is kept.
    pub output_bytes_max: usize,
    /// Somebody reads what it says.
    pub live: Option<Live>,
}

impl fmt::Debug for Call {
    /// Without the arguments and the environment, which may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call").field("program", &self.words.first()).finish_non_exhaustive()
    }
}

/// A person who sees what a command says.
pub struct Live {
    /// Gets the standard error as it comes.
    pub errors: Box<dyn Write + Send>,
    /// How long a command that says something may take: a person acts upon it.
    pub timeout: Duration,
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Runs a command to its end. Its standard input is empty.
///
/// # Errors
/// It does not start, or does not end well and in time.
pub fn run_call(call: Call, running: &RunningCommand) -> Result<Output, Failure> {
    let Call { words, env, mut timeout, output_bytes_max, live } = call;
    let failed = |error: io::Error| format!("cannot be run: {error}");
    let mut words = words.into_iter();
    let program = words.next().ok_or_else(|| "is empty".to_owned())?;
    let launch = Launch { program, args: words.collect(), env, dir: OsString::new() };
    let empty = File::open("/dev/null").map_err(failed)?;
    let (stdout, stdout_end) = pipe().map_err(failed)?;
    let (stderr, stderr_end) = pipe().map_err(failed)?;
    let supervisor = this_program().and_then(|this| Supervisor::start(&this)).map_err(failed)?;
    let files = [empty.as_fd(), stdout_end.as_fd(), stderr_end.as_fd()];
    let link = supervisor.link();
    let mut command = running.start(link, || link.run(&launch, files).map_err(failed))?;
    drop((stdout_end, stderr_end));
    let has_spoken = Arc::new(AtomicBool::new(false));
    let (longer, listener) = match live {
        Some(Live { errors, timeout: longer }) => {
            (Some(longer.saturating_sub(timeout)), Some((errors, Arc::clone(&has_spoken))))
        }
        None => (None, None),
    };
    let outputs = [
        keep_end(stdout, output_bytes_max, None).map_err(failed)?,
        keep_end(stderr, OUTPUT_BYTES_MAX, listener).map_err(failed)?,
    ];
    let mut end = command.wait_or_asks(timeout);
    let has_spoken = |_: &Duration| has_spoken.load(Ordering::Relaxed);
    if let Some(longer) = longer.filter(has_spoken).filter(|_| end == Ok(None)) {
        timeout += longer;
        end = command.wait_or_asks(longer);
    }
    running.end();
    // Ends all processes of the command, and so its outputs.
    drop(supervisor);
    let [stdout, stderr] =
        outputs.map(|output| output.recv_timeout(OUTPUT_TIMEOUT).unwrap_or_default());
    let what = match end {
        Ok(Some(status)) if status.success() => return Ok(stdout),
        Ok(Some(status)) => describe(status),
        Ok(None) => format!("did not end within {} s", timeout.as_secs()),
        // The terminal is posse's, or that of the driver.
        Err(Asks) => {
            "asks at the terminal, which it does not get: run it by hand first, so that it \
                      need not ask"
                .to_owned()
        }
    };
    Err(Failure { what, said: last_line(&stderr.end), errors: stderr })
}

fn describe(status: ExitStatus) -> String {
    match status.code() {
        Some(code) => format!("ended with exit code {code}"),
        None => format!("was ended by a signal ({status})"),
    }
}

/// The last line that is not empty, safe to print.
fn last_line(output: &str) -> String {
    let line = output.lines().rfind(|line| !line.trim().is_empty());
    sanitize_end(line.unwrap_or_default(), MESSAGE_BYTES_MAX)
}

/// What a command has written to one of its outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Output {
    /// The last part of it.
    pub end: String,
    /// How much it was.
    pub n_bytes: u64,
}

/// Who gets an output as it comes, and whether there was any.
type Listener = (Box<dyn Write + Send>, Arc<AtomicBool>);

/// Reads an output to its end on a thread of its own.
fn keep_end(
    mut output: PipeReader,
    bytes_max: usize,
    mut listener: Option<Listener>,
) -> io::Result<Receiver<Output>> {
    let (sender, receiver) = sync_channel(1);
    let body = move || {
        let (mut kept, mut n_bytes) = (Vec::new(), 0_u64);
        let mut part = [0; OUTPUT_BYTES_MAX];
        while let Ok(n @ 1..) = output.read(&mut part) {
            let part = part.get(..n).unwrap_or_default();
            n_bytes = n_bytes.saturating_add(n as u64);
            if let Some((listener, has_spoken)) = &mut listener {
                has_spoken.store(true, Ordering::Relaxed);
                // A terminal that is gone is no reason to end.
                let _ = listener.write_all(part).and_then(|()| listener.flush());
            }
            kept.extend_from_slice(part);
            let surplus = kept.len().saturating_sub(bytes_max);
            kept.drain(..surplus);
        }
        // Nobody waits for it after `OUTPUT_TIMEOUT`.
        let _ = sender.send(Output { end: String::from_utf8_lossy(&kept).into_owned(), n_bytes });
    };
    thread::Builder::new().name("output".to_owned()).stack_size(STACK_BYTES).spawn(body)?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Longer than any command here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn sh(script: &str, timeout: Duration) -> Result<String, String> {
        let words = ["sh", "-c", script].map(str::to_owned);
        run(&words, timeout, &RunningCommand::default()).map_err(|failure| failure.to_string())
    }

    #[track_caller]
    fn check(script: &str, want: &str) {
        let error = sh(script, PATIENCE).unwrap_err();
        assert_eq!(error, want);
    }

    #[test]
    fn a_failed_command_tells_its_last_line_of_standard_error() {
        check("exit 3", "ended with exit code 3");
        check("echo s3cr3t; exit 1", "ended with exit code 1");
        check(
            "echo first >&2; echo 'no KDC' >&2; echo >&2; exit 1",
            "ended with exit code 1: no KDC",
        );
        check("printf 'a\\033[31mb' >&2; exit 1", "ended with exit code 1: a\\u{1b}[31mb");
        check("kill -9 $$", "was ended by a signal (signal: 9 (SIGKILL))");
        let long = sh("head -c 100000 /dev/zero | tr '\\0' x >&2; exit 1", PATIENCE).unwrap_err();
        assert!(long.len() < 600 && long.ends_with("xxx"), "{long}");
        let missing = run(&["/no/such/program".to_owned()], PATIENCE, &RunningCommand::default());
        assert!(missing.unwrap_err().what.starts_with("cannot be run: No such file"), "missing");
        assert_eq!(sh("echo a; echo 17", PATIENCE).unwrap(), "a\n17\n");
    }

    #[test]
    fn a_command_that_hangs_is_ended_with_its_children() {
        let mark = format!("1000.{}", std::process::id());
        // One that leaves the process group is found on Linux alone.
        let leaves = if cfg!(target_os = "linux") { "setsid " } else { "" };
        let script = format!("echo waiting >&2; {leaves}sleep {mark} & sleep {mark}");
        // Longer than a busy machine takes until the script says something.
        let error = sh(&script, Duration::from_secs(5)).unwrap_err();
        assert_eq!(error, "did not end within 5 s: waiting");
        let left = std::process::Command::new("pgrep").args(["-f", &mark]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&left.stdout), "", "no process is left");
    }

    /// The system stops it as it reads a terminal that it has not got. On Linux alone it is seen.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_command_that_asks_at_the_terminal_fails_at_once() {
        for signal in ["TTIN", "TTOU"] {
            check(
                &format!("echo 'MFA code:' >&2; kill -{signal} $$"),
                "asks at the terminal, which it does not get: run it by hand first, so that it need not \
                 ask: MFA code:",
            );
        }
        // Somebody else has stopped it, and continues it.
        let stopped = "(sleep 1; kill -CONT $$) & kill -STOP $$; echo done";
        assert_eq!(sh(stopped, PATIENCE).unwrap(), "done\n");
    }

    /// What is said is passed on at once, and gives more time.
    #[test]
    fn a_person_sees_what_is_said_and_gets_more_time() {
        struct Passed(std::sync::mpsc::Sender<String>);
        impl Write for Passed {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.send(String::from_utf8_lossy(bytes).into_owned()).unwrap();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let call = |script: &str, longer| {
            let (sender, passed) = std::sync::mpsc::channel();
            let call = Call {
                words: ["sh", "-c", script].map(OsString::from).into(),
                env: std::env::vars_os().collect(),
                timeout: Duration::from_secs(2),
                output_bytes_max: OUTPUT_BYTES_MAX,
                live: Some(Live { errors: Box::new(Passed(sender)), timeout: longer }),
            };
            let ended = run_call(call, &RunningCommand::default());
            (ended, passed.try_iter().collect::<String>())
        };
        let (ended, seen) = call("echo open the page >&2; sleep 4; echo done", PATIENCE);
        assert_eq!((ended.unwrap().end.as_str(), seen.as_str()), ("done\n", "open the page\n"));
        let (ended, _) = call("sleep 600", PATIENCE);
        assert_eq!(ended.unwrap_err().what, "did not end within 2 s");
        let (ended, _) = call("echo now >&2; sleep 600", Duration::from_secs(4));
        assert_eq!(ended.unwrap_err().to_string(), "did not end within 4 s: now");
    }

    #[test]
    fn the_end_of_the_run_ends_the_command() {
        let running = RunningCommand::default();
        let began = Instant::now();
        let words = ["sleep", "600"].map(str::to_owned);
        thread::scope(|scope| {
            let command = scope.spawn(|| run(&words, PATIENCE * 10, &running));
            while !matches!(*lock(&running.0), Slot::Running(_)) {
                assert!(began.elapsed() < PATIENCE && !command.is_finished(), "it never ran");
                thread::park_timeout(Duration::from_millis(2));
            }
            running.close();
            assert!(command.join().unwrap().is_err());
        });
        assert!(began.elapsed() < PATIENCE);
        let error = run(&words, PATIENCE, &running).unwrap_err();
        assert_eq!(error.what, "was not started: the run ends");
    }
}
