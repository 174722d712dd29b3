//! Owns the choice of a node for a pod: what the pod wants, what the nodes have left, and the
//! scheduler's words where they do not agree. Knows nothing of what runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::nodes::CORDON;
use crate::dev::apiserver::api::Api;
use crate::dev::apiserver::selector::LabelSelector;
use crate::dev::controllers::tolerates;
use crate::dev::schema::kind::Key;
use crate::dev::storage::events::{self, Note};
use crate::dev::storage::object::{Object, array_at, text_at};
use crate::dev::storage::pods::{bind_to, set_condition};
use crate::wire::quantity::Quantity;

type Resources = BTreeMap<String, Quantity>;

/// What a pod asks of its node.
#[derive(Clone, Debug, Default)]
pub(super) struct Wants {
    requests: Resources,
    /// Each of these has to hold; none: no node will do.
    labels: Option<LabelSelector>,
    /// One of these has to hold, where there are any.
    terms: Option<Vec<Term>>,
    tolerations: Vec<Value>,
    gated: bool,
}

/// A term of a node selector: by labels and by fields.
#[derive(Clone, Debug, Default)]
struct Term {
    labels: Option<LabelSelector>,
    fields: Option<LabelSelector>,
}

/// What a node offers.
#[derive(Clone, Debug, Default)]
struct Offer {
    labels: BTreeMap<String, String>,
    taints: Vec<Value>,
    unschedulable: bool,
    allocatable: Resources,
    used: Resources,
    n_pods: i64,
}

/// A pod that is on a node.
#[derive(Debug)]
struct Taken {
    uid: Box<str>,
    node: String,
    requests: Resources,
}

/// A pod that is on no node yet.
#[derive(Debug)]
struct Waiting {
    key: Key,
    uid: Box<str>,
    version: u64,
    wants: Wants,
    /// What was said of it last.
    message: String,
}

/// Binds pods to nodes: in turn, where several will do.
#[derive(Debug, Default)]
pub(super) struct Scheduler {
    nodes: BTreeMap<String, Offer>,
    taken: BTreeMap<Key, Taken>,
    /// In the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    places: BTreeMap<Key, u64>,
    n_come: u64,
    /// Those who were not tried yet.
    fresh: BTreeSet<u64>,
    /// Something changed that may help those who wait.
    again: bool,
    turn: usize,
}

const GATED: &str = "Scheduling is blocked due to non-empty scheduling gates";

impl Scheduler {
    /// Takes up how the nodes are; what is on them stays.
    pub(super) fn look_at_nodes(&mut self, nodes: &[Arc<Object>]) {
        let mut offers: BTreeMap<String, Offer> = BTreeMap::new();
        offers.extend(nodes.iter().map(|node| (node.key.name.clone(), Offer::of(&node.value()))));
        for taken in self.taken.values() {
            if let Some(offer) = offers.get_mut(&taken.node) {
                offer.add(&taken.requests);
            }
        }
        self.nodes = offers;
        self.again = true;
    }

    /// The pods that it knows of.
    pub(super) fn known(&self) -> impl Iterator<Item = Key> {
        self.taken.keys().chain(self.places.keys()).cloned()
    }

    /// True where this pod is accounted for.
    pub(super) fn has(&self, key: &Key, uid: &str) -> bool {
        self.taken.get(key).is_some_and(|taken| &*taken.uid == uid)
    }

    /// True where this version of the pod waits already.
    pub(super) fn waits(&self, key: &Key, version: u64) -> bool {
        let waiting = self.places.get(key).and_then(|place| self.waiting.get(place));
        waiting.is_some_and(|waiting| waiting.version == version)
    }

    /// A pod that wants a node.
    pub(super) fn add(&mut self, key: &Key, object: &Object) {
        let pod = object.value();
        let message = self.forget_waiting(key, &object.uid);
        self.free(key);
        if text_at(&pod, "/spec/schedulerName") != "default-scheduler" {
            return;
        }
        self.n_come += 1;
        let place = self.n_come;
        let waiting = Waiting {
            key: key.clone(),
            uid: object.uid.clone(),
            version: object.version,
            wants: Wants::of(&pod),
            message: message.unwrap_or_default(),
        };
        self.waiting.insert(place, waiting);
        self.places.insert(key.clone(), place);
        self.fresh.insert(place);
    }

    /// A pod is on a node.
    pub(super) fn take(&mut self, key: &Key, uid: &str, node: &str, wants: &Wants) {
        self.forget_waiting(key, uid);
        self.free(key);
        if let Some(offer) = self.nodes.get_mut(node) {
            offer.add(&wants.requests);
        }
        let requests = wants.requests.clone();
        self.taken.insert(key.clone(), Taken { uid: uid.into(), node: node.to_owned(), requests });
    }

