//! Bytes to core values and back: serde lives here and nowhere below. No sockets, no clock.

pub mod build;
pub mod config;
pub mod control;
pub mod control_addr;
pub mod draining;
pub mod duration;
pub mod event;
mod json;
pub mod keep_away;
pub mod labels;
pub mod lease;
pub mod leftover;
pub mod list;
pub mod log;
pub mod memory;
pub mod names;
pub mod placeholders;
pub mod pod;
pub mod quantity;
pub mod review;
pub mod section;
pub mod status;
pub mod status_json;
pub mod template;
pub mod time;
pub mod watch;
pub mod yaml;
