//! Owns the credentials while they are in use: what the next request carries, when that is renewed,
//! and what a 401 changes. Sends nothing.

mod exec;

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ureq::http::HeaderValue;

use self::exec::Issued;
use crate::kube::config::exec_plugin::ExecPlugin;
use crate::kube::config::pem::CertPair;
use crate::kube::config::{Bearer, Secret, header_value, read_token};

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube::testing::Folder;

    #[track_caller]
    fn check(auth: &Auth, now: Instant, want: &str) -> Grant {
        let grant = auth.grant(now).unwrap();
        let header = grant.authorization.clone().map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(header.as_deref(), Some(want));
        assert!(!format!("{auth:?}{grant:?}").contains(want), "a secret is printed");
        grant
    }

    #[test]
    fn what_never_changes_is_not_tried_twice() {
        let start = Instant::now();
        let basic = Bearer::Basic { username: "me".to_owned(), password: Secret::new("s3cr3t") };
        for (source, header) in
            [(Bearer::Token(Secret::new("t0ken")), "Bearer t0ken"), (basic, "Basic bWU6czNjcjN0")]
        {
            let auth = Auth::new(source);
            let grant = check(&auth, start, header);
            assert!(!auth.refused(&grant, start));
        }
        let auth = Auth::new(Bearer::Absent);
        assert_eq!(auth.grant(start).unwrap().authorization, None);
    }

    #[test]
    fn a_token_file_is_read_again_in_time_and_on_a_401() {
        let folder = Folder::new();
        let path = folder.write("token", "one\n");
        let auth = Auth::new(Bearer::TokenFile { path, first: Secret::new("zero") });
        let start = Instant::now();
        let first = check(&auth, start, "Bearer one");
        assert!(!auth.refused(&first, start), "there is nothing else to try");

        folder.write("token", "two");
        check(&auth, start + Duration::from_secs(49), "Bearer one");
        let second = check(&auth, start + Duration::from_secs(51), "Bearer two");

        folder.write("token", "three");
        let now = start + Duration::from_secs(52);
        assert!(auth.refused(&second, now), "a 401 has it read at once");
        check(&auth, now, "Bearer three");
        assert!(auth.refused(&second, now), "somebody else has renewed it meanwhile");

        std::fs::remove_file(folder.path().join("token")).unwrap();
        let now = now + Duration::from_secs(60);
        let kept = check(&auth, now, "Bearer three");
        assert!(!auth.refused(&kept, now));
        folder.write("token", "\n");
        check(&auth, now + Duration::from_secs(60), "Bearer three");
        folder.write("token", "four");
        check(&auth, now + Duration::from_secs(120), "Bearer four");
    }

    fn counting(folder: &Folder, expires: Option<&str>) -> Auth {
        Auth::new(Bearer::Exec(Box::new(folder.counting_plugin(expires))))
    }

    #[test]
    fn a_plugin_runs_again_only_when_it_must() {
        let folder = Folder::new();
        let auth = counting(&folder, None);
        let start = Instant::now();
        let day = Duration::from_secs(24 * 3600);
        check(&auth, start, "Bearer t1");
        let first = check(&auth, start + day, "Bearer t1");

        assert!(auth.refused(&first, start), "a 401 has it run once more");
        let second = check(&auth, start, "Bearer t2");
        assert!(auth.refused(&first, start), "one run serves all that were refused at once");
        check(&auth, start, "Bearer t2");
        assert!(!auth.refused(&second, start), "a lasting 401 is no reason to run it each time");
        let later = start + Duration::from_secs(11);
        assert!(auth.refused(&second, later));
        check(&auth, later, "Bearer t3");
    }

    #[test]
    fn a_credential_is_replaced_a_minute_before_its_end() {
        let folder = Folder::new();
        let at = |seconds: u64| {
            let at = SystemTime::now() + Duration::from_secs(seconds);
            jiff::Timestamp::try_from(at).unwrap().to_string()
        };
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);

        let auth = counting(&folder, Some(&at(3600)));
        check(&auth, start, "Bearer t1");
        check(&auth, after(3530), "Bearer t1");
        check(&auth, after(3550), "Bearer t2");

        // One that is over already is used all the same, and asked for again only after a while.
        let folder = Folder::new();
        let auth = counting(&folder, Some("2020-01-01T00:00:00Z"));
        check(&auth, start, "Bearer t1");
        check(&auth, after(9), "Bearer t1");
        check(&auth, after(11), "Bearer t2");
    }

    #[test]
    fn a_plugin_that_fails_is_an_error_until_it_works() {
        let folder = Folder::new();
        std::fs::write(folder.path().join("runs"), "\n".repeat(8)).unwrap();
        let auth = counting(&folder, None);
        let error = auth.grant(Instant::now()).expect_err("the ninth run fails");
        assert!(error.contains("exit status: 1"), "{error}");
        check(&auth, Instant::now(), "Bearer t10");
    }
}
