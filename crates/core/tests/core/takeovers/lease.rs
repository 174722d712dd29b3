//! Two posse and one Lease. Each may sleep for as long as it likes, and so may what it writes.

use std::fmt::Debug;

use super::{Model, explore};
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::machines::lease::{
    HolderState, HolderWait, LeaseIdentity, LeaseMachine, LeaseStep, LeaseTerms,
};
use posse_core::model::ids::Uid;
use posse_core::model::lease::Record;
use posse_core::model::refusal::{Refusal, RefusalClass};

/// Time goes on by so much.
const TICK_MS: u64 = 5_000;
/// The model ends then: two takeovers fit in.
const END_MS: u64 = 30_000;
const FAULTS_MAX: u32 = 2;

/// What becomes of a slow write: whether it is executed, and whether its answer comes.
const WAYS: [(&str, bool, bool); 3] = [
    ("arrives", true, true),
    ("arrives, its answer is lost", true, false),
    ("is lost", false, false),
];

#[derive(Clone, Debug)]
struct Posse {
    machine: LeaseMachine,
    /// How far its clock is ahead.
    ahead_ms: i64,
    /// It does nothing, and does not know that.
    sleeps: bool,
    /// A write that is on its way, and when it was sent.
    on_its_way: Option<(Record, Millis)>,
}

#[derive(Clone, Debug)]
struct World {
    now: Millis,
    posse: [Posse; 2],
    lease: Option<Record>,
    version: u64,
    /// How often one has fallen asleep, or a write was slow.
    n_faults: u32,
}

fn unknown() -> Refusal {
    crate::core_run::refusal(RefusalClass::OutcomeUnknown, 0)
}

impl World {
    fn new(ahead_ms: i64) -> Self {
        let posse = |uid: &str, ahead_ms| Posse {
            machine: LeaseMachine::new(&LeaseIdentity::Pod { uid: uid.to_owned() }, Rng::new(1))
                .waiting(HolderWait::StandsBy)
                .on(LeaseTerms::STANDBY),
            ahead_ms,
            sleeps: false,
            on_its_way: None,
        };
        let posse = [posse("a", 0), posse("b", ahead_ms)];
        Self { now: Millis(1_000), posse, lease: None, version: 0, n_faults: 0 }
    }

    /// The server replaces the version that was read, and no other.
    fn write(&mut self, record: &Record) -> Result<Record, Refusal> {
        let there = self.lease.as_ref().map_or("", |lease| lease.version_text.as_str());
        if there != record.version_text {
            return Err(crate::core_run::refusal(RefusalClass::Conflict, 409));
        }
        self.version += 1;
        let stored =
            Record { uid: Uid::new("u"), version_text: self.version.to_string(), ..record.clone() };
        self.lease = Some(stored.clone());
        Ok(stored)
    }

    /// The write of `i` arrives, and its answer, or only one of them, or neither.
    fn arrive(&mut self, i: usize, is_executed: bool, is_answered: bool) {
        let Some((record, sent_at)) = self.posse[i].on_its_way.take() else { return };
        let answer = if is_executed { self.write(&record) } else { Err(unknown()) };
        let answer = if is_answered { answer } else { Err(unknown()) };
        self.posse[i].machine.on_written(answer, sent_at, self.now);
        while self.posse[i].machine.update().is_some() {
            self.posse[i].machine.pop_update();
        }
    }

    /// The posse `i` does what is due.
    fn step(&mut self, i: usize) -> Option<String> {
        let (now, lease) = (self.now, self.lease.clone());
        let Posse { machine, ahead_ms, on_its_way, .. } = &mut self.posse[i];
        let wall_ms = i64::try_from(now.0).unwrap() + *ahead_ms;
        let what = match machine.next(now, wall_ms) {
            LeaseStep::Wait { .. } => None,
            LeaseStep::Read => {
                let answer = lease.map(|lease| (lease, HolderState::Unknown));
                machine.on_read(Ok(answer), now, wall_ms);
                Some(format!("{} s: {i} reads", now.0 / 1_000))
            }
            LeaseStep::Write(record) => {
                *on_its_way = Some((record, now));
                Some(format!("{} s: {i} writes", now.0 / 1_000))
            }
            LeaseStep::Delete(_) | LeaseStep::Done => panic!("nobody stops"),
        };
        while machine.update().is_some() {
            machine.pop_update();
        }
        what
    }
}

impl Model for World {
    fn key(&self) -> impl Debug {
        self
    }

    fn next(&self) -> Result<Vec<(String, Self)>, String> {
        let may_act = |posse: &Posse| posse.machine.writes_until().is_some_and(|at| self.now < at);
        if self.posse.iter().all(may_act) {
            return Err(format!("both may write after {} s", self.now.0 / 1_000));
        }
        let mut all = Vec::new();
        let mut is_idle = true;
        for i in 0..self.posse.len() {
            let mut world = self.clone();
            world.posse[i].sleeps ^= true;
            world.n_faults += u32::from(world.posse[i].sleeps);
            if world.n_faults <= FAULTS_MAX {
                all.push((
                    format!("{} s: {i} falls asleep or wakes up", self.now.0 / 1_000),
                    world,
                ));
            }
            if self.posse[i].sleeps {
                continue;
            }
            let mut world = self.clone();
            if self.posse[i].on_its_way.is_none() {
                let Some(what) = world.step(i) else { continue };
                is_idle = false;
                if world.posse[i].on_its_way.is_some() && self.n_faults < FAULTS_MAX {
                    let slow = Self { n_faults: self.n_faults + 1, ..world.clone() };
                    all.push((format!("{what}, which takes long"), slow));
                }
                world.arrive(i, true, true);
                all.push((what, world));
                continue;
            }
            for (how, is_executed, is_answered) in WAYS {
                let mut world = self.clone();
                world.arrive(i, is_executed, is_answered);
                all.push((format!("{} s: the write of {i} {how}", self.now.0 / 1_000), world));
            }
        }
        if is_idle && self.now.0 < END_MS {
            all.push((String::new(), Self { now: self.now.after(TICK_MS), ..self.clone() }));
        }
        Ok(all)
    }
}

#[test]
fn two_posse_never_write_at_once() {
    for ahead_ms in [0, 86_400_000] {
        let n = explore(World::new(ahead_ms));
        assert!(n > 1_000, "{n} states are too few");
    }
}
