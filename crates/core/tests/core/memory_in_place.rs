//! Memory that grows in place: who gets it, how often, and what the server or the node may say.
#![allow(clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use crate::core_run::{Run, end_with, growing, policy, refusal, set, spec};
use posse_core::model::action::Action;
use posse_core::model::command::Command;
use posse_core::model::event::{Event, ExecutorEvent, GroupEvent};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::Input;
use posse_core::model::pod::{ContainerState, End, Phase, Pod, Rare};
use posse_core::model::pod_text::PodText;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::settings::{GroupSpec, OnLoss, Restart, SlotPolicy};

/// The limits are 1,024, 2,048 and 3,072 bytes, and 900 of 1,000 are too many.
fn run(n: u32) -> Run {
    let pod = growing(PodText::default(), &["2Gi", "3Gi"], Some(900));
    Run::with_running(policy(), vec![GroupSpec { pod, ..spec("g", n) }])
}

/// The driver reports memory; returns the executors whose memory is changed, and to which step.
fn report(run: &mut Run, memory: &[(u64, u64)]) -> Vec<(u64, u32)> {
    let ids: Vec<u64> = memory.iter().map(|(id, _)| *id).collect();
    let memory: BTreeMap<_, _> =
        memory.iter().map(|&(id, bytes)| (ExecutorId(id), bytes)).collect();
    run.call(Command::Heartbeat { executors: set(&ids), memory });
    let asked = run.take().into_iter().map(|action| match action {
        Action::Resize { id, step, .. } => (id.0, step),
        other => panic!("{other:?}"),
    });
    asked.collect()
}

fn answer(run: &mut Run, id: u64, answer: Result<(), Refusal>) {
    run.tell(Input::Resized { id: ExecutorId(id), uid: Uid::new(&format!("u{id}")), answer });
}

/// The memory that was told, and why an executor does not have it.
fn told(run: &mut Run) -> Vec<(u64, String, Option<String>)> {
    let told = std::mem::take(&mut run.events).into_iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::MemoryGrown { memory, message }) => {
            Some((subject.id.0, memory, message))
        }
        _ => None,
    });
    told.collect()
}

#[test]
fn an_executor_grows_from_its_part_of_the_limit_on() {
    for (used, want) in [
        (0, None),
        (921, None),
        (922, Some(1)),
        (1_843, Some(1)),
        (1_844, Some(2)),
        (9_999, Some(2)),
    ] {
        let asked = report(&mut run(1), &[(1, used)]);
        assert_eq!(asked, Vec::from_iter(want.map(|step| (1, step))), "{used} bytes");
    }
    let pod = growing(PodText::default(), &["2Gi"], None);
    let mut off = Run::with_running(policy(), vec![GroupSpec { pod, ..spec("g", 1) }]);
    assert_eq!(report(&mut off, &[(1, 9_999)]), [], "only with grow_at");
}

#[test]
fn it_grows_once_a_minute_up_to_the_maximum() {
    let mut run = run(2);
    assert_eq!(report(&mut run, &[(1, 1_000), (2, 10)]), [(1, 1)]);
    answer(&mut run, 1, Ok(()));
    assert_eq!(told(&mut run), [(1, "2Gi".to_owned(), None)]);
    assert_eq!(report(&mut run, &[(1, 2_000)]), [], "the node needs time");
    run.wait(60_000);
    assert_eq!(report(&mut run, &[(1, 2_000)]), [(1, 2)]);
    answer(&mut run, 1, Ok(()));
    run.wait(60_000);
    assert_eq!(report(&mut run, &[(1, 3_072)]), [], "it has the maximum");
}

