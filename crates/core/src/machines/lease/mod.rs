//! The state machine of a Lease: when it is read, taken, renewed, lost and released. Sends nothing
//! and reads no clock.
//!
//! A holder is presumed alive. It is dead if it released the Lease, if it is our own predecessor
//! (the same pod, and we are its PID 1), if its process on this host or its pod is gone, or if the
//! Lease stays unchanged for its whole duration while we observe it. The last check takes a minute,
//! so it is done only if `renewTime` says that the Lease is stale already; a fresh Lease is
//! reported as held at once. Because `renewTime` only starts that check, clocks that disagree can
//! delay or refuse a start, but never let two processes hold one instance. client-go's leader
//! election relies on local observation in the same way.
//!
//! A machine that waits for the holder (`HolderWait`) also observes a fresh Lease, for
//! `HOLDER_WAIT_MS`: the previous driver may be ending, or its node may have been lost a moment
//! ago. A holder that still renews after that time is alive, unless its pod is terminating. A standby observes it for ever.
//! A Lease that the servers have long not stored, of a pod that is terminating, is that of a lost node: it is observed for less.

use crate::model::ids::ExecutorId;
use crate::model::lease::Record;
use crate::model::named::named;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::model::takeover::Takeover;
use posse_base::backoff::{asked_ms, delay_ms};
use posse_base::rng::Rng;
use posse_base::time::Millis;

mod identity;
mod release;
mod standby;
mod terms;

pub use self::identity::LeaseIdentity;
pub use self::release::LeaseRelease;
pub use self::terms::{HolderWait, ID_BLOCK, LeaseTerms};
use self::terms::{duration_ms, observation_ms};

/// How long a start waits for a holder that renews.
pub const HOLDER_WAIT_MS: u64 = 60_000;
/// How often a waiting start reads the Lease, to notice a release quickly.
const HOLDER_POLL_MS: u64 = 2_000;
const BACKOFF_MS: u64 = 1_000;

named! {
    /// What a Lease guards.
    pub enum LeaseScope {
        /// The application: only one driver of it works at a time, whatever the instances.
        Application = "application",
        /// The instance: only one posse process manages its executors.
        Instance = "instance",
    }
}

/// What is known about a holder from other sources than its Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderState {
    /// Its process ran on this host and is gone, or its pod is gone or has ended.
    Gone,
    /// Its pod is terminating: it may renew the Lease until the pod's grace period is over, and not longer.
    Ending,
    /// Nothing is known.
    Unknown,
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseStep {
    /// Delete this version of the Lease; then call `on_deleted`.
    Delete(Record),
    /// The machine has finished.
    Done,
    /// Read the Lease; then call `on_read`.
    Read,
    /// Wait until then; then call `next` again.
    Wait { until: Millis },
    /// Create the Lease (empty version) or replace exactly this version; then call `on_written`.
    Write(Record),
}

/// What the machine reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseUpdate {
    /// The Lease is held (again). The high water is what was stored before; `from`: whose it was, if a standby has taken it.
    Held { id_high_water: Option<ExecutorId>, from: Option<Takeover> },
    /// At start: another program's Lease has our name. The machine has finished.
    Foreign,
    /// At start: another holder has it and is alive, or may be. The machine has finished.
    HeldBy { holder: String },
    /// Ids up to here (inclusive) are reserved for us.
    IdsReserved { up_to: ExecutorId },
    /// The Lease is no longer held. `holder`: who has taken it, if known.
    Lost { holder: Option<String> },
    /// At start: missing permission. The machine has finished.
    Forbidden { message: String },
    /// At start: a request failed; it is retried.
    Retrying { refusal: Refusal },
    /// At start: another holder has it, but may be dead. It is taken at `until` if it does not
    /// change before.
    Waiting { holder: String, until: Millis },
}

