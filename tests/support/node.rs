//! The test-side node: plays scheduler and kubelet for one namespace of the real server, through
//! the API, as a separate user. It runs no containers and only writes statuses as a kubelet would.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::Duration;

use serde_json::{Value, json};

use super::access::Access;
use super::http::{Client, gone_in, gone_now};
use super::real::NODES;
use super::scene::{GRACE_S, is_over, name_of};
use super::server::{End, Node, items, pods_path};
use super::wait::{PATIENCE, wait_value};

/// How often delayed or refused work is tried again.
const TURN: Duration = Duration::from_millis(50);

/// The maximum number of queued watch lines.
const LINES_MAX: usize = 1_000;

/// How many steps are taken at a time: with thousands of pods the answers of a busy server take long.
pub const HANDS: usize = 8;

/// How long a watch lasts at most: as a kubelet's, because the LIST after it costs a server with many pods much.
const WATCH_S: u32 = 600;

/// A time in the past; nothing depends on it.
const THEN: &str = "2026-01-01T00:00:00Z";

#[derive(Default)]
struct Switches {
    hold_starts: AtomicBool,
    hold_deletes: AtomicBool,
    stop: AtomicBool,
    /// The nodes that are cut off: nothing happens there.
    cut_off: Mutex<BTreeSet<String>>,
}

/// The node of one namespace. Ends when dropped.
pub struct TestNode {
    namespace: String,
    client: Client,
    watcher: Client,
    switches: Arc<Switches>,
    /// Pods whose end the test has decided: the worker does not change their status.
    ended: Arc<Mutex<BTreeSet<String>>>,
    threads: Vec<JoinHandle<()>>,
}

impl TestNode {
    pub fn start(access: &Access, namespace: &str) -> Self {
        Self::start_with(access, namespace, true)
    }

    /// Only a kubelet, for all nodes: somebody else binds the pods.
    pub fn kubelet(access: &Access, namespace: &str) -> Self {
        Self::start_with(access, namespace, false)
    }

    fn start_with(access: &Access, namespace: &str, binds: bool) -> Self {
        let switches = Arc::new(Switches::default());
        let client = Client::new(access, "test-node");
        let watcher = Client::new(access, "test-node");
        let (lines, inbox) = sync_channel(LINES_MAX);
        let worker = Worker {
            client: client.clone(),
            namespace: namespace.to_owned(),
            binds,
            switches: Arc::clone(&switches),
            ended: Arc::default(),
            pods: BTreeMap::new(),
            done: BTreeSet::new(),
        };
        let ended = Arc::clone(&worker.ended);
        let watch = (watcher.clone(), namespace.to_owned(), Arc::clone(&switches));
        let threads = vec![
            thread::spawn(move || watch_pods(&watch.0, &watch.1, &watch.2.stop, &lines)),
            thread::spawn(move || worker.work(&inbox)),
        ];
        Self { namespace: namespace.to_owned(), client, watcher, switches, ended, threads }
    }
}

impl Node for TestNode {
    fn end(&self, pod: &str, end: End) {
        let path = format!("{}/{pod}", pods_path(&self.namespace));
        let now = self.client.get(&path).ok();
        // A later pod with the same name starts normally.
        let uid = now["metadata"]["uid"].as_str().expect("a pod has a uid").to_owned();
        self.ended.lock().expect("nobody panics in here").insert(uid);
        end_pod(&self.client, &path, &now, end);
    }

    fn hold_deletes(&self, hold: bool) {
        self.switches.hold_deletes.store(hold, Ordering::SeqCst);
    }

    fn hold_starts(&self, hold: bool) {
        self.switches.hold_starts.store(hold, Ordering::SeqCst);
    }

    fn cut_off(&self, node: &str) {
        self.switches.cut_off().insert(node.to_owned());
        let pods = items(&self.client.get(&pods_path(&self.namespace)).ok());
        let is_here = |pod: &&Value| pod["spec"]["nodeName"] == node;
        // Those that go already are gone when the node is connected again.
        let is_kept = |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null();
        for pod in pods.iter().filter(is_here).filter(is_kept).filter(|pod| !is_over(pod)) {
            self.end(name_of(pod), End::Disrupted("DeletionByTaintManager"));
        }
    }

