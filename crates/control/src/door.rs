//! Whom a listener admits.

use crate::page::files;
use posse_serve::Request;
use posse_serve::origin::{refuse_foreign_host, refuse_pages};
use posse_serve::token::Token;

/// The checks of a request before it is handled.
#[derive(Debug)]
pub(super) struct Door {
    /// What every request must carry, except those for the page's files, which say nothing of the run.
    pub(super) token: Option<Token>,
    /// The listener is on loopback, so a foreign `Host` means DNS rebinding. A browser cannot connect to a
    /// unix socket; at other addresses the names are not known, and the token keeps foreign pages out.
    pub(super) is_loopback: bool,
}

impl Door {
    /// The status code and message for a request that is not admitted.
    pub(super) fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        let foreign = || self.is_loopback.then(|| refuse_foreign_host(request, &HOSTS)).flatten();
        if let Some(refused) = refuse_pages(request).or_else(foreign) {
            return Some(refused);
        }
        let is_valid = |token: &Token| token.admits(request.header("authorization"));
        let is_admitted =
            self.token.as_ref().is_none_or(is_valid) || files::find(request).is_some();
        (!is_admitted).then_some((401, "the token is missing or wrong"))
    }
}

/// The host names of a listener on loopback: posse's clients and `docs/DRIVERS.md` say `posse`.
const HOSTS: [&str; 2] = ["localhost", "posse"];
