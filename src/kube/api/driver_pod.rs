//! Owns the question which pod we are: the driver pod, that executors belong to. Asks the server
//! only where nothing nearer tells.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use log::{debug, warn};
use serde::Deserialize;

use super::lost;
use crate::core::model::ids::ExecutorId;
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::config::BoundPod;
use crate::kube::http::{Http, Method, Request};
use crate::wire::build::Owner;
use crate::wire::labels;
use crate::wire::status::{Verb, refusal};

const POD_BYTES_MAX: u64 = 4 << 20;
const GET_TIMEOUT: Duration = Duration::from_secs(10);
/// What a pod has that names none, seconds.
const GRACE_DEFAULT_S: u64 = 30;

/// What tells who we are.
#[expect(missing_debug_implementations, reason = "a lookup has nothing to show")]
#[derive(Clone, Copy)]
pub struct Hints<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// The pod that our token is bound to, and the namespace of the pod we run in, where the
    /// service account told how to reach the server.
    pub account: Option<(Option<&'a BoundPod>, &'a str)>,
    /// Where the executors are to be.
    pub namespace: &'a str,
}

/// The driver pod: by POD_NAME and POD_UID, else by the token that is bound to it, else by HOSTNAME
/// where the pod of that name has our address. None: not in a pod of this namespace.
#[must_use]
pub fn find(hints: Hints<'_>, http: &Http) -> Option<Owner> {
    let var = |name: &str| (hints.env)(name).filter(|value| !value.is_empty());
    if let Some((_, ours)) = hints.account
        && ours != hints.namespace
    {
        // An owner in another namespace would have its executors deleted at once.
        warn!(
            "this pod is in namespace {ours}, the executors go to {}: they have no owner, and stay \
             where this pod ends without a word",
            hints.namespace
        );
        return None;
    }
    if let (Some(name), Some(uid)) = (var("POD_NAME"), var("POD_UID")) {
        return Some(owner(name, uid));
    }
    let (bound, _) = hints.account?;
    match bound {
        Some(pod) => Some(owner(pod.name.clone(), pod.uid.clone())),
        None => from_host_name(&var("HOSTNAME")?, hints.namespace, http),
    }
}

fn owner(name: String, uid: String) -> Owner {
    Owner { api_version: "v1".to_owned(), kind: "Pod".to_owned(), name, uid }
}

