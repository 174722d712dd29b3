//! Complete HTTP answers of the control API.

use std::io;
use std::sync::Arc;

use crate::{Busy, DryRunError, StoreError};
use posse_serve::Responder;
use posse_wire::control as calls;
use posse_wire::control::status_json::Body;

/// A complete HTTP answer.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    status: u16,
    media_type: &'static str,
    body: Body,
    /// `Allow`, with a 405.
    allow: Option<&'static str>,
    /// `Retry-After`, in seconds.
    retry_after: Option<String>,
}

impl Answer {
    pub(super) fn ok(body: Vec<u8>) -> Self {
        Self::ok_in_parts(Arc::new(vec![body.into()]))
    }

    pub(super) fn ok_in_parts(body: Body) -> Self {
        Self { status: 200, media_type: JSON, body, allow: None, retry_after: None }
    }

    /// Bytes of any kind.
    pub(super) fn bytes(bytes: Vec<u8>) -> Self {
        Self { media_type: "application/octet-stream", ..Self::ok(bytes) }
    }

    pub(super) fn error(status: u16, what: &str, field: Option<&str>) -> Self {
        Self { status, ..Self::ok(calls::error_body(what, field)) }
    }

    /// The values of this field of tasks cannot be stored.
    pub(super) fn not_stored(error: &StoreError, field: &str) -> Self {
        match error {
            StoreError::Refused(why) => Self::error(400, why, Some(field)),
            StoreError::Unavailable(why) => Self::error(429, why, Some(field)),
        }
    }

    pub(super) fn wrong_method(allow: &'static str) -> Self {
        Self { allow: Some(allow), ..Self::error(405, "wrong method for this call", None) }
    }

    pub(super) fn send(&self, responder: Responder<'_>) -> io::Result<()> {
        let mut headers = vec![("content-type", self.media_type), NO_SNIFFING];
        headers.extend(self.allow.map(|methods| ("allow", methods)));
        headers.extend(self.retry_after.as_deref().map(|after| ("retry-after", after)));
        let parts: Vec<&[u8]> = self.body.iter().map(|part| &**part).collect();
        responder.send_parts(self.status, &headers, &parts)
    }
}

const JSON: &str = "application/json";

/// A browser takes the answer for what its type says.
pub(super) const NO_SNIFFING: (&str, &str) = ("x-content-type-options", "nosniff");

impl From<Busy> for Answer {
    fn from(busy: Busy) -> Self {
        match busy {
            Busy::Full => Self::error(429, "too many calls are waiting, try again", None),
            Busy::Stopping => Self::error(503, "the run is stopping", None),
        }
    }
}

impl From<calls::CallError> for Answer {
    fn from(bad: calls::CallError) -> Self {
        Self::error(400, &bad.error, bad.field.as_deref())
    }
}

impl From<DryRunError> for Answer {
    fn from(error: DryRunError) -> Self {
        match error {
            DryRunError::Invalid(bad) => bad.into(),
            DryRunError::Unavailable { why, retry_after_ms } => {
                let what = format!("the API server cannot check the template now: {why}");
                let retry_after = retry_after_ms.map(|ms| ms.div_ceil(1_000).to_string());
                Self { retry_after, ..Self::error(429, &what, None) }
            }
        }
    }
}
