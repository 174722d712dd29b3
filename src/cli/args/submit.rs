//! Owns the flags of the commands about drivers in the cluster.

use std::path::PathBuf;

use clap::Args;

use crate::cli::args::stage::StageFileArgs;
use crate::cli::args::{FileArgs, ServerArgs, duration_ms, named};
use crate::wire::names;

/// `posse submit`.
#[derive(Args, Clone, Debug, Default)]
// `--file` is a file for the pods here, once for each.
#[command(mut_arg("file", |arg| arg.long("config")))]
pub struct SubmitArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub stage: StageFileArgs,
    /// Make a service account with the rights that posse needs, for this application alone
    #[arg(long)]
    pub create_rbac: bool,
    /// Have the server check all of it, print it, and make nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Follow the driver to its end and end with its exit code; this is the default
    #[arg(long, conflicts_with = "no_wait")]
    pub wait: bool,
    /// End as soon as all is made
    #[arg(long)]
    pub no_wait: bool,
    /// Print the driver's log while waiting
    #[arg(long, conflicts_with = "no_wait")]
    pub logs: bool,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER COMMAND")]
    pub driver: Vec<String>,
}

/// `posse copy`.
#[derive(Args, Clone, Debug)]
pub struct CopyArgs {
    /// The folder to copy this program into
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// Where applications are looked for.
#[derive(Args, Clone, Debug, Default)]
pub struct PlaceArgs {
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse apps`.
#[derive(Args, Clone, Debug, Default)]
pub struct AppsArgs {
    /// Only applications of these names; `*` and `?` stand for any letters
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// Of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// How they are printed
    #[arg(short, long, value_enum)]
    pub output: Option<AppsOutput>,
}

/// How applications are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum AppsOutput {
    /// A JSON array
    Json,
    /// A table with more columns
    Wide,
}

/// `posse logs`.
#[derive(Args, Clone, Debug)]
pub struct LogsArgs {
    /// The application
    #[arg(value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: String,
    /// Go on until it ends
    #[arg(short, long)]
    pub follow: bool,
    /// The log of this executor instead of the driver's
    #[arg(long, value_name = "ID")]
    pub executor: Option<u64>,
    /// Only the last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u32>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// `posse stop`.
#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// The applications; `*` and `?` stand for any letters
    #[arg(value_name = "NAME", required = true)]
    pub names: Vec<String>,
    /// What drivers get to end in, instead of what their pods say
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub grace: Option<u64>,
    #[command(flatten)]
    pub place: PlaceArgs,
}
