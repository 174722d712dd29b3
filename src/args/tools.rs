//! The arguments of the commands for a person's machine, which the program for images lacks.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::args::format::FormatArgs;
use crate::args::{FileArgs, Output, ServerArgs, ShowProgress};
use posse_core::model::settings::EXECUTORS_MAX;
use posse_core::model::task::RETRIES_MAX;
use posse_wire::config::PosseImage;

/// The place of a command in the list of all: behind the others.
const LAST: usize = 100;

const MAP: &str = "\
Examples:
  posse map --dev -j 5 < tasks.txt             on this machine, five lines at a time
  posse map --image registry.example.com/tools:1 -j 100 --retries 2 < tasks.txt
  posse map -f posse.yaml --resume done.txt < tasks.txt

Exit codes:
  0   every line ended with 0
  10  some lines failed";

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
    #[command(after_help = MAP)]
    Map(MapArgs),
    /// Hand on the lines of `posse map` (its run starts it)
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
    #[arg(long, value_name = "N", default_value_t = 1)]
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
