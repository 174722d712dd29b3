//! The certificates of the embedded cluster: a new authority and a new server certificate at each
//! start. Their keys stay in memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::version::{TLS12, TLS13};

use crate::time;

/// The DNS names of the API server.
pub(crate) const NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];
const AUTHORITY: &str = "posse-dev";
const SERVER: &str = "posse-dev-apiserver";
/// For clients whose clock is behind.
const VALID_BEFORE: Duration = Duration::from_secs(24 * 3600);
/// Longer than any embedded cluster runs.
const VALID_AFTER: Duration = Duration::from_secs(365 * 24 * 3600);

// The tags and object identifiers of ITU-T X.690 and RFC 5280 that are used here.
const BIT_STRING: u8 = 0x03;
const BOOLEAN_TRUE: [u8; 3] = [0x01, 0x01, 0xFF];
const EXPLICIT_0: u8 = 0xA0;
const EXPLICIT_3: u8 = 0xA3;
const IMPLICIT_0: u8 = 0x80;
const INTEGER: u8 = 0x02;
const OBJECT: u8 = 0x06;
const OCTETS: u8 = 0x04;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTC_TIME: u8 = 0x17;
const UTF8: u8 = 0x0C;
const ALTERNATIVE_DNS: u8 = 0x82;
const ALTERNATIVE_IP: u8 = 0x87;
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1D, 0x23];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1D, 0x13];
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1D, 0x25];
const KEY_USAGE: &[u8] = &[0x55, 0x1D, 0x0F];
const SUBJECT_ALTERNATIVES: &[u8] = &[0x55, 0x1D, 0x11];
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1D, 0x0E];
const SERVER_AUTH: &[u8] = &[0x2B, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
const ECDSA_SHA256: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x04, 0x03, 0x02];
const EC_PUBLIC_KEY: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01];
const P256: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07];
/// The key usage `digitalSignature`, and for the authority `keyCertSign` too. The first byte is the
/// number of unused bits.
const MAY_SIGN: [u8; 2] = [7, 0x80];
const MAY_CERTIFY: [u8; 2] = [2, 0x84];

/// The server's TLS settings and the authority that its clients trust.
#[derive(Clone, Debug)]
pub(crate) struct Issued {
    /// The authority's certificate, PEM.
    pub(crate) authority: String,
    pub(crate) settings: Arc<ServerConfig>,
}

/// Creates an authority, and a certificate for a server at `ip` and on loopback. Fails only if the
/// system has no randomness.
pub(crate) fn issue(ip: IpAddr, now: SystemTime) -> Result<Issued, String> {
    let random = SystemRandom::new();
    let failed = |what: &dyn std::fmt::Display| format!("no certificate: {what}");
    let key_pair = || -> Result<(Vec<u8>, EcdsaKeyPair), String> {
        let algorithm = &ECDSA_P256_SHA256_ASN1_SIGNING;
        let bytes = EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(|e| failed(&e))?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, bytes.as_ref(), &random);
        Ok((bytes.as_ref().to_vec(), pair.map_err(|e| failed(&e))?))
    };
    let (_, authority) = key_pair()?;
    let (server_key, server) = key_pair()?;
    let sign = |subject: &str, key: &EcdsaKeyPair, extensions: &[u8]| {
        let mut serial = [1; 9];
        random.fill(&mut serial[1..]).map_err(|e| failed(&e))?;
        let body = to_be_signed(&serial, subject, key, extensions, now);
        let signature = authority.sign(&random, &body).map_err(|e| failed(&e))?;
        let signature = der(BIT_STRING, &[&[0], signature.as_ref()]);
        Ok::<Vec<u8>, String>(der(SEQUENCE, &[&body, &algorithm(&[ECDSA_SHA256]), &signature]))
    };
    let root = sign(AUTHORITY, &authority, &authority_extensions(&authority))?;
    let leaf = sign(SERVER, &server, &server_extensions(&authority, ip))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut settings = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|e| failed(&e))?
        .with_no_client_auth()
        .with_single_cert(
            vec![CertificateDer::from(leaf)],
            PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(server_key)),
        )
        .map_err(|e| failed(&e))?;
    settings.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Issued { authority: pem(&root), settings: Arc::new(settings) })
}

