//! The embedded cluster under load: 10,000 simulated pods, what a list of them takes, how late a
//! watch tells of a change among 1,000 a second, and whether memory stays flat meanwhile.
//! `cargo bench --bench embedded [-- SECONDS]`; without SECONDS the churn lasts half a minute.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use figures::{cpu, memory, quantile};
use serde_json::{Value, json};
use support::access::Access;
use support::embedded::simulated;
use support::http::Client;
use support::scene::TempDir;
use support::wait::wait_value;

const PODS: &str = "/api/v1/namespaces/default/pods";
const N_PODS: usize = 10_000;
const N_WRITERS: usize = 4;
const EVENTS_PER_SECOND: f64 = 1_000.0;
const CHURN_DEFAULT: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(600);
/// One write of so many replaces a pod; the others change an annotation.
const REPLACED_EVERY: usize = 20;
/// Between two looks at whether there were enough events.
const PACE: Duration = Duration::from_millis(1);
/// How often the memory is looked at during the churn.
const PARTS: u32 = 6;
/// Latencies kept; the ones after these are counted only.
const SAMPLES_MAX: usize = 1_000_000;

/// The churn under way.
struct Churn {
    begun: Instant,
    over: AtomicBool,
    n_events: AtomicUsize,
    n_writes: AtomicUsize,
    latencies_ms: Mutex<Vec<f64>>,
}

fn main() {
    let seconds = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let time = seconds.map_or(CHURN_DEFAULT, Duration::from_secs);
    let dir = TempDir::new("embedded");
    let (dev, access) = simulated(&dir, &["--nodes", "100"]);
    let client = Client::new(&access, "bench");
    println!("empty: {}", memory(dev.pid()));
    fill(&access, &client, dev.pid());
    lists(&client);
    churn(&access, &client, dev.pid(), time);
    lists(&client);
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench", "team": "till"}},
        "spec": {"containers": [{"name": "worker", "image": "example.com/worker:1",
            "env": [{"name": "ID", "value": name}]}]}})
}

fn fill(access: &Access, client: &Client, pid: u32) {
    let (begun, before) = (Instant::now(), cpu(pid));
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..N_WRITERS {
            let client = Client::new(access, "bench");
            let next = &next;
            scope.spawn(move || {
                loop {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if n >= N_PODS {
                        return;
                    }
                    client.post(PODS, &pod(&format!("p{n}"))).ok();
                }
            });
        }
    });
    let created = begun.elapsed().as_secs_f64();
    let path = format!("{PODS}?limit=1&fieldSelector=status.phase%21%3DRunning");
    wait_value(LIMIT, "all to run", || {
        let waiting = client.get(&path).ok();
        if waiting["items"].as_array().is_some_and(Vec::is_empty) { Ok(()) } else { Err("some") }
    });
    println!(
        "{N_PODS} pods: {:.0} creates/s, all run after {:.1} s, {:.0} us of processor time each; {}",
        N_PODS as f64 / created,
        begun.elapsed().as_secs_f64(),
        (cpu(pid) - before).as_secs_f64() * 1e6 / N_PODS as f64,
        memory(pid)
    );
}

fn lists(client: &Client) {
    for (what, query) in
        [("whole", ""), ("of version 0", "?resourceVersion=0"), ("500", "?limit=500")]
    {
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let begun = Instant::now();
                let path = format!("{PODS}{query}");
                let answer = client.raw("GET", &path, &[], &[], None).unwrap();
                answer.into_body().with_config().limit(1 << 30).read_to_vec().unwrap();
                begun.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        println!("list, {what}: {:.1} ms", quantile(&mut times, 50));
    }
}