    fn connect(&self, node: &str) {
        self.switches.cut_off().remove(node);
    }
}

impl Switches {
    fn cut_off(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.cut_off.lock().expect("nobody panics in here")
    }
}

/// Writes the end of a pod as a kubelet would, which takes no notice if the pod has gone meanwhile.
fn end_pod(client: &Client, path: &str, pod: &Value, end: End) {
    client.merge_patch(&format!("{path}/status"), &ended_status(pod, end)).ok_or_gone();
    if let End::Disrupted(_) = end {
        client.delete(path, &gone_in(GRACE_S)).ok_or_gone();
    }
}

/// Ends the simulated pods of an embedded cluster, which starts and deletes them itself.
pub struct SimulatedNode {
    pub namespace: String,
    pub client: Client,
}

impl Node for SimulatedNode {
    fn end(&self, pod: &str, end: End) {
        let path = format!("{}/{pod}", pods_path(&self.namespace));
        let now = self.client.get(&path).ok();
        end_pod(&self.client, &path, &now, end);
    }

    fn hold_deletes(&self, _hold: bool) {
        panic!("the embedded cluster deletes simulated pods at once")
    }

    fn hold_starts(&self, _hold: bool) {
        panic!("the embedded cluster starts simulated pods at once")
    }

    fn cut_off(&self, node: &str) {
        panic!("no scenario with simulated pods loses a node: {node}")
    }

    fn connect(&self, node: &str) {
        panic!("no scenario with simulated pods loses a node: {node}")
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.switches.stop.store(true, Ordering::SeqCst);
        self.watcher.shutdown();
        self.client.shutdown();
        for thread in self.threads.drain(..) {
            // A panic of the node was already printed; the scenario's own result counts.
            let _ = thread.join();
        }
    }
}

/// What a watch tells.
pub enum Line {
    /// All pods.
    All(Vec<Value>),
    /// One pod has changed.
    One(Value),
    /// One pod is deleted.
    Gone(Value),
}

/// Lists and watches until it is stopped; after any error it lists again.
pub fn watch_pods(client: &Client, namespace: &str, stop: &AtomicBool, lines: &SyncSender<Line>) {
    let path = pods_path(namespace);
    while !stop.load(Ordering::SeqCst) {
        let list = client.try_call("GET", &path, "application/json", &Value::Null);
        let Some(list) = list.ok().filter(|answer| answer.code == 200) else {
            thread::sleep(TURN);
            continue;
        };
        let version = list.body["metadata"]["resourceVersion"].as_str().unwrap_or("0").to_owned();
        if lines.send(Line::All(items(&list.body))).is_err() {
            return;
        }
        let query = format!("{path}?watch=1&resourceVersion={version}&timeoutSeconds={WATCH_S}");
        client.watch(&query, |mut line| {
            let object = line["object"].take();
            let told = match line["type"].as_str() {
                Some("ADDED" | "MODIFIED") => lines.send(Line::One(object)),
                Some("DELETED") => lines.send(Line::Gone(object)),
                _ => return false,
            };
            told.is_ok()
        });
    }
}

/// The next step of a kubelet or scheduler for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Bind,
    Delete,
    Run,
}

struct Worker {
    client: Client,
    namespace: String,
    /// As a scheduler.
    binds: bool,
    switches: Arc<Switches>,
    ended: Arc<Mutex<BTreeSet<String>>>,
    /// Those for which there is, or may be later, something to be done.
    pods: BTreeMap<String, Value>,
    /// Steps that the server has accepted, by uid: not repeated while the watch lags.
    done: BTreeSet<(String, Step)>,
}

