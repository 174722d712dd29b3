//! The thread that writes Events about the driver's pod, for `kubectl describe`. It reads the run's event
//! log like any other reader, so nothing waits for it; what it cannot read or send in time is left out
//! and counted.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info};

use crate::events::{EntriesRead, EventLog};
use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::time::Millis;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::kube_event::{self, NewEvent, Notice, Regarding};
use posse_wire::time::Epoch;

/// The thread's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// How long the thread waits for an event if there is nothing to send.
const READ_WAIT: Duration = Duration::from_secs(60);
/// After events came, how long the thread waits for more, so that many events cost one wake-up.
const GATHER_PAUSE: Duration = Duration::from_millis(500);
/// The least time between two requests.
const REQUEST_INTERVAL_MS: u64 = 1_000;
/// What happens again within this time is told once. client-go's recorder counts over the same time.
const REPEAT_MS: u64 = 6 * 60_000;
/// The Events that wait to be sent.
const WAITING_MAX: usize = 64;
/// The delay after a failed request; doubled with each further failure.
const BACKOFF_MS: u64 = 5_000;
const BACKOFF_MS_MAX: u64 = 60_000;

/// How many Events were written and left out. Shared with the metrics.
#[derive(Debug, Default)]
pub struct SentCounts {
    /// Requests that succeeded.
    sent: AtomicU64,
    /// Requests that failed; most are sent again.
    failed: AtomicU64,
    /// Events of the run that became no Event: too many at a time, or refused.
    dropped: AtomicU64,
}

impl SentCounts {
    /// The counts, each with its documented name.
    pub fn read(&self) -> [(&'static str, u64); 3] {
        let value = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("dropped", value(&self.dropped)),
            ("failed", value(&self.failed)),
            ("sent", value(&self.sent)),
        ]
    }
}

/// The running thread.
#[derive(Debug)]
pub struct KubeEventWriter {
    thread: Worker,
    /// Dropping it ends a pause of the thread.
    run: Sender<()>,
}

impl KubeEventWriter {
    /// Starts the thread. `run`: the run's id, a part of the Events' names.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        api: Objects,
        regarding: Regarding,
        run: &str,
        log: Arc<EventLog>,
        clock: Clock,
        counts: Arc<SentCounts>,
    ) -> io::Result<Self> {
        let (sender, is_over) = bounded(0);
        let mut writer = Writer {
            api,
            regarding,
            run: run.to_owned(),
            log,
            clock,
            counts,
            is_over,
            queue: EventQueue::default(),
            after: 0,
        };
        let thread = Worker::start("kube-events", STACK_BYTES, move || writer.run())?;
        Ok(Self { thread, run: sender })
    }

    /// Waits until everything is sent, at most until `deadline`. False: something was not sent. Call
    /// `EventLog::end` first.
    #[must_use]
    pub fn finish(self, deadline: Instant) -> bool {
        drop(self.run);
        self.thread.join_by(deadline)
    }
}

struct Writer {
    api: Objects,
    regarding: Regarding,
    run: String,
    log: Arc<EventLog>,
    clock: Clock,
    counts: Arc<SentCounts>,
    /// Disconnected at the end of the run.
    is_over: Receiver<()>,
    queue: EventQueue,
    /// The number of the last event that was read.
    after: u64,
}

impl Writer {
    fn run(&mut self) {
        let mut has_ended = false;
        loop {
            let wait = match self.queue.due_at() {
                Some(at) => Duration::from_millis(at.since(self.clock.now())).min(READ_WAIT),
                None if has_ended => return,
                None => READ_WAIT,
            };
            if has_ended {
                // At most the interval between two requests, or the delay after a failure.
                std::thread::sleep(wait);
            } else {
                has_ended = self.read(wait);
            }
            let is_due = self.queue.due_at().is_some_and(|at| at <= self.clock.now());
            if is_due && !self.send() {
                return;
            }
        }
    }

