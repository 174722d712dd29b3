//! The arguments: commands, flags and their help texts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};

use posse_core::model::settings::EXECUTORS_MAX;
use posse_encoding::quantity::memory_error;
use posse_wire::config::duration;
use posse_wire::config::{PortChoice, cpu_error};
use posse_wire::k8s::log::LOG_LINES_MAX;
use posse_wire::names;

#[cfg(feature = "dev")]
pub mod dev;
pub mod examples;
pub mod exec;
pub mod format;
#[cfg(all(feature = "client", target_os = "linux"))]
pub mod map;
pub mod output;
pub mod stage;
pub mod submit;
pub mod task;
#[cfg(feature = "client")]
pub mod tools;
pub mod words;

use exec::ExecArgs;
use format::FormatArgs;
use output::OutputArgs;
use stage::StageCommand;
use submit::{AppsArgs, CopyArgs, LogsArgs, NamespaceArgs, StopArgs, SubmitArgs};
use task::TaskCommand;
use words::{Word, word};

/// Keeps a driver's executors alive on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "posse", version, about, subcommand_required = true)]
#[command(after_help = examples::POSSE)]
pub struct CommandLine {
    #[command(subcommand)]
    pub command: Command,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a driver and keep its executors running until it ends
    #[cfg(target_os = "linux")]
    #[command(after_help = examples::RUN)]
    Run(RunArgs),
    #[cfg(feature = "client")]
    #[command(flatten)]
    Tools(tools::Command),
    /// List or delete what ended applications left behind
    #[command(after_help = examples::CLEANUP)]
    Cleanup(CleanupArgs),
    /// Run a driver in the cluster, and wait for its end
    #[command(after_help = examples::SUBMIT)]
    Submit(SubmitArgs),
    /// List the applications in the cluster and on this host
    #[command(after_help = examples::APPS)]
    Apps(AppsArgs),
    /// Print the log of a driver or of executors
    #[command(after_help = examples::LOGS)]
    Logs(LogsArgs),
    /// Run a command in an executor
    #[command(after_help = examples::EXEC)]
    Exec(ExecArgs),
    /// Stop applications, on this host or in the cluster
    #[command(after_help = examples::STOP)]
    Stop(StopArgs),
    /// Copy this program into a folder of a driver's pod
    #[command(hide = true)]
    Copy(CopyArgs),
    /// Join stdin and stdout with the control API of a run (posse starts it in a driver's pod)
    #[command(hide = true)]
    Bridge(ClientArgs),
    #[cfg(feature = "dev")]
    #[command(flatten)]
    Dev(dev::Command),
    /// Start programs and end all of their descendants (posse itself starts it)
    #[command(name = posse_process::supervisor::COMMAND, hide = true)]
    Supervise,
    /// Open a port and become a program that gets it as a socket (posse itself starts it)
    #[command(name = posse_process::listen::COMMAND, hide = true)]
    Listen(ListenArgs),
    /// Show the groups and executors of a run
    #[command(after_help = examples::STATUS)]
    Status(StatusArgs),
    /// Set the number of executors of a group in a run
    #[command(after_help = examples::SCALE)]
    Scale(ScaleArgs),
    /// End executors of a run by their ids
    #[command(after_help = examples::KILL)]
    Kill(KillArgs),
    /// Say that the driver accepts executors
    #[command(after_help = examples::READY)]
    Ready(NamedArgs),
    /// Say which executors of a run have no work
    #[command(after_help = examples::IDLE)]
    Idle(IdleArgs),
    /// Wait until executors of a run are running
    #[command(after_help = examples::WAIT)]
    Wait(WaitArgs),
    /// Add, list, await and cancel tasks of a run: work that runs once
    #[command(subcommand, after_help = examples::TASK)]
    Task(TaskCommand),
    /// Print the events of a run
    #[command(after_help = examples::EVENTS)]
    Events(EventsArgs),
    /// Explain what a run waits for, or what happened to an executor
    #[command(after_help = examples::EXPLAIN)]
    Explain(ExplainArgs),
    /// Bring files of this machine to the pods: serve, put, get
    #[command(subcommand)]
    Stage(StageCommand),
}

