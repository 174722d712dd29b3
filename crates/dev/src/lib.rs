//! The embedded cluster: an API server on loopback and a node that runs pods as local processes.
//!
//! Whatever it answers, a real kube-apiserver answers alike: `tests/embedded/transcript.rs` compares, and
//! `fixtures/transcript/differences.md` lists what differs. Bodies and answers are JSON.
//! The nodes run commands of this machine: no image, no isolation. Each container has a supervisor, which
//! ends all that the container started when the container or posse ends, also by `kill -9`. Only what
//! the supervisor may not signal stays, and daemons if the supervisor itself is killed with -9.
//!
//! A room may import the rooms to its right, and itself; no two files import each other in a circle:
//!
//! ```text
//! cluster -> { node, controllers } -> apiserver -> faults -> storage -> schema -> time
//! cluster -> certificate -> time;  cluster, node -> kubeconfig
//! ```
//!
//! The kubelet, the scheduler and the controllers are clients of the API server, as in a real
//! cluster, but they call it as a library: without sockets and without credentials.

#![cfg(target_os = "linux")]

mod apiserver;
mod certificate;
mod cluster;
mod controllers;
mod faults;
mod kubeconfig;
mod node;
mod schema;
mod storage;
#[cfg(test)]
mod testing;
mod time;

pub use cluster::{Cluster, DevError, Options};
pub use faults::table as fault_table;
pub use node::{COMMAND, enter};
