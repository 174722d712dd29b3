//! The driver's pod: which pod we run in, whether it is fit to own executors, and the id high
//! water mark that its annotation stores.

use std::thread;
use std::time::{Duration, Instant};

use log::{debug, warn};

use super::retry::with_retries;
use super::{MERGE_PATCH, call, get, object_path, read, write, write_path};
use crate::config::Home;
use crate::http::{Http, Method};
use posse_core::machines::own_deletion::OwnPod;
use posse_core::model::ids::{ExecutorId, STORED_ID_MAX};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::labels;
use posse_wire::k8s::object::Condition;
use posse_wire::k8s::status::Verb;
use posse_wire::pod::build::OwnerRef;
use posse_wire::pod::details::PodDetails;

const POD_BYTES_MAX: u64 = 4 << 20;
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long we wait for the address of our own pod. A kubelet reports it after it has started the
/// containers, and posse may ask before that.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);
const ADDRESS_INTERVAL: Duration = Duration::from_millis(200);

/// From what we find out which pod we run in.
#[expect(missing_debug_implementations, reason = "a closure has nothing to show")]
#[derive(Clone, Copy)]
pub struct Hints<'a> {
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// If we run in a pod with a service account.
    pub home: Option<&'a Home>,
    /// The namespace of the executors.
    pub namespace: &'a str,
}

impl Hints<'_> {
    fn var(&self, name: &str) -> Option<String> {
        (self.env)(name).filter(|value| !value.is_empty())
    }

    fn named(&self) -> Option<OwnerRef> {
        Some(OwnerRef::pod(self.var("POD_NAME")?, self.var("POD_UID")?))
    }
}

/// Finds the driver's pod, in this order: POD_NAME and POD_UID, the pod that the token is bound to,
/// the pod with the name in HOSTNAME if it has our IP address. `None` if we do not run in a pod of
/// the executors' namespace.
pub fn find(hints: Hints<'_>, http: &Http) -> Option<OwnerRef> {
    if hints.home.is_none() && hints.var("KUBERNETES_SERVICE_HOST").is_none() {
        return hints.named();
    }
    let says_why = |why: &String| {
        warn!(
            "{why}: the executors get no owner, and after this pod is killed, only posse cleanup --instance deletes them"
        );
    };
    own_pod(hints, http).inspect_err(says_why).ok()
}

/// The pod that we run in, or why it can own nothing.
fn own_pod(hints: Hints<'_>, http: &Http) -> Result<OwnerRef, String> {
    let Hints { home, namespace, .. } = hints;
    let home_used = home.filter(|home| home.is_used);
    if let Some(Home { namespace: ours, .. }) = home_used
        && ours != namespace
    {
        // The garbage collector deletes an object whose owner is not in the same namespace.
        return Err(format!("this pod is in namespace {ours}, the executors are in {namespace}"));
    }
    let bound = home.and_then(|home| home.pod.as_ref());
    let told = hints.named().or_else(|| bound.map(|pod| OwnerRef::pod(&pod.name, &pod.uid)));
    match (told, home_used) {
        (Some(owner), Some(_)) => Ok(owner),
        (Some(owner), None) => shown(owner, namespace, http),
        (None, Some(_)) => from_host_name(hints, http),
        (None, None) => {
            Err("no token tells which pod this is; set POD_NAME and POD_UID".to_owned())
        }
    }
}

/// A kubeconfig may lead to another cluster or, by any address, to the pod's own: only a server that shows the pod is
/// the pod's. The garbage collector deletes an object whose owner does not exist, so an owner that was not seen is none.
fn shown(owner: OwnerRef, namespace: &str, http: &Http) -> Result<OwnerRef, String> {
    let pod = DriverPod::new(http.clone(), namespace, &owner);
    let why = match with_retries(|| pod.deletion()) {
        Ok(OwnPod::Alive | OwnPod::Deleting { .. }) => return Ok(owner),
        Ok(OwnPod::Gone) => "is not".to_owned(),
        Err(refusal) => format!("was not seen ({refusal})"),
    };
    let server = http.server();
    Err(format!("this pod, {}, {why} in namespace {namespace} of {server}", owner.name))
}

