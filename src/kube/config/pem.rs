//! Certificates and private keys in PEM.

use std::fmt;
use std::path::Path;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::{ConfigError, read_file};

/// A certificate chain and its private key, PEM.
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

/// Checks a pair that was not read from the configuration.
pub(crate) fn check_pair(pair: &CertPair, places: (&str, &str)) -> Result<(), ConfigError> {
    certified_key(pair, (places.0.to_owned(), places.1.to_owned())).map(drop)
}

/// What a server proves with who it is: a chain and its key out of two files, PEM.
///
/// # Errors
/// One of them cannot be read or used, or the two do not belong together.
pub fn server_identity(chain: &Path, key: &Path) -> Result<CertifiedKey, ConfigError> {
    let read = |path: &Path| {
        read_file(path)
            .map_err(|e| ConfigError::File { file: path.to_owned(), problem: e.to_string() })
    };
    let pair = CertPair { chain: read(chain)?, key: read(key)? };
    certified_key(&pair, (chain.display().to_string(), key.display().to_string()))
}

fn certified_key(pair: &CertPair, places: (String, String)) -> Result<CertifiedKey, ConfigError> {
    let (chain, key) = parse_pair(pair, &places)?;
    let provider = rustls::crypto::ring::default_provider();
    CertifiedKey::from_der(chain, key, &provider).map_err(|e| pair_mistake(places, &e))
}

/// Which of the two is wrong, and what to do about it.
pub(crate) fn pair_mistake((chain, key): (String, String), error: &rustls::Error) -> ConfigError {
    let rustls::Error::InvalidCertificate(problem) = error else {
        return ConfigError::field(key, error.to_string());
    };
    // The error has no variant of its own for it; plain `openssl x509 -req` makes these.
    let is_old = format!("{problem:?}").contains("UnsupportedCertVersion");
    let remedy = if is_old { "; make it an X.509 v3 certificate (openssl: -extfile)" } else { "" };
    ConfigError::field(chain, format!("{error}{remedy}"))
}

type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

pub(crate) fn parse_pair(pair: &CertPair, places: &(String, String)) -> Result<Pair, ConfigError> {
    let chain = parse_certs(&pair.chain, &places.0)?;
    let key = PrivateKeyDer::from_pem_slice(&pair.key).map_err(|_| {
        // The parser's own words can quote the bytes.
        ConfigError::field(&places.1, "no PEM private key (PKCS#8, PKCS#1 or SEC1) in it")
    })?;
    Ok((chain, key))
}

pub(crate) fn parse_certs(
    pem: &[u8],
    place: &str,
) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let certs: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certs {
        Ok(certs) if certs.is_empty() => Err(ConfigError::field(place, "no PEM certificate in it")),
        Ok(certs) => Ok(certs),
        Err(_) => Err(ConfigError::field(place, "not valid PEM")),
    }
}
