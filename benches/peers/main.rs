//! posse beside the peers that make the same pods at the same real kube-apiserver, in turn: a
//! loop of POSTs with and without a watch (the limit), Spark's own allocator and a Kubernetes Job, each as shipped and tuned.
//! `KUBEBUILDER_ASSETS=... cargo bench --bench peers [-- --executors 1000 --rounds 5 --failures 20
//! --peers posse,loop,loop-bare,job,job-tuned,spark,spark-tuned --json FILE]`. Prints a table, writes JSON.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../figures/audit.rs"]
mod audit_log;
mod bare_loop;
#[path = "../figures/mod.rs"]
mod figures;
mod peer;
#[path = "../figures/relay.rs"]
mod relay;
mod report;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use audit_log::{AuditLog, Entry};
use figures::assets;
use peer::{Group, Peer, Start};
use relay::Relay;
use report::{Calls, Figures};
use support::http::Client;
use support::node::TestNode;
use support::real::Real;
use support::scene::TempDir;
use support::server::{End, Node as _, Server as _, Who, items, pods_path};
use support::wait::wait_value;

/// The slowest peer makes 20 pods a second.
const LIMIT: Duration = Duration::from_secs(300);
/// After this time without a successor a failure counts as not replaced.
const REPLACE_LIMIT: Duration = Duration::from_secs(60);
/// What a peer does with the last pod that runs is over by then.
const SETTLE: Duration = Duration::from_millis(500);
/// Peers that take a minute for a round take part in so many.
const SLOW_ROUNDS: usize = 2;

struct Args {
    executors: u32,
    rounds: usize,
    failures: usize,
    peers: Vec<Peer>,
    json: Option<PathBuf>,
}

impl Args {
    fn read() -> Result<Self, String> {
        let mut args = Self {
            executors: 1_000,
            rounds: 5,
            failures: 20,
            peers: Peer::ALL.to_vec(),
            json: None,
        };
        let mut words = std::env::args().skip(1).filter(|word| word != "--bench");
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse().map_err(|_| format!("{name}: not a number: {value}"));
            match name.as_str() {
                "--executors" => args.executors = number()?,
                "--rounds" => args.rounds = number()? as usize,
                "--failures" => args.failures = number()? as usize,
                "--peers" => {
                    args.peers = value.split(',').map(Peer::named).collect::<Result<_, _>>()?
                }
                "--json" => args.json = Some(PathBuf::from(value)),
                _ => return Err(format!("unknown: {name}")),
            }
        }
        Ok(args)
    }
}

fn main() -> ExitCode {
    if bare_loop::is_asked() {
        bare_loop::run();
        return ExitCode::SUCCESS;
    }
    let args = match Args::read() {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let (here, away): (Vec<Peer>, Vec<Peer>) =
        args.peers.iter().partition(|peer| peer.is_installed());
    for peer in away {
        println!("not measured: {}: no PySpark (examples/spark/run.sh install)", peer.name());
    }
    let real = Real::start_audited(&assets);
    let log = AuditLog::open(&real.audit_log().unwrap());
    let mut bench = Bench { real, log, dir: TempDir::new("peers"), args: &args };
    let mut rounds = Vec::new();
    for round in 0..args.rounds {
        for &peer in here.iter().filter(|peer| round < SLOW_ROUNDS || !peer.is_slow()) {
            let figures = bench.measure(peer, round);
            println!("  round {round}: {figures}");
            rounds.push(figures);
        }
    }
    let calls: Vec<Calls> = here.iter().map(|&peer| bench.count_calls(peer)).collect();
    println!("{}", report::table(&args.peers, &rounds, &calls));
    let path = args.json.clone().unwrap_or_else(|| PathBuf::from("target/peers.json"));
    std::fs::write(
        &path,
        format!("{:#}\n", report::json(&args.peers, args.executors, &rounds, &calls)),
    )
    .unwrap();
    println!("all rounds: {}", path.display());
    ExitCode::SUCCESS
}

struct Bench<'a> {
    real: Real,
    log: AuditLog,
    dir: TempDir,
    args: &'a Args,
}

