//! Strategic merge patches: lists are merged by the keys of the schema, and the directives `$patch` and
//! `$deleteFromPrimitiveList` are applied. New items come last, whatever `$setElementOrder` says, and `$retainKeys`
//! has no effect: no list of which an order matters, and no volume, can be changed here.

use serde_json::{Map, Value};

use crate::schema::status::StatusError;
use crate::schema::type_word;
use crate::schema::{Field, Shape, Type};

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const ORDER: &str = "$setElementOrder/";
const DELETE: &str = "$deleteFromPrimitiveList/";

type Members = Map<String, Value>;

/// Applies a patch to an object of the type.
pub(crate) fn apply(
    of: &'static Type,
    target: &Value,
    patch: &Members,
) -> Result<Value, StatusError> {
    let target = target.as_object().cloned().unwrap_or_default();
    merge_members(Some(of), target, patch.clone()).map(Value::Object)
}

fn merge_members(
    of: Option<&'static Type>,
    mut target: Members,
    mut patch: Members,
) -> Result<Members, StatusError> {
    // In a map `$patch` may also be a key.
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        Some("replace") => {
            patch.remove(DIRECTIVE);
            return Ok(patch);
        }
        Some("delete") => return Ok(Members::new()),
        Some(other) if of.is_some() && other != "merge" => {
            return Err(wrong(format!("unknown patch type: {other}")));
        }
        Some(_) if of.is_some() => drop(patch.remove(DIRECTIVE)),
        Some(_) | None => {}
    }
    for (name, change) in patch {
        if let Some(name) = name.strip_prefix(DELETE) {
            delete_from(&mut target, name, &change)?;
            continue;
        }
        if is_directive(&name) {
            continue;
        }
        let field = of.and_then(|of| of.field(&name));
        let merged = match (target.remove(&name), change) {
            (Some(_), Value::Null) => continue,
            (Some(Value::Object(present)), Value::Object(change)) => {
                Value::Object(merge_members(type_of(field), present, change)?)
            }
            (Some(Value::Array(present)), Value::Array(change)) => {
                Value::Array(merge_list(field, present, change)?)
            }
            // What a null would remove is not there; a field of the type may be set to it.
            (_, Value::Null) if of.is_none() => continue,
            (_, change) => without_directives(change),
        };
        target.insert(name, merged);
    }
    Ok(target)
}

