//! Threads, channels, the one clock, signals, the driver process and the loop.

pub mod clock;
pub mod driver;
pub mod events;
pub mod progress;
pub mod signals;
