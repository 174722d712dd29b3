//! The example's count is right whatever happens to its executors: the built binary runs it in
//! seeded runs, in each of which workers die by `kill -9` within a chunk.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use posse_base::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::support::runner::{each_of, is_in_full};
use crate::support::scene::TempDir;

/// All texts in the folder; with another one the example would count more than this test.
const TEXTS: [&str; 10] = [
    "emma-01-02",
    "emma-03-04",
    "mansfield-park-01",
    "northanger-abbey-01-03",
    "northanger-abbey-04-06",
    "persuasion-01-02",
    "persuasion-03-04",
    "pride-and-prejudice-01-04",
    "pride-and-prejudice-05-08",
    "sense-and-sensibility-01-03",
];
const N_SEEDS: u64 = 3;
const N_SEEDS_IN_FULL: u64 = 20;
const N_PARALLEL: usize = 3;
/// Longer chunks than in the example, so that the runs fit into a test.
const CHUNK_LINES: u64 = 40;
/// The last kill comes before this many of the 131 chunks are done.
const KILL_BEFORE: u64 = 65;
const KILLS_MAX: u64 = 3;
const POLL: Duration = Duration::from_millis(2);
const RUN_TIMEOUT: Duration = Duration::from_secs(300);

pub fn the_count_is_right_if_workers_die_within_chunks() {
    let want = ten_most_frequent();
    let seeds = 0..if is_in_full() { N_SEEDS_IN_FULL } else { N_SEEDS };
    each_of(&seeds.collect::<Vec<_>>(), N_PARALLEL, |seed| check(*seed, &want));
}

fn check(seed: u64, want: &[String]) {
    let mut rng = Rng::new(seed);
    let n_kills = 1 + rng.below(KILLS_MAX);
    let mut at: Vec<u64> = (0..n_kills).map(|_| rng.below(KILL_BEFORE)).collect();
    at.sort_unstable();

    let mut run = Run::start(seed);
    for n_done in at {
        run.wait_for(|run| run.n_done() >= n_done);
        run.kill_a_worker(&mut rng);
    }
    let instance = run.instance.clone();
    let job = run.job.clone();
    let output = run.end();

    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = format!("seed {seed}: {:?}\n{text}\n{errors}", output.status);
    assert!(output.status.success(), "{told}");
    assert!(text.contains("same as one sort | uniq -c: yes\n"), "{told}");
    assert!(text.contains(&format!("begun again after a loss: {n_kills}\n")), "{told}");
    let printed: Vec<&str> = text.lines().skip(1).take(10).collect();
    assert_eq!(printed, want, "{told}");
    assert!(!job.exists(), "{told}");
    assert_eq!(processes_of(&instance), Vec::<u32>::new(), "{told}");
}

/// The first lines of the example's result, counted independently.
fn ten_most_frequent() -> Vec<String> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for name in TEXTS {
        let path = root().join("fixtures/text").join(name).with_extension("txt");
        let text = fs::read_to_string(path).unwrap().to_ascii_lowercase();
        let words = text.split(|c: char| !c.is_ascii_lowercase() && c != '\'');
        for word in words.map(|word| word.trim_matches('\'')).filter(|word| !word.is_empty()) {
            *counts.entry(word.to_owned()).or_default() += 1;
        }
    }
    let mut counts: Vec<(String, u64)> = counts.into_iter().collect();
    counts.sort_by(|(word, n), (other, m)| m.cmp(n).then(word.cmp(other)));
    counts.iter().take(10).map(|(word, n)| format!("{n} {word}")).collect()
}

/// One `posse run` of the example.
struct Run {
    seed: u64,
    instance: String,
    /// The folder that the driver and its executors share.
    job: PathBuf,
    child: Child,
    deadline: Instant,
    dir: TempDir,
}

