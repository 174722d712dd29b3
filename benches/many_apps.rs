//! What many applications cost one real API server, and then Jobs of the same size: calls, bytes and processor time while
//! they start, at rest, while all applications restart at once, while the server itself restarts, and while 1 % of the
//! executors that run fail in each second. `KUBEBUILDER_ASSETS=... cargo bench --bench many_apps
//! [-- APPLICATIONS MINUTES EXECUTORS NODES]`. A real scheduler binds the pods, and a test program plays the kubelets of
//! all nodes. Neither the scheduler nor the controller of Jobs has its usual limit of calls. Calls are those of the
//! server's audit log, where a watch counts when it begins (before 1.21: ends). Bytes are those of the connections, with TLS.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "figures/audit.rs"]
mod audit_log;
mod figures;
#[path = "figures/relay.rs"]
mod relay;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::process::ExitCode;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use audit_log::{AuditLog, Entry};
use figures::{assets, cpu, memory, spread};
use relay::{Relay, Traffic};
use rustix::process::Signal;
use serde_json::{Value, json};
use support::access::Access;
use support::http::Client;
use support::node::{HANDS, TestNode};
use support::posse::{Posse, Run, command, said};
use support::real::Real;
use support::reaper::Guarded;
use support::scene::TempDir;
use support::server::{End, Node as _, Server as _, Who};
use support::wait::{PATIENCE, wait_value};

const APPLICATIONS: u32 = 300;
/// How long they are watched at rest, in minutes.
const MINUTES: u32 = 5;
const EXECUTORS: u32 = 10;
const NODES: u32 = 500;
/// How many start at once at first: their executors cost much more than they.
const WAVE: u32 = 25;
const LIMIT: Duration = Duration::from_secs(1_200);
/// The metrics of a server have some megabytes.
const METRICS_BYTES_MAX: u64 = 64 << 20;
const NAMESPACE: &str = "many";
/// How often `posse apps` is called, and how many readers its page has for how long.
const LOOKS: usize = 5;
const READERS: usize = 20;
const READ: Duration = Duration::from_secs(30);
const READ_PAUSE: Duration = Duration::from_secs(5);
/// How long the server is away when it restarts.
const AWAY: Duration = Duration::from_secs(5);
/// How many of the executors that run fail in a second, and how long.
const LOST_A_SECOND: f64 = 0.01;
const CHURN: Duration = Duration::from_secs(120);
const CHURN_STEP: Duration = Duration::from_millis(100);
const UNLIMITED: [&str; 2] = ["--kube-api-qps=10000", "--kube-api-burst=10000"];

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let mut number = |default| numbers.next().unwrap_or(default);
    let (n, minutes, executors) = (number(APPLICATIONS), number(MINUTES), number(EXECUTORS));
    let mut bench = Bench::new(Real::start_audited(&assets), n, executors, number(NODES));
    let rest = Duration::from_secs(60) * minutes;

    let before = bench.counts(&[]);
    let apps = bench.start(WAVE);
    bench.print("start", &before, &pids(&apps));
    bench.stay("rest", rest, &pids(&apps));
    bench.look();

    let before = bench.counts(&[]);
    // As when their node, or all of them, get a new version: nobody says goodbye.
    apps.into_iter().for_each(Posse::kill);
    let apps = bench.start(n);
    bench.print("restart of all at once", &before, &pids(&apps));
    bench.restart_server(&pids(&apps));
    bench.churn(&pids(&apps));
    bench.end(apps);

    let before = bench.counts(&[]);
    let jobs = bench.start_jobs();
    bench.print("start", &before, &[jobs.pid()]);
    bench.stay("rest", rest, &[jobs.pid()]);
    bench.restart_server(&[jobs.pid()]);
    bench.churn(&[jobs.pid()]);
    ExitCode::SUCCESS
}

fn pids(apps: &[Posse]) -> Vec<u32> {
    apps.iter().map(Posse::pid).collect()
}

