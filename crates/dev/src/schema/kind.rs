//! The kinds that the embedded cluster stores, with their names in paths, bodies and messages.

use std::fmt;

/// A stored kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ClusterRole,
    ClusterRoleBinding,
    ConfigMap,
    Event,
    Job,
    Lease,
    LimitRange,
    Namespace,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodDisruptionBudget,
    ResourceQuota,
    Role,
    RoleBinding,
    Secret,
    Service,
    ServiceAccount,
}

/// An object or one of its subresources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subresource {
    Binding,
    Eviction,
    Exec,
    Log,
    Resize,
    Status,
    Token,
    None,
}

/// The names and properties of a kind. The version of each is `v1`.
#[derive(Debug)]
struct Row {
    kind: Kind,
    name: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    group: &'static str,
    namespaced: bool,
    subresources: &'static [Subresource],
}

/// A namespaced kind of the core group.
const fn row(kind: Kind, name: &'static str, plural: &'static str) -> Row {
    Row { kind, name, plural, short: &[], group: "", namespaced: true, subresources: &[] }
}

impl Row {
    const fn short(self, short: &'static [&'static str]) -> Self {
        Self { short, ..self }
    }

    const fn group(self, group: &'static str) -> Self {
        Self { group, ..self }
    }

    /// Its objects live in no namespace.
    const fn of_cluster(self) -> Self {
        Self { namespaced: false, ..self }
    }

    const fn with(self, subresources: &'static [Subresource]) -> Self {
        Self { subresources, ..self }
    }
}

const RBAC: &str = "rbac.authorization.k8s.io";
const STATUS: &[Subresource] = &[Subresource::Status];
const OF_PODS: &[Subresource] = &[
    Subresource::Binding,
    Subresource::Eviction,
    Subresource::Exec,
    Subresource::Log,
    Subresource::Resize,
    Subresource::Status,
];

/// In the order of `Kind`.
const ROWS: [Row; 19] = [
    row(Kind::ClusterRole, "ClusterRole", "clusterroles").group(RBAC).of_cluster(),
    row(Kind::ClusterRoleBinding, "ClusterRoleBinding", "clusterrolebindings")
        .group(RBAC)
        .of_cluster(),
    row(Kind::ConfigMap, "ConfigMap", "configmaps").short(&["cm"]),
    row(Kind::Event, "Event", "events").short(&["ev"]),
    row(Kind::Job, "Job", "jobs").group("batch").with(STATUS),
    row(Kind::Lease, "Lease", "leases").group("coordination.k8s.io"),
    row(Kind::LimitRange, "LimitRange", "limitranges").short(&["limits"]),
    row(Kind::Namespace, "Namespace", "namespaces").short(&["ns"]).of_cluster().with(STATUS),
    row(Kind::Node, "Node", "nodes").short(&["no"]).of_cluster().with(STATUS),
    row(Kind::PersistentVolume, "PersistentVolume", "persistentvolumes")
        .short(&["pv"])
        .of_cluster()
        .with(STATUS),
    row(Kind::PersistentVolumeClaim, "PersistentVolumeClaim", "persistentvolumeclaims")
        .short(&["pvc"])
        .with(STATUS),
    row(Kind::Pod, "Pod", "pods").short(&["po"]).with(OF_PODS),
    row(Kind::PodDisruptionBudget, "PodDisruptionBudget", "poddisruptionbudgets")
        .short(&["pdb"])
        .group("policy")
        .with(STATUS),
    row(Kind::ResourceQuota, "ResourceQuota", "resourcequotas").short(&["quota"]).with(STATUS),
    row(Kind::Role, "Role", "roles").group(RBAC),
    row(Kind::RoleBinding, "RoleBinding", "rolebindings").group(RBAC),
    row(Kind::Secret, "Secret", "secrets"),
    row(Kind::Service, "Service", "services").short(&["svc"]).with(STATUS),
    row(Kind::ServiceAccount, "ServiceAccount", "serviceaccounts")
        .short(&["sa"])
        .with(&[Subresource::Token]),
];

