//! Groups and their targets, which the record keeps.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::sync::Arc;

use super::record::{call, recorded, restart};
use super::tasks::{creates, group, say, settle, task};
use crate::core_run::{Run, end_with, spec};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{GroupChange, GroupCommand, Reply};
use posse_core::model::fact::{Fact, Knowledge, Target, Topic};
use posse_core::model::ids::{ExecutorId, GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod_text::PodText;
use posse_core::model::settings::{
    GroupSpec, OnLoss, Policy, Replace, Restart, ScaleDown, SlotPolicy,
};
use posse_core::state::life::Life;

#[test]
fn a_target_of_a_call_stays_unless_the_file_has_changed() {
    for (of_file, want) in [(3, 5), (4, 4)] {
        let mut run = Run::new(recorded(), vec![spec("g", 3)]);
        call(&mut run, GroupCommand::SetTarget { target: 5 });
        let run = restart(run, spec("g", of_file), false);
        assert_eq!(run.group("g").target, want);
    }
    // A driver sets its targets itself.
    let with_driver = Policy { outlives_driver: false, ..recorded() };
    let mut run = Run::new(with_driver, vec![spec("g", 3)]);
    call(&mut run, GroupCommand::SetTarget { target: 5 });
    assert_eq!(run.facts(), []);
}

#[test]
fn a_group_of_calls_is_there_again_as_all_of_them_made_it() {
    let field = |name: &str, text: &str| (Box::from(name), Arc::from(text));
    let put = |fields: &[(&str, &str)]| GroupCommand::Put {
        change: GroupChange {
            call: fields.iter().map(|(name, text)| field(name, text)).collect(),
            ..GroupChange::default()
        },
    };
    let mut run = Run::new(recorded(), vec![spec("g", 0)]);
    // The template's parts go with it, and a target is a fact of its own.
    let parts = [("container", "\"b\""), ("volumes_per_slot", "[]"), ("beside", "{}")];
    call(&mut run, put(&[&parts[..], &[("template", "1"), ("max", "3")]].concat()));
    call(&mut run, put(&[("template", "2"), ("target", "0"), ("completions", "4")]));
    let topic = Topic::Group(GroupName::from("g"));
    let want = Knowledge::Group([field("max", "3"), field("template", "2")].into());
    assert_eq!(run.facts(), [Fact { topic, knowledge: Some(want) }]);
    // A driver that begins anew makes its groups itself.
    let mut run = Run::new(Policy { outlives_driver: false, ..recorded() }, vec![spec("g", 0)]);
    call(&mut run, put(&[("template", "1")]));
    assert_eq!(run.facts(), []);
}

type Field = (&'static str, &'static str, fn(&mut GroupChange));

/// Fields of a PUT, as the record has them and as the core gets them.
const FIELDS: [Field; 14] = [
    ("target", "1", |change| change.target = Some(1)),
    ("min", "2", |change| change.min = Some(2)),
    ("max", "2", |change| change.max = Some(2)),
    ("scale_down", "any", |change| change.scale_down = Some(ScaleDown::Any)),
    ("scale_down", "pending", |change| change.scale_down = Some(ScaleDown::Pending)),
    ("replace", "terminating", |change| change.replace = Some(Replace::Terminating)),
    ("replace", "gone", |change| change.replace = Some(Replace::Gone)),
    ("slots", "lowest", |change| change.slots = Some(SlotPolicy::Lowest)),
    ("slots", "stable", |change| change.slots = Some(SlotPolicy::Stable)),
    ("on_loss", "executor", |change| change.on_loss = Some(OnLoss::Executor)),
    ("on_loss", "group", |change| change.on_loss = Some(OnLoss::Group)),
    ("restart", "always", |change| change.restart = Some(Restart::Always)),
    ("restart", "on-failure", |change| change.restart = Some(Restart::OnFailure)),
    ("completions", "4", |change| change.completions = Some(4)),
];

/// What the record has of calls, as one of them.
fn change_of(run: &Run) -> GroupChange {
    let mut change = GroupChange::default();
    if let Some(Knowledge::Group(call)) = run.record.get(&Topic::Group(GroupName::from("g"))) {
        for (name, text, set) in FIELDS {
            if call.get(name).is_some_and(|known| **known == *text) {
                set(&mut change);
            }
        }
    }
    change
}

/// What one call cannot say, several of them can.
#[test]
fn each_group_that_calls_have_made_comes_out_of_the_record_as_it_went_in() {
    let spec_of = |run: &Run| run.core.executors().groups()[&GroupName::from("g")].spec.clone();
    let check = |run: &Run, of_file: &GroupSpec, what: &str| {
        let mut again = Run::unlisted(recorded(), vec![of_file.clone()]);
        let reply = again.core.restore_group(GroupName::from("g"), change_of(run), Millis(0));
        assert!(matches!(reply, Reply::Target(_)), "{what}: {reply:?}");
        again.core.restore(run.facts(), Millis(0));
        assert_eq!(spec_of(&again), spec_of(run), "{what}");
    };
    let put = |run: &Run, (name, text, set): Field| {
        let mut change =
            GroupChange { call: [(name.into(), text.into())].into(), ..GroupChange::default() };
        set(&mut change);
        let mut run = run.clone();
        matches!(call(&mut run, GroupCommand::Put { change }), Reply::Target(_)).then_some(run)
    };
    let slow_to_replace = GroupSpec { replace: Replace::Gone, ..spec("g", 1) };
    let mut n_checked = 0;
    for of_file in [spec("h", 0), spec("g", 0), slow_to_replace] {
        let start = Run::new(recorded(), vec![of_file.clone()]);
        for first in FIELDS {
            let Some(run) = put(&start, first) else { continue };
            for second in FIELDS {
                let Some(run) = put(&run, second) else { continue };
                for third in FIELDS {
                    let Some(run) = put(&run, third) else { continue };
                    let what =
                        [first, second, third].map(|(name, text, _)| format!("{name}: {text}"));
                    check(&run, &of_file, &what.join(", "));
                    n_checked += 1;
                }
            }
        }
    }
    assert!(n_checked > 1_000, "{n_checked} are enough");
    // Work that has ended has lowered `min`.
    let of_file = GroupSpec { restart: Restart::OnFailure, min: 3, ..spec("g", 3) };
    let mut run = Run::with_running(recorded(), vec![of_file.clone()]);
    run.watch(&[1], end_with(0));
    let run = put(&run, FIELDS[2]).expect("no more than two are wanted");
    check(&run, &of_file, "min of the file, then max");
}

#[test]
fn a_deleted_group_takes_its_facts_along() {
    let mut run = Run::new(recorded(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0), task("b", 0)]);
    settle(&mut run);
    run.watch(&[1], end_with(0));
    assert_eq!(run.facts().len(), 4);
    call(&mut run, GroupCommand::Delete);
    let topic = Topic::Target(GroupName::from("g"));
    let is_deleted = Knowledge::Target(Target { is_deleted: true, ..Target::default() });
    let target = Fact { topic, knowledge: Some(is_deleted) };
    // Until b's executor is gone.
    let topic = Topic::Dismissed(GroupName::from("g"));
    let dismissed = Fact { topic, knowledge: Some(Knowledge::Dismissed(vec![1..=2])) };
    assert_eq!(run.facts(), [dismissed, target.clone()]);
    run.gone(&[1, 2]);
    assert_eq!(run.facts(), [target]);
}

