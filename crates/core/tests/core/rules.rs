//! What the reconciler decides, each with the smallest setup that shows it.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{PREFIX, Run, STOP, heard, identity, policy, refusal, spec};
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::action::{Action, Patch, RunVerdict};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{ExecutorId, Uid, Version};
use posse_core::model::input::{ForeignPod, Input, List, ListSource, PodAnswer, PodEvent};
use posse_core::model::pod::Draining;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, Policy, Replace};
use posse_core::model::stop::StopOrder;
use posse_core::reconciler::InstanceIdentity;
use posse_core::state::window::Window;

fn retry_after(ms: u64) -> Refusal {
    Refusal { retry_after_ms: Some(ms), ..refusal(RefusalClass::Throttled, 429) }
}

// Rule 6: the create window.

#[test]
fn the_window_doubles_each_clean_round_trip_up_to_its_maximum() {
    let mut window = Window::new(32);
    for want in [4, 8, 16, 32, 32] {
        let room = window.available(Millis(0));
        assert_eq!(room, want);
        (0..room).for_each(|_| window.on_sent());
        assert_eq!(window.available(Millis(0)), 0);
        (0..room).for_each(|_| window.on_answered());
    }
    assert_eq!(Window::new(1).available(Millis(0)), 1);
}

#[test]
fn the_window_halves_once_a_round_trip_and_obeys_retry_after() {
    let (mut window, mut rng) = (Window::new(32), Rng::new(1));
    for n in [4, 8, 16, 32] {
        (0..n).for_each(|_| window.on_sent());
        (0..n).for_each(|_| window.on_answered());
    }
    (0..32).for_each(|_| window.on_sent());
    for at in 10..42 {
        window.on_overload(Millis(5), &refusal(RefusalClass::Throttled, 429), Millis(at), &mut rng);
    }
    let open = window.closed_until(Millis(42)).expect("it is closed for a while");
    assert!(open.0 <= 10 + 200, "one delay of 100 to 200 ms, not 32: {open}");
    assert_eq!(window.available(open), 16);
    window.on_sent();
    window.on_overload(open, &retry_after(7_000), open, &mut rng);
    assert_eq!(window.closed_until(open), Some(open.after(7_000)));
    assert_eq!((window.available(open.after(6_999)), window.available(open.after(7_000))), (0, 8));
}

// Rules 2 to 4: the snapshot.

/// What a LIST does that shows only some of the running executors 1 and 2. `is_older`: both pods
/// have changed since the LIST was taken.
#[track_caller]
fn check_list(shows: &[u64], is_older: bool, want_running: u32, want_lost: &[u64]) {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (watermark, version) = (run.core.watermark(), run.core.watermark().position);
    let pods: Vec<_> = run.pods.iter().filter(|p| shows.contains(&p.id.0)).cloned().collect();
    if is_older {
        run.watch(&[1, 2], |pod| pod.deletion_cost = 7);
    }
    run.tell(Input::List(List::whole(ListSource::Poll, pods, version, watermark)));
    let lost: Vec<u64> = run.losses().into_iter().map(|(id, _)| id).collect();
    assert_eq!(lost, want_lost, "{shows:?}");
    assert_eq!(run.group("g").running, want_running, "{shows:?}");
}

#[test]
fn a_list_is_applied_whole_and_undoes_nothing_newer() {
    check_list(&[1, 2], false, 2, &[]);
    check_list(&[1], false, 1, &[2]);
    check_list(&[], false, 0, &[1, 2]);
    // The LIST is older than the position: newer pods stay.
    check_list(&[], true, 2, &[]);
    check_list(&[1], true, 2, &[]);
}

#[test]
fn an_old_list_does_not_restore_deleted_pods() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    let (pods, watermark, version) =
        (run.pods.clone(), run.core.watermark(), run.core.watermark().position);
    run.gone(&[1]);
    assert_eq!(run.creates(), [2]);
    run.tell(Input::List(List::whole(ListSource::Poll, pods, version, watermark)));
    assert!(run.core.snapshot().is_empty());
    assert!(run.take().is_empty());
}

