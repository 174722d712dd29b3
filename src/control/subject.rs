//! The run that the control API and the page show.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use crate::control::page::history::History;
use crate::control::{Busy, Core, DryRuns, Events};
use crate::core::model::command::{Command, Reply};
use crate::core::model::status::Status;
use crate::core::model::time::Millis;
use crate::wire::status_json::RunNames;
use crate::wire::time::Epoch;

/// The run that the API serves.
#[derive(Clone)]
pub struct Subject {
    pub core: Arc<dyn Core>,
    pub dry_runs: Arc<dyn DryRuns>,
    pub events: Arc<dyn Events>,
    /// Kept only if a page may show it.
    pub history: Option<Arc<History>>,
    pub identity: RunNames,
    /// The wall clock, which may be set while the run lives.
    pub epoch: Arc<dyn Fn() -> Epoch + Send + Sync>,
}

/// The status of a run and its time.
#[derive(Debug)]
pub struct Observed {
    pub status: Box<Status>,
    pub now: Millis,
    pub epoch: Epoch,
}

impl Subject {
    /// Reads the status for somebody who looks on, and adds it to the history.
    ///
    /// # Errors
    /// The run cannot answer now.
    pub fn observe(&self) -> Result<Observed, Busy> {
        let Reply::Status(status) = self.core.ask(Command::View)? else {
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

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject").field("identity", &self.identity).finish_non_exhaustive()
    }
}
