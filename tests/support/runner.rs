//! Runs the end-to-end tests and reports skipped ones. A custom main, because the servers start
//! once for all tests and must end in every case. Accepts the usual test arguments.

use std::cell::RefCell;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use posse_testing::leftovers;
use rustix::process::{Signal, getpid, kill_process};

use super::embedded::Embedded;
use super::real::Real;
use super::server::Server;

/// Names the folder of a real control plane, as in envtest.
pub const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Tests wait most of their time, so there are more threads than cores.
const THREADS_DEFAULT: usize = 8;

/// `POSSE_TESTS=all` in the environment: long scenarios are played in full, as before a release.
const EXTENT: &str = "POSSE_TESTS";

/// A scenario that takes longer hangs. Real servers lose nodes only after minutes.
const SCENARIO_MAX: Duration = Duration::from_secs(120);
const LONG_SCENARIO_MAX: Duration = Duration::from_secs(900);

/// The number of last lines of a file that a failure prints.
const LINES_SHOWN: usize = 60;

/// Which servers a scenario runs against, and who starts them.
#[derive(Clone, Copy, Debug)]
pub enum On {
    /// Once on each of the two shared servers.
    Both(fn(&dyn Server)),
    /// On the shared embedded cluster only.
    Embedded(fn(&dyn Server)),
    /// On the shared real server only: only there are users, TLS, tokens and a test-side node.
    Real(fn(&dyn Server)),
    /// On embedded clusters that the scenario starts itself, if it needs any.
    Own(fn()),
    /// On real servers that the scenario starts itself.
    OwnReal(fn()),
}

impl On {
    fn includes(self, real: bool) -> bool {
        match self {
            Self::Both(_) => true,
            Self::Embedded(_) | Self::Own(_) => !real,
            Self::Real(_) | Self::OwnReal(_) => real,
        }
    }
}

/// One scenario; its name is `MODULE::FUNCTION`.
pub struct Scenario {
    pub name: &'static str,
    pub on: On,
}

/// The `Scenario`s of functions: rows of `ON MODULE::{FUNCTION, ...};`, where ON is a variant of `On`.
#[allow(unused_macros)]
macro_rules! scenarios {
    ($($on:ident $module:ident::{$($name:ident),+ $(,)?};)+) => {
        &[$($($crate::support::runner::Scenario {
            name: concat!(stringify!($module), "::", stringify!($name)),
            on: $crate::support::runner::On::$on($module::$name),
        }),+),+]
    };
}
#[allow(unused_imports)]
pub(crate) use scenarios;

struct Case<'a> {
    scenario: &'a Scenario,
    real: bool,
}

impl Case<'_> {
    fn name(&self) -> String {
        format!("{}::{}", if self.real { "real" } else { "embedded" }, self.scenario.name)
    }
}

/// Why a lock is not poisoned.
const CALM: &str = "nobody panics in here";

/// True if long scenarios are played in full.
pub fn is_in_full() -> bool {
    std::env::var_os(EXTENT).is_some_and(|extent| extent == "all")
}

/// The files to show if a scenario fails.
type Shown = Arc<Mutex<Vec<PathBuf>>>;

/// What is played now, for how long at most, and since when.
static PLAYED: Mutex<Vec<(String, Duration, Instant, Shown)>> = Mutex::new(Vec::new());

thread_local! {
    static NAME: RefCell<String> = const { RefCell::new(String::new()) };
    static SHOWN: RefCell<Shown> = RefCell::default();
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The name of this thread's scenario.
pub fn test_name() -> String {
    NAME.with_borrow(Clone::clone)
}

/// Runs `job` for each of `jobs` on `n_threads` threads, as this thread's scenario; fails with the
/// first one that fails, and shows its files.
#[track_caller]
pub fn each_of<J: Sync>(jobs: &[J], n_threads: usize, job: impl Fn(&J) + Sync) {
    let name = test_name();
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(|| {
                NAME.set(name.clone());
                while let Some(one) = jobs.get(next.fetch_add(1, Ordering::SeqCst)) {
                    SHOWN.take();
                    if panic::catch_unwind(AssertUnwindSafe(|| job(one))).is_err() {
                        next.store(jobs.len(), Ordering::SeqCst);
                        let report = report(&SHOWN.take());
                        failed.lock().expect("nobody panics in here").get_or_insert(report);
                    }
                }
            });
        }
    });
    if let Some(report) = failed.into_inner().expect("nobody panicked in there") {
        panic!("{report}");
    }
}

