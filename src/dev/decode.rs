//! Owns the way from a request's bytes to an object: JSON, kind and version, types of fields, with
//! the server's words about each mistake. Does not know what may be stored.

use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine as _};
use serde_json::Value;

use crate::dev::defaults;
use crate::dev::kind::Kind;
use crate::dev::refused::{Cause, Refused};
use crate::dev::schema;

/// Reads a body that has to hold an object of `kind`; `kind` and `apiVersion` may be left out.
pub(crate) fn object(kind: Kind, body: &[u8]) -> Result<Value, Refused> {
    let mut value = value(body).map_err(|error| {
        Refused::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get \
             version/kind; json parse error: {error} ({})",
            kind.name(),
            shown(body)
        ))
    })?;
    check_type(kind, &value)?;
    let of = schema::of(kind);
    schema::check(of, &value).map_err(|error| cannot_be_handled(kind, kind, &error))?;
    schema::canonical(of, &mut value);
    defaults::fill(kind, &mut value);
    Ok(value)
}

/// Reads a body of a type that is not stored.
pub(crate) fn named(kind: &str, versions: &[&str], body: &[u8]) -> Result<Value, Refused> {
    let value = value(body).map_err(|error| {
        Refused::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get \
             version/kind; json parse error: {error} ({})",
            shown(body)
        ))
    })?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let (given, version) = (text("kind"), text("apiVersion"));
    if (given.is_empty() || given == kind) && versions.contains(&version) {
        return Ok(value);
    }
    Err(Refused::bad_request(format!(
        "{given} in version {} cannot be handled as a {kind}: converting (v1.{given}) to \
         (policy.{kind}): unknown conversion",
        quoted_version(version)
    )))
}

/// Checks and cleans what a merge patch gave.
pub(crate) fn patched(kind: Kind, mut value: Value) -> Result<Value, Refused> {
    let of = schema::of(kind);
    if let Err(error) = schema::check(of, &value) {
        let cause = Cause::invalid("patch", &value.to_string(), &error);
        return Err(Refused::invalid_kind("", "", "", &[cause]));
    }
    schema::canonical(of, &mut value);
    defaults::fill(kind, &mut value);
    Ok(value)
}

/// Reads JSON that has to be an object; the error is in Go's words.
pub(crate) fn value(body: &[u8]) -> Result<Value, String> {
    match serde_json::from_slice(body) {
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(other) => Err(format!(
            "json: cannot unmarshal {} into Go value of type struct {{ APIVersion string \
             \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
            type_word(&other)
        )),
        Err(error) if error.is_eof() => Err("unexpected end of JSON input".to_owned()),
        Err(error) => Err(go_syntax_error(body, &error)),
    }
}

pub(crate) fn type_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// A mistake in JSON, in Go's words.
pub(crate) fn go_syntax_error(body: &[u8], error: &serde_json::Error) -> String {
    let line = body.split(|c| *c == b'\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    match line.get(error.column().saturating_sub(1)) {
        Some(c) => {
            let wanted = match error.to_string().starts_with("key must be a string") {
                true => "object key string",
                false => "value",
            };
            format!("invalid character '{}' looking for beginning of {wanted}", char::from(*c))
        }
        None => format!("invalid JSON: {error}"),
    }
}

/// A body in a message: text where it looks like JSON, else hexadecimal, as Go prints it.
fn shown(body: &[u8]) -> String {
    const BYTES_MAX: usize = 1 << 10;
    let cut = body.get(..BYTES_MAX).unwrap_or(body);
    match cut.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(cut).into_owned(),
        Some(_) => cut.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}

fn check_type(kind: Kind, value: &Value) -> Result<(), Refused> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    let (given_kind, given_version) = (text("kind"), text("apiVersion"));
    let default = |given: &str, default: &str| match given {
        "" => default.to_owned(),
        given => given.to_owned(),
    };
    let given_kind = default(given_kind, kind.name());
    let given_version = default(given_version, &kind.api_version());
    if given_kind == kind.name() && given_version == kind.api_version() {
        return Ok(());
    }
    let message = match Kind::of_reference(&given_version, &given_kind) {
        Some(other) => format!(
            "{given_kind} in version {} cannot be handled as a {}: converting (v1.{}) to \
             (core.{}): unknown conversion",
            quoted_version(&given_version),
            kind.name(),
            other.name(),
            kind.name()
        ),
        None => format!(
            "{given_kind} in version {} cannot be handled as a {}: no kind \"{given_kind}\" is \
             registered for version \"{given_version}\" in scheme \
             \"k8s.io/kubernetes/pkg/api/legacyscheme/scheme.go:30\"",
            quoted_version(&given_version),
            kind.name()
        ),
    };
    Err(Refused::bad_request(message))
}

/// The version without its group, which is how these messages name it.
fn quoted_version(api_version: &str) -> String {
    format!("\"{}\"", api_version.rsplit('/').next().unwrap_or_default())
}

fn cannot_be_handled(given: Kind, wanted: Kind, error: &str) -> Refused {
    Refused::bad_request(format!(
        "{} in version \"v1\" cannot be handled as a {}: {error}",
        given.name(),
        wanted.name()
    ))
}

/// Reads base64 as Go does; the error is the byte at which it gives up.
pub(crate) fn base64(text: &str) -> Result<Vec<u8>, usize> {
    let config = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
    let engine = GeneralPurpose::new(&STANDARD, config);
    let text: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    engine.decode(&text).map_err(|error| match error {
        DecodeError::InvalidByte(at, _) => at,
        DecodeError::InvalidLastSymbol { offset, .. } => offset,
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => text.len() / 4 * 4,
    })
}

pub(crate) fn to_base64(text: &str) -> String {
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new()).encode(text)
}

/// Lays a JSON merge patch (RFC 7386) over `target`.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let members = target.as_object_mut().expect("it was made one above");
    for (key, change) in changes {
        if change.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key.clone()).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn merge_patches_as_the_rfc_says() {
        for (target, patch, want) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b", "b": 1}), json!({"a": null}), json!({"b": 1})),
            (json!({"a": [1, 2]}), json!({"a": [3]}), json!({"a": [3]})),
            (
                json!({"a": {"b": 1}}),
                json!({"a": {"c": null, "d": 2}}),
                json!({"a": {"b": 1, "d": 2}}),
            ),
            (json!({"a": "x"}), json!({"a": {"b": {"c": null}}}), json!({"a": {"b": {}}})),
        ] {
            let mut got = target.clone();
            merge(&mut got, &patch);
            assert_eq!(got, want, "{target} + {patch}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_named_by_its_path() {
        let body = br#"{"spec":{"containers":[{"name":"c","image":5}]}}"#;
        let refused = object(Kind::Pod, body).expect_err("a number for an image");
        assert_eq!(refused.code, 400);
        assert!(
            refused.message.ends_with(
                "cannot unmarshal number into Go struct field Container.spec.containers.image of \
                 type string"
            ),
            "{}",
            refused.message
        );
    }
}
