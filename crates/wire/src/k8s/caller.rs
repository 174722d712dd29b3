//! TokenReview (who owns this token?) and SubjectAccessReview (may that user do this?). `review`
//! reads the answer to the second.

use serde_json::{Value, json};

use crate::error::WireError;
use crate::k8s::review::Access;

/// A user as the API server describes them.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    user: Value,
    /// The token was made for the audience that the question named. False: the server does not know
    /// audiences (before Kubernetes 1.13), and the token is one for the API server.
    pub is_for_audience: bool,
}

impl Caller {
    /// User name.
    pub fn name(&self) -> &str {
        self.user["username"].as_str().unwrap_or_default()
    }
}

/// Body of a TokenReview for a token that must have been made for `audience`.
pub fn token_question(token: &str, audience: &str) -> Vec<u8> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
                        "spec": {"token": token, "audiences": [audience]}});
    review.to_string().into_bytes()
}

/// Reads the answer to a TokenReview. None: the token is not valid.
///
/// # Errors
/// The bytes are not JSON, or the token is valid but the user has no name.
pub fn caller(bytes: &[u8]) -> Result<Option<Caller>, WireError> {
    let mut review: Value = serde_json::from_slice(bytes)?;
    if review["status"]["authenticated"] != true {
        return Ok(None);
    }
    // A server that knows audiences names those that the token and the question have in common.
    let is_for_audience =
        review["status"]["audiences"].as_array().is_some_and(|all| !all.is_empty());
    let caller = Caller { user: review["status"]["user"].take(), is_for_audience };
    if caller.name().is_empty() {
        return Err(WireError::Missing("status.user.username"));
    }
    Ok(Some(caller))
}

/// Body of a SubjectAccessReview.
pub fn access_question(caller: &Caller, access: Access<'_>) -> Vec<u8> {
    let mut spec = json!({"user": caller.name(), "resourceAttributes": access});
    for field in ["uid", "groups", "extra"] {
        if !caller.user[field].is_null() {
            spec[field] = caller.user[field].clone();
        }
    }
    let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                        "spec": spec});
    review.to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_of_tokens_and_of_access() {
        let question = String::from_utf8(token_question("a\"b", "me")).unwrap();
        assert!(question.contains(r#""spec":{"audiences":["me"],"token":"a\"b"}"#), "{question}");
        let answer = br#"{"kind":"TokenReview","status":{"authenticated":true,"user":{
            "username":"system:serviceaccount:ns:me","uid":"u","groups":["g"],"extra":{"k":["v"]}}}}"#;
        let known = caller(answer).unwrap().unwrap();
        assert_eq!(known.name(), "system:serviceaccount:ns:me");
        assert!(!known.is_for_audience);
        let answer =
            br#"{"status":{"authenticated":true,"user":{"username":"u"},"audiences":["me"]}}"#;
        assert!(caller(answer).unwrap().unwrap().is_for_audience);
        let access = Access {
            namespace: "ns",
            verb: "create",
            group: "",
            resource: "pods",
            subresource: "",
            name: "",
        };
        let asked: Value = serde_json::from_slice(&access_question(&known, access)).unwrap();
        assert_eq!(asked["spec"]["user"], "system:serviceaccount:ns:me");
        assert_eq!(asked["spec"]["groups"], json!(["g"]));
        assert_eq!(asked["spec"]["extra"], json!({"k": ["v"]}));
        assert_eq!(asked["spec"]["uid"], "u");
        assert_eq!(asked["spec"]["resourceAttributes"]["resource"], "pods");
        for nobody in [&br#"{"status":{"error":"no","user":{}}}"#[..], b"{}", b"[]"] {
            assert_eq!(caller(nobody), Ok(None));
        }
        assert!(caller(br#"{"status":{"authenticated":true}}"#).is_err());
        assert!(caller(b"x").is_err());
    }
}