    /// A pod is over or gone.
    pub(super) fn release(&mut self, key: &Key) {
        self.forget_waiting(key, "");
        self.free(key);
    }

    fn free(&mut self, key: &Key) {
        let Some(taken) = self.taken.remove(key) else { return };
        if let Some(offer) = self.nodes.get_mut(&taken.node) {
            offer.remove(&taken.requests);
            self.again = true;
        }
    }

    /// What was said last of the pod, where it was this one.
    fn forget_waiting(&mut self, key: &Key, uid: &str) -> Option<String> {
        let place = self.places.remove(key)?;
        self.fresh.remove(&place);
        let waiting = self.waiting.remove(&place)?;
        (&*waiting.uid == uid).then_some(waiting.message)
    }

    /// Binds all that can be bound now; the pods and their nodes.
    pub(super) fn run(&mut self, api: &Api) -> Vec<(Key, String)> {
        let places: Vec<u64> = match std::mem::take(&mut self.again) {
            true => self.waiting.keys().copied().collect(),
            false => self.fresh.iter().copied().collect(),
        };
        self.fresh.clear();
        let mut bound = Vec::new();
        for place in places {
            let Some(waiting) = self.waiting.get_mut(&place) else { continue };
            let chosen = choose(&self.nodes, &waiting.wants, &mut self.turn);
            let node = match chosen {
                Ok(node) => node,
                Err(message) => {
                    if waiting.message != message {
                        refuse(api, waiting, &message);
                        waiting.message = message;
                    }
                    continue;
                }
            };
            let Waiting { key, uid, wants, .. } = &*waiting;
            let (key, uid, wants) = (key.clone(), uid.clone(), wants.clone());
            let done = bind_to(&mut api.lock(), &key, &node);
            match done {
                Ok(()) => {
                    self.take(&key, &uid, &node, &wants);
                    bound.push((key, node));
                }
                // Gone or bound meanwhile: its change says so.
                Err(refused) => log::debug!("{key}: {}", refused.message),
            }
        }
        bound
    }
}

/// Says in the pod's conditions why no node will do.
fn refuse(api: &Api, waiting: &Waiting, message: &str) {
    let mut state = api.lock();
    let Some(object) = state.store.get(&waiting.key).cloned() else { return };
    if object.uid != waiting.uid {
        return;
    }
    let reason = if waiting.wants.gated { "SchedulingGated" } else { "Unschedulable" };
    let now = state.now.clone();
    let before = object.value();
    let mut pod = before.clone();
    set_condition(&mut pod, "PodScheduled", "False", reason, message, &now);
    if pod == before {
        return;
    }
    state.replace(object.key.kind, pod);
    if !waiting.wants.gated {
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

/// The node for a pod, or the scheduler's words.
fn choose(
    nodes: &BTreeMap<String, Offer>,
    wants: &Wants,
    turn: &mut usize,
) -> Result<String, String> {
    if wants.gated {
        return Err(GATED.to_owned());
    }
    if nodes.is_empty() {
        return Err("no nodes available to schedule pods".to_owned());
    }
    let mut reasons: BTreeMap<String, usize> = BTreeMap::new();
    let first = *turn % nodes.len();
    let in_turn = nodes.iter().skip(first).chain(nodes.iter().take(first));
    for (step, (name, offer)) in in_turn.enumerate() {
        let against = offer.against(name, wants);
        if against.is_empty() {
            *turn = first + step + 1;
            return Ok(name.clone());
        }
        for reason in against {
            *reasons.entry(reason).or_default() += 1;
        }
    }
    let mut words: Vec<String> =
        reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    words.sort();
    Err(format!("0/{} nodes are available: {}.", nodes.len(), words.join(", ")))
}

impl Offer {
    fn of(node: &Value) -> Self {
        let labels = node.pointer("/metadata/labels").and_then(Value::as_object);
        let labels = labels
            .into_iter()
            .flatten()
            .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()));
        let binding =
            |taint: &&Value| matches!(text_at(taint, "/effect"), "NoSchedule" | "NoExecute");
        Self {
            labels: labels.collect(),
            taints: array_at(node, "/spec/taints").iter().filter(binding).cloned().collect(),
            unschedulable: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            allocatable: resources(node.pointer("/status/allocatable")),
            used: Resources::new(),
            n_pods: 0,
        }
    }

    fn add(&mut self, requests: &Resources) {
        self.n_pods += 1;
        for (name, amount) in requests {
            add(&mut self.used, name, *amount);
        }
    }

    fn remove(&mut self, requests: &Resources) {
        self.n_pods -= 1;
        for (name, amount) in requests {
            if let Some(used) = self.used.get_mut(name) {
                *used = used.minus(*amount);
            }
        }
    }

    /// What speaks against this node; of several kinds the first, as the scheduler's filters do.
    fn against(&self, name: &str, wants: &Wants) -> Vec<String> {
        let tolerated =
            |taint: &Value| wants.tolerations.iter().any(|toleration| tolerates(toleration, taint));
        let cordon = serde_json::json!({ "key": CORDON, "effect": "NoSchedule" });
        if self.unschedulable && !tolerated(&cordon) {
            return vec!["node(s) were unschedulable".to_owned()];
        }
        if let Some(taint) = self.taints.iter().find(|taint| !tolerated(taint)) {
            let (key, value) = (text_at(taint, "/key"), text_at(taint, "/value"));
            return vec![format!("node(s) had untolerated taint {{{key}: {value}}}")];
        }
        if !wants.accepts(name, &self.labels) {
            return vec!["node(s) didn't match Pod's node affinity/selector".to_owned()];
        }
        let mut against = Vec::new();
        let nothing = Quantity::whole(0);
        let of =
            |resources: &Resources, name: &str| resources.get(name).copied().unwrap_or(nothing);
        if Quantity::whole(self.n_pods + 1).exceeds(of(&self.allocatable, "pods")) {
            against.push("Too many pods".to_owned());
        }
        for (name, wanted) in wants.requests.iter().filter(|(_, wanted)| !wanted.is_zero()) {
            if of(&self.used, name).plus(*wanted).exceeds(of(&self.allocatable, name)) {
                against.push(format!("Insufficient {name}"));
            }
        }
        against
    }
}

