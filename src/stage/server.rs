//! Owns the life of a stage server: opens what it needs, serves, stops. Reads no arguments.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ring::rand::SystemRandom;

pub use crate::stage::admission::Admission;
pub use crate::stage::store::Quotas;

use crate::core::policy::bundle_expiry::BundleTimeouts;
use crate::kube::config::ConfigError;
use crate::kube::http::Http;
use crate::serve::{Limits, Listen, Plain, Server};
use crate::stage::api::Api;
use crate::stage::identity::Identity;
use crate::stage::store::{OpenError, Store};
use crate::stage::sweep::Sweeper;

/// Clients at once; each takes some 200 KiB.
const CONNECTIONS_MAX: usize = 128;

/// What a client may say beside a bundle.
const OTHER_BYTES_MAX: usize = 4 << 10;

/// Between two blocks of a bundle.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What a server is to be.
#[derive(Debug)]
pub struct Options {
    pub listen: SocketAddr,
    pub dir: PathBuf,
    /// The certificate's chain and its key, PEM; none: plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub admission: Admission,
    pub quotas: Quotas,
    pub patience: BundleTimeouts,
    /// Where pods are looked for; none: bundles go by their use alone.
    pub pods: Option<Http>,
}

/// A running server; dropped, it stops.
#[derive(Debug)]
pub struct Stage {
    server: Server,
    // After the server: nobody comes any more.
    _sweeper: Sweeper,
}

impl Stage {
    /// Opens the store and serves it on threads of its own.
    ///
    /// # Errors
    /// The folder, the certificate or the address will not do, or the system gives no thread.
    pub fn start(options: Options) -> Result<Self, StageError> {
        let identity = options.tls.map(|(cert, key)| Identity::read(cert, key)).transpose()?;
        let store = Arc::new(Store::open(&options.dir, options.quotas)?);
        let listener = TcpListener::bind(options.listen)
            .map_err(|error| StageError::Listen(options.listen, error))?;
        let listen = match &identity {
            Some(identity) => {
                let settings = identity.settings().map_err(StageError::Tls)?;
                Listen::Tls(listener, settings, Plain::Refused)
            }
            None => Listen::Tcp(listener),
        };
        let limits = Limits {
            connections_max: CONNECTIONS_MAX,
            body_bytes_max: OTHER_BYTES_MAX,
            read_timeout: STALL_TIMEOUT,
            write_timeout: STALL_TIMEOUT,
            ..Limits::default()
        };
        let sweeper =
            Sweeper::start(Arc::clone(&store), options.pods, options.patience, identity.clone())
                .map_err(StageError::Thread)?;
        let api = Api { store, admission: options.admission, random: SystemRandom::new() };
        let server =
            Server::start(listen, limits, "stage", Arc::new(api)).map_err(StageError::Thread)?;
        Ok(Self { server, _sweeper: sweeper })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.server.local_addr()
    }

    /// Cuts what is under way and ends. What has come whole is on the disk.
    pub fn stop(self) {
        self.server.stop();
    }
}

/// Why a server does not start.
#[derive(Debug)]
pub enum StageError {
    Certificate(ConfigError),
    Listen(SocketAddr, io::Error),
    Store(OpenError),
    Thread(io::Error),
    Tls(rustls::Error),
}

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Certificate(error) => error.fmt(f),
            Self::Listen(address, error) => write!(f, "cannot listen at {address}: {error}"),
            Self::Store(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "no thread: {error}"),
            Self::Tls(error) => write!(f, "TLS: {error}"),
        }
    }
}

impl std::error::Error for StageError {}

impl From<ConfigError> for StageError {
    fn from(error: ConfigError) -> Self {
        Self::Certificate(error)
    }
}

impl From<OpenError> for StageError {
    fn from(error: OpenError) -> Self {
        Self::Store(error)
    }
}
