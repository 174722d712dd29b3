//! Owns the removal of what earlier instances of the application left: whom to look up, whom to
//! remove, and when to look again. Pure: sends nothing; the thread around it does as told, and the
//! reconciler never waits for it.
//!
//! Only executors go whose driver pod is gone or has ended (`leftover::judge`), by uid, and only
//! those that have not ended themselves: a pod that has holds nothing any more, may be the evidence
//! of a failure, and goes with its driver pod. Those whose driver pod lives are somebody's. It may
//! be ending just now, so they are looked at again for a while; where the application is this
//! driver's alone, for as long as they are there: whoever lost it to us leaves them behind. And what
//! a driver that is gone had sent may still arrive (`LATE_MS`): there is a look after that, too.

use std::collections::{BTreeSet, VecDeque};

use crate::core::model::ids::Uid;
use crate::core::model::pod::OwnerPod;
use crate::core::model::pod::Phase;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::policy::backoff::delay_ms;
use crate::core::policy::orphans::{
    LeaseAge, OrphanCandidate, OrphanFacts, OrphanVerdict, OwnerState, judge,
};

/// How long after a look at executors that somebody may still own the next one comes.
pub const LOOK_AGAIN_MS: u64 = 30_000;
/// So long after the first look a create that was under way then may still have come; a server
/// gives a request no longer.
pub const LATE_MS: u64 = 60_000;
/// Looks at such executors, where others may rightfully run beside us.
pub const LOOKS_MAX: u32 = 10;
const BACKOFF_MS: u64 = 1_000;
const BACKOFF_MS_MAX: u64 = 30_000;

/// What becomes of executors whose driver is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrphanPolicy {
    /// They are removed.
    Delete,
    /// They are not looked at.
    Keep,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupStep {
    /// Delete exactly this pod; answer with `on_deleted`.
    Delete(OrphanCandidate),
    /// Nothing any more.
    Done,
    /// Read the executors of all other instances; answer with `on_listed`.
    List,
    /// Find out what became of this pod; answer with `on_owner`.
    LookUp(OwnerPod),
    /// Nothing before `until`; then ask again.
    Wait { until: Millis },
}

/// What a person is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CleanupInput {
    /// So many of an instance stay, for this reason.
    Kept { instance: String, n: usize, why: String },
    /// The server refuses; `is_final`: it is not asked again.
    Refused { refusal: Refusal, is_final: bool },
    /// So many of an instance were removed, for this reason.
    Removed { instance: String, n: usize, why: String },
}

/// The machine.
#[derive(Debug)]
pub struct OrphanCleanup {
    /// The instance that is never touched.
    ours: String,
    /// The application is ours alone.
    is_exclusive: bool,
    /// Whose owners are still to be looked up: the last one's is next.
    found: Vec<OrphanCandidate>,
    /// Executors of one owner that is over.
    to_delete: Vec<OrphanCandidate>,
    /// What has become of those of that owner, so far.
    removed: Option<CleanupInput>,
    /// Deleted by us, and perhaps still on their way out.
    asked: BTreeSet<Uid>,
    /// Owners whose executors stay, as was told.
    kept_told: BTreeSet<Uid>,
    must_list: bool,
    is_undecided: bool,
    has_failed: bool,
    is_done: bool,
    due_at: Millis,
    n_looks: u32,
    /// When the first LIST was answered.
    began: Option<Millis>,
    n_failures: u32,
    news: VecDeque<CleanupInput>,
    rng: Rng,
}

impl OrphanCleanup {
    /// One that begins with a look. `is_exclusive`: no other driver of the application is to work.
    #[must_use]
    pub fn new(ours: &str, is_exclusive: bool, rng: Rng) -> Self {
        Self {
            ours: ours.to_owned(),
            is_exclusive,
            found: Vec::new(),
            to_delete: Vec::new(),
            removed: None,
            asked: BTreeSet::new(),
            kept_told: BTreeSet::new(),
            must_list: true,
            is_undecided: false,
            has_failed: false,
            is_done: false,
            due_at: Millis::ZERO,
            n_looks: 0,
            began: None,
            n_failures: 0,
            news: VecDeque::new(),
            rng,
        }
    }

