//! Bytes to core values and back: serde lives here and nowhere below. No sockets, no clock.

pub mod labels;
pub mod lease;
pub mod list;
pub mod pod;
pub mod review;
pub mod status;
pub mod watch;
