//! The other forms of an answer: Tables, which `kubectl get` shows, and metadata only. Clients ask for
//! them by their `Accept` header.

mod age;
mod cells;
mod fields;
mod pods;

use serde_json::{Map, Value, json};

use crate::schema::kind::Kind;
use crate::storage::object::text_at;
use posse_serve::Request;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Metadata,
    /// In the stored form.
    Plain,
    Table(Include),
}

/// The object in a Table's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Include {
    Metadata,
    None,
    Object,
}

/// The only version of these forms: every kubectl names it first.
const API_VERSION: &str = "meta.k8s.io/v1";

impl Form {
    /// The form that a request accepts. JSON is the only format, whatever the header names.
    pub(crate) fn of(request: &Request) -> Self {
        let accepted = request.header("accept").unwrap_or_default();
        let mut forms =
            accepted.split([';', ',']).filter_map(|part| part.trim().strip_prefix("as="));
        match (forms.next(), request.query("includeObject")) {
            (Some("PartialObjectMetadata" | "PartialObjectMetadataList"), _) => Self::Metadata,
            (Some("Table"), Some("None")) => Self::Table(Include::None),
            (Some("Table"), Some("Object")) => Self::Table(Include::Object),
            (Some("Table"), _) => Self::Table(Include::Metadata),
            (Some(_) | None, _) => Self::Plain,
        }
    }

    /// A list in this form; `None` if it stays as it is. `now` is for ages.
    pub(crate) fn list(
        self,
        kind: Kind,
        metadata: &Value,
        now: &str,
        items: impl Iterator<Item = Value>,
    ) -> Option<Value> {
        match self {
            Self::Plain => None,
            Self::Metadata => Some(json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": API_VERSION,
                "metadata": metadata,
                "items": items.map(|item| metadata_of(&item)).collect::<Value>(),
            })),
            Self::Table(include) => Some(json!({
                "kind": "Table",
                "apiVersion": API_VERSION,
                "metadata": metadata,
                "columnDefinitions": cells::columns(kind),
                "rows": items.map(|item| row(kind, item, include, now)).collect::<Value>(),
            })),
        }
    }

    /// One object in this form; other answers stay as they are. A watch sends the column definitions in
    /// its first Table only.
    pub(crate) fn object(self, kind: Kind, object: Value, now: &str, columns: bool) -> Value {
        match self {
            _ if text_at(&object, "/kind") != kind.name() => object,
            Self::Plain => object,
            Self::Metadata => metadata_of(&object),
            Self::Table(include) => json!({
                "kind": "Table",
                "apiVersion": API_VERSION,
                "metadata": { "resourceVersion": object["metadata"]["resourceVersion"] },
                "columnDefinitions": columns.then(|| cells::columns(kind)),
                "rows": [row(kind, object, include, now)],
            }),
        }
    }
}

fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": API_VERSION,
        "metadata": object["metadata"],
    })
}

fn row(kind: Kind, object: Value, include: Include, now: &str) -> Value {
    let mut row = Map::new();
    row.insert("cells".to_owned(), cells::row(kind, &object, now).into());
    if let Some(conditions) = pods::conditions(kind, &object) {
        row.insert("conditions".to_owned(), conditions);
    }
    let object = match include {
        Include::Metadata => metadata_of(&object),
        Include::None => Value::Null,
        Include::Object => object,
    };
    row.insert("object".to_owned(), object);
    row.into()
}
