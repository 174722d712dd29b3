//! Owns what was asked of the server and is not settled: creates by executor, chores (deletes and
//! patches) by uid. Entries are written before the request leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::core::model::ids::{ExecutorId, Uid};
use crate::core::model::input::Watermark;
use crate::core::model::pod_text::PodText;
use crate::core::model::time::Millis;
use crate::core::state::snapshot::Snapshot;

/// A create of unknown outcome can still take effect for so long after it was sent: the server's
/// own limit on a request.
pub const CREATE_OPEN_MS: u64 = 60_000;
/// A pod whose delete the server took is seen to be on its way out within so long.
pub const DELETE_SEEN_MS: u64 = 60_000;
/// So many deletes and patches are under way at a time.
pub const MUTATIONS_IN_FLIGHT_MAX: usize = 16;

/// What a create waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateStep {
    /// The answer to the POST.
    Answer,
    /// The answer to the GET that settles an AlreadyExists.
    Check,
    /// The time to GET (again) what stands under the name.
    CheckAt(Millis),
    /// Nothing any more: given up, but a late pod may still come until then.
    Linger(Millis),
    /// The time to send the POST again, under the same name.
    PostAt(Millis),
}

/// One create, from before its first POST until it is settled by sight, answer, refusal or time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Create {
    pub step: CreateStep,
    /// What had been applied before the last request was sent.
    pub asked: Watermark,
    /// When the last request was sent.
    pub sent_at: Millis,
    /// A POST whose outcome is unknown was last sent then: a pod may exist.
    pub unknown_since: Option<Millis>,
    /// So many POSTs have an unknown outcome.
    pub n_unknown: u32,
    pub n_tries: u32,
    /// What the last POST asked for; none before the first.
    pub pod: Option<Arc<PodText>>,
}

impl Create {
    /// True where a request is under way.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        match self.step {
            CreateStep::Answer | CreateStep::Check => true,
            CreateStep::CheckAt(_) | CreateStep::Linger(_) | CreateStep::PostAt(_) => false,
        }
    }

    /// When nothing can come of it any more, as far as it was ever sent.
    #[must_use]
    pub fn open_until(&self) -> Option<Millis> {
        match self.step {
            CreateStep::Answer | CreateStep::Check => Some(self.sent_at.after(CREATE_OPEN_MS)),
            CreateStep::CheckAt(_) | CreateStep::Linger(_) | CreateStep::PostAt(_) => {
                self.unknown_since.map(|at| at.after(CREATE_OPEN_MS))
            }
        }
    }
}

/// POSTs that nobody waits for any more, and that may still come to a second pod under their name:
/// several had an unknown outcome, and only one of them made the pod that was seen.
#[derive(Clone, Debug, Default)]
pub struct UnresolvedCreates {
    open_until: BTreeMap<ExecutorId, Millis>,
}

impl UnresolvedCreates {
    /// The create of `id` is settled. `is_acknowledged`: by the answer to its last POST, which
    /// leaves every one of unknown outcome open.
    pub fn note(&mut self, id: ExecutorId, create: &Create, is_acknowledged: bool) {
        let n_open = create.n_unknown.saturating_sub(u32::from(!is_acknowledged));
        if n_open > 0
            && let Some(at) = create.unknown_since
        {
            self.open_until.insert(id, at.after(CREATE_OPEN_MS));
        }
    }

    /// Until when something may still come of one of them.
    #[must_use]
    pub fn open_until(&self) -> Option<Millis> {
        self.open_until.values().copied().max()
    }

    /// The ones that are open, and nothing else.
    pub fn forget_past(&mut self, now: Millis) {
        self.open_until.retain(|_, until| *until > now);
    }

    /// Whose they are.
    pub fn ids(&self) -> impl Iterator<Item = ExecutorId> {
        self.open_until.keys().copied()
    }
}

/// What is to be done to a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationKind {
    /// Label it as counted.
    LabelCounted,
    /// Delete it.
    Delete,
    /// Delete it without grace: nobody is there any more who could end it.
    ForceDelete,
    /// Mark it as draining.
    Annotate,
    /// Mark it as draining, then delete it.
    AnnotateAndDelete,
}

/// What a chore waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationStep {
    /// The server took the delete. Where the pod is not on its way out by then, it is asked again:
    /// history may have gone back over it.
    Accepted(Millis),
    /// The answer to the request under way.
    Answer,
    /// Its turn.
    Queued,
    /// The time to ask again.
    RetryAt(Millis),
}

/// One thing to be done to one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingMutation {
    pub kind: MutationKind,
    pub step: MutationStep,
    pub name: Box<str>,
    pub n_tries: u32,
    /// Sent before history went back: the answer tells nothing.
    pub is_void: bool,
}

/// Chores by the uid of their pod, and the order they were asked for in.
#[derive(Clone, Debug, Default)]
pub struct Mutations {
    by_uid: BTreeMap<Uid, PendingMutation>,
    queue: VecDeque<Uid>,
    n_in_flight: usize,
    /// Requests under way whose chore was removed: their answers tell nothing, and the pod (which
    /// a history that went back may bring again) gets no other request before them.
    orphans: BTreeSet<Uid>,
    /// Pods that are not deleted for now.
    held: BTreeSet<Uid>,
}

