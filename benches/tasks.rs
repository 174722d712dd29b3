//! Many tasks of three shapes in a queue, a `posse run` without a driver, on a real API server. A test program binds,
//! starts and ends the pods, and decides at random, from a seed, which 3 % of them end by an error or are evicted. So the
//! end of each task is known in advance. The program stops if posse tells another end, or tells one twice, if two
//! pods of a task are there at once, or if posse, its events and the server count otherwise. The record of the run is
//! in the cluster: its writes are counted as the server tells of them.
//! `KUBEBUILDER_ASSETS=... cargo bench --bench tasks [-- TASKS]`; without a number 10,000.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "figures/told.rs"]
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use figures::{Memory, assets, cpu, memory};
use posse_base::rng::Rng;
use serde_json::{Value, json};
use support::control::Control;
use support::http::Client;
use support::node::{Line, TestNode};
use support::posse::{Posse, Run, read_events};
use support::real::Real;
use support::scene::{TempDir, is_over, name_of, uid_of};
use support::server::{End, Node as _, Server as _, Who, items, pods_path};
use support::wait::{PATIENCE, wait_value};
use told::{LINES_MAX, Told, follow_pods};

const TASKS: u32 = 10_000;
/// posse remembers so many ended ones, and the end of each is compared.
const TASKS_MAX: u32 = 20_000;
/// What a call of the control API may have.
const CALL_BYTES_MAX: usize = 3 << 20;
/// How many tasks have an executor at a time.
const EXECUTORS_MAX: u32 = 200;
/// How many executors of a hundred do not end with success.
const FAILURES_PERCENT: u64 = 3;
/// While the queue is there, the pods of the newest ended tasks stay for people to look at.
const RECORDS_MAX: usize = 50;
/// And so many failed ones of other attempts: the default of `failures.keep_failed`.
const KEPT_MAX: usize = 5;
/// The threads that end pods.
const ENDERS: usize = 8;
/// The program stops if no task ends for this time.
const LIMIT: Duration = Duration::from_secs(180);
/// How often it looks how many have ended.
const STEP: Duration = Duration::from_secs(1);
const NAMESPACE: &str = "tasks";
const GROUP: &str = "default";
const PATH: &str = "/v1/groups/default/executors";
/// The pod in which posse believes it runs.
const DRIVER: &str = "driver";
/// So many bytes has a task in the body of a call.
const TASK_BYTES: usize = 300;
/// A watch that ends with the program.
const RECORD_WATCH: &str = "/api/v1/namespaces/tasks/configmaps?watch=1&timeoutSeconds=86400&labelSelector=app.kubernetes.io/component%3Drecord";

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let n_tasks = numbers.next().unwrap_or(TASKS);
    assert!(n_tasks <= TASKS_MAX, "posse remembers {TASKS_MAX} ended tasks");
    let real = Real::start(&assets, false);
    let dir = TempDir::new("tasks");
    real.open_namespace(NAMESPACE);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
        {"name": "worker", "image": "example.com/worker:1"}]}});
    std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
    let node = Arc::new(TestNode::start(&real.access(Who::Node), NAMESPACE));
    let client = || Client::new(&real.access(Who::Admin), "test-tasks");
    let mut driver = pod.clone();
    driver["metadata"]["name"] = DRIVER.into();
    let driver = client().post(&pods_path(NAMESPACE), &driver).ok();
    let pods = Pods::follow(client(), &node);
    let writes = Writes::follow(client());
    let group = json!({"group": GROUP, "count": 0, "max": EXECUTORS_MAX, "template": "pod.json"});
    // The pods have no output: nothing runs in them. The test's account of posse has no right to a record.
    let run = Run::new(dir.path(), NAMESPACE, &real.access(Who::Admin)).settings(json!({
        "executors": [group], "task_output": "off", "shutdown": {"timeout": "60s"}}));
    let run = run.instance("bench").in_pod(DRIVER, uid_of(&driver));
    let posse = run.env("POSSE_LOG", "warn").start();
    posse.wait_ready();

    let tasks: Vec<Task> = (0..n_tasks).map(Task::new).collect();
    println!("{} at the start", memory(posse.pid()));
    let (begun, used) = (Instant::now(), cpu(posse.pid()));
    let n_calls = add(&posse.control(), &tasks);
    println!("{n_tasks} tasks in {n_calls} calls: {:.2} s", begun.elapsed().as_secs_f64());
    let middle = wait_all_ended(&posse, n_tasks.into());
    let time = begun.elapsed().as_secs_f64();
    let (used, end) = ((cpu(posse.pid()) - used).as_secs_f64(), memory(posse.pid()));
    println!(
        "all have ended after {time:.0} s: {:.1} tasks/s; {used:.2} s of processor time, {:.2} ms for a task, {:.1} % of a core; {middle} in the middle, {end} at the end",
        f64::from(n_tasks) / time,
        used * 1e3 / f64::from(n_tasks),
        used * 100.0 / time,
    );
    println!("its record: {}", writes.lock().unwrap());
    let listed = posse.control().call("GET", PATH, &Value::Null).ok();
    posse.wait_events("task_ended", tasks.len());
    let admin = real.client(Who::Admin, "test-admin");
    let n_records = tasks.len().min(RECORDS_MAX);
    let n_kept = wait_value(PATIENCE, "no pods but the records", || {
        let n_pods = executors(&admin).len();
        if (n_records..=n_records + KEPT_MAX).contains(&n_pods) { Ok(n_pods) } else { Err(n_pods) }
    });
    let events = posse.events_file().to_owned();
    posse.stop();
    let account = Account { tasks, listed, events: read_events(&events), pods };
    account.report();
    let left = executors(&admin);
    assert!(left.is_empty(), "{} pods are left", left.len());
    println!("{n_kept} pods were kept until the stop, and none after it");
    ExitCode::SUCCESS
}