    /// What to do now.
    pub fn next(&mut self, now: Millis) -> CleanupStep {
        if self.is_done {
            return CleanupStep::Done;
        }
        if let Some(pod) = self.to_delete.last() {
            return CleanupStep::Delete(pod.clone());
        }
        self.news.extend(self.removed.take());
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

    /// The next thing to tell.
    pub fn news(&mut self) -> Option<CleanupInput> {
        self.news.pop_front()
    }

    /// The executors of other instances were read.
    pub fn on_listed(&mut self, answer: Result<Vec<OrphanCandidate>, Refusal>, now: Millis) {
        let pods = match answer {
            Ok(pods) => pods,
            Err(refusal) => {
                self.on_refused(refusal);
                return self.end_round(now);
            }
        };
        self.must_list = false;
        self.began.get_or_insert(now);
        self.found = pods;
        self.found.retain(|pod| {
            let is_over = matches!(pod.phase, Phase::Failed | Phase::Succeeded);
            let is_ours = pod.instance.as_ref().is_none_or(|instance| *instance == self.ours);
            pod.owner.is_some() && !is_ours && !is_over && !self.asked.contains(&pod.uid)
        });
    }

    /// What became of the owner that was asked about: its executors stay or go together.
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
            named: None,
            stale_ms: None,
            lease: LeaseAge::Absent,
        };
        let instance = instance.unwrap_or_default();
        match judge(&facts) {
            OrphanVerdict::Removable(why) => {
                self.to_delete = pods;
                self.removed = Some(CleanupInput::Removed { instance, n: 0, why });
            }
            OrphanVerdict::Kept(why) => {
                self.is_undecided = true;
                if owner.is_some_and(|owner| self.kept_told.insert(owner.uid)) {
                    self.news.push_back(CleanupInput::Kept { instance, n: pods.len(), why });
                }
            }
        }
    }

    /// The pod was deleted, or not.
    pub fn on_deleted(&mut self, answer: Result<(), Refusal>) {
        let Some(pod) = self.to_delete.pop() else { return };
        match answer {
            Ok(()) => {
                self.asked.insert(pod.uid);
                if let Some(CleanupInput::Removed { n, .. }) = &mut self.removed {
                    *n += 1;
                }
            }
            // It went by itself, and another may have its name.
            Err(refusal)
                if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) => {}
            Err(refusal) => {
                // The others would fare no better now; they are found again.
                self.to_delete.clear();
                self.on_refused(refusal);
            }
        }
    }

    fn on_refused(&mut self, refusal: Refusal) {
        let is_final = refusal.class == RefusalClass::Forbidden;
        self.is_done |= is_final;
        self.has_failed = true;
        // The same trouble again is no news.
        if is_final || self.n_failures == 0 {
            self.news.push_back(CleanupInput::Refused { refusal, is_final });
        }
    }

    /// All that was found is decided: when to look again, if ever.
    fn end_round(&mut self, now: Millis) {
        self.must_list = true;
        if std::mem::take(&mut self.has_failed) {
            self.n_failures = self.n_failures.saturating_add(1);
            let delay = delay_ms(self.n_failures, BACKOFF_MS, BACKOFF_MS_MAX, &mut self.rng);
            self.due_at = now.after(delay);
        } else {
            self.n_failures = 0;
            self.n_looks = self.n_looks.saturating_add(1);
            let is_worth = self.is_exclusive || self.n_looks < LOOKS_MAX;
            let is_early = self.began.is_some_and(|began| now.since(began) < LATE_MS);
            self.is_done |= !(is_early || self.is_undecided && is_worth);
            self.due_at = now.after(LOOK_AGAIN_MS);
        }
        self.is_undecided = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(name: &str) -> OwnerPod {
        OwnerPod { name: name.to_owned(), uid: Uid::new(&format!("uid-{name}")) }
    }

    fn pod(instance: &str, id: u32, owner: Option<OwnerPod>, phase: Phase) -> OrphanCandidate {
        OrphanCandidate {
            name: format!("a-{instance}-exec-{id}"),
            uid: Uid::new(&format!("{instance}-{id}")),
            app: Some("a".to_owned()),
            instance: Some(instance.to_owned()),
            owner,
            phase,
        }
    }

    fn refusal(class: RefusalClass) -> Refusal {
        let message = "no".to_owned();
        Refusal { class, code: 500, reason: String::new(), message, retry_after_ms: None }
    }

    /// Plays a round in which these are found, with these owners; the pods that were deleted.
    fn round(
        sweep: &mut OrphanCleanup,
        now: Millis,
        pods: &[OrphanCandidate],
        state: impl Fn(&OwnerPod) -> OwnerState,
        answer: impl Fn(&OrphanCandidate) -> Result<(), Refusal>,
    ) -> Vec<String> {
        assert_eq!(sweep.next(now), CleanupStep::List);
        sweep.on_listed(Ok(pods.to_vec()), now);
        let mut deleted = Vec::new();
        loop {
            match sweep.next(now) {
                CleanupStep::LookUp(owner) => sweep.on_owner(state(&owner)),
                CleanupStep::Delete(pod) => {
                    deleted.push(pod.name.clone());
                    sweep.on_deleted(answer(&pod));
                }
                CleanupStep::Done | CleanupStep::List | CleanupStep::Wait { .. } => return deleted,
            }
        }
    }

    fn all_go(_: &OrphanCandidate) -> Result<(), Refusal> {
        Ok(())
    }

    #[test]
    fn only_what_is_nobodys_and_lives_goes() {
        let mut sweep = OrphanCleanup::new("new", false, Rng::new(1));
        let pods = [
            pod("old", 1, Some(owner("gone")), Phase::Running),
            pod("old", 2, Some(owner("gone")), Phase::Pending),
            pod("old", 3, Some(owner("gone")), Phase::Failed),
            pod("done", 1, Some(owner("failed")), Phase::Running),
            pod("peer", 1, Some(owner("lives")), Phase::Running),
            pod("away", 1, None, Phase::Running),
            pod("new", 1, Some(owner("gone")), Phase::Running),
        ];
        let state = |owner: &OwnerPod| match owner.name.as_str() {
            "gone" => OwnerState::Absent,
            "failed" => OwnerState::Found(Phase::Failed),
            _ => OwnerState::Found(Phase::Running),
        };
        let deleted = round(&mut sweep, Millis(5), &pods, state, all_go);
        assert_eq!(deleted, ["a-done-exec-1", "a-old-exec-2", "a-old-exec-1"]);
        let mut news = Vec::new();
        while let Some(one) = sweep.news() {
            news.push(match one {
                CleanupInput::Kept { instance, n, .. } => format!("{n} of {instance} stay"),
                CleanupInput::Removed { instance, n, why } => {
                    format!("{n} of {instance} go: {why}")
                }
                CleanupInput::Refused { refusal, .. } => refusal.to_string(),
            });
        }
        let want = [
            "1 of peer stay",
            "1 of done go: their owner has ended",
            "2 of old go: their owner is gone",
        ];
        assert_eq!(news, want);
        // Those on their way out are not deleted again, nor those that stay told again.
        assert_eq!(sweep.next(Millis(6)), CleanupStep::Wait { until: Millis(5 + LOOK_AGAIN_MS) });
        let then = Millis(5 + LOOK_AGAIN_MS);
        assert_eq!(round(&mut sweep, then, &pods, state, all_go), [""; 0]);
        assert_eq!(sweep.news(), None);
    }

    #[test]
    fn it_looks_again_while_somebody_may_own_them() {
        for (is_exclusive, n_rounds) in [(false, LOOKS_MAX), (true, 50)] {
            let mut sweep = OrphanCleanup::new("new", is_exclusive, Rng::new(1));
            let pods = [pod("old", 1, Some(owner("lives")), Phase::Running)];
            let lives = |_: &OwnerPod| OwnerState::Found(Phase::Running);
            let mut now = Millis::ZERO;
            for n in 1..n_rounds {
                assert_eq!(round(&mut sweep, now, &pods, lives, all_go), [""; 0], "{n}");
                now = now.after(LOOK_AGAIN_MS);
            }
            let over = |_: &OwnerPod| OwnerState::Found(Phase::Failed);
            assert_eq!(round(&mut sweep, now, &pods, over, all_go), ["a-old-exec-1"]);
            assert_eq!(sweep.next(now), CleanupStep::Done, "nobody is left");
        }
    }

    #[test]
    fn without_a_right_it_ends_and_other_trouble_is_sat_out() {
        let pods = [
            pod("old", 1, Some(owner("gone")), Phase::Running),
            pod("old", 2, Some(owner("gone")), Phase::Running),
        ];
        let gone = |_: &OwnerPod| OwnerState::Absent;
        let mut sweep = OrphanCleanup::new("new", false, Rng::new(1));
        sweep.on_listed(Err(refusal(RefusalClass::Forbidden)), Millis(1));
        assert_eq!(sweep.next(Millis(1)), CleanupStep::Done);
        let forbidden = refusal(RefusalClass::Forbidden);
        assert_eq!(
            sweep.news(),
            Some(CleanupInput::Refused { refusal: forbidden, is_final: true })
        );

        let mut sweep = OrphanCleanup::new("new", false, Rng::new(1));
        let late = |_: &OrphanCandidate| Err(refusal(RefusalClass::Transient));
        assert_eq!(round(&mut sweep, Millis(1), &pods, gone, late).len(), 1);
        let CleanupStep::Wait { until } = sweep.next(Millis(1)) else { panic!("no backoff") };
        // One goes by itself meanwhile, and under its name another.
        let other = |_: &OrphanCandidate| Err(refusal(RefusalClass::Conflict));
        assert_eq!(round(&mut sweep, until, &pods, gone, other).len(), 2);
        // What was on its way when its driver ended has come by now.
        assert!(matches!(sweep.next(until), CleanupStep::Wait { .. }));
        let then = until.after(LATE_MS);
        assert_eq!(round(&mut sweep, then, &pods[1..], gone, all_go), ["a-old-exec-2"]);
        assert_eq!(sweep.next(then), CleanupStep::Done);
    }
}
