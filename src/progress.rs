//! How far long work is, as log lines.

use std::time::{Duration, Instant};

use crate::args::ShowProgress;
use posse_base::text::{age, one_line};

/// The time between two lines that somebody has asked for, or sees on a terminal.
const WATCHED: Duration = Duration::from_secs(1);
/// The same in a log that others keep.
const LOGGED: Duration = Duration::from_secs(10);

/// What is known of the pieces of work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Far {
    pub n_done: u64,
    /// How many had ended before this began.
    pub n_before: u64,
    pub n_failed: u64,
    pub n_running: usize,
}

/// Logs a line when something has changed, not too often.
#[derive(Debug)]
pub(crate) struct Progress {
    began: Instant,
    told_at: Instant,
    told: Far,
    every: Option<Duration>,
    /// What the pieces are, such as `lines`.
    what: &'static str,
}

impl Progress {
    pub(crate) fn new(wanted: ShowProgress, is_terminal: bool, what: &'static str) -> Self {
        let every = match wanted {
            ShowProgress::Off => None,
            ShowProgress::Auto if !is_terminal => Some(LOGGED),
            ShowProgress::Auto | ShowProgress::Plain => Some(WATCHED),
        };
        let now = Instant::now();
        Self { began: now, told_at: now, told: Far::default(), every, what }
    }

    /// How long until a line may be due.
    #[cfg(all(feature = "client", target_os = "linux"))]
    pub(crate) fn pause(&self) -> Option<Duration> {
        Some(self.every?.saturating_sub(self.told_at.elapsed()))
    }

    /// `total`: how many there are, if that is known.
    pub(crate) fn show(&mut self, counted: Far, total: Option<u64>) {
        if self.is_due() && counted != self.told {
            self.told = counted;
            log::info!("{}", line(self.what, counted, total, self.began.elapsed()));
        }
    }

    /// `n_bytes`: how many of a file have gone.
    pub(crate) fn show_bytes(&mut self, file: &str, n_bytes: u64, total: u64) {
        if n_bytes <= self.told.n_done {
            // Another file, or the same one again.
            (self.began, self.told) = (Instant::now(), Far::default());
        }
        self.told.n_done = n_bytes;
        if self.is_due() {
            let left = time_left(self.began.elapsed(), n_bytes, total.saturating_sub(n_bytes));
            let (n, of, what) = (n_bytes >> 20, total >> 20, self.what);
            log::info!("{}: {n} of {of} {what} sent{left}", one_line(file));
        }
    }

    fn is_due(&mut self) -> bool {
        let is_due = self.every.is_some_and(|every| self.told_at.elapsed() >= every);
        if is_due {
            self.told_at = Instant::now();
        }
        is_due
    }
}

/// `, about 3m20s left`, if that can be known.
fn time_left(elapsed: Duration, n_done: u64, n_left: u64) -> String {
    if n_done == 0 || n_left == 0 {
        return String::new();
    }
    let left_ms = elapsed.as_millis().saturating_mul(n_left.into()) / u128::from(n_done);
    format!(", about {} left", age(i64::try_from(left_ms / 1_000).unwrap_or(i64::MAX)))
}

fn line(what: &str, counted: Far, total: Option<u64>, elapsed: Duration) -> String {
    let Far { n_done, n_before, n_failed, n_running } = counted;
    let of = total.map_or_else(String::new, |total| format!(" of {total}"));
    let n_ended = n_done.saturating_add(n_failed).saturating_sub(n_before);
    let n_left = total.map_or(0, |total| total.saturating_sub(n_done).saturating_sub(n_failed));
    let left = time_left(elapsed, n_ended, n_left);
    format!("{n_done}{of} {what} done, {n_failed} failed, {n_running} running{left}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_how_far_it_is() {
        let counted = Far { n_done: 30, n_before: 10, n_failed: 5, n_running: 4 };
        for (total, want) in [
            (None, "30 lines done, 5 failed, 4 running"),
            (Some(85), "30 of 85 lines done, 5 failed, 4 running, about 3m20s left"),
            (Some(35), "30 of 35 lines done, 5 failed, 4 running"),
        ] {
            assert_eq!(line("lines", counted, total, Duration::from_secs(100)), want);
        }
        let none = Far::default();
        let want = "0 of 9 lines done, 0 failed, 0 running";
        assert_eq!(line("lines", none, Some(9), Duration::from_secs(5)), want);
    }
}
