//! Spark's test scenarios for its pod allocator and snapshots, by name, with posse's rules. Numbers
//! such as C.1.2 are those of the inventory from which they were taken. Scenarios about settings
//! are tested elsewhere (C.1.2, C.3.2 and C.4.2 with the configuration and the runtime), others are
//! tests in the core (C.1.3 in `share`, C.2.1 in `budget`, C.5.1 and C.5.2 in `loss`).
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{PREFIX, Run, STOP, heard, policy, refusal, set, spec};
use posse_base::time::Millis;
use posse_core::model::action::{Action, Patch};
use posse_core::model::command::{AfterKill, Command, Reply};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::{Input, PodEvent};
use posse_core::model::pod::{ContainerState, End, Phase, StartProblem, StartProblemKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec, Policy, ScaleDown};
use posse_core::policy::shares::share;

/// The limit applies to all groups together; a pending pod frees nothing, a running one does.
#[test]
fn spark_c1_4_pending_pod_limit_with_multiple_resource_profiles() {
    let policy = Policy { pending_max: 3, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 2), spec("b", 3)]);
    assert_eq!(run.creates(), [1, 2, 3]);
    run.created(&[1, 2, 3]);
    assert!(run.creates().is_empty());
    assert_eq!(run.waits_for("b"), Some("pending_limit"));
    // Spark waits for an idle timeout; here a lower target ends the youngest pending executor at
    // once.
    run.target("a", 1);
    assert_eq!(run.ends(), ["u2"]);
    run.gone(&[2]);
    assert_eq!(run.creates(), [4]);
    run.created(&[4]);
    run.running(&[1]);
    assert_eq!(run.creates(), [5]);
}

/// Spark has a limit for each profile; posse has one limit, shared evenly between the groups.
#[test]
fn spark_c1_5_pending_pod_limit_per_resource_profile_id() {
    let policy = Policy { pending_max: 4, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 2), spec("b", 3)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    assert_eq!((run.group("a").requested, run.group("b").requested), (2, 2));
    run.created(&[1, 2, 3, 4]);
    run.running(&[3]);
    assert_eq!(run.creates(), [5]);
    assert_eq!(share(4, &[2, 3]), [2, 2]);
}

