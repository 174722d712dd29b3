//! How many requests were sent, with which result, and how long the server took to answer.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use posse_base::sync::lock;
use posse_wire::control::exposition::Histogram;

/// The upper bounds of the answer times, in seconds: those of Kubernetes' own clients.
const BOUNDS_S: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

/// The requests of a client since its start.
#[derive(Clone, Debug, Default)]
pub struct RequestCounts {
    /// The number of requests by method and status; no status: there was no answer.
    pub by_status: BTreeMap<(&'static str, Option<u16>), u64>,
    /// The time to the head of the answer, or to the error, in seconds.
    pub seconds: BTreeMap<&'static str, Histogram>,
}

/// The counts, which all threads of a client share.
#[derive(Debug, Default)]
pub(super) struct SharedCounts(Mutex<RequestCounts>);

impl SharedCounts {
    /// Counts one request.
    pub(super) fn add(&self, method: &'static str, status: Option<u16>, elapsed: Duration) {
        // No panic can leave the counts inconsistent.
        let mut counts = lock(&self.0);
        *counts.by_status.entry((method, status)).or_default() += 1;
        let seconds = counts.seconds.entry(method).or_insert_with(|| Histogram::new(BOUNDS_S));
        seconds.observe(elapsed.as_secs_f64());
    }

    /// The counts so far.
    pub(super) fn read(&self) -> RequestCounts {
        lock(&self.0).clone()
    }
}
