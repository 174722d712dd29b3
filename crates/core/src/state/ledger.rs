//! The ledger of pending requests: creates by executor, mutations (deletes and patches) by pod uid.
//! An entry is written before its request is sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::model::ids::{ExecutorId, Uid};
use crate::model::input::Watermark;
use crate::model::pod_text::PodText;
use crate::state::snapshot::Snapshot;
use posse_base::time::Millis;

/// How long after it was sent a create of unknown outcome can still take effect, and a LIST be answered: the API
/// server's request timeout.
pub const CREATE_OPEN_MS: u64 = 60_000;
/// How long after an accepted delete the pod must be terminating; otherwise the delete is sent
/// again.
pub const DELETE_SEEN_MS: u64 = 60_000;
/// The limit of deletes and patches in flight.
pub const MUTATIONS_IN_FLIGHT_MAX: usize = 16;

/// What a create waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateStep {
    /// The answer to the POST.
    Answer,
    /// The answer to the GET after an AlreadyExists.
    Check,
    /// The time to send the GET again.
    CheckAt(Millis),
    /// Cancelled, but a request may still take effect until then.
    AwaitLateEffect(Millis),
    /// The time to send the POST again with the same name.
    PostAt(Millis),
}

/// One create, from before its first POST until its pod is seen or it can no longer take effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    pub step: CreateStep,
    /// What had been applied before the last request was sent.
    pub watermark: Watermark,
    /// When the last request was sent.
    pub sent_at: Millis,
    /// When the last POST with an unknown outcome was sent: its pod may exist.
    pub unknown_since: Option<Millis>,
    /// The number of POSTs with an unknown outcome.
    pub n_unknown: u32,
    pub n_tries: u32,
    /// The template of the last POST; none before the first.
    pub pod: Option<Arc<PodText>>,
}

impl Create {
    /// True if a request is in flight.
    pub fn is_in_flight(&self) -> bool {
        match self.step {
            CreateStep::Answer | CreateStep::Check => true,
            CreateStep::CheckAt(_) | CreateStep::AwaitLateEffect(_) | CreateStep::PostAt(_) => {
                false
            }
        }
    }

    /// Until when one of its requests may take effect; none if none can.
    pub fn open_until(&self) -> Option<Millis> {
        match self.step {
            CreateStep::Answer | CreateStep::Check => Some(self.sent_at.after(CREATE_OPEN_MS)),
            CreateStep::CheckAt(_) | CreateStep::AwaitLateEffect(_) | CreateStep::PostAt(_) => {
                self.unknown_since.map(|at| at.after(CREATE_OPEN_MS))
            }
        }
    }
}

/// Unresolved creates: POSTs of closed creates that may still create a second pod with the same
/// name. Several POSTs had an unknown outcome, and only one of them created the pod that was seen.
#[derive(Clone, Debug, Default)]
pub struct UnresolvedCreates {
    open_until: BTreeMap<ExecutorId, Millis>,
    /// Those that can no longer take effect, and since when. Their pods may exist until a LIST that was
    /// sent later is answered.
    unlisted: BTreeMap<ExecutorId, Millis>,
}

impl UnresolvedCreates {
    /// The create of `id` is closed. `is_acknowledged`: by the answer to its last POST, so that all
    /// POSTs of unknown outcome stay unresolved.
    pub fn add(&mut self, id: ExecutorId, create: &Create, is_acknowledged: bool) {
        let n_open = create.n_unknown.saturating_sub(u32::from(!is_acknowledged));
        if n_open > 0
            && let Some(at) = create.unknown_since
        {
            self.open_until.insert(id, at.after(CREATE_OPEN_MS));
        }
    }

    /// Until when one of them may take effect.
    pub fn open_until(&self) -> Option<Millis> {
        self.open_until.values().copied().max()
    }

    /// Some of them can no longer take effect.
    pub fn expire(&mut self, now: Millis) {
        let expired = self.open_until.extract_if(.., |_, until| *until <= now);
        self.unlisted.extend(expired.map(|(id, _)| (id, now)));
    }

    /// A create of unknown outcome was given up. It can no longer take effect, and its pod was not seen.
    pub fn note_unlisted(&mut self, id: ExecutorId, now: Millis) {
        self.unlisted.insert(id, now);
    }

    /// A LIST that was sent then showed every pod that there was.
    pub fn on_listed(&mut self, sent_at: Millis) {
        self.unlisted.retain(|_, closed_at| *closed_at > sent_at);
    }

    /// When the last of those that no LIST has shown was closed.
    pub fn last_unlisted(&self) -> Option<Millis> {
        self.unlisted.values().copied().max()
    }