/// Spark's batch has 5 pods; posse's window starts at 4 and limits requests, not pods.
#[test]
fn spark_c1_6_initially_request_executors_in_batches() {
    let mut run = Run::new(policy(), vec![spec("g", 6)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    run.wait(60_000);
    assert!(run.creates().is_empty());
    assert_eq!(run.waits_for("g"), Some("in_flight"));
}

/// Spark waits until the batch runs; posse continues with each answer.
#[test]
fn spark_c1_8_request_executors_in_batches_allow_another_batch() {
    let mut run = Run::new(policy(), vec![spec("g", 6)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    run.created(&[1]);
    assert_eq!(run.creates(), [5, 6]);
    run.created(&[2, 3, 4, 5, 6]);
    run.running(&[1, 2, 3, 4, 5, 6]);
    assert!(run.creates().is_empty());
}

/// The failed executor is replaced in the same turn, not with the next batch.
#[test]
fn spark_c1_9_when_a_current_batch_reaches_error_states_re_request_them() {
    let mut run = Run::new(Policy { keep_failed: 0, ..policy() }, vec![spec("g", 5)]);
    let ids = run.creates();
    run.created(&ids);
    let ids = run.creates();
    run.created(&ids);
    run.running(&[1, 2, 3, 4]);
    run.failed(&[5]);
    let asked = run.take();
    assert!(asked.iter().any(|a| matches!(a, posse_core::model::action::Action::Create { id, .. }
        if id.0 == 6)));
    assert_eq!(asked.len(), 2, "one create and the delete of the failed pod: {asked:?}");
}

/// Spark deletes by label and uses the next id; posse repeats the create under the same name, so
/// that a pod which exists after all is found and not doubled.
#[test]
fn spark_c1_11_when_an_executor_is_requested_but_the_api_does_not_report_it() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
    run.wait(2_000);
    assert_eq!(run.creates(), [1]);
}

#[test]
fn spark_c1_12_scale_up_and_down_on_target_executor_count_changes() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.target("g", 4);
    assert_eq!(run.creates(), [2, 3, 4]);
    run.created(&[2, 3, 4]);
    run.running(&[2]);
    assert!(run.take().is_empty());
    // Spark waits for an idle timeout and deletes with one call; posse ends executors that have not
    // started.
    run.target("g", 2);
    assert_eq!(run.ends(), ["u3", "u4"]);
    run.gone(&[3, 4]);
    run.target("g", 1);
    assert_eq!(run.ends(), ["u2"]);
    let deleted = run
        .events
        .iter()
        .filter(|e| matches!(e, Event::Executor(_, ExecutorEvent::Deleted { .. })));
    assert_eq!(deleted.count(), 2);
}

/// An executor that is not created yet ends first, whatever its age, because nothing is lost.
#[test]
fn spark_c1_13_correctly_identify_timed_out_pending_pod_requests_as_excess() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    run.created(&[1]);
    run.take();
    run.target("g", 2);
    assert_eq!(run.creates(), [2]);
    run.target("g", 1);
    assert!(run.take().is_empty(), "the create under way is given up, nothing is deleted");
    assert_eq!(run.group("g").draining, 1);
    run.created(&[2]);
    assert_eq!(run.ends(), ["u2"]);
}

/// Spark spares executors by an idle timeout; with `scale_down: pending` posse spares running
/// executors.
#[test]
fn spark_c1_14_respect_executor_idle_timeout_configuration() {
    let group =
        posse_core::model::settings::GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 5) };
    let mut run = Run::new(policy(), vec![group]);
    run.created(&[1, 2, 3, 4]);
    run.created(&[5]);
    run.running(&[1, 3, 4]);
    run.take();
    run.target("g", 0);
    assert_eq!(run.ends(), ["u2", "u5"]);
    assert_eq!(run.waits_for("g"), Some("scale_down_pending"));
}

/// Spark must be told which pods have registered; posse never counts an executor twice.
#[test]
fn spark_c1_15_known_pods_with_multiple_resource_profiles_at_downscaling() {
    let mut run = Run::with_running(policy(), vec![spec("a", 2), spec("b", 2)]);
    run.target("a", 3);
    run.target("b", 4);
    let ids = run.creates();
    assert_eq!(ids.len(), 3);
    run.created(&ids);
    run.target("a", 1);
    run.target("b", 1);
    let ended = run.ends();
    assert_eq!(ended.len(), 5);
    assert!(ids.iter().all(|id| ended.contains(&format!("u{id}"))), "pending ones first");
    run.target("a", 1);
    assert!(run.take().is_empty());
}

#[test]
fn spark_c1_16_multiple_resource_profiles() {
    let mut run = Run::with_running(policy(), vec![spec("a", 1), spec("b", 2)]);
    assert_eq!((run.group("a").running, run.group("b").running), (1, 2));
    run.target("a", 2);
    run.target("b", 3);
    assert_eq!(run.creates(), [4, 5]);
    run.created(&[4, 5]);
    run.target("a", 1);
    run.target("b", 1);
    // A lower target of one group never ends executors of another: each group first ends its own
    // pending ones.
    assert_eq!(run.ends().len(), 3);
    assert_eq!((run.group("a").running, run.group("b").running), (1, 1));
}

/// A pod that stays pending does not delay others.
#[test]
fn spark_c1_17_pod_allocator_does_not_stall_with_pending_pods() {
    let mut run = Run::new(policy(), vec![spec("g", 6)]);
    let ids = run.creates();
    run.created(&ids);
    run.running(&[1, 2, 3, 4]);
    assert_eq!(run.creates(), [5, 6]);
    run.created(&[5]);
    run.wait(3_600_000);
    assert_eq!((run.group("g").pending, run.group("g").requested), (1, 1));
}

