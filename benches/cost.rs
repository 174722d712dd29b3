//! What posse costs the API server: calls and bytes for an executor over its life, and calls and
//! LISTs an hour while nothing happens.
//! `KUBEBUILDER_ASSETS=... cargo bench --bench cost [-- EXECUTORS IDLE_SECONDS]`; without them 200 and
//! 1,800. Calls are those of the server's audit log; bytes are those on the wire.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "figures/audit.rs"]
mod audit_log;
mod figures;
#[path = "figures/relay.rs"]
mod relay;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use audit_log::{AuditLog, Entry};
use figures::{assets, cpu, wait_running};
use relay::{Relay, Traffic};
use serde_json::json;
use support::access::Access;
use support::node::TestNode;
use support::posse::{Posse, Run};
use support::real::Real;
use support::scene::TempDir;
use support::server::{Server as _, Who};

const LIMIT: Duration = Duration::from_secs(600);
const NAMESPACE: &str = "cost";
/// What posse does with the last event is over by then.
const SETTLE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let n = numbers.first().map_or(200, |n| u32::try_from(*n).unwrap());
    let idle = Duration::from_secs(numbers.get(1).copied().unwrap_or(1_800));
    let real = Real::start_audited(&assets);
    let dir = TempDir::new("cost");
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{
        "name": "worker", "image": "example.com/worker:1", "command": ["worker"],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}});
    std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
    let mut case = Case::start(&real, dir.path(), n);
    case.step("created and seen running", f64::from(n));
    let begun = Instant::now();
    println!("idle for {} s", idle.as_secs());
    thread::sleep(idle);
    case.step("idle, an hour", begun.elapsed().as_secs_f64() / 3_600.0);
    case.stop(f64::from(n));
    ExitCode::SUCCESS
}

/// The run, and what it had cost at the last step.
struct Case {
    relay: Relay,
    log: AuditLog,
    posse: Posse,
    _node: TestNode,
    n_entries: usize,
    traffic: Traffic,
    cpu: Duration,
}

impl Case {
    fn start(real: &Real, dir: &Path, n: u32) -> Self {
        real.open_namespace(NAMESPACE);
        let node = TestNode::start(&real.access(Who::Node), NAMESPACE);
        let relay = Relay::start(&real.access(Who::Posse).url);
        let access = Access { url: relay.url(), ..real.access(Who::Posse) };
        let posse = Run::new(dir, NAMESPACE, &access)
            .settings(json!({"driver": {"host": "127.0.0.1"},
                "shutdown": {"grace": "1s", "timeout": "60s"}}))
            .executors(n)
            .env("POSSE_LOG", "info")
            .start();
        wait_running(&posse, n, SETTLE, LIMIT);
        Self {
            relay,
            log: AuditLog::open(&real.audit_log().unwrap()),
            posse,
            _node: node,
            n_entries: 0,
            traffic: Traffic::default(),
            cpu: Duration::ZERO,
        }
    }

    /// Prints what was used since the last step, divided by `by`.
    fn step(&mut self, what: &str, by: f64) {
        let cpu = cpu(self.posse.pid());
        self.print(what, by, cpu);
    }

    fn print(&mut self, what: &str, by: f64, cpu: Duration) {
        self.log.update();
        let traffic = self.relay.traffic();
        let mut calls: BTreeMap<&str, u32> = BTreeMap::new();
        let ours =
            |entry: &&Entry| entry.namespace == NAMESPACE && entry.agent.starts_with("posse/");
        for entry in self.log.entries[self.n_entries..].iter().filter(ours) {
            *calls.entry(&entry.what).or_default() += 1;
        }
        let each = |n: u64| n as f64 / by;
        println!(
            "{what}: {:.0} bytes sent, {:.0} received, {:.2} ms of processor time",
            each(traffic.sent - self.traffic.sent),
            each(traffic.received - self.traffic.received),
            (cpu - self.cpu).as_secs_f64() * 1e3 / by
        );
        for (what, n) in calls {
            println!("    {what}: {:.2} ({n} in all)", each(n.into()));
        }
        (self.n_entries, self.traffic, self.cpu) = (self.log.entries.len(), traffic, cpu);
    }

    fn stop(mut self, n: f64) {
        self.posse.signal(rustix::process::Signal::TERM);
        self.posse.expect_exit(0);
        // Its processor time cannot be read any more.
        self.print("the executors' end, an executor", n, self.cpu);
    }
}
