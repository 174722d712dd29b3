//! The control API's server: maps HTTP requests to commands and replies to HTTP answers.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex};

use percent_encoding::percent_decode_str;

use crate::access::{Door, Right};
use crate::address::{Bound, ControlError, SocketFile};
use crate::answer::Answer;
use crate::event_stream::{EventStream, flag};
use crate::page::{files, view};
use crate::semaphore::Semaphore;
use crate::served_run::ServedRun;
use crate::shared_answer::Shared;
use posse_base::sync::lock;
use posse_core::model::act::{Caller, Key};
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::ids::GroupName;
use posse_core::model::status::Status;
use posse_serve::token::Token;
use posse_serve::{Handler, Limits, Request, Responder, Server};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::control as calls;
use posse_wire::control::prefer::parse_preferred_nodes;
use posse_wire::control::status_json::{Body, RunNames, StatusEncoder, executors_only};
use posse_wire::control::task as tasks;
use posse_wire::control::task_secrets::NewTask;
use posse_wire::names;

/// The running control API. Dropping this stops it without waiting for readers of events.
#[derive(Debug)]
pub struct ControlServer {
    /// Removed before the server stops: another run does not replace a socket that is still live.
    file: Option<SocketFile>,
    server: Server,
    address: ControlAddr,
    api: Arc<Api>,
}

/// The keys of a control API.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    /// Lets a request on TCP act and read.
    pub control: Option<Token>,
    /// Lets a request read.
    pub read: Option<Token>,
}

impl ControlServer {
    /// Starts the server's threads.
    ///
    /// # Errors
    /// The address is TCP and there is no token, or the system cannot start a thread.
    pub fn start(bound: Bound, tokens: Tokens, subject: ServedRun) -> Result<Self, ControlError> {
        let Bound { address, listen, file } = bound;
        let Tokens { control: token, read } = tokens;
        // One token for both acts: whoever has it can act anyway.
        let is_control =
            |read: &Token| token.as_ref().is_some_and(|token| token.admits(Some(&read.header())));
        let read_token = read.filter(|read| !is_control(read));
        let token = match &address {
            ControlAddr::Tcp(_) if token.is_none() => {
                return Err(ControlError::NoToken { address });
            }
            ControlAddr::Tcp(_) => token,
            // A unix socket is protected by its file mode.
            ControlAddr::Unix(_) => None,
        };
        let api = Arc::new(Api {
            events: EventStream::new(subject.clone(), FOLLOWERS_MAX),
            subject,
            door: Door { is_loopback: token.is_some(), token, read_token, files: &files::RUN },
            dry_runs: Semaphore::new(DRY_RUNS_MAX),
            encoder: Mutex::default(),
            status: Shared::default(),
        });
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

    /// Stops the server and removes its socket. If the event log has ended, readers of events have a
    /// second to read the last events.
    pub fn stop(self) {
        drop(self.file);
        self.api.events.wait_for_readers();
        self.server.stop();
    }
}

/// Handles requests.
#[derive(Debug)]
struct Api {
    subject: ServedRun,
    /// With a token if the address is TCP, and only then.
    door: Door,
    events: EventStream,
    dry_runs: Semaphore,
    encoder: Mutex<StatusEncoder>,
    status: Shared<Result<Answer, Answer>>,
}

impl Handler for Api {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        self.door.refuse(request).or_else(|| {
            let may = self.door.right(request) != Some(Right::Read) || is_reading(request);
            (!may).then_some((403, "this token only reads"))
        })
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        if request.path == "/v1/events" && matches!(request.method.as_str(), "GET" | "HEAD") {
            return self.events.serve(&request, responder);
        }
        // No browser reaches a unix socket.
        if self.door.is_loopback
            && let Some(file) = files::find(self.door.files, &request)
        {
            return file.send(responder);
        }
        let client = responder.peer();
        let key = if self.door.token.is_some() { Key::ControlToken } else { Key::Socket };
        let by = Caller { key, user: client.user, from: client.address };
        self.answer(&request, by).unwrap_or_else(|refusal| refusal).send(responder)
    }
}

