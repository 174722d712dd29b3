//! Owns who may leave a bundle: those who know the shared token, or those whom the API server knows
//! and lets create pods in the bundle's namespace.

use std::path::PathBuf;

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::callers::{subject_access_review, token_review};
use crate::kube::http::Http;
use crate::serve::token::{Token, bearer};
use crate::wire::review::Access;

/// How clients are recognised.
#[derive(Clone, Debug)]
pub enum Admission {
    /// The API server is asked whose token it is, and whether they may create pods there: who may
    /// do that may have any file in a pod anyway.
    Review(Http),
    /// By the one token in this file, which is read each time: it may be exchanged.
    Shared(PathBuf),
}

/// Why somebody is not let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// Known, and not allowed to.
    Forbidden(String),
    /// It cannot be said now.
    NotNow(String),
    /// Not known.
    Unknown,
}

impl Admission {
    /// Says whether whoever shows this `Authorization` may leave something in `namespace`.
    pub(super) fn admit(&self, header: Option<&str>, namespace: &str) -> Result<(), Denied> {
        match self {
            Self::Shared(path) => match Token::read(path) {
                Ok(token) if token.admits(header) => Ok(()),
                Ok(_) => Err(Denied::Unknown),
                Err(error) => {
                    log::error!("{error}");
                    Err(Denied::NotNow("the token cannot be read here".to_owned()))
                }
            },
            Self::Review(http) => review(http, bearer(header).ok_or(Denied::Unknown)?, namespace),
        }
    }
}

fn review(http: &Http, token: &str, namespace: &str) -> Result<(), Denied> {
    let not_now = |refusal: Refusal| {
        let lacks = refusal.class == RefusalClass::Forbidden;
        let remedy = if lacks { "; bind this account to system:auth-delegator" } else { "" };
        log::error!("a token cannot be reviewed: {refusal}{remedy}");
        Denied::NotNow("the API server cannot be asked now".to_owned())
    };
    let who = token_review(http, token).map_err(not_now)?.ok_or(Denied::Unknown)?;
    let access = Access { namespace, verb: "create", group: "", resource: "pods", subresource: "" };
    let verdict = subject_access_review(http, &who, access).map_err(not_now)?;
    if verdict.allowed {
        return Ok(());
    }
    let name = who.name();
    Err(Denied::Forbidden(format!("{name} may not create pods in namespace {namespace}")))
}
