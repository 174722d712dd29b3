//! The logger: lines like `2026-01-01T00:00:00Z INFO text` or JSON objects on stderr.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write as _};

use jiff::Timestamp;
use log::{Level, LevelFilter, Log, Metadata, Record};
use serde::Serialize;

use crate::args::output::{LogFormat, OutputArgs};
use crate::exit::Failure;
use crate::terminal::has_colors;
use crate::world::{Env, World};
use posse_base::text::{one_line, printable_json, sanitize};

/// The longest error, in bytes.
const ERROR_BYTES_MAX: usize = 16 << 10;
const FILTER_BYTES_SHOWN: usize = 100;
/// The target of the HTTP library, whose lines at debug level have no bodies and no credentials.
const HTTP_LIBRARY: &str = "ureq";

/// Starts logging to stderr with the flags or the filter in `POSSE_LOG`. A second call has no effect.
///
/// # Errors
/// The filter is invalid.
pub fn init(world: &World<'_>) -> Result<(), Failure> {
    let OutputArgs { quiet, verbose, log_format, .. } = world.output;
    let filters = match (quiet, verbose) {
        (true, _) => "error".to_owned(),
        (false, 0) => filters(world.env)?,
        (false, 1) => "info,posse=debug".to_owned(),
        (false, _) => "debug".to_owned(),
    };
    let mut builder = env_logger::Builder::new();
    builder.parse_filters(&filters.replace("posse::", "posse_"));
    let is_terminal = io::stderr().is_terminal();
    let colored = has_colors(world.output.color, world.env, is_terminal);
    // A terminal adds no carriage return while the driver reads it.
    let line_end = if is_terminal { "\r\n" } else { "\n" };
    builder.format(move |out, record| {
        let now = Timestamp::now();
        match log_format {
            LogFormat::Text => write!(out, "{}{line_end}", line(now, record, colored)),
            LogFormat::Json => {
                let text = record.args().to_string();
                let line = json_line(now, record.level(), record.target(), &text);
                write!(out, "{line}{line_end}")
            }
        }
    });
    let logger = Clamped { logger: builder.build(), has_http: verbose > 1 };
    let level = logger.logger.filter();
    // Fails if there is a logger already, as in tests that share a process.
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
    }
    Ok(())
}

/// The filters in `POSSE_LOG`.
fn filters(env: Env<'_>) -> Result<String, Failure> {
    let filters = env("POSSE_LOG").filter(|filters| !filters.is_empty());
    let filters = filters.unwrap_or_else(|| "info".to_owned());
    check(&filters)?;
    Ok(filters)
}

/// The logger's library takes any unknown word for the name of a module, and then logs nothing.
fn check(filters: &str) -> Result<(), Failure> {
    for filter in filters.split(',') {
        let level = filter.split_once('=').map_or(filter, |(_, level)| level);
        if level.parse::<LevelFilter>().is_err() {
            let filter = sanitize(filter, FILTER_BYTES_SHOWN);
            return Err(Failure::usage(format!(
                "POSSE_LOG: `{filter}` is no log level; the levels are off, error, warn, info, debug and \
                 trace, for all modules or for one, as in `info,posse::kube=debug`"
            )));
        }
    }
    Ok(())
}

/// Lets other crates log warnings and errors only, whatever the filter says: the HTTP library's trace
/// lines are the bytes that it sends, with tokens and pods' environment variables.
struct Clamped {
    logger: env_logger::Logger,
    /// Also what the HTTP library says at debug level.
    has_http: bool,
}

impl Clamped {
    fn permits(has_http: bool, what: &Metadata<'_>) -> bool {
        // The next character ends the name of a crate; `posse` and its rooms, such as `posse::kube`, are ours.
        let is_of = |name: &str, ends: &[char]| {
            let rest = what.target().strip_prefix(name);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(ends))
        };
        let is_ours = is_of("posse", &[':', '_']);
        let level_max = match (is_ours, has_http && is_of(HTTP_LIBRARY, &[':'])) {
            (true, _) => Level::Trace,
            (false, true) => Level::Debug,
            (false, false) => Level::Warn,
        };
        what.level() <= level_max
    }
}

impl Log for Clamped {
    fn enabled(&self, what: &Metadata<'_>) -> bool {
        Self::permits(self.has_http, what) && self.logger.enabled(what)
    }

    fn log(&self, record: &Record<'_>) {
        if Self::permits(self.has_http, record.metadata()) {
            self.logger.log(record);
        }
    }

    fn flush(&self) {
        self.logger.flush();
    }
}

/// Formats a line: one line, whatever servers, pods and programs have said. Only debug and trace lines
/// have the module.
fn line(now: Timestamp, record: &Record<'_>, colored: bool) -> String {
    let (level, text) = (record.level(), record.args().to_string());
    let text = one_line(text.trim_end());
    let (before, after) = match (colored, level) {
        (false, _) => ("", ""),
        (true, Level::Error) => ("\x1b[31m", "\x1b[0m"),
        (true, Level::Warn) => ("\x1b[33m", "\x1b[0m"),
        (true, Level::Info) => ("\x1b[32m", "\x1b[0m"),
        (true, Level::Debug | Level::Trace) => ("\x1b[2m", "\x1b[0m"),
    };
    let shown = format!("{before}{level}{after}");
    match level {
        Level::Error | Level::Warn | Level::Info => format!("{now:.0} {shown} {text}"),
        Level::Debug | Level::Trace => {
            format!("{now:.3} {shown} {}: {text}", module_name(record.target()))
        }
    }
}