/// A LIST replaces the snapshot: pods in it are adopted, pods missing from it are lost.
#[test]
fn spark_c3_1_items_returned_by_the_api_should_be_pushed() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    run.pods = vec![run.pod("g", 1), run.pod("g", 2)];
    run.list();
    assert_eq!((run.take(), run.group("g").pending), (vec![], 2));
    run.pods.remove(1);
    run.list();
    assert!(
        run.events
            .iter()
            .any(|event| matches!(event, Event::Executor(subject, ExecutorEvent::Lost { .. })
        if subject.id.0 == 2))
    );
}

/// posse's LIST never asks for resourceVersion 0, because it must be consistent. An older LIST adds
/// nothing and removes nothing that is newer.
#[test]
fn spark_c3_3_support_pod_listing_with_resource_version() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (old, watermark) = (vec![], run.core.watermark());
    run.running(&[1, 2]);
    run.target("g", 3);
    assert_eq!(run.creates(), [3]);
    run.created(&[3]);
    let version = watermark.position;
    let source = posse_core::model::input::ListSource::Poll;
    let list = posse_core::model::input::List::whole(source, old, version, watermark);
    run.tell(posse_core::model::input::Input::List(list));
    assert_eq!((run.take(), run.group("g").running, run.group("g").pending), (vec![], 2, 1));
}

/// Spark's inventory A.10: Spark never counts a pod that stays pending because of its image. posse
/// abandons it, counts it as a failed start, and probes with one create.
#[test]
fn spark_a10_stuck_pending_image_pull() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    let ids = run.creates();
    run.created(&ids);
    run.running(&[2]);
    let words = "container worker: ImagePullBackOff";
    let stuck = StartProblem { kind: StartProblemKind::Image, message: words.into(), n_started: 0 };
    run.watch(&[1], |pod| {
        (pod.node, pod.start_problem) = (Some("node".into()), Some(Box::new(stuck.clone())));
    });
    run.wait(300_000);
    assert!(run.take().is_empty(), "not without a word from the server");
    run.list();
    assert_eq!(run.ends(), ["u1"]);
    let lost = run.events.iter().find_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Lost { reason, message, .. }) => {
            Some((subject.id.0, *reason, message))
        }
        _ => None,
    });
    let (id, reason, message) = lost.unwrap();
    assert_eq!((id, reason), (1, LossReason::ImageError));
    assert!(message.contains(words), "{message}");
    run.wait(20_000);
    assert_eq!(run.creates(), [3]);
}

/// ExecutorPodsBackoffControllerSuite: failures of executors that had started do not count.
#[test]
fn spark_c14_failures_of_executors_that_had_started_do_not_count() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.failed(&[1]);
    assert!(run.take().iter().any(|a| matches!(a, Action::Create { .. })), "replaced at once");
    assert_eq!(run.waits_for("g"), None);
}

/// A failed start counts once for each id, however often it is reported, and slows its group down
/// from the first one on; Spark has a threshold.
#[test]
fn spark_c14_a_failure_is_counted_once_per_id() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    run.created(&[1]);
    run.take();
    for _ in 0..3 {
        run.watch(&[1], |pod| {
            (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
            let reason = "StartError".into();
            let end = End { exit_code: Some(128), container_reason: reason, ..End::default() };
            pod.end = Some(Box::new(end));
        });
    }
    assert_eq!(run.waits_for("g"), Some("config_error"));
    run.take();
    run.wait(20_000);
    assert_eq!(run.creates(), [2], "the first delay, not the third");
}

/// In Spark only an executor that was requested during a backoff ends it; here any running executor
/// does.
#[test]
fn spark_c14_only_an_executor_asked_for_during_backoff_can_end_it() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    run.created(&[1, 2]);
    run.take();
    run.watch(&[1], |pod| {
        (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
        let reason = "StartError".into();
        pod.end = Some(Box::new(End {
            exit_code: Some(128),
            container_reason: reason,
            ..End::default()
        }));
    });
    run.take();
    assert_eq!(run.waits_for("g"), Some("config_error"));
    run.running(&[2]);
    assert_eq!(run.creates(), [3]);
}

