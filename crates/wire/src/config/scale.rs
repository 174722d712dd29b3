//! `executors[].scale`: a command whose number sets the target of the group.

use crate::config::key::Preset::Is;
use crate::config::key::Type::{Duration, Integer, With};
use crate::config::key::{Key, key, preset_ms};
use crate::config::map_at;
use crate::config::polled::{EVERY, EVERY_MEANING, EVERY_TYPE, PolledCommand, command_key, polled};
use crate::config::section::{ConfigError, Section};
use posse_core::machines::scale::ScaleRule;
use posse_core::model::settings::Restart;

/// The keys of `scale`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    command_key(
        "Program and arguments. It runs beside the driver, in the folder and environment of posse, without a \
         shell."),
    key("per_executor", With(&Integer, " from 1"), Is("1"), "The entries for one executor."),
    key(EVERY, EVERY_TYPE, Is("2s"), EVERY_MEANING),
    key("idle_after", Duration, Is("60s"),
        "How long the queue must be empty before the target falls to `min`. Until then it stays: the last entries \
         are still worked on."),
];

/// The command, and how its number becomes a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaleCommand {
    pub polled: PolledCommand,
    pub rule: ScaleRule,
}

pub(super) fn scale(
    group: &Section<'_>,
    restart: Restart,
) -> Result<Option<ScaleCommand>, ConfigError> {
    let Some(section) = map_at(group, "scale", KEYS)? else { return Ok(None) };
    if restart != Restart::Always {
        let message = "needs `restart: always`: work that ends lowers the target by itself";
        return Err(group.error("scale", message));
    }
    let example = "a list like [redis-cli, llen, queue], which prints a number";
    let polled = polled(&section, example, KEYS)?;
    let per_executor = section.number("per_executor")?.unwrap_or(1);
    if per_executor == 0 {
        return Err(section.error("per_executor", "must be at least 1"));
    }
    Ok(Some(ScaleCommand {
        polled,
        rule: ScaleRule {
            per_executor: u64::from(per_executor),
            idle_after_ms: section.duration_ms("idle_after", preset_ms(KEYS, "idle_after"))?,
        },
    }))
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    #[track_caller]
    fn refused(scale: &str, want: &str) {
        let text = format!("executors: [{{image: i, scale: {scale}}}]");
        let error = Config::parse("f", &text).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn a_queue_alone_begins_at_the_minimum() {
        for (min, count) in [(0, 0), (2, 2)] {
            let text = format!("executors: [{{image: i, min: {min}, scale: {{command: [a]}}}}]");
            assert_eq!(Config::parse("f", &text).unwrap().executors[0].spec.target, count);
        }
    }

    #[test]
    fn wrong_values_are_errors_that_name_the_key() {
        refused("{}", "executors[0].scale.command: is missing");
        refused("{command: []}", "executors[0].scale.command: is missing");
        refused("{command: ['']}", "executors[0].scale.command: the first word is empty");
        refused("{command: [a], per_executor: 0}", "scale.per_executor: must be at least 1");
        refused("{command: [a], per_executor: 0.5}", "scale.per_executor: expected a whole number");
        refused("{command: [a], every: 0s}", "scale.every: must be longer than 0s");
        refused("{command: [a], target: 3}", "scale.target");
        refused("{command: [a]}, restart: on-failure", "scale: needs `restart: always`");
    }
}
