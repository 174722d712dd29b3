//! What stays for people to look at: the last failed pods, and the records of work that has ended. They give way to the
//! work: when a group waits for a quota or for nodes, those that hold them end what runs on in their pods, or are deleted,
//! the oldest first.
//!
//! The record of an index is not lost with its pod: another record of the group takes it over (`Folded`) before the
//! pod is deleted.

use std::collections::BTreeSet;

use super::Reconciler;
use crate::model::fact::{EndedWork, Topic};
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::pod::{Pod, StartProblemKind};
use crate::model::status::State;
use crate::policy::loss::classify;
use crate::policy::room_of_ended_pods::Holders;
use crate::state::create_backoff::BackoffCause;
use crate::state::ended_indexes::Folded;
use crate::state::errands::MutationKind;
use crate::state::executors::{Group, Life, has_ended};
use posse_base::time::Millis;

/// True if the application itself ended this executor, also if a side-car still runs. The pod of an
/// eviction, a preemption or an executor at its `max_age` explains nothing.
fn failed_by_itself(pod: &Pod) -> bool {
    has_ended(pod) && !pod.deleting && classify(pod, false).reason.caused_by_app()
}

/// What to say if nothing of this run holds the room in which objects count.
const OF_EARLIER_RUNS: &str =
    "ended executors of earlier runs may hold a part of it, which `posse cleanup` removes";

impl Reconciler {
    /// Retains an ended pod or requests its delete.
    pub(super) fn retain_or_delete(&mut self, id: ExecutorId, now: Millis) {
        let Some(uid) = self.executors.get(id).and_then(|e| e.uid.clone()) else { return };
        self.on_capacity_freed(now);
        let Some(pod) = self.snapshot.get(&uid).filter(|pod| !pod.deleting) else { return };
        let Some(executor) = self.executors.get(id) else { return };
        match executor.life {
            Life::Completed if !self.end.ends_executors() => return self.keep_record(id),
            Life::Completed if self.is_last_to_tell(pod) => return,
            Life::Retained => {
                if pod.rest_deadline_s(pod.grace_s).is_some() {
                    self.request(&uid, MutationKind::LabelCounted);
                }
                return;
            }
            Life::Cancelled
            | Life::Completed
            | Life::Ending(_)
            | Life::Gone
            | Life::Lost { .. }
            | Life::Wanted => {}
        }
        let is_retained = executor.life.is_lost()
            && executor.life.ending().is_none()
            && (self.policy.keep_failed > 0 || executor.is_done)
            && failed_by_itself(pod);
        let is_done = executor.is_done;
        if !is_retained {
            return self.request(&uid, MutationKind::Delete);
        }
        let is_going = self
            .errands
            .mutations
            .get(&uid)
            .is_some_and(|mutation| mutation.what.kind != MutationKind::LabelCounted);
        if is_going {
            return;
        }
        self.change(id, now, |executor| executor.life = Life::Retained);
        if is_done {
            self.keep_record(id);
        } else {
            self.executors.retained.push(id);
        }
        self.request(&uid, MutationKind::LabelCounted);
        self.trim_retained(now);
    }

    /// Deletes the oldest retained pods while there are more than `keep_failed`.
    pub(super) fn trim_retained(&mut self, now: Millis) {
        while let Some(id) = self.executors.retained.pop_beyond(self.policy.keep_failed as usize) {
            self.delete_pod_of(id, now);
        }
    }

    /// Gives up as much of what records hold as executors wait for.
    pub(super) fn give_way(&mut self, now: Millis) {
        self.fold_again();
        let groups = self.executors.groups().iter();
        let lacking: Vec<(GroupName, u32, Holders)> = groups
            .filter_map(|(name, group)| {
                let (n_missing, holders) = self.lacks(group)?;
                Some((name.clone(), n_missing, holders))
            })
            .collect();
        if lacking.is_empty() {
            return;
        }
        // What has ended goes at once, unless somebody holds it. Who else terminates may take its time.
        let is_going = |pod: &Pod| has_ended(pod) && pod.held_by().is_none();
        let groups = self.executors.groups().values();
        let with_some = groups.filter(|group| group.counts().of(State::Terminating) > 0);
        let executors = with_some.flat_map(|group| self.executors.own(group));
        let ended = executors.filter(|(_, executor)| {
            executor.state == State::Terminating
                && executor.pod(&self.snapshot).is_some_and(is_going)
        });
        let mut n_going = ended.count();
        for (name, n_missing, holders) in lacking {
            let n_wanted = (n_missing as usize).saturating_sub(n_going);
            let may_go = |id: &ExecutorId| !self.is_of_attempt(*id) && self.is_end_recorded(*id);
            let holding = self.holding(&name, holders).filter(may_go);
            let ids: Vec<ExecutorId> = holding.take(n_wanted).collect();
            for id in ids {
                let is_going = match holders {
                    Holders::All | Holders::Claims => {
                        let is_going = self.drop_record(id, now);
                        if is_going {
                            self.give_up_claims();
                        }
                        is_going
                    }
                    Holders::RunningOn => self.end_rest(id),
                };
                n_going += usize::from(is_going);
            }
        }
    }

