//! What is ours: the names of our pods, and our ids. An instance never uses an id twice, also over restarts: ids are
//! reserved on the server in blocks before they are used.
//!
//! Always true: the next id is above every one that was given, seen or retired, and above those whose requests may still
//! create a pod.

use std::collections::BTreeMap;

use crate::model::ids::{ExecutorId, ID_MAX, STORED_ID_MAX, Uid};
use crate::model::pod::Pod;
use crate::state::executor::Executor;
use crate::state::ledger::{CREATE_OPEN_MS, Create};
use crate::state::ranges::Ranges;
use posse_base::time::Millis;

/// The size of a block.
pub const BLOCK: u64 = 1_000;
/// A new block is requested if fewer ids than this are left.
const LEFT_MIN: u64 = 500;
/// How long after a dropped request the reservation is requested again.
const REQUEST_AGAIN_MS: u64 = 1_000;

/// The identity of this run, as far as decisions need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    /// A pod's name is this prefix followed by the executor's id.
    pub pod_prefix: String,
    /// The uid of what owns the executors, the driver's pod or its Job; none outside a cluster.
    pub owner: Option<Uid>,
    /// The highest id that an earlier run of this instance may have used, as stored on the server.
    pub id_high_water: u64,
    /// The server stores the high water of this run.
    pub is_id_high_water_stored: bool,
    /// The time of `Millis::ZERO` in milliseconds since 1970, by the wall clock as it is set now:
    /// annotations on pods have wall time.
    pub start_unix_ms: u64,
}

/// The identity of this run, and its ids.
#[derive(Clone, Debug)]
pub struct Ours {
    identity: InstanceIdentity,
    next: u64,
    /// Ids up to here are reserved; none: the server does not store the high water.
    reserved: Option<u64>,
    requested: u64,
    /// Ids that other processes of this instance may have used.
    earlier: Ranges,
    /// Retired ids: their pod is gone, or they can never have one.
    retired: Ranges,
    /// A request that was dropped, and when it is sent again.
    dropped: Option<(ExecutorId, Millis)>,
    /// Closed creates that may still create a second pod with the same name, and until when: several of their POSTs had
    /// an unknown outcome, and only one of them created the pod that was seen.
    open_until: BTreeMap<ExecutorId, Millis>,
    /// Those that can no longer take effect, and since when. Their pods may exist until a LIST that was sent later is
    /// answered.
    unlisted: BTreeMap<ExecutorId, Millis>,
}

impl Ours {
    pub fn new(identity: InstanceIdentity) -> Self {
        let (reserved_before, is_stored) =
            (identity.id_high_water, identity.is_id_high_water_stored);
        let next = reserved_before.saturating_add(1);
        let mut earlier = Ranges::default();
        earlier.insert_all(1..if is_stored { next } else { BLOCK + 1 });
        Self {
            identity,
            next,
            reserved: is_stored.then_some(reserved_before),
            requested: reserved_before,
            earlier,
            retired: Ranges::default(),
            dropped: None,
            open_until: BTreeMap::new(),
            unlisted: BTreeMap::new(),
        }
    }

    pub fn identity(&self) -> &InstanceIdentity {
        &self.identity
    }

    /// The wall clock may have been set.
    pub fn set_start_time(&mut self, start_unix_ms: u64) {
        self.identity.start_unix_ms = start_unix_ms;
    }

    pub fn pod_name(&self, id: ExecutorId) -> String {
        format!("{}{id}", self.identity.pod_prefix)
    }

    /// True if posse created this pod: it has an executor's name, and either our owner's uid or an
    /// id in our own record. Anybody can write labels, so labels prove nothing. `executor`: the one with its id.
    pub fn is_ours(&self, pod: &Pod, executor: Option<&Executor>) -> bool {
        let is_owned = self.identity.owner.is_some() && self.has_our_owner(pod);
        self.has_our_name(pod)
            && (is_owned && pod.id.0 <= ID_MAX || self.is_recorded(pod, executor))
    }

    pub fn has_our_name(&self, pod: &Pod) -> bool {
        let number = pod.name.strip_prefix(self.identity.pod_prefix.as_str());
        pod.id.0 > 0 && number.is_some_and(|number| is_written_as(pod.id.0, number))
    }

    /// True if the pod has the owner that our creates set (outside of a cluster: none).
    pub fn has_our_owner(&self, pod: &Pod) -> bool {
        pod.owner == self.identity.owner
    }

