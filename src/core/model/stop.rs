//! How a run is to end, and how its end came out.

/// How a run is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopOrder {
    /// Leave the executors as they are.
    pub keep: bool,
    /// Leave failed pods that were kept as evidence: the application failed.
    pub keep_failed: bool,
}

/// How the stop came out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopResult {
    /// Pods that may be left, by name.
    pub remaining: Vec<String>,
    /// Failed pods left on purpose, by name.
    pub evidence: Vec<String>,
}
