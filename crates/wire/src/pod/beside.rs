//! `beside`: places executors on the nodes where a pod with given labels runs, by pod affinity that
//! is added to the template's own.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::k8s::selector::selects;
use crate::pod::node_affinity::{PREFERRED, REQUIRED};
use crate::pod::template::{Template, TemplateError};

/// The label that has another value on every node.
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The largest weight of a preference (1 to 100).
const WEIGHT: u32 = 100;
const FIELD: &str = "spec.affinity";

/// The key `beside` of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beside {
    /// The labels of the pods that the executors are placed beside; at least one.
    pub labels: BTreeMap<String, String>,
    /// Executors wait if no such node has room. Otherwise the scheduler only prefers these nodes.
    pub is_required: bool,
}

impl Template {
    /// Adds the pod affinity. What the template says about affinity stays.
    ///
    /// # Errors
    /// The template names its node, or no node can meet both `beside` and the template; or a field
    /// has the wrong type.
    pub fn place_beside(&mut self, beside: &Beside) -> Result<(), TemplateError> {
        let mut spec = std::mem::take(&mut self.spec);
        let done =
            self.check_beside(beside, &spec).and_then(|()| self.add_beside(beside, &mut spec));
        self.spec = spec;
        done
    }

    fn add_beside(
        &self,
        beside: &Beside,
        spec: &mut Map<String, Value>,
    ) -> Result<(), TemplateError> {
        let affinity = self.map(spec, "affinity", FIELD)?;
        let field = format!("{FIELD}.podAffinity");
        let pods = self.map(affinity, "podAffinity", &field)?;
        // Without namespaces the term is about pods of the executor's own namespace.
        let term =
            json!({ "labelSelector": { "matchLabels": beside.labels }, "topologyKey": HOSTNAME });
        let (list, item) = match beside.is_required {
            true => (REQUIRED, term),
            false => (PREFERRED, json!({ "weight": WEIGHT, "podAffinityTerm": term })),
        };
        let list = self.list(pods, list, &format!("{field}.{list}"))?;
        if !list.contains(&item) {
            list.push(item);
        }
        Ok(())
    }

    /// An error if the template makes `beside` impossible or useless.
    fn check_beside(
        &self,
        beside: &Beside,
        spec: &Map<String, Value>,
    ) -> Result<(), TemplateError> {
        let named = spec.get("nodeName").and_then(Value::as_str).filter(|name| !name.is_empty());
        if let Some(name) = named {
            let message = format!(
                "names the node {name}, so no scheduler looks at `beside`: leave one of the two out"
            );
            return Err(self.fail("spec.nodeName", message));
        }
        for (kind, problem) in [
            ("podAntiAffinity", excludes as fn(&Value, &Beside) -> bool),
            ("podAffinity", contradicts),
        ] {
            let terms =
                spec.get("affinity").and_then(|all| all.get(kind)?.get(REQUIRED)?.as_array());
            let found = terms.and_then(|terms| terms.iter().position(|term| problem(term, beside)));
            // A preference beside another requirement is weak, but not a contradiction.
            let Some(i) = found.filter(|_| beside.is_required || kind == "podAntiAffinity") else {
                continue;
            };
            let labels: Vec<String> =
                beside.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let labels = labels.join(",");
            let message = match kind {
                "podAffinity" => format!(
                    "requires a pod that cannot have the labels {labels} of `beside`, and the \
                     scheduler looks for one pod that meets all requirements: leave one of the two out"
                ),
                _ => format!(
                    "excludes every node with a pod of the labels {labels}, which `beside` asks for: \
                     leave one of the two out"
                ),
            };
            return Err(self.fail(&format!("{FIELD}.{kind}.{REQUIRED}[{i}]"), message));
        }
        Ok(())
    }
}

/// True if the anti-affinity term excludes each node on which `beside` could place the executor.
fn excludes(term: &Value, beside: &Beside) -> bool {
    let is_given = |key: &str| {
        term.get(key).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty()))
    };
    // A term with these is about pods of other namespaces, or about further labels.
    let others = ["namespaces", "namespaceSelector", "matchLabelKeys", "mismatchLabelKeys"];
    let is_on_node = term.get("topologyKey").is_some_and(|key| key == HOSTNAME);
    // An absent selector matches no pod, an empty one matches all.
    let selector = term.get("labelSelector").filter(|selector| selector.is_object());
    is_on_node
        && !others.into_iter().any(is_given)
        && selector.is_some_and(|selector| selects_all(selector, &beside.labels))
}

/// True if every pod with these labels matches the selector, whatever other labels it has.
fn selects_all(selector: &Value, labels: &BTreeMap<String, String>) -> bool {
    let rules = selector.get("matchExpressions").and_then(Value::as_array);
    let is_known = |rule: &Value| rule["key"].as_str().is_some_and(|key| labels.contains_key(key));
    let labels_json = labels.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
    rules.into_iter().flatten().all(is_known) && selects(selector, &labels_json)
}