fn executors(admin: &Client) -> Vec<Value> {
    let mut pods = items(&admin.get(&pods_path(NAMESPACE)).ok());
    pods.retain(|pod| name_of(pod) != DRIVER);
    pods
}

/// What posse has written of its record.
#[derive(Default)]
struct Writes {
    n: usize,
    bytes: usize,
    /// The bytes of each object now.
    objects: BTreeMap<String, usize>,
}

impl Writes {
    fn follow(client: Client) -> Arc<Mutex<Self>> {
        let writes = Arc::new(Mutex::new(Self::default()));
        let ours = Arc::clone(&writes);
        thread::spawn(move || {
            client.watch(RECORD_WATCH, |line| {
                let (mut writes, object) = (ours.lock().unwrap(), &line["object"]);
                let bytes = object.to_string().len();
                if line["type"] == "DELETED" {
                    writes.objects.remove(name_of(object));
                    return true;
                }
                writes.objects.insert(name_of(object).to_owned(), bytes);
                (writes.n, writes.bytes) = (writes.n + 1, writes.bytes + bytes);
                true
            });
        });
        writes
    }
}

impl Display for Writes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (mb, now) = (self.bytes as f64 / 1e6, self.objects.values().sum::<usize>());
        let n = self.objects.len();
        write!(f, "{} writes of {mb:.1} MB; {n} objects of {:.1} MB", self.n, now as f64 / 1e6)
    }
}

/// Adds the tasks by as few calls as possible.
fn add(control: &Control, tasks: &[Task]) -> u32 {
    let call = |bodies: &[String]| {
        let body = format!("{{\"executors\":[{}]}}", bodies.join(","));
        let (code, said) = control.try_call("POST", PATH, &body).unwrap();
        assert_eq!(code, 200, "{said}");
    };
    let (mut n_calls, mut n_bytes, mut bodies) = (1, 0, Vec::new());
    for task in tasks {
        let body = task.body().to_string();
        // With the comma; the frame of the call is smaller than one task.
        n_bytes += body.len() + 1;
        if n_bytes + body.len() > CALL_BYTES_MAX {
            call(&bodies);
            (n_calls, n_bytes) = (n_calls + 1, body.len() + 1);
            bodies.clear();
        }
        bodies.push(body);
    }
    call(&bodies);
    n_calls
}

/// Gives the memory when half of the tasks had ended.
fn wait_all_ended(posse: &Posse, n: u64) -> Memory {
    let control = posse.control();
    let (mut middle, mut before, mut changed) = (None, 0, Instant::now());
    loop {
        let group = control.group(GROUP).unwrap();
        let [open, ended] = ["open_tasks", "ended_tasks"].map(|name| group[name].as_u64().unwrap());
        assert_eq!(open + ended, n, "tasks are lost or doubled: {group}");
        if 2 * ended >= n {
            middle.get_or_insert_with(|| memory(posse.pid()));
        }
        if ended == n {
            return middle.unwrap();
        }
        if ended != before {
            (before, changed) = (ended, Instant::now());
        }
        assert!(changed.elapsed() < LIMIT, "no task ends any more: {group}");
        thread::sleep(STEP);
    }
}

/// A task, with the number that decides all about it.
#[derive(Clone, Copy)]
struct Task(u32);

/// How a task must end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    succeeds: bool,
    attempts: usize,
    /// Losses that the application has caused, and that the cluster has.
    by_app: usize,
    by_cluster: usize,
}

