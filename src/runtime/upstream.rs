//! Owns the threads that face the server beside the writers: the watch, the poll, the keeper of the
//! Lease, and where ids are kept without one. Starts them, asks them, ends them in order.

use std::io;
use std::sync::Arc;
use std::thread::Builder;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use log::{info, warn};

use crate::core::ids::ExecutorId;
use crate::core::input::{Input, ListSource};
use crate::core::lease::{Identity, LeaseUpdate, Release};
use crate::core::refusal::Class;
use crate::core::rng::Rng;
use crate::kube::api::{Leases, Pods};
use crate::kube::owner::DriverPod;
use crate::runtime::clock::Clock;
use crate::runtime::engine::{SharedMark, Upstream};
use crate::runtime::inbox::Message;
use crate::runtime::lease::{LeaseCommand, LeaseKeeper, keep};
use crate::runtime::poller::{Schedule, poll};
use crate::runtime::signals::{Signal, Signals};
use crate::runtime::watcher::{Control, Lister, watch};
use crate::runtime::worker::Worker;
use crate::wire::build::Owner;
use crate::wire::labels::Selection;

/// Commands to the Lease's keeper that wait at a time: reservations and the stop.
const LEASE_COMMANDS_MAX: usize = 16;
/// How long the Lease is tried to be given back at the end.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where it was hardly taken, and somebody wants the end at once.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the watch and the poll are waited for: a read ends at once, a connection that is being
/// made cannot be interrupted.
const LOOKERS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a keeping of ids that failed is put off.
const KEEP_IDS_AGAIN: Duration = Duration::from_secs(5);
/// Stacks of threads that parse whole lists, bytes.
const STACK_BYTES: usize = 512 << 10;

/// Where the id high water is kept.
#[derive(Debug)]
pub enum IdKeeper {
    /// In an annotation of the driver's pod.
    DriverPod(DriverPod),
    /// In the Lease.
    Lease(LeaseHandle),
    /// Nowhere: a restart goes on at the next multiple of 1,000.
    Nobody,
}

impl IdKeeper {
    /// Gives the instance back, where it is held.
    pub fn release(self, release: Release) {
        if let Self::Lease(lease) = self
            && !lease.stop(release, RELEASE_TIMEOUT)
        {
            warn!("the lease could not be given back: the API server does not answer");
        }
    }
}

/// What the rest of the program holds of the Lease's keeper.
#[derive(Debug)]
pub struct LeaseHandle {
    commands: Sender<LeaseCommand>,
    keeper: Worker,
}

impl LeaseHandle {
    /// Starts the keeper on a thread of its own. It asks for a first block of ids along the way,
    /// so that the first executor waits for no request more.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(
        lease: LeaseSettings,
        inbox: Sender<Message>,
        clock: Clock,
        rng: Rng,
    ) -> io::Result<Self> {
        let (commands, orders) = bounded(LEASE_COMMANDS_MAX);
        let keeper = LeaseKeeper {
            leases: lease.leases,
            namespace: lease.namespace,
            selection: lease.selection,
            owner: lease.owner,
            identity: lease.identity,
            inbox,
            commands: orders,
            clock,
            rng,
        };
        commands.try_send(LeaseCommand::Reserve(ExecutorId(1))).map_err(io::Error::other)?;
        let keeper = Worker::start("lease", STACK_BYTES, move || keep(&keeper))?;
        Ok(Self { commands, keeper })
    }

    fn reserve(&self, up_to: ExecutorId) {
        // The last place is the stop's, which must never wait.
        let has_room = self.commands.len() + 1 < LEASE_COMMANDS_MAX;
        if !has_room || self.commands.try_send(LeaseCommand::Reserve(up_to)).is_err() {
            warn!("the lease's keeper takes no reservation of ids up to {up_to}");
        }
    }

    /// Gives the Lease back where it is held, and waits for that no longer than `timeout`; false
    /// where it may still be held.
    pub fn stop(self, release: Release, timeout: Duration) -> bool {
        // A keeper that has ended already needs no stop.
        let _ = self.commands.try_send(LeaseCommand::Stop { release, timeout });
        self.keeper.join_by(Instant::now() + timeout)
    }
}

