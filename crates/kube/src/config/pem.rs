//! Certificates and private keys in PEM.

use std::fmt;
use std::path::Path;

use rustls::InconsistentKeys;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{ConfigError, read_file};

/// A certificate chain and its private key, both PEM.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct CertPair {
    pub(crate) chain: Vec<u8>,
    pub(crate) key: Vec<u8>,
}

impl fmt::Debug for CertPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[certificate and key]")
    }
}

/// The certificate chain and the key of a client. Only the server judges the certificate: one that our verifier cannot
/// read, such as an X.509 v1 certificate of plain `openssl x509 -req`, is sent as it is if the key is its own.
/// `locations` names both in an error.
pub(crate) fn client_identity(
    pair: &CertPair,
    locations: (String, String),
) -> Result<CertifiedKey, ConfigError> {
    let certified = certified_key(pair, &locations)?;
    match certified.keys_match() {
        Err(rustls::Error::InvalidCertificate(_)) if has_its_key(&certified) => Ok(certified),
        matched => checked(certified, matched, locations),
    }
}

/// Reads a server's certificate chain and private key from two PEM files.
///
/// # Errors
/// A file cannot be read or used, or the key does not belong to the certificate.
pub fn server_identity(chain: &Path, key: &Path) -> Result<CertifiedKey, ConfigError> {
    let read = |path: &Path| {
        read_file(path)
            .map_err(|e| ConfigError::File { file: path.to_owned(), problem: e.to_string() })
    };
    let pair = CertPair { chain: read(chain)?, key: read(key)? };
    let locations = (chain.display().to_string(), key.display().to_string());
    let certified = certified_key(&pair, &locations)?;
    let matched = certified.keys_match();
    checked(certified, matched, locations)
}

fn certified_key(
    pair: &CertPair,
    locations: &(String, String),
) -> Result<CertifiedKey, ConfigError> {
    let chain = parse_certs(&pair.chain, &locations.0)?;
    let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|_| {
        // The parser's message may contain bytes of the key.
        ConfigError::field(&locations.1, "no PEM private key (PKCS#8, PKCS#1 or SEC1) in it")
    })?;
    let is_p521 = key.secret_der().windows(P521.len()).any(|part| part == P521);
    let key = rustls::crypto::ring::default_provider().key_provider.load_private_key(key);
    let key = key.map_err(|error| {
        let problem = match is_p521 {
            true => "a P-521 key, which posse cannot use: take a certificate with a P-256, P-384, RSA or \
                     Ed25519 key, or a token"
                .to_owned(),
            false => error.to_string(),
        };
        ConfigError::field(&locations.1, problem)
    })?;
    Ok(CertifiedKey::new(chain, key))
}

/// The object identifier of the curve P-521 (RFC 5480, secp521r1).
const P521: [u8; 7] = [6, 5, 0x2b, 0x81, 4, 0, 0x23];

/// True if the certificate contains the public key, byte for byte as each X.509 certificate has it.
fn has_its_key(certified: &CertifiedKey) -> bool {
    let (Some(cert), Some(key)) = (certified.cert.first(), certified.key.public_key()) else {
        return false;
    };
    cert.windows(key.len()).any(|part| part == &*key)
}

fn checked(
    certified: CertifiedKey,
    matched: Result<(), rustls::Error>,
    (chain, key): (String, String),
) -> Result<CertifiedKey, ConfigError> {
    match matched {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certified),
        Err(error @ rustls::Error::InvalidCertificate(_)) => {
            // rustls has no variant for X.509 v1 certificates, which plain `openssl x509 -req` creates.
            let is_old = format!("{error:?}").contains("UnsupportedCertVersion");
            let remedy =
                if is_old { "; make it an X.509 v3 certificate (openssl: -extfile)" } else { "" };
            Err(ConfigError::field(chain, format!("{error}{remedy}")))
        }
        Err(error) => Err(ConfigError::field(key, error.to_string())),
    }
}

pub(crate) fn parse_certs(
    pem: &[u8],
    location: &str,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certs {
        Ok(certs) if certs.is_empty() => {
            Err(ConfigError::field(location, "no PEM certificate in it"))
        }
        Ok(certs) => Ok(certs),
        Err(_) => Err(ConfigError::field(location, "not valid PEM")),
    }
}