impl Mutations {
    /// Asks for `kind` on this pod. A delete replaces a lesser chore; never the other way round.
    pub fn ask(&mut self, uid: &Uid, name: &str, kind: MutationKind) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            let is_more =
                matches!(mutation.kind, MutationKind::LabelCounted | MutationKind::Annotate)
                    || kind == MutationKind::ForceDelete;
            if is_more {
                mutation.kind = kind;
                if matches!(mutation.step, MutationStep::Accepted(_) | MutationStep::RetryAt(_)) {
                    self.queue(uid);
                }
            }
            return;
        }
        let mutation = PendingMutation {
            kind,
            step: MutationStep::Queued,
            name: name.into(),
            n_tries: 0,
            is_void: false,
        };
        self.by_uid.insert(uid.clone(), mutation);
        self.queue.push_back(uid.clone());
    }

    /// True where nothing is to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_uid.is_empty()
    }

    /// The chore on that pod.
    #[must_use]
    pub fn get(&self, uid: &Uid) -> Option<&PendingMutation> {
        self.by_uid.get(uid)
    }

    /// True where a failed pod is still to be labelled as counted.
    #[must_use]
    pub fn has_counts(&self) -> bool {
        self.by_uid.values().any(|mutation| mutation.kind == MutationKind::LabelCounted)
    }

    /// The names of pods to be deleted that no LIST will ever show: they lack our labels.
    pub fn unseen(&self, snapshot: &Snapshot) -> impl Iterator<Item = &str> {
        self.by_uid
            .iter()
            .filter(|(uid, _)| snapshot.get(uid).is_none())
            .map(|(_, mutation)| &*mutation.name)
    }

    /// True where a request may leave now.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.n_in_flight < MUTATIONS_IN_FLIGHT_MAX
    }

    /// How many requests are under way.
    #[must_use]
    pub fn n_in_flight(&self) -> usize {
        self.n_in_flight
    }

    /// Keeps this pod from being deleted until it is released.
    pub fn hold(&mut self, uid: &Uid) {
        self.held.insert(uid.clone());
    }

    /// Lets this pod go.
    pub fn release(&mut self, uid: &Uid) {
        if self.held.remove(uid) && self.get(uid).is_some_and(|c| c.step == MutationStep::Queued) {
            self.queue.push_back(uid.clone());
        }
    }

    /// The next one in the queue, now under way.
    pub fn send_next(&mut self) -> Option<(Uid, &PendingMutation)> {
        while let Some(uid) = self.queue.pop_front() {
            let Some(mutation) = self.by_uid.get_mut(&uid) else { continue };
            // What is held is queued again by its release.
            let is_held = mutation.kind != MutationKind::LabelCounted && self.held.contains(&uid);
            if mutation.step == MutationStep::Queued && !self.orphans.contains(&uid) && !is_held {
                (mutation.step, mutation.n_tries) =
                    (MutationStep::Answer, mutation.n_tries.saturating_add(1));
                self.n_in_flight += 1;
                return self.by_uid.get(&uid).map(|mutation| (uid, mutation));
            }
        }
        None
    }

    /// The request under way was answered. The chore, to be moved on; none where there is none any
    /// more, or where it has to be asked again because the answer is void.
    pub fn on_answered(&mut self, uid: &Uid) -> Option<&mut PendingMutation> {
        self.n_in_flight = self.n_in_flight.saturating_sub(1);
        if self.orphans.remove(uid) {
            self.queue.push_back(uid.clone());
            return None;
        }
        let mutation = self.by_uid.get_mut(uid)?;
        if mutation.is_void {
            (mutation.is_void, mutation.step) = (false, MutationStep::Queued);
            self.queue.push_back(uid.clone());
            return None;
        }
        // Nothing is under way now; whoever moves it on says what it waits for.
        mutation.step = MutationStep::Queued;
        Some(mutation)
    }

    /// History went back: what is under way will be answered out of a time that never was, and
    /// what was done may be undone.
    pub fn roll_back(&mut self) {
        for (uid, mutation) in &mut self.by_uid {
            match mutation.step {
                MutationStep::Answer => mutation.is_void = true,
                MutationStep::Accepted(_) => {
                    mutation.step = MutationStep::Queued;
                    self.queue.push_back(uid.clone());
                }
                MutationStep::Queued | MutationStep::RetryAt(_) => {}
            }
        }
    }

    /// Puts a chore (back) into the queue.
    pub fn queue(&mut self, uid: &Uid) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            mutation.step = MutationStep::Queued;
            self.queue.push_back(uid.clone());
        }
    }

    /// Puts a chore off.
    pub fn retry_at(&mut self, uid: &Uid, at: Millis) {
        if let Some(mutation) = self.by_uid.get_mut(uid) {
            mutation.step = MutationStep::RetryAt(at);
        }
    }

    /// The pod is gone, or the chore is done.
    pub fn remove(&mut self, uid: &Uid) {
        let Some(mutation) = self.by_uid.remove(uid) else { return };
        if mutation.step == MutationStep::Answer {
            self.orphans.insert(uid.clone());
        }
    }
}
