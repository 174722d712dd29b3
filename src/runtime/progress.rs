//! The progress line on a terminal, and a log writer that prints log lines above it.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::model::status::GroupStatus;
use crate::core::model::time::Millis;

/// The values on the progress line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub running: u32,
    pub target: u32,
    /// Requested or pending.
    pub pending: u32,
    /// Since the start.
    pub lost: u64,
    /// What groups wait for: `quota`, with the group's name or the number of groups if there are
    /// several groups.
    pub waiting: Option<String>,
    /// For how many seconds the API server has not answered, if it does not.
    pub outage_s: Option<u64>,
    /// What a stop waits for.
    pub stopping: Option<Stopping>,
}

/// What a stop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// The driver, before it is killed.
    Driver,
    /// The executors.
    Executors { remaining: u32 },
}

impl Facts {
    /// The sums over all groups.
    pub fn new(groups: &[GroupStatus], lost: u64, outage_s: Option<u64>) -> Self {
        let sum = |count: fn(&GroupStatus) -> u32| {
            groups.iter().fold(0_u32, |sum, group| sum.saturating_add(count(group)))
        };
        Self {
            running: sum(|group| group.running),
            target: sum(|group| group.target),
            pending: sum(|group| group.requested.saturating_add(group.pending)),
            lost,
            waiting: waiting(groups),
            outage_s,
            stopping: None,
        }
    }
}

/// `quota`, `quota (big)`, `backoff (2 groups), quota (3 groups)`.
fn waiting(groups: &[GroupStatus]) -> Option<String> {
    let mut by_reason: BTreeMap<&str, Vec<&GroupStatus>> = BTreeMap::new();
    for group in groups {
        if let Some(waiting) = group.waiting {
            by_reason.entry(waiting.as_str()).or_default().push(group);
        }
    }
    let text = |(what, waiting): (&str, Vec<&GroupStatus>)| match waiting.as_slice() {
        [_] if groups.len() == 1 => what.to_owned(),
        [one] => format!("{what} ({})", one.group),
        several => format!("{what} ({} groups)", several.len()),
    };
    let texts: Vec<String> = by_reason.into_iter().map(text).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// The line. If the terminal is too narrow, whole fields are left out, the least important first: a cut
/// number would be a wrong one.
pub fn format_line(app: &str, facts: &Facts, elapsed_ms: u64, width: usize) -> String {
    let counted = |name, count: u64| (count > 0).then(|| format!("{name} {count}"));
    let waiting = match (facts.stopping, facts.outage_s, &facts.waiting) {
        (_, Some(seconds), _) => Some(format!("server unreachable {seconds}s")),
        (Some(_), None, _) | (None, None, None) => None,
        (None, None, Some(waiting)) => Some(format!("waiting: {waiting}")),
    };
    let (state, hint) = match facts.stopping {
        None => (format!("running {}/{}", facts.running, facts.target), None),
        Some(Stopping::Driver) => ("stopping: waits for the driver".to_owned(), Some(FORCE_HINT)),
        Some(Stopping::Executors { remaining }) => {
            (format!("stopping: waits for {remaining} executors"), Some(FORCE_HINT))
        }
    };
    // In the order on the line; the numbers say which is left out first.
    let mut fields = vec![
        (4, Some(app.to_owned())),
        (6, Some(state)),
        (2, counted("pending", u64::from(facts.pending))),
        (3, counted("lost", facts.lost)),
        (5, waiting),
        (1, hint.map(str::to_owned)),
        (0, Some(format_elapsed(elapsed_ms / 1000))),
    ];
    fields.retain(|(_, text)| text.is_some());
    loop {
        let texts: Vec<&str> = fields.iter().filter_map(|(_, text)| text.as_deref()).collect();
        let line = texts.join("  ");
        let least = (0..fields.len()).min_by_key(|i| fields[*i].0);
        match least {
            Some(least) if line.chars().count() > width => fields.remove(least),
            Some(_) | None => return line,
        };
    }
}

/// `00:12`, `1:02:03`.
fn format_elapsed(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes:02}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

/// The progress line. Clones share it.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Screen>>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress(..)")
    }
}

struct Screen {
    out: Box<dyn Write + Send>,
    /// In columns; read at each drawing, since the window size can change.
    width: fn() -> usize,
    app: String,
    facts: Facts,
    /// The text on the terminal now; empty if none.
    drawn: String,
    drawn_at: Option<Millis>,
}