#[test]
fn a_list_below_the_position_of_its_request_is_a_rollback() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    let (watermark, pods) = (run.core.watermark(), run.pods[..1].to_vec());
    let version = Some(Version(2));
    run.tell(Input::List(List::whole(ListSource::Poll, pods.clone(), version, watermark)));
    assert_eq!(run.take(), [Action::Relist]);
    assert_eq!(run.core.watermark().epoch, 1);
    run.target("g", 3);
    assert_eq!(run.waits_for("g"), Some("stale_snapshot"));
    // Events of the old watch are from before the rollback: they are discarded.
    run.tell(Input::Watch { epoch: 0, events: vec![PodEvent::Bookmark(Version(9_999))] });
    let watermark = run.core.watermark();
    assert_eq!(watermark.position, None);
    run.tell(Input::List(List::whole(ListSource::Watch, pods, version, watermark)));
    let created = run.slots_created();
    assert_eq!(created, [(3, 2), (4, 3)], "the vanished one and the new one; ids never go back");
}

#[test]
fn a_create_below_the_position_of_its_request_is_a_rollback() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.target("g", 2);
    assert_eq!(run.creates(), [2]);
    run.version = 3;
    run.created(&[2]);
    assert_eq!(run.take(), [Action::Relist]);
}

#[test]
fn unparsable_versions_are_accepted_and_never_compared() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.pods[0].version = None;
    let epoch = run.core.watermark().epoch;
    let mut pod = run.pods[0].clone();
    pod.deletion_cost = 3;
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Applied(pod.clone())] });
    assert_eq!(run.core.snapshot().get(&pod.uid), Some(&pod));
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Deleted(pod.clone())] });
    assert_eq!(run.creates(), [2]);
    // A late event about the pod is discarded, because its deletion was seen.
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Applied(pod)] });
    assert!(run.core.snapshot().is_empty());
}

#[test]
fn an_overtaken_answer_is_a_pod_that_came_and_went() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    let pod = run.pod("g", 1);
    let watermark =
        run.core.executors().get(ExecutorId(1)).unwrap().create.as_ref().unwrap().watermark;
    let epoch = watermark.epoch;
    let bookmark = PodEvent::Bookmark(Version(run.version + 5));
    run.tell(Input::Watch { epoch, events: vec![bookmark] });
    run.tell(Input::Created { id: ExecutorId(1), watermark, answer: Ok(PodAnswer::Ours(pod)) });
    assert!(run.losses().iter().any(|(id, _)| *id == 1));
    assert_eq!(run.creates(), [2]);
}

#[test]
fn a_pod_without_our_labels_is_deleted_and_its_template_counts_as_refused() {
    let file = GroupSpec { from_file: true, ..spec("g", 1) };
    let mut run = Run::new(policy(), vec![file]);
    assert_eq!(run.creates(), [1]);
    let (name, uid) = (format!("{PREFIX}1"), Uid::new("stripped"));
    let answer = Ok(PodAnswer::Foreign(ForeignPod { name: name.clone(), uid: uid.clone() }));
    run.tell(Input::Created { id: ExecutorId(1), watermark: run.core.watermark(), answer });
    assert_eq!(run.take(), [Action::Delete { uid: uid.clone(), name, grace_s: None }]);
    assert_eq!(run.waits_for("g"), Some("permanent"));
    assert!(matches!(run.core.poll_verdict(), Some(RunVerdict::TemplateRefused { .. })));
    // Until the pod is gone, a stop names it.
    assert_eq!(run.core.remaining().remaining, [format!("{PREFIX}1")]);
    run.tell(Input::Deleted { uid, answer: Ok(None) });
    assert_eq!(run.core.remaining().remaining, [] as [String; 0]);
}

// Rule 5: names and ids.

#[derive(Clone, Copy)]
enum Found {
    Alive,
    Ending,
    Foreign,
    Nothing,
    OtherOwner,
}

