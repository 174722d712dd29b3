//! What posse asks of the server beside creates: changes and deletes of pods, and what it reads before. An errand is
//! written down before its request is sent.
//!
//! Always true: no more requests of one kind are in flight than its limit, each pod has at most one errand of a kind,
//! and no pod is deleted before it was read and before another pod tells what it told.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::model::event::Subject;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::task::TaskOutput;
use crate::state::snapshot::Snapshot;
use posse_base::time::Millis;

/// The limits of requests in flight, by kind. The next report of memory asks again for what was left out.
pub const MUTATIONS_IN_FLIGHT_MAX: usize = 16;
pub const LOG_READS_IN_FLIGHT_MAX: usize = 4;
pub const OUTPUTS_IN_FLIGHT_MAX: usize = 4;
pub const POD_READS_IN_FLIGHT_MAX: usize = 4;
pub const NODE_READS_IN_FLIGHT_MAX: usize = 1;
/// It is about all slots.
pub const CLAIMS_IN_FLIGHT_MAX: usize = 1;
pub const RESIZES_IN_FLIGHT_MAX: usize = 4;
pub const PROTECTS_IN_FLIGHT_MAX: usize = 16;

/// The limit of logs within `LOGS_WINDOW_MS`: many failures at once are usually the same failure.
const LOGS_MAX: usize = 20;
const LOGS_WINDOW_MS: u64 = 60_000;
/// Outputs that wait to be read. Their pods stay so long.
const OUTPUTS_WAITING_MAX: usize = 1_000;

/// What an errand waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The server accepted the delete. If the pod is not terminating at that time, the delete is
    /// sent again: a resourceVersion rollback may have undone it.
    Accepted(Millis),
    /// The answer to the request in flight.
    Answer,
    /// A free request slot.
    Ready,
    /// The time to send the request again.
    RetryAt(Millis),
}

/// A pending errand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errand<T> {
    pub what: T,
    pub step: Step,
    pub n_tries: u32,
}

/// The errands of one kind, and their order.
#[derive(Clone, Debug)]
pub struct Queue<K, T> {
    limit: usize,
    by_key: BTreeMap<K, Errand<T>>,
    ready: VecDeque<K>,
    n_in_flight: usize,
    /// Requests in flight whose errand was removed, or that were sent before a resourceVersion
    /// rollback. Their answers are ignored, and until then no other request for the same is sent.
    abandoned: BTreeSet<K>,
    /// The server has refused them for good: no more are sent.
    is_off: bool,
}

