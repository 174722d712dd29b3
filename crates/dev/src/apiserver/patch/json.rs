//! JSON patches (RFC 6902) with the extensions of kube-apiserver's library: negative indices, and
//! `replace` of an absent member. A patch applies completely or not at all.

use serde_json::Value;

use crate::schema::status::StatusError;
use crate::schema::type_word;
use posse_encoding::json::DEPTH_MAX;

/// kube-apiserver's limit.
const OPERATIONS_MAX: usize = 10_000;
/// The bytes that all `copy` operations of a patch may add: they could double the object
/// repeatedly.
const COPIED_BYTES_MAX: usize = 3 << 20;

/// An operation whose fields are not checked yet.
type Operation<'a> = &'a serde_json::Map<String, Value>;

/// An operation failed. The server does not report the cause.
#[derive(Debug, PartialEq, Eq)]
struct Failed;

/// Applies a patch to a copy of `target`.
pub(crate) fn apply(target: &Value, patch: &Value) -> Result<Value, StatusError> {
    let mut patched = target.clone();
    let mut n_copied = 0;
    for operation in operations(patch)? {
        // A `null` operation does nothing.
        operation
            .ok_or(Failed)
            .and_then(|operation| perform(&mut patched, operation, &mut n_copied))
            .map_err(|Failed| StatusError::unprocessable())?;
    }
    Ok(patched)
}

fn operations<'a>(patch: &'a Value) -> Result<Vec<Option<Operation<'a>>>, StatusError> {
    let wrong = |found: &Value, wanted: &str| {
        let found = type_word(found);
        let message = format!(
            "error decoding patch: json: cannot unmarshal {found} into Go value of type {wanted}"
        );
        StatusError::bad_request(message)
    };
    let items = match patch {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items,
        Value::Bool(_) | Value::Number(_) | Value::Object(_) | Value::String(_) => {
            return Err(wrong(patch, "[]handlers.jsonPatchOp"));
        }
    };
    if items.len() > OPERATIONS_MAX {
        return Err(StatusError::too_large(&format!(
            "The allowed maximum operations in a JSON patch is {OPERATIONS_MAX}, got {}",
            items.len()
        )));
    }
    let read = |item: &'a Value| match item.as_object() {
        None if item.is_null() => Ok(None),
        None => Err(wrong(item, "handlers.jsonPatchOp")),
        operation => Ok(operation),
    };
    items.iter().map(read).collect()
}

fn perform(
    target: &mut Value,
    operation: Operation<'_>,
    n_copied: &mut usize,
) -> Result<(), Failed> {
    let text = |field: &str| operation.get(field).and_then(Value::as_str).ok_or(Failed);
    let value = || operation.get("value").cloned().unwrap_or_default();
    let path = text("path")?;
    match text("op")? {
        "add" => add(target, path, value()),
        "copy" => {
            let copied = get(target, text("from")?)?.cloned().unwrap_or_default();
            *n_copied += copied.to_string().len();
            if *n_copied > COPIED_BYTES_MAX {
                return Err(Failed);
            }
            add(target, path, copied)
        }
        "move" => {
            let moved = remove(target, text("from")?)?;
            add(target, path, moved)
        }
        "remove" => remove(target, path).map(drop),
        "replace" => replace(target, path, value()),
        "test" => match get(target, path)? {
            Some(found) if *found == value() => Ok(()),
            None if value().is_null() => Ok(()),
            Some(_) | None => Err(Failed),
        },
        _ => Err(Failed),
    }
}

/// Splits a pointer into the container's pointer and the last name. The root cannot be addressed.
fn split(path: &str) -> Result<(&str, String), Failed> {
    let (container, name) = path.rsplit_once('/').ok_or(Failed)?;
    Ok((container, name.replace("~1", "/").replace("~0", "~")))
}

/// The container of a pointer's target, and the last name.
fn container<'a>(target: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), Failed> {
    let (path, name) = split(path)?;
    let found = target.pointer_mut(path).filter(|found| found.is_object() || found.is_array());
    Ok((found.ok_or(Failed)?, name))
}

/// An index below `length`; negative ones count from the end.
fn index(name: &str, length: usize) -> Result<usize, Failed> {
    let index: i64 = name.parse().map_err(|_| Failed)?;
    let length = i64::try_from(length).map_err(|_| Failed)?;
    let index = if index < 0 { index + length } else { index };
    usize::try_from(index).ok().filter(|_| index < length).ok_or(Failed)
}

