//! Owns what a server of ours asks the API server about its clients: who they are, what they may do,
//! and which applications have pods. Decides nothing.

use super::{OBJECT_BYTES_MAX, call, write, written};
use crate::core::model::refusal::Refusal;
use crate::kube::http::{Http, Method};
use crate::wire::caller::{self, Caller};
use crate::wire::pod::WireError;
use crate::wire::review::{self, Access, Verdict};
use crate::wire::status::{Verb, unreadable};

/// Whose token it is; none where it is nobody's. It takes the right to create tokenreviews.
///
/// # Errors
/// The server's refusal.
pub fn token_review(http: &Http, token: &str) -> Result<Option<Caller>, Refusal> {
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    ask(http, path, &caller::token_question(token), caller::caller)
}

/// Whether somebody may do `access`. It takes the right to create subjectaccessreviews.
///
/// # Errors
/// The server's refusal.
pub fn subject_access_review(
    http: &Http,
    who: &Caller,
    access: Access<'_>,
) -> Result<Verdict, Refusal> {
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    ask(http, path, &caller::access_question(who, access), review::verdict)
}

fn ask<T>(
    http: &Http,
    path: &str,
    body: &[u8],
    read: fn(&[u8]) -> Result<T, WireError>,
) -> Result<T, Refusal> {
    let request = write(Method::Post, written(path), body, OBJECT_BYTES_MAX);
    let (status, answer) = call(http, &request, Verb::Create)?;
    read(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}

/// Asks whether we may do `access`.
///
/// # Errors
/// The server's refusal.
pub fn access_review(http: &Http, access: Access<'_>) -> Result<Verdict, Refusal> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let body = review::question(access);
    let request = write(Method::Post, written(path), &body, OBJECT_BYTES_MAX);
    let (status, answer) = call(http, &request, Verb::Create)?;
    review::verdict(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
}
