//! The writer threads: they send the API requests that the reconciler decides on, and return each answer to the inbox.
//! What is one request about one pod is sent by one thread on several connections; all else by threads that block.

mod requests;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Select, Sender, TryRecvError, TrySendError, bounded};
use log::{debug, warn};

pub use self::requests::Requests;
use crate::inbox::Message;
use posse_core::model::action::Action;
use posse_core::model::input::Input;
use posse_core::reconciler::{
    LOG_READS_IN_FLIGHT_MAX, OUTPUTS_IN_FLIGHT_MAX, POD_READS_IN_FLIGHT_MAX, RESIZES_IN_FLIGHT_MAX,
};
use posse_core::state::ledger::MUTATIONS_IN_FLIGHT_MAX;
use posse_core::state::protection::PROTECTS_IN_FLIGHT_MAX;
use posse_kube::api::transport_refusal;
use posse_kube::http::in_flight::{InFlight, Outcome, WakeUp};

/// Connections, and threads that block, for deletes, patches and lists.
const MUTATION_WRITERS_MAX: usize = 8;
/// A writer's stack, bytes.
const STACK_BYTES: usize = 256 << 10;
/// Requests in flight besides single deletes and patches: at shutdown one LIST and one delete of all
/// executors, one GET of a node, and GETs of pods.
const OTHER_REQUESTS_MAX: usize =
    3 + POD_READS_IN_FLIGHT_MAX + RESIZES_IN_FLIGHT_MAX + PROTECTS_IN_FLIGHT_MAX;

/// Distributes actions to the writer threads. The threads are never joined: one that waits for an
/// unresponsive server must not delay the end of the run.
#[derive(Debug)]
pub struct Writers {
    creates: Sending,
    /// Apart from creates, which a slow webhook may hold up.
    mutations: Sending,
    /// A separate pool, because log requests to an unresponsive kubelet must not delay others.
    logs: Arc<Pool>,
    /// A log may be long.
    outputs: Arc<Pool>,
}

/// The thread that has several requests in flight, and the threads for what it cannot do.
#[derive(Debug)]
struct Sending {
    thread: SendingThread,
    connections_max: usize,
    pool: Arc<Pool>,
}

#[derive(Debug)]
enum SendingThread {
    NotStarted,
    /// The thread ends with the channel, for which it is woken up last.
    Started {
        actions: Sender<Action>,
        wake_up: WakeUp,
    },
    /// The system gives no thread or no file: the pool does it all.
    Absent,
}

/// Threads that carry out one action after the other.
#[derive(Debug)]
struct Pool {
    requests: Arc<Requests>,
    inbox: Sender<Message>,
    actions: Sender<Action>,
    queue: Receiver<Action>,
    /// Actions that are queued or being carried out.
    n_open: Arc<AtomicUsize>,
    n_threads: AtomicUsize,
    n_threads_max: usize,
    name: &'static str,
}

impl Writers {
    /// Starts no thread yet; `send` starts them as needed. `in_flight_max`: concurrent creates.
    pub fn new(requests: Requests, inbox: Sender<Message>, in_flight_max: usize) -> Self {
        let requests = Arc::new(requests);
        let pool = |name, n_threads_max, capacity| {
            Arc::new(Pool::new(&requests, &inbox, name, n_threads_max, capacity))
        };
        let sending = |name, n_threads_max, capacity| Sending {
            thread: SendingThread::NotStarted,
            connections_max: n_threads_max,
            pool: pool(name, n_threads_max, capacity),
        };
        let n_mutations = MUTATIONS_IN_FLIGHT_MAX + OTHER_REQUESTS_MAX;
        Self {
            creates: sending("create", in_flight_max, in_flight_max),
            mutations: sending("mutate", MUTATION_WRITERS_MAX, n_mutations),
            logs: pool("log", LOG_READS_IN_FLIGHT_MAX, LOG_READS_IN_FLIGHT_MAX),
            outputs: pool("output", OUTPUTS_IN_FLIGHT_MAX, OUTPUTS_IN_FLIGHT_MAX),
        }
    }

    /// Queues an action. Never blocks: the core limits the actions in flight to the capacity.
    pub fn send(&mut self, action: Action) {
        match action {
            Action::Create { .. } | Action::Get { .. } => self.creates.send(action),
            Action::ReadLog { .. } => self.logs.send(action),
            Action::KeepOutput { .. } => self.outputs.send(action),
            Action::Delete { .. }
            | Action::DeleteAll { .. }
            | Action::GetNode { .. }
            | Action::List { .. }
            | Action::Patch { .. }
            | Action::Poll
            | Action::Protect { .. }
            | Action::ReadPod { .. }
            | Action::Relist
            | Action::Resize { .. }
            | Action::ReserveIds { .. } => self.mutations.send(action),
        }
    }
}

