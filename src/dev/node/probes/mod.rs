//! Owns the asking of containers, by probes and hooks: commands, HTTP requests, connections. On
//! threads of its own, never on the node's; decides nothing by the answers.

pub(super) mod probe;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use self::probe::Action;
use crate::dev::node::Input;
use crate::dev::node::process::{await_end, exit_code};
use crate::dev::node::start::Prepared;
use crate::dev::node::start_error::{NotStarted, StartFailed};

/// Probes asked at a time; the others wait for their turn.
const THREADS_MAX: usize = 8;
/// Probes that wait; one that finds no room is asked a period later.
const WAITING_MAX: usize = 1024;
const STACK_BYTES: usize = 256 << 10;
/// Of a command's output or a server's answer so much is looked at.
const ANSWER_BYTES_MAX: u64 = 10 << 10;
/// Of that, what an Event can hold.
const WORDS_CHARS_MAX: usize = 900;

/// Why a container is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    PostStart,
    PreStop,
    /// The probe at this place.
    Probe(usize),
}

/// What is asked: an action, and for a command all that it takes to run it.
#[derive(Debug)]
pub(super) struct Question {
    /// The process of the container, by the kubelet's number.
    pub(super) number: u64,
    pub(super) purpose: Purpose,
    pub(super) action: Action,
    pub(super) timeout: Duration,
    pub(super) exec: Option<Exec>,
}

/// A command in a container.
#[derive(Debug)]
pub(super) struct Exec {
    pub(super) prepared: Prepared,
    /// The container's process group: what runs in a container ends with it.
    pub(super) group: u32,
    /// Where its output goes meanwhile.
    pub(super) output: PathBuf,
}

/// How it went.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) good: bool,
    /// It could not be asked at all.
    pub(super) errored: bool,
    pub(super) words: String,
}

impl Reply {
    fn good() -> Self {
        Self { good: true, errored: false, words: String::new() }
    }

    fn bad(words: impl Into<String>) -> Self {
        Self { good: false, errored: false, words: words.into() }
    }

    fn error(words: impl Into<String>) -> Self {
        Self { good: false, errored: true, words: words.into() }
    }
}

/// The threads that ask.
#[derive(Debug)]
pub(super) struct Askers {
    questions: Sender<Question>,
    receiver: Receiver<Question>,
    inbox: Sender<Input>,
    n_threads: usize,
}

impl Askers {
    pub(super) fn new(inbox: Sender<Input>) -> Self {
        let (questions, receiver) = bounded(WAITING_MAX);
        Self { questions, receiver, inbox, n_threads: 0 }
    }

    /// Asks a probe's question on one of a few threads; false where there is no room for it.
    pub(super) fn ask(&mut self, question: Question) -> bool {
        if self.n_threads == 0 || (self.n_threads < THREADS_MAX && !self.questions.is_empty()) {
            let (receiver, inbox) = (self.receiver.clone(), self.inbox.clone());
            let started = asker().spawn(move || {
                for question in receiver {
                    // Refused where the node has ended; then so do the questions.
                    let _ = inbox.send(reply(question));
                }
            });
            self.n_threads += usize::from(started.is_ok());
        }
        self.n_threads > 0 && self.questions.try_send(question).is_ok()
    }

    /// Asks a hook's question on a thread of its own: it may take all of a grace.
    pub(super) fn ask_apart(&self, question: Question) -> bool {
        let inbox = self.inbox.clone();
        let started = asker().spawn(move || {
            let _ = inbox.send(reply(question));
        });
        started.is_ok()
    }
}

fn asker() -> thread::Builder {
    thread::Builder::new().name("dev-ask".to_owned()).stack_size(STACK_BYTES)
}

fn reply(question: Question) -> Input {
    let Question { number, purpose, action, timeout, exec } = question;
    let mut reply = match (action, exec) {
        (Action::Exec(_), Some(exec)) => run(exec, timeout),
        (Action::Exec(_), None) => Reply::error("container not running"),
        (Action::Faulty(why), _) => Reply::error(why),
        (Action::Http { host, port, path, headers, tls }, _) => {
            let scheme = if tls { "https" } else { "http" };
            let url = format!("{scheme}://{host}:{port}{path}");
            match http(&host, port, &path, &headers, tls, timeout) {
                Ok(200..=399) => Reply::good(),
                Ok(code) => Reply::bad(format!("HTTP probe failed with statuscode: {code}")),
                Err(why) => Reply::bad(format!("Get \"{url}\": {why}")),
            }
        }
        (Action::Tcp { host, port }, _) => match connect(&host, port, timeout) {
            Ok(_) => Reply::good(),
            Err(why) => Reply::bad(why),
        },
    };
    if let Some((cut, _)) = reply.words.char_indices().nth(WORDS_CHARS_MAX) {
        reply.words.truncate(cut);
    }
    Input::Asked(number, purpose, reply)
}

