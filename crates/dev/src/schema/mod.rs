//! The types of objects and bodies: their fields, and how each field is patched and encoded.

pub(crate) mod base64;
mod canonical;
mod check;
pub(crate) mod kind;
pub(crate) mod names;
pub(crate) mod reviews;
pub(crate) mod status;

use std::sync::OnceLock;

use crate::schema::kind::Kind;
use posse_encoding::dropped_fields::TYPES;

pub(crate) use canonical::canonical;
pub(crate) use check::{check, type_word};

/// The version of Kubernetes that the embedded cluster follows; clients read major and minor.
pub(crate) const VERSION: (&str, &str) = ("1", "36");

/// The tables: pods and what they use, and everything else. The first lines of each say how to read it.
const TABLES: [&str; 2] = [TYPES, include_str!("types.txt")];

/// A type of the table.
#[derive(Debug)]
pub(crate) struct Type {
    /// Its name in messages.
    pub(crate) name: &'static str,
    /// The `apiVersion`s in which it is the type of a body.
    pub(crate) versions: Vec<&'static str>,
    pub(crate) fields: Vec<Field>,
}

/// One field of a type.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    pub(crate) empty: Empty,
    /// The key by which a strategic merge patch merges the list's items; empty for lists of
    /// scalars. `None`: the patch replaces the list.
    pub(crate) merge: Option<&'static str>,
}

/// How an empty value of a field is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Empty {
    Dropped,
    Kept,
    /// Written even if no value was given.
    Written,
}

/// The type of a field's value. `null` is always allowed and means absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Any,
    Boolean,
    /// Base64 text.
    Bytes,
    Double,
    Int32,
    Int64,
    IntOrString,
    List(Box<Self>),
    /// The keys are text.
    Map(Box<Self>),
    MicroTime,
    Object(TypeRef),
    Quantity,
    Text,
    Time,
}

/// The index of a type in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TypeRef(usize);

impl TypeRef {
    pub(crate) fn get(self) -> &'static Type {
        &table()[self.0]
    }
}

impl Type {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// The name without its package: two groups have an `Event`.
    pub(crate) fn kind(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

/// All types.
pub(crate) fn table() -> &'static [Type] {
    static TABLE: OnceLock<Vec<Type>> = OnceLock::new();
    TABLE.get_or_init(|| parse(&TABLES).expect("a test reads the same text"))
}

/// The type of a kind in its stored version.
pub(crate) fn of(kind: Kind) -> &'static Type {
    named(kind.name()).expect("a test looks for every kind")
}

pub(crate) fn named(name: &str) -> Option<&'static Type> {
    table().iter().find(|one| one.name == name)
}

pub(crate) fn of_body(api_version: &str, kind: &str) -> Option<&'static Type> {
    table().iter().find(|one| one.kind() == kind && one.versions.contains(&api_version))
}

/// The `apiVersion`s in which a kind is served.
pub(crate) fn versions(kind: Kind) -> impl Iterator<Item = &'static str> {
    let same = table().iter().filter(move |one| one.kind() == kind.name());
    same.flat_map(|one| one.versions.iter().copied())
}

