//! Authentication by bearer token, and TokenRequests.

pub(crate) mod tokens;

use serde_json::{Value, json};
use subtle::ConstantTimeEq as _;

use self::tokens::{Claims, ISSUER, TokenSpec};
use crate::apiserver::answer::Answer;
use crate::apiserver::api::Api;
use crate::apiserver::codec;
use crate::schema::kind::Key;
use crate::schema::status::StatusError;
use crate::storage::object::{array_at, object_mut};
use crate::time;
use posse_serve::Request;

/// The user of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) groups: Vec<String>,
    pub(crate) uid: String,
    /// The name and uid of the pod to which the user's token is bound.
    pub(crate) pod: Option<(String, String)>,
}

pub(crate) const AUTHENTICATED: &str = "system:authenticated";
const ACCOUNT_PREFIX: &str = "system:serviceaccount:";

impl User {
    pub(crate) fn admin() -> Self {
        Self::new("kubernetes-admin", &["system:masters", AUTHENTICATED])
    }

    fn new(name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(|group| (*group).to_owned()).collect();
        Self { name: name.to_owned(), groups, ..Self::default() }
    }

    pub(crate) fn of_claims(claims: &Claims) -> Self {
        let own = format!("system:serviceaccounts:{}", claims.namespace);
        Self {
            uid: claims.account_uid.clone(),
            pod: claims.bound.clone(),
            ..Self::new(&claims.user(), &["system:serviceaccounts", &own, AUTHENTICATED])
        }
    }
}

const ANONYMOUS: &str = "system:anonymous";
const UNAUTHENTICATED: &str = "system:unauthenticated";

/// The namespace and name of the service account that a user name stands for.
pub(crate) fn account_of(user: &str) -> Option<(&str, &str)> {
    user.strip_prefix(ACCOUNT_PREFIX)?.split_once(':')
}

/// The user of a request's bearer token.
pub(crate) fn authenticate(api: &Api, request: &Request) -> Result<User, StatusError> {
    let Some(admin_token) = &api.admin_token else { return Ok(User::admin()) };
    let given = request.header("authorization").unwrap_or_default();
    let (scheme, token) = given.trim().split_once(' ').unwrap_or_default();
    if !scheme.eq_ignore_ascii_case("bearer") || token.trim().is_empty() {
        // Without roles nothing would limit an anonymous user (`--anonymous-auth=false`).
        return match api.lock().has_roles {
            true => Ok(User::new(ANONYMOUS, &[UNAUTHENTICATED])),
            false => Err(StatusError::unauthorized()),
        };
    }
    let token = token.trim();
    if token.as_bytes().ct_eq(admin_token.as_bytes()).into() {
        return Ok(User::admin());
    }
    let now = api.clock.wall(api.clock.now());
    let claims = api.tokens.claims(&api.lock(), token, now);
    let ours = |claims: &Claims| claims.audiences.iter().any(|audience| audience == ISSUER);
    claims.filter(ours).map(|claims| User::of_claims(&claims)).ok_or_else(StatusError::unauthorized)
}

const TOKEN_REQUEST: &str = "TokenRequest";
const AUTHENTICATION: &str = "authentication.k8s.io/v1";

/// `expirationSeconds` is moved into these limits.
const SECONDS_MIN: i64 = 600;
const SECONDS_MAX: i64 = 1 << 32;

/// Answers `POST serviceaccounts/NAME/token`.
pub(crate) fn request_token(
    api: &Api,
    request: &Request,
    key: &Key,
) -> Result<Answer, StatusError> {
    let mut review = codec::body(request, TOKEN_REQUEST, AUTHENTICATION)?;
    let seconds = review.pointer("/spec/expirationSeconds").and_then(Value::as_i64);
    let seconds = seconds.unwrap_or(3600).clamp(SECONDS_MIN, SECONDS_MAX);
    if review.pointer("/spec/boundObjectRef").is_some_and(|bound| !bound.is_null()) {
        let message = "the embedded cluster binds the tokens in pods' volumes only";
        return Err(StatusError::bad_request(message));
    }
    let state = api.lock();
    let Some(account) = state.store.get(key) else {
        return Err(StatusError::not_found(key.kind, &key.name));
    };
    let audiences = array_at(&review, "/spec/audiences").iter().filter_map(Value::as_str);
    let wanted = TokenSpec {
        audiences: audiences.map(str::to_owned).collect(),
        bound: None,
        seconds: u64::try_from(seconds).unwrap_or_default(),
    };
    let now = api.clock.wall(api.clock.now());
    let (token, claims) = api
        .tokens
        .issue(key, &account.uid, wanted, now)
        .map_err(|error| StatusError::internal(format!("failed to generate token: {error}")))?;
    drop(state);
    review["kind"] = TOKEN_REQUEST.into();
    review["apiVersion"] = AUTHENTICATION.into();
    let spec = object_mut(&mut review, "spec");
    spec.insert("audiences".to_owned(), json!(claims.audiences));
    spec.insert("expirationSeconds".to_owned(), seconds.into());
    spec.entry("boundObjectRef").or_insert(Value::Null);
    review["status"] = json!({ "token": token, "expirationTimestamp": time::text(claims.expires) });
    Ok(Answer::json(201, &review))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_a_token_has_the_groups_of_its_account() {
        let claims = Claims {
            namespace: "n".to_owned(),
            account: "a".to_owned(),
            account_uid: "u".to_owned(),
            bound: Some(("p".to_owned(), "p".to_owned())),
            audiences: Vec::new(),
            expires: std::time::SystemTime::UNIX_EPOCH,
        };
        let user = User::of_claims(&claims);
        assert_eq!(user.name, "system:serviceaccount:n:a");
        let groups = ["system:serviceaccounts", "system:serviceaccounts:n", "system:authenticated"];
        assert_eq!(user.groups, groups);
        assert_eq!(user.pod, Some(("p".to_owned(), "p".to_owned())));
    }

    #[test]
    fn service_accounts_are_found_by_user_name() {
        assert_eq!(account_of("system:serviceaccount:n:a"), Some(("n", "a")));
        assert_eq!(account_of("system:serviceaccount:n"), None);
        assert_eq!(account_of("n:a"), None);
    }
}
