//! State machines for threads that only do I/O. Each machine says what to do next and when.

pub mod lease;
pub mod lease_loss;
pub mod orphan_cleanup;
pub mod own_deletion;
pub mod record;
pub mod renewal_schedule;
pub mod retry;
pub mod scale;
pub mod shared_list;
pub mod shutdown;
pub mod startup;
pub mod watch;
