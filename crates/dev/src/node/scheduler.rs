//! The scheduler: binds pods to nodes that fit, and reports why no node fits in the words of
//! kube-scheduler.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::affinity::{PodAffinity, PodLabels, Surroundings};
use super::node_terms::NodeTerms;
use super::nodes::CORDON;
use super::pod_claims;
use crate::apiserver::api::Api;
use crate::apiserver::selector::LabelSelector;
use crate::schema::kind::Key;
use crate::storage::events::{self, Note};
use crate::storage::object::{Object, array_at, text_at};
use crate::storage::pods::{GATED, bind_to, set_condition, tolerates};
use posse_encoding::amounts::{Amounts, pod_requests};
use posse_encoding::quantity::Quantity;

/// What a pod requires of its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Requirements {
    requests: Amounts,
    /// From `nodeSelector`.
    labels: Option<LabelSelector>,
    /// From the required node affinity.
    terms: Option<NodeTerms>,
    /// From the preferred node affinity, with their weights.
    preferred: Vec<(i64, NodeTerms)>,
    tolerations: Vec<Value>,
    gated: bool,
    pod_labels: PodLabels,
    affinity: Option<PodAffinity>,
    claims: Vec<String>,
}

/// A node as the scheduler sees it.
#[derive(Clone, Debug, Default)]
struct NodeInfo {
    labels: BTreeMap<String, String>,
    taints: Vec<Value>,
    unschedulable: bool,
    allocatable: Amounts,
    used: Amounts,
    n_pods: i64,
}

/// A pod that is on a node.
#[derive(Debug)]
struct AssignedPod {
    uid: Box<str>,
    node: String,
    requests: Amounts,
    labels: PodLabels,
}

/// A pod that has no node yet.
#[derive(Debug)]
struct PendingPod {
    key: Key,
    uid: Box<str>,
    version: u64,
    requirements: Requirements,
    /// The last message in its `PodScheduled` condition.
    message: String,
}

/// Binds pods to nodes. If several nodes fit, they get pods in turn.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    nodes: BTreeMap<String, NodeInfo>,
    assigned: BTreeMap<Key, AssignedPod>,
    /// Pending pods by their position in the queue.
    pending: BTreeMap<u64, PendingPod>,
    positions: BTreeMap<Key, u64>,
    n_queued: u64,
    /// Positions of pods that were not tried yet.
    untried: BTreeSet<u64>,
    /// A node or an assigned pod has changed: try all pending pods again.
    retry_all: bool,
    /// A pod was assigned, which may matter to those with affinity.
    retry_affine: bool,
    retry_claiming: bool,
    /// Where the search for a node starts.
    next_node: usize,
}

impl Scheduler {
    /// Replaces the nodes. Assigned pods stay assigned.
    pub(super) fn set_nodes(&mut self, nodes: &[Arc<Object>]) {
        let mut infos: BTreeMap<String, NodeInfo> = nodes
            .iter()
            .map(|node| (node.key.name.clone(), NodeInfo::from_node(&node.value())))
            .collect();
        for assigned in self.assigned.values() {
            if let Some(info) = infos.get_mut(&assigned.node) {
                info.add(&assigned.requests);
            }
        }
        self.nodes = infos;
        self.retry_all = true;
    }

    /// All assigned and pending pods.
    pub(super) fn known(&self) -> impl Iterator<Item = Key> {
        self.assigned.keys().chain(self.positions.keys()).cloned()
    }

    /// True if the pod with this uid is assigned to a node.
    pub(super) fn is_assigned(&self, key: &Key, uid: &str) -> bool {
        self.assigned.get(key).is_some_and(|assigned| &*assigned.uid == uid)
    }

    /// True if this version of the pod is pending already.
    pub(super) fn is_pending(&self, key: &Key, version: u64) -> bool {
        let pending = self.positions.get(key).and_then(|position| self.pending.get(position));
        pending.is_some_and(|pending| pending.version == version)
    }