impl Task {
    fn new(number: u32) -> Self {
        Self(number)
    }

    fn of_key(key: &str) -> Option<Self> {
        key.strip_prefix("task-")?.parse().ok().map(Self)
    }

    fn key(self) -> String {
        format!("task-{}", self.0)
    }

    /// Each shape has other retries, so that some tasks fail.
    fn retries(self) -> u32 {
        self.0 % 3
    }

    fn body(self) -> Value {
        let number = self.0.to_string();
        let mut body = json!({"key": self.key(), "args": [number, ""], "retries": self.retries()});
        let shape = match self.0 % 3 {
            0 => json!({"cpu": "10m", "memory": "16Mi"}),
            1 => json!({"cpu": "20m", "memory": "32Mi", "env": {"MODE": "fast"}}),
            _ => json!({"image": "example.com/other:1", "command": ["other"], "memory": "64Mi"}),
        };
        body.as_object_mut().unwrap().extend(shape.as_object().unwrap().clone());
        let n_missing = TASK_BYTES.saturating_sub(body.to_string().len());
        body["args"][1] = "x".repeat(n_missing).into();
        body
    }

    /// How the executor of this attempt ends, beginning with 1.
    fn end(self, attempt: usize) -> End {
        let mut rng = Rng::new(u64::from(self.0) << 16 | attempt as u64);
        if !rng.chance(FAILURES_PERCENT) {
            return End::Exit(0);
        }
        let ends =
            [End::Exit(1), End::PodFailed("Evicted"), End::Disrupted("EvictionByEvictionAPI")];
        ends[usize::try_from(rng.below(ends.len() as u64)).unwrap()]
    }

    fn outcome(self) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            outcome.attempts += 1;
            match self.end(outcome.attempts) {
                End::Exit(0) => return Outcome { succeeds: true, ..outcome },
                End::Exit(_) => outcome.by_app += 1,
                End::Disrupted(_) | End::PodFailed(_) => outcome.by_cluster += 1,
                end @ (End::Killed | End::NotStarted | End::OomKilled) => {
                    panic!("no task has {end:?}")
                }
            }
            if outcome.by_app > self.retries() as usize {
                return outcome;
            }
        }
    }
}

/// The pods as the server tells of them, without a word of posse.
#[derive(Default)]
struct Pods {
    /// The uids of each task's pods, in the order of their creation.
    attempts: BTreeMap<String, Vec<String>>,
    /// Those that were told to end.
    told: BTreeSet<String>,
    /// Those that can run no longer.
    over: BTreeSet<String>,
    wrong: Vec<String>,
}

impl Pods {
    /// Follows the pods, and ends each that runs.
    fn follow(client: Client, node: &Arc<TestNode>) -> Arc<Mutex<Self>> {
        let (enders, ends) = sync_channel::<(String, End)>(LINES_MAX);
        let ends = Arc::new(Mutex::new(ends));
        for _ in 0..ENDERS {
            let (node, ends) = (Arc::clone(node), Arc::clone(&ends));
            thread::spawn(move || {
                while let Some((pod, end)) = next(&ends) {
                    node.end(&pod, end);
                }
            });
        }
        let pods = Arc::new(Mutex::new(Self::default()));
        let ours = Arc::clone(&pods);
        follow_pods(client, NAMESPACE, move |line| {
            let mut pods = ours.lock().unwrap();
            match line {
                Line::All(all) => pods.learn_all(&all, &enders),
                Line::One(pod) => pods.learn(&pod, &enders),
                Line::Gone(pod) => pods.end(uid_of(&pod)),
            }
        });
        pods
    }

    fn learn_all(&mut self, all: &[Value], enders: &SyncSender<(String, End)>) {
        let going: BTreeSet<&str> = all.iter().filter(|pod| !is_over(pod)).map(uid_of).collect();
        let known = self.attempts.values().flatten();
        self.over.extend(known.filter(|uid| !going.contains(uid.as_str())).cloned());
        all.iter().for_each(|pod| self.learn(pod, enders));
    }

    fn learn(&mut self, pod: &Value, enders: &SyncSender<(String, End)>) {
        let (uid, labels) = (uid_of(pod), &pod["metadata"]["labels"]);
        let key = labels["posse.dev/key"].as_str().unwrap_or_default();
        if name_of(pod) == DRIVER {
            return;
        }
        let Some(task) = Task::of_key(key) else {
            self.wrong.push(format!("pod {} is of no task", name_of(pod)));
            return;
        };
        let attempts = self.attempts.entry(key.to_owned()).or_default();
        if !attempts.iter().any(|one| one == uid) {
            if attempts.iter().any(|one| !self.over.contains(one)) {
                self.wrong
                    .push(format!("{key} has two pods at once, one of them {}", name_of(pod)));
            }
            attempts.push(uid.to_owned());
        }
        if is_over(pod) {
            self.end(uid);
        } else if pod["status"]["phase"] == "Running" && self.told.insert(uid.to_owned()) {
            let attempt = 1 + attempts.iter().position(|one| one == uid).unwrap();
            enders.send((name_of(pod).to_owned(), task.end(attempt))).unwrap();
        }
    }

