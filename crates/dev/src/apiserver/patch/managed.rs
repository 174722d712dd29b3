//! The field managers of an object (`metadata.managedFields`): which fields a write takes over,
//! which an apply gives up, and which conflicts it has.

use serde_json::{Value, json};

use super::fields::Fields;
use super::typed;
use crate::schema::kind::Kind;
use crate::schema::status::{Cause, StatusError};
use crate::schema::{self, Type};
use crate::storage::object::{array_at, text_at};

/// The number of `Update` entries, as in kube-apiserver.
const UPDATERS_MAX: usize = 10;
/// The manager of the entries above this number.
const ANCIENT: &str = "ancient-changes";
/// The manager of the fields that existed before the first tracked write.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The manager and the time of a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) manager: &'a str,
    pub(crate) now: &'a str,
    /// The subresource by which it writes; empty for the whole object.
    pub(crate) subresource: &'a str,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ManagerEntry {
    manager: String,
    applies: bool,
    version: String,
    time: String,
    subresource: String,
    fields: Fields,
}

/// The result of an apply.
#[derive(Debug)]
pub(crate) struct Applied {
    pub(crate) value: Value,
    pub(crate) managed: Value,
}

impl ManagerEntry {
    fn read(entry: &Value) -> Self {
        let text = |field: &str| text_at(entry, field).to_owned();
        Self {
            manager: text("/manager"),
            applies: text_at(entry, "/operation") == "Apply",
            version: text("/apiVersion"),
            time: text("/time"),
            subresource: text("/subresource"),
            fields: entry.get("fieldsV1").map(Fields::read).unwrap_or_default(),
        }
    }

    fn written(&self) -> Value {
        let mut written = json!({
            "manager": self.manager,
            "operation": if self.applies { "Apply" } else { "Update" },
            "apiVersion": self.version,
            "time": self.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": self.fields.written(),
        });
        if !self.subresource.is_empty() {
            written["subresource"] = self.subresource.as_str().into();
        }
        written
    }

    /// True for the entry of a writer.
    fn is_of(&self, writer: Writer<'_>, applies: bool, version: &str) -> bool {
        self.applies == applies
            && self.manager == writer.manager
            && self.version == version
            && self.subresource == writer.subresource
    }

    /// The manager in the message of a conflict.
    fn shown(&self) -> String {
        match self.applies {
            true => format!("{:?}", self.manager),
            false => format!("{:?} using {}", self.manager, self.version),
        }
    }
}

fn read(managed: &Value) -> Vec<ManagerEntry> {
    array_at(managed, "").iter().map(ManagerEntry::read).collect()
}

fn written(mut owners: Vec<ManagerEntry>) -> Value {
    owners.retain(|owner| !owner.fields.is_empty());
    let order = |owner: &ManagerEntry| (!owner.applies, owner.time.clone(), owner.manager.clone());
    owners.sort_by_cached_key(order);
    merge_oldest_updates(&mut owners);
    owners.iter().map(ManagerEntry::written).collect()
}

/// Merges the oldest of too many `Update` entries.
fn merge_oldest_updates(owners: &mut Vec<ManagerEntry>) {
    let first = owners.iter().position(|owner| !owner.applies).unwrap_or(owners.len());
    while owners.len() - first > UPDATERS_MAX {
        let oldest = owners.remove(first);
        let next = &mut owners[first];
        next.fields = std::mem::take(&mut next.fields).union(&oldest.fields);
        next.manager = ANCIENT.to_owned();
    }
}

/// An empty object of a kind.
fn empty_object(of: &'static Type) -> Value {
    let mut value = json!({});
    schema::canonical(of, &mut value);
    value
}

/// The `managedFields` of a new object.
pub(crate) fn created(kind: Kind, value: &Value, writer: Writer<'_>) -> Value {
    let of = schema::of(kind);
    written(take_over(kind, &empty_object(of), value, Vec::new(), writer))
}

/// The `managedFields` after a write that changed `old` to `new`. An object without managers stays
/// without.
pub(crate) fn updated(
    kind: Kind,
    old: &Value,
    new: &Value,
    managed: &Value,
    writer: Writer<'_>,
) -> Value {
    let owners = read(managed);
    if owners.is_empty() {
        return managed.clone();
    }
    written(take_over(kind, old, new, owners, writer))
}

