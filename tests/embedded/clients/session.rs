//! Runs a client: finds it, gives it a namespace, a kubeconfig and a time limit, and checks its
//! result.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use super::console;
use crate::support::embedded::Embedded;
use crate::support::posse::{command, said};
use crate::support::real::NODES;
use crate::support::reaper::Guarded;
use crate::support::runner::is_in_full;
use crate::support::scene::{Scene, TempDir};
use crate::support::server::{Server, Who};
use crate::support::wait::wait_value;

/// A session takes seconds; on a busy machine it may take minutes.
const LIMIT: Duration = Duration::from_secs(600);

/// Which kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kubectl {
    /// 1.20, of Debian's package `kubernetes-client`.
    Debian,
    /// The installed one, if its version is another.
    Path,
}

fn installed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("target/clients").join(name)
}

/// Reports that a client is missing; fails if `CI` is set.
fn not_tested(what: &str) {
    println!("NOT TESTED: {what} is not installed; `.ci/clients` installs it");
    assert!(std::env::var_os("CI").is_none(), "{what} is not installed, and this is CI");
}

impl Kubectl {
    fn program(self) -> Option<PathBuf> {
        match self {
            Self::Debian => {
                let program = installed("kubectl-1.20");
                if program.exists() {
                    return Some(program);
                }
                not_tested("kubectl 1.20");
                None
            }
            Self::Path => {
                let other =
                    on_path("kubectl").filter(|program| !version(program).contains("v1.20."));
                if other.is_none() {
                    println!("NOT TESTED: this machine has no kubectl other than 1.20");
                }
                other
            }
        }
    }
}

fn version(kubectl: &Path) -> String {
    let output = Command::new(kubectl).args(["version", "--client"]).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Runs `kubectl/NAME.console`.
pub fn session(server: &dyn Server, kubectl: Kubectl, name: &str) {
    console::check_itself();
    let Some(program) = kubectl.program() else { return };
    let text = folder().join("kubectl").join(format!("{name}.console"));
    let text = fs::read_to_string(text).expect("the session is there");
    let own;
    // Commands that change whole nodes would disturb other tests.
    let server = match text.starts_with("# own server") && server.real().is_none() {
        true => {
            own = Embedded::start_with(&["--nodes", "2", "--rbac"]);
            &own
        }
        false => server,
    };
    let real = server.real().is_some();
    let steps = console::steps(&text, |word| match word {
        "embedded" => !real,
        "real" => real,
        "kubectl-1.20" => kubectl == Kubectl::Debian,
        "kubectl-newer" => kubectl == Kubectl::Path,
        word => panic!("{name}: only: {word}"),
    });
    let scene = Scene::new(server);
    let script = scene.file("session.sh");
    fs::write(&script, console::script(&steps)).expect("the folder can be written");
    let bin = scene.file("bin");
    fs::create_dir(&bin).expect("the folder can be written");
    let wrapper = bin.join("kubectl");
    fs::write(&wrapper, format!("#!/bin/sh\nexec {} \"$@\"\n", program.display()))
        .and_then(|()| fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)))
        .expect("the folder can be written");
    let mut command = Command::new("bash");
    command.arg(&script);
    let (output, _) = play(&scene, command, &bin);
    let wrong = console::differences(&steps, &output);
    assert!(wrong.is_empty(), "{name} with {}:{wrong}", program.display());
    scene.finish_with_pods();
}

/// Runs one of our Python programs, which use third-party libraries.
pub fn program(server: &dyn Server, name: &str) {
    let python = installed("bin/python");
    if !python.exists() {
        return not_tested("the Python libraries");
    }
    // A short history, so that a watch can get a 410.
    let own = match server.real() {
        Some(_) => None,
        None => Some(Embedded::start_with(&["--fault", "compact=100", "--rbac"])),
    };
    let server = own.as_ref().map_or(server, |own| own);
    let scene = Scene::new(server);
    let mut command = Command::new(python);
    command.arg("-u").arg(folder().join(format!("{name}.py")));
    let (output, good) = play(&scene, command, Path::new("/usr/bin"));
    assert!(good, "{name} failed:\n{output}");
    scene.finish_with_pods();
}

/// The client of Spark, from the jars of PySpark, with the kubeconfig that `posse dev` wrote: it lists, creates and
/// watches a pod, reads its log, runs a command in it, copies a file and deletes the pod.
pub fn fabric8() {
    let jars = find_jars(&Path::new(env!("CARGO_MANIFEST_DIR")).join("target/spark"), 8);
    let (Some(jars), Some(_)) = (jars, on_path("javac")) else {
        println!("NOT TESTED: fabric8 needs a JDK, and PySpark: `examples/spark/run.sh install`");
        return;
    };
    let server = Embedded::start_with(&["--rbac"]);
    let scene = Scene::new(&server);
    let mut client = Command::new("java");
    client.arg("-cp").arg(jars.join("*")).arg(folder().join("Fabric8Client.java"));
    client.env("DEV_KUBECONFIG", server.kubeconfig()).env("COPY", scene.file("copy"));
    let (output, good) = play(&scene, client, Path::new("/usr/bin"));
    assert!(good, "the client failed:\n{output}");
    scene.finish_with_pods();
}