    /// Queues a pod that has no node. Pods of another scheduler are ignored.
    pub(super) fn add(&mut self, key: &Key, object: &Object) {
        let pod = object.value();
        let message = self.remove_pending(key, &object.uid);
        self.unassign(key);
        // A claim that does not exist keeps a pod out of the queue, without a condition.
        let has_claims = !array_at(&pod, "/spec/resourceClaims").is_empty();
        if has_claims || text_at(&pod, "/spec/schedulerName") != "default-scheduler" {
            return;
        }
        self.n_queued += 1;
        let position = self.n_queued;
        let pending = PendingPod {
            key: key.clone(),
            uid: object.uid.clone(),
            version: object.version,
            requirements: Requirements::from_pod(&pod),
            message: message.unwrap_or_default(),
        };
        self.pending.insert(position, pending);
        self.positions.insert(key.clone(), position);
        self.untried.insert(position);
    }

    /// Counts the pod's requests against its node.
    pub(super) fn assign(&mut self, key: &Key, uid: &str, node: &str, requirements: &Requirements) {
        self.remove_pending(key, uid);
        self.unassign(key);
        if let Some(info) = self.nodes.get_mut(node) {
            info.add(&requirements.requests);
        }
        let Requirements { requests, pod_labels, .. } = requirements.clone();
        let (uid, node) = (uid.into(), node.to_owned());
        let assigned = AssignedPod { uid, node, requests, labels: pod_labels };
        self.assigned.insert(key.clone(), assigned);
        self.retry_affine = true;
    }

    /// A claim or a volume has changed: tries the pods with claims again.
    pub(super) fn on_claim_change(&mut self) {
        self.retry_claiming = true;
    }

    /// Forgets a pod that has ended or was deleted.
    pub(super) fn release(&mut self, key: &Key) {
        self.remove_pending(key, "");
        self.unassign(key);
    }

    fn unassign(&mut self, key: &Key) {
        let Some(assigned) = self.assigned.remove(key) else { return };
        if let Some(info) = self.nodes.get_mut(&assigned.node) {
            info.remove(&assigned.requests);
            self.retry_all = true;
        }
    }

    /// Removes a pod from the queue. Returns its last message if the uid matches.
    fn remove_pending(&mut self, key: &Key, uid: &str) -> Option<String> {
        let position = self.positions.remove(key)?;
        self.untried.remove(&position);
        let pending = self.pending.remove(&position)?;
        (&*pending.uid == uid).then_some(pending.message)
    }

    /// Binds all pods that fit a node now. Returns these pods with their nodes.
    pub(super) fn run(&mut self, api: &Api) -> Vec<(Key, String)> {
        let all = std::mem::take(&mut self.retry_all);
        let affine = std::mem::take(&mut self.retry_affine);
        let claiming = std::mem::take(&mut self.retry_claiming);
        let mut positions = std::mem::take(&mut self.untried);
        if all || affine || claiming {
            let again = self.pending.iter().filter(|(_, PendingPod { requirements, .. })| {
                all || affine && requirements.affinity.is_some()
                    || claiming && !requirements.claims.is_empty()
            });
            positions.extend(again.map(|(position, _)| *position));
        }
        let mut bound = Vec::new();
        for position in positions {
            let Some(pending) = self.pending.get(&position) else { continue };
            let around = self.surroundings(&pending.requirements);
            let Some(pending) = self.pending.get_mut(&position) else { continue };
            let requirements = &pending.requirements;
            let volumes = match requirements.claims.as_slice() {
                [] => Ok(Vec::new()),
                claims => {
                    let namespace = &pending.key.namespace;
                    pod_claims::allowed_nodes(&api.lock().store, namespace, claims)
                }
            };
            let next_node = &mut self.next_node;
            let chosen = choose_node(&self.nodes, requirements, &volumes, &around, next_node);
            let node = match chosen {
                Ok(node) => node,
                Err(message) => {
                    if pending.message != message {
                        report_unschedulable(api, pending, &message);
                        pending.message = message;
                    }
                    continue;
                }
            };
            let PendingPod { key, uid, requirements, .. } = &*pending;
            let (key, uid, requirements) = (key.clone(), uid.clone(), requirements.clone());
            let result = bind_to(&mut api.lock(), &key, &node);
            match result {
                Ok(()) => {
                    self.assign(&key, &uid, &node, &requirements);
                    bound.push((key, node));
                }
                // The pod was deleted or bound by another client. The next change shows which.
                Err(refused) => log::debug!("cannot bind pod {key} to {node}: {}", refused.message),
            }
        }
        bound
    }

