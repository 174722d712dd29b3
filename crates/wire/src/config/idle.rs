//! `driver.idle`: a command that prints which executors have no work.

use crate::config::key::Key;
use crate::config::key::Preset::Is;
use crate::config::key::key;
use crate::config::map_at;
use crate::config::polled::{EVERY, EVERY_MEANING, EVERY_TYPE, PolledCommand, command_key, polled};
use crate::config::section::{ConfigError, Section};

/// The keys of `idle`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    command_key("Program and arguments. It runs beside the driver, in the folder of posse and with the driver's environment, \
                 without a shell."),
    key(EVERY, EVERY_TYPE, Is("5s"), EVERY_MEANING),
];

pub(super) fn idle(driver: &Section<'_>) -> Result<Option<PolledCommand>, ConfigError> {
    let Some(section) = map_at(driver, "idle", KEYS)? else { return Ok(None) };
    let example = "a list like [./idle.sh], which prints the ids of the executors without work";
    polled(&section, example, KEYS).map(Some)
}

#[cfg(test)]
mod tests {
    use super::PolledCommand;
    use crate::config::Config;

    #[test]
    fn a_command_has_a_pause() {
        for (text, every_ms) in
            [("{command: [a, b]}", 5_000), ("{command: [a, b], every: 1s}", 1_000)]
        {
            let config = Config::parse("f", &format!("driver: {{idle: {text}}}")).unwrap();
            let command = ["a", "b"].map(str::to_owned).into();
            let want = PolledCommand { command, every_ms };
            assert_eq!(config.driver.idle, Some(want), "{text}");
        }
        assert_eq!(Config::parse("f", "driver: {}").unwrap().driver.idle, None);
    }

    #[test]
    fn wrong_values_are_errors_that_name_the_key() {
        for (text, want) in [
            ("{}", "driver.idle.command: is missing: a list like [./idle.sh]"),
            ("{command: ['']}", "driver.idle.command: the first word is empty"),
            ("{command: [a], every: 0s}", "driver.idle.every: must be longer than 0s"),
            ("{exec: [a]}", "driver.idle.exec: unknown key"),
        ] {
            let error = Config::parse("f", &format!("driver: {{idle: {text}}}")).unwrap_err();
            assert!(error.to_string().contains(want), "{text}: {error}");
        }
        let misplaced = Config::parse("f", "executors: [{idle: {command: [a]}}]").unwrap_err();
        assert!(misplaced.to_string().contains("`idle` belongs in `driver`"), "{misplaced}");
    }
}