#[test]
fn spark_c4_1_watch_events_should_be_pushed_as_snapshot_updates() {
    let mut run = Run::new(policy(), vec![spec("g", 0)]);
    let pod = run.pod("g", 1);
    run.pods.push(pod.clone());
    let epoch = run.core.watermark().epoch;
    run.tell(posse_core::model::input::Input::Watch {
        epoch,
        events: vec![PodEvent::Applied(pod)],
    });
    assert_eq!(run.core.snapshot().pods().count(), 1);
    run.running(&[1]);
    assert!(run.core.snapshot().pods().all(|pod| pod.ready));
}

#[test]
fn spark_c5_3_updates_add_new_pods_and_edit_existing_pods() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    assert_eq!(run.core.snapshot().pods().count(), 2);
    run.failed(&[1]);
    assert_eq!((run.group("g").failed, run.group("g").running), (1, 1));
    assert_eq!(run.core.snapshot().pods().count(), 2);
}

/// Spark delivers snapshots at intervals; here a turn without news does nothing, however often it
/// runs.
#[test]
fn spark_c6_1_subscribers_get_notified_without_repeats() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.failed(&[1]);
    let losses = |run: &Run| {
        run.events
            .iter()
            .filter(|e| matches!(e, Event::Executor(_, ExecutorEvent::Lost { .. })))
            .count()
    };
    assert_eq!(losses(&run), 1);
    run.watch(&[1], |_| {});
    run.list();
    run.wait(10_000);
    assert_eq!(losses(&run), 1);
}

/// Before the first LIST nothing is decided: an empty buffer is not an empty cluster.
#[test]
fn spark_c6_2_even_without_sending_events_nothing_is_made_up() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 3)]);
    run.wait(3_600_000);
    assert_eq!((run.take(), run.waits_for("g")), (vec![], Some("first_list")));
}

#[test]
fn spark_c6_3_replacing_the_snapshot_passes_the_new_snapshot() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.pods.clear();
    run.list();
    assert_eq!(run.core.snapshot().pods().filter(|pod| !pod.deleting).count(), 0);
    assert_eq!(run.slots_created().len(), 2);
}

/// Spark would hold the slot for ever; here the wait for a reason ends like any other.
#[test]
fn spark_c1_29_an_executor_that_disconnects_before_its_pod_is_seen_does_not_hold_its_slot() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    // The server created the pod, and its answer was lost; the executor runs and sends heartbeats.
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
    run.call(heard(&[1]));
    run.call(Command::Disconnected { executor: ExecutorId(1) });
    let mut is_replaced = false;
    for _ in 0..31 {
        run.wait(1_000);
        let ids: Vec<u64> = run.take().iter().filter_map(create_of).collect();
        if ids.contains(&1) {
            run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
        }
        is_replaced |= ids.contains(&2);
    }
    assert!(is_replaced, "its slot is another's now");
    assert_eq!(run.losses(), [(1, LossReason::Disconnected)]);
}

/// A missing answer does not make an executor lost: the create is repeated under its name.
#[test]
fn spark_c1_30_a_healthy_executor_is_not_removed_because_its_pod_was_not_seen_yet() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    for _ in 0..5 {
        run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
        run.call(heard(&[1]));
        run.wait(60_000);
        assert_eq!(run.creates(), [1], "the same name, and no other");
    }
    assert_eq!(run.losses(), []);
}

#[test]
fn spark_c2_2_when_an_executor_reaches_error_states_immediately_it_is_reported() {
    let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![spec("g", 1)]);
    run.failed(&[1]);
    assert!(run.take().iter().any(|a| matches!(a, Action::Delete { .. })));
    assert_eq!(run.losses(), [(1, LossReason::AppError)]);
    assert!(LossReason::AppError.caused_by_app());
}