impl Progress {
    /// `None` if stderr is not a terminal, or the terminal is dumb.
    pub fn on_stderr(app: &str, term: Option<&str>) -> Option<Self> {
        let is_possible = term.is_none_or(|term| term != "dumb") && io::stderr().is_terminal();
        is_possible.then(|| Self::new(app, Box::new(io::stderr()), stderr_width))
    }

    fn new(app: &str, out: Box<dyn Write + Send>, width: fn() -> usize) -> Self {
        let (facts, drawn) = (Facts::default(), String::new());
        let screen = Screen { out, width, app: app.to_owned(), facts, drawn, drawn_at: None };
        Self(Arc::new(Mutex::new(screen)))
    }

    /// Draws the line if it has changed and the last drawing is at least `REDRAW_MS_MIN` ago. Returns
    /// when to call again.
    pub fn show(&self, facts: impl FnOnce() -> Facts, now: Millis) -> Millis {
        let mut screen = self.lock();
        if let Some(drawn_at) = screen.drawn_at.filter(|at| now < at.after(REDRAW_MS_MIN)) {
            return drawn_at.after(REDRAW_MS_MIN);
        }
        screen.facts = facts();
        let line = format_line(&screen.app, &screen.facts, now.0, (screen.width)());
        if line != screen.drawn {
            screen.draw(line);
            screen.drawn_at = Some(now);
        }
        // The elapsed time on the line changes at the next full second.
        Millis(now.0 - now.0 % 1000).after(1000)
    }

    /// Erases the line until the next `show`.
    pub fn clear(&self) {
        let mut screen = self.lock();
        screen.erase();
        screen.drawn.clear();
        // Errors are ignored: a closed terminal must not end the run.
        let _ = screen.out.flush();
    }

    /// A writer for log lines, which prints them above the progress line.
    pub fn log_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Screen> {
        // At worst, a line is half drawn; the next drawing repairs it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    fn draw(&mut self, line: String) {
        // Errors are ignored: a closed terminal must not end the run.
        let _ = write!(self.out, "\r{line}{ERASE_TO_END}").and_then(|()| self.out.flush());
        self.drawn = line;
    }

    fn erase(&mut self) {
        if !self.drawn.is_empty() {
            let _ = write!(self.out, "\r{ERASE_TO_END}");
        }
    }
}

/// Writes log lines: erases the progress line, writes, and draws the progress line again.
#[derive(Debug)]
pub struct LogWriter(Progress);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut screen = self.0.lock();
        screen.erase();
        screen.out.write_all(bytes)?;
        // An incomplete log line continues with the next write.
        if bytes.ends_with(b"\n") && !screen.drawn.is_empty() {
            let line = std::mem::take(&mut screen.drawn);
            screen.draw(line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().out.flush()
    }
}

fn stderr_width() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    // One column less, because some terminals wrap after a full line.
    match size {
        Ok(size) if size.ws_col > 1 => usize::from(size.ws_col) - 1,
        Ok(_) | Err(_) => WIDTH_UNKNOWN,
    }
}

/// What a second signal does during a stop.
const FORCE_HINT: &str = "Ctrl-C again to force";

/// At most five drawings a second.
const REDRAW_MS_MIN: u64 = 200;

/// The width if it cannot be read, in columns.
const WIDTH_UNKNOWN: usize = 79;

