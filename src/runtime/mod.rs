//! Threads, channels, the one clock, signals, the driver process and the loop.

pub mod drafts;
pub mod driver;
pub mod engine;
pub mod events;
pub mod hold;
pub mod inbox;
pub mod lease;
pub mod narrate;
pub mod poller;
pub mod progress;
pub mod ready;
pub mod signals;
pub mod sweep;
pub mod upstream;
pub mod watcher;
pub mod worker;
pub mod writers;
