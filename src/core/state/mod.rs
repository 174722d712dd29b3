//! What the reconciler knows: the server's last word, what was asked of it, and the executors.

pub mod driver_reports;
pub mod executors;
pub mod id_allocator;
pub mod id_set;
pub mod ledger;
pub mod slots;
pub mod snapshot;
