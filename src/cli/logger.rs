//! The logger: lines like `2026-01-01T00:00:00Z INFO text` on stderr.

use std::io::Write;

use jiff::Timestamp;
use log::{Level, LevelFilter, Log, Metadata, Record};

use crate::cli::exit::Failure;
use crate::cli::world::Env;
use crate::core::model::text::{one_line, sanitize};

/// Starts logging with the filter in `POSSE_LOG`, to `writer` or else to stderr. A second call has no
/// effect.
///
/// # Errors
/// The filter is invalid.
pub fn init(env: Env<'_>, writer: Option<Box<dyn Write + Send>>) -> Result<(), Failure> {
    let filters = env("POSSE_LOG").filter(|filters| !filters.is_empty());
    let filters = filters.unwrap_or_else(|| "info".to_owned());
    check(&filters)?;
    let mut builder = env_logger::Builder::new();
    let target = writer.map_or(env_logger::Target::Stderr, env_logger::Target::Pipe);
    builder.parse_filters(&filters).target(target);
    builder.format(|out, record| writeln!(out, "{}", line(Timestamp::now(), record)));
    let logger = Clamped(builder.build());
    let level = logger.0.filter();
    // Fails if there is a logger already, as in tests that share a process.
    if log::set_boxed_logger(Box::new(logger)).is_ok() {
        log::set_max_level(level);
    }
    Ok(())
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

const FILTER_BYTES_SHOWN: usize = 100;

/// Lets other crates log warnings and errors only, whatever the filter says: the HTTP library's trace
/// lines are the bytes that it sends, with tokens and pods' environment variables.
struct Clamped(env_logger::Logger);

impl Clamped {
    fn permits(what: &Metadata<'_>) -> bool {
        let is_ours = what.target() == "posse" || what.target().starts_with("posse::");
        is_ours || what.level() <= Level::Warn
    }
}

impl Log for Clamped {
    fn enabled(&self, what: &Metadata<'_>) -> bool {
        Self::permits(what) && self.0.enabled(what)
    }

    fn log(&self, record: &Record<'_>) {
        if Self::permits(record.metadata()) {
            self.0.log(record);
        }
    }

    fn flush(&self) {
        self.0.flush();
    }
}

/// Formats a line: one line, whatever servers, pods and programs have said. Only debug and trace lines
/// have the module.
fn line(now: Timestamp, record: &Record<'_>) -> String {
    let (level, text) = (record.level(), record.args().to_string());
    let text = one_line(text.trim_end());
    match level {
        Level::Error | Level::Warn | Level::Info => format!("{now:.0} {level} {text}"),
        Level::Debug | Level::Trace => format!("{now:.3} {level} {}: {text}", record.target()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_line_stays_one_line() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let args = format_args!("refused: a\n2026-01-01T00:00:00Z ERROR forged\u{1b}[2K\n");
        let record = Record::builder().level(Level::Info).target("posse::kube").args(args).build();
        let want =
            "2026-01-01T00:00:00Z INFO refused: a 2026-01-01T00:00:00Z ERROR forged\\u{1b}[2K";
        assert_eq!(line(now, &record), want);
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
    }

    #[test]
    fn other_crates_log_only_warnings() {
        for (target, level, want) in [
            ("posse", Level::Trace, true),
            ("posse::kube::http", Level::Trace, true),
            ("possessed", Level::Trace, false),
            ("ureq::unversioned::transport", Level::Trace, false),
            ("ureq_proto::client", Level::Debug, false),
            ("rustls::client::hs", Level::Info, false),
            ("rustls::client::hs", Level::Warn, true),
        ] {
            let what = Metadata::builder().target(target).level(level).build();
            assert_eq!(Clamped::permits(&what), want, "{target} {level}");
        }
    }

    #[test]
    fn debug_lines_have_the_module() {
        let now: Timestamp = "2026-01-01T00:00:00.123456Z".parse().unwrap();
        for (level, want) in [
            (Level::Error, "2026-01-01T00:00:00Z ERROR text"),
            (Level::Info, "2026-01-01T00:00:00Z INFO text"),
            (Level::Debug, "2026-01-01T00:00:00.123Z DEBUG posse::kube: text"),
        ] {
            let args = format_args!("text");
            let record = Record::builder().level(level).target("posse::kube").args(args).build();
            assert_eq!(line(now, &record), want);
        }
    }
}