/// True for the calls of which a token that reads is enough. Whatever is not named here acts.
fn is_reading(request: &Request) -> bool {
    let segments: Vec<&str> = request.path.trim_start_matches('/').split('/').collect();
    let is_named = match segments.as_slice() {
        ["healthz" | "openapi.json" | "readyz"]
        | ["v1", "events" | "executors" | "history" | "status"] => true,
        ["v1", "groups", _, "executors"] | ["v1", "groups", _, "executors", _] => true,
        ["v1", "groups", _, "executors", _, "output"] => true,
        _ => files::find(&files::RUN, request).is_some(),
    };
    is_named && matches!(request.method.as_str(), "GET" | "HEAD")
}

impl Api {
    fn answer(&self, request: &Request, by: Caller) -> Result<Answer, Answer> {
        // A client may encode any character of a name, and posse's own encodes most.
        let decode = |segment| percent_decode_str(segment).decode_utf8_lossy();
        let segments: Vec<Cow<'_, str>> =
            request.path.trim_start_matches('/').split('/').map(decode).collect();
        let segments: Vec<&str> = segments.iter().map(|segment| &**segment).collect();
        // HEAD is handled like GET; the server omits the body.
        let method = if request.method == "HEAD" { "GET" } else { request.method.as_str() };
        match (method, segments.as_slice()) {
            ("GET", ["healthz"]) => Ok(health(self.subject.core.is_alive())),
            ("GET", ["readyz"]) => Ok(health(self.subject.core.is_ready())),
            ("GET", ["v1", "history"]) => view::history(&self.subject, request),
            // Who only looks gets the same answer, without a sign of life of the driver.
            ("GET", ["v1", "status"]) if self.observes(request)? => self.ask(Command::View, by),
            ("GET", ["v1", "status"]) => self.status.get(|| self.ask(Command::Status, by)),
            ("GET", ["v1", "executors"]) => self.executors(self.observes(request)?, by),
            ("GET", ["openapi.json"]) => Ok(Answer::ok(OPENAPI.as_bytes().to_vec())),
            ("PUT", ["v1", "groups", group]) => {
                self.put_group(group_name(group)?, &request.body, by)
            }
            ("POST", ["v1", "groups", group]) => {
                let nodes = parse_preferred_nodes(&request.body)?;
                self.ask(Command::Group(group_name(group)?, GroupCommand::Prefer { nodes }), by)
            }
            ("DELETE", ["v1", "groups", group]) => {
                let group = group_name(group)?;
                let answer = self.ask(Command::Group(group.clone(), GroupCommand::Delete), by)?;
                self.subject.dry_runs.forget(&group);
                Ok(answer)
            }
            ("POST", ["v1", "groups", group, "executors"]) => {
                self.add_tasks(group_name(group)?, tasks::parse_tasks(&request.body)?, by)
            }
            ("GET", ["v1", "groups", group, "executors"]) => {
                self.ask(self.tasks(group, None, request)?, by)
            }
            ("GET", ["v1", "groups", group, "executors", key]) => {
                self.ask_one(self.tasks(group, Some(tasks::parse_key(key)?), request)?, by)
            }
            ("POST", ["v1", "groups", group, "executors", key]) => {
                let key = tasks::parse_key(key)?;
                let retry = GroupCommand::RetryTask { key };
                self.ask_one(Command::Group(group_name(group)?, retry), by)
            }
            ("DELETE", ["v1", "groups", group, "executors", key]) => {
                let key = tasks::parse_key(key)?;
                let cancel = GroupCommand::CancelTask { key };
                self.ask_one(Command::Group(group_name(group)?, cancel), by)
            }
            ("GET", ["v1", "groups", group, "executors", key, "output"]) => {
                view::output(&self.subject, &group_name(group)?, &tasks::parse_key(key)?)
            }
            ("POST", ["v1", "executors", "kill"]) => {
                self.ask(calls::parse_kill(&request.body)?, by)
            }
            ("POST", ["v1", "executors", "heartbeat"]) => {
                self.ask(calls::parse_heartbeat(&request.body)?, by)
            }
            ("POST", ["v1", "executors", "idle"]) => {
                let executors = calls::parse_executors(&request.body)?;
                self.ask(Command::Idle { executors }, by)
            }
            ("POST", ["v1", "executors", id, "disconnected"]) => {
                self.ask(Command::Disconnected { executor: calls::parse_id(id)? }, by)
            }
            ("POST", ["v1", "driver", "ready"]) => self.ready(&request.body, by),
            (_, segments) => Err(no_such_call(segments)),
        }
    }

