//! The binary under test: its settings file, process, events and exit code.

use std::cell::{Cell, RefCell};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::access::Access;
use super::control::Control;
use super::reaper::Guarded;
use super::runner;
use super::scene::{APP, TempDir};
use super::wait::{PATIENCE, wait_value};

/// The program of this build.
const BUILT: &str = env!("CARGO_BIN_EXE_posse");

/// The program, with an environment that does not depend on this machine.
pub fn command(dir: &Path) -> Command {
    program(BUILT.as_ref(), dir)
}

/// The program whose runs are tested: for benchmarks, `POSSE_BENCHED` may name another build.
pub fn run_command(dir: &Path) -> Command {
    let other = std::env::var_os("POSSE_BENCHED");
    program(other.as_deref().unwrap_or_else(|| BUILT.as_ref()), dir)
}

fn program(program: &OsStr, dir: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", dir)
        .env("XDG_RUNTIME_DIR", dir)
        .env("TMPDIR", dir)
        .env("NO_COLOR", "1")
        .env("POSSE_LOG", "posse=debug");
    command
}

/// A `posse run` before its start.
pub struct Run {
    dir: PathBuf,
    number: u32,
    settings: Value,
    kubeconfig: PathBuf,
    args: Vec<String>,
    driver: Vec<String>,
    env: Vec<(String, String)>,
    is_first: bool,
    other: Option<PathBuf>,
}

impl Run {
    /// One executor group `default` with target 0, from `pod.json` in `dir`.
    pub fn new(dir: &Path, namespace: &str, access: &Access) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let kubeconfig = dir.join(format!("{number}.kubeconfig"));
        fs::write(&kubeconfig, access.kubeconfig(namespace)).expect("the folder can be written");
        let settings = json!({
            "app": APP, "namespace": namespace,
            "executors": [{"group": "default", "count": 0, "template": "pod.json"}],
            // A busy machine needs seconds to end processes.
            "shutdown": {"grace": "20s", "timeout": "20s"},
        });
        let (args, driver, env) = (Vec::new(), Vec::new(), Vec::new());
        let dir = dir.to_owned();
        Self { dir, number, settings, kubeconfig, args, driver, env, is_first: false, other: None }
    }

    pub fn executors(mut self, n: u32) -> Self {
        self.settings["executors"][0]["count"] = n.into();
        self
    }

    /// Merges `patch` into the settings file, like a JSON merge patch.
    pub fn settings(mut self, patch: Value) -> Self {
        merge(&mut self.settings, patch);
        self
    }

    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// The instance, which keeps its executors over restarts.
    pub fn instance(self, id: &str) -> Self {
        self.arg("--instance").arg(id)
    }

    pub fn driver(mut self, words: &[&str]) -> Self {
        self.driver = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// As a process in the pod with this name and uid.
    pub fn in_pod(self, name: &str, uid: &str) -> Self {
        self.env("POD_NAME", name).env("POD_UID", uid)
    }

    /// As the first process of a PID namespace, which ends with it; `Posse::pid` is then another
    /// process.
    pub fn into_init(mut self) -> Self {
        self.is_first = true;
        self
    }

    /// Another build of posse runs.
    pub fn program(mut self, other: &Path) -> Self {
        self.other = Some(other.to_owned());
        self
    }

    /// Runs another command of posse with these settings and waits for its end.
    pub fn once(self, words: &[&str]) -> Output {
        let config = self.write_settings();
        let mut command = run_command(&self.dir);
        command.args(words).args([Path::new("-f"), &config]);
        command.args([Path::new("--kubeconfig"), &self.kubeconfig]).args(&self.args);
        command.stdin(Stdio::null()).output().expect("the binary can be started")
    }

    fn write_settings(&self) -> PathBuf {
        let config = self.dir.join(format!("{}.yaml", self.number));
        fs::write(&config, format!("{:#}\n", self.settings)).expect("the folder can be written");
        runner::show_on_failure(&config);
        config
    }

    #[track_caller]
    pub fn start(self) -> Posse {
        let mut command = match &self.other {
            Some(other) => program(other.as_os_str(), &self.dir),
            None => run_command(&self.dir),
        };
        if self.is_first {
            let mut outside = Command::new("unshare");
            outside.args(["--pid", "--fork", "--kill-child"]).arg(command.get_program());
            outside.current_dir(&self.dir).env_clear();
            outside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            command = outside;
        }
        command
            .arg("run")
            .args([Path::new("--events"), &self.file("events")])
            .arg(format!("--control=unix:{}", self.file("sock").display()));
        self.spawn(command)
    }

    /// Starts another command of posse with these settings; it may end at any time.
    #[track_caller]
    pub fn begin(self, words: &[&str]) -> Posse {
        let mut command = run_command(&self.dir);
        command.args(words);
        let posse = self.spawn(command);
        posse.may_end();
        posse
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.number))
    }

    #[track_caller]
    fn spawn(self, mut command: Command) -> Posse {
        let config = self.write_settings();
        let (events, control) = (self.file("events"), self.file("sock"));
        let (stdout, stderr) = (self.file("stdout"), self.file("stderr"));
        runner::show_on_failure(&stderr);
        runner::show_on_failure(&events);
        command
            .args([Path::new("-f"), &config, Path::new("--kubeconfig"), &self.kubeconfig])
            .args(&self.args)
            .envs(self.env)
            .stdout(File::create(&stdout).expect("the folder can be written"))
            .stderr(File::create(&stderr).expect("the folder can be written"));
        if !self.driver.is_empty() {
            command.arg("--").args(&self.driver);
        }
        let child = Guarded::spawn(&mut command).expect("the binary can be started");
        let life = Rc::new(Life { child: RefCell::new(child), may_end: Cell::new(false) });
        LIVES.with_borrow_mut(|lives| lives.push(Rc::downgrade(&life)));
        Posse { life, dir: self.dir, events, stderr, stdout, control }
    }
}

