//! SelfSubjectAccessReview (may I do this?) and /version.

use serde::Serialize;
use serde_json::{Value, json};

use crate::error::WireError;

/// An action to ask permission for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Access<'a> {
    pub namespace: &'a str,
    pub verb: &'a str,
    /// API group. Empty: the core group.
    pub group: &'a str,
    pub resource: &'a str,
    /// Empty: the resource itself.
    pub subresource: &'a str,
    /// Empty: objects of any name.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: &'a str,
}

/// Answer to an access review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessDecision {
    pub allowed: bool,
    /// The authorizer's text. Often empty.
    pub reason: String,
}

/// Body of a SelfSubjectAccessReview.
pub fn question(access: Access<'_>) -> Vec<u8> {
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": access},
    });
    review.to_string().into_bytes()
}

/// Reads the answer to an access review.
pub fn decision(bytes: &[u8]) -> Result<AccessDecision, WireError> {
    let review: Value = serde_json::from_slice(bytes)?;
    let status = review.get("status").ok_or(WireError::Missing("status"))?;
    let allowed = status["allowed"].as_bool().ok_or(WireError::Missing("status.allowed"))?;
    let reason = status["reason"].as_str().unwrap_or_default().to_owned();
    Ok(AccessDecision { allowed, reason })
}

/// Reads `gitVersion` from the answer of /version.
pub fn git_version(bytes: &[u8]) -> Result<String, WireError> {
    let version: Value = serde_json::from_slice(bytes)?;
    let version = version["gitVersion"].as_str().map(str::to_owned);
    version.ok_or(WireError::Missing("gitVersion"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_and_answers() {
        let access = Access {
            namespace: "analytics",
            verb: "create",
            group: "",
            resource: "pods",
            subresource: "",
            name: "",
        };
        let body = String::from_utf8(question(access)).unwrap();
        assert_eq!(
            body,
            r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"group":"","namespace":"analytics","resource":"pods","subresource":"","verb":"create"}}}"#
        );
        let named = String::from_utf8(question(Access { name: "one", ..access })).unwrap();
        assert!(named.contains(r#""name":"one","namespace""#), "{named}");
        let answer = br#"{"kind":"SelfSubjectAccessReview","spec":{},"status":{"allowed":true,"reason":"RBAC"}}"#;
        assert_eq!(
            decision(answer),
            Ok(AccessDecision { allowed: true, reason: "RBAC".to_owned() })
        );
        assert_eq!(decision(b"{}"), Err(WireError::Missing("status")));
        assert_eq!(
            git_version(br#"{"major":"1","gitVersion":"v1.36.2"}"#),
            Ok("v1.36.2".to_owned())
        );
        assert!(git_version(b"[]").is_err());
    }
}
