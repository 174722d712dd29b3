//! A certificate authority for tests: the repository contains no keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
pub use rcgen::ExtendedKeyUsagePurpose;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, RootCertStore, ServerConfig,
    SignatureScheme, SupportedProtocolVersion,
};

/// Counts the authorities of all tests.
static N_MADE: AtomicUsize = AtomicUsize::new(0);

/// A certificate authority.
pub struct Authority {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Distinct names, so that a certificate of the wrong authority gives UnknownIssuer.
        let name = format!("authority {}", N_MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for these names or addresses. Returns it and its key, both PEM.
    pub fn issue(&self, names: &[&str]) -> (String, String) {
        self.sign(&params(names))
    }

    /// As `issue`, for these purposes.
    pub fn issue_for(
        &self,
        names: &[&str],
        purposes: &[ExtendedKeyUsagePurpose],
    ) -> (String, String) {
        let mut params = params(names);
        params.extended_key_usages = purposes.to_vec();
        self.sign(&params)
    }

    /// Its own certificate and key, both PEM, for a server that shows the certificate of an authority.
    pub fn own(names: &[&str]) -> (String, String) {
        let mut params = params(names);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    /// As `issue`, with a certificate that has been valid until a second ago.
    pub fn issue_expired(&self, names: &[&str]) -> (String, String) {
        let mut params = params(names);
        params.not_after = date_time_ymd(2020, 1, 1);
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }

    /// The TLS settings of a server. With `clients` it requires a client certificate of this
    /// authority.
    pub fn server(
        &self,
        names: &[&str],
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<&Self>,
    ) -> Arc<ServerConfig> {
        let verifier = clients.map(Self::verifier);
        server_of(&self.issue(names), versions, verifier)
    }

    /// Takes client certificates of this authority.
    fn verifier(&self) -> Arc<dyn ClientCertVerifier> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&self.pem));
        WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap()
    }
}

fn roots(pem: &str) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    roots
}

/// The TLS settings of a client that trusts this authority.
pub fn trusting(pem: &str) -> Arc<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    Arc::new(builder.with_root_certificates(roots(pem)).with_no_client_auth())
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    CertificateParams::new(names).unwrap()
}

/// The TLS settings of a server with this certificate and key. It wants a client certificate and takes any: as in
/// kube-apiserver, somebody else judges it.
pub fn server_with(
    pair: &(String, String),
    versions: &[&'static SupportedProtocolVersion],
    wants_clients: bool,
) -> Arc<ServerConfig> {
    let verifier = wants_clients.then(|| Arc::new(AnyClient) as Arc<dyn ClientCertVerifier>);
    server_of(pair, versions, verifier)
}

fn server_of(
    (chain, key): &(String, String),
    versions: &[&'static SupportedProtocolVersion],
    clients: Option<Arc<dyn ClientCertVerifier>>,
) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier),
    };
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    Arc::new(builder.with_single_cert(chain, key).unwrap())
}

/// Takes every client certificate, but wants one.
#[derive(Debug)]
struct AnyClient;

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
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
        let provider = rustls::crypto::ring::default_provider();
        provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The certificate without version and extensions: X.509 v1, as plain `openssl x509 -req` makes it. Its signature is no
/// longer right, and no client looks at that of its own certificate.
pub fn as_version_1(pem: &str) -> String {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
    let (certificate, _) = element(&der);
    let (to_be_signed, rest) = element(content(certificate));
    let mut fields = Vec::new();
    let mut left = content(to_be_signed);
    while !left.is_empty() {
        let (field, after) = element(left);
        // [0] is the version, [3] the extensions (RFC 5280, 4.1).
        if !matches!(field[0], 0xa0 | 0xa3) {
            fields.extend_from_slice(field);
        }
        left = after;
    }
    let der = sequence(&[sequence(&fields), rest.to_vec()].concat());
    let text = BASE64_STANDARD.encode(der);
    format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n")
}

/// The first element of DER, and what follows it.
fn element(der: &[u8]) -> (&[u8], &[u8]) {
    let (head, length) = measure(der);
    der.split_at(head + length)
}

fn content(element: &[u8]) -> &[u8] {
    &element[measure(element).0..]
}

/// The bytes of an element's tag and length, and of its content.
fn measure(der: &[u8]) -> (usize, usize) {
    match der[1] {
        short @ 0..0x80 => (2, usize::from(short)),
        long => {
            let n = usize::from(long & 0x7f);
            (2 + n, der[2..2 + n].iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
        }
    }
}

fn sequence(content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = match (u8::try_from(length), u16::try_from(length).unwrap().to_be_bytes()) {
        (Ok(short @ ..0x80), _) => vec![0x30, short],
        (Ok(byte), _) => vec![0x30, 0x81, byte],
        (Err(_), [high, low]) => vec![0x30, 0x82, high, low],
    };
    [&head, content].concat()
}
