//! The order to stop a run, and the result.

/// How to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Leave the executors running.
    pub keep: bool,
    /// Leave retained failed pods, because the application failed.
    pub keep_failed: bool,
}

/// The result of a stop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StopResult {
    /// Names of pods that are not confirmed deleted.
    pub remaining: Vec<String>,
    /// Names of pods that are being deleted and that the cluster has not ended yet.
    pub terminating: Vec<String>,
    /// Names of retained failed pods that were left on purpose.
    pub retained: Vec<String>,
}
