//! The clock of the process: monotonic milliseconds for decisions, wall time for what is written down.

use std::time::{Duration, Instant, SystemTime};

use crate::core::model::time::Millis;

/// Started once per process; copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    started: Instant,
    started_wall: SystemTime,
}

impl Clock {
    /// Begins to count.
    #[must_use]
    pub fn start() -> Self {
        Self { started: Instant::now(), started_wall: SystemTime::now() }
    }

    /// Milliseconds since `start`.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// The `Instant` of a moment, for waiting until it; none where it lies beyond all time.
    #[must_use]
    pub fn instant(&self, at: Millis) -> Option<Instant> {
        self.started.checked_add(Duration::from_millis(at.0))
    }

    /// The wall time of a moment.
    #[must_use]
    pub fn wall(&self, at: Millis) -> SystemTime {
        self.started_wall.checked_add(Duration::from_millis(at.0)).unwrap_or(self.started_wall)
    }
}
