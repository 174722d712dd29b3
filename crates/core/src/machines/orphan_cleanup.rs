//! The state machine that deletes executors of earlier instances of the application: which owners
//! to look up, which pods to delete, and when to repeat. Sends nothing; the reconciler does not
//! wait for it.
//!
//! Only executors whose driver pod is gone or has ended (`orphans::judge`) are deleted, by uid,
//! and only if they have not ended themselves: an ended pod holds no resources (unless a queue keeps
//! it), may be retained after a failure, and is deleted with its driver pod. Executors whose driver pod lives are kept.
//! That driver may be ending, so the check is repeated for a while; if this driver holds the
//! application's Lease, as long as such executors exist, because the previous driver leaves them
//! behind. A create that a dead driver had sent may still take effect within `LATE_CREATE_MS`:
//! there is a round after that, too. A driver that lost the Lease for a while, because it was paused,
//! begins again when it holds it: another driver may have held it and ended in between.

use std::collections::{BTreeSet, VecDeque};

use crate::model::ids::Uid;
use crate::model::owner::Owner;
use crate::model::pod::Phase;
use crate::model::refusal::{Refusal, RefusalClass};
use crate::policy::orphans::{
    LeaseAge, OrphanCandidate, OrphanFacts, OrphanVerdict, OwnerState, judge,
};
use posse_base::backoff::delay_ms;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The least time between two rounds while there are executors whose owner lives, ...
pub const ROUND_INTERVAL_MS: u64 = 30_000;
/// ... and by how much it is longer at most. The time is random, so that drivers which start at one moment do not list
/// at one moment again.
const ROUND_JITTER_MS: u64 = 15_000;
/// After this time a create that was in flight during the first LIST has taken effect or failed:
/// the API server's request timeout.
pub const LATE_CREATE_MS: u64 = 60_000;
/// The number of rounds if other drivers of the application may run.
pub const ROUNDS_MAX: u32 = 10;
const BACKOFF_MS: u64 = 1_000;
const BACKOFF_MS_MAX: u64 = 30_000;

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupStep {
    /// Delete this pod, with its uid as a precondition; then call `on_deleted`.
    Delete(OrphanCandidate),
    /// The machine has finished.
    Done,
    /// List the executors of all other instances; then call `on_listed`.
    List,
    /// Look up this owner pod; then call `on_owner`.
    LookUp(Owner),
    /// Wait until then; then call `next` again.
    Wait { until: Millis },
}

/// What is reported in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupReport {
    /// `n` executors of the instance are kept, for this reason.
    Kept { instance: String, n: usize, why: String },
    /// A request was refused. `is_final`: it is not retried.
    Refused { refusal: Refusal, is_final: bool },
    /// `n` executors of the instance were deleted, for this reason.
    Removed { instance: String, n: usize, why: String },
}

/// The state machine.
#[derive(Debug)]
pub struct OrphanCleanup {
    /// Our own instance, which is never touched.
    ours: String,
    /// We hold the application's Lease.
    is_exclusive: bool,
    /// Executors whose owners are still to be looked up; the last one's owner is next.
    found: Vec<OrphanCandidate>,
    /// Executors of one owner that is gone.
    to_delete: Vec<OrphanCandidate>,
    /// The report about that owner's executors so far.
    removed: Option<CleanupReport>,
    /// Pods that were deleted and may still terminate.
    deleted: BTreeSet<Uid>,
    /// Owners whose executors are kept, if that was reported.
    reported_kept: BTreeSet<Uid>,
    must_list: bool,
    has_live_owner: bool,
    has_failed: bool,
    is_forbidden: bool,
    is_done: bool,
    due_at: Millis,
    n_rounds: u32,
    /// When the first LIST since the beginning was answered.
    first_listed_at: Option<Millis>,
    n_failures: u32,
    reports: VecDeque<CleanupReport>,
    rng: Rng,
}

