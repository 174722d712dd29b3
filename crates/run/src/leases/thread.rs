//! The thread that acquires, renews and releases one Lease. `core` decides when to do which.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};

use crate::inbox::Message;
use crate::leases::holder;
use crate::leases::write_limit::LeaseWriteLimit;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::machines::lease::{
    HolderState, HolderWait, LeaseIdentity, LeaseMachine, LeaseRelease, LeaseScope, LeaseStep,
    LeaseTerms,
};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::lease::Record;
use posse_core::model::refusal::Refusal;
use posse_core::policy::orphans::OwnerState;
use posse_kube::api::leases::Leases;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::http::Http;
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::lease::{LeaseObject, name_of};
use posse_wire::pod::build::OwnerRef;

/// If the inbox was full, an update is sent again after this.
const RESEND_INTERVAL: Duration = Duration::from_millis(100);
/// How long the release is tried if the commands' channel was closed without a stop.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// A command to the lease thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCommand {
    /// Reserve the ids up to this one.
    Reserve(ExecutorId),
    /// LeaseRelease the Lease, try for at most `timeout`, and end.
    Stop { release: LeaseRelease, timeout: Duration },
}

/// Which Lease, and its holder.
#[derive(Debug)]
pub struct LeaseSettings {
    pub http: Http,
    pub scope: LeaseScope,
    pub terms: LeaseTerms,
    /// Whether the start waits for another live holder to release the Lease, instead of failing.
    pub wait: HolderWait,
    /// A pod that is known to act no more, whatever its Lease says.
    pub ended_pod: Option<Uid>,
    pub namespace: String,
    pub selection: Selection,
    /// The Lease's owner references: the holder's pod, if there is one, and what the Lease lasts as long as.
    pub owners: Vec<OwnerRef>,
    /// Labels and annotations beside posse's own.
    pub common: Arc<CommonMetadata>,
    pub identity: LeaseIdentity,
}

/// The state of a lease thread.
#[derive(Debug)]
pub struct LeaseThread {
    pub lease: LeaseSettings,
    pub leases: Leases,
    /// Looks up the pods of other holders.
    pub pods: AppExecutors,
    /// Receives the updates.
    pub inbox: Sender<Message>,
    /// When it is closed, the thread stops and keeps the Lease object.
    pub commands: Receiver<LeaseCommand>,
    /// Follows the Lease's renewals.
    pub write_limit: LeaseWriteLimit,
    pub clock: Clock,
    pub rng: Rng,
}

impl LeaseThread {
    /// Runs until the Lease is released or cannot be acquired.
    pub fn run(&self) {
        let mut machine = self.machine();
        loop {
            let all_sent = self.send_updates(&mut machine);
            let wait = match machine.next(self.clock.now(), wall_ms(self.clock)) {
                LeaseStep::Done if all_sent => break,
                LeaseStep::Done => RESEND_INTERVAL,
                LeaseStep::Wait { until } => {
                    let wait = Duration::from_millis(until.since(self.clock.now()));
                    if all_sent { wait } else { wait.min(RESEND_INTERVAL) }
                }
                step @ (LeaseStep::Delete(_) | LeaseStep::Read | LeaseStep::Write(_)) => {
                    self.perform(&mut machine, step);
                    // Before the update is sent: the engine writes at once.
                    if let Some(until) = machine.writes_until() {
                        self.write_limit.set(until);
                    }
                    Duration::ZERO
                }
            };
            self.take_command(&mut machine, wait);
        }
        log::debug!("the lease thread ends");
    }

    fn machine(&self) -> LeaseMachine {
        let machine = LeaseMachine::new(&self.lease.identity, self.rng.clone());
        let machine = machine.on(self.lease.terms).waiting(self.lease.wait);
        match self.lease.scope {
            LeaseScope::Application => machine.yielding(),
            LeaseScope::Instance => machine,
        }
    }

