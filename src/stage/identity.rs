//! Owns the certificate that the server shows: read from its files, and read again, so that one
//! that is renewed in its place is used without a restart.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::version::{TLS12, TLS13};

use crate::kube::config::ConfigError;
use crate::kube::tls::server_identity;

/// A certificate in two files.
#[derive(Debug)]
pub(super) struct Identity {
    cert: PathBuf,
    key: PathBuf,
    current: Mutex<Arc<CertifiedKey>>,
}

impl Identity {
    /// Reads it.
    ///
    /// # Errors
    /// The files do not hold a usable certificate and its key.
    pub(super) fn read(cert: PathBuf, key: PathBuf) -> Result<Arc<Self>, ConfigError> {
        let current = Mutex::new(Arc::new(server_identity(&cert, &key)?));
        Ok(Arc::new(Self { cert, key, current }))
    }

    /// Reads it again. What cannot be used, such as half of a renewal, changes nothing.
    pub(super) fn refresh(&self) {
        match server_identity(&self.cert, &self.key) {
            Ok(fresh) => {
                *self.current.lock().unwrap_or_else(PoisonError::into_inner) = fresh.into()
            }
            Err(error) => log::warn!("the certificate stays as it was: {error}"),
        }
    }

    /// What a server of it needs.
    ///
    /// # Errors
    /// TLS itself cannot be set up.
    pub(super) fn settings(self: &Arc<Self>) -> Result<Arc<ServerConfig>, rustls::Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut settings = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])?
            .with_no_client_auth()
            .with_cert_resolver(Arc::<Self>::clone(self));
        settings.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Arc::new(settings))
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}