/// Gives the changed fields to the writer, takes them from the others, and removes fields that no
/// longer exist.
fn take_over(
    kind: Kind,
    old: &Value,
    new: &Value,
    mut owners: Vec<ManagerEntry>,
    writer: Writer<'_>,
) -> Vec<ManagerEntry> {
    let difference = typed::difference(schema::of(kind), old, new);
    for owner in &mut owners {
        let left = owner.fields.difference(&difference.taken);
        owner.fields = left.difference(&difference.removed);
    }
    if difference.taken.is_empty() {
        return owners;
    }
    let version = kind.api_version();
    let own = owners.iter_mut().find(|owner| owner.is_of(writer, false, &version));
    match own {
        Some(own) => {
            own.fields = std::mem::take(&mut own.fields).union(&difference.taken);
            writer.now.clone_into(&mut own.time);
        }
        None => owners.push(ManagerEntry {
            manager: writer.manager.to_owned(),
            applies: false,
            version,
            time: writer.now.to_owned(),
            subresource: writer.subresource.to_owned(),
            fields: difference.taken,
        }),
    }
    owners
}

/// Applies a configuration to an object, or creates one.
pub(crate) fn apply(
    kind: Kind,
    live: Option<(&Value, &Value)>,
    config: &Value,
    writer: Writer<'_>,
    force: bool,
) -> Result<Applied, StatusError> {
    let of = schema::of(kind);
    check(of, config)?;
    let is_new = live.is_none();
    let (live, managed) = match live {
        Some((live, managed)) => (live.clone(), managed.clone()),
        None => (empty_object(of), Value::Null),
    };
    let mut owners = read(&managed);
    if owners.is_empty() && !is_new {
        let before = Writer { manager: BEFORE_FIRST_APPLY, subresource: "", ..writer };
        owners = take_over(kind, &empty_object(of), &live, owners, before);
    }
    let version = kind.api_version();
    let is_own = |owner: &ManagerEntry| owner.is_of(writer, true, &version);
    let last = owners.iter().find(|owner| is_own(owner)).cloned();
    owners.retain(|owner| !is_own(owner));
    let mut own = ManagerEntry {
        manager: writer.manager.to_owned(),
        applies: true,
        version: version.clone(),
        time: writer.now.to_owned(),
        subresource: writer.subresource.to_owned(),
        fields: typed::fields_of(of, config),
    };
    let mut value = typed::merged(of, &live, config);
    if let Some(last) = &last {
        let managed = owners.iter().fold(own.fields.clone(), |all, owner| all.union(&owner.fields));
        value = pruned(of, value, &last.fields, &managed);
    }
    let difference = typed::difference(of, &live, &value);
    if !force {
        refuse_conflicts(&owners, &difference.taken)?;
    }
    for owner in &mut owners {
        let left = owner.fields.difference(&difference.taken);
        owner.fields = left.difference(&difference.removed);
    }
    if let Some(last) = last
        && last.fields == own.fields
        && difference.taken.is_empty()
        && difference.removed.is_empty()
    {
        own.time = last.time;
    }
    owners.push(own);
    Ok(Applied { value, managed: written(owners) })
}

/// Removes the fields of the last apply that no manager owns any more.
fn pruned(of: &'static Type, merged: Value, last: &Fields, managed: &Fields) -> Value {
    let all = typed::fields_of(of, &merged);
    let gone = |pruned: &Value| all.difference(&typed::fields_of(of, pruned));
    let pruned = typed::without(of, &merged, last);
    // Fields of other managers stay, and so do fields that were never applied.
    let pruned = typed::without(of, &merged, &gone(&pruned).difference(managed));
    typed::without(of, &merged, &gone(&pruned).intersection(last))
}

fn check(of: &'static Type, config: &Value) -> Result<(), StatusError> {
    let errors = typed::type_errors(of, config);
    let text = match errors.as_slice() {
        [] => return Ok(()),
        [one] => one.clone(),
        several => format!("errors:\n  {}", several.join("\n  ")),
    };
    let name = format!(
        "{}/{}; {}, Kind={}",
        text_at(config, "/metadata/namespace"),
        text_at(config, "/metadata/name"),
        version_of_message(text_at(config, "/apiVersion")),
        text_at(config, "/kind")
    );
    Err(StatusError::internal(format!("failed to create typed patch object ({name}): {text}")))
}

/// `GROUP/VERSION`; the core group has no name.
fn version_of_message(version: &str) -> String {
    let slash = if version.contains('/') { "" } else { "/" };
    format!("{slash}{version}")
}

