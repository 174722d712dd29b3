//! An application that asks for executors as the Spark adapter does: targets from 10 to 2,000 and back, while 5 % of
//! the executors are lost each minute. The driver is scripted and makes the adapter's calls; the executors are hollow:
//! pods of a real API server that a test program binds, starts and ends, and that register with the driver when they
//! run. It stops if a word between driver and posse is lost: each executor's end must be told once, and driver, posse
//! and server must count the same. `KUBEBUILDER_ASSETS=... cargo bench --bench hollow [-- EXECUTORS CYCLES SECONDS]`;
//! SECONDS is how long each target is held.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "figures/told.rs"]
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use figures::{assets, cpu, memory, quantile};
use posse_base::rng::Rng;
use serde_json::{Value, json};
use support::control::Control;
use support::http::Client;
use support::node::{Line, TestNode};
use support::posse::{Posse, Run};
use support::real::Real;
use support::scene::TempDir;
use support::server::{End, Node as _, Server as _, Who, items, pods_path};
use told::{Told, follow_pods};

const EXECUTORS: u32 = 2_000;
const CYCLES: u32 = 10;
const HOLD_S: u32 = 20;
/// The lower target.
const FEW: u32 = 10;
/// How many of the executors are lost in a minute.
const LOST_A_MINUTE: f64 = 0.05;
const LIMIT: Duration = Duration::from_secs(900);
/// How often the driver looks.
const STEP: Duration = Duration::from_millis(100);
const NAMESPACE: &str = "hollow";
/// The adapter names a group after the resource profile.
const GROUP: &str = "0";

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let many = numbers.next().unwrap_or(EXECUTORS);
    let cycles = numbers.next().unwrap_or(CYCLES);
    let hold = Duration::from_secs(numbers.next().unwrap_or(HOLD_S).into());
    let real = Real::start(&assets, false);
    let dir = TempDir::new("hollow");
    real.open_namespace(NAMESPACE);
    std::fs::write(dir.path().join("pod.json"), template().to_string()).unwrap();
    let node = TestNode::start(&real.access(Who::Node), NAMESPACE);
    let run = Run::new(dir.path(), NAMESPACE, &real.access(Who::Posse));
    // As with the adapter Spark's own limits are what counts. Kept pods would hide that one is left.
    let run = run.settings(json!({"failures": {"app": "off", "cluster": "off", "start": "off",
        "keep_failed": 0}}));
    let posse = run.env("POSSE_LOG", "warn").start();
    posse.wait_ready();
    let pods = Pods::follow(Client::new(&real.access(Who::Admin), "test-hollow"));
    let mut driver = Driver::start(posse.control(), node, pods);

    let (mut ups, mut downs) = (Vec::new(), Vec::new());
    println!("{} at the start", cost(&posse));
    for cycle in 1..=cycles {
        let (begun, used) = (Instant::now(), cpu(posse.pid()));
        ups.push(driver.go_to(many));
        driver.hold(hold);
        let high = cost(&posse);
        downs.push(driver.go_to(FEW));
        driver.hold(hold);
        println!(
            "cycle {cycle}: up {:.0} s, down {:.0} s; {high} with {many}, {} with {FEW}; {} lost and {} removed by the driver so far; {:.1} s of processor time in {:.0} s",
            ups.last().unwrap(),
            downs.last().unwrap(),
            cost(&posse),
            driver.by_node.len(),
            driver.by_driver.len(),
            (cpu(posse.pid()) - used).as_secs_f64(),
            begun.elapsed().as_secs_f64(),
        );
    }
    driver.end();
    posse.stop();
    let left = items(&real.client(Who::Admin, "test-admin").get(&pods_path(NAMESPACE)).ok());
    assert!(left.is_empty(), "{} pods are left", left.len());
    for (what, times) in [("up", &mut ups), ("down", &mut downs)] {
        let (least, most) = (quantile(times, 0), quantile(times, 100));
        println!("{what}: median {:.1} s, {least:.1} .. {most:.1}", quantile(times, 50));
    }
    driver.report();
    ExitCode::SUCCESS
}

