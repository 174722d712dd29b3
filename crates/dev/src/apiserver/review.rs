//! Answers reviews: SubjectAccessReview, SelfSubjectRulesReview, TokenReview and their relatives.

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::authn::User;
use crate::apiserver::authn::tokens::ISSUER;
use crate::apiserver::authz::{self, Attributes};
use crate::apiserver::codec;
use crate::schema::reviews::{LOCAL, RULES, Review, SELF, SELF_USER, SUBJECT, TOKEN};
use crate::schema::status::{Cause, StatusError, go_quoted};
use crate::storage::object::{array_at, metadata_mut, object_mut, text_at};
use posse_serve::Request;

/// Answers a review that `user` posts.
pub(crate) fn answer(
    api: &Api,
    request: &Request,
    review: &Review,
    namespace: &str,
    user: &User,
) -> Result<Answer, StatusError> {
    let mut value = codec::body(request, review.kind, review.api_version)?;
    let status = match review.kind {
        TOKEN => token(api, &value)?,
        SELF_USER => {
            metadata_mut(&mut value)
                .insert("creationTimestamp".to_owned(), api.lock().now.clone().into());
            json!({ "userInfo": user_info(user) })
        }
        RULES => rules(api, &value, user)?,
        SELF => access(api, review, &value, namespace, user)?,
        _ => access(api, review, &value, namespace, &subject(&value))?,
    };
    value["kind"] = review.kind.into();
    value["apiVersion"] = review.api_version.into();
    if review.kind == RULES {
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
    review: &Review,
    value: &Value,
    namespace: &str,
    user: &User,
) -> Result<Value, StatusError> {
    let causes = errors(review, value);
    if !causes.is_empty() {
        return Err(StatusError::invalid_kind("", "authorization.k8s.io", "", &causes));
    }
    if review.kind == LOCAL && text_at(value, "/spec/resourceAttributes/namespace") != namespace {
        return Err(StatusError::bad_request(format!(
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
        subresource: resource("subresource").to_owned(),
        name: resource("name").to_owned(),
        path: path("path").to_owned(),
    };
    let state = api.lock();
    let reason = match state.has_roles {
        true => authz::allowed(&state.store, user, &wanted),
        false => Some(String::new()),
    };
    let mut status = json!({ "allowed": reason.is_some() });
    if let Some(reason) = reason.filter(|reason| !reason.is_empty()) {
        status["reason"] = reason.into();
    }
    Ok(status)
}

fn errors(review: &Review, value: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let given =
        |field: &str| value.pointer(&format!("/spec/{field}")).is_some_and(|v| !v.is_null());
    let (resource, path) = (given("resourceAttributes"), given("nonResourceAttributes"));
    let at = |place: &str| text_at(value, place);
    let wrong_path = |detail: &str| {
        let shown = json!({
            "Path": at("/spec/nonResourceAttributes/path"),
            "Verb": at("/spec/nonResourceAttributes/verb"),
        });
        Cause::invalid_raw("spec.nonResourceAttributes", &shown, detail)
    };
    let local = review.kind == LOCAL;
    let subject = local || review.kind == SUBJECT;
    if resource && path {
        causes.push(wrong_path("cannot be specified in combination with resourceAttributes"));
    } else if !resource && !path {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        causes.push(Cause::invalid_raw("spec.resourceAttributes", &"null", detail));
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

/// The rules that apply to a user in a namespace.
fn rules(api: &Api, value: &Value, user: &User) -> Result<Value, StatusError> {
    let namespace = text_at(value, "/spec/namespace");
    if namespace.is_empty() {
        return Err(StatusError::bad_request("no namespace on request"));
    }
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    let everything = json!(["*"]);
    let all = json!({ "verbs": everything, "apiGroups": everything, "resources": everything });
    let anywhere = json!({ "verbs": everything, "nonResourceURLs": everything });
    let state = api.lock();
    if !state.has_roles {
        resources.push(all);
        paths.push(anywhere);
    } else {
        authz::each_rule(&state.store, user, namespace, &mut |rule, _| {
            let list =
                if rule.get("nonResourceURLs").is_some() { &mut paths } else { &mut resources };
            list.push(rule.clone());
        });
    }
    Ok(json!({ "resourceRules": resources, "nonResourceRules": paths, "incomplete": false }))
}

/// The user of a token.
fn token(api: &Api, value: &Value) -> Result<Value, StatusError> {
    let token = text_at(value, "/spec/token");
    if token.is_empty() {
        return Err(StatusError::bad_request(
            "token is required for TokenReview in authentication",
        ));
    }
    let given: Vec<&str> =
        array_at(value, "/spec/audiences").iter().filter_map(Value::as_str).collect();
    let asked = if given.is_empty() { vec![ISSUER] } else { given };
    let now = api.clock.wall(api.clock.now());
    let is_admin = |secret: &String| bool::from(secret.as_bytes().ct_eq(token.as_bytes()));
    let (user, audiences) = if api.admin_token.as_ref().is_some_and(is_admin) {
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
    Ok(json!({ "authenticated": true, "user": user_info(&user), "audiences": audiences }))
}

fn user_info(user: &User) -> Value {
    let mut info = json!({ "username": user.name, "groups": user.groups });
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if let Some((name, uid)) = &user.pod {
        info["extra"] = json!({
            "authentication.kubernetes.io/pod-name": [name],
            "authentication.kubernetes.io/pod-uid": [uid],
        });
    }
    info
}