/// What a GET finds after AlreadyExists, the ids of the next creates, and whether a loss is
/// reported.
#[track_caller]
fn check_exists(found: Found, want_creates: &[u64], want_lost: usize) {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.refused(1, refusal(RefusalClass::Exists, 409));
    let watermark = match run.take().as_slice() {
        [Action::Get { id: ExecutorId(1), watermark }] => *watermark,
        other => panic!("a GET was due, not {other:?}"),
    };
    let mut pod = run.pod("g", 1);
    let foreign = ForeignPod { name: pod.name.to_string(), uid: pod.uid.clone() };
    let answer = match found {
        Found::Alive => Ok(PodAnswer::Ours(pod)),
        Found::Ending => {
            pod.deleting = true;
            Ok(PodAnswer::Ours(pod))
        }
        Found::Foreign => Ok(PodAnswer::Foreign(foreign)),
        Found::Nothing => Err(refusal(RefusalClass::NotFound, 404)),
        Found::OtherOwner => {
            pod.id = ExecutorId(7);
            Ok(PodAnswer::Ours(pod))
        }
    };
    run.tell(Input::Got { id: ExecutorId(1), watermark, answer });
    assert_eq!(run.creates(), want_creates);
    assert_eq!(run.losses().len(), want_lost);
}

#[test]
fn already_exists_is_decided_by_one_get() {
    check_exists(Found::Alive, &[], 0);
    check_exists(Found::Ending, &[2], 1);
    check_exists(Found::Foreign, &[2], 0);
    check_exists(Found::Nothing, &[2], 0);
    check_exists(Found::OtherOwner, &[2], 0);
}

#[test]
fn a_second_uid_under_one_id_is_deleted_and_the_id_retired() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    let mut second = run.pod("g", 1);
    second.uid = Uid::new("second");
    let (epoch, name) = (run.core.watermark().epoch, second.name.to_string());
    run.tell(Input::Watch { epoch, events: vec![PodEvent::Applied(second)] });
    let uid = Uid::new("second");
    assert_eq!(run.take(), [Action::Delete { uid, name, grace_s: None }]);
    assert_eq!(run.group("g").running, 1);
}

#[test]
fn ids_come_from_reserved_blocks_only() {
    let identity =
        InstanceIdentity { id_high_water: 1_000, is_id_high_water_stored: true, ..identity() };
    let mut run = Run::with_identity(identity, policy(), vec![spec("g", 1)]);
    run.list();
    let up_to = ExecutorId(2_000);
    assert_eq!(run.take(), [Action::ReserveIds { up_to }]);
    assert_eq!(run.waits_for("g"), Some("ids"));
    assert_eq!(run.group("g").limits.n_creates, 1, "that many it would create");
    run.tell(Input::IdsReserved { up_to });
    assert_eq!(run.creates(), [1_001]);
}

// Rules 7 and 10: the create backoff.

/// What the group waits for after a refusal, and how many creates are sent in the next hour if all
/// of them are refused in the same way.
#[track_caller]
fn check_refusals(
    class: RefusalClass,
    code: u16,
    waits: &str,
    creates: std::ops::RangeInclusive<u32>,
) {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    let mut n = 0;
    assert_eq!(run.creates(), [1]);
    run.refused(1, refusal(class, code));
    assert_eq!(run.waits_for("g"), Some(waits), "{class:?}");
    while run.now < 3_600_000 {
        for action in run.take() {
            if let Action::Create { id, .. } = action {
                n += 1;
                run.refused(id.0, refusal(class, code));
            }
        }
        run.wait(100);
    }
    assert!(creates.contains(&n), "{class:?}: {n} creates");
}

#[test]
fn refusals_are_sorted_by_cause() {
    check_refusals(RefusalClass::Capacity, 403, "quota", 58..=75);
    check_refusals(RefusalClass::Unauthorized, 401, "server", 58..=75);
    check_refusals(RefusalClass::Invalid, 422, "permanent", 11..=12);
    // The first retries are soon, because a server that is starting answers 403 for some seconds.
    check_refusals(RefusalClass::Forbidden, 403, "permanent", 18..=22);
    // A namespace that is made again is noticed within half a minute.
    for (class, code) in [(RefusalClass::NamespaceGone, 403), (RefusalClass::NotFound, 404)] {
        check_refusals(class, code, "permanent", 180..=190);
    }
}

