//! Content negotiation: parses the `Accept` header and `includeObject`.

use crate::schema::kind::{Kind, Subresource};
use crate::schema::status::{Cause, StatusError};
use posse_serve::Request;

/// The form of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Form {
    pub(super) shape: Shape,
    /// The version of `meta.k8s.io`.
    pub(super) version: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    Metadata,
    MetadataList,
    /// In the stored form.
    #[default]
    Plain,
    Table(Include),
}

/// The object in a Table's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    Metadata,
    None,
    Object,
}

/// One clause of the header.
#[derive(Clone, Debug, PartialEq)]
struct Clause<'a> {
    media_type: &'a str,
    subtype: &'a str,
    quality: f32,
    params: Vec<(&'a str, &'a str)>,
}

impl Form {
    /// The form that a request accepts; an error if none can be served. Of the subresources, only a
    /// status has a Table.
    pub(crate) fn of(request: &Request, subresource: Subresource) -> Result<Self, StatusError> {
        let header = request.header("accept").unwrap_or_default();
        if header.is_empty() {
            return Ok(Self::default());
        }
        let clauses = clauses(header);
        // kube-apiserver checks twice: the router by media type, then the verb with the parameters.
        if !clauses.iter().any(Clause::is_known) {
            return Err(StatusError::no_known_media_type());
        }
        let Some((kind, version)) = clauses.iter().filter_map(Clause::form).find(|(kind, _)| {
            let has_table = [Subresource::None, Subresource::Status].contains(&subresource);
            *kind != "Table" || has_table
        }) else {
            return Err(StatusError::not_acceptable(
                "only the following media types are accepted: application/json, \
                 application/yaml, application/vnd.kubernetes.protobuf",
            ));
        };
        let shape = match kind {
            "PartialObjectMetadata" => Shape::Metadata,
            "PartialObjectMetadataList" => Shape::MetadataList,
            "Table" => Shape::Table(include(request)?),
            _ => Shape::Plain,
        };
        Ok(Self { shape, version })
    }

    pub(crate) fn is_plain(&self) -> bool {
        self.shape == Shape::Plain
    }

    /// Refuses a form that a list cannot have.
    pub(crate) fn check_list(&self, kind: Kind) -> Result<(), StatusError> {
        match self.shape {
            Shape::Metadata => Err(StatusError::not_acceptable(format!(
                "you requested PartialObjectMetadata, but the requested object is a list \
                 (*{}List)",
                go_type(kind)
            ))),
            Shape::MetadataList | Shape::Plain | Shape::Table(_) => Ok(()),
        }
    }
}

fn include(request: &Request) -> Result<Include, StatusError> {
    match request.query("includeObject").unwrap_or_default() {
        "" | "Metadata" => Ok(Include::Metadata),
        "None" => Ok(Include::None),
        "Object" => Ok(Include::Object),
        other => {
            let detail = "must be 'Metadata', 'Object', 'None', or empty";
            let cause = Cause::invalid("includeObject", other, detail);
            Err(StatusError::bad_request(format!(
                "Unable to convert to Table as requested: {}: {}",
                cause.field, cause.message
            )))
        }
    }
}

/// The Go type in messages.
pub(super) fn go_type(kind: Kind) -> String {
    let package = match kind.group() {
        "" => "core",
        group => group.split('.').next().unwrap_or_default(),
    };
    let package = if package.starts_with("rbac") { "rbac" } else { package };
    format!("{package}.{}", kind.name())
}

/// The clauses in order of preference.
fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = header.split(',').filter_map(clause).collect();
    let any = |part: &str| part == "*";
    clauses.sort_by(|a, b| {
        let quality = b.quality.total_cmp(&a.quality);
        let types = any(a.media_type).cmp(&any(b.media_type));
        quality.then(types).then(any(a.subtype).cmp(&any(b.subtype)))
    });
    clauses
}

fn clause(text: &str) -> Option<Clause<'_>> {
    let mut parts = text.split(';').map(str::trim);
    // A list may name what is no media type, as Java's `*; q=.2`.
    let (media_type, subtype) = parts.next()?.split_once('/')?;
    let (media_type, subtype) = (media_type.trim(), subtype.trim());
    let params: Vec<(&str, &str)> = parts.filter_map(|part| part.split_once('=')).collect();
    let quality = params.iter().find(|(key, _)| *key == "q");
    let quality = quality.map_or(1.0, |(_, text)| text.parse().unwrap_or_default());
    Some(Clause { media_type, subtype, quality, params })
}

impl Clause<'_> {
    fn is_known(&self) -> bool {
        match (self.media_type, self.subtype) {
            ("*", "*") => true,
            ("application", subtype) => {
                matches!(subtype, "json" | "yaml" | "vnd.kubernetes.protobuf")
            }
            _ => false,
        }
    }

    fn param(&self, name: &str) -> &str {
        self.params.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    /// The kind and version to which this clause converts, empty without conversion; `None` if it
    /// cannot be served. Answers are JSON only.
    fn form(&self) -> Option<(&'static str, &'static str)> {
        let json = matches!((self.media_type, self.subtype), ("*" | "application", "*" | "json"));
        if !json || !matches!(self.param("stream"), "" | "watch") {
            return None;
        }
        let known = |name: &str, all: &[&'static str]| all.iter().copied().find(|k| *k == name);
        match (self.param("as"), self.param("g"), self.param("v")) {
            ("", "", "") => Some(("", "")),
            (kind, "meta.k8s.io", version) => {
                let kinds = ["PartialObjectMetadata", "PartialObjectMetadataList", "Table"];
                Some((known(kind, &kinds)?, known(version, &["v1", "v1beta1"])?))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(accept: &str) -> Option<(&'static str, &'static str)> {
        clauses(accept).iter().find_map(Clause::form)
    }

    #[test]
    fn the_best_servable_clause_wins() {
        for (accept, expected) in [
            ("application/json", Some(("", ""))),
            ("*/*", Some(("", ""))),
            ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", Some(("", ""))),
            ("application/vnd.kubernetes.protobuf,application/json", Some(("", ""))),
            ("application/json;stream=watch", Some(("", ""))),
            ("application/json;as=Table;v=v1;g=meta.k8s.io", Some(("Table", "v1"))),
            (
                "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
                Some(("Table", "v1")),
            ),
            (
                "application/json;as=Table;v=v2;g=meta.k8s.io,\
                 application/json; as=Table; v=v1beta1; g=meta.k8s.io",
                Some(("Table", "v1beta1")),
            ),
            (
                "application/json;q=0.5,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                Some(("PartialObjectMetadata", "v1")),
            ),
            ("application/json;as=Table", None),
            ("application/json;as=Nope;v=v1;g=meta.k8s.io", None),
            ("text/plain", None),
            ("*", None),
            ("foo, , application/json;q=.1", Some(("", ""))),
        ] {
            assert_eq!(form(accept), expected, "{accept}");
        }
    }
}
