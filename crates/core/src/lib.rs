//! All decisions. Pure code: no clock, thread, lock, socket, log or serde. Time and randomness are
//! arguments; iteration order is fixed.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod machines;
pub mod model;
pub mod policy;
pub mod reconciler;
pub mod state;
#[cfg(test)]
pub(crate) mod testing;
