//! Owns what a run holds on the server: its instance, the application where it wants that for
//! itself, and where ids are kept. Takes them, and gives them back.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, select};
use log::{info, warn};

use crate::clock::Clock;
use crate::core::machines::lease::{LeaseIdentity, LeaseRelease, LeaseScope, LeaseUpdate};
use crate::core::model::ids::ExecutorId;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::rng::Rng;
use crate::kube::api::driver_pod::DriverPod;
use crate::kube::api::leases::Leases;
use crate::kube::api::orphans::AppExecutors;
use crate::kube::http::Http;
use crate::runtime::inbox::Message;
use crate::runtime::lease::{LeaseCommand, LeaseKeeper, keep};
use crate::runtime::signals::{Signal, Signals};
use crate::runtime::worker::Worker;
use crate::wire::build::OwnerRef;
use crate::wire::labels::Selection;

/// Commands to the Lease's keeper that wait at a time: reservations and the stop.
const LEASE_COMMANDS_MAX: usize = 16;
/// How long the Lease is tried to be given back at the end.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same where it was hardly taken, and somebody wants the end at once.
pub const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);
/// Stacks of the keepers, bytes.
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

/// What a run holds: its instance, and the application where it wants that for itself alone.
#[derive(Debug)]
pub struct Hold {
    pub application: Option<LeaseHandle>,
    pub ids: IdKeeper,
}

impl Hold {
    /// Gives back what is held.
    pub fn release(self, release: LeaseRelease) {
        let instance = match self.ids {
            IdKeeper::Lease(lease) => Some(lease),
            IdKeeper::DriverPod(_) | IdKeeper::Nobody => None,
        };
        let leases: Vec<LeaseHandle> = instance.into_iter().chain(self.application).collect();
        if !LeaseHandle::stop_all(leases, release, RELEASE_TIMEOUT) {
            warn!("a lease could not be given back: the API server does not answer");
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
    /// Starts the keeper on a thread of its own. An instance's asks for a first block of ids along
    /// the way, so that the first executor waits for no request more.
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
            leases: Leases::new(lease.http.clone(), lease.namespace.as_str()),
            pods: AppExecutors::new(lease.http, &lease.namespace, Some(&lease.selection.app)),
            scope: lease.scope,
            is_patient: lease.is_patient,
            namespace: lease.namespace,
            selection: lease.selection,
            owner: lease.owner,
            identity: lease.identity,
            inbox,
            commands: orders,
            clock,
            rng,
        };
        if lease.scope == LeaseScope::Instance {
            commands.try_send(LeaseCommand::Reserve(ExecutorId(1))).map_err(io::Error::other)?;
        }
        let keeper = Worker::start("lease", STACK_BYTES, move || keep(&keeper))?;
        Ok(Self { commands, keeper })
    }

    /// Asks for the ids up to this one.
    pub fn reserve(&self, up_to: ExecutorId) {
        // The last place is the stop's, which must never wait.
        let has_room = self.commands.len() + 1 < LEASE_COMMANDS_MAX;
        if !has_room || self.commands.try_send(LeaseCommand::Reserve(up_to)).is_err() {
            warn!("the lease's keeper takes no reservation of ids up to {up_to}");
        }
    }

    /// Gives the Lease back where it is held, and waits for that no longer than `timeout`; false
    /// where it may still be held.
    pub fn stop(self, release: LeaseRelease, timeout: Duration) -> bool {
        Self::stop_all(vec![self], release, timeout)
    }

    /// The same for several at once.
    fn stop_all(all: Vec<Self>, release: LeaseRelease, timeout: Duration) -> bool {
        for lease in &all {
            // A keeper that has ended already needs no stop.
            let _ = lease.commands.try_send(LeaseCommand::Stop { release, timeout });
        }
        let by = Instant::now() + timeout;
        let ended = all.into_iter().map(|lease| lease.keeper.join_by(by));
        ended.fold(true, |all, one| all & one)
    }
}

/// Whose Lease it is, and where it lies.
#[derive(Debug)]
pub struct LeaseSettings {
    pub http: Http,
    pub scope: LeaseScope,
    /// One that is renewed is waited for at the start.
    pub is_patient: bool,
    pub namespace: String,
    pub selection: Selection,
    pub owner: Option<OwnerRef>,
    pub identity: LeaseIdentity,
}

/// What came of the Lease at the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquired {
    /// It is ours, and ids up to here may have been given before.
    Held { id_high_water: u64 },
    /// Somebody asked for the end meanwhile; who held it, where it was waited for.
    Interrupted { holder: Option<String> },
    /// Another live posse holds the instance.
    HeldBy { holder: String },
    /// Our rights do not suffice for a Lease.
    NoRights { message: String },
    /// The server refuses us, or the namespace is not there: waiting does not help.
    Refused { message: String },
    /// The server could not be asked for so long.
    TimedOut { message: String },
}

