//! Bytes to core values and back: serde lives here and nowhere below. No sockets, no clock.

pub mod control;
pub mod event;
pub mod labels;
pub mod status_json;
pub mod time;