    /// What the assigned pods mean for a new pod. Costs nothing while no pod has such an affinity.
    fn surroundings(&self, requirements: &Requirements) -> Surroundings {
        let Some(affinity) = &requirements.affinity else { return Surroundings::default() };
        let others = self.assigned.values().filter_map(|other| {
            let node = self.nodes.get(&other.node)?;
            Some((&node.labels, &other.labels))
        });
        Surroundings::of(&requirements.pod_labels, affinity, others)
    }
}

/// Sets the pod's `PodScheduled` condition to the reason why no node fits.
fn report_unschedulable(api: &Api, pending: &PendingPod, message: &str) {
    let mut state = api.lock();
    let Some(object) = state.store.get(&pending.key).cloned() else { return };
    if object.uid != pending.uid {
        return;
    }
    let reason = if pending.requirements.gated { "SchedulingGated" } else { "Unschedulable" };
    let now = state.now.clone();
    let before = object.value();
    let mut pod = before.clone();
    set_condition(&mut pod, "PodScheduled", "False", reason, message, &now);
    if pod == before {
        return;
    }
    state.replace(object.key.kind, pod);
    if !pending.requirements.gated {
        let note = Note {
            warning: true,
            reason: "FailedScheduling",
            message,
            component: "default-scheduler",
            ..Note::default()
        };
        events::record(&mut state, &object, &note);
    }
}

