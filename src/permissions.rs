//! The permissions that posse needs: asks the server which are missing.

use log::debug;

use posse_core::model::refusal::Refusal;
use posse_kube::api::reviews::access_review;
use posse_kube::http::Http;
use posse_wire::k8s::review::Access;

/// The API group of Leases.
pub const COORDINATION: &str = "coordination.k8s.io";

/// A permission in a namespace, or on nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permission {
    /// The API group; empty for the core one.
    pub group: &'static str,
    pub resource: &'static str,
    /// Empty for the resource itself.
    pub subresource: &'static str,
    pub verb: &'static str,
}

impl Permission {
    pub const fn new(group: &'static str, resource: &'static str, verb: &'static str) -> Self {
        Self { group, resource, subresource: "", verb }
    }

    /// As written in roles and messages: `pods/log`.
    pub fn full_resource(self) -> String {
        match self.subresource {
            "" => self.resource.to_owned(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }
}

/// Required for every run. `deploy/rbac.yaml` grants these and those for Leases.
pub const FOR_PODS: [Permission; 6] = [
    Permission::new("", "pods", "list"),
    Permission::new("", "pods", "watch"),
    Permission::new("", "pods", "create"),
    Permission::new("", "pods", "delete"),
    Permission::new("", "pods", "get"),
    Permission::new("", "pods", "patch"),
];

/// Required for Leases. Without them a run continues, but nothing prevents a second posse from running
/// the same instance.
pub const FOR_LEASES: [Permission; 3] = [
    Permission::new(COORDINATION, "leases", "get"),
    Permission::new(COORDINATION, "leases", "create"),
    Permission::new(COORDINATION, "leases", "update"),
];

/// The missing ones of `permissions` in `namespace`.
///
/// # Errors
/// The server refuses the access review, or does not answer.
pub fn missing(
    http: &Http,
    namespace: &str,
    permissions: impl IntoIterator<Item = Permission>,
) -> Result<Vec<Permission>, Refusal> {
    let mut missing = Vec::new();
    for permission in permissions {
        let Permission { group, resource, subresource, verb } = permission;
        let namespace = if resource == "nodes" { "" } else { namespace };
        let access = Access { namespace, verb, group, resource, subresource, name: "" };
        let answer = access_review(http, access)?;
        if !answer.allowed {
            debug!("{verb} {}: not permitted: {}", permission.full_resource(), answer.reason);
            missing.push(permission);
        }
    }
    Ok(missing)
}

/// A list for messages: `create pods, get pods/log`.
pub fn list(permissions: &[Permission]) -> String {
    let texts = permissions.iter().map(|one| format!("{} {}", one.verb, one.full_resource()));
    texts.collect::<Vec<_>>().join(", ")
}
