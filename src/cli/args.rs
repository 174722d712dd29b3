//! The arguments: commands, flags and their help texts.

#[cfg(feature = "dev")]
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::core::policy::settings::EXECUTORS_MAX;
use crate::wire::duration;
use crate::wire::log::LOG_LINES_MAX;
use crate::wire::names;

pub mod stage;
pub mod submit;

use stage::StageArgs;
use submit::{AppsArgs, CopyArgs, LogsArgs, NamespaceArgs, StopArgs, SubmitArgs};

/// Keeps a driver's executors alive on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "posse", version, about, subcommand_required = true, after_help = AFTER_HELP)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Environment:
  KUBECONFIG               the kubeconfig, if no flag names one and posse is not in a pod
  POSSE_LOG                log level on stderr: error, warn, info (default), debug, trace, or
                           module=level pairs
  POSSE_CONTROL, POSSE_CONTROL_TOKEN_FILE
                           the run's control API, for status, scale, kill, events and explain";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a driver and keep its executors running until the driver ends
    Run(RunArgs),
    /// Print the pods that a run would create
    Render(RenderArgs),
    /// Ask the API server whether a run would work: connection, permissions, quota, templates
    Check(CheckArgs),
    /// List or delete the executors and Leases that ended applications left behind
    Cleanup(CleanupArgs),
    /// Run a driver in the cluster, and wait for its end
    Submit(SubmitArgs),
    /// List the applications in the cluster
    Apps(AppsArgs),
    /// Print the log of an application's driver, or of one of its executors
    Logs(LogsArgs),
    /// Stop applications in the cluster
    Stop(StopArgs),
    /// Copy this program into a folder of a driver's pod
    #[command(hide = true)]
    Copy(CopyArgs),
    /// Write a posse.yaml with comments
    Init(InitArgs),
    /// Run the embedded cluster in the foreground, for tests and for trying things out
    #[cfg(feature = "dev")]
    Dev(DevArgs),
    /// Start programs and end all of their descendants (posse itself starts it)
    #[command(name = crate::process::supervisor::COMMAND, hide = true)]
    Supervise,
    /// Become a container with volumes of the embedded cluster (started by its node)
    #[cfg(feature = "dev")]
    #[command(name = crate::dev::COMMAND, hide = true)]
    DevContainer,
    /// Show the groups and executors of a run
    Status(StatusArgs),
    /// Set the number of executors of a group in a run
    Scale(ScaleArgs),
    /// End executors of a run by their ids
    Kill(KillArgs),
    /// Print the events of a run, one JSON object per line
    Events(EventsArgs),
    /// Explain what a run waits for, or what happened to an executor
    Explain(ExplainArgs),
    /// Bring files of this machine to the pods: serve, put, get
    Stage(StageArgs),
}

/// The configuration file, and flags that override it.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// The configuration file, YAML or JSON [default: ./posse.yaml, if it exists]
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// The application's name: at most 40 of [a-z0-9-], starting with a letter
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    /// The name of this run, a part of its pods' names [default: from the driver pod's uid, else
    /// random]
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error))]
    pub instance: Option<String>,
    /// The number of executors, if there is only one group
    #[arg(long, value_name = "N", value_parser = executors())]
    pub executors: Option<u32>,
    /// The executors' image, if there is only one group
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// A file with the executors' template, a v1 Pod or PodTemplate, if there is only one group
    #[arg(long, value_name = "FILE")]
    pub template: Option<PathBuf>,
}

