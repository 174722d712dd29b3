//! The reconciler's state: snapshot, ledger, executors, ids, and the driver's reports.

pub mod counts;
pub mod credentials;
pub mod driver_reports;
pub mod executors;
mod group_end;
mod group_tasks;
pub mod id_allocator;
pub mod ledger;
pub mod life;
pub mod ranges;
pub mod records;
pub mod retries;
pub mod server_health;
pub mod slot_range;
pub mod slot_waits;
pub mod slots;
pub mod snapshot;
pub mod tasks;