/// The server counts its quota again a moment after a pod is gone, so the first create then is often
/// refused too. It must not wait for a minute because of the refusals before.
#[test]
fn capacity_that_is_freed_late_is_used_soon() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    assert_eq!(run.creates(), [1, 2]);
    run.created(&[1]);
    run.running(&[1]);
    let full = || refusal(RefusalClass::Capacity, 403);
    run.refused(2, full());
    let refuse_all = |run: &mut Run, until: u64| {
        let mut n = 0;
        while run.now < until {
            for id in run.creates() {
                run.refused(id, full());
                n += 1;
            }
            run.wait(100);
        }
        n
    };
    refuse_all(&mut run, 600_000);
    run.gone(&[1]);
    let from = run.now;
    assert!(refuse_all(&mut run, from + 100) > 0, "a pod is gone, so a create is tried at once");
    assert!(refuse_all(&mut run, from + 2_500) > 0, "and again soon");
}

#[test]
fn a_crash_loop_slows_its_group_down() {
    // (executors, how many end early) -> slowed down
    for (n, n_dead, want) in [(4, 4, false), (5, 5, true), (12, 5, false), (9, 5, true)] {
        let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![spec("g", n)]);
        let dead: Vec<u64> = (1..=n_dead).collect();
        run.failed(&dead);
        let is_held = run.waits_for("g") == Some("backoff");
        assert_eq!(is_held, want, "{n_dead} of {n}");
    }
}

#[test]
fn a_crash_loop_ends_when_an_executor_has_lived_for_a_minute() {
    let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![spec("g", 5)]);
    run.failed(&[1, 2, 3, 4, 5]);
    run.take();
    run.wait(2_500);
    assert_eq!(run.creates(), [6], "one goes to see");
    run.created(&[6]);
    run.running(&[6]);
    run.wait(59_000);
    assert!(run.creates().is_empty());
    run.wait(1_000);
    assert_eq!(run.creates(), [7, 8], "few at first");
}

#[test]
fn a_crash_loop_ends_when_the_driver_hears_from_an_executor() {
    let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![spec("g", 5)]);
    run.failed(&[1, 2, 3, 4, 5]);
    run.take();
    run.wait(2_500);
    assert_eq!(run.creates(), [6]);
    run.created(&[6]);
    run.call(heard(&[6]));
    assert!(run.creates().is_empty(), "it does not run yet");
    run.running(&[6]);
    run.call(heard(&[6]));
    assert_eq!(run.creates(), [7, 8], "few at first");
}

#[test]
fn executors_that_posse_ends_do_not_count_as_a_crash_loop() {
    let mut run = Run::with_running(policy(), vec![spec("g", 8)]);
    run.target("g", 0);
    let all: Vec<u64> = run.pods.iter().map(|pod| pod.id.0).collect();
    run.gone(&all);
    run.take();
    run.target("g", 8);
    assert_eq!(run.waits_for("g"), None);
}

// Rules 6, 8, 9, 11, 12, 14.

#[test]
fn a_replacement_is_created_at_once_or_when_the_pod_is_gone() {
    for (replace, at_once) in [(Replace::Terminating, true), (Replace::Gone, false)] {
        let group = GroupSpec { replace, ..spec("g", 1) };
        let mut run = Run::with_running(policy(), vec![group]);
        run.watch(&[1], |pod| pod.deleting = true);
        let want: &[u64] = if at_once { &[2] } else { &[] };
        assert_eq!(run.creates(), want);
        assert_eq!(run.waits_for("g"), (!at_once).then_some("replace_gone"));
        run.gone(&[1]);
        let want: &[u64] = if at_once { &[] } else { &[2] };
        assert_eq!(run.creates(), want);
    }
}

