//! Affinity and anti-affinity to pods of the same namespace, as the plugin InterPodAffinity of
//! kube-scheduler judges them. The anti-affinity of other pods does not count.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::apiserver::selector::LabelSelector;
use crate::storage::object::{array_at, labels_of, text_at};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

type Labels = BTreeMap<String, String>;

/// A label of nodes and its value: the nodes that have it are one place.
type TopologyPair = (String, String);

/// What other pods' terms look at.
#[derive(Clone, Debug, Default)]
pub(super) struct PodLabels {
    namespace: Box<str>,
    labels: Box<[(Box<str>, Box<str>)]>,
}

/// The affinity of a pod to other pods.
#[derive(Clone, Debug, Default)]
pub(super) struct PodAffinity {
    required: Vec<Term>,
    /// The required anti-affinity.
    excluded: Vec<Term>,
    /// With their weights; those of the anti-affinity are negative.
    preferred: Vec<(i64, Term)>,
}

#[derive(Clone, Debug)]
struct Term {
    /// `None` if it is absent or cannot be parsed: it matches no pod.
    selector: Option<LabelSelector>,
    topology_key: String,
}

/// Where one new pod may be placed because of the pods that have a node.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Each required topology label, and the places that have a matching pod.
    required: Vec<(String, BTreeSet<TopologyPair>)>,
    /// No pod matches the required terms except the new one: it may be the first.
    is_first: bool,
    excluded: BTreeSet<TopologyPair>,
    scores: BTreeMap<TopologyPair, i64>,
}

impl PodLabels {
    pub(super) fn from_pod(pod: &Value) -> Self {
        Self { namespace: text_at(pod, "/metadata/namespace").into(), labels: labels_of(pod) }
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.labels.iter().find(|(name, _)| **name == *key).map(|(_, value)| &**value)
    }
}

impl PodAffinity {
    /// None if the pod has no affinity to other pods.
    pub(super) fn from_pod(pod: &Value) -> Option<Self> {
        let affinity = pod.pointer("/spec/affinity")?;
        let terms = |kind: &str| -> Vec<Term> {
            let terms = array_at(affinity, &format!("/{kind}/{REQUIRED}"));
            terms.iter().map(Term::parse).collect()
        };
        let preferred = |kind: &str, sign: i64| -> Vec<(i64, Term)> {
            let terms = array_at(affinity, &format!("/{kind}/{PREFERRED}"));
            let parsed = terms.iter().map(|term| {
                let weight = term["weight"].as_i64().unwrap_or_default();
                (sign * weight, Term::parse(&term["podAffinityTerm"]))
            });
            parsed.collect()
        };
        let mut all = preferred("podAffinity", 1);
        all.extend(preferred("podAntiAffinity", -1));
        let affinity = Self {
            required: terms("podAffinity"),
            excluded: terms("podAntiAffinity"),
            preferred: all,
        };
        let Self { required, excluded, preferred } = &affinity;
        let is_empty = required.is_empty() && excluded.is_empty() && preferred.is_empty();
        (!is_empty).then_some(affinity)
    }
}

impl Term {
    fn parse(term: &Value) -> Self {
        let selector = term.get("labelSelector").filter(|selector| selector.is_object());
        Self {
            selector: selector.and_then(LabelSelector::of_object),
            topology_key: text_at(term, "/topologyKey").to_owned(),
        }
    }

    fn matches(&self, pod: &PodLabels) -> bool {
        self.selector.as_ref().is_some_and(|selector| selector.matches(|key| pod.get(key)))
    }
}

/// The place of a node, if the node has the label.
fn place(key: &str, node: &Labels) -> Option<TopologyPair> {
    node.get(key).map(|value| (key.to_owned(), value.clone()))
}