    /// Deletes the claims of slots whose work is done, whether or not their pods are there: others may have deleted those.
    /// If that fails, the next refusal of a quota asks again.
    pub(super) fn give_up_claims(&mut self) {
        if !self.done_slots().is_empty() {
            self.errands.claims.add((), ());
        }
    }

    pub(super) fn on_claims_given_up(&mut self, n: usize, now: Millis) {
        self.errands.claims.end(&());
        if n > 0 {
            self.on_capacity_freed(now);
        }
    }

    /// The slots whose work is done and whose claims nobody needs any more.
    pub(super) fn done_slots(&self) -> Vec<(GroupName, BTreeSet<u32>)> {
        let groups = self.executors.groups().iter();
        let giving = groups.filter(|(_, group)| !group.is_removed && group.spec.gives_up_claims());
        let slots = giving.map(|(name, group)| {
            let EndedWork { completed, given_up } = &group.ended;
            let folded = group.folded.below(group.spec.completions.unwrap_or(0));
            let folded = folded.map(|(slot, _)| slot);
            (name.clone(), completed.iter().chain(given_up).copied().chain(folded).collect())
        });
        slots.filter(|(_, slots): &(_, BTreeSet<u32>)| !slots.is_empty()).collect()
    }

    /// How much a group misses that waits for room, and which records may hold it.
    fn lacks(&self, group: &Group) -> Option<(u32, Holders)> {
        let mut throttles = group.tasks.throttles.all().filter(|_| !group.is_removed);
        if throttles.any(|throttle| throttle.backoff.cause() == Some(BackoffCause::Capacity)) {
            let n_missing = group.wanted().saturating_sub(group.counts().capacity());
            let words = group.refusal.as_deref().unwrap_or_default();
            return Some((n_missing, Holders::of_quota(words)));
        }
        let unplaced = group.problems.of(StartProblemKind::Unschedulable);
        let words = self.problem_message(unplaced.first()?.1).unwrap_or_default();
        let n_missing = u32::try_from(unplaced.len()).unwrap_or(u32::MAX);
        Some((n_missing, Holders::of_scheduler(words)))
    }

    /// A record of a group that is started again as a whole ends with its attempt.
    fn is_of_attempt(&self, id: ExecutorId) -> bool {
        let executor = self.executors.get(id).filter(|executor| executor.is_done);
        executor.is_some_and(|executor| self.executors.home(executor).spec.restarts_whole())
    }

    /// The records that hold what this group waits for: its own first, then those of the others, then the retained
    /// failed pods.
    fn holding(&self, name: &GroupName, holders: Holders) -> impl Iterator<Item = ExecutorId> {
        let groups = self.executors.groups();
        let own = groups.get(name);
        let others = groups.iter().filter(move |(other, _)| *other != name).map(|(_, group)| group);
        let records = own.into_iter().chain(others);
        let records =
            records.flat_map(|group| group.records.iter().chain(group.tasks.records.iter()));
        records.chain(self.executors.retained.iter()).filter(move |id| self.holds(*id, holders))
    }

    fn holds(&self, id: ExecutorId, holders: Holders) -> bool {
        let Some((executor, pod)) = self.seen(id).filter(|(_, pod)| !pod.deleting) else {
            return false;
        };
        match holders {
            Holders::All => true,
            Holders::Claims => {
                executor.is_done && self.executors.home(executor).spec.gives_up_claims()
            }
            Holders::RunningOn => !pod.phase.is_final(),
        }
    }

    /// Words about our records that hold what this group waits for, if there are any.
    pub(super) fn words_about_holders(&self, group: &Group) -> Option<String> {
        let (_, holders) = self.lacks(group)?;
        let (mut n_completed, mut n_failed) = (0, 0);
        for id in self.holding(&group.spec.name, holders) {
            if self.is_completed(id) { n_completed += 1 } else { n_failed += 1 }
        }
        let counts = [(n_completed, "completed"), (n_failed, "failed")];
        let named = counts.into_iter().filter(|(n, _)| *n > 0);
        let named: Vec<String> =
            named.map(|(n, how)| format!("our own {n} {how} executors")).collect();
        let what = match holders {
            Holders::All | Holders::Claims => "whose pods stay as records, hold a part of it",
            Holders::RunningOn => "beside which another container runs on, hold a part of it",
        };
        match (named.is_empty(), holders) {
            (false, _) => Some(format!("{}, {what}", named.join(" and "))),
            (true, Holders::All) => Some(OF_EARLIER_RUNS.to_owned()),
            (true, Holders::Claims | Holders::RunningOn) => None,
        }
    }

    pub(super) fn lacks_room(&self) -> bool {
        self.executors.groups().values().any(|group| self.lacks(group).is_some())
    }

