//! Which connections are open, and which one is closed for a new one.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::Shutdown;

use crate::Limits;
use crate::socket::{Socket, Source};
use posse_base::sync::lock;

/// The slots of one server. There are three kinds, so that clients whom nobody knows do not take the place
/// of those that have shown who they are, and so that a server without a free regular slot can still
/// answer probes and say that it is full.
#[derive(Debug)]
pub(super) struct Slots {
    pub(super) limits: Limits,
    connections: Mutex<Connections>,
    closed: Condvar,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// For a new connection until its first request is admitted; also for a probe and a refusal.
    /// `Limits::connections_max` of them.
    Door,
    /// For admitted requests, `Limits::connections_max` of them.
    Regular,
    /// For a new connection without a place at the door, and to wait for the permission to upload;
    /// `Limits::spare_max`.
    Spare,
}

#[derive(Debug)]
struct Peer {
    socket: Arc<Socket>,
    source: Option<Source>,
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
    /// client is furthest behind its pace, by at least the patience for this kind. At the door it is one of
    /// the source that has the most there, and one that has more than `source` waits for nothing: who opens
    /// many connections takes the place of their own.
    fn make_room(&mut self, kind: Kind, source: Option<Source>, limits: &Limits) -> bool {
        let (n_max, patience) = match kind {
            Kind::Door => (limits.connections_max, limits.door_patience),
            Kind::Regular => (limits.connections_max, limits.patience),
            // A request that gets a spare slot is short, so any client that lets the server wait
            // may be closed.
            Kind::Spare => (limits.spare_max, Duration::ZERO),
        };
        let of_kind = || self.open.iter().filter(|(_, peer)| peer.kind == kind);
        if of_kind().count() < n_max {
            return true;
        }
        let mut held: BTreeMap<Option<Source>, usize> = BTreeMap::new();
        for (_, peer) in of_kind().filter(|_| kind == Kind::Door) {
            *held.entry(peer.source).or_default() += 1;
        }
        let held_by = |source| held.get(&source).copied().unwrap_or_default();
        let n_own = held_by(source);
        let candidates = of_kind().filter_map(|(number, peer)| {
            let (n, lag) = (held_by(peer.source), peer.socket.lag()?);
            (n > n_own + 1 || lag >= patience).then_some((n, lag, *number))
        });
        let Some((_, _, slowest)) = candidates.max() else { return false };
        if let Some(peer) = self.open.remove(&slowest) {
            peer.socket.shutdown(Shutdown::Both);
        }
        true
    }

    /// Moves a connection to a slot of another kind. False if there is none, or if the connection
    /// was closed for another one.
    fn change(&mut self, number: u64, kind: Kind, limits: &Limits) -> bool {
        let source = match self.open.get(&number) {
            None => return false,
            Some(peer) if peer.kind == kind => return true,
            Some(peer) => peer.source,
        };
        if !self.make_room(kind, source, limits) {
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
        let source = socket.source();
        let mut connections = lock(&self.connections);
        if connections.is_stopping {
            return None;
        }
        let kinds = [Kind::Door, Kind::Spare];
        let has_room = |kind: &Kind| connections.make_room(*kind, source, &self.limits);
        let kind = kinds.into_iter().find(has_room)?;
        connections.n_accepted += 1;
        let number = connections.n_accepted;
        let peer = Peer { socket: Arc::clone(&socket), source, kind };
        connections.open.insert(number, peer);
        Some(Slot { slots: Arc::clone(self), number, socket })
    }

    pub(super) fn is_stopping(&self) -> bool {
        lock(&self.connections).is_stopping
    }

    /// Refuses new connections and ends the open ones.
    pub(super) fn stop(&self) {
        let mut connections = lock(&self.connections);
        connections.is_stopping = true;
        for peer in connections.open.values() {
            peer.socket.shutdown(Shutdown::Both);
        }
    }

    /// Waits up to `STOP_WAIT_MAX` for the ends of the connections' threads.
    pub(super) fn wait_until_empty(&self) {
        let deadline = Instant::now() + STOP_WAIT_MAX;
        let mut connections = lock(&self.connections);
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

    pub(super) fn is_regular(&self) -> bool {
        let connections = lock(&self.slots.connections);
        connections.open.get(&self.number).is_some_and(|peer| peer.kind == Kind::Regular)
    }

    /// Gets a regular slot. False if there is none.
    pub(super) fn make_regular(&self) -> bool {
        lock(&self.slots.connections).change(self.number, Kind::Regular, &self.slots.limits)
    }

    /// Frees the regular slot for others. False if there is no spare one.
    pub(super) fn make_spare(&self) -> bool {
        lock(&self.slots.connections).change(self.number, Kind::Spare, &self.slots.limits)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.slots.connections).open.remove(&self.number);
        self.slots.closed.notify_all();
    }
}

/// How long `stop` waits for handlers.
const STOP_WAIT_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::socket::Stream;

    #[test]
    fn who_has_the_most_at_the_door_makes_room() {
        let patience = Duration::from_secs(3_600);
        let limits = Limits { connections_max: 4, door_patience: patience, ..Limits::default() };
        let mut connections = Connections::default();
        let mut others = Vec::new();
        let mut arrive = |uid: u32| {
            let source = Some(Source::User(uid));
            if !connections.make_room(Kind::Door, source, &limits) {
                return None;
            }
            let (ours, theirs) = UnixStream::pair().unwrap();
            others.push(theirs);
            connections.n_accepted += 1;
            let socket = Arc::new(Socket::new(Stream::Unix(ours), patience));
            connections
                .open
                .insert(connections.n_accepted, Peer { socket, source, kind: Kind::Door });
            let mut uids: Vec<Option<Source>> =
                connections.open.values().map(|peer| peer.source).collect();
            uids.sort();
            Some(uids.into_iter().flatten().collect::<Vec<_>>())
        };
        let users = |uids: [u32; 4]| Some(uids.map(Source::User).to_vec());
        (0..3).for_each(|_| drop(arrive(1)));
        assert_eq!(arrive(1), users([1, 1, 1, 1]));
        assert_eq!(arrive(1), None, "their own have to be slow first");
        assert_eq!(arrive(2), users([1, 1, 1, 2]));
        assert_eq!(arrive(3), users([1, 1, 2, 3]));
        assert_eq!(arrive(1), None);
        assert_eq!(arrive(2), None, "no more than the others have");
        assert_eq!(arrive(4), users([1, 2, 3, 4]));
    }
}