impl Kind {
    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// All kinds in the order of their names.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ROWS.iter().map(|row| row.kind)
    }

    /// The kinds whose objects live in a namespace.
    pub(crate) fn namespaced() -> impl Iterator<Item = Self> {
        Self::all().filter(|kind| kind.is_namespaced())
    }

    /// `kind` in a body.
    pub(crate) fn name(self) -> &'static str {
        self.row().name
    }

    /// The resource name in a path.
    pub(crate) fn plural(self) -> &'static str {
        self.row().plural
    }

    /// The short names for kubectl.
    pub(crate) fn short(self) -> &'static [&'static str] {
        self.row().short
    }

    /// The API group; empty for the core group.
    pub(crate) fn group(self) -> &'static str {
        self.row().group
    }

    /// `apiVersion` in a body.
    pub(crate) fn api_version(self) -> String {
        match self.group() {
            "" => "v1".to_owned(),
            group => format!("{group}/v1"),
        }
    }

    /// True if the objects live in a namespace.
    pub(crate) fn is_namespaced(self) -> bool {
        self.row().namespaced
    }

    /// The allowed verbs, in the order of discovery.
    pub(crate) fn verbs(self) -> &'static [&'static str] {
        if self == Self::Namespace {
            return &["create", "delete", "get", "list", "patch", "update", "watch"];
        }
        &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
    }

    pub(crate) fn subresources(self) -> &'static [Subresource] {
        self.row().subresources
    }

    /// True if a delete answers with the deleted object.
    pub(crate) fn delete_returns_object(self) -> bool {
        const KINDS: [Kind; 6] = [
            Kind::PersistentVolume,
            Kind::PersistentVolumeClaim,
            Kind::Pod,
            Kind::ResourceQuota,
            Kind::Service,
            Kind::ServiceAccount,
        ];
        KINDS.contains(&self)
    }

    /// The resource in messages: `pods`, `leases.coordination.k8s.io`.
    pub(crate) fn resource(self) -> String {
        qualified(self.plural(), self.group())
    }

    /// The kind of a reference's `apiVersion` and `kind`; `None` for kinds that are not stored
    /// here.
    pub(crate) fn of_reference(api_version: &str, kind: &str) -> Option<Self> {
        Self::all().find(|one| one.name() == kind && one.api_version() == api_version)
    }
}

impl Subresource {
    /// The last segment of the path; empty for the whole object.
    pub(crate) fn path_segment(self) -> &'static str {
        match self {
            Self::Binding => "binding",
            Self::Eviction => "eviction",
            Self::Exec => "exec",
            Self::Log => "log",
            Self::Resize => "resize",
            Self::Status => "status",
            Self::Token => "token",
            Self::None => "",
        }
    }

    /// The kind of the posted body if it is not the object itself.
    pub(crate) fn body_kind(self) -> Option<&'static str> {
        match self {
            Self::Binding => Some("Binding"),
            Self::Eviction => Some("Eviction"),
            Self::Token => Some("TokenRequest"),
            Self::Exec => Some("PodExecOptions"),
            Self::Log | Self::Resize | Self::Status | Self::None => None,
        }
    }

    /// True if it is read and written as the whole object.
    pub(crate) fn has_object(self) -> bool {
        matches!(self, Self::Resize | Self::Status | Self::None)
    }
}

/// `name.group`, or `name` for the core group.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// The key of a stored object. The namespace of a cluster-wide object is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind.plural(), self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_row() {
        for (i, kind) in Kind::all().enumerate() {
            assert_eq!(kind as usize, i, "{kind:?}");
            assert_eq!(kind.name(), format!("{kind:?}"));
            assert_eq!(Kind::of_reference(&kind.api_version(), kind.name()), Some(kind));
        }
    }
}
