//! The keys of `executors`: groups, where their pods come from, and the shorthands.

use std::fmt;

use serde_json::{Value, json};

use crate::core::policy::settings::{Decommission, EXECUTORS_MAX, Replace, ScaleDown};
use crate::wire::config::{checked, nodes_and_memory, only};
use crate::wire::memory::MemoryScaling;
use crate::wire::names;
use crate::wire::quantity::{Quantity, is_decimal, memory_error};
use crate::wire::section::{ConfigError, Section};
use crate::wire::security::Security;
use crate::wire::template::Shorthands;
use crate::wire::yaml::{Entry, Kind, Node};

/// One group of executors.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub count: u32,
    pub min: u32,
    pub max: Option<u32>,
    pub source: PodSource,
    /// Name of the main container. None: the first.
    pub container: Option<String>,
    pub shorthands: Shorthands,
    pub scale_down: ScaleDown,
    pub replace: Replace,
    /// The executor counts as failed if any other container fails.
    pub fails_with_sidecars: bool,
    /// What posse adds to the pod's security fields. None: to a pod of an image alone, everything
    /// that the level `restricted` requires except a user.
    pub security: Option<Security>,
    /// How memory scales after an executor was killed for its memory.
    pub memory_scaling: Option<MemoryScaling>,
    pub decommission: Option<Decommission>,
    /// Maximum age of an executor, seconds. None: no limit.
    pub max_age_s: Option<u64>,
}

/// Where a group's pod comes from.
#[derive(Clone, PartialEq)]
pub enum PodSource {
    /// A file, relative to the directory of posse.yaml.
    File(String),
    /// `pod:` in posse.yaml.
    Inline(Value),
    /// Built from the shorthands alone.
    Shorthands,
}

impl fmt::Debug for PodSource {
    /// Without the pod, because its environment may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Inline(_) => f.write_str("Inline(..)"),
            Self::Shorthands => f.write_str("Shorthands"),
        }
    }
}

impl Default for Group {
    fn default() -> Self {
        Self {
            name: "default".to_owned(),
            count: 1,
            min: 0,
            max: None,
            source: PodSource::Shorthands,
            container: None,
            shorthands: Shorthands::default(),
            scale_down: ScaleDown::Any,
            replace: Replace::Terminating,
            fails_with_sidecars: false,
            security: None,
            memory_scaling: None,
            max_age_s: None,
            decommission: None,
        }
    }
}

pub(super) fn groups(top: &Section<'_>) -> Result<Vec<Group>, ConfigError> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, node) in top.list("executors")?.unwrap_or_default().iter().enumerate() {
        let section = Section::new(top.file, format!("executors[{i}]"), node)?;
        let group = group(&section)?;
        if let Some(other) = groups.iter().position(|other| other.name == group.name) {
            let message = format!(
                "`{}` is already the name of executors[{other}]; each group needs its own",
                group.name
            );
            return Err(section.error("group", message));
        }
        groups.push(group);
    }
    Ok(groups)
}

fn group(section: &Section<'_>) -> Result<Group, ConfigError> {
    only(section, "executors")?;
    let default = Group::default();
    let name = checked(section, "group", names::group_name_error)?.unwrap_or(default.name);
    let number = |key: &str| section.number_up_to(key, EXECUTORS_MAX);
    let min = number("min")?.unwrap_or(default.min);
    let max = number("max")?;
    let count = number("count")?.unwrap_or_else(|| default.count.max(min));
    if count < min {
        return Err(section.error("count", format_args!("{count} is below min, which is {min}")));
    }
    if let Some(max) = max.filter(|max| count > *max) {
        return Err(section.error("count", format_args!("{count} is above max, which is {max}")));
    }
    Ok(Group {
        name,
        count,
        min,
        max,
        source: source(section)?,
        container: section.text("container")?,
        shorthands: shorthands(section)?,
        scale_down: section.word(
            "scale_down",
            &[("any", ScaleDown::Any), ("pending", ScaleDown::Pending)],
            default.scale_down,
        )?,
        replace: section.word(
            "replace",
            &[("terminating", Replace::Terminating), ("gone", Replace::Gone)],
            default.replace,
        )?,
        fails_with_sidecars: section.word(
            "sidecar_failure",
            &[("ignore", false), ("fail", true)],
            default.fails_with_sidecars,
        )?,
        security: section.word(
            "security",
            &[("baseline", Some(Security::Baseline)), ("restricted", Some(Security::Restricted))],
            default.security,
        )?,
        memory_scaling: nodes_and_memory::memory_scaling(section)?,
        max_age_s: Some(section.duration_ms("max_age", 0)?.div_ceil(1_000)).filter(|s| *s > 0),
        decommission: decommission(section)?,
    })
}

