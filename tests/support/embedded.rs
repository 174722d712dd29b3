//! The embedded cluster as a server for tests: the binary's `posse dev` with its own node.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::access::Access;
use super::http::Client;
use super::node::SimulatedNode;
use super::posse::command;
use super::proxy::{Proxy, ProxyAction};
use super::real::Real;
use super::reaper::Guarded;
use super::scene::TempDir;
use super::server::{End, Node, Server, Who, create_namespace};
use super::wait::{PATIENCE, wait_for, wait_value};

/// How long it may take to end its pods' processes.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// The path of its faults.
const FAULTS: &str = "/posse/faults";

/// How long a node may be out of reach before it is marked as lost.
const NODE_GRACE_MS: u64 = 400;

/// A running `posse dev`. Ends when dropped.
pub struct Embedded {
    process: Mutex<Guarded>,
    access: Access,
    /// Its state is in memory, so an outage is simulated by a proxy.
    front: Option<Proxy>,
    /// The version at `back_up`.
    kept: Mutex<u64>,
    /// Its pods have no processes.
    is_simulated: bool,
    dir: TempDir,
}

impl Embedded {
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// With these arguments after `posse dev`.
    pub fn start_with(args: &[&str]) -> Self {
        let dir = TempDir::new("dev");
        let command = command(dir.path());
        Self::start_command(dir, command, args)
    }

    /// In this folder, which is then the working directory of its containers.
    pub fn start_in(folder: &Path) -> Self {
        let dir = TempDir::new("dev");
        let mut command = command(dir.path());
        command.current_dir(folder);
        Self::start_command(dir, command, &[])
    }

    /// As another user without access to our files, so the program is copied.
    pub fn start_as(user: u32, args: &[&str]) -> Self {
        let dir = TempDir::new("dev");
        let program = dir.path().join("posse");
        // Not by this process: a child that another thread forks would have the copy open for a moment, and a file that is
        // open for writing cannot be run (ETXTBSY).
        let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_posse")).arg(&program).status();
        assert!(copied.is_ok_and(|status| status.success()), "the folder can be written");
        std::os::unix::fs::chown(dir.path(), Some(user), Some(user)).expect("we are root");
        let mut command = Command::new(program);
        command.current_dir(dir.path()).env_clear().uid(user).gid(user);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default()).env("HOME", dir.path());
        Self::start_command(dir, command, args)
    }

    fn start_command(dir: TempDir, mut command: Command, args: &[&str]) -> Self {
        let kubeconfig = dir.path().join("kubeconfig");
        let log = fs::File::create(dir.path().join("log")).expect("the folder can be written");
        command
            .args(["dev", "--listen", "127.0.0.1:0"])
            .args([Path::new("--kubeconfig"), &kubeconfig])
            .args(args)
            .stdout(Stdio::null())
            .stderr(log);
        let mut process = Guarded::spawn(&mut command).expect("the binary can be started");
        let access = wait_value(PATIENCE, "posse dev to answer", || {
            let log = || fs::read_to_string(dir.path().join("log")).unwrap_or_default();
            assert!(!process.is_over(), "posse dev ended at its start:\n{}", log());
            if !kubeconfig.exists() {
                return Err("no kubeconfig yet".to_owned());
            }
            let access = Access::from_kubeconfig(&kubeconfig);
            let client = Client::new(&access, "test-admin");
            let answer = client.try_call("GET", "/version", "application/json", &Value::Null);
            match answer {
                Ok(answer) if answer.code == 200 => Ok(access),
                Ok(answer) => Err(format!("/version answers {}", answer.code)),
                Err(e) => Err(e.to_string()),
            }
        });
        let (process, kept) = (Mutex::new(process), Mutex::default());
        let is_simulated = args.contains(&"--simulate");
        Self { process, access, front: None, kept, is_simulated, dir }
    }

    /// The kubeconfig that it wrote.
    pub fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// Switches these faults on, and all others off.
    #[track_caller]
    pub fn fault(&self, faults: &Value) {
        put_faults(&Client::new(&self.access, "test-admin"), faults);
    }

    fn front(&self) -> &Proxy {
        self.front.as_ref().expect("only a server of its own is stopped")
    }
}

#[track_caller]
fn put_faults(client: &Client, faults: &Value) {
    client.try_call("PUT", FAULTS, "application/json", faults).expect("an answer").ok();
}

