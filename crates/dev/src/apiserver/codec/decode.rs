//! Decodes JSON bodies: syntax, kind and version, types of fields.

use serde_json::{Map, Value};

use crate::apiserver::defaults;
use crate::schema::kind::Kind;
use crate::schema::status::{Cause, StatusError};
use crate::schema::{self, type_word};

/// Decodes a body into an object of `kind` with defaults. `kind` and `apiVersion` may be absent.
pub(crate) fn object(kind: Kind, body: &[u8]) -> Result<Value, StatusError> {
    let mut value = typed(kind.name(), &kind.api_version(), tree(body, kind.name())?)?;
    defaults::fill(kind, &mut value);
    Ok(value)
}

/// Decodes JSON; `kind` is only for the error message.
pub(crate) fn tree(body: &[u8], kind: &str) -> Result<Value, StatusError> {
    let refuse = |error: String| {
        let what = "the object provided is unrecognized";
        StatusError::bad_request(format!("{what} (must be of type {kind}): {error}"))
    };
    value(body).map_err(refuse)
}

/// Checks the types of a decoded body and converts it to the canonical form.
pub(crate) fn typed(kind: &str, api_version: &str, mut value: Value) -> Result<Value, StatusError> {
    check_type(kind, api_version, &value)?;
    if let Some(of) = schema::of_body(api_version, kind) {
        schema::check(of, &value)
            .map_err(|error| cannot_be_handled(kind, api_version, kind, &error))?;
        schema::canonical(of, &mut value);
    }
    Ok(value)
}

/// Checks the result of a patch, converts it to the canonical form and sets defaults.
pub(crate) fn patched(kind: Kind, mut value: Value) -> Result<Value, StatusError> {
    let of = schema::of(kind);
    if let Err(error) = schema::check(of, &value) {
        let cause = Cause::invalid("patch", &value.to_string(), &error);
        return Err(StatusError::invalid_kind("", "", "", &[cause]));
    }
    schema::canonical(of, &mut value);
    defaults::fill(kind, &mut value);
    Ok(value)
}

/// Parses JSON that has to be an object; the error is Go's message.
pub(crate) fn value(body: &[u8]) -> Result<Value, String> {
    match serde_json::from_slice(body) {
        Ok(Value::Null) => Ok(Value::Object(Map::new())),
        Ok(Value::Object(members)) => {
            let wrong = ["apiVersion", "kind"].into_iter().find_map(|name| {
                let value = members.get(name).filter(|v| !v.is_string() && !v.is_null())?;
                Some((name, type_word(value)))
            });
            match wrong {
                Some((name, found)) => Err(format!(
                    "json: cannot unmarshal {found} into Go struct field .{name} of type string"
                )),
                None => Ok(Value::Object(members)),
            }
        }
        Ok(other) => Err(format!("an object is expected, found {}", type_word(&other))),
        Err(error) => Err(error.to_string()),
    }
}

fn check_type(kind: &str, api_version: &str, value: &Value) -> Result<(), StatusError> {
    let given = |name: &str, default: &str| match value.get(name).and_then(Value::as_str) {
        None | Some("") => default.to_owned(),
        Some(given) => given.to_owned(),
    };
    let (given_kind, given_version) = (given("kind", kind), given("apiVersion", api_version));
    if given_kind == kind && given_version == api_version {
        return Ok(());
    }
    if given_kind != kind || schema::of_body(&given_version, &given_kind).is_none() {
        let detail = format!("the path takes {api_version}");
        return Err(cannot_be_handled(&given_kind, &given_version, kind, &detail));
    }
    Err(StatusError::bad_request(format!(
        "the API version in the data ({given_version}) does not match the expected API version \
         ({api_version})"
    )))
}

/// The version without its group.
fn version_of(api_version: &str) -> &str {
    api_version.rsplit('/').next().unwrap_or_default()
}

/// 400 for a body of a wrong type.
pub(crate) fn cannot_be_handled(
    given: &str,
    api_version: &str,
    wanted: &str,
    error: &str,
) -> StatusError {
    let version = version_of(api_version);
    StatusError::bad_request(format!(
        "{given} in version \"{version}\" cannot be handled as a {wanted}: {error}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_a_wrong_type_is_reported_with_its_path() {
        let body = br#"{"spec":{"containers":[{"name":"c","image":5}]}}"#;
        let error = object(Kind::Pod, body).expect_err("a number for an image");
        assert_eq!(error.code, 400);
        assert!(
            error.message.ends_with(
                "cannot unmarshal number into Go struct field Container.spec.containers.image"
            ),
            "{}",
            error.message
        );
    }
}