/// An executor of an earlier process: its limit is what its pod has, and an OOM kill leads to the step above it.
#[test]
fn an_adopted_executor_grows_from_the_limit_of_its_pod() {
    for (limit_bytes, used, want, successor) in [
        (1_024, 1_000, Some(1), 1),
        (2_048, 1_000, None, 2),
        (2_048, 2_000, Some(2), 2),
        (3_072, 3_000, None, 2),
        // Of another template.
        (1_500, 1_400, Some(1), 1),
        (0, 9_999, None, 1),
    ] {
        let pod = growing(PodText::default(), &["2Gi", "3Gi"], Some(900));
        let mut run = Run::unlisted(policy(), vec![GroupSpec { pod, ..spec("g", 1) }]);
        let mut found = run.pod("g", 1);
        (found.phase, found.container) = (Phase::Running, ContainerState::Running);
        found.memory_limit_bytes = limit_bytes;
        run.pods.push(found);
        run.list();
        let asked = report(&mut run, &[(1, used)]);
        assert_eq!(asked, Vec::from_iter(want.map(|step| (1, step))), "{used} of {limit_bytes}");
        if want.is_some() {
            // It has what it had.
            answer(&mut run, 1, Err(refusal(RefusalClass::Capacity, 403)));
        }
        assert_eq!(successors(&mut run), [successor], "{limit_bytes}");
    }
}

/// Executor 1 is killed for its memory; returns the steps of what is created then.
fn successors(run: &mut Run) -> Vec<u32> {
    run.watch(&[1], killed);
    let steps = run.take().into_iter().filter_map(|action| match action {
        Action::Create { overrides, .. } => Some(overrides.memory_step),
        _ => None,
    });
    steps.collect()
}

#[test]
fn few_change_at_once() {
    let mut run = run(9);
    let all: Vec<(u64, u64)> = (1..=9).map(|id| (id, 1_000)).collect();
    assert_eq!(report(&mut run, &all).len(), 4);
    for id in 1..=4 {
        answer(&mut run, id, Ok(()));
    }
    let next: Vec<u64> = report(&mut run, &all).into_iter().map(|(id, _)| id).collect();
    assert_eq!(next, [5, 6, 7, 8]);
}

/// A server without `pods/resize` is asked once in a run. Others are asked less and less, and each message is told
/// once.
#[test]
fn a_refusal_is_told_once() {
    for (class, code, is_off) in [
        (RefusalClass::NotFound, 404, true),
        (RefusalClass::Forbidden, 403, false),
        (RefusalClass::Invalid, 405, true),
        (RefusalClass::Invalid, 422, false),
        (RefusalClass::Capacity, 403, false),
    ] {
        let mut run = run(2);
        let mut asked_after = Vec::new();
        for minute in 0..8 {
            if !report(&mut run, &[(1, 1_000)]).is_empty() {
                asked_after.push(minute);
                answer(&mut run, 1, Err(refusal(class, code)));
            }
            run.wait(60_000);
        }
        assert_eq!(asked_after, if is_off { vec![0] } else { vec![0, 2, 6] }, "{class:?} {code}");
        let told = told(&mut run);
        let [(1, memory, Some(why))] = &told[..] else { panic!("{class:?} {code}: {told:?}") };
        assert_eq!(memory, "2Gi");
        assert!(why.starts_with("the server refuses it: the server's own words"), "{why}");
        assert_eq!(report(&mut run, &[(2, 1_000)]).is_empty(), is_off, "{class:?} {code}");
    }
    let mut run = run(1);
    report(&mut run, &[(1, 1_000)]);
    answer(&mut run, 1, Err(refusal(RefusalClass::Transient, 500)));
    assert_eq!(told(&mut run), []);
    run.wait(60_000);
    assert_eq!(report(&mut run, &[(1, 1_000)]), [(1, 1)], "the next report asks again");
}

/// The node has the last word. An executor that was killed meanwhile had the memory of before.
#[test]
fn a_node_that_cannot_give_it_is_told_and_the_successor_gets_it() {
    let mut run = run(1);
    report(&mut run, &[(1, 1_000)]);
    answer(&mut run, 1, Ok(()));
    told(&mut run);
    for _ in 0..2 {
        run.watch(&[1], |pod| {
            let resize_problem = "Infeasible, node has 1Gi".into();
            pod.rare = Some(Rare { resize_problem, ..Rare::default() }.into());
        });
    }
    let why = Some("Infeasible, node has 1Gi".to_owned());
    assert_eq!(told(&mut run), [(1, "2Gi".to_owned(), why)]);
    assert_eq!(successors(&mut run), [1]);
}

