//! Owns the commands that talk to a run: `status`, `scale`, `kill` and `events`. The calls themselves
//! are `control::client`'s.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::PathBuf;

use crate::cli::args::{ClientArgs, EventsArgs, KillArgs, ScaleArgs, StatusArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::{World, print};
use crate::control::address::default_folders;
use crate::control::client::{Client, ClientError, Whom};
use crate::control::table::status_table;
use crate::core::model::command::AfterKill;
use crate::core::model::ids::ExecutorId;
use crate::wire::control::{Killed, target_body};

/// `posse status`.
///
/// # Errors
/// There is no such run, or it does not answer.
pub fn status(args: &StatusArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let status = find(&args.client, world)?.status()?;
    let text = match args.json {
        true => String::from_utf8_lossy(&status.to_bytes()).into_owned() + "\n",
        false => status_table(&status),
    };
    print(out, &text).map(|()| Code::Clean)
}

/// `posse scale`.
///
/// # Errors
/// There is no such run or group, several groups and none named, or the run refuses.
pub fn scale(args: &ScaleArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let client = find(&args.client, world)?;
    let group = match args.group.as_ref().or(args.group_flag.as_ref()) {
        Some(group) => group.clone(),
        None => only_group(&client)?,
    };
    let target = client.scale(&group, args.target)?;
    let text = match target == args.target {
        _ if args.json => String::from_utf8_lossy(&target_body(target)).into_owned() + "\n",
        true => format!("group {group}: the target is {target} now\n"),
        false => format!(
            "group {group}: the target is {target} now; {} is outside of its min and max\n",
            args.target
        ),
    };
    print(out, &text).map(|()| Code::Clean)
}

/// `posse kill`.
///
/// # Errors
/// There is no such run, or it refuses.
pub fn kill(args: &KillArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let ids: BTreeSet<ExecutorId> = args.ids.iter().copied().map(ExecutorId).collect();
    let after = match args.target {
        Some(target) => AfterKill::Target(target),
        None if args.no_replace => AfterKill::Lower,
        None => AfterKill::Replace,
    };
    let client = find(&args.client, world)?;
    let killed = client.kill(&ids, after, args.force, args.reason.as_deref())?;
    let text = if args.json { killed.to_json() + "\n" } else { kill_text(&killed) };
    print(out, &text).map(|()| Code::Clean)
}

/// `posse events`.
///
/// # Errors
/// There is no such run, it refuses, or it goes away without a word.
pub fn events(args: &EventsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let mut each = |line: &str| writeln!(out, "{line}").and_then(|()| out.flush());
    let client = find(&args.client, world)?;
    let after = args.after.unwrap_or(0);
    match client.events(after, args.run.as_deref(), args.follow, &mut each) {
        Ok(()) => Ok(Code::Clean),
        // As with `| head`: whoever reads has read enough.
        Err(ClientError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            Ok(Code::Clean)
        }
        Err(error) => Err(error.into()),
    }
}

/// Finds the run: flags first, then the environment, then the sockets that are there.
pub(super) fn find(args: &ClientArgs, world: &World<'_>) -> Result<Client, ClientError> {
    let env = |name: &str| (world.env)(name).filter(|value| !value.is_empty());
    let token_env = || env("POSSE_CONTROL_TOKEN_FILE").map(PathBuf::from);
    let (runtime, temporary) = (env("XDG_RUNTIME_DIR"), env("TMPDIR"));
    let whom = Whom {
        control: args.control.clone(),
        control_env: env("POSSE_CONTROL"),
        token_file: args.control_token_file.clone().or_else(token_env),
        app: args.app.clone(),
        folders: default_folders(runtime.as_deref(), temporary.as_deref()),
    };
    Client::find(&whom)
}

fn only_group(client: &Client) -> Result<String, Failure> {
    let groups = client.status()?.groups;
    let names: Vec<&str> = groups.iter().map(|group| group.group.as_str()).collect();
    match names.as_slice() {
        [name] => Ok((*name).to_owned()),
        [] => Err(Failure::new(Code::Failed, "the run has no group yet")),
        several => {
            let several = several.join(", ");
            Err(Failure::usage(format!("which group? the run has several: {several}")))
        }
    }
}

fn kill_text(killed: &Killed) -> String {
    let mut text = String::new();
    for (ids, what) in [
        (&killed.killed, "killed"),
        (&killed.busy, "busy, and spared; --force ends them too"),
        (&killed.unknown, "unknown"),
    ] {
        if !ids.is_empty() {
            let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
            text.push_str(&format!("{what}: {}\n", ids.join(", ")));
        }
    }
    if text.is_empty() {
        text.push_str("nothing to kill: all of them were ending already\n");
    }
    if let Some(target) = killed.target {
        text.push_str(&format!("the target is {target} now\n"));
    }
    text
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let code = match &error {
            ClientError::Control(_) | ClientError::Several { .. } => Code::Usage,
            ClientError::None { .. }
            | ClientError::Output(_)
            | ClientError::Refused { .. }
            | ClientError::Strange(_)
            | ClientError::Unreachable { .. } => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests;
