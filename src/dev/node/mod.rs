//! Owns the node: the scheduler and the kubelet of the embedded cluster, on one thread. All it
//! learns comes from the store's changes and from the ends of processes.

mod addresses;
mod environment;
mod kubelet;
mod process;
mod report;
mod run;
mod scheduler;
mod start;

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, never, select};

use crate::dev::api::Api;
use crate::dev::kind::Kind;
use crate::dev::node::kubelet::Kubelet;

/// How the node is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) simulate: bool,
    pub(crate) nodes: u32,
    pub(crate) start_delay: Duration,
    pub(crate) seed: u64,
    /// The API server's port: no two clusters of one machine share it, nor the addresses that
    /// follow from it.
    pub(crate) port: u16,
}

/// What the node's thread is told.
#[derive(Debug)]
enum Input {
    /// The process of that id has ended, and waits to be reaped.
    Ended(u32),
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
}

impl Node {
    pub(crate) fn start(api: Arc<Api>, settings: Settings) -> io::Result<Self> {
        let (sender, receiver) = bounded(INBOX_MAX);
        let tokens = api.subscribe(Kind::Pod);
        let kubelet = Kubelet::new(api, settings, sender.clone());
        let builder = thread::Builder::new().name("dev-node".to_owned());
        let thread = builder.spawn(move || run(kubelet, &tokens, &receiver))?;
        Ok(Self { thread, inbox: sender })
    }

    /// Ends all pods' processes and the thread.
    pub(crate) fn stop(self) {
        // An error means that the thread has ended already.
        let _ = self.inbox.send(Input::Stop);
        if self.thread.join().is_err() {
            log::error!("the embedded node's thread panicked");
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
                Ok(Input::Ended(pid)) => kubelet.on_end(pid),
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
            Ok(Input::Ended(pid)) => kubelet.reap(pid),
            Ok(Input::Stop) => {}
            Err(_) => return,
        }
    }
}
