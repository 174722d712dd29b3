//! Owns the resource types that the embedded cluster stores, and how each is named in paths, bodies
//! and messages. No behaviour beyond names.

use std::fmt;

/// A stored resource type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lease,
    Namespace,
    Node,
    Pod,
}

impl Kind {
    /// All of them, in the order of discovery.
    pub(crate) const ALL: [Self; 4] = [Self::Namespace, Self::Node, Self::Pod, Self::Lease];

    /// `kind` in a body.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Lease => "Lease",
            Self::Namespace => "Namespace",
            Self::Node => "Node",
            Self::Pod => "Pod",
        }
    }

    /// The word in a path.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Lease => "leases",
            Self::Namespace => "namespaces",
            Self::Node => "nodes",
            Self::Pod => "pods",
        }
    }

    /// The API group; empty for the core one.
    pub(crate) fn group(self) -> &'static str {
        match self {
            Self::Lease => "coordination.k8s.io",
            Self::Namespace | Self::Node | Self::Pod => "",
        }
    }

    /// `apiVersion` in a body.
    pub(crate) fn api_version(self) -> &'static str {
        match self {
            Self::Lease => "coordination.k8s.io/v1",
            Self::Namespace | Self::Node | Self::Pod => "v1",
        }
    }

    /// True where objects live in a namespace.
    pub(crate) fn is_namespaced(self) -> bool {
        match self {
            Self::Lease | Self::Pod => true,
            Self::Namespace | Self::Node => false,
        }
    }

    /// What the server allows, in the order of discovery. Nodes are the cluster's own.
    pub(crate) fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Lease | Self::Pod => {
                &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
            }
            Self::Namespace => &["create", "delete", "get", "list", "patch", "update", "watch"],
            Self::Node => &["get", "list", "watch"],
        }
    }

    /// The resource as messages name it: `pods`, `leases.coordination.k8s.io`.
    pub(crate) fn resource(self) -> String {
        qualified(self.plural(), self.group())
    }

    /// Reads the `apiVersion` and `kind` of a reference; none for types that are not stored here.
    pub(crate) fn of_reference(api_version: &str, kind: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|k| k.name() == kind && k.api_version() == api_version)
    }
}

/// `name`, with the group after a dot where there is one.
pub(crate) fn qualified(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// Where an object is stored. The namespace of a cluster-wide one is empty.
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