fn killed(pod: &mut Pod) {
    end_with(137)(pod);
    if let Some(end) = &mut pod.end {
        end.container_reason = "OOMKilled".into();
    }
}

fn steps(run: &mut Run) -> Vec<(u64, u32)> {
    let creates = run.take().into_iter().filter_map(|action| match action {
        Action::Create { id, overrides, .. } => Some((id.0, overrides.memory_step)),
        _ => None,
    });
    creates.collect()
}

/// A node takes the grown executor: the next one needs as much.
#[test]
fn the_successor_of_a_grown_executor_has_its_memory() {
    let pod = growing(PodText::default(), &["2Gi", "3Gi"], None);
    let mut run = Run::with_running(policy(), vec![GroupSpec { pod, ..spec("g", 1) }]);
    run.watch(&[1], killed);
    assert_eq!(steps(&mut run), [(2, 1)]);
    run.start(&[2]);
    run.watch(&[2], |pod| {
        pod.deleting = true;
        let disruption = "EvictionByEvictionAPI".into();
        pod.end = Some(Box::new(End { disruption, ..End::default() }));
    });
    assert_eq!(steps(&mut run), [(3, 1)]);
    // Long enough with this memory: the group begins with the template's again.
    run.start(&[3]);
    run.wait(601_000);
    run.watch(&[3], end_with(1));
    run.wait(60_000);
    assert_eq!(steps(&mut run).last(), Some(&(4, 0)));
}

/// Of several that end at once, the one that was killed has needed more.
#[test]
fn a_slot_that_goes_on_gets_the_memory_that_it_needs() {
    for (slots, completions, want) in [
        (SlotPolicy::Stable, None, [(3, 0), (4, 1)]),
        (SlotPolicy::Lowest, Some(2), [(3, 0), (4, 1)]),
        (SlotPolicy::Lowest, None, [(3, 1), (4, 0)]),
    ] {
        let pod = growing(PodText::default(), &["2Gi", "3Gi"], None);
        let restart = completions.map_or(Restart::Always, |_| Restart::OnFailure);
        let group = GroupSpec { pod, slots, completions, restart, ..spec("g", 2) };
        let mut run = Run::with_running(policy(), vec![group]);
        run.watch(&[1, 2], |pod| match pod.id.0 {
            2 => killed(pod),
            _ => end_with(1)(pod),
        });
        assert_eq!(steps(&mut run), want, "{slots:?} {completions:?}");
    }
}

/// Each rank of the next attempt may need what one was killed for.
#[test]
fn all_ranks_of_the_next_attempt_get_the_memory() {
    let pod = growing(PodText::default(), &["2Gi", "3Gi"], None);
    let group = GroupSpec { pod, on_loss: OnLoss::Group, ..spec("g", 2) };
    let mut run = Run::with_running(policy(), vec![group]);
    run.watch(&[2], killed);
    run.gone(&[1, 2]);
    assert_eq!(steps(&mut run), [(3, 1), (4, 1)]);
}

/// A LimitRange refuses the memory of the replacement. The others of the group do not wait for that.
#[test]
fn memory_that_the_server_refuses_is_not_asked_for_again() {
    let pod = growing(PodText::default(), &["2Gi", "3Gi"], None);
    let mut run = Run::with_running(policy(), vec![GroupSpec { pod, ..spec("g", 2) }]);
    run.watch(&[1], killed);
    assert_eq!(steps(&mut run), [(3, 1)]);
    run.start(&[3]);
    run.watch(&[3], killed);
    assert_eq!(steps(&mut run), [(4, 2)]);
    run.take_events();
    run.refused(4, refusal(RefusalClass::Invalid, 403));
    assert_eq!(steps(&mut run), [(5, 1)]);
    let told = run.take_events().into_iter().filter(|event| {
        matches!(event, Event::Group(_, GroupEvent::CreateRefused { cause: "permanent", .. }))
    });
    assert_eq!(told.count(), 1);
    run.refused(5, refusal(RefusalClass::Invalid, 403));
    assert_eq!(steps(&mut run), [(6, 0)], "the template's own memory");
    run.watch(&[2], killed);
    assert_eq!(steps(&mut run), [(7, 0)]);
}
