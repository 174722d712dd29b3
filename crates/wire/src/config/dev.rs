//! `dev` in a group and in `driver`: what is different under `posse run --dev`, so that one file serves images
//! and this machine.

use serde_json::Value;

use crate::config::env::{ENV, env};
use crate::config::key::Type::List;
use crate::config::key::{Key, key, none};
use crate::config::only;
use crate::config::section::{ConfigError, Section};
use crate::pod::template::Shorthands;

/// The keys of `dev`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("command", List, none(""), "Replaces `command`. `args` stay."),
    key("env", ENV, none(""), "More variables. They replace those of the same name. Not in `driver`."),
];

/// Replaces values of a group under `posse run --dev`.
#[derive(Clone, Default, PartialEq)]
pub struct DevOverlay {
    /// Replaces `command` alone: the arguments stay.
    pub command: Option<Vec<String>>,
    /// Replace entries of the same name; the others stay.
    pub env: Vec<Value>,
}

impl std::fmt::Debug for DevOverlay {
    /// Without the environment, because it may contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DevOverlay").field("command", &self.command).finish_non_exhaustive()
    }
}

pub(super) fn dev(parent: &Section<'_>) -> Result<DevOverlay, ConfigError> {
    let section = parent.section("dev")?;
    only(&section, KEYS)?;
    Ok(DevOverlay { command: section.words("command")?, env: env(&section)? })
}

/// The driver is a process of posse: it has posse's environment.
pub(super) fn driver_dev(parent: &Section<'_>) -> Result<DevOverlay, ConfigError> {
    let section = parent.section("dev")?;
    if section.get("env").is_some() {
        let message = "is for executors: the driver has the environment of posse run";
        return Err(section.error("env", message));
    }
    dev(parent)
}

impl DevOverlay {
    /// Applies it to the values of a group.
    pub fn apply_to(self, shorthands: &mut Shorthands) {
        let Self { command, env } = self;
        shorthands.command = command.or_else(|| shorthands.command.take());
        let is_new = |old: &Value| env.iter().any(|new| new.get("name") == old.get("name"));
        shorthands.env.retain(|old| !is_new(old));
        shorthands.env.extend(env);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::Config;

    #[test]
    fn dev_replaces_what_it_names() {
        let text = "executors: [{image: i, command: [a], args: [b], env: {A: '1', B: '2'}, dev: {command: \
                    [c, d], env: {B: '3', C: '4'}}}]";
        let mut config = Config::parse("", text).unwrap();
        let before = config.executors[0].shorthands.clone();
        assert_eq!(before.command.as_deref(), Some(&["a".to_owned()][..]));
        let group = &mut config.executors[0];
        group.dev.clone().apply_to(&mut group.shorthands);
        let after = &config.executors[0].shorthands;
        assert_eq!(after.command.as_deref(), Some(&["c".to_owned(), "d".to_owned()][..]));
        assert_eq!(after.args, before.args);
        let entry = |name: &str, value: &str| json!({"name": name, "value": value});
        assert_eq!(after.env, [entry("A", "1"), entry("B", "3"), entry("C", "4")]);
    }

    #[track_caller]
    fn refused(text: &str, want: &str) {
        let error = Config::parse("f", text).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }

    #[test]
    fn wrong_keys_of_dev_are_errors() {
        refused("executors: [{image: i, dev: {image: j}}]", "executors[0].dev.image");
        refused("driver: {dev: {env: {A: b}}}", "driver.dev.env: is for executors");
    }
}
