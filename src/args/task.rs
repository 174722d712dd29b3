//! The arguments of `posse task`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

use super::format::FormatArgs;
use super::{ClientArgs, duration_ms, named};
use posse_core::model::task::{After, RETRIES_MAX};
use posse_wire::config::cpu_error;
use posse_wire::names;

/// `posse task`.
#[derive(Args, Clone, Debug)]
pub struct TaskArgs {
    #[command(subcommand)]
    pub command: TaskCommand,
}

/// What is done with tasks.
#[derive(Clone, Debug, Subcommand)]
pub enum TaskCommand {
    /// Add a task, and print its key
    Add(Box<TaskAddArgs>),
    /// List the open tasks, and the ended ones that the run remembers
    #[command(alias = "ls")]
    List(TaskListArgs),
    /// Wait for the end of tasks, and exit as they have ended
    Wait(TaskWaitArgs),
    /// Print the output of a task
    Logs(TaskLogsArgs),
    /// Cancel open tasks
    Cancel(TaskCancelArgs),
}

/// The run and the group.
#[derive(Args, Clone, Debug)]
pub struct TaskGroupArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The group; not needed if there is only one
    #[arg(long, value_name = "GROUP", value_parser = named(names::group_name_error))]
    pub group: Option<String>,
}

/// `posse task add`.
#[derive(Args, Clone, Debug)]
#[command(override_usage = "posse task add [OPTIONS] [-- COMMAND [ARG]...]")]
pub struct TaskAddArgs {
    #[command(flatten)]
    pub of: TaskGroupArgs,
    /// The task's key: at most 63 letters, digits, `-`, `_` and `.` [default: a random one]
    #[arg(long, value_name = "KEY")]
    pub name: Option<String>,
    /// The image [default: the group's, as with all that follows]
    #[arg(long, value_name = "IMAGE")]
    pub image: Option<String>,
    /// CPU request and limit
    #[arg(long, value_name = "AMOUNT", value_parser = named(cpu_error))]
    pub cpu: Option<String>,
    /// Memory request and limit
    #[arg(long, value_name = "AMOUNT")]
    pub memory: Option<String>,
    /// A variable of the environment; may be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// A label that the node must have; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// How many failures lead to another attempt
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=i64::from(RETRIES_MAX)))]
    pub retries: u32,
    /// A task that must have ended before, well or, with `:any`, in any way; may be repeated
    #[arg(long, value_name = "KEY[:ok|:any]", value_parser = after)]
    pub after: Vec<(String, String)>,
    /// The command and its arguments [default: those of the group]
    #[arg(last = true, value_name = "COMMAND")]
    pub words: Vec<String>,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse task list`.
#[derive(Args, Clone, Debug)]
pub struct TaskListArgs {
    #[command(flatten)]
    pub of: TaskGroupArgs,
    #[command(flatten)]
    pub output: FormatArgs,
}

/// `posse task wait`.
#[derive(Args, Clone, Debug)]
pub struct TaskWaitArgs {
    #[command(flatten)]
    pub of: TaskGroupArgs,
    /// The tasks' keys [default: all tasks]
    #[arg(value_name = "KEY")]
    pub keys: Vec<String>,
    /// Give up after this time, such as 5m [default: never]
    #[arg(long, value_name = "DURATION", value_parser = duration_ms)]
    pub timeout: Option<u64>,
}

/// `posse task logs`.
#[derive(Args, Clone, Debug)]
pub struct TaskLogsArgs {
    #[command(flatten)]
    pub of: TaskGroupArgs,
    /// The task's key
    #[arg(value_name = "KEY")]
    pub key: String,
    /// Print new output until the task's executor ends
    #[arg(short, long)]
    pub follow: bool,
}

/// `posse task cancel`.
#[derive(Args, Clone, Debug)]
pub struct TaskCancelArgs {
    #[command(flatten)]
    pub of: TaskGroupArgs,
    /// The tasks' keys
    #[arg(required = true, value_name = "KEY")]
    pub keys: Vec<String>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn after(text: &str) -> Result<(String, String), String> {
    // A key has no colon.
    let (key, how) = text.split_once(':').unwrap_or((text, After::Ok.as_str()));
    match After::parse(how) {
        Some(how) => Ok((key.to_owned(), how.as_str().to_owned())),
        None => Err("expected KEY, KEY:ok or KEY:any".to_owned()),
    }
}

/// The last of several values of a name counts, as in a shell.
pub fn by_name(pairs: &[(String, String)]) -> BTreeMap<String, String> {
    pairs.iter().cloned().collect()
}
