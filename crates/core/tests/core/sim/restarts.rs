//! Drivers of one application that follow each other or run at the same time, in virtual time. Each
//! has a Lease and an orphan cleanup; the server refuses, answers late or not at all; drivers are
//! killed or paused, and their pods fail or vanish. At most one driver holds the Lease, and only
//! executors of ended drivers are removed.

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::machines::lease::{
    self, HolderState, HolderWait, LeaseIdentity, LeaseMachine, LeaseUpdate,
};
use posse_core::machines::orphan_cleanup::{self, OrphanCleanup};
use posse_core::model::ids::Uid;
use posse_core::model::lease::Record;
use posse_core::model::owner::{Owner, OwnerKind};
use posse_core::model::pod::Phase;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::policy::orphans::{OrphanCandidate, OwnerState};

const TICK_MS: u64 = 100;
const MINUTE_MS: u64 = 60_000;
/// The longest time from a write until it takes effect.
const WRITE_MS_MAX: u64 = 60_000;
/// Faults occur until this time.
const CALM_MS: u64 = 8 * MINUTE_MS;
const END_MS: u64 = CALM_MS + 8 * MINUTE_MS;

/// The start time in milliseconds since 1970.
const WALL_MS: i64 = 1_767_225_600_000;

/// A driver's pod.
struct DriverPod {
    name: String,
    uid: Uid,
    state: OwnerState,
}

/// A request of a state machine without an answer.
struct Call<S> {
    step: S,
    commit_at: u64,
    answer_at: u64,
    fault: Fault,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    No,
    /// It does not reach the server.
    NotSent,
    /// It takes effect, but the answer is lost.
    Unheard,
}

/// A process of posse.
struct Process {
    driver: usize,
    instance: String,
    identity: LeaseIdentity,
    lease: LeaseMachine,
    sweep: Option<OrphanCleanup>,
    lease_call: Option<(Call<lease::LeaseStep>, Option<LeaseAnswer>)>,
    sweep_call: Option<(Call<orphan_cleanup::CleanupStep>, Option<SweepAnswer>)>,
    holds: bool,
    /// It knows that another process has the Lease; its driver ends by this time.
    ends_at: Option<u64>,
    frozen_until: u64,
    is_over: bool,
}

enum LeaseAnswer {
    Read(Result<Option<(Record, HolderState)>, Refusal>),
    Written(Result<Record, Refusal>),
}

enum SweepAnswer {
    Listed(Result<Vec<OrphanCandidate>, Refusal>),
    OwnerState(OwnerState),
    Deleted(Result<(), Refusal>),
}

struct World {
    now: u64,
    rng: Rng,
    lease: Option<Record>,
    n_versions: u64,
    drivers: Vec<DriverPod>,
    pods: Vec<OrphanCandidate>,
    n_pods: u64,
    processes: Vec<Process>,
    /// Requests of processes that held the Lease: the process, and when the request takes effect.
    writes: Vec<(usize, u64)>,
    next_start: u64,
}