/// The value at a pointer; `None` if the object lacks the member.
fn get<'a>(target: &'a mut Value, path: &str) -> Result<Option<&'a Value>, Failed> {
    let (container, name) = container(target, path)?;
    match container.as_array() {
        Some(items) => index(&name, items.len()).map(|i| items.get(i)),
        None => Ok(container.get(&name)),
    }
}

/// Refuses a value that would be too deep at `path`: one patch could build a ladder of thousands of
/// levels, and trees are walked recursively.
fn check_depth(path: &str, value: &Value) -> Result<(), Failed> {
    match path.matches('/').count() + depth(value) > DEPTH_MAX {
        true => Err(Failed),
        false => Ok(()),
    }
}

fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(members) => members.values().map(depth).max(),
        Value::Bool(_) | Value::Null | Value::Number(_) | Value::String(_) => return 0,
    };
    1 + deepest.unwrap_or(0)
}

fn add(target: &mut Value, path: &str, value: Value) -> Result<(), Failed> {
    check_depth(path, &value)?;
    let (container, name) = container(target, path)?;
    match container.as_array_mut() {
        Some(items) if name == "-" => items.push(value),
        Some(items) => items.insert(index(&name, items.len() + 1)?, value),
        None => container[name] = value,
    }
    Ok(())
}

fn replace(target: &mut Value, path: &str, value: Value) -> Result<(), Failed> {
    check_depth(path, &value)?;
    let (container, name) = container(target, path)?;
    match container.as_array_mut() {
        Some(items) => {
            let i = index(&name, items.len())?;
            items[i] = value;
        }
        None => container[name] = value,
    }
    Ok(())
}

