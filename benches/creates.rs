//! Executors made against a real kube-apiserver, next to a bare loop of parallel POSTs of the same
//! body by the same user; memory, calls, and how soon a failed executor is replaced.
//! `KUBEBUILDER_ASSETS=... cargo bench --bench creates`. Times are the server's, of its audit log.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use figures::{assets, cpu_of_threads, memory, quantile, spread, wait_running};
use serde_json::{Value, json};
use support::audit::{by_posse, requests, tally};
use support::http::Client;
use support::node::TestNode;
use support::posse::{Posse, Run, said};
use support::real::Real;
use support::scene::TempDir;
use support::server::{End, Node as _, Server as _, Who, pods_path};
use support::wait::wait_value;

const ROUNDS: usize = 5;
const EXECUTORS: u32 = 1_000;
const CONNECTIONS: u32 = 32;
const FAILURES: usize = 200;
const STARTS: usize = 20;
const LIMIT: Duration = Duration::from_secs(300);
const SETTLE: Duration = Duration::from_secs(2);
const BARE: &str = "test-bare";

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let bench = Bench { real: Real::start(&assets, false), dir: TempDir::new("bench") };
    bench.prepare();
    // `cargo bench --bench creates -- failures` measures that part alone.
    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    let is_asked = |name| part.as_deref().is_none_or(|part| part == name);
    if is_asked("rates") {
        bench.rates();
    }
    if is_asked("starts") {
        bench.starts();
    }
    if is_asked("failures") {
        bench.memory_and_failures();
    }
    ExitCode::SUCCESS
}

struct Bench {
    real: Real,
    dir: TempDir,
}

