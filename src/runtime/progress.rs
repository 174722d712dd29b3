//! Owns the one live line on a terminal, and keeps it apart from the log lines there. Knows no
//! more than what it is shown.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::core::model::status::GroupStatus;
use crate::core::model::time::Millis;

/// What the line tells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    pub running: u32,
    pub target: u32,
    /// Asked for, and not running yet.
    pub pending: u32,
    /// Since the start.
    pub lost: u64,
    /// What the first group that waits is waiting for; with its name where there are others.
    pub waiting: Option<String>,
}

impl Facts {
    /// The facts of all groups together.
    #[must_use]
    pub fn new(groups: &[GroupStatus], lost: u64) -> Self {
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
        }
    }
}

/// The line, cut to the width of the terminal.
#[must_use]
pub fn format_line(app: &str, facts: &Facts, elapsed_ms: u64, width: usize) -> String {
    let mut line = format!("{app}  running {}/{}", facts.running, facts.target);
    let written = [("pending", u64::from(facts.pending)), ("lost", facts.lost)]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .try_for_each(|(name, count)| write!(line, "  {name} {count}"))
        .and_then(|()| match &facts.waiting {
            Some(waiting) => write!(line, "  waiting: {waiting}"),
            None => Ok(()),
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

/// The live line. Copies are of the same one.
#[derive(Clone)]
pub struct Progress(Arc<Mutex<Screen>>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress(..)")
    }
}

struct Screen {
    out: Box<dyn Write + Send>,
    /// Columns; asked for anew at each drawing, since windows change.
    width: fn() -> usize,
    app: String,
    facts: Facts,
    /// What stands on the terminal now; empty where nothing does.
    drawn: String,
    drawn_at: Option<Millis>,
}

impl Progress {
    /// None where a live line has no place: stderr is no terminal, or a dumb one, or the user does
    /// not want control sequences.
    #[must_use]
    pub fn on_stderr(app: &str, term: Option<&str>, no_color: Option<&str>) -> Option<Self> {
        let wanted = no_color.is_none_or(str::is_empty) && term.is_none_or(|term| term != "dumb");
        let place = wanted && io::stderr().is_terminal();
        place.then(|| Self::new(app, Box::new(io::stderr()), stderr_width))
    }

    fn new(app: &str, out: Box<dyn Write + Send>, width: fn() -> usize) -> Self {
        let (facts, drawn) = (Facts::default(), String::new());
        let screen = Screen { out, width, app: app.to_owned(), facts, drawn, drawn_at: None };
        Self(Arc::new(Mutex::new(screen)))
    }

    /// Draws the line where it has changed and the last drawing is long enough ago. Gives the time
    /// at which to come again, at the latest.
    pub fn show(&self, facts: &Facts, now: Millis) -> Millis {
        let mut screen = self.lock();
        if let Some(drawn_at) = screen.drawn_at.filter(|at| now < at.after(REDRAW_MS_MIN)) {
            return drawn_at.after(REDRAW_MS_MIN);
        }
        if screen.facts != *facts {
            screen.facts = facts.clone();
        }
        let line = format_line(&screen.app, &screen.facts, now.0, (screen.width)());
        if line != screen.drawn {
            screen.draw(line);
            screen.drawn_at = Some(now);
        }
        // The next full second, when the time on it changes.
        Millis(now.0 - now.0 % 1000).after(1000)
    }

    /// Takes the line away, for good or until it is shown again.
    pub fn clear(&self) {
        let mut screen = self.lock();
        screen.erase();
        screen.drawn.clear();
        // A terminal that has gone is no reason to end anything.
        let _ = screen.out.flush();
    }

    /// Where log lines go, so that they appear above the live line.
    #[must_use]
    pub fn log_writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Screen> {
        // At worst a line is half drawn; the next drawing mends it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    fn draw(&mut self, line: String) {
        // A terminal that has gone is no reason to end anything.
        let _ = write!(self.out, "\r{line}{ERASE_TO_END}").and_then(|()| self.out.flush());
        self.drawn = line;
    }

    fn erase(&mut self) {
        if !self.drawn.is_empty() {
            let _ = write!(self.out, "\r{ERASE_TO_END}");
        }
    }
}

/// Writes log lines past the live line: erases it, writes, draws it again.
#[derive(Debug)]
pub struct LogWriter(Progress);

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut screen = self.0.lock();
        screen.erase();
        screen.out.write_all(bytes)?;
        // Not in the middle of a line: the rest of it comes with the next write.
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
    // One column less: a full line makes some terminals begin the next one.
    match size {
        Ok(size) if size.ws_col > 1 => usize::from(size.ws_col) - 1,
        Ok(_) | Err(_) => WIDTH_UNKNOWN,
    }
}

/// Five times a second is enough for people.
const REDRAW_MS_MIN: u64 = 200;

/// What most terminals have.
const WIDTH_UNKNOWN: usize = 79;

const ERASE_TO_END: &str = "\x1b[K";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model::waiting::Waiting;
    use crate::wire::status_json::tests::sample;

    #[test]
    fn adds_up_the_groups() {
        let status = sample();
        let both = Facts::new(&status.groups, 4);
        let want = Facts {
            running: 14,
            target: 20,
            pending: 6,
            lost: 4,
            waiting: Some("quota (default)".to_owned()),
        };
        assert_eq!(both, want);
        let one = Facts::new(&status.groups[..1], 0);
        assert_eq!(one.waiting.as_deref(), Some(Waiting::Quota.as_str()));
        assert_eq!(Facts::new(&status.groups[1..], 0).waiting, None);
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
        };
        for (facts, elapsed_ms, width, want) in [
            (&idle, 0, 80, "wordcount  running 10/10  00:00"),
            (
                &busy,
                12_999,
                80,
                "wordcount  running 8/10  pending 2  lost 1  waiting: quota (analytics)  00:12",
            ),
            (&busy, 12_999, 20, "wordcount  running 8"),
            (&idle, 3_599_000, 80, "wordcount  running 10/10  59:59"),
            (&idle, 3_723_000, 80, "wordcount  running 10/10  1:02:03"),
            (&idle, 360_000_000, 80, "wordcount  running 10/10  100:00:00"),
        ] {
            assert_eq!(format_line("wordcount", facts, elapsed_ms, width), want);
        }
    }

    /// A terminal that remembers.
    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Paper {
        fn take(&self) -> String {
            String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
        }
    }

    #[test]
    fn draws_no_more_often_than_needed() {
        let paper = Paper::default();
        let progress = Progress::new("w", Box::new(paper.clone()), || 80);
        let facts = |running| Facts { running, target: 9, ..Facts::default() };
        assert_eq!(progress.show(&facts(1), Millis(50)), Millis(1000));
        assert_eq!(paper.take(), "\rw  running 1/9  00:00\x1b[K");
        // Too soon: to be shown again when it is time.
        assert_eq!(progress.show(&facts(2), Millis(100)), Millis(250));
        assert_eq!(paper.take(), "");
        assert_eq!(progress.show(&facts(2), Millis(250)), Millis(1000));
        assert_eq!(paper.take(), "\rw  running 2/9  00:00\x1b[K");
        // Nothing has changed, then the second.
        assert_eq!(progress.show(&facts(2), Millis(999)), Millis(1000));
        assert_eq!(paper.take(), "");
        assert_eq!(progress.show(&facts(2), Millis(1000)), Millis(2000));
        assert_eq!(paper.take(), "\rw  running 2/9  00:01\x1b[K");
    }

    #[test]
    fn log_lines_and_the_live_line_do_not_mix() {
        let paper = Paper::default();
        let progress = Progress::new("w", Box::new(paper.clone()), || 80);
        let mut writer = progress.log_writer();
        writer.write_all(b"before\n").unwrap();
        assert_eq!(paper.take(), "before\n");
        progress.show(&Facts::default(), Millis(0));
        paper.take();
        writer.write_all(b"one\ntwo\n").unwrap();
        assert_eq!(paper.take(), "\r\x1b[Kone\ntwo\n\rw  running 0/0  00:00\x1b[K");
        progress.clear();
        assert_eq!(paper.take(), "\r\x1b[K");
        writer.write_all(b"after\n").unwrap();
        assert_eq!(paper.take(), "after\n");
    }

    #[test]
    fn only_where_it_is_welcome() {
        // Tests may well run on a terminal; these two keep it away even there.
        assert!(Progress::on_stderr("w", Some("dumb"), None).is_none());
        assert!(Progress::on_stderr("w", Some("xterm"), Some("1")).is_none());
    }
}
