//! The key `env`: environment variables of a container.

use serde_json::{Value, json};

use crate::config::checked;
use crate::config::key::Type;
use crate::config::section::{ConfigError, Section};
use crate::names::variable_error;
use crate::pod::arguments::variable_too_long;
use posse_encoding::yaml::{Entry, Kind, Node};

pub(super) const ENV: Type = Type::Own {
    page: "map, or list of `{name, value}` and `{name, valueFrom}`",
    expected: "a map of NAME: value, or a list of {name, value} or {name, valueFrom}",
};

/// `env` is a map of NAME: value, or a list as in a pod spec.
pub(super) fn env(section: &Section<'_>) -> Result<Vec<Value>, ConfigError> {
    let Some(node) = section.get("env") else { return Ok(Vec::new()) };
    match &node.kind {
        Kind::Map(entries) => entries.iter().map(|entry| env_pair(section, entry)).collect(),
        Kind::List(items) => {
            items.iter().enumerate().map(|(i, item)| env_item(section, i, item)).collect()
        }
        Kind::Bool(_) | Kind::Null | Kind::Number(_) | Kind::Text(_) => {
            Err(section.expected("env", node, ENV))
        }
    }
}

fn env_pair(section: &Section<'_>, entry: &Entry) -> Result<Value, ConfigError> {
    let Entry { at, key, value } = entry;
    if let Some(why) = variable_error(key) {
        return Err(section.error("env", why));
    }
    let map = section.section("env")?;
    let wrong = || map.expected(key, value, "a text (\"\" for none)");
    let text = value.scalar().ok_or_else(|| ConfigError { at: *at, ..wrong() })?;
    if let Some(why) = variable_too_long(key, &text) {
        return Err(ConfigError { at: *at, ..map.error(key, why) });
    }
    Ok(json!({ "name": key, "value": text }))
}

fn env_item(section: &Section<'_>, i: usize, item: &Node) -> Result<Value, ConfigError> {
    let item = Section::new(section.file, format!("{}[{i}]", section.path_of("env")), item)?;
    item.only(&["name", "value", "valueFrom"])?;
    let Some(name) = checked(&item, "name", variable_error)? else {
        return Err(item.error("name", "is missing"));
    };
    if let Some(from) = item.json_map("valueFrom")? {
        if item.get("value").is_some() {
            return Err(item.error("value", "give either value or valueFrom"));
        }
        return Ok(json!({ "name": name, "valueFrom": from }));
    }
    let value = match item.get("value") {
        None => String::new(),
        Some(node) => node.scalar().ok_or_else(|| item.expected("value", node, Type::Text))?,
    };
    match variable_too_long(&name, &value) {
        Some(why) => Err(item.error("value", why)),
        None => Ok(json!({ "name": name, "value": value })),
    }
}
