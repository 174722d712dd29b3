//! The control API's client, for `posse status`, `scale`, `kill`, `events` and `explain`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{self, Pid, PidfdFlags, Signal};

use crate::address::{ControlError, app_of, connect_unix, live_sockets};
use posse_base::text::age;
use posse_core::model::command::AfterKill;
use posse_core::model::ids::ExecutorId;
use posse_serve::token::Token;
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::control as calls;
use posse_wire::control::status_json::StatusJson;
use posse_wire::control::task::{self as tasks, TaskJson, TaskStatusJson};

/// How a client command finds its run.
#[derive(Clone, Debug, Default)]
pub struct RunSelector {
    /// `--control`.
    pub control: Option<String>,
    /// `$POSSE_CONTROL`.
    pub control_env: Option<String>,
    /// `--control-token-file`, else `$POSSE_CONTROL_TOKEN_FILE`.
    pub token_file: Option<PathBuf>,
    /// `--app`; without it, the only live socket is used.
    pub app: Option<String>,
    /// From `default_folders`.
    pub folders: Vec<PathBuf>,
}

/// What is done with one task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OneTask {
    Cancel,
    Look,
    /// It is opened again if it has ended without success.
    Retry,
}

/// A client of one run.
#[derive(Debug)]
pub struct Client {
    address: ControlAddr,
    token: Option<Token>,
}

impl Client {
    /// Finds the run: `--control`, `$POSSE_CONTROL`, then the one live socket of `--app`.
    ///
    /// # Errors
    /// There is no such run, or more than one, or the address or token is invalid.
    pub fn find(selector: &RunSelector) -> Result<Self, ClientError> {
        let named = selector.control.as_ref().or(selector.control_env.as_ref());
        let address = match named.filter(|text| !text.is_empty()) {
            Some(text) => ControlAddr::parse(text).map_err(|why| ControlError::Address { why })?,
            None => ControlAddr::Unix(only_socket(selector)?),
        };
        let token = match (&address, &selector.token_file) {
            (ControlAddr::Tcp(_), Some(path)) => {
                Some(Token::read_private(path).map_err(ControlError::from)?)
            }
            (ControlAddr::Tcp(_), None) => return Err(ControlError::NoToken { address }.into()),
            (ControlAddr::Unix(_), _) => None,
        };
        Ok(Self { address, token })
    }

    /// `GET /v1/status`.
    pub fn status(&self) -> Result<StatusJson, ClientError> {
        self.status_at("/v1/status")
    }

    /// The same; the call is no sign of life of the driver.
    pub fn observe(&self) -> Result<StatusJson, ClientError> {
        self.status_at("/v1/status?observe=true")
    }

    fn status_at(&self, path: &str) -> Result<StatusJson, ClientError> {
        let body = self.call("GET", path, None)?;
        StatusJson::parse(&body).map_err(|_| ClientError::Incompatible("invalid status"))
    }

    /// `PUT /v1/groups/{group}`: returns the new target, which is limited by min and max.
    pub fn scale(&self, group: &str, target: u32) -> Result<u32, ClientError> {
        let path = format!("/v1/groups/{}", encode(group));
        let body = self.call("PUT", &path, Some(&calls::target_body(target)))?;
        calls::parse_target(&body).ok_or(ClientError::Incompatible("no target in the answer"))
    }

    /// `POST /v1/groups/{group}/executors`: returns the states of these tasks.
    pub fn add_tasks(
        &self,
        group: &str,
        tasks: &[TaskJson],
    ) -> Result<Vec<TaskStatusJson>, ClientError> {
        let path = format!("/v1/groups/{}/executors", encode(group));
        let answer = self.call("POST", &path, Some(&tasks::tasks_body(tasks)))?;
        tasks::parse_statuses(&answer).ok_or(ClientError::Incompatible("no states in the answer"))
    }

    /// `GET /v1/groups/{group}/executors`: returns the states of all tasks.
    pub fn tasks(&self, group: &str) -> Result<Vec<TaskStatusJson>, ClientError> {
        let path = format!("/v1/groups/{}/executors", encode(group));
        let answer = self.call("GET", &path, None)?;
        tasks::parse_statuses(&answer).ok_or(ClientError::Incompatible("no states in the answer"))
    }