impl Bench {
    fn prepare(&self) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{
            "name": "worker", "image": "example.com/worker:1",
            "command": ["worker", "--driver", "{{DRIVER_HOST}}"],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}});
        std::fs::write(self.dir.path().join("pod.json"), pod.to_string()).unwrap();
    }

    fn log(&self) -> PathBuf {
        self.real.audit_log().unwrap()
    }

    fn run(&self, namespace: &str, n: u32) -> Run {
        Run::new(self.dir.path(), namespace, &self.real.access(Who::Posse))
            .executors(n)
            .settings(json!({"failures": {"app": "off"}, "driver": {"host": "127.0.0.1"}}))
            .env("POSSE_LOG", "info")
    }

    /// Both in turn, so that a busy machine is busy for both.
    fn rates(&self) {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let (posse, bare) = (format!("posse-{round}"), format!("bare-{round}"));
            self.by_posse(&posse, EXECUTORS);
            self.by_bare_loop(&bare);
            let (a, b) = (rate(&self.log(), &posse), rate(&self.log(), &bare));
            println!("  round {round}: posse {a:.0}/s, bare loop {b:.0}/s, {:.3}", a / b);
            // The first one warms the server up.
            if round > 0 {
                ours.push(a);
                theirs.push(b);
                ratios.push(a / b);
            }
        }
        println!("creates/s of {EXECUTORS}: posse {}", spread(&mut ours));
        println!("creates/s of {EXECUTORS}: bare loop {}", spread(&mut theirs));
        println!("ratio: {:.3}", quantile(&mut ratios, 50));
        println!("calls for {EXECUTORS} executors: {:?}", tally(&self.log(), "posse-1"));
    }

    /// From the start of the process to the arrival of its first POST.
    fn starts(&self) {
        let (mut starts, mut own, mut cpus) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..=STARTS {
            let (start, own_part, cpu) = self.by_posse(&format!("start-{round}"), 1);
            if round > 0 {
                starts.push(start);
                own.push(own_part);
                cpus.push(cpu);
            }
        }
        let told = |values: &mut [f64]| {
            let [least, median, most] = [0, 50, 100].map(|percent| quantile(values, percent));
            format!("{median:.1} ms ({least:.1} .. {most:.1})")
        };
        println!("start to first POST, {STARTS} times: {}", told(&mut starts));
        println!("of it between the server's answers: {}", told(&mut own));
        println!("processor time until the pod was created: {}", told(&mut cpus));
    }

    /// Milliseconds from the start to the first POST; the same without the time in which the server had a
    /// request of ours; and the processor time until all are created.
    fn by_posse(&self, namespace: &str, n: u32) -> (f64, f64, f64) {
        self.real.open_namespace(namespace);
        let begun = now_us();
        let posse = self.run(namespace, n).start();
        self.wait_created(namespace, n as usize);
        let cpu = cpu_of_threads(posse.pid());
        self.clear(namespace, posse);
        let requests = requests(&self.log(), namespace);
        let ours: Vec<&Value> = requests.iter().filter(|entry| by_posse(entry)).collect();
        let first = ours.iter().filter(|e| is_create(e)).map(|e| arrival_us(e)).min().unwrap();
        let before = ours.iter().filter(|e| answer_us(e) <= first && e["verb"] != "watch");
        let servers: i64 = before.map(|e| answer_us(e) - arrival_us(e)).sum();
        let ms = |us: i64| us as f64 / 1e3;
        (ms(first - begun), ms(first - begun - servers), cpu.as_secs_f64() * 1e3)
    }

    fn by_bare_loop(&self, namespace: &str) {
        self.real.open_namespace(namespace);
        let output = self.run(namespace, 1).once(&["render", "--output", "json"]);
        assert!(output.status.success(), "{}", said(&output));
        let list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut pod = list["items"][0].clone();
        pod["metadata"]["namespace"] = namespace.into();
        let next = AtomicU32::new(1);
        let path = format!("{}?fieldManager=posse", pods_path(namespace));
        let headers = [("content-type".to_owned(), "application/json".to_owned())];
        thread::scope(|scope| {
            for _ in 0..CONNECTIONS {
                scope.spawn(|| {
                    let client = Client::new(&self.real.access(Who::Posse), BARE);
                    let mut pod = pod.clone();
                    loop {
                        let id = next.fetch_add(1, Ordering::Relaxed);
                        if id > EXECUTORS {
                            return;
                        }
                        pod["metadata"]["name"] = format!("shop-xxxxx-exec-{id}").into();
                        let body = pod.to_string();
                        let answer =
                            client.raw("POST", &path, &headers, body.as_bytes(), None).unwrap();
                        assert_eq!(answer.status(), 201);
                        answer.into_body().read_to_vec().unwrap();
                    }
                });
            }
        });
        self.delete_all(namespace);
    }

    fn wait_created(&self, namespace: &str, n: usize) {
        wait_value(LIMIT, "all to be created", || {
            let n_created = creates(&self.log(), namespace).len();
            if n_created >= n { Ok(()) } else { Err(n_created) }
        });
    }

    /// Ends a run and what it made, with nothing of it in the next one's time.
    fn clear(&self, namespace: &str, posse: Posse) {
        posse.kill();
        self.delete_all(namespace);
    }

    fn delete_all(&self, namespace: &str) {
        let admin = Client::new(&self.real.access(Who::Admin), "test-admin");
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
        admin.delete(&pods_path(namespace), &options).ok();
    }

    fn memory_and_failures(&self) {
        let namespace = "failures";
        self.real.open_namespace(namespace);
        let node = TestNode::start(&self.real.access(Who::Node), namespace);
        let posse = self.run(namespace, 100).start();
        posse.wait_ready();
        for n in [100, EXECUTORS] {
            posse.scale("default", n);
            // The memory of the last answers is given back after that, or never.
            wait_running(&posse, n, SETTLE, LIMIT);
            thread::sleep(SETTLE);
            println!("{n} running executors: {}", memory(posse.pid()));
        }
        let mut delays: Vec<f64> = (1..=FAILURES).map(|i| self.fail(&node, &posse, i)).collect();
        let text = |ms: f64| format!("{ms:.1} ms");
        println!(
            "failed pod -> replacement's POST at the server, {FAILURES} times: p50 {}, p99 {}",
            text(quantile(&mut delays, 50)),
            text(quantile(&mut delays, 99)),
        );
        println!("after them: {}", memory(posse.pid()));
        self.clear(namespace, posse);
    }

    /// Milliseconds from the server's answer to the status patch to the arrival of the create.
    fn fail(&self, node: &TestNode, posse: &Posse, i: usize) -> f64 {
        let name = posse.status()["executors"][i]["pod"].as_str().unwrap().to_owned();
        let n_before = creates(&self.log(), "failures").len();
        node.end(&name, End::Exit(1));
        self.wait_created("failures", n_before + 1);
        let all = requests(&self.log(), "failures");
        let patched = all.iter().rfind(|entry| {
            entry["objectRef"]["subresource"] == "status" && entry["objectRef"]["name"] == *name
        });
        let created = creates(&self.log(), "failures").into_iter().max().unwrap();
        (created - answer_us(patched.unwrap())) as f64 / 1e3
    }
}

/// When the successful creates of pods arrived, and when the last was answered: creates a second.
fn rate(log: &Path, namespace: &str) -> f64 {
    let all = requests(log, namespace);
    let creates: Vec<&Value> = all.iter().filter(|entry| is_create(entry)).collect();
    let first = creates.iter().map(|e| arrival_us(e)).min().unwrap();
    let last = creates.iter().map(|e| answer_us(e)).max().unwrap();
    creates.len() as f64 / ((last - first) as f64 / 1e6)
}

/// The arrivals of the successful creates.
fn creates(log: &Path, namespace: &str) -> Vec<i64> {
    requests(log, namespace).iter().filter(|e| is_create(e)).map(arrival_us).collect()
}

fn is_create(entry: &Value) -> bool {
    entry["verb"] == "create"
        && entry["objectRef"]["resource"] == "pods"
        && entry["objectRef"]["subresource"].is_null()
        && entry["responseStatus"]["code"] == 201
}

fn arrival_us(entry: &Value) -> i64 {
    time_us(&entry["requestReceivedTimestamp"])
}

fn answer_us(entry: &Value) -> i64 {
    time_us(&entry["stageTimestamp"])
}

fn time_us(text: &Value) -> i64 {
    let time: jiff::Timestamp = text.as_str().unwrap().parse().unwrap();
    time.as_microsecond()
}

fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}
