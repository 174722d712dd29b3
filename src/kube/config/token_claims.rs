//! The claims of a service account token.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::BoundPod;

/// The claims of a service account token that are ours to know.
#[derive(Deserialize)]
struct RawClaims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: RawBinding,
}

#[derive(Deserialize)]
struct RawBinding {
    pod: Option<RawPod>,
}

#[derive(Deserialize)]
struct RawPod {
    name: String,
    uid: String,
}

/// The pod in a token's claims. The signature is the API server's business: the kubelet put the
/// token where only this pod reads it.
pub(super) fn bound_pod(token: &str) -> Option<BoundPod> {
    let claims: RawClaims = claims(token)?;
    claims.kubernetes.pod.map(|RawPod { name, uid }| BoundPod { name, uid })
}

/// Whom a token is about, where it is one that tells.
pub(crate) fn subject(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct RawSubject {
        sub: String,
    }
    claims::<RawSubject>(token).map(|claims| claims.sub)
}

fn claims<T: DeserializeOwned>(token: &str) -> Option<T> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}
