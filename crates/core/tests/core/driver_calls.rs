//! Control API calls of the driver (heartbeats, idle lists, disconnects, kills) and their effects.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{PREFIX, Run, STOP, heard, kill, policy, refusal, set, spec};
use posse_core::model::action::{Action, Patch, RunVerdict};
use posse_core::model::command::{AfterKill, Command, Reply};
use posse_core::model::event::{Budget, DeleteCause, Event, ExecutorEvent, GroupEvent, LossReason};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{Draining, Phase};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec, Policy, ScaleDown};

const TIMEOUT_MS: u64 = 60_000;

fn listening() -> Policy {
    Policy { heartbeat_timeout_ms: TIMEOUT_MS, ..policy() }
}

fn gently(name: &str, target: u32) -> GroupSpec {
    let label = Some(("example.com/leaving".to_owned(), "true".to_owned()));
    let decommission = Some(Decommission { after_ms: 30_000, label, by_term: false });
    GroupSpec { decommission, ..spec(name, target) }
}

fn ids(list: &[u64]) -> Vec<ExecutorId> {
    list.iter().copied().map(ExecutorId).collect()
}

fn noted(unknown: &[u64]) -> Reply {
    Reply::Noted { unknown: ids(unknown) }
}

// Heartbeats.

#[test]
fn an_executor_without_heartbeats_is_lost_and_replaced() {
    let mut run = Run::with_running(listening(), vec![spec("g", 2)]);
    assert_eq!(run.call(heard(&[1, 2, 9])), noted(&[9]));
    run.beat(&[1], 10_000, TIMEOUT_MS - 10_000);
    assert_eq!((run.losses(), run.take()), (vec![], vec![]));
    run.beat(&[1], 10_000, 20_000);
    assert_eq!(run.losses(), [(2, LossReason::HeartbeatTimeout)]);
    let asked = run.take();
    let is_end = |a: &Action| matches!(a, Action::Delete { grace_s: None, name, .. } if **name == *format!("{PREFIX}2"));
    assert!(asked.iter().any(is_end), "with the pod's own grace: {asked:?}");
    assert!(asked.iter().any(|a| matches!(a, Action::Create { id, .. } if id.0 == 3)));
    assert_eq!(asked.len(), 2);
    run.gone(&[2]);
    run.beat(&[1], 10_000, 5 * TIMEOUT_MS);
    assert_eq!(run.losses(), [], "told once, and nobody else is judged");
    assert_eq!(LossReason::HeartbeatTimeout.budget().map(|budget| budget.as_str()), Some("app"));
}

/// A heartbeat call with an empty list is a call, too.
#[test]
fn no_executor_is_lost_while_the_driver_sends_no_heartbeats() {
    for (gap_ms, is_lost) in [(29_000, true), (31_000, false), (86_400_000, false)] {
        let mut run = Run::with_running(listening(), vec![spec("g", 1)]);
        run.beat(&[1], 10_000, 10_000);
        run.beat(&[], 10_000, 20_000);
        run.wait(gap_ms - 10_000);
        assert_eq!(run.losses(), [], "a gap of {gap_ms} ms");
        // After the gap the timers of all executors start again.
        run.beat(&[], 10_000, TIMEOUT_MS - 10_000);
        assert_eq!(run.losses().len(), usize::from(is_lost), "a gap of {gap_ms} ms");
        run.beat(&[], 10_000, 20_000);
        assert_eq!(run.losses().len(), usize::from(!is_lost), "a gap of {gap_ms} ms");
    }
}

/// posse itself did not run for a while: an executor that was silent meanwhile may have sent a
/// heartbeat.
#[test]
fn no_executor_is_lost_after_a_pause_of_posse() {
    let mut run = Run::with_running(listening(), vec![spec("g", 1)]);
    run.beat(&[1], 10_000, 10_000);
    run.beat(&[], 10_000, 40_000);
    // The timer is due at 60 s. The next turn is later than that, by less than half a timeout.
    run.now += 15_000;
    run.turn();
    assert_eq!(run.losses(), []);
    run.beat(&[1], 10_000, 3 * TIMEOUT_MS);
    assert_eq!(run.losses(), []);
}