    /// Ends at once what runs on in the pod of a record, which stays. True: it ends.
    fn end_rest(&mut self, id: ExecutorId) -> bool {
        let pod = self.seen(id).map(|(_, pod)| pod);
        let uid = pod.filter(|pod| pod.rest_deadline_s(0).is_some()).map(|pod| pod.uid.clone());
        if let Some(uid) = uid {
            self.request(&uid, self.label_of(id));
        }
        true
    }

    fn is_completed(&self, id: ExecutorId) -> bool {
        self.executors.get(id).is_some_and(|executor| executor.life == Life::Completed)
    }

    /// The label of a record.
    fn label_of(&self, id: ExecutorId) -> MutationKind {
        match self.is_completed(id) {
            true => MutationKind::LabelCompleted,
            false => MutationKind::LabelCounted,
        }
    }

    /// Deletes the pod of a record, as soon as another one tells what it told. False if there is no other.
    fn drop_record(&mut self, id: ExecutorId, now: Millis) -> bool {
        let Some(executor) = self.executors.get(id) else { return false };
        let is_completed = executor.life == Life::Completed;
        let index = executor.slot.filter(|_| executor.is_done && executor.task.is_none());
        let uid = executor.uid.clone();
        let Some(group) = self.executors.group_of(id) else { return false };
        if let Some((index, uid)) = index.zip(uid).filter(|_| group.spec.completions.is_some()) {
            if !group.records.iter().any(|other| other != id) {
                return false;
            }
            group.folded.insert(index, is_completed);
            group.folding.push(uid.clone());
            let name = group.spec.name.clone();
            self.errands.hold_untold(&uid);
            self.delete_pod_of(id, now);
            self.request_fold(&name);
        } else {
            self.delete_pod_of(id, now);
        }
        true
    }

    /// Asks the newest record of a group to take over what the deleted ones told.
    fn request_fold(&mut self, name: &GroupName) {
        let Some(group) = self.executors.groups().get(name) else { return };
        // Somebody deleted the last record.
        let Some(id) = group.records.newest() else { return self.release_folded() };
        let uid = self.seen(id).map(|(_, pod)| pod.uid.clone());
        if let Some(uid) = uid.filter(|uid| self.errands.mutations.get(uid).is_none()) {
            self.request(&uid, self.label_of(id));
        }
    }

    /// A record that was to take others over may be gone, or its change was given up.
    fn fold_again(&mut self) {
        let is_open = |group: &Group| !group.folding.is_empty() && group.folding_sent.is_none();
        let open = self.executors.groups().iter().filter(|(_, group)| is_open(group));
        let names: Vec<GroupName> = open.map(|(name, _)| name.clone()).collect();
        names.iter().for_each(|name| self.request_fold(name));
    }

    /// What is left of the records goes without a word: nobody comes after this run.
    pub(super) fn release_folded(&mut self) {
        for group in self.executors.groups_mut() {
            group.folding_sent = None;
            group.folding.drain(..).for_each(|uid| self.errands.on_told(&uid));
        }
    }

    /// What the label of this pod is to tell beside, as it is sent now.
    pub(super) fn fold_into(&mut self, uid: &Uid) -> Option<String> {
        let id = self.snapshot.get(uid)?.id;
        let group = self.executors.group_of(id)?;
        if group.folded.is_empty() || group.records.newest() != Some(id) {
            return None;
        }
        group.folding_sent = Some((uid.clone(), group.folding.len()));
        Some(group.folded.to_string())
    }

    /// The label of this pod was written, or not. What it took over may be deleted.
    pub(super) fn on_folded(&mut self, uid: &Uid, is_written: bool) {
        let groups = self.executors.groups_mut();
        let sent = groups.into_iter().find_map(|group| {
            let n = group.folding_sent.take_if(|(sent, _)| sent == uid)?.1;
            Some(if is_written { group.folding.drain(..n).collect() } else { Vec::new() })
        });
        for uid in sent.unwrap_or_default() {
            self.errands.on_told(&uid);
        }
    }

    /// After the first list: what the records of a group tell of others that are gone.
    pub(super) fn unfold(&mut self, now: Millis) {
        let names: Vec<GroupName> = self.executors.groups().keys().cloned().collect();
        for name in names {
            let Some(group) = self.executors.groups().get(&name) else { continue };
            let Some(completions) = group.spec.completions else { continue };
            let told = group.records.iter();
            let told = told.filter_map(|id| self.seen(id)?.1.end.as_ref()?.folded.clone());
            let told: Vec<Folded> = told.filter_map(|text| text.parse().ok()).collect();
            let Some(group) = self.executors.group_mut(&name) else { continue };
            let before = group.target();
            let mut topics = BTreeSet::new();
            for (index, is_completed) in told.iter().flat_map(|folded| folded.below(completions)) {
                // An index that has a record of its own has taken its slot.
                if group.slots.claim(index) && group.ended.insert(index, is_completed) {
                    group.folded.insert(index, is_completed);
                    group.work.on_end(is_completed);
                    topics.insert(Topic::work(&name, index));
                }
            }
            let target = group.target();
            topics.into_iter().for_each(|topic| self.note_end(topic));
            if target != before {
                self.on_target_changed(name, target, now);
            }
        }
    }
}
