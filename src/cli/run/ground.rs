//! Owns where a run is: its namespace, the pod it is in, and the address that executors dial.

use std::net::IpAddr;

use log::warn;

use crate::cli::World;
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::settings::{RunSettings, Server};
use crate::core::policy::address_check::{AddressProblem, find_problem};
use crate::kube::api::driver_pod::{self, Hints};
use crate::kube::http::Http;
use crate::wire::build::OwnerRef;

/// Where we are, before anything is asked of the server.
#[derive(Debug)]
pub(super) struct Ground {
    pub namespace: String,
    pub owner: Option<OwnerRef>,
    pub driver_host: String,
}

impl Ground {
    pub(super) fn find(
        settings: &RunSettings,
        world: &World<'_>,
        server: &Connection,
    ) -> Result<Self, Failure> {
        let namespace = settings.namespace.clone().unwrap_or_else(|| server.namespace.clone());
        let account =
            server.is_in_cluster.then_some((server.pod.as_ref(), server.namespace.as_str()));
        let hints = Hints { env: world.env, account, namespace: &namespace };
        let owner = driver_pod::find(hints, &server.http);
        let driver_host = match &settings.driver.host {
            Some(host) => host.clone(),
            None => our_address(&server.http)?.to_string(),
        };
        if settings.server != Server::Dev
            && let Some(doubt) = doubt_about(&driver_host, server)
        {
            warn!(
                "executors are told to dial the driver at {driver_host}, {doubt}: from other \
                 machines that does not lead here; set driver.host to a name or an address of this \
                 machine that the cluster's nodes can reach"
            );
        }
        Ok(Self { namespace, owner, driver_host })
    }
}

/// What speaks against `host` as what executors dial. Where the server is on this machine, so may
/// the executors be.
pub(in crate::cli) fn doubt_about(host: &str, server: &Connection) -> Option<AddressProblem> {
    let is_local = server.http.local_address().is_ok_and(|ours| ours.is_loopback());
    find_problem(host, server.is_in_cluster).filter(|_| !is_local)
}

fn our_address(http: &Http) -> Result<IpAddr, Failure> {
    http.local_address().map_err(|error| {
        let message = format!(
            "our address towards {} cannot be told: {error}; set driver.host or POD_IP",
            http.server()
        );
        Failure::new(Code::Server, message)
    })
}
