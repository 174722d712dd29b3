//! LIST requests, shared by the watch thread and the poll thread, and the handle by which other
//! threads stop them or request a LIST.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, SendTimeoutError, Sender, bounded};

use crate::inbox::Message;
use crate::watermark::SharedWatermark;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::model::input::{Input, List, ListSource, Watermark};
use posse_core::model::refusal::Refusal;
use posse_kube::api::pods::Pods;
use posse_kube::http::StreamHandle;
use posse_wire::k8s::list::Page;

/// While the inbox is full, a thread with a finished LIST checks for a stop request this often.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Stops a watch or poll thread, or requests a LIST from it. Clones control the same thread.
#[derive(Clone, Debug)]
pub struct ListerControl {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    n_overruns: AtomicU64,
    wake: Sender<()>,
    woken: Receiver<()>,
}

#[derive(Debug, Default)]
struct State {
    is_stopped: bool,
    is_list_requested: bool,
    /// Shuts down the connection that the thread is reading from.
    streams: Option<StreamHandle>,
}

impl Default for ListerControl {
    fn default() -> Self {
        Self::new()
    }
}

impl ListerControl {
    /// A control for a thread that has not started yet.
    pub fn new() -> Self {
        let (wake, woken) = bounded(1);
        let shared = Shared { state: Mutex::default(), n_overruns: AtomicU64::new(0), wake, woken };
        Self { shared: Arc::new(shared) }
    }

    /// Ends the thread, and the read that it may be blocked in.
    pub fn stop(&self) {
        let streams = {
            let mut state = self.lock();
            state.is_stopped = true;
            state.streams.take()
        };
        self.interrupt(streams);
    }

    /// Makes the watcher end its watch and LIST at once, because the stored resourceVersions are no
    /// longer valid.
    pub fn relist(&self) {
        let streams = {
            let mut state = self.lock();
            state.is_list_requested = true;
            state.streams.take()
        };
        self.interrupt(streams);
    }

    /// Requests a LIST from the poller. A LIST in progress is read to its end first.
    pub fn request_list(&self) {
        self.lock().is_list_requested = true;
        self.interrupt(None);
    }

    /// How many times a batch of watch events did not fit into the inbox.
    pub fn n_overruns(&self) -> u64 {
        self.shared.n_overruns.load(Ordering::Relaxed)
    }

    pub(super) fn count_overrun(&self) {
        self.shared.n_overruns.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.lock().is_stopped
    }

    /// True if the streams were or will be shut down from here: their errors say nothing about the server.
    pub(super) fn is_interrupted(&self) -> bool {
        let state = self.lock();
        state.is_stopped || state.is_list_requested
    }

    pub(super) fn take_request(&self) -> bool {
        std::mem::take(&mut self.lock().is_list_requested)
    }

    /// Lets other threads shut down `streams` from now on. False if the thread was stopped already.
    pub(super) fn arm(&self, streams: StreamHandle) -> bool {
        let mut state = self.lock();
        state.streams = Some(streams);
        !state.is_stopped
    }

    pub(super) fn disarm(&self) {
        self.lock().streams = None;
    }

    /// Waits until `at` (`None`: without limit), a stop, or a request.
    pub(super) fn wait(&self, at: Option<Instant>) {
        // The caller checks the state again after a wake-up, a time-out and a closed channel alike.
        let _ = match at {
            Some(at) => self.shared.woken.recv_deadline(at).is_ok(),
            None => self.shared.woken.recv().is_ok(),
        };
    }

    fn interrupt(&self, streams: Option<StreamHandle>) {
        if let Some(streams) = streams {
            streams.shutdown();
        }
        // If the channel is full, a wake-up is already on its way.
        let _ = self.shared.wake.try_send(());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends LIST requests and delivers the results to the inbox.
#[derive(Debug)]
pub struct Lister {
    pub pods: Pods,
    /// Receives the LIST results.
    pub inbox: Sender<Message>,
    pub watermark: Arc<SharedWatermark>,
    /// A watch ends if no byte arrives for this long.
    pub watch_idle: Duration,
    pub clock: Clock,
    pub rng: Rng,
    pub control: ListerControl,
}

impl Lister {
    /// Lists all pods and delivers them page by page, because the reconciler has most of them already, and nobody
    /// shall hold them twice. Returns the list's resourceVersion as text and the watermark from before the
    /// request, or `None` after a stop.
    pub(super) fn list(&self, source: ListSource) -> Option<Result<(String, Watermark), Refusal>> {
        let watermark = self.watermark.read();
        let (pods, streams) = self.pods.with_own_streams();
        if !self.control.arm(streams) {
            return None;
        }
        let (mut list_version, mut n_pods, mut is_delivered) = (String::new(), 0, true);
        let listed = pods.list_each(|Page { pods, version, version_text, .. }, page| {
            n_pods = if page.number == 0 { pods.len() } else { n_pods + pods.len() };
            list_version = version_text;
            let list = List { source, page, pods, version, watermark };
            is_delivered = self.deliver(Message::Input(Input::List(list)));
            is_delivered
        });
        self.control.disarm();
        if self.control.is_stopped() || !is_delivered {
            return None;
        }
        if let Err(refusal) = listed {
            // Informational: the caller logs the refusal too, so it may be lost here.
            let _ = self.inbox.try_send(Message::ReadRefused(refusal.clone()));
            return Some(Err(refusal));
        }
        log::debug!("listed {n_pods} pods at version {list_version:?} ({source:?})");
        Some(Ok((list_version, watermark)))
    }

    /// Waits for room in the inbox. False if the thread is stopped or the inbox is closed.
    fn deliver(&self, mut message: Message) -> bool {
        while !self.control.is_stopped() {
            message = match self.inbox.send_timeout(message, STOP_CHECK_INTERVAL) {
                Ok(()) => return true,
                Err(SendTimeoutError::Timeout(message)) => message,
                Err(SendTimeoutError::Disconnected(_)) => return false,
            };
        }
        false
    }
}