/// The API server.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerArgs {
    /// The kubeconfig file [default: in a pod its service account, else $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current context]
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
    /// Start an embedded cluster in this process, and run the executors there
    #[cfg(feature = "dev")]
    #[arg(long, conflicts_with_all = ["kubeconfig", "context"])]
    pub dev: bool,
    /// With --dev: serve its API without a token: every user of this machine can then run commands as you
    #[cfg(feature = "dev")]
    #[arg(long, requires = "dev")]
    pub insecure_no_auth: bool,
    /// Append the events to this file, one JSON object per line; `-` is stdout
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// The address on which to serve the control API: unix:PATH or a loopback HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<String>,
    /// A file with the token that clients must send; required if the control API is on HOST:PORT
    #[arg(long, value_name = "FILE")]
    pub control_token_file: Option<PathBuf>,
    /// Leave the executors running at the end
    #[arg(long)]
    pub keep: bool,
    /// A Secret with the ticket of `posse stage put`; executors find the files in /var/posse/files
    #[arg(long, value_name = "NAME", requires = "files_image")]
    pub files_secret: Option<String>,
    /// An image that contains posse, for the init container that downloads these files
    #[arg(long, value_name = "IMAGE", requires = "files_secret")]
    pub files_image: Option<String>,
    /// The driver's pod belongs to a Job: count its failed attempts, and exit with 143 after a signal
    #[arg(long)]
    pub as_job: bool,
    /// Allow one driver of the application at a time: wait until the other one has ended
    #[arg(long)]
    pub exclusive: bool,
    /// Whether to show the progress line: auto shows it on a terminal
    #[arg(long, value_name = "WHEN", value_enum, default_value_t)]
    pub progress: ShowProgress,
    /// Print what the executors write to stderr, each line with its group and executor in front
    #[arg(long)]
    pub executor_logs: bool,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER COMMAND")]
    pub driver: Vec<String>,
}

/// Whether `posse run` shows its progress line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ShowProgress {
    /// On a terminal that can move its cursor
    #[default]
    Auto,
    Off,
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
    /// Let the API server check the pods by a dry run, which creates nothing
    #[arg(long)]
    pub server_check: bool,
}

/// The output format of manifests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One document for each object
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
#[command(group = clap::ArgGroup::new("apps").required(true).args(["app", "all_apps"]))]
pub struct CleanupArgs {
    /// The application's name
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    /// Include all applications in the namespace
    #[arg(long, conflicts_with = "instance")]
    pub all_apps: bool,
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error))]
    pub namespace: Option<String>,
    /// Include executors of this instance that have no owner
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error))]
    pub instance: Option<String>,
    /// Include executors without an owner whose Lease was not renewed for this time (such as 10m),
    /// and such Leases
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub stale: Option<u64>,
    /// Delete them; without this flag posse only lists them
    #[arg(long)]
    pub yes: bool,
    #[command(flatten)]
    pub server: ServerArgs,
}

/// `posse init`.
#[derive(Args, Clone, Debug)]
pub struct InitArgs {
    /// The file to write, which must not exist yet; `-` is stdout
    #[arg(default_value = "posse.yaml")]
    pub file: PathBuf,
}

/// `posse dev`.
#[cfg(feature = "dev")]
#[derive(Args, Clone, Debug)]
#[command(after_help = crate::dev::fault_table())]
pub struct DevArgs {
    /// The loopback address to listen on; port 0 chooses a free port
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0", value_parser = loopback)]
    pub listen: SocketAddr,
    /// The kubeconfig file to write [default: in a private folder]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Start no processes: pods only change their phases, on nodes with room for all
    #[arg(long)]
    pub simulate: bool,
    /// The number of nodes; with 0 all pods stay pending, unless a client plays the node
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub nodes: u32,
    /// The delay before each pod starts, such as 2s
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub start_delay: Option<u64>,
    /// Whether to kill containers that exceed their memory limit
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub memory_limits: bool,
    /// Enforce the roles in the cluster (RBAC)
    #[arg(long)]
    pub rbac: bool,
    /// Serve without a token: every user of this machine can then run commands as you
    #[arg(long, conflicts_with = "rbac")]
    pub insecure_no_auth: bool,
    /// A fault to inject (listed below); can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub fault: Vec<(String, String)>,
    /// An admission plugin to turn off; can be repeated
    #[arg(long, value_name = "PLUGIN",
          value_parser = ["LimitRanger", "ResourceQuota", "ServiceAccount"])]
    pub disable_admission_plugins: Vec<String>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Selects a run.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientArgs {
    /// The run's control API: unix:PATH or a loopback HOST:PORT [default: $POSSE_CONTROL, else the
    /// only live socket of --app]
    #[arg(long, value_name = "ADDRESS")]
    pub control: Option<String>,
    /// A file with the token for a control API on HOST:PORT [default: $POSSE_CONTROL_TOKEN_FILE]
    #[arg(long, value_name = "FILE")]
    pub control_token_file: Option<PathBuf>,
    /// The application's name. If it does not run on this host, the command runs in its driver's pod
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// `posse status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// Print JSON, as returned by `GET /v1/status`
    #[arg(long)]
    pub json: bool,
}