    /// `GET`, `POST` or `DELETE /v1/groups/{group}/executors/{key}`: returns the state of one task.
    pub fn task(
        &self,
        group: &str,
        key: &str,
        what: OneTask,
    ) -> Result<TaskStatusJson, ClientError> {
        let path = format!("/v1/groups/{}/executors/{}", encode(group), encode(key));
        let method = match what {
            OneTask::Cancel => "DELETE",
            OneTask::Look => "GET",
            OneTask::Retry => "POST",
        };
        let answer = self.call(method, &path, None)?;
        let state = serde_json::from_slice(&answer);
        state.map_err(|_| ClientError::Incompatible("no state in the answer"))
    }

    /// `GET /v1/groups/{group}/executors/{key}/output`: the output of an ended task that the run has kept.
    pub fn task_output(&self, group: &str, key: &str) -> Result<Vec<u8>, ClientError> {
        let path = format!("/v1/groups/{}/executors/{}/output", encode(group), encode(key));
        self.call("GET", &path, None)
    }

    /// `POST /v1/executors/kill`: returns the result for each executor.
    pub fn kill(
        &self,
        executors: &BTreeSet<ExecutorId>,
        after: AfterKill,
        force: bool,
        reason: Option<&str>,
    ) -> Result<calls::Killed, ClientError> {
        let body = calls::kill_body(executors, after, force, reason);
        let answer = self.call("POST", "/v1/executors/kill", Some(&body))?;
        calls::parse_killed(&answer).ok_or(ClientError::Incompatible("no lists in the answer"))
    }

    /// `POST /v1/driver/ready`.
    pub fn ready(&self) -> Result<(), ClientError> {
        self.call("POST", "/v1/driver/ready", None).map(|_| ())
    }

    /// `POST /v1/executors/idle`: returns the ids that the run does not know.
    pub fn idle(&self, executors: &BTreeSet<ExecutorId>) -> Result<Vec<u64>, ClientError> {
        let body = calls::ids_body(executors);
        let answer = self.call("POST", "/v1/executors/idle", Some(&body))?;
        calls::parse_unknown(&answer).ok_or(ClientError::Incompatible("no list in the answer"))
    }

    /// `GET /v1/events`: passes each line, without its line end, to `each`, until the end of the events
    /// or an error of `each`.
    ///
    /// # Errors
    /// The run does not answer, refuses, or ended without the event `stopped` while it was followed.
    pub fn events(
        &self,
        after: u64,
        run: Option<&str>,
        follow: bool,
        each: &mut dyn FnMut(&str) -> io::Result<()>,
    ) -> Result<(), ClientError> {
        let run = run.map_or_else(String::new, |run| format!("&run={}", encode(run)));
        let path = format!("/v1/events?after={after}&follow={follow}{run}");
        // Empty lines arrive twice as often as this, so a longer silence means a dead connection.
        let timeout = if follow { FOLLOW_TIMEOUT } else { TIMEOUT };
        let mut answer = self.request("GET", &path, None, timeout)?;
        answer.check()?;
        let mut line = String::new();
        let mut stopped = false;
        loop {
            line.clear();
            let n_bytes = (&mut answer.body)
                .take(LINE_BYTES_MAX)
                .read_line(&mut line)
                .map_err(|error| self.lost(error))?;
            match line.strip_suffix('\n') {
                Some("") => {}
                Some(event) => {
                    stopped = event.contains(STOPPED);
                    each(event).map_err(ClientError::Output)?;
                }
                None if n_bytes == 0 && (stopped || !follow) => return Ok(()),
                None => return Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            }
        }
    }

    /// One call whose answer has a limited size.
    fn call(&self, method: &str, path: &str, body: Option<&[u8]>) -> Result<Vec<u8>, ClientError> {
        let mut answer = self.request(method, path, body, TIMEOUT)?;
        answer.check()?;
        answer.read_body().map_err(|error| self.lost(error))
    }