const ERASE_TO_END: &str = "\x1b[K";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::waiting::Waiting;
    use crate::wire::status_json::tests::sample;

    #[test]
    fn groups_are_summed_up() {
        let status = sample();
        let both = Facts::new(&status.groups, 4, None);
        let want = Facts {
            running: 14,
            target: 20,
            pending: 6,
            lost: 4,
            waiting: Some("quota (default)".to_owned()),
            outage_s: None,
            stopping: None,
        };
        assert_eq!(both, want);
        let one = Facts::new(&status.groups[..1], 0, None);
        assert_eq!(one.waiting.as_deref(), Some(Waiting::Quota.as_str()));
        assert_eq!(Facts::new(&status.groups[1..], 0, None).waiting, None);
    }

    #[test]
    fn groups_that_wait_are_counted() {
        let status = sample();
        let wait = |waiting| GroupStatus { waiting, ..status.groups[0].clone() };
        let (quota, backoff) = (wait(Some(Waiting::Quota)), wait(Some(Waiting::Backoff)));
        let several = [quota.clone(), backoff.clone(), quota, wait(None)];
        let want = format!("{} (default), quota (2 groups)", Waiting::Backoff.as_str());
        assert_eq!(waiting(&several), Some(want));
    }

    #[test]
    fn a_narrow_terminal_leaves_out_whole_fields() {
        let idle = Facts { running: 10, target: 10, ..Facts::default() };
        let busy = Facts {
            running: 8,
            pending: 2,
            lost: 13,
            waiting: Some("quota (analytics)".to_owned()),
            ..idle.clone()
        };
        let silent = Facts { outage_s: Some(42), ..busy.clone() };
        let stopping =
            Facts { stopping: Some(Stopping::Executors { remaining: 3 }), ..busy.clone() };
        let ending = Facts { stopping: Some(Stopping::Driver), ..idle.clone() };
        let whole =
            "wordcount  running 8/10  pending 2  lost 13  waiting: quota (analytics)  00:12";
        for (facts, elapsed_ms, width, want) in [
            (&idle, 0, 80, "wordcount  running 10/10  00:00"),
            (&busy, 12_999, 300, whole),
            (&busy, 12_999, whole.len(), whole),
            (
                &busy,
                12_999,
                76,
                "wordcount  running 8/10  pending 2  lost 13  waiting: quota (analytics)",
            ),
            (&busy, 12_999, 69, "wordcount  running 8/10  lost 13  waiting: quota (analytics)"),
            (&busy, 12_999, 50, "running 8/10  waiting: quota (analytics)"),
            (&busy, 12_999, 39, "running 8/10"),
            (&busy, 12_999, 11, ""),
            (
                &silent,
                12_999,
                80,
                "wordcount  running 8/10  pending 2  lost 13  server unreachable 42s  00:12",
            ),
            (
                &stopping,
                12_999,
                100,
                "wordcount  stopping: waits for 3 executors  pending 2  lost 13  Ctrl-C again to force  00:12",
            ),
            (
                &ending,
                12_999,
                80,
                "wordcount  stopping: waits for the driver  Ctrl-C again to force  00:12",
            ),
            (&idle, 3_599_000, 80, "wordcount  running 10/10  59:59"),
            (&idle, 3_723_000, 80, "wordcount  running 10/10  1:02:03"),
            (&idle, 360_000_000, 80, "wordcount  running 10/10  100:00:00"),
        ] {
            assert_eq!(format_line("wordcount", facts, elapsed_ms, width), want, "{width}");
        }
    }

    /// A terminal that records its output.
    #[derive(Clone, Default)]
    struct Recorder(Arc<Mutex<Vec<u8>>>);

    impl Write for Recorder {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Recorder {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    #[test]
    fn the_line_is_drawn_only_when_needed() {
        let terminal = Recorder::default();
        let progress = Progress::new("w", Box::new(terminal.clone()), || 80);
        let facts = |running| move || Facts { running, target: 9, ..Facts::default() };
        assert_eq!(progress.show(facts(1), Millis(50)), Millis(1000));
        assert_eq!(terminal.take(), "\rw  running 1/9  00:00\x1b[K");
        // Too soon after the last drawing.
        assert_eq!(progress.show(facts(2), Millis(100)), Millis(250));
        assert_eq!(terminal.take(), "");
        assert_eq!(progress.show(facts(2), Millis(250)), Millis(1000));
        assert_eq!(terminal.take(), "\rw  running 2/9  00:00\x1b[K");
        // Nothing has changed until the second is over.
        assert_eq!(progress.show(facts(2), Millis(999)), Millis(1000));
        assert_eq!(terminal.take(), "");
        assert_eq!(progress.show(facts(2), Millis(1000)), Millis(2000));
        assert_eq!(terminal.take(), "\rw  running 2/9  00:01\x1b[K");
    }

    #[test]
    fn log_lines_are_printed_above_the_progress_line() {
        let terminal = Recorder::default();
        let progress = Progress::new("w", Box::new(terminal.clone()), || 80);
        let mut writer = progress.log_writer();
        writer.write_all(b"before\n").unwrap();
        assert_eq!(terminal.take(), "before\n");
        progress.show(Facts::default, Millis(0));
        terminal.take();
        writer.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(terminal.take(), "\r\x1b[Kone\ntwo\n\rw  running 0/0  00:00\x1b[K");
        progress.clear();
        assert_eq!(terminal.take(), "\r\x1b[K");
        writer.write_all(b"after\n").unwrap();
        assert_eq!(terminal.take(), "after\n");
    }

    #[test]
    fn a_dumb_terminal_has_no_line() {
        // The tests may run on a terminal.
        assert!(Progress::on_stderr("w", Some("dumb")).is_none());
    }
}
