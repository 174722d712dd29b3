//! Groups that are created, changed and deleted during a run.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use crate::core_run::{Run, policy, refusal, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent, GroupEvent};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::input::{Input, List, ListSource};
use posse_core::model::pod_text::{Part, PodOverrides, PodText};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Policy, Replace, ScaleDown};
use posse_core::model::status::State;

fn pod(text: &str) -> Arc<PodText> {
    Arc::new(PodText { parts: vec![Part::Text(text.to_owned())], ..PodText::default() })
}

/// A change that sets only the pod template.
fn only(text: &str) -> GroupChange {
    GroupChange { pod: pod(text), ..GroupChange::default() }
}

fn of(text: &str, target: u32) -> GroupChange {
    GroupChange { target: Some(target), ..only(text) }
}

fn put(run: &mut Run, group: &str, change: GroupChange) -> Reply {
    let group = GroupName::from(group);
    let reply =
        run.core.command(Command::Group(group, GroupCommand::Put { change }), Millis(run.now));
    run.turn();
    reply
}

fn delete(run: &mut Run, group: &str) -> Reply {
    let group = GroupName::from(group);
    let reply = run.core.command(Command::Group(group, GroupCommand::Delete), Millis(run.now));
    run.turn();
    reply
}

fn has(run: &Run, group: &str) -> bool {
    run.core.executors().groups().contains_key(&GroupName::from(group))
}

/// The ids and pods of the requested creates. No other action may have been requested.
fn made(run: &mut Run) -> Vec<(u64, String)> {
    let made = run.take().into_iter().map(|action| match action {
        Action::Create { id, slot, pod, .. } => {
            (id.0, String::from_utf8(pod.render(id, slot, &PodOverrides::default())).unwrap())
        }
        other => panic!("a create was due, not {other:?}"),
    });
    made.collect()
}

/// Creates of this pod with these ids.
fn all_of(text: &str, ids: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
    ids.map(|id| (id, text.to_owned())).collect()
}

#[test]
fn a_group_is_created_with_the_given_fields() {
    let mut run = Run::new(policy(), vec![]);
    let change = GroupChange {
        min: Some(1),
        max: Some(4),
        scale_down: Some(ScaleDown::Pending),
        replace: Some(Replace::Gone),
        ..of("a", 9)
    };
    assert_eq!(put(&mut run, "0", change), Reply::Target(4));
    assert_eq!(made(&mut run), all_of("a", 1..=4));
    let group = &run.core.executors().groups()[&GroupName::from("0")];
    assert_eq!((group.spec.min, group.spec.max), (1, Some(4)));
    assert_eq!((group.spec.scale_down, group.spec.replace), (ScaleDown::Pending, Replace::Gone));
    assert!(
        run.events.contains(&Event::Group("0".into(), GroupEvent::TargetChanged { target: 4 }))
    );

    // Omitted fields keep their values.
    assert_eq!(put(&mut run, "0", of("a", 0)), Reply::Target(1));
    assert_eq!(put(&mut run, "0", only("b")), Reply::Target(1));
    // A new group has a target only if the call sets one, or a min.
    assert_eq!(put(&mut run, "1", only("c")), Reply::Target(0));
    assert_eq!(put(&mut run, "2", GroupChange { min: Some(2), ..only("c") }), Reply::Target(2));
}

#[test]
fn invalid_bounds_are_refused_and_change_nothing() {
    let mut run = Run::new(policy(), vec![]);
    let upside_down = GroupChange { min: Some(3), max: Some(2), ..of("a", 3) };
    for (change, what) in
        [(upside_down.clone(), "min"), (GroupChange { min: None, ..upside_down }, "made")]
    {
        match put(&mut run, "g", change) {
            Reply::Refused { field: "max", .. } => assert_eq!(what, "min"),
            Reply::Target(2) => assert_eq!(what, "made"),
            other => panic!("{other:?}"),
        }
        assert_eq!(has(&run, "g"), what == "made");
    }
    let before = run.group("g");
    assert!(matches!(
        put(&mut run, "g", GroupChange { min: Some(3), ..of("b", 9) }),
        Reply::Refused { field: "max", .. }
    ));
    assert_eq!(run.group("g"), before);
}

