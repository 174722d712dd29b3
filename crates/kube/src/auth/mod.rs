//! The credentials of requests: where they come from, and when they are renewed.

mod plugin_credentials;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use ureq::http::HeaderValue;

use crate::config::exec_plugin::ExecPlugin;
use crate::config::pem::CertPair;
use crate::config::{AuthSource, Secret, header_value, read_token};
use posse_base::sync::lock;

/// A token file is read again after this time. The kubelet rotates tokens.
const TOKEN_FILE_AGE_MAX: Duration = Duration::from_secs(50);

/// The shortest time between two runs of a plugin because of a 401.
const EXEC_RERUN_MIN: Duration = Duration::from_secs(10);

/// The credentials of one request.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) authorization: Option<HeaderValue>,
    /// The client certificate, if a plugin issued one.
    pub(super) client_cert: Option<Arc<CertPair>>,
    /// Increases with every renewal, so that parallel requests that get a 401 renew only once.
    pub(super) generation: u64,
}

/// Provides the credentials for one cluster.
#[derive(Debug)]
pub(super) struct Authenticator {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    source: AuthSource,
    state: Mutex<State>,
    /// A run of the plugin has ended.
    run_ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    credentials: Option<Credentials>,
    generation: u64,
    /// When to renew the credentials; `None` means never.
    renew_at: Option<Instant>,
    /// The last run of the plugin because of a 401.
    rerun_at: Option<Instant>,
    /// The plugin runs, in a thread of its own.
    is_running: bool,
    /// The error of the last run.
    error: Option<String>,
}

impl Authenticator {
    pub(super) fn new(source: AuthSource) -> Self {
        let (state, run_ended) = (Mutex::default(), Condvar::new());
        Self { shared: Arc::new(Shared { source, state, run_ended }) }
    }

    /// The credentials for a request that is sent at `now`. A plugin that is due runs in a thread of its
    /// own. A caller with a limit (`until`) gets the present credentials meanwhile, or waits until then
    /// if there are none.
    pub(super) fn credentials(
        &self,
        now: Instant,
        until: Option<Instant>,
    ) -> Result<Credentials, String> {
        let mut state = lock(&self.shared.state);
        let due = state.renew_at.is_some_and(|at| at <= now);
        match (&state.credentials, &self.shared.source) {
            (Some(credentials), _) if !due => Ok(credentials.clone()),
            (present, AuthSource::Exec(plugin)) => {
                let present = present.clone();
                // They are due a while before they expire, and serve until then if the plugin fails.
                let serves =
                    state.renew_at.is_some_and(|at| now < at + plugin_credentials::EXPIRY_MARGIN);
                self.shared.start_run(&mut state, plugin, now);
                match present {
                    Some(present) if until.is_some() => Ok(present),
                    Some(present) if serves => self.shared.await_run(state, until).or(Ok(present)),
                    Some(_) | None => self.shared.await_run(state, until),
                }
            }
            (Some(_) | None, _) => self.shared.read(&mut state, now),
        }
    }

    /// Renews the credentials after the server answered 401 to `refused`. True if there are other
    /// credentials to try. `until`: the longest wait for a plugin.
    pub(super) fn renew_after_401(
        &self,
        refused: &Credentials,
        now: Instant,
        until: Option<Instant>,
    ) -> bool {
        let mut state = lock(&self.shared.state);
        if state.generation != refused.generation {
            return true;
        }
        match &self.shared.source {
            AuthSource::Absent | AuthSource::Basic { .. } | AuthSource::Token(_) => false,
            AuthSource::TokenFile { .. } => self
                .shared
                .read(&mut state, now)
                .is_ok_and(|credentials| credentials.authorization != refused.authorization),
            AuthSource::Exec(plugin) => {
                if state.rerun_at.is_some_and(|at| now < at + EXEC_RERUN_MIN) {
                    return false;
                }
                state.rerun_at = Some(now);
                self.shared.start_run(&mut state, plugin, now);
                match self.shared.await_run(state, until) {
                    Ok(_) => true,
                    Err(e) => {
                        log::warn!("the credentials were not renewed after a 401: {e}");
                        false
                    }
                }
            }
        }
    }
}

impl Shared {
    /// Reads credentials that need no plugin.
    fn read(&self, state: &mut State, now: Instant) -> Result<Credentials, String> {
        let (authorization, renew_at) = match &self.source {
            AuthSource::Absent | AuthSource::Exec(_) => (None, None),
            AuthSource::Basic { username, password } => (Some(basic(username, password)?), None),
            AuthSource::Token(token) => (Some(bearer(token)?), None),
            AuthSource::TokenFile { path, first } => {
                let token = match &state.credentials {
                    Some(_) => reread(path),
                    None => Some(read_token(path).unwrap_or_else(|_| first.clone())),
                };
                let authorization = match (token, &state.credentials) {
                    (Some(token), _) => Some(bearer(&token)?),
                    // The file cannot be read now. The old token may still be valid.
                    (None, Some(credentials)) => credentials.authorization.clone(),
                    (None, None) => None,
                };
                (authorization, Some(now + TOKEN_FILE_AGE_MAX))
            }
        };
        Ok(state.store((authorization, None, renew_at)))
    }

