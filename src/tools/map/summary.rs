//! What `posse map` says at its end.

/// The most failed lines that are named at the end.
const NAMED_MAX: usize = 20;

/// How the lines have ended.
#[derive(Default)]
pub(super) struct Counts {
    pub(super) n_succeeded: u64,
    pub(super) n_skipped: u64,
    pub(super) n_failed: u64,
    /// The first ones of the failed lines.
    failed: Vec<u64>,
}

impl Counts {
    pub(super) fn on_failed(&mut self, line: u64) {
        self.n_failed += 1;
        if self.failed.len() < NAMED_MAX {
            self.failed.push(line);
        }
    }

    /// The last line of the log. `n_unread`: outputs that could not be read.
    pub(super) fn shown(&self, n_unread: u64) -> String {
        let Self { n_succeeded, n_skipped, n_failed, failed } = self;
        let skipped = match n_skipped {
            0 => String::new(),
            n => format!(", {n} were done before"),
        };
        let mut failed = failed.clone();
        failed.sort_unstable();
        let mut lines: Vec<String> = failed.iter().map(u64::to_string).collect();
        if *n_failed > lines.len() as u64 {
            lines.push("...".to_owned());
        }
        let which = match lines.as_slice() {
            [] => String::new(),
            [line] => format!(": line {line}"),
            lines => format!(": lines {}", lines.join(", ")),
        };
        let unread = match n_unread {
            0 => String::new(),
            1 => "; the output of 1 line could not be read".to_owned(),
            n => format!("; the outputs of {n} lines could not be read"),
        };
        format!("{n_succeeded} lines succeeded{skipped}, {n_failed} failed{which}{unread}")
    }
}
