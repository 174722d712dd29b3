//! Owns the command line as it is typed: commands, flags and their help. Checks nothing that needs
//! more than one flag.

#[cfg(feature = "dev")]
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::wire::duration;
use crate::wire::log::LOG_LINES_MAX;
use crate::wire::names;

pub mod stage;
pub mod submit;

use stage::StageArgs;
use submit::{AppsArgs, CopyArgs, LogsArgs, StopArgs, SubmitArgs};

/// Keeps a driver's executors alive on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "posse", version, about, subcommand_required = true, after_help = AFTER_HELP)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Environment:
  KUBECONFIG               where the API server is, where no flag and no cluster says so
  POSSE_LOG                what is logged to stderr: error, warn, info (default), debug, trace,
                           or module=level pairs
  NO_COLOR                 no colours
  POSSE_CONTROL, POSSE_CONTROL_TOKEN_FILE
                           where status, scale, kill, events and explain find a run";

/// What posse is asked to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Keep one application's executors alive until told to stop, or until the driver ends
    Run(RunArgs),
    /// Print the pods that would be created
    Render(RenderArgs),
    /// Look whether a run would work: reach, rights, quota, templates; say what to do about it
    Check(CheckArgs),
    /// Remove what ended applications left behind
    Cleanup(CleanupArgs),
    /// Put a driver into the cluster, and follow it to its end
    Submit(SubmitArgs),
    /// List the applications in the cluster
    Apps(AppsArgs),
    /// Print the log of an application's driver, or of one of its executors
    Logs(LogsArgs),
    /// End applications in the cluster
    Stop(StopArgs),
    /// Copy this program into a folder: how it gets into a driver's pod
    #[command(hide = true)]
    Copy(CopyArgs),
    /// Write a commented posse.yaml
    Init(InitArgs),
    /// Serve the embedded cluster until a signal
    #[cfg(feature = "dev")]
    Dev(DevArgs),
    /// Become a container of the embedded cluster: its node starts those with volumes by this
    #[cfg(feature = "dev")]
    #[command(name = crate::dev::COMMAND, hide = true)]
    DevContainer,
    /// Show the groups and executors of a run
    Status(StatusArgs),
    /// Set the target of a group in a run
    Scale(ScaleArgs),
    /// End executors of a run by their ids
    Kill(KillArgs),
    /// Print the events of a run, one JSON object a line
    Events(EventsArgs),
    /// Say what a run waits for, or where one of its executors is
    Explain(ExplainArgs),
    /// Bring files from this machine to the pods: serve, put, get
    Stage(StageArgs),
}

/// What is to be run: the file, and what is laid over it.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// The configuration, YAML or JSON [default: ./posse.yaml where there is one]
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The application's name: at most 40 of [a-z0-9-], starting with a letter
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    /// The run's part of the pods' names [default: from the driver pod's uid, else random]
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error))]
    pub instance: Option<String>,
    /// How many executors there should be (of the only group)
    #[arg(long, value_name = "N")]
    pub executors: Option<u32>,
    /// The executors' image (of the only group)
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// The executors' template, a v1 Pod or PodTemplate (of the only group)
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
}

/// Which API server.
#[derive(Args, Clone, Debug, Default)]
pub struct ServerArgs {
    /// How to reach the API server [default: in a cluster its own, else $KUBECONFIG, else
    /// ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// `posse run`.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Start an embedded cluster in this process and run there
    #[cfg(feature = "dev")]
    #[arg(long, conflicts_with_all = ["kubeconfig", "context"])]
    pub dev: bool,
    /// Append the events to this file or FIFO; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Where the control API listens: unix:PATH or a loopback HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<String>,
    /// The token that a control API on HOST:PORT asks for
    #[arg(long, value_name = "FILE")]
    pub control_token_file: Option<PathBuf>,
    /// Leave the executors behind at the end
    #[arg(long)]
    pub keep: bool,
    /// A Secret with the ticket of staged files, which the executors find in /var/posse/files
    #[arg(long, value_name = "NAME", requires = "files_image")]
    pub files_secret: Option<String>,
    /// The image with posse in it that fetches them
    #[arg(long, value_name = "IMAGE", requires = "files_secret")]
    pub files_image: Option<String>,
    /// End with 143 instead of 0 where a signal asked for the end: to a Job 0 would be its work done
    #[arg(long)]
    pub as_job: bool,
    /// No two drivers of the application at once
    #[arg(long)]
    pub exclusive: bool,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER COMMAND")]
    pub driver: Vec<String>,
}

/// `posse render`.
#[derive(Args, Clone, Debug, Default)]
pub struct RenderArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// The driver's objects instead, as `posse submit` makes them
    #[arg(long, conflicts_with_all = ["group", "id"])]
    pub driver: bool,
    /// With --driver, also a service account with the rights that posse needs
    #[arg(long, requires = "driver")]
    pub create_rbac: bool,
    /// Only this group
    #[arg(long, value_name = "GROUP")]
    pub group: Option<String>,
    /// The executor id to fill in
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub id: u64,
    /// How it is printed
    #[arg(short, long, value_enum, default_value_t)]
    pub output: Output,
    /// Ask the API server whether it would take the pods (dryRun=All); nothing is created
    #[arg(long)]
    pub server_check: bool,
}

/// How manifests are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One document a pod
    #[default]
    Yaml,
    /// A v1 List
    Json,
}

