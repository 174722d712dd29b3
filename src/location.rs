//! Finds the namespace in which the executors of a run are, for the commands that read the cluster directly.

use std::path::PathBuf;

use crate::args::submit::NamespaceArgs;
use crate::args::{ClientArgs, ServerArgs};
use crate::control_client::{UNNAMED, find_here};
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::world::World;
use posse_control::client::ClientError;
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

/// Finds the run on this host and takes its namespace and cluster; flags win. Without a run on this host,
/// the flags and the kubeconfig name both. If a namespace or a cluster is named, no run of this host is meant.
///
/// # Errors
/// There is no such run on this host, and `must_be_known` forbids to go on without its application.
pub(super) fn locate(
    client: &ClientArgs,
    must_be_known: bool,
    world: &World<'_>,
) -> Result<Location, Failure> {
    let app = client.app.clone();
    let in_cluster = || {
        let namespace = Namespace::new(&client.namespace, world)?;
        Ok(Location { namespace, run: None, app: app.clone() })
    };
    if client.names_cluster() {
        return match must_be_known && app.is_none() {
            true => Err(Failure::usage(UNNAMED)),
            false => in_cluster(),
        };
    }
    let run = match find_here(client, world).and_then(|run| run.status()) {
        Ok(status) => status.identity,
        Err(ClientError::None { .. }) if !must_be_known => return in_cluster(),
        Err(error) if app.is_none() => return Err(error.into()),
        Err(_) => return in_cluster(),
    };
    let NamespaceArgs { namespace, server } = client.namespace.clone();
    let kubeconfig = run.kubeconfig.as_ref().map(PathBuf::from);
    let args = NamespaceArgs {
        namespace: namespace.or_else(|| Some(run.namespace.clone())),
        server: match server == ServerArgs::default() {
            true => ServerArgs { kubeconfig, context: None },
            false => server,
        },
    };
    Ok(Location {
        namespace: Namespace::new(&args, world)?,
        app: Some(run.app.clone()),
        run: Some(run),
    })
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
