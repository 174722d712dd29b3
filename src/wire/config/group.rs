//! The keys of `executors`: groups, where their pods come from, and the shorthands.

use std::fmt;

use serde_json::Value;

use crate::core::policy::settings::{
    Decommission, EXECUTORS_MAX, GroupSpec, OnLoss, Replace, Restart, SLOT_WAIT_MS, ScaleDown,
    SlotPolicy,
};
use crate::wire::beside::Beside;
use crate::wire::config::decommission::decommission;
use crate::wire::config::dev::{DevOverlay, dev};
use crate::wire::config::env::env;
use crate::wire::config::scale::{ScaleCommand, scale};
use crate::wire::config::{beside, checked, nodes_and_memory, only, volumes};
use crate::wire::credentials::Credentials;
use crate::wire::memory::MemoryScaling;
use crate::wire::names;
use crate::wire::quantity::{Quantity, is_decimal, memory_error};
use crate::wire::section::{ConfigError, Section};
use crate::wire::security::Security;
use crate::wire::slot_volume::SlotVolume;
use crate::wire::template::Shorthands;

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
    pub slots: SlotPolicy,
    /// How long new executors wait for a slot whose executor still ends; 0: not at all.
    pub slot_wait_ms: u64,
    pub on_loss: OnLoss,
    pub restart: Restart,
    /// How many executors must end with 0, at least 1. None: each one lowers the target.
    pub completions: Option<u32>,
    /// The executor counts as failed if any other container fails.
    pub fails_with_sidecars: bool,
    /// The pods on whose nodes the executors are placed.
    pub beside: Option<Beside>,
    /// The claims that each slot has.
    pub volumes: Vec<SlotVolume>,
    /// The names of the credentials that the executors get. None: all.
    pub credentials: Option<Vec<String>>,
    /// What posse adds to the pod's security fields. None: to a pod of an image alone, everything
    /// that the level `restricted` requires except a user.
    pub security: Option<Security>,
    /// How memory scales after an executor was killed for its memory.
    pub memory_scaling: Option<MemoryScaling>,
    pub decommission: Option<Decommission>,
    /// Maximum age of an executor, seconds. None: no limit.
    pub max_age_s: Option<u64>,
    /// The command that sets the target.
    pub scale: Option<ScaleCommand>,
    /// What is different under `posse run --dev`.
    pub dev: DevOverlay,
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
            slots: SlotPolicy::Lowest,
            slot_wait_ms: 0,
            on_loss: OnLoss::Executor,
            restart: Restart::Always,
            completions: None,
            fails_with_sidecars: false,
            beside: None,
            volumes: Vec::new(),
            credentials: None,
            security: None,
            memory_scaling: None,
            max_age_s: None,
            scale: None,
            dev: DevOverlay::default(),
            decommission: None,
        }
    }
}

