//! Whom a listener admits.

use crate::page::files::{self, File};
use posse_serve::Request;
use posse_serve::origin::{refuse_foreign_host, refuse_pages};
use posse_serve::token::Token;

/// The checks of a request before it is handled.
#[derive(Debug)]
pub(super) struct Door {
    /// What every request must carry, except those for the page's files, which say nothing of a run.
    pub(super) token: Option<Token>,
    /// What also admits a request, but only to read.
    pub(super) read_token: Option<Token>,
    /// The listener is on loopback, so a foreign `Host` means DNS rebinding. A browser cannot connect to a
    /// unix socket; at other addresses the names are not known, and the token keeps foreign pages out.
    pub(super) is_loopback: bool,
    /// The files of the page that is served here.
    pub(super) files: &'static [File],
}

impl Door {
    /// The status code and message for a request that is not admitted.
    pub(super) fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        let foreign = || self.is_loopback.then(|| refuse_foreign_host(request, &HOSTS)).flatten();
        if let Some(refused) = refuse_pages(request).or_else(foreign) {
            return Some(refused);
        }
        let is_admitted =
            self.right(request).is_some() || files::find(self.files, request).is_some();
        (!is_admitted).then_some((401, "the token is missing or wrong"))
    }

    /// What the request may do. Who shows the token that reads may not act, also at a unix socket.
    pub(super) fn right(&self, request: &Request) -> Option<Right> {
        let is_valid = |token: &Token| token.admits(request.header("authorization"));
        if self.read_token.as_ref().is_some_and(is_valid) {
            return Some(Right::Read);
        }
        self.token.as_ref().is_none_or(is_valid).then_some(Right::Act)
    }
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// Everything.
    Act,
    /// Only what changes nothing.
    Read,
}

/// The host names of a listener on loopback: posse's clients and `docs/DRIVERS.md` say `posse`.
const HOSTS: [&str; 2] = ["localhost", "posse"];
