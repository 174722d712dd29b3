//! The output format of commands that list something: `-o`, as kubectl has it.

use clap::{Args, ValueEnum};

/// The output format.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FormatArgs {
    /// The output format: wide, json, yaml or name [default: a table]
    #[arg(short, long, value_name = "FORMAT", value_enum, hide_possible_values = true)]
    #[arg(conflicts_with = "json", help_heading = "Output")]
    pub output: Option<Format>,
    /// The same as -o json
    #[arg(long, help_heading = "Output")]
    pub json: bool,
}

/// A format other than the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    // A table with more columns.
    Wide,
    // One JSON value; of events, one on each line.
    Json,
    // The same as YAML documents.
    Yaml,
    // One name on each line.
    Name,
}

impl FormatArgs {
    /// The format; `None` is the table.
    pub fn format(self) -> Option<Format> {
        if self.json { Some(Format::Json) } else { self.output }
    }

    /// True if a program may read the output: it must then contain nothing else.
    pub fn is_for_programs(self) -> bool {
        matches!(self.format(), Some(Format::Json | Format::Yaml | Format::Name))
    }
}
