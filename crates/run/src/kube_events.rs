//! The thread that writes Events about the driver's pod, for `kubectl describe`. It reads the run's event
//! log like any other reader, so nothing waits for it; what it cannot read or send in time is left out
//! and counted.

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
use posse_core::machines::event_series::{EventAnswer, EventRequest, EventSeries, SeriesStep};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::kube_event::{self, Regarding};
use posse_wire::time::Epoch;

/// The thread's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// How long the thread waits for an event if there is nothing to send.
const READ_WAIT: Duration = Duration::from_secs(60);
/// After events came, how long the thread waits for more, so that many events cost one wake-up.
const GATHER_PAUSE: Duration = Duration::from_millis(500);

/// How many Events were written and left out. Shared with the metrics.
#[derive(Debug, Default)]
pub struct SentCounts {
    /// Creates and updates that succeeded.
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
            series: EventSeries::default(),
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
    series: EventSeries,
    /// The number of the last event that was read.
    after: u64,
}

impl Writer {
    fn run(&mut self) {
        let mut wait = READ_WAIT;
        let mut has_ended = false;
        loop {
            if has_ended {
                // At most the interval between two requests, or the delay after a failure.
                std::thread::sleep(wait);
            } else {
                has_ended = self.read(wait);
                if has_ended {
                    self.series.end();
                }
            }
            wait = match self.series.next(self.clock.now()) {
                SeriesStep::Send(request) => {
                    if !self.send(&request) {
                        return;
                    }
                    Duration::ZERO
                }
                SeriesStep::Wait { until } => {
                    Duration::from_millis(until.since(self.clock.now())).min(READ_WAIT)
                }
                SeriesStep::Idle if has_ended => return,
                SeriesStep::Idle => READ_WAIT,
            };
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
                        if notice.is_some_and(|notice| !self.series.add(notice, entry.at)) {
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

    /// Sends one request. False: it makes no sense to send more.
    fn send(&mut self, request: &EventRequest) -> bool {
        let epoch = Epoch(self.clock.wall(Millis::ZERO));
        let answer = match request.is_update {
            true => {
                let name = kube_event::name(&self.regarding, &self.run, request.series);
                self.api.patch(Kind::Event, &name, &kube_event::update_body(request, epoch))
            }
            false => {
                let body = kube_event::create_body(&self.regarding, &self.run, request, epoch);
                self.api.create(Kind::Event, &body).map(drop)
            }
        };
        // It exists if the answer to an earlier try was lost.
        let is_there = |refusal: &Refusal| refusal.class == RefusalClass::Exists;
        let is_sent = answer.as_ref().map_or_else(is_there, |()| true);
        let counter = if is_sent { &self.counts.sent } else { &self.counts.failed };
        counter.fetch_add(1, Ordering::Relaxed);
        if let Err(refusal) = &answer
            && is_hopeless(refusal, request.is_update)
        {
            info!(
                "posse writes no Events about the driver's pod: {refusal} (deploy/rbac.yaml grants \
                 the permission)"
            );
            return false;
        }
        let answer = answer_of(answer);
        if answer == EventAnswer::Invalid {
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.series.on_answer(request, answer, self.clock.now());
        true
    }
}

/// No permission (or a policy or a quota against Events), a server without `events.k8s.io/v1` (before
/// 1.19), or a namespace that is being deleted.
fn is_hopeless(refusal: &Refusal, is_update: bool) -> bool {
    let is_unknown = refusal.class == RefusalClass::NotFound && !is_update;
    refusal.code == 403 || is_unknown || refusal.class == RefusalClass::NamespaceGone
}

fn answer_of(answer: Result<(), Refusal>) -> EventAnswer {
    let Err(refusal) = answer else { return EventAnswer::Done };
    debug!("an Event about the driver's pod: {refusal}");
    let answers = [
        (RefusalClass::Exists, EventAnswer::Done),
        (RefusalClass::NotFound, EventAnswer::Gone),
        (RefusalClass::Invalid, EventAnswer::Invalid),
        (RefusalClass::Conflict, EventAnswer::Invalid),
    ];
    let known = answers.into_iter().find(|(class, _)| *class == refusal.class);
    let failed = EventAnswer::Failed { retry_after_ms: refusal.retry_delay_ms() };
    known.map_or(failed, |(_, answer)| answer)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::Value;

    use super::*;
    use posse_core::model::event::{Event, ExecutorEvent, GroupEvent, LossReason, Subject};
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::waiting::{ServerWait, Waiting};
    use posse_testing::{Answer, TestServer, plain_client};
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
        let (line, body) = &bodies[0];
        assert!(line.starts_with("POST /apis/events.k8s.io/v1/namespaces/n/events?"), "{line}");
        assert_eq!(
            (&body["reason"], &body["regarding"]["uid"]),
            (&"ExecutorLost".into(), &"u1".into())
        );
        let last = &bodies[bodies.len() - 1].1;
        assert_eq!(last["series"]["count"], 300, "{bodies:?}");
        assert_eq!(counts, [("dropped", 0), ("failed", 0), ("sent", bodies.len() as u64)]);
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

    /// The time-out of a test step; much longer than any step takes.
    const PATIENCE: Duration = Duration::from_secs(120);
}