#[test]
fn a_group_that_a_call_has_deleted_is_not_there_again_unless_the_file_has_changed() {
    let mut run = Run::new(recorded(), vec![spec("g", 1), spec("h", 1)]);
    settle(&mut run);
    call(&mut run, GroupCommand::Delete);
    for of_file in [1, 2] {
        let mut again = restart(run.clone(), spec("g", of_file), false);
        again.wait(1_000);
        let is_there = again.core.executors().groups().contains_key(&GroupName::from("g"));
        assert_eq!(is_there, of_file == 2);
        assert_eq!(creates(&mut again).len(), if of_file == 2 { 2 } else { 0 });
    }
    // A call has made it again: it has nothing of the file.
    let pod = Arc::new(PodText::default());
    let change = GroupChange { pod, target: Some(4), ..GroupChange::default() };
    call(&mut run, GroupCommand::Put { change: change.clone() });
    let facts = run.facts();
    let of_file = GroupSpec {
        max: Some(2),
        completions: Some(9),
        restart: Restart::OnFailure,
        ..spec("g", 1)
    };
    let mut again = Run::unlisted(recorded(), vec![of_file]);
    let now = Millis(again.now);
    again.core.restore_deleted(&facts, now);
    let change = GroupChange { target: None, ..change };
    again.core.restore_group(GroupName::from("g"), change, now);
    again.core.restore(facts, now);
    again.list();
    let spec = |run: &Run| run.core.executors().groups()[&GroupName::from("g")].spec.clone();
    assert_eq!(spec(&again), spec(&run));
}