fn run(exec: Exec, timeout: Duration) -> Reply {
    let Exec { prepared, group, output } = exec;
    let file = || -> io::Result<File> {
        let file = File::options().read(true).append(true).create(true).open(&output)?;
        // Nobody else looks at it: it needs no name.
        std::fs::remove_file(&output)?;
        Ok(file)
    };
    let mut file = match file() {
        Ok(file) => file,
        Err(error) => return Reply::error(format!("{}: {error}", output.display())),
    };
    let Ok(group) = i32::try_from(group) else { return Reply::error("container not running") };
    let mut child = match prepared.spawn(&file, group) {
        Ok(child) => child,
        Err(NotStarted::Blocked(blocked)) => return Reply::error(blocked.message),
        Err(NotStarted::Failed(StartFailed(why))) => {
            return Reply::error(format!("failed to exec in container: {why}"));
        }
    };
    let (ended, end) = bounded::<()>(1);
    let waits = await_end(child.id(), move || drop(ended));
    let in_time = waits.is_ok()
        && matches!(
            end.recv_timeout(timeout),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected)
        );
    if !in_time {
        // It has not been reaped, so it is still ours.
        let _ = child.kill();
    }
    let code = child.wait().map_or(-1, exit_code);
    let mut words = Vec::new();
    let read = file
        .seek(SeekFrom::Start(0))
        .and_then(|_| file.take(ANSWER_BYTES_MAX).read_to_end(&mut words));
    let words = match read {
        Ok(_) => String::from_utf8_lossy(&words).into_owned(),
        Err(error) => error.to_string(),
    };
    match (in_time, code) {
        (true, 0) => Reply::good(),
        (true, _) => Reply::bad(words),
        (false, _) => Reply::bad(format!("command timed out after {}s", timeout.as_secs())),
    }
}

/// A connection, or why there is none in the words of Go.
fn connect(host: &str, port: u16, timeout: Duration) -> Result<TcpStream, String> {
    let shown = format!("dial tcp {host}:{port}");
    let address = (host, port).to_socket_addrs().ok().and_then(|mut all| all.next());
    let Some(address) = address else {
        return Err(format!("dial tcp: lookup {host}: no such host"));
    };
    TcpStream::connect_timeout(&address, timeout).map_err(|error| {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            format!("{shown}: connect: connection refused")
        } else if error.kind() == io::ErrorKind::TimedOut {
            format!("{shown}: i/o timeout")
        } else {
            format!("{shown}: {error}")
        }
    })
}

/// The code of the answer to a GET. Of a server with TLS only the connection is tried.
fn http(
    host: &str,
    port: u16,
    path: &str,
    headers: &[(String, String)],
    tls: bool,
    timeout: Duration,
) -> Result<u16, String> {
    const LATE: &str = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)";
    let deadline = Instant::now() + timeout;
    let mut stream = connect(host, port, timeout)?;
    if tls {
        return Ok(200);
    }
    let given = |name: &str| headers.iter().any(|(key, _)| key.eq_ignore_ascii_case(name));
    let mut head = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n");
    let own = [
        ("Host", format!("{host}:{port}")),
        ("User-Agent", "kube-probe/1.20".to_owned()),
        ("Accept", "*/*".to_owned()),
    ];
    for (name, value) in own.iter().filter(|(name, _)| !given(name)) {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    let late = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
    let words = |error: io::Error| match late.contains(&error.kind()) {
        true => LATE.to_owned(),
        false => error.to_string(),
    };
    let mut answer = Vec::new();
    stream.set_write_timeout(Some(timeout)).map_err(words)?;
    stream.write_all(head.as_bytes()).map_err(words)?;
    loop {
        let line = answer.iter().position(|byte| *byte == b'\n');
        if let Some(line) = line.and_then(|end| answer.get(..end)) {
            let text = String::from_utf8_lossy(line);
            let code = text.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
            return code
                .and_then(|code| code.trim().parse().ok())
                .ok_or_else(|| format!("malformed HTTP response {:?}", text.trim_end()));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LATE.to_owned());
        }
        stream.set_read_timeout(Some(left)).map_err(words)?;
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes).map_err(words)? {
            0 => return Err("EOF".to_owned()),
            n => answer.extend_from_slice(bytes.get(..n).unwrap_or_default()),
        }
        if answer.len() > 8 << 10 {
            return Err("malformed HTTP response".to_owned());
        }
    }
}
