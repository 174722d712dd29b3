//! What costs more as it grows: groups, tasks with keys, calls a second, followers of events. Each is measured
//! at a size and at twice that size, beside an embedded cluster that only simulates pods. The processor time
//! of posse shall grow with the size, and not with its square. `cargo bench --bench growth`.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use figures::{cpu, memory, wait_running};
use serde_json::{Value, json};
use support::access::Access;
use support::control::Control;
use support::embedded::simulated;
use support::posse::{Posse, Run};
use support::scene::TempDir;

const LIMIT: Duration = Duration::from_secs(300);
const STEP: Duration = Duration::from_millis(500);
const GROUPS: u32 = 150;
/// Each group has so many executors.
const GROUP_EXECUTORS: u32 = 10;
const TASKS: u32 = 5_000;
const TASKS_A_CALL: u32 = 1_000;
const CALLS_A_SECOND: u32 = 500;
const CALL_SECONDS: u32 = 10;
/// Executors of which the calls and the followers hear.
const EXECUTORS: u32 = 1_000;
const FOLLOWERS: u32 = 50;

fn main() {
    let dir = TempDir::new("growth");
    let (_dev, access) = simulated(&dir, &[]);
    let cases: [(&str, u32, Case); 4] = [
        ("groups of 10 executors, until all run", GROUPS, groups),
        ("tasks with keys, until all run", TASKS, tasks),
        ("calls a second for the whole status of 1,000 executors, 10 s", CALLS_A_SECOND, calls),
        ("followers of the events of 1,000 executors, until all run", FOLLOWERS, followers),
    ];
    for (what, size, case) in cases {
        let costs = [size, 2 * size].map(|n| {
            let Cost { used, posse } = case(&dir, &access, n);
            println!(
                "{n} {what}: {} ms of processor time; {}",
                used.as_millis(),
                memory(posse.pid())
            );
            posse.kill();
            used.as_secs_f64()
        });
        println!("  twice the size costs {:.2} times as much", costs[1] / costs[0]);
    }
}

type Case = fn(&TempDir, &Access, u32) -> Cost;

struct Cost {
    used: Duration,
    posse: Posse,
}

fn start(dir: &TempDir, access: &Access, settings: Value) -> Posse {
    let run = Run::new(dir.path(), "default", access).settings(settings);
    let posse = run.env("POSSE_LOG", "info").start();
    posse.wait_ready();
    posse
}

fn groups(dir: &TempDir, access: &Access, n: u32) -> Cost {
    let group =
        |i| json!({"group": format!("g-{i}"), "count": GROUP_EXECUTORS, "template": "pod.json"});
    let groups: Vec<Value> = (0..n).map(group).collect();
    let posse = start(dir, access, json!({"executors": groups}));
    wait_running(&posse, n * GROUP_EXECUTORS, STEP, LIMIT);
    Cost { used: cpu(posse.pid()), posse }
}

fn tasks(dir: &TempDir, access: &Access, n: u32) -> Cost {
    let posse = start(dir, access, json!({}));
    let control = posse.control();
    let before = cpu(posse.pid());
    for first in (0..n).step_by(TASKS_A_CALL as usize) {
        let task = |i| json!({"key": format!("task-{i}"), "args": [format!("{i}")]});
        let tasks: Vec<Value> = (first..first + TASKS_A_CALL).map(task).collect();
        let path = "/v1/groups/default/executors";
        control.call("POST", path, &json!({"executors": tasks})).ok();
    }
    wait_running(&posse, n, STEP, LIMIT);
    Cost { used: cpu(posse.pid()) - before, posse }
}

fn calls(dir: &TempDir, access: &Access, n: u32) -> Cost {
    let posse = start(dir, access, json!({}));
    posse.scale("default", EXECUTORS);
    wait_running(&posse, EXECUTORS, STEP, LIMIT);
    let control = posse.control();
    let before = cpu(posse.pid());
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let n_calls = u64::from(n * CALL_SECONDS);
    thread::scope(|scope| {
        // Each call has its time; several clients take them in turn, so that a slow one delays none.
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n_calls {
                        return;
                    }
                    let due = Duration::from_secs_f64(i as f64 / f64::from(n));
                    thread::sleep(due.saturating_sub(begun.elapsed()));
                    read_status(&control);
                }
            });
        }
    });
    Cost { used: cpu(posse.pid()) - before, posse }
}

fn read_status(control: &Control) {
    let mut stream = control.connect().unwrap();
    stream.write_all(b"GET /v1/status HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200 "));
}

fn followers(dir: &TempDir, access: &Access, n: u32) -> Cost {
    let posse = start(dir, access, json!({}));
    let control = posse.control();
    let n_bytes = AtomicU64::new(0);
    let before = cpu(posse.pid());
    let used = thread::scope(|scope| {
        for _ in 0..n {
            let mut stream = control.connect().unwrap();
            stream.write_all(b"GET /v1/events?follow=true HTTP/1.0\r\n\r\n").unwrap();
            let n_bytes = &n_bytes;
            scope.spawn(move || {
                let mut buffer = vec![0; 64 << 10];
                while let Ok(n @ 1..) = stream.read(&mut buffer) {
                    n_bytes.fetch_add(n as u64, Ordering::Relaxed);
                }
            });
        }
        posse.scale("default", EXECUTORS);
        wait_running(&posse, EXECUTORS, STEP, LIMIT);
        let used = cpu(posse.pid()) - before;
        // The followers end with it.
        posse.stop();
        used
    });
    println!("  {:.1} MB of events", n_bytes.load(Ordering::Relaxed) as f64 / 1e6);
    Cost { used, posse: start(dir, access, json!({})) }
}
