//! Starts and stops an embedded cluster: its private folder, kubeconfig, API server, controllers
//! and nodes.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::apiserver::api::Api;
use crate::apiserver::authn::tokens;
use crate::apiserver::authz;
use crate::apiserver::fault_endpoint;
use crate::apiserver::server::{self, RunningServer};
use crate::certificate;
use crate::controllers::Controllers;
use crate::faults::Faults;
use crate::kubeconfig::{self, Access};
use crate::node::{self, Node};
use posse_base::clock::Clock;
use posse_base::rng::Rng;

/// The settings of an embedded cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// A loopback address. Port 0 takes a free port.
    pub listen: SocketAddr,
    /// The path of the kubeconfig; `None` puts it into the private folder.
    pub kubeconfig: Option<PathBuf>,
    /// Namespaces to create in addition to those that each cluster has.
    pub namespaces: Vec<String>,
    /// Start no processes: pods only move through their phases.
    pub simulate: bool,
    /// The number of nodes. With 0 nodes no pod is bound, started or reported on: a client has to
    /// play the scheduler and the kubelet.
    pub nodes: u32,
    /// The time between a pod's binding and the start of its containers.
    pub start_delay: Duration,
    /// Kill containers that use more memory than their limit.
    pub memory_limits: bool,
    /// Pairs of `--fault NAME=VALUE`, not yet checked.
    pub faults: Vec<(String, String)>,
    /// The admission plugins to disable, by kube-apiserver's names.
    pub disabled_admission: Vec<String>,
    /// The seed for faults and for simulated delays.
    pub seed: u64,
    /// Authorize each request by the roles in the cluster (RBAC).
    pub rbac: bool,
    /// Serve every local user, without a token. Excludes `rbac`.
    pub insecure_no_auth: bool,
    /// The folder in which the private folder is created; `None`: the system's folder for temporary
    /// files.
    pub folder: Option<PathBuf>,
    /// The posse binary that runs containers; `None`: the running program.
    pub runner: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            kubeconfig: None,
            namespaces: Vec::new(),
            simulate: false,
            nodes: 1,
            start_delay: Duration::ZERO,
            memory_limits: true,
            faults: Vec::new(),
            disabled_admission: Vec::new(),
            seed: 0,
            rbac: false,
            insecure_no_auth: false,
            folder: None,
            runner: None,
        }
    }
}

/// Why an embedded cluster did not start.
#[derive(Debug)]
pub enum DevError {
    /// A `--fault` is wrong; the text says how.
    Fault(String),
    /// A file or a folder could not be created or written.
    File(PathBuf, io::Error),
    /// The server could not listen on the address.
    Listen(SocketAddr, io::Error),
    /// The address is not on loopback.
    NotLoopback(SocketAddr),
    /// A thread could not be started.
    Thread(io::Error),
}

impl std::fmt::Display for DevError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fault(message) => f.write_str(message),
            Self::File(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::NotLoopback(address) => write!(
                f,
                "cannot listen on {address}: the pods of the embedded cluster are processes of its \
                 user, so it listens on loopback addresses only, such as 127.0.0.1:0"
            ),
            Self::Thread(error) => write!(f, "cannot start the embedded cluster: {error}"),
        }
    }
}

impl std::error::Error for DevError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Fault(_) | Self::NotLoopback(_) => None,
            Self::File(_, error) | Self::Listen(_, error) | Self::Thread(error) => Some(error),
        }
    }
}

/// A running embedded cluster. Dropping it stops it too.
#[derive(Debug)]
pub struct Cluster {
    url: String,
    kubeconfig: PathBuf,
    folder: PathBuf,
    running: Option<(RunningServer, Controllers, Option<Node>)>,
}

impl Cluster {
    /// Starts the API server, the controllers and the nodes.
    ///
    /// Pods run in the current folder of this process, so that relative paths in their commands
    /// mean what they mean to the user. They inherit PATH and HOME and nothing else.
    pub fn start(options: Options) -> Result<Self, DevError> {
        let faults = Faults::parse(&options.faults).map_err(DevError::Fault)?;
        if !options.listen.ip().is_loopback() {
            return Err(DevError::NotLoopback(options.listen));
        }
        let listener = TcpListener::bind(options.listen)
            .map_err(|error| DevError::Listen(options.listen, error))?;
        let folder = private_folder(options.folder.as_deref(), &listener)?;
        Self::start_in(&folder, listener, options, faults).inspect_err(|_| {
            // A cluster that failed to start leaves nothing behind. The first error is the one to
            // report.
            let _ = fs::remove_dir_all(&folder);
        })
    }

