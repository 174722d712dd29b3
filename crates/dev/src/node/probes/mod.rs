//! Runs the handlers of probes and hooks: commands, HTTP requests and TCP connections. They run on
//! their own threads, because they can take long; the node's thread gets the outcome as an `Input`.

pub(super) mod probe;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use self::probe::Handler;
use crate::apiserver::exec_orders::CommandIo;
use crate::node::Input;
use crate::node::process::exit_code;
use crate::node::start::Prepared;
use crate::node::start_error::{RuntimeError, StartError};
use posse_process::supervisor::Link;

/// Threads that run probes.
const THREADS_MAX: usize = 8;
/// Queued probes. A probe that finds the queue full is tried again one period later.
const QUEUE_MAX: usize = 1024;
const STACK_BYTES: usize = 256 << 10;
/// How much of a command's output is read.
const OUTPUT_BYTES_MAX: u64 = 10 << 10;
/// How much of the output goes into an Event, whose message is limited to 1,024 bytes.
const MESSAGE_CHARS_MAX: usize = 900;

/// What a handler is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandlerPurpose {
    PostStart,
    PreStop,
    /// The probe with this index.
    Probe(usize),
}

/// A handler to run. A command also needs `exec`.
#[derive(Debug)]
pub(super) struct HandlerCall {
    /// The kubelet's number of the container's process.
    pub(super) number: u64,
    pub(super) purpose: HandlerPurpose,
    pub(super) handler: Handler,
    pub(super) timeout: Duration,
    pub(super) exec: Option<Exec>,
}

/// A command that runs in a container.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) prepared: Prepared,
    /// The container's supervisor, so that the command ends with the container.
    pub(super) link: Link,
    /// The temporary file for its output.
    pub(super) output: PathBuf,
}

/// The outcome of a handler.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HandlerOutcome {
    pub(super) succeeded: bool,
    /// The handler could not run at all.
    pub(super) errored: bool,
    /// Why it failed. Empty if it succeeded.
    pub(super) message: String,
}

impl HandlerOutcome {
    fn success() -> Self {
        Self { succeeded: true, errored: false, message: String::new() }
    }

    fn failure(message: impl Into<String>) -> Self {
        Self { succeeded: false, errored: false, message: message.into() }
    }

    pub(super) fn error(message: impl Into<String>) -> Self {
        Self { succeeded: false, errored: true, message: message.into() }
    }
}

/// The threads that run probes and hooks.
#[derive(Debug)]
pub(super) struct HandlerThreads {
    calls: Sender<HandlerCall>,
    receiver: Receiver<HandlerCall>,
    inbox: Sender<Input>,
    n_threads: usize,
}

impl HandlerThreads {
    pub(super) fn new(inbox: Sender<Input>) -> Self {
        let (calls, receiver) = bounded(QUEUE_MAX);
        Self { calls, receiver, inbox, n_threads: 0 }
    }

    /// Runs a probe on one of the shared threads. False if the queue is full.
    pub(super) fn run_probe(&mut self, call: HandlerCall) -> bool {
        if self.n_threads == 0 || (self.n_threads < THREADS_MAX && !self.calls.is_empty()) {
            let (receiver, inbox) = (self.receiver.clone(), self.inbox.clone());
            let started = builder().spawn(move || {
                for call in receiver {
                    // A send error means that the node's thread has ended.
                    let _ = inbox.send(run(call));
                }
            });
            self.n_threads += usize::from(started.is_ok());
        }
        self.n_threads > 0 && self.calls.try_send(call).is_ok()
    }

    /// Runs a hook on its own thread, because it may take a whole grace period. False if the thread
    /// could not be started.
    pub(super) fn run_hook(&self, call: HandlerCall) -> bool {
        let inbox = self.inbox.clone();
        let started = builder().spawn(move || {
            // A send error means that the node's thread has ended.
            let _ = inbox.send(run(call));
        });
        started.is_ok()
    }
}

fn builder() -> thread::Builder {
    thread::Builder::new().name("dev-probe".to_owned()).stack_size(STACK_BYTES)
}

fn run(call: HandlerCall) -> Input {
    let HandlerCall { number, purpose, handler, timeout, exec } = call;
    let mut outcome = match (handler, exec) {
        (Handler::Exec(_), Some(exec)) => run_command(exec, timeout),
        (Handler::Exec(_), None) => HandlerOutcome::error("container not running"),
        (Handler::Invalid(why), _) => HandlerOutcome::error(why),
        (Handler::Http { host, port, path, headers, tls }, _) => {
            let scheme = if tls { "https" } else { "http" };
            let url = format!("{scheme}://{host}:{port}{path}");
            match http(&host, port, &path, &headers, tls, timeout) {
                Ok(200..=399) => HandlerOutcome::success(),
                Ok(code) => {
                    HandlerOutcome::failure(format!("HTTP probe failed with statuscode: {code}"))
                }
                Err(why) => HandlerOutcome::failure(format!("Get \"{url}\": {why}")),
            }
        }
        (Handler::Tcp { host, port }, _) => match connect(&host, port, timeout) {
            Ok(_) => HandlerOutcome::success(),
            Err(why) => HandlerOutcome::failure(why),
        },
    };
    if let Some((cut, _)) = outcome.message.char_indices().nth(MESSAGE_CHARS_MAX) {
        outcome.message.truncate(cut);
    }
    Input::HandlerDone(number, purpose, outcome)
}