impl Sending {
    fn send(&mut self, action: Action) {
        if matches!(self.thread, SendingThread::NotStarted) {
            self.thread = self.start().unwrap_or_else(|error| {
                debug!("cannot start a thread for several requests: {error}");
                SendingThread::Absent
            });
        }
        match &self.thread {
            SendingThread::Started { actions, wake_up } => {
                try_send(actions, action);
                wake_up.wake();
            }
            SendingThread::NotStarted | SendingThread::Absent => self.pool.send(action),
        }
    }

    fn start(&self) -> io::Result<SendingThread> {
        let in_flight = self.pool.requests.pods.in_flight(self.connections_max)?;
        let wake_up = in_flight.wake_up();
        let (actions, queue) = bounded(self.pool.queue.capacity().unwrap_or(0));
        let pool = Arc::clone(&self.pool);
        thread::Builder::new()
            .name(self.pool.name.to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || pool.send_all(&queue, in_flight))?;
        Ok(SendingThread::Started { actions, wake_up })
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let thread = std::mem::replace(&mut self.thread, SendingThread::Absent);
        if let SendingThread::Started { actions, wake_up } = thread {
            drop(actions);
            wake_up.wake();
        }
    }
}

impl Pool {
    fn new(
        requests: &Arc<Requests>,
        inbox: &Sender<Message>,
        name: &'static str,
        n_threads_max: usize,
        capacity: usize,
    ) -> Self {
        let (actions, queue) = bounded(capacity);
        Self {
            requests: Arc::clone(requests),
            inbox: inbox.clone(),
            actions,
            queue,
            n_open: Arc::default(),
            n_threads: AtomicUsize::new(0),
            n_threads_max,
            name,
        }
    }

    /// Never blocks, like `Writers::send`.
    fn send(&self, action: Action) {
        let n_open = self.n_open.fetch_add(1, Ordering::Relaxed) + 1;
        if !try_send(&self.actions, action) {
            self.n_open.fetch_sub(1, Ordering::Relaxed);
        }
        // Each open action has a thread of its own. A job that waits in the queue says nothing: its thread
        // may be about to wake up.
        let n_threads = self.n_threads.load(Ordering::Relaxed);
        if n_open > n_threads && n_threads < self.n_threads_max {
            // Not the pool itself: its sender would keep the channel open.
            let (queue, inbox) = (self.queue.clone(), self.inbox.clone());
            let (requests, n_open) = (Arc::clone(&self.requests), Arc::clone(&self.n_open));
            let spawned = thread::Builder::new()
                .name(format!("{}-{n_threads}", self.name))
                .stack_size(STACK_BYTES)
                .spawn(move || requests.perform_all(&queue, &n_open, &inbox));
            match spawned {
                Ok(_) => self.n_threads.store(n_threads + 1, Ordering::Relaxed),
                Err(error) if n_threads > 0 => {
                    debug!("cannot start another writer thread: {error}")
                }
                Err(error) => warn!("cannot start a writer thread: {error}"),
            }
        }
    }

    /// Sends several requests at once. Runs until the channel or the inbox is closed.
    fn send_all(&self, queue: &Receiver<Action>, mut in_flight: InFlight<Action>) {
        loop {
            for (action, outcome) in in_flight.wait() {
                let Outcome::Answered(answer) = outcome else {
                    self.send(action);
                    continue;
                };
                let answer = answer.map_err(transport_refusal);
                if !give(&self.inbox, self.requests.input(action, answer)) {
                    return;
                }
            }
            loop {
                match queue.try_recv() {
                    Ok(action) => match self.requests.request(&action) {
                        Some(request) => in_flight.send(request, action),
                        None => self.send(action),
                    },
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return,
                }
            }
        }
    }
}

impl Requests {
    /// Performs one action after the other. Runs until the channel or the inbox is closed.
    fn perform_all(&self, queue: &Receiver<Action>, n_open: &AtomicUsize, inbox: &Sender<Message>) {
        // Unlike `recv`, a selection sleeps at once. A request takes milliseconds, so that spinning in front of
        // the queue costs processor time and gains nothing.
        let mut actions = Select::new();
        actions.recv(queue);
        while let Ok(action) = actions.select().recv(queue) {
            let input = self.perform(action);
            // Before the answer is seen: the next action that it leads to can have this thread.
            n_open.fetch_sub(1, Ordering::Relaxed);
            if !give(inbox, input) {
                return;
            }
        }
    }
}

/// False: nobody reads the inbox any more.
fn give(inbox: &Sender<Message>, input: Option<Input>) -> bool {
    input.is_none_or(|input| inbox.send(Message::Input(input)).is_ok())
}

/// Queues an action. False: there is no room, which the limits of the core rule out.
fn try_send(actions: &Sender<Action>, action: Action) -> bool {
    match actions.try_send(action) {
        Ok(()) => true,
        Err(TrySendError::Full(action) | TrySendError::Disconnected(action)) => {
            debug_assert!(false, "more actions in flight than capacity: {action:?}");
            warn!("dropped {action:?}: too many requests in flight");
            false
        }
    }
}
