//! The embedded cluster: an API server on loopback and a node that runs pods as local processes.
//!
//! Whatever it answers, a real kube-apiserver answers alike: `tests/embedded/transcript.rs` compares, and
//! `docs/EMBEDDED.md` lists what differs. Bodies come in JSON, YAML and protobuf, answers go in JSON.
//! The nodes run commands of this machine: no image, no isolation; a process that leaves its group
//! outlives its pod, and all of them outlive a posse that was killed with -9.
//!
//! ```text
//! sockets -> server -> api -> { read, watch, logs }      -> state -> store
//!                       |  -> write -> admit, validate  ---^  ^
//!                     identity, rbac     controllers, node ---'
//! ```

mod admit;
mod api;
mod certificate;
mod cluster;
mod controllers;
mod decode;
mod defaults;
mod deletion;
mod discovery;
mod duplicates;
mod edge;
mod events;
mod evict;
mod faults;
mod health;
mod identity;
mod kind;
mod kubeconfig;
mod logs;
mod names;
mod node;
mod object;
mod openapi;
mod options;
mod patch;
mod prepare;
mod protobuf;
mod rbac;
mod read;
mod refused;
mod review;
mod route;
mod schema;
mod selector;
mod server;
mod state;
mod store;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod time;
mod validate;
mod watch;
mod write;

pub use cluster::{Cluster, DevError, Options};
pub use faults::table as fault_table;
pub use node::{COMMAND, enter};
