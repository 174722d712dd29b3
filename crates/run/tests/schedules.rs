//! The reconciler's channels, the threads at their other ends, and the order of the stop, in many schedules: no thread
//! waits for ever. The threads are those of a run, which `posse-schedules` compiles for shuttle; the reconciler is
//! a loop that does with its channels what the engine does.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use shuttle::rand::{Rng as _, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};

use posse_base::clock::Clock;
use posse_control::{Busy, RunHandle as _};
use posse_core::machines::lease::LeaseRelease;
use posse_core::model::action::Action;
use posse_core::model::command::{Command, Reply};
use posse_core::model::fact::{Fact, Topic};
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::{Input, Watermark};
use posse_kube::api::objects::Objects;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::pods::Pods;
use posse_kube::http::Http;
use posse_run::claims::SlotClaims;
use posse_run::events::EventLog;
use posse_run::leases::{IdStore, RunLeases};
use posse_run::pod_groups::PodGroups;
use posse_schedules::inbox::{ControlHandle, Liveness, Message, inbox};
use posse_schedules::record::{Record, RecordEnd, RecordThread};
use posse_schedules::server_threads::{OrphanSettings, Threads, WatchSettings};
use posse_schedules::watermark::SharedWatermark;
use posse_schedules::writers::{Requests, Writers};
use posse_schedules::{Receiver, Sender};
use posse_testing::plain_client;
use posse_wire::control::record::RecordOwner;
use posse_wire::k8s::labels::Selection;

/// Without the variable `SCHEDULES`.
const SCHEDULES: usize = 1_000;
/// HTTP needs more than a thread of shuttle has, in bytes.
const STACK_BYTES: usize = 1 << 20;
/// The most requests in flight.
const IN_FLIGHT_MAX: usize = 3;
/// The most turns before the stop.
const TURNS_MAX: u32 = 12;
/// The callers of the control API.
const CALLERS: usize = 2;

/// What ends first when the reconciler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// As the engine does it.
    InboxThenRecord,
    RecordThenInbox,
}

#[test]
fn no_thread_waits_for_ever() {
    in_schedules(Order::InboxThenRecord);
}

/// The record's thread waits for room in the inbox, which nobody reads any more, and the reconciler for the record.
#[test]
#[should_panic(expected = "deadlock")]
fn the_other_order_of_the_stop_is_found_out() {
    in_schedules(Order::RecordThenInbox);
}

fn in_schedules(order: Order) {
    // The server is away, so each request is answered at once.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let http = plain_client(address);
    let folder = MemoryFolder::new(order);
    let path = folder.0.clone();
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    let n = std::env::var("SCHEDULES").map_or(SCHEDULES, |n| n.parse().unwrap());
    let runner = Runner::new(RandomScheduler::new(n), config);
    runner.run(move || one_run(&http, &path, order));
}

/// A folder that is synced in no time.
struct MemoryFolder(PathBuf);

impl MemoryFolder {
    fn new(order: Order) -> Self {
        let name = format!("posse-schedules-{}-{order:?}", std::process::id());
        let path = Path::new("/dev/shm").join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn one_run(http: &Http, folder: &Path, order: Order) {
    let (sender, receiver) = inbox();
    let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
    let pods = Pods::new(http.clone(), "n", selection.clone());
    static N_FILES: AtomicU64 = AtomicU64::new(0);
    let file = folder.join(N_FILES.fetch_add(1, Ordering::Relaxed).to_string());
    let record = record(file.clone(), &sender);
    let watermark = Arc::new(SharedWatermark::default());
    let watch = WatchSettings { clock: Clock::start(), seed: 1, poll_interval_ms: 300_000 };
    let leases = RunLeases { application: None, ids: IdStore::None };
    let others = AppExecutors::new(http.clone(), "n", Some("a"));
    let orphans = OrphanSettings { pods: others, is_exclusive: false };
    let threads = Threads::start(&pods, watch, &sender, &watermark, leases, orphans).unwrap();
    let requests = Requests {
        pods,
        claims: SlotClaims::new(Objects::new(http.clone(), Some("n")), selection),
        pod_groups: Arc::new(PodGroups::new(http.clone(), "n", BTreeMap::new())),
        log: Arc::new(EventLog::new("r", Clock::start())),
        outputs: None,
    };
    let writers = Writers::new(requests, sender.clone(), IN_FLIGHT_MAX).unwrap();
    let callers: Vec<_> = (0..CALLERS).map(|_| call(&sender)).collect();
    let mut reconciler = Reconciler { writers, n_open: 0, is_writing: false };
    reconciler.run(&receiver, &threads, &record);
    match order {
        Order::InboxThenRecord => {
            drop(receiver);
            record.stop(RecordEnd::Keep(Vec::new()));
        }
        Order::RecordThenInbox => {
            record.stop(RecordEnd::Keep(Vec::new()));
            drop(receiver);
        }
    }
    assert!(!file.exists(), "the record is removed at the end, because nothing is in it");
    drop(reconciler);
    let running = threads.stop(LeaseRelease::Keep);
    assert!(running.is_empty(), "{running:?}");
    for caller in callers {
        caller.join().unwrap();
    }
}

fn record(file: PathBuf, inbox: &Sender<Message>) -> RecordThread {
    let name = |text: &str| text.to_owned();
    let owner = RecordOwner {
        app: name("a"),
        instance: name("b"),
        namespace: name("n"),
        server: name("s"),
    };
    let (record, _) = Record::in_file(file, &owner, None).unwrap();
    RecordThread::start(record, inbox.clone()).unwrap()
}

/// A call that is answered, or told why not.
fn call(inbox: &Sender<Message>) -> shuttle::thread::JoinHandle<()> {
    let (inbox, liveness, clock) = (inbox.clone(), Arc::new(Liveness::default()), Clock::start());
    let handle = ControlHandle { inbox, liveness, clock };
    shuttle::thread::spawn(move || {
        let reply = handle.ask(Command::Status, None);
        let is_answered = matches!(reply, Ok(Reply::Done) | Err(Busy::Full | Busy::Stopping));
        assert!(is_answered, "{reply:?}");
    })
}

/// What the engine does with its channels.
struct Reconciler {
    writers: Writers,
    n_open: usize,
    is_writing: bool,
}

impl Reconciler {
    fn run(&mut self, inbox: &Receiver<Message>, threads: &Threads<'_>, record: &RecordThread) {
        threads.start_orphan_cleanup();
        for _ in 0..thread_rng().gen_range(0..TURNS_MAX) {
            if self.n_open < IN_FLIGHT_MAX {
                self.n_open += 1;
                let (id, watermark) = (ExecutorId(1), Watermark::default());
                self.writers.send(Action::Get { id, watermark });
            }
            if !std::mem::replace(&mut self.is_writing, true) {
                let topic = Topic::Target("g".into());
                record.write(vec![Fact { topic, knowledge: None }]);
            }
            match thread_rng().gen_range(0..4) {
                0 => threads.poll(),
                1 => threads.relist(),
                _ => {}
            }
            let first = inbox.recv_timeout(Duration::from_secs(1)).ok();
            first.into_iter().chain(inbox.try_iter()).for_each(|message| self.take(message));
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Command { reply, .. } => reply.try_send(Reply::Done).unwrap_or_default(),
            Message::Input(Input::Got { .. }) => self.n_open -= 1,
            Message::Input(Input::Recorded { .. }) => self.is_writing = false,
            Message::Input(_)
            | Message::Job { .. }
            | Message::Lease(..)
            | Message::ReadRefused(_) => {}
        }
    }
}
