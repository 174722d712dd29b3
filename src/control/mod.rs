//! What a driver or a person talks to while posse runs. Decides nothing.

pub mod address;
pub mod api;
pub mod client;
pub mod table;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use crate::core::model::command::{Command, Reply};
use crate::core::model::ids::GroupName;
use crate::core::model::pod_text::PodText;
use crate::wire::control::CallError;

/// The way to the one thread that decides. Its owner implements it over the inbox.
pub trait Core: Send + Sync {
    /// Hands a command over and waits for the answer.
    ///
    /// # Errors
    /// There is no answer to be had now.
    fn ask(&self, command: Command) -> Result<Reply, Busy>;

    /// The loop turned within the last minute and the watch still tries. An API server that is away
    /// is not death.
    fn is_alive(&self) -> bool;

    /// The first LIST is applied.
    fn is_ready(&self) -> bool;
}

/// The way from a template to the pods of a group. May wait for the API server.
pub trait Drafts: Send + Sync {
    /// Builds the pods of `group` and asks the server whether it would take one.
    ///
    /// # Errors
    /// It would not, or it cannot be asked now.
    fn draft(
        &self,
        group: &GroupName,
        template: Value,
        container: Option<&str>,
    ) -> Result<Arc<PodText>, NoDraft>;
}

/// Why a template came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoDraft {
    /// It is at fault, by our word or the server's.
    Bad(CallError),
    /// The server cannot say now; how long it wants to be left alone, in milliseconds.
    NotNow { why: String, retry_after_ms: Option<u64> },
}

/// Why a command got no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Busy {
    /// As many are waiting as fit: later.
    Full,
    /// The run is over, or nearly.
    Stopping,
}

/// The events of this run, numbered from 1.
pub trait Events: Send + Sync {
    /// The number of the newest; 0 before the first.
    fn newest(&self) -> u64;

    /// What came after number `after`; where there is nothing yet, waits at most `wait` for it.
    fn read(&self, after: u64, wait: Duration) -> Read;
}

/// What a reader of events gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// There will be no more.
    Ended,
    /// Whole lines with their line ends, and the number to go on after. Lines that were dropped
    /// before they could be read are told by a `missed` in front.
    Lines { lines: Vec<Arc<str>>, last: u64 },
    /// Nothing came in time.
    Nothing,
}
