//! The reconciler's state: snapshot, ledger, executors, ids, and the driver's reports.

pub mod driver_reports;
pub mod executors;
pub mod id_allocator;
pub mod ledger;
pub mod ranges;
pub mod retries;
pub mod server_health;
pub mod slots;
pub mod snapshot;
