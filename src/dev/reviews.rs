//! Owns the questions about rights and tokens that clients put to the API: the reviews, which are
//! answered and stored nowhere.

use serde_json::{Value, json};

use crate::dev::api::{Answer, Api};
use crate::dev::decode;
use crate::dev::identity::{ISSUER, User};
use crate::dev::object::{array_at, metadata_mut, object_mut, text_at};
use crate::dev::rbac::{self, Attributes};
use crate::dev::refused::{Cause, Refused, go_quoted};
use crate::dev::write;
use crate::serve::Request;

/// A resource that can only be created, and its answer looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Review {
    LocalSubjectAccess,
    SelfSubjectAccess,
    SelfSubjectRules,
    SubjectAccess,
    Token,
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

impl Review {
    /// Reads the segments of a path; the namespace is empty for all but the local one.
    pub(crate) fn of_path(segments: &[&str]) -> Option<(Self, String)> {
        let (review, namespace) = match segments {
            ["apis", AUTHENTICATION, "v1", "tokenreviews"] => (Self::Token, ""),
            ["apis", AUTHORIZATION, "v1", "namespaces", namespace, "localsubjectaccessreviews"] => {
                (Self::LocalSubjectAccess, *namespace)
            }
            ["apis", AUTHORIZATION, "v1", plural] => {
                let review = match *plural {
                    "selfsubjectaccessreviews" => Self::SelfSubjectAccess,
                    "selfsubjectrulesreviews" => Self::SelfSubjectRules,
                    "subjectaccessreviews" => Self::SubjectAccess,
                    _ => return None,
                };
                (review, "")
            }
            _ => return None,
        };
        Some((review, namespace.to_owned()))
    }

    fn kind(self) -> &'static str {
        match self {
            Self::LocalSubjectAccess => "LocalSubjectAccessReview",
            Self::SelfSubjectAccess => "SelfSubjectAccessReview",
            Self::SelfSubjectRules => "SelfSubjectRulesReview",
            Self::SubjectAccess => "SubjectAccessReview",
            Self::Token => "TokenReview",
        }
    }
}

/// Reads the body of a review.
pub(crate) fn body(kind: &str, bytes: &[u8]) -> Result<Value, Refused> {
    decode::value(bytes).map_err(|error| {
        Refused::bad_request(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get \
             version/kind; json parse error: {error}"
        ))
    })
}

/// Puts on an answer what every answer has.
pub(crate) fn complete(review: &mut Value, kind: &str) {
    let group = if kind.starts_with("Token") { AUTHENTICATION } else { AUTHORIZATION };
    review["kind"] = kind.into();
    review["apiVersion"] = format!("{group}/v1").into();
    metadata_mut(review).insert("creationTimestamp".to_owned(), Value::Null);
}

/// Answers a review that `user` asks for.
pub(crate) fn answer(
    api: &Api,
    request: &Request,
    review: Review,
    namespace: &str,
    user: &User,
) -> Result<Answer, Refused> {
    write::check_media_type(request)?;
    let mut value = body(review.kind(), &request.body)?;
    let status = match review {
        Review::Token => token(api, &value)?,
        Review::SelfSubjectRules => rules(api, &value, user)?,
        Review::SelfSubjectAccess => access(api, review, &value, namespace, user)?,
        Review::LocalSubjectAccess | Review::SubjectAccess => {
            let subject = subject(&value);
            access(api, review, &value, namespace, &subject)?
        }
    };
    complete(&mut value, review.kind());
    if review == Review::SelfSubjectRules {
        object_mut(&mut value, "spec").clear();
    }
    value["status"] = status;
    Ok(Answer::json(201, &value))
}

/// The user that a review asks about.
fn subject(review: &Value) -> User {
    let groups = array_at(review, "/spec/groups").iter().filter_map(Value::as_str);
    User {
        name: text_at(review, "/spec/user").to_owned(),
        groups: groups.map(str::to_owned).collect(),
        uid: text_at(review, "/spec/uid").to_owned(),
        pod: None,
    }
}

fn access(
    api: &Api,
    review: Review,
    value: &Value,
    namespace: &str,
    user: &User,
) -> Result<Value, Refused> {
    let causes = mistakes(review, value);
    if !causes.is_empty() {
        return Err(Refused::invalid_kind("", AUTHORIZATION, "", &causes));
    }
    if review == Review::LocalSubjectAccess
        && text_at(value, "/spec/resourceAttributes/namespace") != namespace
    {
        return Err(Refused::bad_request(format!(
            "spec.resourceAttributes.namespace must match namespace: {namespace}"
        )));
    }
    let resource = |name: &str| text_at(value, &format!("/spec/resourceAttributes/{name}"));
    let path = |name: &str| text_at(value, &format!("/spec/nonResourceAttributes/{name}"));
    let wanted = Attributes {
        verb: format!("{}{}", resource("verb"), path("verb")),
        namespace: resource("namespace").to_owned(),
        group: resource("group").to_owned(),
        resource: resource("resource").to_owned(),
        part: resource("subresource").to_owned(),
        name: resource("name").to_owned(),
        path: path("path").to_owned(),
    };
    let reason = match api.admin_token {
        Some(_) => rbac::allowed(&api.lock().store, user, &wanted),
        None => Some(String::new()),
    };
    let mut status = json!({ "allowed": reason.is_some() });
    if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
        status["reason"] = reason.into();
    }
    Ok(status)
}

