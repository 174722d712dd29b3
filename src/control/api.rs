//! Owns the control API's calls: paths to commands, replies to answers. What they do is the core's.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::control::address::{Bound, ControlError, SocketFile};
use crate::control::{Busy, Core, Drafts, Events, NoDraft, Read};
use crate::core::model::command::{Command, Reply};
use crate::core::model::ids::GroupName;
use crate::serve::token::Token;
use crate::serve::{ChunkWriter, Handler, Limits, Request, Responder, Server};
use crate::wire::control as calls;
use crate::wire::control_addr::ControlAddr;
use crate::wire::names;
use crate::wire::status_json::{RunNames, StatusJson};
use crate::wire::time::Epoch;

/// The control API, served. Dropped without `stop`, it stops all the same.
#[derive(Debug)]
pub struct ControlServer {
    /// Goes before the server: as long as somebody listens nobody else replaces the file.
    file: Option<SocketFile>,
    server: Server,
    address: ControlAddr,
    api: Arc<Api>,
}

/// What the API tells about.
#[derive(Clone)]
pub struct Subject {
    pub core: Arc<dyn Core>,
    pub drafts: Arc<dyn Drafts>,
    pub events: Arc<dyn Events>,
    pub identity: RunNames,
    pub epoch: Epoch,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl ControlServer {
    /// Serves `bound` on threads of its own.
    ///
    /// # Errors
    /// A TCP address without a token, or no thread is to be had.
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
            // Who may open the socket is said by its mode.
            ControlAddr::Unix(_) => None,
        };
        let followers = Places::new(FOLLOWERS_MAX);
        let api = Arc::new(Api { subject, token, followers, drafts: Places::new(DRAFTS_MAX) });
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

    /// Where it listens, as clients name it.
    #[must_use]
    pub fn address(&self) -> &ControlAddr {
        &self.address
    }

    /// Ends it and removes its socket. Where the events have ended before, their followers get the
    /// last of them first, if they take them within `LAST_EVENTS_WAIT`.
    pub fn stop(self) {
        drop(self.file);
        self.api.followers.await_none(LAST_EVENTS_WAIT);
        self.server.stop();
    }
}

/// Answers calls.
#[derive(Debug)]
struct Api {
    subject: Subject,
    token: Option<Token>,
    followers: Places,
    drafts: Places,
}

/// A whole answer.
struct Answer {
    status: u16,
    body: Vec<u8>,
    /// `Allow`, with a 405.
    allow: Option<&'static str>,
    /// `Retry-After`, seconds.
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

impl From<NoDraft> for Answer {
    fn from(no: NoDraft) -> Self {
        match no {
            NoDraft::Bad(bad) => bad.into(),
            NoDraft::NotNow { why, retry_after_ms } => {
                let what = format!("the API server cannot say now whether it takes this: {why}");
                let retry_after = retry_after_ms.map(|ms| ms.div_ceil(1_000).to_string());
                Self { retry_after, ..Self::error(429, &what, None) }
            }
        }
    }
}

impl Handler for Api {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        let admitted = |token: &Token| token.admits(request.header("authorization"));
        let is_admitted = self.token.as_ref().is_none_or(admitted);
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
        // A HEAD is answered like a GET; the server leaves the body out.
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
        let place = self.drafts.take().ok_or_else(|| Answer::error(429, busy, None))?;
        let template = std::mem::take(&mut put.template);
        let pod = self.subject.drafts.draft(&group, template, put.container.as_deref())?;
        drop(place);
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
            Reply::Status(status) => {
                let Subject { identity, epoch, .. } = &self.subject;
                Ok(Answer::ok(StatusJson::new(identity, &status, *epoch).to_bytes()))
            }
            Reply::Target(target) => Ok(Answer::ok(calls::target_body(target))),
            Reply::UnknownExecutor => {
                Err(Answer::error(404, "there is no such executor", Some("executor")))
            }
            Reply::UnknownGroup => Err(Answer::error(404, "there is no such group", Some("group"))),
        }
    }

    fn events(&self, request: &Request, responder: Responder<'_>) -> io::Result<()> {
        let (after, follow) = match self.check_events_query(request) {
            Ok(query) => query,
            Err(refusal) => return refusal.send(responder),
        };
        let Some(_place) = self.followers.take() else {
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

    /// Where to begin, and whether to go on when there are no more.
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
            let what = format!("this is run {ours}: events before it are gone, begin anew");
            return Err(Answer::error(409, &what, Some("run")));
        }
        let newest = self.subject.events.newest();
        if after > newest {
            let what = format!("the newest event is {newest}: begin anew");
            return Err(Answer::error(409, &what, Some("after")));
        }
        Ok((after, follow))
    }
}

/// The few places for calls that take long: they must not take all connections.
#[derive(Debug)]
struct Places {
    n_max: usize,
    n_taken: Mutex<usize>,
    given_back: Condvar,
}

impl Places {
    fn new(n_max: usize) -> Self {
        Self { n_max, n_taken: Mutex::default(), given_back: Condvar::new() }
    }

    fn take(&self) -> Option<Place<'_>> {
        let mut n_taken = self.n_taken.lock().unwrap_or_else(PoisonError::into_inner);
        if *n_taken >= self.n_max {
            return None;
        }
        *n_taken += 1;
        Some(Place(self))
    }

    /// Waits until all are given back, but not longer than `wait`.
    fn await_none(&self, wait: Duration) {
        let n_taken = self.n_taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever is still there has had its time: the server's stop cuts it.
        let _ = self.given_back.wait_timeout_while(n_taken, wait, |n_taken| *n_taken > 0);
    }
}

/// One of them, given back when dropped.
struct Place<'a>(&'a Places);

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.n_taken.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.given_back.notify_all();
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
        let wait = if follow { LOOK_INTERVAL } else { Duration::ZERO };
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
        // What had come together goes together; nothing waits here for a fuller buffer.
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

/// 405 where only the method is wrong, else 404.
fn no_such_call(segments: &[&str]) -> Answer {
    let allow = match segments {
        ["healthz" | "readyz" | "openapi.json"] | ["v1", "status" | "events"] => "GET, HEAD",
        ["v1", "groups", _] => "DELETE, PUT",
        ["v1", "executors", "heartbeat" | "idle" | "kill"]
        | ["v1", "executors", _, "disconnected"]
        | ["v1", "driver", "ready"] => "POST",
        _ => return Answer::error(404, "there is no such call", None),
    };
    Answer { allow: Some(allow), ..Answer::error(405, "the method is wrong here", None) }
}

/// Clients at a time: executors' threads of a driver may each have a connection.
const CONNECTIONS_MAX: usize = 128;

/// Who reads events, of these.
const FOLLOWERS_MAX: usize = 32;

/// What followers get at stop to take the last events.
const LAST_EVENTS_WAIT: Duration = Duration::from_secs(1);

/// How often a quiet follower's connection is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// A quiet follower gets an empty line so often.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Templates that the API server is asked about at a time.
const DRAFTS_MAX: usize = 16;

/// The largest body: as large as an API server takes one.
const BODY_BYTES_MAX: usize = 3 << 20;

/// The calls as a document; `tests/e2e/openapi.rs` holds it against them.
const OPENAPI: &str = include_str!("openapi.json");