/// What an executor runs.
fn spec() -> Value {
    json!({"restartPolicy": "Never", "containers": [
        {"name": "worker", "image": "example.com/worker:1", "command": ["worker"],
         "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}]})
}

/// Reads the page's state for a while, as an open page does. Gives the milliseconds that each answer took.
fn read_page(browser: Client) -> JoinHandle<Vec<f64>> {
    thread::spawn(move || {
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < READ {
            let asked = Instant::now();
            browser.get("/v1/apps").ok();
            times.push(asked.elapsed().as_secs_f64() * 1e3);
            thread::sleep(READ_PAUSE);
        }
        times
    })
}

struct Bench {
    node: TestNode,
    scheduler: Guarded,
    real: Real,
    log: AuditLog,
    dir: TempDir,
    /// Whose calls and bytes are counted: by the user agent, and the relay that they go through.
    who: &'static str,
    relay: Relay,
    n: u32,
    executors: u32,
    /// The pods that run, in the order in which they began, and those that were ended.
    running: VecDeque<String>,
    ended: BTreeSet<String>,
    /// How much of the log they are made of.
    n_learnt: usize,
}

/// What has been counted so far.
struct Counts {
    n_entries: usize,
    traffic: Traffic,
    /// The server's process and its processor time: one that was started again counts from 0.
    pid: u32,
    server: Duration,
    scheduler: Duration,
    ours: Duration,
    at: Instant,
}

impl Bench {
    fn new(real: Real, n: u32, executors: u32, nodes: u32) -> Self {
        let dir = TempDir::new("many");
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec()});
        std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
        real.open_namespace(NAMESPACE);
        let admin = real.client(Who::Admin, "test-admin");
        let room = json!({"cpu": "16", "memory": "64Gi", "pods": "110"});
        for i in 0..nodes {
            let name = format!("hollow-{i}");
            let body = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
                "status": {"capacity": room, "allocatable": room,
                           "conditions": [{"type": "Ready", "status": "True"}]}});
            admin.post("/api/v1/nodes", &body).ok();
            // The server gives each new node the taint of one that is not ready.
            let ready = json!({"spec": {"taints": null}});
            admin.merge_patch(&format!("/api/v1/nodes/{name}"), &ready).ok();
        }
        let access = real.access(Who::Admin);
        Self {
            node: TestNode::kubelet(&real.access(Who::Node), NAMESPACE),
            scheduler: real.spawn_component("kube-scheduler", &access, &UNLIMITED).unwrap(),
            log: AuditLog::open(&real.audit_log().unwrap()),
            dir,
            who: "posse",
            relay: Relay::start(&access.url),
            real,
            n,
            executors,
            running: VecDeque::new(),
            ended: BTreeSet::new(),
            n_learnt: 0,
        }
    }

    fn access(&self, who: Who) -> Access {
        Access { url: self.relay.url(), ..self.real.access(who) }
    }

    /// Starts all applications, so many at once, and waits until each of them knows its executors. One that the server
    /// does not let begin is started again, as its kubelet would.
    fn start(&self, n_at_once: u32) -> Vec<Posse> {
        let (mut apps, mut n_again) = (Vec::new(), 0);
        for first in (0..self.n).step_by(n_at_once as usize) {
            let mut wave: Vec<Posse> =
                (first..self.n.min(first + n_at_once)).map(|i| self.run(i)).collect();
            for (i, posse) in (first..).zip(&mut wave) {
                wait_value(LIMIT, "the executors of an application", || {
                    if posse.is_over() {
                        *posse = self.run(i);
                        n_again += 1;
                    }
                    let body = match posse.control().try_call("GET", "/v1/status", "") {
                        Ok((200, body)) => body,
                        Ok((code, body)) => return Err(format!("{code}: {body}")),
                        Err(error) => return Err(error.to_string()),
                    };
                    let status: Value = serde_json::from_str(&body).unwrap();
                    let running = &status["groups"][0]["running"];
                    if *running == self.executors { Ok(()) } else { Err(running.to_string()) }
                });
            }
            apps.extend(wave);
        }
        println!("{n_again} were not let begin by the server, and were started again");
        apps
    }

    fn run(&self, i: u32) -> Posse {
        let settings = json!({"app": format!("app-{i}"), "failures": {"app": "off"},
            "shutdown": {"timeout": "10m"}});
        let access = self.access(Who::Posse);
        let run = Run::new(self.dir.path(), NAMESPACE, &access).executors(self.executors);
        let posse = run.settings(settings).instance("many").env("POSSE_LOG", "warn").start();
        posse.may_end();
        posse
    }

    /// `posse apps` a few times, and its page with some readers.
    fn look(&mut self) {
        let kubeconfig = self.dir.path().join("admin.kubeconfig");
        std::fs::write(&kubeconfig, self.access(Who::Admin).kubeconfig(NAMESPACE)).unwrap();
        // Runs on this host are asked by their sockets, and count for nothing here: the folder is another one.
        let dir = TempDir::new("look");
        let mut times = Vec::new();
        for _ in 0..LOOKS {
            let begun = Instant::now();
            let mut apps = command(dir.path());
            apps.args(["apps", "-o", "json", "--kubeconfig"]).arg(&kubeconfig);
            let output = apps.output().unwrap();
            assert!(output.status.success(), "{}", said(&output));
            times.push(begun.elapsed().as_secs_f64() * 1e3);
            let listed: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
            // Others may run on this host.
            let ours = listed.iter().filter(|app| app["namespace"] == NAMESPACE);
            assert_eq!(ours.count(), self.n as usize);
        }
        println!("posse apps: {} ms", spread(&mut times));
        let printed = dir.path().join("printed");
        let mut page = command(dir.path());
        page.args(["apps", "--page", "--kubeconfig"]).arg(&kubeconfig);
        let page = Guarded::spawn(page.stdout(File::create(&printed).unwrap())).unwrap();
        let address = wait_value(PATIENCE, "the page's address", || {
            let text = std::fs::read_to_string(&printed).unwrap();
            text.strip_suffix('\n').map(str::to_owned).ok_or(text)
        });
        let (url, token) = address.split_once("/#token=").unwrap();
        let (url, token) = (url.to_owned(), Some(token.to_owned()));
        let browser = Client::new(&Access { url, token, ..Access::default() }, "test-browser");
        let before = self.counts(&[]);
        let readers: Vec<_> = (0..READERS).map(|_| browser.clone()).map(read_page).collect();
        let mut times: Vec<f64> =
            readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        self.print("the page's readers", &before, &[]);
        let bytes = browser.get("/v1/apps").ok().to_string().len();
        println!(
            "  the page: {} answers of {bytes} bytes, {} ms; {}, {:.2} s of processor time",
            times.len(),
            spread(&mut times),
            memory(page.pid()),
            cpu(page.pid()).as_secs_f64()
        );
    }

    fn stay(&mut self, what: &str, time: Duration, pids: &[u32]) {
        let before = self.counts(pids);
        thread::sleep(time);
        self.print(what, &before, pids);
    }

    /// Restarts the server, and waits until it has as many watches as before.
    fn restart_server(&mut self, pids: &[u32]) {
        let n_before = self.n_watches();
        let before = self.counts(pids);
        self.real.down();
        thread::sleep(AWAY);
        self.real.up();
        let ready = Instant::now();
        wait_value(LIMIT, "all to watch", || {
            let n = self.n_watches();
            if n >= n_before { Ok(()) } else { Err(n) }
        });
        println!(
            "all {n_before} watches are there {:.1} s after the server is ready again",
            ready.elapsed().as_secs_f64()
        );
        self.print("restart of the server, until all watch again", &before, pids);
        self.stay("the minute after it", Duration::from_secs(60), pids);
    }

    /// Reads which pods the kubelets have started; says how many.
    fn learn(&mut self) -> usize {
        self.log.update();
        let n_before = self.running.len();
        let started = self.log.entries[self.n_learnt..].iter().filter(|entry| {
            entry.what == "patch pods/status"
                && entry.code == 200
                && !self.ended.contains(&entry.name)
        });
        self.running.extend(started.map(|entry| entry.name.clone()));
        self.n_learnt = self.log.entries.len();
        self.running.len() - n_before
    }

    /// Lets executors fail, the oldest first, as if all lived for the same time: none dies young.
    fn churn(&mut self, pids: &[u32]) {
        self.learn();
        let before = self.counts(pids);
        let (n_first, mut n_started, mut n_ended, mut running_s) = (self.running.len(), 0, 0, 0.0);
        let (mut due, mut last) = (0.0, before.at);
        while before.at.elapsed() < CHURN {
            n_started += self.learn();
            let running_now_s = self.running.len() as f64 * last.elapsed().as_secs_f64();
            last = Instant::now();
            running_s += running_now_s;
            due += running_now_s * LOST_A_SECOND;
            let mut lost = Vec::new();
            while due >= 1.0 && lost.len() < HANDS {
                due -= 1.0;
                lost.extend(self.running.pop_front());
            }
            if lost.is_empty() {
                thread::sleep(CHURN_STEP);
            }
            self.ended.extend(lost.iter().cloned());
            let node = &self.node;
            thread::scope(|scope| {
                let hands: Vec<_> =
                    lost.iter().map(|pod| scope.spawn(|| node.end(pod, End::Exit(1)))).collect();
                // A busy server may refuse one.
                n_ended += hands.into_iter().filter_map(|hand| hand.join().ok()).count();
            });
        }
        let took_s = last.duration_since(before.at).as_secs_f64();
        println!(
            "{:.1} executors failed and {:.1} began to run in a second; of {n_first}, {:.0} ran on average, {} at the end",
            n_ended as f64 / took_s,
            n_started as f64 / took_s,
            running_s / took_s,
            self.running.len()
        );
        self.print("churn", &before, pids);
    }

    /// Ends the applications. From now on the controller of Jobs counts.
    fn end(&mut self, apps: Vec<Posse>) {
        let begun = Instant::now();
        apps.iter().for_each(|posse| posse.signal(Signal::TERM));
        let codes: BTreeSet<i32> = apps.iter().map(|posse| posse.wait_exit(LIMIT)).collect();
        println!("end of all: {:.1} s, exit codes {codes:?}", begun.elapsed().as_secs_f64());
        self.learn();
        self.running.clear();
        self.who = "kube-controller-manager";
        self.relay = Relay::start(&self.real.access(Who::Admin).url);
    }

    /// Starts Jobs and their controller, and waits until all of their pods run.
    fn start_jobs(&mut self) -> Guarded {
        let admin = self.real.client(Who::Admin, "test-admin");
        for i in 0..self.n {
            let job = json!({"apiVersion": "batch/v1", "kind": "Job",
                "metadata": {"name": format!("job-{i}")},
                "spec": {"parallelism": self.executors, "completions": self.executors,
                         "backoffLimit": 1_000_000, "template": {"spec": spec()}}});
            admin.post(&format!("/apis/batch/v1/namespaces/{NAMESPACE}/jobs"), &job).ok();
        }
        let arguments = [&["--controllers=job"], &UNLIMITED[..]].concat();
        let access = self.access(Who::Admin);
        let jobs = self.real.spawn_component(self.who, &access, &arguments).unwrap();
        let n = (self.n * self.executors) as usize;
        wait_value(LIMIT, "the pods of all Jobs", || {
            self.learn();
            if self.running.len() >= n { Ok(()) } else { Err(self.running.len()) }
        });
        jobs
    }

    /// How many watches of pods the server has, of everybody.
    fn n_watches(&self) -> f64 {
        let admin = self.real.client(Who::Admin, "test-admin");
        let Ok(answer) = admin.raw("GET", "/metrics", &[], &[], Some(LIMIT)) else { return 0.0 };
        let text = answer.into_body().with_config().limit(METRICS_BYTES_MAX).read_to_string();
        let is_watch = |line: &&str| {
            // `_gauge` in old versions, `_requests` in new ones.
            line.starts_with("apiserver_longrunning_")
                && line.contains("verb=\"WATCH\"")
                && line.contains("resource=\"pods\"")
        };
        let watches = text.unwrap_or_default();
        let watches = watches.lines().filter(is_watch);
        watches.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    fn counts(&mut self, pids: &[u32]) -> Counts {
        self.log.update();
        let pid = self.real.apiserver_pid();
        Counts {
            n_entries: self.log.entries.len(),
            traffic: self.relay.traffic(),
            pid,
            server: cpu(pid),
            scheduler: cpu(self.scheduler.pid()),
            ours: pids.iter().map(|pid| cpu(*pid)).sum(),
            at: Instant::now(),
        }
    }

    fn print(&mut self, what: &str, before: &Counts, pids: &[u32]) {
        let now = self.counts(pids);
        let took_s = (now.at - before.at).as_secs_f64();
        println!("{what}, {} times {} by {}, {took_s:.1} s:", self.n, self.executors, self.who);
        let (mut kinds, mut seconds) = (BTreeMap::new(), BTreeMap::new());
        let ours = |entry: &&Entry| entry.agent.starts_with(self.who);
        for call in self.log.entries[before.n_entries..now.n_entries].iter().filter(ours) {
            *kinds.entry(format!("{} {}", call.what, call.code)).or_insert(0_u32) += 1;
            *seconds.entry(call.arrival_us / 1_000_000).or_insert(0_u32) += 1;
        }
        let n_calls: u32 = kinds.values().sum();
        for (kind, n) in &kinds {
            println!("  {kind}: {n}");
        }
        let sent = (now.traffic.sent - before.traffic.sent) as f64;
        let received = (now.traffic.received - before.traffic.received) as f64;
        println!(
            "  in all {n_calls} calls, {:.1}/s, at most {} in a second; to the server {:.2} MB, {:.2} KB/s; from it {:.2} MB, {:.2} KB/s; {} new connections",
            f64::from(n_calls) / took_s,
            seconds.into_values().max().unwrap_or(0),
            sent / 1e6,
            sent / 1e3 / took_s,
            received / 1e6,
            received / 1e3 / took_s,
            now.traffic.n_connections - before.traffic.n_connections,
        );
        let is_same = now.pid == before.pid;
        let server = now.server - if is_same { before.server } else { Duration::ZERO };
        println!(
            "  processor time: {:.2} s of the server, {:.2} s of the scheduler, {:.2} s of {} processes of {}",
            server.as_secs_f64(),
            (now.scheduler - before.scheduler).as_secs_f64(),
            (now.ours - before.ours).as_secs_f64(),
            pids.len(),
            self.who
        );
        let mut rss_mb: Vec<f64> =
            pids.iter().map(|pid| memory(*pid).rss_kb as f64 / 1e3).collect();
        if !rss_mb.is_empty() {
            println!("  RSS: {} MB", spread(&mut rss_mb));
        }
    }
}
