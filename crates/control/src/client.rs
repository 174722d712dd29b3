//! The control API's client, for `posse status`, `scale`, `kill`, `events` and `explain`.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::net::Shutdown;

use crate::address::{ControlError, app_of, connect_unix, live_sockets};
use crate::run_process::folder_of;
use posse_base::sync::lock;
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
    /// `--control`, else `$POSSE_CONTROL`.
    pub control: Option<String>,
    /// `--control-token-file`, else `$POSSE_CONTROL_TOKEN_FILE`.
    pub token_file: Option<PathBuf>,
    /// `--app`; without it, the only live socket is used. The run at an address must be of this application.
    pub app: Option<String>,
    /// The namespace that the run at `control` must have.
    pub namespace: Option<String>,
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
    way: Way,
    token: Option<Token>,
    /// The connection of the last call, which the next call may use: a bridge to a pod takes longer than a call.
    spare: Mutex<Option<Connection>>,
}

/// How a run is reached.
#[derive(Debug)]
enum Way {
    Address(ControlAddr),
    Dialer(Box<dyn Dialer>),
}

/// Connects to the control API of a run that is elsewhere, through a process there that called `Client::join`. Shown as
/// a place.
pub trait Dialer: fmt::Debug + fmt::Display + Send + Sync {
    /// A new connection.
    ///
    /// # Errors
    /// There is no way to the run.
    fn dial(&self) -> io::Result<Box<dyn Stream>>;
}

/// A connection as bytes in both directions.
pub trait Stream: Read + Write + fmt::Debug + Send {
    /// Lets each read wait at most `limit`.
    fn limit_reads(&self, limit: Duration) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

impl Stream for UnixStream {
    fn limit_reads(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }
}

#[derive(Debug)]
struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    token: Option<Token>,
}

impl Client {
    /// A client that reaches its run by `dialer`.
    pub fn through(dialer: Box<dyn Dialer>) -> Self {
        Self { way: Way::Dialer(dialer), token: None, spare: Mutex::default() }
    }

    /// A client of the run that listens on a socket.
    pub fn at(socket: PathBuf) -> Self {
        Self { way: Way::Address(ControlAddr::Unix(socket)), token: None, spare: Mutex::default() }
    }

    /// The run has removed its socket, as each does that is not killed. Unknown of another way to it.
    pub fn has_ended(&self) -> bool {
        matches!(&self.way, Way::Address(ControlAddr::Unix(path)) if !path.exists())
    }

    /// Finds the run: `--control`, `$POSSE_CONTROL`, then the one live socket of `--app`.
    ///
    /// # Errors
    /// There is no such run, or more than one, or the address or token is invalid.
    pub fn find(selector: &RunSelector) -> Result<Self, ClientError> {
        let named = selector.control.as_ref().filter(|text| !text.is_empty());
        let address = match named {
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
        let client = Self { way: Way::Address(address), token, spare: Mutex::default() };
        if named.is_some() {
            client.check(selector)?;
        }
        Ok(client)
    }

    /// Nothing is done to another run than the named one: an address may be that of any.
    fn check(&self, selector: &RunSelector) -> Result<(), ClientError> {
        let RunSelector { app, namespace, .. } = selector;
        if app.is_none() && namespace.is_none() {
            return Ok(());
        }
        let found = self.observe()?.identity;
        let is =
            |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|w| w == found);
        match is(app, &found.app) && is(namespace, &found.namespace) {
            true => Ok(()),
            false => Err(ClientError::Another {
                place: self.place(),
                app: found.app,
                namespace: found.namespace,
            }),
        }
    }

