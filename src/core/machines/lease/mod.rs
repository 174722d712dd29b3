//! Owns who holds an instance, or an application: when its Lease is read, taken, renewed, lost and
//! given back. Pure: sends nothing, reads no clock, looks at no process; the thread around it does
//! as told.
//!
//! At start a holder is live until the contrary is known. Known is it where the Lease is released,
//! where the holder is our own predecessor (the same pod, and we are its PID 1), a process of this
//! host that is gone or a pod that is gone or final, and where the Lease stays unchanged for its
//! whole duration under our own eyes. That last one takes a minute, so it is tried only where the
//! Lease looks stale already by its `renewTime`; where that looks fresh the answer is "held" at
//! once. Clocks that disagree can thus make a start wait or be refused in vain, but never let two
//! hold one instance.
//!
//! A patient start (`patient`) looks at a fresh one as well, for `PATIENCE_MS`: the driver before
//! us may be on its way out, or on a node that was lost a moment ago. One that is still renewed
//! after that is alive.

use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::pod::OwnerPod;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::policy::backoff::delay_ms;

mod identity;

pub use self::identity::LeaseIdentity;

/// How long others must see no change before they may take it over, in seconds.
pub const LEASE_S: u32 = 60;
/// So long after the last renewal we no longer believe that we hold it; well below `LEASE_S`, for a
/// request that is under way then may still land.
pub const RENEW_DEADLINE_MS: u64 = 40_000;
/// How often it is renewed, and read while another holds it.
pub const RENEW_MS: u64 = 10_000;
/// Ids are reserved in blocks of so many: one write for each thousand executors.
pub const ID_BLOCK: u64 = 1_000;
/// The longest duration of another's Lease that we sit out, in seconds.
const OTHERS_LEASE_S_MAX: u32 = 3_600;
/// How long a patient start waits for one that is renewed; after it the next renewal is an answer.
pub const PATIENCE_MS: u64 = 60_000;
/// How often a patient start looks: a Lease that is given back is free at once.
const PATIENT_LOOK_MS: u64 = 2_000;
const BACKOFF_MS: u64 = 1_000;
const BACKOFF_MS_MAX: u64 = 8_000;
/// The longest wait that a server can ask for: with more the deadline would pass unused.
const RETRY_AFTER_MS_MAX: u64 = 15_000;

/// What a Lease guards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseScope {
    /// The application: no two drivers of it work at once, of whatever instances.
    Application,
    /// The instance: no two posse keep its executors.
    Instance,
}

/// The Lease as the server has it, or is to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `metadata.uid`.
    pub uid: Uid,
    /// `metadata.resourceVersion`; empty for one that is to be created.
    pub version_text: String,
    /// `spec.holderIdentity`; empty where nobody holds it.
    pub holder: String,
    /// `spec.leaseDurationSeconds`.
    pub duration_s: u32,
    /// `spec.acquireTime`, milliseconds since 1970.
    pub acquired_ms: Option<i64>,
    /// `spec.renewTime`, milliseconds since 1970.
    pub renewed_ms: Option<i64>,
    /// `spec.leaseTransitions`.
    pub transitions: u32,
    /// Annotation `posse.dev/id-high-water`: ids up to here may have been given.
    pub id_high_water: Option<ExecutorId>,
    /// The pod that it goes with, as it was read; what is written has our own.
    pub owner: Option<OwnerPod>,
}

/// What is known of a holder other than by its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// It ran on this host and does no longer, or its pod is gone or final.
    Gone,
    /// Nothing.
    Unknown,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Delete it in exactly this state; answer with `on_deleted`.
    Delete(Record),
    /// Nothing any more.
    Done,
    /// Read it; answer with `on_read`.
    Read,
    /// Nothing before `until`; then ask again.
    Wait { until: Millis },
    /// Create it (no version) or replace exactly that version; answer with `on_written`.
    Write(Record),
}

/// What the rest of the program is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// It is ours (again). The high water is what was stored when we took it.
    Held { id_high_water: Option<ExecutorId> },
    /// At start: another holds it, and is or may be alive. The machine is done.
    HeldBy { holder: String },
    /// Ids up to here (inclusive) are ours to give.
    IdsReserved { up_to: ExecutorId },
    /// It is not ours any more; who took it, where somebody did.
    Lost { holder: Option<String> },
    /// At start: our rights do not suffice. The machine is done.
    NoRights { message: String },
    /// At start: it could be neither read nor taken yet; tried again.
    Trouble { refusal: Refusal },
    /// At start: another holds it, who may be dead; it is taken at that time if nothing moves.
    Waiting { holder: String, until: Millis },
}

