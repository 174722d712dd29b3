//! Owns the thread that keeps a Lease, and what it knows of this host's processes and of pods.
//! When to do what is `core::lease`'s.

use std::time::{Duration, UNIX_EPOCH};
use std::{fs, io, process};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};

use crate::clock::Clock;
use crate::core::machines::lease::{
    HolderState, LeaseIdentity, LeaseMachine, LeaseRelease, LeaseScope, LeaseStep, LeaseUpdate,
    Record,
};
use crate::core::model::ids::ExecutorId;
use crate::core::model::refusal::Refusal;
use crate::core::model::rng::Rng;
use crate::kube::api::leases::Leases;
use crate::kube::api::orphans::AppExecutors;
use crate::wire::build::OwnerRef;
use crate::wire::labels::Selection;
use crate::wire::lease::{LeaseObject, name_of};

/// How often an update that found no room is tried again.
const ROOM_LOOK: Duration = Duration::from_millis(100);
/// How long the Lease is tried to be given back where nobody said so.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the keeper is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseCommand {
    /// Ids up to here are wanted.
    Reserve(ExecutorId),
    /// The end: give it back, and try for no longer than this.
    Stop { release: LeaseRelease, timeout: Duration },
}

/// What the keeper works with.
#[derive(Debug)]
pub struct LeaseKeeper<M> {
    pub leases: Leases,
    /// Where a holder's pod is looked up.
    pub pods: AppExecutors,
    pub scope: LeaseScope,
    /// One that is renewed is waited for at the start.
    pub is_patient: bool,
    pub namespace: String,
    pub selection: Selection,
    /// What the Lease goes with.
    pub owner: Option<OwnerRef>,
    pub identity: LeaseIdentity,
    /// Takes the updates.
    pub inbox: Sender<M>,
    /// Closed is as good as a stop that keeps.
    pub commands: Receiver<LeaseCommand>,
    pub clock: Clock,
    pub rng: Rng,
}

/// The body of the keeper's thread; returns when the Lease was given back, or cannot be had.
pub fn keep<M: From<(LeaseScope, LeaseUpdate)>>(keeper: &LeaseKeeper<M>) {
    let mut machine = keeper.machine();
    loop {
        let all_told = keeper.tell(&mut machine);
        let wait = match machine.next(keeper.clock.now(), wall_ms(keeper.clock)) {
            LeaseStep::Done if all_told => break,
            LeaseStep::Done => ROOM_LOOK,
            LeaseStep::Wait { until } => {
                let wait = Duration::from_millis(until.since(keeper.clock.now()));
                if all_told { wait } else { wait.min(ROOM_LOOK) }
            }
            step @ (LeaseStep::Delete(_) | LeaseStep::Read | LeaseStep::Write(_)) => {
                keeper.act(&mut machine, step);
                Duration::ZERO
            }
        };
        keeper.take_command(&mut machine, wait);
    }
    log::debug!("the lease's keeper ends");
}

impl<M: From<(LeaseScope, LeaseUpdate)>> LeaseKeeper<M> {
    fn machine(&self) -> LeaseMachine {
        let machine = LeaseMachine::new(&self.identity, self.rng.clone());
        let machine = if self.is_patient { machine.waiting_for_holder() } else { machine };
        match self.scope {
            LeaseScope::Application => machine.yielding(),
            LeaseScope::Instance => machine,
        }
    }

    fn act(&self, machine: &mut LeaseMachine, step: LeaseStep) {
        let name = name_of(self.scope, &self.selection);
        let sent_at = self.clock.now();
        match step {
            LeaseStep::Read => {
                let answer = self.leases.get(&name);
                log::debug!("read the lease {name}: {}", words(&answer));
                let answer = answer.map(|record| {
                    record.map(|record| {
                        let fate = self.fate(&record);
                        (record, fate)
                    })
                });
                machine.on_read(answer, self.clock.now(), wall_ms(self.clock));
            }
            LeaseStep::Write(record) => {
                let answer = self.write(&name, &record);
                log::debug!("wrote the lease {name}: {}", words(&answer));
                machine.on_written(answer, sent_at, self.clock.now());
            }
            LeaseStep::Delete(record) => {
                let answer = self.leases.delete(&name, &record);
                log::debug!("deleted the lease {name}: {}", words(&answer));
                machine.on_deleted(answer, self.clock.now());
            }
            LeaseStep::Done | LeaseStep::Wait { .. } => {}
        }
    }

