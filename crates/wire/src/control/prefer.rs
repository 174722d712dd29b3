//! The body of `POST /v1/groups/{group}`.

use serde_json::Value;

use crate::control::{CallError, check_names, parse_object};
use crate::names;
use posse_core::model::pod_text::PreferredNode;

/// Each node is a term of the affinity of every pod.
pub const PREFERRED_NODES_MAX: usize = 100;
/// What Kubernetes takes.
const WEIGHT_MAX: u8 = 100;

/// Reads the nodes that a group's next pods prefer: `{"nodes": {"prefer": {"node-1": 100}}}`.
pub fn parse_preferred_nodes(body: &[u8]) -> Result<Vec<PreferredNode>, CallError> {
    const PREFER: &str = "nodes.prefer";
    let fields = parse_object(body)?;
    check_names(&fields, &["nodes"])?;
    let nodes = fields.get("nodes").and_then(Value::as_object);
    let nodes = nodes.ok_or_else(|| CallError::new("nodes", "must be an object with prefer"))?;
    check_names(nodes, &["prefer"])?;
    let prefer = nodes.get("prefer").and_then(Value::as_object);
    let prefer =
        prefer.ok_or_else(|| CallError::new(PREFER, "must be an object of weights by node"))?;
    if prefer.len() > PREFERRED_NODES_MAX {
        let what = format!("has {} nodes, and may have {PREFERRED_NODES_MAX}", prefer.len());
        return Err(CallError::new(PREFER, what));
    }
    let node = |(name, weight): (&String, &Value)| {
        let weight = weight.as_u64().and_then(|weight| u8::try_from(weight).ok());
        let weight = weight.filter(|weight| (1..=WEIGHT_MAX).contains(weight));
        let is_name = names::object_name_error(name).is_none();
        let (true, Some(weight)) = (is_name, weight) else {
            let what = if is_name {
                format!("the weight of {name} must be a whole number from 1 to {WEIGHT_MAX}")
            } else {
                format!("{name:?} is no name of a node")
            };
            return Err(CallError::new(PREFER, what));
        };
        Ok(PreferredNode { name: name.clone(), weight })
    };
    prefer.iter().map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_have_weights_that_kubernetes_takes() {
        let body = br#"{"nodes": {"prefer": {"n1": 1, "n-2.x": 100}}}"#;
        let mut nodes = parse_preferred_nodes(body).unwrap();
        nodes.sort_by_key(|node| node.weight);
        let node = |name: &str, weight| PreferredNode { name: name.to_owned(), weight };
        assert_eq!(nodes, [node("n1", 1), node("n-2.x", 100)]);
        assert_eq!(parse_preferred_nodes(br#"{"nodes": {"prefer": {}}}"#), Ok(vec![]));
    }

    #[test]
    fn errors_name_the_field() {
        let many: Vec<String> = (0..=PREFERRED_NODES_MAX).map(|i| format!("\"n{i}\": 1")).collect();
        let many = format!(r#"{{"nodes": {{"prefer": {{{}}}}}}}"#, many.join(","));
        for (body, field, part) in [
            ("{}", "nodes", "must be an object"),
            (r#"{"nodes": {}}"#, "nodes.prefer", "must be an object of weights"),
            (r#"{"nodes": {"prefer": []}}"#, "nodes.prefer", "must be an object of weights"),
            (
                r#"{"nodes": {"prefer": {"n": 0}}}"#,
                "nodes.prefer",
                "of n must be a whole number from 1 to 100",
            ),
            (r#"{"nodes": {"prefer": {"n": 101}}}"#, "nodes.prefer", "from 1 to 100"),
            (r#"{"nodes": {"prefer": {"n": 1.5}}}"#, "nodes.prefer", "from 1 to 100"),
            (r#"{"nodes": {"prefer": {"a\"b": 1}}}"#, "nodes.prefer", "is no name of a node"),
            (r#"{"nodes": {"avoid": {}}}"#, "avoid", "unknown field"),
            (r#"{"prefer": {}}"#, "prefer", "unknown field"),
            (many.as_str(), "nodes.prefer", "has 101 nodes, and may have 100"),
        ] {
            let error = parse_preferred_nodes(body.as_bytes()).expect_err(body);
            assert_eq!(error.field.as_deref(), Some(field), "{body}: {error:?}");
            assert!(error.error.contains(part), "{body}: {error:?}");
        }
    }
}