    fn add_tasks(
        &self,
        group: GroupName,
        tasks: Vec<NewTask>,
        by: Caller,
    ) -> Result<Answer, Answer> {
        let mut answer = Err(Answer::error(503, "the tasks were not added", None));
        let mut by = Some(by);
        let has_secrets = tasks.iter().any(|task| !task.secrets.is_empty());
        let stored = self.subject.secrets.store(tasks, &mut |tasks| {
            let command = Command::Group(group.clone(), GroupCommand::AddTasks { tasks });
            if let Some(by) = by.take() {
                answer = self.ask(command, by);
            }
        });
        let field = if has_secrets { "secret_env" } else { "files" };
        stored.map_err(|error| Answer::not_stored(&error, field))?;
        answer
    }

    fn put_group(&self, group: GroupName, body: &[u8], by: Caller) -> Result<Answer, Answer> {
        let mut put = match calls::parse_put_group(body)? {
            calls::PutGroup::Target(target) => {
                return self.ask(Command::Group(group, GroupCommand::SetTarget { target }), by);
            }
            calls::PutGroup::Whole(put) => put,
        };
        let busy = "too many templates are being checked, try again";
        let permit = self.dry_runs.try_acquire().ok_or_else(|| Answer::error(429, busy, None))?;
        let template = std::mem::take(&mut put.template);
        let pod = self.subject.dry_runs.dry_run(&group, template, &put)?;
        drop(permit);
        self.ask(put.command(group, pod), by)
    }

    /// A call of somebody who only reads is no sign of life of the driver.
    fn observes(&self, request: &Request) -> Result<bool, Answer> {
        Ok(flag(request, "observe")? || self.door.right(request) == Some(Right::Read))
    }

    /// Asks for one task of this group, or for all.
    fn tasks(
        &self,
        group: &str,
        key: Option<Arc<str>>,
        request: &Request,
    ) -> Result<Command, Answer> {
        let group = group_name(group)?;
        Ok(match self.observes(request)? {
            true => Command::ViewTasks { group, key },
            false => Command::Group(group, GroupCommand::ShowTasks { key }),
        })
    }

    fn ask(&self, command: Command, by: Caller) -> Result<Answer, Answer> {
        // Read before, so that no event is missed by who reads those behind it.
        let seq = self.subject.events.newest();
        self.reply(self.subject.core.ask(command, Some(by))?, seq)
    }

    fn ready(&self, body: &[u8], by: Caller) -> Result<Answer, Answer> {
        if let Some(page) = calls::parse_ready(body)? {
            self.subject.driver_page.set(&page);
        }
        self.ask(Command::DriverReady, by)
    }

    /// Of the status the executors alone.
    fn executors(&self, observes: bool, by: Caller) -> Result<Answer, Answer> {
        let show = if observes { Command::View } else { Command::Status };
        let seq = self.subject.events.newest();
        let reply = self.subject.core.ask(show, Some(by))?;
        let Reply::Status(status) = reply else { return self.reply(reply, seq) };
        Ok(Answer::ok_in_parts(executors_only(&self.encode(seq, &status))))
    }

