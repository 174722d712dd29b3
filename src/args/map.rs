//! The arguments of `posse map`.

use std::path::PathBuf;

use clap::Args;

use crate::args::{FileArgs, ServerArgs, ShowProgress};
use posse_core::model::settings::EXECUTORS_MAX;
use posse_core::model::task::RETRIES_MAX;

pub const MAP: &str = "\
Examples:
  posse map --dev -j 5 < tasks.txt             on this machine, five lines at a time
  posse map --image registry.example.com/tools:1 -j 100 --retries 2 < tasks.txt
  posse map -f posse.yaml --resume done.txt < tasks.txt

Exit codes:
  0   every line ended with 0
  10  some lines failed";

/// `posse map`.
#[derive(Args, Clone, Debug)]
pub struct MapArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Start an embedded cluster in this process, and run the lines there
    #[cfg_attr(not(feature = "dev"), arg(skip))]
    #[cfg_attr(feature = "dev", arg(long, conflicts_with_all = ["kubeconfig", "context"],
                                    help_heading = "Embedded cluster"))]
    pub dev: bool,
    /// How many lines run at a time
    #[arg(short, long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(EXECUTORS_MAX)))]
    pub jobs: u32,
    #[command(flatten)]
    pub line: LineArgs,
}

/// How the lines run.
#[derive(Args, Clone, Debug)]
pub struct LineArgs {
    /// How often a line that fails runs again; what the cluster ends always does
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(RETRIES_MAX)))]
    pub retries: u32,
    /// Write the lines that have succeeded into this file, and leave out those that it has
    #[arg(long, value_name = "FILE")]
    pub resume: Option<PathBuf>,
    /// When to log how many lines are done
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub progress: ShowProgress,
}

/// `posse map-feed`.
#[derive(Args, Clone, Debug)]
pub struct FeedArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub line: LineArgs,
}
