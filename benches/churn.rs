//! posse under churn for minutes: executors on simulated nodes, of which 1 % are deleted and replaced
//! each second. Memory over time, and its share of a core. The cluster is the one that `KUBEBUILDER_ASSETS`
//! names, with a node that only writes statuses, else the embedded one.
//! `cargo bench --bench churn [-- EXECUTORS SECONDS]`; without them 10,000 and 600.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use figures::{cpu, memory, wait_running};
use serde_json::json;
use support::access::Access;
use support::embedded::simulated;
use support::http::Client;
use support::node::TestNode;
use support::posse::{Posse, Run};
use support::real::Real;
use support::reaper::Guarded;
use support::scene::TempDir;
use support::server::{Server as _, Who, pods_path};
use support::wait::wait_value;

const LIMIT: Duration = Duration::from_secs(900);
/// How often the memory is read.
const PARTS: u32 = 10;
/// In a real cluster.
const NAMESPACE: &str = "churn";

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let n_executors = numbers.first().map_or(10_000, |n| u32::try_from(*n).unwrap());
    let time = Duration::from_secs(numbers.get(1).copied().unwrap_or(600));
    let dir = TempDir::new("churn");
    let cluster = Cluster::start(&dir);
    let access = cluster.access(Who::Posse);
    let settings = json!({"failures": {"app": "off", "cluster": "off", "start": "off"}});
    let run = Run::new(dir.path(), cluster.namespace(), &access).settings(settings);
    let posse = run.env("POSSE_LOG", "warn").executors(n_executors).start();
    let begun = Instant::now();
    let first = wait_all(&posse, n_executors);
    println!(
        "{n_executors} executors run after {:.0} s: {}, {:.1} s of processor time",
        begun.elapsed().as_secs_f64(),
        memory(posse.pid()),
        cpu(posse.pid()).as_secs_f64()
    );
    let client = Client::new(&cluster.access(Who::Admin), "test-churn");
    let (prefix, _) = first.rsplit_once('-').unwrap();
    let options = json!({"gracePeriodSeconds": 0});
    let (mut next, mut n_deleted) = (1_u64, 0_u64);
    let (begun, before) = (Instant::now(), cpu(posse.pid()));
    for part in 1..=PARTS {
        while begun.elapsed() < time / PARTS * part {
            let due = begun.elapsed().as_secs_f64() * f64::from(n_executors) / 100.0;
            while (n_deleted as f64) < due {
                // Ids are never used again: the oldest executors go first.
                client
                    .delete(
                        &format!("{}/{prefix}-{next}", pods_path(cluster.namespace())),
                        &options,
                    )
                    .ok();
                (next, n_deleted) = (next + 1, n_deleted + 1);
            }
            thread::sleep(Duration::from_millis(10));
        }
        println!("  {:.0} s: {}", begun.elapsed().as_secs_f64(), memory(posse.pid()));
    }
    let used = (cpu(posse.pid()) - before).as_secs_f64();
    println!(
        "{:.0} deleted and replaced a second: {:.1} % of a core, {:.0} us for each",
        n_deleted as f64 / begun.elapsed().as_secs_f64(),
        used * 100.0 / begun.elapsed().as_secs_f64(),
        used * 1e6 / n_deleted as f64
    );
    wait_running(&posse, n_executors, Duration::from_secs(1), LIMIT);
}

enum Cluster {
    Embedded(Guarded, Access),
    Real(Box<Real>, TestNode),
}

impl Cluster {
    fn start(dir: &TempDir) -> Self {
        let Some(assets) = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from) else {
            let (process, access) = simulated(dir, &[]);
            return Self::Embedded(process, access);
        };
        let real = Real::start(&assets, false);
        real.open_namespace(NAMESPACE);
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
            {"name": "worker", "image": "example.com/worker:1"}]}});
        std::fs::write(dir.path().join("pod.json"), pod.to_string()).unwrap();
        let node = TestNode::start(&real.access(Who::Node), NAMESPACE);
        Self::Real(Box::new(real), node)
    }

    fn namespace(&self) -> &'static str {
        match self {
            Self::Embedded(..) => "default",
            Self::Real(..) => NAMESPACE,
        }
    }

    fn access(&self, who: Who) -> Access {
        match self {
            Self::Embedded(_, access) => access.clone(),
            Self::Real(real, _) => real.access(who),
        }
    }
}

/// Waits by the events, as a request for the whole status would cost memory; returns a pod's name.
fn wait_all(posse: &Posse, n: u32) -> String {
    wait_value(LIMIT, "all to run", || {
        thread::sleep(Duration::from_secs(1));
        let running = posse.events_of("executor_running");
        match running.first() {
            Some(event) if running.len() >= n as usize => {
                Ok(event["pod"].as_str().unwrap().to_owned())
            }
            _ => Err(running.len()),
        }
    })
}
