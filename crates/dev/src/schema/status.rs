//! Errors of the API: `Status` bodies with reason, details and causes, in kube-apiserver's words.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::schema::kind::{Kind, qualified};

/// One entry of `details.causes[]`: a field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) field: String,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
}

impl Cause {
    fn new(field: impl Into<String>, reason: &'static str, message: String) -> Self {
        Self { field: field.into(), reason, message }
    }

    pub(crate) fn required(field: impl Into<String>, detail: &str) -> Self {
        let message = match detail {
            "" => "Required value".to_owned(),
            detail => format!("Required value: {detail}"),
        };
        Self::new(field, "FieldValueRequired", message)
    }

    /// A wrong text; the message quotes it.
    pub(crate) fn invalid(field: impl Into<String>, value: &str, detail: &str) -> Self {
        Self::invalid_raw(field, &go_quoted(value), detail)
    }

    /// A wrong value that is not a text; the message shows it unquoted.
    pub(crate) fn invalid_raw(
        field: impl Into<String>,
        value: &dyn fmt::Display,
        detail: &str,
    ) -> Self {
        Self::new(field, "FieldValueInvalid", format!("Invalid value: {value}: {detail}"))
    }

    pub(crate) fn duplicate(field: impl Into<String>, value: &str) -> Self {
        let message = format!("Duplicate value: {}", go_quoted(value));
        Self::new(field, "FieldValueDuplicate", message)
    }

    pub(crate) fn too_long(field: impl Into<String>, bytes_max: usize) -> Self {
        let message = format!("Too long: may not be more than {bytes_max} bytes");
        Self::new(field, "FieldValueTooLong", message)
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new(field, "FieldValueForbidden", format!("Forbidden: {detail}"))
    }

    pub(crate) fn not_found(field: impl Into<String>, value: &str) -> Self {
        Self::new(field, "FieldValueNotFound", format!("Not found: {}", go_quoted(value)))
    }

    pub(crate) fn not_supported(field: impl Into<String>, value: &str, known: &[&str]) -> Self {
        let value = go_quoted(value);
        let known: Vec<String> = known.iter().map(|k| go_quoted(k)).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", known.join(", "));
        Self::new(field, "FieldValueNotSupported", message)
    }
}

/// An API error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatusError {
    pub(crate) code: u16,
    /// Empty if the server gives no reason.
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) details: Option<Value>,
    /// `metadata.continue`: the token that continues a list after a 410.
    pub(crate) resume: Option<String>,
    pub(crate) retry_after_seconds: Option<u32>,
}

