//! Decides what a pod that an earlier run created is to this run.

use crate::model::event::DeleteCause;
use crate::model::settings::Restart;
use crate::state::life::{Ending, Life};

/// The end of an executor that an earlier run has reported, as the pod's labels tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reported {
    Nothing,
    /// Its work is done.
    Completed,
    /// It was lost.
    Lost,
}

/// What adoption needs to know of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodFacts {
    pub reported: Reported,
    /// Its main container has ended by itself.
    pub has_stopped: bool,
    pub is_deleting: bool,
    /// The number of its attempt, by its label.
    pub attempt: u32,
    /// It works on a task. True: the task has no retry left.
    pub task: Option<bool>,
    /// A call has ended it for good: it has no share in the work of its group.
    pub is_dismissed: bool,
    /// It says itself that it is being ended, and why.
    pub is_draining: bool,
}

/// What adoption needs to know of the pod's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// The group comes from the file or a call; false: it is known only from pods.
    pub is_known: bool,
    pub attempt: u32,
    pub restart: Restart,
    pub restarts_whole: bool,
    /// No two executors may have one slot.
    pub has_own_slots: bool,
    /// The executors are being stopped.
    pub is_stopping: bool,
}

/// What the pod is to this run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The group's attempt from now on.
    pub group_attempt: u32,
    pub attempt: u32,
    /// It is of an attempt before the group's: the next attempt waits for its end.
    pub is_earlier: bool,
    pub life: Life,
    /// Its work is done or given up, and the pod is the record of that.
    pub is_done: bool,
    /// It has the slot of its label, if no other executor has it.
    pub claims_slot: bool,
    /// It must end if another executor has its slot: its create took effect late.
    pub needs_slot: bool,
}

