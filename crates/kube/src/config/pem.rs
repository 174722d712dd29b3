//! Certificates and private keys in PEM.

use std::fmt;
use std::path::Path;

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

/// Checks that a certificate chain and its key can be used. `locations` names both in the error.
pub(crate) fn check_pair(pair: &CertPair, locations: (&str, &str)) -> Result<(), ConfigError> {
    certified_key(pair, (locations.0.to_owned(), locations.1.to_owned())).map(drop)
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
    certified_key(&pair, (chain.display().to_string(), key.display().to_string()))
}

fn certified_key(
    pair: &CertPair,
    locations: (String, String),
) -> Result<CertifiedKey, ConfigError> {
    let (chain, key) = parse_pair(pair, &locations)?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map_err(|e| pair_error(locations, &e))
}

/// The error with the field that is wrong and, if known, the remedy.
pub(crate) fn pair_error((chain, key): (String, String), error: &rustls::Error) -> ConfigError {
    let rustls::Error::InvalidCertificate(problem) = error else {
        return ConfigError::field(key, error.to_string());
    };
    // rustls has no variant for X.509 v1 certificates, which plain `openssl x509 -req` creates.
    let is_old = format!("{problem:?}").contains("UnsupportedCertVersion");
    let remedy = if is_old { "; make it an X.509 v3 certificate (openssl: -extfile)" } else { "" };
    ConfigError::field(chain, format!("{error}{remedy}"))
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) fn parse_pair(
    pair: &CertPair,
    locations: &(String, String),
) -> Result<Pair, ConfigError> {
    let chain = parse_certs(&pair.chain, &locations.0)?;
    let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|_| {
        // The parser's message may contain bytes of the key.
        ConfigError::field(&locations.1, "no PEM private key (PKCS#8, PKCS#1 or SEC1) in it")
    })?;
    Ok((chain, key))
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