impl Bench<'_> {
    fn measure(&mut self, peer: Peer, round: usize) -> Figures {
        let namespace = format!("{}-{round}", peer.name());
        let (group, base) = self.create_all(peer, &namespace, None);
        let (first, last) = self.span(&namespace);
        let node = TestNode::start(&self.real.access(Who::Node), &namespace);
        self.wait_running(&namespace);
        let cpu = group.cpu() - base;
        let memory_kb = group.rss_kb();
        let replaced = match peer.failures_max() {
            0 => Vec::new(),
            max => self.fail_some(&namespace, &node, self.args.failures.min(max)),
        };
        drop((group, node));
        self.clear(&namespace);
        Figures {
            peer,
            rate: f64::from(self.args.executors) / ((last - first) as f64 / 1e6),
            cpu_us: cpu.as_secs_f64() * 1e6 / f64::from(self.args.executors),
            memory_kb,
            replaced_ms: replaced,
        }
    }

    /// One more round, through a relay that counts bytes; its times are of no interest.
    fn count_calls(&mut self, peer: Peer) -> Calls {
        let relay = Relay::start(&self.real.access(Who::Posse).url);
        let namespace = format!("{}-calls", peer.name());
        let n_before = self.log.entries.len();
        let (group, _) = self.create_all(peer, &namespace, Some(&relay));
        let node = TestNode::start(&self.real.access(Who::Node), &namespace);
        self.wait_running(&namespace);
        let traffic = relay.traffic();
        self.log.update();
        let ours = |entry: &&Entry| {
            let others = ["test-admin", "test-node", "kube-apiserver/", "Go-http-client/"];
            !others.iter().any(|other| entry.agent.starts_with(other))
        };
        let n_calls = self.log.entries[n_before..].iter().filter(ours).count();
        drop((group, node));
        self.clear(&namespace);
        let each = |n: u64| n as f64 / f64::from(self.args.executors);
        Calls {
            peer,
            calls: each(n_calls as u64),
            connections: traffic.n_connections,
            sent: each(traffic.sent),
            received: each(traffic.received),
        }
    }

    /// Starts the peer, and waits until all pods are created. Gives its processor time before the work.
    fn create_all(
        &mut self,
        peer: Peer,
        namespace: &str,
        relay: Option<&Relay>,
    ) -> (Group, Duration) {
        self.real.open_namespace(namespace);
        let start = Start {
            real: &self.real,
            dir: self.dir.path(),
            namespace,
            url: relay.map(Relay::url),
            executors: self.args.executors,
        };
        let mut group = start.peer(peer);
        let fails = |what: &str| {
            let log = std::fs::read_to_string(self.dir.path().join(format!("{namespace}.log")));
            panic!("{} {what}: {}", peer.name(), log.unwrap_or_default())
        };
        let is_create = |entry: &Entry| entry.is_create() && entry.namespace == namespace;
        // Before its first create a JVM starts, and a controller manager fills its caches.
        let base = if peer.has_long_start() {
            if !self.log.wait(LIMIT, 1, is_create, || group.is_over()) {
                fails("creates nothing");
            }
            group.cpu()
        } else {
            Duration::ZERO
        };
        let n = self.args.executors as usize;
        if !self.log.wait(LIMIT, n, is_create, || group.is_over()) {
            fails("does not create all pods");
        }
        (group, base)
    }

    /// When the first create arrived, and when the last was answered.
    fn span(&self, namespace: &str) -> (i64, i64) {
        let creates = || self.log.of(namespace).filter(|entry| entry.is_create());
        let first = creates().map(|entry| entry.arrival_us).min().unwrap();
        (first, creates().map(|entry| entry.answer_us).max().unwrap())
    }

    fn wait_running(&mut self, namespace: &str) {
        let is_start = |entry: &Entry| {
            entry.what == "patch pods/status" && entry.code == 200 && entry.namespace == namespace
        };
        let n = self.args.executors as usize;
        assert!(self.log.wait(LIMIT, n, is_start, || false), "not all pods run");
        thread::sleep(SETTLE);
    }

    /// Milliseconds from the answer to a pod's failure to the answer to its successor's POST.
    fn fail_some(&mut self, namespace: &str, node: &TestNode, n: usize) -> Vec<f64> {
        let admin = self.real.client(Who::Admin, "test-admin");
        let pods = items(&admin.get(&format!("{}?limit={n}", pods_path(namespace))).ok());
        let names: Vec<&str> =
            pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str()).collect();
        let mut delays = Vec::new();
        for name in names {
            self.log.update();
            let n_before = self.log.of(namespace).filter(|entry| entry.is_create()).count();
            node.end(name, End::Exit(1));
            let is_create = |entry: &Entry| entry.is_create() && entry.namespace == namespace;
            if !self.log.wait(REPLACE_LIMIT, n_before + 1, is_create, || false) {
                println!("  {namespace}: no successor after {} s", REPLACE_LIMIT.as_secs());
                break;
            }
            let failed = self
                .log
                .of(namespace)
                .filter(|entry| entry.what == "patch pods/status" && entry.name == name);
            let failed = failed.last().unwrap().answer_us;
            let created = self.log.of(namespace).filter(|entry| entry.is_create()).last().unwrap();
            delays.push((created.answer_us - failed) as f64 / 1e3);
        }
        delays
    }

    /// Removes what a peer left, so that nothing of it is in the next one's time.
    fn clear(&self, namespace: &str) {
        let admin: Client = self.real.client(Who::Admin, "test-admin");
        let options: Value = json!({"apiVersion": "v1", "kind": "DeleteOptions",
            "gracePeriodSeconds": 0, "propagationPolicy": "Background"});
        admin.delete(&format!("/apis/batch/v1/namespaces/{namespace}/jobs"), &options).ok();
        wait_value(LIMIT, "the pods to be gone", || {
            admin.delete(&pods_path(namespace), &options).ok();
            let left = items(&admin.get(&format!("{}?limit=1", pods_path(namespace))).ok());
            if left.is_empty() { Ok(()) } else { Err("some are left") }
        });
    }
}
