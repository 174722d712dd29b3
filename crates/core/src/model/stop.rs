//! The order to stop a run, and the result.

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Leave the executors running.
    pub keep: bool,
    /// Leave retained failed pods, because the application failed.
    pub keep_failed: bool,
    /// No other process goes on with the run.
    pub is_over: bool,
}

/// A deleted pod that stays until somebody removes its finalizers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldPod {
    pub name: String,
    pub finalizers: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopResult {
    /// Names of pods that are not confirmed deleted.
    pub remaining: Vec<String>,
    /// Names of pods that are being deleted and that the cluster has not ended yet.
    pub terminating: Vec<String>,
    /// Pods that are deleted and that a finalizer holds.
    pub held: Vec<HeldPod>,
    /// Names of retained failed pods that were left on purpose.
    pub retained: Vec<String>,
}

impl StopResult {
    /// True if no pod is left against the order.
    pub fn is_clean(&self) -> bool {
        self.remaining.is_empty() && self.held.is_empty()
    }
}
