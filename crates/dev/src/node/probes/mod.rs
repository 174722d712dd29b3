//! Runs the handlers of probes and hooks: commands, HTTP requests and TCP connections. They run on
//! their own threads, because they can take long; the node's thread gets the outcome as an `Input`.

pub(super) mod probe;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Sender;

use self::probe::Handler;
use crate::apiserver::exec_orders::{CommandIo, exit_code};
use crate::node::Input;
use crate::node::start::Prepared;
use crate::node::start_error::StartError;
use posse_process::supervisor::Link;

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

/// Runs a probe or a hook on a thread of its own, because it may take a whole grace period. False if the
/// thread could not be started. Each probe runs once at a time, so their number bounds the threads.
pub(super) fn start(call: HandlerCall, inbox: &Sender<Input>) -> bool {
    let inbox = inbox.clone();
    let builder = thread::Builder::new().name("dev-probe".to_owned()).stack_size(STACK_BYTES);
    let started = builder.spawn(move || {
        // A send error means that the node's thread has ended.
        let _ = inbox.send(run(call));
    });
    started.is_ok()
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
            // For HTTPS, only the connection is tried: no certificate is checked.
            let code = match tls {
                true => connect(&host, port, timeout).map(|_| 200),
                false => http(&url, &headers, timeout),
            };
            match code {
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
        Err(StartError::Failed(why)) => {
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

/// The status code of a GET.
fn http(url: &str, headers: &[(String, String)], timeout: Duration) -> Result<u16, String> {
    let (major, minor) = crate::schema::VERSION;
    let agent = ureq::Agent::config_builder()
        .timeout_global(Some(timeout))
        .proxy(None)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .user_agent(format!("kube-probe/{major}.{minor}"))
        .build()
        .new_agent();
    let request =
        headers.iter().fold(agent.get(url), |request, (name, value)| request.header(name, value));
    let answer = request.call().map_err(|error| error.to_string())?;
    Ok(answer.status().as_u16())
}
