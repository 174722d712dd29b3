//! Owns the reviews: questions that are posted, answered and stored nowhere. Everybody may do
//! everything here, and every token is believed.

use serde_json::{Value, json};

use crate::dev::api::Answer;
use crate::dev::edge;
use crate::dev::object::text_at;
use crate::dev::refused::{Cause, Refused, go_quoted};
use crate::serve::Request;

/// A kind of questions.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Review {
    pub(crate) api_version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) namespaced: bool,
}

const AUTHENTICATION: &str = "authentication.k8s.io/v1";
const AUTHORIZATION: &str = "authorization.k8s.io/v1";
const LOCAL: &str = "LocalSubjectAccessReview";
const RULES: &str = "SelfSubjectRulesReview";
const SELF: &str = "SelfSubjectAccessReview";
const SUBJECT: &str = "SubjectAccessReview";
const TOKEN: &str = "TokenReview";

/// In the order of their names.
pub(crate) const REVIEWS: &[Review] = &[
    row(AUTHORIZATION, "localsubjectaccessreviews", LOCAL),
    row(AUTHORIZATION, "selfsubjectaccessreviews", SELF),
    row(AUTHORIZATION, "selfsubjectrulesreviews", RULES),
    row(AUTHORIZATION, "subjectaccessreviews", SUBJECT),
    row(AUTHENTICATION, "tokenreviews", TOKEN),
];

const fn row(api_version: &'static str, plural: &'static str, kind: &'static str) -> Review {
    // `l` of "local": the only ones that live in a namespace.
    Review { api_version, plural, kind, namespaced: plural.as_bytes()[0] == b'l' }
}

/// Answers a question.
pub(crate) fn answer(
    review: &Review,
    namespace: &str,
    request: &Request,
) -> Result<Answer, Refused> {
    let mut body = edge::body(request, review.kind, review.api_version)?;
    check(review.kind, namespace, &body)?;
    body["kind"] = review.kind.into();
    body["apiVersion"] = review.api_version.into();
    body["status"] = match review.kind {
        RULES => json!({
            "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"] }],
            "nonResourceRules": [{ "verbs": ["*"], "nonResourceURLs": ["*"] }],
            "incomplete": false,
        }),
        TOKEN => {
            let groups = ["system:masters", "system:authenticated"];
            json!({ "authenticated": true, "user": { "username": "admin", "groups": groups } })
        }
        _ => json!({ "allowed": true }),
    };
    Ok(Answer::json(201, &body))
}

fn check(kind: &str, namespace: &str, body: &Value) -> Result<(), Refused> {
    let given = |field: &str| body["spec"].get(field).is_some();
    match kind {
        RULES if text_at(body, "/spec/namespace").is_empty() => {
            return Err(Refused::bad_request("no namespace on request"));
        }
        TOKEN if text_at(body, "/spec/token").is_empty() => {
            let message = "token is required for TokenReview in authentication";
            return Err(Refused::bad_request(message));
        }
        LOCAL if text_at(body, "/spec/resourceAttributes/namespace") != namespace => {
            return Err(Refused::bad_request(format!(
                "spec.resourceAttributes.namespace must match namespace: {namespace}"
            )));
        }
        _ => {}
    }
    let mut causes = Vec::new();
    let asks = matches!(kind, LOCAL | SELF | SUBJECT);
    match (given("resourceAttributes"), given("nonResourceAttributes")) {
        (true, true) if asks => {
            let text = |name: &str| {
                go_quoted(text_at(body, &format!("/spec/nonResourceAttributes/{name}")))
            };
            let shown = format!(
                "authorization.NonResourceAttributes{{Path:{}, Verb:{}}}",
                text("path"),
                text("verb")
            );
            let detail = "cannot be specified in combination with resourceAttributes";
            causes.push(Cause::invalid_raw("spec.nonResourceAttributes", &shown, detail));
        }
        (false, false) if asks => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            causes.push(Cause::invalid("spec.resourceAttributes", "null", detail));
        }
        _ => {}
    }
    if matches!(kind, LOCAL | SUBJECT) && !given("user") && !given("groups") {
        let detail = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", "", detail));
    }
    if causes.is_empty() {
        return Ok(());
    }
    // The real server leaves the kind out here.
    Err(Refused::invalid_kind("", "authorization.k8s.io", "", &causes))
}
