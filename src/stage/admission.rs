//! Decides who may upload a bundle: clients with the shared token, or clients whom the API server
//! allows to create pods in the bundle's namespace.

use std::path::PathBuf;

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::reviews::{subject_access_review, token_review};
use crate::kube::http::Http;
use crate::serve::token::{Token, bearer};
use crate::wire::review::Access;

/// How clients are authenticated and authorized.
#[derive(Clone, Debug)]
pub enum Admission {
    /// By the API server: a TokenReview, and a SubjectAccessReview for creating pods in the
    /// namespace. A user who may create pods can put any file into a pod anyway.
    Review(Http),
    /// By the token in this file, which is read for each request, so that it can be replaced.
    Shared(PathBuf),
}

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The user is known but not permitted.
    Forbidden(String),
    /// The check failed; a retry may help.
    Unavailable(String),
    /// No valid token.
    Unauthenticated,
}

impl Admission {
    /// Checks whether the client with this `Authorization` header may upload to `namespace`.
    pub(super) fn admit(&self, header: Option<&str>, namespace: &str) -> Result<(), Denied> {
        match self {
            Self::Shared(path) => match Token::read(path) {
                Ok(token) if token.admits(header) => Ok(()),
                Ok(_) => Err(Denied::Unauthenticated),
                Err(error) => {
                    log::error!("refused an upload: {error}");
                    Err(Denied::Unavailable("the server cannot read its token file".to_owned()))
                }
            },
            Self::Review(http) => {
                review(http, bearer(header).ok_or(Denied::Unauthenticated)?, namespace)
            }
        }
    }
}

fn review(http: &Http, token: &str, namespace: &str) -> Result<(), Denied> {
    let unavailable = |refusal: Refusal| {
        let is_forbidden = refusal.class == RefusalClass::Forbidden;
        let remedy = if is_forbidden { "; bind this account to system:auth-delegator" } else { "" };
        log::error!(
            "refused an upload: the API server did not review the token: {refusal}{remedy}"
        );
        Denied::Unavailable("the API server cannot be reached to check the token".to_owned())
    };
    let who = token_review(http, token).map_err(unavailable)?.ok_or(Denied::Unauthenticated)?;
    let access = Access { namespace, verb: "create", group: "", resource: "pods", subresource: "" };
    let review = subject_access_review(http, &who, access).map_err(unavailable)?;
    if review.allowed {
        return Ok(());
    }
    let name = who.name();
    Err(Denied::Forbidden(format!("{name} may not create pods in namespace {namespace}")))
}
