//! Owns the way from what was typed to the API server, and what its refusals come to for a command.

use std::ffi::OsString;
use std::path::Path;

use crate::cli::World;
use crate::cli::args::ServerArgs;
use crate::cli::exit::{Code, Failure};
use crate::core::model::refusal::Refusal;
use crate::kube::config::{BoundPod, CA_BUNDLES, SERVICE_ACCOUNT_DIR, Sources};
use crate::kube::http::Http;

/// An API server, and the namespace that is meant where nothing else names one.
#[derive(Clone, Debug)]
pub struct Connection {
    pub http: Http,
    pub namespace: String,
    /// The pod that our token is bound to.
    pub pod: Option<BoundPod>,
    /// The pod that we run in told where the server is; `namespace` is that pod's then.
    pub is_in_cluster: bool,
}

impl Connection {
    /// Finds the server. Files are read, nothing is sent.
    ///
    /// # Errors
    /// There is no configuration, or a mistake in it (exit code 2).
    pub fn new(args: &ServerArgs, world: &World<'_>) -> Result<Self, Failure> {
        Self::find(args.kubeconfig.as_deref(), args.context.as_deref(), world)
    }

    /// The same, from what flags give or the settings.
    ///
    /// # Errors
    /// As `new`.
    pub fn find(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        world: &World<'_>,
    ) -> Result<Self, Failure> {
        let env = |name: &str| (world.env)(name).map(OsString::from);
        let kubeconfig = kubeconfig.map(|path| world.dir.join(path));
        let sources = sources(kubeconfig.as_deref(), context, &env);
        let mistake = |error: crate::kube::config::ConfigError| Failure::usage(error.to_string());
        let cluster = sources.resolve().map_err(mistake)?;
        let (namespace, pod) = (cluster.namespace.clone(), cluster.pod.clone());
        let is_in_cluster = sources.is_in_cluster();
        let http = Http::connect(cluster).map_err(mistake)?;
        Ok(Self { http, namespace, pod, is_in_cluster })
    }

    /// What a command ends with that the server does not answer, or does not allow.
    #[must_use]
    pub fn failure(&self, what: &str, refusal: &Refusal) -> Failure {
        // Where there was no answer the words name the server already.
        let server = match refusal.code {
            0 => String::new(),
            _ => format!("{}: ", self.http.server()),
        };
        Failure::new(Code::Server, format!("{what}: {server}{refusal}"))
    }
}

/// Where configuration is looked for, on this machine.
pub(super) fn sources<'a>(
    kubeconfig: Option<&'a Path>,
    context: Option<&'a str>,
    env: &'a dyn Fn(&str) -> Option<OsString>,
) -> Sources<'a> {
    Sources {
        kubeconfig,
        context,
        env,
        service_account_dir: Path::new(SERVICE_ACCOUNT_DIR),
        ca_bundles: &CA_BUNDLES,
    }
}