#[test]
fn at_most_a_tenth_of_a_group_is_lost_within_a_timeout() {
    for (n, want) in [(1, 1), (9, 1), (19, 1), (20, 2), (40, 4)] {
        let mut run = Run::with_running(listening(), vec![spec("g", n)]);
        let all: Vec<u64> = (1..=u64::from(n)).collect();
        run.beat(&all, 10_000, 10_000);
        // If all executors fall silent at once, the network is the likely cause.
        run.beat(&[], 10_000, TIMEOUT_MS + 40_000);
        assert_eq!(run.losses().len(), want, "{n} executors");
        run.beat(&[], 10_000, TIMEOUT_MS);
        let next = want.min(usize::try_from(n).unwrap() - want);
        assert_eq!(run.losses().len(), next, "{n} executors, the next time-out");
        // The heartbeats continue.
        run.beat(&all, 10_000, 3 * TIMEOUT_MS);
        assert_eq!(run.losses(), [], "{n} executors");
    }
}

#[test]
fn the_share_is_counted_for_each_group() {
    let mut run = Run::with_running(listening(), vec![spec("a", 2), spec("b", 2)]);
    run.beat(&[1, 2, 3, 4], 10_000, 10_000);
    run.beat(&[], 10_000, TIMEOUT_MS + 10_000);
    let lost: Vec<u64> = run.losses().iter().map(|(id, _)| *id).collect();
    assert_eq!(lost, [1, 3]);
}

#[test]
fn no_executor_is_lost_on_a_stale_snapshot_or_without_the_lease_or_at_the_stop() {
    for what in ["stale", "lease", "stop", "off"] {
        let timeout = if what == "off" { 0 } else { TIMEOUT_MS };
        let policy = Policy { heartbeat_timeout_ms: timeout, ..policy() };
        let mut run = Run::with_running(policy, vec![spec("g", 1)]);
        run.beat(&[1], 10_000, 10_000);
        match what {
            "stale" => run.refused_by_history(),
            "lease" => run.tell(Input::Lease { held: false, high_water: None }),
            "stop" => run.stop(STOP),
            _ => {}
        }
        run.beat(&[], 10_000, 3 * TIMEOUT_MS);
        let lost = run.losses();
        let by_silence = lost.iter().filter(|(_, why)| *why == LossReason::HeartbeatTimeout);
        assert_eq!(by_silence.count(), 0, "{what}");
    }
}

// Disconnected.

#[test]
fn the_reason_of_a_disconnect_is_what_the_pod_shows_in_time() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    assert_eq!(run.call(Command::Disconnected { executor: ExecutorId(1) }), Reply::Done);
    run.wait(29_999);
    run.failed(&[1]);
    assert_eq!(run.losses(), [(1, LossReason::AppError)]);
    run.wait(60_000);
    assert_eq!(run.losses(), [], "once");
}

#[test]
fn a_disconnect_without_a_reason_is_a_loss() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    assert_eq!(run.creates(), [2]);
    run.wait(20_000);
    // A repeated report does not restart the wait.
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    run.wait(9_999);
    assert_eq!((run.losses(), run.take()), (vec![], vec![]));
    run.wait(1);
    assert_eq!(run.losses(), []);
    run.read_pod(1);
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
    let asked = run.take();
    assert!(matches!(asked[..], [Action::Delete { grace_s: None, .. }]), "{asked:?}");
    run.gone(&[1]);
    assert_eq!(run.call(Command::Disconnected { executor: ExecutorId(1) }), Reply::Done);
    assert_eq!(run.call(Command::Disconnected { executor: ExecutorId(7) }), Reply::UnknownExecutor);
    run.wait(60_000);
    assert_eq!(run.losses(), []);
    assert_eq!(LossReason::Disconnected.budget(), Some(Budget::Cluster));
}

/// Without the lease the snapshot may be stale, so the wait for the reason continues.
#[test]
fn a_disconnect_is_not_decided_without_the_lease() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    run.tell(Input::Lease { held: false, high_water: None });
    run.wait(300_000);
    assert_eq!(run.losses(), []);
    run.tell(Input::Lease { held: true, high_water: None });
    run.wait(30_000);
    run.read_pod(1);
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
}

// Busy and idle.