/// Prints the last lines of this file if this thread's test fails.
pub fn show_on_failure(path: &Path) {
    SHOWN.with_borrow(|shown| shown.lock().expect(CALM).push(path.to_owned()));
}

/// The command line arguments.
#[derive(Default)]
struct Wanted {
    filters: Vec<String>,
    skips: Vec<String>,
    exact: bool,
    list: bool,
    only_ignored: bool,
    threads: Option<usize>,
}

impl Wanted {
    fn from_args() -> Self {
        let mut wanted = Self::default();
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--exact" => wanted.exact = true,
                "--ignored" => wanted.only_ignored = true,
                "--list" => wanted.list = true,
                "--skip" => wanted.skips.extend(args.next()),
                "--test-threads" => wanted.threads = args.next().and_then(|n| n.parse().ok()),
                "--color" | "--format" | "-Z" => drop(args.next()),
                flag if flag.starts_with('-') => {
                    if let Some(n) = flag.strip_prefix("--test-threads=") {
                        wanted.threads = n.parse().ok();
                    }
                }
                _ => wanted.filters.push(arg),
            }
        }
        wanted
    }

    fn takes(&self, name: &str) -> bool {
        let fits =
            |filter: &String| if self.exact { name == filter } else { name.contains(filter) };
        (self.filters.is_empty() || self.filters.iter().any(fits)) && !self.skips.iter().any(fits)
    }
}

/// The shared servers, started by the first test that needs them.
struct Servers {
    embedded: OnceLock<Embedded>,
    real: OnceLock<Real>,
    start_real: fn(&Path) -> Real,
    /// Arguments of `posse dev`.
    embedded_args: &'static [&'static str],
}

impl Servers {
    fn get(&self, assets: Option<&Path>) -> &dyn Server {
        match assets {
            Some(assets) => self.real.get_or_init(|| (self.start_real)(assets)),
            None => self.embedded.get_or_init(|| Embedded::start_with(self.embedded_args)),
        }
    }
}

/// Runs all selected scenarios; the program's `main`.
pub fn main(scenarios: &[Scenario]) -> ExitCode {
    main_with(scenarios, |assets| Real::start(assets, true), &[])
}

/// Runs scenarios of kind `OwnReal` if the variable `env` is set. What they start again of the cluster that it names lives on.
pub fn main_if_set(env: &'static str, scenarios: &[Scenario]) -> ExitCode {
    run_selected(scenarios, |assets| Real::start(assets, true), &[], env)
}

/// The same with other kinds of servers.
pub fn main_with(
    scenarios: &[Scenario],
    start_real: fn(&Path) -> Real,
    embedded_args: &'static [&'static str],
) -> ExitCode {
    leftovers::play(|| run_selected(scenarios, start_real, embedded_args, ASSETS))
}