/// PySpark's folder of jars below `folder`; of several versions the last one.
fn find_jars(folder: &Path, depth: usize) -> Option<PathBuf> {
    let jars = folder.join("pyspark/jars");
    if jars.is_dir() {
        return Some(jars);
    }
    let inside = fs::read_dir(folder).ok().filter(|_| depth > 0)?;
    let folders = inside.filter_map(|entry| Some(entry.ok()?.path()));
    let folders: BTreeSet<PathBuf> = folders.collect();
    folders.iter().rev().find_map(|folder| find_jars(folder, depth - 1))
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = std::env::split_paths(&path).map(|folder| folder.join(name));
    all.find(|program| program.exists())
}

/// schemathesis calls the control API as its OpenAPI document describes, and checks the answers.
pub fn schemathesis() {
    let program = installed("bin/schemathesis");
    if !program.exists() {
        return not_tested("schemathesis");
    }
    let dir = TempDir::new("calls");
    let file = |name: &str| dir.path().join(name);
    let script = "echo $POSSE_CONTROL > address.new; mv address.new address; exec sleep 600";
    let settings = json!({
        "app": "calls", "driver": {"command": ["sh", "-c", script]},
        // A limit, because each executor is a process and schemathesis sets any target.
        "allocation": {"pending_max": 2},
        "executors": [{"group": "default", "max": 2, "image": "none:1", "command": ["sleep", "600"]}],
    });
    fs::write(file("posse.yaml"), settings.to_string()).expect("the folder can be written");
    fs::write(file("token"), "abcdefghijklmnop").expect("the folder can be written");
    fs::set_permissions(file("token"), fs::Permissions::from_mode(0o600)).expect("it is ours");
    let log = File::create(file("log")).expect("the folder can be written");
    let mut posse = command(dir.path());
    posse.args(["run", "--dev", "--control=127.0.0.1:0", "--control-token-file=token"]);
    posse.stdout(Stdio::null()).stderr(log);
    let mut posse = Guarded::spawn(&mut posse).expect("the binary can be started");
    let address = wait_value(LIMIT, "the control API", || {
        assert!(!posse.is_over(), "posse ended");
        fs::read_to_string(file("address"))
    });
    let n_examples = if is_in_full() { "30" } else { "10" };
    let mut calls = Command::new("timeout");
    calls
        .args(["-k", "5", &LIMIT.as_secs().to_string()])
        .arg(program)
        .args(["run", &format!("http://{}/openapi.json", address.trim())])
        .args([
            "-H",
            "Authorization: Bearer abcdefghijklmnop",
            "--seed",
            "1",
            "--max-examples",
            n_examples,
        ])
        // The API server validates pods, and followed event streams do not end.
        .args(["--exclude-checks", "positive_data_acceptance", "--exclude-path", "/v1/events"])
        .env("HOME", dir.path())
        .current_dir(dir.path());
    let output = calls.output().expect("it can be started");
    assert!(output.status.success(), "{}", said(&output));
    assert!(!posse.is_over(), "posse ended");
    // Its executors end with it.
    posse.signal(Signal::TERM);
    wait_value(LIMIT, "posse to end", || posse.status().ok_or("it still runs"));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/embedded/clients")
}

/// Runs a client to its end; returns its output and whether it succeeded.
fn play(scene: &Scene<'_>, client: Command, first: &Path) -> (String, bool) {
    let (config, output) = (scene.file("kubeconfig"), scene.file("output"));
    let access = scene.server.access(Who::Admin);
    fs::write(&config, access.kubeconfig(&scene.namespace)).expect("the folder can be written");
    let real = scene.server.real().is_some();
    let file = File::create(&output).expect("the folder can be written");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path =
        std::env::join_paths([first.to_owned()].into_iter().chain(std::env::split_paths(&path)))
            .expect("a PATH of PATHs");
    // Ends the whole process group.
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", &LIMIT.as_secs().to_string()]).arg(client.get_program());
    limited
        .args(client.get_args())
        .current_dir(scene.dir.path())
        .env("PATH", path)
        .env("HOME", scene.dir.path())
        .env("KUBECONFIG", config)
        .env("NS", &scene.namespace)
        .env("NODE", if real { NODES[0] } else { "dev-node-0" })
        .env("SERVER", if real { "real" } else { "embedded" })
        .env("SERVED", folder().join("served.json"))
        .envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))))
        .env("LC_ALL", "C.UTF-8")
        .env_remove("KUBECTL_EXTERNAL_DIFF")
        .stdout(file.try_clone().expect("a file can be shared"))
        .stderr(file);
    let mut process = Guarded::spawn(&mut limited).expect("the client can be started");
    let status =
        wait_value(LIMIT + LIMIT, "the client to end", || process.status().ok_or("it still runs"));
    (fs::read_to_string(&output).expect("it wrote text"), status.success())
}