/// `posse check`.
#[derive(Args, Clone, Debug, Default)]
pub struct CheckArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `posse cleanup`.
#[derive(Args, Clone, Debug)]
#[command(group = clap::ArgGroup::new("whose").required(true).args(["app", "all_apps"]))]
pub struct CleanupArgs {
    /// Whose leftovers: the application's name
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    /// Those of every application in the namespace
    #[arg(long, conflicts_with = "instance")]
    pub all_apps: bool,
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    /// Also executors of this instance that have no owner
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error))]
    pub instance: Option<String>,
    /// Also executors without an owner whose Lease was not renewed for so long, and such Leases
    /// themselves
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub stale: Option<u64>,
    /// Remove them; without it they are only listed
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The file to write, which must not be there yet; `-` is stdout
    #[arg(default_value = "posse.yaml")]
    pub file: PathBuf,
}

/// `posse dev`.
#[cfg(feature = "dev")]
#[derive(Args, Clone, Debug)]
#[command(after_help = crate::dev::fault_table())]
pub struct DevArgs {
    /// The loopback address to serve at; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// Where the kubeconfig is written [default: a private folder]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Start no process: pods only move through their phases, on nodes with room for all
    #[arg(long)]
    pub simulate: bool,
    /// How many nodes there are; with 0 pods stay pending, and clients play the node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u32,
    /// How long a pod takes to start
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub start_delay: Option<u64>,
    /// Whether a container that holds more memory than its limit is killed
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub memory_limits: bool,
    /// Ask everybody who they are, and allow what the roles in the cluster allow
    #[arg(long)]
    pub rbac: bool,
    /// A fault to inject, of those below; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub fault: Vec<(String, String)>,
    /// An admission plugin to leave out; may be given several times
    #[arg(long, value_name = "PLUGIN",
          value_parser = ["LimitRanger", "ResourceQuota", "ServiceAccount"])]
    pub disable_admission_plugins: Vec<String>,
    /// What the random choices follow from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Which run is meant.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientArgs {
    /// The run's control API: unix:PATH or a loopback HOST:PORT [default: $POSSE_CONTROL, else
    /// the one live socket of --app]
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<String>,
    /// The token for a control API on HOST:PORT [default: $POSSE_CONTROL_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub control_token_file: Option<PathBuf>,
    /// The application's name
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
}

/// `posse status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// Print JSON, as `GET /v1/status` answers
    #[arg(long)]
    pub json: bool,
}

/// `posse scale`.
#[derive(Args, Clone, Debug)]
#[command(allow_missing_positional = true)]
pub struct ScaleArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The group [default: the only one]
    #[arg(value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// The group, as a flag
    #[arg(long = "group", value_name = "GROUP", conflicts_with = "group",
          value_parser = named(names::group_name_error))]
    pub group_flag: Option<String>,
    /// How many executors there should be
    #[arg(value_name = "TARGET")]
    pub target: u32,
    /// Print JSON, as `PUT /v1/groups/{group}` answers
    #[arg(long)]
    pub json: bool,
}

/// `posse kill`.
#[derive(Args, Clone, Debug)]
pub struct KillArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// Whom
    #[arg(required = true, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub ids: Vec<u64>,
    /// Others come in their place; this is the default
    #[arg(long, conflicts_with_all = ["no_replace", "target"])]
    pub replace: bool,
    /// Lower the target, so that no others come
    #[arg(long, conflicts_with = "target")]
    pub no_replace: bool,
    /// Set their group's target to this in the same step
    #[arg(long, value_name = "TARGET")]
    pub target: Option<u32>,
    /// Also those that the driver calls busy
    #[arg(long)]
    pub force: bool,
    /// Why; told in events and logs
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print JSON, as `POST /v1/executors/kill` answers
    #[arg(long)]
    pub json: bool,
}

/// `posse events`.
#[derive(Args, Clone, Debug)]
pub struct EventsArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// Only events after this one
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// The run that SEQ counts in
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Go on until the run ends
    #[arg(long)]
    pub follow: bool,
    /// Print JSON, which events are anyway
    #[arg(long)]
    pub json: bool,
}

/// `posse explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// One executor instead of the groups
    #[arg(value_name = "ID")]
    pub id: Option<u64>,
    /// Only this group
    #[arg(long, conflicts_with = "id", value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// With an ID, also the last N lines of its log
    #[arg(long, value_name = "N", requires = "id",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_LINES_MAX)))]
    pub logs: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// The namespace of a run that is gone [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// A parser for a name that `mistake` has nothing against.
fn named(
    mistake: fn(&str) -> Option<String>,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| mistake(text).map_or_else(|| Ok(text.to_owned()), Err)
}

fn duration_ms(text: &str) -> Result<u64, String> {
    duration::parse_ms(text).ok_or_else(|| format!("expected {}", duration::EXPECTED))
}

#[cfg(feature = "dev")]
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("either on or off".to_owned()),
    }
}

#[cfg(feature = "dev")]
fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "expected an address like 127.0.0.1:0".to_owned())?;
    match address.ip().is_loopback() {
        true => Ok(address),
        false => Err("the embedded cluster serves loopback addresses only".to_owned()),
    }
}

#[cfg(feature = "dev")]
fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("expected NAME=VALUE".to_owned()),
    }
}
