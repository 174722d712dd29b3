//! The claims of a token that is a JWT.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::BoundPod;

/// The claims of a service account token that we need.
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

/// The pod in a token's claims. The signature is not verified: the kubelet wrote the token into this
/// pod's own volume.
pub(super) fn bound_pod(token: &str) -> Option<BoundPod> {
    let claims: RawClaims = claims(token)?;
    claims.kubernetes.pod.map(|RawPod { name, uid }| BoundPod { name, uid })
}

/// The `sub` claim; `None` if the token is not a JWT.
pub(crate) fn subject(token: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct RawSubject {
        sub: String,
    }
    claims::<RawSubject>(token).map(|claims| claims.sub)
}

/// The `exp` claim, in whole seconds; `None` if the token is not a JWT that has one. It may be any number (RFC 7519).
pub(super) fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct RawExpiry {
        exp: f64,
    }
    let RawExpiry { exp } = claims(token)?;
    let exp = Duration::try_from_secs_f64(exp).ok()?.as_secs();
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(exp))
}

fn claims<T: DeserializeOwned>(token: &str) -> Option<T> {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice(&claims).ok()
}
