//! Finds the run for `status`, `scale`, `kill`, `events` and `explain`: on this host, else in the
//! cluster.

use std::path::PathBuf;

use crate::args::ClientArgs;
use crate::exit::{Code, Failure};
use crate::remote::RemoteRun;
use crate::settings::socket_folders;
use crate::world::World;
use posse_control::client::{Client, ClientError, RunSelector};

/// Where a run was found.
pub(super) enum FoundRun {
    /// Its control API can be called.
    Here(Client),
    /// Its driver's pod can run the command.
    InCluster(Box<RemoteRun>),
}

/// Finds the run on this host, else in the cluster if `--app` names it.
pub(super) fn find_anywhere(args: &ClientArgs, world: &World<'_>) -> Result<FoundRun, Failure> {
    match find(args, world) {
        Ok(client) => Ok(FoundRun::Here(client)),
        Err(missing @ ClientError::None { .. }) => match &args.app {
            Some(app) => RemoteRun::find(args, missing.to_string(), app, world)
                .map(|run| FoundRun::InCluster(Box::new(run))),
            None => Err(missing.into()),
        },
        Err(error) => Err(error.into()),
    }
}

/// Finds the run by the flags, else by the environment, else by the live sockets.
pub(super) fn find(args: &ClientArgs, world: &World<'_>) -> Result<Client, ClientError> {
    let env = |name: &str| (world.env)(name).filter(|value| !value.is_empty());
    let token_env = || env("POSSE_CONTROL_TOKEN_FILE").map(PathBuf::from);
    let selector = RunSelector {
        control: args.control.clone(),
        control_env: env("POSSE_CONTROL"),
        token_file: args.control_token_file.clone().or_else(token_env),
        app: args.app.clone(),
        folders: socket_folders(world),
    };
    Client::find(&selector)
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        if let ClientError::Output(error) = error {
            return Self::output(error);
        }
        let code = match &error {
            ClientError::Control(_) | ClientError::Several { .. } => Code::Usage,
            ClientError::None { .. }
            | ClientError::Output(_)
            | ClientError::Refused { .. }
            | ClientError::Incompatible(_)
            | ClientError::Unreachable { .. } => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests;