impl StatusError {
    fn new(code: u16, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, details: None, resume: None, retry_after_seconds: None }
    }

    fn about(mut self, kind: &str, group: &str, name: &str) -> Self {
        let mut details = Map::new();
        for (key, text) in [("name", name), ("group", group), ("kind", kind)] {
            if !text.is_empty() {
                details.insert(key.to_owned(), text.into());
            }
        }
        self.details = Some(Value::Object(details));
        self
    }

    fn about_resource(self, kind: Kind, name: &str) -> Self {
        self.about(kind.plural(), kind.group(), name)
    }

    pub(crate) fn already_exists(kind: Kind, name: &str, deleting: bool) -> Self {
        let prefix = if deleting { "object is being deleted: " } else { "" };
        let message = format!("{prefix}{} {} already exists", kind.resource(), go_quoted(name));
        Self::new(409, "AlreadyExists", message).about_resource(kind, name)
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message.into())
    }

    /// 409. `subject` is the resource or the kind, whichever the real server names in this case.
    pub(crate) fn conflict(subject: &str, group: &str, name: &str, detail: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} {}: {detail}",
            qualified(subject, group),
            go_quoted(name)
        );
        Self::new(409, "Conflict", message).about(subject, group, name)
    }

    pub(crate) fn modified(kind: Kind, name: &str) -> Self {
        let detail = "the object has been modified; please apply your changes to the latest \
                      version and try again";
        Self::conflict(kind.plural(), kind.group(), name, detail)
    }

    /// 410 for a watch or an exact list.
    pub(crate) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message.into())
    }

    /// 410 for a page; `resume` continues with the current objects.
    pub(crate) fn page_expired(resume: String) -> Self {
        let message = "The provided continue parameter is too old to display a consistent list \
                       result. You can start a new list without the continue parameter, or use \
                       the continue token in this response to retrieve the remainder of the \
                       results. Continuing with the provided token results in an inconsistent \
                       list - objects that were created, modified, or deleted between the time \
                       the first chunk was returned and now may show up in the list.";
        Self { resume: Some(resume), ..Self::expired(message) }
    }

    pub(crate) fn forbidden(kind: Kind, name: &str, detail: &str) -> Self {
        let message = format!("{} {} is forbidden: {detail}", kind.resource(), go_quoted(name));
        Self::new(403, "Forbidden", message).about_resource(kind, name)
    }

    /// 403 for a user without the permission; `what` names the action and the resource.
    pub(crate) fn not_allowed(resource: &str, group: &str, name: &str, what: &str) -> Self {
        let subject = match (resource, name) {
            ("", _) => String::new(),
            (_, "") => format!("{} is ", qualified(resource, group)),
            (_, name) => format!("{} {} is ", qualified(resource, group), go_quoted(name)),
        };
        let message = format!("{subject}forbidden: {what}");
        Self::new(403, "Forbidden", message).about(resource, group, name)
    }

    /// 401.
    pub(crate) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized".to_owned())
    }

    /// 403 for a create in a terminating namespace.
    pub(crate) fn namespace_terminating(kind: Kind, name: &str, namespace: &str) -> Self {
        let detail = format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        );
        let mut refused = Self::forbidden(kind, name, &detail);
        refused.add_causes(&[Cause::new(
            "metadata.namespace",
            "NamespaceTerminating",
            format!("namespace {namespace} is being terminated"),
        )]);
        refused
    }

    /// 500 without a reason: an internal error that the real server passes on.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "", message.into())
    }

    /// 422 for an object.
    pub(crate) fn invalid(kind: Kind, name: &str, causes: &[Cause]) -> Self {
        Self::invalid_kind(kind.name(), kind.group(), name, causes)
    }

    /// 422 for any body with a kind: options, reviews.
    pub(crate) fn invalid_kind(kind: &str, group: &str, name: &str, causes: &[Cause]) -> Self {
        let causes_text = joined(causes.iter().map(|c| format!("{}: {}", c.field, c.message)));
        let message =
            format!("{} {} is invalid: {causes_text}", qualified(kind, group), go_quoted(name));
        let mut refused = Self::new(422, "Invalid", message).about(kind, group, name);
        refused.add_causes(causes);
        refused
    }

    /// The error for a request above a limit of the HTTP server.
    pub(crate) fn limit(code: u16, why: &str, body_bytes_max: usize) -> Self {
        match code {
            413 => Self::too_large(&format!("limit is {body_bytes_max}")),
            400 => Self::bad_request(why),
            401 => Self::unauthorized(),
            403 => Self::new(code, "Forbidden", why.to_owned()),
            415 => Self::new(code, "UnsupportedMediaType", why.to_owned()),
            429 => Self::new(code, "TooManyRequests", why.to_owned()),
            _ => Self::new(code, "", why.to_owned()),
        }
    }

    pub(crate) fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(405, "MethodNotAllowed", message.to_owned()).about("", "", "")
    }

    pub(crate) fn no_such_path() -> Self {
        let message = "the server could not find the requested resource";
        Self::new(404, "NotFound", message.to_owned()).about("", "", "")
    }

    pub(crate) fn not_found(kind: Kind, name: &str) -> Self {
        let message = format!("{} {} not found", kind.resource(), go_quoted(name));
        Self::new(404, "NotFound", message).about_resource(kind, name)
    }

    /// 413 for a body.
    pub(crate) fn too_large(detail: &str) -> Self {
        let message = format!("Request entity too large: {detail}");
        Self::new(413, "RequestEntityTooLarge", message)
    }

    pub(crate) fn too_large_version(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        let mut refused = Self::new(504, "Timeout", message);
        refused.retry_after_seconds = Some(1);
        refused.details = Some(json!({
            "causes": [{
                "reason": "ResourceVersionTooLarge",
                "message": "Too large resource version",
            }],
            "retryAfterSeconds": 1,
        }));
        refused
    }

    pub(crate) fn too_many_requests() -> Self {
        let mut refused = Self::new(
            429,
            "TooManyRequests",
            "Too many requests, please try again later.".to_owned(),
        );
        refused.retry_after_seconds = Some(1);
        refused.details = Some(json!({ "retryAfterSeconds": 1 }));
        refused
    }

    /// 422 without causes, for a JSON patch.
    pub(crate) fn unprocessable() -> Self {
        let message = "the server rejected our request due to an error in our request";
        Self::new(422, "Invalid", message.to_owned()).about("", "", "")
    }

    /// 415 for a body.
    pub(crate) fn unsupported_media_type() -> Self {
        let message = "the body of the request was in an unknown format - accepted media types \
                       include: application/json";
        Self::new(415, "UnsupportedMediaType", message.to_owned())
    }

    /// 415 for a patch.
    pub(crate) fn unsupported_patch() -> Self {
        let message = "415: Unsupported Media Type";
        Self::new(415, "UnsupportedMediaType", message.to_owned()).about("", "", "")
    }

    /// 415 for a server-side apply of an object that exists.
    pub(crate) fn no_fields_of_managers() -> Self {
        let message = "the embedded cluster knows no managers of fields, so server-side apply only \
                       creates: use kubectl apply without --server-side, or patch";
        Self::new(415, "UnsupportedMediaType", message.to_owned()).about("", "", "")
    }

    fn add_causes(&mut self, causes: &[Cause]) {
        let causes: Vec<Value> = causes
            .iter()
            .map(|c| json!({ "reason": c.reason, "message": c.message, "field": c.field }))
            .collect();
        if let Some(Value::Object(details)) = &mut self.details {
            details.insert("causes".to_owned(), causes.into());
        }
    }

    /// The `Status` body.
    pub(crate) fn body(&self) -> Value {
        let mut metadata = Map::new();
        if let Some(resume) = &self.resume {
            metadata.insert("continue".to_owned(), resume.as_str().into());
        }
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = self.reason.into();
        }
        if let Some(details) = &self.details {
            body["details"] = details.clone();
        }
        body
    }
}

/// Several errors in one line: without duplicates, and in brackets.
pub(crate) fn joined(errors: impl IntoIterator<Item = String>) -> String {
    let mut texts: Vec<String> = Vec::new();
    for text in errors {
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    match texts.as_slice() {
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Quotes a text as Go's `%q` does.
pub(crate) fn go_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            '\r' => quoted.push_str("\\r"),
            c if c.is_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
