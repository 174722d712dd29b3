//! Owns the classes of answers other than success: what a refusal means for the one who asked.
//! Sorting an answer into a class is `wire/`'s.

use std::fmt;

/// What to do about an answer that is not a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalClass {
    /// Quota or another limit that moves: keep wanting, back off, probe with one. Not executed.
    Capacity,
    /// 409 Conflict: the uid or resourceVersion precondition failed. Not executed.
    Conflict,
    /// 409 AlreadyExists, the only answer that counts as "exists".
    Exists,
    /// 410: the version or continue token is too old.
    Expired,
    /// The namespace is being deleted. Not executed.
    NamespaceGone,
    /// 404.
    NotFound,
    /// Our rights do not suffice (RBAC). Not executed.
    Forbidden,
    /// The template is at fault (422, 400, 413, LimitRange, PodSecurity ...). Not executed.
    Invalid,
    /// 429: not executed, ask later.
    Throttled,
    /// Never reached the server, or refused for a cause that passes (503, quota not yet counted).
    /// Not executed.
    Transient,
    /// 401, also after the token was read again. Not executed.
    Unauthorized,
    /// 500, 504, a time-out, a cut connection: it may have been executed.
    OutcomeUnknown,
}

/// An answer other than success, in the server's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What to do about it.
    pub class: RefusalClass,
    /// The HTTP status; 0 where there was no answer.
    pub code: u16,
    /// `Status.reason`; empty where there was none.
    pub reason: String,
    /// `Status.message`, or what the transport said. Never holds a secret.
    pub message: String,
    /// `Retry-After`, milliseconds.
    pub retry_after_ms: Option<u64>,
}

impl Refusal {
    /// True where the server or the way to it is overloaded: fewer requests at a time, then.
    #[must_use]
    pub fn is_overload(&self) -> bool {
        match self.class {
            RefusalClass::Throttled | RefusalClass::OutcomeUnknown => true,
            RefusalClass::Transient => self.code >= 500 || self.code == 0,
            RefusalClass::Capacity
            | RefusalClass::Conflict
            | RefusalClass::Exists
            | RefusalClass::Expired
            | RefusalClass::NamespaceGone
            | RefusalClass::NotFound
            | RefusalClass::Forbidden
            | RefusalClass::Invalid
            | RefusalClass::Unauthorized => false,
        }
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
