//! Objects of Kubernetes besides pods, and the answers of its API server.

pub mod caller;
pub mod common_metadata;
pub mod discovery;
pub mod exec_channels;
pub mod job;
pub mod kube_event;
pub mod kueue;
pub mod kueue_objects;
pub mod labels;
pub mod lease;
pub mod list;
pub mod log;
pub mod object;
pub mod orphan;
pub mod permissions;
pub mod preflight;
pub mod review;
pub mod seen_event;
pub(crate) mod selector;
pub mod status;
pub mod takeover;
pub mod usage;
pub mod watch;

#[cfg(test)]
mod protobuf_tests;