impl Worker {
    fn work(mut self, inbox: &Receiver<Line>) {
        loop {
            match inbox.recv_timeout(TURN) {
                Ok(line) => self.learn(line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.learn_all(inbox);
            let steps: Vec<(String, Step)> = self.steps().collect();
            for steps in steps.chunks(HANDS) {
                if self.switches.stop.load(Ordering::SeqCst) {
                    return;
                }
                self.take(steps);
                // The server drops a watcher who lets it wait.
                self.learn_all(inbox);
            }
        }
    }

    /// What is to be done for all pods.
    fn steps(&self) -> impl Iterator<Item = (String, Step)> {
        let steps =
            self.pods.iter().filter_map(|(uid, pod)| Some((uid.clone(), self.next_step(pod)?)));
        steps.filter(|step| !self.done.contains(step))
    }

    /// Takes steps of several pods at once.
    fn take(&mut self, steps: &[(String, Step)]) {
        let worker = &*self;
        let done: Vec<(String, Step)> = thread::scope(|scope| {
            let mut hands = Vec::new();
            for (uid, step) in steps {
                // One that is missing has gone, or has taken its step, since.
                let Some(pod) = worker.pods.get(uid) else { continue };
                let hand = move || worker.try_step(pod, *step).then(|| (uid.clone(), *step));
                hands.push(scope.spawn(hand));
            }
            let join = |hand: ScopedJoinHandle<'_, _>| hand.join().expect("nobody panics in here");
            hands.into_iter().filter_map(join).collect()
        });
        self.done.extend(done);
    }

    fn learn_all(&mut self, inbox: &Receiver<Line>) {
        while let Ok(line) = inbox.try_recv() {
            self.learn(line);
        }
    }

    fn learn(&mut self, line: Line) {
        let uid_of = |pod: &Value| pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        match line {
            Line::All(pods) => {
                self.pods.clear();
                pods.into_iter().for_each(|pod| self.learn(Line::One(pod)));
            }
            Line::One(pod) if self.may_have_step(&pod) => {
                self.pods.insert(uid_of(&pod), pod);
            }
            Line::One(pod) | Line::Gone(pod) => {
                self.pods.remove(&uid_of(&pod));
            }
        }
    }

    /// False for pods for which nothing is done before they change, whatever the switches say.
    fn may_have_step(&self, pod: &Value) -> bool {
        let is_pending = pod["status"]["phase"] == "Pending";
        !pod["metadata"]["deletionTimestamp"].is_null()
            || if pod["spec"]["nodeName"].is_string() { is_pending } else { self.binds }
    }

    /// True if the server has accepted the step.
    fn try_step(&self, pod: &Value, step: Step) -> bool {
        // The test may have decided otherwise since.
        if self.next_step(pod) != Some(step) {
            return false;
        }
        let path = format!(
            "{}/{}",
            pods_path(&self.namespace),
            pod["metadata"]["name"].as_str().unwrap_or_default()
        );
        let answer = match step {
            Step::Bind => self.client.try_call(
                "POST",
                &format!("{path}/binding"),
                "application/json",
                &self.binding(pod),
            ),
            Step::Delete => self.client.try_call(
                "DELETE",
                &path,
                "application/json",
                &gone_now(&pod["metadata"]["uid"]),
            ),
            Step::Run => self.client.try_call(
                "PATCH",
                &format!("{path}/status"),
                "application/merge-patch+json",
                &running_status(pod),
            ),
        };
        // 404 and 409: the pod is gone or the step was done before. Other errors are tried again
        // next turn.
        answer.is_ok_and(|a| matches!(a.code, 200 | 201 | 202 | 404 | 409))
    }

    /// To the nodes in turn; one of them is always connected.
    fn binding(&self, pod: &Value) -> Value {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let turn = NEXT.fetch_add(1, Ordering::Relaxed) as usize % NODES.len();
        let cut_off = self.switches.cut_off();
        let mut in_turn = NODES[turn..].iter().chain(&NODES[..turn]);
        let node = in_turn.find(|node| !cut_off.contains(**node)).expect("a node is connected");
        json!({"apiVersion": "v1", "kind": "Binding",
            "metadata": {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node}})
    }

    fn next_step(&self, pod: &Value) -> Option<Step> {
        let held = |switch: &AtomicBool| switch.load(Ordering::SeqCst);
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let node = pod["spec"]["nodeName"].as_str();
        if node.is_some_and(|node| self.switches.cut_off().contains(node)) {
            return None;
        }
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return (!held(&self.switches.hold_deletes)).then_some(Step::Delete);
        }
        if node.is_none() {
            return self.binds.then_some(Step::Bind);
        }
        let pending = pod["status"]["phase"] == "Pending";
        let ours = !self.ended.lock().expect("nobody panics in here").contains(uid);
        (pending && ours && !held(&self.switches.hold_starts)).then_some(Step::Run)
    }
}

fn conditions(ready: bool) -> Value {
    let word = if ready { "True" } else { "False" };
    let condition = |name: &str, status: &str| json!({"type": name, "status": status, "lastProbeTime": null, "lastTransitionTime": THEN});
    json!([
        condition("Initialized", "True"),
        condition("Ready", word),
        condition("ContainersReady", word),
        condition("PodScheduled", "True"),
    ])
}

fn container_statuses(pod: &Value, ready: bool, state: &Value) -> Value {
    let containers = pod["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let statuses = containers.iter().map(|container| {
        json!({"name": container["name"], "image": container["image"], "imageID": "test://image",
            "containerID": "test://container", "ready": ready, "started": ready,
            "restartCount": 0, "state": state})
    });
    statuses.collect()
}

