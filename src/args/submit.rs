//! The arguments of `posse submit`, `copy`, `apps`, `logs` and `stop`.

use std::path::PathBuf;

use clap::Args;

use crate::args::format::FormatArgs;
use crate::args::stage::StageFileArgs;
use crate::args::words::{Word, word};
use crate::args::{ClientArgs, FileArgs, ServerArgs, duration_ms, named};
use posse_submit::apps::is_pattern;
use posse_wire::config::PosseImage;
use posse_wire::config::listen_addr::ListenAddr;
use posse_wire::names;

/// `posse submit`.
#[derive(Args, Clone, Debug, Default)]
pub struct SubmitArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub stage: StageFileArgs,
    /// Create a service account with the permissions that posse needs, for this application only
    #[arg(long)]
    pub create_rbac: bool,
    /// The image that brings posse, if the driver's image has none; volume:IMAGE mounts it
    #[arg(long, value_name = "IMAGE", value_parser = PosseImage::parse)]
    pub posse_image: Option<PosseImage>,
    /// Let the API server check all objects by a dry run, print them, and create nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Exit as soon as all objects are created
    #[arg(long)]
    pub no_wait: bool,
    /// Print the driver's log while waiting
    #[arg(long, conflicts_with = "no_wait")]
    pub logs: bool,
    /// With --logs: print control characters to a terminal as they are
    #[arg(long, requires = "logs")]
    pub raw: bool,
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

/// The namespace and its API server.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceArgs {
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error), help_heading = "API server")]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse apps`.
#[derive(Args, Clone, Debug, Default)]
pub struct AppsArgs {
    /// List only applications with these names; `*` and `?` are wildcards
    #[arg(value_name = "NAME", value_parser = named(name_or_pattern_error))]
    pub names: Vec<String>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// List the applications of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(flatten)]
    pub output: FormatArgs,
    /// Serve a page about the applications for browsers until a signal, and print its address, which has its token:
    /// on HOST:PORT, or :PORT for all addresses [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = "127.0.0.1:0",
          value_parser = page_address, conflicts_with_all = ["output", "json"])]
    pub page: Option<ListenAddr>,
    /// A file with the token that the page asks for; default: a new one
    #[arg(long, value_name = "FILE", requires = "page")]
    pub page_token_file: Option<PathBuf>,
}

fn page_address(text: &str) -> Result<ListenAddr, String> {
    let what = "expected HOST:PORT with an IP address, or :PORT";
    ListenAddr::parse(text).map_err(|_| what.to_owned())
}

/// `posse logs`.
#[derive(Args, Clone, Debug, Default)]
#[command(override_usage = "posse logs [OPTIONS] [APP] [ID]")]
pub struct LogsArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app, and the id of one of its executors; an ID alone is of the only run on this host
    #[arg(value_name = "APP", value_parser = word,
          required_unless_present_any = ["app", "executors", "control"])]
    pub words: Vec<Word>,
    /// Print new lines until the log ends
    #[arg(short, long)]
    pub follow: bool,
    /// Print the logs of all executors, each line with its group and executor in front
    #[arg(long)]
    pub executors: bool,
    /// With --executors, only those of this group
    #[arg(long, value_name = "GROUP", requires = "executors",
          value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// Print only the last N lines
    #[arg(long, value_name = "N")]
    pub tail: Option<u32>,
    /// Print control characters to a terminal as they are
    #[arg(long)]
    pub raw: bool,
    /// The run of the executor, for `posse task logs`.
    #[arg(skip)]
    pub instance: Option<String>,
}

/// `posse stop`.
#[derive(Args, Clone, Debug)]
pub struct StopArgs {
    /// The applications' names; `*` and `?` are wildcards
    #[arg(value_name = "APP", value_parser = named(name_or_pattern_error), required_unless_present = "app")]
    pub names: Vec<String>,
    /// The application's name, instead of the argument APP
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error), conflicts_with = "names")]
    pub app: Option<String>,
    /// The time that submitted drivers get to end, such as 30s [default: the grace period of their pods]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub grace: Option<u64>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// A pattern that no name matches finds nothing.
fn name_or_pattern_error(text: &str) -> Option<String> {
    names::app_name_error(text).filter(|_| !is_pattern(text))
}