#[test]
fn the_last_failed_pods_are_retained_and_labelled_as_counted() {
    let policy = Policy { keep_failed: 2, ..policy() };
    let mut run = Run::with_running(policy, vec![spec("g", 3)]);
    for id in [1, 2, 3] {
        run.failed(&[id]);
    }
    let asked = run.take();
    let counted =
        asked.iter().filter(|a| matches!(a, Action::Patch { patch: Patch::Counted { .. }, .. }));
    assert_eq!(counted.count(), 3);
    assert_eq!((run.group("g").failed, run.group("g").terminating), (2, 1));
    // The watch event of its label does not make the oldest pod retained again.
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    run.watch(&[1], |pod| pod.counted = Some(7));
    assert_eq!((run.group("g").failed, run.group("g").terminating), (2, 1));
    assert_eq!(run.ends(), ["u1"]);
}

#[test]
fn a_counted_pod_is_not_lost_again_after_a_restart() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 0)]);
    let mut pod = run.pod("g", 1);
    (pod.phase, pod.counted) = (posse_core::model::pod::Phase::Failed, Some(7));
    run.pods.push(pod);
    run.list();
    assert_eq!(run.group("g").failed, 1);
    assert_eq!(run.losses(), []);
    assert!(run.take().is_empty());
}

#[test]
fn a_victim_found_after_a_restart_is_deleted_and_no_loss() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 1)]);
    let mut pod = run.pod("g", 1);
    let cause = DeleteCause::ScaledDown;
    pod.draining = Some(Box::new(Draining { cause, until_unix_ms: None }));
    run.pods.push(pod);
    run.list();
    let asked = run.take();
    assert!(matches!(asked[0], Action::Create { id: ExecutorId(1_001), .. }));
    assert!(matches!(asked[1], Action::Delete { .. }));
    run.gone(&[1]);
    assert!(run.events.iter().any(|event| matches!(
        event,
        Event::Executor(_, ExecutorEvent::Deleted { cause: DeleteCause::ScaledDown, .. })
    )));
}

#[test]
fn adopted_surplus_is_kept_until_the_target_is_set_or_adopt_hold_ends() {
    for is_set in [true, false] {
        let mut run = Run::unlisted(policy(), vec![spec("g", 1)]);
        run.pods = (1..=3).map(|id| run.pod(if id == 3 { "old" } else { "g" }, id)).collect();
        run.list();
        assert_eq!((run.take(), run.waits_for("g")), (vec![], Some("adopt_hold")));
        assert_eq!(run.waits_for("old"), Some("adopt_hold"));
        if is_set {
            run.target("g", 1);
            assert_eq!(run.ends(), ["u2"]);
        }
        run.wait(300_000);
        assert_eq!(run.ends(), if is_set { vec!["u3"] } else { vec!["u2", "u3"] });
    }
}

#[test]
fn nothing_is_written_without_the_lease() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.tell(Input::Lease { held: false, high_water: None });
    run.target("g", 1);
    run.gone(&[1]);
    run.target("g", 3);
    run.wait(600_000);
    assert_eq!((run.take(), run.waits_for("g")), (vec![], Some("lease")));
    run.tell(Input::Lease { held: true, high_water: None });
    assert_eq!(run.creates(), [3, 4]);
}

// Rule 12: the stop.

#[test]
fn a_stop_deletes_and_lists_until_no_pod_is_left() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.stop(STOP);
    for action in run.take() {
        let Action::Delete { uid, grace_s: Some(10), .. } = action else { panic!("{action:?}") };
        run.tell(Input::Deleted { uid, answer: Ok(None) });
    }
    run.wait(100);
    let watermark = match run.take().as_slice() {
        [Action::List { watermark }] => *watermark,
        other => panic!("a LIST was due, not {other:?}"),
    };
    run.watch(&[1, 2], |pod| pod.deleting = true);
    let (pods, version) = (run.pods.clone(), Some(Version(run.version)));
    run.tell(Input::List(List::whole(ListSource::Stop, pods, version, watermark)));
    assert_eq!(run.core.stop_result(), None);
    run.gone(&[1, 2]);
    let result = run.core.stop_result().expect("nothing is left");
    assert_eq!((result.remaining.len(), result.retained.len()), (0, 0));
}

#[test]
fn a_late_created_pod_is_deleted_by_uid() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.stop(STOP);
    run.take();
    run.created(&[1]);
    assert_eq!(run.ends(), ["u1"]);
    assert_eq!(run.core.stop_result(), None);
}

