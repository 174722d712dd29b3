//! The channel into the reconciler: its messages, its limits, and the control API's handle to it.
//! The reconciler never blocks on a send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use posse_base::clock::Clock;
use posse_control::{Busy, RunHandle};
use posse_core::machines::lease::{LeaseScope, LeaseUpdate};
use posse_core::model::act::Caller;
use posse_core::model::command::{Command, Reply};
use posse_core::model::input::Input;
use posse_core::model::refusal::Refusal;

/// Capacity of the inbox, in messages. If the inbox is full, the watch relists, the control API
/// answers 429, and the writers wait.
pub const INBOX_MAX: usize = 512;
/// The most messages that the reconciler takes before it plans once.
pub const TURN_MESSAGES_MAX: usize = 512;
/// How long a control call waits for the reconciler's answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// `/healthz` fails if the reconciler's last turn is older than this.
const TURN_AGE_MAX_MS: u64 = 60_000;

/// A message to the reconciler thread.
#[derive(Debug)]
pub enum Message {
    /// A control API call. `reply` has a capacity of one, so that answering never blocks.
    Command { command: Command, by: Option<Caller>, reply: Sender<Reply> },
    /// An input for the core.
    Input(Input),
    /// From the lease thread of this scope.
    Lease(LeaseScope, LeaseUpdate),
    /// Whether the Job of this pod makes another one after it.
    Job { goes_on: bool },
    /// A LIST or a WATCH failed. Only a failure of the first LIST may end the run.
    ReadRefused(Refusal),
}

/// Creates the inbox's channel.
pub fn inbox() -> (Sender<Message>, Receiver<Message>) {
    bounded(INBOX_MAX)
}

/// Liveness and readiness of the reconciler thread, for `/healthz` and `/readyz`. Before the first turn
/// the run is alive and not ready: it may wait for a Lease.
#[derive(Debug, Default)]
pub struct Liveness {
    last_turn_ms: AtomicU64,
    is_ready: AtomicBool,
}

impl Liveness {
    /// Records a turn at `now_ms`, in the run's clock. `is_ready`: the first LIST is applied and the
    /// Leases are held.
    pub fn record_turn(&self, now_ms: u64, is_ready: bool) {
        self.last_turn_ms.store(now_ms.max(1), Ordering::Relaxed);
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }
}

/// The control API's handle to the reconciler.
#[derive(Clone, Debug)]
pub struct ControlHandle {
    pub inbox: Sender<Message>,
    pub liveness: Arc<Liveness>,
    pub clock: Clock,
}

impl RunHandle for ControlHandle {
    fn ask(&self, command: Command, by: Option<Caller>) -> Result<Reply, Busy> {
        let (reply, answer) = bounded(1);
        match self.inbox.try_send(Message::Command { command, by, reply }) {
            Ok(()) => answer.recv_timeout(REPLY_TIMEOUT).map_err(|_| Busy::Stopping),
            Err(TrySendError::Full(_)) => Err(Busy::Full),
            Err(TrySendError::Disconnected(_)) => Err(Busy::Stopping),
        }
    }

    fn is_alive(&self) -> bool {
        let last = self.liveness.last_turn_ms.load(Ordering::Relaxed);
        last == 0 || self.clock.now().0.saturating_sub(last) <= TURN_AGE_MAX_MS
    }

    fn is_ready(&self) -> bool {
        self.liveness.is_ready.load(Ordering::Relaxed)
    }
}