impl OrphanCleanup {
    /// A machine that begins with a LIST. `is_exclusive`: no other driver of the application may
    /// work.
    pub fn new(ours: &str, is_exclusive: bool, rng: Rng) -> Self {
        Self {
            ours: ours.to_owned(),
            is_exclusive,
            found: Vec::new(),
            to_delete: Vec::new(),
            removed: None,
            deleted: BTreeSet::new(),
            reported_kept: BTreeSet::new(),
            must_list: true,
            has_live_owner: false,
            has_failed: false,
            is_forbidden: false,
            is_done: false,
            due_at: Millis::ZERO,
            n_rounds: 0,
            first_listed_at: None,
            n_failures: 0,
            reports: VecDeque::new(),
            rng,
        }
    }

    /// Begins again, with a LIST, when the application's Lease is held again.
    pub fn begin_again(&mut self) {
        self.found.clear();
        self.to_delete.clear();
        self.must_list = true;
        self.is_done = self.is_forbidden;
        self.n_rounds = 0;
        self.first_listed_at = None;
        self.due_at = Millis::ZERO;
    }

    pub fn next(&mut self, now: Millis) -> CleanupStep {
        if self.is_done {
            return CleanupStep::Done;
        }
        if let Some(pod) = self.to_delete.last() {
            return CleanupStep::Delete(pod.clone());
        }
        self.reports.extend(self.removed.take());
        if let Some(owner) = self.found.last().and_then(|pod| pod.owner.clone()) {
            return CleanupStep::LookUp(owner);
        }
        if !self.must_list {
            self.end_round(now);
        }
        match (self.is_done, now < self.due_at) {
            (true, _) => CleanupStep::Done,
            (false, true) => CleanupStep::Wait { until: self.due_at },
            (false, false) => CleanupStep::List,
        }
    }

    pub fn next_report(&mut self) -> Option<CleanupReport> {
        self.reports.pop_front()
    }

    pub fn on_listed(&mut self, answer: Result<Vec<OrphanCandidate>, Refusal>, now: Millis) {
        let pods = match answer {
            Ok(pods) => pods,
            Err(refusal) => {
                self.on_refused(refusal);
                return self.end_round(now);
            }
        };
        self.must_list = false;
        self.first_listed_at.get_or_insert(now);
        self.found = pods;
        self.found.retain(|pod| {
            let is_over = matches!(pod.phase, Phase::Failed | Phase::Succeeded);
            let is_ours = pod.instance.as_ref().is_none_or(|instance| *instance == self.ours);
            pod.has_executor_name
                && pod.owner.is_some()
                && !is_ours
                && (!is_over || pod.is_held_by_queue)
                && !self.deleted.contains(&pod.uid)
        });
    }

    /// The state of the owner that was looked up. Its executors are kept or deleted together.
    pub fn on_owner(&mut self, state: OwnerState) {
        let Some(last) = self.found.last() else { return };
        let (owner, instance) = (last.owner.clone(), last.instance.clone());
        let (pods, others) =
            std::mem::take(&mut self.found).into_iter().partition(|pod| pod.owner == owner);
        self.found = others;
        let pods: Vec<OrphanCandidate> = pods;
        let facts = OrphanFacts {
            owner: state,
            instance: instance.clone(),
            have_executor_names: true,
            named: None,
            stale_ms: None,
            lease: LeaseAge::Absent,
            is_exclusive: self.is_exclusive,
        };
        let instance = instance.unwrap_or_default();
        match judge(&facts) {
            OrphanVerdict::Removable(why) => {
                self.to_delete = pods;
                self.removed = Some(CleanupReport::Removed { instance, n: 0, why });
            }
            OrphanVerdict::Kept(why) => {
                self.has_live_owner = true;
                if owner.is_some_and(|owner| self.reported_kept.insert(owner.uid)) {
                    self.reports.push_back(CleanupReport::Kept { instance, n: pods.len(), why });
                }
            }
        }
    }

