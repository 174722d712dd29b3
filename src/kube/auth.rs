//! Owns the credentials while they are in use: what the next request carries, when that is renewed,
//! and what a 401 changes. Sends nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ureq::http::HeaderValue;

use super::config::{Bearer, Secret, header_value, read_token};
use super::exec::{ExecPlugin, Issued};
use super::tls::CertPair;

/// How long a token file's content is used before the file is read again.
const TOKEN_FILE_AGE_MAX: Duration = Duration::from_secs(50);

/// How long before its expiry a plugin's credential is replaced.
const EXPIRY_MARGIN: Duration = Duration::from_secs(60);

/// A plugin that hands out what is about to expire is not run more often than this.
const EXEC_AGE_MIN: Duration = Duration::from_secs(10);

/// After a 401 had a plugin run again, the next 401 does so only this much later.
const EXEC_RERUN_PAUSE: Duration = Duration::from_secs(10);

/// What one request carries.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) authorization: Option<HeaderValue>,
    /// A client certificate that a plugin gave.
    pub(super) client_cert: Option<Arc<CertPair>>,
    /// Counts the renewals, so that many requests refused at once renew only once.
    pub(super) generation: u64,
}

/// The credentials of one cluster.
#[derive(Debug)]
pub(super) struct Auth {
    source: Bearer,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    grant: Option<Grant>,
    generation: u64,
    /// When the grant is to be renewed; none for never.
    renew_at: Option<Instant>,
    rerun_at: Option<Instant>,
}

impl Auth {
    pub(super) fn new(source: Bearer) -> Self {
        let state = State { grant: None, generation: 0, renew_at: None, rerun_at: None };
        Self { source, state: Mutex::new(state) }
    }

    /// What a request sent now carries. A plugin may run for it, on this thread.
    pub(super) fn grant(&self, now: Instant) -> Result<Grant, String> {
        let mut state = self.lock();
        let due = state.renew_at.is_some_and(|at| at <= now);
        match &state.grant {
            Some(grant) if !due => Ok(grant.clone()),
            Some(_) | None => self.renew(&mut state, now),
        }
    }

    /// The server refused `refused`: true when there is something else to try now.
    pub(super) fn refused(&self, refused: &Grant, now: Instant) -> bool {
        let mut state = self.lock();
        if state.generation != refused.generation {
            return true;
        }
        match &self.source {
            Bearer::Absent | Bearer::Basic { .. } | Bearer::Token(_) => false,
            Bearer::TokenFile { .. } => self
                .renew(&mut state, now)
                .is_ok_and(|grant| grant.authorization != refused.authorization),
            Bearer::Exec(_) => {
                if state.rerun_at.is_some_and(|at| now < at + EXEC_RERUN_PAUSE) {
                    return false;
                }
                state.rerun_at = Some(now);
                match self.renew(&mut state, now) {
                    Ok(_) => true,
                    Err(e) => {
                        log::warn!("after a 401: {e}");
                        false
                    }
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renew(&self, state: &mut State, now: Instant) -> Result<Grant, String> {
        let (authorization, client_cert, renew_at) = match &self.source {
            Bearer::Absent => (None, None, None),
            Bearer::Basic { username, password } => (Some(basic(username, password)?), None, None),
            Bearer::Token(token) => (Some(bearer(token)?), None, None),
            Bearer::TokenFile { path, first } => {
                let token = match &state.grant {
                    Some(_) => reread(path),
                    None => Some(read_token(path).unwrap_or_else(|_| first.clone())),
                };
                let authorization = match (token, &state.grant) {
                    (Some(token), _) => Some(bearer(&token)?),
                    // Unreadable for the moment: the old one may well be good still.
                    (None, Some(grant)) => grant.authorization.clone(),
                    (None, None) => None,
                };
                (authorization, None, Some(now + TOKEN_FILE_AGE_MAX))
            }
            Bearer::Exec(plugin) => run(plugin, now)?,
        };
        state.generation += 1;
        state.renew_at = renew_at;
        let grant = Grant { authorization, client_cert, generation: state.generation };
        state.grant = Some(grant.clone());
        Ok(grant)
    }
}

fn reread(path: &Path) -> Option<Secret> {
    read_token(path).inspect_err(|e| log::warn!("the token stays as it was: {e}")).ok()
}

type Renewed = (Option<HeaderValue>, Option<Arc<CertPair>>, Option<Instant>);

fn run(plugin: &ExecPlugin, now: Instant) -> Result<Renewed, String> {
    let Issued { token, client_cert, expires } = plugin.run()?;
    let renew_at = expires.map(|at| {
        let left = at.duration_since(SystemTime::now()).unwrap_or_default();
        now + left.saturating_sub(EXPIRY_MARGIN).max(EXEC_AGE_MIN)
    });
    let authorization = token.as_ref().map(bearer).transpose()?;
    Ok((authorization, client_cert.map(Arc::new), renew_at))
}

fn bearer(token: &Secret) -> Result<HeaderValue, String> {
    header_value(&format!("Bearer {}", token.reveal())).map_err(|e| format!("the token {e}"))
}

fn basic(username: &str, password: &Secret) -> Result<HeaderValue, String> {
    let encoded = BASE64_STANDARD.encode(format!("{username}:{}", password.reveal()));
    header_value(&format!("Basic {encoded}"))
}
