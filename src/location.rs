//! Finds the namespace in which the executors of a run are, for the commands that read the cluster directly.

use crate::args::{ClientArgs, ServerArgs};
use crate::connection::Connection;
use crate::control_client::{Place, find_place, named_app};
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::world::World;
use posse_submit::state::newest;
use posse_wire::control::status_json::RunNames;
use posse_wire::k8s::labels::INSTANCE;
use posse_wire::pod::details::PodDetails;

/// The namespace of a run's executors.
pub(super) struct Location {
    pub(super) namespace: Namespace,
    /// The run, if it is on this host.
    pub(super) run: Option<RunNames>,
    pub(super) app: Option<String>,
}

/// Finds the namespace by the rule of `find_place`: that of the run on this host, or the one that the flags and the
/// kubeconfig name.
///
/// # Errors
/// The run of this host is not clear, or the configuration leads to another cluster than its own; with `needs_app`,
/// also if no application is known.
pub(super) fn locate(
    client: &ClientArgs,
    needs_app: bool,
    world: &World<'_>,
) -> Result<Location, Failure> {
    match find_place(client, world)? {
        Place::Cluster { missing } => {
            if needs_app {
                named_app(client, &missing)?;
            }
            let namespace = Namespace::new(&client.namespace, world)?;
            Ok(Location { namespace, run: None, app: client.app.clone() })
        }
        Place::Host(run) => {
            let run = run.status()?.identity;
            let connection = connect_as(&run, &client.namespace.server, world)?;
            let namespace = Namespace { connection, name: run.namespace.clone() };
            Ok(Location { namespace, app: Some(run.app.clone()), run: Some(run) })
        }
    }
}

/// A connection to the API server of a run on this host.
///
/// # Errors
/// The configuration of this command leads to another server.
pub(super) fn connect_as(
    run: &RunNames,
    server: &ServerArgs,
    world: &World<'_>,
) -> Result<Connection, Failure> {
    let connection = match &run.kubeconfig {
        Some(kubeconfig) if *server == ServerArgs::default() => {
            Connection::find(Some(kubeconfig.as_ref()), None, world)?
        }
        Some(_) | None => Connection::new(server, world)?,
    };
    let ours = connection.http.server();
    // An old run does not tell its server.
    if run.server.is_empty() || run.server == ours {
        return Ok(connection);
    }
    let RunNames { app, namespace, server, .. } = run;
    Err(Failure::usage(format!(
        "application {app} of this host uses the API server {server}, and the configuration here \
         leads to {ours}: set KUBECONFIG as for the run, or name its cluster by -n {namespace} with \
         --kubeconfig or --context"
    )))
}

impl Location {
    /// The newest pod of an executor.
    pub(super) fn executor(&self, id: u64) -> Result<PodDetails, Failure> {
        let app = self.app.as_deref().unwrap_or_default();
        let mut pods = self
            .namespace
            .objects()
            .executors(app, Some(id))
            .map_err(|refusal| self.namespace.refused("cannot be read", app, &refusal))?;
        if let Some(run) = &self.run {
            pods.retain(|pod| pod.meta.label(INSTANCE) == Some(&run.instance));
        }
        newest(&pods).cloned().ok_or_else(|| {
            let message = format!("application {app} has no executor {id} now");
            Failure::new(Code::Failed, message)
        })
    }
}
