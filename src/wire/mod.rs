//! Bytes to core values and back: serde lives here and nowhere below. No sockets, no clock.

pub mod labels;
