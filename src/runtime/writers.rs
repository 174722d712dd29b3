//! The writer threads: they send the API requests that the reconciler decides on, one request for
//! each action, and return each answer to the inbox.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use log::{debug, warn};

use crate::core::model::action::{Action, Patch};
use crate::core::model::ids::Uid;
use crate::core::model::input::{Input, List, ListSource};
use crate::core::model::refusal::Refusal;
use crate::core::reconciler::{LOG_READS_IN_FLIGHT_MAX, POD_READS_IN_FLIGHT_MAX};
use crate::core::state::ledger::MUTATIONS_IN_FLIGHT_MAX;
use crate::kube::api::pods::Pods;
use crate::runtime::inbox::Message;
use crate::wire::{draining, labels};

/// Threads for deletes, patches and lists.
const MUTATION_WRITERS_MAX: usize = 8;
/// A writer's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// Time-out for reading a pod's log; the pod is deleted only after that.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// Requests in flight besides single deletes and patches: at shutdown one LIST and one delete of all
/// executors, one GET of a node, and GETs of pods.
const OTHER_REQUESTS_MAX: usize = 3 + POD_READS_IN_FLIGHT_MAX;

/// Distributes actions to the writer threads. The threads are never joined: one that waits for an
/// unresponsive server must not delay the end of the run.
#[derive(Debug)]
pub struct Writers {
    pods: Pods,
    inbox: Sender<Message>,
    creates: Pool,
    mutations: Pool,
    /// A separate pool, because log requests to an unresponsive kubelet must not delay others.
    logs: Pool,
}

#[derive(Debug)]
struct Pool {
    jobs: Sender<Action>,
    queue: Receiver<Action>,
    n_threads: usize,
    n_threads_max: usize,
    name: &'static str,
}

impl Pool {
    fn new(name: &'static str, n_threads_max: usize, capacity: usize) -> Self {
        let (jobs, queue) = bounded(capacity);
        Self { jobs, queue, n_threads: 0, n_threads_max, name }
    }
}

impl Writers {
    /// Starts no thread yet; `send` starts them as needed. `in_flight_max`: concurrent creates.
    pub fn new(pods: Pods, inbox: Sender<Message>, in_flight_max: usize) -> Self {
        let n_mutations = MUTATIONS_IN_FLIGHT_MAX + OTHER_REQUESTS_MAX;
        Self {
            pods,
            inbox,
            creates: Pool::new("create", in_flight_max, in_flight_max),
            mutations: Pool::new("mutate", MUTATION_WRITERS_MAX, n_mutations),
            logs: Pool::new("log", LOG_READS_IN_FLIGHT_MAX, LOG_READS_IN_FLIGHT_MAX),
        }
    }

    /// Queues an action. Never blocks: the core limits the actions in flight to the capacity.
    pub fn send(&mut self, action: Action) {
        let pool = match action {
            Action::Create { .. } | Action::Get { .. } => &mut self.creates,
            Action::ReadLog { .. } => &mut self.logs,
            Action::Delete { .. }
            | Action::DeleteAll { .. }
            | Action::GetNode { .. }
            | Action::List { .. }
            | Action::Patch { .. }
            | Action::Poll
            | Action::ReadPod { .. }
            | Action::Relist
            | Action::ReserveIds { .. } => &mut self.mutations,
        };
        match pool.jobs.try_send(action) {
            Ok(()) => {}
            Err(TrySendError::Full(action) | TrySendError::Disconnected(action)) => {
                debug_assert!(false, "more actions in flight than capacity: {action:?}");
                warn!("dropped {action:?}: too many requests in flight");
            }
        }
        // If jobs are waiting, all threads are busy: start another.
        if !pool.jobs.is_empty() && pool.n_threads < pool.n_threads_max {
            let (queue, inbox) = (pool.queue.clone(), self.inbox.clone());
            let pods = self.pods.clone();
            let spawned = thread::Builder::new()
                .name(format!("{}-{}", pool.name, pool.n_threads))
                .stack_size(STACK_BYTES)
                .spawn(move || write(&pods, &queue, &inbox));
            match spawned {
                Ok(_) => pool.n_threads += 1,
                Err(error) if pool.n_threads > 0 => {
                    debug!("cannot start another writer thread: {error}")
                }
                Err(error) => warn!("cannot start a writer thread: {error}"),
            }
        }
    }
}