    fn perform(&self, machine: &mut LeaseMachine, step: LeaseStep) {
        let name = name_of(self.lease.scope, &self.lease.selection);
        let sent_at = self.clock.now();
        match step {
            LeaseStep::Read => {
                let answer = self.leases.get(&name);
                log::debug!("read lease {name}: {}", describe(&answer));
                let answer = answer.map(|record| {
                    record.map(|record| {
                        let is_asked = machine.doubts(&record, self.clock.now());
                        let fate = if is_asked { self.fate(&record) } else { HolderState::Unknown };
                        (record, fate)
                    })
                });
                machine.on_read(answer, self.clock.now(), wall_ms(self.clock));
            }
            LeaseStep::Write(record) => {
                let answer = self.write(&name, &record);
                log::debug!("write lease {name}: {}", describe(&answer));
                machine.on_written(answer, sent_at, self.clock.now());
            }
            LeaseStep::Delete(record) => {
                let answer = self.leases.delete(&name, &record);
                log::debug!("delete lease {name}: {}", describe(&answer));
                machine.on_deleted(answer, self.clock.now());
            }
            LeaseStep::Done | LeaseStep::Wait { .. } => {}
        }
    }

    /// Whether the holder has ended, as a process of this host or as a pod. The pod can be looked up
    /// only if the Lease names it as its owner.
    fn fate(&self, record: &Record) -> HolderState {
        if holder::fate(&record.holder) == HolderState::Gone {
            return HolderState::Gone;
        }
        let uid = LeaseIdentity::pod_uid(&record.holder);
        if self.lease.ended_pod.as_ref().is_some_and(|ended| ended.to_string() == uid) {
            return HolderState::Gone;
        }
        let named = record.owner.as_ref().filter(|pod| pod.uid.to_string() == uid);
        let is_ours = uid == LeaseIdentity::pod_uid(&self.lease.identity.to_string());
        let Some(pod) = named.filter(|_| !is_ours) else { return HolderState::Unknown };
        let owner = self.pods.owner(pod);
        log::debug!("the lease's holder is pod {}: {owner}", pod.name);
        match owner {
            _ if owner.is_over() => HolderState::Gone,
            OwnerState::Terminating => HolderState::Ending,
            OwnerState::Absent
            | OwnerState::Found(_)
            | OwnerState::None
            | OwnerState::Replaced
            | OwnerState::Unknown(_) => HolderState::Unknown,
        }
    }

    fn write(&self, name: &str, record: &Record) -> Result<Record, Refusal> {
        let object = LeaseObject {
            scope: self.lease.scope,
            name,
            namespace: &self.lease.namespace,
            selection: &self.lease.selection,
            owners: &self.lease.owners,
            common: &self.lease.common,
            record,
        };
        if record.version_text.is_empty() {
            self.leases.create(&object)
        } else {
            self.leases.update(&object)
        }
    }

    /// Sends the machine's updates to the inbox. False if the inbox has no room for all of them.
    fn send_updates(&self, machine: &mut LeaseMachine) -> bool {
        while let Some(update) = machine.update() {
            match self.inbox.try_send(Message::Lease(self.lease.scope, update.clone())) {
                // If the inbox is closed, nobody needs the update.
                Ok(()) | Err(TrySendError::Disconnected(_)) => machine.pop_update(),
                Err(TrySendError::Full(_)) => return false,
            }
        }
        true
    }

    fn take_command(&self, machine: &mut LeaseMachine, wait: Duration) {
        let stop = |machine: &mut LeaseMachine, release, timeout: Duration| {
            let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            machine.stop(release, self.clock.now().after(timeout_ms));
        };
        match self.commands.recv_timeout(wait) {
            Ok(LeaseCommand::Reserve(up_to)) => machine.reserve(up_to),
            Ok(LeaseCommand::Stop { release, timeout }) => stop(machine, release, timeout),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if machine.is_stopping() => {
                // A closed channel does not block, so the machine's wait needs a timer.
                crossbeam_channel::after(wait).recv().expect("an after channel fires");
            }
            Err(RecvTimeoutError::Disconnected) => {
                stop(machine, LeaseRelease::Keep, RELEASE_TIMEOUT)
            }
        }
    }
}

