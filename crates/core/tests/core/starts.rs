//! Executors that do not start, nodes with many losses and memory scaling after OOM: what the core
//! waits for, when it gives up, how it backs off, and what it reports.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use super::tasks::{group, say, state, task};
use crate::core_run::{Run, policy, spec, with_memory};
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::command::{Command, GroupCommand, Reply};
use posse_core::model::event::{ClusterEvent, Event, ExecutorEvent, GroupEvent, LossReason};
use posse_core::model::ids::GroupName;
use posse_core::model::input::{Input, PodEvent};
use posse_core::model::pod::{ContainerState, End, Phase, Pod, StartProblem, StartProblemKind};
use posse_core::model::pod_text::{PodOverrides, PodText, PreferredNode};
use posse_core::model::settings::{BadNodes, GroupSpec, Limit, Policy};
use posse_core::model::waiting::{StartWait, Waiting};

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60_000;

fn stuck(kind: StartProblemKind) -> Option<Box<StartProblem>> {
    Some(Box::new(StartProblem { kind, message: "the server's words".into(), n_started: 0 }))
}

/// The pod is bound, and this keeps it from starting; `None`: nothing is reported.
fn bound(run: &mut Run, ids: &[u64], kind: Option<StartProblemKind>) {
    run.watch(ids, |pod| {
        pod.node = Some("n1".into());
        pod.start_problem = kind.and_then(stuck);
    });
}

/// The image of the first init container cannot be pulled at first; then the container runs for long.
#[test]
fn an_image_that_has_arrived_is_not_waited_for_any_more() {
    let status =
        |kind, n_started| Some(Box::new(StartProblem { kind, message: "words".into(), n_started }));
    let (image, creating) = (StartProblemKind::Image, StartProblemKind::Creating);
    for (then, lost_after_ms) in [
        // Between two tries the kubelet shows nothing of the problem.
        (status(creating, 0), Some(29 * MINUTE)),
        (None, Some(29 * MINUTE)),
        // The init container runs, or has ended.
        (status(creating, 1), None),
        // The next container's image is missing since then.
        (status(image, 1), Some(30 * MINUTE)),
    ] {
        let policy = Policy { start_timeout_ms: 60 * MINUTE, ..policy() };
        let mut run = Run::new(policy, vec![spec("g", 1)]);
        run.created(&[1]);
        run.watch(&[1], |pod| {
            (pod.node, pod.start_problem) = (Some("n1".into()), status(image, 0));
        });
        live(&mut run, MINUTE);
        run.watch(&[1], |pod| pod.start_problem = then.clone());
        let waits = then.as_ref().is_none_or(|then| then.n_started == 0 || then.kind == image);
        assert_eq!(run.waits_for("g") == Some("image_error"), waits, "{then:?}");
        live(&mut run, lost_after_ms.unwrap_or(50 * MINUTE) - SECOND);
        assert_eq!(losses(&run), [], "{then:?}");
        live(&mut run, SECOND);
        assert_eq!(losses(&run).len(), usize::from(lost_after_ms.is_some()), "{then:?}");
    }
}

/// The server reports that the pod exists.
fn bookmark(run: &mut Run) {
    run.version += 1;
    let bookmark = PodEvent::Bookmark(posse_core::model::ids::Version(run.version));
    let epoch = run.core.watermark().epoch;
    run.tell(Input::Watch { epoch, events: vec![bookmark] });
}

/// Lets time pass; the server sends an event each second.
pub(super) fn live(run: &mut Run, ms: u64) {
    for _ in 0..ms / SECOND {
        let n_polls = run.n_polls;
        run.wait(SECOND);
        bookmark(run);
        if run.n_polls > n_polls {
            run.list();
        }
    }
}

fn losses(run: &Run) -> Vec<(u64, LossReason, String)> {
    let lost = run.events.iter().filter_map(|event| match event {
        Event::Executor(subject, ExecutorEvent::Lost { reason, message, .. }) => {
            Some((subject.id.0, *reason, message.clone()))
        }
        _ => None,
    });
    lost.collect()
}