/// The name of a module in the log and in `POSSE_LOG`: `posse::kube::http` is in the crate `posse_kube`.
fn module_name(target: &str) -> Cow<'_, str> {
    match target.strip_prefix("posse_") {
        Some(module) => format!("posse::{module}").into(),
        None => target.into(),
    }
}

/// A line as one JSON object.
#[derive(Serialize)]
struct JsonLine<'a> {
    time: String,
    level: String,
    target: &'a str,
    message: &'a str,
}

fn json_line(now: Timestamp, level: Level, target: &str, text: &str) -> String {
    let (time, level) = (format!("{now:.3}"), level.as_str().to_lowercase());
    let target = &module_name(target);
    let line = JsonLine { time, level, target, message: text.trim_end() };
    // An object of strings can always be written.
    printable_json(&serde_json::to_string(&line).unwrap_or_default()).into_owned()
}

/// The error that ends a command, as the last line on stderr: one line, whatever the server or a program
/// has said.
pub(super) fn last_line(message: &str, output: &OutputArgs, colored: bool) -> String {
    let message = sanitize(message, ERROR_BYTES_MAX);
    match (output.log_format, colored) {
        (LogFormat::Json, _) => json_line(Timestamp::now(), Level::Error, "posse", &message),
        (LogFormat::Text, true) => format!("\x1b[31mposse:\x1b[0m {message}"),
        (LogFormat::Text, false) => format!("posse: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00.123456Z";

    #[test]
    fn a_log_line_stays_one_line() {
        let now: Timestamp = NOW.parse().unwrap();
        let args = format_args!("refused: a\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2K\n");
        let record = Record::builder().level(Level::Info).target("posse_kube").args(args).build();
        let want =
            "2026-01-01T00:00:00Z INFO refused: a 2026-01-01T00:00:00Z ERROR forged\\u{1b}[2K";
        assert_eq!(line(now, &record, false), want);
    }

    #[test]
    fn a_line_can_be_json() {
        let text = "refused: \"a\"\n\u{1b}[2K\u{202e}\n";
        let json = json_line(NOW.parse().unwrap(), Level::Warn, "posse_kube", text);
        let want = "{\"time\":\"2026-01-01T00:00:00.123Z\",\"level\":\"warn\",\"target\":\
                    \"posse::kube\",\"message\":\"refused: \\\"a\\\"\\n\\u001b[2K\\u202e\"}";
        assert_eq!(json, want);
    }

    #[test]
    fn a_filter_without_a_level_is_refused() {
        for (filters, is_valid) in [
            ("info", true),
            ("WARN", true),
            ("off", true),
            ("warn,posse::kube=trace,posse::serve=off", true),
            ("verbose", false),
            ("posse::kube", false),
            ("info,posse=loud", false),
            ("info,", false),
        ] {
            let checked = check(filters);
            assert_eq!(checked.is_ok(), is_valid, "{filters}");
            assert!(checked.err().is_none_or(|error| error.message.starts_with("POSSE_LOG: `")));
        }
        for unset in [None, Some(String::new())] {
            assert_eq!(filters(&|_| unset.clone()).unwrap(), "info", "{unset:?}");
        }
    }

    #[test]
    fn other_crates_log_only_warnings() {
        for (target, level, want) in [
            ("posse", Level::Trace, true),
            ("posse_kube::http", Level::Trace, true),
            ("possessed", Level::Trace, false),
            ("ureq::unversioned::transport", Level::Trace, false),
            ("ureq::run", Level::Debug, false),
            ("ureq_proto::client", Level::Debug, false),
            ("rustls::client::hs", Level::Info, false),
            ("rustls::client::hs", Level::Warn, true),
        ] {
            let what = Metadata::builder().target(target).level(level).build();
            assert_eq!(Clamped::permits(false, &what), want, "{target} {level}");
            // -vv, whose trace lines would be the bytes on the wire.
            let with_http = want || (target, level) == ("ureq::run", Level::Debug);
            assert_eq!(Clamped::permits(true, &what), with_http, "-vv: {target} {level}");
        }
    }

    #[test]
    fn debug_lines_have_the_module() {
        let now: Timestamp = NOW.parse().unwrap();
        for (level, colored, want) in [
            (Level::Error, false, "2026-01-01T00:00:00Z ERROR text"),
            (Level::Info, false, "2026-01-01T00:00:00Z INFO text"),
            (Level::Debug, false, "2026-01-01T00:00:00.123Z DEBUG posse::kube: text"),
            (Level::Error, true, "2026-01-01T00:00:00Z \x1b[31mERROR\x1b[0m text"),
            (Level::Warn, true, "2026-01-01T00:00:00Z \x1b[33mWARN\x1b[0m text"),
        ] {
            let args = format_args!("text");
            let record = Record::builder().level(level).target("posse_kube").args(args).build();
            assert_eq!(line(now, &record, colored), want);
        }
    }
}
