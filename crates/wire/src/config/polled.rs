//! Commands that posse runs again and again beside the driver (`scale`, `idle`).

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Duration, List, With};
use crate::config::key::{Key, key, told};
use crate::config::section::{ConfigError, Section};

const TIMEOUT_MS: u64 = 10_000;

pub(super) const EVERY: &str = "every";
/// The type of `every`.
pub(super) const EVERY_TYPE: crate::config::key::Type = With(&Duration, " above 0s");
pub(super) const EVERY_MEANING: &str = "The pause between two runs of the command.";
pub(super) const TIMEOUT: Key = key(
    "timeout",
    With(&Duration, " above 0s"),
    Is("10s"),
    "How long the command may take. Then posse ends it with all of its processes.",
);

/// The key `command` of a command with this environment.
pub(super) const fn command_key(meaning: &'static str) -> Key {
    key("command", List, told("required", ""), meaning)
}

/// Such a command. Times in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledCommand {
    /// Program and arguments, without a shell.
    pub command: Vec<String>,
    /// The pause between two runs of the command.
    pub every_ms: u64,
    /// How long the command may take.
    pub timeout_ms: u64,
}

/// `command`, `every` and `timeout` of a section. `example`: what the error for a missing command shows.
pub(super) fn polled(
    section: &Section<'_>,
    example: &str,
    every_ms: u64,
) -> Result<PolledCommand, ConfigError> {
    let command = section.texts("command")?.unwrap_or_default();
    match command.first() {
        None => return Err(section.error("command", format_args!("is missing: {example}"))),
        Some(program) if program.is_empty() => {
            return Err(section.error("command", "the first word is empty"));
        }
        Some(_) => {}
    }
    let positive = |key: &str, default: u64| match section.duration_ms(key, default)? {
        0 => Err(section.error(key, "must be longer than 0s")),
        ms => Ok(ms),
    };
    Ok(PolledCommand {
        every_ms: positive(EVERY, every_ms)?,
        timeout_ms: positive(TIMEOUT.name, TIMEOUT_MS)?,
        command,
    })
}