/// A line with its number.
type Line = (usize, &'static str);

fn parse(tables: &[&'static str]) -> Result<Vec<Type>, String> {
    let of_table = |text: &&'static str| text.lines().enumerate();
    let numbered = tables.iter().flat_map(of_table).map(|(i, line)| (i + 1, line));
    let lines: Vec<Line> = numbered.filter(|(_, line)| !line.starts_with('#')).collect();
    let heads = lines.iter().filter(|(_, line)| !line.starts_with(' '));
    let names: Vec<&str> = heads.filter_map(|(_, line)| line.split(' ').next()).collect();
    let mut types: Vec<Type> = Vec::with_capacity(names.len());
    for (number, line) in lines {
        let wrong = |what: &str| format!("line {number}: {what}: {line}");
        if let Some(field) = line.strip_prefix(' ') {
            let field = parse_field(field, &names).ok_or_else(|| wrong("not a field"))?;
            types.last_mut().ok_or_else(|| wrong("a field of no type"))?.fields.push(field);
        } else {
            types.push(parse_head(line));
        }
    }
    Ok(with_inlined(&types))
}

fn parse_head(line: &'static str) -> Type {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    Type { name, versions: words.collect(), fields: Vec::new() }
}

fn parse_field(line: &'static str, names: &[&str]) -> Option<Field> {
    let mut words = line.split(' ');
    let (name, shape) = (words.next()?, words.next()?);
    let (empty, shape) = match shape.split_at_checked(1)? {
        ("+", shape) => (Empty::Written, shape),
        ("*", shape) => (Empty::Kept, shape),
        _ => (Empty::Dropped, shape),
    };
    let merge = match words.next() {
        None => None,
        Some(word) => Some(word.strip_prefix("merge")?.trim_start_matches('=')),
    };
    Some(Field { name, shape: parse_shape(shape, names)?, empty, merge })
}

fn parse_shape(word: &str, names: &[&str]) -> Option<Shape> {
    const SCALARS: [(&str, Shape); 11] = [
        ("Any", Shape::Any),
        ("Boolean", Shape::Boolean),
        ("Bytes", Shape::Bytes),
        ("Double", Shape::Double),
        ("Int32", Shape::Int32),
        ("Int64", Shape::Int64),
        ("IntOrString", Shape::IntOrString),
        ("MicroTime", Shape::MicroTime),
        ("Quantity", Shape::Quantity),
        ("Text", Shape::Text),
        ("Time", Shape::Time),
    ];
    let between = |open, close| word.strip_prefix(open).and_then(|word| word.strip_suffix(close));
    if let Some(item) = between('[', ']') {
        return parse_shape(item, names).map(|item| Shape::List(Box::new(item)));
    }
    if let Some(item) = between('{', '}') {
        return parse_shape(item, names).map(|item| Shape::Map(Box::new(item)));
    }
    let scalar = SCALARS.into_iter().find(|(name, _)| *name == word).map(|(_, shape)| shape);
    let object = || names.iter().position(|name| *name == word).map(TypeRef).map(Shape::Object);
    scalar.or_else(object)
}

/// Replaces inlined types by their fields.
fn with_inlined(types: &[Type]) -> Vec<Type> {
    let fields_of = |field: &Field| {
        let Shape::Object(inner) = field.shape else { return vec![field.clone()] };
        if field.name != "." {
            return vec![field.clone()];
        }
        types[inner.0].fields.clone()
    };
    let whole = |one: &Type| Type {
        versions: one.versions.clone(),
        fields: one.fields.iter().flat_map(fields_of).collect(),
        ..*one
    };
    types.iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_tables_are_of_the_version() {
        let version = format!("of Kubernetes {}.{},", VERSION.0, VERSION.1);
        for table in TABLES {
            assert!(table.lines().next().is_some_and(|line| line.contains(&version)), "{version}");
        }
    }

    #[test]
    fn the_table_is_complete() {
        let types = parse(&TABLES).expect("the table can be read");
        let names: BTreeSet<&str> = types.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), types.len(), "a type is there twice");
        for one in &types {
            let mut seen = BTreeSet::new();
            for field in &one.fields {
                assert_ne!(field.name, ".", "{}: inlined twice", one.name);
                assert!(seen.insert(field.name), "{}.{} is there twice", one.name, field.name);
                if let Some(key) = field.merge.filter(|key| !key.is_empty()) {
                    check_key(one, field, key);
                }
            }
        }
    }

    /// A merge key must be a field of the items.
    fn check_key(one: &Type, field: &Field, key: &str) {
        let Shape::List(item) = &field.shape else { panic!("{}.{}", one.name, field.name) };
        let Shape::Object(item) = **item else { panic!("{}.{}", one.name, field.name) };
        assert!(item.get().field(key).is_some(), "{}.{}: {key}", one.name, field.name);
    }

    #[test]
    fn every_kind_and_body_has_a_type() {
        for kind in Kind::all() {
            assert!(of(kind).versions.contains(&kind.api_version().as_str()), "{kind:?}");
            assert!(of(kind).field("metadata").is_some(), "{kind:?}");
        }
        for (version, kind) in [
            ("v1", "Binding"),
            ("policy/v1", "Eviction"),
            ("policy/v1beta1", "Eviction"),
            ("v1", "DeleteOptions"),
            ("events.k8s.io/v1", "Event"),
            ("authorization.k8s.io/v1", "SelfSubjectAccessReview"),
            ("authentication.k8s.io/v1", "TokenRequest"),
        ] {
            assert!(of_body(version, kind).is_some(), "{version} {kind}");
        }
        assert!(of_body("v2", "Pod").is_none());
    }

    #[test]
    fn fields_are_merged_as_the_table_says() {
        let spec = named("PodSpec").expect("pods have one");
        let volumes = spec.field("volumes").expect("pods have some");
        assert_eq!(volumes.merge, Some("name"));
        let container = named("Container").expect("pods have some");
        let ports = container.field("ports").expect("containers have some");
        assert_eq!(ports.merge, Some("containerPort"));
        let metadata = named("ObjectMeta").expect("objects have it");
        assert_eq!(metadata.field("finalizers").expect("some").merge, Some(""));
        assert_eq!(container.field("command").expect("some").merge, None);
        let volume = named("Volume").expect("pods have some");
        assert!(volume.field("emptyDir").is_some(), "its source is inlined");
    }
}
