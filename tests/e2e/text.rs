//! Text of others: a server and its pods cannot control a terminal or forge a line, and no log level
//! shows tokens or pods' environment variables.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use posse_base::text::is_unsafe;
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::posse::{command, said};
use crate::support::proxy::{Proxy, ProxyAction, status};
use crate::support::reaper::Guarded;
use crate::support::scene::{APP, Scene, TempDir};
use crate::support::server::{Server, Who};
use crate::support::stage::{SHARED, StageServer, TLS, TOKEN, furnish};
use crate::support::wait::{PATIENCE, wait_value};

/// Clears the screen, changes the colour by a C1 control, reverses the text, hides text, goes over the
/// line again, and begins a line of its own.
const EVIL: &str = "a\u{1b}[2J\u{9b}31m\u{202e}b\u{200b}\u{7f}\rc\u{2028}d\nFORGED 2026-01-01";

/// A pod as no API server would store it.
fn evil_pod(phase: &str, component: &str, owner: &str) -> Value {
    let state = json!({"terminated": {"exitCode": 1, "reason": EVIL, "message": EVIL,
        "finishedAt": "2026-01-01T00:00:00Z"}});
    json!({
        "metadata": {"name": "shop-a1b2c-exec-1", "uid": "u1", "resourceVersion": "5",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": EVIL, "uid": "u9",
                "controller": true}],
            "labels": {"posse.dev/app": APP, "posse.dev/instance": EVIL,
                "posse.dev/executor-id": "1", "posse.dev/group": "default",
                "app.kubernetes.io/managed-by": "posse", "app.kubernetes.io/component": component}},
        "spec": {"nodeName": EVIL, "containers": [{"name": "worker"}]},
        "status": {"phase": phase, "reason": EVIL, "message": EVIL,
            "conditions": [{"type": "Ready", "status": "False", "reason": EVIL, "message": EVIL}],
            "containerStatuses": [{"name": "worker", "restartCount": 0, "state": state}]},
    })
}

/// Answers with evil pods, jobs and events, and refuses the rest with an evil message.
fn evil_answer(method: &str, path: &str) -> ProxyAction {
    let list = |kind: &str, items: Value| {
        let body = json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": "5"},
            "items": items});
        ProxyAction::Reply(200, body)
    };
    let is_list = method == "GET" && !path.contains("watch=");
    if is_list && path.contains("/pods?") {
        let pods = ["executor", "driver"].map(|part| evil_pod("Failed", part, "Pod"));
        return list("PodList", pods.as_slice().into());
    }
    if is_list && path.contains("/events?") {
        let event = json!({"type": "Warning", "reason": EVIL, "message": EVIL, "count": 2,
            "lastTimestamp": "2026-01-01T00:00:00Z"});
        return list("EventList", json!([event]));
    }
    ProxyAction::Reply(403, status(403, "Forbidden", EVIL))
}

#[track_caller]
fn assert_safe(what: &str, output: &Output, says: bool) {
    let said = said(output);
    let bad = |c: char| is_unsafe(c) && c != '\n' && c != '\t';
    assert!(!said.contains(bad), "{what}: {said:?}");
    assert!(!said.lines().any(|line| line.starts_with("FORGED")), "{what}: {said}");
    assert!(!says || said.contains("[2J"), "{what} says nothing of it: {said}");
}

/// Each command that prints what a server says, against a server that says the worst.
pub fn text_of_a_server_stays_text(server: &dyn Server) {
    let scene = Scene::new(server);
    let proxy = Proxy::start(&server.access(Who::Admin), |request, _| {
        evil_answer(&request.method, &request.path)
    });
    for words in
        [&["check"][..], &["check", "--json"], &["run"], &["submit"], &["submit", "--dry-run"]]
    {
        let config = json!({"driver": {"image": "i", "command": ["true"]}});
        let done = scene.run_with(&proxy.access()).executors(1).settings(config).once(words);
        assert_safe(&words.join(" "), &done, true);
    }
    for (words, says) in [
        (&["cleanup", "--app", APP][..], true),
        (&["cleanup", "--app", APP, "--yes"], true),
        (&["cleanup", "--all-apps"], true),
        (&["apps"], true),
        (&["apps", "-o", "wide"], true),
        (&["apps", "-o", "json"], true),
        (&["logs", APP], true),
        (&["logs", APP, "1"], true),
        (&["stop", APP], true),
        (&["explain", "--app", APP], true),
        (&["explain", "--app", APP, "1", "--logs", "5"], true),
        (&["explain", "--app", APP, "1", "--json"], true),
    ] {
        let done = scene.command(&proxy.access(), words).output().unwrap();
        assert_safe(&words.join(" "), &done, says);
    }
    scene.finish();
}

