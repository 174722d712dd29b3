//! The TLS settings of the client, made from a cluster's configuration. All checks happen here, so
//! that no connection fails on an unusable certificate later.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::SingleCertAndKey;
use rustls::version::{TLS12, TLS13};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::config::pem::{CertPair, client_identity, parse_certs};
use crate::config::{Cluster, ConfigError, Trust};

/// The certificates and keys that the TLS settings are made from. If these bytes change, new
/// connections need new settings.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct TlsMaterial {
    roots: Option<Vec<u8>>,
    client: Option<CertPair>,
}

impl fmt::Debug for TlsMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_bytes = self.roots.as_ref().map(Vec::len);
        f.debug_struct("TlsMaterial")
            .field("roots", &n_bytes)
            .field("client", &self.client)
            .finish()
    }
}

impl TlsMaterial {
    /// Reads the files. `plugin_cert` takes precedence over the client certificate of the
    /// configuration.
    pub(super) fn read(
        cluster: &Cluster,
        plugin_cert: Option<&CertPair>,
    ) -> Result<Self, ConfigError> {
        let roots = match &cluster.trust {
            Trust::Anything => None,
            Trust::Roots(blob) => Some(blob.read()?),
        };
        let client = match (plugin_cert, &cluster.identity.client_cert) {
            (Some(pair), _) => Some(pair.clone()),
            (None, Some(cert)) => {
                Some(CertPair { chain: cert.chain.read()?, key: cert.key.read()? })
            }
            (None, None) => None,
        };
        Ok(Self { roots, client })
    }

    /// The rustls settings.
    ///
    /// # Errors
    /// A certificate or key cannot be used.
    pub(super) fn tls_config(&self, cluster: &Cluster) -> Result<Arc<ClientConfig>, ConfigError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(|e| ConfigError::field("TLS", e.to_string()))?;
        let builder = match &self.roots {
            Some(pem) => {
                let verifier = KnownServer::new(pem, &cluster.trust, provider)?;
                builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier))
            }
            None => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider)))
            }
        };
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let certified = client_identity(pair, locations(cluster))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        Ok(Arc::new(config))
    }
}

/// The configuration fields of the client certificate and its key, for messages.
fn locations(cluster: &Cluster) -> (String, String) {
    cluster.identity.client_cert.as_ref().map_or_else(
        || ("client certificate".to_owned(), "client key".to_owned()),
        |cert| (cert.chain.location(), cert.key.location()),
    )
}

/// Accepts a server certificate that one of the authorities has signed, or that is one of them: a kubeconfig may have the
/// server's own certificate, and Go accepts it so.
#[derive(Debug)]
struct KnownServer {
    by_authority: Arc<WebPkiServerVerifier>,
    authorities: Vec<CertificateDer<'static>>,
}

impl KnownServer {
    fn new(pem: &[u8], trust: &Trust, provider: Arc<CryptoProvider>) -> Result<Self, ConfigError> {
        let location = match trust {
            Trust::Anything => String::new(),
            Trust::Roots(blob) => blob.location(),
        };
        let authorities = parse_certs(pem, &location)?;
        let mut store = RootCertStore::empty();
        let (n_added, n_ignored) = store.add_parsable_certificates(authorities.iter().cloned());
        if n_added == 0 {
            return Err(ConfigError::field(
                location,
                format!("none of its {n_ignored} certificates is a usable authority"),
            ));
        }
        if n_ignored > 0 {
            log::debug!("{location}: {n_ignored} of its certificates cannot be used");
        }
        let by_authority = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider)
            .build()
            .map_err(|error| ConfigError::field(location, error.to_string()))?;
        Ok(Self { by_authority, authorities })
    }

    /// True if nothing but the missing signature of an authority was wrong: the dates are checked before.
    fn lacks_authority(error: &rustls::Error) -> bool {
        let rustls::Error::InvalidCertificate(problem) = error else { return false };
        *problem == CertificateError::UnknownIssuer || is_authority_as_server(problem)
    }
}

/// True if the server presents the certificate of an authority as its own. rustls has no variant for it.
pub(super) fn is_authority_as_server(problem: &CertificateError) -> bool {
    format!("{problem:?}").contains("CaUsedAsEndEntity")
}

impl ServerCertVerifier for KnownServer {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.by_authority.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        );
        let is_known = self.authorities.iter().any(|known| known == end_entity);
        match verified {
            Err(error) if is_known && Self::lacks_authority(&error) => {
                let certificate = ParsedCertificate::try_from(end_entity)?;
                verify_server_name(&certificate, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Accepts every server certificate: `insecure-skip-tls-verify`.
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
