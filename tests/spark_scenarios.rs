//! Spark's scenarios for its pod allocator and snapshots, by name, with posse's rules in them. Its
//! numbers (C.1.2 ...) are those of the inventory that they were taken from; those not here are
//! about settings (C.1.2, C.3.2, C.4.2: in the tests of the configuration and the runtime) or stand
//! in the core under their own name (C.1.3 `share`, C.2.1 `budget`, C.5.1 and C.5.2 `loss`).
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

mod harness;

use harness::{Run, policy, refusal, spec};
use posse::core::action::Action;
use posse::core::event::{Event, LossReason};
use posse::core::input::PodEvent;
use posse::core::plan::share;
use posse::core::pod::{ContainerState, End, Phase, Stuck, StuckKind};
use posse::core::policy::{Policy, ScaleDown};
use posse::core::refusal::Class;
use posse::core::waiting::Waiting;

/// The limit holds over all groups; a pending pod frees nothing, a running one does.
#[test]
fn spark_c1_4_pending_pod_limit_with_multiple_resource_profiles() {
    let policy = Policy { pending_max: 3, ..policy() };
    let mut run = Run::new(policy, vec![spec("a", 2), spec("b", 3)]);
    assert_eq!(run.creates(), [1, 2, 3]);
    run.created(&[1, 2, 3]);
    assert!(run.creates().is_empty());
    assert_eq!(run.waits_for("b"), Some(Waiting::PendingLimit));
    // Spark waits for an idle time-out; here a lower target ends the youngest pending one at once.
    run.target("a", 1);
    assert_eq!(run.ends(), ["u2"]);
    run.gone(&[2]);
    assert_eq!(run.creates(), [4]);
    run.created(&[4]);
    run.running(&[1]);
    assert_eq!(run.creates(), [5]);
}

/// Spark has a limit for each profile; posse's is one for all, shared evenly between the groups.
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

/// Spark's batch is a fixed 5; posse's window starts at 4 and is about requests, not pods.
#[test]
fn spark_c1_6_initially_request_executors_in_batches() {
    let mut run = Run::new(policy(), vec![spec("g", 6)]);
    assert_eq!(run.creates(), [1, 2, 3, 4]);
    run.wait(60_000);
    assert!(run.creates().is_empty());
    assert_eq!(run.waits_for("g"), Some(Waiting::InFlight));
}

/// Spark waits until the batch runs; posse goes on with each answer.
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

/// The failed one is replaced in the same turn, not with the next batch.
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
    assert!(asked.iter().any(|a| matches!(a, posse::core::action::Action::Create { id, .. }
        if id.0 == 6)));
    assert_eq!(asked.len(), 2, "one create and the delete of the failed pod: {asked:?}");
}

/// Spark deletes by label and takes the next id; posse asks again under the same name, so that a
/// pod which exists all the same is found and not doubled.
#[test]
fn spark_c1_11_when_an_executor_is_requested_but_the_api_does_not_report_it() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.refused(1, refusal(Class::Unknown, 0));
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
    // Spark waits for an idle time-out and deletes in one call; posse ends what did not start.
    run.target("g", 2);
    assert_eq!(run.ends(), ["u3", "u4"]);
    run.gone(&[3, 4]);
    run.target("g", 1);
    assert_eq!(run.ends(), ["u2"]);
    let deleted = run.events.iter().filter(|e| matches!(e, Event::ExecutorDeleted { .. }));
    assert_eq!(deleted.count(), 2);
}

/// What is not created yet goes first, whatever its age: nothing is lost with it.
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

/// Spark spares executors by an idle time-out; with `scale_down: pending` posse spares what runs.
#[test]
fn spark_c1_14_respect_executor_idle_timeout_configuration() {
    let group = posse::core::policy::GroupSpec { scale_down: ScaleDown::Pending, ..spec("g", 5) };
    let mut run = Run::new(policy(), vec![group]);
    run.created(&[1, 2, 3, 4]);
    run.created(&[5]);
    run.running(&[1, 3, 4]);
    run.take();
    run.target("g", 0);
    assert_eq!(run.ends(), ["u2", "u5"]);
    assert_eq!(run.waits_for("g"), Some(Waiting::ScaleDownPending));
}

/// Spark has to be told which pods registered; posse never counts an executor twice.
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
    // One group's fall never ends another's: each ends its own pending one first.
    assert_eq!(run.ends().len(), 3);
    assert_eq!((run.group("a").running, run.group("b").running), (1, 1));
}

