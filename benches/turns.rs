//! What one turn of the reconciler costs with 100, 10,000 and 100,000 executors: running, lowering a
//! target by one, with unschedulable executors, stopping, and the status. Medians, because other work on
//! the machine may interrupt some turns for long. `cargo bench --bench turns`.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "../crates/core/tests/support/core_run.rs"]
mod core_run;

use std::time::{Duration, Instant};

use core_run::{Run, identity, policy, spec};
use posse_base::time::Millis;
use posse_core::model::command::Command;
use posse_core::model::ids::{GroupName, Version};
use posse_core::model::input::{Input, List, ListSource, PodEvent};
use posse_core::model::pod::{ContainerState, Phase, Pod, StartProblem, StartProblemKind};
use posse_core::model::settings::Policy;
use posse_core::model::stop::StopOrder;
use posse_core::reconciler::{InstanceIdentity, Reconciler};

const SIZES: [u64; 3] = [100, 10_000, 100_000];
/// Turns that are measured at each size. Below the smallest size, because some of them end an executor.
const TURNS: u64 = 90;

fn main() {
    println!(
        "executors: an event while running; the target lowered by one; an event while half of the"
    );
    println!(
        "target is unschedulable; an event while stopping; a status after an event, and again"
    );
    for n in SIZES {
        let times = [running(n), lowered(n), unschedulable(n), stopping(n)];
        let [first, again] = status(n);
        let shown: Vec<String> = times
            .iter()
            .chain([&first, &again])
            .map(|time| format!("{:.1} us", time.as_secs_f64() * 1e6))
            .collect();
        println!("{n}: {}", shown.join(", "));
    }
}

/// A run that has adopted `n` executors.
fn adopted(n: u64, policy: Policy, change: impl Fn(&mut Pod)) -> Run {
    let identity = InstanceIdentity { id_high_water: n, ..identity() };
    let target = u32::try_from(n).unwrap();
    let policy = Policy { adopt_hold_ms: 0, ..policy };
    let mut run = Run::with_identity(identity, policy, vec![spec("g", target)]);
    for id in 1..=n {
        let mut pod = run.pod("g", id);
        pod.slot = u32::try_from(id - 1).ok();
        change(&mut pod);
        run.pods.push(pod);
    }
    run.list();
    run.take();
    run
}

fn run_pod(pod: &mut Pod) {
    (pod.phase, pod.container) = (Phase::Running, ContainerState::Running);
    (pod.ready, pod.node) = (true, Some("node".into()));
}

fn drain(core: &mut Reconciler) {
    while core.poll_event().is_some() {}
    while core.poll_action().is_some() {}
}

/// The median time of `step`; what the core asks for is taken outside of it.
fn median(run: &mut Run, mut step: impl FnMut(&mut Reconciler, &mut Pod, u64)) -> Duration {
    let mut took = Vec::new();
    for i in 0..TURNS {
        run.version += 1;
        let mut pod = run.pods[usize::try_from(i).unwrap()].clone();
        pod.version = Some(Version(run.version));
        let from = Instant::now();
        step(&mut run.core, &mut pod, run.now);
        took.push(from.elapsed());
        drain(&mut run.core);
    }
    middle(took)
}

fn middle(mut took: Vec<Duration>) -> Duration {
    took.sort();
    took[took.len() / 2]
}

fn tell(core: &mut Reconciler, pod: &Pod, now: u64) {
    let epoch = core.watermark().epoch;
    let events = vec![PodEvent::Applied(pod.clone())];
    core.handle(Input::Watch { epoch, events }, Millis(now));
    core.turn(Millis(now));
}

fn running(n: u64) -> Duration {
    let mut run = adopted(n, policy(), run_pod);
    median(&mut run, |core, pod, now| {
        pod.ready = false;
        tell(core, pod, now);
    })
}

fn lowered(n: u64) -> Duration {
    let mut run = adopted(n, policy(), run_pod);
    let mut target = u32::try_from(n).unwrap();
    median(&mut run, |core, _, now| {
        target -= 1;
        core.set_target(&GroupName::from("g"), target, Millis(now));
        core.turn(Millis(now));
    })
}

fn unschedulable(n: u64) -> Duration {
    let max = u32::try_from(n).unwrap() / 2;
    let mut run = adopted(n, policy(), |pod| {
        let message = "0/1 nodes are available".into();
        let problem = StartProblem { kind: StartProblemKind::Unschedulable, message, n_started: 0 };
        pod.start_problem = Some(problem.into());
    });
    run.core.set_target(&GroupName::from("g"), max * 4, Millis(run.now));
    run.turn();
    median(&mut run, |core, pod, now| tell(core, pod, now))
}

/// All pods are terminating, and one after the other goes.
fn stopping(n: u64) -> Duration {
    let mut run = adopted(n, policy(), run_pod);
    run.core
        .begin_stop(StopOrder { keep: false, keep_failed: true, is_over: false }, Millis(run.now));
    run.turn();
    run.pods.iter_mut().for_each(|pod| pod.deleting = true);
    run.version += 1;
    let version = Some(Version(run.version));
    run.pods.iter_mut().for_each(|pod| pod.version = version);
    let (pods, watermark) = (run.pods.clone(), run.core.watermark());
    run.tell(Input::List(List::whole(ListSource::Stop, pods, version, watermark)));
    run.take();
    median(&mut run, |core, pod, now| {
        let epoch = core.watermark().epoch;
        let events = vec![PodEvent::Deleted(pod.clone())];
        core.handle(Input::Watch { epoch, events }, Millis(now));
        core.turn(Millis(now));
    })
}

/// After an event, and once more without one.
fn status(n: u64) -> [Duration; 2] {
    let mut run = adopted(n, policy(), run_pod);
    run.core.status();
    let mut took = [Vec::new(), Vec::new()];
    median(&mut run, |core, pod, now| {
        pod.ready = false;
        tell(core, pod, now);
        for took in &mut took {
            let from = Instant::now();
            std::hint::black_box(core.command(Command::Status, Millis(now)));
            took.push(from.elapsed());
        }
    });
    took.map(middle)
}
