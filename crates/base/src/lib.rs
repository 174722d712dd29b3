//! What has no other home: points in time, randomness from a seed, the delays of retries, text that is safe to print,
//! the clock of the process, files written without following links, and who has a TCP socket.
//!
//! `core` uses `backoff`, `rng`, `text` and `time`, which are pure. `clock`, `files`, `safe_text` and `socket_owner`
//! are for the rooms that do I/O.

pub mod backoff;
pub mod clock;
pub mod files;
pub mod rng;
pub mod safe_text;
pub mod socket_owner;
pub mod text;
pub mod time;