    /// Joins a connection with `input` and `output`, byte for byte, until the run or the input ends. Before its bytes
    /// the output has one line: `posse`, the version, and the token if the address needs one.
    ///
    /// # Errors
    /// The run does not answer, or the output cannot be written.
    pub fn join(
        &self,
        mut input: impl Read + Send + 'static,
        output: &mut dyn Write,
    ) -> Result<(), ClientError> {
        let Way::Address(address) = &self.way else {
            return Err(ClientError::Incompatible("a bridge cannot lead to another one"));
        };
        let socket = match address {
            ControlAddr::Tcp(address) => {
                TcpStream::connect_timeout(address, TIMEOUT).map(OwnedFd::from)
            }
            ControlAddr::Unix(path) => connect_unix(path, TIMEOUT).map(OwnedFd::from),
        };
        let failed = |error| self.lost(error);
        let mut socket = File::from(socket.map_err(failed)?);
        let mut sending = socket.try_clone().map_err(failed)?;
        let send = move || {
            // Either end is the end of both: a client that has closed waits for no answer.
            let _ = io::copy(&mut input, &mut sending);
            let _ = rustix::net::shutdown(&sending, Shutdown::Both);
        };
        thread::Builder::new().name("bridge".to_owned()).spawn(send).map_err(failed)?;
        let token =
            self.token.as_ref().map_or_else(String::new, |one| format!(" {}", one.reveal()));
        let mut write = |bytes: &[u8]| {
            output.write_all(bytes).and_then(|()| output.flush()).map_err(ClientError::Output)
        };
        write(format!("{GREETING}{}{token}\n", env!("CARGO_PKG_VERSION")).as_bytes())?;
        let mut bytes = vec![0; JOIN_BYTES];
        loop {
            match socket.read(&mut bytes) {
                Ok(0) | Err(_) => return Ok(()),
                Ok(n) => write(&bytes[..n])?,
            }
        }
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
        let connection = self.connect(timeout)?;
        let mut answer = connection.ask("GET", &path, None, "close").map_err(|e| self.lost(e))?;
        answer.check()?;
        let mut line = String::new();
        let mut stopped = false;
        loop {
            line.clear();
            let n_bytes = (&mut answer.connection.stream)
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
        let ask = |connection: Connection| connection.ask(method, path, body, "keep-alive");
        let spare = lock(&self.spare).take();
        let mut answer = match spare.map(ask) {
            // The run has closed the connection before it read the call.
            Some(Err(error)) if is_closed(&error) => ask(self.connect(TIMEOUT)?),
            Some(answer) => answer,
            None => ask(self.connect(TIMEOUT)?),
        }
        .map_err(|error| self.lost(error))?;
        answer.check()?;
        let body = answer.read_body().map_err(|error| self.lost(error))?;
        *lock(&self.spare) = answer.reusable();
        Ok(body)
    }

    fn connect(&self, limit: Duration) -> Result<Connection, ClientError> {
        let stream: io::Result<Box<dyn Stream>> = match &self.way {
            Way::Address(ControlAddr::Tcp(address)) => TcpStream::connect_timeout(address, TIMEOUT)
                .and_then(|stream| {
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    Ok(Box::new(stream) as _)
                }),
            Way::Address(ControlAddr::Unix(path)) => {
                connect_unix(path, TIMEOUT).map(|stream| Box::new(stream) as _)
            }
            Way::Dialer(dialer) => return Connection::dial(&**dialer, limit),
        };
        let limited = stream.and_then(|stream| stream.limit_reads(limit).map(|()| stream));
        let stream = BufReader::new(limited.map_err(|error| self.lost(error))?);
        Ok(Connection { stream, token: self.token.clone() })
    }

    fn lost(&self, error: io::Error) -> ClientError {
        ClientError::Unreachable { place: self.place(), error }
    }

    fn place(&self) -> String {
        match &self.way {
            Way::Address(address) => address.to_string(),
            Way::Dialer(dialer) => dialer.to_string(),
        }
    }
}

/// True if the peer has closed the connection before it answered.
fn is_closed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

impl Connection {
    /// Dials, and reads the line that `Client::join` begins with.
    fn dial(dialer: &dyn Dialer, limit: Duration) -> Result<Self, ClientError> {
        let greeted = || {
            let mut stream = BufReader::new(dialer.dial()?);
            stream.get_ref().limit_reads(BRIDGE_TIMEOUT)?;
            let mut line = String::new();
            (&mut stream).take(HEAD_BYTES_MAX).read_line(&mut line)?;
            stream.get_ref().limit_reads(limit)?;
            Ok((stream, line))
        };
        let (stream, line) = greeted().map_err(ClientError::NoBridge)?;
        let words = line.trim_end().strip_prefix(GREETING);
        let words = words.ok_or(ClientError::Incompatible("no greeting of `posse bridge`"))?;
        let token = words.split_once(' ').map(|(_, token)| Token::sent(token));
        Ok(Self { stream, token })
    }