/// The driver's pod. It stores the id high water mark if there is no Lease.
#[derive(Clone, Debug)]
pub struct DriverPod {
    http: Http,
    namespace: String,
    name: String,
    uid: String,
}

impl DriverPod {
    /// The pod that `owner` names, in `namespace`.
    pub fn new(http: Http, namespace: &str, owner: &OwnerRef) -> Self {
        let namespace = namespace.to_owned();
        Self { http, namespace, name: owner.name.clone(), uid: owner.uid.clone() }
    }

    /// The highest executor id that an earlier run may have used; 0 if no run stored one.
    ///
    /// # Errors
    /// The server's refusal, or that the pod has another uid now.
    pub fn id_high_water(&self) -> Result<u64, Refusal> {
        let pod = self.read()?;
        if pod.uid() != self.uid {
            let problem = "the driver pod has another uid than POD_UID says";
            return Err(Refusal::local(RefusalClass::OutcomeUnknown, problem));
        }
        let text = pod.meta.annotation(labels::ID_HIGH_WATER);
        // Anybody who may change the pod can write anything.
        let stored = text.and_then(|text| text.parse().ok()).filter(|id| *id <= STORED_ID_MAX);
        Ok(stored.unwrap_or(0))
    }

    /// Why this pod cannot own the executors of a run that needs `needed_s` seconds to shut down.
    /// `None` if it can, or if we have no permission to read the pod.
    pub fn problem(&self, needed_s: u64) -> Option<String> {
        let name = &self.name;
        let pod = match self.read() {
            Ok(pod) => pod,
            Err(refusal) if refusal.class == RefusalClass::NotFound => {
                return Some(format!(
                    "there is no pod {name} in this namespace, so Kubernetes will delete the \
                     executors, whose owner it should be: check POD_NAME, POD_UID and the namespace"
                ));
            }
            Err(refusal) => {
                debug!("the driver pod {name} cannot be read: {refusal}");
                return None;
            }
        };
        if pod.uid() != self.uid {
            return Some(format!(
                "pod {name} has uid {}, not {}, so Kubernetes will delete the executors, whose \
                 owner it should be: check POD_UID",
                pod.uid(),
                self.uid
            ));
        }
        let grace_s = u64::from(pod.facts.grace_s);
        (grace_s < needed_s).then(|| {
            format!(
                "pod {name} has a terminationGracePeriodSeconds of {grace_s}, but shutdown.grace \
                 and shutdown.timeout need {needed_s} s: executors may be left for the garbage \
                 collector; set at least {needed_s}"
            )
        })
    }

    /// Whether the pod is being deleted. On a lost node nobody gives it a grace period.
    pub fn deletion(&self) -> Result<OwnPod, Refusal> {
        let pod = match self.read() {
            Ok(pod) if pod.uid() != self.uid => return Ok(OwnPod::Gone),
            Ok(pod) => pod,
            Err(refusal) if refusal.class == RefusalClass::NotFound => return Ok(OwnPod::Gone),
            Err(refusal) => return Err(refusal),
        };
        let grace_s = match pod.status.conditions.iter().any(is_of_lost_node) {
            true => 0,
            false => pod.facts.deletion_grace_s.into(),
        };
        Ok(if pod.facts.deleting { OwnPod::Deleting { grace_s } } else { OwnPod::Alive })
    }

    /// The node of the pod.
    pub fn node(&self) -> Result<Option<String>, Refusal> {
        self.read().map(|pod| pod.facts.node.map(String::from))
    }