/// The configuration file, and flags that override it.
#[derive(Args, Clone, Debug, Default)]
pub struct FileArgs {
    /// The configuration, YAML or JSON; `-` is stdin [default: ./posse.yaml, if it exists]
    #[arg(short = 'f', long = "config", value_name = "FILE", help_heading = "Configuration")]
    pub file: Option<PathBuf>,
    /// The application's name: at most 40 of [a-z0-9-], starting with a letter [default: made from
    /// the driver's file name, else from the executors' command or image]
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error), help_heading = "Configuration")]
    pub app: Option<String>,
    /// The name of this run, a part of its pods' names [default: from the driver pod's uid, else
    /// random]
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error), help_heading = "Configuration")]
    pub instance: Option<String>,
    /// The number of executors
    #[arg(long, value_name = "N", value_parser = executors(), help_heading = "Executors, if there is only one group")]
    pub executors: Option<u32>,
    /// The executors' command, split into words as a shell does, with quotes, but no shell runs: variables,
    /// wildcards and pipes need sh -c '...'
    #[arg(long, value_name = "COMMAND", help_heading = "Executors, if there is only one group")]
    pub command: Option<String>,
    /// The executors' image
    #[arg(long, value_name = "IMAGE", help_heading = "Executors, if there is only one group")]
    pub image: Option<String>,
    /// CPU request and limit of an executor, such as 500m
    #[arg(long, value_name = "QUANTITY", value_parser = named(cpu_error), help_heading = "Executors, if there is only one group")]
    pub cpu: Option<String>,
    /// Memory request and limit of an executor, such as 256Mi
    #[arg(long, value_name = "QUANTITY", value_parser = named(memory_error), help_heading = "Executors, if there is only one group")]
    pub memory: Option<String>,
    /// A file with the executors' template, a v1 Pod or PodTemplate
    #[arg(long, value_name = "FILE", help_heading = "Executors, if there is only one group")]
    pub template: Option<PathBuf>,
    /// The port at which the driver listens for the executors; auto: posse chooses a free one. Both get
    /// it as POSSE_DRIVER_PORT
    #[arg(long, value_name = "PORT", value_parser = PortChoice::parse, help_heading = "Configuration")]
    pub driver_port: Option<PortChoice>,
    /// The namespace [default: the service account's, or the context's]
    #[arg(short, long, value_name = "NS", value_parser = named(names::namespace_error), help_heading = "API server")]
    pub namespace: Option<String>,
}

/// The API server.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerArgs {
    /// The kubeconfig file [default: $KUBECONFIG, else in a pod its service account, else
    /// ~/.kube/config]
    #[arg(long, value_name = "FILE", help_heading = "API server")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: its current context]
    #[arg(long, value_name = "NAME", help_heading = "API server")]
    pub context: Option<String>,
}