/// Either `template` (a file) or `pod` (inline).
pub(super) fn source(section: &Section<'_>) -> Result<PodSource, ConfigError> {
    Ok(match (section.text("template")?, section.json_map("pod")?) {
        (Some(_), Some(_)) => return Err(section.error("pod", "give either pod or template")),
        (Some(path), None) => PodSource::File(path),
        (None, Some(pod)) => PodSource::Inline(pod),
        (None, None) => PodSource::Shorthands,
    })
}

fn decommission(group: &Section<'_>) -> Result<Option<Decommission>, ConfigError> {
    if group.get("decommission").is_none() {
        return Ok(None);
    }
    let section = group.section("decommission")?;
    only(&section, "decommission")?;
    let after_ms = section.duration_ms("after", 0)?;
    if after_ms == 0 {
        let message = "must be longer than 0s: it is the drain period of a running executor";
        return Err(section.error("after", message));
    }
    let label = checked(&section, "label", names::label_error)?;
    let label = label.map(|text| {
        let (key, value) = text.split_once('=').unwrap_or((&text, ""));
        (key.to_owned(), value.to_owned())
    });
    Ok(Some(Decommission { after_ms, label }))
}

pub(super) fn shorthands(section: &Section<'_>) -> Result<Shorthands, ConfigError> {
    Ok(Shorthands {
        image: section.text("image")?,
        command: section.texts("command")?,
        args: section.texts("args")?,
        env: env(section)?,
        cpu: checked(section, "cpu", cpu_error)?,
        memory: checked(section, "memory", memory_error)?,
        resources: resources(section)?,
    })
}

/// Requests and limits by resource name. Amounts are texts or numbers.
fn resources(section: &Section<'_>) -> Result<Option<Value>, ConfigError> {
    let Some(all) = section.json_map("resources")? else { return Ok(None) };
    let inner = section.section("resources")?;
    inner.only(&["limits", "requests"])?;
    for part in ["limits", "requests"] {
        for entry in inner.section(part)?.entries() {
            if entry.value.scalar().is_none_or(|text| Quantity::parse(&text).is_none()) {
                let path = inner.path_of(part);
                let found = entry.value.describe();
                let message = format!(
                    "{path}.{}: expected an amount like 1 or 4Gi, found {found}",
                    entry.key
                );
                return Err(ConfigError { file: section.file.to_owned(), at: entry.at, message });
            }
        }
    }
    Ok(Some(all))
}

/// `env` is a map of NAME: value, or a list as in a pod spec.
fn env(section: &Section<'_>) -> Result<Vec<Value>, ConfigError> {
    let Some(node) = section.get("env") else { return Ok(Vec::new()) };
    match &node.kind {
        Kind::Map(entries) => entries.iter().map(|entry| env_pair(section, entry)).collect(),
        Kind::List(items) => {
            items.iter().enumerate().map(|(i, item)| env_item(section, i, item)).collect()
        }
        Kind::Bool(_) | Kind::Null | Kind::Number(_) | Kind::Text(_) => Err(section.expected(
            "env",
            node,
            "a map of NAME: value, or a list of {name, value} or {name, valueFrom}",
        )),
    }
}

fn env_pair(section: &Section<'_>, entry: &Entry) -> Result<Value, ConfigError> {
    let Entry { at, key, value } = entry;
    let value = value.scalar().ok_or_else(|| {
        let path = section.path_of("env");
        let message =
            format!("{path}.{key}: expected a text (\"\" for none), found {}", value.describe());
        ConfigError { file: section.file.to_owned(), at: *at, message }
    })?;
    Ok(json!({ "name": key, "value": value }))
}

fn env_item(section: &Section<'_>, i: usize, item: &Node) -> Result<Value, ConfigError> {
    let item = Section::new(section.file, format!("{}[{i}]", section.path_of("env")), item)?;
    item.only(&["name", "value", "valueFrom"])?;
    let Some(name) = item.text("name")? else { return Err(item.error("name", "is missing")) };
    if let Some(from) = item.json_map("valueFrom")? {
        if item.get("value").is_some() {
            return Err(item.error("value", "give either value or valueFrom"));
        }
        return Ok(json!({ "name": name, "valueFrom": from }));
    }
    let value = match item.get("value") {
        None => String::new(),
        Some(node) => node.scalar().ok_or_else(|| item.expected("value", node, "a text"))?,
    };
    Ok(json!({ "name": name, "value": value }))
}

fn cpu_error(text: &str) -> Option<String> {
    let number = text.strip_suffix('m').unwrap_or(text);
    (!is_decimal(number))
        .then(|| format!("expected a number of CPUs like 2, 0.5 or 500m, found `{text}`"))
}
