//! Commands that posse runs again and again beside the driver (`scale`, `idle`).

use crate::config::key::Type::{Duration, List, With};
use crate::config::key::{Key, key, preset_ms, told};
use crate::config::section::{ConfigError, Section};

pub(super) const EVERY: &str = "every";
/// The type of `every`.
pub(super) const EVERY_TYPE: crate::config::key::Type = With(&Duration, " above 0s");
pub(super) const EVERY_MEANING: &str = "The pause between two runs of the command. After 10 s posse ends a run with all of its processes.";

/// The key `command` of a command with this environment.
pub(super) const fn command_key(meaning: &'static str) -> Key {
    key("command", List, told("required", ""), meaning)
}

/// Such a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolledCommand {
    /// Program and arguments, without a shell.
    pub command: Vec<String>,
    /// The pause between two runs of the command, in milliseconds.
    pub every_ms: u64,
}

/// `command` and `every` of a section. `example`: what the error for a missing command shows.
pub(super) fn polled(
    section: &Section<'_>,
    example: &str,
    keys: &[Key],
) -> Result<PolledCommand, ConfigError> {
    let command = section.words("command")?.unwrap_or_default();
    match command.first() {
        None => return Err(section.error("command", format_args!("is missing: {example}"))),
        Some(program) if program.is_empty() => {
            return Err(section.error("command", "the first word is empty"));
        }
        Some(_) => {}
    }
    match section.duration_ms(EVERY, preset_ms(keys, EVERY))? {
        0 => Err(section.error(EVERY, "must be longer than 0s")),
        every_ms => Ok(PolledCommand { command, every_ms }),
    }
}
