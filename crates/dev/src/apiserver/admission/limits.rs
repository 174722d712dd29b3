//! The admission plugin LimitRanger for containers: defaults, minimums and maximums.

use serde_json::Value;

use crate::schema::status::joined;
use crate::storage::object::{array_at, object_mut, text_at};
use posse_encoding::amounts::Amounts;

/// The annotation that lists the defaults which the plugin set.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Sets a LimitRange's defaults in a new pod; true if it changed anything.
pub(super) fn set_defaults(range: &Value, pod: &mut Value) -> bool {
    let mut requests = Amounts::default();
    let mut limits = Amounts::default();
    for limit in array_at(range, "/spec/limits") {
        if text_at(limit, "/type") == "Container" {
            requests.0.extend(Amounts::read(limit, "/defaultRequest").0);
            limits.0.extend(Amounts::read(limit, "/default").0);
        }
    }
    let mut messages = Vec::new();
    let spec = object_mut(pod, "spec");
    for (list, word) in [("containers", "container"), ("initContainers", "init container")] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let name = text_at(container, "/name").to_owned();
            let missing_requests = merge(container, "requests", &requests);
            let missing_limits = merge(container, "limits", &limits);
            for (names, what) in [(missing_requests, "request"), (missing_limits, "limit")] {
                if !names.is_empty() {
                    messages.push(format!("{} {what} for {word} {name}", names.join(", ")));
                }
            }
        }
    }
    if messages.is_empty() {
        return false;
    }
    let text = format!("LimitRanger plugin set: {}", messages.join("; "));
    object_mut(&mut pod["metadata"], "annotations").insert(ANNOTATION.to_owned(), text.into());
    true
}

/// Sets the amounts that a container lacks; returns their names.
fn merge(container: &mut Value, list: &str, defaults: &Amounts) -> Vec<String> {
    let mut set = Vec::new();
    for (name, amount) in &defaults.0 {
        let present = object_mut(&mut container["resources"], list);
        if !present.contains_key(name) {
            present.insert(name.clone(), amount.canonical().into());
            set.push(name.clone());
        }
    }
    set
}

/// The violation of a LimitRange by a pod; `None` if there is none.
pub(super) fn check(range: &Value, pod: &Value) -> Option<String> {
    let mut wrong = Vec::new();
    for limit in array_at(range, "/spec/limits") {
        if text_at(limit, "/type") == "Container" {
            let lists = ["/spec/containers", "/spec/initContainers"];
            for container in lists.into_iter().flat_map(|list| array_at(pod, list)) {
                let requests = Amounts::read(container, "/resources/requests");
                let limits = Amounts::read(container, "/resources/limits");
                check_max(limit, &requests, &limits, &mut wrong);
            }
        }
    }
    (!wrong.is_empty()).then(|| joined(wrong))
}

fn check_max(limit: &Value, requests: &Amounts, limits: &Amounts, wrong: &mut Vec<String>) {
    check_min(limit, requests, limits, wrong);
    for (name, bound) in Amounts::read(limit, "/max").0 {
        let head = format!("maximum {name} usage per Container is {}", bound.canonical());
        let request = requests.get(&name).filter(|request| request.exceeds(bound));
        match (limits.get(&name), request) {
            (None, _) => wrong.push(format!("{head}.  No limit is specified")),
            (Some(limit), _) if limit.exceeds(bound) => {
                wrong.push(format!("{head}, but limit is {}", limit.canonical()));
            }
            (Some(_), Some(request)) => {
                wrong.push(format!("{head}, but request is {}", request.canonical()));
            }
            (Some(_), None) => {}
        }
    }
}

fn check_min(limit: &Value, requests: &Amounts, limits: &Amounts, wrong: &mut Vec<String>) {
    for (name, bound) in Amounts::read(limit, "/min").0 {
        let head = format!("minimum {name} usage per Container is {}", bound.canonical());
        let less = |list: &Amounts| list.get(&name).filter(|amount| bound.exceeds(*amount));
        match (requests.get(&name), less(requests), less(limits)) {
            (None, _, _) => wrong.push(format!("{head}.  No request is specified")),
            (Some(_), Some(request), _) => {
                wrong.push(format!("{head}, but request is {}", request.canonical()));
            }
            (Some(_), None, Some(limit)) => {
                wrong.push(format!("{head}, but limit is {}", limit.canonical()));
            }
            (Some(_), None, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(resources: &Value, init: &Value) -> Value {
        json!({ "spec": {
            "containers": [
                { "name": "c", "resources": resources }, { "name": "d", "resources": resources },
            ],
            "initContainers": [{ "name": "i", "resources": init }],
        }})
    }

    /// The transcript has the other limits, and the defaults.
    #[test]
    fn violations_are_worded_like_those_of_the_real_server() {
        let both = |cpu: &str| json!({ "limits": { "cpu": cpu }, "requests": { "cpu": cpu } });
        for (limit, resources, want) in [
            (
                json!({ "type": "Container", "max": { "cpu": "1" } }),
                json!({}),
                "maximum cpu usage per Container is 1.  No limit is specified",
            ),
            (
                json!({ "type": "Container", "min": { "cpu": "100m", "memory": "1Mi" } }),
                both("10m"),
                "[minimum cpu usage per Container is 100m, but request is 10m, minimum memory \
                 usage per Container is 1Mi.  No request is specified]",
            ),
        ] {
            let range = json!({ "spec": { "limits": [limit] } });
            let pod = pod(&resources, &resources);
            assert_eq!(check(&range, &pod).unwrap_or_default(), want, "{range}");
        }
    }
}