/// How the Lease is given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseRelease {
    /// The instance is over: nothing of it stays. Without the right to delete, as `Keep`.
    Delete,
    /// It may be taken up again (pods were kept, or the Lease goes with its owner): released, with
    /// its high water.
    Keep,
}

/// The machine of one Lease.
#[derive(Clone, Debug)]
pub struct LeaseMachine {
    me: String,
    /// A fresh one is waited for at start, too.
    is_patient: bool,
    /// Who loses it to another wants it no more.
    yields: bool,
    /// The Lease as the server last told it.
    record: Option<Record>,
    must_read: bool,
    held: bool,
    ever_held: bool,
    /// It was lost, and to whom is not known yet.
    is_lost_unseen: bool,
    /// When another was first seen to hold it.
    foreign_since: Option<Millis>,
    /// The outcome of the last write is unknown: it may have made the Lease ours.
    unsure: bool,
    /// When the last successful renewal was sent.
    renewed_at: Millis,
    due_at: Millis,
    not_before: Millis,
    n_failures: u32,
    /// The version under which another holds it, and since when we have seen no other.
    observed: Option<(String, Millis)>,
    ids_wanted: Option<ExecutorId>,
    /// The highest that was ever told: what is written is never below, also where the server's
    /// history went back.
    ids_told: Option<ExecutorId>,
    stop: Option<(LeaseRelease, Millis)>,
    done: bool,
    updates: Vec<LeaseUpdate>,
    rng: Rng,
}

impl LeaseMachine {
    /// A machine that knows nothing and begins by reading.
    #[must_use]
    pub fn new(identity: &LeaseIdentity, rng: Rng) -> Self {
        Self {
            me: identity.to_string(),
            is_patient: false,
            yields: false,
            record: None,
            must_read: true,
            held: false,
            ever_held: false,
            is_lost_unseen: false,
            foreign_since: None,
            unsure: false,
            renewed_at: Millis::ZERO,
            due_at: Millis::ZERO,
            not_before: Millis::ZERO,
            n_failures: 0,
            observed: None,
            ids_wanted: None,
            ids_told: None,
            stop: None,
            done: false,
            updates: Vec::new(),
            rng,
        }
    }

    /// The same, with patience at the start.
    #[must_use]
    pub fn patient(self) -> Self {
        Self { is_patient: true, ..self }
    }

    /// The same, which yields: where another has taken it, it is theirs for good.
    #[must_use]
    pub fn yielding(self) -> Self {
        Self { yields: true, ..self }
    }

    /// What to do now; `wall_ms` is the time to write down, in milliseconds since 1970.
    pub fn next(&mut self, now: Millis, wall_ms: i64) -> LeaseStep {
        let deadline = self.renewed_at.after(RENEW_DEADLINE_MS);
        if self.held && now >= deadline {
            self.lose(None);
        }
        if self.stop.is_some_and(|(_, by)| now >= by || !(self.held || self.unsure)) {
            self.done = true;
        }
        if self.done {
            return LeaseStep::Done;
        }
        let due = self.due_at.max(self.not_before);
        if now < due {
            return LeaseStep::Wait { until: if self.held { due.min(deadline) } else { due } };
        }
        match (self.must_read, self.stop, &self.record) {
            (true, _, _) => LeaseStep::Read,
            (false, Some((LeaseRelease::Delete, _)), Some(record)) => {
                LeaseStep::Delete(record.clone())
            }
            (false, Some(_), Some(record)) => LeaseStep::Write(Record {
                holder: String::new(),
                // The least that the server takes; nobody waits for an empty holder anyway.
                duration_s: 1,
                renewed_ms: Some(wall_ms),
                ..record.clone()
            }),
            (false, _, _) => LeaseStep::Write(self.ours(wall_ms)),
        }
    }

    /// The next thing to tell, which stays the next until `told`.
    #[must_use]
    pub fn update(&self) -> Option<&LeaseUpdate> {
        self.updates.first()
    }

    /// The update was delivered.
    pub fn told(&mut self) {
        self.updates.remove(0);
    }

