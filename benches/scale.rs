//! posse beside 10,000 executors that an embedded cluster only simulates: memory, processor time
//! for each, and what it costs while nothing happens. `cargo bench --bench scale`.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::thread;
use std::time::{Duration, Instant};

use figures::{cpu, memory, wait_running};
use support::embedded::simulated;
use support::posse::{Posse, Run};
use support::scene::TempDir;

const LIMIT: Duration = Duration::from_secs(600);
const IDLE: Duration = Duration::from_secs(30);

fn main() {
    let dir = TempDir::new("scale");
    let (_dev, access) = simulated(&dir, &[]);
    let posse = Run::new(dir.path(), "default", &access).env("POSSE_LOG", "info").start();
    posse.wait_ready();
    for (from, to) in [(0, 100), (100, 1_000), (1_000, 10_000), (10_000, 10_100)] {
        grow(&posse, from, to);
    }
    let before = cpu(posse.pid());
    thread::sleep(IDLE);
    let used = cpu(posse.pid()) - before;
    println!("idle at 10,100 for {} s: {} ms of processor time", IDLE.as_secs(), used.as_millis());
}

fn grow(posse: &Posse, from: u32, to: u32) {
    let (begun, before) = (Instant::now(), cpu(posse.pid()));
    posse.scale("default", to);
    wait_running(posse, to, Duration::from_millis(500), LIMIT);
    let (took, used) = (begun.elapsed(), cpu(posse.pid()) - before);
    thread::sleep(Duration::from_secs(2));
    println!(
        "{from} -> {to} executors: {:.1} s, {:.0} us of processor time each; {}",
        took.as_secs_f64(),
        used.as_secs_f64() * 1e6 / f64::from(to - from),
        memory(posse.pid()),
    );
}