fn wall_ms(clock: Clock) -> i64 {
    let wall = clock.wall(clock.now()).duration_since(UNIX_EPOCH);
    wall.ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

fn describe<T>(answer: &Result<T, Refusal>) -> String {
    match answer {
        Ok(_) => "done".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::leases::testing::settings;
    use posse_core::machines::lease::LeaseUpdate;
    use posse_testing::{Answer, PATIENCE, TestServer, plain_client};

    /// A server that stores one Lease.
    fn server() -> TestServer {
        let stored = Mutex::new(None::<serde_json::Value>);
        TestServer::start(None, move |asked| {
            let mut stored = stored.lock().unwrap();
            let status = |code: u16, reason: &str| {
                Answer::json(
                    code,
                    format!(r#"{{"kind":"Status","reason":"{reason}","message":"{reason}"}}"#),
                )
            };
            match (asked.line().split(' ').next(), stored.as_mut()) {
                (Some("GET"), Some(lease)) => Answer::json(200, lease.to_string()),
                (Some("GET" | "PUT" | "DELETE"), None) => status(404, "NotFound"),
                (Some("POST"), Some(_)) => status(409, "AlreadyExists"),
                (Some("DELETE"), Some(_)) => {
                    *stored = None;
                    status(200, "")
                }
                (Some("POST" | "PUT"), before) => {
                    let mut lease: serde_json::Value = serde_json::from_slice(&asked.body).unwrap();
                    let version = before
                        .map_or_else(|| "0".into(), |l| l["metadata"]["resourceVersion"].clone());
                    let asked = lease["metadata"].get("resourceVersion");
                    if asked.is_some_and(|asked| *asked != version) {
                        return status(409, "Conflict");
                    }
                    let next = version.as_str().unwrap().parse::<u32>().unwrap() + 1;
                    lease["metadata"]["resourceVersion"] = next.to_string().into();
                    lease["metadata"]["uid"] = "lease-uid".into();
                    *stored = Some(lease);
                    Answer::json(200, stored.as_ref().unwrap().to_string())
                }
                other => panic!("{other:?}"),
            }
        })
    }

    /// Runs a lease thread; the test gets its updates and sends it commands.
    fn check(
        server: &TestServer,
        identity: LeaseIdentity,
        test: impl FnOnce(&Receiver<Message>, &Sender<LeaseCommand>),
    ) {
        let (inbox, updates) = bounded(8);
        let (send, commands) = bounded(8);
        let lease_thread = LeaseThread {
            lease: LeaseSettings { identity, ..settings(server) },
            leases: Leases::new(plain_client(server.address), "n"),
            pods: AppExecutors::new(plain_client(server.address), "n", Some("a")),
            inbox,
            commands,
            write_limit: LeaseWriteLimit::default(),
            clock: Clock::start(),
            rng: Rng::new(1),
        };
        thread::scope(|scope| {
            let thread = scope.spawn(|| lease_thread.run());
            test(&updates, &send);
            drop(send);
            thread.join().unwrap();
        });
    }

    #[test]
    fn a_lease_is_held_released_and_acquired_again() {
        let server = server();
        let next = |updates: &Receiver<Message>| {
            let message = updates.recv_timeout(PATIENCE).unwrap();
            let Message::Lease(_, update) = message else { panic!("{message:?}") };
            update
        };
        let pod = |uid: &str| LeaseIdentity::Pod { uid: uid.to_owned() };
        check(&server, pod("one"), |updates, commands| {
            assert_eq!(next(updates), LeaseUpdate::Held { id_high_water: None, from: None });
            commands.send(LeaseCommand::Reserve(ExecutorId(17))).unwrap();
            let up_to = ExecutorId(1_000);
            assert_eq!(next(updates), LeaseUpdate::IdsReserved { up_to });
            // A second holder is refused while the first holds the Lease.
            check(&server, pod("two"), |updates, _| {
                assert_eq!(next(updates), LeaseUpdate::HeldBy { holder: "one".to_owned() });
            });
            let (release, timeout) = (LeaseRelease::Keep, PATIENCE);
            commands.send(LeaseCommand::Stop { release, timeout }).unwrap();
        });
        check(&server, pod("two"), |updates, commands| {
            let id_high_water = Some(ExecutorId(1_000));
            assert_eq!(next(updates), LeaseUpdate::Held { id_high_water, from: None });
            let (release, timeout) = (LeaseRelease::Delete, PATIENCE);
            commands.send(LeaseCommand::Stop { release, timeout }).unwrap();
        });
        let last = server.seen().pop().unwrap();
        assert!(last.line().starts_with("DELETE "), "{}", last.line());
    }
}
