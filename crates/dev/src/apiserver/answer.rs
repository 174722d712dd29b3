//! The answer to a request: a whole body, a watch or a log.

use serde_json::{Value, json};

use crate::apiserver::codec::versions;
use crate::apiserver::exec_subresource::Exec;
use crate::apiserver::logs::Log;
use crate::apiserver::route::Target;
use crate::apiserver::table::Form;
use crate::apiserver::watch::Watch;
use crate::schema::kind::Kind;
use crate::schema::status::StatusError;
use crate::storage::object::Object;

/// The answer to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Exec(Exec),
    Log(Log),
    Watch(Watch),
    Whole { code: u16, content_type: &'static str, body: Vec<u8>, retry_after: Option<u32> },
}

impl Answer {
    pub(crate) const JSON: &str = "application/json";

    pub(crate) fn json(code: u16, value: &Value) -> Self {
        Self::body(code, value.to_string().into_bytes())
    }

    pub(crate) fn object(code: u16, object: &Object) -> Self {
        Self::body(code, object.body())
    }

    pub(crate) fn body(code: u16, body: Vec<u8>) -> Self {
        Self::of_type(code, Self::JSON, body)
    }

    pub(crate) fn of_type(code: u16, content_type: &'static str, body: Vec<u8>) -> Self {
        Self::Whole { code, content_type, body, retry_after: None }
    }

    pub(crate) fn error(error: &StatusError) -> Self {
        Self::Whole {
            code: error.code,
            content_type: Self::JSON,
            body: error.body().to_string().into_bytes(),
            retry_after: error.retry_after_seconds,
        }
    }

    /// Converts the answer to the version that the request names.
    pub(crate) fn in_version(self, target: &Target) -> Self {
        if versions::is_stored(target) {
            return self;
        }
        match self {
            Self::Watch(mut watch) => {
                watch.api_version = Some(target.api_version);
                Self::Watch(watch)
            }
            Self::Whole { code, content_type: Self::JSON, body, retry_after } => {
                let body = versions::convert_body(target.kind, target.api_version, body);
                Self::Whole { code, content_type: Self::JSON, body, retry_after }
            }
            other @ (Self::Exec(_) | Self::Log(_) | Self::Whole { .. }) => other,
        }
    }

    /// Converts an answer that holds one object to the form that the client accepts; other answers
    /// stay as they are.
    pub(crate) fn in_form(self, form: Form, kind: Kind, now: &str) -> Self {
        let Self::Whole { code: code @ 200..300, body, .. } = &self else { return self };
        let Ok(object) = serde_json::from_slice::<Value>(body) else { return self };
        Self::json(*code, &form.object(kind, object, now, true))
    }
}

/// A `Status` of success.
pub(crate) fn success(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    })
}