/// The pod that the adapter makes of Spark's: the executor learns its id.
fn template() -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"labels": {"spark-role": "executor", "spark-exec-id": "{{EXECUTOR_ID}}"}},
        "spec": {"restartPolicy": "Never", "containers": [{
            "name": "spark-kubernetes-executor", "image": "example.com/spark:1", "args": ["executor"],
            "env": [{"name": "SPARK_EXECUTOR_ID", "value": "{{EXECUTOR_ID}}"}],
            "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}}}]}})
}

/// What grows if something leaks.
fn cost(posse: &Posse) -> String {
    let n = |folder: &str| {
        std::fs::read_dir(format!("/proc/{}/{folder}", posse.pid())).map_or(0, Iterator::count)
    };
    let memory = memory(posse.pid());
    format!("RSS {:.1} MB, {} threads, {} files", memory.rss_kb as f64 / 1e3, n("task"), n("fd"))
}

/// The hollow executors: what their pods say, without a word of posse.
#[derive(Default)]
struct Pods {
    /// The pods that exist, by uid, with the executor's id.
    there: BTreeMap<String, (u64, String)>,
    /// The executors that run, with their pods.
    running: BTreeMap<u64, String>,
    /// Each executor that ever registered, with its pod's uid.
    registered: BTreeMap<u64, String>,
    wrong: Vec<String>,
}

impl Pods {
    fn follow(client: Client) -> Arc<Mutex<Self>> {
        let pods = Arc::new(Mutex::new(Self::default()));
        let ours = Arc::clone(&pods);
        follow_pods(client, NAMESPACE, move |line| {
            let mut pods = ours.lock().unwrap();
            match line {
                Line::All(all) => {
                    (pods.there, pods.running) = Default::default();
                    all.iter().for_each(|pod| pods.learn(pod, false));
                }
                Line::One(pod) => pods.learn(&pod, false),
                Line::Gone(pod) => pods.learn(&pod, true),
            }
        });
        pods
    }

    fn learn(&mut self, pod: &Value, is_gone: bool) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (uid, name) = (text(&pod["metadata"]["uid"]), text(&pod["metadata"]["name"]));
        let env = pod["spec"]["containers"][0]["env"].as_array().unwrap();
        let id = env.iter().find(|one| one["name"] == "SPARK_EXECUTOR_ID").unwrap();
        let id = text(&id["value"]).parse().unwrap();
        let runs = !is_gone
            && pod["status"]["phase"] == "Running"
            && pod["metadata"]["deletionTimestamp"].is_null();
        if is_gone {
            self.there.remove(&uid);
        } else {
            self.there.insert(uid.clone(), (id, name.clone()));
        }
        if !runs {
            self.running.remove(&id);
            return;
        }
        self.running.insert(id, name);
        let before = self.registered.insert(id, uid.clone());
        if before.as_ref().is_some_and(|before| *before != uid) {
            self.wrong.push(format!("executor {id} registers again, from another pod"));
        }
    }
}

/// The scripted driver: what `adapters/spark` does for Spark.
struct Driver {
    control: Control,
    node: TestNode,
    pods: Arc<Mutex<Pods>>,
    told: Arc<Mutex<Told>>,
    target: u32,
    /// The executors that the node ended, and those that the driver removed.
    by_node: BTreeSet<u64>,
    by_driver: BTreeSet<u64>,
    rng: Rng,
    lost_at: Instant,
    losses_due: f64,
}

impl Driver {
    /// As `Link.start`: the status, the newest event, the group without executors, then the events.
    fn start(control: Control, node: TestNode, pods: Arc<Mutex<Pods>>) -> Self {
        let status = control.status();
        let events = control.try_call("GET", "/v1/events", "").unwrap().1;
        let newest = events.lines().last().and_then(|line| serde_json::from_str(line).ok());
        let seq = newest.and_then(|event: Value| event["seq"].as_u64()).unwrap_or(0);
        let body = json!({"template": template(), "container": "spark-kubernetes-executor",
            "scale_down": "pending", "target": 0});
        control.put(GROUP, &body).ok();
        let told = Arc::new(Mutex::new(Told::after(seq)));
        let run = status["run"].as_str().unwrap();
        let mut stream = control.connect().unwrap();
        let path = format!("/v1/events?follow=true&run={run}&after={seq}");
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let ours = Arc::clone(&told);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                // The head, and the empty lines by which a stream shows that it lives, are no events.
                if let Ok(event) = serde_json::from_str(&line) {
                    ours.lock().unwrap().learn(&event);
                }
            }
        });
        Self {
            control,
            node,
            pods,
            told,
            target: 0,
            by_node: BTreeSet::new(),
            by_driver: BTreeSet::new(),
            rng: Rng::new(1),
            lost_at: Instant::now(),
            losses_due: 0.0,
        }
    }

    /// Sets the target, and waits until driver, posse and server agree on it. Gives the seconds.
    fn go_to(&mut self, target: u32) -> f64 {
        let begun = Instant::now();
        self.target = target;
        self.control.put(GROUP, &json!({"target": target})).ok();
        loop {
            self.turn();
            let state = self.state();
            if state.is_at(target) {
                return begun.elapsed().as_secs_f64();
            }
            assert!(begun.elapsed() < LIMIT, "target {target} is not reached: {state:?}");
            thread::sleep(STEP);
        }
    }

    fn hold(&mut self, time: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < time {
            self.turn();
            thread::sleep(STEP);
        }
    }

    /// Losses that are due, and executors that Spark removes because it wants fewer.
    fn turn(&mut self) {
        let running = self.running();
        self.losses_due +=
            running.len() as f64 * LOST_A_MINUTE * self.lost_at.elapsed().as_secs_f64() / 60.0;
        self.lost_at = Instant::now();
        while self.losses_due >= 1.0 {
            self.losses_due -= 1.0;
            self.lose_one();
        }
        // Those that wait for a successor are not running, so nobody is removed for them.
        let running = self.running();
        let n_more = running.len().saturating_sub(self.target as usize);
        if n_more > 0 {
            let removed: Vec<u64> = running.keys().copied().take(n_more).collect();
            self.remove(&removed);
        }
    }

    /// The executors that run, and that neither the node nor the driver has ended.
    fn running(&self) -> BTreeMap<u64, String> {
        let mut running = self.pods.lock().unwrap().running.clone();
        running.retain(|id, _| !self.by_node.contains(id) && !self.by_driver.contains(id));
        running
    }

    /// Ends a random executor, each time in another way.
    fn lose_one(&mut self) {
        let running = self.running();
        let n = usize::try_from(self.rng.below(running.len() as u64)).unwrap();
        let Some((id, pod)) = running.iter().nth(n) else { return };
        let ends = [
            End::Exit(1),
            End::Killed,
            End::PodFailed("Evicted"),
            End::Disrupted("EvictionByEvictionAPI"),
        ];
        match ends.get((self.by_node.len() + self.by_driver.len()) % (ends.len() + 1)) {
            Some(end) => {
                self.by_node.insert(*id);
                self.node.end(pod, *end);
            }
            // Spark misses its heartbeats.
            None => self.remove(&[*id]),
        }
    }

    /// As `Link.kill`.
    fn remove(&mut self, executors: &[u64]) {
        self.by_driver.extend(executors);
        let body = json!({"executors": executors, "replace": true, "force": true,
            "reason": "Spark removed it"});
        self.control.call("POST", "/v1/executors/kill", &body).ok();
    }

    fn state(&self) -> State {
        let group = self.control.group(GROUP).unwrap();
        let n = |name: &str| group[name].as_u64().unwrap_or(u64::MAX);
        let n_pods = self.pods.lock().unwrap().there.len();
        State {
            registered: self.running().len(),
            pods: n_pods,
            target: n("target"),
            running: n("running"),
            others: n("requested") + n("pending"),
        }
    }

    /// Deletes the group, as `Link.end`, and waits until all executors have gone.
    fn end(&mut self) {
        self.control.delete(GROUP).ok();
        let begun = Instant::now();
        while !self.pods.lock().unwrap().there.is_empty() {
            assert!(begun.elapsed() < LIMIT, "pods are left after the end of the group");
            thread::sleep(STEP);
        }
        // The word of the last one's end may follow.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(10) && self.wrong().0 > 0 {
            thread::sleep(STEP);
        }
    }

    /// How many executors have no end yet, and what is wrong.
    fn wrong(&self) -> (usize, Vec<String>) {
        let (told, pods) = (self.told.lock().unwrap(), self.pods.lock().unwrap());
        let mut wrong = [told.missing.clone(), pods.wrong.clone()].concat();
        for (id, end) in told.ends() {
            let end = match end {
                Ok(end) => end,
                Err(what) => {
                    wrong.push(what);
                    continue;
                }
            };
            let is_lost = end.starts_with("executor_lost");
            if self.by_node.contains(&id) && !is_lost {
                wrong.push(format!("executor {id}, which its node ended: {end}"));
            }
            if is_lost && !self.by_node.contains(&id) && !self.by_driver.contains(&id) {
                wrong.push(format!("executor {id}, which nobody ended: {end}"));
            }
        }
        let strangers = pods.registered.keys().filter(|id| !told.has_requested(**id));
        wrong.extend(strangers.map(|id| format!("executor {id} was never requested")));
        (told.n_open(), wrong)
    }

    fn report(&self) {
        let (n_open, wrong) = self.wrong();
        assert!(
            wrong.is_empty(),
            "{} are wrong, {n_open} without an end: {:#?}",
            wrong.len(),
            &wrong[..wrong.len().min(20)]
        );
        let (told, pods) = (self.told.lock().unwrap(), self.pods.lock().unwrap());
        println!(
            "{} executors requested, {} registered; each end was told once: {:?}",
            told.n_requested(),
            pods.registered.len(),
            told.kinds()
        );
    }
}

/// The same thing as the driver, the server and posse count it.
#[derive(Debug)]
struct State {
    registered: usize,
    pods: usize,
    target: u64,
    running: u64,
    /// Requested and pending.
    others: u64,
}

impl State {
    fn is_at(&self, target: u32) -> bool {
        let n = u64::from(target);
        let counts = [self.registered as u64, self.pods as u64, self.target, self.running];
        counts == [n; 4] && self.others == 0
    }
}
