//! The limit: parallel POSTs of the same body, with or without a watch that is read and not parsed. Runs as a
//! process of its own, so that its processor time can be told from the benchmark's.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use crate::support::access::Access;
use crate::support::http::Client;
use crate::support::server::pods_path;

/// As many as posse sends at most.
const CONNECTIONS: u32 = 32;
const AGENT: &str = "test-bare";
const WORD: &str = "bare-loop";
/// The argument that makes it read a watch, too.
pub const WATCH: &str = "watch";
/// What stands in the body for the pod's name.
const NAME: &str = "NAME";

pub fn is_asked() -> bool {
    std::env::args().nth(1).as_deref() == Some(WORD)
}

/// The command that runs it: this program with other arguments.
pub fn command(kubeconfig: &Path, namespace: &str, executors: u32, pod: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(WORD).arg(kubeconfig).arg(namespace).arg(executors.to_string()).arg(pod);
    command
}

/// The pod, from whatever name it has.
pub fn body(pod: &mut serde_json::Value) -> String {
    pod["metadata"]["name"] = NAME.into();
    pod.to_string()
}

pub fn run() {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let [kubeconfig, namespace, executors, pod, more @ ..] = &args[..] else { panic!("few") };
    let (access, path) = (Access::from_kubeconfig(Path::new(kubeconfig)), pods_path(namespace));
    let (n, body): (u32, _) = (executors.parse().unwrap(), std::fs::read_to_string(pod).unwrap());
    let watched = (access.clone(), path.clone());
    if more == [WATCH] {
        thread::spawn(move || watch(&watched.0, &watched.1));
    }
    let next = AtomicU32::new(1);
    let headers = [("content-type".to_owned(), "application/json".to_owned())];
    thread::scope(|scope| {
        for _ in 0..CONNECTIONS.min(n) {
            scope.spawn(|| {
                let client = Client::new(&access, AGENT);
                loop {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    if id > n {
                        return;
                    }
                    let body = body.replacen(NAME, &format!("peers-xxxxx-exec-{id}"), 1);
                    let answer =
                        client.raw("POST", &path, &headers, body.as_bytes(), None).unwrap();
                    assert_eq!(answer.status(), 201);
                    answer.into_body().read_to_vec().unwrap();
                }
            });
        }
    });
    // The watch goes on until the benchmark ends the process.
    loop {
        thread::park();
    }
}

fn watch(access: &Access, path: &str) {
    let client = Client::new(access, AGENT);
    let answer = client.raw("GET", &format!("{path}?watch=1"), &[], &[], None).unwrap();
    let mut lines = BufReader::with_capacity(64 << 10, answer.into_body().into_reader());
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        line.clear();
    }
}
