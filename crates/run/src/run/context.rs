//! Where a run takes place: its namespace, the driver's pod, and the address that executors connect to.

use std::net::IpAddr;

use log::warn;

use crate::run::error::RunError;
use crate::run::settings::RunSettings;
use posse_core::policy::address_check::{AddressProblem, find_problem};
use posse_kube::api::driver_job::DriverJob;
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
    /// posse runs in a pod with a service account.
    pub home: Option<Home>,
    /// What `--context` has named.
    pub context: Option<String>,
    /// The server is the embedded cluster.
    pub is_embedded: bool,
}

/// Looks up an environment variable.
pub type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Facts about the run's surroundings that do not need a running API server.
#[derive(Debug)]
pub(super) struct RunContext {
    pub namespace: String,
    /// The driver's pod.
    pub pod: Option<OwnerRef>,
    /// The Job of the pod, if all its pods are one instance.
    pub job: Option<OwnerRef>,
    /// What owns the executors: the pod, or its Job if they outlive it.
    pub owner: Option<OwnerRef>,
    /// What executors dial.
    pub driver_host: String,
    /// Where the driver listens. The name of its Service may still lead to the pod before.
    pub listen_host: String,
}

impl RunContext {
    pub(super) fn find(
        settings: &RunSettings,
        env: EnvLookup<'_>,
        server: &ApiServer,
        job: Option<&DriverJob>,
    ) -> Result<Self, RunError> {
        let namespace = settings.namespace.clone().unwrap_or_else(|| server.namespace.clone());
        let hints = Hints { env, home: server.home.as_ref(), namespace: &namespace };
        // The embedded cluster ends with us, and has no pod of the cluster that we run in.
        let pod = (!server.is_embedded).then(|| driver_pod::find(hints, &server.http)).flatten();
        // Only a Lease says which of two pods may act.
        let job = job.filter(|_| settings.lease && pod.is_some());
        let outlived = job.filter(|_| settings.keeps_executors());
        let has_program = !settings.driver.command.is_empty();
        let listen_host = match &settings.driver.host {
            Some(host) => host.clone(),
            None => local_address(&server.http)?.to_string(),
        };
        // Nobody has chosen the pod's own address, and the next pod has another one.
        let is_chosen = settings.driver.host.is_some() && settings.driver.host != env("POD_IP");
        let driver_host = match outlived.filter(|_| has_program && !is_chosen) {
            // The name of the Service that `posse submit` creates.
            Some(job) => format!("{}.{namespace}.svc", job.name()),
            None => listen_host.clone(),
        };
        let owner = outlived.map(DriverJob::owner_ref).or_else(|| pod.clone());
        let is_in_cluster = pod.is_some() || server.home.as_ref().is_some_and(|home| home.is_used);
        if !server.is_embedded
            && let Some(problem) = driver_host_problem(&driver_host, &server.http, is_in_cluster)
        {
            warn!(
                "executors connect to the driver at {driver_host}, {problem}: from other machines \
                 this address does not lead to the driver; set driver.host to a name or an address \
                 of this machine that the cluster's nodes can reach"
            );
        }
        let job = job.map(DriverJob::owner_ref);
        Ok(Self { namespace, pod, job, owner, driver_host, listen_host })
    }

    /// The executors are the Job's, and outlive the driver's pod.
    pub(super) fn is_outlived(&self) -> bool {
        self.owner != self.pod
    }

    /// What the instance ends with.
    pub(super) fn instance_owner(&self) -> Option<&OwnerRef> {
        self.job.as_ref().or(self.owner.as_ref())
    }

    /// Without a Lease nobody could say which of two pods may act, so the executors end with theirs.
    pub(super) fn end_with_pod(&mut self) {
        self.owner.clone_from(&self.pod);
        self.job = None;
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
        RunError::Unreachable(format!(
            "cannot find the local address for connections to {}: {error}; set driver.host or \
             POD_IP",
            http.server()
        ))
    })
}
