//! The progress line on a terminal, and a log writer that prints log lines above it.

use std::fmt::Write as _;
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
    /// What the first waiting group waits for; with the group's name if there are several groups.
    pub waiting: Option<String>,
    /// For how many seconds the API server has not answered, if it does not.
    pub outage_s: Option<u64>,
}

impl Facts {
    /// The sums over all groups.
    pub fn new(groups: &[GroupStatus], lost: u64, outage_s: Option<u64>) -> Self {
        let sum = |count: fn(&GroupStatus) -> u32| {
            groups.iter().fold(0_u32, |sum, group| sum.saturating_add(count(group)))
        };
        let waiting = groups.iter().find_map(|group| {
            let what = group.waiting?.as_str();
            Some(match groups.len() {
                1 => what.to_owned(),
                _ => format!("{what} ({})", group.group),
            })
        });
        Self {
            running: sum(|group| group.running),
            target: sum(|group| group.target),
            pending: sum(|group| group.requested.saturating_add(group.pending)),
            lost,
            waiting,
            outage_s,
        }
    }
}

/// The line, cut to the width of the terminal.
pub fn format_line(app: &str, facts: &Facts, elapsed_ms: u64, width: usize) -> String {
    let mut line = format!("{app}  running {}/{}", facts.running, facts.target);
    let written = [("pending", u64::from(facts.pending)), ("lost", facts.lost)]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .try_for_each(|(name, count)| write!(line, "  {name} {count}"))
        .and_then(|()| match (&facts.waiting, facts.outage_s) {
            (_, Some(seconds)) => write!(line, "  API server: no answer for {seconds} s"),
            (Some(waiting), None) => write!(line, "  waiting: {waiting}"),
            (None, None) => Ok(()),
        })
        .and_then(|()| write!(line, "  {}", format_elapsed(elapsed_ms / 1000)));
    written.expect("a String takes whatever is written to it");
    match line.char_indices().nth(width) {
        Some((end, _)) => line[..end].to_owned(),
        None => line,
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
    /// `None` if stderr is not a terminal, the terminal is dumb, or NO_COLOR is set.
    pub fn on_stderr(app: &str, term: Option<&str>, no_color: Option<&str>) -> Option<Self> {
        let wanted = no_color.is_none_or(str::is_empty) && term.is_none_or(|term| term != "dumb");
        let is_possible = wanted && io::stderr().is_terminal();
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
        };
        assert_eq!(both, want);
        let one = Facts::new(&status.groups[..1], 0, None);
        assert_eq!(one.waiting.as_deref(), Some(Waiting::Quota.as_str()));
        assert_eq!(Facts::new(&status.groups[1..], 0, None).waiting, None);
    }

    #[test]
    fn lines() {
        let idle = Facts { running: 10, target: 10, ..Facts::default() };
        let busy = Facts {
            running: 8,
            target: 10,
            pending: 2,
            lost: 1,
            waiting: Some("quota (analytics)".to_owned()),
            outage_s: None,
        };
        let silent = Facts { outage_s: Some(42), ..busy.clone() };
        for (facts, elapsed_ms, width, want) in [
            (&idle, 0, 80, "wordcount  running 10/10  00:00"),
            (
                &busy,
                12_999,
                80,
                "wordcount  running 8/10  pending 2  lost 1  waiting: quota (analytics)  00:12",
            ),
            (
                &silent,
                12_999,
                90,
                "wordcount  running 8/10  pending 2  lost 1  API server: no answer for 42 s  00:12",
            ),
            (&busy, 12_999, 20, "wordcount  running 8"),
            (&idle, 3_599_000, 80, "wordcount  running 10/10  59:59"),
            (&idle, 3_723_000, 80, "wordcount  running 10/10  1:02:03"),
            (&idle, 360_000_000, 80, "wordcount  running 10/10  100:00:00"),
        ] {
            assert_eq!(format_line("wordcount", facts, elapsed_ms, width), want);
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
    fn dumb_terminals_and_no_color_turn_the_line_off() {
        // The tests may run on a terminal; both cases turn the line off there, too.
        assert!(Progress::on_stderr("w", Some("dumb"), None).is_none());
        assert!(Progress::on_stderr("w", Some("xterm"), Some("1")).is_none());
    }
}