    /// Reads all events, and waits up to `wait` for the first one. True if the log has ended.
    fn read(&mut self, mut wait: Duration) -> bool {
        let mut has_read = false;
        loop {
            match self.log.read_entries(self.after, wait) {
                EntriesRead::Ended => return true,
                EntriesRead::Nothing if has_read => {
                    // An end of the run ends the pause; the next read says so.
                    let paused = self.is_over.recv_timeout(GATHER_PAUSE);
                    debug_assert_ne!(paused, Ok(()), "nobody sends");
                    if paused == Err(RecvTimeoutError::Disconnected) {
                        has_read = false;
                        continue;
                    }
                    return false;
                }
                EntriesRead::Nothing => return false,
                EntriesRead::Entries { entries, last, n_missed } => {
                    self.counts.dropped.fetch_add(n_missed, Ordering::Relaxed);
                    for entry in entries {
                        let notice = kube_event::notice(&entry.event, entry.epoch);
                        if notice.is_some_and(|notice| !self.queue.add(notice, entry.at)) {
                            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    self.after = last;
                    has_read = true;
                    wait = Duration::ZERO;
                }
            }
        }
    }

    /// Sends the next Event. False: it makes no sense to send more.
    fn send(&mut self) -> bool {
        let Some(event) = self.queue.waiting.front() else { return true };
        let epoch = Epoch(self.clock.wall(Millis::ZERO));
        let body = kube_event::create_body(&self.regarding, &self.run, event, epoch);
        let refusal = self.api.create(Kind::Event, &body).err();
        // It exists if the answer to an earlier try was lost.
        let refusal = refusal.filter(|refusal| refusal.class != RefusalClass::Exists);
        let counter = if refusal.is_none() { &self.counts.sent } else { &self.counts.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now();
        let Some(refusal) = refusal else {
            self.queue.done(now);
            return true;
        };
        if is_hopeless(&refusal) {
            info!(
                "posse writes no Events about the driver's pod: {refusal} (deploy/rbac.yaml grants \
                 the permission)"
            );
            return false;
        }
        debug!("an Event about the driver's pod: {refusal}");
        if matches!(refusal.class, RefusalClass::Invalid | RefusalClass::Conflict) {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            self.queue.done(now);
        } else {
            self.queue.failed(now, refusal.retry_delay_ms());
        }
        true
    }
}

/// No permission (or a policy or a quota against Events), a server without `events.k8s.io/v1` (before
/// 1.19), or a namespace that is being deleted.
fn is_hopeless(refusal: &Refusal) -> bool {
    refusal.code == 403
        || matches!(refusal.class, RefusalClass::NotFound | RefusalClass::NamespaceGone)
}

/// The Events that are still to be sent, and what was told lately.
#[derive(Default)]
struct EventQueue {
    waiting: VecDeque<NewEvent>,
    /// When what each Event of the last minutes tells happened, by its reason and what it is about.
    told: BTreeMap<(&'static str, String), Millis>,
    n_events: u64,
    not_before: Millis,
    n_failures: u32,
}

impl EventQueue {
    /// Adds a notice, unless the same was told lately. False: it was dropped, because too many wait.
    fn add(&mut self, notice: Notice, at: Millis) -> bool {
        self.told.retain(|_, told| at.since(*told) < REPEAT_MS);
        let key = (notice.reason, notice.about.clone());
        if self.told.contains_key(&key) {
            return true;
        }
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.told.insert(key, at);
        self.n_events += 1;
        let event = NewEvent { number: self.n_events, at, notice };
        match event.notice.is_urgent {
            true => self.waiting.push_front(event),
            false => self.waiting.push_back(event),
        }
        true
    }

    /// When the next one may be sent; none: there is none.
    fn due_at(&self) -> Option<Millis> {
        (!self.waiting.is_empty()).then_some(self.not_before)
    }

    /// The first one was sent, or is not to be sent again.
    fn done(&mut self, now: Millis) {
        self.waiting.pop_front();
        (self.n_failures, self.not_before) = (0, now.after(REQUEST_INTERVAL_MS));
    }

    /// The first one is to be sent again.
    fn failed(&mut self, now: Millis, retry_after_ms: u64) {
        let doublings = self.n_failures.min(BACKOFF_MS_MAX.ilog2());
        let backoff = BACKOFF_MS.saturating_mul(1 << doublings).min(BACKOFF_MS_MAX);
        self.n_failures = self.n_failures.saturating_add(1);
        self.not_before = now.after(backoff.max(retry_after_ms));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::Value;

    use super::*;
    use posse_core::model::event::{Event, ExecutorEvent, GroupEvent, LossReason, Subject};
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::waiting::{ServerWait, Waiting};
    use posse_testing::{Answer, PATIENCE, TestServer, plain_client};
    use posse_wire::pod::build::OwnerRef;

    fn status(code: u16, reason: &str) -> Answer {
        let body = serde_json::json!({
            "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "no",
        });
        Answer::json(code, body.to_string())
    }

    struct Running {
        log: Arc<EventLog>,
        counts: Arc<SentCounts>,
        writer: KubeEventWriter,
    }

    fn start(server: &TestServer) -> Running {
        let clock = Clock::start();
        let log = Arc::new(EventLog::new("k3f9x", clock));
        let counts = Arc::new(SentCounts::default());
        let api = Objects::new(plain_client(server.address), Some("n"));
        let pod = OwnerRef::pod("driver", "u1");
        let regarding = Regarding { namespace: "n".to_owned(), pod, common: Arc::default() };
        let shared = (Arc::clone(&log), Arc::clone(&counts));
        let writer =
            KubeEventWriter::start(api, regarding, "k3f9x", shared.0, clock, shared.1).unwrap();
        Running { log, counts, writer }
    }

    fn lost() -> Event {
        let subject =
            Subject { group: "g".into(), id: ExecutorId(1), uid: None, pod: "p".to_owned() };
        let (reason, message) = (LossReason::AppError, "exit code 1".to_owned());
        Event::Executor(
            subject,
            ExecutorEvent::Lost {
                node: None,
                reason,
                budget: reason.budget(),
                exit_code: Some(1),
                message,
            },
        )
    }

    fn finish(running: Running) -> [(&'static str, u64); 3] {
        running.log.end();
        assert!(running.writer.finish(Instant::now() + PATIENCE));
        running.counts.read()
    }

    #[test]
    fn losses_become_one_event_and_the_thread_ends_with_the_log() {
        let bodies = Arc::new(Mutex::new(Vec::<(String, Value)>::new()));
        let seen_bodies = Arc::clone(&bodies);
        let server = TestServer::start(None, move |seen| {
            let body = serde_json::from_slice(&seen.body).unwrap();
            seen_bodies.lock().unwrap().push((seen.line().to_owned(), body));
            Answer::json(201, "{}")
        });
        let running = start(&server);
        for _ in 0..300 {
            running.log.push(lost());
        }
        let counts = finish(running);
        let bodies = bodies.lock().unwrap();
        let [(line, body)] = &bodies[..] else { panic!("one Event: {bodies:?}") };
        assert!(line.starts_with("POST /apis/events.k8s.io/v1/namespaces/n/events?"), "{line}");
        assert_eq!(
            (&body["reason"], &body["regarding"]["uid"]),
            (&"ExecutorLost".into(), &"u1".into())
        );
        assert_eq!(counts, [("dropped", 0), ("failed", 0), ("sent", 1)]);
    }

    fn notice(reason: &'static str, about: &str) -> Notice {
        Notice {
            reason,
            about: about.to_owned(),
            action: "Act",
            is_warning: true,
            is_urgent: reason == "BudgetSpent",
            note: String::new(),
        }
    }

    fn waiting(queue: &EventQueue) -> Vec<(u64, &str)> {
        queue.waiting.iter().map(|event| (event.number, &*event.notice.about)).collect()
    }

    #[test]
    fn what_happens_again_is_told_again_after_a_while() {
        let mut queue = EventQueue::default();
        for (reason, about, at) in [
            ("ExecutorLost", "g oom", 0),
            ("ExecutorLost", "g oom", 1),
            ("ExecutorLost", "g exit", 2),
            ("ExecutorLost", "g oom", REPEAT_MS - 1),
            ("ExecutorLost", "g oom", REPEAT_MS),
            ("BudgetSpent", "app", REPEAT_MS),
        ] {
            assert!(queue.add(notice(reason, about), Millis(at)));
        }
        assert_eq!(waiting(&queue), [(4, "app"), (1, "g oom"), (2, "g exit"), (3, "g oom")]);
        for n in 4..WAITING_MAX {
            assert!(queue.add(notice("NodeAvoided", &n.to_string()), Millis(REPEAT_MS)));
        }
        assert!(!queue.add(notice("NodeAvoided", "one more"), Millis(REPEAT_MS)));
        queue.done(Millis(REPEAT_MS));
        assert!(queue.add(notice("NodeAvoided", "one more"), Millis(REPEAT_MS)));
    }

    #[test]
    fn requests_are_a_second_apart_and_failures_have_growing_delays() {
        let mut queue = EventQueue::default();
        assert_eq!(queue.due_at(), None);
        for node in ["a", "b"] {
            queue.add(notice("NodeAvoided", node), Millis(0));
        }
        queue.done(Millis(0));
        for due in [1_000, 6_000, 16_000, 36_000, 76_000, 136_000] {
            assert_eq!(queue.due_at(), Some(Millis(due)));
            queue.failed(Millis(due), 0);
        }
        queue.failed(Millis(0), 90_000);
        assert_eq!(queue.due_at(), Some(Millis(90_000)));
        queue.done(Millis(90_000));
        assert_eq!((queue.due_at(), queue.n_failures), (None, 0));
    }

    #[test]
    fn a_missing_permission_switches_the_events_off() {
        let server = TestServer::start(None, |_| status(403, "Forbidden"));
        let running = start(&server);
        running.log.push(lost());
        server.wait();
        let waiting = Waiting::Server(ServerWait::Quota);
        let (until, message) = (None, None);
        running.log.push(Event::Group("g".into(), GroupEvent::Waiting { waiting, until, message }));
        assert_eq!(finish(running), [("dropped", 0), ("failed", 1), ("sent", 0)]);
    }

    #[test]
    fn an_event_that_the_server_does_not_accept_is_left_out() {
        let server = TestServer::start(None, |_| status(422, "Invalid"));
        let running = start(&server);
        running.log.push(lost());
        server.wait();
        assert_eq!(finish(running), [("dropped", 1), ("failed", 1), ("sent", 0)]);
    }

    #[test]
    fn an_event_that_exists_after_a_lost_answer_counts_as_written() {
        let server = TestServer::start(None, |_| status(409, "AlreadyExists"));
        let running = start(&server);
        running.log.push(lost());
        server.wait();
        assert_eq!(finish(running), [("dropped", 0), ("failed", 0), ("sent", 1)]);
    }
}