/// The state machine of one Lease.
#[derive(Clone, Debug)]
pub struct LeaseMachine {
    identity: String,
    terms: LeaseTerms,
    /// A start waits for a fresh Lease too.
    wait: HolderWait,
    /// The machine finishes if another holder takes the Lease.
    yields: bool,
    /// The Lease as the server last reported it.
    record: Option<Record>,
    must_read: bool,
    held: bool,
    ever_held: bool,
    /// It was lost, and the new holder is not known yet.
    is_new_holder_unknown: bool,
    /// From whom the Lease is being taken.
    from: Option<Takeover>,
    /// When another holder was first seen.
    foreign_since: Option<Millis>,
    /// The outcome of the last write is unknown: we may hold the Lease.
    is_write_unresolved: bool,
    /// When the last successful renewal was sent.
    renewed_at: Millis,
    due_at: Millis,
    not_before: Millis,
    n_failures: u32,
    /// The version that another holder wrote, and since when it is unchanged.
    observed: Option<(String, Millis)>,
    ids_wanted: Option<ExecutorId>,
    /// The highest id ever reported as reserved. A write is never below it, even after a
    /// resourceVersion rollback.
    ids_reported: Option<ExecutorId>,
    stop: Option<(LeaseRelease, Millis)>,
    done: bool,
    updates: Vec<LeaseUpdate>,
    rng: Rng,
}

impl LeaseMachine {
    /// A machine that begins by reading the Lease.
    pub fn new(identity: &LeaseIdentity, rng: Rng) -> Self {
        Self {
            identity: identity.to_string(),
            terms: LeaseTerms::USUAL,
            wait: HolderWait::No,
            yields: false,
            record: None,
            must_read: true,
            held: false,
            ever_held: false,
            is_new_holder_unknown: false,
            from: None,
            foreign_since: None,
            is_write_unresolved: false,
            renewed_at: Millis::ZERO,
            due_at: Millis::ZERO,
            not_before: Millis::ZERO,
            n_failures: 0,
            observed: None,
            ids_wanted: None,
            ids_reported: None,
            stop: None,
            done: false,
            updates: Vec::new(),
            rng,
        }
    }

    /// The same machine, which waits so long at the start for a holder that renews.
    #[must_use]
    pub fn waiting(self, wait: HolderWait) -> Self {
        Self { wait, ..self }
    }

    /// The same machine for a Lease with these times.
    #[must_use]
    pub fn on(self, terms: LeaseTerms) -> Self {
        Self { terms, ..self }
    }

    /// The same machine, which finishes if another holder takes the Lease.
    #[must_use]
    pub fn yielding(self) -> Self {
        Self { yields: true, ..self }
    }