impl Wants {
    pub(super) fn of(pod: &Value) -> Self {
        let required = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let terms = pod.pointer(required).map(|required| {
            array_at(required, "/nodeSelectorTerms").iter().map(Term::of).collect::<Vec<Term>>()
        });
        let selector = pod.pointer("/spec/nodeSelector").and_then(Value::as_object);
        let labels: Vec<String> = selector
            .into_iter()
            .flatten()
            .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
            .collect();
        Self {
            requests: requests(pod),
            labels: LabelSelector::parse(&labels.join(",")).ok(),
            terms,
            tolerations: array_at(pod, "/spec/tolerations").to_vec(),
            gated: !array_at(pod, "/spec/schedulingGates").is_empty(),
        }
    }

    fn accepts(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let label = |key: &str| labels.get(key).map(String::as_str);
        let field = |key: &str| (key == "metadata.name").then_some(name);
        let holds = |term: &Term| {
            // A term that asks for nothing chooses nothing.
            (term.labels.is_some() || term.fields.is_some())
                && term.labels.as_ref().is_none_or(|labels| labels.matches(label))
                && term.fields.as_ref().is_none_or(|fields| fields.matches(field))
        };
        self.labels.as_ref().is_some_and(|labels| labels.matches(label))
            && self.terms.as_ref().is_none_or(|terms| terms.iter().any(holds))
    }
}

impl Term {
    fn of(term: &Value) -> Self {
        let selector = |list: &str| -> Option<Option<LabelSelector>> {
            let items = array_at(term, list);
            if items.is_empty() {
                return Some(None);
            }
            let words: Vec<String> = items.iter().map(expression).collect();
            LabelSelector::parse(&words.join(",")).ok().map(Some)
        };
        match (selector("/matchExpressions"), selector("/matchFields")) {
            (Some(labels), Some(fields)) => Self { labels, fields },
            // What cannot be read chooses nothing.
            _ => Self::default(),
        }
    }
}

/// A requirement of a node selector as a label selector says it.
fn expression(requirement: &Value) -> String {
    let key = text_at(requirement, "/key");
    let values: Vec<&str> =
        array_at(requirement, "/values").iter().filter_map(Value::as_str).collect();
    let values = values.join(",");
    match text_at(requirement, "/operator") {
        "In" => format!("{key} in ({values})"),
        "NotIn" => format!("{key} notin ({values})"),
        "Exists" => key.to_owned(),
        "DoesNotExist" => format!("!{key}"),
        "Gt" => format!("{key}>{values}"),
        "Lt" => format!("{key}<{values}"),
        // No selector: it is refused, and so is the term.
        other => format!("({other}"),
    }
}

