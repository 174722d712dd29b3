//! The arguments of `posse task`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};

use super::examples;
use super::format::FormatArgs;
use super::{ClientArgs, duration_ms, named, seconds_ms};
use posse_core::model::task::{After, OPEN_TASKS_MAX, RETRIES_MAX};
use posse_encoding::quantity::memory_error;
use posse_wire::config::cpu_error;
use posse_wire::names;

/// What is done with tasks.
#[derive(Clone, Debug, Subcommand)]
pub enum TaskCommand {
    /// Add a task, and print its key
    #[command(after_help = examples::TASK_ADD)]
    Add(Box<TaskAddArgs>),
    /// List the open tasks, and the ended ones that the run remembers
    #[command(alias = "ls")]
    #[command(after_help = examples::TASK_LIST)]
    List(TaskListArgs),
    /// Wait for the end of tasks, and exit as they have ended
    #[command(after_help = examples::TASK_WAIT)]
    Wait(TaskWaitArgs),
    /// Print the output of a task
    #[command(after_help = examples::TASK_LOGS)]
    Logs(TaskLogsArgs),
    /// Cancel open tasks
    #[command(after_help = examples::TASK_CANCEL)]
    Cancel(TaskKeysArgs),
    /// Run tasks again that have ended without success
    #[command(after_help = examples::TASK_RETRY)]
    Retry(TaskKeysArgs),
}

/// The run and the group.
#[derive(Args, Clone, Debug)]
pub struct TaskGroupArgs {
    #[command(flatten)]
    pub client: ClientArgs,
    /// The group [default: all; to add a task, the only one]
    #[arg(long, value_name = "GROUP", value_parser = named(names::group_name_error), help_heading = "Which group")]
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
    #[arg(long, value_name = "AMOUNT", value_parser = named(memory_error))]
    pub memory: Option<String>,
    /// Request and limit of another resource, such as nvidia.com/gpu=1; may be repeated
    #[arg(long, value_name = "NAME=AMOUNT", value_parser = pair)]
    pub resource: Vec<(String, String)>,
    /// A variable of the environment; may be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// A variable whose value is kept in a Secret: from posse's own environment or from FILE, never given here; may be
    /// repeated
    #[arg(long, value_name = "NAME[=@FILE]")]
    pub secret_env: Vec<String>,
    /// A file of the container, such as /etc/app.conf=@app.conf, read-only and kept in a Secret; may be repeated
    #[arg(long, value_name = "PATH=@FILE")]
    pub file: Vec<String>,
    /// A label that the node must have; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub node_selector: Vec<(String, String)>,
    /// How many failures lead to another attempt
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = clap::value_parser!(u32).range(..=i64::from(RETRIES_MAX)))]
    pub retries: u32,
    /// How long an attempt may take, such as 10m [default: as long as the group's pods]
    #[arg(long, value_name = "DURATION", value_parser = seconds_ms)]
    pub deadline: Option<u64>,
    /// A task for each index, with the key KEY-INDEX and the index in POSSE_TASK_INDEX; `%MAX`: so many at a time
    #[arg(long, value_name = "FIRST-LAST[%MAX]", value_parser = array)]
    pub array: Option<ArrayArg>,
    /// A task, or an array, that must have ended before, well or, with `:any`, in any way; may be repeated
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

/// `posse task cancel` and `posse task retry`.
#[derive(Args, Clone, Debug)]
pub struct TaskKeysArgs {
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

/// The indexes of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArrayArg {
    pub first: u32,
    pub last: u32,
    pub max: Option<u32>,
}

fn array(text: &str) -> Result<ArrayArg, String> {
    let read = || {
        let (range, max) = match text.split_once('%') {
            Some((range, max)) => (range, Some(max.parse().ok().filter(|max| *max > 0)?)),
            None => (text, None),
        };
        let (first, last) = range.split_once('-')?;
        Some(ArrayArg { first: first.parse().ok()?, last: last.parse().ok()?, max })
    };
    let array = read().filter(|array| array.first <= array.last);
    let array = array.ok_or("expected FIRST-LAST or FIRST-LAST%MAX, such as 1-1000%20")?;
    match (array.last - array.first) as usize {
        ..OPEN_TASKS_MAX => Ok(array),
        n => Err(format!("{} tasks are more than a run may have open, {OPEN_TASKS_MAX}", n + 1)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_read() {
        let array_of = |first, last, max| Ok(ArrayArg { first, last, max });
        for (text, want) in [
            ("1-1000%20", array_of(1, 1_000, Some(20))),
            ("0-0", array_of(0, 0, None)),
            ("1-20000", array_of(1, 20_000, None)),
        ] {
            assert_eq!(array(text), want, "{text}");
        }
        for bad in ["", "7", "2-1", "1-3%0", "1-3%", "a-b", "-1-3", "1-20001"] {
            assert!(array(bad).is_err(), "{bad}");
        }
        assert_eq!(after("a"), Ok(("a".to_owned(), "ok".to_owned())));
        assert_eq!(after("a:any"), Ok(("a".to_owned(), "any".to_owned())));
        assert!(after("a:good").is_err());
    }
}
