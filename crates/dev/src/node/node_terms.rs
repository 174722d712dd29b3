//! Node selector terms: which nodes a pod or a volume allows.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::apiserver::selector::LabelSelector;
use crate::storage::object::array_at;

/// The `nodeSelectorTerms` of a node selector: one of them has to match.
#[derive(Clone, Debug)]
pub(super) struct NodeTerms(Vec<NodeSelectorTerm>);

/// A `nodeSelectorTerm`. Without requirements it matches no node.
#[derive(Clone, Debug, Default)]
struct NodeSelectorTerm {
    labels: Option<LabelSelector>,
    fields: Option<LabelSelector>,
}

impl NodeTerms {
    /// The terms of a node selector.
    pub(super) fn parse(selector: &Value) -> Self {
        let terms = array_at(selector, "/nodeSelectorTerms").iter();
        Self(terms.map(NodeSelectorTerm::parse).collect())
    }

    /// True if the node with this name and these labels matches.
    pub(super) fn accept(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let field = |key: &str| (key == "metadata.name").then_some(name);
        self.0.iter().any(|term| {
            // Kubernetes: a null or empty node selector term matches no objects.
            (term.labels.is_some() || term.fields.is_some())
                && term.labels.as_ref().is_none_or(|labels| labels.matches(label))
                && term.fields.as_ref().is_none_or(|fields| fields.matches(field))
        })
    }
}

impl NodeSelectorTerm {
    fn parse(term: &Value) -> Self {
        let selector = |list: &str| match array_at(term, list) {
            [] => Some(None),
            items => LabelSelector::of_object(&json!({ "matchExpressions": items })).map(Some),
        };
        match (selector("/matchExpressions"), selector("/matchFields")) {
            (Some(labels), Some(fields)) => Self { labels, fields },
            // A term that cannot be parsed matches nothing.
            _ => Self::default(),
        }
    }
}