#[test]
fn the_number_of_groups_is_limited() {
    let mut run = Run::new(policy(), vec![]);
    for i in 0..1_000 {
        assert_eq!(put(&mut run, &i.to_string(), only("a")), Reply::Target(0));
    }
    assert!(matches!(put(&mut run, "one", only("a")), Reply::Refused { field: "group", .. }));
    assert_eq!(put(&mut run, "7", only("b")), Reply::Target(0));
    assert_eq!(delete(&mut run, "7"), Reply::Done);
    assert_eq!(put(&mut run, "one", only("a")), Reply::Target(0));
}

#[test]
fn a_new_template_applies_to_later_creates_only() {
    let mut run = Run::new(policy(), vec![]);
    put(&mut run, "g", of("a", 2));
    assert_eq!(made(&mut run), all_of("a", 1..=2));
    run.created(&[1]);
    run.running(&[1]);
    assert_eq!(put(&mut run, "g", only("b")), Reply::Target(2));
    assert!(run.take().is_empty(), "executors that run stay");
    // A create of unknown outcome is sent again with the new template, under the same name.
    run.refused(2, refusal(RefusalClass::OutcomeUnknown, 500));
    run.wait(60_000);
    assert_eq!(made(&mut run), all_of("b", 2..=2));
    run.created(&[2]);
    run.running(&[2]);
    run.gone(&[1]);
    assert_eq!(made(&mut run), all_of("b", 3..=3));
}

#[test]
fn a_refusal_of_the_old_template_does_not_hold_back_the_new_one() {
    let mut run = Run::new(policy(), vec![]);
    put(&mut run, "g", of("bad", 2));
    assert_eq!(made(&mut run), all_of("bad", 1..=2));
    run.refused(1, refusal(RefusalClass::Invalid, 422));
    assert_eq!(run.waits_for("g"), Some("permanent"));
    put(&mut run, "g", only("good"));
    assert_eq!(made(&mut run), all_of("good", 3..=3));
    // The other answer for the old template arrives late.
    run.refused(2, refusal(RefusalClass::Invalid, 422));
    assert_eq!(made(&mut run), all_of("good", 4..=4));
    assert_eq!(run.group("g").message, None);
}

#[test]
fn a_deleted_group_is_forgotten_when_its_executors_are_gone() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3), spec("other", 1)]);
    let ours: Vec<u64> = {
        let members = &run.core.executors().groups()[&GroupName::from("g")].members;
        members.iter().map(|id| id.0).collect()
    };
    assert_eq!(delete(&mut run, "nobody"), Reply::UnknownGroup);
    assert_eq!(delete(&mut run, "g"), Reply::Done);
    assert_eq!(run.ends().len(), 3);
    assert_eq!((run.group("g").draining, run.group("g").target), (3, 0));
    assert_eq!(delete(&mut run, "g"), Reply::Done);
    assert!(run.take().is_empty(), "repeats change nothing");
    let target = Command::Group("g".into(), GroupCommand::SetTarget { target: 2 });
    assert_eq!(run.core.command(target, Millis(run.now)), Reply::UnknownGroup);
    run.gone(&ours[1..]);
    assert!(has(&run, "g"));
    run.gone(&ours[..1]);
    assert!(!has(&run, "g"));
    assert_eq!(delete(&mut run, "g"), Reply::UnknownGroup);
    let causes: Vec<DeleteCause> = run
        .take_events()
        .into_iter()
        .filter_map(|event| match event {
            Event::Executor(_, ExecutorEvent::Deleted { cause, .. }) => Some(cause),
            Event::Executor(_, ExecutorEvent::Lost { .. }) => panic!("{event:?}"),
            _ => None,
        })
        .collect();
    assert_eq!(causes, [DeleteCause::ScaledDown; 3]);
    assert_eq!(run.group("other").running, 1);
}

#[test]
fn creates_in_flight_and_retained_pods_go_with_their_group() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    run.failed(&[1]);
    assert_eq!(run.group("g").failed, 1);
    assert_eq!(run.core.executors().get(ExecutorId(3)).unwrap().state, State::Requested);
    run.take();
    delete(&mut run, "g");
    run.created(&[3]);
    let mut uids: Vec<String> = Vec::new();
    for action in run.take() {
        match action {
            Action::Delete { uid, .. } | Action::Patch { uid, .. } => uids.push(uid.to_string()),
            other => panic!("{other:?}"),
        }
    }
    uids.sort();
    uids.dedup();
    // The patch that labels the failed pod as counted is in flight; the delete follows.
    assert_eq!(uids, ["u2", "u3"]);
    let uid = run.pods[0].uid.clone();
    run.tell(Input::Patched { uid, answer: Ok(()) });
    run.gone(&[1, 2, 3]);
    assert!(!has(&run, "g"));
}

