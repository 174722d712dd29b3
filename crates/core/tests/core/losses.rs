//! Loss reports: once for each executor, with reason and log; which failed pods are retained.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::tasks::{group, say, task};
use crate::core_run::{PREFIX, Run, STOP, assert_stop_waits, kill, policy, refusal, spec};
use posse_core::model::action::Action;
use posse_core::model::command::AfterKill;
use posse_core::model::event::{Event, ExecutorEvent, LossReason, RestartKind, RunEvent};
use posse_core::model::ids::{ExecutorId, Uid, Version};
use posse_core::model::input::{Input, List, ListSource, PodEvent};
use posse_core::model::pod::ContainerState::{Ended, Running};
use posse_core::model::pod::{Phase, Pod};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec, Limit, Policy, SlotPolicy};
use posse_core::model::task::Task;

/// If one more pod fails after a restart, the pod that was counted first is deleted, whatever the
/// order of the LIST.
#[test]
fn after_a_restart_the_oldest_retained_pod_goes_first() {
    // (when each pod was counted, by id; keep_failed) -> pods that are deleted at once
    for (counted, keep_failed, want) in [
        (&[3, 1, 2][..], 3, &[][..]),
        (&[3, 1, 2], 2, &["u2"]),
        (&[1, 1, 1], 1, &["u1", "u2"]),
        (&[0, 5, 5], 2, &["u1"]),
    ] {
        let mut run = Run::unlisted(Policy { keep_failed, ..policy() }, vec![spec("g", 0)]);
        for (id, at) in (1..).zip(counted) {
            let mut pod = run.pod("g", id);
            (pod.phase, pod.counted) = (Phase::Failed, Some(*at));
            run.pods.push(pod);
        }
        run.list();
        assert_eq!(run.ends(), want, "{counted:?}");
        assert_eq!(run.group("g").failed, u32::try_from(3 - want.len()).unwrap());
        assert_eq!(run.events.len(), 1, "started, and no loss again: {:?}", run.events);
    }
}

fn n_lost(run: &Run, id: u64) -> usize {
    let of = |event: &&Event| matches!(event, Event::Executor(subject, ExecutorEvent::Lost { .. }) if subject.id.0 == id);
    run.events.iter().filter(of).count()
}

/// Rule 8: however many sources report an end, in whatever order, it is one loss.
#[test]
fn a_loss_is_reported_once_whatever_reports_the_end() {
    type Telling = fn(&mut Run);
    let failed: Telling = |run| run.failed(&[1]);
    let deleting: Telling = |run| run.watch(&[1], |pod| pod.deleting = true);
    let gone: Telling = |run| run.gone(&[1]);
    let list: Telling = |run| run.list();
    let absent: Telling = |run| {
        run.pods.retain(|pod| pod.id.0 != 1);
        run.list();
    };
    let not_found: Telling = |run| {
        let uid = Uid::new("u1");
        run.tell(Input::Deleted { uid, answer: Err(refusal(RefusalClass::NotFound, 404)) });
    };
    let restored: Telling = |run| {
        // After a resourceVersion rollback the pod is running again.
        let watermark = run.core.watermark();
        run.tell(Input::List(List::whole(ListSource::Poll, vec![], Some(Version(1)), watermark)));
        run.watch(&[1], |pod| (pod.phase, pod.container) = (Phase::Running, Running));
        run.list();
    };
    for tellings in [
        &[failed, failed, list, gone][..],
        &[deleting, failed, deleting, gone, list],
        &[failed, deleting, gone],
        &[gone, list],
        &[absent, list],
        &[list, absent],
        &[failed, absent, list],
        &[failed, not_found, list],
        &[failed, list, restored, failed, gone],
    ] {
        let policy = Policy { keep_failed: 0, ..policy() };
        let mut run = Run::with_running(policy, vec![spec("g", 1)]);
        for (i, telling) in tellings.iter().enumerate() {
            telling(&mut run);
            let n = n_lost(&run, 1);
            assert!(n == 1 || (i == 0 && tellings.len() == 2), "telling {i}: {n} losses");
        }
        assert_eq!(n_lost(&run, 1), 1);
    }
}

