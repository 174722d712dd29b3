//! The writer threads: they send the API requests that the reconciler decides on, one request for
//! each action, and return each answer to the inbox.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, Select, Sender, TrySendError, bounded};
use log::{debug, warn};

use crate::claims::SlotClaims;
use crate::events::EventLog;
use crate::inbox::Message;
use crate::pod_groups::PodGroups;
use crate::task_outputs::{OUTPUT_BYTES_MAX, TaskOutputs};
use posse_core::model::action::{Action, Patch};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::{Input, List, ListSource, Watermark};
use posse_core::model::pod_text::{PodOverrides, PodText};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::task::TaskOutput;
use posse_core::state::errands::{
    CLAIMS_IN_FLIGHT_MAX, LOG_READS_IN_FLIGHT_MAX, MUTATIONS_IN_FLIGHT_MAX,
    NODE_READS_IN_FLIGHT_MAX, OUTPUTS_IN_FLIGHT_MAX, POD_READS_IN_FLIGHT_MAX,
    PROTECTS_IN_FLIGHT_MAX, RESIZES_IN_FLIGHT_MAX,
};
use posse_kube::api::pods::Pods;
use posse_wire::k8s::kueue;
use posse_wire::k8s::labels;
use posse_wire::pod::draining;
use posse_wire::pod::task::of_task;

/// Threads for deletes, patches and lists.
const MUTATION_WRITERS_MAX: usize = 8;
/// A writer's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// A thread without work ends after this time, but for the last one of its kind.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// Time-out for reading a pod's log; the pod is deleted only after that.
const LOG_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a mark or a delete waits until the file of events has what led to it. After a kill in between
/// the next run reports it again. A pipe that nobody reads must not hold up a run.
const EVENT_WAIT: Duration = Duration::from_secs(2);
/// Requests in flight besides deletes and patches: at shutdown a LIST, another one after a second signal, and GETs.
const OTHER_REQUESTS_MAX: usize = 2
    + CLAIMS_IN_FLIGHT_MAX
    + NODE_READS_IN_FLIGHT_MAX
    + POD_READS_IN_FLIGHT_MAX
    + RESIZES_IN_FLIGHT_MAX
    + PROTECTS_IN_FLIGHT_MAX;

/// Distributes actions to the writer threads. The threads are never joined: one that waits for an
/// unresponsive server must not delay the end of the run.
#[derive(Debug)]
pub struct Writers {
    requests: Arc<Requests>,
    inbox: Sender<Message>,
    creates: Pool,
    mutations: Pool,
    /// A separate pool, because log requests to an unresponsive kubelet must not delay others.
    logs: Pool,
    /// A log may be long.
    outputs: Pool,
}

/// What the requests need.
#[derive(Debug)]
pub struct Requests {
    pub pods: Pods,
    pub claims: SlotClaims,
    pub pod_groups: Arc<PodGroups>,
    pub log: Arc<EventLog>,
    /// None: the output of tasks is not kept.
    pub outputs: Option<Arc<TaskOutputs>>,
}

/// Threads that carry out one action after the other.
#[derive(Debug)]
struct Pool {
    actions: Sender<Action>,
    queue: Receiver<Action>,
    load: Arc<Mutex<Load>>,
    n_threads_max: usize,
    name: &'static str,
}

#[derive(Debug, Default)]
struct Load {
    /// Actions that are queued or being carried out.
    n_open: usize,
    n_threads: usize,
}

impl Pool {
    fn new(name: &'static str, n_threads_max: usize, capacity: usize) -> Self {
        let (actions, queue) = bounded(capacity);
        Self { actions, queue, load: Arc::default(), n_threads_max, name }
    }

    /// Never blocks, like `Writers::send`.
    fn send(&self, action: Action, requests: &Arc<Requests>, inbox: &Sender<Message>) {
        let mut load = lock(&self.load);
        if let Err(TrySendError::Full(action) | TrySendError::Disconnected(action)) =
            self.actions.try_send(action)
        {
            debug_assert!(false, "more actions in flight than capacity: {action:?}");
            warn!("dropped {action:?}: too many requests in flight");
            return;
        }
        load.n_open += 1;
        // Each open action has a thread of its own. An action that waits in the queue says nothing: its thread
        // may be about to wake up.
        if load.n_open <= load.n_threads || load.n_threads == self.n_threads_max {
            return;
        }
        if let Err(error) = self.start_thread(&mut load, requests, inbox) {
            debug!("cannot start another writer thread: {error}");
        }
    }

