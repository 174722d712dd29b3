//! The control API's server: maps HTTP requests to commands and replies to HTTP answers.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::address::{Bound, ControlError, SocketFile};
use crate::control::{Busy, Core, DryRunError, DryRuns, Events, Read};
use crate::core::model::command::{Command, Reply};
use crate::core::model::ids::GroupName;
use crate::core::model::status::Status;
use crate::serve::origin::{refuse_foreign_host, refuse_pages};
use crate::serve::token::Token;
use crate::serve::{ChunkWriter, Handler, Limits, Request, Responder, Server};
use crate::wire::control as calls;
use crate::wire::control_addr::ControlAddr;
use crate::wire::names;
use crate::wire::status_json::{RunNames, StatusEncoder};
use crate::wire::time::Epoch;

/// The running control API. Dropping this stops it without waiting for readers of events.
#[derive(Debug)]
pub struct ControlServer {
    /// Removed before the server stops: another run does not replace a socket that is still live.
    file: Option<SocketFile>,
    server: Server,
    address: ControlAddr,
    api: Arc<Api>,
}

/// The run that the API serves.
#[derive(Clone)]
pub struct Subject {
    pub core: Arc<dyn Core>,
    pub dry_runs: Arc<dyn DryRuns>,
    pub events: Arc<dyn Events>,
    pub identity: RunNames,
    /// The wall clock, which may be set while the run lives.
    pub epoch: Arc<dyn Fn() -> Epoch + Send + Sync>,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl ControlServer {
    /// Starts the server's threads.
    ///
    /// # Errors
    /// The address is TCP and there is no token, or the system cannot start a thread.
    pub fn start(
        bound: Bound,
        token: Option<Token>,
        subject: Subject,
    ) -> Result<Self, ControlError> {
        let Bound { address, listen, file } = bound;
        let token = match &address {
            ControlAddr::Tcp(_) if token.is_none() => {
                return Err(ControlError::NoToken { address });
            }
            ControlAddr::Tcp(_) => token,
            // A unix socket is protected by its file mode.
            ControlAddr::Unix(_) => None,
        };
        let followers = Semaphore::new(FOLLOWERS_MAX);
        let dry_runs = Semaphore::new(DRY_RUNS_MAX);
        let api = Arc::new(Api { subject, token, followers, dry_runs, encoder: Mutex::default() });
        let handler = Arc::clone(&api) as Arc<dyn Handler>;
        let limits = Limits {
            connections_max: CONNECTIONS_MAX,
            body_bytes_max: BODY_BYTES_MAX,
            ..Limits::default()
        };
        let server = Server::start(listen, limits, "control", handler)
            .map_err(|error| ControlError::Bind { address: address.clone(), error })?;
        Ok(Self { file, server, address, api })
    }

    /// The address for clients.
    pub fn address(&self) -> &ControlAddr {
        &self.address
    }

    /// Stops the server and removes its socket. If the event log has ended, readers of events have up
    /// to `LAST_EVENTS_WAIT` to read the last events.
    pub fn stop(self) {
        drop(self.file);
        self.api.followers.wait_until_free(LAST_EVENTS_WAIT);
        self.server.stop();
    }
}

/// Handles requests.
#[derive(Debug)]
struct Api {
    subject: Subject,
    /// With a TCP address and only then.
    token: Option<Token>,
    followers: Semaphore,
    dry_runs: Semaphore,
    /// Readers share what it has encoded.
    encoder: Mutex<StatusEncoder>,
}

/// A complete HTTP answer.
struct Answer {
    status: u16,
    body: Vec<u8>,
    /// `Allow`, with a 405.
    allow: Option<&'static str>,
    /// `Retry-After`, in seconds.
    retry_after: Option<String>,
}

impl Answer {
    fn ok(body: Vec<u8>) -> Self {
        Self { status: 200, body, allow: None, retry_after: None }
    }

    fn error(status: u16, what: &str, field: Option<&str>) -> Self {
        Self { status, body: calls::error_body(what, field), allow: None, retry_after: None }
    }

    fn send(&self, responder: Responder<'_>) -> io::Result<()> {
        let mut headers = vec![("content-type", "application/json")];
        headers.extend(self.allow.map(|methods| ("allow", methods)));
        headers.extend(self.retry_after.as_deref().map(|after| ("retry-after", after)));
        responder.send(self.status, &headers, &self.body)
    }
}

impl From<calls::CallError> for Answer {
    fn from(bad: calls::CallError) -> Self {
        Self::error(400, &bad.error, bad.field.as_deref())
    }
}

impl From<DryRunError> for Answer {
    fn from(error: DryRunError) -> Self {
        match error {
            DryRunError::Invalid(bad) => bad.into(),
            DryRunError::Unavailable { why, retry_after_ms } => {
                let what = format!("the API server cannot check the template now: {why}");
                let retry_after = retry_after_ms.map(|ms| ms.div_ceil(1_000).to_string());
                Self { retry_after, ..Self::error(429, &what, None) }
            }
        }
    }
}

impl Handler for Api {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        // A browser cannot connect to a unix socket, and other clients send any Host there.
        let is_tcp = self.token.is_some();
        let foreign = || is_tcp.then(|| refuse_foreign_host(request, &HOSTS)).flatten();
        if let Some(refused) = refuse_pages(request).or_else(foreign) {
            return Some(refused);
        }
        let is_valid = |token: &Token| token.admits(request.header("authorization"));
        let is_admitted = self.token.as_ref().is_none_or(is_valid);
        (!is_admitted).then_some((401, "the token is missing or wrong"))
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        if request.path == "/v1/events" && matches!(request.method.as_str(), "GET" | "HEAD") {
            return self.events(&request, responder);
        }
        self.answer(&request).unwrap_or_else(|refusal| refusal).send(responder)
    }
}

