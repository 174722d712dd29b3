//! Owns the threads that face the server beside the writers: the watch, the poll, the keeper of the
//! Lease, and where ids are kept without one. Starts them, asks them, ends them in order.

use std::io;
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use log::{debug, info, warn};

use crate::core::ids::ExecutorId;
use crate::core::input::{Input, ListSource};
use crate::core::lease::{Identity, LeaseUpdate, Release};
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
use crate::wire::build::Owner;
use crate::wire::labels::Selection;

/// Commands to the Lease's keeper that wait at a time: reservations and the stop.
const LEASE_COMMANDS_MAX: usize = 16;
/// How long the Lease is tried to be given back at the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
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
        if let Self::Lease(lease) = self {
            lease.stop(release);
        }
    }
}

/// What the rest of the program holds of the Lease's keeper.
#[derive(Debug)]
pub struct LeaseHandle {
    commands: Sender<LeaseCommand>,
}

impl LeaseHandle {
    /// Starts the keeper on a thread of `scope`. It asks for a first block of ids along the way,
    /// so that the first executor waits for no request more.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
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
        Builder::new()
            .name("lease".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, move || keep(&keeper))?;
        Ok(Self { commands })
    }

    fn reserve(&self, up_to: ExecutorId) {
        if self.commands.try_send(LeaseCommand::Reserve(up_to)).is_err() {
            debug!("the lease's keeper has no room for a reservation now");
        }
    }

    fn stop(self, release: Release) {
        let stop = LeaseCommand::Stop { release, timeout: RELEASE_TIMEOUT };
        // A keeper that has ended already needs no stop.
        let _ = self.commands.send(stop);
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
    /// Our rights do not suffice.
    NoRights { message: String },
    /// The server could not be asked for so long.
    TimedOut { message: String },
}

/// Waits for the Lease to be ours, or not. Nothing else arrives in the inbox before.
#[must_use]
pub fn await_lease(inbox: &Receiver<Message>, signals: &Signals, timeout: Duration) -> Acquired {
    let deadline = Instant::now() + timeout;
    let mut last = "no answer".to_owned();
    loop {
        let message = select! {
            recv(inbox) -> message => message,
            recv(signals.wake()) -> _ => {
                if signals.take().any(Signal::is_stop) {
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
                if last != refusal.to_string() {
                    last = refusal.to_string();
                    info!("the API server does not answer yet, trying on: {last}");
                }
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

/// The threads, started.
#[derive(Debug)]
pub struct Threads<'a> {
    watch: Option<Control>,
    poll: Option<Control>,
    ids: IdKeeper,
    inbox: &'a Sender<Message>,
}

impl<'a> Threads<'a> {
    /// Starts the watch and the poll.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start<'scope>(
        scope: &'scope Scope<'scope, '_>,
        pods: &Pods,
        look: LookSettings,
        inbox: &'a Sender<Message>,
        mark: &'scope SharedMark,
        ids: IdKeeper,
    ) -> io::Result<Self> {
        let mut rng = Rng::new(look.seed);
        let lister = |control: &Control, rng: &mut Rng| Lister {
            pods: pods.clone(),
            inbox: inbox.clone(),
            mark: move || mark.read(),
            clock: look.clock,
            rng: Rng::new(rng.next_u64()),
            control: control.clone(),
        };
        let spawn = |name: &str, body: Box<dyn FnOnce() + Send + 'scope>| {
            let builder = Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, body).map(drop)
        };
        let watch_control = look.watch.then(Control::new);
        if let Some(control) = &watch_control {
            let lister = lister(control, &mut rng);
            spawn("watch", Box::new(move || watch(&lister)))?;
        }
        let has_poll = look.poll_interval_ms > 0 || !look.watch;
        let poll_control = has_poll.then(Control::new);
        if let Some(control) = &poll_control {
            let lister = lister(control, &mut rng);
            let interval = Duration::from_millis(look.poll_interval_ms);
            let schedule = Schedule { interval: Some(interval), at_once: !look.watch };
            spawn("poll", Box::new(move || poll(&lister, schedule)))?;
        }
        Ok(Self { watch: watch_control, poll: poll_control, ids, inbox })
    }

    /// Ends them: first who looks, then who holds. The caller's scope joins them.
    pub fn stop(self, release: Release) {
        for control in [&self.watch, &self.poll].into_iter().flatten() {
            control.stop();
        }
        self.ids.release(release);
    }
}

impl Upstream for Threads<'_> {
    fn relist(&self) {
        match (&self.watch, &self.poll) {
            (Some(watch), _) => watch.relist(),
            (None, Some(poll)) => poll.ask(ListSource::Poll),
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