    /// Stores that ids up to `up_to` may be used.
    pub fn save_id_high_water(&self, up_to: ExecutorId) -> Result<(), Refusal> {
        let patch = serde_json::json!({"metadata": {
            "uid": self.uid, "annotations": {labels::ID_HIGH_WATER: up_to.to_string()},
        }});
        let body = patch.to_string();
        let path = write_path(&self.path());
        let mut request = write(Method::Patch, path, body.as_bytes(), POD_BYTES_MAX);
        request.content_type = MERGE_PATCH;
        request.timeout = TIMEOUT;
        call(&self.http, &request, Verb::Patch).map(drop)
    }

    fn read(&self) -> Result<PodDetails, Refusal> {
        read_pod(&self.http, self.path())
    }

    fn path(&self) -> String {
        object_path("/api/v1", &self.namespace, "pods", Some(&self.name))
    }
}

fn read_pod(http: &Http, path: String) -> Result<PodDetails, Refusal> {
    read(http, &get(path, TIMEOUT, POD_BYTES_MAX), Verb::Get, PodDetails::parse)
}

/// The node controller makes `Ready` false and gives no reason (`MarkPodsNotReady`): a kubelet gives one. That the taint
/// manager deletes the pod says nothing: anybody may taint a node that lives.
fn is_of_lost_node(condition: &Condition) -> bool {
    condition.kind == "Ready" && condition.status == "False" && condition.reason.is_empty()
}

fn from_host_name(hints: Hints<'_>, http: &Http) -> Result<OwnerRef, String> {
    let unknown =
        |problem: String| format!("this pod is not known ({problem}); set POD_NAME and POD_UID");
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let host_name = hints
        .var("HOSTNAME")
        .filter(|name| name.chars().all(is_allowed))
        .ok_or_else(|| unknown("HOSTNAME names none".to_owned()))?;
    let ours = http.local_address().map_err(|error| unknown(error.to_string()))?;
    let deadline = Instant::now() + ADDRESS_TIMEOUT;
    loop {
        let path = object_path("/api/v1", hints.namespace, "pods", Some(&host_name));
        let problem = match read_pod(http, path) {
            Ok(pod) if pod.facts.ip == Some(ours) => {
                return Ok(OwnerRef::pod(pod.meta.name, pod.meta.uid));
            }
            Ok(pod) if pod.facts.ip.is_some() => {
                return Err(unknown(format!("pod {host_name} does not have our address {ours}")));
            }
            Ok(_) => format!("pod {host_name} has no address yet"),
            Err(refusal) if is_final(refusal.class) => return Err(unknown(refusal.to_string())),
            Err(refusal) => refusal.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(unknown(problem));
        }
        thread::sleep(ADDRESS_INTERVAL);
    }
}

