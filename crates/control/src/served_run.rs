//! The run that the control API and the page show.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use crate::page::history::History;
use crate::{Busy, DryRuns, Events, RunHandle, TaskOutputs, TaskSecrets, Usage};
use posse_base::sync::lock;
use posse_base::time::Millis;
use posse_core::model::command::{Command, Reply};
use posse_core::model::status::Status;
use posse_wire::control::status_json::{LeaderJson, RunNames};
use posse_wire::time::Epoch;

/// The run that the API serves.
#[derive(Clone)]
pub struct ServedRun {
    pub core: Arc<dyn RunHandle>,
    pub dry_runs: Arc<dyn DryRuns>,
    pub events: Arc<dyn Events>,
    /// None: the run keeps no output of tasks.
    pub outputs: Option<Arc<dyn TaskOutputs>>,
    pub secrets: Arc<dyn TaskSecrets>,
    /// Kept only if a page may show it.
    pub history: Option<Arc<History>>,
    pub identity: RunNames,
    pub driver_page: DriverPage,
    pub usage: Arc<dyn Usage>,
    /// Which pod acts, as the run last saw it.
    pub leader: Arc<Mutex<Option<LeaderJson>>>,
    /// The wall clock, which may be set while the run lives.
    pub epoch: Arc<dyn Fn() -> Epoch + Send + Sync>,
}

/// The address of the driver's own page, if it is known.
#[derive(Clone, Debug, Default)]
pub struct DriverPage(Arc<Mutex<Option<String>>>);

impl DriverPage {
    /// The page at this port of the driver's host, until the driver tells another one.
    pub fn at(port: Option<u16>) -> Self {
        Self(Arc::new(Mutex::new(port.map(|port| format!(":{port}")))))
    }

    pub(crate) fn set(&self, address: &str) {
        *lock(&self.0) = Some(address.to_owned());
    }

    pub(crate) fn get(&self) -> Option<String> {
        lock(&self.0).clone()
    }
}

/// The status of a run and its time.
#[derive(Debug)]
pub struct Observed {
    pub status: Box<Status>,
    pub now: Millis,
    pub epoch: Epoch,
}

impl ServedRun {
    /// Reads the status for somebody who looks on, and adds it to the history.
    ///
    /// # Errors
    /// The run cannot answer now.
    pub fn observe(&self) -> Result<Observed, Busy> {
        let Reply::Status(status) = self.core.ask(Command::View, None)? else {
            return Err(Busy::Stopping);
        };
        let epoch = (self.epoch)();
        let elapsed = SystemTime::now().duration_since(epoch.0).unwrap_or_default();
        let now = Millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX));
        if let Some(history) = &self.history {
            history.observe(&status, now);
        }
        Ok(Observed { status, now, epoch })
    }
}

impl fmt::Debug for ServedRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedRun").field("identity", &self.identity).finish_non_exhaustive()
    }
}