/// A group of one whose pod is like this, the time until its start is abandoned, and the reason.
#[track_caller]
fn check(
    policy: Policy,
    kind: Option<StartProblemKind>,
    is_bound: bool,
    want: Option<(u64, LossReason)>,
) {
    let mut run = Run::new(policy, vec![spec("g", 1)]);
    run.created(&[1]);
    run.take();
    if is_bound {
        bound(&mut run, &[1], kind);
    } else {
        run.watch(&[1], |pod| pod.start_problem = kind.and_then(stuck));
    }
    let Some((after_ms, reason)) = want else {
        live(&mut run, 60 * MINUTE);
        assert_eq!(losses(&run), [], "{kind:?}");
        return;
    };
    live(&mut run, after_ms - SECOND);
    assert_eq!((losses(&run), run.take()), (vec![], vec![]), "{kind:?}");
    live(&mut run, SECOND);
    let lost = losses(&run);
    assert_eq!(lost.iter().map(|(id, why, _)| (*id, *why)).collect::<Vec<_>>(), [(1, reason)]);
    assert!(lost[0].2.contains("s): "), "{}", lost[0].2);
    assert_eq!(run.ends(), ["u1"], "it is deleted");
    // Reported once, whatever follows.
    run.watch(&[1], |pod| pod.deleting = true);
    run.gone(&[1]);
    assert_eq!(losses(&run).len(), 1);
    assert!(
        !run.events
            .iter()
            .any(|event| matches!(event, Event::Executor(_, ExecutorEvent::Deleted { .. })))
    );
}

#[test]
fn a_start_is_abandoned_at_its_timeout_and_not_before() {
    use LossReason::{ConfigError, ImageError, StartTimeout};
    use StartProblemKind::{Config, Creating, Gated, Image, Unschedulable};
    let default = policy;
    let off = || Policy { start_timeout_ms: 0, ..policy() };
    for (policy, kind, is_bound, want) in [
        (default(), None, true, Some((10 * MINUTE, StartTimeout))),
        (default(), Some(Creating), true, Some((10 * MINUTE, StartTimeout))),
        (default(), Some(Config), true, Some((10 * MINUTE, ConfigError))),
        (default(), Some(Image), true, Some((5 * MINUTE, ImageError))),
        (
            Policy { start_timeout_ms: MINUTE, ..policy() },
            Some(Image),
            true,
            Some((MINUTE / 2, ImageError)),
        ),
        (off(), Some(Image), true, None),
        (off(), Some(Config), true, None),
        (off(), None, true, None),
        // An unscheduled or gated pod waits; it has not failed.
        (default(), None, false, None),
        (default(), Some(Unschedulable), false, None),
        (default(), Some(Gated), false, None),
    ] {
        check(policy, kind, is_bound, want);
    }
}

/// No condition PodScheduled: a gang is not complete, or nobody is the named scheduler.
#[test]
fn a_pod_that_the_scheduler_ignores_is_told_and_holds_up_nothing() {
    let mut run = Run::new(policy(), vec![spec("g", 2)]);
    run.created(&[1, 2]);
    run.watch(&[1, 2], |_| {});
    live(&mut run, 29 * SECOND);
    assert_eq!(run.waits_for("g"), None, "a scheduler needs some time");
    live(&mut run, 2 * SECOND);
    assert_eq!(run.waits_for("g"), Some("unschedulable"));
    live(&mut run, 3 * MINUTE);
    run.watch(&[1, 2], |_| {});
    run.take();
    run.target("g", 4);
    assert_eq!(run.creates(), [3, 4], "the rest of the gang comes");
    run.running(&[1, 2]);
    assert_ne!(run.waits_for("g"), Some("unschedulable"));
}

/// Kubelets report "being created" between two pulls; the time runs from the first error.
#[test]
fn the_image_timeout_runs_from_the_first_pull_error() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    run.created(&[1]);
    bound(&mut run, &[1], Some(StartProblemKind::Creating));
    live(&mut run, MINUTE);
    for _ in 0..4 {
        bound(&mut run, &[1], Some(StartProblemKind::Image));
        live(&mut run, 30 * SECOND);
        bound(&mut run, &[1], Some(StartProblemKind::Creating));
        live(&mut run, 30 * SECOND);
    }
    live(&mut run, MINUTE - SECOND);
    assert_eq!(losses(&run), []);
    live(&mut run, SECOND);
    let message = "not running within half of allocation.start_timeout (300s): the server's words";
    assert_eq!(losses(&run), [(1, LossReason::ImageError, message.to_owned())]);
}

