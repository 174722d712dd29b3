//! What watches cost the API server: memory for each, and processor time for each event that a watch
//! has to filter out. 1,000 applications in one namespace have 1,000 watches, each with its labels.
//! `KUBEBUILDER_ASSETS=... cargo bench --bench watches [-- WATCHES]`; without a number 1,000.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use figures::{assets, cpu, memory};
use serde_json::json;
use support::http::Client;
use support::real::Real;
use support::server::{Server as _, Who, create_namespace, pods_path};
use support::wait::wait_value;

const NAMESPACE: &str = "watches";
/// Changes of a pod that no watch selects, for each number of watches.
const N_EVENTS: u32 = 2_000;
const STACK_BYTES: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let Some(assets) = assets() else { return ExitCode::SUCCESS };
    let n_max = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000);
    let real = Real::start(&assets, false);
    let admin = real.client(Who::Admin, "test-admin");
    create_namespace(&admin, NAMESPACE);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "changing"},
        "spec": {"containers": [{"name": "worker", "image": "example.com/worker:1"}]}});
    admin.post(&pods_path(NAMESPACE), &pod).ok();
    // The first events warm the server up.
    change(&admin, "warm");
    let n_open = Arc::new(AtomicUsize::new(0));
    let pid = real.apiserver_pid();
    for n in [0, n_max / 10, n_max / 2, n_max] {
        open(&real, &n_open, n);
        thread::sleep(SETTLE);
        let before = cpu(pid);
        change(&admin, &n.to_string());
        let used = (cpu(pid) - before).as_secs_f64() * 1e6 / f64::from(N_EVENTS);
        println!(
            "{n} watches: {used:.0} us of the server's processor time an event; {}",
            memory(pid)
        );
    }
    ExitCode::SUCCESS
}

fn change(admin: &Client, round: &str) {
    let path = format!("{}/changing", pods_path(NAMESPACE));
    for i in 0..N_EVENTS {
        let value = format!("{round}-{i}");
        admin.merge_patch(&path, &json!({"metadata": {"annotations": {"change": value}}})).ok();
    }
}

/// Opens watches until there are `n`, each on a connection of its own as posse's.
fn open(real: &Real, n_open: &Arc<AtomicUsize>, n: usize) {
    let path = format!("{}?watch=1&allowWatchBookmarks=true", pods_path(NAMESPACE));
    for i in n_open.load(Ordering::SeqCst)..n {
        let client = Client::new(&real.access(Who::Admin), "test-watch");
        let path = format!("{path}&labelSelector=posse.dev%2Fapp%3Dapp-{i}");
        let n_open = Arc::clone(n_open);
        let read = move || {
            let answer = client.raw("GET", &path, &[], &[], None).unwrap();
            n_open.fetch_add(1, Ordering::SeqCst);
            // It ends with the server.
            let _ = std::io::copy(&mut answer.into_body().into_reader(), &mut std::io::sink());
        };
        thread::Builder::new().stack_size(STACK_BYTES).spawn(read).unwrap();
    }
    wait_value(LIMIT, "all watches to be open", || {
        let open = n_open.load(Ordering::SeqCst);
        if open >= n { Ok(()) } else { Err(open) }
    });
}
