//! Asks the API server who may upload. Bounded, because anybody can send tokens, and the API server
//! may answer slowly.

use std::net::IpAddr;
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};

use posse_base::sync::lock;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::reviews::{subject_access_review, token_review};
use posse_kube::http::Http;
use posse_wire::k8s::review::Access;

/// The audience of tokens for the stage server. Such a token is of no use at the API server.
pub(super) const AUDIENCE: &str = "posse-stage";

/// Reviews under way at once.
pub(super) const REVIEWS_MAX: usize = 8;
/// Reviews under way at once for clients of one address, so that the others get some.
const REVIEWS_PER_SOURCE_MAX: usize = 4;
/// How long a refused token is refused without another review.
const DENIED_FOR: Duration = Duration::from_secs(10);
/// Refused tokens that are remembered. The oldest is forgotten first.
const DENIED_MAX: usize = 1024;

/// Why a client is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// The user is known but not permitted.
    Forbidden(String),
    /// The check failed; a retry may help.
    Unavailable(String),
    /// No valid token.
    Unauthenticated(String),
}

/// Reviews the tokens of uploads.
#[derive(Debug)]
pub struct Reviews {
    http: Http,
    state: Mutex<State>,
    warned_of_audience: Once,
}

#[derive(Debug, Default)]
struct State {
    /// The source of each review under way.
    running: Vec<Option<IpAddr>>,
    /// The latest refusals, the oldest first.
    denied: Vec<Refused>,
}

/// A refused token: only its digest.
#[derive(Debug)]
struct Refused {
    digest: Vec<u8>,
    /// `None`: refused for every namespace, because nobody knows the token.
    namespace: Option<String>,
    since: Instant,
    why: Denied,
}

impl Reviews {
    /// By this API server.
    pub fn new(http: Http) -> Self {
        Self { http, state: Mutex::default(), warned_of_audience: Once::new() }
    }

    /// Checks whether the owner of the token may create pods in the namespace.
    ///
    /// # Errors
    /// The owner may not, nobody knows the token, or it cannot be checked now.
    pub(super) fn admit(
        &self,
        token: &str,
        namespace: &str,
        source: Option<IpAddr>,
    ) -> Result<(), Denied> {
        let digest = digest(&SHA256, token.as_bytes()).as_ref().to_vec();
        if let Some(why) = lock(&self.state).find_denied(&digest, namespace, Instant::now()) {
            return Err(why);
        }
        let result = {
            let _running = Running::start(self, source)?;
            self.review(token, namespace)
        };
        if let Err(why @ (Denied::Forbidden(_) | Denied::Unauthenticated(_))) = &result {
            let is_unknown = matches!(why, Denied::Unauthenticated(_));
            let namespace = (!is_unknown).then(|| namespace.to_owned());
            let refused = Refused { digest, namespace, since: Instant::now(), why: why.clone() };
            lock(&self.state).deny(refused);
        }
        result
    }

    fn review(&self, token: &str, namespace: &str) -> Result<(), Denied> {
        let unavailable = |refusal: Refusal| {
            let is_forbidden = refusal.class == RefusalClass::Forbidden;
            let remedy =
                if is_forbidden { "; bind this account to system:auth-delegator" } else { "" };
            log::error!(
                "refused an upload: the API server did not review the token: {refusal}{remedy}"
            );
            Denied::Unavailable("the API server cannot be reached to check the token".to_owned())
        };
        let who = token_review(&self.http, token, AUDIENCE).map_err(unavailable)?;
        let who = who.ok_or_else(|| {
            let how = "kubectl create token ACCOUNT --audience";
            let why = format!("the API server knows no such token for the audience {AUDIENCE}");
            Denied::Unauthenticated(format!("{why}; make one with `{how} {AUDIENCE}`"))
        })?;
        if !who.is_for_audience {
            self.warned_of_audience.call_once(|| {
                log::warn!(
                    "the API server does not know audiences: the tokens of uploads are valid for \
                     the API server as well"
                );
            });
        }
        let access = Access {
            namespace,
            verb: "create",
            group: "",
            resource: "pods",
            subresource: "",
            name: "",
        };
        let review = subject_access_review(&self.http, &who, access).map_err(unavailable)?;
        if review.allowed {
            return Ok(());
        }
        let name = who.name();
        Err(Denied::Forbidden(format!("{name} may not create pods in namespace {namespace}")))
    }
}

impl State {
    fn find_denied(&mut self, digest: &[u8], namespace: &str, now: Instant) -> Option<Denied> {
        self.denied.retain(|one| now.saturating_duration_since(one.since) < DENIED_FOR);
        let matches = |one: &&Refused| {
            one.digest == digest && one.namespace.as_deref().is_none_or(|ns| ns == namespace)
        };
        self.denied.iter().find(matches).map(|one| one.why.clone())
    }

    fn deny(&mut self, refused: Refused) {
        if self.denied.len() >= DENIED_MAX {
            self.denied.remove(0);
        }
        self.denied.push(refused);
    }
}

/// A review under way.
struct Running<'a> {
    reviews: &'a Reviews,
    source: Option<IpAddr>,
}

impl<'a> Running<'a> {
    fn start(reviews: &'a Reviews, source: Option<IpAddr>) -> Result<Self, Denied> {
        let mut state = lock(&reviews.state);
        let n_of_source = state.running.iter().filter(|other| **other == source).count();
        if state.running.len() >= REVIEWS_MAX || n_of_source >= REVIEWS_PER_SOURCE_MAX {
            let why = "too many tokens are being checked".to_owned();
            return Err(Denied::Unavailable(why));
        }
        state.running.push(source);
        Ok(Self { reviews, source })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.reviews.state);
        if let Some(own) = state.running.iter().position(|other| *other == self.source) {
            state.running.swap_remove(own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_remembered_for_a_time_and_a_number() {
        let start = Instant::now();
        let mut state = State::default();
        let refused = |digest: u8, namespace: Option<&str>, why: &Denied| Refused {
            digest: vec![digest],
            namespace: namespace.map(str::to_owned),
            since: start,
            why: why.clone(),
        };
        let forbidden = Denied::Forbidden("no".to_owned());
        let unknown = Denied::Unauthenticated("who".to_owned());
        state.deny(refused(1, Some("a"), &forbidden));
        state.deny(refused(2, None, &unknown));
        for (digest, namespace, after, want) in [
            (1, "a", Duration::ZERO, Some(&forbidden)),
            (1, "b", Duration::ZERO, None),
            (2, "a", Duration::ZERO, Some(&unknown)),
            (2, "b", Duration::from_secs(9), Some(&unknown)),
            (3, "a", Duration::from_secs(9), None),
            (2, "b", DENIED_FOR, None),
        ] {
            let found = state.find_denied(&[digest], namespace, start + after);
            assert_eq!(found.as_ref(), want, "{digest} {namespace} {after:?}");
        }
        (0..2 * DENIED_MAX).for_each(|_| state.deny(refused(4, None, &unknown)));
        assert_eq!(state.denied.len(), DENIED_MAX);
    }
}
