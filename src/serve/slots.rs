//! Which connections are open, and which one is closed for a new one.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::serve::Limits;
use crate::serve::socket::Socket;

/// The slots of one server. There are two kinds, so that a server without a free regular slot can
/// still answer probes and say that it is full.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) limits: Limits,
    connections: Mutex<Connections>,
    closed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// For any request, `Limits::connections_max` of them.
    Regular,
    /// For a probe, for a refusal, or to wait for the permission to upload; `Limits::spare_max`.
    Spare,
}

#[derive(Debug)]
struct Peer {
    socket: Arc<Socket>,
    kind: Kind,
}

/// The open connections by number.
#[derive(Debug, Default)]
struct Connections {
    open: BTreeMap<u64, Peer>,
    n_accepted: u64,
    is_stopping: bool,
}

impl Connections {
    /// True if there is a free slot of this kind. If there is none, closes the connection whose
    /// client is furthest behind its pace, by at least `patience`.
    fn make_room(&mut self, kind: Kind, limits: &Limits) -> bool {
        let (n_max, patience) = match kind {
            Kind::Regular => (limits.connections_max, limits.patience),
            // A request that gets a spare slot is short, so any client that lets the server wait
            // may be closed.
            Kind::Spare => (limits.spare_max, Duration::ZERO),
        };
        let of_kind = || self.open.iter().filter(|(_, peer)| peer.kind == kind);
        if of_kind().count() < n_max {
            return true;
        }
        let lags = of_kind().filter_map(|(number, peer)| Some((peer.socket.lag()?, *number)));
        let Some((_, slowest)) = lags.max().filter(|(lag, _)| *lag >= patience) else {
            return false;
        };
        if let Some(peer) = self.open.remove(&slowest) {
            peer.socket.shutdown(Shutdown::Both);
        }
        true
    }

    /// Moves a connection to a slot of another kind. False if there is none, or if the connection
    /// was closed for another one.
    fn change(&mut self, number: u64, kind: Kind, limits: &Limits) -> bool {
        match self.open.get(&number) {
            None => return false,
            Some(peer) if peer.kind == kind => return true,
            Some(_) => {}
        }
        if !self.make_room(kind, limits) {
            return false;
        }
        self.open.get_mut(&number).map(|peer| peer.kind = kind).is_some()
    }
}

impl Slots {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, connections: Mutex::default(), closed: Condvar::new() })
    }

    /// A slot for a connection. `None` if there is none or the server is stopping.
    pub(super) fn admit(self: &Arc<Self>, socket: Arc<Socket>) -> Option<Slot> {
        let mut connections = self.lock();
        if connections.is_stopping {
            return None;
        }
        let kinds = [Kind::Regular, Kind::Spare];
        let kind = kinds.into_iter().find(|kind| connections.make_room(*kind, &self.limits))?;
        connections.n_accepted += 1;
        let number = connections.n_accepted;
        connections.open.insert(number, Peer { socket: Arc::clone(&socket), kind });
        Some(Slot { slots: Arc::clone(self), number, socket })
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.lock().is_stopping
    }

    /// Refuses new connections and ends the open ones.
    pub(super) fn stop(&self) {
        let mut connections = self.lock();
        connections.is_stopping = true;
        for peer in connections.open.values() {
            peer.socket.shutdown(Shutdown::Both);
        }
    }

    /// Waits up to `STOP_WAIT_MAX` for the ends of the connections' threads.
    pub(super) fn wait_until_empty(&self) {
        let deadline = Instant::now() + STOP_WAIT_MAX;
        let mut connections = self.lock();
        while !connections.open.is_empty() {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                log::warn!(
                    "{} connections are still open {} s after the stop of their server; leaving them",
                    connections.open.len(),
                    STOP_WAIT_MAX.as_secs()
                );
                return;
            }
            let waited = self.closed.wait_timeout(connections, remaining);
            connections = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        // Every statement leaves the map consistent, so a poisoned lock is safe to use.
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Arc<Slots>,
    number: u64,
    pub(super) socket: Arc<Socket>,
}

impl Slot {
    pub(super) fn limits(&self) -> &Limits {
        &self.slots.limits
    }

    pub(super) fn is_spare(&self) -> bool {
        let connections = self.slots.lock();
        connections.open.get(&self.number).is_none_or(|peer| peer.kind == Kind::Spare)
    }

    /// Gets a regular slot. False if there is none.
    pub(super) fn make_regular(&self) -> bool {
        self.slots.lock().change(self.number, Kind::Regular, &self.slots.limits)
    }

    /// Frees the regular slot for others. False if there is no spare one.
    pub(super) fn make_spare(&self) -> bool {
        self.slots.lock().change(self.number, Kind::Spare, &self.slots.limits)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().open.remove(&self.number);
        self.slots.closed.notify_all();
    }
}

/// How long `stop` waits for handlers.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);