#[test]
fn an_executor_that_starts_in_time_stays() {
    for kind in [StartProblemKind::Image, StartProblemKind::Config, StartProblemKind::Creating] {
        let mut run = Run::new(policy(), vec![spec("g", 1)]);
        run.created(&[1]);
        bound(&mut run, &[1], Some(kind));
        live(&mut run, 4 * MINUTE);
        run.running(&[1]);
        live(&mut run, 60 * MINUTE);
        assert_eq!((losses(&run), run.waits_for("g")), (vec![], None));
        assert_eq!(run.core.next_deadline(), None, "nothing is left to wake up for");
    }
}

/// The watch may be down, so the pod may be running.
#[test]
fn no_start_is_abandoned_on_a_stale_snapshot() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    run.created(&[1]);
    run.take();
    bound(&mut run, &[1], Some(StartProblemKind::Image));
    run.wait(60 * MINUTE);
    assert_eq!((losses(&run), run.take(), run.n_polls), (vec![], vec![], 1), "it asks, once");
    // The pod has been running all the time.
    run.running(&[1]);
    live(&mut run, 60 * MINUTE);
    assert_eq!(losses(&run), []);

    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    run.created(&[1]);
    run.take();
    bound(&mut run, &[1], Some(StartProblemKind::Image));
    run.wait(60 * MINUTE);
    run.core.handle(Input::Lease { held: false, high_water: None }, Millis(run.now));
    run.list();
    assert_eq!(losses(&run), [], "another posse may hold the instance");
    run.core.handle(Input::Lease { held: true, high_water: None }, Millis(run.now));
    run.list();
    assert_eq!(losses(&run).len(), 1);
}

/// What a group reports while its executors do not start: kind, the server's message, until when.
#[test]
fn a_group_reports_what_its_starts_wait_for() {
    for (kind, is_bound, want) in [
        (StartProblemKind::Gated, false, Some((Waiting::Start(StartWait::Gated), None))),
        (StartProblemKind::Queued, false, Some((Waiting::Start(StartWait::Queue), None))),
        (
            StartProblemKind::Unschedulable,
            false,
            Some((Waiting::Start(StartWait::Unschedulable), None)),
        ),
        (
            StartProblemKind::Image,
            true,
            Some((Waiting::Start(StartWait::ImageError), Some(5 * MINUTE))),
        ),
        (
            StartProblemKind::Config,
            true,
            Some((Waiting::Start(StartWait::ConfigError), Some(10 * MINUTE))),
        ),
        (StartProblemKind::Creating, true, None),
    ] {
        let mut run = Run::new(policy(), vec![spec("g", 2)]);
        run.created(&[1, 2]);
        run.running(&[2]);
        run.events.clear();
        run.watch(&[1], |pod| {
            pod.node = is_bound.then(|| "n1".into());
            pod.start_problem = stuck(kind);
        });
        let status = run.group("g");
        let until = |until: Option<u64>| until.map(Millis);
        assert_eq!(status.waiting, want.map(|(waiting, _)| waiting));
        assert_eq!(status.until, want.and_then(|(_, ms)| until(ms)));
        let message = want.map(|_| "the server's words".to_owned());
        assert_eq!(status.message, message);
        let said: Vec<Event> = want
            .map(|(waiting, ms)| {
                Event::Group("g".into(), GroupEvent::Waiting { waiting, until: until(ms), message })
            })
            .into_iter()
            .collect();
        assert_eq!(run.take_events(), said);
        run.running(&[1]);
        assert_eq!((run.waits_for("g"), run.group("g").message), (None, None));
    }
}

