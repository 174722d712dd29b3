//! What pods use, as the metrics API tells it (`metrics.k8s.io/v1beta1`).

use serde_json::Value;

use crate::error::WireError;
use posse_encoding::quantity::Quantity;

/// What a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodUsage {
    pub pod: String,
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// Reads a PodMetricsList. An amount that is no quantity counts as nothing.
pub fn pod_usage(bytes: &[u8]) -> Result<Vec<PodUsage>, WireError> {
    let list: Value = serde_json::from_slice(bytes)?;
    let all = |value: &Value, pointer: &str| {
        value.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let of_pod = |item: &Value| {
        let containers = all(item, "/containers");
        let sum = |amount: &str, unit: &str| {
            let unit = Quantity::parse(unit)?;
            let amounts = containers.iter().filter_map(|one| one.pointer(amount));
            let sum = amounts.filter_map(Quantity::of).fold(Quantity::whole(0), Quantity::plus);
            u64::try_from(sum.divided(unit)).ok()
        };
        Some(PodUsage {
            pod: item.pointer("/metadata/name")?.as_str()?.to_owned(),
            cpu_milli: sum("/usage/cpu", "1m").unwrap_or(0),
            memory_bytes: sum("/usage/memory", "1").unwrap_or(0),
        })
    };
    Ok(all(&list, "/items").iter().filter_map(of_pod).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_containers_of_a_pod_are_added() {
        let list = r#"{"kind":"PodMetricsList","items":[
            {"metadata":{"name":"a"},"containers":[
                {"name":"m","usage":{"cpu":"1250000000n","memory":"200Ki"}},
                {"name":"s","usage":{"cpu":"10m","memory":"1024"}}]},
            {"metadata":{"name":"b"},"containers":[{"name":"m","usage":{"cpu":"?"}}]},
            {"metadata":{}}, 7]}"#;
        let usage = |pod: &str, cpu_milli, memory_bytes| PodUsage {
            pod: pod.to_owned(),
            cpu_milli,
            memory_bytes,
        };
        let want = vec![usage("a", 1_260, 205_824), usage("b", 0, 0)];
        assert_eq!(pod_usage(list.as_bytes()).unwrap(), want);
        assert_eq!(pod_usage(b"{}").unwrap(), vec![]);
        assert!(pod_usage(b"<html>").is_err());
    }
}