fn refuse_conflicts(owners: &[ManagerEntry], take_over: &Fields) -> Result<(), StatusError> {
    let mut causes = Vec::new();
    let mut texts = Vec::new();
    let mut owners: Vec<&ManagerEntry> = owners.iter().collect();
    owners.sort_by(|a, b| (&a.manager, a.applies).cmp(&(&b.manager, b.applies)));
    for owner in owners {
        let paths = owner.fields.intersection(take_over).paths();
        if paths.is_empty() {
            continue;
        }
        let shown = owner.shown();
        texts.push(format!("conflicts with {shown}:"));
        texts.extend(paths.iter().map(|path| format!("- {path}")));
        causes.extend(paths.into_iter().map(|path| Cause::conflict(path, &shown)));
    }
    let text = match causes.as_slice() {
        [] => return Ok(()),
        [one] => format!("1 conflict: {}: {}", one.message, one.field),
        several => format!("{} conflicts: {}", several.len(), texts.join("\n")),
    };
    Err(StatusError::apply_conflict(&text, &causes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Writer<'_> = Writer { manager: "m", now: "2026-01-01T00:00:00Z", subresource: "" };

    fn map(data: Value) -> Value {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "x" }, "data": data })
    }

    fn by(manager: &str) -> Writer<'_> {
        Writer { manager, ..NOW }
    }

    /// The manager and the fields of each entry.
    fn owners(managed: &Value) -> Vec<(String, String)> {
        let entry = |owner: &ManagerEntry| (owner.manager.clone(), owner.fields.paths().join(" "));
        read(managed).iter().map(entry).collect()
    }

    fn owner(manager: &str, fields: &str) -> (String, String) {
        (manager.to_owned(), fields.to_owned())
    }

    #[test]
    fn a_field_that_is_no_longer_applied_is_removed_unless_another_manager_owns_it() {
        let kind = Kind::ConfigMap;
        let first = apply(kind, None, &map(json!({"a": "1", "b": "2"})), by("one"), false)
            .expect("nobody else is there");
        let shared = apply(
            kind,
            Some((&first.value, &first.managed)),
            &map(json!({"b": "2", "c": "3"})),
            by("two"),
            false,
        )
        .expect("the same value is no conflict");
        assert_eq!(
            owners(&shared.managed),
            [owner("one", ".data.a .data.b"), owner("two", ".data.b .data.c")]
        );
        let less =
            apply(kind, Some((&shared.value, &shared.managed)), &map(json!({})), by("one"), false)
                .expect("giving up is allowed");
        assert_eq!(less.value["data"], json!({"b": "2", "c": "3"}));
        assert_eq!(owners(&less.managed), [owner("two", ".data.b .data.c")]);
    }

    #[test]
    fn conflicts_name_the_managers_and_force_overrides_them() {
        let kind = Kind::ConfigMap;
        let old = map(json!({"a": "1"}));
        let managed = created(kind, &old, by("creator"));
        let config = map(json!({"a": "2"}));
        let error = apply(kind, Some((&old, &managed)), &config, by("m"), false)
            .expect_err("it is another's");
        assert_eq!(
            error.message,
            "Apply failed with 1 conflict: conflict with \"creator\" using v1: .data.a"
        );
        let forced = apply(kind, Some((&old, &managed)), &config, by("m"), true).expect("forced");
        assert_eq!(forced.value["data"], json!({"a": "2"}));
        assert_eq!(owners(&forced.managed), [owner("m", ".data.a"), owner("creator", ".data")]);
    }

    #[test]
    fn the_number_of_update_entries_is_bounded() {
        let kind = Kind::ConfigMap;
        let mut value = map(json!({"k": "0"}));
        let mut managed = created(kind, &value, by("m0"));
        for i in 0..20 {
            let mut next = value.clone();
            next["data"][format!("k{i}")] = "1".into();
            managed = updated(kind, &value, &next, &managed, by(&format!("w{i:02}")));
            value = next;
        }
        let owners = owners(&managed);
        assert_eq!(owners.len(), UPDATERS_MAX);
        assert_eq!(owners[0].0, ANCIENT);
        assert!(owners[0].1.contains(".data.k0"), "{owners:?}");
    }

    #[test]
    fn an_object_without_managers_stays_so_until_the_first_apply() {
        let kind = Kind::ConfigMap;
        let (old, new) = (map(json!({"a": "1"})), map(json!({"a": "2"})));
        assert_eq!(updated(kind, &old, &new, &json!([]), NOW), json!([]));
        let none = json!([]);
        let applied = apply(kind, Some((&new, &none)), &map(json!({"b": "1"})), NOW, false);
        let applied = applied.expect("nothing is taken");
        assert_eq!(
            owners(&applied.managed),
            [owner("m", ".data.b"), owner(BEFORE_FIRST_APPLY, ".data .data.a")]
        );
    }
}
