//! Answers reviews: SubjectAccessReview, TokenReview and their relatives.

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::authn::User;
use crate::apiserver::authn::tokens::ISSUER;
use crate::apiserver::authz::{self, Attributes};
use crate::apiserver::codec;
use crate::schema::reviews::{Review, SELF, SELF_USER, TOKEN};
use crate::schema::status::StatusError;
use crate::storage::object::{array_at, metadata_mut, text_at};
use posse_serve::Request;

/// Answers a review that `user` posts.
pub(crate) fn answer(
    api: &Api,
    request: &Request,
    review: &Review,
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
        SELF => access(api, &value, user),
        _ => access(api, &value, &subject(&value)),
    };
    value["kind"] = review.kind.into();
    value["apiVersion"] = review.api_version.into();
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

fn access(api: &Api, value: &Value, user: &User) -> Value {
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
    json!({ "allowed": !state.has_roles || authz::allows(&state.store, user, &wanted) })
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
