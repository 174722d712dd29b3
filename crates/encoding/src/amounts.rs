//! Lists of resource amounts as pod specs and quotas have them, and how much of a quota a pod uses.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::quantity::Quantity;

/// Prefix of a resource's name in a quota on requests.
pub const REQUESTS: &str = "requests.";

/// Amounts by resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(pub BTreeMap<String, Quantity>);

impl Amounts {
    /// Reads the list at a JSON pointer. Values that are not quantities are skipped.
    pub fn read(value: &Value, pointer: &str) -> Self {
        let members = value.pointer(pointer).and_then(Value::as_object);
        let amount =
            |(name, amount): (&String, &Value)| Some((name.clone(), Quantity::of(amount)?));
        Self(members.into_iter().flatten().filter_map(amount).collect())
    }

    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    pub fn set(&mut self, name: &str, amount: Quantity) {
        self.0.insert(name.to_owned(), amount);
    }

    /// Adds each amount of `others` to the amount of the same name.
    pub fn add(&mut self, others: &Self) {
        for (name, amount) in &others.0 {
            let sum = self.get(name).map_or(*amount, |present| present.plus(*amount));
            self.set(name, sum);
        }
    }

    /// Keeps the larger amount for each name.
    pub fn raise_to(&mut self, others: &Self) {
        for (name, amount) in &others.0 {
            if self.get(name).is_none_or(|present| amount.exceeds(present)) {
                self.set(name, *amount);
            }
        }
    }

    /// The amounts whose name satisfies `pass`.
    pub fn only(&self, pass: impl Fn(&str) -> bool) -> Self {
        let passing = self.0.iter().filter(|(name, _)| pass(name));
        Self(passing.map(|(name, amount)| (name.clone(), *amount)).collect())
    }

    /// For messages: `cpu=1,pods=3`.
    pub fn text(&self) -> String {
        let texts = self.0.iter().map(|(name, amount)| format!("{name}={}", amount.canonical()));
        texts.collect::<Vec<_>>().join(",")
    }

    /// As a JSON object, the way Kubernetes objects hold amounts.
    pub fn json(&self) -> Value {
        let members = self.0.iter().map(|(name, amount)| (name.clone(), amount.canonical().into()));
        Value::Object(members.collect())
    }
}

/// How much of each quota resource a pod uses, by the quota's resource names.
pub fn pod_usage(pod: &Value) -> Amounts {
    let amounts = |list| pod["spec"].as_object().map(|spec| of_pod(spec, list)).unwrap_or_default();
    named(&amounts(List::Requests), &amounts(List::Limits))
}

/// What a pod takes from a node, from its spec. Whether the server has added its defaults makes no difference.
pub fn pod_requests(spec: &Map<String, Value>) -> Amounts {
    of_pod(spec, List::Requests)
}