    /// True if an earlier run may have used the pod's id, or if the pod is or may be the result of
    /// a create of this run.
    ///
    /// Outside of a cluster pods have no owner. If etcd is restored there and posse is killed before
    /// it renews the Lease, the record of the last ids is lost. Executors with these ids are foreign
    /// to the next process: they are reported and left to `posse cleanup`. To believe any name above
    /// the record would let forged pods count as capacity.
    fn is_recorded(&self, pod: &Pod, executor: Option<&Executor>) -> bool {
        if executor.is_some_and(|executor| executor.uid.as_ref() == Some(&pod.uid)) {
            return true;
        }
        // Without stored ids no id proves anything, and a create of an earlier process may take effect late.
        if self.reserved.is_none() {
            return self.has_our_owner(pod) && pod.id.0 <= ID_MAX;
        }
        if self.is_of_earlier_run(pod.id) {
            return true;
        }
        let is_from_create = match executor {
            Some(executor) => executor.uid.is_some() || executor.may_have_made(pod),
            None => self.is_retired(pod.id),
        };
        is_from_create && self.has_our_owner(pod)
    }

    /// The first LIST is complete, with these pods. Without a stored high water, ids from the highest that earlier runs
    /// of this instance used to the end of the block may have been used by pods that are gone. If the server stores the
    /// ids that were used, pods without an owner prove nothing beyond.
    pub fn on_first_list<'a>(&mut self, pods: impl Iterator<Item = &'a Pod>) {
        let is_credible = self.identity.owner.is_some() || self.reserved.is_none();
        let found = pods.filter(|pod| {
            is_credible && pod.id.0 <= ID_MAX && self.has_our_name(pod) && self.has_our_owner(pod)
        });
        let Some(highest) = found.map(|pod| pod.id).max() else { return };
        self.on_earlier(highest);
    }

    /// An earlier run used this id, as a pod or the record of the run says, so it is not used again.
    pub fn on_earlier(&mut self, id: ExecutorId) {
        if id.0 > STORED_ID_MAX {
            return;
        }
        self.on_seen(id);
        if self.reserved.is_none() {
            let block_end = id.0.div_ceil(BLOCK).max(1).saturating_mul(BLOCK);
            self.earlier.insert_all(1..block_end.saturating_add(1));
            self.on_seen(ExecutorId(block_end));
        }
    }

    /// The pod of this id is gone, or it can never have one.
    pub fn retire(&mut self, id: ExecutorId) {
        self.retired.insert(id.0);
    }

    /// True if the id was used and has no pod any more.
    pub fn is_retired(&self, id: ExecutorId) -> bool {
        self.retired.contains(id.0)
    }

    /// A pod with this id exists, so the id is not used again.
    pub fn on_seen(&mut self, id: ExecutorId) {
        self.next = self.next.max(id.0.saturating_add(1));
    }

    /// No id from this one on was given or seen.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// True if another process of this instance may have used this id.
    pub fn is_of_earlier_run(&self, id: ExecutorId) -> bool {
        self.earlier.contains(id.0)
    }

    /// What the server must have stored; none if nothing was reserved.
    pub fn reserved(&self) -> Option<ExecutorId> {
        self.reserved.filter(|&reserved| reserved > 0).map(ExecutorId)
    }

    /// The server has reserved the ids up to here.
    pub fn on_reserved(&mut self, up_to: ExecutorId) {
        if let Some(reserved) = &mut self.reserved {
            *reserved = (*reserved).max(up_to.0);
        }
    }

    /// The Lease is held again: another holder may have used ids up to `high_water`.
    pub fn on_lease(&mut self, high_water: Option<ExecutorId>) {
        if let (Some(stored), Some(reserved)) = (high_water, &mut self.reserved)
            && stored.0 > *reserved
        {
            let next = stored.0.saturating_add(1);
            self.earlier.insert_all(reserved.saturating_add(1)..next);
            *reserved = stored.0;
            self.next = self.next.max(next);
        }
    }

    /// The reservation that `missing` more ids need, unless it was requested already.
    pub fn wanted(&mut self, missing: u64) -> Option<ExecutorId> {
        let reserved = self.reserved?;
        let last_needed = self.next.saturating_add(missing).saturating_sub(1);
        if missing == 0 || reserved >= last_needed.saturating_add(LEFT_MIN) {
            return None;
        }
        let up_to = last_needed.saturating_add(LEFT_MIN).div_ceil(BLOCK).saturating_mul(BLOCK);
        if self.requested >= up_to {
            return None;
        }
        self.requested = up_to;
        Some(ExecutorId(up_to))
    }

    /// The request for a reservation was dropped.
    pub fn on_dropped(&mut self, up_to: ExecutorId, now: Millis) {
        let up_to = self.dropped.map_or(up_to, |(before, _)| up_to.max(before));
        self.dropped = Some((up_to, now.after(REQUEST_AGAIN_MS)));
    }

    /// The dropped request, if it is time to send it again.
    pub fn take_dropped(&mut self, now: Millis) -> Option<ExecutorId> {
        self.dropped.take_if(|(_, at)| *at <= now).map(|(up_to, _)| up_to)
    }

    /// When the dropped request is sent again, if there is one.
    pub fn request_again_at(&self) -> Option<Millis> {
        self.dropped.map(|(_, at)| at)
    }

    /// The next id, if it is reserved.
    pub fn take(&mut self) -> Option<ExecutorId> {
        if self.reserved.is_some_and(|reserved| self.next > reserved) {
            return None;
        }
        let id = ExecutorId(self.next);
        assert!(!self.is_retired(id), "id {id} is given twice");
        self.next = self.next.checked_add(1)?;
        Some(id)
    }

    /// The create of `id` is closed. `is_acknowledged`: by the answer to its last POST, so that all
    /// POSTs of unknown outcome stay unresolved.
    pub fn on_create_closed(&mut self, id: ExecutorId, create: &Create, is_acknowledged: bool) {
        let n_open = create.n_unknown.saturating_sub(u32::from(!is_acknowledged));
        if n_open > 0
            && let Some(at) = create.unknown_since
        {
            self.open_until.insert(id, at.after(CREATE_OPEN_MS));
        }
    }

    /// Until when a closed create may take effect.
    pub fn open_until(&self) -> Option<Millis> {
        self.open_until.values().copied().max()
    }

    /// Some of the closed creates can no longer take effect.
    pub fn expire_creates(&mut self, now: Millis) {
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

    /// When the last of the creates that no LIST has shown was closed.
    pub fn last_unlisted(&self) -> Option<Millis> {
        self.unlisted.values().copied().max()
    }

    /// The closed creates whose pods may exist.
    pub fn unresolved(&self) -> impl Iterator<Item = ExecutorId> {
        self.open_until.keys().chain(self.unlisted.keys()).copied()
    }

    pub fn check(&self) {
        let retired = self.retired.last();
        let last = self.unresolved().map(|id| id.0).chain(retired).max();
        debug_assert!(last.is_none_or(|id| id < self.next), "{last:?} is not below {}", self.next);
    }
}