fn mistakes(review: Review, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let given =
        |field: &str| value.pointer(&format!("/spec/{field}")).is_some_and(|v| !v.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let at = |place: &str| text_at(value, place);
    let wrong_path = |detail: &str| {
        let shown = format!(
            "authorization.NonResourceAttributes{{Path:{}, Verb:{}}}",
            go_quoted(at("/spec/nonResourceAttributes/path")),
            go_quoted(at("/spec/nonResourceAttributes/verb"))
        );
        Cause::invalid_raw("spec.nonResourceAttributes", &shown, detail)
    };
    let local = review == Review::LocalSubjectAccess;
    let subject = local || review == Review::SubjectAccess;
    if resource && path {
        causes.push(wrong_path("cannot be specified in combination with resourceAttributes"));
    } else if !resource && !path {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.push(Cause::invalid("spec.resourceAttributes", "null", detail));
    }
    if subject && at("/spec/user").is_empty() && array_at(value, "/spec/groups").is_empty() {
        let detail = "at least one of user or group must be specified";
        causes.push(Cause::invalid("spec.user", "", detail));
    }
    let name = at("/metadata/name");
    if !name.is_empty() {
        let detail = if local { "must be empty except for namespace" } else { "must be empty" };
        let shown = format!("v1.ObjectMeta{{Name:{}}}", go_quoted(name));
        causes.push(Cause::invalid_raw("metadata", &shown, detail));
    }
    let asked = at("/spec/resourceAttributes/namespace");
    if local && resource && asked != at("/metadata/namespace") {
        let detail = "must match metadata.namespace";
        causes.push(Cause::invalid("spec.resourceAttributes.namespace", asked, detail));
    }
    if local && path {
        causes.push(wrong_path("disallowed on this kind of request"));
    }
    causes
}

/// What a user may do in a namespace.
fn rules(api: &Api, value: &Value, user: &User) -> Result<Value, Refused> {
    let namespace = text_at(value, "/spec/namespace");
    if namespace.is_empty() {
        return Err(Refused::bad_request("no namespace on request"));
    }
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    let everything = json!(["*"]);
    let all = json!({ "verbs": everything, "apiGroups": everything, "resources": everything });
    let anywhere = json!({ "verbs": everything, "nonResourceURLs": everything });
    if api.admin_token.is_none() {
        resources.push(all);
        paths.push(anywhere);
    } else {
        rbac::each_rule(&api.lock().store, user, namespace, &mut |rule, _| {
            let list =
                if rule.get("nonResourceURLs").is_some() { &mut paths } else { &mut resources };
            list.push(rule.clone());
        });
    }
    Ok(json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": false }))
}

/// Who a token is of.
fn token(api: &Api, value: &Value) -> Result<Value, Refused> {
    let token = text_at(value, "/spec/token");
    if token.is_empty() {
        return Err(Refused::bad_request("token is required for TokenReview in authentication"));
    }
    let given: Vec<&str> =
        array_at(value, "/spec/audiences").iter().filter_map(Value::as_str).collect();
    let asked = if given.is_empty() { vec![ISSUER] } else { given };
    let now = api.clock.wall(api.clock.now());
    let (user, audiences) = if api.admin_token.as_deref() == Some(token) {
        (User::admin(), asked.into_iter().filter(|audience| *audience == ISSUER).collect())
    } else {
        let Some(claims) = api.tokens.claims(&api.lock(), token, now) else {
            return Ok(json!({ "user": {}, "error": "invalid bearer token" }));
        };
        let common: Vec<&str> = asked
            .iter()
            .copied()
            .filter(|asked| claims.audiences.iter().any(|own| own == asked))
            .collect();
        if common.is_empty() {
            let error = format!(
                "[invalid bearer token, token audiences {:?} is invalid for the target audiences \
                 {asked:?}]",
                claims.audiences
            );
            return Ok(json!({ "user": {}, "error": error }));
        }
        (User::of_claims(&claims), common)
    };
    let mut told = json!({ "username": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        told["uid"] = user.uid.into();
    }
    if let Some((name, uid)) = user.pod {
        told["extra"] = json!({
            "authentication.kubernetes.io/pod-name": [name],
            "authentication.kubernetes.io/pod-uid": [uid],
        });
    }
    Ok(json!({ "authenticated": true, "user": told, "audiences": audiences }))
}