    fn end(&mut self, uid: &str) {
        self.over.insert(uid.to_owned());
    }
}

fn next(ends: &Mutex<Receiver<(String, End)>>) -> Option<(String, End)> {
    ends.lock().unwrap().recv().ok()
}

/// The tasks as posse lists them, as its events tell of them, and as the server has seen their pods.
struct Account {
    tasks: Vec<Task>,
    listed: Value,
    events: Vec<Value>,
    pods: Arc<Mutex<Pods>>,
}

impl Account {
    fn report(&self) {
        let mut told = Told::after(0);
        self.events.iter().for_each(|event| told.learn(event));
        let pods = self.pods.lock().unwrap();
        let mut wrong = [told.missing.clone(), pods.wrong.clone()].concat();
        wrong.extend(told.ends().filter_map(|(_, end)| end.err()));
        wrong.extend(self.wrong_tasks(&pods));
        let sum = |n: fn(&Outcome) -> usize| -> usize {
            self.tasks.iter().map(|task| n(&task.outcome())).sum()
        };
        let n_succeeded = sum(|outcome| usize::from(outcome.succeeds));
        let counts = [
            ("executors requested", told.n_requested(), sum(|outcome| outcome.attempts)),
            ("pods", pods.attempts.values().map(Vec::len).sum(), sum(|outcome| outcome.attempts)),
            ("executors completed", self.n_events("executor_completed", None), n_succeeded),
            (
                "lost by the application",
                self.n_events("executor_lost", Some(true)),
                sum(|outcome| outcome.by_app),
            ),
            (
                "lost by the cluster",
                self.n_events("executor_lost", Some(false)),
                sum(|outcome| outcome.by_cluster),
            ),
        ];
        for (what, n, wanted) in counts {
            if n != wanted {
                wrong.push(format!("{what}: {n}, and {wanted} is right"));
            }
        }
        assert!(
            wrong.is_empty(),
            "{} are wrong: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(20)]
        );
        println!(
            "{n_succeeded} tasks succeeded and {} failed, each as it should, and told once; {counts:?}; {:?}",
            self.tasks.len() - n_succeeded,
            told.kinds(),
        );
    }

    /// What posse's list and its events say of each task, against what must be.
    fn wrong_tasks(&self, pods: &Pods) -> Vec<String> {
        let mut told: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
        for event in self.events.iter().filter(|event| event["event"] == "task_ended") {
            told.entry(event["key"].as_str().unwrap()).or_default().push(event);
        }
        let listed = self.listed["executors"].as_array().unwrap();
        let listed: BTreeMap<&str, &Value> =
            listed.iter().map(|task| (task["key"].as_str().unwrap(), task)).collect();
        let n_strangers = listed.len().max(told.len()).saturating_sub(self.tasks.len());
        let mut wrong = Vec::new();
        if n_strangers > 0 {
            wrong.push(format!("{n_strangers} tasks were never added"));
        }
        for task in &self.tasks {
            let (key, outcome) = (task.key(), task.outcome());
            let state = if outcome.succeeds { "succeeded" } else { "failed" };
            let exit_code = u8::from(!outcome.succeeds);
            let is_right = |word: &str, said: &Value| {
                said[word] == state
                    && said["exit_code"] == exit_code
                    && said["attempts"] == outcome.attempts
            };
            let in_list = listed.get(key.as_str()).is_some_and(|said| is_right("state", said));
            let events = told.get(key.as_str()).map_or(&[][..], Vec::as_slice);
            let in_events = matches!(events, [said] if is_right("outcome", said));
            let n_pods = pods.attempts.get(&key).map_or(0, Vec::len);
            if !in_list || !in_events || n_pods != outcome.attempts {
                let listed = listed.get(key.as_str());
                wrong.push(format!(
                    "{key}: {outcome:?}, but listed as {listed:?}, events {events:?}, {n_pods} pods"
                ));
            }
        }
        wrong
    }

    fn n_events(&self, kind: &str, by_app: Option<bool>) -> usize {
        let fits = |event: &&Value| {
            event["event"] == kind && by_app.is_none_or(|by_app| event["caused_by_app"] == by_app)
        };
        self.events.iter().filter(fits).count()
    }
}
