//! The control API of a run: its server and its client.

mod access;
pub mod address;
mod answer;
pub mod api;
pub mod client;
mod event_stream;
pub mod metrics;
pub mod page;
#[cfg_attr(not(target_os = "linux"), path = "no_run_process.rs")]
pub mod run_process;
mod semaphore;
pub mod served_run;
mod shared_answer;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use posse_core::model::act::Caller;
use posse_core::model::command::{Command, Reply};
use posse_core::model::ids::GroupName;
use posse_core::model::pod_text::PodText;
use posse_core::model::task::Task;
use posse_wire::control::task_secrets::NewTask;
use posse_wire::control::{CallError, NewGroup};
use posse_wire::k8s::usage::PodUsage;

/// The reconciler as the control API sees it. `runtime` implements this over the inbox.
pub trait RunHandle: Send + Sync {
    /// Sends a command and waits for the reply. `by`: who calls; none for posse itself.
    ///
    /// # Errors
    /// The queue is full, or the run is stopping.
    fn ask(&self, command: Command, by: Option<Caller>) -> Result<Reply, Busy>;

    /// The reconciler made a turn within the last minute. An unreachable API server does not count as
    /// a failure.
    fn is_alive(&self) -> bool;

    /// The reconciler has applied the first LIST, and holds its Leases.
    fn is_ready(&self) -> bool;
}

/// Compiles and checks pod templates. May block on the API server.
pub trait DryRuns: Send + Sync {
    /// Compiles a template for the pods of `group`, which was taken from `new`, and sends dry-run
    /// creates of a pod and of the claims of a slot to the API server.
    ///
    /// # Errors
    /// The template or a volume is invalid, or the API server cannot check it now.
    fn dry_run(
        &self,
        group: &GroupName,
        template: Value,
        new: &NewGroup,
    ) -> Result<Arc<PodText>, DryRunError>;

    /// The group was deleted. What the configuration says of its pods is not said of the next group of this name.
    fn forget(&self, group: &GroupName);
}

/// The output of ended tasks, as the run keeps it. May block on a disk.
pub trait TaskOutputs: Send + Sync {
    /// The last bytes of a task's output.
    ///
    /// # Errors
    /// Why it is not there, as a phrase after "the output of the task".
    fn find(&self, group: &GroupName, key: &str) -> Result<Vec<u8>, String>;
}

/// What executors use. May block on the API server.
pub trait Usage: Send + Sync {
    /// By pod. Empty: nobody tells it.
    fn read(&self) -> Vec<PodUsage>;
}

/// The Secret with the values of tasks' secret variables and files. May block on the API server.
pub trait TaskSecrets: Send + Sync {
    /// Stores the values, and then gives `add` the tasks with the keys of their values. What is stored stays at least until
    /// `add` returns, and as long as a task needs it.
    ///
    /// # Errors
    /// The values are not stored, and `add` was not called.
    fn store(
        &self,
        tasks: Vec<NewTask>,
        add: &mut dyn FnMut(Vec<Arc<Task>>),
    ) -> Result<(), StoreError>;
}

/// Why the values of tasks are not stored, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Somebody must do something about it.
    Refused(String),
    /// The API server cannot do it now.
    Unavailable(String),
}

/// Why a dry run failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRunError {
    /// The template is invalid.
    Invalid(CallError),
    /// The API server cannot check it now. `retry_after_ms`: its `Retry-After`.
    Unavailable { why: String, retry_after_ms: Option<u64> },
}

/// Why a command got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// Too many commands are waiting.
    Full,
    /// The run is stopping or has ended.
    Stopping,
}

/// The events of this run, numbered from 1.
pub trait Events: Send + Sync {
    /// The number of the newest event; 0 if there is none.
    fn newest(&self) -> u64;

    /// The events after number `after`. If there are none, waits up to `wait` for the next one.
    fn read(&self, after: u64, wait: Duration) -> Read;
}

/// The result of reading events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// The event log has ended.
    Ended,
    /// Whole lines with line ends, and the number of the last one. If events were dropped before they
    /// could be read, the first line is a `missed` event.
    Lines { lines: Vec<String>, last: u64 },
    /// No event within the wait.
    Nothing,
}