    /// What is known of the holder: as a process of this host, or by its pod, where the Lease names
    /// that.
    fn fate(&self, record: &Record) -> HolderState {
        if fate(&record.holder) == HolderState::Gone {
            return HolderState::Gone;
        }
        let uid = LeaseIdentity::pod_uid(&record.holder);
        let named = record.owner.as_ref().filter(|pod| pod.uid.to_string() == uid);
        let is_ours = uid == LeaseIdentity::pod_uid(&self.identity.to_string());
        let Some(pod) = named.filter(|_| !is_ours) else { return HolderState::Unknown };
        let owner = self.pods.owner(pod);
        log::debug!("the pod {} that holds the lease: {owner}", pod.name);
        if owner.is_over() { HolderState::Gone } else { HolderState::Unknown }
    }

    fn write(&self, name: &str, record: &Record) -> Result<Record, Refusal> {
        let object = LeaseObject {
            scope: self.scope,
            name,
            namespace: &self.namespace,
            selection: &self.selection,
            owner: self.owner.as_ref(),
            record,
        };
        if record.version_text.is_empty() {
            self.leases.create(&object)
        } else {
            self.leases.update(&object)
        }
    }

    /// Delivers what is to be told; false where there is no room for all of it now.
    fn tell(&self, machine: &mut LeaseMachine) -> bool {
        while let Some(update) = machine.update() {
            match self.inbox.try_send(M::from((self.scope, update.clone()))) {
                // Nobody listens: it is as good as told.
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
                // Nothing can come any more, but the machine may still have to wait.
                crossbeam_channel::after(wait).recv().expect("an after channel fires");
            }
            Err(RecvTimeoutError::Disconnected) => {
                stop(machine, LeaseRelease::Keep, RELEASE_TIMEOUT)
            }
        }
    }
}

/// Who we are: the pod of this uid, or this process of this host. Where /proc does not tell the
/// host, `nonce` stands for it: nobody can then see that we are gone, but by the Lease's own time.
#[must_use]
pub fn identity(pod_uid: Option<&str>, nonce: u64) -> LeaseIdentity {
    let pid = process::id();
    let pod = pod_uid.map(str::to_owned);
    if let (Some(uid), 1) = (&pod, pid) {
        return LeaseIdentity::Pod { uid: uid.clone() };
    }
    let problem = match (host(), start_time(pid)) {
        (Ok(boot_id), Ok(Some(start_time))) => {
            return LeaseIdentity::Process { pod, boot_id, pid, start_time };
        }
        (Err(error), _) | (_, Err(error)) => error.to_string(),
        (Ok(_), Ok(None)) => "it tells no start time".to_owned(),
    };
    log::debug!("/proc does not tell which host this is: {problem}");
    LeaseIdentity::Process { pod, boot_id: format!("{nonce:016x}"), pid, start_time: 0 }
}

/// What is known of a holder that may be a process of this host.
fn fate(holder: &str) -> HolderState {
    let Some(LeaseIdentity::Process { boot_id, pid, start_time: began, .. }) =
        LeaseIdentity::process(holder)
    else {
        return HolderState::Unknown;
    };
    match host() {
        Ok(ours) if ours == boot_id => {}
        Ok(_) | Err(_) => return HolderState::Unknown,
    }
    match start_time(pid) {
        Ok(Some(now)) if now == began => HolderState::Unknown,
        Ok(_) => HolderState::Gone,
        Err(e) if e.kind() == io::ErrorKind::NotFound => HolderState::Gone,
        Err(_) => HolderState::Unknown,
    }
}

/// This boot of this host, and the namespace in which process numbers mean what they mean: a
/// container on the same host has others.
fn host() -> io::Result<String> {
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = fs::read_link("/proc/self/ns/pid")?;
    let namespace: String =
        namespace.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    Ok(format!("{}.{namespace}", boot_id.trim()))
}

/// When a process began, in ticks since the boot; none where it is dead and only not yet reaped.
fn start_time(pid: u32) -> io::Result<Option<u64>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name is in parentheses and may hold anything, parentheses too.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next();
    let start_time = fields.nth(18).and_then(|field| field.parse().ok());
    Ok(if matches!(state, Some("Z" | "X")) { None } else { start_time })
}

fn wall_ms(clock: Clock) -> i64 {
    let wall = clock.wall(clock.now()).duration_since(UNIX_EPOCH);
    wall.ok().and_then(|since| i64::try_from(since.as_millis()).ok()).unwrap_or(0)
}

