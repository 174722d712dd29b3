//! The classes of failed requests, by what to do about them. `wire/` classifies the answers.

use std::fmt;

use crate::model::named::named;

named! {
    /// The class of a failed request.
    pub enum RefusalClass {
        /// A quota or another limit that can change: try again with one probe under a backoff. Not
        /// executed.
        Capacity = "capacity",
        /// 409 Conflict: the uid or resourceVersion precondition failed. Not executed.
        Conflict = "conflict",
        /// 409 AlreadyExists. No other answer proves that the object exists.
        Exists = "exists",
        /// 410: the version or continue token is too old.
        Expired = "expired",
        /// 403: missing permission (RBAC). Not executed.
        Forbidden = "forbidden",
        /// The template is invalid (400, 413, 422, LimitRange, PodSecurity ...). Not executed.
        Invalid = "invalid",
        /// The namespace is being deleted, or has no such service account. Not executed.
        NamespaceGone = "namespace_gone",
        NotFound = "not_found",
        /// 500, 504, a time-out or a cut connection. May have been executed.
        OutcomeUnknown = "outcome_unknown",
        /// 429. Not executed; try again later.
        Throttled = "throttled",
        /// The server was not reached, or refused for a temporary reason (503, quota status not ready).
        /// Not executed.
        Transient = "transient",
        /// 401, even with a token that was read again. Not executed.
        Unauthorized = "unauthorized",
        /// An admission webhook refuses the object for now, with a 429 or 5xx of its own. Says nothing about other
        /// objects. Not executed.
        WebhookBusy = "webhook_busy",
    }
}

impl RefusalClass {
    /// True if the same request may succeed soon: there was no verdict on what it asks for.
    pub fn is_temporary(self) -> bool {
        matches!(self, Self::OutcomeUnknown | Self::Throttled | Self::Transient | Self::WebhookBusy)
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Create,
    Get,
    List,
    Watch,
    /// A delete, patch or update.
    Write,
}

/// What to do after a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The same request again: there was no verdict on what it asks for, or another one may come.
    Retry,
    /// Read what is there.
    Check,
    /// Give up what the request is for.
    Retire,
    /// Fewer requests of this kind, until the cause is gone.
    Slow,
}

/// A failed request, with the server's own message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub class: RefusalClass,
    /// The HTTP status; 0 if there was no answer.
    pub code: u16,
    /// `Status.message`, or the transport's error. Never holds a secret.
    pub message: String,
    /// `Retry-After` in milliseconds.
    pub retry_after_ms: Option<u64>,
}

/// The longest `Retry-After` that is obeyed. A proxy that asks for a day must not stop a run.
pub const RETRY_AFTER_MAX_MS: u64 = 60_000;

impl Refusal {
    /// A refusal that no server gave.
    pub fn local(class: RefusalClass, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { class, code: 0, message, retry_after_ms: None }
    }

    /// How long to wait at least before a retry, in milliseconds.
    pub fn retry_delay_ms(&self) -> u64 {
        self.retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MAX_MS)
    }

    /// True if the server or the network cannot take more requests, whatever the request: 429, 503,
    /// or the server was not reached. A 500 or a time-out may be due to the request itself (a
    /// webhook for one kind of pod, for example), so it proves nothing about other requests.
    pub fn is_overload(&self) -> bool {
        self.class == RefusalClass::Throttled
            || self.class == RefusalClass::Transient && (self.code >= 500 || self.code == 0)
            // A proxy says that no server is behind it.
            || self.class == RefusalClass::OutcomeUnknown && self.code == 503
    }

    /// What to do after this refusal of a request.
    pub fn advice(&self, verb: Verb) -> Advice {
        use Advice::{Check, Retire, Retry, Slow};
        let (create, get, list, watch, write) = match self.class {
            RefusalClass::Capacity | RefusalClass::Invalid => (Slow, Retry, Retry, Check, Retry),
            RefusalClass::Conflict => (Retry, Retry, Retry, Check, Retire),
            RefusalClass::Exists => (Check, Retry, Retry, Check, Retire),
            RefusalClass::Expired => (Retry, Retry, Retry, Check, Retry),
            RefusalClass::Forbidden => (Slow, Retire, Retire, Retry, Retry),
            RefusalClass::NamespaceGone => (Slow, Retire, Retry, Check, Retry),
            RefusalClass::NotFound => (Slow, Retire, Retire, Check, Retire),
            RefusalClass::OutcomeUnknown
            | RefusalClass::Throttled
            | RefusalClass::Transient
            | RefusalClass::WebhookBusy => (Retry, Retry, Retry, Retry, Retry),
            RefusalClass::Unauthorized => (Slow, Retry, Retire, Retry, Retry),
        };
        match verb {
            Verb::Create => create,
            Verb::Get => get,
            Verb::List => list,
            Verb::Watch => watch,
            Verb::Write => write,
        }
    }

    /// True if the object is not what a write expects: it is gone, it is there already, or it has another uid or
    /// version.
    pub fn is_outdated(&self) -> bool {
        self.advice(Verb::Write) == Advice::Retire
    }

    /// True if the server did not answer: it was not reached, or the time for the answer ran out.
    pub fn is_no_answer(&self) -> bool {
        let has_no_answer =
            matches!(self.class, RefusalClass::Transient | RefusalClass::OutcomeUnknown);
        self.code == 0 && has_no_answer
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str(&self.message),
            code => write!(f, "{} ({code})", self.message),
        }
    }
}

impl std::error::Error for Refusal {}