fn churn(access: &Access, client: &Client, pid: u32, time: Duration) {
    let list = client.get(&format!("{PODS}?limit=1")).ok();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let churn = Churn {
        begun: Instant::now(),
        over: AtomicBool::new(false),
        n_events: AtomicUsize::new(0),
        n_writes: AtomicUsize::new(0),
        latencies_ms: Mutex::default(),
    };
    let watcher = Client::new(access, "bench-watch");
    let before = cpu(pid);
    println!("churn of {} s: {}", time.as_secs(), memory(pid));
    thread::scope(|scope| {
        let churn = &churn;
        scope.spawn(|| watch(&watcher, version, churn));
        for writer in 0..N_WRITERS {
            let client = Client::new(access, "bench");
            scope.spawn(move || write(&client, writer, churn));
        }
        for part in 1..=PARTS {
            thread::sleep(time / PARTS);
            println!("  {part}/{PARTS}: {}", memory(pid));
        }
        churn.over.store(true, Ordering::SeqCst);
        watcher.shutdown();
    });
    let took = churn.begun.elapsed().as_secs_f64();
    let mut latencies = churn.latencies_ms.lock().unwrap();
    println!(
        "  {:.0} events/s of {:.0} writes/s; told after p50 {:.2} ms, p99 {:.2} ms, at most {:.1} ms; \
         {:.0} % of one core",
        churn.n_events.load(Ordering::SeqCst) as f64 / took,
        churn.n_writes.load(Ordering::SeqCst) as f64 / took,
        quantile(&mut latencies, 50),
        quantile(&mut latencies, 99),
        quantile(&mut latencies, 100),
        (cpu(pid) - before).as_secs_f64() * 100.0 / took
    );
}

/// Counts events, and looks at what the last annotation says about when it was sent.
fn watch(client: &Client, mut version: String, churn: &Churn) {
    while !churn.over.load(Ordering::SeqCst) {
        let path = format!("{PODS}?watch=1&resourceVersion={version}&allowWatchBookmarks=true");
        client.watch(&path, |event| {
            assert_ne!(event["type"], "ERROR", "{event}");
            churn.n_events.fetch_add(1, Ordering::SeqCst);
            let metadata = &event["object"]["metadata"];
            version = metadata["resourceVersion"].as_str().unwrap_or_default().to_owned();
            let sent =
                metadata["annotations"]["sent"].as_str().and_then(|at| at.parse::<f64>().ok());
            if let Some(sent_us) = sent.filter(|_| event["type"] == "MODIFIED") {
                let now_us = churn.begun.elapsed().as_secs_f64() * 1e6;
                let mut latencies = churn.latencies_ms.lock().unwrap();
                let late_ms = (now_us - sent_us) / 1e3;
                // Later changes of the pod carry the old moment.
                if latencies.len() < SAMPLES_MAX && metadata["deletionTimestamp"].is_null() {
                    latencies.push(late_ms);
                }
            }
            !churn.over.load(Ordering::SeqCst)
        });
    }
}

/// Writes whenever there were too few events so far.
fn write(client: &Client, writer: usize, churn: &Churn) {
    let mut n = writer;
    while !churn.over.load(Ordering::SeqCst) {
        let due = churn.begun.elapsed().as_secs_f64() * EVENTS_PER_SECOND;
        if churn.n_events.load(Ordering::SeqCst) as f64 > due {
            thread::sleep(PACE);
            continue;
        }
        // Each has its own pods: one of them is not written by two.
        n += N_WRITERS;
        let name = format!("p{}", n % N_PODS);
        let path = format!("{PODS}/{name}");
        churn.n_writes.fetch_add(1, Ordering::SeqCst);
        if (n / N_WRITERS).is_multiple_of(REPLACED_EVERY) {
            let now = json!({"gracePeriodSeconds": 0});
            client.delete(&path, &now);
            client.post(PODS, &pod(&name)).ok();
        } else {
            let sent = (churn.begun.elapsed().as_secs_f64() * 1e6).to_string();
            client.merge_patch(&path, &json!({"metadata": {"annotations": {"sent": sent}}})).ok();
        }
    }
}
