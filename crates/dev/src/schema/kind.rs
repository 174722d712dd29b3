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

/// The names and properties of a kind.
#[derive(Debug)]
struct Row {
    kind: Kind,
    name: &'static str,
    plural: &'static str,
    short: &'static [&'static str],
    group: &'static str,
    /// The stored version first; it is the one in `apiVersion`. The other versions have the same
    /// content.
    versions: &'static [&'static str],
    namespaced: bool,
    verbs: &'static [&'static str],
    /// The subresources.
    subresources: &'static [Subresource],
}

const VERBS: &[&str] =
    &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
/// Namespaces have no deletecollection.
const VERBS_SINGLE: &[&str] = &["create", "delete", "get", "list", "patch", "update", "watch"];
const RBAC: &str = "rbac.authorization.k8s.io";

/// A namespaced kind of the core group with the usual verbs.
const PLAIN: Row = Row {
    kind: Kind::ConfigMap,
    name: "",
    plural: "",
    short: &[],
    group: "",
    versions: &["v1"],
    namespaced: true,
    verbs: VERBS,
    subresources: &[],
};

/// In the order of `Kind`.
const ROWS: [Row; 19] = [
    Row {
        kind: Kind::ClusterRole,
        name: "ClusterRole",
        plural: "clusterroles",
        group: RBAC,
        namespaced: false,
        ..PLAIN
    },
    Row {
        kind: Kind::ClusterRoleBinding,
        name: "ClusterRoleBinding",
        plural: "clusterrolebindings",
        group: RBAC,
        namespaced: false,
        ..PLAIN
    },
    Row { name: "ConfigMap", plural: "configmaps", short: &["cm"], ..PLAIN },
    Row { kind: Kind::Event, name: "Event", plural: "events", short: &["ev"], ..PLAIN },
    Row {
        kind: Kind::Job,
        name: "Job",
        plural: "jobs",
        group: "batch",
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::Lease,
        name: "Lease",
        plural: "leases",
        group: "coordination.k8s.io",
        ..PLAIN
    },
    Row {
        kind: Kind::LimitRange,
        name: "LimitRange",
        plural: "limitranges",
        short: &["limits"],
        ..PLAIN
    },
    Row {
        kind: Kind::Namespace,
        name: "Namespace",
        plural: "namespaces",
        short: &["ns"],
        namespaced: false,
        verbs: VERBS_SINGLE,
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::Node,
        name: "Node",
        plural: "nodes",
        short: &["no"],
        namespaced: false,
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::PersistentVolume,
        name: "PersistentVolume",
        plural: "persistentvolumes",
        short: &["pv"],
        namespaced: false,
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::PersistentVolumeClaim,
        name: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        short: &["pvc"],
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::Pod,
        name: "Pod",
        plural: "pods",
        short: &["po"],
        subresources: &[
            Subresource::Binding,
            Subresource::Eviction,
            Subresource::Exec,
            Subresource::Log,
            Subresource::Resize,
            Subresource::Status,
        ],
        ..PLAIN
    },
    Row {
        kind: Kind::PodDisruptionBudget,
        name: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        short: &["pdb"],
        group: "policy",
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::ResourceQuota,
        name: "ResourceQuota",
        plural: "resourcequotas",
        short: &["quota"],
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row { kind: Kind::Role, name: "Role", plural: "roles", group: RBAC, ..PLAIN },
    Row {
        kind: Kind::RoleBinding,
        name: "RoleBinding",
        plural: "rolebindings",
        group: RBAC,
        ..PLAIN
    },
    Row { kind: Kind::Secret, name: "Secret", plural: "secrets", ..PLAIN },
    Row {
        kind: Kind::Service,
        name: "Service",
        plural: "services",
        short: &["svc"],
        subresources: &[Subresource::Status],
        ..PLAIN
    },
    Row {
        kind: Kind::ServiceAccount,
        name: "ServiceAccount",
        plural: "serviceaccounts",
        short: &["sa"],
        subresources: &[Subresource::Token],
        ..PLAIN
    },
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

    /// The served versions of the group.
    pub(crate) fn versions(self) -> &'static [&'static str] {
        self.row().versions
    }

    /// `apiVersion` in a body.
    pub(crate) fn api_version(self) -> String {
        let row = self.row();
        match row.group {
            "" => row.versions[0].to_owned(),
            group => format!("{group}/{}", row.versions[0]),
        }
    }

    /// True if the objects live in a namespace.
    pub(crate) fn is_namespaced(self) -> bool {
        self.row().namespaced
    }

    /// The allowed verbs, in the order of discovery.
    pub(crate) fn verbs(self) -> &'static [&'static str] {
        self.row().verbs
    }

    /// The subresources.
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
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        Self::all()
            .find(|k| k.name() == kind && k.group() == group && k.versions().contains(&version))
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