/// A cluster without containers, and the `pod.json` of a simple worker: for benchmarks.
pub fn simulated(dir: &TempDir, args: &[&str]) -> (Guarded, Access) {
    let kubeconfig = dir.path().join("kubeconfig");
    let mut dev = command(dir.path());
    dev.args(["dev", "--simulate", "--listen", "127.0.0.1:0"])
        .args([Path::new("--kubeconfig"), &kubeconfig])
        .args(args)
        .env("POSSE_LOG", "warn")
        .stdout(Stdio::null());
    let process = Guarded::spawn(&mut dev).expect("the binary can be started");
    wait_for(PATIENCE, "posse dev to answer", || kubeconfig.exists());
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
        {"name": "worker", "image": "example.com/worker:1"}]}});
    fs::write(dir.path().join("pod.json"), pod.to_string()).expect("the folder can be written");
    (process, Access::from_kubeconfig(&kubeconfig))
}

impl Drop for Embedded {
    fn drop(&mut self) {
        let process = self.process.get_mut().expect("nobody panicked in here");
        process.signal(Signal::CONT);
        process.signal(Signal::TERM);
        let asked = Instant::now();
        while !process.is_over() && asked.elapsed() < STOP_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Server for Embedded {
    fn access(&self, who: Who) -> Access {
        match (&self.front, who) {
            (Some(front), Who::Posse) => front.access(),
            // It has one user, who may do everything.
            (_, Who::Admin | Who::Node | Who::Posse | Who::Stranger) => self.access.clone(),
        }
    }

    fn open_namespace(&self, namespace: &str) {
        create_namespace(&Client::new(&self.access, "test-admin"), namespace);
    }

    fn node(&self, namespace: &str, dir: &Path) -> Box<dyn Node> {
        let name = if self.is_simulated { "test-node" } else { "test-admin" };
        let client = Client::new(&self.access, name);
        if self.is_simulated {
            return Box::new(SimulatedNode { namespace: namespace.to_owned(), client });
        }
        Box::new(OwnNode { dir: dir.to_owned(), admin: client })
    }

    fn fresh(&self) -> Box<dyn Server> {
        let mut own = Self::start_with(&["--nodes", "2"]);
        own.front = Some(Proxy::start(&own.access, |_, _| ProxyAction::Pass));
        Box::new(own)
    }

    fn down(&self) {
        self.front().down();
    }

    fn up(&self) {
        self.front().up();
    }

    fn freeze(&self) {
        self.process.lock().expect("nobody panics in here").freeze();
    }

    fn thaw(&self) {
        self.process.lock().expect("nobody panics in here").signal(Signal::CONT);
    }

    fn compact(&self) {
        self.fault(&json!({"compact": 1}));
        self.fault(&json!({}));
    }

    fn back_up(&self) {
        let answer = Client::new(&self.access, "test-admin").get(FAULTS).ok();
        let version = answer["history"]["now"].as_u64().expect("a version is a number");
        *self.kept.lock().expect("nobody panics in here") = version;
    }

    fn restore(&self) {
        self.fault(&json!({"restore": *self.kept.lock().expect("nobody panics in here")}));
    }

    fn audit_log(&self) -> Option<PathBuf> {
        None
    }

    fn real(&self) -> Option<&Real> {
        None
    }
}

/// The node inside `posse dev` runs containers as processes, which read their orders from the
/// scene's folder.
struct OwnNode {
    dir: PathBuf,
    admin: Client,
}

impl Node for OwnNode {
    fn end(&self, pod: &str, end: End) {
        let order = match end {
            End::Exit(code) => code.to_string(),
            End::Killed => "kill".to_owned(),
            End::OomKilled => "oom".to_owned(),
            End::Disrupted(_) | End::NotStarted | End::PodFailed(_) => {
                panic!("only the real server's scenarios use the test-side node: {end:?}")
            }
        };
        // Renamed when complete, so that a container does not read half an order.
        let file = self.dir.join(format!("{pod}.order"));
        fs::write(&file, order).expect("the folder can be written");
        fs::rename(&file, self.dir.join(format!("{pod}.end"))).expect("the same folder");
    }

    fn hold_deletes(&self, hold: bool) {
        let deaf = self.dir.join("deaf");
        let done = if hold { fs::write(deaf, "") } else { fs::remove_file(deaf) };
        done.expect("the folder can be written");
    }

    fn hold_starts(&self, _hold: bool) {
        panic!("only the real server's scenarios use the test-side node")
    }

    fn cut_off(&self, node: &str) {
        put_faults(&self.admin, &json!({"node-loss": node, "node-grace": NODE_GRACE_MS}));
    }

    fn connect(&self, _node: &str) {
        put_faults(&self.admin, &json!({}));
    }
}
