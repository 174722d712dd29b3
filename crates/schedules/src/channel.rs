//! Bounded channels with the interface of `crossbeam_channel`, made of shuttle's locks. Time does not pass: a wait
//! with a time-out may end at any step.

use real_std::collections::VecDeque;
use real_std::fmt;
use real_std::sync::Arc;
use real_std::time::{Duration, Instant};

use shuttle::rand::{Rng as _, thread_rng};
use shuttle::sync::{Condvar, Mutex, MutexGuard};

pub use real_channel::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError,
};

/// A channel for more messages has this capacity instead, so that it is full after a few steps.
const LARGE: usize = 64;
const CAPACITY_OF_LARGE: usize = 2;
/// How likely a wait with a time-out ends at a step.
const TIMES_OUT: f64 = 0.25;

/// A channel of capacity 0 carries nothing here: closing it is the message, and a wait for that does not time out.
pub fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let capacity = if capacity > LARGE { CAPACITY_OF_LARGE } else { capacity };
    let state = State { queue: VecDeque::new(), n_senders: 1, n_receivers: 1 };
    let shared = Shared { capacity, state: Mutex::new(state), changed: Condvar::new() };
    let shared = Arc::new(shared);
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

struct Shared<T> {
    capacity: usize,
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    n_senders: usize,
    n_receivers: usize,
}

/// How long a wait lasts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    Never,
    UntilTimeOut,
    ForEver,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().expect("no thread has panicked")
    }

    /// Waits for a change. None: the wait is over.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State<T>>,
        wait: Wait,
    ) -> Option<MutexGuard<'a, State<T>>> {
        let is_over = match wait {
            Wait::Never => true,
            Wait::UntilTimeOut => self.capacity > 0 && thread_rng().gen_bool(TIMES_OUT),
            Wait::ForEver => false,
        };
        (!is_over).then(|| self.changed.wait(state).expect("no thread has panicked"))
    }

    fn send(&self, message: T, wait: Wait) -> Result<(), SendTimeoutError<T>> {
        assert!(self.capacity > 0, "a channel of capacity 0 is only closed");
        let mut state = self.lock();
        while state.n_receivers > 0 {
            if state.queue.len() < self.capacity {
                state.queue.push_back(message);
                self.changed.notify_all();
                return Ok(());
            }
            state = match self.wait(state, wait) {
                Some(state) => state,
                None => return Err(SendTimeoutError::Timeout(message)),
            };
        }
        Err(SendTimeoutError::Disconnected(message))
    }

    fn recv(&self, wait: Wait) -> Result<T, RecvTimeoutError> {
        let mut state = self.lock();
        loop {
            if let Some(message) = state.queue.pop_front() {
                self.changed.notify_all();
                return Ok(message);
            }
            if state.n_senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            state = self.wait(state, wait).ok_or(RecvTimeoutError::Timeout)?;
        }
    }
}

pub struct Sender<T>(Arc<Shared<T>>);

impl<T> Sender<T> {
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message, Wait::ForEver).map_err(|error| SendError(error.into_inner()))
    }

    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.0.send(message, Wait::Never).map_err(|error| match error {
            SendTimeoutError::Timeout(message) => TrySendError::Full(message),
            SendTimeoutError::Disconnected(message) => TrySendError::Disconnected(message),
        })
    }

    pub fn send_timeout(&self, message: T, _: Duration) -> Result<(), SendTimeoutError<T>> {
        self.0.send(message, Wait::UntilTimeOut)
    }

    pub fn send_deadline(&self, message: T, _: Instant) -> Result<(), SendTimeoutError<T>> {
        self.0.send(message, Wait::UntilTimeOut)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.0.lock().n_senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().n_senders -= 1;
        self.0.changed.notify_all();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

pub struct Receiver<T>(Arc<Shared<T>>);

impl<T> Receiver<T> {
    pub fn recv(&self) -> Result<T, RecvError> {
        self.0.recv(Wait::ForEver).map_err(|_| RecvError)
    }

    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.0.recv(Wait::Never).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    pub fn recv_timeout(&self, _: Duration) -> Result<T, RecvTimeoutError> {
        self.0.recv(Wait::UntilTimeOut)
    }

    pub fn recv_deadline(&self, _: Instant) -> Result<T, RecvTimeoutError> {
        self.0.recv(Wait::UntilTimeOut)
    }

    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        real_std::iter::from_fn(|| self.try_recv().ok())
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.0.lock().n_receivers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.n_receivers -= 1;
        let is_last = state.n_receivers == 0;
        // What nobody reads any more is dropped, and with it the channels for its answers.
        let unread = if is_last { real_std::mem::take(&mut state.queue) } else { VecDeque::new() };
        drop(state);
        self.0.changed.notify_all();
        drop(unread);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}

#[derive(Debug)]
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

/// A selection from one channel.
#[derive(Debug)]
pub struct Select<'a, T>(Option<&'a Receiver<T>>);

impl<'a, T> Select<'a, T> {
    #[expect(clippy::new_without_default, reason = "crossbeam_channel has it like this")]
    pub fn new() -> Self {
        Self(None)
    }

    pub fn recv(&mut self, receiver: &'a Receiver<T>) -> usize {
        self.0 = Some(receiver);
        0
    }

    pub fn select_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<SelectedOperation<T>, RecvTimeoutError> {
        match self.0.expect("one channel").recv_timeout(timeout) {
            Err(RecvTimeoutError::Timeout) => Err(RecvTimeoutError::Timeout),
            Err(RecvTimeoutError::Disconnected) => Ok(SelectedOperation(Err(RecvError))),
            Ok(message) => Ok(SelectedOperation(Ok(message))),
        }
    }
}

/// The message is taken already, so that no other thread takes it.
#[derive(Debug)]
pub struct SelectedOperation<T>(Result<T, RecvError>);

impl<T> SelectedOperation<T> {
    pub fn recv(self, _: &Receiver<T>) -> Result<T, RecvError> {
        self.0
    }
}
