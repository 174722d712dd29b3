//! Waits of tests, none of which is silent for long.

use std::io::Write as _;
use std::panic::Location;
use std::time::{Duration, Instant};

/// After this time a wait says what it waits for.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// A wait until a deadline. After 30 s it says what it waits for, and where.
pub struct Wait {
    what: String,
    place: &'static Location<'static>,
    began: Instant,
    limit: Duration,
    has_told: bool,
}

impl Wait {
    #[track_caller]
    pub fn new(what: impl Into<String>, limit: Duration) -> Self {
        let (what, place) = (what.into(), Location::caller());
        Self { what, place, began: Instant::now(), limit, has_told: false }
    }

    /// False once the deadline has passed. The caller asks in each round of its loop.
    pub fn goes_on(&mut self) -> bool {
        let waited = self.began.elapsed();
        if let Some(line) = self.news(waited) {
            // The harness keeps what `eprintln!` prints until the test has ended. A closed stderr is no
            // reason to fail.
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        waited < self.limit
    }

    fn news(&mut self, waited: Duration) -> Option<String> {
        if self.has_told || waited < SILENT_MAX {
            return None;
        }
        self.has_told = true;
        let Self { what, place, limit, .. } = self;
        let (waited, limit) = (waited.as_secs(), limit.as_secs());
        Some(format!("{place}: has waited {waited} s of at most {limit} s for: {what}\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_says_once_what_it_waits_for() {
        let mut wait = Wait::new("the driver's end", Duration::from_secs(120));
        let line = line!() - 1;
        assert_eq!(wait.news(SILENT_MAX - Duration::from_millis(1)), None);
        let file = file!();
        let want =
            format!("{file}:{line}:24: has waited 30 s of at most 120 s for: the driver's end\n");
        assert_eq!(wait.news(SILENT_MAX), Some(want));
        assert_eq!(wait.news(SILENT_MAX), None);
        assert!(wait.goes_on());
        assert!(!Wait::new("nothing", Duration::ZERO).goes_on());
    }
}
