//! The connection of a command to an API server.

use std::path::Path;

use crate::args::ServerArgs;
use crate::exit::{Code, Failure};
use crate::world::{Env, World};
use posse_core::model::refusal::Refusal;
use posse_kube::config::{CA_BUNDLES, Home, SERVICE_ACCOUNT_DIR, Sources};
use posse_kube::http::Http;

/// An API server and its default namespace.
#[derive(Clone, Debug)]
pub struct Connection {
    pub http: Http,
    pub namespace: String,
    /// posse runs in a pod with a service account.
    pub home: Option<Home>,
    /// The server and the identity, and where they were found.
    pub described: String,
}

impl Connection {
    /// Reads the configuration. Sends no request.
    ///
    /// # Errors
    /// There is no configuration, or it is invalid (exit code 2).
    pub fn new(args: &ServerArgs, world: &World<'_>) -> Result<Self, Failure> {
        Self::find(args.kubeconfig.as_deref(), args.context.as_deref(), world)
    }

    /// As `new`, for a command that works in the cluster for long: its log says where.
    pub fn told(args: &ServerArgs, world: &World<'_>) -> Result<Self, Failure> {
        let connection = Self::new(args, world)?;
        log::info!("{}", connection.described);
        Ok(connection)
    }

    /// As `new`, with the values of the flags.
    pub fn find(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        world: &World<'_>,
    ) -> Result<Self, Failure> {
        let kubeconfig = kubeconfig.map(|path| world.dir.join(path));
        let sources = sources(kubeconfig.as_deref(), context, world.env);
        let invalid = |error: posse_kube::config::ConfigError| Failure::usage(error.to_string());
        let cluster = sources.resolve().map_err(invalid)?;
        let (namespace, home) = (cluster.namespace.clone(), cluster.home.clone());
        let described = cluster.to_string();
        let http = Http::connect(cluster).map_err(invalid)?;
        Ok(Self { http, namespace, home, described })
    }

    /// The failure of a command whose request was refused or not answered.
    pub fn failure(&self, what: &str, refusal: &Refusal) -> Failure {
        // Without an answer, the message contains the server already.
        let server = match refusal.code {
            0 => String::new(),
            _ => format!("{}: ", self.http.server()),
        };
        Failure::new(Code::Server, format!("{what}: {server}{refusal}"))
    }
}

/// The sources of the configuration on this machine.
pub(super) fn sources<'a>(
    kubeconfig: Option<&'a Path>,
    context: Option<&'a str>,
    env: Env<'a>,
) -> Sources<'a> {
    Sources {
        kubeconfig,
        context,
        env,
        service_account_dir: Path::new(SERVICE_ACCOUNT_DIR),
        ca_bundles: &CA_BUNDLES,
    }
}
