//! The flags that every command takes: how much it says, and in which form.

use clap::{ArgAction, Args, ValueEnum};

/// How much a command says on stderr, and in which form.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputArgs {
    /// When to use colours
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    pub color: UseColors,
    /// Log only errors, and show no progress
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub quiet: bool,
    /// Log what posse does at debug level; -vv adds the requests of the HTTP library
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
    /// The format of what goes to stderr
    #[arg(long, global = true, value_name = "FORMAT", value_enum, default_value_t)]
    pub log_format: LogFormat,
}

/// When output has colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum UseColors {
    /// On a terminal that is not dumb, unless `NO_COLOR` is set
    #[default]
    Auto,
    Always,
    Never,
}

/// The format of log lines and of a command's last error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    #[default]
    Text,
    /// One JSON object per line: `time`, `level`, `target` and `message`
    Json,
}