/// Whose Lease it is, and where it lies.
#[derive(Debug)]
pub struct LeaseSettings {
    pub leases: Leases,
    pub namespace: String,
    pub selection: Selection,
    pub owner: Option<Owner>,
    pub identity: Identity,
}

/// What came of the Lease at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is ours, and ids up to here may have been given before.
    Held { id_high_water: u64 },
    /// Somebody asked for the end meanwhile.
    Interrupted,
    /// Another live posse holds the instance.
    HeldBy { holder: String },
    /// Our rights do not suffice for a Lease.
    NoRights { message: String },
    /// The server refuses us, or the namespace is not there: waiting does not help.
    Refused { message: String },
    /// The server could not be asked for so long.
    TimedOut { message: String },
}

/// Waits for the Lease to be ours, or not; `timeout` is for the server to answer in. Nothing else
/// arrives in the inbox before.
#[must_use]
pub fn await_lease(
    inbox: &Receiver<Message>,
    signals: &Signals,
    clock: Clock,
    timeout: Duration,
) -> Acquired {
    let mut deadline = Instant::now() + timeout;
    let mut last = "no answer".to_owned();
    let mut n_not_found = 0;
    loop {
        let message = select! {
            recv(inbox) -> message => message,
            recv(signals.wake()) -> _ => {
                // No driver is there yet whom a hang-up could concern.
                if signals.take().any(Signal::is_stop_without_driver) {
                    return Acquired::Interrupted;
                }
                continue;
            }
            default(deadline.saturating_duration_since(Instant::now())) => break,
        };
        let Ok(message) = message else { break };
        match message {
            Message::Lease(LeaseUpdate::Held { id_high_water }) => {
                return Acquired::Held { id_high_water: id_high_water.map_or(0, |id| id.0) };
            }
            Message::Lease(LeaseUpdate::HeldBy { holder }) => return Acquired::HeldBy { holder },
            Message::Lease(LeaseUpdate::NoRights { message }) => {
                return Acquired::NoRights { message };
            }
            Message::Lease(LeaseUpdate::Trouble { refusal }) => {
                n_not_found += u32::from(refusal.class == Class::NotFound);
                // A lease that is gone is made anew; where that finds nothing, the place is missing.
                let remedy = if refusal.class == Class::Unauthorized {
                    Some("renew the token or certificate we come with")
                } else if n_not_found > 1 {
                    Some("create the namespace, or choose another with --namespace")
                } else {
                    None
                };
                if let Some(remedy) = remedy {
                    return Acquired::Refused { message: format!("{refusal}; {remedy}") };
                }
                if last != refusal.to_string() {
                    last = refusal.to_string();
                    info!("no lease yet, tried for {} s: {last}", timeout.as_secs());
                }
            }
            Message::Lease(LeaseUpdate::Waiting { holder, until }) => {
                let wait = Duration::from_millis(until.since(clock.now()));
                info!(
                    "the instance is held by {holder}, which seems to be gone: it is taken over in \
                     {} s if nothing moves",
                    wait.as_secs()
                );
                deadline = Instant::now() + wait + timeout;
            }
            Message::Lease(LeaseUpdate::IdsReserved { .. } | LeaseUpdate::Lost { .. })
            | Message::Command { .. }
            | Message::Input(_)
            | Message::ListRefused(_) => {}
        }
    }
    Acquired::TimedOut { message: last }
}

/// How the server is looked at, and by what clock.
#[derive(Clone, Copy, Debug)]
pub struct LookSettings {
    pub clock: Clock,
    pub seed: u64,
    pub watch: bool,
    /// 0: no poll.
    pub poll_interval_ms: u64,
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
    ids: IdKeeper,
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
        ids: IdKeeper,
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
        let mut threads = Self { watch: None, poll: None, ids, inbox };
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
        Ok(threads)
    }

    /// Ends them: first who looks, then who holds. None is waited for longer than its time; the
    /// names of those that are left behind are given.
    pub fn stop(self, release: Release) -> Vec<&'static str> {
        let lookers: Vec<Looker> = self.watch.into_iter().chain(self.poll).collect();
        for looker in &lookers {
            looker.control.stop();
        }
        let deadline = Instant::now() + LOOKERS_TIMEOUT;
        let left = lookers
            .into_iter()
            .filter_map(|looker| {
                let name = looker.thread.name();
                (!looker.thread.join_by(deadline)).then_some(name)
            })
            .collect();
        self.ids.release(release);
        left
    }
}

