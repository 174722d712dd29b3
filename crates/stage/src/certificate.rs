//! The server's TLS certificate. It is read again regularly, so that a renewed certificate is used
//! without a restart.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

use posse_base::sync::lock;
use posse_kube::config::ConfigError;
use posse_kube::config::pem::server_identity;

/// A certificate chain and its key, each in a PEM file.
#[derive(Debug)]
pub(super) struct ServerCertificate {
    cert: PathBuf,
    key: PathBuf,
    current: Mutex<Arc<CertifiedKey>>,
}

impl ServerCertificate {
    /// Reads the files.
    ///
    /// # Errors
    /// The files do not hold a valid certificate and its key.
    pub(super) fn read(cert: PathBuf, key: PathBuf) -> Result<Arc<Self>, ConfigError> {
        let current = Mutex::new(Arc::new(server_identity(&cert, &key)?));
        Ok(Arc::new(Self { cert, key, current }))
    }

    /// Reads the files again. Invalid files, for example during a renewal, change nothing.
    pub(super) fn refresh(&self) {
        match server_identity(&self.cert, &self.key) {
            Ok(renewed) => *lock(&self.current) = renewed.into(),
            Err(error) => {
                log::warn!("cannot read the certificate again, keeping the present one: {error}")
            }
        }
    }

    /// The rustls configuration of a server with this certificate.
    pub(super) fn tls_config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(self));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

impl ResolvesServerCert for ServerCertificate {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&lock(&self.current)))
    }
}
