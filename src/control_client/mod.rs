//! Finds the run for the commands that call its control API: on this host, else in the cluster.

mod awaited;

use std::path::PathBuf;

use crate::args::ClientArgs;
use crate::args::submit::NamespaceArgs;
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::pod_dialer::PodDialer;
use crate::settings::socket_folders;
use crate::world::World;
use posse_control::client::{Client, ClientError, RunSelector};

pub(super) use awaited::{AskError, AwaitedRun, is_away};

/// A run that can be called.
pub(super) struct FoundRun {
    pub(super) client: Client,
    /// The cluster in which its driver is; none: the run is on this host.
    pub(super) namespace: Option<Namespace>,
}

/// Where a command finds what it is about.
pub(super) enum Place {
    /// In a run of this host.
    Host(Client),
    /// In a cluster. `missing`: why in no run of this host; empty if a cluster is named.
    Cluster { missing: String },
}

/// The one rule for all commands about an application: if a namespace or a cluster is named, it is there, and no run
/// of this host is meant. Otherwise it is a run of this host, and in the cluster only if there is none.
///
/// # Errors
/// The run of this host that is meant is not clear, or is another one than the named one.
pub(super) fn find_place(args: &ClientArgs, world: &World<'_>) -> Result<Place, ClientError> {
    if args.names_cluster() {
        return Ok(Place::Cluster { missing: String::new() });
    }
    match find_here(args, world) {
        Ok(client) => Ok(Place::Host(client)),
        Err(missing @ ClientError::None { .. }) => {
            Ok(Place::Cluster { missing: missing.to_string() })
        }
        Err(error) => Err(error),
    }
}

/// The name of the application, which a command about one in the cluster needs. `missing` is as in `Place`.
pub(super) fn named_app<'a>(args: &'a ClientArgs, missing: &str) -> Result<&'a str, Failure> {
    const UNNAMED: &str = "name the application too: with -n, --kubeconfig or --context no run of \
                           this host is meant";
    args.app.as_deref().ok_or_else(|| match missing {
        "" => Failure::usage(UNNAMED),
        missing => Failure::new(Code::Failed, missing),
    })
}

/// Finds the run, and a way to call it.
pub(super) fn find_run(args: &ClientArgs, world: &World<'_>) -> Result<FoundRun, Failure> {
    let missing = match find_place(args, world)? {
        Place::Host(client) => return Ok(FoundRun { client, namespace: None }),
        Place::Cluster { missing } => missing,
    };
    let app = named_app(args, &missing)?;
    let found = || {
        let namespace = Namespace::new(&args.namespace, world)?;
        let client = Client::through(Box::new(PodDialer::find(&namespace, app)?));
        Ok(FoundRun { client, namespace: Some(namespace) })
    };
    found().map_err(|Failure { code, message }| match missing.as_str() {
        "" => Failure { code, message },
        // Nobody has named the cluster.
        _ if code == Code::Usage => Failure::new(Code::Failed, format!("{missing}; {message}")),
        _ => Failure::new(code, format!("{missing}; {message}")),
    })
}

/// Finds the run of this host by the flags, else by the environment, else by the live sockets.
pub(super) fn find_here(args: &ClientArgs, world: &World<'_>) -> Result<Client, ClientError> {
    let env = |name: &str| (world.env)(name).filter(|value| !value.is_empty());
    let token_env = || env("POSSE_CONTROL_TOKEN_FILE").map(PathBuf::from);
    // In a driver's script the variable is about the script's own run.
    let is_own =
        args.app.is_none() || env("POSSE_APP").is_none_or(|app| Some(&app) == args.app.as_ref());
    let selector = RunSelector {
        control: args.control.clone().or_else(|| env("POSSE_CONTROL").filter(|_| is_own)),
        token_file: args.control_token_file.clone().or_else(token_env),
        app: args.app.clone(),
        namespace: args.namespace.namespace.clone(),
        folders: socket_folders(world),
    };
    Client::find(&selector)
}

impl ClientArgs {
    /// True if a cluster or one of its namespaces is named, and no run by its address.
    pub(super) fn names_cluster(&self) -> bool {
        self.control.is_none() && self.namespace.is_given()
    }
}

impl NamespaceArgs {
    /// True if a cluster or one of its namespaces is named: then no run of this host is meant.
    pub(super) fn is_given(&self) -> bool {
        *self != Self::default()
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        if let ClientError::Output(error) = error {
            return Self::output(error);
        }
        let code = match &error {
            ClientError::Another { .. } | ClientError::Control(_) | ClientError::Several { .. } => {
                Code::Usage
            }
            ClientError::None { .. }
            | ClientError::NoBridge(_)
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
