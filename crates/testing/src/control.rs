//! The control API over real sockets, with a scripted reconciler and event log.

use std::collections::BTreeSet;
use std::io::{Read as _, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use posse_control::address::bind_default;
use posse_control::api::{ControlServer, Tokens};
use posse_control::client::{Client, RunSelector};
use posse_control::page::history::History;
use posse_control::served_run::{DriverPage, ServedRun};
use posse_control::{
    Busy, DryRunError, DryRuns, Events, Read, RunHandle, StoreError, TaskSecrets, Usage,
};
use posse_core::model::act::Caller;
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod_text::{Part, PodText, SlotClaim};
use posse_core::model::status::Status;
use posse_core::model::task::{Task, TaskState, TaskStatus};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::control::status_json::{RunNames, StatusEncoder};
use posse_wire::control::task_secrets::NewTask;
use posse_wire::control::{CallError, NewGroup};
use posse_wire::k8s::usage::PodUsage;
use posse_wire::time::Epoch;

use crate::folder::Folder;
use crate::status::sample_status;

fn waiting(key: &str) -> TaskStatus {
    TaskStatus {
        task: Arc::new(Task { key: key.into(), ..Task::default() }),
        state: TaskState::Waiting,
        executor: None,
        attempts: 0,
        held_by: None,
        start_problem: None,
        end: None,
    }
}

/// Answers like a run with one group, `default`, with executors 1 (free) and 2 (busy).
#[derive(Default)]
pub struct FakeCore {
    pub asked: Mutex<Vec<Command>>,
    /// The keys of the Secret that tasks need.
    pub needed: Mutex<BTreeSet<Arc<str>>>,
    /// Who made the last call.
    pub caller: Mutex<Option<Caller>>,
    pub full: AtomicBool,
    /// So many calls with tasks are answered before the record has them.
    pub n_unrecorded: AtomicU64,
    pub ready: AtomicBool,
    pub status: OnceLock<Status>,
    pub usage: Mutex<Vec<PodUsage>>,
    /// The wall clock of the control API, in milliseconds since 1970.
    pub epoch_ms: Arc<AtomicU64>,
}

impl FakeCore {
    fn is_unrecorded(&self) -> bool {
        let less = |n: u64| n.checked_sub(1);
        self.n_unrecorded.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
}

impl RunHandle for FakeCore {
    fn ask(&self, command: Command, by: Option<Caller>) -> Result<Reply, Busy> {
        if self.full.load(Ordering::Relaxed) {
            return Err(Busy::Full);
        }
        self.asked.lock().unwrap().push(command.clone());
        *self.caller.lock().unwrap() = by;
        Ok(match command {
            Command::Group(group, GroupCommand::Delete) if group.as_str() == "other" => {
                Reply::UnknownGroup
            }
            Command::Disconnected { executor } if executor.0 > 2 => Reply::UnknownExecutor,
            Command::Group(_, GroupCommand::Delete)
            | Command::Group(_, GroupCommand::Prefer { .. })
            | Command::Disconnected { .. }
            | Command::DriverReady => Reply::Done,
            Command::Heartbeat { executors, memory: _ } | Command::Idle { executors } => {
                let unknown = executors.into_iter().filter(|id| id.0 > 2).collect();
                Reply::Noted { unknown }
            }
            Command::Group(_, GroupCommand::Put { change, .. }) => {
                Reply::Target(change.target.unwrap_or(0))
            }
            Command::Kill { executors, .. } if executors.contains(&ExecutorId(66)) => {
                Reply::Refused { what: "not these".into(), field: "executors" }
            }
            Command::Kill { .. } => Reply::Killed {
                killed: vec![ExecutorId(1)],
                busy: vec![ExecutorId(2)],
                unknown: vec![ExecutorId(9)],
                target: Some(4),
            },
            Command::Group(group, GroupCommand::SetTarget { target })
                if group.as_str() == "default" =>
            {
                Reply::Target(target.min(20))
            }
            Command::Group(_, GroupCommand::SetTarget { .. }) => Reply::UnknownGroup,
            Command::Group(_, GroupCommand::AddTasks { .. }) if self.is_unrecorded() => {
                Reply::NotRecorded { what: "it is not in the record yet".into() }
            }
            Command::Group(_, GroupCommand::AddTasks { tasks, .. }) => match tasks.first() {
                Some(task) if task.retries == 7 => {
                    Reply::TaskDiffers { key: Arc::clone(&task.key), field: "retries" }
                }
                Some(task) if task.retries == 8 => {
                    Reply::TooMany { what: "too many".into(), field: "executors" }
                }
                _ => Reply::Tasks(tasks.iter().map(|task| waiting(&task.key)).collect()),
            },
            Command::Group(_, GroupCommand::ShowTasks { key: None, .. }) => {
                Reply::Tasks(vec![waiting("a"), waiting("b")])
            }
            Command::Group(
                _,
                GroupCommand::CancelTask { key, .. } | GroupCommand::RetryTask { key },
            )
            | Command::Group(_, GroupCommand::ShowTasks { key: Some(key), .. })
            | Command::ViewTasks { key: Some(key), .. } => match &*key {
                "a" => Reply::Tasks(vec![waiting("a")]),
                _ => Reply::UnknownTask,
            },
            Command::TaskSecretKeys => Reply::TaskSecretKeys(self.needed.lock().unwrap().clone()),
            Command::ViewTasks { key: None, .. } => Reply::Tasks(vec![waiting("a")]),
            Command::Status | Command::View => {
                Reply::Status(self.status.get_or_init(sample_status).clone().into())
            }
        })
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }
}

/// Takes the values, but for `full` and `away`, and gives each its own text as the key.
impl TaskSecrets for FakeCore {
    fn store(
        &self,
        tasks: Vec<NewTask>,
        add: &mut dyn FnMut(Vec<Arc<Task>>),
    ) -> Result<(), StoreError> {
        let has = |text: &str| tasks.iter().flat_map(NewTask::values).any(|value| value == text);
        if has("full") {
            return Err(StoreError::Refused("the Secret is full".to_owned()));
        }
        if has("away") {
            return Err(StoreError::Unavailable("the server is away".to_owned()));
        }
        let key = |value: &str| Some(Arc::from(value));
        add(tasks.into_iter().filter_map(|task| task.with_keys(key)).collect());
        Ok(())
    }
}

/// Accepts every template with a `spec`.
impl Usage for FakeCore {
    fn read(&self) -> Vec<PodUsage> {
        self.usage.lock().unwrap().clone()
    }
}

impl DryRuns for FakeCore {
    fn dry_run(
        &self,
        group: &GroupName,
        template: Value,
        NewGroup { container, volumes, .. }: &NewGroup,
    ) -> Result<Arc<PodText>, DryRunError> {
        let claims = volumes.iter().map(|volume| SlotClaim {
            parts: vec![Part::Text(volume.name.clone())],
            is_of_run: true,
        });
        let text = match template.get("spec") {
            None => {
                return Err(DryRunError::Invalid(CallError::new("template.spec", "is missing")));
            }
            Some(Value::Null) => {
                let why = "it is away".to_owned();
                return Err(DryRunError::Unavailable { why, retry_after_ms: Some(1_500) });
            }
            Some(spec) => format!("{group} {container:?} {spec}"),
        };
        let (parts, claims) = (vec![Part::Text(text)], claims.collect());
        Ok(Arc::new(PodText { parts, claims, ..PodText::default() }))
    }

    fn forget(&self, _: &GroupName) {}
}

#[derive(Default)]
pub struct FakeEvents {
    /// The lines, and whether the log has ended.
    log: Mutex<(Vec<String>, bool)>,
    changed: Condvar,
}

impl FakeEvents {
    pub fn push(&self, line: &str) {
        self.log.lock().unwrap().0.push(line.to_owned());
        self.changed.notify_all();
    }

    pub fn end(&self) {
        self.log.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Events for FakeEvents {
    fn newest(&self) -> u64 {
        self.log.lock().unwrap().0.len() as u64
    }

    fn read(&self, after: u64, wait: Duration) -> Read {
        let after = usize::try_from(after).unwrap();
        let nothing = |log: &mut (Vec<String>, bool)| log.0.len() <= after && !log.1;
        let log = self.log.lock().unwrap();
        let (log, _) = self.changed.wait_timeout_while(log, wait, nothing).unwrap();
        match (log.0.get(after..).unwrap_or_default(), log.1) {
            ([], true) => Read::Ended,
            ([], false) => Read::Nothing,
            (lines, _) => Read::Lines { lines: lines.to_vec(), last: log.0.len() as u64 },
        }
    }
}

/// A control API on a unix socket in its own folder.
pub struct Fixture {
    pub core: Arc<FakeCore>,
    pub events: Arc<FakeEvents>,
    pub server: Option<ControlServer>,
    pub folder: Folder,
}

impl Fixture {
    pub fn new() -> Self {
        let folder = Folder::new();
        let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
        let mut fixture = Self { core, events, server: None, folder };
        fixture.server = Some(fixture.second("a1b2c"));
        fixture
    }

    /// A second control API, for another instance.
    pub fn second(&self, instance: &str) -> ControlServer {
        let bound = bind_default("w", instance, &[self.folder.path().to_owned()]).unwrap();
        ControlServer::start(bound, Tokens::default(), subject(&self.core, &self.events)).unwrap()
    }

    pub fn address(&self) -> ControlAddr {
        self.server.as_ref().expect("not stopped yet").address().clone()
    }

    pub fn client(&self) -> Client {
        let selector = RunSelector {
            app: Some("w".into()),
            folders: vec![self.folder.path().to_owned()],
            ..RunSelector::default()
        };
        Client::find(&selector).unwrap()
    }

    /// Method, path, body; status and body of the answer.
    #[track_caller]
    pub fn check(&self, table: &[(&str, &str, &str, u16, &str)]) {
        for (method, path, body, status, want) in table {
            let got = self.call(method, path, body);
            assert_eq!(got, (*status, (*want).to_owned()), "{method} {path} {body}");
        }
    }

    /// One raw call: status and body.
    pub fn call(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let Some(ControlAddr::Unix(socket)) = self.server.as_ref().map(|s| s.address().clone())
        else {
            panic!("a unix socket");
        };
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{body}")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

pub fn subject(core: &Arc<FakeCore>, events: &Arc<FakeEvents>) -> ServedRun {
    let identity = identity();
    let epoch_ms = Arc::clone(&core.epoch_ms);
    let epoch = Arc::new(move || epoch_of(epoch_ms.load(Ordering::Relaxed)));
    let (dry_runs, secrets, usage) = (core.clone(), core.clone(), core.clone());
    let history = Some(Arc::new(History::new([(GroupName::from("default"), 10)])));
    let (core, events) = (core.clone(), events.clone());
    let (driver_page, outputs) = (DriverPage::default(), None);
    ServedRun {
        core,
        dry_runs,
        events,
        outputs,
        secrets,
        history,
        identity,
        driver_page,
        usage,
        leader: Arc::default(),
        epoch,
    }
}

pub fn epoch_of(ms: u64) -> Epoch {
    Epoch(SystemTime::UNIX_EPOCH + Duration::from_millis(ms))
}

pub fn identity() -> RunNames {
    RunNames {
        run: "k3f9".into(),
        app: "w".into(),
        instance: "a1b2c".into(),
        namespace: "ns".into(),
        ..RunNames::default()
    }
}

pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn encoded_status(epoch_ms: u64) -> String {
    let body =
        StatusEncoder::default().encode(&identity(), 0, &sample_status(), epoch_of(epoch_ms));
    String::from_utf8(body.concat()).unwrap()
}
