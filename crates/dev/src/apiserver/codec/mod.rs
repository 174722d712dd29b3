//! Converts request bodies to JSON in the stored version: from YAML and protobuf, and from the
//! other versions of a kind. Also checks the fields that `fieldValidation` asks about.

pub(crate) mod decode;
mod protobuf;
pub(crate) mod versions;

use std::borrow::Cow;
use std::thread;

use serde_json::{Map, Value};

use self::versions::{is_stored, rename_fields, rename_paths};
use crate::apiserver::route::{self, Route, Target};
use crate::schema;
use crate::schema::kind::{Kind, Subresource};
use crate::schema::status::{Cause, StatusError, go_quoted};
use posse_encoding::protobuf::{Envelope, MAGIC};
use posse_encoding::{json, yaml};
use posse_serve::Request;

const JSON: &str = "application/json";

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Protobuf,
    Yaml,
}

/// The request with its body in JSON and in the stored version.
pub(crate) fn to_stored<'a>(
    request: &'a Request,
    target: &Target,
) -> Result<Cow<'a, Request>, StatusError> {
    let stored = is_stored(target);
    if request.body.is_empty() || matches!(request.method.as_str(), "GET" | "HEAD") {
        return Ok(Cow::Borrowed(request));
    }
    if request.method == "PATCH" {
        return match stored {
            true => Ok(Cow::Borrowed(request)),
            false => Ok(Cow::Owned(stored_patch(request, target.kind))),
        };
    }
    let expected = expected(target, &request.method);
    // The decoder of DeleteOptions reports an unknown format.
    let format = format(request)?;
    if format == Format::Json && (stored || target.subresource != Subresource::None) {
        return Ok(Cow::Borrowed(request));
    }
    let mut value = tree(format, &request.body, expected)?;
    if !stored && target.subresource == Subresource::None && request.method != "DELETE" {
        value = decode::typed(expected, target.api_version, value)?;
        rename_fields(target.kind, &mut value, |(there, here)| (there, here));
        value["apiVersion"] = target.kind.api_version().into();
    }
    let mut inner = request.clone();
    inner.replace_body(JSON, value.to_string().into_bytes());
    Ok(Cow::Owned(inner))
}

/// The patch with the stored names of the top-level fields; no others differ.
fn stored_patch(request: &Request, kind: Kind) -> Request {
    let mut inner = request.clone();
    let patch = serde_json::from_slice(&request.body).ok();
    let Some(mut patch) = patch.or_else(|| read_yaml(&request.body).ok()) else { return inner };
    rename_fields(kind, &mut patch, |(there, here)| (there, here));
    if let Some(members) = patch.as_object_mut().filter(|m| m.contains_key("apiVersion")) {
        members.insert("apiVersion".to_owned(), kind.api_version().into());
    }
    for operation in patch.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        rename_paths(kind, operation);
    }
    inner.body = patch.to_string().into_bytes();
    inner
}

/// The kind of the request's body.
fn expected(target: &Target, method: &str) -> &'static str {
    match (method, target.subresource) {
        ("DELETE", _) => "DeleteOptions",
        (_, subresource) => subresource.body_kind().unwrap_or_else(|| target.kind.name()),
    }
}

/// Decodes a body of a kind that is not stored.
pub(crate) fn body(
    request: &Request,
    kind: &'static str,
    api_version: &str,
) -> Result<Value, StatusError> {
    let value = tree(format(request)?, &request.body, kind)?;
    decode::typed(kind, api_version, value)
}

/// In lower case (RFC 9110, 8.3.1). Only the types of patches have a case, as in a real server.
fn media_type(request: &Request) -> String {
    request.header("content-type").unwrap_or_default().to_ascii_lowercase()
}