/// Spark deletes on each event; here one delete is in flight until it is answered.
#[test]
fn spark_c2_3_and_4_an_executor_is_removed_once() {
    let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![spec("g", 1)]);
    run.failed(&[1]);
    run.watch(&[1], |pod| pod.deletion_cost = 1);
    run.list();
    run.gone(&[1]);
    let deletes = run.take().into_iter().filter(|a| matches!(a, Action::Delete { .. })).count();
    assert_eq!((run.losses().len(), deletes), (1, 1));
}

/// Spark waits for 30 s, because its snapshot may lag behind the driver. Here a whole LIST from
/// after the create is enough, and the loss counts against no budget.
#[test]
fn spark_c2_5_executors_that_are_not_in_the_cluster_are_lost() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.call(heard(&[1]));
    run.pods.clear();
    run.list();
    assert_eq!(run.losses(), [(1, LossReason::Deleted)]);
    assert!(!LossReason::Deleted.caused_by_app());
}

/// Spark's label for inactive pods is posse's `counted` label on retained pods.
#[test]
fn spark_c2_6_and_7_kept_pods_are_marked_and_not_deleted() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.failed(&[1]);
    let asked = run.take();
    assert!(asked.iter().any(|a| matches!(a, Action::Patch { patch: Patch::Counted { .. }, .. })));
    assert!(!asked.iter().any(|a| matches!(a, Action::Delete { .. })), "{asked:?}");
    assert_eq!((run.losses().len(), run.group("g").failed), (1, 1));
}

#[test]
fn spark_c7_1_start_all_components() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 3)]);
    run.turn();
    assert_eq!(run.take(), [], "first the LIST");
    run.list();
    assert_eq!(run.creates(), [1, 2, 3]);
}

/// By uid; draining executors are deleted with the rest, and kill calls are refused.
#[test]
fn spark_c7_4_stop_all_components() {
    let mut run = Run::with_running(policy(), vec![gently("g", 3)]);
    run.target("g", 2);
    assert_eq!(run.ends(), ["u3"], "it drains");
    run.tell(Input::Patched { uid: Uid::new("u3"), answer: Ok(()) });
    run.core.begin_stop(STOP, Millis(run.now));
    run.turn();
    assert_eq!(run.ends(), ["u1", "u2", "u3"]);
    run.call(kill(&[1], true));
    assert_eq!(run.losses(), []);
}

/// The call answers for known and unknown executors alike.
#[test]
fn spark_c7_5_remove_executor() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    let lost = |run: &mut Run, id| run.call(Command::Disconnected { executor: ExecutorId(id) });
    assert_eq!(lost(&mut run, 2), Reply::UnknownExecutor);
    assert_eq!(lost(&mut run, 1), Reply::Done);
    run.failed(&[1]);
    assert_eq!(lost(&mut run, 1), Reply::Done, "it was one");
}

/// The loss is reported at once; the known executors get the label; those that still run at the end
/// of the drain period are deleted.
#[test]
fn spark_c7_7_kill_executors() {
    let mut run = Run::with_running(policy(), vec![gently("g", 2)]);
    let reply = run.call(kill(&[1, 2, 7], false));
    assert!(matches!(&reply, Reply::Killed { unknown, .. } if *unknown == [ExecutorId(7)]));
    assert_eq!(run.losses(), [(1, LossReason::Killed), (2, LossReason::Killed)]);
    let marked = run.take();
    let is_mark =
        |a: &Action| matches!(a, Action::Patch { patch: Patch::Draining(_, Some(_)), .. });
    assert!(marked.len() == 2 && marked.iter().all(is_mark), "{marked:?}");
    for uid in ["u1", "u2"] {
        run.tell(Input::Patched { uid: Uid::new(uid), answer: Ok(()) });
    }
    run.gone(&[1]);
    run.wait(30_000);
    assert_eq!(run.ends(), ["u2"]);
}

/// Spark writes the deletion cost; posse reads it, whoever wrote it.
#[test]
fn spark_c7_8_executor_pods_with_a_deletion_cost() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.watch(&[2], |pod| pod.deletion_cost = 7);
    run.target("g", 1);
    assert_eq!(run.ends(), ["u1"], "the cheap one, not the young one");
}

