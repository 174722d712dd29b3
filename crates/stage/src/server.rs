//! Starts and stops a stage server.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use crate::admission::Admission;
pub use crate::quotas::Quotas;
pub use crate::reviews::Reviews;

use crate::api::Api;
use crate::certificate::ServerCertificate;
use crate::reviews::REVIEWS_MAX;
use crate::store::{OpenError, Store};
use crate::sweep::Sweeper;
use posse_core::policy::bundle_expiry::BundleTimeouts;
use posse_kube::config::ConfigError;
use posse_kube::http::Http;
use posse_serve::{Limits, Listen, Plain, Server};

/// Open connections; each needs about 200 KiB.
const CONNECTIONS_MAX: usize = 128;

/// Connections above that: waiting for the API server to check a token (at most `REVIEWS_MAX`),
/// probes, and requests that are told to try again.
const SPARE_MAX: usize = REVIEWS_MAX + 24;

/// The largest request body other than a bundle.
const OTHER_BYTES_MAX: usize = 4 << 10;

/// The longest pause between two blocks of a bundle.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The configuration of a server.
#[derive(Debug)]
pub struct Options {
    pub listen: SocketAddr,
    pub dir: PathBuf,
    /// PEM files with the certificate chain and its key. `None` serves plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    pub admission: Admission,
    pub quotas: Quotas,
    pub patience: BundleTimeouts,
    /// The API server that lists pods. `None`: bundles are dropped only when they are unused.
    pub pods: Option<Http>,
}

/// A running server. Dropping it cuts all transfers and stops it. Completed bundles are on the disk.
#[derive(Debug)]
pub struct Stage {
    server: Server,
    // Dropped after the server, so that no client is being served then.
    _sweeper: Sweeper,
}

impl Stage {
    /// Opens the store and serves it on its own threads.
    ///
    /// # Errors
    /// The folder, the certificate or the address cannot be used, or a thread cannot be started.
    pub fn start(options: Options) -> Result<Self, StageError> {
        let certificate =
            options.tls.map(|(cert, key)| ServerCertificate::read(cert, key)).transpose()?;
        let store = Arc::new(Store::open(&options.dir, options.quotas)?);
        let listener = TcpListener::bind(options.listen)
            .map_err(|error| StageError::Listen(options.listen, error))?;
        let listen = match &certificate {
            Some(certificate) => {
                let config = certificate.tls_config().map_err(StageError::Tls)?;
                Listen::Tls(listener, config, Plain::Refused)
            }
            None => Listen::Tcp(listener),
        };
        let limits = Limits {
            connections_max: CONNECTIONS_MAX,
            spare_max: SPARE_MAX,
            full_status: 503,
            body_bytes_max: OTHER_BYTES_MAX,
            read_timeout: STALL_TIMEOUT,
            write_timeout: STALL_TIMEOUT,
            ..Limits::default()
        };
        let sweeper =
            Sweeper::start(Arc::clone(&store), options.pods, options.patience, certificate.clone())
                .map_err(StageError::Thread)?;
        let api = Api { store, admission: options.admission };
        let server =
            Server::start(listen, limits, "stage", Arc::new(api)).map_err(StageError::Thread)?;
        Ok(Self { server, _sweeper: sweeper })
    }

    /// The address that it listens on.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.server.local_addr()
    }
}

/// Why a server could not start.
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
            Self::Thread(error) => write!(f, "cannot start a thread: {error}"),
            Self::Tls(error) => write!(f, "cannot set up TLS: {error}"),
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
