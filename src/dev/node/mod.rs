//! Owns the node: the scheduler and the kubelet of the embedded cluster, on one thread. All it
//! learns comes from the store's changes and from the ends of processes.

mod addresses;
mod environment;
mod kubelet;
mod memory;
mod nodes;
mod output;
mod probes;
mod process;
mod report;
mod run;
mod sandbox;
mod scheduler;
mod sources;
mod start;
mod start_error;
#[cfg(test)]
mod tests;
mod tree;
mod volumes;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use crate::dev::apiserver::api::Api;
use crate::dev::node::kubelet::Kubelet;
use crate::dev::node::probes::{Purpose, Reply};
use crate::dev::node::volumes::Refresher;
use crate::dev::schema::kind::Kind;

pub use sandbox::{COMMAND, enter};

/// How the node is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) simulate: bool,
    pub(crate) nodes: u32,
    pub(crate) start_delay: Duration,
    /// Containers that hold more memory than their limit are killed.
    pub(crate) memory_limits: bool,
    pub(crate) seed: u64,
    /// The API server's port: no two clusters of one machine share it, nor the addresses that
    /// follow from it.
    pub(crate) port: u16,
}

/// What the node's thread is told.
#[derive(Debug)]
enum Input {
    /// A probe or a hook of the process of that number has its answer.
    Asked(u64, Purpose, Reply),
    /// The process of that number has ended, and waits to be reaped.
    Ended(u64),
    Stop,
}

/// Ends of processes that wait to be looked at; more of them wait in their threads.
const INBOX_MAX: usize = 1024;
/// How long a stopping cluster waits for its pods, whatever grace they have.
const STOP_GRACE: Duration = Duration::from_secs(5);
/// How long the kernel gets to end what was killed.
const KILL_WAIT: Duration = Duration::from_secs(5);

/// The running node.
#[derive(Debug)]
pub(crate) struct Node {
    thread: JoinHandle<()>,
    inbox: Sender<Input>,
    /// None where nothing runs.
    refresher: Option<Refresher>,
}

impl Node {
    pub(crate) fn start(api: Arc<Api>, settings: Settings) -> io::Result<Self> {
        let (sender, receiver) = bounded(INBOX_MAX);
        let tokens = api.lock().store.subscribe_to([Kind::Pod, Kind::Node]);
        let refresher = match settings.simulate {
            true => None,
            false => Some(Refresher::start(Arc::clone(&api))?),
        };
        let kubelet = Kubelet::new(api, settings, sender.clone())?;
        let builder = thread::Builder::new().name("dev-node".to_owned());
        let thread = builder.spawn(move || run(kubelet, &tokens, &receiver))?;
        Ok(Self { thread, inbox: sender, refresher })
    }

    /// Ends all pods' processes and the thread.
    pub(crate) fn stop(self) {
        // An error means that the thread has ended already.
        let _ = self.inbox.send(Input::Stop);
        if self.thread.join().is_err() {
            log::error!("the embedded node's thread panicked");
        }
        if let Some(refresher) = self.refresher {
            refresher.stop();
        }
    }
}

fn run(mut kubelet: Kubelet, tokens: &Receiver<()>, inbox: &Receiver<Input>) {
    loop {
        kubelet.look();
        let timer = kubelet.due().map_or_else(never, crossbeam_channel::at);
        select! {
            recv(tokens) -> _ => {}
            recv(timer) -> _ => kubelet.on_timers(),
            recv(inbox) -> input => match input {
                Ok(Input::Asked(number, purpose, reply)) => {
                    kubelet.on_reply(number, purpose, &reply);
                }
                Ok(Input::Ended(number)) => kubelet.on_end(number),
                Ok(Input::Stop) | Err(_) => break,
            }
        }
    }
    kubelet.terminate_all();
    drain(&mut kubelet, inbox, STOP_GRACE);
    kubelet.kill_all();
    drain(&mut kubelet, inbox, KILL_WAIT);
}

/// Reaps processes until none is left or the time is up.
fn drain(kubelet: &mut Kubelet, inbox: &Receiver<Input>, time: Duration) {
    let deadline = Instant::now() + time;
    while kubelet.has_processes() {
        match inbox.recv_deadline(deadline) {
            Ok(Input::Ended(number)) => kubelet.reap(number),
            Ok(Input::Asked(..) | Input::Stop) => {}
            Err(_) => return,
        }
    }
}
