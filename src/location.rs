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
    /// The run, if it is known which one.
    pub(super) instance: Option<String>,
    /// The run is on this host.
    pub(super) is_local: bool,
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
            Ok(Location { namespace, instance: None, is_local: false, app: client.app.clone() })
        }
        Place::Host(run) => {
            let run = run.status()?.identity;
            let connection = connect_as(&run, &client.namespace.server, world)?;
            let namespace = Namespace { connection, name: run.namespace };
            let (instance, app) = (Some(run.instance), Some(run.app));
            Ok(Location { namespace, instance, is_local: true, app })
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
    /// The pod of an executor.
    ///
    /// # Errors
    /// There is none, or several runs of the application have one.
    pub(super) fn executor(&self, id: u64) -> Result<PodDetails, Failure> {
        let app = self.app.as_deref().unwrap_or_default();
        let mut pods = self
            .namespace
            .objects()
            .executors(app, Some(id))
            .map_err(|refusal| self.namespace.refused("cannot be read", app, &refusal))?;
        let instance = |pod: &PodDetails| pod.meta.label(INSTANCE).map(str::to_owned);
        if self.instance.is_some() {
            pods.retain(|pod| instance(pod) == self.instance);
        }
        let Some(pod) = newest(&pods) else {
            let message = format!("application {app} has no executor {id} now");
            return Err(Failure::new(Code::Failed, message));
        };
        if pods.iter().any(|other| instance(other) != instance(pod)) {
            let names: Vec<&str> = pods.iter().map(PodDetails::name).collect();
            let (names, namespace) = (names.join(", "), &self.namespace.name);
            return Err(Failure::usage(format!(
                "several runs of application {app} have an executor {id} in namespace {namespace}: \
                 pods {names}: `posse exec POD` and `kubectl logs POD` take one of them"
            )));
        }
        Ok(pod.clone())
    }
}

#[cfg(test)]
mod tests {
    use posse_testing::{Answer, TestServer};
    use serde_json::{Value, json};

    use crate::testing::Folder;

    /// A command acts on what was named, or on nothing.
    #[test]
    fn an_executor_of_several_runs_is_none() {
        let pod = |name: &str, instance: &str| {
            json!({"metadata": {"name": name, "uid": name, "labels": {"posse.dev/instance": instance}},
                "spec": {"containers": [{"name": "main"}]}, "status": {"phase": "Succeeded"}})
        };
        let posse = |pods: Vec<Value>, command: &str| {
            let server = TestServer::start(None, move |_| {
                Answer::json(
                    200,
                    json!({"metadata": {"resourceVersion": "1"}, "items": pods}).to_string(),
                )
            });
            Folder::with_server(server.address).posse(command)
        };
        let (one, other) = (pod("a-x-exec-3", "x"), pod("a-y-exec-3", "y"));
        for command in ["logs a 3 -n n --kubeconfig k", "exec -n n --kubeconfig k a/3 true"] {
            let (code, _, told) = posse(vec![one.clone(), other.clone()], command);
            let want = "posse: several runs of application a have an executor 3 in namespace n: pods a-x-exec-3, \
                        a-y-exec-3: `posse exec POD` and `kubectl logs POD` take one of them\n";
            assert_eq!((code, told.as_str()), (2, want), "{command}");
            let (_, _, told) = posse(vec![one.clone()], command);
            assert!(!told.contains("several"), "{command}: {told}");
        }
    }
}