/// `posse scale`.
#[derive(Args, Clone, Debug)]
#[command(allow_missing_positional = true)]
pub struct ScaleArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The group; not needed if there is only one
    #[arg(value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// The group, instead of the argument GROUP
    #[arg(long = "group", value_name = "GROUP", conflicts_with = "group",
          value_parser = named(names::group_name_error))]
    pub group_flag: Option<String>,
    /// The number of executors
    #[arg(value_name = "TARGET", value_parser = executors())]
    pub target: u32,
    /// Print JSON, as returned by `PUT /v1/groups/{group}`
    #[arg(long)]
    pub json: bool,
}

/// `posse kill`.
#[derive(Args, Clone, Debug)]
pub struct KillArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The executors' ids
    #[arg(required = true, value_name = "ID", value_parser = clap::value_parser!(u64).range(1..))]
    pub ids: Vec<u64>,
    /// Replace the executors; this is the default
    #[arg(long, conflicts_with_all = ["no_replace", "target"])]
    pub replace: bool,
    /// Lower the target instead of replacing the executors
    #[arg(long, conflicts_with = "target")]
    pub no_replace: bool,
    /// Set the group's target to this value in the same step
    #[arg(long, value_name = "TARGET")]
    pub target: Option<u32>,
    /// Also end executors that the driver reports as busy
    #[arg(long)]
    pub force: bool,
    /// The reason, shown in events and logs
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Print JSON, as returned by `POST /v1/executors/kill`
    #[arg(long)]
    pub json: bool,
}

/// `posse events`.
#[derive(Args, Clone, Debug)]
pub struct EventsArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// Print only events after the one with this number
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// The run that SEQ belongs to
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Print new events until the run ends
    #[arg(long)]
    pub follow: bool,
    /// Has no effect: events are always printed as JSON
    #[arg(long)]
    pub json: bool,
}

/// `posse explain`.
#[derive(Args, Clone, Debug)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The id of an executor, to explain this one instead of the groups
    #[arg(value_name = "ID")]
    pub id: Option<u64>,
    /// Explain only this group
    #[arg(long, conflicts_with = "id", value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// With an ID, also print the last N lines of the pod's log
    #[arg(long, value_name = "N", requires = "id",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_LINES_MAX)))]
    pub logs: Option<u32>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A parser for numbers of executors.
fn executors() -> RangedU64ValueParser<u32> {
    RangedU64ValueParser::new().range(..=u64::from(EXECUTORS_MAX))
}

/// A parser for names; `check` returns what is wrong with a name.
fn named(
    check: fn(&str) -> Option<String>,
) -> impl Fn(&str) -> Result<String, String> + Clone + Send + Sync + 'static {
    move |text| check(text).map_or_else(|| Ok(text.to_owned()), Err)
}

fn duration_ms(text: &str) -> Result<u64, String> {
    duration::parse_ms(text).ok_or_else(|| format!("expected {}", duration::EXPECTED))
}

#[cfg(feature = "dev")]
fn on_or_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
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
