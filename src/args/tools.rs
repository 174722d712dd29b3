//! The arguments of the commands for a person's machine, which the program for images lacks.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::format::FormatArgs;
#[cfg(target_os = "linux")]
use crate::args::map::{FeedArgs, MAP, MapArgs};
use crate::args::{FileArgs, Output, ServerArgs};
use posse_wire::config::PosseImage;

/// The highest id of a pod to look at: each group has one of its own.
const IDS_MAX: u64 = 1 << 62;
/// The place of a command in the list of all: behind the others.
const LAST: usize = 100;

const RENDER: &str = "\
Examples:
  posse render                                 every group's pod, as YAML
  posse render --group big -o json
  posse render --driver                        what `posse submit` creates";

const CHECK: &str = "\
Examples:
  posse check -f posse.yaml -n analytics
  posse check --context staging
  posse check -o json | jq '.checks[] | select(.status == \"failed\")'

Exit codes:
  0  a run would work
  2  wrong arguments or files
  3  connection or permissions
  4  a template";

const COMPLETIONS: &str = "\
Examples:
  source <(posse completions bash)             in ~/.bashrc
  source <(posse completions zsh)              in ~/.zshrc, after compinit
  posse completions fish >~/.config/fish/completions/posse.fish";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run each line of stdin once, as a command in an executor
    #[cfg(target_os = "linux")]
    #[command(after_help = MAP)]
    Map(MapArgs),
    /// Hand on the lines of `posse map` (its run starts it)
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    MapFeed(FeedArgs),
    /// Print the pods that a run would create
    #[command(after_help = RENDER)]
    Render(RenderArgs),
    /// Ask the API server whether a run would work
    #[command(after_help = CHECK)]
    Check(CheckArgs),
    /// Write a posse.yaml with comments
    Init(InitArgs),
    /// Print the script that completes words in a shell
    #[command(after_help = COMPLETIONS, display_order = LAST)]
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    #[command(display_order = LAST)]
    Man(ManArgs),
}

/// `posse render`.
#[derive(Args, Clone, Debug, Default)]
pub struct RenderArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print the driver's objects instead, as `posse submit` creates them
    #[arg(long, conflicts_with_all = ["group", "id"])]
    pub driver: bool,
    /// With --driver, also print a service account with the permissions that posse needs
    #[arg(long, requires = "driver")]
    pub create_rbac: bool,
    /// Print only the pod of this group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// The executor id in the printed pod
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=IDS_MAX))]
    pub id: u64,
    /// The output format
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// With --driver, the image that brings posse, as in posse submit
    #[arg(long, value_name = "IMAGE", value_parser = PosseImage::parse, requires = "driver")]
    pub posse_image: Option<PosseImage>,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER COMMAND")]
    pub driver_command: Vec<String>,
}

/// `posse check`.
#[derive(Args, Clone, Debug, Default)]
pub struct CheckArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The file to write, which must not exist yet: JSON if it ends with .json; `-` is stdout
    /// [default: posse.yaml]. With --for, the folder [default: the current one]
    pub file: Option<PathBuf>,
    /// Write a small project that runs: configuration, driver, workers, README.md
    #[arg(long = "for", value_name = "KIND", value_enum)]
    pub project: Option<ProjectKind>,
}

/// The kinds of projects that `posse init` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProjectKind {
    /// A driver that hands out tasks, and workers that do them
    Python,
    /// The same in plain sh, with a shared folder
    Shell,
    /// A Dask scheduler, a client with your work, and Dask workers
    Dask,
    /// A Spark application on Spark's own master and workers
    Spark,
    /// A batch job: each command of a list runs once on one of the workers
    Job,
}

/// `posse completions`.
#[derive(Args, Clone, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: Shell,
}

/// A shell that posse has a completion script for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
    /// For `kubectl posse`: the program kubectl_complete-posse on your PATH
    Kubectl,
}

/// `posse man`.
#[derive(Args, Clone, Debug)]
pub struct ManArgs {
    /// The folder for the pages, such as ~/.local/share/man/man1; created if missing
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}
