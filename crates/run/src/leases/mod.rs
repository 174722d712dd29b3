//! The Leases of a run: of its instance, and of the application if the run is exclusive. Also the
//! cleanup of orphans, the executors that ended runs of the same application left.

pub mod acquire;
pub mod handle;
pub mod holder;
pub mod orphans;
pub mod thread;
pub mod write_limit;

#[cfg(test)]
mod testing;

use std::time::Duration;

use log::warn;

use crate::leases::handle::LeaseHandle;
use posse_base::clock::Clock;
use posse_core::machines::lease::LeaseRelease;
use posse_kube::api::driver_pod::DriverPod;
use posse_kube::http::WriteLimit;

/// How long a run waits at its end for its Leases to be released.
pub const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the highest executor id ever used is stored, so that a restart does not use an id twice.
#[derive(Debug)]
pub enum IdStore {
    /// In an annotation of the driver's pod.
    DriverPod(DriverPod),
    /// In the instance's Lease.
    Lease(LeaseHandle),
    /// Nowhere: a restart continues at the next multiple of 1,000.
    None,
}

/// The Leases that a run holds.
#[derive(Debug)]
pub struct RunLeases {
    /// Only if the run is exclusive.
    pub application: Option<LeaseHandle>,
    pub ids: IdStore,
}

impl RunLeases {
    /// How long writes may still take effect; none without a Lease.
    pub fn write_limit(&self, clock: Clock) -> Option<WriteLimit> {
        let instance = match &self.ids {
            IdStore::Lease(lease) => Some(lease),
            IdStore::DriverPod(_) | IdStore::None => None,
        };
        let leases = instance.into_iter().chain(&self.application);
        write_limit::combined(leases.map(LeaseHandle::write_limit).collect(), clock)
    }

    /// Releases all Leases, and waits up to `RELEASE_TIMEOUT` for that.
    pub fn release(self, release: LeaseRelease) {
        let instance = match self.ids {
            IdStore::Lease(lease) => Some(lease),
            IdStore::DriverPod(_) | IdStore::None => None,
        };
        let leases: Vec<LeaseHandle> = instance.into_iter().chain(self.application).collect();
        if !LeaseHandle::stop_all(leases, release, RELEASE_TIMEOUT) {
            warn!("a lease was not released: the API server does not answer");
        }
    }
}
