//! The environment of a command.

use std::path::Path;
use std::time::Duration;

use crate::args::output::OutputArgs;
use posse_core::machines::lease::LeaseTerms;

/// How much later than due a living holder's renewal may arrive.
const RENEW_MARGIN_MS: u64 = 2_000;

/// Looks up an environment variable; `None` if it is not set or not UTF-8.
pub type Env<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The environment of a command. Tests pass their own.
#[derive(Clone, Copy)]
pub struct World<'a> {
    pub env: Env<'a>,
    /// The base of relative paths; empty for the working directory.
    pub dir: &'a Path,
    /// How long `posse cleanup` watches a Lease that looks stale.
    pub lease_watch: Duration,
    /// How much the command says, and in which form.
    pub output: OutputArgs,
    /// Errors go to a terminal.
    pub is_terminal: bool,
}

impl<'a> World<'a> {
    /// The environment of the program itself.
    pub fn new(env: Env<'a>, dir: &'a Path) -> Self {
        let lease_watch = Duration::from_millis(LeaseTerms::USUAL.renew_ms + RENEW_MARGIN_MS);
        Self { env, dir, lease_watch, output: OutputArgs::default(), is_terminal: false }
    }
}
