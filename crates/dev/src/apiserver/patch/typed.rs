//! Operations of server-side apply on typed values: the fields of a value, the difference of two
//! values, merging, and removal of fields.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::fields::{Fields, shown};
use crate::schema::{List, Shape, Type, TypeRef};

/// How a value is divided into parts.
#[derive(Clone, Copy, Debug)]
enum Structure {
    /// Not divided.
    Leaf,
    /// By member names; all members have the same shape.
    Map(&'static Shape),
    /// By member names.
    Object(TypeRef),
    /// Items by their key fields.
    Keyed(TypeRef, &'static [&'static str]),
    /// Items by value.
    Set,
}

/// The difference between an old and a new value.
#[derive(Debug, Default)]
pub(super) struct Difference {
    /// New fields and fields with another value.
    pub(super) taken: Fields,
    pub(super) removed: Fields,
}

/// Fields of the server that no manager owns.
const UNOWNED: [&str; 9] = [
    "f:clusterName",
    "f:creationTimestamp",
    "f:generation",
    "f:managedFields",
    "f:name",
    "f:namespace",
    "f:resourceVersion",
    "f:selfLink",
    "f:uid",
];

fn structure(shape: &'static Shape, list: &'static List) -> Structure {
    match (shape, list) {
        (Shape::Object(inner), _) if inner.get().atomic => Structure::Leaf,
        (Shape::Object(inner), _) => Structure::Object(*inner),
        (Shape::Map(item), _) => Structure::Map(item),
        (Shape::List(_), List::Set) => Structure::Set,
        (Shape::List(item), List::Map(keys)) if let Shape::Object(inner) = **item => {
            Structure::Keyed(inner, keys)
        }
        _ => Structure::Leaf,
    }
}

fn structure_of_field(of: &'static Type, name: &str) -> Structure {
    let divided = of.field(name).filter(|field| !field.atomic);
    divided.map_or(Structure::Leaf, |field| structure(&field.shape, &field.list))
}

impl Structure {
    /// The form of the part under a path element.
    fn below(self, element: &str) -> Self {
        match (self, element.strip_prefix("f:")) {
            (Self::Object(inner), Some(name)) => structure_of_field(inner.get(), name),
            (Self::Map(item), Some(_)) => structure(item, &List::Atomic),
            (Self::Keyed(inner, _), _) => Self::Object(inner),
            _ => Self::Leaf,
        }
    }

    fn is_list(self) -> bool {
        matches!(self, Self::Keyed(..) | Self::Set)
    }

    /// The parts of a value by path element, in order; `None` for a value that is not divided.
    fn parts(self, value: &Value) -> Option<Vec<(String, &Value)>> {
        match (self, value) {
            (Self::Leaf, _) => None,
            (Self::Map(_) | Self::Object(_), Value::Object(members)) => {
                Some(members.iter().map(|(name, value)| (format!("f:{name}"), value)).collect())
            }
            (Self::Keyed(_, keys), Value::Array(items)) => {
                Some(items.iter().map(|item| (key_of(keys, item), item)).collect())
            }
            (Self::Set, Value::Array(items)) => {
                Some(items.iter().map(|item| (format!("v:{item}"), item)).collect())
            }
            (_, Value::Null) => Some(Vec::new()),
            _ => None,
        }
    }

    /// The reverse of `parts`; null if there are none.
    fn whole(self, parts: Vec<(String, Value)>) -> Value {
        if self.is_list() {
            return Value::Array(parts.into_iter().map(|(_, item)| item).collect());
        }
        let name = |element: String| element.get(2..).unwrap_or_default().to_owned();
        let members = parts.into_iter().map(|(element, value)| (name(element), value));
        Value::Object(members.collect::<Map<_, _>>())
    }
}

/// The path element of a list item.
fn key_of(keys: &[&str], item: &Value) -> String {
    let value = |key: &str| match item.get(key) {
        Some(value) => value.clone(),
        // The only key field with a default.
        None if key == "protocol" => "TCP".into(),
        None => Value::Null,
    };
    let keys: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), value(key))).collect();
    format!("k:{}", Value::Object(keys))
}

/// The form of the top-level fields of a type.
fn root(of: &'static Type) -> impl Fn(&str) -> Structure {
    move |element| {
        element.strip_prefix("f:").map_or(Structure::Leaf, |name| structure_of_field(of, name))
    }
}

fn members(value: &Value) -> impl Iterator<Item = (String, &Value)> {
    let owned = |name: &&String| !matches!(name.as_str(), "apiVersion" | "kind");
    let members = value.as_object().into_iter().flatten().filter(move |(name, _)| owned(name));
    members.map(|(name, value)| (format!("f:{name}"), value))
}