#[test]
fn a_create_of_unknown_outcome_is_open_for_a_minute_after_it_was_sent() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    assert_eq!(run.creates(), [1]);
    run.wait(5_000);
    run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
    run.core.begin_stop(STOP, Millis(run.now));
    assert_eq!(run.core.remaining().remaining, [format!("{PREFIX}1")], "overdue names");
    let mut ended_at = None;
    while ended_at.is_none() && run.now < 120_000 {
        run.turn();
        for action in run.take() {
            match action {
                Action::List { watermark } => {
                    let version = Some(Version(run.version));
                    let list = List::whole(ListSource::Stop, vec![], version, watermark);
                    run.tell(Input::List(list));
                }
                other => panic!("nothing new is sent: {other:?}"),
            }
        }
        ended_at = run.core.stop_result().map(|_| run.now);
        run.wait(50);
    }
    assert!(ended_at.is_some_and(|at| (60_000..65_000).contains(&at)), "{ended_at:?}");
    assert_eq!(run.core.stop_result().unwrap().remaining, [] as [String; 0]);
}

/// A create whose answer was lost may have taken effect late, while no LIST was answered.
#[test]
fn a_create_of_unknown_outcome_is_named_if_no_later_list_is_answered() {
    for (silent_from_ms, is_named) in [(u64::MAX, false), (59_000, true)] {
        let mut run = Run::new(policy(), vec![spec("g", 1)]);
        assert_eq!(run.creates(), [1]);
        run.refused(1, refusal(RefusalClass::OutcomeUnknown, 0));
        run.stop(STOP);
        while run.core.stop_result().is_none() && run.now < 120_000 {
            run.wait(50);
            for action in run.take() {
                let answer = || refusal(RefusalClass::OutcomeUnknown, 0);
                match action {
                    Action::List { .. } if run.now >= silent_from_ms => {
                        run.tell(Input::ListRefused { refusal: answer() });
                    }
                    Action::List { watermark } => {
                        let version = Some(Version(run.version));
                        let source = ListSource::Stop;
                        run.tell(Input::List(List::whole(source, vec![], version, watermark)));
                    }
                    _ => {}
                }
            }
        }
        let want: &[String] = if is_named { &[format!("{PREFIX}1")] } else { &[] };
        let result = run.core.stop_result().unwrap();
        assert_eq!(result.remaining, want, "silent from {silent_from_ms} ms");
    }
}

#[test]
fn a_stop_with_keep_deletes_nothing_and_waits_for_the_answers() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.target("g", 2);
    assert_eq!(run.creates(), [2]);
    run.stop(StopOrder { keep: true, ..STOP });
    assert_eq!(run.core.stop_result(), None);
    run.created(&[2]);
    assert!(run.take().is_empty());
    assert_eq!(run.core.stop_result().map(|result| result.remaining.len()), Some(0));
}

#[test]
fn a_stop_without_executors_sends_no_request_after_the_first_list() {
    for had_list in [true, false] {
        let mut run = Run::unlisted(policy(), vec![spec("g", 0)]);
        if had_list {
            run.list();
        }
        run.stop(STOP);
        run.wait(100);
        assert_eq!(run.core.stop_result().is_some(), had_list);
        assert_eq!(run.take().is_empty(), had_list);
    }
}

#[test]
fn retained_pods_are_labelled_before_the_others_are_deleted() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.failed(&[1]);
    run.stop(StopOrder { keep_failed: true, ..STOP });
    assert_eq!(run.deletes(), [""; 0]);
    run.tell(Input::Patched { uid: Uid::new("u1"), answer: Ok(()) });
    run.wait(100);
    assert_eq!(run.deletes(), ["u2"]);
    assert_eq!(run.core.remaining().retained, [format!("{PREFIX}1")]);
}

#[test]
fn a_loss_names_its_reason() {
    let mut run = Run::with_running(policy(), vec![spec("g", 1)]);
    run.failed(&[1]);
    assert!(run.events.iter().any(|event| matches!(
        event,
        Event::Executor(
            _,
            ExecutorEvent::Lost { reason: LossReason::AppError, exit_code: Some(1), .. }
        )
    )));
}