/// Decides about one pod.
pub fn judge(pod: &PodFacts, group: &GroupFacts) -> Adoption {
    // A label is untrusted input: no pod is ahead of the attempts that this run knows. One that says so is of a process
    // before, whose create took effect late: it does not belong to the executors that have begun together since.
    let group_attempt = if group.is_known { group.attempt } else { group.attempt.max(pod.attempt) };
    let is_unknown = group.restarts_whole && pod.attempt > group_attempt;
    let attempt = if is_unknown { 0 } else { pod.attempt.min(group_attempt) };
    let is_earlier = group.restarts_whole && attempt < group_attempt && pod.task.is_none();
    let stays = pod.has_stopped && !pod.is_deleting;
    let is_done = match (pod.reported, pod.task, group.restart) {
        (Reported::Nothing, _, _) => false,
        _ if pod.is_dismissed => false,
        (Reported::Completed, Some(_), _) => true,
        (Reported::Lost, Some(is_last_try), _) => stays && is_last_try,
        (Reported::Completed | Reported::Lost, None, _) if is_earlier => false,
        (Reported::Completed | Reported::Lost, None, Restart::Always) => false,
        (Reported::Completed, None, Restart::OnFailure | Restart::Never) => true,
        (Reported::Lost, None, Restart::OnFailure) => false,
        (Reported::Lost, None, Restart::Never) => stays,
    };
    let life = match pod.reported {
        Reported::Completed if is_done => Life::Completed,
        Reported::Lost if stays && !pod.is_dismissed => Life::Retained,
        Reported::Completed | Reported::Lost => Life::Lost { ending: None },
        Reported::Nothing if group.is_stopping => Life::Ending(Ending::now(DeleteCause::Stopped)),
        Reported::Nothing if is_earlier => Life::Ending(Ending::now(DeleteCause::GroupRestarted)),
        Reported::Nothing if pod.is_dismissed && !pod.is_draining => {
            Life::Ending(Ending::now(DeleteCause::ScaledDown))
        }
        Reported::Nothing => Life::Wanted,
    };
    // An executor that can no longer run holds no slot, because its successor may have it already.
    // Where work ends, it is judged next whether its work is done. One of an earlier attempt may
    // have a successor too.
    let may_have_successor =
        pod.has_stopped && (group.restart == Restart::Always || pod.is_dismissed);
    Adoption {
        group_attempt,
        attempt,
        is_earlier,
        life,
        is_done,
        claims_slot: !may_have_successor && !is_earlier,
        needs_slot: group.has_own_slots && !pod.has_stopped,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: PodFacts = PodFacts {
        reported: Reported::Nothing,
        has_stopped: false,
        is_deleting: false,
        attempt: 1,
        task: None,
        is_dismissed: false,
        is_draining: false,
    };
    const ENDED: PodFacts = PodFacts { has_stopped: true, ..RUNS };
    const LOST: PodFacts = PodFacts { reported: Reported::Lost, ..ENDED };
    const GOES: PodFacts = PodFacts { is_deleting: true, ..LOST };
    const DONE: PodFacts = PodFacts { reported: Reported::Completed, ..ENDED };

    const ALWAYS: GroupFacts = GroupFacts {
        is_known: true,
        attempt: 1,
        restart: Restart::Always,
        restarts_whole: false,
        has_own_slots: false,
        is_stopping: false,
    };
    const ON_FAILURE: GroupFacts = GroupFacts { restart: Restart::OnFailure, ..ALWAYS };
    const NEVER: GroupFacts = GroupFacts { restart: Restart::Never, ..ALWAYS };

    const LIFE_LOST: Life = Life::Lost { ending: None };

    /// Pod and group; the life, whether the work is done, whether the slot is claimed.
    #[track_caller]
    fn check(pod: PodFacts, group: GroupFacts, want: (Life, bool, bool)) {
        let got = judge(&pod, &group);
        assert_eq!((got.life, got.is_done, got.claims_slot), want, "{pod:?} {group:?}");
    }

    #[test]
    fn what_was_reported_is_not_capacity_and_is_a_record_where_work_ends() {
        for (pod, group, want) in [
            (RUNS, ALWAYS, (Life::Wanted, false, true)),
            (RUNS, NEVER, (Life::Wanted, false, true)),
            // Not reported yet: that follows.
            (ENDED, ALWAYS, (Life::Wanted, false, false)),
            (ENDED, ON_FAILURE, (Life::Wanted, false, true)),
            (LOST, ALWAYS, (Life::Retained, false, false)),
            (LOST, ON_FAILURE, (Life::Retained, false, true)),
            (LOST, NEVER, (Life::Retained, true, true)),
            (GOES, ALWAYS, (LIFE_LOST, false, false)),
            (GOES, NEVER, (LIFE_LOST, false, true)),
            (DONE, ALWAYS, (LIFE_LOST, false, false)),
            (DONE, ON_FAILURE, (Life::Completed, true, true)),
            (DONE, NEVER, (Life::Completed, true, true)),
            // Lost while it ran, by an eviction for example.
            (PodFacts { has_stopped: false, ..LOST }, NEVER, (LIFE_LOST, false, true)),
        ] {
            check(pod, group, want);
        }
    }

    #[test]
    fn the_record_of_a_task_is_its_success_or_its_last_failure() {
        for (pod, is_last_try, want) in [
            (RUNS, true, (Life::Wanted, false)),
            (LOST, false, (Life::Retained, false)),
            (LOST, true, (Life::Retained, true)),
            (GOES, true, (LIFE_LOST, false)),
            (DONE, false, (Life::Completed, true)),
        ] {
            for group in [ALWAYS, ON_FAILURE, NEVER] {
                let got = judge(&PodFacts { task: Some(is_last_try), ..pod }, &group);
                assert_eq!((got.life, got.is_done), want, "{pod:?} {is_last_try} {group:?}");
            }
        }
    }

    #[test]
    fn an_earlier_attempt_ends_and_has_no_slot() {
        let whole = GroupFacts { restarts_whole: true, attempt: 3, ..NEVER };
        let ending = Life::Ending(Ending::now(DeleteCause::GroupRestarted));
        for (pod, group, want) in [
            (PodFacts { attempt: 3, ..RUNS }, whole, (3, 3, false, Life::Wanted, true)),
            (PodFacts { attempt: 2, ..RUNS }, whole, (3, 2, true, ending, false)),
            (PodFacts { attempt: 2, ..LOST }, whole, (3, 2, true, Life::Retained, false)),
            (PodFacts { attempt: 2, ..DONE }, whole, (3, 2, true, LIFE_LOST, false)),
            // A label is untrusted input.
            (PodFacts { attempt: 9, ..RUNS }, whole, (3, 0, true, ending, false)),
            (
                PodFacts { attempt: 9, ..RUNS },
                GroupFacts { restarts_whole: false, ..whole },
                (3, 3, false, Life::Wanted, true),
            ),
            (
                PodFacts { attempt: 9, ..RUNS },
                GroupFacts { is_known: false, ..whole },
                (9, 9, false, Life::Wanted, true),
            ),
            // A task belongs to no attempt.
            (
                PodFacts { attempt: 2, task: Some(false), ..RUNS },
                whole,
                (3, 2, false, Life::Wanted, true),
            ),
            (
                PodFacts { attempt: 2, ..RUNS },
                GroupFacts { restarts_whole: false, ..whole },
                (3, 2, false, Life::Wanted, true),
            ),
        ] {
            let got = judge(&pod, &group);
            let got = (got.group_attempt, got.attempt, got.is_earlier, got.life, got.claims_slot);
            assert_eq!(got, want, "{pod:?} {group:?}");
        }
    }

    #[test]
    fn who_was_dismissed_ends_and_has_done_nothing() {
        let ending = Life::Ending(Ending::now(DeleteCause::ScaledDown));
        for (pod, want) in [
            (RUNS, (ending, false, true)),
            // The annotation says how it ends.
            (PodFacts { is_draining: true, ..RUNS }, (Life::Wanted, false, true)),
            (ENDED, (ending, false, false)),
            (LOST, (LIFE_LOST, false, false)),
            (DONE, (LIFE_LOST, false, false)),
        ] {
            for group in [ALWAYS, ON_FAILURE, NEVER] {
                check(PodFacts { is_dismissed: true, ..pod }, group, want);
            }
        }
    }

    #[test]
    fn a_stop_ends_what_was_not_reported() {
        let stopping = GroupFacts { is_stopping: true, ..NEVER };
        let ending = Life::Ending(Ending::now(DeleteCause::Stopped));
        check(RUNS, stopping, (ending, false, true));
        check(ENDED, stopping, (ending, false, true));
        check(LOST, stopping, (Life::Retained, true, true));
        check(DONE, stopping, (Life::Completed, true, true));
    }

    #[test]
    fn only_a_running_executor_with_a_slot_of_its_own_needs_it() {
        for (pod, has_own_slots, want) in
            [(RUNS, true, true), (RUNS, false, false), (ENDED, true, false)]
        {
            let group = GroupFacts { has_own_slots, ..ON_FAILURE };
            assert_eq!(judge(&pod, &group).needs_slot, want, "{pod:?} {has_own_slots}");
        }
    }
}
