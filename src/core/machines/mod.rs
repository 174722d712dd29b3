//! State machines for threads that only do I/O. Each machine says what to do next and when.

pub mod credentials;
pub mod event_series;
pub mod lease;
pub mod orphan_cleanup;
pub mod shutdown;
pub mod watch;