    /// Sends a request and reads the head of its answer. HTTP/1.0, so that the server sends no chunked encoding.
    fn ask(
        mut self,
        method: &str,
        path: &str,
        body: Option<&[u8]>,
        then: &str,
    ) -> io::Result<Answer> {
        let mut head = format!("{method} {path} HTTP/1.0\r\nhost: posse\r\nconnection: {then}\r\n");
        if let Some(token) = &self.token {
            head.push_str(&format!("authorization: {}\r\n", token.header()));
        }
        if let Some(body) = body {
            head.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        head.push_str("\r\n");
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(body.unwrap_or_default());
        self.stream.get_mut().write_all(&bytes)?;
        Answer::read(self)
    }
}

/// An answer whose body is not read yet.
#[derive(Debug)]
struct Answer {
    status: u16,
    /// `None`: the body ends with the connection.
    length: Option<u64>,
    stays_open: bool,
    connection: Connection,
}

impl Answer {
    fn read(mut connection: Connection) -> io::Result<Self> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let room = HEAD_BYTES_MAX.saturating_sub(head.len() as u64);
            if (&mut connection.stream).take(room).read_until(b'\n', &mut head)? == 0 {
                return Err(if head.is_empty() { closed() } else { cut() });
            }
        }
        let mut headers = [httparse::EMPTY_HEADER; 32];
        let mut parsed = httparse::Response::new(&mut headers);
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP");
        parsed.parse(&head).map_err(|_| invalid())?;
        let status = parsed.code.ok_or_else(invalid)?;
        let header = |name: &str| {
            let found = parsed.headers.iter().find(|h| h.name.eq_ignore_ascii_case(name))?;
            str::from_utf8(found.value).ok()
        };
        let length = header("content-length").and_then(|value| value.parse().ok());
        let stays_open = header("connection") != Some("close");
        Ok(Self { status, length, stays_open, connection })
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
        let room = self.length.map_or(BODY_BYTES_MAX + 1, |n| n.min(BODY_BYTES_MAX + 1));
        let n_bytes = (&mut self.connection.stream).take(room).read_to_end(&mut body)? as u64;
        if n_bytes > BODY_BYTES_MAX {
            return Err(io::Error::other("the answer is too large"));
        }
        if self.length.is_some_and(|length| length != n_bytes) {
            return Err(cut());
        }
        Ok(body)
    }

    /// The connection, after the whole body, if the server leaves it open.
    fn reusable(self) -> Option<Connection> {
        (self.stays_open && self.length.is_some()).then_some(self.connection)
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, "there was no answer")
}

fn cut() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the answer was cut")
}

fn only_socket(selector: &RunSelector) -> Result<PathBuf, ClientError> {
    let live = live_sockets(selector.app.as_deref(), &selector.folders);
    match <[PathBuf; 1]>::try_from(live) {
        Ok([socket]) => Ok(socket),
        Err(none) if none.is_empty() => Err(ClientError::None { app: selector.app.clone() }),
        Err(several) => {
            Err(ClientError::Several { runs: several.into_iter().map(LiveRun::at).collect() })
        }
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

/// Why a client command failed.
#[derive(Debug)]
pub enum ClientError {
    /// The run at the address is another one than the named one.
    Another { place: String, app: String, namespace: String },
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
    /// Nothing leads to the run.
    NoBridge(io::Error),
    /// The run does not answer.
    Unreachable { place: String, error: io::Error },
}

impl From<ControlError> for ClientError {
    fn from(error: ControlError) -> Self {
        Self::Control(error)
    }
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Another { place, app, namespace } => write!(
                f,
                "the run at {place} is another one than the named one: its application is {app}, in namespace \
                 {namespace}; name it so, or leave the address out"
            ),
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
            Self::NoBridge(error) => f.write_str(&told(error, BRIDGE_TIMEOUT)),
            Self::Unreachable { place, error } => {
                write!(f, "the run at {place} does not answer: {}", told(error, TIMEOUT))
            }
        }
    }
}

/// A read that has reached its limit says "Resource temporarily unavailable".
fn told(error: &io::Error, limit: Duration) -> String {
    match error.kind() == io::ErrorKind::WouldBlock {
        true => format!("no answer within {} s", limit.as_secs()),
        false => error.to_string(),
    }
}

impl std::error::Error for ClientError {}

impl ClientError {
    /// The HTTP status, if the run refused the call.
    pub fn status(&self) -> Option<u16> {
        let Self::Refused { status, .. } = self else { return None };
        Some(*status)
    }
}

/// What the first line of a bridge begins with.
const GREETING: &str = "posse ";

/// The most bytes that a bridge passes on at once.
const JOIN_BYTES: usize = 32 << 10;

/// For connecting, and between two reads of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Until a bridge is there: a pod is asked for it.
const BRIDGE_TIMEOUT: Duration = Duration::from_secs(60);

/// As `TIMEOUT` while following events: twice the interval of the empty lines.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest status line and headers, in bytes.
const HEAD_BYTES_MAX: u64 = 16 << 10;

/// The longest body, in bytes: enough for a status of 100,000 executors.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// The longest event, in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Part of the last event of a run and of no other event, because quotes in strings are escaped.
const STOPPED: &str = r#""event":"stopped""#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_silent_is_told_in_words() {
        let (place, kind) = (|| "unix:x".to_owned(), io::ErrorKind::WouldBlock);
        let lost = |error| ClientError::Unreachable { place: place(), error }.to_string();
        assert_eq!(lost(kind.into()), "the run at unix:x does not answer: no answer within 10 s");
        let refused = lost(io::Error::other("refused"));
        assert_eq!(refused, "the run at unix:x does not answer: refused");
        assert_eq!(ClientError::NoBridge(kind.into()).to_string(), "no answer within 60 s");
    }
}