impl Upstream for Threads<'_> {
    fn poll(&self) {
        if let Some(poll) = &self.poll {
            poll.control.ask(ListSource::Poll);
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
        match &self.ids {
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
            match pod.keep_id_high_water(up_to) {
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
    use crate::core::rng::Rng;
    use crate::kube::testing::{Answer, TestServer, plain_client};
    use crate::runtime::inbox::inbox;

    const JSON: &str = "Content-Type: application/json\r\n";
    const EMPTY_LIST: &str = r#"{"metadata":{"resourceVersion":"7"},"items":[]}"#;

    fn selection() -> Selection {
        Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() }
    }

    fn reply(status: u16, body: &str) -> Answer {
        Answer::Reply(status, JSON, body.as_bytes().to_vec())
    }

    fn refused(code: u16, reason: &str, message: &str) -> Answer {
        let status = serde_json::json!({
            "kind": "Status", "code": code, "reason": reason, "message": message,
        });
        reply(code, &status.to_string())
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
        let threads =
            Threads::start(&pods, look(clock, true), &sender, &mark, IdKeeper::Nobody).unwrap();
        let first = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(first, Message::Input(Input::List(_))), "{first:?}");
        while !server.wait().line().contains("watch=1") {}
        let began = Instant::now();
        assert_eq!(threads.stop(Release::Keep), Vec::<&str>::new(), "nobody is left behind");
        assert!(began.elapsed() < LOOKERS_TIMEOUT, "{:?}", began.elapsed());
    }

    #[test]
    fn a_server_that_never_answers_does_not_hold_up_the_end() {
        let server = TestServer::start(None, |_| Answer::Stall(Vec::new()));
        let lease = LeaseSettings {
            leases: Leases::new(plain_client(server.address), "ns"),
            namespace: "ns".to_owned(),
            selection: selection(),
            owner: None,
            identity: crate::runtime::lease::identity(None, 1),
        };
        let (sender, _receiver) = inbox();
        let clock = Clock::start();
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        server.wait();
        for id in 1..100 {
            handle.reserve(ExecutorId(id));
        }
        let began = Instant::now();
        assert!(!handle.stop(Release::Delete, Duration::from_millis(50)));
        // The request itself would take 10 s to be given up.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    fn acquire(script: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Acquired {
        let server = TestServer::start(None, move |seen| script(seen.line()));
        let lease = LeaseSettings {
            leases: Leases::new(plain_client(server.address), "ns"),
            namespace: "ns".to_owned(),
            selection: selection(),
            owner: None,
            identity: crate::runtime::lease::identity(None, 1),
        };
        let (sender, receiver) = inbox();
        let (signals, clock) = (Signals::start().unwrap(), Clock::start());
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        let acquired = await_lease(&receiver, &signals, clock, Duration::from_millis(2_500));
        assert!(handle.stop(Release::Keep, Duration::from_secs(10)), "nothing is held or asked");
        acquired
    }

    #[test]
    fn what_the_lease_comes_to_at_the_start() {
        let absent = || refused(404, "NotFound", "leases \"w\" not found");
        let got = acquire(move |_| refused(403, "Forbidden", "leases is forbidden: User"));
        assert!(matches!(got, Acquired::NoRights { .. }), "{got:?}");
        let got = acquire(move |_| refused(401, "Unauthorized", "Unauthorized"));
        assert!(
            matches!(&got, Acquired::Refused { message } if message.contains("renew the token")),
            "{got:?}"
        );
        let got = acquire(move |line| match line.starts_with("GET") {
            true => absent(),
            false => refused(404, "NotFound", "namespaces \"ns\" not found"),
        });
        assert!(
            matches!(&got, Acquired::Refused { message } if message.contains("--namespace")),
            "{got:?}"
        );
        let got = acquire(move |_| refused(503, "ServiceUnavailable", "later"));
        assert_eq!(got, Acquired::TimedOut { message: "later (503)".to_owned() });
    }

    #[test]
    fn ids_are_reserved_on_the_drivers_pod_until_it_takes_them() {
        let pod = r#"{"metadata":{"name":"driver","uid":"u-1"}}"#;
        let server = TestServer::start(None, move |_| reply(200, pod));
        let owner = Owner {
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