/// `posse run`.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    #[command(flatten)]
    pub file: FileArgs,
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub embedded: EmbeddedArgs,
    /// Append the events to this file, one JSON object per line; `-` is stdout
    #[arg(long, value_name = "FILE", help_heading = "Control API and events")]
    pub events: Option<PathBuf>,
    /// Keep what the run was told in this file, for the next run of this --instance; `off`: nowhere
    #[arg(long, value_name = "FILE", help_heading = "Control API and events")]
    pub record: Option<PathBuf>,
    /// The address on which to serve the control API: unix:PATH or a loopback HOST:PORT; `off`: none
    #[arg(long, value_name = "ADDRESS", help_heading = "Control API and events")]
    pub control: Option<String>,
    /// A file with the token that clients must send; required if the control API is on HOST:PORT
    #[arg(long, value_name = "FILE", help_heading = "Control API and events")]
    pub control_token_file: Option<PathBuf>,
    /// The address on which to serve /metrics, /healthz and /readyz: HOST:PORT, or :PORT for all addresses; or off
    #[arg(long, value_name = "ADDRESS", help_heading = "Control API and events")]
    pub metrics: Option<String>,
    /// The address on which to serve a page about the run for browsers: HOST:PORT, or :PORT for all addresses; or off
    #[arg(long, value_name = "ADDRESS")]
    pub page: Option<String>,
    /// A file with the token that the page asks for; required unless the page is on loopback. A control API on
    /// HOST:PORT lets whoever has it read, and change nothing
    #[arg(long, value_name = "FILE")]
    pub page_token_file: Option<PathBuf>,
    /// Leave the executors running at the end
    #[arg(long)]
    pub keep: bool,
    /// A Secret with files, or with --files-image the ticket of `posse stage put`; executors find the
    /// files in /var/posse/files
    #[arg(long, value_name = "NAME", help_heading = "Driver in the cluster")]
    pub files_secret: Option<String>,
    /// An image that contains posse, for the init container that downloads the files of the ticket
    #[arg(
        long,
        value_name = "IMAGE",
        requires = "files_secret",
        help_heading = "Driver in the cluster"
    )]
    pub files_image: Option<String>,
    /// The driver's pod belongs to a Job: count its failed attempts, and exit with 143 after a signal
    #[arg(long, help_heading = "Driver in the cluster")]
    pub as_job: bool,
    /// Allow one driver of the application at a time: wait until the other one has ended
    #[arg(long)]
    pub exclusive: bool,
    /// Print what the executors write to stderr, each line with its group and executor in front
    #[arg(long)]
    pub executor_logs: bool,
    /// The driver and its arguments
    #[arg(last = true, value_name = "DRIVER COMMAND")]
    pub driver: Vec<String>,
    /// The lines that `posse map` runs at a time; none for `posse run`.
    #[arg(skip)]
    pub jobs: Option<u32>,
}

/// The embedded cluster of a run. A program without one has no such flags.
#[derive(Args, Clone, Debug, Default)]
pub struct EmbeddedArgs {
    /// Start an embedded cluster in this process, and run the executors there
    #[cfg_attr(not(feature = "dev"), arg(skip))]
    #[cfg_attr(feature = "dev", arg(long, conflicts_with_all = ["kubeconfig", "context"],
                                    help_heading = "Embedded cluster"))]
    pub dev: bool,
    /// With --dev: serve its API without a token: every user of this machine can then run commands as you
    #[cfg(feature = "dev")]
    #[arg(long, requires = "dev", help_heading = "Embedded cluster")]
    pub insecure_no_auth: bool,
}

/// Whether `posse map` logs how far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ShowProgress {
    /// If stderr is a terminal
    #[default]
    Auto,
    /// Always
    Plain,
    /// Never
    Off,
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

/// `posse cleanup`.
#[derive(Args, Clone, Debug, Default)]
#[command(group = clap::ArgGroup::new("apps").required(true).args(["app", "all_apps"]))]
pub struct CleanupArgs {
    /// The application's name
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error))]
    pub app: Option<String>,
    /// Include all applications in the namespace
    #[arg(long, conflicts_with = "instance")]
    pub all_apps: bool,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
    /// Include executors of this instance that have no owner
    #[arg(long, value_name = "ID", value_parser = named(names::instance_name_error))]
    pub instance: Option<String>,
    /// Include executors without an owner whose Lease was not renewed for this time (such as 10m),
    /// and such Leases
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub stale: Option<u64>,
    /// Include the volumes of volumes_per_slot, with their data, of applications that have ended
    #[arg(long)]
    pub volumes: bool,
    /// Include the Secrets of credentials of applications that have ended
    #[arg(long)]
    pub secrets: bool,
    /// Instead, look at the folders APP.INSTANCE in this one, of runs that have ended; needs to list pods and leases in all namespaces
    #[arg(long, value_name = "DIR", conflicts_with_all = ["volumes", "secrets", "instance", "output", "json"])]
    pub node_dir: Option<PathBuf>,
    /// Repeat this after each such time, and when a run ends, until a signal comes; needs to watch leases in all namespaces
    #[arg(long, value_name = "DURATION", value_parser = seconds_ms, requires = "node_dir")]
    pub every: Option<u64>,
    /// Delete them; without this flag posse only lists them
    #[arg(long)]
    pub yes: bool,
    /// For `posse submit`: pods that have ended stay for people to look at.
    #[arg(skip)]
    pub spares_ended: bool,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// Selects a run.