#[test]
fn an_unforced_kill_spares_busy_executors() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    let killed = |killed: &[u64], busy: &[u64], unknown: &[u64], target| Reply::Killed {
        killed: ids(killed),
        busy: ids(busy),
        unknown: ids(unknown),
        target: Some(target),
    };
    run.target("g", 4);
    run.take();
    assert_eq!(run.call(Command::Idle { executors: set(&[1, 8]) }), noted(&[8]));
    // The fourth executor does not run, so nothing is lost with it.
    let all = kill(&[1, 2, 3, 4, 9], AfterKill::Lower, false);
    assert_eq!(run.call(all.clone()), killed(&[1, 4], &[2, 3], &[9], 2));
    assert_eq!(run.call(all), killed(&[], &[2, 3], &[9], 2), "said again it changes nothing");
    assert_eq!(run.call(kill(&[2], AfterKill::Replace, true)), killed(&[2], &[], &[], 2));
    run.wait(9_999);
    assert_eq!(run.call(kill(&[3], AfterKill::Replace, false)), killed(&[], &[3], &[], 2));
    // Without a valid idle list no executor counts as busy.
    run.wait(1);
    assert_eq!(run.call(kill(&[3], AfterKill::Replace, false)), killed(&[3], &[], &[], 2));
}

#[test]
fn an_idle_list_replaces_the_last_one_and_if_empty_all_are_busy() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.call(Command::Idle { executors: set(&[1]) });
    run.call(Command::Idle { executors: set(&[]) });
    let Reply::Killed { killed, busy, .. } = run.call(kill(&[1, 2], AfterKill::Lower, false))
    else {
        panic!("not the answer to a kill")
    };
    assert_eq!((killed, busy), (ids(&[]), ids(&[1, 2])));
}

#[test]
fn a_lower_target_ends_idle_executors_first() {
    let mut run = Run::with_running(policy(), vec![spec("g", 4)]);
    run.watch(&[3], |pod| pod.deletion_cost = -5);
    run.watch(&[4], |pod| pod.ready = false);
    run.call(Command::Idle { executors: set(&[1, 4]) });
    for want in ["u4", "u1", "u3"] {
        let target = run.group("g").target - 1;
        run.target("g", target);
        assert_eq!(run.ends(), [want]);
    }
}

// Kills.

/// Target, min and max of the group; the call; the ended executors and the new target.
#[track_caller]
fn check_kill(spec: &GroupSpec, call: Command, want: &[u64], want_target: u32) {
    let mut run = Run::with_running(policy(), vec![spec.clone()]);
    for (round, want) in [(1, want), (2, &[])] {
        let reply = run.call(call.clone());
        let Reply::Killed { killed, busy, target, .. } = reply else { panic!("{reply:?}") };
        assert_eq!((killed, busy), (ids(want), vec![]), "{call:?} {round}");
        assert_eq!(target, Some(want_target), "{call:?} {round}");
    }
    let told = run
        .events
        .iter()
        .filter(|e| matches!(e, Event::Group(_, GroupEvent::TargetChanged { .. })))
        .count();
    assert_eq!(told, usize::from(want_target != spec.target), "{call:?}: told once at most");
    let capacity = run.group("g");
    let n = capacity.requested + capacity.pending + capacity.running;
    assert_eq!(n, want_target, "{call:?}: the plan follows in the same turn");
}

#[test]
fn a_kill_lowers_the_target_once_for_each_live_executor() {
    let of = |target, min, max| GroupSpec { min, max, ..spec("g", target) };
    check_kill(&of(4, 0, None), kill(&[1, 2], AfterKill::Lower, false), &[1, 2], 2);
    check_kill(&of(4, 3, None), kill(&[1, 2], AfterKill::Lower, false), &[1, 2], 3);
    check_kill(&of(4, 0, None), kill(&[1, 9], AfterKill::Lower, true), &[1], 3);
    check_kill(&of(4, 0, None), kill(&[1, 2], AfterKill::Replace, false), &[1, 2], 4);
    check_kill(&of(4, 0, None), kill(&[1], AfterKill::Target(2), false), &[1], 2);
    check_kill(&of(4, 3, None), kill(&[1], AfterKill::Target(0), false), &[1], 3);
    check_kill(&of(4, 0, Some(5)), kill(&[1], AfterKill::Target(9), false), &[1], 5);
    check_kill(&of(4, 0, None), kill(&[], AfterKill::Target(1), false), &[], 1);
}

/// The driver had set a higher target before posse was restarted, and kills an adopted executor.
/// The other adopted executors do not become surplus.
#[test]
fn a_kill_after_a_restart_ends_no_other_executor() {
    for (after, ended) in
        [(AfterKill::Lower, 1), (AfterKill::Replace, 1), (AfterKill::Target(1), 4)]
    {
        let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
        run.pods = (1..=5).map(|id| run.pod("g", id)).collect();
        run.list();
        run.running(&[1, 2, 3, 4, 5]);
        run.take();
        run.call(kill(&[1], after, false));
        assert_eq!(run.ends().len(), ended, "{after:?}");
    }
}