fn refusal(class: RefusalClass) -> Refusal {
    Refusal { code: 500, ..Refusal::local(class, "the simulation says so") }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            now: 0,
            rng: Rng::new(seed ^ 0x5EED),
            lease: None,
            n_versions: 1,
            drivers: Vec::new(),
            pods: Vec::new(),
            n_pods: 0,
            processes: Vec::new(),
            writes: Vec::new(),
            next_start: 0,
        };
        let states = [
            OwnerState::Absent,
            OwnerState::Found(Phase::Failed),
            OwnerState::Found(Phase::Succeeded),
            OwnerState::Found(Phase::Running),
            OwnerState::Replaced,
        ];
        for state in states {
            let driver = world.make_driver(state);
            world.make_pods(driver, true);
        }
        // Of a driver outside the cluster.
        world.make_pods(0, false);
        world
    }

    fn make_driver(&mut self, state: OwnerState) -> usize {
        let n = self.drivers.len();
        let (name, uid) = (format!("driver-{n}"), Uid::new(&format!("driver-uid-{n}")));
        self.drivers.push(DriverPod { name, uid, state });
        n
    }

    fn make_pods(&mut self, driver: usize, is_owned: bool) {
        let phases = [Phase::Running, Phase::Pending, Phase::Failed, Phase::Running];
        for id in 1..=1 + self.rng.below(3) {
            let instance = if is_owned { format!("i{driver}") } else { "away".to_owned() };
            let phase = phases[usize::try_from(self.rng.below(4)).unwrap()];
            self.make_pod(instance, id, is_owned.then_some(driver), phase);
        }
    }

    fn make_pod(&mut self, instance: String, id: u64, owner: Option<usize>, phase: Phase) {
        self.n_pods += 1;
        let owner = owner.map(|driver| {
            let DriverPod { name, uid, .. } = &self.drivers[driver];
            Owner { kind: OwnerKind::Pod, name: name.clone(), uid: uid.clone() }
        });
        self.pods.push(OrphanCandidate {
            is_held_by_queue: false,
            name: format!("a-{instance}-exec-{id}"),
            uid: Uid::new(&format!("uid-{}", self.n_pods)),
            has_executor_name: true,
            app: Some("a".to_owned()),
            instance: Some(instance),
            owner,
            phase,
        });
    }

    /// An executor of this instance that belonged to an earlier driver pod: `--instance` was given.
    fn make_heirloom(&mut self, i: usize) {
        self.make_pod(self.processes[i].instance.clone(), 99, Some(0), Phase::Running);
    }

    fn start_process(&mut self) {
        let driver = self.make_driver(OwnerState::Found(Phase::Running));
        let uid = self.drivers[driver].uid.to_string();
        let identity = LeaseIdentity::Pod { uid };
        let rng = Rng::new(self.rng.next_u64());
        self.processes.push(Process {
            driver,
            instance: format!("i{driver}"),
            lease: LeaseMachine::new(&identity, rng).waiting(HolderWait::ForItsEnd).yielding(),
            identity,
            sweep: None,
            lease_call: None,
            sweep_call: None,
            holds: false,
            ends_at: None,
            frozen_until: 0,
            is_over: false,
        });
    }

    fn is_calm(&self) -> bool {
        self.now >= CALM_MS
    }

    /// Events without a request.
    fn happen(&mut self) {
        let n_live = self.processes.iter().filter(|process| !process.is_over).count();
        if self.now >= self.next_start && (n_live < 2 && !self.is_calm() || n_live == 0) {
            self.start_process();
            self.next_start = self.now + 5_000 + self.rng.below(40_000);
        }
        if self.is_calm() {
            return;
        }
        let n = self.processes.len() as u64;
        let i = usize::try_from(self.rng.below(n.max(1))).unwrap();
        if i < self.processes.len() && !self.processes[i].is_over {
            match self.rng.below(4_000) {
                0..4 => {
                    // The process is killed; its pod fails or is gone.
                    let is_gone = self.rng.chance(50);
                    let state =
                        if is_gone { OwnerState::Absent } else { OwnerState::Found(Phase::Failed) };
                    let driver = self.processes[i].driver;
                    self.drivers[driver].state = state;
                    self.processes[i].is_over = true;
                    self.processes[i].holds = false;
                }
                4..8 => self.processes[i].frozen_until = self.now + self.rng.below(120_000),
                _ => {}
            }
        }
        // The driver of an older instance ends.
        if self.rng.below(4_000) == 0 {
            self.drivers[3].state = OwnerState::Found(Phase::Succeeded);
        }
    }

    fn call<S>(&mut self, step: S) -> Call<S> {
        let took = self.rng.below(if self.is_calm() { 200 } else { 8_000 });
        let fault = match self.rng.below(100) {
            0..8 if !self.is_calm() => Fault::NotSent,
            8..16 if !self.is_calm() => Fault::Unheard,
            _ => Fault::No,
        };
        let commit_at = self.now + took / 2;
        Call { step, commit_at, answer_at: self.now + took, fault }
    }

    fn commit_lease(&mut self, i: usize, step: &lease::LeaseStep) -> LeaseAnswer {
        match step {
            lease::LeaseStep::Read => LeaseAnswer::Read(Ok(self.lease.clone().map(|record| {
                let holder = LeaseIdentity::pod_uid(&record.holder);
                let pod = self.drivers.iter().find(|driver| driver.uid.to_string() == holder);
                let is_over = pod.is_some_and(|driver| driver.state.is_over());
                (record, if is_over { HolderState::Gone } else { HolderState::Unknown })
            }))),
            lease::LeaseStep::Write(record) => {
                let there = self.lease.as_ref().map_or("", |lease| lease.version_text.as_str());
                if there != record.version_text {
                    return LeaseAnswer::Written(Err(refusal(RefusalClass::Conflict)));
                }
                self.n_versions += 1;
                let mut stored = record.clone();
                stored.version_text = self.n_versions.to_string();
                assert_eq!(stored.holder, self.processes[i].identity.to_string());
                self.lease = Some(stored.clone());
                LeaseAnswer::Written(Ok(stored))
            }
            other => panic!("nobody is told to stop: {other:?}"),
        }
    }

    fn commit_sweep(&mut self, i: usize, step: &orphan_cleanup::CleanupStep) -> SweepAnswer {
        match step {
            orphan_cleanup::CleanupStep::List => {
                let ours = self.processes[i].instance.clone();
                let mut pods = self.pods.clone();
                // A server that ignores the selector would return our executors, too.
                pods.retain(|pod| pod.instance.as_ref() != Some(&ours) || self.rng.chance(10));
                SweepAnswer::Listed(Ok(pods))
            }
            orphan_cleanup::CleanupStep::LookUp(named) => {
                let found = self.drivers.iter().find(|driver| driver.uid == named.uid);
                let state = found.map_or(OwnerState::Absent, |driver| driver.state.clone());
                SweepAnswer::OwnerState(state)
            }
            orphan_cleanup::CleanupStep::Delete(pod) => {
                let Some(at) = self.pods.iter().position(|there| there.uid == pod.uid) else {
                    return SweepAnswer::Deleted(Err(refusal(RefusalClass::NotFound)));
                };
                let gone = self.pods.remove(at);
                assert_ne!(gone.instance.as_ref(), Some(&self.processes[i].instance), "its own");
                assert!(!matches!(gone.phase, Phase::Failed | Phase::Succeeded), "a retained pod");
                let owner = gone.owner.expect("an executor outside the cluster has no owner");
                let driver = self.drivers.iter().find(|driver| driver.uid == owner.uid);
                assert!(driver.is_none_or(|driver| driver.state.is_over()), "its owner lives");
                SweepAnswer::Deleted(Ok(()))
            }
            other => panic!("no call: {other:?}"),
        }
    }

    /// One turn of a process.
    fn run(&mut self, i: usize) {
        let (now, wall) = (Millis(self.now), WALL_MS + i64::try_from(self.now).unwrap());
        // A sent request arrives even if the sender is paused.
        if let Some((call, None)) = self.processes[i]
            .lease_call
            .take_if(|(call, answer)| answer.is_none() && call.commit_at <= self.now)
        {
            let answer = match call.fault {
                Fault::NotSent => lost_lease(&call.step, RefusalClass::Transient),
                Fault::No => self.commit_lease(i, &call.step),
                Fault::Unheard => {
                    self.commit_lease(i, &call.step);
                    lost_lease(&call.step, RefusalClass::OutcomeUnknown)
                }
            };
            self.processes[i].lease_call = Some((call, Some(answer)));
        }
        if let Some((call, None)) = self.processes[i]
            .sweep_call
            .take_if(|(call, answer)| answer.is_none() && call.commit_at <= self.now)
        {
            let answer = match call.fault {
                Fault::NotSent => lost_sweep(&call.step),
                Fault::No => self.commit_sweep(i, &call.step),
                Fault::Unheard => {
                    self.commit_sweep(i, &call.step);
                    lost_sweep(&call.step)
                }
            };
            self.processes[i].sweep_call = Some((call, Some(answer)));
        }
        let process = &mut self.processes[i];
        if process.is_over || process.frozen_until > self.now {
            return;
        }
        if let Some((call, answer)) =
            process.lease_call.take_if(|(call, answer)| answer.is_some() && call.answer_at <= now.0)
        {
            let sent_at = Millis(call.commit_at.saturating_sub(call.answer_at - call.commit_at));
            match answer {
                Some(LeaseAnswer::Read(answer)) => process.lease.on_read(answer, now, wall),
                Some(LeaseAnswer::Written(answer)) => {
                    process.lease.on_written(answer, sent_at, now);
                }
                None => {}
            }
        }
        if process.lease_call.is_none() {
            let step = process.lease.next(now, wall);
            if matches!(step, lease::LeaseStep::Read | lease::LeaseStep::Write(_)) {
                let call = self.call(step);
                self.processes[i].lease_call = Some((call, None));
            }
        }
        self.hear(i);
        self.write_something(i);
        self.run_sweep(i, now);
    }

    /// Sends a create or a delete that takes effect late, but not after its latest time.
    fn write_something(&mut self, i: usize) {
        let process = &self.processes[i];
        if !process.holds || process.is_over || !self.rng.chance(10) {
            return;
        }
        let until = process.lease.writes_until().map_or(0, |until| until.0);
        let effect_at = self.now + self.rng.below(WRITE_MS_MAX);
        if effect_at < until {
            self.writes.push((i, effect_at));
        }
    }

    fn run_sweep(&mut self, i: usize, now: Millis) {
        let process = &mut self.processes[i];
        let Some(sweep) = &mut process.sweep else { return };
        if let Some((_, answer)) =
            process.sweep_call.take_if(|(call, answer)| answer.is_some() && call.answer_at <= now.0)
        {
            match answer {
                Some(SweepAnswer::Listed(answer)) => sweep.on_listed(answer, now),
                Some(SweepAnswer::OwnerState(state)) => sweep.on_owner(state),
                Some(SweepAnswer::Deleted(answer)) => sweep.on_deleted(answer),
                None => {}
            }
        }
        while sweep.next_report().is_some() {}
        if process.sweep_call.is_none() && !process.is_over {
            let step = sweep.next(now);
            if !matches!(
                step,
                orphan_cleanup::CleanupStep::Done | orphan_cleanup::CleanupStep::Wait { .. }
            ) {
                let call = self.call(step);
                self.processes[i].sweep_call = Some((call, None));
            }
        }
    }

    fn hear(&mut self, i: usize) {
        let mut begins = false;
        let process = &mut self.processes[i];
        while let Some(update) = process.lease.update().cloned() {
            process.lease.pop_update();
            match update {
                LeaseUpdate::Held { .. } => {
                    assert!(process.ends_at.is_none(), "it takes back what it lost to another");
                    process.holds = true;
                    match &mut process.sweep {
                        Some(sweep) => sweep.begin_again(),
                        None => begins = true,
                    }
                }
                LeaseUpdate::Lost { holder } => {
                    process.holds = false;
                    if holder.is_some() {
                        process.ends_at = Some(self.now + 1_000 + self.rng.below(MINUTE_MS));
                    }
                }
                LeaseUpdate::HeldBy { .. } => process.is_over = true,
                LeaseUpdate::Foreign
                | LeaseUpdate::Waiting { .. }
                | LeaseUpdate::Retrying { .. }
                | LeaseUpdate::Forbidden { .. }
                | LeaseUpdate::IdsReserved { .. } => {}
            }
        }
        process.is_over |= process.ends_at.is_some_and(|at| at <= self.now);
        let (driver, is_over) = (process.driver, process.is_over);
        if begins {
            let rng = Rng::new(self.rng.next_u64());
            let instance = self.processes[i].instance.clone();
            self.processes[i].sweep = Some(OrphanCleanup::new(&instance, true, rng));
            self.make_pods(driver, true);
            if self.rng.chance(30) {
                self.make_heirloom(i);
            }
        }
        if is_over {
            self.drivers[driver].state = OwnerState::Found(Phase::Failed);
        }
    }

    fn check(&mut self) {
        let due: Vec<_> = self.writes.extract_if(.., |(_, at)| *at <= self.now).collect();
        for (i, _) in due {
            // What a process sent just before its end arrives late, and the next orphan cleanup finds it.
            let is_over = self.processes[i].is_over;
            let other = self.processes.iter().enumerate().any(|(j, process)| {
                j != i && process.holds && !process.is_over && process.frozen_until <= self.now
            });
            assert!(is_over || !other, "a write of {i} while another holds, at {} ms", self.now);
        }
        // A paused process learns of the lost Lease before it does anything else.
        let holds = |process: &&Process| {
            process.holds && !process.is_over && process.frozen_until <= self.now
        };
        let n = self.processes.iter().filter(holds).count();
        assert!(n <= 1, "{n} drivers hold the application at {} ms", self.now);
    }

    fn finish(&self) {
        let live: Vec<&Process> = self.processes.iter().filter(|p| !p.is_over).collect();
        let holders = live.iter().filter(|process| process.holds).count();
        assert_eq!(holders, 1, "{} live drivers, and one of them works", live.len());
        for pod in &self.pods {
            let is_over = matches!(pod.phase, Phase::Failed | Phase::Succeeded);
            let is_kept = live.iter().any(|p| Some(&p.instance) == pod.instance.as_ref());
            let is_live = !is_over && !is_kept;
            let Some(owner) = &pod.owner else { continue };
            let driver = self.drivers.iter().find(|driver| driver.uid == owner.uid).unwrap();
            assert!(
                !(is_live && driver.state.is_over()),
                "{} is left, and its driver is over",
                pod.name
            );
        }
        assert!(
            self.pods.iter().any(|pod| pod.owner.is_none()),
            "those of a driver elsewhere stay"
        );
    }
}

fn lost_lease(step: &lease::LeaseStep, class: RefusalClass) -> LeaseAnswer {
    match step {
        lease::LeaseStep::Read => LeaseAnswer::Read(Err(refusal(class))),
        _ => LeaseAnswer::Written(Err(refusal(class))),
    }
}

fn lost_sweep(step: &orphan_cleanup::CleanupStep) -> SweepAnswer {
    match step {
        orphan_cleanup::CleanupStep::List => {
            SweepAnswer::Listed(Err(refusal(RefusalClass::Transient)))
        }
        orphan_cleanup::CleanupStep::LookUp(_) => {
            SweepAnswer::OwnerState(OwnerState::Unknown("no answer".to_owned()))
        }
        _ => SweepAnswer::Deleted(Err(refusal(RefusalClass::OutcomeUnknown))),
    }
}

/// Runs one seed to its end; panics if something is wrong.
pub fn play(seed: u64) {
    let mut world = World::new(seed);
    while world.now < END_MS {
        world.happen();
        for i in 0..world.processes.len() {
            world.run(i);
        }
        world.check();
        world.now += TICK_MS;
    }
    world.finish();
}
