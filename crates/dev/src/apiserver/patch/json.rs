//! JSON patches (RFC 6902) within limits. A patch applies completely or not at all.

use std::slice;

use json_patch::PatchOperation;
use serde_json::Value;

use crate::schema::status::StatusError;
use posse_encoding::json::check_size;

/// After each operation the whole object is measured.
const OPERATIONS_MAX: usize = 1_000;

/// Above what can be stored.
const PATCHED_BYTES_MAX: usize = 3 << 20;

/// Applies a patch to a copy of `target`.
pub(crate) fn apply(target: &Value, patch: Value) -> Result<Value, StatusError> {
    let operations: Vec<PatchOperation> = serde_json::from_value(patch)
        .map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))?;
    if operations.len() > OPERATIONS_MAX {
        return Err(StatusError::too_large(&format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
            operations.len()
        )));
    }
    let mut patched = target.clone();
    for operation in &operations {
        // Each operation can add a level or double the object, and trees are walked recursively.
        json_patch::patch(&mut patched, slice::from_ref(operation))
            .map_err(|_| StatusError::unprocessable())?;
        let text = patched.to_string();
        if text.len() > PATCHED_BYTES_MAX || check_size(text.as_bytes()).is_err() {
            return Err(StatusError::unprocessable());
        }
    }
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use posse_encoding::json::DEPTH_MAX;

    /// One level for each operation: a thousand levels, which no thread can walk, were possible.
    #[test]
    fn a_patch_builds_no_ladder() {
        let mut path = String::new();
        let ladder = (0..DEPTH_MAX + 1).map(|_| {
            path.push_str("/a");
            json!({ "op": "add", "path": path, "value": {} })
        });
        let ladder: Vec<Value> = ladder.collect();
        let short = Value::from(&ladder[..DEPTH_MAX - 2]);
        assert!(apply(&json!({}), short).is_ok());
        assert_eq!(apply(&json!({}), ladder.into()), Err(StatusError::unprocessable()));
    }

    #[test]
    fn copies_are_bounded() {
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let patch: Value = vec![double; 64].into();
        assert_eq!(apply(&json!({"a": [1]}), patch), Err(StatusError::unprocessable()));
    }

    #[test]
    fn a_patch_that_fails_changes_nothing_and_one_too_long_is_refused() {
        let remove = json!({"op": "remove", "path": "/a"});
        let twice = json!([remove, remove]);
        assert_eq!(apply(&json!({"a": 1}), twice), Err(StatusError::unprocessable()));
        let many = vec![remove; OPERATIONS_MAX + 1];
        assert_eq!(apply(&json!({}), many.into()).expect_err("too many").code, 413);
        assert_eq!(apply(&json!({}), json!(["a"])).expect_err("no operation").code, 400);
    }
}