fn to_be_signed(
    serial: &[u8],
    subject: &str,
    key: &EcdsaKeyPair,
    extensions: &[u8],
    now: SystemTime,
) -> Vec<u8> {
    let validity = [now - VALID_BEFORE, now + VALID_AFTER].map(utc_time).concat();
    let public = der(BIT_STRING, &[&[0], key.public_key().as_ref()]);
    let parts = [
        der(EXPLICIT_0, &[&der(INTEGER, &[&[2]])]),
        der(INTEGER, &[serial]),
        algorithm(&[ECDSA_SHA256]),
        name(AUTHORITY),
        der(SEQUENCE, &[&validity]),
        name(subject),
        der(SEQUENCE, &[&algorithm(&[EC_PUBLIC_KEY, P256]), &public]),
        der(EXPLICIT_3, &[&der(SEQUENCE, &[extensions])]),
    ];
    der(SEQUENCE, &[&parts.concat()])
}

fn authority_extensions(authority: &EcdsaKeyPair) -> Vec<u8> {
    [
        extension(BASIC_CONSTRAINTS, true, &der(SEQUENCE, &[&BOOLEAN_TRUE])),
        extension(KEY_USAGE, true, &der(BIT_STRING, &[&MAY_CERTIFY])),
        extension(SUBJECT_KEY_ID, false, &der(OCTETS, &[&key_id(authority)])),
    ]
    .concat()
}

fn server_extensions(authority: &EcdsaKeyPair, ip: IpAddr) -> Vec<u8> {
    let mut names: Vec<u8> =
        NAMES.iter().flat_map(|name| der(ALTERNATIVE_DNS, &[name.as_bytes()])).collect();
    for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST), ip] {
        let bytes = match ip {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        names.extend(der(ALTERNATIVE_IP, &[&bytes]));
    }
    let purpose = der(SEQUENCE, &[&der(OBJECT, &[SERVER_AUTH])]);
    let issuer = der(SEQUENCE, &[&der(IMPLICIT_0, &[&key_id(authority)])]);
    [
        extension(BASIC_CONSTRAINTS, true, &der(SEQUENCE, &[])),
        extension(KEY_USAGE, true, &der(BIT_STRING, &[&MAY_SIGN])),
        extension(EXTENDED_KEY_USAGE, false, &purpose),
        extension(AUTHORITY_KEY_ID, false, &issuer),
        extension(SUBJECT_ALTERNATIVES, false, &der(SEQUENCE, &[&names])),
    ]
    .concat()
}

fn extension(id: &[u8], is_critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if is_critical { &BOOLEAN_TRUE } else { &[] };
    der(SEQUENCE, &[&der(OBJECT, &[id]), critical, &der(OCTETS, &[value])])
}

fn algorithm(ids: &[&[u8]]) -> Vec<u8> {
    let ids: Vec<u8> = ids.iter().flat_map(|id| der(OBJECT, &[id])).collect();
    der(SEQUENCE, &[&ids])
}

fn name(common: &str) -> Vec<u8> {
    let pair = [der(OBJECT, &[COMMON_NAME]), der(UTF8, &[common.as_bytes()])].concat();
    der(SEQUENCE, &[&der(SET, &[&der(SEQUENCE, &[&pair])])])
}

/// The key identifier of RFC 5280, section 4.2.1.2: 20 bytes of the public key's hash.
fn key_id(key: &EcdsaKeyPair) -> Vec<u8> {
    digest(&SHA256, key.public_key().as_ref()).as_ref().iter().take(20).copied().collect()
}

/// The ASN.1 UTCTime `YYMMDDhhmmssZ`: RFC 3339 without the century and the separators.
fn utc_time(at: SystemTime) -> Vec<u8> {
    let digits = time::text(at).bytes().filter(u8::is_ascii_digit).skip(2).collect::<Vec<u8>>();
    der(UTC_TIME, &[&digits, b"Z"])
}

/// A DER value: tag, length, content. No content here is longer than 64 KiB.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let [.., high, low] = content.len().to_be_bytes();
    let mut out = vec![tag];
    match (high, low) {
        (0, 0..=0x7F) => out.push(low),
        (0, _) => out.extend([0x81, low]),
        _ => out.extend([0x82, high, low]),
    }
    out.extend(content);
    out
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = "-----BEGIN CERTIFICATE-----\n".to_owned();
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}
