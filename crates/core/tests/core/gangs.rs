//! `gang`: executors that are of use only together. A table of the rules, and two applications on one quota over
//! many seeds.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use crate::core_run::{Run, policy, refusal, spec};
use posse_base::rng::Rng;
use posse_core::model::action::Action;
use posse_core::model::event::{DeleteCause, Event, ExecutorEvent, GroupEvent};
use posse_core::model::ids::ExecutorId;
use posse_core::model::input::Input;
use posse_core::model::pod::{StartProblem, StartProblemKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, Together};

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60_000;
const WAITS_FOR_GANG: Option<&str> = Some("gang");

fn gang(count: u32, min: u32, give_back_after_ms: Option<u64>) -> GroupSpec {
    GroupSpec { together: Together::Gang { min, give_back_after_ms }, ..spec("g", count) }
}

/// What was told about gangs and given back since the last call, in short.
fn told(run: &mut Run) -> Vec<String> {
    let told = run.take_events().into_iter().filter_map(|event| match event {
        Event::Group(_, GroupEvent::GangRunning { running, min }) => {
            Some(format!("{running} of {min} run"))
        }
        Event::Group(_, GroupEvent::GangGivenBack { running, min, .. }) => {
            Some(format!("{running} of {min} given back"))
        }
        Event::Executor(subject, ExecutorEvent::Deleted { cause }) => {
            Some(format!("{} deleted: {}", subject.id, cause.as_str()))
        }
        Event::Executor(subject, ExecutorEvent::Lost { .. }) => {
            Some(format!("{} lost", subject.id))
        }
        _ => None,
    });
    told.collect()
}

fn deletes(run: &mut Run) -> usize {
    run.take().iter().filter(|action| matches!(action, Action::Delete { .. })).count()
}

#[test]
fn a_gang_tells_when_as_many_run_as_it_needs() {
    let mut run = Run::new(policy(), vec![gang(4, 3, Some(MINUTE))]);
    run.start(&[1, 2]);
    assert_eq!(told(&mut run), Vec::<String>::new());
    run.start(&[3]);
    assert_eq!(told(&mut run), ["3 of 3 run"]);
    run.start(&[4]);
    run.failed(&[4]);
    assert_eq!(told(&mut run), ["4 lost"], "three are enough");
    run.failed(&[3]);
    run.take();
    run.start(&[5]);
    assert_eq!(told(&mut run), ["3 lost", "3 of 3 run"]);
}

#[test]
fn what_cannot_run_together_in_time_is_given_back_at_once_and_begins_later() {
    let mut run = Run::new(policy(), vec![gang(4, 4, Some(MINUTE))]);
    run.start(&[1, 2]);
    run.created(&[3, 4]);
    run.take();
    run.wait(MINUTE - SECOND);
    assert_eq!((told(&mut run), deletes(&mut run)), (vec![], 0));
    run.wait(SECOND);
    assert_eq!(run.n_polls, 1, "it is not judged on an old snapshot");
    run.list();
    assert_eq!((told(&mut run), deletes(&mut run)), (vec!["2 of 4 given back".to_owned()], 4));
    assert_eq!(run.waits_for("g"), WAITS_FOR_GANG);
    run.gone(&[1, 2, 3, 4]);
    let cause = DeleteCause::GangGivenBack.as_str();
    assert_eq!(told(&mut run), [1, 2, 3, 4].map(|id| format!("{id} deleted: {cause}")));
    run.wait(9 * SECOND);
    assert_eq!(run.take(), [], "it waits for at least 10 s");
    run.wait(11 * SECOND);
    assert_eq!(run.creates(), [5, 6, 7, 8]);
}

#[test]
fn an_incomplete_gang_that_ran_before_is_given_back_too() {
    let mut run = Run::with_running(policy(), vec![gang(3, 2, Some(MINUTE))]);
    run.failed(&[1, 2]);
    run.take();
    told(&mut run);
    run.wait(MINUTE);
    run.list();
    assert_eq!(told(&mut run), ["1 of 2 given back"]);
}

