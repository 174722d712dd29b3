//! Owns the threads that face the server beside the writers: the watch, the poll, and what is held
//! there. Starts them, asks them, ends them in order.

use std::io;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use log::warn;

use crate::clock::Clock;
use crate::core::machines::lease::LeaseRelease;
use crate::core::model::ids::ExecutorId;
use crate::core::model::input::{Input, ListSource};
use crate::core::model::rng::Rng;
use crate::kube::api::driver_pod::DriverPod;
use crate::kube::api::orphans::AppExecutors;
use crate::kube::api::pods::Pods;
use crate::runtime::engine::{SharedMark, Upstream};
use crate::runtime::hold::{Hold, IdKeeper};
use crate::runtime::inbox::Message;
use crate::runtime::poller::{Schedule, poll};
use crate::runtime::sweep::{self, Sweeper};
use crate::runtime::watcher::{Control, Lister, watch};
use crate::runtime::worker::Worker;

/// How long the watch and the poll are waited for: a read ends at once, a connection that is being
/// made cannot be interrupted.
const LOOKERS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a keeping of ids that failed is put off.
const KEEP_IDS_AGAIN: Duration = Duration::from_secs(5);
/// Stacks of threads that parse whole lists, bytes.
const STACK_BYTES: usize = 512 << 10;

/// How the server is looked at, and by what clock.
#[derive(Clone, Copy, Debug)]
pub struct LookSettings {
    pub clock: Clock,
    pub seed: u64,
    pub watch: bool,
    /// 0: no poll.
    pub poll_interval_ms: u64,
}

/// How what earlier instances left is swept.
#[derive(Debug)]
pub struct SweepSettings {
    pub leftovers: AppExecutors,
    /// The application is this run's alone.
    pub is_exclusive: bool,
}

/// A thread that looks at the server.
#[derive(Debug)]
struct Looker {
    control: Control,
    thread: Worker,
}

/// The threads, started.
#[derive(Debug)]
pub struct Threads<'a> {
    watch: Option<Looker>,
    poll: Option<Looker>,
    sweep: Option<(Sender<()>, Worker)>,
    hold: Hold,
    inbox: &'a Sender<Message>,
}

impl<'a> Threads<'a> {
    /// Starts the watch and the poll.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(
        pods: &Pods,
        look: LookSettings,
        inbox: &'a Sender<Message>,
        mark: &Arc<SharedMark>,
        hold: Hold,
        sweep: Option<SweepSettings>,
    ) -> io::Result<Self> {
        let mut rng = Rng::new(look.seed);
        let mut lister = || {
            let mark = Arc::clone(mark);
            Lister {
                pods: pods.clone(),
                inbox: inbox.clone(),
                mark: move || mark.read(),
                clock: look.clock,
                rng: Rng::new(rng.next_u64()),
                control: Control::new(),
            }
        };
        let mut threads = Self { watch: None, poll: None, sweep: None, hold, inbox };
        if look.watch {
            let lister = lister();
            let control = lister.control.clone();
            let thread = Worker::start("watch", STACK_BYTES, move || watch(&lister))?;
            threads.watch = Some(Looker { control, thread });
        }
        if look.poll_interval_ms > 0 || !look.watch {
            let lister = lister();
            let control = lister.control.clone();
            let interval = Duration::from_millis(look.poll_interval_ms);
            let schedule = Schedule { interval: Some(interval), at_once: !look.watch };
            let thread = Worker::start("poll", STACK_BYTES, move || poll(&lister, schedule))?;
            threads.poll = Some(Looker { control, thread });
        }
        if let Some(SweepSettings { leftovers, is_exclusive }) = sweep {
            let (send, go) = bounded(1);
            let (ours, clock) = (pods.selection().instance.clone(), look.clock);
            let rng = Rng::new(rng.next_u64());
            let sweeper = Sweeper { leftovers, ours, is_exclusive, go, clock, rng };
            let body = move || sweep::sweep(&sweeper);
            threads.sweep = Some((send, Worker::start("sweep", STACK_BYTES, body)?));
        }
        Ok(threads)
    }

    /// Ends them: first who looks, then who holds. None is waited for longer than its time; the
    /// names of those that are left behind are given.
    pub fn stop(self, release: LeaseRelease) -> Vec<&'static str> {
        let lookers: Vec<Looker> = self.watch.into_iter().chain(self.poll).collect();
        for looker in &lookers {
            looker.control.stop();
        }
        // What it waits on is closed by this.
        let sweep = self.sweep.map(|(_, thread)| thread);
        let deadline = Instant::now() + LOOKERS_TIMEOUT;
        let left = lookers
            .into_iter()
            .map(|looker| looker.thread)
            .chain(sweep)
            .filter_map(|thread| {
                let name = thread.name();
                (!thread.join_by(deadline)).then_some(name)
            })
            .collect();
        self.hold.release(release);
        left
    }
}