    /// Runs the plugin in a thread of its own, unless it runs already: a plugin may take a minute, and
    /// the renewal of a Lease must not wait for it.
    fn start_run(self: &Arc<Self>, state: &mut State, plugin: &ExecPlugin, now: Instant) {
        if state.is_running {
            return;
        }
        let (shared, plugin) = (Arc::clone(self), plugin.clone());
        let run = move || {
            let renewed = run_plugin(&plugin, now);
            lock(&shared.state).end_run(renewed);
            shared.run_ended.notify_all();
        };
        state.is_running = true;
        if let Err(e) = thread::Builder::new().name("credentials".to_owned()).spawn(run) {
            state.end_run(Err(format!("no thread for the credential plugin: {e}")));
        }
    }

    /// Waits for the end of the plugin's run, which has a time-out of its own.
    fn await_run(
        &self,
        mut state: MutexGuard<'_, State>,
        until: Option<Instant>,
    ) -> Result<Credentials, String> {
        while state.is_running {
            state = match until.map(|at| at.saturating_duration_since(Instant::now())) {
                None => self.run_ended.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Err("the credential plugin still runs".to_owned()),
                Some(left) => {
                    let waited = self.run_ended.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        match (&state.error, &state.credentials) {
            (Some(error), _) => Err(error.clone()),
            (None, Some(credentials)) => Ok(credentials.clone()),
            (None, None) => Err("the credential plugin has not run".to_owned()),
        }
    }
}

impl State {
    fn store(&mut self, renewed: Renewed) -> Credentials {
        let (authorization, client_cert, renew_at) = renewed;
        self.generation += 1;
        self.renew_at = renew_at;
        let credentials = Credentials { authorization, client_cert, generation: self.generation };
        self.credentials = Some(credentials.clone());
        credentials
    }

    fn end_run(&mut self, renewed: Result<Renewed, String>) {
        self.is_running = false;
        self.error = renewed.map(|renewed| self.store(renewed)).err();
    }
}

fn reread(path: &Path) -> Option<Secret> {
    read_token(path)
        .inspect_err(|e| {
            log::warn!("the token file cannot be read, the old token stays in use: {e}")
        })
        .ok()
}

type Renewed = (Option<HeaderValue>, Option<Arc<CertPair>>, Option<Instant>);

fn run_plugin(plugin: &ExecPlugin, now: Instant) -> Result<Renewed, String> {
    let credentials = plugin_credentials::run(plugin)?;
    let renew_at = credentials.renew_at(now);
    let authorization = credentials.token.as_ref().map(bearer).transpose()?;
    Ok((authorization, credentials.client_cert.map(Arc::new), renew_at))
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
    use std::time::SystemTime;

    use super::*;
    use crate::testing::counting_plugin;
    use posse_testing::Folder;

    #[track_caller]
    fn check(auth: &Authenticator, now: Instant, want: &str) -> Credentials {
        let credentials = auth.credentials(now, None).unwrap();
        let header = credentials.authorization.clone().map(|v| v.to_str().unwrap().to_owned());
        assert_eq!(header.as_deref(), Some(want));
        assert!(!format!("{auth:?}{credentials:?}").contains(want), "a secret is printed");
        credentials
    }

    #[test]
    fn fixed_credentials_are_not_retried_after_a_401() {
        let start = Instant::now();
        let basic =
            AuthSource::Basic { username: "me".to_owned(), password: Secret::new("s3cr3t") };
        for (source, header) in [
            (AuthSource::Token(Secret::new("t0ken")), "Bearer t0ken"),
            (basic, "Basic bWU6czNjcjN0"),
        ] {
            let auth = Authenticator::new(source);
            let credentials = check(&auth, start, header);
            assert!(!auth.renew_after_401(&credentials, start, None));
        }
        let auth = Authenticator::new(AuthSource::Absent);
        assert_eq!(auth.credentials(start, None).unwrap().authorization, None);
    }

    #[test]
    fn a_token_file_is_read_again_after_its_age_limit_and_after_a_401() {
        let folder = Folder::new();
        let path = folder.write("token", "one\n");
        let auth = Authenticator::new(AuthSource::TokenFile { path, first: Secret::new("zero") });
        let start = Instant::now();
        let first = check(&auth, start, "Bearer one");
        assert!(!auth.renew_after_401(&first, start, None), "the file has not changed");

        folder.write("token", "two");
        check(&auth, start + Duration::from_secs(49), "Bearer one");
        let second = check(&auth, start + Duration::from_secs(51), "Bearer two");

        folder.write("token", "three");
        let now = start + Duration::from_secs(52);
        assert!(auth.renew_after_401(&second, now, None), "after a 401 the file is read at once");
        check(&auth, now, "Bearer three");
        assert!(
            auth.renew_after_401(&second, now, None),
            "another request has renewed it meanwhile"
        );

        std::fs::remove_file(folder.path().join("token")).unwrap();
        let now = now + Duration::from_secs(60);
        let old = check(&auth, now, "Bearer three");
        assert!(!auth.renew_after_401(&old, now, None));
        folder.write("token", "\n");
        check(&auth, now + Duration::from_secs(60), "Bearer three");
        folder.write("token", "four");
        check(&auth, now + Duration::from_secs(120), "Bearer four");
    }

    fn counting(folder: &Folder, before: &str, expires: Option<&str>) -> Authenticator {
        Authenticator::new(AuthSource::Exec(Box::new(counting_plugin(folder, before, expires))))
    }

    #[test]
    fn a_plugin_runs_again_only_when_needed() {
        let folder = Folder::new();
        let auth = counting(&folder, "", None);
        let start = Instant::now();
        let day = Duration::from_secs(24 * 3600);
        check(&auth, start, "Bearer t1");
        let first = check(&auth, start + day, "Bearer t1");

        assert!(auth.renew_after_401(&first, start, None), "after a 401 the plugin runs again");
        let second = check(&auth, start, "Bearer t2");
        assert!(
            auth.renew_after_401(&first, start, None),
            "one run is enough for all parallel requests"
        );
        check(&auth, start, "Bearer t2");
        assert!(
            !auth.renew_after_401(&second, start, None),
            "a lasting 401 does not run the plugin each time"
        );
        let later = start + Duration::from_secs(11);
        assert!(auth.renew_after_401(&second, later, None));
        check(&auth, later, "Bearer t3");
    }

    #[test]
    fn a_credential_is_renewed_a_minute_before_its_expiry() {
        let folder = Folder::new();
        let at = |seconds: u64| {
            let at = SystemTime::now() + Duration::from_secs(seconds);
            jiff::Timestamp::try_from(at).unwrap().to_string()
        };
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);

        let auth = counting(&folder, "", Some(&at(3600)));
        check(&auth, start, "Bearer t1");
        check(&auth, after(3530), "Bearer t1");
        check(&auth, after(3550), "Bearer t2");

        // An expired credential is used, and renewed only after `EXEC_AGE_MIN`.
        let folder = Folder::new();
        let auth = counting(&folder, "", Some("2020-01-01T00:00:00Z"));
        check(&auth, start, "Bearer t1");
        check(&auth, after(9), "Bearer t1");
        check(&auth, after(11), "Bearer t2");
    }

    #[test]
    fn a_failed_plugin_is_run_again_for_the_next_request() {
        let folder = Folder::new();
        std::fs::write(folder.path().join("runs"), "\n".repeat(8)).unwrap();
        let auth = counting(&folder, "", None);
        let error = auth.credentials(Instant::now(), None).expect_err("the ninth run fails");
        assert!(error.contains("exit code 1"), "{error}");
        check(&auth, Instant::now(), "Bearer t10");
    }

    #[test]
    fn a_credential_serves_until_its_expiry_if_the_plugin_fails() {
        let folder = Folder::new();
        std::fs::write(folder.path().join("runs"), "\n".repeat(7)).unwrap();
        let at = SystemTime::now() + Duration::from_secs(3600);
        let at = jiff::Timestamp::try_from(at).unwrap().to_string();
        let auth = counting(&folder, "", Some(&at));
        let start = Instant::now();
        check(&auth, start, "Bearer t8");
        check(&auth, start + Duration::from_secs(3570), "Bearer t8");
        // The ninth run has failed.
        check(&auth, start + Duration::from_secs(3571), "Bearer t10");
        std::fs::write(folder.path().join("runs"), "\n".repeat(8)).unwrap();
        let expired = auth.credentials(start + Duration::from_secs(7300), None);
        assert!(expired.is_err_and(|error| error.contains("exit code 1")));
    }

    #[test]
    fn a_caller_with_a_limit_does_not_wait_for_a_plugin() {
        let folder = Folder::new();
        let gate = folder.path().join("gate");
        // A plugin that nobody waits for any more ends with the folder.
        let (path, open) = (folder.path().display(), gate.display());
        let wait = format!("while test -d {path} && ! test -e {open}; do sleep 0.01; done;");
        let auth = counting(&folder, &wait, Some("2020-01-01T00:00:00Z"));
        let start = Instant::now();
        let until = || Some(Instant::now() + Duration::from_millis(50));
        let error = auth.credentials(start, until()).expect_err("the plugin waits for the gate");
        assert!(error.contains("still runs"), "{error}");
        std::fs::write(&gate, "").unwrap();
        check(&auth, start, "Bearer t1");

        // The credentials are due again, and the plugin hangs: the present ones are used.
        std::fs::remove_file(&gate).unwrap();
        let later = start + Duration::from_secs(11);
        let present = auth.credentials(later, until()).unwrap();
        assert_eq!(present.authorization.as_ref().unwrap(), "Bearer t1");
        assert!(!auth.renew_after_401(&present, later, until()), "there are no others yet");
        std::fs::write(&gate, "").unwrap();
        check(&auth, later, "Bearer t2");
    }
}