/// Busy and unknown executors are left out.
#[test]
fn spark_c7_9_idle_decommission_passes_only_selected_executors() {
    let mut run = Run::with_running(policy(), vec![gently("g", 3)]);
    run.call(Command::Idle { executors: set(&[2, 9]) });
    run.call(kill(&[1, 2, 9], false));
    assert_eq!(run.ends(), ["u2"]);
}

/// A refused call has no effect, now or later.
#[test]
fn spark_c7_10_a_rejected_idle_decommission_has_no_pod_updates_or_replay() {
    let mut run = Run::with_running(policy(), vec![gently("g", 2)]);
    run.call(Command::Idle { executors: set(&[]) });
    run.call(kill(&[1, 2], false));
    run.wait(600_000);
    assert_eq!((run.take(), run.losses(), run.group("g").target), (vec![], vec![], 2));
}

/// A heartbeat after the stop began changes nothing.
#[test]
fn spark_c7_13_ignore_registrations_when_stopped() {
    let policy = Policy { heartbeat_timeout_ms: 60_000, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 1)]);
    run.core.begin_stop(STOP, Millis(run.now));
    run.beat(&[1], 20_000, 20_000);
    run.beat(&[], 20_000, 200_000);
    assert_eq!(run.losses(), []);
}

/// Spark assigns ids to pods without one; here a pod's name is made from its id.
#[test]
fn spark_c7_14_an_executor_has_its_id_from_the_start() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    let status = run.core.status();
    assert_eq!((&*status.pod_prefix, status.executors[0][0].id.0), (PREFIX, 1));
}

/// SPARK-34519: ends of executors that lived long enough do not count, the delay grows up to a
/// maximum, and only an executor that was requested during the backoff can end it.
#[test]
fn spark_c14_executor_pods_backoff_controller() {
    let policy = Policy { keep_failed: 0, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 6)]);
    run.wait(120_000);
    run.failed(&[1, 2, 3, 4, 5, 6]);
    assert_ne!(run.waits_for("g"), Some("backoff"), "they had lived");
    let mut delays = Vec::new();
    while delays.len() < 12 {
        let began = run.now;
        let ids = next_creates(&mut run);
        delays.push(run.now - began);
        assert!(ids.len() == 1 || delays.len() < 4, "one goes to see: {ids:?}");
        run.created(&ids);
        run.running(&ids);
        run.failed(&ids);
        run.gone(&ids);
    }
    assert_eq!(run.waits_for("g"), Some("backoff"));
    assert!(delays.iter().all(|ms| *ms <= 300_000), "{delays:?}");
    assert!(delays[11] >= 150_000 && delays[4] < 60_000, "longer each time: {delays:?}");
    let probe = next_creates(&mut run);
    run.created(&probe);
    run.running(&probe);
    run.wait(61_000);
    assert_ne!(run.waits_for("g"), Some("backoff"), "it lives: on they go");
}

fn next_creates(run: &mut Run) -> Vec<u64> {
    for _ in 0..3_100 {
        let ids: Vec<u64> = run.take().iter().filter_map(create_of).collect();
        if !ids.is_empty() {
            return ids;
        }
        run.wait(100);
    }
    panic!("nobody is asked for: {:?}", run.waits_for("g"))
}

fn create_of(action: &Action) -> Option<u64> {
    match action {
        Action::Create { id, .. } => Some(id.0),
        _ => None,
    }
}

fn gently(name: &str, target: u32) -> GroupSpec {
    let label = Some(("example.com/leaving".to_owned(), "true".to_owned()));
    GroupSpec {
        decommission: Some(Decommission { after_ms: 30_000, label, by_term: false }),
        ..spec(name, target)
    }
}

fn kill(ids: &[u64], force: bool) -> Command {
    Command::Kill {
        executors: set(ids),
        after: AfterKill::Lower,
        force,
        is_silent: false,
        reason: None,
    }
}
