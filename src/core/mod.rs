//! Every decision, pure: no clock, thread, lock, socket, log or serde in here. Time and randomness
//! are arguments, iteration order is fixed, a plan is a value and doing nothing has a reason.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod backoff;
pub mod event;
pub mod ids;
pub mod input;
pub mod lease;
pub mod plan;
pub mod pod;
pub mod policy;
pub mod refusal;
pub mod rng;
pub mod status;
pub mod time;
pub mod watch;