fn words<T>(answer: &Result<T, Refusal>) -> String {
    match answer {
        Ok(_) => "done".to_owned(),
        Err(refusal) => refusal.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Mutex;
    use std::thread;

    use crossbeam_channel::bounded;

    use super::*;
    use crate::kube::testing::{Answer, TestServer, plain_client};

    /// Longer than any step of a test takes; a hung one ends here.
    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn a_process_that_lives_is_told_from_one_that_is_gone() {
        let ours = identity(None, 0);
        assert_eq!(fate(&ours.to_string()), HolderState::Unknown);
        let LeaseIdentity::Process { pod: None, boot_id, pid, start_time } = ours else {
            panic!("{ours:?}")
        };
        let process = |boot_id: &str, pid, start_time| {
            let (pod, boot_id) = (Some("uid".to_owned()), boot_id.to_owned());
            LeaseIdentity::Process { pod, boot_id, pid, start_time }
        };
        let before_us = process(&boot_id, pid, start_time - 1);
        assert_eq!(fate(&before_us.to_string()), HolderState::Gone);
        let elsewhere = process(&format!("{boot_id}0"), pid, start_time);
        assert_eq!(fate(&elsewhere.to_string()), HolderState::Unknown);
        assert_eq!(fate("3f2504e0-4f89-41d3-9a0c-0305e82c3301"), HolderState::Unknown);
        let pod = identity(Some("uid"), 0);
        assert_eq!(LeaseIdentity::pod_uid(&pod.to_string()), "uid");

        // Dead and not yet reaped is dead; so is reaped.
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let began = super::start_time(child.id()).unwrap().unwrap();
        let text = process(&boot_id, child.id(), began).to_string();
        assert_eq!(fate(&text), HolderState::Unknown);
        drop(child.stdin.take());
        let dead = std::time::Instant::now() + PATIENCE;
        while fate(&text) == HolderState::Unknown {
            assert!(std::time::Instant::now() < dead, "it does not die");
            thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(fate(&text), HolderState::Gone);
    }

    /// A server that keeps one lease.
    fn server() -> TestServer {
        let stored = Mutex::new(None::<serde_json::Value>);
        TestServer::start(None, move |asked| {
            let mut stored = stored.lock().unwrap();
            let reply = |status, body: String| {
                Answer::Reply(status, "Content-Type: application/json\r\n", body.into_bytes())
            };
            let status = |code: u16, reason: &str| {
                reply(
                    code,
                    format!(r#"{{"kind":"Status","reason":"{reason}","message":"{reason}"}}"#),
                )
            };
            match (asked.line().split(' ').next(), stored.as_mut()) {
                (Some("GET"), Some(lease)) => reply(200, lease.to_string()),
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
                    reply(200, stored.as_ref().unwrap().to_string())
                }
                other => panic!("{other:?}"),
            }
        })
    }

    struct Told(LeaseUpdate);

    impl From<(LeaseScope, LeaseUpdate)> for Told {
        fn from((_, update): (LeaseScope, LeaseUpdate)) -> Self {
            Self(update)
        }
    }

    /// Runs a keeper beside a test that gets its updates and commands.
    fn check(
        server: &TestServer,
        identity: LeaseIdentity,
        test: impl FnOnce(&Receiver<Told>, &Sender<LeaseCommand>),
    ) {
        let (inbox, updates) = bounded(8);
        let (send, commands) = bounded(8);
        let keeper = LeaseKeeper {
            leases: Leases::new(plain_client(server.address), "n"),
            pods: AppExecutors::new(plain_client(server.address), "n", Some("a")),
            scope: LeaseScope::Instance,
            is_patient: false,
            namespace: "n".to_owned(),
            selection: Selection { app: "a".to_owned(), instance: "b".to_owned() },
            owner: None,
            identity,
            inbox,
            commands,
            clock: Clock::start(),
            rng: Rng::new(1),
        };
        thread::scope(|scope| {
            let thread = scope.spawn(|| keep(&keeper));
            test(&updates, &send);
            drop(send);
            thread.join().unwrap();
        });
    }

    #[test]
    fn taken_refused_given_back_and_taken_again() {
        let server = server();
        let next = |updates: &Receiver<Told>| updates.recv_timeout(PATIENCE).unwrap().0;
        let pod = |uid: &str| LeaseIdentity::Pod { uid: uid.to_owned() };
        check(&server, pod("one"), |updates, commands| {
            assert_eq!(next(updates), LeaseUpdate::Held { id_high_water: None });
            commands.send(LeaseCommand::Reserve(ExecutorId(17))).unwrap();
            let up_to = ExecutorId(1_000);
            assert_eq!(next(updates), LeaseUpdate::IdsReserved { up_to });
            // A second one of the same instance is refused while the first holds it.
            check(&server, pod("two"), |updates, _| {
                assert_eq!(next(updates), LeaseUpdate::HeldBy { holder: "one".to_owned() });
            });
            let (release, timeout) = (LeaseRelease::Keep, PATIENCE);
            commands.send(LeaseCommand::Stop { release, timeout }).unwrap();
        });
        check(&server, pod("two"), |updates, commands| {
            let id_high_water = Some(ExecutorId(1_000));
            assert_eq!(next(updates), LeaseUpdate::Held { id_high_water });
            let (release, timeout) = (LeaseRelease::Delete, PATIENCE);
            commands.send(LeaseCommand::Stop { release, timeout }).unwrap();
        });
        let last = server.seen().pop().unwrap();
        assert!(last.line().starts_with("DELETE "), "{}", last.line());
    }
}