    /// Asks about one task.
    fn ask_one(&self, command: Command, by: Caller) -> Result<Answer, Answer> {
        let reply = self.subject.core.ask(command, Some(by))?;
        let Reply::Tasks(statuses) = reply else { return self.reply(reply, 0) };
        let status = statuses.first().ok_or_else(no_such_task)?;
        Ok(Answer::ok(tasks::status_body(status)))
    }

    /// `seq`: the newest event before the call.
    fn reply(&self, reply: Reply, seq: u64) -> Result<Answer, Answer> {
        match reply {
            Reply::Done => Ok(Answer::ok(b"{}".to_vec())),
            Reply::Killed { killed, busy, unknown, target } => {
                Ok(Answer::ok(calls::killed_body(&killed, &busy, &unknown, target)))
            }
            Reply::NotRecorded { what } => Err(Answer::error(503, &what, None)),
            Reply::Noted { unknown } => Ok(Answer::ok(calls::unknown_body(&unknown))),
            Reply::Refused { what, field } => Err(Answer::error(400, &what, Some(field))),
            Reply::Status(status) => Ok(Answer::ok_in_parts(self.encode(seq, &status))),
            Reply::Target(target) => Ok(Answer::ok(calls::target_body(target))),
            Reply::TaskDiffers { key, field } => {
                let what = format!("the key {key} was given before with another {field}");
                Err(Answer::error(409, &what, Some(field)))
            }
            Reply::Tasks(statuses) => Ok(Answer::ok(tasks::statuses_body(&statuses))),
            Reply::TooMany { what, field } => Err(Answer::error(429, &what, Some(field))),
            // No call asks for them.
            Reply::TaskSecretKeys(_) => Err(Answer::error(404, "there is no such call", None)),
            Reply::UnknownTask => Err(no_such_task()),
            Reply::UnknownExecutor => {
                Err(Answer::error(404, "there is no such executor", Some("executor")))
            }
            Reply::UnknownGroup => Err(Answer::error(404, "there is no such group", Some("group"))),
        }
    }

    fn encode(&self, seq: u64, status: &Status) -> Body {
        let ServedRun { identity, leader, epoch, .. } = &self.subject;
        let leader = lock(leader).clone();
        let identity = &RunNames { leader, ..identity.clone() };
        // A panic leaves it empty.
        let mut encoder = lock(&self.encoder);
        encoder.encode(identity, seq, status, epoch())
    }
}

fn no_such_task() -> Answer {
    Answer::error(404, "the group has no task with this key", Some("key"))
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
        ["healthz" | "readyz" | "openapi.json"]
        | ["v1", "events" | "executors" | "history" | "status"] => "GET, HEAD",
        ["v1", "groups", _] => "DELETE, POST, PUT",
        ["v1", "groups", _, "executors"] => "GET, HEAD, POST",
        ["v1", "groups", _, "executors", _] => "DELETE, GET, HEAD, POST",
        ["v1", "groups", _, "executors", _, "output"] => "GET, HEAD",
        ["v1", "executors", "heartbeat" | "idle" | "kill"]
        | ["v1", "executors", _, "disconnected"]
        | ["v1", "driver", "ready"] => "POST",
        _ => return Answer::error(404, "there is no such call", None),
    };
    Answer::wrong_method(allow)
}

/// Concurrent connections; each thread of a driver may have its own.
const CONNECTIONS_MAX: usize = 256;

/// Concurrent readers of events, included in `CONNECTIONS_MAX`.
const FOLLOWERS_MAX: usize = 128;

/// Concurrent dry runs of templates.
const DRY_RUNS_MAX: usize = 16;

/// The largest request body; kube-apiserver has the same limit.
const BODY_BYTES_MAX: usize = 3 << 20;

/// The OpenAPI document of this API; `tests/e2e/openapi.rs` compares it with the calls.
const OPENAPI: &str = include_str!("openapi.json");
