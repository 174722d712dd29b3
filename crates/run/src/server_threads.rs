//! Starts and stops the threads that talk to the API server, except the writers: the watch, the poll,
//! the lease threads and the orphan cleanup.

use std::io;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use log::warn;

use crate::inbox::Message;
use crate::leases::orphans::OrphanCleanupThread;
use crate::leases::{IdStore, RunLeases};
use crate::watch::lister::{Lister, ListerControl};
use crate::watch::poller::poll;
use crate::watch::watcher::watch;
use crate::watermark::SharedWatermark;
use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::machines::lease::LeaseRelease;
use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::Input;
use posse_kube::api::driver_pod::DriverPod;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::pods::{Pods, WATCH_IDLE};
use posse_kube::api::retry::Retries;

/// How long the end of the watch and poll threads is awaited. A blocked read ends at once, but
/// connecting cannot be interrupted.
const LISTERS_TIMEOUT: Duration = Duration::from_secs(1);
/// Of the request that stores the highest id on the driver's pod.
const RESERVE_RULE: RetryRule =
    RetryRule { delay_ms: 1_000, delay_ms_max: 5_000, limit: RetryLimit::Never };
/// Stacks of threads that parse whole LIST answers, bytes.
const STACK_BYTES: usize = 512 << 10;

/// Settings of the watch and the poll.
#[derive(Clone, Copy, Debug)]
pub struct WatchSettings {
    pub clock: Clock,
    pub seed: u64,
    /// 0: no poll.
    pub poll_interval_ms: u64,
}

/// Settings of the orphan cleanup.
#[derive(Debug)]
pub struct OrphanSettings {
    pub pods: AppExecutors,
    /// No other driver of the application may run.
    pub is_exclusive: bool,
}

/// The watch thread or the poll thread.
#[derive(Debug)]
struct ListerThread {
    control: ListerControl,
    thread: Worker,
}

/// The running threads.
#[derive(Debug)]
pub struct Threads<'a> {
    watch: ListerThread,
    poll: Option<ListerThread>,
    orphans: Worker,
    /// Closing it ends the orphan cleanup.
    start_cleanup: Sender<()>,
    leases: RunLeases,
    inbox: &'a Sender<Message>,
}

impl<'a> Threads<'a> {
    /// Starts the threads.
    pub fn start(
        pods: &Pods,
        settings: WatchSettings,
        inbox: &'a Sender<Message>,
        watermark: &Arc<SharedWatermark>,
        leases: RunLeases,
        orphans: OrphanSettings,
    ) -> io::Result<Self> {
        let mut rng = Rng::new(settings.seed);
        let mut lister = || Lister {
            pods: pods.clone(),
            inbox: inbox.clone(),
            watermark: Arc::clone(watermark),
            watch_idle: WATCH_IDLE,
            clock: settings.clock,
            rng: Rng::new(rng.next_u64()),
            control: ListerControl::new(),
        };
        let watcher = lister();
        let control = watcher.control.clone();
        let thread = Worker::start("watch", STACK_BYTES, move || watch(&watcher))?;
        let watch = ListerThread { control, thread };
        let mut poller = None;
        if settings.poll_interval_ms > 0 {
            let lister = lister();
            let control = lister.control.clone();
            let interval = Duration::from_millis(settings.poll_interval_ms);
            let thread = Worker::start("poll", STACK_BYTES, move || poll(&lister, interval))?;
            poller = Some(ListerThread { control, thread });
        }
        let OrphanSettings { pods: others, is_exclusive } = orphans;
        let (start_cleanup, start) = bounded(1);
        let cleanup = OrphanCleanupThread {
            pods: others,
            own_instance: pods.selection().instance.clone(),
            is_exclusive,
            start,
            clock: settings.clock,
            rng: Rng::new(rng.next_u64()),
        };
        let orphans = Worker::start("orphans", STACK_BYTES, move || cleanup.run())?;
        Ok(Self { watch, poll: poller, orphans, start_cleanup, leases, inbox })
    }

    /// Stops the watch, the poll and the orphan cleanup, then releases the Leases. Each wait has a
    /// time-out. Returns the names of threads that did not end in time.
    pub fn stop(self, release: LeaseRelease) -> Vec<&'static str> {
        let listers: Vec<ListerThread> = [self.watch].into_iter().chain(self.poll).collect();
        for lister in &listers {
            lister.control.stop();
        }
        drop(self.start_cleanup);
        let deadline = Instant::now() + LISTERS_TIMEOUT;
        let running = listers
            .into_iter()
            .map(|lister| lister.thread)
            .chain([self.orphans])
            .filter_map(|thread| {
                let name = thread.name();
                (!thread.join_by(deadline)).then_some(name)
            })
            .collect();
        self.leases.release(release);
        running
    }
}