/// Runs until the job channel or the inbox is closed.
fn write(pods: &Pods, queue: &Receiver<Action>, inbox: &Sender<Message>) {
    for action in queue {
        if let Some(input) = perform(pods, action)
            && inbox.send(Message::Input(input)).is_err()
        {
            return;
        }
    }
}

/// Sends the request of one action. `None`: the action is not an API request.
pub fn perform(pods: &Pods, action: Action) -> Option<Input> {
    let input = match action {
        Action::Create { id, group: _, slot, overrides, watermark, pod } => {
            let answer = pods.create(&pod.render(id, slot, &overrides), false);
            log_answer("create", &id, answer.as_ref().err());
            Input::Created { id, watermark, answer }
        }
        Action::Delete { uid, name, grace_s } => {
            let answer = pods.delete(&name, Some(&uid), grace_s);
            log_answer("delete", &name, answer.as_ref().err());
            Input::Deleted { uid, answer }
        }
        Action::DeleteAll { grace_s, keep_counted } => {
            let extra = keep_counted.then(|| format!("!{}", labels::COUNTED));
            let answer = pods.delete_collection(Some(grace_s), extra.as_deref());
            log_answer("delete all", &pods.selection().selector(), answer.as_ref().err());
            Input::DeletedAll { answer }
        }
        Action::Get { id, watermark } => {
            let answer = pods.get(&pods.selection().pod_name(id.0));
            log_answer("get", &id, answer.as_ref().err());
            Input::Got { id, watermark, answer }
        }
        Action::ReadPod { id, watermark } => {
            let answer = pods.get(&pods.selection().pod_name(id.0));
            log_answer("read", &id, answer.as_ref().err());
            Input::PodRead { id, watermark, answer }
        }
        Action::GetNode { name } => {
            let answer = pods.get_node(&name);
            log_answer("get node", &name, answer.as_ref().err());
            Input::GotNode { name, answer }
        }
        Action::List { watermark } => match pods.list() {
            Ok(listed) => Input::List(List {
                source: ListSource::Stop,
                pods: listed.pods,
                version: listed.version,
                watermark,
            }),
            Err(refusal) => {
                log_answer("list", &"for the shutdown", Some(&refusal));
                Input::ListRefused { refusal }
            }
        },
        Action::Patch { uid, name, patch } => {
            let answer = pods.patch(&name, patch_body(&uid, &patch).as_bytes()).map(drop);
            log_answer("patch", &name, answer.as_ref().err());
            Input::Patched { uid, answer }
        }
        Action::ReadLog { uid, name, container, n_lines } => {
            let answer = pods.log(&name, container.as_deref(), n_lines, LOG_TIMEOUT);
            log_answer("log of", &name, answer.as_ref().err());
            Input::LogRead { uid, answer }
        }
        // Performed by other threads: the poller, the watcher and the lease thread.
        Action::Poll | Action::Relist | Action::ReserveIds { .. } => return None,
    };
    Some(input)
}

/// A merge patch with the uid, so that the server refuses it with 409 for a pod of another uid.
fn patch_body(uid: &Uid, patch: &Patch) -> String {
    let metadata = match patch {
        Patch::Counted => {
            serde_json::json!({"uid": uid.to_string(), "labels": {labels::COUNTED: unix_time()}})
        }
        Patch::Draining(draining, label) => {
            let value = draining::value(*draining);
            let mut metadata = serde_json::json!({
                "uid": uid.to_string(), "annotations": {labels::DRAINING: value},
            });
            if let Some((key, value)) = label {
                metadata["labels"] = serde_json::json!({ key: value });
            }
            metadata
        }
    };
    serde_json::json!({ "metadata": metadata }).to_string()
}

/// Seconds since 1970. The label's value orders retained pods by age.
fn unix_time() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs()).to_string()
}

fn log_answer(verb: &str, what: &dyn std::fmt::Display, refusal: Option<&Refusal>) {
    match refusal {
        None => debug!("{verb} {what}: done"),
        Some(refusal) => debug!("{verb} {what}: {:?}: {refusal}", refusal.class),
    }
}
