//! Lists of resource amounts as pod specs and quotas have them, and how much of a quota a pod uses.

use std::collections::BTreeMap;

use serde_json::Value;

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
        let amount = |(name, amount): (&String, &Value)| {
            let text = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
            Quantity::parse(&text).map(|amount| (name.clone(), amount))
        };
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
    let mut totals = [Amounts::default(), Amounts::default()];
    for (total, list) in totals.iter_mut().zip(["/resources/requests", "/resources/limits"]) {
        for container in containers(pod, "/spec/containers") {
            total.add(&Amounts::read(container, list));
        }
        for container in containers(pod, "/spec/initContainers") {
            total.raise_to(&Amounts::read(container, list));
        }
        // What the pod says for all of its containers together (KEP-2837, since Kubernetes 1.34).
        for (name, amount) in Amounts::read(pod, &format!("/spec{list}")).0 {
            total.set(&name, amount);
        }
    }
    let [requests, limits] = totals;
    named(&requests, &limits)
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

fn containers<'a>(pod: &'a Value, pointer: &str) -> &'a [Value] {
    pod.pointer(pointer).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
}