fn running_status(pod: &Value) -> Value {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let ip = format!("10.64.{}.{}", n / 250 % 250, n % 250 + 1);
    json!({"status": {"phase": "Running", "hostIP": "10.0.0.1", "podIP": ip,
        "podIPs": [{"ip": ip}], "startTime": THEN, "conditions": conditions(true),
        "containerStatuses": container_statuses(pod, true, &json!({"running": {"startedAt": THEN}}))}})
}

fn ended_status(pod: &Value, end: End) -> Value {
    let failed = |reason: &str, message: &str| {
        json!({"phase": "Failed", "conditions": conditions(false), "reason": reason,
            "message": message, "containerStatuses": null})
    };
    let status = match end {
        End::Disrupted(reason) => {
            let mut conditions = conditions(true);
            let target = json!({"type": "DisruptionTarget", "status": "True", "reason": reason,
                "message": "the test says so", "lastProbeTime": null, "lastTransitionTime": THEN});
            conditions.as_array_mut().expect("a list").push(target);
            json!({"conditions": conditions})
        }
        End::Exit(0) => terminated(pod, 0, "Completed", ""),
        End::Exit(code) => terminated(pod, code, "Error", ""),
        End::Killed => terminated(pod, 137, "Error", ""),
        End::NotStarted => terminated(pod, 128, "StartError", "exec: \"x\": not found\n"),
        End::OomKilled => terminated(pod, 137, "OOMKilled", ""),
        End::PodFailed("") => failed("", ""),
        End::PodFailed(reason) => failed(reason, "The node was low on resource: memory."),
    };
    json!({"status": status})
}

fn terminated(pod: &Value, code: i32, reason: &str, message: &str) -> Value {
    let state = json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": THEN,
        "finishedAt": THEN, "containerID": "test://container", "message": message}});
    let phase = if code == 0 { "Succeeded" } else { "Failed" };
    json!({"phase": phase, "conditions": conditions(false),
        "containerStatuses": container_statuses(pod, false, &state)})
}

/// Waits until the node has seen a pod, judged by what it writes.
pub fn wait_bound(admin: &Client, namespace: &str, pod: &str) {
    let path = format!("{}/{pod}", pods_path(namespace));
    wait_value(PATIENCE, "the pod to be bound", || {
        let answer = admin.get(&path);
        if answer.body["spec"]["nodeName"].is_string() { Ok(()) } else { Err(answer.body) }
    });
}
