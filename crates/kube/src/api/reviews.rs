//! Review requests: whose token this is, and what its owner may do.

use super::{OBJECT_BYTES_MAX, read, write, write_path};
use crate::http::{Http, Method};
use posse_core::model::refusal::Refusal;
use posse_wire::error::WireError;
use posse_wire::k8s::caller::{self, Caller};
use posse_wire::k8s::review::{self, Access, AccessDecision};
use posse_wire::k8s::status::Verb;

/// Whose token this is; `None` if the server does not accept the token for this audience. Needs
/// permission to create TokenReviews.
pub fn token_review(http: &Http, token: &str, audience: &str) -> Result<Option<Caller>, Refusal> {
    let path = "/apis/authentication.k8s.io/v1/tokenreviews";
    review(http, path, &caller::token_question(token, audience), caller::caller)
}

/// Whether `who` is allowed `access`. Needs permission to create SubjectAccessReviews.
pub fn subject_access_review(
    http: &Http,
    who: &Caller,
    access: Access<'_>,
) -> Result<AccessDecision, Refusal> {
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    review(http, path, &caller::access_question(who, access), review::decision)
}

/// Whether we are allowed `access` (SelfSubjectAccessReview).
pub fn access_review(http: &Http, access: Access<'_>) -> Result<AccessDecision, Refusal> {
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    review(http, path, &review::question(access), review::decision)
}

fn review<T>(
    http: &Http,
    path: &str,
    body: &[u8],
    parse: fn(&[u8]) -> Result<T, WireError>,
) -> Result<T, Refusal> {
    let request = write(Method::Post, write_path(path), body, OBJECT_BYTES_MAX);
    read(http, &request, Verb::Create, parse)
}
