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
use webpki::{
    EndEntityCert, ExtendedKeyUsageValidator, KeyPurposeId, KeyPurposeIdIter, KeyUsage,
    RequiredEkuNotFoundContext,
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
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
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
        let roots = Arc::new(store);
        let by_authority =
            WebPkiServerVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
                .build()
                .map_err(|error| ConfigError::field(location, error.to_string()))?;
        Ok(Self { by_authority, authorities, roots, provider })
    }

    /// True if nothing but the missing signature of an authority was wrong: the dates are checked before.
    fn lacks_authority(error: &rustls::Error) -> bool {
        let rustls::Error::InvalidCertificate(problem) = error else { return false };
        *problem == CertificateError::UnknownIssuer || is_authority_as_server(problem)
    }

    /// Verifies once more what had the wrong purpose, as far as rustls got: it knows no "any purpose".
    fn verify_any_purpose(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        of_purpose: rustls::Error,
    ) -> Result<(), rustls::Error> {
        let algorithms = self.provider.signature_verification_algorithms.all;
        let roots = &self.roots.roots;
        let verified = EndEntityCert::try_from(end_entity).and_then(|certificate| {
            let usage = ServerOrAny;
            certificate
                .verify_for_usage(algorithms, roots, intermediates, now, usage, None, None)
                .map(drop)
        });
        verified.map_err(|error| match error == webpki::Error::UnknownIssuer {
            true => CertificateError::UnknownIssuer.into(),
            false => of_purpose,
        })
    }
}

/// The purpose of a certificate of a server: that one, any, or none said (RFC 5280, section 4.2.1.12).
struct ServerOrAny;

impl ServerOrAny {
    /// `id-kp-serverAuth` and `anyExtendedKeyUsage`, in DER.
    const SERVER: KeyPurposeId<'static> = KeyPurposeId::new(&[0x2b, 6, 1, 5, 5, 7, 3, 1]);
    const ANY: KeyPurposeId<'static> = KeyPurposeId::new(&[0x55, 0x1d, 0x25, 0]);
}

impl ExtendedKeyUsageValidator for ServerOrAny {
    fn validate(&self, purposes: KeyPurposeIdIter<'_, '_>) -> Result<(), webpki::Error> {
        let mut present = Vec::new();
        for purpose in purposes {
            let purpose = purpose?;
            if purpose == Self::SERVER || purpose == Self::ANY {
                return Ok(());
            }
            present.push(purpose.to_decoded_oid());
        }
        if present.is_empty() {
            return Ok(());
        }
        let context = RequiredEkuNotFoundContext { required: KeyUsage::server_auth(), present };
        Err(webpki::Error::RequiredEkuNotFoundContext(context))
    }
}

/// True if only the purpose of a certificate was wrong.
fn is_of_purpose(error: &rustls::Error) -> bool {
    use CertificateError::{InvalidPurpose, InvalidPurposeContext};
    let rustls::Error::InvalidCertificate(problem) = error else { return false };
    matches!(problem, InvalidPurpose | InvalidPurposeContext { .. })
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
        let verified = match verified {
            Err(error) if is_of_purpose(&error) => self
                .verify_any_purpose(end_entity, intermediates, now, error)
                .and_then(|()| {
                    verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)
                })
                .map(|()| ServerCertVerified::assertion()),
            verified => verified,
        };
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
