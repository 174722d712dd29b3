//! How far long work is, as log lines.

use std::time::{Duration, Instant};

use crate::args::ShowProgress;
use posse_base::text::age;

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
    #[cfg(feature = "tools")]
    pub(crate) fn pause(&self) -> Option<Duration> {
        Some(self.every?.saturating_sub(self.told_at.elapsed()))
    }

    /// `total`: how many there are, if that is known.
    pub(crate) fn show(&mut self, counted: Far, total: Option<u64>) {
        if self.every.is_none_or(|every| self.told_at.elapsed() < every) {
            return;
        }
        self.told_at = Instant::now();
        if counted != self.told {
            self.told = counted;
            log::info!("{}", line(self.what, counted, total, self.began.elapsed()));
        }
    }
}

fn line(what: &str, counted: Far, total: Option<u64>, elapsed: Duration) -> String {
    let Far { n_done, n_before, n_failed, n_running } = counted;
    let of = total.map_or_else(String::new, |total| format!(" of {total}"));
    let mut text = format!("{n_done}{of} {what} done, {n_failed} failed, {n_running} running");
    let n_ended = n_done.saturating_add(n_failed).saturating_sub(n_before);
    let n_left = total.map_or(0, |total| total.saturating_sub(n_done).saturating_sub(n_failed));
    if n_ended > 0 && n_left > 0 {
        let left_s = elapsed.as_secs().saturating_mul(n_left) / n_ended;
        text.push_str(&format!(", about {} left", age(i64::try_from(left_s).unwrap_or(i64::MAX))));
    }
    text
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