    /// Sends a request. HTTP/1.0, so that the server closes the connection after the answer and sends
    /// no chunked encoding.
    fn request(
        &self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Answer, ClientError> {
        let mut stream = self.connect(timeout).map_err(|error| self.lost(error))?;
        let mut head = format!("{method} {path} HTTP/1.0\r\nhost: posse\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: {}\r\n", token.header()));
        }
        if let Some(body) = body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        stream.write_all(&bytes).map_err(|error| self.lost(error))?;
        Answer::read(BufReader::new(stream)).map_err(|error| self.lost(error))
    }

    fn connect(&self, timeout: Duration) -> io::Result<Box<dyn Stream>> {
        match &self.address {
            ControlAddr::Tcp(address) => {
                let stream = TcpStream::connect_timeout(address, TIMEOUT)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(TIMEOUT))?;
                Ok(Box::new(stream))
            }
            ControlAddr::Unix(path) => {
                let stream = connect_unix(path, TIMEOUT)?;
                stream.set_read_timeout(Some(timeout))?;
                Ok(Box::new(stream))
            }
        }
    }

    fn lost(&self, error: io::Error) -> ClientError {
        ClientError::Unreachable { address: self.address.clone(), error }
    }
}

/// A TCP or unix stream.
trait Stream: Read + Write + fmt::Debug {}

impl Stream for TcpStream {}
impl Stream for UnixStream {}

/// An answer whose body is not read yet.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// `None`: the body ends with the connection.
    length: Option<u64>,
    body: BufReader<Box<dyn Stream>>,
}

impl Answer {
    fn read(mut stream: BufReader<Box<dyn Stream>>) -> io::Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let room = HEAD_BYTES_MAX.saturating_sub(head.len() as u64);
            if (&mut stream).take(room).read_until(b'\n', &mut head)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer was cut"));
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut parsed = httparse::Response::new(&mut headers);
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
        parsed.parse(&head).map_err(|_| invalid())?;
        let status = parsed.code.ok_or_else(invalid)?;
        let length = parsed.headers.iter().find(|h| h.name.eq_ignore_ascii_case("content-length"));
        let length = length.and_then(|h| str::from_utf8(h.value).ok()?.parse().ok());
        Ok(Self { status, length, body: stream })
    }

    /// Turns any status but 2xx into an error with the run's message.
    fn check(&mut self) -> Result<(), ClientError> {
        if (200..300).contains(&self.status) {
            return Ok(());
        }
        // Without a readable body the error has the status code only.
        let body = self.read_body().unwrap_or_default();
        let error = calls::parse_error(&body);
        let (what, field) = error.map_or((None, None), |bad| (Some(bad.error), bad.field));
        Err(ClientError::Refused { status: self.status, what: what.unwrap_or_default(), field })
    }

    fn read_body(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        let n_bytes = (&mut self.body).take(BODY_BYTES_MAX + 1).read_to_end(&mut body)? as u64;
        if n_bytes > BODY_BYTES_MAX {
            return Err(io::Error::other("the answer is too large"));
        }
        if self.length.is_some_and(|length| length != n_bytes) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the answer was cut"));
        }
        Ok(body)
    }
}

fn only_socket(selector: &RunSelector) -> Result<PathBuf, ClientError> {
    let mut live = live_sockets(selector.app.as_deref(), &selector.folders);
    match live.pop() {
        Some(socket) if live.is_empty() => Ok(socket),
        Some(last) => {
            live.push(last);
            Err(ClientError::Several { runs: live.into_iter().map(LiveRun::at).collect() })
        }
        None => Err(ClientError::None { app: selector.app.clone() }),
    }
}

fn encode(text: &str) -> String {
    percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
}

/// A run on this host, for a choice between several.
#[derive(Debug)]
pub struct LiveRun {
    pub socket: PathBuf,
    /// For how long it has listened, in seconds.
    pub age_s: Option<i64>,
    /// The folder in which it was started.
    pub folder: Option<PathBuf>,
}

impl LiveRun {
    fn at(socket: PathBuf) -> Self {
        let began = fs::symlink_metadata(&socket).and_then(|facts| facts.modified()).ok();
        let lived = began.and_then(|began| SystemTime::now().duration_since(began).ok());
        let age_s = lived.and_then(|lived| i64::try_from(lived.as_secs()).ok());
        let folder = folder_of(&socket).ok();
        Self { socket, age_s, folder }
    }

    /// What tells it from the others.
    fn facts(&self) -> String {
        let age = self.age_s.map(|age_s| format!("{} old", age(age_s)));
        let folder = self.folder.as_ref().map(|folder| format!("in {}", folder.display()));
        let facts: Vec<String> = age.into_iter().chain(folder).collect();
        if facts.is_empty() { String::new() } else { format!(" ({})", facts.join(", ")) }
    }
}