    fn start_thread(
        &self,
        load: &mut Load,
        requests: &Arc<Requests>,
        inbox: &Sender<Message>,
    ) -> io::Result<()> {
        let (queue, inbox) = (self.queue.clone(), inbox.clone());
        let (requests, thread_load) = (Arc::clone(requests), Arc::clone(&self.load));
        thread::Builder::new()
            .name(format!("{}-{}", self.name, load.n_threads))
            .stack_size(STACK_BYTES)
            .spawn(move || requests.write(&queue, &thread_load, &inbox, IDLE_MAX))?;
        load.n_threads += 1;
        Ok(())
    }
}

impl Writers {
    /// Starts one thread of each kind, which stays: another process may take the last thread that the system allows, and an
    /// action that nobody carries out is lost. `send` starts others as needed. `in_flight_max`: concurrent creates.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn new(
        requests: Requests,
        inbox: Sender<Message>,
        in_flight_max: usize,
    ) -> io::Result<Self> {
        let n_mutations = MUTATIONS_IN_FLIGHT_MAX + OTHER_REQUESTS_MAX;
        let writers = Self {
            requests: Arc::new(requests),
            inbox,
            creates: Pool::new("create", in_flight_max, in_flight_max),
            mutations: Pool::new("mutate", MUTATION_WRITERS_MAX, n_mutations),
            logs: Pool::new("log", LOG_READS_IN_FLIGHT_MAX, LOG_READS_IN_FLIGHT_MAX),
            outputs: Pool::new("output", OUTPUTS_IN_FLIGHT_MAX, OUTPUTS_IN_FLIGHT_MAX),
        };
        let Self { creates, mutations, logs, outputs, .. } = &writers;
        for pool in [creates, mutations, logs, outputs] {
            pool.start_thread(&mut lock(&pool.load), &writers.requests, &writers.inbox)?;
        }
        Ok(writers)
    }

    /// Queues an action. Never blocks: the core limits the actions in flight to the capacity.
    pub fn send(&self, action: Action) {
        let pool = match action {
            Action::Create { .. } | Action::Get { .. } => &self.creates,
            Action::ReadLog { .. } => &self.logs,
            Action::KeepOutput { .. } => &self.outputs,
            Action::Delete { .. }
            | Action::GetNode { .. }
            | Action::GiveUpClaims { .. }
            | Action::List { .. }
            | Action::Patch { .. }
            | Action::Poll
            | Action::Protect { .. }
            | Action::ReadPod { .. }
            | Action::Relist
            | Action::Resize { .. }
            | Action::Record { .. }
            | Action::ReserveIds { .. } => &self.mutations,
        };
        pool.send(action, &self.requests, &self.inbox);
    }
}

impl Requests {
    /// Performs one action after the other, until the channel or the inbox is closed, or until there was nothing to do
    /// for `idle_max` and another thread stays.
    fn write(
        &self,
        queue: &Receiver<Action>,
        load: &Mutex<Load>,
        inbox: &Sender<Message>,
        idle_max: Duration,
    ) {
        // Unlike `recv`, a selection sleeps at once. A request takes milliseconds, so that spinning in front of
        // the queue costs processor time and gains nothing.
        let mut actions = Select::new();
        actions.recv(queue);
        loop {
            let Ok(selected) = actions.select_timeout(idle_max) else {
                let mut load = lock(load);
                if load.n_threads == 1 || load.n_open >= load.n_threads {
                    continue;
                }
                load.n_threads -= 1;
                return;
            };
            let Ok(action) = selected.recv(queue) else { return };
            let input = self.perform(action);
            // Before the answer is seen: the next action that it leads to can have this thread.
            lock(load).n_open -= 1;
            if input.is_some_and(|input| inbox.send(Message::Input(input)).is_err()) {
                return;
            }
        }
    }