/// The driver's pod as a place to keep the id high water in, where there is no Lease.
#[derive(Clone, Debug)]
pub struct DriverPod {
    http: Http,
    path: String,
    uid: String,
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
        let pod = self.read()?;
        if pod.metadata.uid != self.uid {
            return Err(unusable("the driver pod has another uid than POD_UID says"));
        }
        let text = pod.metadata.annotations.get(labels::ID_HIGH_WATER);
        Ok(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// What is wrong with the pod for a run that takes `needed_s` seconds to end; none: nothing,
    /// or we may not look.
    #[must_use]
    pub fn mistake(&self, needed_s: u64) -> Option<String> {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        let pod = match self.read() {
            Ok(pod) => pod,
            Err(refusal) if refusal.class == RefusalClass::NotFound => {
                return Some(format!(
                    "there is no pod {name} in this namespace, so Kubernetes removes the executors \
                     that it is to own: check POD_NAME, POD_UID and the namespace"
                ));
            }
            Err(refusal) => {
                debug!("the driver pod {name} cannot be looked at: {refusal}");
                return None;
            }
        };
        if pod.metadata.uid != self.uid {
            return Some(format!(
                "pod {name} has uid {}, not {}, so Kubernetes removes the executors that it is to \
                 own: check POD_UID",
                pod.metadata.uid, self.uid
            ));
        }
        let grace_s = pod.spec.grace_s.unwrap_or(GRACE_DEFAULT_S);
        (grace_s < needed_s).then(|| {
            format!(
                "pod {name} has {grace_s} s to end (terminationGracePeriodSeconds), shutdown.grace \
                 and shutdown.timeout take {needed_s} s: executors may be left to the garbage \
                 collector; set at least {needed_s}"
            )
        })
    }

    fn read(&self) -> Result<RawPod, Refusal> {
        let body = self.call(Method::Get, self.path.clone(), None)?;
        serde_json::from_slice(&body).map_err(|e| unusable(&e.to_string()))
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
        class: RefusalClass::OutcomeUnknown,
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
    spec: RawSpec,
    #[serde(default)]
    status: RawStatus,
}

#[derive(Deserialize)]
struct RawMetadata {
    name: String,
    uid: String,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
struct RawSpec {
    #[serde(rename = "terminationGracePeriodSeconds")]
    grace_s: Option<u64>,
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
    use crate::kube::testing::{Answer, TestServer, plain_client};

    fn server(body: &str, status: u16) -> TestServer {
        let body = body.to_owned();
        TestServer::start(None, move |_| {
            Answer::Reply(status, "Content-Type: application/json\r\n", body.clone().into_bytes())
        })
    }

    const POD: &str = r#"{"metadata":{"name":"driver","uid":"u-1",
        "annotations":{"posse.dev/id-high-water":"3000"}},
        "spec":{"terminationGracePeriodSeconds":30},"status":{"podIP":"127.0.0.1"}}"#;

    #[test]
    fn who_we_are() {
        let server = server(POD, 200);
        let http = plain_client(server.address);
        let bound = BoundPod { name: "driver".to_owned(), uid: "u-2".to_owned() };
        let named: &[(&str, &str)] = &[("POD_NAME", "driver"), ("POD_UID", "u-3")];
        let hosted: &[(&str, &str)] = &[("HOSTNAME", "driver")];
        let strange: &[(&str, &str)] = &[("HOSTNAME", "../driver")];
        let half: &[(&str, &str)] = &[("POD_NAME", "driver"), ("POD_UID", "")];
        for (vars, account, want) in [
            (named, None, Some("u-3")),
            (named, Some((Some(&bound), "ns")), Some("u-3")),
            (named, Some((Some(&bound), "other")), None),
            (half, Some((Some(&bound), "ns")), Some("u-2")),
            (half, None, None),
            (hosted, Some((Some(&bound), "ns")), Some("u-2")),
            (hosted, Some((None, "ns")), Some("u-1")),
            (hosted, None, None),
            (strange, Some((None, "ns")), None),
            (&[], Some((None, "ns")), None),
        ] {
            let env = |name: &str| {
                vars.iter().find(|(given, _)| *given == name).map(|(_, v)| (*v).to_owned())
            };
            let found = find(Hints { env: &env, account, namespace: "ns" }, &http);
            assert_eq!(found.map(|owner| owner.uid).as_deref(), want, "{vars:?} {account:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_the_driver_pod_is_told() {
        let forbidden = r#"{"kind":"Status","reason":"Forbidden","message":"no","code":403}"#;
        let absent = r#"{"kind":"Status","reason":"NotFound","message":"no","code":404}"#;
        for (body, status, uid, needed_s, want) in [
            (POD, 200, "u-1", 30, None),
            (POD, 200, "u-1", 31, Some("set at least 31")),
            (POD, 200, "u-9", 1, Some("check POD_UID")),
            (absent, 404, "u-1", 1, Some("no pod driver")),
            (forbidden, 403, "u-1", 99, None),
            (r#"{"metadata":{"name":"driver","uid":"u-1"}}"#, 200, "u-1", 25, None),
        ] {
            let server = server(body, status);
            let owner = owner("driver".to_owned(), uid.to_owned());
            let pod = DriverPod::new(plain_client(server.address), "ns", &owner);
            let mistake = pod.mistake(needed_s);
            match want {
                None => assert_eq!(mistake, None),
                Some(part) => {
                    assert!(mistake.as_ref().is_some_and(|m| m.contains(part)), "{mistake:?}")
                }
            }
        }
    }

    #[test]
    fn the_high_water_is_read_and_kept_under_the_uid() {
        let server = server(POD, 200);
        let pod = |uid: &str| {
            let owner = owner("driver".to_owned(), uid.to_owned());
            DriverPod::new(plain_client(server.address), "ns", &owner)
        };
        assert_eq!(pod("u-1").id_high_water(), Ok(3_000));
        assert!(pod("u-2").id_high_water().is_err(), "another pod's ids are not ours");
        pod("u-1").keep_id_high_water(ExecutorId(4_000)).unwrap();
        let last = server.seen().pop().unwrap();
        assert!(last.line().starts_with("PATCH /api/v1/namespaces/ns/pods/driver?"), "{last:?}");
        let body: serde_json::Value = serde_json::from_slice(&last.body).unwrap();
        assert_eq!(body["metadata"]["uid"], "u-1");
        assert_eq!(body["metadata"]["annotations"][labels::ID_HIGH_WATER], "4000");
    }
}
