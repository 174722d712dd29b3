//! Watches the pods of tasks: never may two of one task be able to run at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use super::http::Client;
use super::node::{Line, watch_pods};
use super::scene::{Scene, is_over, is_running, name_of, uid_of};
use super::server::Who;
use super::wait::{PATIENCE, wait_value};

/// The maximum number of queued watch lines.
const LINES_MAX: usize = 1_000;

/// What the watch has shown so far.
#[derive(Default)]
struct Seen {
    /// The pods that may still run, by uid: also those that are terminating.
    live: BTreeMap<String, Value>,
    keys: BTreeSet<String>,
    /// Keys that had two live pods.
    twice: BTreeSet<String>,
}

/// A watch of the pods of one namespace, from the server's side. Ends when dropped.
pub struct KeyWatch {
    watcher: Client,
    stop: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    threads: Vec<JoinHandle<()>>,
}

impl KeyWatch {
    pub fn start(scene: &Scene<'_>) -> Self {
        let watcher = Client::new(&scene.server.access(Who::Admin), "test-admin");
        let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Seen>>::default());
        let (lines, inbox) = sync_channel(LINES_MAX);
        let watch = (watcher.clone(), scene.namespace.clone(), Arc::clone(&stop));
        let learnt = Arc::clone(&seen);
        let threads = vec![
            thread::spawn(move || watch_pods(&watch.0, &watch.1, &watch.2, &lines)),
            thread::spawn(move || learn_all(&inbox, &learnt)),
        ];
        Self { watcher, stop, seen, threads }
    }

    /// The pods that run.
    pub fn running(&self) -> Vec<Value> {
        lock(&self.seen).live.values().filter(|pod| is_running(pod)).cloned().collect()
    }

    /// The end, when no pod may run any more: the tasks had pods, and never two of one at a time.
    #[track_caller]
    pub fn finish(self, n_tasks: usize) {
        wait_value(PATIENCE, "no pod to be live", || {
            let seen = lock(&self.seen);
            if seen.live.is_empty() { Ok(()) } else { Err(format!("{:?}", seen.live.keys())) }
        });
        let seen = lock(&self.seen);
        // Pods may come and go while the server is back and the watch is not.
        assert!(seen.keys.len() >= n_tasks * 9 / 10, "the watch saw {} tasks", seen.keys.len());
        assert!(seen.twice.is_empty(), "two pods of one task at a time: {:?}", seen.twice);
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.watcher.shutdown();
        for thread in self.threads.drain(..) {
            // Its panic was already printed; the scenario's own result counts.
            let _ = thread.join();
        }
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().expect("nobody panics in here")
}

fn learn_all(inbox: &Receiver<Line>, seen: &Mutex<Seen>) {
    while let Ok(line) = inbox.recv() {
        let mut seen = lock(seen);
        match line {
            Line::All(pods) => {
                // What is not listed is gone. Only then the others are looked at.
                seen.live.clear();
                pods.into_iter().for_each(|pod| seen.learn(pod));
            }
            Line::One(pod) => seen.learn(pod),
            Line::Gone(pod) => drop(seen.live.remove(uid_of(&pod))),
        }
    }
}

impl Seen {
    fn learn(&mut self, pod: Value) {
        let Some(key) = key_of(&pod).map(str::to_owned) else { return };
        self.keys.insert(key.clone());
        if is_over(&pod) {
            self.live.remove(uid_of(&pod));
            return;
        }
        let is_other =
            |other: &&Value| key_of(other) == Some(&key) && uid_of(other) != uid_of(&pod);
        if let Some(other) = self.live.values().find(is_other) {
            self.twice.insert(format!("{key}: {} and {}", name_of(other), name_of(&pod)));
        }
        self.live.insert(uid_of(&pod).to_owned(), pod);
    }
}

fn key_of(pod: &Value) -> Option<&str> {
    pod["metadata"]["labels"]["posse.dev/key"].as_str()
}