impl Api {
    fn answer(&self, request: &Request) -> Result<Answer, Answer> {
        let segments: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
        // HEAD is handled like GET; the server omits the body.
        let method = if request.method == "HEAD" { "GET" } else { request.method.as_str() };
        match (method, segments.as_slice()) {
            ("GET", ["healthz"]) => Ok(health(self.subject.core.is_alive())),
            ("GET", ["readyz"]) => Ok(health(self.subject.core.is_ready())),
            ("GET", ["v1", "status"]) => self.ask(Command::Status),
            ("GET", ["openapi.json"]) => Ok(Answer::ok(OPENAPI.as_bytes().to_vec())),
            ("PUT", ["v1", "groups", group]) => self.put_group(group_name(group)?, &request.body),
            ("DELETE", ["v1", "groups", group]) => {
                self.ask(Command::DeleteGroup { group: group_name(group)? })
            }
            ("POST", ["v1", "executors", "kill"]) => self.ask(calls::parse_kill(&request.body)?),
            ("POST", ["v1", "executors", "heartbeat"]) => {
                let executors = calls::parse_executors(&request.body)?;
                self.ask(Command::Heartbeat { executors })
            }
            ("POST", ["v1", "executors", "idle"]) => {
                let executors = calls::parse_executors(&request.body)?;
                self.ask(Command::Idle { executors })
            }
            ("POST", ["v1", "executors", id, "disconnected"]) => {
                self.ask(Command::Disconnected { executor: calls::parse_id(id)? })
            }
            ("POST", ["v1", "driver", "ready"]) => self.ask(Command::DriverReady),
            (_, segments) => Err(no_such_call(segments)),
        }
    }

    fn put_group(&self, group: GroupName, body: &[u8]) -> Result<Answer, Answer> {
        let mut put = match calls::parse_put_group(body)? {
            calls::PutGroup::Target(target) => {
                return self.ask(Command::SetTarget { group, target });
            }
            calls::PutGroup::Whole(put) => put,
        };
        let busy = "too many templates are being checked, try again";
        let permit = self.dry_runs.try_acquire().ok_or_else(|| Answer::error(429, busy, None))?;
        let template = std::mem::take(&mut put.template);
        let pod = self.subject.dry_runs.dry_run(&group, template, put.container.as_deref())?;
        drop(permit);
        self.ask(put.command(group, pod))
    }

    fn ask(&self, command: Command) -> Result<Answer, Answer> {
        let reply = self.subject.core.ask(command).map_err(|busy| match busy {
            Busy::Full => Answer::error(429, "too many calls are waiting, try again", None),
            Busy::Stopping => Answer::error(503, "the run is stopping", None),
        })?;
        match reply {
            Reply::Done => Ok(Answer::ok(b"{}".to_vec())),
            Reply::Killed { killed, busy, unknown, target } => {
                Ok(Answer::ok(calls::killed_body(&killed, &busy, &unknown, target)))
            }
            Reply::Noted { unknown } => Ok(Answer::ok(calls::unknown_body(&unknown))),
            Reply::Refused { what, field } => Err(Answer::error(400, &what, Some(field))),
            Reply::Status(status) => Ok(Answer::ok(self.encode(&status))),
            Reply::Target(target) => Ok(Answer::ok(calls::target_body(target))),
            Reply::UnknownExecutor => {
                Err(Answer::error(404, "there is no such executor", Some("executor")))
            }
            Reply::UnknownGroup => Err(Answer::error(404, "there is no such group", Some("group"))),
        }
    }

    fn encode(&self, status: &Status) -> Vec<u8> {
        let Subject { identity, epoch, .. } = &self.subject;
        // A panic leaves it empty.
        let mut encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        encoder.encode(identity, status, epoch())
    }

    fn events(&self, request: &Request, responder: Responder<'_>) -> io::Result<()> {
        let (after, follow) = match self.check_events_query(request) {
            Ok(query) => query,
            Err(refusal) => return refusal.send(responder),
        };
        let Some(_permit) = self.followers.try_acquire() else {
            let what = "too many readers of events, try again";
            return Answer::error(429, what, None).send(responder);
        };
        let head_only = request.method == "HEAD";
        let writer = responder.stream(200, &[("content-type", "application/x-ndjson")])?;
        if head_only {
            return writer.finish();
        }
        send_events(self.subject.events.as_ref(), writer, after, follow)
    }