/// The log of a container goes to a pipe as it is, and to a terminal only with --raw.
pub fn logs_on_a_terminal_are_escaped(server: &dyn Server) {
    let scene = Scene::new(server);
    scene.write_template("pod.json", |pod| {
        let script = "printf '\\033[2J\\233\\n'; echo done; sleep 1000";
        pod["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
        pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
    });
    let posse = scene.run().executors(1).start();
    posse.wait_event("executor_running", |_| true);
    let kubeconfig = scene.kubeconfig(&server.access(Who::Admin));
    let logs = format!(
        "{} logs {APP} 1 --kubeconfig {}",
        env!("CARGO_BIN_EXE_posse"),
        kubeconfig.display()
    );
    let piped = wait_value(PATIENCE, "the log", || {
        let done = Command::new("sh").args(["-c", &logs]).output().unwrap();
        match done.stdout.ends_with(b"done\n") {
            true => Ok(done.stdout),
            false => Err(said(&done)),
        }
    });
    assert_eq!(piped, b"\x1b[2J\x9b\ndone\n", "to a pipe as it is");
    // `script` gives its command a terminal.
    let on_terminal = |command: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", command, "/dev/null"]).stdin(Stdio::null());
        String::from_utf8_lossy(&script.output().unwrap().stdout).replace("\r\n", "\n")
    };
    assert_eq!(on_terminal(&logs), "\\u{1b}[2J\u{fffd}\ndone\n");
    assert_eq!(on_terminal(&format!("{logs} --raw")), "\u{1b}[2J\u{fffd}\ndone\n");
    posse.stop();
    scene.finish();
}

const LEVELS: [&str; 6] =
    ["error", "warn", "info", "debug", "trace", "trace,ureq=trace,ureq_proto=trace,rustls=trace"];
/// The value of a variable in the environment of pods.
const CANARY: &str = "c4nary-Zq7x9Wk2v3Rp8Td-environment";
/// The HTTP library logs what it sends in rows of 16 bytes, so a whole secret is in no line.
const PIECE_BYTES: usize = 8;

#[track_caller]
fn assert_silent(what: &str, log: &str, secrets: &[&str]) {
    for secret in secrets {
        // Each row that begins within a secret of this length has such a piece.
        assert!(secret.len() >= 2 * PIECE_BYTES, "{secret} is too short");
        for piece in secret.as_bytes().windows(PIECE_BYTES) {
            let piece = std::str::from_utf8(piece).unwrap();
            let line = log.lines().find(|line| line.contains(piece));
            assert_eq!(line, None, "{what} logs {piece:?} of {secret}");
        }
    }
}

/// A cluster that logs at a level. Its log is `dev.log` in the folder.
fn traced_cluster(dir: &Path, level: &str) -> (Guarded, Access) {
    let (kubeconfig, ready) = (dir.join("dev.kubeconfig"), dir.join("dev.out"));
    let file = |name: &str| fs::File::create(dir.join(name)).unwrap();
    let mut dev = command(dir);
    dev.args(["dev", "--rbac", "--simulate", "--listen", "127.0.0.1:0", "--kubeconfig"]);
    dev.arg(&kubeconfig).env("POSSE_LOG", level).stdout(file("dev.out")).stderr(file("dev.log"));
    let process = Guarded::spawn(&mut dev).unwrap();
    let access = wait_value(PATIENCE, "the name of the kubeconfig", || {
        match fs::read_to_string(&ready).unwrap_or_default().ends_with('\n') {
            true => Ok(Access::from_kubeconfig(&kubeconfig)),
            false => Err("not yet"),
        }
    });
    (process, access)
}

/// `run`, `submit`, `stage` and `dev` at every level.
pub fn no_log_level_shows_a_secret() {
    for level in LEVELS {
        let dir = TempDir::new("canary");
        let (_cluster, access) = traced_cluster(dir.path(), level);
        let token = access.token.clone().expect("--rbac gives tokens");
        furnish(dir.path());
        let stage = StageServer::start_logging(dir.path(), &[&TLS[..], &SHARED].concat(), level);
        fs::write(dir.path().join("data.csv"), "x\n").unwrap();
        let env = json!([{"name": "SECRET", "value": CANARY}]);
        let config = json!({"app": APP, "namespace": "default",
            "executors": [{"group": "default", "count": 2, "image": "i", "env": env}],
            "driver": {"image": "i", "command": ["true"], "env": env}});
        fs::write(dir.path().join("posse.yaml"), config.to_string()).unwrap();
        let put =
            ["stage", "put", "-n", "default", "--app", APP, "--ca", "ca.pem", "--url", &stage.url];
        let submit = [
            "submit",
            "--no-wait",
            "--create-rbac",
            "--stage-url",
            &stage.url,
            "--stage-ca",
            "ca.pem",
            "--stage-token-file",
            "token",
            "--file",
            "data.csv",
        ];
        for words in [
            &["run", "--", "sh", "-c", "posse=1"][..],
            &[&put[..], &["--token-file", "token", "data.csv"]].concat(),
            &submit,
            &["check"],
            &["-vv", "check"],
        ] {
            let mut posse = command(dir.path());
            posse
                .args(words)
                .env("POSSE_LOG", level)
                .env("KUBECONFIG", dir.path().join("dev.kubeconfig"));
            let done = posse.stdin(Stdio::null()).output().unwrap();
            let what = format!("{} at {level}", words[0]);
            let log = String::from_utf8_lossy(&done.stderr);
            assert_eq!(done.status.code(), Some(0), "{what}: {log}");
            assert_silent(&what, &log, &[&token, TOKEN, CANARY]);
        }
        let log = fs::read_to_string(dir.path().join("dev.log")).unwrap();
        assert_silent(&format!("dev at {level}"), &log, &[&token, TOKEN, CANARY]);
        assert_silent(&format!("stage at {level}"), &stage.log(), &[&token, TOKEN, CANARY]);
    }
}