/// Removes the fields that no manager owns.
fn without_unowned(mut fields: Fields) -> Fields {
    if let Some(mut metadata) = fields.below.remove("f:metadata") {
        metadata.member = false;
        metadata.below.retain(|element, _| !UNOWNED.contains(&element.as_str()));
        fields.put("f:metadata".to_owned(), metadata);
    }
    fields
}

/// The fields that a value sets. Empty containers set none.
pub(super) fn fields_of(of: &'static Type, value: &Value) -> Fields {
    let mut fields = Fields::default();
    for (element, value) in members(value) {
        let structure = root(of)(&element);
        fields.put(element, fields_below(structure, value));
    }
    without_unowned(fields)
}

fn fields_below(structure: Structure, value: &Value) -> Fields {
    let Some(parts) = structure.parts(value) else { return Fields::leaf() };
    let mut fields = Fields::default();
    for (element, part) in parts {
        let mut below = fields_below(structure.below(&element), part);
        below.member |= structure.is_list();
        fields.put(element, below);
    }
    fields
}

/// The difference from `old` to `new`.
pub(super) fn difference(of: &'static Type, old: &Value, new: &Value) -> Difference {
    let mut all = Difference::default();
    for (element, (old, new)) in paired(members(old), members(new)) {
        let below = difference_below(root(of)(&element), old, new);
        all.taken.put(element.clone(), below.taken);
        all.removed.put(element, below.removed);
    }
    Difference { taken: without_unowned(all.taken), removed: without_unowned(all.removed) }
}

/// The parts of two values under each path element.
type Pairs<'a> = BTreeMap<String, (Option<&'a Value>, Option<&'a Value>)>;

fn paired<'a>(
    old: impl Iterator<Item = (String, &'a Value)>,
    new: impl Iterator<Item = (String, &'a Value)>,
) -> Pairs<'a> {
    let mut pairs = Pairs::new();
    for (element, value) in old {
        pairs.entry(element).or_default().0 = Some(value);
    }
    for (element, value) in new {
        pairs.entry(element).or_default().1 = Some(value);
    }
    pairs
}

fn difference_below(structure: Structure, old: Option<&Value>, new: Option<&Value>) -> Difference {
    let mut all = Difference::default();
    if old == new {
        return all;
    }
    let parts =
        |value: Option<&'_ Value>| value.map_or(Some(0), |v| structure.parts(v).map(|p| p.len()));
    let is_leaf = match (parts(old), parts(new)) {
        // Two empty containers can only differ as a whole.
        (Some(0), Some(0)) | (None, _) | (_, None) => true,
        (Some(_), Some(_)) => false,
    };
    if !is_leaf {
        let parts =
            |value: Option<_>| value.and_then(|value| structure.parts(value)).unwrap_or_default();
        for (element, (old, new)) in paired(parts(old).into_iter(), parts(new).into_iter()) {
            let below = difference_below(structure.below(&element), old, new);
            all.taken.put(element.clone(), below.taken);
            all.removed.put(element, below.removed);
        }
    }
    all.taken.member = new.is_some() && (old.is_none() || is_leaf);
    all.removed.member = new.is_none();
    all
}

/// Merges two values: `over` wins, and list items keep their positions.
pub(super) fn merged(of: &'static Type, under: &Value, over: &Value) -> Value {
    let mut whole = under.clone();
    for (element, over) in members(over) {
        let name = element.get(2..).unwrap_or_default();
        let below = merged_below(root(of)(&element), &whole[name], over);
        whole[name] = below;
    }
    whole
}

fn merged_below(structure: Structure, under: &Value, over: &Value) -> Value {
    let (Some(under_parts), Some(over_parts)) = (structure.parts(under), structure.parts(over))
    else {
        return over.clone();
    };
    if over_parts.is_empty() {
        return if under_parts.is_empty() { over.clone() } else { under.clone() };
    }
    let mut over: BTreeMap<String, &Value> = over_parts.iter().cloned().collect();
    let mut parts: Vec<(String, Value)> = Vec::new();
    for (element, under) in under_parts {
        let value = match over.remove(&element) {
            Some(over) => merged_below(structure.below(&element), under, over),
            None => under.clone(),
        };
        parts.push((element, value));
    }
    for (element, value) in over_parts {
        if over.remove(&element).is_some() {
            parts.push((element, value.clone()));
        }
    }
    structure.whole(parts)
}