    /// The number to start after, and whether to follow.
    fn check_events_query(&self, request: &Request) -> Result<(u64, bool), Answer> {
        let bad = |field: &str, what: &str| Answer::error(400, what, Some(field));
        let after = match request.query("after") {
            Some(text) => text.parse().map_err(|_| bad("after", "must be a whole number"))?,
            None => 0,
        };
        let follow = match request.query("follow") {
            Some("true") => true,
            Some("false") | None => false,
            Some(_) => return Err(bad("follow", "must be true or false")),
        };
        let run = request.query("run");
        if run.is_some_and(|run| run != self.subject.identity.run) {
            let ours = &self.subject.identity.run;
            let what = format!(
                "this is run {ours}, and events of earlier runs are gone: start again from event 0"
            );
            return Err(Answer::error(409, &what, Some("run")));
        }
        let newest = self.subject.events.newest();
        if after > newest {
            let what = format!("the newest event is {newest}: start again from event 0");
            return Err(Answer::error(409, &what, Some("after")));
        }
        Ok((after, follow))
    }
}

/// Limits the calls that take long, so that they cannot use all connections.
#[derive(Debug)]
struct Semaphore {
    n_max: usize,
    n_used: Mutex<usize>,
    released: Condvar,
}

impl Semaphore {
    fn new(n_max: usize) -> Self {
        Self { n_max, n_used: Mutex::default(), released: Condvar::new() }
    }

    fn try_acquire(&self) -> Option<Permit<'_>> {
        let mut n_used = self.n_used.lock().unwrap_or_else(PoisonError::into_inner);
        if *n_used >= self.n_max {
            return None;
        }
        *n_used += 1;
        Some(Permit(self))
    }

    /// Waits until all permits are released, at most for `wait`.
    fn wait_until_free(&self, wait: Duration) {
        let n_used = self.n_used.lock().unwrap_or_else(PoisonError::into_inner);
        // After a time-out, the server's stop cuts the remaining connections.
        let _ = self.released.wait_timeout_while(n_used, wait, |n_used| *n_used > 0);
    }
}

/// A permit of a `Semaphore`, released when dropped.
struct Permit<'a>(&'a Semaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *self.0.n_used.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.released.notify_all();
    }
}

fn send_events(
    events: &dyn Events,
    mut writer: ChunkWriter<'_>,
    mut after: u64,
    follow: bool,
) -> io::Result<()> {
    let mut written_at = Instant::now();
    loop {
        let wait = if follow { CONNECTION_CHECK_INTERVAL } else { Duration::ZERO };
        match events.read(after, wait) {
            Read::Ended => return writer.finish(),
            Read::Lines { lines, last } => {
                for line in lines {
                    writer.write_all(line.as_bytes())?;
                }
                after = last;
            }
            Read::Nothing if !follow => return writer.finish(),
            Read::Nothing if !writer.is_open() => return Ok(()),
            Read::Nothing if written_at.elapsed() < HEARTBEAT_INTERVAL => continue,
            Read::Nothing => writer.write_all(b"\n")?,
        }
        // Events are sent at once; the buffer only joins those that arrived together.
        writer.flush()?;
        written_at = Instant::now();
    }
}

fn health(good: bool) -> Answer {
    if good { Answer::ok(b"{}".to_vec()) } else { Answer::error(503, "not now", None) }
}

fn group_name(segment: &str) -> Result<GroupName, Answer> {
    match names::group_name_error(segment) {
        Some(what) => Err(Answer::error(400, &what, Some("group"))),
        None => Ok(GroupName::from(segment)),
    }
}

/// 405 if the path exists with another method, otherwise 404.
fn no_such_call(segments: &[&str]) -> Answer {
    let allow = match segments {
        ["healthz" | "readyz" | "openapi.json"] | ["v1", "status" | "events"] => "GET, HEAD",
        ["v1", "groups", _] => "DELETE, PUT",
        ["v1", "executors", "heartbeat" | "idle" | "kill"]
        | ["v1", "executors", _, "disconnected"]
        | ["v1", "driver", "ready"] => "POST",
        _ => return Answer::error(404, "there is no such call", None),
    };
    Answer { allow: Some(allow), ..Answer::error(405, "wrong method for this call", None) }
}

/// The host names of the API on a port: posse's clients and `docs/DRIVERS.md` say `posse`.
const HOSTS: [&str; 2] = ["localhost", "posse"];

/// Concurrent connections; each thread of a driver may have its own.
const CONNECTIONS_MAX: usize = 128;

/// Concurrent readers of events, included in `CONNECTIONS_MAX`.
const FOLLOWERS_MAX: usize = 32;

/// How long readers have to read the last events at the end of the run.
const LAST_EVENTS_WAIT: Duration = Duration::from_secs(1);

/// How often an idle reader's connection is checked.
const CONNECTION_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// An idle reader gets an empty line at this interval.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Concurrent dry runs of templates.
const DRY_RUNS_MAX: usize = 16;

/// The largest request body; kube-apiserver has the same limit.
const BODY_BYTES_MAX: usize = 3 << 20;

/// The OpenAPI document of this API; `tests/e2e/openapi.rs` compares it with the calls.
const OPENAPI: &str = include_str!("openapi.json");