fn run_command(exec: Exec, timeout: Duration) -> HandlerOutcome {
    let Exec { prepared, link, output } = exec;
    let file = || -> io::Result<File> {
        let file = File::options().read(true).append(true).create(true).open(&output)?;
        // Only this thread reads the file, through the handle, so its name is not needed.
        std::fs::remove_file(&output)?;
        Ok(file)
    };
    let mut file = match file() {
        Ok(file) => file,
        Err(error) => return HandlerOutcome::error(format!("{}: {error}", output.display())),
    };
    let io = match file.try_clone().and_then(|file| CommandIo::output(file.into())) {
        Ok(io) => io,
        Err(error) => return HandlerOutcome::error(error.to_string()),
    };
    let mut running = match prepared.spawn(&io, &link) {
        Ok(running) => running,
        Err(StartError::Blocked(blocked)) => return HandlerOutcome::error(blocked.message),
        Err(StartError::Failed(RuntimeError(why))) => {
            return HandlerOutcome::error(format!("failed to exec in container: {why}"));
        }
    };
    let end = running.wait(Some(timeout));
    // If it still runs, this kills it.
    drop(running);
    let mut output = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(OUTPUT_BYTES_MAX).read_to_end(&mut output));
    let message = match read {
        Ok(_) => String::from_utf8_lossy(&output).into_owned(),
        Err(error) => error.to_string(),
    };
    match end.map(exit_code) {
        Some(0) => HandlerOutcome::success(),
        Some(_) => HandlerOutcome::failure(message),
        None => HandlerOutcome::failure(format!("command timed out after {}s", timeout.as_secs())),
    }
}

/// Opens a TCP connection. Errors are worded as Go words them.
fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let prefix = format!("dial tcp {host}:{port}");
    let address = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    let Some(address) = address else {
        return Err(format!("dial tcp: lookup {host}: no such host"));
    };
    TcpStream::connect_timeout(&address, timeout).map_err(|error| {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            format!("{prefix}: connect: connection refused")
        } else if error.kind() == io::ErrorKind::TimedOut {
            format!("{prefix}: i/o timeout")
        } else {
            format!("{prefix}: {error}")
        }
    })
}

/// The status code of a GET. For HTTPS, only the TCP connection is tried.
fn http(
    host: &str,
    port: u16,
    path: &str,
    headers: &[(String, String)],
    tls: bool,
    timeout: Duration,
) -> Result<u16, String> {
    const TIMED_OUT: &str =
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    let deadline = Instant::now() + timeout;
    let mut stream = connect(host, port, timeout)?;
    if tls {
        return Ok(200);
    }
    let (major, minor) = crate::schema::VERSION;
    let is_set = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
    let mut head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    let defaults = [
        ("Host", format!("{host}:{port}")),
        ("User-Agent", format!("kube-probe/{major}.{minor}")),
        ("Accept", "*/*".to_owned()),
    ];
    for (name, value) in defaults.iter().filter(|(name, _)| !is_set(name)) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let timeouts = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
    let describe = |error: io::Error| match timeouts.contains(&error.kind()) {
        true => TIMED_OUT.to_owned(),
        false => error.to_string(),
    };
    let mut answer = Vec::new();
    stream.set_write_timeout(Some(timeout)).map_err(describe)?;
    stream.write_all(head.as_bytes()).map_err(describe)?;
    loop {
        let line = answer.iter().position(|byte| *byte == b'\n');
        if let Some(line) = line.and_then(|end| answer.get(..end)) {
            let text = String::from_utf8_lossy(line);
            let code = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
            return code
                .and_then(|code| code.trim().parse().ok())
                .ok_or_else(|| format!("malformed HTTP response {:?}", text.trim_end()));
        }
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(TIMED_OUT.to_owned());
        }
        stream.set_read_timeout(Some(remaining)).map_err(describe)?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).map_err(describe)? {
            0 => return Err("EOF".to_owned()),
            n => answer.extend_from_slice(bytes.get(..n).unwrap_or_default()),
        }
        if answer.len() > 8 << 10 {
            return Err("malformed HTTP response".to_owned());
        }
    }
}