/// Waits for the Lease of `scope` to be ours, or not; `timeout` is for the server to answer in.
/// Nothing but Leases arrives in the inbox before.
#[must_use]
pub fn await_lease(
    inbox: &Receiver<Message>,
    signals: &Signals,
    clock: Clock,
    timeout: Duration,
    scope: LeaseScope,
) -> Acquired {
    let mut deadline = Instant::now() + timeout;
    let mut last = "no answer".to_owned();
    let mut n_not_found = 0;
    let mut waited_for: Option<String> = None;
    loop {
        let message = select! {
            recv(inbox) -> message => message,
            recv(signals.wake()) -> _ => {
                // No driver is there yet whom a hang-up could concern.
                if signals.take().any(Signal::is_stop_without_driver) {
                    return Acquired::Interrupted { holder: waited_for };
                }
                continue;
            }
            default(deadline.saturating_duration_since(Instant::now())) => break,
        };
        let Ok(message) = message else { break };
        let update = match message {
            Message::Lease(which, update) if which == scope => update,
            // The application went to another while we were waiting for the instance.
            Message::Lease(_, LeaseUpdate::Lost { holder }) => {
                let holder = holder.unwrap_or_else(|| "nobody we know of".to_owned());
                return Acquired::HeldBy { holder };
            }
            Message::Lease(..)
            | Message::Command { .. }
            | Message::Input(_)
            | Message::ListRefused(_) => continue,
        };
        match update {
            LeaseUpdate::Held { id_high_water } => {
                return Acquired::Held { id_high_water: id_high_water.map_or(0, |id| id.0) };
            }
            LeaseUpdate::HeldBy { holder } => return Acquired::HeldBy { holder },
            LeaseUpdate::Forbidden { message } => {
                return Acquired::NoRights { message };
            }
            LeaseUpdate::Retrying { refusal } => {
                n_not_found += u32::from(refusal.class == RefusalClass::NotFound);
                if let Some(remedy) = remedy(&refusal, n_not_found) {
                    return Acquired::Refused { message: format!("{refusal}; {remedy}") };
                }
                if last != refusal.to_string() {
                    last = refusal.to_string();
                    info!("no lease yet, tried for {} s: {last}", timeout.as_secs());
                }
            }
            LeaseUpdate::Waiting { holder, until } => {
                let wait = Duration::from_millis(until.since(clock.now()));
                if waited_for.as_ref() != Some(&holder) {
                    info!(
                        "the {} is held by {holder}: it is taken over when that one gives it up, or \
                         in {} s if nothing moves",
                        what(scope),
                        wait.as_secs()
                    );
                }
                waited_for = Some(holder);
                deadline = Instant::now() + wait + timeout;
            }
            LeaseUpdate::IdsReserved { .. } | LeaseUpdate::Lost { .. } => {}
        }
    }
    Acquired::TimedOut { message: last }
}

/// What a person has to do where waiting does not help.
fn remedy(refusal: &Refusal, n_not_found: u32) -> Option<&'static str> {
    if refusal.class == RefusalClass::Unauthorized {
        return Some("renew the token or certificate we come with");
    }
    // A lease that is gone is made anew; where that finds nothing, the place is missing.
    (n_not_found > 1).then_some("create the namespace, or choose another with --namespace")
}

/// What a Lease guards, in a word.
#[must_use]
pub fn what(scope: LeaseScope) -> &'static str {
    match scope {
        LeaseScope::Application => "application",
        LeaseScope::Instance => "instance",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::testing::{Answer, TestServer, plain_client};
    use crate::runtime::inbox::inbox;

    fn selection() -> Selection {
        Selection { app: "w".to_owned(), instance: "a1b2c".to_owned() }
    }

    fn refused(code: u16, reason: &str, message: &str) -> Answer {
        let status = serde_json::json!({
            "kind": "Status", "code": code, "reason": reason, "message": message,
        });
        let json = "Content-Type: application/json\r\n";
        Answer::Reply(code, json, status.to_string().into_bytes())
    }

    fn settings(server: &TestServer) -> LeaseSettings {
        LeaseSettings {
            http: plain_client(server.address),
            scope: LeaseScope::Instance,
            is_patient: false,
            namespace: "ns".to_owned(),
            selection: selection(),
            owner: None,
            identity: crate::runtime::lease::identity(None, 1),
        }
    }

    #[test]
    fn a_server_that_never_answers_does_not_hold_up_the_end() {
        let server = TestServer::start(None, |_| Answer::Stall(Vec::new()));
        let lease = settings(&server);
        let (sender, _receiver) = inbox();
        let clock = Clock::start();
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        server.wait();
        for id in 1..100 {
            handle.reserve(ExecutorId(id));
        }
        let began = Instant::now();
        assert!(!handle.stop(LeaseRelease::Delete, Duration::from_millis(50)));
        // The request itself would take 10 s to be given up.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }

    fn acquire(script: impl Fn(&str) -> Answer + Send + Sync + 'static) -> Acquired {
        let server = TestServer::start(None, move |seen| script(seen.line()));
        let lease = settings(&server);
        let (sender, receiver) = inbox();
        let (signals, clock) = (Signals::start().unwrap(), Clock::start());
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        let acquired = await_lease(
            &receiver,
            &signals,
            clock,
            Duration::from_millis(2_500),
            LeaseScope::Instance,
        );
        assert!(
            handle.stop(LeaseRelease::Keep, Duration::from_secs(10)),
            "nothing is held or asked"
        );
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
}
