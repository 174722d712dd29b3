//! Owns the advice to one whose rights do not suffice: what is missing, all of it at once. Asks the
//! server only when a run has ended for it.

use log::{debug, error};

use crate::kube::api::{access_review, version};
use crate::kube::http::Http;
use crate::wire::review::Access;

/// What a run does to the server: API group, resource, verb. `deploy/rbac.yaml` grants the same.
const NEEDED: [(&str, &str, &str); 9] = [
    ("", "pods", "list"),
    ("", "pods", "watch"),
    ("", "pods", "create"),
    ("", "pods", "delete"),
    ("", "pods", "get"),
    ("", "pods", "patch"),
    ("coordination.k8s.io", "leases", "get"),
    ("coordination.k8s.io", "leases", "create"),
    ("coordination.k8s.io", "leases", "update"),
];

/// Names every right that is missing in `namespace`. Says nothing where the server does not tell.
pub fn advise(http: &Http, namespace: &str) {
    let mut missing = Vec::new();
    for (group, resource, verb) in NEEDED {
        let access = Access { namespace, verb, group, resource, subresource: "" };
        match access_review(http, access) {
            Ok(answer) if answer.allowed => {}
            Ok(answer) => {
                debug!("{verb} {resource}: not allowed: {}", answer.reason);
                missing.push(format!("{verb} {resource}"));
            }
            Err(refusal) => {
                debug!("what rights are missing cannot be told: {refusal}");
                return;
            }
        }
    }
    if missing.is_empty() {
        return;
    }
    if let Ok(version) = version(http) {
        debug!("the server is Kubernetes {version}");
    }
    let missing = missing.join(", ");
    error!("rights missing in namespace {namespace}: {missing} (deploy/rbac.yaml grants them)");
}