#[test]
fn kills_over_groups_lower_each_groups_own_target() {
    let mut run = Run::with_running(policy(), vec![spec("a", 2), spec("b", 2)]);
    let reply = run.call(kill(&[1, 3, 4], AfterKill::Target(1), false));
    assert!(matches!(reply, Reply::Refused { field: "target", .. }), "{reply:?}");
    assert_eq!(run.losses(), [], "refused as a whole");
    let reply = run.call(kill(&[1, 3, 4], AfterKill::Lower, false));
    assert!(matches!(reply, Reply::Killed { target: None, .. }), "{reply:?}");
    assert_eq!((run.group("a").target, run.group("b").target), (1, 0));
    assert_eq!(run.losses().len(), 3);
}

// Decommission.

fn marks(actions: &[Action]) -> Vec<(Draining, bool)> {
    let marks = actions.iter().filter_map(|action| match action {
        Action::Patch { patch: Patch::Draining(draining, label), .. } => {
            Some((*draining, label.is_some()))
        }
        _ => None,
    });
    marks.collect()
}

#[test]
fn a_victim_drains_and_is_deleted_at_the_end_of_the_period() {
    let mut run = Run::with_running(policy(), vec![gently("g", 2)]);
    let now = run.now;
    run.target("g", 1);
    let asked = run.take();
    let cause = DeleteCause::ScaledDown;
    let until_unix_ms = Some(1_000_000 + now + 30_000);
    assert_eq!(marks(&asked), [(Draining { cause, until_unix_ms }, true)]);
    assert_eq!((asked.len(), run.group("g").draining), (1, 1));
    assert!(run.events.iter().any(|event| matches!(
        event,
        Event::Executor(_, ExecutorEvent::Draining { cause: DeleteCause::ScaledDown, until, .. })
            if until.0 == now + 30_000
    )));
    run.tell(Input::Patched { uid: Uid::new("u2"), answer: Ok(()) });
    let draining = Some(Box::new(Draining { cause, until_unix_ms }));
    run.watch(&[2], |pod| pod.draining.clone_from(&draining));
    run.watch(&[2], |pod| pod.deletion_cost = 1);
    run.wait(29_999);
    assert!(run.take().is_empty());
    run.wait(1);
    assert_eq!(run.ends(), ["u2"]);
    run.gone(&[2]);
    assert_eq!(run.losses(), []);
}

#[test]
fn an_executor_that_ends_while_it_drains_is_no_loss() {
    let mut run = Run::with_running(policy(), vec![gently("g", 2)]);
    run.target("g", 1);
    run.take();
    run.failed(&[2]);
    run.tell(Input::Patched { uid: Uid::new("u2"), answer: Ok(()) });
    assert_eq!(run.ends(), ["u2"], "what has ended does not wait");
    run.gone(&[2]);
    let is_deleted = |e: &Event| {
        matches!(
            e,
            Event::Executor(_, ExecutorEvent::Deleted { cause: DeleteCause::ScaledDown, .. })
        )
    };
    assert_eq!(run.events.iter().filter(|e| is_deleted(e)).count(), 1);
    assert_eq!(run.losses(), []);
    run.wait(60_000);
    assert!(run.take().is_empty());
}

#[test]
fn an_unforced_kill_drains_and_a_forced_one_does_not() {
    let mut run = Run::with_running(policy(), vec![gently("g", 3)]);
    run.call(kill(&[1], AfterKill::Lower, false));
    let asked = run.take();
    assert_eq!((marks(&asked).len(), asked.len()), (1, 1));
    assert_eq!(run.losses(), [(1, LossReason::Killed)], "told when it was decided");
    run.call(kill(&[2], AfterKill::Lower, true));
    assert!(matches!(run.take().as_slice(), [Action::Delete { .. }]));
    assert_eq!(run.losses(), [(2, LossReason::Killed)]);
    // A forced kill ends the drain at once; nothing is reported or lowered a second time.
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    let reply = run.call(kill(&[1], AfterKill::Lower, true));
    assert!(matches!(&reply, Reply::Killed { killed, .. } if killed.is_empty()), "{reply:?}");
    assert_eq!(
        (run.ends(), run.losses(), run.group("g").target),
        (vec!["u1".to_owned()], vec![], 1)
    );
}

