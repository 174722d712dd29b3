//! Threads, channels, the one clock, signals, the driver process and the loop.

pub mod clock;
pub mod events;