impl Surroundings {
    /// `others`: the pods that have a node, with the labels of the node.
    pub(super) fn of<'a>(
        pod: &PodLabels,
        affinity: &PodAffinity,
        others: impl Iterator<Item = (&'a Labels, &'a PodLabels)>,
    ) -> Self {
        let PodAffinity { required, excluded, preferred } = affinity;
        let mut around = Self {
            required: required
                .iter()
                .map(|term| (term.topology_key.clone(), BTreeSet::new()))
                .collect(),
            ..Self::default()
        };
        // kube-scheduler counts only pods that match all required terms.
        let matches_required = |pod: &PodLabels| required.iter().all(|term| term.matches(pod));
        let others = others.filter(|(_, other)| other.namespace == pod.namespace);
        for (node, other) in others {
            if matches_required(other) {
                for (term, (_, places)) in required.iter().zip(&mut around.required) {
                    places.extend(place(&term.topology_key, node));
                }
            }
            let apart = excluded.iter().filter(|term| term.matches(other));
            around.excluded.extend(apart.filter_map(|term| place(&term.topology_key, node)));
            for (weight, term) in preferred.iter().filter(|(_, term)| term.matches(other)) {
                if let Some(place) = place(&term.topology_key, node) {
                    *around.scores.entry(place).or_default() += weight;
                }
            }
        }
        let is_alone = around.required.iter().all(|(_, places)| places.is_empty());
        around.is_first = is_alone && matches_required(pod);
        around
    }

    /// Why the node does not fit, in the words of kube-scheduler.
    pub(super) fn unfit_reason(&self, node: &Labels) -> Option<&'static str> {
        let has_label = |(key, _): &(String, BTreeSet<TopologyPair>)| node.contains_key(key);
        let has_pod = |(key, places): &(String, BTreeSet<TopologyPair>)| {
            place(key, node).is_some_and(|place| places.contains(&place))
        };
        let fits = self.required.iter().all(has_label)
            && (self.is_first || self.required.iter().all(has_pod));
        if !fits {
            Some("node(s) didn't match pod affinity rules")
        } else if self.excluded.iter().any(|(key, value)| node.get(key) == Some(value)) {
            Some("node(s) didn't match pod anti-affinity rules")
        } else {
            None
        }
    }

    /// True if the pod prefers some nodes.
    pub(super) fn has_scores(&self) -> bool {
        !self.scores.is_empty()
    }

    /// How much the pod prefers the node.
    pub(super) fn score(&self, node: &Labels) -> i64 {
        let here = self.scores.iter().filter(|((key, value), _)| node.get(key) == Some(value));
        here.map(|(_, weight)| weight).sum()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, labels: Value, affinity: Value) -> Value {
        json!({"metadata": {"namespace": namespace, "labels": labels}, "spec": {"affinity": affinity}})
    }

    fn term(app: &str, key: &str) -> Value {
        json!({"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key})
    }

    /// What a new pod with this affinity meets on the nodes a (zone 1), b and c (zone 2), and its score.
    /// On a is a pod `app: x`, on b one `app: y`, on c one of another namespace.
    #[track_caller]
    fn check(labels: Value, affinity: Value, want: [(&str, i64); 3]) {
        let nodes: Vec<Labels> = [("a", "1"), ("b", "2"), ("c", "2")]
            .into_iter()
            .map(|(name, zone)| [("host", name), ("zone", zone)])
            .map(|labels| labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into())
            .collect();
        let others = [
            (&nodes[0], pod("n", json!({"app": "x", "both": "1"}), Value::Null)),
            (&nodes[1], pod("n", json!({"app": "y"}), Value::Null)),
            (&nodes[2], pod("other", json!({"app": "x"}), Value::Null)),
        ];
        let others: Vec<_> =
            others.iter().map(|(node, pod)| (*node, PodLabels::from_pod(pod))).collect();
        let others = others.iter().map(|(node, labels)| (*node, labels));
        let new = pod("n", labels, affinity.clone());
        let own = PodAffinity::from_pod(&new).unwrap_or_default();
        let around = Surroundings::of(&PodLabels::from_pod(&new), &own, others);
        for (node, (reason, score)) in nodes.iter().zip(want) {
            let got = around.unfit_reason(node).unwrap_or_default();
            assert!(
                got.contains(reason) && got.is_empty() == reason.is_empty(),
                "{affinity}: {got}"
            );
            assert_eq!(around.score(node), score, "{affinity} on {node:?}");
        }
    }

    #[test]
    fn required_terms_choose_among_nodes() {
        let (far, fits) = (("didn't match pod affinity", 0), ("", 0));
        let needs = |terms: Value| json!({"podAffinity": {REQUIRED: terms}});
        check(json!({}), Value::Null, [fits; 3]);
        check(json!({}), needs(json!([term("x", "host")])), [fits, far, far]);
        check(json!({}), needs(json!([term("y", "zone")])), [far, fits, fits]);
        check(json!({}), needs(json!([term("y", "rack")])), [far; 3]);
        check(json!({}), needs(json!([term("z", "host")])), [far; 3]);
        // One pod has to match all terms.
        check(json!({}), needs(json!([term("x", "host"), term("y", "zone")])), [far; 3]);
        // The first pod of a series that wants to be together.
        check(json!({"app": "z"}), needs(json!([term("z", "host")])), [fits; 3]);
        check(json!({"app": "z"}), needs(json!([term("z", "rack")])), [far; 3]);
        check(json!({}), needs(json!([{"topologyKey": "host"}])), [far; 3]);
    }

    #[test]
    fn anti_affinity_excludes_places() {
        let (near, fits) = (("didn't match pod anti-affinity", 0), ("", 0));
        let avoids = |term: Value| json!({"podAntiAffinity": {REQUIRED: [term]}});
        check(json!({}), avoids(term("x", "host")), [near, fits, fits]);
        check(json!({}), avoids(term("y", "zone")), [fits, near, near]);
        check(json!({}), avoids(term("y", "host")), [fits, near, fits]);
    }

    #[test]
    fn preferences_are_scores() {
        let prefers = |kind: &str, weight: i64, term: Value| json!({kind: {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}});
        check(
            json!({}),
            prefers("podAffinity", 100, term("y", "zone")),
            [("", 0), ("", 100), ("", 100)],
        );
        check(
            json!({}),
            prefers("podAntiAffinity", 3, term("x", "host")),
            [("", -3), ("", 0), ("", 0)],
        );
        check(json!({}), prefers("podAffinity", 5, term("z", "host")), [("", 0); 3]);
    }
}