impl<K: Clone + Ord, T> Queue<K, T> {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            by_key: BTreeMap::new(),
            ready: VecDeque::new(),
            n_in_flight: 0,
            abandoned: BTreeSet::new(),
            is_off: false,
        }
    }

    /// Notes an errand. One that is there already stays as it is, and is sent again if it waits for its time.
    pub fn add(&mut self, key: K, what: T) {
        match self.by_key.get(&key).map(|errand| errand.step) {
            Some(Step::Accepted(_) | Step::RetryAt(_)) => self.send_again(&key),
            Some(Step::Answer | Step::Ready) => {}
            None => {
                let errand = Errand { what, step: Step::Ready, n_tries: 0 };
                self.by_key.insert(key.clone(), errand);
                self.ready.push_back(key);
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn get(&self, key: &K) -> Option<&Errand<T>> {
        self.by_key.get(key)
    }

    /// True if one is still to be sent, or to be answered.
    pub fn is_waiting(&self) -> bool {
        self.by_key.values().any(|errand| !matches!(errand.step, Step::Accepted(_)))
    }

    /// True if another request may be sent.
    pub fn has_room(&self) -> bool {
        !self.is_off && self.n_in_flight < self.limit
    }

    /// How many have no request in flight.
    pub fn n_waiting(&self) -> usize {
        self.by_key.len().saturating_sub(self.n_in_flight)
    }

    /// The next errand that is ready, and in flight now. One that `is_held` waits for `wake`.
    pub fn send_next(&mut self, is_held: impl Fn(&K, &T) -> bool) -> Option<(K, &Errand<T>)> {
        while self.has_room()
            && let Some(key) = self.ready.pop_front()
        {
            let Some(errand) = self.by_key.get_mut(&key) else { continue };
            let is_abandoned = self.abandoned.contains(&key);
            if errand.step == Step::Ready && !is_abandoned && !is_held(&key, &errand.what) {
                (errand.step, errand.n_tries) = (Step::Answer, errand.n_tries.saturating_add(1));
                self.n_in_flight += 1;
                return self.by_key.get(&key).map(|errand| (key, errand));
            }
        }
        None
    }

    /// A request is in flight now, if there is room. It is not repeated, so no more is known of it.
    pub fn send_once(&mut self) -> bool {
        let has_room = self.has_room();
        self.n_in_flight += usize::from(has_room);
        has_room
    }

    /// The request in flight was answered. Returns the errand; none if the answer is ignored.
    pub fn on_answered(&mut self, key: &K) -> Option<&mut Errand<T>> {
        self.n_in_flight = self.n_in_flight.saturating_sub(1);
        if self.abandoned.remove(key) {
            self.ready.push_back(key.clone());
            return None;
        }
        let errand = self.by_key.get_mut(key)?;
        // Nothing is in flight now; the caller sets the next step.
        errand.step = Step::Ready;
        Some(errand)
    }

    /// The request in flight was answered, and that was all.
    pub fn end(&mut self, key: &K) -> Option<T> {
        self.on_answered(key)?;
        self.remove(key)
    }

    /// After a resourceVersion rollback what was sent or accepted before it is sent again.
    pub fn on_rollback(&mut self) {
        for (key, errand) in &mut self.by_key {
            match errand.step {
                Step::Answer => {
                    self.abandoned.insert(key.clone());
                }
                Step::Accepted(_) => self.ready.push_back(key.clone()),
                Step::Ready | Step::RetryAt(_) => continue,
            }
            errand.step = Step::Ready;
        }
    }

    /// The errand may be sent (again).
    pub fn send_again(&mut self, key: &K) {
        if let Some(errand) = self.by_key.get_mut(key) {
            errand.step = Step::Ready;
            self.ready.push_back(key.clone());
        }
    }

    /// Nothing holds the errand any more, or not for this reason.
    pub fn wake(&mut self, key: &K) {
        if self.get(key).is_some_and(|errand| errand.step == Step::Ready) {
            self.ready.push_back(key.clone());
        }
    }

    /// Sets when an errand is sent again.
    pub fn retry_at(&mut self, key: &K, at: Millis) {
        if let Some(errand) = self.by_key.get_mut(key) {
            errand.step = Step::RetryAt(at);
        }
    }

    /// The errand is done, or it has become pointless.
    pub fn remove(&mut self, key: &K) -> Option<T> {
        let errand = self.by_key.remove(key)?;
        if errand.step == Step::Answer {
            self.abandoned.insert(key.clone());
        }
        Some(errand.what)
    }

    fn check(&self) {
        debug_assert!(self.n_in_flight <= self.limit, "{} are in flight", self.n_in_flight);
    }

    pub fn is_off(&self) -> bool {
        self.is_off
    }

    /// The server refuses them for good. What waits is forgotten.
    pub fn turn_off(&mut self) {
        self.is_off = true;
        self.by_key.clear();
    }
}

/// The kind of a mutation of a pod. A pod is marked only if it stays for a while: a restarted posse
/// reads from the deletionTimestamp that a deleted one is no capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationKind {
    /// Set the label `posse.dev/completed` on the record of an executor whose work is done: a restarted
    /// posse would report it again.
    LabelCompleted,
    /// Set the label `posse.dev/counted` on a pod that is retained: a restarted posse would report
    /// and charge its loss again, and a stop would delete it.
    LabelCounted,
    /// Take a pod out of its group in a queue, which keeps it until another one takes its place.
    LeaveQueue,
    Delete,
    /// Delete it with grace period 0, because its node is gone and no kubelet can end it.
    ForceDelete,
    /// Set the annotation `posse.dev/draining`: the drain period may last for hours, and a restarted
    /// posse would take the executor back, or report its kill again.
    Annotate,
}

impl MutationKind {
    /// True if the pod stays.
    pub fn is_patch(self) -> bool {
        match self {
            Self::Annotate | Self::LabelCompleted | Self::LabelCounted | Self::LeaveQueue => true,
            Self::Delete | Self::ForceDelete => false,
        }
    }
}

/// A mutation of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutation {
    pub kind: MutationKind,
    pub name: Box<str>,
}

impl Queue<Uid, Mutation> {
    /// Requests a mutation of this pod. A delete replaces a patch, and a force-delete replaces
    /// both; never the other way round. Only a deleted pod leaves its queue.
    pub fn request(&mut self, uid: &Uid, name: &str, kind: MutationKind) {
        let known = self.by_key.get_mut(uid).map(|errand| &mut errand.what.kind);
        match known {
            Some(known)
                if !known.is_patch()
                    && !matches!(kind, MutationKind::ForceDelete | MutationKind::LeaveQueue) =>
            {
                return;
            }
            Some(known) => *known = kind,
            None => {}
        }
        self.add(uid.clone(), Mutation { kind, name: name.into() });
    }

    /// True if such a mutation is still to be made.
    pub fn has(&self, kind: MutationKind) -> bool {
        self.by_key.values().any(|errand| errand.what.kind == kind)
    }

    /// The names of pods with a pending mutation that are not in the snapshot: they lack our
    /// labels, so no LIST shows them.
    pub fn names_not_in(&self, snapshot: &Snapshot) -> impl Iterator<Item = &str> {
        let unseen = self.by_key.iter().filter(|(uid, _)| snapshot.get(uid).is_none());
        unseen.map(|(_, errand)| &*errand.what.name)
    }
}