/// What the containers of a pod take together, whatever the pod says as a whole.
pub fn requests_of_containers(spec: &Map<String, Value>) -> Amounts {
    of_containers(spec, List::Requests)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum List {
    Limits,
    Requests,
}

impl List {
    /// The amounts in the resources of a container or a pod, without negative ones, which no server accepts.
    fn of(self, resources: &Value) -> Amounts {
        let mut amounts = Amounts::read(resources, "/limits");
        if self == Self::Requests {
            // The server takes a limit for a request that is missing.
            amounts.0.extend(Amounts::read(resources, "/requests").0);
        }
        amounts.0.retain(|_, amount| !amount.is_negative());
        amounts
    }
}

/// The rule of Kubernetes (component-helpers, `resource/helpers.go`): what the pod says as a whole (KEP-2837) counts
/// instead of its containers, and the overhead of its RuntimeClass (KEP-688) in any case.
fn of_pod(spec: &Map<String, Value>, list: List) -> Amounts {
    let mut total = of_containers(spec, list);
    if let Some(resources) = spec.get("resources") {
        let is_given = |name: &str| resources["requests"].get(name).is_some();
        for (name, amount) in list.of(resources).0 {
            // A limit of the pod stands for its request only if no container asks.
            if list == List::Limits || is_given(&name) || total.get(&name).is_none() {
                total.set(&name, amount);
            }
        }
    }
    for (name, amount) in
        spec.get("overhead").map(|all| Amounts::read(all, "")).unwrap_or_default().0
    {
        match total.get(&name) {
            Some(present) => total.set(&name, present.plus(amount)),
            None if list == List::Requests => total.set(&name, amount),
            // What has no limit gets none.
            None => {}
        }
    }
    total
}

/// All containers and side-cars together, or an init container together with the side-cars before it, whichever is more
/// (KEP-753).
fn of_containers(spec: &Map<String, Value>, list: List) -> Amounts {
    let containers = |key| spec.get(key).and_then(Value::as_array).into_iter().flatten();
    let (mut together, mut peak) = (Amounts::default(), Amounts::default());
    for container in containers("initContainers") {
        let own = list.of(&container["resources"]);
        let mut with_side_cars = together.clone();
        with_side_cars.add(&own);
        // What it does not ask for is not more than the side-cars ask for in the end.
        peak.raise_to(&with_side_cars);
        if container["restartPolicy"] == "Always" {
            together = with_side_cars;
        }
    }
    for container in containers("containers") {
        together.add(&list.of(&container["resources"]));
    }
    peak.raise_to(&together);
    peak
}

/// What a pod uses of quotas on objects, as long as it is there: itself, and the claims of its ephemeral volumes.
pub fn object_usage(pod: &Value) -> Amounts {
    let mut used = Amounts::default();
    used.set("count/pods", Quantity::whole(1));
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    for volume in volumes.into_iter().flatten() {
        if let Some(claim) = volume.pointer("/ephemeral/volumeClaimTemplate") {
            used.add(&claim_usage(claim));
        }
    }
    used
}

/// What a claim, or the template of one, uses of quotas.
pub fn claim_usage(claim: &Value) -> Amounts {
    let size = Amounts::read(claim, "/spec/resources/requests").get("storage");
    let class = claim.pointer("/spec/storageClassName").and_then(Value::as_str);
    let of_class = class.map(|class| format!("{class}.storageclass.storage.k8s.io/"));
    let mut of_claim = Amounts::default();
    of_claim.set("count/persistentvolumeclaims", Quantity::whole(1));
    for prefix in ["", of_class.as_deref().unwrap_or_default()] {
        of_claim.set(&format!("{prefix}persistentvolumeclaims"), Quantity::whole(1));
        if let Some(size) = size {
            of_claim.set(&format!("{prefix}requests.storage"), size);
        }
    }
    of_claim
}

/// Requests and limits under the quota's resource names, and one pod.
pub fn named(requests: &Amounts, limits: &Amounts) -> Amounts {
    let mut used = Amounts::default();
    used.set("pods", Quantity::whole(1));
    let plain = |name: &str| matches!(name, "cpu" | "memory" | "ephemeral-storage");
    for (name, amount) in &requests.0 {
        if plain(name) || name.starts_with("hugepages-") {
            used.set(name, *amount);
        }
        if plain(name) || name.starts_with("hugepages-") || name.contains('/') {
            used.set(&format!("{REQUESTS}{name}"), *amount);
        }
    }
    for (name, amount) in limits.0.iter().filter(|(name, _)| plain(name)) {
        used.set(&format!("limits.{name}"), *amount);
    }
    used
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_claims_of_ephemeral_volumes_are_there_as_long_as_the_pod() {
        let claim = |size: &str, class: Option<&str>| {
            json!({"ephemeral": {"volumeClaimTemplate": {"spec": {
                "storageClassName": class, "resources": {"requests": {"storage": size}}}}}})
        };
        let pod = json!({"spec": {"volumes": [
            {"emptyDir": {}}, claim("1Gi", None), claim("2Gi", Some("gold"))]}});
        assert_eq!(
            object_usage(&pod).text(),
            "count/persistentvolumeclaims=2,count/pods=1,\
             gold.storageclass.storage.k8s.io/persistentvolumeclaims=1,\
             gold.storageclass.storage.k8s.io/requests.storage=2Gi,\
             persistentvolumeclaims=2,requests.storage=3Gi"
        );
        assert_eq!(object_usage(&json!({})).text(), "count/pods=1");
    }

    #[test]
    fn a_pod_uses_what_it_asks_for_as_a_whole_else_what_its_containers_do() {
        let container =
            |cpu: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}});
        let mut pod = json!({"spec": {"containers": [container("1"), container("2")],
            "initContainers": [container("5")]}});
        let used = |pod: &Value| pod_usage(pod).text();
        assert_eq!(used(&pod), "cpu=5,memory=2Gi,pods=1,requests.cpu=5,requests.memory=2Gi");
        pod["spec"]["resources"] = json!({"requests": {"cpu": "4"}, "limits": {"memory": "8Gi"}});
        assert_eq!(
            used(&pod),
            "cpu=4,limits.memory=8Gi,memory=2Gi,pods=1,requests.cpu=4,requests.memory=2Gi"
        );
    }

    #[test]
    fn a_pod_takes_what_kubernetes_counts() {
        let asks = |cpu: &str, memory: &str| json!({"resources": {"requests": {"cpu": cpu, "memory": memory}}});
        let side_car = |cpu: &str, memory: &str| {
            let mut container = asks(cpu, memory);
            container["restartPolicy"] = "Always".into();
            container
        };
        for (spec, requests, limits) in [
            (json!({"containers": null}), "", ""),
            (
                json!({"containers": [asks("1", "1Gi"), asks("500m", "0")]}),
                "cpu=1500m,memory=1Gi",
                "",
            ),
            (
                json!({"containers": [asks("1", "1Gi")],
                    "initContainers": [side_car("500m", "512Mi"), asks("0", "4Gi")]}),
                "cpu=1500m,memory=4608Mi",
                "",
            ),
            // A side-car after the init container does not run beside it.
            (
                json!({"containers": [asks("1", "1Gi")],
                    "initContainers": [asks("2", "4Gi"), side_car("500m", "512Mi")]}),
                "cpu=2,memory=4Gi",
                "",
            ),
            // A limit stands for a request that is missing.
            (
                json!({"containers": [{"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "x/gpu": 1}}}]}),
                "cpu=1,x/gpu=1",
                "cpu=2,x/gpu=1",
            ),
            (
                json!({"containers": [asks("1", "1Gi")], "overhead": {"cpu": "250m", "memory": "64Mi"}}),
                "cpu=1250m,memory=1088Mi",
                "",
            ),
            (
                json!({"containers": [{"resources": {"limits": {"memory": "1Gi"}}}],
                    "overhead": {"cpu": "250m", "memory": "1Gi"}}),
                "cpu=250m,memory=2Gi",
                "memory=2Gi",
            ),
            // What the pod says as a whole.
            (
                json!({"containers": [asks("1", "1Gi")], "initContainers": [asks("9", "9Gi")],
                    "resources": {"requests": {"cpu": "4"}, "limits": {"cpu": "5", "memory": "20Gi"}},
                    "overhead": {"cpu": "1"}}),
                "cpu=5,memory=9Gi",
                "cpu=6,memory=20Gi",
            ),
            (
                json!({"containers": [{}], "resources": {"limits": {"memory": "8Gi"}}}),
                "memory=8Gi",
                "memory=8Gi",
            ),
        ] {
            let of = |list| of_pod(spec.as_object().expect("a map"), list).text();
            assert_eq!(
                (of(List::Requests).as_str(), of(List::Limits).as_str()),
                (requests, limits),
                "{spec}"
            );
        }
    }
}
