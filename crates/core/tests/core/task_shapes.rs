//! Shapes of tasks: one that cannot start holds up no other of its group.
#![allow(clippy::unwrap_used, clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;

use super::starts::live;
use super::tasks::{creates, ends, group, say, show, task};
use crate::core_run::{Run, end_with, policy, refusal};
use posse_core::model::action::Action;
use posse_core::model::input::Input;
use posse_core::model::pod::{Pod, StartProblem, StartProblemKind};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::settings::{GroupSpec, Policy};
use posse_core::model::task::{Task, TaskState};

const SECOND: u64 = 1_000;
/// How long a good task runs.
const GOOD_MS: u64 = 5 * SECOND;

/// Why the tasks of a shape do not start.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Image,
    NoNode,
    Refused,
    /// A webhook fails for them.
    Failing,
    /// They start.
    Nothing,
}

fn shaped(key: &str, image: &str, retries: u32) -> Task {
    Task { image: Some(image.to_owned()), ..task(key, retries) }
}

fn problem(bad: Bad) -> impl Fn(&mut Pod) {
    move |pod| {
        let (kind, message) = match bad {
            Bad::Image => (StartProblemKind::Image, "Back-off pulling image \"no:1\""),
            _ => (StartProblemKind::Unschedulable, "0/3 nodes are available: 3 Insufficient cpu"),
        };
        pod.node = (bad == Bad::Image).then(|| "n1".into());
        pod.start_problem =
            Some(StartProblem { kind, message: message.into(), n_started: 0 }.into());
    }
}

/// A cluster in which a task of the image `bad` does not start, and others end after `GOOD_MS`.
struct Cluster {
    run: Run,
    bad: Bad,
    /// When each running pod ends.
    ends_at: BTreeMap<u64, u64>,
    /// The ends that were told, by key.
    told: BTreeMap<String, (&'static str, u32)>,
    /// The most pods of the bad shape at a time since the last look.
    n_bad_creates: usize,
}

impl Cluster {
    fn new(policy: Policy, group: GroupSpec, bad: Bad, tasks: &[Task]) -> Self {
        let mut run = Run::new(policy, vec![group]);
        say(&mut run, tasks);
        let (ends_at, told) = (BTreeMap::new(), BTreeMap::new());
        Self { run, bad, ends_at, told, n_bad_creates: 0 }
    }

    fn serve(&mut self) {
        loop {
            let actions = self.run.take();
            if actions.is_empty() {
                return;
            }
            for action in actions {
                match action {
                    Action::Create { id, overrides, .. } => self.create(id.0, overrides.task),
                    Action::Delete { uid, .. } => {
                        self.run.gone(&[uid.to_string()[1..].parse().unwrap()]);
                    }
                    Action::Patch { uid, .. } => {
                        self.run.tell(Input::Patched { uid, answer: Ok(()) })
                    }
                    Action::Poll => {}
                    other => panic!("{other:?}"),
                }
            }
            self.run.turn();
        }
    }

    fn create(&mut self, id: u64, run: Option<Box<posse_core::model::task::TaskRun>>) {
        let is_bad = run.is_some_and(|run| run.task.image.as_deref() == Some("bad"));
        let is_bad = is_bad && self.bad != Bad::Nothing;
        self.n_bad_creates += usize::from(is_bad);
        match self.bad {
            Bad::Refused if is_bad => self.run.refused(id, refusal(RefusalClass::Invalid, 403)),
            Bad::Failing if is_bad => {
                self.run.refused(id, refusal(RefusalClass::OutcomeUnknown, 500))
            }
            _ => {
                self.run.created(&[id]);
                if is_bad {
                    self.run.watch(&[id], problem(self.bad));
                } else {
                    self.run.running(&[id]);
                    self.ends_at.insert(id, self.run.now + GOOD_MS);
                }
            }
        }
    }

    fn second(&mut self) {
        self.serve();
        let now = self.run.now;
        let over: Vec<u64> =
            self.ends_at.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for id in over {
            self.ends_at.remove(&id);
            self.run.watch(&[id], end_with(0));
        }
        self.serve();
        for (key, outcome, _, attempts) in ends(&mut self.run) {
            self.told.insert(key, (outcome, attempts));
        }
        live(&mut self.run, SECOND);
    }