/// The format of a body; the error is 415.
pub(crate) fn format(request: &Request) -> Result<Format, StatusError> {
    match media_type(request).split(';').next().unwrap_or_default().trim() {
        "" | JSON => Ok(Format::Json),
        "application/yaml" => Ok(Format::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(Format::Protobuf),
        _ => Err(StatusError::unsupported_media_type()),
    }
}

/// Decodes a body into JSON without a check of its type.
fn tree(format: Format, body: &[u8], kind: &str) -> Result<Value, StatusError> {
    match format {
        Format::Json => decode::tree(body, kind),
        Format::Yaml => {
            let value =
                read_yaml(body).map_err(|error| decode::unrecognized(kind, body, &error))?;
            decode::tree(value.to_string().as_bytes(), kind)
        }
        Format::Protobuf => {
            let Some(rest) = body.strip_prefix(MAGIC) else {
                let detail = "provided data does not appear to be a protobuf message, expected \
                              prefix [107 56 115 0]";
                return Err(decode::unrecognized(kind, body, detail));
            };
            let wrong = |error: String| decode::unrecognized(kind, body, &error);
            let envelope = Envelope::read(rest).map_err(|error| wrong(error.into()))?;
            let of = schema::of_body(&envelope.api_version, &envelope.kind);
            let mut value = match of {
                Some(of) => protobuf::message(of, envelope.raw).map_err(wrong)?,
                None => Value::Object(Map::new()),
            };
            value["kind"] = envelope.kind.into();
            value["apiVersion"] = envelope.api_version.into();
            Ok(value)
        }
    }
}

/// The warnings for the answer to a request.
pub(crate) fn warnings(request: &Request) -> Vec<String> {
    if request.query("fieldValidation") != Some("Warn") {
        return Vec::new();
    }
    match route::parse(&request.path) {
        Ok(Route::Resource(target)) => validate_fields(request, &target).unwrap_or_default(),
        Ok(_) | Err(_) => Vec::new(),
    }
}

/// Refuses a JSON body that is too deep or too large to build a tree of it. YAML and protobuf have limits of their own.
pub(crate) fn prepare(request: &Request) -> Result<(), StatusError> {
    let media_type = media_type(request);
    if media_type.contains("yaml") || media_type.contains("protobuf") {
        return Ok(());
    }
    json::check_size(&request.body)
        .map_err(|why| StatusError::bad_request(format!("the body {why}")))
}

/// Parses YAML; the error names the line.
pub(crate) fn read_yaml(body: &[u8]) -> Result<Value, String> {
    let text = String::from_utf8_lossy(body);
    let read = || match yaml::Node::read(&text) {
        Ok(node) => Ok(node.to_json()),
        Err(error) => Err(format!("yaml: line {}: {}", error.at.line, error.message)),
    };
    thread::scope(|scope| {
        // The parser is recursive, and a connection's thread has a small stack.
        let builder = thread::Builder::new().stack_size(yaml::STACK_BYTES);
        let thread = builder.spawn_scoped(scope, read).map_err(|error| error.to_string())?;
        thread.join().unwrap_or_else(|_| Err("yaml: the parser panicked".to_owned()))
    })
}

/// Checks the fields as `fieldValidation` asks: with `Strict` the result is an error, else the
/// texts of the warnings.
pub(crate) fn validate_fields(
    request: &Request,
    target: &Target,
) -> Result<Vec<String>, StatusError> {
    let wanted = request.query("fieldValidation").unwrap_or_default();
    match wanted {
        "" | "Ignore" => return Ok(Vec::new()),
        "Strict" | "Warn" => {}
        other => {
            let known = ["Ignore", "Strict", "Warn"];
            let cause = Cause::not_supported("fieldValidation", other, &known);
            let options = match request.method.as_str() {
                "POST" => "CreateOptions",
                "PUT" => "UpdateOptions",
                _ => "PatchOptions",
            };
            return Err(StatusError::invalid_kind(options, "meta.k8s.io", "", &[cause]));
        }
    }
    let media_type = request.header("content-type").unwrap_or_default();
    let is_patch = request.method == "PATCH";
    let known = match is_patch {
        true => media_type.contains("merge-patch"),
        false => matches!(request.method.as_str(), "POST" | "PUT"),
    };
    let expected = expected(target, &request.method);
    let (true, Some(of)) = (known, schema::of_body(target.api_version, expected)) else {
        return Ok(Vec::new());
    };
    let format = if is_patch { Format::Json } else { format(request)? };
    // The handler of the request reports a body that cannot be decoded.
    let Ok(mut value) = tree(format, &request.body, expected) else { return Ok(Vec::new()) };
    // The directives of a patch (`$patch`) are not fields.
    let unknown = schema::canonical(of, &mut value).into_iter().filter(|path| !path.contains('$'));
    let unknown = unknown.map(|path| format!("unknown field {}", go_quoted(&path)));
    let problems: Vec<String> = unknown.collect();
    if problems.is_empty() || wanted == "Warn" {
        return Ok(problems);
    }
    let error = format!("strict decoding error: {}", problems.join(", "));
    Err(match is_patch {
        true => {
            let shown = String::from_utf8_lossy(&request.body);
            StatusError::invalid_kind("", "", "", &[Cause::invalid("patch", &shown, &error)])
        }
        false => decode::cannot_be_handled(expected, target.api_version, expected, &error),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(method: &str, path: &str, media_type: &str, body: &[u8]) -> Request {
        let mut request = Request::default();
        request.method = method.to_owned();
        request.path = path.to_owned();
        request.replace_body(media_type, body.to_vec());
        request
    }

    fn target(path: &str) -> Target {
        match route::parse(path) {
            Ok(Route::Resource(target)) => target,
            other => panic!("{path}: {other:?}"),
        }
    }

    #[test]
    fn yaml_is_converted_to_json() {
        let path = "/api/v1/namespaces/n/configmaps";
        let expected = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c" },
            "data": { "a": "b" },
        });
        let yaml = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  a: b\n";
        let request = request("POST", path, "application/yaml", yaml);
        let inner = to_stored(&request, &target(path)).expect("it can be read");
        assert_eq!(inner.header("content-type"), Some(JSON));
        let value: Value = serde_json::from_slice(&inner.body).expect("JSON");
        assert_eq!(value, expected);
    }

    #[test]
    fn a_patch_in_another_version_is_converted_to_the_stored_fields() {
        let path = "/apis/events.k8s.io/v1/namespaces/n/events/e";
        for (patch, expected) in [
            (json!({ "note": "x", "series": {} }), json!({ "message": "x", "series": {} })),
            (
                json!([{ "op": "replace", "path": "/regarding/name", "value": 1 }]),
                json!([{ "op": "replace", "path": "/involvedObject/name", "value": 1 }]),
            ),
            (json!({ "apiVersion": "events.k8s.io/v1" }), json!({ "apiVersion": "v1" })),
        ] {
            let request = request("PATCH", path, JSON, patch.to_string().as_bytes());
            let inner = to_stored(&request, &target(path)).expect("a patch");
            let value: Value = serde_json::from_slice(&inner.body).expect("JSON");
            assert_eq!(value, expected);
        }
    }

    #[test]
    fn unknown_fields_are_reported_on_request() {
        let pods = "/api/v1/namespaces/n/pods";
        let pod = br#"{"spec":{"nope":1,"containers":[{"name":"c","image":"a","x":1}]}}"#;
        let all = "unknown field \"spec.nope\", unknown field \"spec.containers[0].x\"";
        for (method, media_type, wanted, expected) in [
            ("POST", JSON, "Ignore", Ok("")),
            ("POST", JSON, "", Ok("")),
            ("POST", JSON, "Warn", Ok(all)),
            ("POST", JSON, "Strict", Err(400)),
            ("PATCH", "application/merge-patch+json", "Strict", Err(422)),
            ("POST", JSON, "Nope", Err(422)),
            ("DELETE", JSON, "Strict", Ok("")),
        ] {
            let mut request = request(method, pods, media_type, pod);
            request.query.push(("fieldValidation".to_owned(), wanted.to_owned()));
            let got = validate_fields(&request, &target(pods));
            match (got, expected) {
                (Ok(got), Ok(expected)) => assert_eq!(got.join(", "), expected, "{wanted}"),
                (Err(error), Err(code)) => assert_eq!(error.code, code, "{wanted}"),
                (got, _) => panic!("{method} {wanted}: {got:?}"),
            }
        }
    }
}
