//! `dev` in a group and in `driver`: what is different under `posse run --dev`, so that one file serves images
//! and this machine.

use serde_json::Value;

use crate::config::env::{ENV, env};
use crate::config::key::Type::{List, Text};
use crate::config::key::{Key, key, none};
use crate::config::only;
use crate::config::section::{ConfigError, Section};
use crate::pod::template::Shorthands;

/// The keys of `dev`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("command", List, none(""), "Replaces `command`. `args` stay."),
    key("args", List, none(""), "Replaces `args`."),
    key("env", ENV, none(""), "More variables. They replace those of the same name. Not in `driver`."),
    key("working_dir", Text, none(""), "The folder in which the command starts. Not in `driver`."),
];

/// Replaces values of a group under `posse run --dev`.
#[derive(Clone, Default, PartialEq)]
pub struct DevOverlay {
    /// Replaces `command` alone: the arguments stay.
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// Replace entries of the same name; the others stay.
    pub env: Vec<Value>,
    pub working_dir: Option<String>,
}

impl std::fmt::Debug for DevOverlay {
    /// Without the environment, because it may contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { command, args, env: _, working_dir } = self;
        f.debug_struct("DevOverlay")
            .field("command", command)
            .field("args", args)
            .field("working_dir", working_dir)
            .finish_non_exhaustive()
    }
}

pub(super) fn dev(parent: &Section<'_>) -> Result<DevOverlay, ConfigError> {
    let section = parent.section("dev")?;
    only(&section, KEYS)?;
    Ok(DevOverlay {
        command: section.texts("command")?,
        args: section.texts("args")?,
        env: env(&section)?,
        working_dir: section.text("working_dir")?,
    })
}

/// The driver is a process of posse: it has posse's environment and folder.
pub(super) fn driver_dev(parent: &Section<'_>) -> Result<DevOverlay, ConfigError> {
    let section = parent.section("dev")?;
    for key in ["env", "working_dir"] {
        if section.get(key).is_some() {
            let message =
                "is for executors: the driver has the environment and folder of posse run";
            return Err(section.error(key, message));
        }
    }
    dev(parent)
}

impl DevOverlay {
    /// Applies it to the values of a group.
    pub fn lay_over(self, shorthands: &mut Shorthands) {
        let Self { command, args, env, working_dir } = self;
        shorthands.command = command.or_else(|| shorthands.command.take());
        shorthands.args = args.or_else(|| shorthands.args.take());
        let is_new = |old: &Value| env.iter().any(|new| new.get("name") == old.get("name"));
        shorthands.env.retain(|old| !is_new(old));
        shorthands.env.extend(env);
        shorthands.working_dir = working_dir;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::config::Config;

    #[test]
    fn dev_replaces_what_it_names() {
        let text = "executors: [{image: i, command: [a], args: [b], env: {A: '1', B: '2'}, dev: {command: \
                    [c, d], env: {B: '3', C: '4'}, working_dir: /w}}]";
        let mut config = Config::parse("", text).unwrap();
        let before = config.executors[0].shorthands.clone();
        assert_eq!(before.command.as_deref(), Some(&["a".to_owned()][..]));
        let group = &mut config.executors[0];
        group.dev.clone().lay_over(&mut group.shorthands);
        let after = &config.executors[0].shorthands;
        assert_eq!(after.command.as_deref(), Some(&["c".to_owned(), "d".to_owned()][..]));
        assert_eq!(after.args, before.args);
        assert_eq!(after.working_dir.as_deref(), Some("/w"));
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
        refused("driver: {dev: {working_dir: /w}}", "driver.dev.working_dir: is for executors");
        refused("driver: {dev: {args: [a]}}", "driver.dev.args: needs driver.command");
    }
}
