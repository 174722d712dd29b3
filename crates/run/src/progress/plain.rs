//! Progress as log lines, for logs that are read later: `--progress plain`.

use crate::progress::line::{Facts, format_line};
use posse_base::time::Millis;

/// The target of these log lines, so that the logger can show them at any level. Like those of the crates: the
/// logger reads `posse::` in a filter as `posse_`.
pub const LOG_TARGET: &str = "posse_progress";

/// At most one line a second.
const INTERVAL_MS_MIN: u64 = 1_000;

/// Logs a line when something has changed.
#[derive(Debug)]
pub(super) struct PlainProgress {
    app: String,
    line: String,
    logged_at: Option<Millis>,
}

impl PlainProgress {
    pub(super) fn new(app: &str) -> Self {
        Self { app: app.to_owned(), line: String::new(), logged_at: None }
    }

    /// Logs the line if it differs from the last one. Returns when to call again, if that is too early
    /// now.
    pub(super) fn show(&mut self, facts: impl FnOnce() -> Facts, now: Millis) -> Option<Millis> {
        let line_at = self.logged_at.map(|at| at.after(INTERVAL_MS_MIN));
        if let Some(line_at) = line_at.filter(|at| now < *at) {
            return Some(line_at);
        }
        let line = self.next_line(facts())?;
        log::info!(target: LOG_TARGET, "{line}");
        self.logged_at = Some(now);
        None
    }

    fn next_line(&mut self, facts: Facts) -> Option<String> {
        let (outage_s, facts) = (facts.outage_s, Facts { outage_s: None, ..facts });
        // Passing time alone is no change.
        let outage = if outage_s.is_some() { "  server unreachable" } else { "" };
        let line = format_line(&self.app, &facts, None, usize::MAX / 2, false) + outage;
        (line != self.line).then(|| {
            self.line.clone_from(&line);
            line
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_are_logged_and_at_most_one_a_second() {
        let mut plain = PlainProgress::new("w");
        let facts = |running| Facts { running, target: 9, ..Facts::default() };
        assert_eq!(plain.show(|| facts(1), Millis(50)), None);
        assert_eq!((plain.line.as_str(), plain.logged_at), ("w  running 1/9", Some(Millis(50))));
        assert_eq!(plain.show(|| facts(2), Millis(1_049)), Some(Millis(1_050)));
        assert_eq!(plain.line, "w  running 1/9");
        assert_eq!(plain.show(|| facts(2), Millis(1_050)), None);
        assert_eq!(plain.line, "w  running 2/9");
        assert_eq!(plain.next_line(facts(2)), None);
        let silent = |s| Facts { outage_s: Some(s), ..facts(2) };
        let want = "w  running 2/9  server unreachable";
        assert_eq!(plain.next_line(silent(1)).as_deref(), Some(want));
        assert_eq!(plain.next_line(silent(2)), None);
    }
}