/// The node for a pod, or kube-scheduler's message if none fits. `volumes`: the nodes that its volumes
/// allow. The search starts at `next_node`; without preferences it ends at the first node that fits.
fn choose_node(
    nodes: &BTreeMap<String, NodeInfo>,
    requirements: &Requirements,
    volumes: &Result<Vec<NodeTerms>, String>,
    around: &Surroundings,
    next_node: &mut usize,
) -> Result<String, String> {
    if requirements.gated {
        return Err(GATED.to_owned());
    }
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let volumes = match volumes {
        Ok(volumes) => volumes,
        Err(why) => return Err(format!("0/{n} nodes are available: {n} {why}.", n = nodes.len())),
    };
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let first = *next_node % nodes.len();
    let in_turn = nodes.iter().skip(first).chain(nodes.iter().take(first));
    let mut best: Option<(i64, usize, &String)> = None;
    for (step, (name, info)) in in_turn.enumerate() {
        let unfit_reasons = info.unfit_reasons(name, requirements, volumes, around);
        if unfit_reasons.is_empty() {
            let score = around.score(&info.labels) + requirements.score(name, &info.labels);
            if best.is_none_or(|(highest, ..)| score > highest) {
                best = Some((score, first + step + 1, name));
            }
            if !around.has_scores() && requirements.preferred.is_empty() {
                break;
            }
        }
        for reason in unfit_reasons {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    if let Some((_, next, name)) = best {
        *next_node = next;
        return Ok(name.clone());
    }
    let mut counted: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    counted.sort();
    Err(format!("0/{} nodes are available: {}.", nodes.len(), counted.join(", ")))
}

impl NodeInfo {
    fn from_node(node: &Value) -> Self {
        let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
        let repels =
            |taint: &&Value| matches!(text_at(taint, "/effect"), "NoSchedule" | "NoExecute");
        Self {
            labels: labels.collect(),
            taints: array_at(node, "/spec/taints").iter().filter(repels).cloned().collect(),
            unschedulable: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            allocatable: Amounts::read(node, "/status/allocatable"),
            used: Amounts::default(),
            n_pods: 0,
        }
    }

    fn add(&mut self, requests: &Amounts) {
        self.n_pods += 1;
        self.used.add(requests);
    }

    fn remove(&mut self, requests: &Amounts) {
        self.n_pods -= 1;
        for (name, amount) in &requests.0 {
            if let Some(used) = self.used.0.get_mut(name) {
                *used = used.minus(*amount);
            }
        }
    }

    /// Why the pod does not fit this node. Only the first failing filter counts, as in
    /// kube-scheduler.
    fn unfit_reasons(
        &self,
        name: &str,
        requirements: &Requirements,
        volumes: &[NodeTerms],
        around: &Surroundings,
    ) -> Vec<String> {
        let tolerated = |taint: &Value| {
            requirements.tolerations.iter().any(|toleration| tolerates(toleration, taint))
        };
        let cordon = serde_json::json!({ "key": CORDON, "effect": "NoSchedule" });
        if self.unschedulable && !tolerated(&cordon) {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if let Some(taint) = self.taints.iter().find(|taint| !tolerated(taint)) {
            let (key, value) = (text_at(taint, "/key"), text_at(taint, "/value"));
            return vec![format!("node(s) had untolerated taint {{{key}: {value}}}")];
        }
        if !requirements.accept(name, &self.labels) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        let mut reasons = Vec::new();
        let zero = Quantity::whole(0);
        let of = |amounts: &Amounts, name: &str| amounts.get(name).unwrap_or(zero);
        if Quantity::whole(self.n_pods + 1).exceeds(of(&self.allocatable, "pods")) {
            reasons.push("Too many pods".to_owned());
        }
        for (name, request) in
            requirements.requests.0.iter().filter(|(_, request)| !request.is_zero())
        {
            if of(&self.used, name).plus(*request).exceeds(of(&self.allocatable, name)) {
                reasons.push(format!("Insufficient {name}"));
            }
        }
        if reasons.is_empty() && !volumes.iter().all(|terms| terms.accept(name, &self.labels)) {
            reasons.push("node(s) had volume node affinity conflict".to_owned());
        }
        if reasons.is_empty() {
            reasons.extend(around.unfit_reason(&self.labels).map(str::to_owned));
        }
        reasons
    }
}

impl Requirements {
    pub(super) fn from_pod(pod: &Value) -> Self {
        let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let terms = pod.pointer(required).map(NodeTerms::parse);
        let preferred =
            "/spec/affinity/nodeAffinity/preferredDuringSchedulingIgnoredDuringExecution";
        let preferred = array_at(pod, preferred).iter().map(|term| {
            let terms = serde_json::json!({ "nodeSelectorTerms": [term["preference"]] });
            (term["weight"].as_i64().unwrap_or_default(), NodeTerms::parse(&terms))
        });
        let selector = serde_json::json!({ "matchLabels": pod["spec"]["nodeSelector"] });
        Self {
            requests: pod["spec"].as_object().map(pod_requests).unwrap_or_default(),
            labels: LabelSelector::of_object(&selector),
            terms,
            preferred: preferred.collect(),
            tolerations: array_at(pod, "/spec/tolerations").to_vec(),
            gated: !array_at(pod, "/spec/schedulingGates").is_empty(),
            pod_labels: PodLabels::from_pod(pod),
            affinity: PodAffinity::from_pod(pod),
            claims: pod_claims::of_pod(pod),
        }
    }

    fn score(&self, name: &str, labels: &BTreeMap<String, String>) -> i64 {
        let met = self.preferred.iter().filter(|(_, term)| term.accept(name, labels));
        met.map(|(weight, _)| weight).sum()
    }

    fn accept(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        self.labels.as_ref().is_some_and(|labels| labels.matches(label))
            && self.terms.as_ref().is_none_or(|terms| terms.accept(name, labels))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Value)) -> (String, NodeInfo) {
        let mut node = json!({
            "metadata": { "labels": { "zone": name, "size": "7" } },
            "spec": {},
            "status": { "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "2" } },
        });
        change(&mut node);
        (name.to_owned(), NodeInfo::from_node(&node))
    }

    fn chosen(nodes: &BTreeMap<String, NodeInfo>, spec: Value) -> Result<String, String> {
        let requirements = Requirements::from_pod(&json!({ "spec": spec }));
        choose_node(nodes, &requirements, &Ok(Vec::new()), &Surroundings::default(), &mut 0)
    }

    #[test]
    fn volumes_allow_some_nodes_or_none() {
        let nodes: BTreeMap<String, NodeInfo> = [node("a", |_| {}), node("b", |_| {})].into();
        let zones = |zones: &[&str]| {
            let expression = json!({"key": "zone", "operator": "In", "values": zones});
            NodeTerms::parse(&json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]}))
        };
        let conflict = "0/2 nodes are available: 2 node(s) had volume node affinity conflict.";
        let unbound = "pod has unbound immediate PersistentVolumeClaims";
        let of_all = format!("0/2 nodes are available: 2 {unbound}.");
        for (volumes, want) in [
            (Ok(vec![zones(&["b"])]), Ok("b")),
            (Ok(vec![zones(&["a", "b"]), zones(&["b"])]), Ok("b")),
            (Ok(vec![zones(&["a"]), zones(&["b"])]), Err(conflict)),
            (Err(unbound.to_owned()), Err(of_all.as_str())),
        ] {
            let requirements = Requirements::from_pod(&json!({ "spec": {} }));
            let around = Surroundings::default();
            let got = choose_node(&nodes, &requirements, &volumes, &around, &mut 0);
            assert_eq!(got.as_deref().map_err(String::as_str), want, "{volumes:?}");
        }
    }

    fn required(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    }

    #[test]
    fn a_pod_gets_a_node_that_its_spec_allows() {
        let nodes: BTreeMap<String, NodeInfo> = [node("a", |_| {}), node("b", |_| {})].into();
        let expression = |key: &str, operator: &str, values: Value| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let none = "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.";
        for (spec, want) in [
            (json!({}), Ok("a")),
            (json!({"nodeSelector": {"zone": "b"}}), Ok("b")),
            (json!({"nodeSelector": {"zone": "c"}}), Err(none)),
            (required(expression("zone", "In", json!(["b", "c"]))), Ok("b")),
            (required(expression("zone", "NotIn", json!(["a"]))), Ok("b")),
            (required(expression("absent", "NotIn", json!(["a"]))), Ok("a")),
            (required(expression("zone", "Exists", json!([]))), Ok("a")),
            (required(expression("zone", "DoesNotExist", json!([]))), Err(none)),
            (required(expression("size", "Gt", json!(["6"]))), Ok("a")),
            (required(expression("size", "Lt", json!(["7"]))), Err(none)),
            (required(expression("zone", "Odd", json!([]))), Err(none)),
            (required(json!([])), Err(none)),
            (required(json!([{}])), Err(none)),
            (
                required(json!([{"matchFields": [
                    {"key": "metadata.name", "operator": "In", "values": ["b"]}]}])),
                Ok("b"),
            ),
            (
                json!({"containers": [{"resources": {"requests": {"cpu": "2001m", "x/y": "1"}}}]}),
                Err("0/2 nodes are available: 2 Insufficient cpu, 2 Insufficient x/y."),
            ),
            (json!({"schedulingGates": [{"name": "g"}]}), Err(GATED)),
        ] {
            let want = want.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(chosen(&nodes, spec.clone()), want, "{spec}");
        }
        let no_nodes = Err("no nodes available to schedule pods".to_owned());
        assert_eq!(chosen(&BTreeMap::new(), json!({})), no_nodes);
    }

    #[test]
    fn the_message_counts_why_nodes_do_not_fit() {
        let taints = json!([{"key": "k", "value": "v", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"}]);
        let mut full = node("full", |_| {});
        let half = Requirements::from_pod(&json!({"spec": {"containers": [
            {"resources": {"requests": {"memory": "3Gi"}}}]}}));
        full.1.add(&half.requests);
        full.1.add(&Amounts::default());
        let mut nodes: BTreeMap<String, NodeInfo> = [
            node("cordoned", |node| node["spec"]["unschedulable"] = json!(true)),
            node("tainted", |node| node["spec"]["taints"] = taints),
            full,
        ]
        .into();
        let pod = json!({"containers": [{"resources": {"requests": {"memory": "2Gi"}}}]});
        let message = "0/3 nodes are available: 1 Insufficient memory, 1 Too many pods, 1 node(s) \
                     had untolerated taint {k: v}, 1 node(s) were unschedulable.";
        assert_eq!(chosen(&nodes, pod.clone()), Err(message.to_owned()));
        let tolerating = |toleration: Value| {
            let mut pod = pod.clone();
            pod["tolerations"] = json!([toleration]);
            pod
        };
        let chooses = |toleration: Value| chosen(&nodes, tolerating(toleration));
        assert_eq!(chooses(json!({"key": "k", "value": "v"})), Ok("tainted".to_owned()));
        assert_eq!(chooses(json!({"operator": "Exists"})), Ok("cordoned".to_owned()));
        nodes.get_mut("full").expect("it is there").remove(&half.requests);
        assert_eq!(chosen(&nodes, pod), Ok("full".to_owned()));
    }
}
