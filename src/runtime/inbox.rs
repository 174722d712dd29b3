//! Owns the one channel into the reconciler: what travels on it, how much of it fits, and what each
//! sender does when it is full. The reconciler itself never blocks on a send.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::clock::Clock;
use crate::control::{Busy, Core};
use crate::core::machines::lease::{LeaseScope, LeaseUpdate};
use crate::core::model::command::{Command, Reply};
use crate::core::model::input::Input;
use crate::core::model::refusal::Refusal;

/// Messages that fit into the inbox. The watch relists when it is full, control answers 429, the
/// writers wait.
pub const INBOX_MAX: usize = 1_024;
/// Messages taken before the reconciler plans once.
pub const TURN_MESSAGES_MAX: usize = 1_024;
/// How long a control call waits for its answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// The loop is dead when it has not turned for so long.
const TURN_AGE_MAX_MS: u64 = 60_000;

/// What the reconciler is told.
#[derive(Debug)]
pub enum Message {
    /// A call, and where its answer goes; the answer never waits, the channel holds one.
    Command { command: Command, reply: Sender<Reply> },
    /// For the core.
    Input(Input),
    /// From the keeper of a Lease, and of which.
    Lease(LeaseScope, LeaseUpdate),
    /// A LIST of the watch or the poll failed. Only the first one matters to anybody but them.
    ListRefused(Refusal),
}

impl From<Input> for Message {
    fn from(input: Input) -> Self {
        Self::Input(input)
    }
}

impl From<(LeaseScope, LeaseUpdate)> for Message {
    fn from((scope, update): (LeaseScope, LeaseUpdate)) -> Self {
        Self::Lease(scope, update)
    }
}

impl From<Refusal> for Message {
    fn from(refusal: Refusal) -> Self {
        Self::ListRefused(refusal)
    }
}

/// The two ends of the inbox.
#[must_use]
pub fn inbox() -> (Sender<Message>, Receiver<Message>) {
    bounded(INBOX_MAX)
}

/// What the loop lets others see of itself.
#[derive(Debug, Default)]
pub struct Pulse {
    last_turn_ms: AtomicU64,
    is_ready: AtomicBool,
}

impl Pulse {
    /// The loop turned at `now_ms`.
    pub fn beat(&self, now_ms: u64, is_ready: bool) {
        self.last_turn_ms.store(now_ms, Ordering::Relaxed);
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }
}

/// The control API's way to the reconciler.
#[derive(Clone, Debug)]
pub struct Line {
    pub inbox: Sender<Message>,
    pub pulse: Arc<Pulse>,
    pub clock: Clock,
}

impl Core for Line {
    fn ask(&self, command: Command) -> Result<Reply, Busy> {
        let (reply, answer) = bounded(1);
        match self.inbox.try_send(Message::Command { command, reply }) {
            Ok(()) => answer.recv_timeout(REPLY_TIMEOUT).map_err(|_| Busy::Stopping),
            Err(TrySendError::Full(_)) => Err(Busy::Full),
            Err(TrySendError::Disconnected(_)) => Err(Busy::Stopping),
        }
    }

    fn is_alive(&self) -> bool {
        let last = self.pulse.last_turn_ms.load(Ordering::Relaxed);
        self.clock.now().0.saturating_sub(last) <= TURN_AGE_MAX_MS
    }

    fn is_ready(&self) -> bool {
        self.pulse.is_ready.load(Ordering::Relaxed)
    }
}
