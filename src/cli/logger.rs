//! The logger: lines like `2026-01-01T00:00:00Z INFO text` on stderr.

use std::io::Write;

use jiff::Timestamp;
use log::{Level, Record};

use crate::cli::world::Env;

/// Starts logging with the filter in `POSSE_LOG`, to `writer` or else to stderr. A second call has no
/// effect.
pub fn init(env: Env<'_>, writer: Option<Box<dyn Write + Send>>) {
    let filters = env("POSSE_LOG").unwrap_or_else(|| "info".to_owned());
    let mut builder = env_logger::Builder::new();
    let target = writer.map_or(env_logger::Target::Stderr, env_logger::Target::Pipe);
    builder.parse_filters(&filters).target(target);
    builder.format(|out, record| writeln!(out, "{}", line(Timestamp::now(), record)));
    // Fails if there is a logger already, as in tests that share a process.
    let _ = builder.try_init();
}

/// Formats a line. Only debug and trace lines have the module.
fn line(now: Timestamp, record: &Record<'_>) -> String {
    let (level, text) = (record.level(), record.args());
    match level {
        Level::Error | Level::Warn | Level::Info => format!("{now:.0} {level} {text}"),
        Level::Debug | Level::Trace => format!("{now:.3} {level} {}: {text}", record.target()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