#[test]
fn an_executor_that_does_not_run_is_not_drained() {
    let mut run = Run::new(policy(), vec![gently("g", 1)]);
    run.created(&[1]);
    run.take();
    run.target("g", 0);
    assert!(matches!(run.take().as_slice(), [Action::Delete { .. }]));
}

/// After a restart a drain continues from the annotation. A kill was reported as a loss before the
/// restart.
#[test]
fn a_drain_continues_after_a_restart() {
    use DeleteCause::{Killed, ScaledDown};
    for (cause, until_unix_ms, wait_ms, n_told) in [
        (ScaledDown, Some(1_020_000), 20_000, 1),
        (Killed, Some(1_020_000), 20_000, 0),
        // The drain period ended while no posse was running.
        (ScaledDown, Some(999_000), 0, 1),
        (ScaledDown, None, 0, 1),
    ] {
        let mut run = Run::unlisted(policy(), vec![gently("g", 0)]);
        let mut pod = run.pod("g", 1);
        (pod.phase, pod.container) =
            (Phase::Running, posse_core::model::pod::ContainerState::Running);
        pod.node = Some("node".into());
        pod.draining = Some(Box::new(Draining { cause, until_unix_ms }));
        run.pods.push(pod);
        run.list();
        assert_eq!(run.group("g").draining, 1);
        if wait_ms > 0 {
            run.wait(wait_ms - 1);
            assert!(run.take().is_empty(), "{cause:?}");
            run.wait(1);
        }
        assert_eq!(run.ends(), ["u1"], "{cause:?}");
        run.gone(&[1]);
        let told = run
            .events
            .iter()
            .filter(|e| matches!(e, Event::Executor(_, ExecutorEvent::Deleted { .. })))
            .count();
        assert_eq!((told, run.losses().len()), (n_told, 0), "{cause:?}");
    }
}

/// If the annotation cannot be written, the executor is deleted in time all the same.
#[test]
fn a_refused_drain_annotation_delays_nothing() {
    for class in [RefusalClass::Forbidden, RefusalClass::Transient, RefusalClass::Throttled] {
        let mut run = Run::with_running(policy(), vec![gently("g", 1)]);
        run.target("g", 0);
        for _ in 0..9 {
            if !marks(&run.take()).is_empty() {
                let answer = Err(refusal(class, 403));
                run.tell(Input::Patched { uid: Uid::new("u1"), answer });
            }
            run.wait(3_300);
        }
        run.wait(300);
        let asked = run.take();
        assert!(asked.iter().any(|a| matches!(a, Action::Delete { .. })), "{class:?}: {asked:?}");
    }
}

// Silence.

#[test]
fn a_driver_without_a_call_is_lost() {
    let silent = Policy { driver_silence_ms: 60_000, ..policy() };
    let verdict = |run: &mut Run| run.core.poll_verdict();
    let mut run = Run::unlisted(silent.clone(), vec![spec("g", 0)]);
    run.wait(120_000);
    assert_eq!(verdict(&mut run), None, "before the first LIST nobody can speak");
    run.list();
    run.wait(59_000);
    run.call(Command::Status);
    run.wait(30_000);
    // Somebody has left a page open.
    run.call(Command::View);
    for key in [None, Some("t".into())] {
        run.call(Command::ViewTasks { group: "g".into(), key });
    }
    run.wait(29_999);
    assert_eq!(verdict(&mut run), None);
    run.wait(1);
    assert_eq!(verdict(&mut run), Some(RunVerdict::DriverSilent { silence_ms: 60_000 }));

    // posse itself did not run meanwhile.
    let mut run = Run::new(silent, vec![spec("g", 0)]);
    run.now += 90_000;
    run.turn();
    assert_eq!(verdict(&mut run), None);
    run.wait(60_000);
    assert!(verdict(&mut run).is_some());

    let mut run = Run::new(policy(), vec![spec("g", 0)]);
    run.wait(86_400_000);
    assert_eq!(verdict(&mut run), None, "off");
}

// Fairness.