    /// After how many seconds the tasks with this prefix have ended.
    fn until_ended(&mut self, prefix: &str, n: usize, max_s: u64) -> u64 {
        for second in 0..max_s {
            if self.told.keys().filter(|key| key.starts_with(prefix)).count() == n {
                return second;
            }
            self.second();
        }
        let waits = self.run.waits_for("g");
        panic!("{:?} of {n} after {max_s} s, waiting for {waits:?}", self.told);
    }
}

fn good(n: usize) -> Vec<Task> {
    (0..n).map(|i| shaped(&format!("good-{i}"), "good", 0)).collect()
}

/// Of two shapes one never starts, and its tasks come first. The others end as fast as without them, but for the time
/// until its pods have shown that they do not start, and for the place in which it tries again.
#[test]
fn a_shape_that_never_starts_holds_up_no_other() {
    // 20 at a time.
    let n = 400;
    let full_speed = n as u64 / 20 * GOOD_MS / SECOND;
    for bad in [Bad::Image, Bad::NoNode, Bad::Refused, Bad::Failing] {
        for (max, pending_max) in [(Some(20), 0), (None, 20)] {
            let policy = Policy { pending_max, ..policy() };
            let mut tasks: Vec<Task> =
                (0..100).map(|i| shaped(&format!("bad-{i}"), "bad", 2)).collect();
            tasks.extend(good(n));
            let mut cluster = Cluster::new(policy, group(0, max), bad, &tasks);
            let took = cluster.until_ended("good", n, 600);
            let allowed = full_speed + 31 + full_speed / 10;
            assert!(took <= allowed, "{bad:?} {max:?}: {took} s, not {full_speed} s");
            assert!(
                cluster
                    .told
                    .iter()
                    .all(|(key, told)| { !key.starts_with("good") || *told == ("succeeded", 1) })
            );
        }
    }
}

/// With one place in the group, too.
#[test]
fn a_group_with_one_place_goes_on() {
    for bad in [Bad::Image, Bad::NoNode, Bad::Refused] {
        let mut tasks = vec![shaped("bad", "bad", 0)];
        tasks.extend(good(20));
        let mut cluster = Cluster::new(policy(), group(0, Some(1)), bad, &tasks);
        let took = cluster.until_ended("good", 20, 1_200);
        // The image has its whole time in the next try.
        assert!(took <= 100 + 31 + 31 + 300, "{bad:?}: {took}");
    }
}

/// The tries of a shape that does not start become rare, and are not given up while the time has no limit.
#[test]
fn a_shape_without_a_node_is_tried_again_and_starts_when_it_can() {
    let mut tasks: Vec<Task> = (0..10).map(|i| shaped(&format!("bad-{i}"), "bad", 0)).collect();
    tasks.extend(good(4_000));
    let mut cluster = Cluster::new(policy(), group(0, Some(10)), Bad::NoNode, &tasks);
    for _ in 0..600 {
        cluster.second();
    }
    let n = std::mem::take(&mut cluster.n_bad_creates);
    assert!((12..=20).contains(&n), "{n} creates in ten minutes");
    // From now on its node is there, and its tasks come before those that were added later.
    cluster.bad = Bad::Nothing;
    cluster.until_ended("bad", 10, 400);
    assert!(cluster.told.iter().all(|(_, told)| told.0 == "succeeded"), "{:?}", cluster.told);
}

#[test]
fn tasks_that_are_refused_fail_with_the_words_of_the_server_one_after_the_other() {
    let mut tasks: Vec<Task> = (0..50).map(|i| shaped(&format!("bad-{i}"), "bad", 2)).collect();
    tasks.extend(good(10));
    let mut cluster = Cluster::new(policy(), group(0, Some(5)), Bad::Refused, &tasks);
    cluster.until_ended("good", 10, 60);
    cluster.until_ended("bad", 50, 1_200);
    let end = show(&mut cluster.run, "bad-7").unwrap().end.unwrap();
    assert_eq!(
        (end.reason, end.message.as_deref()),
        (Some("refused"), Some("the server's own words"))
    );
}

/// What one shape waits for is told although others start.
#[test]
fn a_group_says_what_a_shape_waits_for() {
    let mut tasks = vec![shaped("bad-0", "bad", 0), shaped("bad-1", "bad", 0)];
    tasks.extend(good(200));
    let mut cluster = Cluster::new(policy(), group(0, Some(50)), Bad::Refused, &tasks);
    cluster.second();
    let waits = cluster.run.waits_for("g");
    assert_eq!(waits, Some("permanent"));
    assert_eq!(cluster.run.group("g").message.as_deref(), Some("the server's own words (403)"));
}

/// A webhook fails for the template. A create of another shape that fails once is sent again within a second.
#[test]
fn a_failed_create_is_sent_again_at_the_pace_of_its_own_shape() {
    let mut run = Run::new(policy(), vec![group(2, None)]);
    let failure = || refusal(RefusalClass::OutcomeUnknown, 500);
    let mut n_failures = 0;
    while n_failures < 20 {
        for (id, ..) in creates(&mut run) {
            n_failures += 1;
            run.refused(id, failure());
        }
        live(&mut run, SECOND);
    }
    say(&mut run, &[shaped("good", "good", 0)]);
    assert_eq!(creates(&mut run), [(3, "good".to_owned(), 1)]);
    run.refused(3, failure());
    live(&mut run, SECOND);
    assert!(creates(&mut run).contains(&(3, "good".to_owned(), 1)));
}

#[test]
fn a_pending_task_says_why_it_does_not_start() {
    let mut run = Run::new(policy(), vec![group(0, None)]);
    say(&mut run, &[task("a", 0)]);
    creates(&mut run);
    run.created(&[1]);
    assert_eq!(show(&mut run, "a").unwrap().start_problem, None);
    run.watch(&[1], problem(Bad::NoNode));
    let status = show(&mut run, "a").unwrap();
    assert_eq!(status.state, TaskState::Pending);
    let words = "0/3 nodes are available: 3 Insufficient cpu";
    assert_eq!(status.start_problem.as_deref(), Some(words));
}