impl Run {
    fn start(seed: u64) -> Self {
        let instance = instance(seed);
        let job = Path::new("/tmp").join(format!("posse-wordcount-{instance}"));
        // Files of an earlier run with the same name that was aborted.
        let _ = fs::remove_dir_all(&job);
        let dir = TempDir::new("wordcount");
        let output = |name| File::create(dir.path().join(name)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_posse"))
            .args(["run", "--dev", "-f", "examples/wordcount/posse.yaml", "--instance", &instance])
            .current_dir(root())
            .env("WORDCOUNT_CHUNK_LINES", CHUNK_LINES.to_string())
            .env("XDG_RUNTIME_DIR", dir.path())
            .env("TMPDIR", dir.path())
            .env_remove("POD_IP")
            .stdin(Stdio::null())
            .stdout(output("out"))
            .stderr(output("err"))
            .spawn()
            .unwrap();
        Self { seed, instance, job, child, deadline: Instant::now() + RUN_TIMEOUT, dir }
    }

    fn n_done(&self) -> u64 {
        entries(&self.job.join("done")).len() as u64
    }

    /// Kills a worker that has begun a chunk and not finished it. The worker is stopped first, and
    /// checked when none of its child processes runs any more. A worker that has ended by itself in
    /// the meantime does not count: another one is chosen.
    fn kill_a_worker(&mut self, rng: &mut Rng) {
        self.wait_for(|run| {
            let claims: Vec<PathBuf> = entries(&run.job.join("claims"))
                .iter()
                .flat_map(|folder| entries(folder))
                .collect();
            let n = rng.below(claims.len() as u64);
            let Some(claim) = claims.get(usize::try_from(n).unwrap()) else { return false };
            let Some(worker) = begun_by(claim) else { return false };
            if kill_process(worker, Signal::STOP).is_err() {
                return false;
            }
            while has_live_children(worker) {
                assert!(Instant::now() < run.deadline, "seed {}: children do not end", run.seed);
                thread::sleep(POLL);
            }
            let is_in_the_middle = begun_by(claim) == Some(worker);
            let signal = if is_in_the_middle { Signal::KILL } else { Signal::CONT };
            kill_process(worker, signal).is_ok() && is_in_the_middle
        });
    }

    #[track_caller]
    fn wait_for(&mut self, mut condition: impl FnMut(&Self) -> bool) {
        while !condition(self) {
            let ended = self.child.try_wait().unwrap();
            let is_late = Instant::now() > self.deadline;
            if ended.is_some() || is_late {
                let errors = fs::read_to_string(self.dir.path().join("err")).unwrap();
                panic!("seed {}: ended {ended:?}, late {is_late}\n{errors}", self.seed);
            }
            thread::sleep(POLL);
        }
    }

    fn end(mut self) -> Output {
        let mut status = None;
        while status.is_none() {
            assert!(Instant::now() < self.deadline, "seed {}: it does not end", self.seed);
            thread::sleep(POLL);
            status = self.child.try_wait().unwrap();
        }
        let read = |name: &str| fs::read(self.dir.path().join(name)).unwrap();
        Output { status: status.unwrap(), stdout: read("out"), stderr: read("err") }
    }
}

impl Drop for Run {
    /// A failed test must leave nothing running.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        for process in processes_of(&self.instance) {
            let pid = Pid::from_raw(i32::try_from(process).unwrap()).unwrap();
            let _ = kill_process(pid, Signal::KILL);
        }
        let _ = fs::remove_dir_all(&self.job);
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files in a folder; none if it does not exist.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// Five letters and digits that are unique among running test processes.
fn instance(seed: u64) -> String {
    const DIGITS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut number = u64::from(std::process::id()) * N_SEEDS_IN_FULL + seed;
    (0..5)
        .map(|_| {
            let digit = usize::try_from(number % 36).unwrap();
            number /= 36;
            char::from(DIGITS[digit])
        })
        .collect()
}

/// The process in the last line of a claimed chunk; the first line is the work.
fn begun_by(claim: &Path) -> Option<Pid> {
    let text = fs::read_to_string(claim).ok()?;
    let last = text.strip_suffix('\n')?.lines().skip(1).last()?;
    let (_, process) = last.split_once(' ')?;
    Pid::from_raw(process.parse().ok()?)
}

fn has_live_children(process: Pid) -> bool {
    let parent = process.as_raw_nonzero().to_string();
    entries(Path::new("/proc")).iter().any(|folder| {
        let Ok(stat) = fs::read_to_string(folder.join("stat")) else { return false };
        // "pid (name) state parent ...", and the name may contain anything.
        let Some((_, facts)) = stat.rsplit_once(") ") else { return false };
        let mut facts = facts.split(' ');
        let is_live = !matches!(facts.next(), Some("Z" | "X"));
        is_live && facts.next() == Some(parent.as_str())
    })
}

/// Processes whose environment contains the instance.
fn processes_of(instance: &str) -> Vec<u32> {
    let wanted = format!("POSSE_INSTANCE={instance}");
    let is_of = |folder: &Path| -> io::Result<bool> {
        let environment = fs::read(folder.join("environ"))?;
        Ok(environment.split(|c| *c == 0).any(|variable| variable == wanted.as_bytes()))
    };
    let folders = entries(Path::new("/proc"));
    let named = folders.iter().filter(|folder| is_of(folder).unwrap_or(false));
    named.filter_map(|folder| folder.file_name()?.to_str()?.parse().ok()).collect()
}