/// True if `text` is this number as posse writes it. Called for each event of a pod, so it makes no text.
fn is_written_as(number: u64, text: &str) -> bool {
    let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    has_digits_only && !text.starts_with('0') && text.parse() == Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;

    fn ours(id_high_water: u64, is_id_high_water_stored: bool) -> Ours {
        Ours::new(InstanceIdentity {
            pod_prefix: pod(1, 1).name.trim_end_matches('1').to_owned(),
            owner: Some(Uid::new("owner")),
            id_high_water,
            is_id_high_water_stored,
            start_unix_ms: 0,
        })
    }

    #[test]
    fn ids_continue_above_all_that_may_have_been_given() {
        for (before, stored, highest, want) in [
            (0, true, None, 1),
            (0, false, None, 1),
            (1_000, true, None, 1_001),
            (1_000, true, Some(37), 1_001),
            (0, false, Some(37), 1_001),
            (0, false, Some(1_000), 1_001),
            (0, false, Some(1_001), 2_001),
            (1_000, true, Some(4_321), 4_322),
        ] {
            let mut ids = ours(before, stored);
            let found: Vec<Pod> = highest.iter().map(|&id| pod(id, 1)).collect();
            let found =
                found.iter().map(|pod| Pod { owner: ids.identity.owner.clone(), ..pod.clone() });
            ids.on_first_list(found.collect::<Vec<_>>().iter());
            if let Some(up_to) = ids.wanted(1) {
                ids.on_reserved(up_to);
            }
            assert_eq!(ids.take(), Some(ExecutorId(want)), "{before} {stored} {highest:?}");
        }
    }

    #[test]
    fn no_id_is_used_before_it_is_reserved() {
        let mut ids = ours(0, true);
        assert_eq!(ids.take(), None);
        let up_to = ids.wanted(2_000).expect("a reservation is due");
        assert_eq!(up_to, ExecutorId(3_000));
        assert_eq!(ids.wanted(2_000), None, "requested once");
        ids.on_reserved(up_to);
        assert!((1..=3_000).all(|id| ids.take() == Some(ExecutorId(id))));
        assert_eq!(ids.take(), None);
    }
}
