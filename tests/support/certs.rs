//! A certificate authority for each test server, with server and user certificates and token
//! signing keys.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType, SigningKey,
};
use serde_json::{Value, json};

/// Issuer and audience of service account tokens.
pub const ISSUER: &str = "https://kubernetes.default.svc";

/// A certificate and its key, both PEM.
#[derive(Clone, Debug)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

/// A certificate authority.
pub struct Authority {
    pub cert: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name, None);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a P-256 key");
        let cert = params.self_signed(&key).expect("a CA that signs itself");
        Self { cert: cert.pem(), issuer: Issuer::new(params, key) }
    }

    /// A certificate for a server on loopback.
    pub fn server(&self) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = named("kube-apiserver", None);
        params.subject_alt_names = vec![SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST))];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// A user certificate: the common name is the user, the organisation is the group.
    pub fn user(&self, name: &str, group: Option<&str>) -> Pair {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> Pair {
        let key = KeyPair::generate().expect("a P-256 key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate of our own CA");
        Pair { cert: cert.pem(), key: key.serialize_pem() }
    }
}

fn named(common: &str, organisation: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    if let Some(organisation) = organisation {
        name.push(DnType::OrganizationName, organisation);
    }
    name
}

/// Signs service account tokens as the server does, so that a test chooses their expiry.
pub struct TokenSigner {
    key: KeyPair,
}

/// The service account of a token.
pub struct TokenSubject<'a> {
    pub namespace: &'a str,
    pub account: &'a str,
    pub account_uid: &'a str,
}

impl TokenSigner {
    pub fn new() -> Self {
        Self { key: KeyPair::generate().expect("a P-256 key") }
    }

    pub fn public_pem(&self) -> String {
        self.key.public_key_pem()
    }

    pub fn private_pem(&self) -> String {
        self.key.serialize_pem()
    }

    /// A bound token that expires `ttl_s` seconds from now (negative: in the past).
    pub fn token(&self, subject: &TokenSubject<'_>, audience: &str, ttl_s: i64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let now = i64::try_from(now).expect("before the year 292 billion");
        let claims = json!({
            "iss": ISSUER, "aud": [audience],
            "iat": now - 600, "nbf": now - 600, "exp": now + ttl_s,
            "sub": format!("system:serviceaccount:{}:{}", subject.namespace, subject.account),
            "kubernetes.io": {
                "namespace": subject.namespace,
                "serviceaccount": {"name": subject.account, "uid": subject.account_uid},
            },
        });
        self.sign(&json!({"alg": "ES256", "typ": "JWT"}), &claims)
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let body = format!(
            "{}.{}",
            encode(header.to_string().as_bytes()),
            encode(claims.to_string().as_bytes())
        );
        let der = self.key.sign(body.as_bytes()).expect("a signature");
        format!("{body}.{}", encode(&fixed_width(&der)))
    }
}

/// An ECDSA signature as JWTs need it: r and s, 32 bytes each, from the DER sequence of two.
fn fixed_width(der: &[u8]) -> Vec<u8> {
    let mut rest = &der[2..];
    let mut out = Vec::with_capacity(64);
    for _ in 0..2 {
        let len = usize::from(rest[1]);
        let digits: Vec<u8> = rest[2..2 + len].iter().copied().skip_while(|b| *b == 0).collect();
        out.resize(out.len() + 32 - digits.len(), 0);
        out.extend(digits);
        rest = &rest[2 + len..];
    }
    out
}
