//! Runs a driver in the cluster: creates its objects, follows it, stops it. Pure functions build the
//! objects; the rest sends requests.

pub mod apps;
mod changes;
mod driver_logs;
mod driver_pod;
pub mod executor_logs;
pub mod files;
pub mod follow;
pub mod give_up;
pub mod listener;
pub mod logs;
pub mod manifests;
mod no_pod;
pub mod plan;
pub mod pod_files;
pub mod state;
pub mod stop;
pub mod submission;
pub mod workload;
