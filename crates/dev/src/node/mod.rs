//! The embedded cluster's node: scheduler and kubelet on one thread.
//!
//! Its inputs are changes in the store, results of probes and hooks, and the ends of processes.

mod addresses;
mod affinity;
mod environment;
mod kubelet;
mod memory;
mod node_terms;
mod nodes;
mod output;
mod pod_claims;
mod probes;
mod process;
mod report;
mod run;
mod sandbox;
mod scheduler;
mod sources;
mod start;
mod start_error;
mod volumes;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use crate::apiserver::api::Api;
use crate::node::kubelet::Kubelet;
use crate::node::probes::{HandlerOutcome, HandlerPurpose};
use crate::schema::kind::Kind;

pub use sandbox::{COMMAND, enter};

/// Configuration of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) simulate: bool,
    pub(crate) nodes: u32,
    pub(crate) start_delay: Duration,
    /// Kill containers that use more memory than their limit.
    pub(crate) memory_limits: bool,
    pub(crate) seed: u64,
    /// The API server's port. It is unique on this machine, so pod addresses are derived from it.
    pub(crate) port: u16,
}

/// A message to the node's thread.
#[derive(Debug)]
enum Input {
    /// A probe or a hook of the process with this number has finished.
    HandlerDone(u64, HandlerPurpose, HandlerOutcome),
    /// The process with this number and all of its descendants have ended; the exit code.
    Ended(u64, i32),
    Stop,
}

/// Whose changes the node and the scheduler act on.
const WATCHED: [Kind; 6] = [
    Kind::ConfigMap,
    Kind::Node,
    Kind::PersistentVolume,
    Kind::PersistentVolumeClaim,
    Kind::Pod,
    Kind::Secret,
];
/// Capacity of the node's inbox. When it is full, the sending threads block.
const INBOX_MAX: usize = 1024;
/// How long a stopping cluster waits for its pods, regardless of their grace periods.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long a stopping cluster waits for killed processes to end.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The running node.
#[derive(Debug)]
pub(crate) struct Node {
    thread: JoinHandle<()>,
    inbox: Sender<Input>,
}

impl Node {
    pub(crate) fn start(api: Arc<Api>, settings: Settings) -> io::Result<Self> {
        let (sender, receiver) = bounded(INBOX_MAX);
        let changes = api.lock().store.subscribe(WATCHED);
        let kubelet = Kubelet::new(api, settings, sender.clone())?;
        let builder = thread::Builder::new().name("dev-node".to_owned());
        let thread = builder.spawn(move || run(kubelet, &changes, &receiver))?;
        Ok(Self { thread, inbox: sender })
    }

    /// Ends the processes of all pods, then the thread.
    pub(crate) fn stop(self) {
        // A send error means that the thread has ended already.
        let _ = self.inbox.send(Input::Stop);
        if self.thread.join().is_err() {
            log::error!("the embedded node's thread panicked");
        }
    }
}

fn run(mut kubelet: Kubelet, changes: &Receiver<()>, inbox: &Receiver<Input>) {
    let exec_orders = kubelet.api.exec_orders.1.clone();
    loop {
        kubelet.sync_changes();
        let timer = kubelet.next_timer().map_or_else(never, crossbeam_channel::at);
        select! {
            recv(changes) -> _ => {}
            recv(timer) -> _ => kubelet.on_timers(),
            recv(exec_orders) -> order => {
                if let Ok(order) = order {
                    kubelet.on_exec(order);
                }
            }
            recv(inbox) -> input => match input {
                Ok(Input::HandlerDone(number, purpose, outcome)) => {
                    kubelet.on_handler_done(number, purpose, &outcome);
                }
                Ok(Input::Ended(number, code)) => kubelet.on_end(number, code),
                Ok(Input::Stop) | Err(_) => break,
            }
        }
    }
    kubelet.terminate_all();
    drain(&mut kubelet, inbox, STOP_GRACE);
    kubelet.kill_all();
    drain(&mut kubelet, inbox, KILL_WAIT);
}

/// Waits until no process is left or `timeout` is over.
fn drain(kubelet: &mut Kubelet, inbox: &Receiver<Input>, timeout: Duration) {
    let deadline = Instant::now() + timeout;
    while kubelet.has_processes() {
        match inbox.recv_deadline(deadline) {
            Ok(Input::Ended(number, code)) => kubelet.forget_process(number, code),
            Ok(Input::HandlerDone(..) | Input::Stop) => {}
            Err(_) => return,
        }
    }
}