/// Removes fields with all their subfields.
pub(super) fn without(of: &'static Type, value: &Value, fields: &Fields) -> Value {
    let mut whole = value.clone();
    for (element, below) in &fields.below {
        let name = element.get(2..).unwrap_or_default();
        let Some(present) = whole.get(name) else { continue };
        let left = match below.member {
            true => None,
            false => without_below(root(of)(element), present, below),
        };
        match (left, whole.as_object_mut()) {
            (Some(left), Some(members)) => drop(members.insert(name.to_owned(), left)),
            (None, Some(members)) => drop(members.remove(name)),
            (_, None) => {}
        }
    }
    whole
}

/// `None` if nothing is left.
fn without_below(structure: Structure, value: &Value, fields: &Fields) -> Option<Value> {
    let Some(parts) = structure.parts(value) else { return Some(value.clone()) };
    let n_parts = parts.len();
    let left: Vec<(String, Value)> = parts
        .into_iter()
        .filter_map(|(element, part)| match fields.below.get(&element) {
            None => Some((element, part.clone())),
            Some(below) if below.member => None,
            Some(below) => {
                let left = without_below(structure.below(&element), part, below)?;
                Some((element, left))
            }
        })
        .collect();
    (!left.is_empty() || n_parts == 0).then(|| structure.whole(left))
}

/// The type errors in a value, in the words of server-side apply.
pub(super) fn type_errors(of: &'static Type, value: &Value) -> Vec<String> {
    let mut type_errors = Vec::new();
    for (element, value) in members(value) {
        let name = element.get(2..).unwrap_or_default();
        match of.field(name) {
            Some(field) => {
                check(&field.shape, &field.list, value, &format!(".{name}"), &mut type_errors)
            }
            None => type_errors.push(undeclared(&format!(".{name}"))),
        }
    }
    type_errors
}

fn undeclared(path: &str) -> String {
    format!("{path}: field not declared in schema")
}

fn check(
    shape: &'static Shape,
    list: &'static List,
    value: &Value,
    path: &str,
    type_errors: &mut Vec<String>,
) {
    let wanted = match (shape, value) {
        (_, Value::Null) | (Shape::Any | Shape::IntOrString | Shape::Quantity, _) => return,
        (Shape::Boolean, Value::Bool(_))
        | (Shape::Double | Shape::Int32 | Shape::Int64, Value::Number(_))
        | (Shape::Bytes | Shape::MicroTime | Shape::Text | Shape::Time, Value::String(_)) => return,
        (Shape::Map(item), Value::Object(members)) => {
            for (name, value) in members {
                check(item, &List::Atomic, value, &format!("{path}.{name}"), type_errors);
            }
            return;
        }
        (Shape::Object(inner), Value::Object(members)) => {
            for (name, value) in members {
                let path = format!("{path}.{name}");
                match inner.get().field(name) {
                    Some(field) => check(&field.shape, &field.list, value, &path, type_errors),
                    None => type_errors.push(undeclared(&path)),
                }
            }
            return;
        }
        (Shape::List(item), Value::Array(_)) => {
            check_items(item, structure(shape, list), value, path, type_errors);
            return;
        }
        (Shape::Boolean, _) => "boolean",
        (Shape::Double | Shape::Int32 | Shape::Int64, _) => "numeric (int or float)",
        (Shape::List(_), _) => "list",
        (Shape::Map(_) | Shape::Object(_), _) => "map",
        (Shape::Bytes | Shape::MicroTime | Shape::Text | Shape::Time, _) => "string",
    };
    let found = super::go_shown(value);
    type_errors.push(match wanted {
        "list" | "map" => format!("{path}: expected {wanted}, got &{{{found}}}"),
        _ => format!(
            "{path}: expected {wanted}, got &value.valueUnstructured{{Value:{}}}",
            go_syntax(value)
        ),
    });
}

fn check_items(
    item: &'static Shape,
    structure: Structure,
    list: &Value,
    path: &str,
    type_errors: &mut Vec<String>,
) {
    let known = structure.parts(list);
    let items = list.as_array().map_or(&[][..], Vec::as_slice);
    let mut seen = std::collections::BTreeSet::new();
    for (i, value) in items.iter().enumerate() {
        let element = match &known {
            Some(parts) => parts.get(i).map(|(element, _)| element.clone()).unwrap_or_default(),
            None => i.to_string(),
        };
        let at = shown(&element);
        if known.is_some() && !seen.insert(element) {
            type_errors.push(format!("{path}: duplicate entries for key {at}"));
        }
        check(item, &List::Atomic, value, &format!("{path}{at}"), type_errors);
    }
}

/// A value as Go's `%#v` prints it.
fn go_syntax(value: &Value) -> String {
    match value {
        Value::Array(_) => "[]interface {}".to_owned(),
        Value::Object(_) => "map[string]interface {}".to_owned(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}
