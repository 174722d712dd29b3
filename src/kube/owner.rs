//! Owns the question which pod we are: the driver pod, that executors belong to. Asks the server
//! only where nothing nearer tells.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use log::debug;
use serde::Deserialize;

use crate::core::ids::ExecutorId;
use crate::core::refusal::{Class, Refusal};
use crate::kube::api::lost;
use crate::kube::http::{Http, Method, Request};
use crate::wire::build::Owner;
use crate::wire::labels;
use crate::wire::status::{Verb, refusal};

const TOKEN_BYTES_MAX: u64 = 1 << 20;
const POD_BYTES_MAX: u64 = 4 << 20;
const GET_TIMEOUT: Duration = Duration::from_secs(10);

/// What tells who we are.
#[expect(missing_debug_implementations, reason = "a lookup has nothing to show")]
#[derive(Clone, Copy)]
pub struct Hints<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The service account's token; none outside a cluster.
    pub token_file: Option<&'a Path>,
    pub namespace: &'a str,
}

/// The driver pod: by POD_NAME and POD_UID, else by the token that is bound to it, else by HOSTNAME
/// where the pod of that name has our address. None: not in a pod of this namespace.
#[must_use]
pub fn find(hints: Hints<'_>, http: &Http) -> Option<Owner> {
    let var = |name: &str| (hints.env)(name).filter(|value| !value.is_empty());
    if let (Some(name), Some(uid)) = (var("POD_NAME"), var("POD_UID")) {
        return Some(owner(name, uid));
    }
    let token_file = hints.token_file?;
    if let Some(owner) = from_token(token_file, hints.namespace) {
        return Some(owner);
    }
    from_host_name(&var("HOSTNAME")?, hints.namespace, http)
}

fn owner(name: String, uid: String) -> Owner {
    Owner { api_version: "v1".to_owned(), kind: "Pod".to_owned(), name, uid }
}

/// The claims of a bound token that matter here.
#[derive(Deserialize)]
struct Claims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    pod: PodClaim,
}

#[derive(Deserialize)]
struct PodClaim {
    name: String,
    uid: String,
}

fn from_token(file: &Path, namespace: &str) -> Option<Owner> {
    use std::io::Read as _;
    let mut token = String::new();
    fs::File::open(file).ok()?.take(TOKEN_BYTES_MAX).read_to_string(&mut token).ok()?;
    let payload = token.trim().split('.').nth(1)?;
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    // An owner in another namespace would have its executors deleted at once.
    (claims.kubernetes.namespace == namespace)
        .then(|| owner(claims.kubernetes.pod.name, claims.kubernetes.pod.uid))
}

/// The driver's pod as a place to keep the id high water in, where there is no Lease.
#[derive(Clone, Debug)]
pub struct DriverPod {
    http: Http,
    path: String,
    uid: String,
}

#[derive(Deserialize)]
struct Annotated {
    metadata: Annotations,
}

#[derive(Deserialize)]
struct Annotations {
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

impl DriverPod {
    /// The pod that `owner` names, in `namespace`.
    #[must_use]
    pub fn new(http: Http, namespace: &str, owner: &Owner) -> Self {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{}", owner.name);
        Self { http, path, uid: owner.uid.clone() }
    }

    /// Ids up to here may have been given by an earlier run; 0 where none were.
    ///
    /// # Errors
    /// The server's refusal, or that the pod is another by now.
    pub fn id_high_water(&self) -> Result<u64, Refusal> {
        let body = self.call(Method::Get, self.path.clone(), None)?;
        let pod: Annotated = serde_json::from_slice(&body).map_err(|e| unusable(&e.to_string()))?;
        if pod.metadata.uid != self.uid {
            return Err(unusable("the driver pod has another uid than POD_UID says"));
        }
        let text = pod.metadata.annotations.get(labels::ID_HIGH_WATER);
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// Writes down that ids up to here may be given.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn keep_id_high_water(&self, up_to: ExecutorId) -> Result<(), Refusal> {
        let patch = serde_json::json!({"metadata": {
            "uid": self.uid, "annotations": {labels::ID_HIGH_WATER: up_to.to_string()},
        }});
        let path = format!("{}?fieldManager={}", self.path, labels::FIELD_MANAGER);
        self.call(Method::Patch, path, Some(patch.to_string().as_bytes())).map(drop)
    }

    fn call(&self, method: Method, path: String, body: Option<&[u8]>) -> Result<Vec<u8>, Refusal> {
        let request = Request {
            method,
            path,
            content_type: "application/merge-patch+json",
            body,
            timeout: GET_TIMEOUT,
            body_bytes_max: POD_BYTES_MAX,
        };
        let response = self.http.call(&request).map_err(lost)?;
        if response.status >= 300 {
            let (retry_after, json) = (response.retry_after, response.json);
            let verb = if method == Method::Get { Verb::Get } else { Verb::Patch };
            return Err(refusal(response.status, retry_after, json, &response.body, verb));
        }
        Ok(response.body)
    }
}

fn unusable(problem: &str) -> Refusal {
    Refusal {
        class: Class::Unknown,
        code: 0,
        reason: String::new(),
        message: problem.to_owned(),
        retry_after_ms: None,
    }
}

#[derive(Deserialize)]
struct RawPod {
    metadata: RawMetadata,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawMetadata {
    name: String,
    uid: String,
}

#[derive(Default, Deserialize)]
struct RawStatus {
    #[serde(rename = "podIP")]
    pod_ip: Option<IpAddr>,
}

fn from_host_name(host_name: &str, namespace: &str, http: &Http) -> Option<Owner> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    if !host_name.chars().all(is_plain) {
        return None;
    }
    let request = Request {
        method: Method::Get,
        path: format!("/api/v1/namespaces/{namespace}/pods/{host_name}"),
        content_type: "application/json",
        body: None,
        timeout: GET_TIMEOUT,
        body_bytes_max: POD_BYTES_MAX,
    };
    let response = http.call(&request).ok().filter(|response| response.status == 200)?;
    let pod: RawPod = serde_json::from_slice(&response.body).ok()?;
    let ours = http.local_address().ok()?;
    if pod.status.pod_ip != Some(ours) {
        debug!("pod {host_name} has another address than {ours}: not taken for our own");
        return None;
    }
    Some(owner(pod.metadata.name, pod.metadata.uid))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(payload: &str) -> String {
        format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(payload))
    }

    #[test]
    fn a_bound_token_names_its_pod() {
        let folder = std::env::temp_dir().join(format!("posse-owner-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = folder.join("token");
        let good = r#"{"kubernetes.io":{"namespace":"ns","pod":{"name":"driver","uid":"u-1"},"node":{"name":"n"}},"sub":"x"}"#;
        let legacy = r#"{"sub":"x"}"#;
        for (text, namespace, want) in [
            (token(good), "ns", Some("u-1")),
            (format!("{}\n", token(good)), "ns", Some("u-1")),
            (token(good), "other", None),
            (token(legacy), "ns", None),
            ("opaque".to_owned(), "ns", None),
            ("a.!!!.c".to_owned(), "ns", None),
            (String::new(), "ns", None),
        ] {
            fs::write(&file, &text).unwrap();
            let uid = from_token(&file, namespace).map(|owner| owner.uid);
            assert_eq!(uid.as_deref(), want, "{text:?}");
        }
        assert_eq!(from_token(&folder.join("absent"), "ns"), None);
        fs::remove_dir_all(&folder).unwrap();
    }
}
