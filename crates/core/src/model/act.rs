//! Calls that change the run, for the record: who acted, from where, and what was asked for.

use std::net::IpAddr;

use crate::model::command::{AfterKill, Command, GroupCommand};
use crate::model::ids::GroupName;
use crate::model::named::named;
use posse_base::text::sanitize;

/// Who makes a call, as far as the system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub key: Key,
    /// The user at the other end of a unix socket, or of a connection of this machine.
    pub user: Option<u32>,
    /// The address of the client; none at a unix socket.
    pub from: Option<IpAddr>,
}

named! {
    /// What lets a caller act.
    pub enum Key {
        /// The token of `--control-token-file`.
        ControlToken = "control_token",
        /// The mode of the unix socket.
        Socket = "socket",
    }
}

/// One call that changes the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    pub by: Caller,
    pub call: Call,
    pub group: Option<GroupName>,
    /// What was asked for, in words.
    pub message: String,
}

named! {
    /// The kinds of calls that change the run.
    pub enum Call {
        AddTasks = "add_tasks",
        CancelTask = "cancel_task",
        DeleteGroup = "delete_group",
        Kill = "kill",
        PutGroup = "put_group",
        RetryTask = "retry_task",
        Scale = "scale",
    }
}

impl Act {
    /// None for a call that only reads, and for a report: what a driver hears of its executors comes many times a
    /// minute, and is no order.
    pub fn of(command: &Command, by: Caller) -> Option<Self> {
        let (call, group, message) = match command {
            Command::Disconnected { .. }
            | Command::DriverReady
            | Command::Heartbeat { .. }
            | Command::Idle { .. }
            | Command::Status
            | Command::TaskSecretKeys
            | Command::View
            | Command::ViewTasks { .. } => return None,
            Command::Group(group, command) => {
                let (call, message) = match command {
                    GroupCommand::AddTasks { tasks } => (
                        Call::AddTasks,
                        list("task", tasks.iter().map(|task| task.key.to_string())),
                    ),
                    GroupCommand::CancelTask { key } => (Call::CancelTask, format!("task {key}")),
                    GroupCommand::Delete => (Call::DeleteGroup, String::new()),
                    GroupCommand::Put { change } => {
                        let target = change.target.map(|target| format!(", target {target}"));
                        (Call::PutGroup, format!("template{}", target.unwrap_or_default()))
                    }
                    GroupCommand::RetryTask { key } => (Call::RetryTask, format!("task {key}")),
                    GroupCommand::SetTarget { target } => (Call::Scale, format!("target {target}")),
                    // A driver names its nodes with each target.
                    GroupCommand::Prefer { .. } | GroupCommand::ShowTasks { .. } => return None,
                };
                (call, Some(group.clone()), message)
            }
            Command::Kill { executors, after, force, is_silent, reason } => {
                let mut message = list("executor", executors.iter().map(|id| id.0.to_string()));
                match after {
                    AfterKill::Lower => message += ", without a successor",
                    AfterKill::Replace => {}
                    AfterKill::Target(target) => message += &format!(", target {target}"),
                }
                if *force {
                    message += ", by force";
                }
                if *is_silent {
                    message += ", without heartbeats";
                }
                if let Some(reason) = reason {
                    message += &format!(": {reason}");
                }
                (Call::Kill, None, message)
            }
        };
        Some(Self { by, call, group, message: sanitize(&message, MESSAGE_BYTES_MAX) })
    }
}

/// `executors 1, 2 and 7 more`.
fn list(what: &str, names: impl ExactSizeIterator<Item = String>) -> String {
    let n = names.len();
    let shown: Vec<String> = names.take(NAMES_MAX).collect();
    let plural = if n == 1 { "" } else { "s" };
    let more = n - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{what}{plural} {}{more}", shown.join(", "))
}

/// The executors or tasks that a message names.
const NAMES_MAX: usize = 10;

/// The longest message, in bytes: a reason comes from outside.
const MESSAGE_BYTES_MAX: usize = 1_024;