#[test]
fn a_lower_target_needs_fewer_and_nothing_is_given_back_without_executors() {
    let mut run = Run::new(policy(), vec![gang(4, 4, Some(MINUTE))]);
    run.wait(10 * MINUTE);
    assert_eq!(told(&mut run), Vec::<String>::new(), "no pod exists");
    run.start(&[1, 2]);
    run.target("g", 2);
    assert_eq!(told(&mut run), ["2 of 4 run"]);
    run.wait(10 * MINUTE);
    assert_eq!(told(&mut run), Vec::<String>::new());
    run.target("g", 0);
    run.gone(&[1, 2]);
    run.wait(10 * MINUTE);
    assert_eq!(told(&mut run), ["1 deleted: scaled_down", "2 deleted: scaled_down"]);
}

/// One executor alone would never start, so the probe after a failed start is all of them.
#[test]
fn executors_that_start_together_are_tried_together() {
    for (group, n) in [
        (gang(3, 3, None), 3),
        (GroupSpec { together: Together::Queue, min: 3, max: Some(3), ..spec("g", 3) }, 3),
        (gang(3, 3, Some(60 * MINUTE)), 1),
        (spec("g", 3), 1),
    ] {
        let mut run = Run::new(policy(), vec![group]);
        run.created(&[1, 2, 3]);
        run.watch(&[1, 2, 3], |pod| {
            let kind = StartProblemKind::Image;
            pod.node = Some("n1".into());
            let problem = StartProblem { kind, message: "no image".into(), n_started: 0 };
            pod.start_problem = Some(Box::new(problem));
        });
        run.wait(5 * MINUTE);
        run.list();
        assert_eq!(told(&mut run), ["1 lost", "2 lost", "3 lost"]);
        run.gone(&[1, 2, 3]);
        run.take();
        run.wait(MINUTE);
        assert_eq!(run.creates().len(), n);
    }
}

/// (the scheduler's word, who starts the gang together, what the group waits for)
#[test]
fn an_incomplete_gang_waits_for_its_gang_and_never_for_the_scheduler() {
    let unschedulable = Some("unschedulable");
    for kind in [StartProblemKind::Unschedulable, StartProblemKind::Ignored] {
        for (group, want) in [
            (gang(3, 3, None), WAITS_FOR_GANG),
            // One runs, which is enough, so the others are like any executor.
            (gang(3, 1, None), unschedulable),
            (spec("g", 3), unschedulable),
        ] {
            let mut run = Run::new(policy(), vec![group]);
            run.start(&[1]);
            run.created(&[2, 3]);
            run.watch(&[2, 3], |pod| {
                let problem = StartProblem { kind, message: "0/3 nodes".into(), n_started: 0 };
                let is_told = kind == StartProblemKind::Unschedulable;
                pod.start_problem = is_told.then(|| Box::new(problem));
            });
            run.wait(31 * SECOND);
            assert_eq!(run.waits_for("g"), want, "{kind:?}");
            let message = run.group("g").message.unwrap();
            assert_eq!(message.starts_with("1 of 3 run: "), want == WAITS_FOR_GANG, "{message}");
        }
    }
}

/// Pods that the quota of both applications has room for, and what is under way.
struct Quota {
    now: u64,
    free: u64,
    rng: Rng,
    due: BTreeMap<(u64, u64), (usize, Due)>,
    n_due: u64,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    Answer(u64),
    Runs(u64),
    Gone(u64),
    /// `kill -9`, and a new posse.
    Restart,
    /// The gang has done its work.
    Done,
}

impl Quota {
    fn after(&mut self, ms: u64, app: usize, due: Due) {
        self.n_due += 1;
        self.due.insert((self.now + ms, self.n_due), (app, due));
    }

