//! Starts a lease thread, sends it commands, and stops it.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Sender, bounded};
use log::debug;

use crate::inbox::Message;
use crate::leases::thread::{LeaseCommand, LeaseSettings, LeaseThread};
use crate::leases::write_limit::LeaseWriteLimit;
use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::rng::Rng;
use posse_core::machines::lease::{LeaseRelease, LeaseScope};
use posse_core::model::ids::ExecutorId;
use posse_kube::api::leases::Leases;
use posse_kube::api::orphans::AppExecutors;

/// Commands that may wait for the lease thread: reservations of ids and one stop.
const LEASE_COMMANDS_MAX: usize = 16;
/// Stack of a lease thread, bytes.
const STACK_BYTES: usize = 512 << 10;

/// A running lease thread.
#[derive(Debug)]
pub struct LeaseHandle {
    commands: Sender<LeaseCommand>,
    write_limit: LeaseWriteLimit,
    thread: Worker,
}

impl LeaseHandle {
    /// Starts a lease thread. The thread of an instance's Lease also reserves the first block of ids
    /// when it acquires the Lease, so that the first create needs no extra request.
    pub fn start(
        lease: LeaseSettings,
        inbox: Sender<Message>,
        clock: Clock,
        rng: Rng,
    ) -> io::Result<Self> {
        let (commands, receiver) = bounded(LEASE_COMMANDS_MAX);
        let write_limit = LeaseWriteLimit::default();
        // A plugin may take a minute, and the Lease would expire meanwhile.
        let http = lease.http.with_plugin_in_timeout();
        let is_of_instance = lease.scope == LeaseScope::Instance;
        let lease_thread = LeaseThread {
            leases: Leases::new(http.clone(), lease.namespace.as_str()),
            pods: AppExecutors::new(http, &lease.namespace, Some(&lease.selection.app)),
            lease,
            inbox,
            commands: receiver,
            write_limit: write_limit.clone(),
            clock,
            rng,
        };
        if is_of_instance {
            commands.try_send(LeaseCommand::Reserve(ExecutorId(1))).map_err(io::Error::other)?;
        }
        let thread = Worker::start("lease", STACK_BYTES, move || lease_thread.run())?;
        Ok(Self { commands, write_limit, thread })
    }

    /// Until when this Lease permits writes.
    pub fn write_limit(&self) -> LeaseWriteLimit {
        self.write_limit.clone()
    }

    /// Reserves the ids up to `up_to`. `Input::IdsReserved` reports success. False: the thread is
    /// busy (with a request that the server does not answer, for example), and the reservation must
    /// be repeated.
    #[must_use]
    pub fn reserve(&self, up_to: ExecutorId) -> bool {
        // One slot stays free for the stop command, which must never be refused.
        let has_room = self.commands.len() + 1 < LEASE_COMMANDS_MAX;
        let is_sent = has_room && self.commands.try_send(LeaseCommand::Reserve(up_to)).is_ok();
        if !is_sent {
            debug!("the lease thread is busy: executor ids up to {up_to} are not reserved yet");
        }
        is_sent
    }

    /// Releases the Lease if it is held, and waits up to `timeout` for that. False: it may still be
    /// held.
    #[must_use]
    pub fn stop(self, release: LeaseRelease, timeout: Duration) -> bool {
        Self::stop_all(vec![self], release, timeout)
    }

    /// Stops several lease threads at the same time.
    pub(super) fn stop_all(all: Vec<Self>, release: LeaseRelease, timeout: Duration) -> bool {
        for lease in &all {
            // The send fails if the thread has ended already; then there is nothing to stop.
            let _ = lease.commands.try_send(LeaseCommand::Stop { release, timeout });
        }
        let by = Instant::now() + timeout;
        let ended = all.into_iter().map(|lease| lease.thread.join_by(by));
        ended.fold(true, |all, one| all & one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::inbox;
    use crate::leases::testing::settings;
    use posse_testing::{Answer, TestServer};

    #[test]
    fn a_server_that_never_answers_does_not_delay_the_end() {
        let server = TestServer::start(None, |_| Answer::Stall(Vec::new()));
        let lease = settings(&server);
        let (sender, _receiver) = inbox();
        let clock = Clock::start();
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        server.wait();
        // The thread waits for the server, so its channel is full at some time.
        let n_taken = (1..100).take_while(|&id| handle.reserve(ExecutorId(id))).count();
        assert!(n_taken < LEASE_COMMANDS_MAX, "{n_taken} reservations were taken");
        let began = Instant::now();
        assert!(!handle.stop(LeaseRelease::Delete, Duration::from_millis(50)));
        // The request itself would time out after 10 s only.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