/// Spark's SPARK-44609: an executor whose pod appears in no LIST and no watch event does not hold
/// its slot for ever.
#[test]
fn an_executor_never_seen_in_a_list_is_lost_and_replaced() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.created(&[1]);
    assert_eq!((run.creates(), n_lost(&run, 1)), (vec![], 0));
    run.pods.clear();
    run.list();
    assert_eq!((run.slots_created(), n_lost(&run, 1)), (vec![(2, 1)], 1));
    let lost = run.events.iter().find_map(|event| match event {
        Event::Executor(_, ExecutorEvent::Lost { reason, message, .. }) => {
            Some((*reason, message.as_str()))
        }
        _ => None,
    });
    let why = "the pod is gone, or has lost a label of posse, and its status does not say why";
    assert_eq!(lost, Some((LossReason::Deleted, why)));
    run.tell(absent("u1"));
    let slot = |id| run.core.executors().get(ExecutorId(id)).and_then(|executor| executor.slot);
    assert_eq!((slot(1), slot(2)), (None, Some(1)), "its slot is free again");
}

/// The answer to a DELETE of a pod that does not exist.
fn absent(uid: &str) -> Input {
    let answer = Err(refusal(RefusalClass::NotFound, 404));
    Input::Deleted { uid: Uid::new(uid), answer }
}

/// Somebody removes a label of ours: the watch tells a delete, and the pod works on.
#[test]
fn a_pod_that_vanishes_alive_is_deleted_before_its_slot_is_given_on() {
    let deletes = |run: &mut Run| {
        let actions = run.take().into_iter();
        let uids = actions.filter_map(|action| match action {
            Action::Delete { uid, .. } => Some(uid.to_string()),
            Action::Create { slot, .. } => Some(format!("slot {slot}")),
            _ => None,
        });
        uids.collect::<Vec<_>>()
    };
    for (is_listed, stable) in [(false, true), (true, true), (false, false)] {
        let slots = if stable { SlotPolicy::Stable } else { SlotPolicy::default() };
        let mut run = Run::with_running(policy(), vec![GroupSpec { slots, ..spec("g", 2) }]);
        let first = run.pods[0].clone();
        if is_listed {
            run.pods.remove(0);
            run.list();
        } else {
            run.vanish(&[1], |_| {});
        }
        assert_eq!(run.losses(), [(1, LossReason::Deleted)]);
        let asked: &[&str] = if stable { &["u1"] } else { &["slot 2", "u1"] };
        assert_eq!(deletes(&mut run), asked, "{is_listed} {stable}");
        // The same event again, and LISTs that do not show it, prove nothing.
        let epoch = run.core.watermark().epoch;
        run.tell(Input::Watch { epoch, events: vec![PodEvent::Deleted(first)] });
        run.list();
        run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Ok(None) });
        run.wait(5_000);
        assert_eq!(deletes(&mut run), ["u1"], "it is asked again");
        run.tell(absent("u1"));
        assert_eq!(deletes(&mut run), if stable { vec!["slot 0"] } else { vec![] });
        assert_eq!(run.losses(), [], "it is told once");
    }
}

/// After a restore of etcd an older LIST, which still has the pod, comes after a newer one.
#[test]
fn an_older_list_does_not_bring_back_what_has_vanished() {
    let group = GroupSpec { slots: SlotPolicy::Stable, ..spec("g", 2) };
    let mut run = Run::with_running(policy(), vec![group]);
    let before = run.pods.clone();
    run.vanish(&[1], |_| {});
    run.refused_by_history();
    let sent = run.core.watermark();
    for (source, pods, version) in [
        (ListSource::Poll, run.pods.clone(), 30),
        (ListSource::Watch, before, 20),
        (ListSource::Poll, run.pods.clone(), 40),
    ] {
        let pods = pods.into_iter().map(|pod| Pod { version: Some(Version(version)), ..pod });
        run.tell(Input::List(List::whole(source, pods.collect(), Some(Version(version)), sent)));
        let kept = run.core.snapshot().get(&Uid::new("u1"));
        assert!(kept.is_some_and(|pod| pod.deleting), "{version}");
    }
    assert_eq!(run.slots_created(), []);
    // The first answer is to a delete from before the restore.
    run.tell(absent("u1"));
    assert_eq!(run.slots_created(), []);
    run.tell(absent("u1"));
    assert_eq!(run.slots_created(), [(3, 0)]);
}

