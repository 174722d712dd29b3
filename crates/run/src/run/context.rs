//! Where a run takes place: its namespace, the driver's pod, and the address that executors connect to.

use std::net::IpAddr;

use log::warn;

use crate::run::error::RunError;
use crate::run::settings::RunSettings;
use posse_core::policy::address_check::{AddressProblem, find_problem};
use posse_kube::api::driver_pod::{self, Hints};
use posse_kube::config::Home;
use posse_kube::http::Http;
use posse_wire::pod::build::OwnerRef;

/// The API server of a run.
#[derive(Clone, Debug)]
pub struct ApiServer {
    pub http: Http,
    /// The default namespace.
    pub namespace: String,
    /// posse runs in a pod of this cluster.
    pub home: Option<Home>,
    /// The server is the embedded cluster.
    pub is_embedded: bool,
}

/// Looks up an environment variable.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Facts about the run's surroundings that do not need a running API server.
#[derive(Debug)]
pub(super) struct RunContext {
    pub namespace: String,
    /// The driver's pod, which owns the executors.
    pub owner: Option<OwnerRef>,
    pub driver_host: String,
}

impl RunContext {
    pub(super) fn find(
        settings: &RunSettings,
        env: EnvLookup<'_>,
        server: &ApiServer,
    ) -> Result<Self, RunError> {
        let namespace = settings.namespace.clone().unwrap_or_else(|| server.namespace.clone());
        let hints = Hints { env, home: server.home.as_ref(), namespace: &namespace };
        let owner = driver_pod::find(hints, &server.http);
        let driver_host = match &settings.driver.host {
            Some(host) => host.clone(),
            None => local_address(&server.http)?.to_string(),
        };
        if !server.is_embedded
            && let Some(problem) =
                driver_host_problem(&driver_host, &server.http, server.home.is_some())
        {
            warn!(
                "executors connect to the driver at {driver_host}, {problem}: from other machines \
                 this address does not lead to the driver; set driver.host to a name or an address \
                 of this machine that the cluster's nodes can reach"
            );
        }
        Ok(Self { namespace, owner, driver_host })
    }
}

/// Why executors can probably not reach the driver at `host`. Always `None` if the API server is on
/// this machine, because the executors may be, too.
pub fn driver_host_problem(host: &str, http: &Http, is_in_cluster: bool) -> Option<AddressProblem> {
    let is_local = http.local_address().is_ok_and(|ours| ours.is_loopback());
    find_problem(host, is_in_cluster).filter(|_| !is_local)
}

fn local_address(http: &Http) -> Result<IpAddr, RunError> {
    http.local_address().map_err(|error| {
        RunError::Server(format!(
            "cannot find the local address for connections to {}: {error}; set driver.host or \
             POD_IP",
            http.server()
        ))
    })
}