#[derive(Args, Clone, Debug, Default)]
pub struct ClientArgs {
    /// The run's control API: unix:PATH or a loopback HOST:PORT [default: $POSSE_CONTROL, else the
    /// only live socket of --app]
    #[arg(long, value_name = "ADDRESS", help_heading = "Which run")]
    pub control: Option<String>,
    /// A file with the token for a control API on HOST:PORT [default: $POSSE_CONTROL_TOKEN_FILE]
    #[arg(long, value_name = "FILE", help_heading = "Which run")]
    pub control_token_file: Option<PathBuf>,
    /// The application's name, on this host or else in the cluster; most commands also take it as their first word
    #[arg(long, value_name = "NAME", value_parser = named(names::app_name_error), help_heading = "Which run")]
    pub app: Option<String>,
    #[command(flatten)]
    pub namespace: NamespaceArgs,
}

/// Selects a run, also by its application alone.
#[derive(Args, Clone, Debug)]
pub struct NamedArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app
    #[arg(value_name = "APP", value_parser = word, num_args = 0..=1)]
    pub words: Vec<Word>,
}

/// `posse listen`.
#[derive(Args, Clone, Debug)]
pub struct ListenArgs {
    /// HOST:PORT
    pub address: String,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<OsString>,
}

/// `posse status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    #[command(flatten)]
    pub named: NamedArgs,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse scale`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse scale [OPTIONS] [APP] <TARGET>")]
pub struct ScaleArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app, and the number of executors
    #[arg(required = true, value_name = "TARGET", value_parser = word)]
    pub words: Vec<Word>,
    /// The group; not needed if there is only one
    #[arg(long, value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse kill`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse kill [OPTIONS] [APP] <ID>...")]
pub struct KillArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app, and the executors' ids
    #[arg(required = true, value_name = "ID", value_parser = word)]
    pub words: Vec<Word>,
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
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse idle`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse idle [OPTIONS] [APP] [ID]...")]
pub struct IdleArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app, and the executors' ids; without any, all executors are busy. Valid for 10 s
    #[arg(value_name = "ID", value_parser = word)]
    pub words: Vec<Word>,
}

/// `posse wait`.
#[derive(Args, Clone, Debug)]
pub struct WaitArgs {
    #[command(flatten)]
    pub named: NamedArgs,
    /// How many executors have to run
    #[arg(long, value_name = "N", value_parser = executors(), required_unless_present = "ready")]
    pub running: Option<u32>,
    /// How many executors have to be ready: their pods have the condition Ready
    #[arg(long, value_name = "N", value_parser = executors(), conflicts_with = "running")]
    pub ready: Option<u32>,
    /// Count only the executors of this group
    #[arg(long, value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// Give up after this time, such as 5m [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub timeout: Option<u64>,
}

/// `posse events`.
#[derive(Args, Clone, Debug)]
pub struct EventsArgs {
    #[command(flatten)]
    pub named: NamedArgs,
    /// Print only events after the one with this number
    #[arg(long, value_name = "SEQ")]
    pub after: Option<u64>,
    /// The run that SEQ belongs to
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
    /// Print new events until the run ends, in the cluster until its Job does
    #[arg(short, long)]
    pub follow: bool,
    /// Print only the calls that have changed the run: who made them, from where, and what they asked for
    #[arg(long)]
    pub acts: bool,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse explain`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse explain [OPTIONS] [APP] [ID]")]
pub struct ExplainArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The application, as with --app, and the id of an executor, to explain this one instead of the groups
    #[arg(value_name = "ID", value_parser = word)]
    pub words: Vec<Word>,
    /// Explain only this group
    #[arg(long, conflicts_with = "logs", value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
    /// With an ID, also print the last N lines of the pod's log
    #[arg(long, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(LOG_LINES_MAX)))]
    pub logs: Option<u32>,
    #[command(flatten)]
    pub output: FormatArgs,
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

/// A duration of at least one second.
fn seconds_ms(text: &str) -> Result<u64, String> {
    duration_ms(text).and_then(|ms| match ms {
        ..1_000 => Err("expected at least 1s".to_owned()),
        ms => Ok(ms),
    })
}