/// If a group uses the whole pending limit, each freed unit goes to the group with the smaller
/// share.
#[test]
fn groups_share_the_pending_limit() {
    let policy = Policy { pending_max: 3, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 9), spec("b", 0)]);
    assert_eq!(run.creates(), [1, 2, 3]);
    run.created(&[1, 2, 3]);
    run.target("b", 9);
    assert!(run.take().is_empty());
    for (runs, want) in [(1, "b"), (2, "b"), (3, "a"), (4, "b")] {
        run.running(&[runs]);
        let new = run.creates();
        assert_eq!(new.len(), 1);
        assert_eq!(run.group_of(new[0]), want, "after {runs} runs");
        run.created(&new);
    }
}

/// A group whose requests are never answered does not use the whole create window.
#[test]
fn groups_share_the_create_window() {
    let policy = Policy { in_flight_max: 4, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 100), spec("b", 0)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    run.target("b", 100);
    run.created(&[1, 2]);
    let new = run.creates();
    assert_eq!(new.iter().map(|id| run.group_of(*id)).collect::<Vec<_>>(), ["b", "b"]);
}

/// If a quota has room for one pod, the group with the smaller share of its target asks first.
#[test]
fn the_group_with_the_smaller_share_asks_first() {
    let mut run = Run::with_running(policy(), vec![spec("a", 4), spec("b", 4)]);
    let of_b: Vec<u64> = (1..=8).filter(|id| run.group_of(*id) == "b").collect();
    let of_a: Vec<u64> = (1..=8).filter(|id| run.group_of(*id) == "a").collect();
    run.take();
    let gone = [of_a[0], of_b[0], of_b[1]];
    run.gone(&gone);
    let new = run.creates();
    assert_eq!(new.iter().map(|id| run.group_of(*id)).collect::<Vec<_>>(), ["b", "b", "a"]);
}

/// With `scale_down: pending` running executors end only by a kill call.
#[test]
fn with_scale_down_pending_running_executors_end_only_by_kills() {
    let group = GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 3) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.target("g", 1);
    assert!(run.take().is_empty());
    run.call(kill(&[1], AfterKill::Target(1), false));
    assert_eq!(run.ends(), ["u1"]);
}

// Terminating pods that do not go away.

/// The executor's pod stays terminating. `node` is what the API server says about its node; returns
/// whether the pod is forgotten because of that.
#[track_caller]
fn check_stuck(answer: Result<(), RefusalClass>, is_forgotten: bool, is_asked_again: bool) {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.watch(&[1], |pod| pod.deleting = true);
    run.take();
    run.wait(119_999);
    assert_eq!(run.take(), []);
    run.wait(1);
    let is_look = |a: &Action| matches!(a, Action::GetNode { name } if **name == *"node");
    let asked = run.take();
    assert!(matches!(asked.as_slice(), [a] if is_look(a)), "{asked:?}");
    let answer = answer.map_err(|class| refusal(class, 403));
    run.tell(Input::GotNode { name: "node".into(), answer });
    let ends = run.take();
    let is_end = |a: &Action| matches!(a, Action::Delete { grace_s: Some(0), .. });
    assert_eq!(ends.iter().filter(|a| is_end(a)).count(), usize::from(is_forgotten), "{ends:?}");
    run.wait(120_000);
    assert_eq!(run.take().iter().any(is_look), is_asked_again);
}

#[test]
fn a_pod_is_forgotten_only_if_its_node_is_gone() {
    check_stuck(Err(RefusalClass::NotFound), true, true);
    check_stuck(Ok(()), false, true);
    check_stuck(Err(RefusalClass::Transient), false, true);
    // Without permission to read nodes the pod is never forgotten.
    check_stuck(Err(RefusalClass::Forbidden), false, false);
}

/// Etcd is restored after the node was looked for, and the pod lives again: it ends as others do.
#[test]
fn a_pod_that_lives_again_is_not_forgotten() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.watch(&[1], |pod| pod.deleting = true);
    run.wait(120_000);
    run.take();
    run.refused_by_history();
    run.tell(Input::GotNode {
        name: "node".into(),
        answer: Err(refusal(RefusalClass::NotFound, 404)),
    });
    run.pods.iter_mut().for_each(|pod| pod.deleting = false);
    run.list();
    let deletes = run.take().into_iter().filter_map(|action| match action {
        Action::Delete { grace_s, .. } => Some(grace_s),
        _ => None,
    });
    assert_eq!(deletes.collect::<Vec<_>>(), [None]);
}

#[test]
fn a_pod_that_terminates_in_time_causes_no_node_read() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.watch(&[1], |pod| pod.deleting = true);
    run.gone(&[1]);
    run.take();
    run.wait(600_000);
    assert_eq!(run.take(), []);
}