/// Requests of the engine.
impl Threads<'_> {
    /// Sends a LIST now, in addition to the watch.
    pub fn poll(&self) {
        if let Some(poll) = &self.poll {
            poll.control.request_list();
        }
    }

    /// The first LIST is applied, or the application's Lease is held again.
    pub fn start_orphan_cleanup(&self) {
        // If a message waits already, it means the same.
        let _ = self.start_cleanup.try_send(());
    }

    /// The snapshot is invalid: ends the watch, and lists under the new epoch.
    pub fn relist(&self) {
        self.watch.control.relist();
    }

    /// Stores this highest id on the server; `Input::IdsReserved` reports success. False: the request was dropped, and
    /// must be repeated.
    pub fn reserve_ids(&self, up_to: ExecutorId) -> bool {
        match &self.leases.ids {
            IdStore::Lease(lease) => lease.reserve(up_to),
            IdStore::DriverPod(pod) => store_on_pod(pod.clone(), up_to, self.inbox.clone()),
            IdStore::None => true,
        }
    }
}

/// Stores the highest id on the driver's pod, on a thread of its own. Needed about once in 500 ids.
/// False: the thread cannot be started.
fn store_on_pod(pod: DriverPod, up_to: ExecutorId, inbox: Sender<Message>) -> bool {
    let body = move || {
        let mut retries = Retries::new(RESERVE_RULE);
        while let Err(refusal) = pod.save_id_high_water(up_to) {
            warn!("cannot store the highest executor id on the driver's pod, retrying: {refusal}");
            retries.wait(refusal.retry_after_ms);
        }
        // The send fails if the run has ended.
        let _ = inbox.send(Message::Input(Input::IdsReserved { up_to }));
    };
    let started = Builder::new().name("ids".to_owned()).spawn(body);
    if let Err(error) = &started {
        warn!("cannot start a thread to reserve executor ids, retrying: {error}");
    }
    started.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::inbox;
    use posse_testing::{Answer, TestServer, plain_client};
    use posse_wire::k8s::labels::Selection;
    use posse_wire::pod::build::OwnerRef;

    const EMPTY_LIST: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;

    #[test]
    fn a_stop_ends_blocked_reads() {
        // Empty lists, and watches that deliver nothing.
        let server = TestServer::start(None, |seen| match seen.line().contains("watch=1") {
            true => {
                Answer::Stall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n".to_vec())
            }
            false => Answer::json(200, EMPTY_LIST),
        });
        let http = plain_client(server.address);
        let others = AppExecutors::new(http.clone(), "ns", Some("w"));
        let orphans = OrphanSettings { pods: others, is_exclusive: false };
        let selection = Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() };
        let pods = Pods::new(http, "ns", selection);
        let (sender, receiver) = inbox();
        let watermark = Arc::new(SharedWatermark::default());
        let watch = WatchSettings { clock: Clock::start(), seed: 1, poll_interval_ms: 300_000 };
        let leases = RunLeases { application: None, ids: IdStore::None };
        let threads = Threads::start(&pods, watch, &sender, &watermark, leases, orphans).unwrap();
        let first = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
        assert!(matches!(first, Message::Input(Input::List(_))), "{first:?}");
        while !server.wait().line().contains("watch=1") {}
        assert_eq!(threads.stop(LeaseRelease::Keep), Vec::<&str>::new(), "all threads have ended");
    }

    #[test]
    fn ids_are_reserved_on_the_drivers_pod() {
        let pod = r#"{"metadata":{"name":"driver","uid":"u-1"}}"#;
        let server = TestServer::start(None, move |_| Answer::json(200, pod));
        let owner = OwnerRef::pod("driver", "u-1");
        let (sender, receiver) = bounded(4);
        let pod = DriverPod::new(plain_client(server.address), "ns", &owner);
        assert!(store_on_pod(pod, ExecutorId(1_000), sender));
        let message = receiver.recv_timeout(Duration::from_secs(120)).unwrap();
        let want = ExecutorId(1_000);
        assert!(
            matches!(message, Message::Input(Input::IdsReserved { up_to }) if up_to == want),
            "{message:?}"
        );
    }
}