/// What it was is decided already: it has its time, and its slot is not given on before the server says that it is gone.
#[test]
fn a_pod_that_vanishes_while_it_ends_keeps_its_time() {
    for by_term in [false, true] {
        let decommission = Some(Decommission { after_ms: 60_000, label: None, by_term });
        let slots = SlotPolicy::Stable;
        let group = GroupSpec { decommission, slots, ..spec("g", 1) };
        let mut run = Run::with_running(policy(), vec![group]);
        run.call(kill(&[1], AfterKill::Replace, false));
        run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
        if by_term {
            run.tell(Input::Deleted { uid: Uid::new("u1"), answer: Ok(None) });
            run.watch(&[1], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 60));
        }
        run.wait(1_000);
        run.take();
        let (epoch, again) = (run.core.watermark().epoch, PodEvent::Deleted(run.pods[0].clone()));
        run.vanish(&[1], |_| {});
        run.tell(Input::Watch { epoch, events: vec![again] });
        run.list();
        run.wait(58_000);
        assert_eq!(run.take(), [], "{by_term}");
        run.wait(2_000);
        let asked = run.take();
        assert!(matches!(asked[..], [Action::Delete { .. }]), "{by_term} {asked:?}");
        run.tell(absent("u1"));
        assert_eq!(run.slots_created(), [(2, 0)], "{by_term}");
    }
}

// Logs of lost executors.

fn logged(run: &mut Run) -> Vec<(u64, usize, Option<String>)> {
    let told = run.take_events().into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Log { lines, message }) => {
            Some((subject.id.0, lines.len(), message))
        }
        _ => None,
    });
    told.collect()
}

fn reads(run: &mut Run) -> Vec<Uid> {
    let asked = run.take().into_iter().filter_map(|action| match action {
        Action::ReadLog { uid, .. } => Some(uid),
        _ => None,
    });
    asked.collect()
}

