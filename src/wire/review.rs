//! Owns the bytes of two small questions: may I (SelfSubjectAccessReview), and who are you
//! (/version).

use serde::{Deserialize, Serialize};

use crate::wire::pod::{Text, WireError};

/// What one would like to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Access<'a> {
    pub namespace: &'a str,
    pub verb: &'a str,
    /// The API group; empty for the core one.
    pub group: &'a str,
    pub resource: &'a str,
    /// Empty where the resource itself is meant.
    pub subresource: &'a str,
}

/// Whether one may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub allowed: bool,
    /// The authorizer's words; often empty.
    pub reason: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Review<'a> {
    api_version: &'static str,
    kind: &'static str,
    spec: Spec<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    resource_attributes: Access<'a>,
}

/// The body of the question.
#[must_use]
pub fn question(access: Access<'_>) -> Vec<u8> {
    let review = Review {
        api_version: "authorization.k8s.io/v1",
        kind: "SelfSubjectAccessReview",
        spec: Spec { resource_attributes: access },
    };
    serde_json::to_vec(&review).expect("strings serialize")
}

/// Reads the answer.
///
/// # Errors
/// When it has no `status.allowed`.
pub fn verdict(bytes: &[u8]) -> Result<Verdict, WireError> {
    #[derive(Deserialize)]
    struct RawReview<'a> {
        #[serde(borrow)]
        status: Option<RawStatus<'a>>,
    }
    #[derive(Deserialize)]
    struct RawStatus<'a> {
        allowed: Option<bool>,
        #[serde(borrow)]
        reason: Option<Text<'a>>,
    }
    let status = serde_json::from_slice::<RawReview<'_>>(bytes)?.status;
    let status = status.ok_or(WireError::Missing("status"))?;
    let allowed = status.allowed.ok_or(WireError::Missing("status.allowed"))?;
    Ok(Verdict { allowed, reason: status.reason.unwrap_or_default().0.into_owned() })
}

/// Reads `gitVersion` from an answer of /version.
///
/// # Errors
/// When it has none.
pub fn git_version(bytes: &[u8]) -> Result<String, WireError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct RawVersion<'a> {
        #[serde(borrow)]
        git_version: Option<Text<'a>>,
    }
    let version = serde_json::from_slice::<RawVersion<'_>>(bytes)?.git_version;
    version.map(|text| text.0.into_owned()).ok_or(WireError::Missing("gitVersion"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_and_reads() {
        let access = Access {
            namespace: "analytics",
            verb: "create",
            group: "",
            resource: "pods",
            subresource: "",
        };
        let body = String::from_utf8(question(access)).unwrap();
        assert_eq!(
            body,
            r#"{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"resourceAttributes":{"namespace":"analytics","verb":"create","group":"","resource":"pods","subresource":""}}}"#
        );
        let answer = br#"{"kind":"SelfSubjectAccessReview","spec":{},"status":{"allowed":true,"reason":"RBAC"}}"#;
        assert_eq!(verdict(answer), Ok(Verdict { allowed: true, reason: "RBAC".to_owned() }));
        assert_eq!(verdict(b"{}"), Err(WireError::Missing("status")));
        assert_eq!(
            git_version(br#"{"major":"1","gitVersion":"v1.36.2"}"#),
            Ok("v1.36.2".to_owned())
        );
        assert!(git_version(b"[]").is_err());
    }
}