    /// Asks for the ids up to `up_to`, and the rest of their block with them. Written even where
    /// they are reserved already as far as we know: the server's history may have gone back.
    pub fn reserve(&mut self, up_to: ExecutorId) {
        let block = ExecutorId(up_to.0.div_ceil(ID_BLOCK).saturating_mul(ID_BLOCK));
        self.ids_wanted = self.ids_wanted.max(Some(block));
        if self.held {
            self.due_at = Millis::ZERO;
        }
    }

    /// Gives the Lease back where we hold it; until `by`, no longer.
    pub fn stop(&mut self, release: LeaseRelease, by: Millis) {
        self.stop = Some((release, by));
        self.due_at = Millis::ZERO;
        self.not_before = Millis::ZERO;
        self.n_failures = 0;
        self.must_read |= self.unsure;
    }

    /// True from `stop` on.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// The Lease was read: none where there is none. `fate` is its holder's.
    pub fn on_read(
        &mut self,
        answer: Result<Option<(Record, HolderState)>, Refusal>,
        now: Millis,
        wall_ms: i64,
    ) {
        let answer = match answer {
            Ok(answer) => answer,
            Err(refusal) => return self.on_refused(refusal, now),
        };
        self.unsure = false;
        match answer {
            None => {
                self.record = None;
                self.done |= self.stop.is_some();
                self.may_write();
            }
            Some((record, fate)) => {
                // Nobody else can bear our name and be alive.
                let named_us = record.holder == self.me;
                if self.stop.is_some() {
                    // All that is left to do is to give it back.
                    (self.held, self.renewed_at) = (named_us, now);
                }
                let free = record.holder.is_empty() || named_us || fate == HolderState::Gone;
                if free || self.is_expired(&record, now) {
                    self.record = Some(record);
                    self.may_write();
                } else {
                    self.on_foreign(record, now, wall_ms);
                }
            }
        }
    }

    /// The Lease was written by a request that was sent at `sent_at`.
    pub fn on_written(&mut self, answer: Result<Record, Refusal>, sent_at: Millis, now: Millis) {
        match answer {
            Ok(_) if self.stop.is_some() => self.done = true,
            Ok(record) => self.on_held(record, sent_at),
            Err(refusal) => {
                self.unsure = refusal.class == RefusalClass::OutcomeUnknown;
                self.on_refused(refusal, now);
            }
        }
    }

    /// The Lease was deleted, or not.
    pub fn on_deleted(&mut self, answer: Result<(), Refusal>, now: Millis) {
        match answer {
            Ok(()) => self.done = true,
            Err(refusal) => match (refusal.class, &mut self.stop) {
                (RefusalClass::NotFound, _) => self.done = true,
                (RefusalClass::Forbidden, Some((release, _))) => *release = LeaseRelease::Keep,
                _ => self.on_refused(refusal, now),
            },
        }
    }

    fn on_held(&mut self, record: Record, sent_at: Millis) {
        if !self.held {
            let id_high_water = self.record.as_ref().and_then(|before| before.id_high_water);
            self.tell(LeaseUpdate::Held { id_high_water });
        }
        self.record = Some(record);
        (self.held, self.ever_held, self.unsure) = (true, true, false);
        self.is_lost_unseen = false;
        self.n_failures = 0;
        self.observed = None;
        self.renewed_at = sent_at;
        self.due_at = sent_at.after(RENEW_MS);
        self.tell_reserved();
    }