    /// Sends the request of one action. `None`: the action is not an API request.
    fn perform(&self, action: Action) -> Option<Input> {
        let Self { pods, claims, pod_groups, .. } = self;
        if matches!(action, Action::Delete { .. } | Action::Patch { .. }) {
            self.log.wait_written(EVENT_WAIT);
        }
        Some(match action {
            Action::Create { id, group, slot, overrides, watermark, pod } => {
                let claims = |()| claims.ensure(&pod.render_claims(id, slot, &overrides));
                let create = |()| pods.create(&body(&pod, id, slot, &overrides)?);
                let answer = pod_groups.ensure(&group).and_then(claims).and_then(create);
                log_answer("create", &id, answer.as_ref().err());
                Input::Created { id, watermark, answer }
            }
            Action::Delete { uid, name, grace_s } => {
                let answer = pods.delete(&name, Some(&uid), grace_s);
                log_answer("delete", &name, answer.as_ref().err());
                Input::Deleted { uid, answer }
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
            Action::GiveUpClaims { slots } => Input::ClaimsGivenUp { n: claims.give_up(&slots) },
            Action::List { watermark } => list(pods, watermark),
            Action::Patch { uid, name, patch } => {
                let answer = pods.patch(&name, &patch_body(&uid, &patch)).map(drop);
                log_answer("patch", &name, answer.as_ref().err());
                Input::Patched { uid, answer }
            }
            Action::Protect { id, uid, name, is_protected } => {
                let answer = pods.patch(&name, &protect_body(&uid, is_protected)).map(drop);
                log_answer("protect", &name, answer.as_ref().err());
                Input::Protected { id, uid, answer }
            }
            Action::Resize { id, uid, name, step, pod } => {
                let answer = pods.resize(&name, &resize_body(&uid, &pod, step)).map(drop);
                log_answer("resize", &name, answer.as_ref().err());
                Input::Resized { id, uid, answer }
            }
            Action::ReadLog { uid, name, container, n_lines } => {
                let answer = pods.log(&name, container.as_deref(), n_lines, LOG_TIMEOUT);
                log_answer("log of", &name, answer.as_ref().err());
                Input::LogRead { uid, answer }
            }
            Action::KeepOutput { output, n_skipped } => {
                self.keep_output(&output, n_skipped);
                Input::OutputKept { uid: output.uid }
            }
            // Performed by other threads: the poller, the watcher, those of the Lease and the record.
            Action::Poll | Action::Record { .. } | Action::Relist | Action::ReserveIds { .. } => {
                return None;
            }
        })
    }

    fn keep_output(&self, output: &TaskOutput, n_skipped: u32) {
        if let Some(outputs) = &self.outputs {
            let container = output.container.as_deref();
            let read = || self.pods.log_end(&output.pod, container, OUTPUT_BYTES_MAX);
            outputs.keep(output, n_skipped, read);
        }
    }
}

/// The LIST of the stop.
fn list(pods: &Pods, watermark: Watermark) -> Input {
    match pods.list() {
        Ok(listed) => {
            Input::List(List::whole(ListSource::Stop, listed.pods, listed.version, watermark))
        }
        Err(refusal) => {
            log_answer("list", &"for the shutdown", Some(&refusal));
            Input::ListRefused { refusal }
        }
    }
}

/// The body of the POST that creates an executor.
fn body(
    pod: &PodText,
    id: ExecutorId,
    slot: u32,
    overrides: &PodOverrides,
) -> Result<Vec<u8>, Refusal> {
    let body = pod.render(id, slot, overrides);
    let Some(run) = &overrides.task else { return Ok(body) };
    of_task(&body, run).map_err(|error| {
        Refusal::local(RefusalClass::Invalid, format!("the template gives no JSON: {error}"))
    })
}

/// A strategic merge patch with the uid, so that the server refuses it with 409 for a pod of another uid.
fn patch_body(uid: &Uid, patch: &Patch) -> Vec<u8> {
    let metadata = match patch {
        Patch::Completed { .. } => label(uid, labels::COMPLETED),
        Patch::Counted { .. } => label(uid, labels::COUNTED),
        Patch::LeftQueue { is_deleted } => kueue::left_group(&uid.to_string(), *is_deleted),
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
    let mut body = serde_json::json!({ "metadata": metadata });
    if let Patch::Completed { rest_deadline_s, folded }
    | Patch::Counted { rest_deadline_s, folded } = patch
    {
        if let Some(seconds) = rest_deadline_s {
            body["spec"] = serde_json::json!({ "activeDeadlineSeconds": seconds });
        }
        if let Some(indexes) = folded {
            body["metadata"]["annotations"] = serde_json::json!({ labels::FOLDED: indexes });
        }
    }
    body.to_string().into_bytes()
}

/// A patch of the annotations that autoscalers read, with the uid as `patch_body` has it.
fn protect_body(uid: &Uid, is_protected: bool) -> Vec<u8> {
    let annotations = [labels::DO_NOT_DISRUPT, labels::SAFE_TO_EVICT]
        .map(|(key, value)| (key.to_owned(), is_protected.then_some(value).into()));
    let annotations: serde_json::Map<_, _> = annotations.into_iter().collect();
    let body = serde_json::json!({
        "metadata": { "uid": uid.to_string(), "annotations": annotations },
    });
    body.to_string().into_bytes()
}

/// A strategic merge patch of the main container's memory, with the uid as `patch_body` has it.
fn resize_body(uid: &Uid, pod: &PodText, step: u32) -> Vec<u8> {
    let memory = pod.memory_at(step).cloned().unwrap_or_default();
    // Without a request the server has set it to the limit, and a change of the quality of service is refused.
    let request = Some(memory.request).filter(|request| !request.is_empty());
    let request = request.unwrap_or_else(|| memory.limit.clone());
    let resources = serde_json::json!({
        "limits": { "memory": memory.limit }, "requests": { "memory": request },
    });
    let container = serde_json::json!({ "name": pod.memory.container, "resources": resources });
    let body = serde_json::json!({
        "metadata": { "uid": uid.to_string() }, "spec": { "containers": [container] },
    });
    body.to_string().into_bytes()
}

/// The metadata of a patch that sets a label to the time.
fn label(uid: &Uid, key: &str) -> serde_json::Value {
    serde_json::json!({"uid": uid.to_string(), "labels": {key: unix_time()}})
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

fn lock(load: &Mutex<Load>) -> MutexGuard<'_, Load> {
    load.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use crossbeam_channel::RecvTimeoutError;

    use super::*;
    use posse_base::clock::Clock;
    use posse_kube::api::objects::Objects;
    use posse_testing::{Answer, PATIENCE, TestServer, plain_client};
    use posse_wire::k8s::labels::Selection;

    fn requests(server: &TestServer) -> Requests {
        let http = plain_client(server.address);
        let selection = Selection { app: "a".to_owned(), instance: "b".to_owned() };
        Requests {
            pods: Pods::new(http.clone(), "n", selection.clone()),
            claims: SlotClaims::new(Objects::new(http.clone(), Some("n")), selection),
            pod_groups: Arc::new(PodGroups::new(http, "n", BTreeMap::new())),
            log: Arc::new(EventLog::new("r", Clock::start())),
            outputs: None,
        }
    }

    fn get(id: u64) -> Action {
        Action::Get { id: ExecutorId(id), watermark: Watermark::default() }
    }

    #[test]
    fn the_threads_end_with_the_writers() {
        let server = TestServer::start(None, |_| Answer::Reply(404, "", Vec::new()));
        let (inbox, answers) = bounded(16);
        let writers = Writers::new(requests(&server), inbox, 4).unwrap();
        let (uid, name) = (Uid::new("u"), "x".to_owned());
        let actions = [
            get(1),
            get(2),
            Action::Delete { uid: uid.clone(), name: name.clone(), grace_s: None },
            Action::GetNode { name: name.as_str().into() },
            Action::ReadLog { uid, name, container: None, n_lines: 1 },
        ];
        let n = actions.len();
        actions.into_iter().for_each(|action| writers.send(action));
        for _ in 0..n {
            assert!(matches!(answers.recv_timeout(PATIENCE), Ok(Message::Input(_))));
        }
        drop(writers);
        // Each of them has a sender of the inbox.
        assert!(matches!(answers.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected)));
    }

    fn counts(load: &Mutex<Load>) -> (usize, usize) {
        let load = lock(load);
        (load.n_open, load.n_threads)
    }

    #[test]
    fn a_thread_without_work_ends_and_one_that_is_needed_stays() {
        let server = TestServer::start(None, |_| Answer::Reply(404, "", Vec::new()));
        let requests = requests(&server);
        let (inbox, answers) = bounded(16);
        let (actions, queue) = bounded(16);
        let load = Mutex::new(Load { n_open: 1, n_threads: 2 });
        actions.send(get(1)).unwrap();
        requests.write(&queue, &load, &inbox, Duration::from_millis(1));
        assert!(matches!(answers.try_recv(), Ok(Message::Input(Input::Got { .. }))));
        assert_eq!(counts(&load), (0, 1));

        // The last one stays: there may be no other for the next action.
        thread::scope(|scope| {
            scope.spawn(|| requests.write(&queue, &load, &inbox, Duration::from_millis(1)));
            thread::sleep(Duration::from_millis(50));
            lock(&load).n_open = 1;
            actions.send(get(2)).unwrap();
            assert!(matches!(
                answers.recv_timeout(PATIENCE),
                Ok(Message::Input(Input::Got { .. }))
            ));
            assert_eq!(counts(&load), (0, 1));
            drop(actions);
        });
    }
}