/// Whether the same question would get the same answer: we may not read pods, or there is no such pod.
fn is_final(class: RefusalClass) -> bool {
    use RefusalClass::{Forbidden, NotFound, Unauthorized};
    matches!(class, Forbidden | NotFound | Unauthorized)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::config::BoundPod;
    use crate::testing::plain_client;
    use posse_testing::{Answer, TestServer};

    fn server(body: &str, status: u16) -> TestServer {
        let body = body.to_owned();
        TestServer::start(None, move |_| Answer::json(status, body.clone()))
    }

    const POD: &str = r#"{"metadata":{"name":"driver","uid":"u-1",
        "annotations":{"posse.dev/id-high-water":"3000"}},
        "spec":{"terminationGracePeriodSeconds":30},"status":{"podIP":"127.0.0.1"}}"#;

    #[test]
    fn a_deleted_pod_of_a_lost_node_has_no_grace_period() {
        let deleted = r#""deletionTimestamp":"2026-01-01T00:00:00Z","deletionGracePeriodSeconds":40,"uid":"u-1""#;
        let deleting = |grace_s| OwnPod::Deleting { grace_s };
        for (meta, conditions, want) in [
            (r#""uid":"u-1""#, r#"{"type":"Ready","status":"False"}"#, OwnPod::Alive),
            (r#""uid":"u-2""#, "", OwnPod::Gone),
            (deleted, "", deleting(40)),
            (deleted, r#"{"type":"Ready","status":"True"}"#, deleting(40)),
            (
                deleted,
                r#"{"type":"Ready","status":"False","reason":"ContainersNotReady"}"#,
                deleting(40),
            ),
            (deleted, r#"{"type":"Ready","status":"False"}"#, deleting(0)),
            (
                deleted,
                r#"{"type":"DisruptionTarget","status":"True","reason":"EvictionByEvictionAPI"}"#,
                deleting(40),
            ),
            (
                deleted,
                r#"{"type":"DisruptionTarget","status":"True","reason":"DeletionByTaintManager"},
                    {"type":"Ready","status":"True"}"#,
                deleting(40),
            ),
        ] {
            let body = format!(
                r#"{{"metadata":{{"name":"driver",{meta}}},"spec":{{"nodeName":"n"}},"status":{{"conditions":[{conditions}]}}}}"#
            );
            let server = server(&body, 200);
            let pod = OwnerRef::pod("driver", "u-1");
            let pod = DriverPod::new(plain_client(server.address), "ns", &pod);
            assert_eq!(pod.deletion().unwrap(), want, "{meta} {conditions}");
            assert_eq!(pod.node().unwrap().as_deref(), Some("n"));
        }
        let absent = server(r#"{"kind":"Status","reason":"NotFound","code":404}"#, 404);
        let pod = OwnerRef::pod("driver", "u-1");
        let pod = DriverPod::new(plain_client(absent.address), "ns", &pod);
        assert_eq!(pod.deletion(), Ok(OwnPod::Gone));
    }

    #[test]
    fn the_driver_pod_is_found_by_name_token_or_address() {
        let server = server(POD, 200);
        let http = plain_client(server.address);
        let bound = BoundPod { name: "driver".to_owned(), uid: "u-2".to_owned() };
        let named: &[(&str, &str)] = &[("POD_NAME", "driver"), ("POD_UID", "u-3")];
        let hosted: &[(&str, &str)] = &[("HOSTNAME", "driver")];
        let strange: &[(&str, &str)] = &[("HOSTNAME", "../driver")];
        let half: &[(&str, &str)] = &[("POD_NAME", "driver"), ("POD_UID", "")];
        let in_pod = ("KUBERNETES_SERVICE_HOST", "10.96.0.1");
        // The pod that the server has under this name is another one.
        let elsewhere: &[(&str, &str)] = &[in_pod, named[0], named[1]];
        let here: &[(&str, &str)] = &[in_pod, named[0], ("POD_UID", "u-1")];
        let shown = BoundPod { name: "driver".to_owned(), uid: "u-1".to_owned() };
        let only_in_pod: &[(&str, &str)] = &[in_pod, hosted[0]];
        for (vars, account, want) in [
            (named, None, Some("u-3")),
            (named, Some((Some(&bound), "ns", true)), Some("u-3")),
            (named, Some((Some(&bound), "other", true)), None),
            (elsewhere, Some((Some(&bound), "ns", true)), Some("u-3")),
            (elsewhere, Some((Some(&shown), "ns", false)), None),
            (elsewhere, None, None),
            (here, None, Some("u-1")),
            (here, Some((Some(&bound), "other", false)), Some("u-1")),
            (half, Some((Some(&bound), "ns", true)), Some("u-2")),
            (half, Some((Some(&shown), "ns", false)), Some("u-1")),
            (half, None, None),
            (hosted, Some((Some(&bound), "ns", true)), Some("u-2")),
            (hosted, Some((Some(&bound), "ns", false)), None),
            (hosted, Some((None, "ns", true)), Some("u-1")),
            // Another cluster may have a pod of this name.
            (hosted, Some((None, "ns", false)), None),
            (only_in_pod, None, None),
            (hosted, None, None),
            (strange, Some((None, "ns", true)), None),
            (&[], Some((None, "ns", true)), None),
        ] {
            let home = account.map(|(pod, namespace, is_used): (Option<&BoundPod>, &str, _)| {
                Home { namespace: namespace.to_owned(), pod: pod.cloned(), is_used }
            });
            let env = |name: &str| {
                vars.iter().find(|(given, _)| *given == name).map(|(_, v)| (*v).to_owned())
            };
            let found = find(Hints { env: &env, home: home.as_ref(), namespace: "ns" }, &http);
            assert_eq!(found.map(|owner| owner.uid).as_deref(), want, "{vars:?} {account:?}");
        }
    }

    /// A role of another cluster lets nobody read this pod: the garbage collector there would delete what it owns.
    #[test]
    fn a_pod_that_another_cluster_does_not_show_owns_nothing() {
        let forbidden =
            server(r#"{"kind":"Status","reason":"Forbidden","message":"no","code":403}"#, 403);
        let vars =
            [("POD_NAME", "driver"), ("POD_UID", "u-1"), ("KUBERNETES_SERVICE_HOST", "10.96.0.1")];
        let env = |name: &str| {
            vars.iter().find(|(given, _)| *given == name).map(|(_, v)| (*v).to_owned())
        };
        let hints = Hints { env: &env, home: None, namespace: "ns" };
        assert!(find(hints, &plain_client(forbidden.address)).is_none());
    }

    #[test]
    fn the_address_of_the_driver_pod_is_awaited() {
        let n_reads = AtomicUsize::new(0);
        let server = TestServer::start(None, move |_| {
            let (status, body) = match n_reads.fetch_add(1, Ordering::SeqCst) {
                0 => (503, r#"{"kind":"Status","code":503,"message":"later"}"#),
                1 => (200, r#"{"metadata":{"name":"driver","uid":"u-1"}}"#),
                _ => (200, POD),
            };
            Answer::json(status, body)
        });
        let env = |name: &str| (name == "HOSTNAME").then(|| "driver".to_owned());
        let home = Home { namespace: "ns".to_owned(), pod: None, is_used: true };
        let hints = Hints { env: &env, home: Some(&home), namespace: "ns" };
        let found = find(hints, &plain_client(server.address));
        assert_eq!(found.map(|owner| owner.uid).as_deref(), Some("u-1"));
    }

    #[test]
    fn an_unfit_driver_pod_is_reported() {
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
            let owner = OwnerRef::pod("driver", uid);
            let pod = DriverPod::new(plain_client(server.address), "ns", &owner);
            let problem = pod.problem(needed_s);
            match want {
                None => assert_eq!(problem, None),
                Some(part) => {
                    assert!(problem.as_ref().is_some_and(|m| m.contains(part)), "{problem:?}")
                }
            }
        }
    }

    #[test]
    fn the_high_water_mark_is_read_and_saved_with_the_uid() {
        let server = server(POD, 200);
        let pod = |uid: &str| {
            let owner = OwnerRef::pod("driver", uid);
            DriverPod::new(plain_client(server.address), "ns", &owner)
        };
        assert_eq!(pod("u-1").id_high_water(), Ok(3_000));
        assert!(pod("u-2").id_high_water().is_err(), "another pod's mark is not used");
        pod("u-1").save_id_high_water(ExecutorId(4_000)).unwrap();
        let last = server.seen().pop().unwrap();
        assert!(last.line().starts_with("PATCH /api/v1/namespaces/ns/pods/driver?"), "{last:?}");
        let body: serde_json::Value = serde_json::from_slice(&last.body).unwrap();
        assert_eq!(body["metadata"]["uid"], "u-1");
        assert_eq!(body["metadata"]["annotations"][labels::ID_HIGH_WATER], "4000");
    }
}
