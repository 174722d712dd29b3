//! A command that waits for something in a run outlives a change of the driver's pod, and a restart of posse on this
//! host: it looks for the run again until that is over.

use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use log::info;

use super::{FoundRun, find_here, named_app};
use crate::args::ClientArgs;
use crate::exit::Failure;
use crate::namespace::Namespace;
use crate::pod_dialer::PodDialer;
use crate::world::World;
use posse_control::client::{Client, ClientError};

/// The time between two looks for the run.
const INTERVAL: Duration = Duration::from_secs(1);
/// How long a run of this host may be away that did not end by itself: longer than the next process waits for the Leases
/// of one that was killed.
const KILLED_AWAY_MAX: Duration = Duration::from_secs(90);
/// The same of one that has ended, which a supervisor may start again.
const ENDED_AWAY_MAX: Duration = Duration::from_secs(5);
/// How long a run in the cluster may be away if nobody can say whether its Job goes on: longer than a lost node takes.
const UNKNOWN_AWAY_MAX: Duration = Duration::from_secs(300);

/// The run that a command waits in.
pub(crate) struct AwaitedRun<'a> {
    args: &'a ClientArgs,
    world: &'a World<'a>,
    /// The cluster in which its driver is; none: the run is on this host.
    namespace: Option<Namespace>,
    /// The end of the command's own time.
    until: Option<Instant>,
    pub(crate) client: Client,
    away_since: Option<Instant>,
}

impl<'a> AwaitedRun<'a> {
    pub(crate) fn new(
        run: FoundRun,
        args: &'a ClientArgs,
        until: Option<Instant>,
        world: &'a World<'a>,
    ) -> Self {
        let FoundRun { client, namespace } = run;
        Self { args, world, namespace, until, client, away_since: None }
    }

    /// Asks the run, and looks for it again as long as it may come back.
    ///
    /// # Errors
    /// It refuses, or it is over, or the time is.
    pub(crate) fn ask<T, E: Into<AskError>>(
        &mut self,
        mut ask: impl FnMut(&Client) -> Result<T, E>,
    ) -> Result<T, Failure> {
        loop {
            match ask(&self.client).map_err(Into::into) {
                Ok(answer) => {
                    self.note_answer();
                    return Ok(answer);
                }
                Err(AskError::Client(error)) if is_away(&error) => {
                    let failure = Failure::from(error);
                    if !self.find_again(&failure.message) {
                        return Err(failure);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The run has answered, so it is not away.
    pub(crate) fn note_answer(&mut self) {
        self.away_since = None;
    }

    /// Waits until the run may be asked again. False: it is over, or the time is. `why` it cannot be asked now.
    pub(crate) fn find_again(&mut self, why: &str) -> bool {
        if self.away_since.is_none() {
            info!("{why}: looking for the run again");
        }
        let since = *self.away_since.get_or_insert_with(Instant::now);
        loop {
            if self.until.is_some_and(|until| Instant::now() >= until) || self.is_over(since) {
                return false;
            }
            thread::sleep(INTERVAL);
            if let Some(client) = self.find() {
                self.client = client;
                return true;
            }
        }
    }

    fn find(&self) -> Option<Client> {
        let Some(namespace) = &self.namespace else { return find_here(self.args, self.world).ok() };
        let app = named_app(self.args, "").ok()?;
        Some(Client::through(Box::new(PodDialer::find(namespace, app).ok()?)))
    }

    /// Nobody will answer any more.
    fn is_over(&self, since: Instant) -> bool {
        let away = since.elapsed();
        let Some(namespace) = &self.namespace else {
            let max = if self.client.has_ended() { ENDED_AWAY_MAX } else { KILLED_AWAY_MAX };
            return away >= max;
        };
        let Ok(app) = named_app(self.args, "") else { return true };
        match namespace.keeper(&namespace.objects(), app) {
            Ok(Some(keeper)) => {
                let goes_on = keeper.job().is_none_or(|job| job.goes_on(Timestamp::now()));
                keeper.is_final() || !goes_on
            }
            // It was deleted, or the driver's pod is of other making.
            Ok(None) => away >= ENDED_AWAY_MAX,
            Err(_) => away >= UNKNOWN_AWAY_MAX,
        }
    }
}

/// Why a run gave no answer.
#[derive(Debug)]
pub(crate) enum AskError {
    Client(ClientError),
    Failure(Failure),
}

impl From<ClientError> for AskError {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl From<Failure> for AskError {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<AskError> for Failure {
    fn from(error: AskError) -> Self {
        match error {
            AskError::Client(error) => error.into(),
            AskError::Failure(failure) => failure,
        }
    }
}

/// The run cannot be reached, or does not take calls now. The same call may be answered later.
pub(crate) fn is_away(error: &ClientError) -> bool {
    matches!(error, ClientError::NoBridge(_) | ClientError::Unreachable { .. })
        || matches!(error.status(), Some(429 | 503))
}