fn resources(given: Option<&Value>) -> Resources {
    let given = given.and_then(Value::as_object).into_iter().flatten();
    let parsed =
        given.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(amount.as_str()?)?)));
    parsed.collect()
}

fn add(sum: &mut Resources, name: &str, amount: Quantity) {
    match sum.get_mut(name) {
        Some(present) => *present = present.plus(amount),
        None => {
            sum.insert(name.to_owned(), amount);
        }
    }
}

/// What the pod needs at its busiest: its containers and side-cars together, or an init container
/// beside the side-cars that came before it.
fn requests(pod: &Value) -> Resources {
    let of = |container: &Value| resources(container.pointer("/resources/requests"));
    let mut beside = Resources::new();
    let mut peak = Resources::new();
    let raise = |peak: &mut Resources, name: &str, amount: Quantity| {
        if peak.get(name).is_none_or(|present| amount.exceeds(*present)) {
            peak.insert(name.to_owned(), amount);
        }
    };
    for container in array_at(pod, "/spec/initContainers") {
        let is_sidecar = text_at(container, "/restartPolicy") == "Always";
        for (name, amount) in of(container) {
            let so_far = beside.get(&name).copied().unwrap_or_else(|| Quantity::whole(0));
            raise(&mut peak, &name, so_far.plus(amount));
            if is_sidecar {
                add(&mut beside, &name, amount);
            }
        }
    }
    for container in array_at(pod, "/spec/containers") {
        for (name, amount) in of(container) {
            add(&mut beside, &name, amount);
        }
    }
    for (name, amount) in &beside {
        raise(&mut peak, name, *amount);
    }
    for (name, amount) in resources(pod.pointer("/spec/overhead")) {
        add(&mut peak, &name, amount);
    }
    peak
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, change: impl FnOnce(&mut Value)) -> (String, Offer) {
        let mut node = json!({
            "metadata": { "labels": { "zone": name, "size": "7" } },
            "spec": {},
            "status": { "allocatable": { "cpu": "2", "memory": "4Gi", "pods": "2" } },
        });
        change(&mut node);
        (name.to_owned(), Offer::of(&node))
    }

    fn chosen(nodes: &BTreeMap<String, Offer>, spec: Value) -> Result<String, String> {
        choose(nodes, &Wants::of(&json!({ "spec": spec })), &mut 0)
    }

    fn required(terms: Value) -> Value {
        json!({"affinity": {"nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
        }}})
    }

    #[test]
    fn pods_go_where_their_specs_allow() {
        let nodes: BTreeMap<String, Offer> = [node("a", |_| {}), node("b", |_| {})].into();
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
        let nobody = Err("no nodes available to schedule pods".to_owned());
        assert_eq!(chosen(&BTreeMap::new(), json!({})), nobody);
    }

    #[test]
    fn what_speaks_against_nodes_is_counted() {
        let taints = json!([{"key": "k", "value": "v", "effect": "NoSchedule"},
            {"key": "soft", "effect": "PreferNoSchedule"}]);
        let mut full = node("full", |_| {});
        let half = Wants::of(&json!({"spec": {"containers": [
            {"resources": {"requests": {"memory": "3Gi"}}}]}}));
        full.1.add(&half.requests);
        full.1.add(&Resources::new());
        let mut nodes: BTreeMap<String, Offer> = [
            node("cordoned", |node| node["spec"]["unschedulable"] = json!(true)),
            node("tainted", |node| node["spec"]["taints"] = taints),
            full,
        ]
        .into();
        let pod = json!({"containers": [{"resources": {"requests": {"memory": "2Gi"}}}]});
        let words = "0/3 nodes are available: 1 Insufficient memory, 1 Too many pods, 1 node(s) \
                     had untolerated taint {k: v}, 1 node(s) were unschedulable.";
        assert_eq!(chosen(&nodes, pod.clone()), Err(words.to_owned()));
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

    #[test]
    fn a_pods_need_is_its_busiest_moment() {
        let with = |cpu: &str, policy: &str| json!({"restartPolicy": policy, "resources": {"requests": {"cpu": cpu}}});
        for (init, main, want) in [
            (json!([]), json!([with("1", ""), with("500m", "")]), "1500m"),
            (json!([with("2", "")]), json!([with("1", "")]), "2"),
            (json!([with("1", "Always"), with("2", "")]), json!([with("1", "")]), "3"),
            (json!([with("2", ""), with("1", "Always")]), json!([with("2", "")]), "3"),
        ] {
            let pod = json!({"spec": {"initContainers": init, "containers": main}});
            assert_eq!(requests(&pod)["cpu"].canonical(), want, "{pod}");
        }
    }
}
