//! Checks `docs/DRIVERS.md`: its Python code is in the examples, its posse.yaml files are valid,
//! and its calls get the documented answers.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::control::Control;
use crate::support::posse::command;
use crate::support::reaper::Guarded;
use crate::support::wait::wait_value;
use posse_wire::config::Config;
use rustix::process::Signal;
use serde_json::Value;

const EXAMPLES: [&str; 3] =
    ["examples/queue/driver.py", "examples/queue/executor.py", "clients/python/posse/dask.py"];
const QUEUE_LINES_MAX: usize = 150;
const DRIVER_LINES_MAX: usize = 80;
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(20);
/// Matches any text.
const ANYTHING: &str = "…";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// The fenced code blocks of one language.
fn blocks(language: &str) -> Vec<String> {
    let page = read("docs/DRIVERS.md");
    let fence = format!("```{language}\n");
    let blocks = page.split(&fence).skip(1).map(|rest| rest.split("```\n").next().unwrap());
    let blocks: Vec<String> = blocks.map(str::to_owned).collect();
    assert!(!blocks.is_empty(), "no block of {language}");
    blocks
}

pub fn the_python_code_is_in_the_examples() {
    let examples = EXAMPLES.map(read);
    for block in blocks("python") {
        let is_there = examples.iter().any(|example| example.contains(&block));
        assert!(is_there, "in none of the examples:\n{block}");
    }
}

/// The example to copy must stay short.
pub fn the_queue_is_short() {
    let lines = ["driver", "executor"].map(|name| read(&format!("examples/queue/{name}.py")));
    let [driver, executor] = lines.map(|file| file.lines().count());
    assert!(driver < DRIVER_LINES_MAX, "driver.py has {driver} lines");
    let both = driver + executor;
    assert!(both < QUEUE_LINES_MAX, "driver.py and executor.py have {both} lines");
}

pub fn the_configurations_are_valid() {
    for block in blocks("yaml") {
        Config::parse("DRIVERS.md", &block).unwrap_or_else(|error| panic!("{error}\n{block}"));
    }
}

pub fn the_calls_get_the_documented_answers() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("drivers");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    let yaml = blocks("yaml").into_iter().find(|block| block.contains("app: calls")).unwrap();
    let (config, socket) = (folder.join("posse.yaml"), folder.join("control"));
    fs::write(&config, yaml).unwrap();
    let mut run = command(&folder);
    run.args(["run", "--dev", "-f"]).arg(&config);
    run.arg(format!("--control=unix:{}", socket.display()));
    let _run = Run(Guarded::spawn(run.stdout(Stdio::null()).stderr(Stdio::null())).unwrap());
    let control = Control { socket };

    let text = blocks("http").concat();
    let lines: Vec<&str> = text.lines().collect();
    for pair in lines.chunks(2) {
        let [call, answer] = pair else { panic!("no answer to {pair:?}") };
        wait_value(PATIENCE, "all to be as it should be", || as_expected(&control));
        let words: Vec<&str> = call.splitn(3, ' ').collect();
        let body = words.get(2).copied().unwrap_or_default();
        let (code, said) = control.try_call(words[0], words[1], body).unwrap();
        let (want_code, want) = answer.split_once(' ').unwrap();
        assert_eq!(code.to_string(), want_code, "{call}: {said}");
        let said: Value = serde_json::from_str(&said).unwrap();
        let want: Value = serde_json::from_str(want).unwrap();
        assert!(is_like(&said, &want), "{call}\ngot  {said}\nwant {want}");
    }
}

/// Stops the process gracefully, so that its executors end, too.
struct Run(Guarded);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.signal(Signal::TERM);
        let deadline = Instant::now() + PATIENCE;
        while !self.0.is_over() && Instant::now() < deadline {
            thread::sleep(STEP);
        }
    }
}

/// As many executors run as the target says and none is starting or ending, so the ids are those of
/// the page.
fn as_expected(control: &Control) -> Result<(), String> {
    let (code, text) =
        control.try_call("GET", "/v1/status", "").map_err(|error| error.to_string())?;
    let status: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let group = &status["groups"][0];
    let others = ["requested", "pending", "draining", "terminating"];
    let is_settled = code == 200
        && group["running"] == group["target"]
        && others.iter().all(|state| group[*state] == 0);
    if is_settled { Ok(()) } else { Err(text) }
}

fn is_like(said: &Value, want: &Value) -> bool {
    match (said, want) {
        (Value::String(_), Value::String(want)) if want == ANYTHING => true,
        (Value::Object(said), Value::Object(want)) => {
            said.len() == want.len()
                && want.iter().all(|(key, want)| said.get(key).is_some_and(|s| is_like(s, want)))
        }
        (said, want) => said == want,
    }
}