/// Without `completions` the target falls by one for each executor whose work has ended, over any number of restarts.
#[test]
fn work_that_has_ended_lowers_the_target_once() {
    for min in [0, 3] {
        let group = GroupSpec { restart: Restart::OnFailure, min, ..spec("g", 3) };
        let mut run = Run::with_running(recorded(), vec![group.clone()]);
        let stale = run.facts();
        run.watch(&[1], end_with(0));
        let target = |run: &mut Run| run.group("g").target;
        assert_eq!(target(&mut run), 2);
        // Killed before the label was written.
        let mut again = restart(run.clone(), group.clone(), true);
        assert_eq!(target(&mut again), 2);
        run.watch(&[1], |pod| pod.completed = true);
        // Killed before the record was written.
        let Run { pods, version, now, .. } = run.clone();
        let mut behind =
            Run { pods, version, now, ..Run::unlisted(recorded(), vec![group.clone()]) };
        behind.core.restore(stale, Millis(now));
        behind.list();
        assert_eq!(target(&mut behind), 2);
        for _ in 0..3 {
            run = restart(run, group.clone(), true);
            assert_eq!((target(&mut run), run.group("g").completed), (2, 1));
        }
        run.gone(&[3]);
        assert_eq!(creates(&mut run).len(), 1, "the work of executor 3 is left");
        // All is done, and its pods are gone.
        run.watch(&[2], end_with(0));
        let mut run = restart(run, group, false);
        assert_eq!((target(&mut run), run.group("g").completed), (1, 2));
    }
}

/// Targets that a driver sets again are not in the record, so the pods are, as without one.
#[test]
fn the_pods_of_completed_executors_stay_until_the_target_is_recorded() {
    for (outlives_driver, n_deleted) in [(true, 10), (false, 0)] {
        let policy = Policy { outlives_driver, ..recorded() };
        let group = GroupSpec { restart: Restart::OnFailure, ..spec("g", 61) };
        let mut run = Run::with_running(policy, vec![group]);
        run.take();
        run.is_record_broken = true;
        let ids: Vec<u64> = (1..=60).collect();
        run.watch(&ids, end_with(0));
        run.watch(&ids, |pod| pod.completed = true);
        for id in &ids {
            run.tell(Input::Patched { uid: Uid::new(&format!("u{id}")), answer: Ok(()) });
        }
        let deletes = |run: &mut Run| {
            let all = run.take().into_iter();
            all.filter(|action| matches!(action, Action::Delete { .. })).count()
        };
        assert_eq!(deletes(&mut run), 0, "nothing is recorded yet");
        run.is_record_broken = false;
        run.wait(31_000);
        assert_eq!(deletes(&mut run), n_deleted, "{outlives_driver}");
    }
}

#[test]
fn a_program_that_begins_anew_has_nothing_but_the_work() {
    let work = || GroupSpec { restart: Restart::OnFailure, completions: Some(4), ..spec("w", 1) };
    let policy = Policy { outlives_driver: false, begins_anew: true, ..recorded() };
    let groups = || vec![spec("g", 2), work()];
    let mut run = Run::new(policy.clone(), groups());
    say(&mut run, &[task("a", 0)]);
    let made = run.slots_created();
    assert_eq!(made.len(), 4, "two, an index and a task");
    made.iter().for_each(|&(id, _)| {
        run.created(&[id]);
        run.running(&[id]);
    });
    let is_work = |run: &Run, id: u64| {
        let executor = run.core.executors().get(ExecutorId(id)).unwrap();
        executor.task.is_some() || executor.group == GroupName::from("w")
    };
    let (of_work, others): (Vec<u64>, Vec<u64>) =
        made.iter().map(|&(id, _)| id).partition(|&id| is_work(&run, id));
    // One of the others has ended, and nobody has told it. That is no loss of the next program.
    run.pods.iter_mut().filter(|pod| pod.id.0 == others[0]).for_each(end_with(1));
    let facts = run.facts();
    let Run { pods, version, now, record, .. } = run;
    let mut run = Run { pods, version, now, record, ..Run::unlisted(policy, groups()) };
    run.core.restore(facts, Millis(now));
    run.list();
    assert_eq!(run.losses(), []);
    let (mut ended, mut n_created) = (vec![], 0);
    for action in run.take() {
        match action {
            Action::Delete { uid, .. } => ended.push(uid.to_string()),
            Action::Create { .. } => n_created += 1,
            _ => {}
        }
    }
    ended.sort();
    let want: Vec<String> = others.iter().map(|id| format!("u{id}")).collect();
    assert_eq!((ended, n_created, of_work.len()), (want, 2, 2));
    for id in of_work {
        assert_eq!(run.core.executors().get(ExecutorId(id)).unwrap().life, Life::Wanted);
    }
}