#[test]
fn a_group_is_created_again_beside_its_old_executors() {
    let mut run = Run::with_running(policy(), vec![spec("g", 2)]);
    delete(&mut run, "g");
    assert_eq!(run.ends(), ["u1", "u2"]);
    assert_eq!(put(&mut run, "g", of("new", 2)), Reply::Target(2));
    let made = made(&mut run);
    assert_eq!(made, all_of("new", 3..=4));
    let slots: Vec<u32> =
        [3, 4].map(|id| run.core.executors().get(ExecutorId(id)).unwrap().slot.unwrap()).into();
    assert_eq!(slots, [2, 3], "slots are free when the old pods are gone");
    run.gone(&[1, 2]);
    assert!(has(&run, "g"));
    assert!(run.take().is_empty());
    run.created(&[3, 4]);
    run.running(&[3, 4]);
    assert_eq!((run.group("g").running, run.group("g").target), (2, 2));
    assert_eq!(run.losses(), []);
}

/// A restart of a run whose group was created by a call: two executors of the group exist.
fn restarted(adopt_hold_ms: u64) -> Run {
    let mut run = Run::unlisted(Policy { adopt_hold_ms, ..policy() }, vec![]);
    for id in [1, 2] {
        let pod = run.pod("q", id);
        run.pods.push(pod);
    }
    run.list();
    run
}

#[test]
fn an_unknown_group_is_kept_until_it_is_put_or_adopt_hold_ends() {
    let mut run = restarted(10_000);
    assert_eq!(run.waits_for("q"), Some("adopt_hold"));
    // The group is known again but has no target, so `adopt_hold` still applies.
    assert_eq!(put(&mut run, "q", only("b")), Reply::Target(0));
    run.wait(9_999);
    assert!(run.take().is_empty());
    assert_eq!(put(&mut run, "q", of("b", 3)), Reply::Target(3));
    assert_eq!(made(&mut run), all_of("b", 1_001..=1_001));

    let mut run = restarted(10_000);
    put(&mut run, "q", of("b", 1));
    assert_eq!(run.ends(), ["u2"]);

    let mut run = restarted(10_000);
    run.wait(10_000);
    assert_eq!(run.ends(), ["u1", "u2"]);
    run.gone(&[1, 2]);
    assert!(!has(&run, "q"), "nobody knows it, and nothing is left of it");
}

#[test]
fn an_unknown_group_cannot_grow() {
    let mut run = restarted(10_000);
    run.target("q", 3);
    assert_eq!(run.waits_for("q"), Some("template"));
    assert!(run.take().is_empty());
    put(&mut run, "q", only("b"));
    assert_eq!(made(&mut run).len(), 1);
}

#[test]
fn a_group_deleted_before_the_first_list_ends_the_listed_executors() {
    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    assert_eq!(delete(&mut run, "g"), Reply::Done);
    assert!(has(&run, "g"));
    let pod = run.pod("g", 1);
    run.pods.push(pod);
    let (pods, watermark) = (run.pods.clone(), run.core.watermark());
    let version = pods[0].version;
    run.tell(Input::List(List::whole(ListSource::Watch, pods, version, watermark)));
    assert_eq!(run.ends(), ["u1"]);
    run.gone(&[1]);
    assert!(!has(&run, "g"));

    let mut run = Run::unlisted(policy(), vec![spec("g", 2)]);
    delete(&mut run, "g");
    run.list();
    assert!(!has(&run, "g"));
}

#[test]
fn a_refused_template_of_a_call_does_not_end_the_run() {
    let file = posse_core::model::settings::GroupSpec { from_file: true, ..spec("g", 1) };
    let mut run = Run::new(policy(), vec![file]);
    assert_eq!(made(&mut run).len(), 1);
    put(&mut run, "g", only("b"));
    run.refused(1, refusal(RefusalClass::Invalid, 422));
    assert_eq!(made(&mut run), all_of("b", 2..=2));
    run.refused(2, refusal(RefusalClass::Invalid, 422));
    assert_eq!(run.core.poll_verdict(), None);
    assert_eq!(run.waits_for("g"), Some("permanent"));
}