    /// Those whose pods may exist.
    pub fn ids(&self) -> impl Iterator<Item = ExecutorId> {
        self.open_until.keys().chain(self.unlisted.keys()).copied()
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

/// What a mutation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationStep {
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

/// A pending mutation of one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingMutation {
    pub kind: MutationKind,
    pub step: MutationStep,
    pub name: Box<str>,
    pub n_tries: u32,
}

/// Pending mutations by pod uid, and their order.
#[derive(Clone, Debug, Default)]
pub struct Mutations {
    by_uid: BTreeMap<Uid, PendingMutation>,
    ready: VecDeque<Uid>,
    n_in_flight: usize,
    /// Requests in flight whose mutation was removed, or that were sent before a resourceVersion
    /// rollback. Their answers are ignored, and until then no other request for the pod is sent.
    abandoned: BTreeSet<Uid>,
    /// Pods that must not be deleted yet, and for how many reasons.
    held: BTreeMap<Uid, u32>,
}

impl Mutations {
    /// Requests a mutation of this pod. A delete replaces a patch, and a force-delete replaces
    /// both; never the other way round. Only a deleted pod leaves its queue.
    pub fn request(&mut self, uid: &Uid, name: &str, kind: MutationKind) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            let replaces = mutation.kind.is_patch()
                || matches!(kind, MutationKind::ForceDelete | MutationKind::LeaveQueue);
            if replaces {
                mutation.kind = kind;
                if matches!(mutation.step, MutationStep::Accepted(_) | MutationStep::RetryAt(_)) {
                    self.send_again(uid);
                }
            }
            return;
        }
        let mutation =
            PendingMutation { kind, step: MutationStep::Ready, name: name.into(), n_tries: 0 };
        self.by_uid.insert(uid.clone(), mutation);
        self.ready.push_back(uid.clone());
    }

    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// The pending mutation of that pod.
    pub fn get(&self, uid: &Uid) -> Option<&PendingMutation> {
        self.by_uid.get(uid)
    }

    /// True if a failed pod is still to be labelled as counted.
    pub fn has_pending_counted_label(&self) -> bool {
        self.by_uid.values().any(|mutation| mutation.kind == MutationKind::LabelCounted)
    }

    /// True if a pod is still to leave its queue.
    pub fn has_pending_leave(&self) -> bool {
        self.by_uid.values().any(|mutation| mutation.kind == MutationKind::LeaveQueue)
    }

    /// The names of pods with a pending mutation that are not in the snapshot: they lack our
    /// labels, so no LIST shows them.
    pub fn names_not_in(&self, snapshot: &Snapshot) -> impl Iterator<Item = &str> {
        self.by_uid
            .iter()
            .filter(|(uid, _)| snapshot.get(uid).is_none())
            .map(|(_, mutation)| &*mutation.name)
    }

    /// True if another request may be sent.
    pub fn has_free_slot(&self) -> bool {
        self.n_in_flight < MUTATIONS_IN_FLIGHT_MAX
    }

    /// The number of requests in flight.
    pub fn n_in_flight(&self) -> usize {
        self.n_in_flight
    }

    /// Defers the delete of this pod until each hold has its `release_delete`.
    pub fn hold_delete(&mut self, uid: &Uid) {
        *self.held.entry(uid.clone()).or_default() += 1;
    }

    /// Ends one hold. Without another one the pod may be deleted again.
    pub fn release_delete(&mut self, uid: &Uid) {
        let Some(n_holds) = self.held.get_mut(uid) else { return };
        *n_holds -= 1;
        if *n_holds > 0 {
            return;
        }
        self.held.remove(uid);
        if self.get(uid).is_some_and(|c| c.step == MutationStep::Ready) {
            self.ready.push_back(uid.clone());
        }
    }

    /// The next mutation that is ready, and in flight now.
    pub fn send_next(&mut self) -> Option<(Uid, &PendingMutation)> {
        while let Some(uid) = self.ready.pop_front() {
            let Some(mutation) = self.by_uid.get_mut(&uid) else { continue };
            // A deferred delete is ready again after `release_delete`.
            let is_label =
                matches!(mutation.kind, MutationKind::LabelCompleted | MutationKind::LabelCounted);
            let is_held = !is_label && self.held.contains_key(&uid);
            if mutation.step == MutationStep::Ready && !self.abandoned.contains(&uid) && !is_held {
                (mutation.step, mutation.n_tries) =
                    (MutationStep::Answer, mutation.n_tries.saturating_add(1));
                self.n_in_flight += 1;
                return self.by_uid.get(&uid).map(|mutation| (uid, mutation));
            }
        }
        None
    }

    /// The request in flight was answered. Returns the mutation; none if the answer is ignored.
    pub fn on_answered(&mut self, uid: &Uid) -> Option<&mut PendingMutation> {
        self.n_in_flight = self.n_in_flight.saturating_sub(1);
        if self.abandoned.remove(uid) {
            self.ready.push_back(uid.clone());
            return None;
        }
        let mutation = self.by_uid.get_mut(uid)?;
        // Nothing is in flight now; the caller sets the next step.
        mutation.step = MutationStep::Ready;
        Some(mutation)
    }

    /// After a resourceVersion rollback what was sent or accepted before it is sent again.
    pub fn on_rollback(&mut self) {
        for (uid, mutation) in &mut self.by_uid {
            match mutation.step {
                MutationStep::Answer => {
                    self.abandoned.insert(uid.clone());
                }
                MutationStep::Accepted(_) => self.ready.push_back(uid.clone()),
                MutationStep::Ready | MutationStep::RetryAt(_) => continue,
            }
            mutation.step = MutationStep::Ready;
        }
    }

    /// The mutation may be sent (again).
    pub fn send_again(&mut self, uid: &Uid) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            mutation.step = MutationStep::Ready;
            self.ready.push_back(uid.clone());
        }
    }

    /// Sets when a mutation is sent again.
    pub fn retry_at(&mut self, uid: &Uid, at: Millis) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            mutation.step = MutationStep::RetryAt(at);
        }
    }

    /// The pod is gone, or the mutation is done.
    pub fn remove(&mut self, uid: &Uid) {
        let Some(mutation) = self.by_uid.remove(uid) else { return };
        if mutation.step == MutationStep::Answer {
            self.abandoned.insert(uid.clone());
        }
    }
}