fn logs_of(n: u32) -> Run {
    let policy = Policy { log_lines: 3, keep_failed: 0, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", n)]);
    run.take();
    run
}

#[test]
fn a_log_is_read_before_its_pod_is_deleted_and_nothing_else_waits() {
    let mut run = logs_of(1);
    run.pods[0].main_container = Some("worker".into());
    run.failed(&[1]);
    assert_eq!(n_lost(&run, 1), 1, "the loss is told at once");
    let (uid, name) = (Uid::new("u1"), format!("{PREFIX}1"));
    let asked = run.take();
    let (container, n_lines) = (Some("worker".into()), 3);
    let read = Action::ReadLog { uid: uid.clone(), name: name.clone(), container, n_lines };
    assert!(
        matches!(&asked[..], [Action::Create { id: ExecutorId(2), .. }, other] if *other == read)
    );
    run.wait(5_000);
    assert_eq!(run.take(), [], "the pod is still needed");
    run.tell(Input::LogRead { uid: uid.clone(), answer: Ok(vec!["a".into(), "b".into()]) });
    assert_eq!(run.take(), [Action::Delete { uid, name, grace_s: None }]);
    assert_eq!(logged(&mut run), [(1, 2, None)]);
}

#[test]
fn log_reads_are_limited_at_a_time_and_in_a_minute() {
    let mut run = logs_of(24);
    let all: Vec<u64> = (1..=24).collect();
    run.failed(&all);
    let mut under_way = reads(&mut run);
    assert_eq!(under_way.len(), 4);
    let skipped = logged(&mut run);
    assert_eq!(skipped.len(), 4, "{skipped:?}");
    assert!(skipped.iter().all(|(id, _, why)| *id > 20
        && why.as_deref() == Some("skipped: too many logs were read within the last minute")));
    let mut n_told = 0;
    while let Some(uid) = under_way.pop() {
        let answer = Err(refusal(RefusalClass::Transient, 503));
        run.tell(Input::LogRead { uid, answer });
        n_told += logged(&mut run).len();
        under_way.extend(reads(&mut run));
        assert!(under_way.len() <= 4);
    }
    assert_eq!(n_told, 20, "each is told of, also where there are no lines");
}

#[test]
fn only_losses_by_the_application_have_their_log_read() {
    type End = fn(&mut posse_core::model::pod::Pod);
    let rows: [(End, bool); 4] = [
        (|pod| pod.phase = Phase::Succeeded, false),
        (|pod| pod.deleting = true, false),
        (|pod| pod.end.as_mut().unwrap().pod_reason = "Evicted".into(), false),
        (|pod| pod.end.as_mut().unwrap().container_reason = "OOMKilled".into(), true),
    ];
    for (i, (end, want)) in rows.into_iter().enumerate() {
        let mut run = logs_of(1);
        run.watch(&[1], |pod| {
            pod.end = Some(Box::default());
            end(pod);
            if pod.end.as_ref().is_some_and(|end| !end.container_reason.is_empty()) {
                (pod.phase, pod.container) = (Phase::Failed, Ended);
            }
            if pod.end.as_ref().is_some_and(|end| !end.pod_reason.is_empty()) {
                pod.phase = Phase::Failed;
            }
        });
        assert_eq!(n_lost(&run, 1), 1, "row {i}");
        assert_eq!(!reads(&mut run).is_empty(), want, "row {i}");
    }
}

#[test]
fn a_pod_that_goes_before_its_log_was_read_is_reported_too() {
    let mut run = logs_of(5);
    run.failed(&[1, 2, 3, 4, 5]);
    assert_eq!(reads(&mut run).len(), 4);
    run.gone(&[5, 1]);
    let gone = "the pod was gone before its log was read";
    assert_eq!(logged(&mut run), [(5, 0, Some(gone.to_owned()))], "1 is being read");
    let answer = Err(refusal(RefusalClass::NotFound, 404));
    run.tell(Input::LogRead { uid: Uid::new("u1"), answer });
    assert!(matches!(&logged(&mut run)[..], [(1, 0, Some(_))]));
}

#[test]
fn a_stop_waits_for_the_last_logs_but_not_for_long() {
    let failed = || {
        let mut run = logs_of(1);
        run.failed(&[1]);
        run
    };
    assert_stop_waits(failed, || Input::LogRead { uid: Uid::new("u1"), answer: Ok(vec![]) });
}

#[test]
fn a_spent_budget_is_reported_once() {
    let policy = Policy { failures_app: posse_core::model::settings::Limit::Max(1), ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 4)]);
    run.failed(&[1, 2, 3, 4]);
    let n = run
        .events
        .iter()
        .filter(|event| matches!(event, Event::Run(RunEvent::BudgetExhausted { .. })))
        .count();
    assert_eq!(n, 1);
}

/// The watch reports an end and the delete at once, or a LIST comes without the pod.
#[test]
fn the_loss_of_a_pod_that_is_gone_outright_names_its_node() {
    let gone: fn(&mut Run) = |run| run.gone(&[1]);
    let absent: fn(&mut Run) = |run| {
        run.pods.clear();
        run.list();
    };
    for way in [gone, absent] {
        let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
        way(&mut run);
        let node = run.events.iter().find_map(|event| match event {
            Event::Executor(_, ExecutorEvent::Lost { node, .. }) => Some(node.as_deref()),
            _ => None,
        });
        assert_eq!(node, Some(Some("node")));
    }
}

#[test]
fn nothing_is_told_after_the_end() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.stop(STOP);
    run.wait(120_000);
    assert_eq!(run.events.last(), Some(&Event::Run(RunEvent::Stopped { count: 1 })));
    let cause = "the inbox was full".to_owned();
    run.tell(Input::WatchRestarted { kind: RestartKind::Overrun, cause });
    assert_eq!(run.events.last(), Some(&Event::Run(RunEvent::Stopped { count: 1 })));
}

/// A queue has no target, and its tasks are what is wanted.
#[test]
fn losses_that_tasks_have_room_for_do_not_end_the_run() {
    let policy = Policy { failures_cluster: Limit::Auto, ..policy() };
    let mut run = Run::new(policy, vec![group(0, Some(20))]);
    let tasks: Vec<Task> = (0..30).map(|n| task(&format!("t{n}"), 9)).collect();
    say(&mut run, &tasks);
    let mut live = Vec::new();
    while live.len() < 20 {
        let created = run.creates();
        assert_ne!(created, []);
        run.start(&created);
        live.extend(created);
    }
    run.gone(&live[..12]);
    assert_eq!((run.losses().len(), run.core.poll_verdict()), (12, None));
}