    pub fn on_deleted(&mut self, answer: Result<(), Refusal>) {
        let Some(pod) = self.to_delete.pop() else { return };
        match answer {
            Ok(()) => {
                self.deleted.insert(pod.uid);
                if let Some(CleanupReport::Removed { n, .. }) = &mut self.removed {
                    *n += 1;
                }
            }
            // It is gone, or another pod has its name.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) => {}
            Err(refusal) => {
                // The other deletes would fail, too. The next round finds these pods again.
                self.to_delete.clear();
                self.on_refused(refusal);
            }
        }
    }

    fn on_refused(&mut self, refusal: Refusal) {
        let is_final = refusal.class == RefusalClass::Forbidden;
        self.is_forbidden |= is_final;
        self.is_done |= is_final;
        self.has_failed = true;
        // A repeated failure is reported once.
        if is_final || self.n_failures == 0 {
            self.reports.push_back(CleanupReport::Refused { refusal, is_final });
        }
    }

    /// Ends a round, and decides whether and when the next one starts.
    fn end_round(&mut self, now: Millis) {
        self.must_list = true;
        if std::mem::take(&mut self.has_failed) {
            self.n_failures = self.n_failures.saturating_add(1);
            let delay = delay_ms(self.n_failures, BACKOFF_MS, BACKOFF_MS_MAX, &mut self.rng);
            self.due_at = now.after(delay);
        } else {
            self.n_failures = 0;
            self.n_rounds = self.n_rounds.saturating_add(1);
            let may_repeat = self.is_exclusive || self.n_rounds < ROUNDS_MAX;
            let is_early = self
                .first_listed_at
                .is_some_and(|first_listed_at| now.since(first_listed_at) < LATE_CREATE_MS);
            self.is_done |= !(is_early || self.has_live_owner && may_repeat);
            self.due_at = now.after(ROUND_INTERVAL_MS + self.rng.below(ROUND_JITTER_MS));
        }
        self.has_live_owner = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::owner::OwnerKind;

    fn owner(name: &str) -> Owner {
        Owner { kind: OwnerKind::Pod, name: name.to_owned(), uid: Uid::new(&format!("uid-{name}")) }
    }

    fn pod(instance: &str, id: u32, owner: Option<Owner>, phase: Phase) -> OrphanCandidate {
        OrphanCandidate {
            name: format!("a-{instance}-exec-{id}"),
            uid: Uid::new(&format!("{instance}-{id}")),
            has_executor_name: true,
            app: Some("a".to_owned()),
            instance: Some(instance.to_owned()),
            owner,
            phase,
            is_held_by_queue: false,
        }
    }

    fn refusal(class: RefusalClass) -> Refusal {
        let message = "no".to_owned();
        Refusal { code: 500, ..Refusal::local(class, message) }
    }

    /// Plays a round with these pods and owners; returns the names of the deleted pods.
    fn round(
        cleanup: &mut OrphanCleanup,
        now: Millis,
        pods: &[OrphanCandidate],
        state: impl Fn(&Owner) -> OwnerState,
        answer: impl Fn(&OrphanCandidate) -> Result<(), Refusal>,
    ) -> Vec<String> {
        assert_eq!(cleanup.next(now), CleanupStep::List);
        cleanup.on_listed(Ok(pods.to_vec()), now);
        let mut deleted = Vec::new();
        loop {
            match cleanup.next(now) {
                CleanupStep::LookUp(owner) => cleanup.on_owner(state(&owner)),
                CleanupStep::Delete(pod) => {
                    deleted.push(pod.name.clone());
                    cleanup.on_deleted(answer(&pod));
                }
                CleanupStep::Done | CleanupStep::List | CleanupStep::Wait { .. } => return deleted,
            }
        }
    }

    /// When the next round begins, after one that ended now.
    #[track_caller]
    fn next_round(cleanup: &mut OrphanCleanup, now: Millis) -> Millis {
        let CleanupStep::Wait { until } = cleanup.next(now) else { panic!("no round follows") };
        let wait_ms = until.since(now);
        assert!((ROUND_INTERVAL_MS..ROUND_INTERVAL_MS + ROUND_JITTER_MS).contains(&wait_ms));
        until
    }

    fn accept(_: &OrphanCandidate) -> Result<(), Refusal> {
        Ok(())
    }

    #[test]
    fn only_live_orphans_are_deleted() {
        let mut cleanup = OrphanCleanup::new("new", false, Rng::new(1));
        let pods = [
            pod("old", 1, Some(owner("gone")), Phase::Running),
            pod("old", 2, Some(owner("gone")), Phase::Pending),
            pod("old", 3, Some(owner("gone")), Phase::Failed),
            pod("done", 1, Some(owner("failed")), Phase::Running),
            pod("peer", 1, Some(owner("lives")), Phase::Running),
            pod("away", 1, None, Phase::Running),
            pod("new", 1, Some(owner("gone")), Phase::Running),
            OrphanCandidate {
                name: "victim-db".to_owned(),
                has_executor_name: false,
                ..pod("old", 4, Some(owner("gone")), Phase::Running)
            },
        ];
        let state = |owner: &Owner| match owner.name.as_str() {
            "gone" => OwnerState::Absent,
            "failed" => OwnerState::Found(Phase::Failed),
            _ => OwnerState::Found(Phase::Running),
        };
        let deleted = round(&mut cleanup, Millis(5), &pods, state, accept);
        assert_eq!(deleted, ["a-done-exec-1", "a-old-exec-2", "a-old-exec-1"]);
        let mut reports = Vec::new();
        while let Some(one) = cleanup.next_report() {
            reports.push(match one {
                CleanupReport::Kept { instance, n, .. } => format!("{n} of {instance} stay"),
                CleanupReport::Removed { instance, n, why } => {
                    format!("{n} of {instance} go: {why}")
                }
                CleanupReport::Refused { refusal, .. } => refusal.to_string(),
            });
        }
        let want = [
            "1 of peer stay",
            "1 of done go: their owner has ended",
            "2 of old go: their owner is gone",
        ];
        assert_eq!(reports, want);
        // Terminating pods are not deleted again, and kept ones are not reported again.
        let then = next_round(&mut cleanup, Millis(5));
        assert_eq!(round(&mut cleanup, then, &pods, state, accept), [""; 0]);
        assert_eq!(cleanup.next_report(), None);
    }

    #[test]
    fn drivers_that_started_at_one_moment_list_at_many() {
        let mut thirds = [0; 3];
        for seed in 0..300 {
            let mut cleanup = OrphanCleanup::new("new", false, Rng::new(seed));
            assert_eq!(
                round(&mut cleanup, Millis(0), &[], |_| OwnerState::Absent, accept),
                [""; 0]
            );
            let wait_ms = next_round(&mut cleanup, Millis(0)).0 - ROUND_INTERVAL_MS;
            thirds[usize::try_from(wait_ms * 3 / ROUND_JITTER_MS).unwrap()] += 1;
        }
        assert!(thirds.iter().all(|n| (60..140).contains(n)), "{thirds:?}");
    }

    #[test]
    fn rounds_go_on_while_an_owner_lives() {
        for (is_exclusive, n_rounds) in [(false, ROUNDS_MAX), (true, 50)] {
            let mut cleanup = OrphanCleanup::new("new", is_exclusive, Rng::new(1));
            let pods = [pod("old", 1, Some(owner("lives")), Phase::Running)];
            let lives = |_: &Owner| OwnerState::Found(Phase::Running);
            let mut now = Millis::ZERO;
            for n in 1..n_rounds {
                assert_eq!(round(&mut cleanup, now, &pods, lives, accept), [""; 0], "{n}");
                now = next_round(&mut cleanup, now);
            }
            let over = |_: &Owner| OwnerState::Found(Phase::Failed);
            assert_eq!(round(&mut cleanup, now, &pods, over, accept), ["a-old-exec-1"]);
            assert_eq!(cleanup.next(now), CleanupStep::Done, "no orphan is left");
        }
    }

    #[test]
    fn a_cleanup_begins_again_with_the_lease() {
        let pods = [pod("between", 1, Some(owner("between")), Phase::Running)];
        let gone = |_: &Owner| OwnerState::Absent;
        let mut cleanup = OrphanCleanup::new("new", true, Rng::new(1));
        assert!(round(&mut cleanup, Millis(1), &[], gone, accept).is_empty());
        let late = Millis(1).after(LATE_CREATE_MS);
        assert!(round(&mut cleanup, late, &[], gone, accept).is_empty());
        assert_eq!(cleanup.next(late), CleanupStep::Done);
        // Another driver held the Lease, and is gone.
        let again = late.after(LATE_CREATE_MS);
        cleanup.begin_again();
        assert_eq!(round(&mut cleanup, again, &pods, gone, accept), ["a-between-exec-1"]);
        let then = next_round(&mut cleanup, again);
        // Amid a round, whose LIST says nothing about what the other driver left.
        assert_eq!(cleanup.next(then), CleanupStep::List);
        cleanup.on_listed(Ok(pods.to_vec()), then);
        cleanup.begin_again();
        assert!(round(&mut cleanup, then, &[], gone, accept).is_empty());
        let last = then.after(LATE_CREATE_MS);
        assert!(round(&mut cleanup, last, &[], gone, accept).is_empty());
        assert_eq!(cleanup.next(last), CleanupStep::Done);

        cleanup.begin_again();
        cleanup.on_listed(Err(refusal(RefusalClass::Forbidden)), last);
        cleanup.begin_again();
        assert_eq!(cleanup.next(last), CleanupStep::Done, "permissions are asked for once");
    }

    #[test]
    fn a_forbidden_cleanup_ends_and_other_refusals_are_retried() {
        let pods = [
            pod("old", 1, Some(owner("gone")), Phase::Running),
            pod("old", 2, Some(owner("gone")), Phase::Running),
        ];
        let gone = |_: &Owner| OwnerState::Absent;
        let mut cleanup = OrphanCleanup::new("new", false, Rng::new(1));
        cleanup.on_listed(Err(refusal(RefusalClass::Forbidden)), Millis(1));
        assert_eq!(cleanup.next(Millis(1)), CleanupStep::Done);
        let forbidden = refusal(RefusalClass::Forbidden);
        assert_eq!(
            cleanup.next_report(),
            Some(CleanupReport::Refused { refusal: forbidden, is_final: true })
        );

        let mut cleanup = OrphanCleanup::new("new", false, Rng::new(1));
        let late = |_: &OrphanCandidate| Err(refusal(RefusalClass::Transient));
        assert_eq!(round(&mut cleanup, Millis(1), &pods, gone, late).len(), 1);
        let CleanupStep::Wait { until } = cleanup.next(Millis(1)) else { panic!("no backoff") };
        // Meanwhile one pod went, and another has its name.
        let other = |_: &OrphanCandidate| Err(refusal(RefusalClass::Conflict));
        assert_eq!(round(&mut cleanup, until, &pods, gone, other).len(), 2);
        // A create that was in flight when the driver ended has taken effect by now.
        assert!(matches!(cleanup.next(until), CleanupStep::Wait { .. }));
        let then = until.after(LATE_CREATE_MS);
        assert_eq!(round(&mut cleanup, then, &pods[1..], gone, late), ["a-old-exec-2"]);
        let CleanupStep::Wait { until } = cleanup.next(then) else { panic!("not tried again") };
        assert_eq!(round(&mut cleanup, until, &pods[1..], gone, accept), ["a-old-exec-2"]);
        assert_eq!(cleanup.next(until), CleanupStep::Done);
    }
}
