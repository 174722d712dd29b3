//! The embedded cluster: an API server on loopback and a node that runs pods as local processes.

mod api;
mod cluster;
mod decode;
mod defaults;
mod discovery;
mod faults;
mod kind;
mod logs;
mod names;
mod node;
mod object;
mod options;
mod quantity;
mod read;
mod refused;
mod route;
mod schema;
mod selector;
mod server;
mod state;
mod store;
mod time;
mod validate;
mod watch;
mod write;

pub use cluster::{Cluster, DevError, Options};