/// `env`: the variable without which scenarios for a real server are skipped.
fn run_selected(
    scenarios: &[Scenario],
    start_real: fn(&Path) -> Real,
    embedded_args: &'static [&'static str],
    env: &'static str,
) -> ExitCode {
    let wanted = Wanted::from_args();
    let assets = std::env::var_os(env).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut cases: Vec<Case<'_>> = Vec::new();
    for real in [false, true] {
        let on_this = scenarios.iter().filter(|scenario| scenario.on.includes(real));
        cases.extend(on_this.map(|scenario| Case { scenario, real }));
    }
    cases.retain(|case| wanted.takes(&case.name()));
    if wanted.list {
        cases.iter().for_each(|case| println!("{}: test", case.name()));
        return ExitCode::SUCCESS;
    }
    let (skipped, mut played): (Vec<_>, Vec<_>) =
        cases.into_iter().partition(|case| case.real && assets.is_none());
    if wanted.only_ignored {
        played.clear();
    }
    for case in &skipped {
        println!("test {} ... ignored, {env} is not set", case.name());
    }
    println!("\nrunning {} end-to-end tests", played.len());
    let started = Instant::now();
    let failed = {
        let servers =
            Servers { embedded: OnceLock::new(), real: OnceLock::new(), start_real, embedded_args };
        let n_threads = wanted.threads.unwrap_or(THREADS_DEFAULT);
        play_all(&played, &servers, assets.as_deref(), n_threads)
    };
    for case in &failed {
        println!("    failed: {}", case.name());
    }
    if !skipped.is_empty() {
        println!("NOT TESTED against a real API server: set {env} to run {} more", skipped.len());
    }
    println!(
        "\ntest result: {}. {} passed; {} failed; {} ignored; finished in {:.1}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        played.len() - failed.len(),
        failed.len(),
        skipped.len(),
        started.elapsed().as_secs_f64()
    );
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(101) }
}

/// Returns the cases that failed. The servers end with their owner.
fn play_all<'c>(
    cases: &'c [Case<'c>],
    servers: &Servers,
    assets: Option<&Path>,
    n_threads: usize,
) -> Vec<&'c Case<'c>> {
    panic::set_hook(Box::new(|info| {
        let name = test_name();
        if name.is_empty() {
            eprintln!("a helper thread panicked: {info}");
        }
        PANIC.set(info.to_string());
    }));
    thread::spawn(end_a_hang);
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..n_threads.clamp(1, cases.len().max(1)) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    if !play(case, servers, assets) {
                        failed.lock().expect(CALM).push(case);
                    }
                }
            });
        }
    });
    failed.into_inner().expect(CALM)
}

/// No thread can be ended from outside, so a scenario that hangs ends the program.
fn end_a_hang() {
    loop {
        thread::sleep(Duration::from_secs(1));
        let played = PLAYED.lock().expect(CALM);
        let hangs = |(_, limit, from, _): &&(_, Duration, Instant, _)| from.elapsed() > *limit;
        if let Some((name, limit, _, shown)) = played.iter().find(hangs) {
            let report = report(shown);
            println!("test {name} ... FAILED: no end after {} s\n{report}", limit.as_secs());
            kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
        }
    }
}

fn play(case: &Case<'_>, servers: &Servers, assets: Option<&Path>) -> bool {
    let assets = assets.filter(|_| case.real);
    NAME.set(case.scenario.name.to_owned());
    let (shown, started) = (Shown::default(), Instant::now());
    SHOWN.set(Arc::clone(&shown));
    let limit = if case.real || is_in_full() { LONG_SCENARIO_MAX } else { SCENARIO_MAX };
    PLAYED.lock().expect(CALM).push((case.name(), limit, started, Arc::clone(&shown)));
    let result = panic::catch_unwind(AssertUnwindSafe(|| match case.scenario.on {
        On::Both(play) | On::Embedded(play) | On::Real(play) => play(servers.get(assets)),
        On::Own(play) | On::OwnReal(play) => play(),
    }));
    PLAYED.lock().expect(CALM).retain(|(name, ..)| *name != case.name());
    let took = started.elapsed().as_secs_f64();
    match result {
        Ok(()) => println!("test {} ... ok ({took:.1} s)", case.name()),
        Err(_) => println!("test {} ... FAILED ({took:.1} s)\n{}", case.name(), report(&shown)),
    }
    NAME.take();
    result.is_ok()
}

/// The panic, and the end of each file that the test wants to be shown.
fn report(shown: &Shown) -> String {
    let mut report = PANIC.take();
    for path in &*shown.lock().expect(CALM) {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(LINES_SHOWN);
        report.push_str(&format!("\n--- {} from line {}\n", path.display(), from + 1));
        report.push_str(&lines[from..].join("\n"));
    }
    report
}
