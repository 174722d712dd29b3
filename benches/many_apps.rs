//! What many applications cost one real API server: calls and bytes at rest, and while all of them restart at
//! once. `KUBEBUILDER_ASSETS=... cargo bench --bench many_apps [-- APPLICATIONS MINUTES]`. A test program plays
//! scheduler and kubelet. Calls are those of the server's audit log, which has a watch when it ends; bytes are
//! those of the connections, with TLS.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "figures/relay.rs"]
mod relay;
#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use figures::memory;
use relay::{Relay, Traffic};
use serde_json::json;
use support::access::Access;
use support::audit::{by_posse, requests, tally};
use support::posse::{Posse, Run};
use support::real::Real;
use support::scene::TempDir;
use support::server::{Server as _, Who};
use support::wait::wait_value;

const APPLICATIONS: u32 = 300;
const EXECUTORS: u32 = 10;
/// How long they are watched at rest, in minutes.
const MINUTES: u32 = 5;
const LIMIT: Duration = Duration::from_secs(1_200);
const NAMESPACE: &str = "many";

fn main() -> ExitCode {
    let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
        println!("KUBEBUILDER_ASSETS names no control plane: nothing is measured");
        return ExitCode::SUCCESS;
    };
    let mut numbers = std::env::args().skip(1).filter_map(|arg| arg.parse::<u32>().ok());
    let n = numbers.next().unwrap_or(APPLICATIONS);
    let minutes = numbers.next().unwrap_or(MINUTES);
    let real = Real::start(&assets, false);
    let dir = TempDir::new("many");
    real.open_namespace(NAMESPACE);
    let _node = real.node(NAMESPACE, dir.path());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
        {"name": "worker", "image": "example.com/worker:1", "command": ["worker"]}]}});
    std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
    let relay = Relay::start(&real.access(Who::Posse).url);
    let access = Access { url: relay.url(), ..real.access(Who::Posse) };
    let bench = Bench { real, dir, relay, access, n };

    let before = bench.counts();
    let apps = bench.start();
    bench.print("start", &before, 1.0);
    println!("  the first of them: {}", memory(apps[0].pid()));

    let before = bench.counts();
    thread::sleep(Duration::from_secs(60) * minutes);
    bench.print("a minute at rest", &before, f64::from(minutes));

    let before = bench.counts();
    // As when their node, or all of them, get a new version: nobody says goodbye.
    apps.into_iter().for_each(Posse::kill);
    let _apps = bench.start();
    bench.print("restart of all at once", &before, 1.0);
    ExitCode::SUCCESS
}

struct Bench {
    real: Real,
    dir: TempDir,
    relay: Relay,
    access: Access,
    n: u32,
}

/// What has been counted so far.
struct Counts {
    calls: BTreeMap<String, u32>,
    traffic: Traffic,
    n_lines: usize,
    at: Instant,
}

impl Bench {
    /// Starts all applications, and waits until each of them knows its executors.
    fn start(&self) -> Vec<Posse> {
        let start = |i| {
            let settings = json!({"app": format!("app-{i}"), "failures": {"app": "off"}});
            let run = Run::new(self.dir.path(), NAMESPACE, &self.access).executors(EXECUTORS);
            run.settings(settings).instance("many").env("POSSE_LOG", "warn").start()
        };
        let apps: Vec<Posse> = (0..self.n).map(start).collect();
        for posse in &apps {
            posse.wait_ready();
            wait_value(LIMIT, "the executors of an application", || {
                let running = posse.status()["groups"][0]["running"].as_u64().unwrap_or(0);
                if running == u64::from(EXECUTORS) { Ok(()) } else { Err(running) }
            });
        }
        apps
    }

    fn counts(&self) -> Counts {
        let log = self.real.audit_log().unwrap();
        Counts {
            calls: tally(&log, NAMESPACE),
            traffic: self.relay.traffic(),
            n_lines: requests(&log, NAMESPACE).len(),
            at: Instant::now(),
        }
    }

    fn print(&self, what: &str, before: &Counts, parts: f64) {
        let now = self.counts();
        let took_s = (now.at - before.at).as_secs_f64();
        println!("{what}, {} applications of {EXECUTORS} executors, {took_s:.0} s:", self.n);
        let mut n_calls = 0.0;
        for (call, n) in &now.calls {
            let n = f64::from(n - before.calls.get(call).copied().unwrap_or(0)) / parts;
            n_calls += n;
            if n > 0.0 {
                println!("  {call}: {n:.1}");
            }
        }
        let mb = |now: u64, before: u64| (now - before) as f64 / 1e6 / parts;
        println!(
            "  in all {n_calls:.0} calls, at most {} in a second; {:.2} MB to the server, {:.2} MB from it, {} new connections",
            self.most_in_a_second(before.n_lines),
            mb(now.traffic.sent, before.traffic.sent),
            mb(now.traffic.received, before.traffic.received),
            now.traffic.n_connections - before.traffic.n_connections,
        );
    }

    /// The calls of the busiest second, by their arrival.
    fn most_in_a_second(&self, after: usize) -> u32 {
        let log = self.real.audit_log().unwrap();
        let mut seconds: BTreeMap<String, u32> = BTreeMap::new();
        for entry in requests(&log, NAMESPACE).iter().skip(after).filter(|entry| by_posse(entry)) {
            let at = entry["requestReceivedTimestamp"].as_str().unwrap_or_default();
            *seconds.entry(at.chars().take(19).collect()).or_default() += 1;
        }
        seconds.into_values().max().unwrap_or(0)
    }
}
