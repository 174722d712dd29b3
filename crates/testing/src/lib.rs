//! What the tests of several crates share. No shipped program has it.

// A panic is how a helper fails its test.
#![allow(clippy::unwrap_used, clippy::print_stderr)]
#![allow(missing_debug_implementations, clippy::new_without_default)]

mod control;
mod folder;
mod http;
mod kube;
pub mod leftovers;
mod signals;
mod status;
mod tls;
mod wait;

pub use control::{
    FakeCore, FakeEvents, Fixture, PATIENCE, encoded_status, epoch_of, identity, subject,
};
pub use folder::Folder;
pub use http::{Answer, Seen, TestServer};
pub use kube::plain_client;
pub use signals::{let_children_hear_signals, program};
pub use status::{sample_status, sample_status_json};
pub use tls::{Authority, ExtendedKeyUsagePurpose, as_version_1, server_with, trusting};
pub use wait::Wait;