    /// The next step. `wall_ms`: the time to write, in milliseconds since 1970.
    pub fn next(&mut self, now: Millis, wall_ms: i64) -> LeaseStep {
        let deadline = self.renewed_at.after(self.terms.give_up_ms);
        if self.held && now >= deadline {
            self.lose(None);
        }
        if self.stop.is_some_and(|(_, by)| now >= by || !self.may_be_ours()) {
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
                // The smallest duration that the API accepts.
                duration_s: 1,
                renewed_ms: Some(wall_ms),
                ..record.clone()
            }),
            (false, _, _) => LeaseStep::Write(self.our_record(wall_ms)),
        }
    }

    /// Until when writes that need the Lease may take effect; none before it was held. A loss does not
    /// change it, but nothing is sent then.
    pub fn writes_until(&self) -> Option<Millis> {
        self.ever_held.then(|| self.renewed_at.after(self.terms.writes_ms))
    }

    /// The next update, until `pop_update` removes it.
    pub fn update(&self) -> Option<&LeaseUpdate> {
        self.updates.first()
    }

    /// Removes the update that `update` returned, because it was delivered.
    pub fn pop_update(&mut self) {
        self.updates.remove(0);
    }

    /// Reserves the ids up to `up_to`, and the rest of their block. Writes the Lease even if they
    /// are reserved already, because the server may have been restored to an older state.
    pub fn reserve(&mut self, up_to: ExecutorId) {
        let block = ExecutorId(up_to.0.div_ceil(ID_BLOCK).saturating_mul(ID_BLOCK));
        self.ids_wanted = self.ids_wanted.max(Some(block));
        if self.held {
            self.due_at = Millis::ZERO;
        }
    }

    /// Releases the Lease if it is held, and tries so until `by`.
    pub fn stop(&mut self, release: LeaseRelease, by: Millis) {
        self.stop = Some((release, by));
        self.due_at = Millis::ZERO;
        self.not_before = Millis::ZERO;
        self.n_failures = 0;
        self.must_read |= !self.held || self.is_write_unresolved;
    }

    /// We hold the Lease, or only the server knows whether we do.
    fn may_be_ours(&self) -> bool {
        self.held || self.is_write_unresolved || self.is_new_holder_unknown
    }

    pub fn is_stopping(&self) -> bool {
        self.stop.is_some()
    }

    /// The Lease was read; none if it does not exist.
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
        self.is_write_unresolved = false;
        match answer {
            None => {
                self.record = None;
                self.done |= self.stop.is_some();
                self.write_next();
            }
            Some((record, _)) if !record.is_ours => self.on_not_ours(now),
            Some((record, holder_state)) => {
                // No other live process has our identity.
                let named_us = record.holder == self.identity;
                if self.stop.is_some() {
                    // During a stop the only remaining task is to release the Lease.
                    (self.held, self.renewed_at) = (named_us, now);
                    self.is_new_holder_unknown = false;
                }
                let free =
                    record.holder.is_empty() || named_us || holder_state == HolderState::Gone;
                if free || self.is_expired(&record, holder_state, now) {
                    self.from = (!named_us && self.stands_by())
                        .then(|| standby::takeover(&record, holder_state, wall_ms));
                    self.record = Some(record);
                    self.write_next();
                } else {
                    self.on_foreign(record, holder_state, now, wall_ms);
                }
            }
        }
    }

    /// The answer to a write that was sent at `sent_at`.
    pub fn on_written(&mut self, answer: Result<Record, Refusal>, sent_at: Millis, now: Millis) {
        match answer {
            Ok(_) if self.stop.is_some() => self.done = true,
            // The host was suspended, or the server took too long: another process may hold it by now.
            Ok(_) if now.since(sent_at) >= self.terms.give_up_ms => {
                self.is_write_unresolved = true;
                self.must_read = true;
                self.due_at = now;
            }
            Ok(record) => self.on_held(record, sent_at),
            Err(refusal) => {
                self.is_write_unresolved = refusal.class == RefusalClass::OutcomeUnknown;
                self.on_refused(refusal, now);
            }
        }
    }

    /// The answer to a delete.
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
        let is_first = !self.held;
        if is_first {
            let id_high_water = self.record.as_ref().and_then(|before| before.id_high_water);
            let from = self.from.take();
            self.push_update(LeaseUpdate::Held { id_high_water, from });
        }
        self.record = Some(record);
        (self.held, self.ever_held, self.is_write_unresolved) = (true, true, false);
        // Those that started, or that a server refused, at one moment would renew in step from then on.
        let wait_ms = if is_first || self.n_failures > 0 {
            self.terms.renew_ms - self.rng.below(self.terms.renew_ms)
        } else {
            self.terms.renew_ms
        };
        self.is_new_holder_unknown = false;
        self.n_failures = 0;
        self.observed = None;
        self.renewed_at = sent_at;
        self.due_at = sent_at.after(wait_ms);
        self.report_reserved();
    }

    /// Another program's Lease has our name: whether it is held or not, it is not taken over.
    fn on_not_ours(&mut self, now: Millis) {
        if !self.ever_held {
            self.push_update(LeaseUpdate::Foreign);
        } else if self.held || self.is_new_holder_unknown {
            self.lose(Some("another program, whose lease has our name".to_owned()));
        }
        self.done |= !self.ever_held || self.yields || self.stop.is_some();
        self.due_at = now.after(self.terms.renew_ms);
    }

    /// Another holder has the Lease, and is not known to be dead.
    fn on_foreign(&mut self, record: Record, holder: HolderState, now: Millis, wall_ms: i64) {
        if self.held || self.is_new_holder_unknown {
            self.lose(Some(record.holder.clone()));
        }
        if self.ever_held && self.yields {
            self.done = true;
            return;
        }
        let since = *self.foreign_since.get_or_insert(now);
        let wait = if self.ever_held { HolderWait::No } else { self.wait };
        let may_be_released = match wait {
            HolderWait::No => false,
            HolderWait::ForItsEnd => {
                holder == HolderState::Ending || now.since(since) < HOLDER_WAIT_MS
            }
            HolderWait::StandsBy => true,
        };
        let same = self.observed.as_ref().is_some_and(|(seen, _)| *seen == record.version_text);
        let alive = if self.observed.is_some() { !same } else { looks_fresh(&record, wall_ms) };
        if alive && !self.ever_held && !may_be_released {
            self.done = true;
            return self.push_update(LeaseUpdate::HeldBy { holder: record.holder });
        }
        if !same {
            self.observed = Some((record.version_text.clone(), now));
        }
        let since = self.observed.as_ref().map_or(now, |(_, since)| *since);
        let until = since.after(observation_ms(&record, holder));
        let look_ms = match wait {
            HolderWait::No => self.terms.renew_ms,
            HolderWait::ForItsEnd => HOLDER_POLL_MS,
            HolderWait::StandsBy => self.look_ms(&record, wall_ms),
        };
        self.due_at = now.after(look_ms).min(until);
        if !self.ever_held && !same {
            self.push_update(LeaseUpdate::Waiting { holder: record.holder, until });
        }
        self.n_failures = 0;
    }

    fn on_refused(&mut self, refusal: Refusal, now: Millis) {
        if refusal.class == RefusalClass::Forbidden && !self.ever_held {
            self.done = true;
            return self.push_update(LeaseUpdate::Forbidden { message: refusal.message });
        }
        // The Lease was changed or deleted: read it first. At once after the first such answer,
        // with a backoff after more.
        let is_outdated = refusal.is_outdated();
        self.must_read |= is_outdated;
        self.n_failures = self.n_failures.saturating_add(1);
        if !is_outdated || self.n_failures > 1 {
            let backoff =
                delay_ms(self.n_failures, BACKOFF_MS, self.terms.backoff_ms_max, &mut self.rng);
            let asked = asked_ms(refusal.retry_delay_ms(), &mut self.rng);
            let asked = asked.min(self.terms.retry_after_ms_max);
            self.not_before = now.after(backoff.max(asked));
        }
        self.due_at = now;
        if !self.ever_held {
            self.push_update(LeaseUpdate::Retrying { refusal });
        }
    }

    fn lose(&mut self, holder: Option<String>) {
        self.held = false;
        self.is_new_holder_unknown = holder.is_none();
        // A stop may come when the server answers again, and before the next renewal.
        self.must_read |= self.stop.is_some();
        self.push_update(LeaseUpdate::Lost { holder });
    }

    fn write_next(&mut self) {
        self.must_read = false;
        self.due_at = Millis::ZERO;
    }

    fn is_expired(&self, record: &Record, holder: HolderState, now: Millis) -> bool {
        self.observed.as_ref().is_some_and(|(version, since)| {
            *version == record.version_text && now.since(*since) >= observation_ms(record, holder)
        })
    }

    fn our_record(&self, wall_ms: i64) -> Record {
        let before = self.record.clone().unwrap_or_default();
        let from_other = self.record.is_some() && before.holder != self.identity;
        Record {
            holder: self.identity.clone(),
            duration_s: self.terms.lease_s,
            acquired_ms: before.acquired_ms.filter(|_| self.held).or(Some(wall_ms)),
            renewed_ms: Some(wall_ms),
            unchanged_ms: None,
            transitions: before.transitions.saturating_add(from_other.into()),
            id_high_water: before.id_high_water.max(self.ids_wanted).max(self.ids_reported),
            owner: None,
            is_ours: true,
            ..before
        }
    }

    fn report_reserved(&mut self) {
        let stored = self.record.as_ref().and_then(|record| record.id_high_water);
        if let (Some(up_to), Some(wanted)) = (stored, self.ids_wanted)
            && up_to >= wanted
        {
            self.ids_wanted = None;
            self.ids_reported = self.ids_reported.max(Some(up_to));
            self.push_update(LeaseUpdate::IdsReserved { up_to });
        }
    }

    /// Adds an update, and removes those of the same kind: they are outdated.
    fn push_update(&mut self, update: LeaseUpdate) {
        self.updates.retain(|one| update_kind(one) != update_kind(&update));
        self.updates.push(update);
    }
}

/// Updates of the same kind replace each other.
fn update_kind(update: &LeaseUpdate) -> u8 {
    match update {
        LeaseUpdate::Held { .. }
        | LeaseUpdate::Foreign
        | LeaseUpdate::HeldBy { .. }
        | LeaseUpdate::Lost { .. }
        | LeaseUpdate::Forbidden { .. } => 0,
        LeaseUpdate::IdsReserved { .. } => 1,
        LeaseUpdate::Retrying { .. } | LeaseUpdate::Waiting { .. } => 2,
    }
}

/// Whether the Lease is fresh by its own `renewTime`. Only a hint, because clocks may differ.
fn looks_fresh(record: &Record, wall_ms: i64) -> bool {
    record.renewed_ms.is_some_and(|at| wall_ms.abs_diff(at) < duration_ms(record))
}

#[cfg(test)]
mod tests;