/// True if no pod matches both the affinity term and `beside`. kube-scheduler counts only pods that
/// match all required terms (`updateWithAffinityTerms` in its plugin InterPodAffinity).
fn contradicts(term: &Value, beside: &Beside) -> bool {
    let pairs =
        term.get("labelSelector").and_then(|selector| selector.get("matchLabels")?.as_object());
    let differs = |(key, value): (&String, &Value)| {
        beside.labels.get(key).is_some_and(|label| value != label)
    };
    pairs.into_iter().flatten().any(differs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(is_required: bool) -> Beside {
        let labels = [("app", "shuffle"), ("version", "3.5")];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        Beside { labels, is_required }
    }

    /// The affinity of a pod with this spec that is placed beside others, or the error.
    fn placed(spec: &str, is_required: bool) -> Result<Value, String> {
        let text = format!("spec: {{containers: [{{name: c}}], {spec}}}");
        let mut template = Template::parse("t.yaml", &text).unwrap();
        let before = template.spec.clone();
        // Twice: what is there already is not added again.
        for _ in 0..2 {
            if let Err(error) = template.place_beside(&beside(is_required)) {
                assert_eq!(template.spec, before, "nothing half-done");
                return Err(error.to_string());
            }
        }
        let mut spec = template.spec.clone();
        let affinity = spec.remove("affinity").unwrap();
        let mut before = before;
        before.remove("affinity");
        assert_eq!(spec, before, "nothing else changes");
        Ok(affinity)
    }

    #[test]
    fn the_affinity_is_added_to_the_templates_own() {
        let term = json!({"topologyKey": HOSTNAME,
            "labelSelector": {"matchLabels": {"app": "shuffle", "version": "3.5"}}});
        let prefers = json!({"weight": 100, "podAffinityTerm": term});
        let zone = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"tier": "x"}}});
        let theirs = "{topologyKey: zone, labelSelector: {matchLabels: {tier: x}}}";
        for (spec, is_required, want) in [
            ("", true, json!({"podAffinity": {REQUIRED: [term]}})),
            ("affinity: ", true, json!({"podAffinity": {REQUIRED: [term]}})),
            ("", false, json!({"podAffinity": {PREFERRED: [prefers]}})),
            (
                "affinity: {nodeAffinity: {x: 1}, podAntiAffinity: {y: 2}}",
                true,
                json!({"nodeAffinity": {"x": 1}, "podAntiAffinity": {"y": 2},
                    "podAffinity": {REQUIRED: [term]}}),
            ),
            (
                &format!("affinity: {{podAffinity: {{{REQUIRED}: [{theirs}]}}}}"),
                true,
                json!({"podAffinity": {REQUIRED: [zone, term]}}),
            ),
            (
                &format!("affinity: {{podAffinity: {{{REQUIRED}: [{theirs}]}}}}"),
                false,
                json!({"podAffinity": {REQUIRED: [zone], PREFERRED: [prefers]}}),
            ),
        ] {
            assert_eq!(placed(spec, is_required), Ok(want), "{spec} {is_required}");
        }
    }

    #[test]
    fn a_template_that_makes_it_impossible_is_an_error() {
        let anti = |rest: &str| {
            format!(
                "affinity: {{podAntiAffinity: {{{REQUIRED}: [{{topologyKey: zone}}, {{{rest}}}]}}}}"
            )
        };
        let host = |selector: &str| {
            anti(&format!("topologyKey: kubernetes.io/hostname, labelSelector: {{{selector}}}"))
        };
        let excluded = format!(
            "t.yaml: spec.affinity.podAntiAffinity.{REQUIRED}[1]: excludes every node with a pod of \
             the labels app=shuffle,version=3.5"
        );
        for (spec, want) in [
            (host("matchLabels: {app: shuffle}"), Some(&*excluded)),
            (host(""), Some(&*excluded)),
            (
                host("matchExpressions: [{key: app, operator: In, values: [a, shuffle]}]"),
                Some(&*excluded),
            ),
            (host("matchExpressions: [{key: app, operator: Exists}]"), Some(&*excluded)),
            (
                host("matchExpressions: [{key: app, operator: NotIn, values: [b]}]"),
                Some(&*excluded),
            ),
            (host("matchExpressions: [{key: app, operator: NotIn, values: [shuffle]}]"), None),
            (host("matchExpressions: [{key: other, operator: DoesNotExist}]"), None),
            (host("matchLabels: {app: shuffle, other: x}"), None),
            (host("matchLabels: {app: other}"), None),
            (anti("topologyKey: kubernetes.io/hostname"), None),
            (anti("topologyKey: zone, labelSelector: {}"), None),
            (anti("topologyKey: kubernetes.io/hostname, labelSelector: {}, namespaces: [x]"), None),
            (
                "nodeName: n1".to_owned(),
                Some("t.yaml: spec.nodeName: names the node n1, so no scheduler looks at `beside`"),
            ),
            ("affinity: x".to_owned(), Some("t.yaml: spec.affinity: expected a map, found `x`")),
            (
                "affinity: {podAffinity: []}".to_owned(),
                Some("t.yaml: spec.affinity.podAffinity: expected a map, found a list"),
            ),
        ] {
            for is_required in [true, false] {
                match (placed(&spec, is_required), want) {
                    (Ok(_), None) => {}
                    (Err(got), Some(want)) => assert!(got.starts_with(want), "{spec}\n{got}"),
                    (got, want) => panic!("{spec}: {got:?}, not {want:?}"),
                }
            }
        }
    }

    #[test]
    fn two_requirements_that_no_pod_meets_are_an_error() {
        let spec = format!(
            "affinity: {{podAffinity: {{{REQUIRED}: [
                {{topologyKey: zone, labelSelector: {{matchLabels: {{app: cache}}}}}}]}}}}"
        );
        let error = placed(&spec, true).unwrap_err();
        let want =
            format!("t.yaml: spec.affinity.podAffinity.{REQUIRED}[0]: requires a pod that cannot");
        assert!(error.starts_with(&want), "{error}");
        placed(&spec, false).unwrap();
    }
}
