//! Putting a driver into the cluster, following it, ending it. What its objects look like is decided
//! by pure functions; requests and streams are a thin shell around those.

pub mod apps;
pub mod driver_pod;
pub mod files;
pub mod follow;
pub mod listener;
pub mod logs;
pub mod manifests;
pub mod plan;
mod retry;
pub mod state;
pub mod stop;
pub mod submission;
pub mod workload;