/// `executors`; `credentials`: those that the groups can name.
pub(super) fn groups(
    top: &Section<'_>,
    credentials: &[Credentials],
) -> Result<Vec<Group>, ConfigError> {
    let mut groups: Vec<Group> = Vec::new();
    for (i, node) in top.list("executors")?.unwrap_or_default().iter().enumerate() {
        let section = Section::new(top.file, format!("executors[{i}]"), node)?;
        let group = group(&section, credentials)?;
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

fn group(section: &Section<'_>, credentials: &[Credentials]) -> Result<Group, ConfigError> {
    only(section, "executors")?;
    let default = Group::default();
    let name = checked(section, "group", names::group_name_error)?.unwrap_or(default.name);
    let (count, min, max) = counts(section)?;
    let restart = [Restart::Always, Restart::OnFailure, Restart::Never];
    let restart =
        section.word("restart", &restart.map(|one| (one.as_str(), one)), default.restart)?;
    let completions = completions(section, restart)?;
    let scale_down = section.word(
        "scale_down",
        &[("any", ScaleDown::Any), ("pending", ScaleDown::Pending)],
        default.scale_down,
    )?;
    let replace = section.word(
        "replace",
        &[("terminating", Replace::Terminating), ("gone", Replace::Gone)],
        default.replace,
    )?;
    let slots = [SlotPolicy::Lowest, SlotPolicy::Stable].map(|one| (one.as_str(), one));
    let slots = section.word("slots", &slots, default.slots)?;
    let on_loss = [OnLoss::Executor, OnLoss::Group].map(|one| (one.as_str(), one));
    let on_loss = section.word("on_loss", &on_loss, default.on_loss)?;
    let spec =
        GroupSpec { scale_down, slots, on_loss, restart, completions, ..GroupSpec::default() };
    let written_replace = section.get("replace").map(|_| replace);
    let written_slots = section.get("slots").map(|_| slots);
    if let Some((key, what)) = spec.conflict(written_replace, written_slots) {
        return Err(section.error(key, what));
    }
    let volumes = volumes::volumes(section)?;
    let spec = GroupSpec { replace, ..spec };
    Ok(Group {
        name,
        slot_wait_ms: slot_wait_ms(section, &spec, !volumes.is_empty())?,
        restart,
        completions,
        count,
        min,
        max,
        source: source(section)?,
        container: section.text("container")?,
        shorthands: shorthands(section)?,
        scale_down,
        replace,
        slots,
        on_loss,
        fails_with_sidecars: section.word(
            "sidecar_failure",
            &[("ignore", false), ("fail", true)],
            default.fails_with_sidecars,
        )?,
        beside: beside::beside(section)?,
        credentials: credentials_of(section, credentials)?,
        volumes,
        security: section.word(
            "security",
            &[("baseline", Some(Security::Baseline)), ("restricted", Some(Security::Restricted))],
            default.security,
        )?,
        memory_scaling: nodes_and_memory::memory_scaling(section)?,
        scale: scale(section, restart)?,
        dev: dev(section)?,
        max_age_s: Some(section.duration_ms("max_age", 0)?.div_ceil(1_000)).filter(|s| *s > 0),
        decommission: decommission(section)?,
    })
}

/// `slot_wait`.
fn slot_wait_ms(
    section: &Section<'_>,
    spec: &GroupSpec,
    has_volumes: bool,
) -> Result<u64, ConfigError> {
    let wait_ms = section.duration_ms("slot_wait", if has_volumes { SLOT_WAIT_MS } else { 0 })?;
    let other = if spec.on_loss == OnLoss::Group {
        "`on_loss: group`"
    } else if spec.has_stable_slots() {
        "`slots: stable`"
    } else if spec.completions.is_some() {
        "`completions`"
    } else if spec.replace == Replace::Gone {
        "`replace: gone`"
    } else {
        return Ok(wait_ms);
    };
    match section.get("slot_wait") {
        Some(_) if wait_ms > 0 => {
            let message = format!("excludes {other}, which waits for slots in its own way");
            Err(section.error("slot_wait", message))
        }
        Some(_) | None => Ok(0),
    }
}

/// `credentials`: the names of the entries that its executors get. None: all of them.
fn credentials_of(
    group: &Section<'_>,
    entries: &[Credentials],
) -> Result<Option<Vec<String>>, ConfigError> {
    let names = group.texts("credentials")?;
    for name in names.iter().flatten() {
        if !entries.iter().any(|entry| entry.name == *name) {
            let known: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let message = format!("`{name}` is not an entry of `credentials`; there are: {known}");
            return Err(group.error("credentials", message));
        }
    }
    Ok(names)
}

/// The target at the start, and its limits.
fn counts(section: &Section<'_>) -> Result<(u32, u32, Option<u32>), ConfigError> {
    let default = Group::default();
    let number = |key: &str| section.number_up_to(key, EXECUTORS_MAX);
    let min = number("min")?.unwrap_or(default.min);
    let max = number("max")?;
    // A queue's length comes before long, and it may be 0.
    let usual = if section.get("scale").is_some() { 0 } else { default.count };
    let count = number("count")?.unwrap_or_else(|| usual.max(min));
    if count < min {
        return Err(section.error("count", format_args!("{count} is below min, which is {min}")));
    }
    if let Some(max) = max.filter(|max| count > *max) {
        return Err(section.error("count", format_args!("{count} is above max, which is {max}")));
    }
    Ok((count, min, max))
}

fn completions(section: &Section<'_>, restart: Restart) -> Result<Option<u32>, ConfigError> {
    let Some(n) = section.number_up_to("completions", EXECUTORS_MAX)? else { return Ok(None) };
    if restart == Restart::Always {
        let message = "needs `restart: on-failure` or `restart: never`: otherwise executors that end \
                       are replaced for ever";
        return Err(section.error("completions", message));
    }
    if n == 0 {
        return Err(section.error("completions", "must be at least 1"));
    }
    Ok(Some(n))
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

pub(super) fn shorthands(section: &Section<'_>) -> Result<Shorthands, ConfigError> {
    Ok(Shorthands {
        image: section.text("image")?,
        command: section.texts("command")?,
        args: section.texts("args")?,
        env: env(section)?,
        cpu: checked(section, "cpu", cpu_error)?,
        memory: checked(section, "memory", memory_error)?,
        resources: resources(section)?,
        working_dir: None,
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

/// What is wrong with a number of CPUs.
pub fn cpu_error(text: &str) -> Option<String> {
    let number = text.strip_suffix('m').unwrap_or(text);
    (!is_decimal(number))
        .then(|| format!("expected a number of CPUs like 2, 0.5 or 500m, found `{text}`"))
}
