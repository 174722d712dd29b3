//! Decides who may upload a bundle: clients with the shared token, or clients whom the API server
//! allows to create pods in the bundle's namespace.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::reviews::{Denied, Reviews};
use posse_serve::token::{Token, bearer};

/// How clients are authenticated and authorized.
#[derive(Debug)]
pub enum Admission {
    /// By the API server: a TokenReview, and a SubjectAccessReview for creating pods in the
    /// namespace. A user who may create pods can put any file into a pod anyway.
    Review(Reviews),
    /// By the token in this file, which is read for each request, so that it can be replaced.
    Shared(PathBuf),
}

impl Admission {
    /// True if a decision may wait for the API server.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Self::Review(_))
    }

    /// Checks whether the client with this `Authorization` header may upload to `namespace`.
    pub(super) fn admit(
        &self,
        header: Option<&str>,
        namespace: &str,
        source: Option<IpAddr>,
    ) -> Result<(), Denied> {
        let no_token = || Denied::Unauthenticated("a valid bearer token is required".to_owned());
        match self {
            Self::Shared(path) => match Token::read(path) {
                Ok(token) if token.admits(header) => Ok(()),
                Ok(_) => Err(no_token()),
                Err(error) => {
                    log::error!("refused an upload: {error}");
                    Err(Denied::Unavailable("the server cannot read its token file".to_owned()))
                }
            },
            Self::Review(reviews) => {
                let token = bearer(header).filter(|token| !token.is_empty());
                reviews.admit(token.ok_or_else(no_token)?, namespace, source)
            }
        }
    }
}