/// The process, and whether it may end.
struct Life {
    child: RefCell<Guarded>,
    may_end: Cell<bool>,
}

impl Life {
    fn status(&self) -> Option<ExitStatus> {
        self.child.borrow_mut().status()
    }
}

thread_local! {
    static LIVES: RefCell<Vec<Weak<Life>>> = const { RefCell::new(Vec::new()) };
}

/// Fails if a posse of this thread has ended unexpectedly, because what the test waits for will not
/// happen.
#[track_caller]
pub fn assert_all_live() {
    let lives = LIVES.with_borrow(Clone::clone);
    for life in lives.iter().filter_map(Weak::upgrade).filter(|life| !life.may_end.get()) {
        if let Some(status) = life.status() {
            panic!("posse ended ({status}) while the test needed it");
        }
    }
}

/// A started `posse run`. Killed when dropped.
pub struct Posse {
    life: Rc<Life>,
    dir: PathBuf,
    events: PathBuf,
    stderr: PathBuf,
    stdout: PathBuf,
    control: PathBuf,
}

impl Posse {
    pub fn pid(&self) -> u32 {
        self.life.child.borrow().pid()
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).unwrap_or_default()
    }

    pub fn events_file(&self) -> &Path {
        &self.events
    }

    /// The events so far.
    pub fn events(&self) -> Vec<Value> {
        read_events(&self.events)
    }

    /// The events of one kind.
    pub fn events_of(&self, kind: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["event"] == kind);
        events
    }

    /// Waits for an event of this kind that satisfies `fits`.
    #[track_caller]
    pub fn wait_event(&self, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
        wait_value(PATIENCE, &format!("a fitting event {kind}"), || {
            let events = self.events_of(kind);
            let found = events.iter().find(|event| fits(event)).cloned();
            found.ok_or_else(|| format!("{} of that kind: {events:?}", events.len()))
        })
    }

    /// Waits until there are `n` events of this kind, and no more. posse writes events behind its
    /// requests, so the server may show an effect before the file has the event.
    #[track_caller]
    pub fn wait_events(&self, kind: &str, n: usize) -> Vec<Value> {
        wait_value(PATIENCE, &format!("{n} events {kind}"), || {
            let events = self.events_of(kind);
            if events.len() == n { Ok(events) } else { Err(Value::from(events)) }
        })
    }

    /// Waits until the first group of the status fits.
    #[track_caller]
    pub fn wait_group(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        wait_value(PATIENCE, what, || {
            let group = self.status()["groups"][0].clone();
            if fits(&group) { Ok(group) } else { Err(group) }
        })
    }

    /// Waits until `/readyz` says that the first LIST was applied.
    #[track_caller]
    pub fn wait_ready(&self) {
        wait_value(PATIENCE, "posse to be ready", || {
            match self.control().try_call("GET", "/readyz", "") {
                Ok((200, _)) => Ok(()),
                Ok((code, body)) => Err(format!("/readyz answers {code}: {body}")),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    /// Its control API.
    pub fn control(&self) -> Control {
        Control { socket: self.control.clone() }
    }

    /// A client command of the same binary, against this run.
    pub fn ask(&self, args: &[&str]) -> Output {
        command(&self.dir)
            .args(args)
            .arg(format!("--control=unix:{}", self.control.display()))
            .stdin(Stdio::null())
            .output()
            .expect("the binary can be started")
    }

    /// A call as a driver makes it; returns the code and the body of the answer.
    #[track_caller]
    pub fn call(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.control().try_call(method, path, &body.to_string());
        let (code, body) = answer.expect("a whole answer");
        (code, serde_json::from_str(&body).expect("the answer is JSON"))
    }

    #[track_caller]
    pub fn scale(&self, group: &str, target: u32) {
        let output = self.ask(&["scale", "--group", group, &target.to_string()]);
        assert!(output.status.success(), "posse scale failed: {}", said(&output));
    }

    #[track_caller]
    pub fn status(&self) -> Value {
        let output = self.ask(&["status", "--json"]);
        assert!(output.status.success(), "posse status failed: {}", said(&output));
        serde_json::from_slice(&output.stdout).expect("the status is JSON")
    }

    /// Sends a signal; from then on the process may end.
    pub fn signal(&self, signal: Signal) {
        self.may_end();
        self.life.child.borrow_mut().signal(signal);
    }

    /// From now on the process may end.
    pub fn may_end(&self) {
        self.life.may_end.set(true);
    }

    pub fn is_over(&self) -> bool {
        self.life.status().is_some()
    }

    /// Waits for the end; returns the exit code.
    #[track_caller]
    pub fn wait_exit(&self, limit: Duration) -> i32 {
        self.may_end();
        let status = wait_value(limit, "posse to end", || self.life.status().ok_or("it runs"));
        status.code().unwrap_or_else(|| panic!("posse was ended by a signal: {status}"))
    }

    #[track_caller]
    pub fn expect_exit(&self, code: i32) {
        let got = self.wait_exit(PATIENCE);
        assert_eq!(got, code, "exit code; it said:\n{}", self.stderr());
    }

    /// Sends SIGTERM and expects a clean end.
    #[track_caller]
    pub fn stop(self) {
        self.signal(Signal::TERM);
        self.expect_exit(0);
    }

    /// Sends SIGKILL, like the OOM killer.
    pub fn kill(self) {
        self.may_end();
        self.life.child.borrow_mut().kill();
    }
}

/// The events in a file. An incomplete last line is ignored.
pub fn read_events(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).expect("an event is JSON")).collect()
}

/// A run on the embedded cluster with this script as its driver.
pub fn scripted(config: &str, script: &str) -> Output {
    let dir = TempDir::new("scripted");
    fs::write(dir.path().join("posse.yaml"), config).unwrap();
    let args = ["run", "--dev", "--", "sh", "-eu", "-c", script];
    let output = command(dir.path()).args(args).stdin(Stdio::null()).output();
    output.expect("the binary can be started")
}

#[track_caller]
pub fn printed(output: &Output, stdout: &str) {
    assert_eq!(String::from_utf8_lossy(&output.stdout), stdout, "{}", said(output));
    assert_eq!(output.status.code(), Some(0), "{}", said(output));
}

/// The output of a finished command.
pub fn said(output: &Output) -> String {
    format!(
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn merge(into: &mut Value, patch: Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, patch) => *into = patch,
    }
}