    fn start_in(
        folder: &Path,
        listener: TcpListener,
        options: Options,
        faults: Faults,
    ) -> Result<Self, DevError> {
        let kubeconfig = options.kubeconfig.clone().unwrap_or_else(|| folder.join("kubeconfig"));
        let clock = Clock::start();
        let issued = certificate::issue(options.listen.ip(), clock.wall(clock.now()))
            .map_err(|what| DevError::Thread(io::Error::other(what)))?;
        let mut api = Api::new(
            clock,
            faults.clone(),
            options.seed,
            folder.join("logs"),
            issued.authority.clone(),
        );
        configure(&mut api, &listener, &kubeconfig, &options)?;
        let api = Arc::new(api);
        let admin_token = api.admin_token.clone();
        let settings = node::Settings {
            simulate: options.simulate,
            nodes: options.nodes,
            start_delay: options.start_delay,
            memory_limits: options.memory_limits,
            seed: options.seed,
            port: listener.local_addr().map_or(0, |address| address.port()),
        };
        {
            let mut state = api.lock();
            state.events.pods_are_simulated = options.simulate;
            state.disabled = options.disabled_admission;
            for namespace in &options.namespaces {
                state.ensure_namespace(namespace);
            }
        }
        // The order matters: dropping the server stops it, but dropping the node does not stop the
        // node.
        let server =
            server::start(listener, issued.settings, &certificate::NAMES, Arc::clone(&api))
                .map_err(DevError::Thread)?;
        let controllers = Controllers::start(Arc::clone(&api), folder.join("volumes"))
            .map_err(DevError::Thread)?;
        let node = match options.nodes {
            0 => None,
            _ => Some(Node::start(Arc::clone(&api), settings).map_err(DevError::Thread)?),
        };
        let cluster = Self {
            url: api.url.clone(),
            kubeconfig,
            folder: folder.to_owned(),
            running: Some((server, controllers, node)),
        };
        let refuse = fault_endpoint::apply(&api, faults).map_err(DevError::Fault)?;
        let access = Access {
            url: cluster.url(),
            authority: &issued.authority,
            namespace: "default",
            token: admin_token.as_deref(),
        };
        kubeconfig::write(&cluster.kubeconfig, &access)
            .map_err(|error| DevError::File(cluster.kubeconfig.clone(), error))?;
        cluster.refuse(refuse);
        Ok(cluster)
    }

    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// `https://127.0.0.1:PORT`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops all pods' processes (SIGTERM, a grace period, SIGKILL), then the server, and removes
    /// the private folder.
    pub fn stop(mut self) {
        self.end();
    }

    fn refuse(&self, ms: Option<u64>) {
        if let Some((server, ..)) = &self.running {
            server.refuse(ms);
        }
    }

    fn end(&mut self) {
        let Some((server, controllers, node)) = self.running.take() else { return };
        controllers.stop();
        if let Some(node) = node {
            node.stop();
        }
        drop(server);
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            log::warn!("cannot remove the cluster's folder {}: {error}", self.folder.display());
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sets the API server's URL, kubeconfig, runner and administrator token.
fn configure(
    api: &mut Api,
    listener: &TcpListener,
    kubeconfig: &Path,
    options: &Options,
) -> Result<(), DevError> {
    kubeconfig.clone_into(&mut api.kubeconfig);
    if let Ok(address) = listener.local_addr() {
        api.url = format!("https://{address}");
    }
    if let Some(runner) = &options.runner {
        api.runner.clone_from(runner);
    }
    if !options.insecure_no_auth {
        let random = |error| DevError::File("/dev/urandom".into(), error);
        api.admin_token = Some(tokens::new_secret().map_err(random)?);
    }
    if options.rbac {
        let mut state = api.lock();
        state.has_roles = true;
        authz::create_default_roles(&mut state);
    }
    Ok(())
}

/// Creates the private folder: it must be new, and only this user may read it.
fn private_folder(place: Option<&Path>, listener: &TcpListener) -> Result<PathBuf, DevError> {
    const TRIES_MAX: u32 = 16;
    let place = place.map_or_else(std::env::temp_dir, Path::to_owned);
    let port = listener.local_addr().map_or(0, |address| address.port());
    let mut rng = Rng::new(u64::from(std::process::id()) << 16 | u64::from(port));
    let mut last = place.clone();
    let mut error = io::Error::other("no free name");
    for _ in 0..TRIES_MAX {
        last = place.join(format!("posse-dev-{:08x}", rng.next_u64() & 0xFFFF_FFFF));
        match fs::DirBuilder::new().mode(0o700).create(&last) {
            Ok(()) => return Ok(last),
            Err(failed) if failed.kind() == io::ErrorKind::AlreadyExists => error = failed,
            Err(failed) => return Err(DevError::File(last, failed)),
        }
    }
    Err(DevError::File(last, error))
}