fn remove(target: &mut Value, path: &str) -> Result<Value, Failed> {
    let (container, name) = container(target, path)?;
    match container.as_array_mut() {
        Some(items) => index(&name, items.len()).map(|i| items.remove(i)),
        None => container.as_object_mut().and_then(|found| found.remove(&name)).ok_or(Failed),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(target: &str, patch: &str, want: Option<&str>) {
        let read = |text: &str| -> Value { serde_json::from_str(text).expect("JSON") };
        let got = apply(&read(target), &read(patch));
        let shown = format!("{target} + {patch}");
        match want {
            Some(want) => assert_eq!(got.expect(&shown), read(want), "{shown}"),
            None => assert_eq!(got.expect_err(&shown), StatusError::unprocessable(), "{shown}"),
        }
    }

    /// One level for each operation: ten thousand levels, which no thread can walk, were possible.
    #[test]
    fn a_patch_builds_no_ladder() {
        let mut path = String::new();
        let ladder = (0..DEPTH_MAX + 1).map(|_| {
            path.push_str("/a");
            json!({ "op": "add", "path": path, "value": {} })
        });
        let ladder: Vec<Value> = ladder.collect();
        let short = Value::from(&ladder[..DEPTH_MAX - 1]);
        assert!(apply(&json!({}), &short).is_ok());
        let refused = apply(&json!({}), &Value::from(ladder));
        assert_eq!(refused, Err(StatusError::unprocessable()));
    }

    /// Target, patch and result; `None` if the patch fails.
    type Case = (&'static str, &'static str, Option<&'static str>);

    /// The examples of RFC 6902, appendix A, and the library's extensions.
    const CASES: &[Case] = &[
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz","value":"qux"}]"#,
            Some(r#"{"baz":"qux","foo":"bar"}"#),
        ),
        (
            r#"{"foo":["bar","baz"]}"#,
            r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
            Some(r#"{"foo":["bar","qux","baz"]}"#),
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"remove","path":"/baz"}]"#,
            Some(r#"{"foo":"bar"}"#),
        ),
        (
            r#"{"foo":["bar","qux","baz"]}"#,
            r#"[{"op":"remove","path":"/foo/1"}]"#,
            Some(r#"{"foo":["bar","baz"]}"#),
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
            Some(r#"{"baz":"boo","foo":"bar"}"#),
        ),
        (
            r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
            r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
            Some(r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#),
        ),
        (
            r#"{"foo":["all","grass","cows","eat"]}"#,
            r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
            Some(r#"{"foo":["all","cows","eat","grass"]}"#),
        ),
        (
            r#"{"baz":"qux","foo":["a",2,"c"]}"#,
            r#"[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]"#,
            Some(r#"{"baz":"qux","foo":["a",2,"c"]}"#),
        ),
        (r#"{"baz":"qux"}"#, r#"[{"op":"test","path":"/baz","value":"bar"}]"#, None),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/child","value":{"grandchild":{}}}]"#,
            Some(r#"{"foo":"bar","child":{"grandchild":{}}}"#),
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz","value":"qux","xyz":123}]"#,
            Some(r#"{"foo":"bar","baz":"qux"}"#),
        ),
        (r#"{"foo":"bar"}"#, r#"[{"op":"add","path":"/baz/bat","value":"qux"}]"#, None),
        (
            r#"{"/":9,"~1":10}"#,
            r#"[{"op":"test","path":"/~01","value":10}]"#,
            Some(r#"{"/":9,"~1":10}"#),
        ),
        (r#"{"/":9,"~1":10}"#, r#"[{"op":"test","path":"/~01","value":"10"}]"#, None),
        (
            r#"{"foo":["bar"]}"#,
            r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
            Some(r#"{"foo":["bar",["abc","def"]]}"#),
        ),
        (r#"{"a":[1,2]}"#, r#"[{"op":"add","path":"/a/-1","value":3}]"#, Some(r#"{"a":[1,2,3]}"#)),
        (r#"{"a":[1,2]}"#, r#"[{"op":"remove","path":"/a/-2"}]"#, Some(r#"{"a":[2]}"#)),
        (r#"{"a":[1,2]}"#, r#"[{"op":"remove","path":"/a/-3"}]"#, None),
        (r#"{"a":[1,2]}"#, r#"[{"op":"add","path":"/a/4","value":3}]"#, None),
        (r#"{"a":[1,2]}"#, r#"[{"op":"replace","path":"/a/2","value":3}]"#, None),
        (r#"{"a":[1,2]}"#, r#"[{"op":"remove","path":"/a/x"}]"#, None),
        (r#"{"a":1}"#, r#"[{"op":"replace","path":"/b","value":2}]"#, Some(r#"{"a":1,"b":2}"#)),
        (r#"{"a":1}"#, r#"[{"op":"remove","path":"/b"}]"#, None),
        (r#"{"a":1}"#, r#"[{"op":"copy","from":"/a","path":"/b"}]"#, Some(r#"{"a":1,"b":1}"#)),
        (r#"{"a":1}"#, r#"[{"op":"copy","from":"/c","path":"/b"}]"#, Some(r#"{"a":1,"b":null}"#)),
        (r#"{"a":1}"#, r#"[{"op":"move","from":"/c","path":"/b"}]"#, None),
        (r#"{"a":1}"#, r#"[{"op":"add","path":"/b"}]"#, Some(r#"{"a":1,"b":null}"#)),
        (r#"{"a":1}"#, r#"[{"op":"add","path":"","value":{}}]"#, None),
        (r#"{"a":1}"#, r#"[{"op":"none","path":"/a"}]"#, None),
        (r#"{"a":1}"#, r#"[{"path":"/a"}]"#, None),
        (r#"{"a":1}"#, r#"[{"op":5,"path":"/a"}]"#, None),
        (r#"{"a":1}"#, r#"[null]"#, None),
        (r#"{"a":1}"#, r#"null"#, Some(r#"{"a":1}"#)),
        (r#"{"a":1}"#, r#"[{"op":"remove","path":"/a"},{"op":"remove","path":"/a"}]"#, None),
    ];

    #[test]
    fn operations_follow_rfc_6902() {
        for (target, patch, want) in CASES {
            check(target, patch, *want);
        }
    }

    #[test]
    fn a_body_that_is_not_a_patch_is_refused() {
        for (patch, want) in [
            (json!({}), "object into Go value of type []handlers.jsonPatchOp"),
            (json!(["a"]), "string into Go value of type handlers.jsonPatchOp"),
        ] {
            let error = apply(&json!({}), &patch).expect_err("no patch");
            let want = format!("error decoding patch: json: cannot unmarshal {want}");
            assert_eq!((error.code, error.message), (400, want));
        }
        let many = vec![json!({}); OPERATIONS_MAX + 1];
        assert_eq!(apply(&json!({}), &many.into()).expect_err("too many").code, 413);
    }

    #[test]
    fn copies_are_bounded() {
        let double = json!({"op": "copy", "from": "/a", "path": "/a/-"});
        let patch: Value = vec![double; 64].into();
        assert_eq!(apply(&json!({"a": [1]}), &patch), Err(StatusError::unprocessable()));
    }
}
