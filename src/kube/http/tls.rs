//! Owns the TLS settings: which bytes they are made from, and every check that they are usable.
//! Opens no connection.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::kube::config::pem::{CertPair, pair_mistake, parse_certs, parse_pair};
use crate::kube::config::{Cluster, ConfigError, Trust};

/// The bytes that the settings were made from: when they change, so must the connections.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Material {
    roots: Option<Vec<u8>>,
    client: Option<CertPair>,
}

impl fmt::Debug for Material {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_bytes = self.roots.as_ref().map(Vec::len);
        f.debug_struct("Material").field("roots", &n_bytes).field("client", &self.client).finish()
    }
}

impl Material {
    /// Reads what the files hold now; `given` stands before the configuration's own certificate.
    pub(super) fn read(cluster: &Cluster, given: Option<&CertPair>) -> Result<Self, ConfigError> {
        let roots = match &cluster.trust {
            Trust::Anything => None,
            Trust::Roots(blob) => Some(blob.read()?),
        };
        let client = match (given, &cluster.identity.client_cert) {
            (Some(pair), _) => Some(pair.clone()),
            (None, Some(cert)) => {
                Some(CertPair { chain: cert.chain.read()?, key: cert.key.read()? })
            }
            (None, None) => None,
        };
        Ok(Self { roots, client })
    }

    /// The settings for connections, all of it checked: nothing can fail on it later.
    pub(super) fn settings(&self, cluster: &Cluster) -> Result<Arc<ClientConfig>, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|e| ConfigError::field("TLS", e.to_string()))?;
        let builder = match &self.roots {
            Some(pem) => builder.with_root_certificates(self::roots(pem, &cluster.trust)?),
            None => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            }
        };
        let settings = match &self.client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let (chain, key) = parse_pair(pair, &places(cluster))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|e| pair_mistake(places(cluster), &e))?
            }
        };
        Ok(Arc::new(settings))
    }
}

/// Where the client certificate and its key come from.
fn places(cluster: &Cluster) -> (String, String) {
    cluster.identity.client_cert.as_ref().map_or_else(
        || ("client certificate".to_owned(), "client key".to_owned()),
        |cert| (cert.chain.place(), cert.key.place()),
    )
}

fn roots(pem: &[u8], trust: &Trust) -> Result<RootCertStore, ConfigError> {
    let place = match trust {
        Trust::Anything => String::new(),
        Trust::Roots(blob) => blob.place(),
    };
    let certs = parse_certs(pem, &place)?;
    let mut store = RootCertStore::empty();
    let (n_added, n_ignored) = store.add_parsable_certificates(certs);
    if n_added == 0 {
        return Err(ConfigError::field(
            place,
            format!("none of its {n_ignored} certificates is a usable authority"),
        ));
    }
    if n_ignored > 0 {
        log::debug!("{place}: {n_ignored} of its certificates are not usable");
    }
    Ok(store)
}

/// Believes every server: `insecure-skip-tls-verify`.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
