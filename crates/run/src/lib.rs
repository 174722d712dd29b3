//! Threads and channels, signals, the driver process, Leases, and the reconciler thread's loop. `run`
//! connects the parts for one run.

pub mod claims;
pub mod credentials;
pub mod driver;
pub mod dry_run;
pub mod engine;
pub mod events;
pub mod idle;
pub mod inbox;
pub mod job_pod;
pub mod kube_events;
pub mod leases;
pub mod log_lines;
pub mod metrics;
pub mod pod_groups;
pub mod polled;
pub mod random;
pub mod record;
pub mod run;
pub mod scale;
pub mod server_threads;
pub mod signals;
pub mod task_outputs;
pub mod task_secrets;
pub mod usage;
pub mod wanted_annotation;
pub mod watch;
pub mod watermark;
pub mod worker;
pub mod writers;