    fn carry_out(&mut self, app: usize, run: &mut Run) {
        while std::mem::take(&mut run.n_polls) > 0 {
            run.list();
        }
        for action in run.take() {
            match action {
                Action::Create { id, .. } => {
                    let ms = 5 + self.rng.below(500);
                    self.after(ms, app, Due::Answer(id.0));
                }
                Action::Delete { uid, name, .. } => {
                    run.tell(Input::Deleted { uid, answer: Ok(None) });
                    let id = name.rsplit('-').next().unwrap().parse().unwrap();
                    let ms = self.rng.below(3_000);
                    self.after(ms, app, Due::Gone(id));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn apply(&mut self, app: usize, due: Due, run: &mut Run, spec: &GroupSpec) {
        match due {
            Due::Answer(id) if run.core.executors().get(ExecutorId(id)).is_none() => {}
            Due::Answer(id) if self.free == 0 => {
                run.refused(id, refusal(RefusalClass::Capacity, 403));
            }
            Due::Answer(id) => {
                self.free -= 1;
                run.created(&[id]);
                let ms = 200 + self.rng.below(5_000);
                self.after(ms, app, Due::Runs(id));
            }
            Due::Runs(id) if run.pods.iter().any(|pod| pod.id.0 == id) => run.running(&[id]),
            Due::Runs(_) => {}
            Due::Gone(id) => {
                // A restarted posse may delete it again.
                if run.pods.iter().any(|pod| pod.id.0 == id) {
                    self.free += 1;
                    run.gone(&[id]);
                }
            }
            Due::Restart => {
                let (pods, target) = (std::mem::take(&mut run.pods), run.group("g").target);
                *run = Run::unlisted(policy(), vec![spec.clone()]);
                (run.pods, run.now, run.version) = (pods, self.now, 1_000_000);
                self.due.retain(|_, (of, due)| *of != app || !matches!(due, Due::Answer(_)));
                run.list();
                run.target("g", target);
            }
            Due::Done => run.target("g", 0),
        }
    }
}

/// Two applications, each a gang for which the quota has room alone. None may keep the other from running.
fn two_gangs_on_one_quota(seed: u64) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let minima = [2 + rng.below(6), 2 + rng.below(6)].map(|min| u32::try_from(min).unwrap());
    let timeouts = [20 + rng.below(100), 20 + rng.below(100)].map(|s| s * SECOND);
    let size = u64::from(minima[0].max(minima[1])) + rng.below(2);
    let specs = [0, 1].map(|i| {
        let more = u32::try_from(rng.below(3)).unwrap();
        gang(minima[i] + more, minima[i], Some(timeouts[i]))
    });
    let mut runs = specs.clone().map(|spec| Run::new(policy(), vec![spec]));
    let mut quota = Quota { now: 0, free: size, rng, due: BTreeMap::new(), n_due: 0 };
    for (app, run) in runs.iter_mut().enumerate() {
        if quota.rng.chance(30) {
            let ms = quota.rng.below(3 * MINUTE);
            quota.after(ms, app, Due::Restart);
        }
        quota.carry_out(app, run);
    }
    let mut was_complete = [false; 2];
    // Since when both hold something and none runs.
    let mut stuck_since = None;
    while !was_complete.iter().all(|is| *is) {
        let deadline =
            runs.iter().filter_map(|run| run.core.next_deadline()).map(|at| at.0.max(quota.now));
        let next = quota.due.keys().map(|(at, _)| *at).chain(deadline).min();
        quota.now = next.ok_or("nothing is due")?;
        if quota.now > 120 * MINUTE {
            return Err(format!("{was_complete:?} after two hours"));
        }
        for (app, run) in runs.iter_mut().enumerate() {
            run.now = quota.now;
            run.turn();
            quota.carry_out(app, run);
        }
        while let Some(((at, n), (app, due))) = quota.due.pop_first() {
            if at > quota.now {
                quota.due.insert((at, n), (app, due));
                break;
            }
            quota.apply(app, due, &mut runs[app], &specs[app]);
            quota.carry_out(app, &mut runs[app]);
        }
        for (app, run) in runs.iter().enumerate() {
            if run.group("g").running >= minima[app] && !was_complete[app] {
                was_complete[app] = true;
                let ms = 1 + quota.rng.below(5 * MINUTE);
                quota.after(ms, app, Due::Done);
            }
        }
        let holds = |run: &Run| run.group("g").pending + run.group("g").running > 0;
        let is_stuck = runs.iter().all(holds) && was_complete == [false; 2];
        let since = stuck_since.filter(|_| is_stuck).unwrap_or(quota.now);
        stuck_since = is_stuck.then_some(since);
        // A restarted posse measures its time anew.
        let longest = 2 * timeouts[0].min(timeouts[1]) + 15 * SECOND;
        if quota.now - since > longest {
            return Err(format!("they hold each other's halves for {} ms", quota.now - since));
        }
    }
    Ok(())
}

#[test]
fn two_gangs_on_one_quota_never_hold_each_others_halves() {
    for seed in super::sim::part_of_seeds(1) {
        let outcome = two_gangs_on_one_quota(seed);
        assert_eq!(outcome, Ok(()), "SIM_SEED={seed}");
    }
}
