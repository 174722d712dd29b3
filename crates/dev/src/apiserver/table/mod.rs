//! The other forms of an answer: Tables and metadata only.

pub(crate) mod accept;
mod age;
mod cells;
mod fields;
mod pods;

pub(crate) use accept::Form;

use serde_json::{Map, Value, json};

use crate::schema::kind::Kind;
use crate::schema::status::StatusError;
use accept::{Include, Shape};

/// The parts of a list besides its items.
pub(crate) struct ListHead<'a> {
    pub(crate) kind: Kind,
    pub(crate) metadata: &'a Value,
    /// The current time, for ages.
    pub(crate) now: &'a str,
}

impl Form {
    /// A list in this form; `None` if it stays as it is.
    pub(crate) fn list<'a>(
        &self,
        head: &ListHead<'_>,
        items: impl Iterator<Item = Value> + 'a,
    ) -> Option<Vec<u8>> {
        let (kind, name, rows) = match &self.shape {
            Shape::Plain => return None,
            Shape::Table(_) => ("Table", "rows", self.columns(head.kind)),
            Shape::Metadata | Shape::MetadataList => {
                ("PartialObjectMetadataList", "items", String::new())
            }
        };
        let mut body = format!(
            r#"{{"kind":"{kind}","apiVersion":"{}","metadata":{},{rows}"{name}":["#,
            self.api_version(),
            head.metadata
        )
        .into_bytes();
        let mut items = items.enumerate().peekable();
        if items.peek().is_none() && name == "items" {
            // Go encodes an empty slice without a value as null.
            body.pop();
            body.extend_from_slice(b"null}");
            return Some(body);
        }
        for (i, item) in items {
            if i > 0 {
                body.push(b',');
            }
            let shaped = match &self.shape {
                Shape::Table(include) => self.row(head.kind, item, *include, head.now),
                Shape::Metadata | Shape::MetadataList | Shape::Plain => self.partial(&item),
            };
            body.extend_from_slice(shaped.to_string().as_bytes());
        }
        body.extend_from_slice(b"]}");
        Some(body)
    }

    /// One object in this form. A watch sends the column definitions in its first Table only.
    pub(crate) fn object(&self, kind: Kind, object: Value, now: &str, columns: bool) -> Value {
        match &self.shape {
            Shape::Plain => object,
            Shape::Metadata | Shape::MetadataList => self.partial(&object),
            Shape::Table(include) => json!({
                "kind": "Table",
                "apiVersion": self.api_version(),
                "metadata": { "resourceVersion": object["metadata"]["resourceVersion"] },
                "columnDefinitions": columns.then(|| cells::columns(kind)),
                "rows": [self.row(kind, object, *include, now)],
            }),
        }
    }

    /// One object in this form; an error if the client accepts lists only.
    pub(crate) fn single(
        &self,
        kind: Kind,
        object: Value,
        now: &str,
    ) -> Result<Value, StatusError> {
        match self.shape == Shape::MetadataList {
            true => Err(StatusError::not_acceptable(format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list \
                 (*{})",
                accept::go_type(kind)
            ))),
            false => Ok(self.object(kind, object, now, true)),
        }
    }

    fn api_version(&self) -> String {
        format!("meta.k8s.io/{}", self.version)
    }

    fn columns(&self, kind: Kind) -> String {
        format!(r#""columnDefinitions":{},"#, cells::columns(kind))
    }

    fn row(&self, kind: Kind, object: Value, include: Include, now: &str) -> Value {
        let mut row = Map::new();
        row.insert("cells".to_owned(), cells::row(kind, &object, now).into());
        if let Some(conditions) = pods::conditions(kind, &object) {
            row.insert("conditions".to_owned(), conditions);
        }
        let object = match include {
            Include::Metadata => self.partial(&object),
            Include::None => Value::Null,
            Include::Object => object,
        };
        row.insert("object".to_owned(), object);
        row.into()
    }

    fn partial(&self, object: &Value) -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": self.api_version(),
            "metadata": object["metadata"],
        })
    }
}
