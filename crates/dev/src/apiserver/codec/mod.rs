//! Converts request bodies to the stored version of a kind. Also checks the fields that `fieldValidation` asks
//! about.

pub(crate) mod decode;
pub(crate) mod versions;

use std::borrow::Cow;

use serde_json::Value;

use self::versions::{is_stored, rename_fields};
use crate::apiserver::route::Target;
use crate::schema;
use crate::schema::kind::{Kind, Subresource};
use crate::schema::status::{Cause, StatusError, go_quoted};
use posse_encoding::json;
use posse_serve::Request;

const JSON: &str = "application/json";

/// The request with its body in the stored version.
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
    check_format(request)?;
    if stored || target.subresource != Subresource::None || request.method == "DELETE" {
        return Ok(Cow::Borrowed(request));
    }
    let kind = target.kind;
    let value = decode::tree(&request.body, kind.name())?;
    let mut value = decode::typed(kind.name(), target.api_version, value)?;
    rename_fields(kind, &mut value, |(there, here)| (there, here));
    value["apiVersion"] = kind.api_version().into();
    let mut inner = request.clone();
    inner.replace_body(JSON, value.to_string().into_bytes());
    Ok(Cow::Owned(inner))
}

/// The patch with the stored names of the top-level fields; no others differ.
fn stored_patch(request: &Request, kind: Kind) -> Request {
    let mut inner = request.clone();
    let Ok(mut patch) = serde_json::from_slice::<Value>(&request.body) else { return inner };
    rename_fields(kind, &mut patch, |(there, here)| (there, here));
    if let Some(members) = patch.as_object_mut().filter(|m| m.contains_key("apiVersion")) {
        members.insert("apiVersion".to_owned(), kind.api_version().into());
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
    check_format(request)?;
    decode::typed(kind, api_version, decode::tree(&request.body, kind)?)
}

/// The error is 415. Only the types of patches have a case (RFC 9110, 8.3.1), as in a real server.
fn check_format(request: &Request) -> Result<(), StatusError> {
    let given = request.header("content-type").unwrap_or_default().to_ascii_lowercase();
    match given.split(';').next().unwrap_or_default().trim() {
        "" | JSON => Ok(()),
        _ => Err(StatusError::unsupported_media_type()),
    }
}

/// Refuses a body that is too deep or too large to build a tree of it.
pub(crate) fn prepare(request: &Request) -> Result<(), StatusError> {
    json::check_size(&request.body)
        .map_err(|why| StatusError::bad_request(format!("the body {why}")))
}

/// Refuses unknown fields if `fieldValidation` asks for it, as kubectl does.
pub(crate) fn validate_fields(request: &Request, target: &Target) -> Result<(), StatusError> {
    if request.query("fieldValidation") != Some("Strict") {
        return Ok(());
    }
    let media_type = request.header("content-type").unwrap_or_default();
    let is_patch = request.method == "PATCH";
    let known = match is_patch {
        true => media_type.contains("merge-patch"),
        false => matches!(request.method.as_str(), "POST" | "PUT"),
    };
    let expected = expected(target, &request.method);
    let (true, Some(of)) = (known, schema::of_body(target.api_version, expected)) else {
        return Ok(());
    };
    if !is_patch {
        check_format(request)?;
    }
    // The handler of the request reports a body that cannot be decoded.
    let Ok(mut value) = decode::tree(&request.body, expected) else { return Ok(()) };
    // The directives of a patch (`$patch`) are not fields.
    let unknown = schema::canonical(of, &mut value).into_iter().filter(|path| !path.contains('$'));
    let problems: Vec<String> =
        unknown.map(|path| format!("unknown field {}", go_quoted(&path))).collect();
    if problems.is_empty() {
        return Ok(());
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
    use crate::apiserver::route::{self, Route};

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
    fn a_patch_in_another_version_is_converted_to_the_stored_fields() {
        let path = "/apis/events.k8s.io/v1/namespaces/n/events/e";
        for (patch, expected) in [
            (json!({ "note": "x", "series": {} }), json!({ "message": "x", "series": {} })),
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
        let merge = "application/merge-patch+json";
        for (method, media_type, wanted, expected) in [
            ("POST", JSON, "Ignore", None),
            ("POST", JSON, "", None),
            ("POST", JSON, "Strict", Some(400)),
            ("PATCH", merge, "Strict", Some(422)),
            ("DELETE", JSON, "Strict", None),
        ] {
            let mut request = request(method, pods, media_type, pod);
            request.query.push(("fieldValidation".to_owned(), wanted.to_owned()));
            let refused = validate_fields(&request, &target(pods)).err();
            assert_eq!(refused.as_ref().map(|error| error.code), expected, "{method} {wanted}");
            let all = "unknown field \"spec.nope\", unknown field \"spec.containers[0].x\"";
            assert!(refused.is_none_or(|error| error.message.contains(all)));
        }
    }
}