    /// Another holds it and is not known to be gone.
    fn on_foreign(&mut self, record: Record, now: Millis, wall_ms: i64) {
        if self.held || self.is_lost_unseen {
            self.lose(Some(record.holder.clone()));
        }
        if self.ever_held && self.yields {
            self.done = true;
            return;
        }
        let since = *self.foreign_since.get_or_insert(now);
        let is_patient = self.is_patient && !self.ever_held;
        let may_go = is_patient && now.since(since) < PATIENCE_MS;
        let same = self.observed.as_ref().is_some_and(|(seen, _)| *seen == record.version_text);
        let alive = if self.observed.is_some() { !same } else { looks_fresh(&record, wall_ms) };
        if alive && !self.ever_held && !may_go {
            self.done = true;
            return self.tell(LeaseUpdate::HeldBy { holder: record.holder });
        }
        if !same {
            self.observed = Some((record.version_text.clone(), now));
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let until = since.after(duration_ms(&record));
        let look_ms = if is_patient { PATIENT_LOOK_MS } else { RENEW_MS };
        self.due_at = now.after(look_ms).min(until);
        if !self.ever_held && !same {
            self.tell(LeaseUpdate::Waiting { holder: record.holder, until });
        }
        self.n_failures = 0;
    }

    fn on_refused(&mut self, refusal: Refusal, now: Millis) {
        if refusal.class == RefusalClass::Forbidden && !self.ever_held {
            self.done = true;
            return self.tell(LeaseUpdate::NoRights { message: refusal.message });
        }
        // Somebody was faster, or it is gone: look first. Once at once, then in no hurry.
        let overtaken = match refusal.class {
            RefusalClass::Conflict | RefusalClass::Exists | RefusalClass::NotFound => true,
            RefusalClass::Capacity
            | RefusalClass::Expired
            | RefusalClass::NamespaceGone
            | RefusalClass::Forbidden
            | RefusalClass::Invalid
            | RefusalClass::Throttled
            | RefusalClass::Transient
            | RefusalClass::Unauthorized
            | RefusalClass::OutcomeUnknown => false,
        };
        self.must_read |= overtaken;
        self.n_failures = self.n_failures.saturating_add(1);
        if !overtaken || self.n_failures > 1 {
            let backoff = delay_ms(self.n_failures, BACKOFF_MS, BACKOFF_MS_MAX, &mut self.rng);
            let asked = refusal.retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MS_MAX);
            self.not_before = now.after(backoff.max(asked));
        }
        self.due_at = now;
        if !self.ever_held {
            self.tell(LeaseUpdate::Trouble { refusal });
        }
    }

    fn lose(&mut self, holder: Option<String>) {
        self.held = false;
        self.is_lost_unseen = holder.is_none();
        self.tell(LeaseUpdate::Lost { holder });
    }

    fn may_write(&mut self) {
        self.must_read = false;
        self.due_at = Millis::ZERO;
    }

    fn is_expired(&self, record: &Record, now: Millis) -> bool {
        self.observed.as_ref().is_some_and(|(version, since)| {
            *version == record.version_text && now.since(*since) >= duration_ms(record)
        })
    }

    fn ours(&self, wall_ms: i64) -> Record {
        let before = self.record.as_ref();
        let stored = before.and_then(|record| record.id_high_water);
        let from_other = before.is_some_and(|record| record.holder != self.me);
        let acquired_ms = before.and_then(|record| record.acquired_ms).filter(|_| self.held);
        Record {
            uid: before.map_or_else(|| Uid::new(""), |record| record.uid.clone()),
            version_text: before.map_or_else(String::new, |record| record.version_text.clone()),
            holder: self.me.clone(),
            duration_s: LEASE_S,
            acquired_ms: acquired_ms.or(Some(wall_ms)),
            renewed_ms: Some(wall_ms),
            transitions: before
                .map_or(0, |record| record.transitions.saturating_add(from_other.into())),
            id_high_water: stored.max(self.ids_wanted).max(self.ids_told),
            owner: None,
        }
    }

    fn tell_reserved(&mut self) {
        let stored = self.record.as_ref().and_then(|record| record.id_high_water);
        if let (Some(up_to), Some(wanted)) = (stored, self.ids_wanted)
            && up_to >= wanted
        {
            self.ids_wanted = None;
            self.ids_told = self.ids_told.max(Some(up_to));
            self.tell(LeaseUpdate::IdsReserved { up_to });
        }
    }

    /// Queues an update. What it makes out of date goes, so there is at most one of each sort.
    fn tell(&mut self, update: LeaseUpdate) {
        self.updates.retain(|queued| sort(queued) != sort(&update));
        self.updates.push(update);
    }
}

/// Updates of one sort replace each other.
fn sort(update: &LeaseUpdate) -> u8 {
    match update {
        LeaseUpdate::Held { .. }
        | LeaseUpdate::HeldBy { .. }
        | LeaseUpdate::Lost { .. }
        | LeaseUpdate::NoRights { .. } => 0,
        LeaseUpdate::IdsReserved { .. } => 1,
        LeaseUpdate::Trouble { .. } | LeaseUpdate::Waiting { .. } => 2,
    }
}

fn duration_ms(record: &Record) -> u64 {
    u64::from(record.duration_s.clamp(1, OTHERS_LEASE_S_MAX)) * 1_000
}

/// Whether the Lease looks renewed by its own word. Only a hint: the clocks may disagree.
fn looks_fresh(record: &Record, wall_ms: i64) -> bool {
    record.renewed_ms.is_some_and(|at| wall_ms.abs_diff(at) < duration_ms(record))
}

#[cfg(test)]
mod tests;
