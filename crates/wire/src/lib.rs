//! Formats: bytes to `core` values and back. All serde code for them is here; no sockets, no clock.

pub mod bundle;
pub mod config;
pub mod control;
pub mod error;
mod fields;
pub mod k8s;
pub mod names;
pub mod pod;
mod text;
pub mod time;