/// Until one executor runs, one create at a time is sent: after 10 s, 20 s, up to 5 minutes.
#[test]
fn failed_starts_slow_their_group_down_until_one_runs() {
    // An image has half of the time.
    for (kind, start_timeout_ms, reason) in [
        (StartProblemKind::Image, 2 * MINUTE, "image_error"),
        (StartProblemKind::Config, MINUTE, "config_error"),
        (StartProblemKind::Creating, MINUTE, "start_timeout"),
    ] {
        let policy = Policy { start_timeout_ms, ..policy() };
        let mut run = Run::new(policy, vec![spec("g", 4)]);
        let ids = run.creates();
        run.created(&ids);
        bound(&mut run, &ids, Some(kind));
        run.take();
        live(&mut run, MINUTE);
        assert_eq!((losses(&run).len(), run.ends().len()), (4, 4));
        run.gone(&ids);
        for (probe, low_s) in [(5, 10), (6, 20), (7, 40), (8, 80), (9, 160), (10, 300), (11, 300)] {
            assert_eq!(run.waits_for("g"), Some(reason));
            let words = run.group("g").message.unwrap();
            assert!(words.ends_with("the server's words"), "{words}");
            live(&mut run, low_s * SECOND - 2 * SECOND);
            assert_eq!(run.take(), [], "not before {low_s} s");
            live(&mut run, (low_s + 4).min(300) * SECOND);
            assert_eq!(run.creates(), [probe]);
            run.created(&[probe]);
            bound(&mut run, &[probe], Some(kind));
            assert_eq!(run.take(), [], "one at a time");
            live(&mut run, MINUTE);
            assert_eq!(run.ends().len(), 1);
            run.gone(&[probe]);
        }
        live(&mut run, 300 * SECOND);
        assert_eq!(run.creates(), [12]);
        run.created(&[12]);
        run.running(&[12]);
        assert_eq!(run.creates(), [13, 14]);
        run.created(&[13, 14]);
        assert_eq!(run.creates(), [15]);
        assert_eq!(run.group("g").message, None);
    }
}

