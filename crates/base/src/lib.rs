//! What has no other home: points in time, randomness from a seed, the delays of retries, text that is safe to print,
//! the clock of the process, files written without following links, locks, who has a TCP socket, and what Linux alone has.
//!
//! `core` uses `backoff`, `rng`, `text` and `time`, which are pure. `clock`, `files`, `safe_text`, `socket_owner`, `sync` and
//! `system` are for the rooms that do I/O.

pub mod backoff;
pub mod clock;
pub mod files;
pub mod rng;
pub mod safe_text;
pub mod socket_owner;
pub mod sync;
#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(not(target_os = "linux"), path = "others.rs")]
pub mod system;
pub mod text;
pub mod time;
