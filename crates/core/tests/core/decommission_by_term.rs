//! `decommission: {signal: TERM}`: the drain period is the grace period of the pod's delete.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use crate::core_run::{Run, kill, policy, refusal, spec};
use posse_core::model::action::{Action, Patch};
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand, Reply};
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent};
use posse_core::model::ids::{GroupName, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, Draining, Phase};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{Decommission, GroupSpec};

fn workers(n: u32) -> GroupSpec {
    let decommission = Some(Decommission { after_ms: 600_000, label: None, by_term: true });
    GroupSpec { decommission, ..spec("g", n) }
}

/// The requests since the last call, in short: which pod, and the grace period of a delete.
fn asked(run: &mut Run) -> Vec<String> {
    let asked = run.take().into_iter().filter_map(|action| match action {
        Action::Delete { uid, grace_s, .. } => Some(format!("delete {uid} {grace_s:?}")),
        Action::Patch { uid, patch: Patch::Draining(..), .. } => Some(format!("mark {uid}")),
        _ => None,
    });
    asked.collect()
}

fn patched(run: &mut Run, id: u64, answer: Result<(), RefusalClass>) {
    let answer = answer.map_err(|class| refusal(class, 403));
    run.tell(Input::Patched { uid: Uid::new(&format!("u{id}")), answer });
}

#[test]
fn a_victim_is_marked_and_then_deleted_with_its_drain_period() {
    for refused in [false, true] {
        let mut run = Run::with_running(policy(), vec![workers(2)]);
        run.target("g", 1);
        assert_eq!(asked(&mut run), ["mark u2"]);
        run.wait(500);
        // Without the mark a restarted posse reports a loss, but the worker gets its time.
        patched(&mut run, 2, if refused { Err(RefusalClass::Forbidden) } else { Ok(()) });
        assert_eq!(asked(&mut run), ["delete u2 Some(600)"], "refused: {refused}");
        run.watch(&[2], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 600));
        assert_eq!(run.group("g").terminating, 1);
        run.wait(700_000);
        assert_eq!(asked(&mut run), [] as [String; 0], "the kubelet ends it");
        run.take_events();
        run.gone(&[2]);
        let [Event::Executor(_, ExecutorEvent::Deleted { cause, .. })] = &run.take_events()[..]
        else {
            panic!("it is no loss")
        };
        assert_eq!(*cause, DeleteCause::ScaledDown);
    }
}

#[test]
fn a_forced_kill_shortens_the_grace_period() {
    let mut run = Run::with_running(policy(), vec![workers(2)]);
    run.call(kill(&[2], AfterKill::Lower, false));
    patched(&mut run, 2, Ok(()));
    assert_eq!(asked(&mut run), ["mark u2", "delete u2 Some(600)"]);
    run.tell(Input::Deleted { uid: Uid::new("u2"), answer: Ok(None) });
    run.watch(&[2], |pod| (pod.deleting, pod.deletion_grace_s) = (true, 600));
    run.wait(10_000);
    run.take();
    run.call(kill(&[2], AfterKill::Lower, true));
    assert_eq!(asked(&mut run), ["delete u2 Some(30)"], "the pod's own");
}

#[test]
fn what_does_not_run_is_deleted_at_once() {
    let mut run = Run::new(policy(), vec![workers(1)]);
    run.created(&[1]);
    run.take();
    run.target("g", 0);
    assert_eq!(asked(&mut run), ["delete u1 None"]);
}

#[test]
fn a_restarted_posse_goes_on_with_the_drain_period() {
    for deleting in [false, true] {
        let mut run = Run::unlisted(policy(), vec![workers(1)]);
        for id in [1, 2] {
            let mut pod = run.pod("g", id);
            (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
            run.pods.push(pod);
        }
        // The run starts at 1,000,000 ms since 1970.
        let until_unix_ms = Some(1_060_000);
        let draining = Draining { cause: DeleteCause::ScaledDown, until_unix_ms };
        (run.pods[1].draining, run.pods[1].deleting) = (Some(Box::new(draining)), deleting);
        run.list();
        let want: &[&str] = if deleting { &[] } else { &["delete u2 Some(60)"] };
        assert_eq!(asked(&mut run), want);
        assert_eq!(run.losses(), [], "it is no loss");
    }
}

#[test]
fn a_call_sets_it_and_a_later_one_keeps_it() {
    let mut run = Run::with_running(policy(), vec![spec("g", 3)]);
    let put = |run: &mut Run, target, decommission| {
        let change = GroupChange { target: Some(target), decommission, ..GroupChange::default() };
        let reply = run.call(Command::Group(GroupName::from("g"), GroupCommand::Put { change }));
        assert_eq!(reply, Reply::Target(target));
    };
    put(&mut run, 2, workers(0).decommission);
    assert_eq!(asked(&mut run), ["mark u3"]);
    patched(&mut run, 3, Ok(()));
    assert_eq!(asked(&mut run), ["delete u3 Some(600)"]);
    put(&mut run, 1, None);
    assert_eq!(asked(&mut run), ["mark u2"], "what is left out keeps its value");
    let label = Some(("leaving".to_owned(), String::new()));
    put(&mut run, 0, Some(Decommission { after_ms: 5_000, label, by_term: false }));
    assert_eq!(asked(&mut run), ["mark u1"]);
    patched(&mut run, 1, Ok(()));
    assert_eq!(asked(&mut run), [] as [String; 0], "it gets no signal");
}