/// A container that ends before it ever ran counts as a failed start, not as a crash loop.
#[test]
fn a_container_that_cannot_be_started_counts_as_a_failed_start() {
    let mut run = Run::new(policy(), vec![spec("g", 1)]);
    for (id, wait_s) in [(1, 0), (2, 20), (3, 40)] {
        live(&mut run, wait_s * SECOND);
        assert_eq!(run.creates(), [id]);
        run.created(&[id]);
        run.watch(&[id], |pod| {
            (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
            let reason = "StartError".into();
            let end = End { exit_code: Some(128), container_reason: reason, ..End::default() };
            pod.end = Some(Box::new(end));
        });
        run.take();
        assert_eq!(run.waits_for("g"), Some("config_error"));
    }
}

/// A task pays for its own failures by its retries, so one wrong image does not end the work of all.
#[test]
fn a_task_that_cannot_start_costs_no_budget() {
    let policy = Policy { failures_start: Limit::Max(0), ..policy() };
    let mut run = Run::new(policy, vec![group(0, None)]);
    say(&mut run, &[task("typo", 0), task("good", 0)]);
    assert_eq!(run.slots_created().len(), 2);
    run.start(&[2]);
    run.created(&[1]);
    run.watch(&[1], |pod| {
        (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
        let reason = "StartError".into();
        let end = End { exit_code: Some(128), container_reason: reason, ..End::default() };
        pod.end = Some(Box::new(end));
    });
    assert_eq!((state(&mut run, "typo"), state(&mut run, "good")), ("failed", "running"));
    assert_eq!(run.core.poll_verdict(), None);
}

fn lose_node(run: &mut Run, id: u64, node: &str) {
    let name: Box<str> = node.into();
    run.watch(&[id], |pod| pod.node = Some(name.clone()));
    run.watch(&[id], |pod: &mut Pod| {
        pod.phase = Phase::Failed;
        pod.end = Some(Box::new(End { pod_reason: "NodeLost".into(), ..End::default() }));
    });
}

fn shapes(run: &mut Run) -> Vec<PodOverrides> {
    let asked = run.take().into_iter().filter_map(|action| match action {
        Action::Create { overrides, .. } => Some(overrides),
        _ => None,
    });
    asked.collect()
}

#[test]
fn a_node_that_loses_executors_is_avoided_for_some_time() {
    let bad_nodes = BadNodes { losses: 2, share_permille: 500, ..BadNodes::default() };
    let mut run = Run::with_running(Policy { bad_nodes, ..policy() }, vec![spec("g", 4)]);
    lose_node(&mut run, 1, "n1");
    run.created(&[5]);
    run.running(&[5]);
    assert!(shapes(&mut run).iter().all(|overrides| overrides.avoid.is_empty()));
    lose_node(&mut run, 2, "n1");
    assert_eq!(shapes(&mut run)[0].avoid.to_vec(), ["n1"], "the successor already");
    let said = run
        .events
        .iter()
        .find(|event| matches!(event, Event::Cluster(ClusterEvent::NodeAvoided { .. })));
    let until = Millis(run.now + bad_nodes.avoid_for_ms);
    let (node, reason) = ("n1".to_owned(), LossReason::NodeLost);
    assert_eq!(said, Some(&Event::Cluster(ClusterEvent::NodeAvoided { node, until, reason })));
    assert_eq!(run.core.status().avoided_nodes, [("n1".to_owned(), until)]);
    run.created(&[6]);
    run.running(&[6]);
    run.wait(bad_nodes.avoid_for_ms);
    assert_eq!(run.core.status().avoided_nodes, []);
    run.target("g", 5);
    assert!(shapes(&mut run)[0].avoid.is_empty());
}

#[test]
fn new_executors_prefer_the_nodes_that_the_driver_names() {
    let bad_nodes = BadNodes { losses: 1, share_permille: 500, ..BadNodes::default() };
    let mut run = Run::with_running(Policy { bad_nodes, ..policy() }, vec![spec("g", 4)]);
    let node = |name: &str, weight| PreferredNode { name: name.to_owned(), weight };
    let prefer = |group: &str, nodes: &[PreferredNode]| {
        Command::Group(GroupName::from(group), GroupCommand::Prefer { nodes: nodes.to_vec() })
    };
    let two = [node("n1", 100), node("n2", 1)];
    assert_eq!(run.call(prefer("other", &two)), Reply::UnknownGroup);
    assert_eq!(run.call(prefer("g", &two)), Reply::Done);
    assert_eq!(shapes(&mut run), [], "those that run stay");
    run.target("g", 5);
    assert_eq!(shapes(&mut run)[0].prefer.to_vec(), two);
    run.created(&[5]);
    run.running(&[5]);
    lose_node(&mut run, 1, "n1");
    let successor = &shapes(&mut run)[0];
    assert_eq!(successor.avoid.to_vec(), ["n1"]);
    assert_eq!(successor.prefer.to_vec(), [node("n2", 1)], "a bad node is not preferred");
    run.created(&[6]);
    run.running(&[6]);
    assert_eq!(run.call(prefer("g", &[])), Reply::Done);
    run.target("g", 6);
    assert_eq!(shapes(&mut run)[0].prefer.to_vec(), []);
}

/// The executor runs out of memory; returns the memory step of its successor.
fn oom(run: &mut Run, id: u64) -> u32 {
    run.take();
    run.watch(&[id], |pod| {
        (pod.phase, pod.container) = (Phase::Failed, ContainerState::Ended);
        let reason = "OOMKilled".into();
        let end = End { exit_code: Some(137), container_reason: reason, ..End::default() };
        pod.end = Some(Box::new(end));
    });
    shapes(run)[0].memory_step
}

#[test]
fn memory_scales_up_until_an_executor_has_run_for_ten_minutes() {
    let group =
        GroupSpec { pod: with_memory(PodText::default(), &["1280Mi", "1600Mi"]), ..spec("g", 3) };
    let mut run = Run::with_running(Policy { keep_failed: 0, ..policy() }, vec![group]);
    run.wait(2 * MINUTE);
    assert_eq!(oom(&mut run, 1), 1);
    let grown = |run: &Run| {
        let grown = run.events.iter().filter_map(|event| match event {
            Event::Executor(subject, ExecutorEvent::MemoryGrown { memory, message: None }) => {
                Some((subject.id.0, memory.clone()))
            }
            _ => None,
        });
        grown.collect::<Vec<_>>()
    };
    assert_eq!(grown(&run), [(4, "1280Mi".to_owned())]);
    run.created(&[4]);
    run.running(&[4]);
    // The replacement of an executor that ended for another reason uses the template's memory.
    run.failed(&[2]);
    assert_eq!(shapes(&mut run)[0].memory_step, 0);
    run.created(&[5]);
    run.running(&[5]);
    assert_eq!(oom(&mut run, 4), 2);
    run.created(&[6]);
    run.running(&[6]);
    run.wait(5 * MINUTE);
    assert_eq!(oom(&mut run, 3), 2, "the trouble is known");
    run.created(&[7]);
    run.running(&[7]);
    run.wait(10 * MINUTE);
    assert_eq!(oom(&mut run, 5), 1, "a grown one has run for ten minutes");
    let memory = |memory: &str| memory.to_owned();
    assert_eq!(
        grown(&run)[1..],
        [(6, memory("1600Mi")), (7, memory("1600Mi")), (8, memory("1280Mi"))]
    );
}