impl Upstream for Threads<'_> {
    fn poll(&self) {
        if let Some(poll) = &self.poll {
            poll.control.ask(ListSource::Poll);
        }
    }

    fn sweep(&self) {
        if let Some((go, _)) = &self.sweep {
            // Told once; a second time would find the channel full.
            let _ = go.try_send(());
        }
    }

    fn relist(&self) {
        match (&self.watch, &self.poll) {
            (Some(watch), _) => watch.control.relist(),
            (None, Some(poll)) => poll.control.ask(ListSource::Poll),
            (None, None) => {}
        }
    }

    fn reserve_ids(&self, up_to: ExecutorId) {
        match &self.hold.ids {
            IdKeeper::Lease(lease) => lease.reserve(up_to),
            IdKeeper::DriverPod(pod) => keep_on_pod(pod.clone(), up_to, self.inbox.clone()),
            IdKeeper::Nobody => {}
        }
    }
}

/// Keeps the high water on the driver's pod, on a thread that ends with it: once in 500 ids.
fn keep_on_pod(pod: DriverPod, up_to: ExecutorId, inbox: Sender<Message>) {
    let body = move || {
        let again = crossbeam_channel::tick(KEEP_IDS_AGAIN);
        loop {
            match pod.save_id_high_water(up_to) {
                Ok(()) => {
                    // Nobody waits for it where the loop is over.
                    let _ = inbox.send(Message::Input(Input::IdsReserved { up_to }));
                    return;
                }
                Err(refusal) => warn!("the driver pod takes no id high water: {refusal}"),
            }
            // A tick channel never ends.
            if again.recv().is_err() {
                return;
            }
        }
    };
    if let Err(error) = Builder::new().name("ids".to_owned()).spawn(body) {
        warn!("no thread to reserve ids with: {error}");
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;
    use crate::kube::testing::{Answer, TestServer, plain_client};
    use crate::runtime::inbox::inbox;
    use crate::wire::build::OwnerRef;
    use crate::wire::labels::Selection;

    const JSON: &str = "Content-Type: application/json\r\n";
    const EMPTY_LIST: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;

    fn selection() -> Selection {
        Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() }
    }

    fn reply(status: u16, body: &str) -> Answer {
        Answer::Reply(status, JSON, body.as_bytes().to_vec())
    }

    /// Lists are empty; watches begin, and then nothing comes.
    fn quiet_server() -> TestServer {
        TestServer::start(None, |seen| match seen.line().contains("watch=1") {
            true => {
                Answer::Stall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n".to_vec())
            }
            false => reply(200, EMPTY_LIST),
        })
    }

    fn look(clock: Clock, watch: bool) -> LookSettings {
        LookSettings { clock, seed: 1, watch, poll_interval_ms: 300_000 }
    }

    #[test]
    fn blocked_reads_end_with_the_stop() {
        let server = quiet_server();
        let pods = Pods::new(plain_client(server.address), "ns", selection());
        let (sender, receiver) = inbox();
        let mark = Arc::new(SharedMark::default());
        let clock = Clock::start();
        let hold = Hold { application: None, ids: IdKeeper::Nobody };
        let threads = Threads::start(&pods, look(clock, true), &sender, &mark, hold, None).unwrap();
        let first = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(first, Message::Input(Input::List(_))), "{first:?}");
        while !server.wait().line().contains("watch=1") {}
        let began = Instant::now();
        assert_eq!(threads.stop(LeaseRelease::Keep), Vec::<&str>::new(), "nobody is left behind");
        assert!(began.elapsed() < LOOKERS_TIMEOUT, "{:?}", began.elapsed());
    }

    #[test]
    fn ids_are_reserved_on_the_drivers_pod_until_it_takes_them() {
        let pod = r#"{"metadata":{"name":"driver","uid":"u-1"}}"#;
        let server = TestServer::start(None, move |_| reply(200, pod));
        let owner = OwnerRef {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: "driver".to_owned(),
            uid: "u-1".to_owned(),
        };
        let (sender, receiver) = bounded(4);
        let pod = DriverPod::new(plain_client(server.address), "ns", &owner);
        keep_on_pod(pod, ExecutorId(1_000), sender);
        let told = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        let want = ExecutorId(1_000);
        assert!(
            matches!(told, Message::Input(Input::IdsReserved { up_to }) if up_to == want),
            "{told:?}"
        );
    }
}
