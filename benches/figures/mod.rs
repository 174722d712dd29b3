//! What the benchmarks share: order statistics, and what a process costs as the kernel tells it.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use crate::support::posse::Posse;
use crate::support::wait::wait_value;

/// Clock ticks in `/proc/PID/stat`: 100 a second on every Linux that we run on.
const TICK: Duration = Duration::from_millis(10);

/// The folder of a real control plane; without one nothing can be measured.
pub fn assets() -> Option<PathBuf> {
    let assets = std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from);
    if assets.is_none() {
        println!("KUBEBUILDER_ASSETS names no control plane: nothing is measured");
    }
    assets
}

/// Waits until so many executors run, over all groups. An answer names each of them: it is asked for seldom.
pub fn wait_running(posse: &Posse, n: u32, every: Duration, limit: Duration) {
    wait_value(limit, "all to run", || {
        thread::sleep(every);
        let status = posse.status();
        let groups = status["groups"].as_array().expect("a status has groups");
        let running: u64 = groups.iter().filter_map(|group| group["running"].as_u64()).sum();
        if running == u64::from(n) { Ok(()) } else { Err(running) }
    });
}

/// Memory of a process, in kilobytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Now.
    pub rss_kb: u64,
    /// At most so far.
    pub peak_kb: u64,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mb = |kb: u64| kb as f64 / 1e3;
        write!(f, "RSS {:.1} MB, peak {:.1} MB", mb(self.rss_kb), mb(self.peak_kb))
    }
}

pub fn memory(pid: u32) -> Memory {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).expect("Linux tells it");
        line.split_ascii_whitespace().nth(1).and_then(|kb| kb.parse().ok()).expect("a number")
    };
    Memory { rss_kb: field("VmRSS:"), peak_kb: field("VmHWM:") }
}

/// Processor time of a process so far, user and system.
pub fn cpu(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process lives");
    // The name before it may hold anything but a closing bracket at its end.
    let after = stat.rsplit_once(')').expect("its name is in brackets").1;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    let ticks = |i: usize| fields[i].parse::<u32>().expect("a number");
    TICK * (ticks(11) + ticks(12))
}

/// Processor time of the threads that a process has now, to the nanosecond.
pub fn cpu_of_threads(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives").flatten();
    let times = threads.filter_map(|thread| {
        let times = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
    });
    times.sum()
}

/// The value that `percent` of all lie at or below.
pub fn quantile(values: &mut [f64], percent: usize) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len() - 1;
    values[(last * percent + 50) / 100]
}

/// `median (least .. most)`.
pub fn spread(values: &mut [f64]) -> String {
    let (least, most) = (quantile(values, 0), quantile(values, 100));
    format!("{:.0} ({least:.0} .. {most:.0})", quantile(values, 50))
}