/// The type of a field's value, or of its items.
fn type_of(field: Option<&'static Field>) -> Option<&'static Type> {
    let mut shape = &field?.shape;
    if let Shape::List(item) | Shape::Map(item) = shape {
        shape = item;
    }
    match (&field?.shape, shape) {
        // The members of a map have the type, not the map itself.
        (Shape::Map(_), _) => None,
        (_, Shape::Object(inner)) => Some(inner.get()),
        _ => None,
    }
}

/// A new value without its directives.
fn without_directives(value: Value) -> Value {
    match value {
        Value::Object(members) => {
            let kept =
                members.into_iter().filter(|(name, value)| !is_directive(name) && !value.is_null());
            Value::Object(kept.map(|(name, value)| (name, without_directives(value))).collect())
        }
        Value::Array(items) => {
            let kept = items.into_iter().filter(|item| item.get(DIRECTIVE).is_none());
            Value::Array(kept.map(without_directives).collect())
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value,
    }
}

fn is_directive(name: &str) -> bool {
    name == DIRECTIVE || name == RETAIN || name.starts_with(ORDER) || name.starts_with(DELETE)
}

fn delete_from(target: &mut Members, name: &str, deleted: &Value) -> Result<(), StatusError> {
    let Some(Value::Array(present)) = target.get_mut(name) else { return Ok(()) };
    let Value::Array(deleted) = deleted else {
        return Err(wrong(format!("cannot restore slice from {}", type_word(deleted))));
    };
    present.retain(|item| !deleted.contains(item));
    Ok(())
}

fn is_same_item(one: &Value, other: &Value, key: &str) -> bool {
    one.get(key).is_some_and(|value| other.get(key) == Some(value))
}

fn merge_list(
    field: Option<&'static Field>,
    present: Vec<Value>,
    change: Vec<Value>,
) -> Result<Vec<Value>, StatusError> {
    let Some(merge) = field.and_then(|field| field.merge) else {
        return Ok(change.into_iter().map(without_directives).collect());
    };
    if present.is_empty() && change.is_empty() {
        return Ok(present);
    }
    let n_objects = present.iter().chain(&change).filter(|item| item.is_object()).count();
    if n_objects > 0 && n_objects < present.len() + change.len() {
        return Err(wrong("list element types are not identical"));
    }
    if n_objects == 0 {
        let mut merged = present;
        for item in change {
            if !merged.contains(&item) {
                merged.push(item);
            }
        }
        return Ok(merged);
    }
    let (present, change) = perform_directives(present, change, merge)?;
    let Some(present) = present else { return Ok(change) };
    merge_items(type_of(field), present, &change, merge)
}

/// Applies the items with a directive. Returns `None` as the target if the list is replaced.
fn perform_directives(
    mut present: Vec<Value>,
    change: Vec<Value>,
    key: &str,
) -> Result<(Option<Vec<Value>>, Vec<Value>), StatusError> {
    let mut plain = Vec::new();
    let mut replaced = false;
    for item in change {
        match item.get(DIRECTIVE).map(|word| (word, word.as_str())) {
            None => plain.push(item),
            Some((_, Some("delete"))) => {
                check_key(&item, key)?;
                present.retain(|one| !is_same_item(one, &item, key));
            }
            Some((_, Some("replace"))) => replaced = true,
            Some((word, _)) => return Err(wrong(format!("unknown patch type: {word}"))),
        }
    }
    Ok((Some(present).filter(|_| !replaced), plain))
}

fn check_key(item: &Value, key: &str) -> Result<(), StatusError> {
    match item.get(key) {
        Some(_) => Ok(()),
        None => Err(wrong(format!("an item does not contain the declared merge key {key}"))),
    }
}

/// The error for a patch that cannot be applied.
fn wrong(why: impl Into<String>) -> StatusError {
    StatusError::bad_request(why)
}

fn merge_items(
    of: Option<&'static Type>,
    mut present: Vec<Value>,
    change: &[Value],
    key: &str,
) -> Result<Vec<Value>, StatusError> {
    for item in change {
        check_key(item, key)?;
        let Some(found) = present.iter_mut().find(|one| is_same_item(one, item, key)) else {
            present.push(without_directives(item.clone()));
            continue;
        };
        if let (Value::Object(target), Value::Object(change)) = (&mut *found, item) {
            *target = merge_members(of, std::mem::take(target), change.clone())?;
        }
    }
    Ok(present)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema;
    use crate::schema::kind::Kind;

    #[track_caller]
    fn check(target: &Value, patch: &Value, want: &Value) {
        let members = patch.as_object().expect("an object");
        let got = super::apply(schema::of(Kind::Pod), target, members).expect("a patch");
        assert_eq!(got, *want, "{target} + {patch}");
    }

    #[test]
    fn lists_of_objects_are_merged_by_key() {
        let pod = json!({ "spec": { "containers": [
            { "name": "a", "image": "1", "env": [{ "name": "X", "value": "1" }] },
            { "name": "b", "image": "2" },
        ] } });
        let containers = |list: Value| json!({ "spec": { "containers": list } });
        for (patch, want) in [
            (
                json!([{ "name": "b", "image": "3" }]),
                json!([pod["spec"]["containers"][0], { "name": "b", "image": "3" }]),
            ),
            (
                json!([{ "name": "c", "image": "3" }]),
                json!([
                    pod["spec"]["containers"][0],
                    pod["spec"]["containers"][1],
                    { "name": "c", "image": "3" },
                ]),
            ),
            (
                json!([{ "name": "a", "env": [{ "name": "X", "$patch": "delete" }] }]),
                json!([
                    { "name": "a", "image": "1", "env": [] },
                    { "name": "b", "image": "2" },
                ]),
            ),
            (json!([{ "$patch": "replace" }, { "name": "z" }]), json!([{ "name": "z" }])),
            (json!([{ "name": "a", "$patch": "delete" }]), json!([{ "name": "b", "image": "2" }])),
        ] {
            check(&pod, &containers(patch), &containers(want));
        }
    }
}