/// The folder of the process that listens on a socket.
fn folder_of(socket: &Path) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/{}/cwd", listener_of(socket)?.as_raw_nonzero()))
}

/// The process of a run on this host.
#[derive(Debug)]
pub struct RunProcess {
    /// Unlike the process's number, it never means another process.
    handle: OwnedFd,
}

impl RunProcess {
    /// The process that listens on a socket.
    ///
    /// # Errors
    /// Nobody listens there, or the kernel has no handles for processes (before Linux 5.3).
    pub fn at(socket: &Path) -> io::Result<Self> {
        let first = listener_of(socket)?;
        let handle = process::pidfd_open(first, PidfdFlags::empty())?;
        // If it has ended before it was opened, another process may have its number.
        match listener_of(socket)? == first {
            true => Ok(Self { handle }),
            false => Err(io::Error::other("another process has taken the socket")),
        }
    }

    /// Sends SIGTERM, by which a run ends in order.
    ///
    /// # Errors
    /// The process has ended, or is another user's.
    pub fn terminate(&self) -> io::Result<()> {
        Ok(process::pidfd_send_signal(&self.handle, Signal::TERM)?)
    }

    /// Waits for its end; false: it still runs at the limit.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn wait(&self, limit: Duration) -> io::Result<bool> {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut ended = [PollFd::new(&self.handle, PollFlags::IN)];
            match poll(&mut ended, Some(&left)) {
                // The signal was for this process.
                Err(Errno::INTR) => {}
                other => return Ok(other? > 0),
            }
        }
    }
}

fn listener_of(socket: &Path) -> io::Result<Pid> {
    let stream = connect_unix(socket, TIMEOUT)?;
    Ok(rustix::net::sockopt::socket_peercred(&stream)?.pid)
}

/// Why a client command failed.
#[derive(Debug)]
pub enum ClientError {
    /// The address or the token is invalid.
    Control(ControlError),
    /// No run was found.
    None { app: Option<String> },
    /// The output cannot be written.
    Output(io::Error),
    /// The run refused the call.
    Refused { status: u16, what: String, field: Option<String> },
    /// More than one run was found.
    Several { runs: Vec<LiveRun> },
    /// The answer is not from posse, or from an incompatible version.
    Incompatible(&'static str),
    /// The run does not answer.
    Unreachable { address: ControlAddr, error: io::Error },
}

impl From<ControlError> for ClientError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(error) => error.fmt(f),
            Self::None { app: Some(app) } => {
                write!(f, "no live run of application {app} on this host; name it with --control")
            }
            Self::None { app: None } => f.write_str(
                "no live run on this host; --app NAME finds one in the cluster, --control one \
                     elsewhere",
            ),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::Refused { status, what, field } => {
                let field = field.as_ref().map_or_else(String::new, |field| format!("{field}: "));
                write!(f, "refused: {field}{what} ({status})")
            }
            Self::Several { runs } => {
                let app = |run: &LiveRun| app_of(&run.socket).unwrap_or_default().to_owned();
                let distinct: BTreeSet<String> = runs.iter().map(app).collect();
                let has_names = distinct.len() == runs.len();
                let name = |run: &LiveRun| match has_names {
                    true => app(run) + &run.facts(),
                    false => run.socket.to_string_lossy().into_owned() + &run.facts(),
                };
                let flag = if has_names { "--app" } else { "--control unix:PATH" };
                let names: Vec<String> = runs.iter().map(name).collect();
                write!(f, "several live runs, choose one with {flag}: {}", names.join(", "))
            }
            Self::Incompatible(what) => {
                write!(f, "the answer is not from a compatible posse: {what}")
            }
            Self::Unreachable { address, error } => {
                write!(f, "the run at {address} does not answer: {error}")
            }
        }
    }
}

impl std::error::Error for ClientError {}

impl ClientError {
    /// The HTTP status, if the run refused the call.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            Self::Control(_)
            | Self::Incompatible(_)
            | Self::None { .. }
            | Self::Output(_)
            | Self::Several { .. }
            | Self::Unreachable { .. } => None,
        }
    }
}

/// For connecting, and between two reads of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The same while following events: twice the interval of the empty lines.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest status line and headers, in bytes.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// The longest body, in bytes: enough for a status of 100,000 executors.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// The longest event, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Part of the last event of a run and of no other event, because quotes in strings are escaped.
const STOPPED: &str = r#""event":"stopped""#;