/// A pod that stays pending holds nobody back.
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

/// A LIST replaces the snapshot: what it shows is adopted, what it lacks is lost.
#[test]
fn spark_c3_1_items_returned_by_the_api_should_be_pushed() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    run.pods = vec![run.pod("g", 1), run.pod("g", 2)];
    run.list();
    assert_eq!((run.take(), run.group("g").pending), (vec![], 2));
    run.pods.remove(1);
    run.list();
    assert!(run.events.iter().any(|event| matches!(event, Event::ExecutorLost { subject, .. }
        if subject.id.0 == 2)));
}

/// posse's LIST never asks for resourceVersion 0: it is the witness, and must be consistent. An
/// older one adds nothing and removes nothing that is newer.
#[test]
fn spark_c3_3_support_pod_listing_with_resource_version() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (old, asked) = (vec![], run.core.mark());
    run.running(&[1, 2]);
    run.target("g", 3);
    assert_eq!(run.creates(), [3]);
    run.created(&[3]);
    let version = asked.position;
    let source = posse::core::input::ListSource::Poll;
    let list = posse::core::input::List { source, pods: old, version, asked };
    run.tell(posse::core::input::Input::List(list));
    assert_eq!((run.take(), run.group("g").running, run.group("g").pending), (vec![], 2, 1));
}

/// Spark's inventory A.10: a pod that stays pending for its image is never counted there. Here it is
/// given up, counted as a failed start, and tried again with one.
#[test]
fn spark_a10_stuck_pending_image_pull() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    let ids = run.creates();
    run.created(&ids);
    run.running(&[2]);
    let words = "container worker: ImagePullBackOff";
    let stuck = Stuck { kind: StuckKind::Image, words: words.into() };
    run.watch(&[1], |pod| {
        (pod.node, pod.stuck) = (Some("n".into()), Some(Box::new(stuck.clone())));
    });
    run.wait(300_000);
    assert!(run.take().is_empty(), "not without a word from the server");
    run.list();
    assert_eq!(run.ends(), ["u1"]);
    let lost = run.events.iter().find_map(|event| match event {
        Event::ExecutorLost { subject, reason, message, .. } => {
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

/// A start that fails counts once per id, however often it is told, and holds its group back from
/// the first one on; Spark has a threshold.
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
    assert_eq!(run.waits_for("g"), Some(Waiting::ConfigError));
    run.take();
    run.wait(20_000);
    assert_eq!(run.creates(), [2], "the first delay, not the third");
}

/// Spark ends a backoff only for an executor asked for during it; here whoever runs shows that the
/// trouble is over.
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
    assert_eq!(run.waits_for("g"), Some(Waiting::ConfigError));
    run.running(&[2]);
    assert_eq!(run.creates(), [3]);
}

#[test]
fn spark_c4_1_watch_events_should_be_pushed_as_snapshot_updates() {
    let mut run = Run::new(policy(), vec![spec("g", 0)]);
    let pod = run.pod("g", 1);
    run.pods.push(pod.clone());
    let epoch = run.core.mark().epoch;
    run.tell(posse::core::input::Input::Watch { epoch, events: vec![PodEvent::Applied(pod)] });
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

/// Spark hands out snapshots at intervals; here a turn without news does nothing, however often.
#[test]
fn spark_c6_1_subscribers_get_notified_without_repeats() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    run.failed(&[1]);
    let losses =
        |run: &Run| run.events.iter().filter(|e| matches!(e, Event::ExecutorLost { .. })).count();
    assert_eq!(losses(&run), 1);
    run.watch(&[1], |_| {});
    run.list();
    run.wait(10_000);
    assert_eq!(losses(&run), 1);
}

/// Nothing is decided on an empty buffer: it is not an empty cluster.
#[test]
fn spark_c6_2_even_without_sending_events_nothing_is_made_up() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 3)]);
    run.wait(3_600_000);
    assert_eq!((run.take(), run.waits_for("g")), (vec![], Some(Waiting::FirstList)));
}

#[test]
fn spark_c6_3_replacing_the_snapshot_passes_the_new_snapshot() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.pods.clear();
    run.list();
    assert_eq!(run.core.snapshot().pods().count(), 0);
    assert_eq!(run.creates(), [3, 4]);
}