/// All errands.
#[derive(Clone, Debug)]
pub struct Errands {
    pub mutations: Queue<Uid, Mutation>,
    pub logs: Queue<Uid, Subject>,
    pub outputs: Queue<Uid, TaskOutput>,
    /// Executors whose pods are read, because the driver has lost them.
    pub pods: Queue<ExecutorId, ()>,
    /// Nodes on which pods do not end.
    pub nodes: Queue<Box<str>, ()>,
    /// The claims of slots whose work is done.
    pub claims: Queue<(), ()>,
    pub resizes: Queue<ExecutorId, ()>,
    pub protects: Queue<ExecutorId, ()>,
    /// The pods of records that no other record tells of yet.
    untold: BTreeSet<Uid>,
    /// When the last logs were asked for.
    logs_sent: VecDeque<Millis>,
    /// Outputs that were not read because too many waited, since the last read began.
    n_outputs_skipped: u32,
}

impl Default for Errands {
    fn default() -> Self {
        Self {
            mutations: Queue::new(MUTATIONS_IN_FLIGHT_MAX),
            logs: Queue::new(LOG_READS_IN_FLIGHT_MAX),
            outputs: Queue::new(OUTPUTS_IN_FLIGHT_MAX),
            pods: Queue::new(POD_READS_IN_FLIGHT_MAX),
            nodes: Queue::new(NODE_READS_IN_FLIGHT_MAX),
            claims: Queue::new(CLAIMS_IN_FLIGHT_MAX),
            resizes: Queue::new(RESIZES_IN_FLIGHT_MAX),
            protects: Queue::new(PROTECTS_IN_FLIGHT_MAX),
            untold: BTreeSet::new(),
            logs_sent: VecDeque::new(),
            n_outputs_skipped: 0,
        }
    }
}

impl Errands {
    /// The next deletion or patch, which is in flight now. A label changes nothing of what is still to be read.
    /// `waits_for_reads`: there is time for it.
    pub fn next_mutation(&mut self, waits_for_reads: bool) -> Option<(Uid, &Errand<Mutation>)> {
        let Self { mutations, logs, outputs, untold, .. } = self;
        mutations.send_next(|uid, mutation| match mutation.kind {
            MutationKind::LabelCompleted | MutationKind::LabelCounted => false,
            MutationKind::Annotate
            | MutationKind::Delete
            | MutationKind::ForceDelete
            | MutationKind::LeaveQueue => {
                let is_read = logs.get(uid).is_some() || outputs.get(uid).is_some();
                waits_for_reads && is_read || untold.contains(uid)
            }
        })
    }

    /// This log is to be read, unless too many were within the last minute.
    pub fn add_log(&mut self, uid: Uid, subject: Subject, now: Millis) -> Result<(), Subject> {
        while self.logs_sent.front().is_some_and(|&at| now.since(at) >= LOGS_WINDOW_MS) {
            self.logs_sent.pop_front();
        }
        if self.logs_sent.len() + self.logs.n_waiting() >= LOGS_MAX {
            return Err(subject);
        }
        self.logs.add(uid, subject);
        Ok(())
    }

    /// The next log, which is being read now.
    pub fn next_log(&mut self, now: Millis) -> Option<Uid> {
        let (uid, _) = self.logs.send_next(|_, _| false)?;
        self.logs_sent.push_back(now);
        Some(uid)
    }

    /// This output is to be read, unless too many wait.
    pub fn add_output(&mut self, output: TaskOutput) {
        if self.outputs.n_waiting() >= OUTPUTS_WAITING_MAX {
            self.n_outputs_skipped = self.n_outputs_skipped.saturating_add(1);
        } else {
            self.outputs.add(output.uid.clone(), output);
        }
    }

    /// The next output, which is being read now, and how many were skipped before it.
    pub fn next_output(&mut self) -> Option<(TaskOutput, u32)> {
        let (_, errand) = self.outputs.send_next(|_, _| false)?;
        Some((errand.what.clone(), std::mem::take(&mut self.n_outputs_skipped)))
    }

    /// Something is still to be read before its pod is deleted.
    pub fn are_reads_open(&self) -> bool {
        !self.logs.is_empty() || !self.outputs.is_empty()
    }

    /// The pod of this record is deleted as soon as another one tells of it.
    pub fn hold_untold(&mut self, uid: &Uid) {
        self.untold.insert(uid.clone());
    }

    /// Another one tells of it, or nobody has to.
    pub fn on_told(&mut self, uid: &Uid) {
        self.untold.remove(uid);
        self.mutations.wake(uid);
    }

    pub fn check(&self) {
        self.mutations.check();
        self.logs.check();
        self.outputs.check();
        self.pods.check();
        self.nodes.check();
        self.claims.check();
        self.resizes.check();
        self.protects.check();
    }
}
