//! The keys of `executors`: groups, where their pods come from, and the shorthands.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use crate::config::decommission::decommission;
use crate::config::dev::{DevOverlay, dev};
use crate::config::env::{ENV, env};
use crate::config::gang::gang;
use crate::config::key::Preset::Is;
use crate::config::key::Type::{
    Amount, Boolean, Duration, Integer, List, Map, Maps, Name, Path, Text, With, Words,
};
use crate::config::key::{Key, key, none, told, words};
use crate::config::nodes_and_memory::GROWTH;
use crate::config::scale::{ScaleCommand, scale};
use crate::config::section::{ConfigError, Section};
use crate::config::{beside, checked, nodes_and_memory, only, queue_group, volumes};
use crate::names;
use crate::pod::beside::Beside;
use crate::pod::build::PodSettings;
use crate::pod::credential_mounts::Credentials;
use crate::pod::security::Security;
use crate::pod::slot_volume::SlotVolume;
use crate::pod::template::Shorthands;
use posse_core::model::command::GroupChange;
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{
    EXECUTORS_MAX, GroupSpec, OnLoss, Protect, Replace, Restart, ScaleDown, SlotPolicy, Together,
    completions_error,
};
use posse_encoding::quantity::{Quantity, is_decimal, memory_error};

/// One group of executors as a file and the flags say it. The run's `GroupSettings` are made of it when the template
/// is read and `--dev` has changed what it changes; neither needs the other's fields after that.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The settings for `core`. Its pod and the steps of its memory are known when the template is.
    pub spec: GroupSpec,
    pub source: PodSource,
    pub pod: PodSettings,
    pub shorthands: Shorthands,
    /// The pods on whose nodes the executors are placed.
    pub beside: Option<Beside>,
    /// The claims that each slot has.
    pub volumes: Vec<SlotVolume>,
    /// What posse adds to the pod's security fields. None: to a pod of an image alone, everything
    /// that the level `restricted` requires except a user.
    pub security: Option<Security>,
    /// The command that sets the target.
    pub scale: Option<ScaleCommand>,
    /// What is different under `posse run --dev`.
    pub dev: DevOverlay,
}

const SCALE_DOWN: [(&str, ScaleDown); 2] =
    [(ScaleDown::Any.as_str(), ScaleDown::Any), (ScaleDown::Pending.as_str(), ScaleDown::Pending)];
const REPLACE: [(&str, Replace); 2] =
    [("terminating", Replace::Terminating), ("gone", Replace::Gone)];
const SLOTS: [(&str, SlotPolicy); 2] =
    [("lowest", SlotPolicy::Lowest), ("stable", SlotPolicy::Stable)];
const ON_LOSS: [(&str, OnLoss); 2] = [("executor", OnLoss::Executor), ("group", OnLoss::Group)];
const RESTART: [(&str, Restart); 3] = [
    (Restart::Always.as_str(), Restart::Always),
    (Restart::OnFailure.as_str(), Restart::OnFailure),
    (Restart::Never.as_str(), Restart::Never),
];
/// `protect`.
const PROTECT: [(&str, Protect); 3] =
    [("off", Protect::Off), ("busy", Protect::Busy), ("always", Protect::Always)];
const SECURITY: [(&str, Option<Security>); 2] =
    [("baseline", Some(Security::Baseline)), ("restricted", Some(Security::Restricted))];

/// The keys of `executors`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("group", Name, Is("default"), "The group's name. Two groups need two names."),
    key("count", Integer, told("1, or `min` if that is larger", "2"),
        "The target at the start, at most 1,000,000, as `min` and `max`."),
    key("min", Integer, Is("0"), "The lowest target that a call can set."),
    key("max", Integer, none("100"), "The highest target that a call can set."),
    key("template", Path, none("executor.yaml"), "A file with a v1 Pod or PodTemplate."),
    key("pod", Map, none("{apiVersion: v1, kind: Pod, spec: {containers: [{name: worker, image: busybox}]}}"),
        "The same as `template`, inline."),
    key("container", Text, told("kubectl's default container", "worker"),
        "The main container: when it ends, the executor has ended."),
    key("image", Text, none("busybox"),
        "The main container's image. `image` to `resources` override the template's main container."),
    key("command", List, told("the template's, else the image's", "[worker]"),
        "The main container's command."),
    key("args", List,
        told("the template's, else the image's",
             "['--driver={{DRIVER_HOST}}:{{DRIVER_PORT}}', '--id={{EXECUTOR_ID}}', '--rank={{SLOT}}']"),
        "The main container's arguments."),
    ENV_KEY, CPU, MEMORY, RESOURCES,
    key("oom_growth", GROWTH, told("off", "{factor: 1.25, grow_at: 0.9}"),
        "The memory factor for the replacement after an OOM kill. Needs `memory_max`. See [oom_growth](#oom_growth).").beta(),
    key("memory_max", Amount, told("required with `oom_growth`", "1Gi"), "The upper bound of this growth.").beta(),
    key("scale_down", Words(&words(&SCALE_DOWN)), Is("any"),
        "Which executors a lower target ends: any, or only those that do not run yet."),
    key("replace", Words(&words(&REPLACE)), Is("terminating"),
        "When posse replaces a lost executor: as soon as its pod terminates, or when its pod is gone. With \
         `gone`, replacements do not wait for executors that end because the target was lowered."),
    key("slots", Words(&words(&SLOTS)), Is("lowest"),
        "Which slot a new executor gets. `stable`: the slots are always 0 to target - 1. See [slots](#slots)."),
    key("on_loss", Words(&words(&ON_LOSS)), Is("executor"),
        "What the loss of an executor ends: this one alone, or all executors of the group. See \
         [on_loss](#on_loss)."),
    key("restart", Words(&words(&RESTART)), Is("always"),
        "Whether posse replaces an executor that ends by itself. See [work that ends](#work-that-ends)."),
    key("completions", With(&Integer, " from 1"), none("100"),
        "How many executors must end with exit code 0. Needs `restart: on-failure` or `never`."),
    key("beside", Map, none("{labels: {app: shuffle}, required: true}"),
        "Places the executors on the nodes where certain pods run. See [beside](#beside).").beta(),
    key("credentials", With(&List, " of names"), told("all", "[hdfs]"),
        "Which entries of [credentials](#credentials) the executors get. `[]`: none.").beta(),
    key("volumes_per_slot", Maps,
        none("[{name: scratch, size: 10Gi, storage_class: fast, access: ReadWriteOnce, mount: /data, keep: run, \
              labels: {team: a}, annotations: {}}]"),
        "Persistent volumes that outlive an executor. See [volumes_per_slot](#volumes_per_slot).").beta(),
    key("security", Words(&words(&SECURITY)), none("restricted"),
        "The security fields that posse adds to the pod. See [security](#security)."),
    key("max_age", Duration, none("12h"), "The kubelet ends an executor of this age, and posse replaces it."),
    key("scale", Map,
        none("{command: [redis-cli, llen, q], per_executor: 10, every: 2s, idle_after: 60s}"),
        "A command that prints the length of a queue sets the target. See [scale](#scale).").beta(),
    key("dev", Map, none("{command: [./worker.sh], env: {}}"),
        "What is different with `posse run --dev`. See [dev](#dev).").experimental(),
    QUEUE,
    key("queue_group", Boolean, Is("false"),
        "Whether the queue admits all `count` executors together or none. See [queue](#all-or-nothing).").beta(),
    key("gang", Map, none("{min: 2, kind: none, timeout: 5m}"),
        "Executors of which fewer than `min` are of no use. See [gang](#gang).").beta(),
    key("protect", Words(&words(&PROTECT)), Is("off"),
        "Which executors autoscalers leave alone: none, those that have work, or all. See [protect](#protect).").beta(),
    key("decommission", Map, none("{after: 30s, label: example.com/leaving=true, signal: TERM}"),
        "Gives executors time to finish. See [decommission](#decommission)."),
];

/// The key that the application has too.
pub(super) const QUEUE: Key = key(
    "queue",
    Name,
    told("the application's", "team-a"),
    "The LocalQueue of Kueue that admits the executors. See [queue](#queue).",
)
.beta();

// The keys that a driver's pod has too.
pub(super) const ENV_KEY: Key =
    key("env", ENV, none("{LOG_LEVEL: info}"), "Environment variables.");
pub(super) const CPU: Key = key("cpu", Amount, none("500m"), "CPU request and limit.");
pub(super) const MEMORY: Key = key("memory", Amount, none("1Gi"), "Memory request and limit.");
pub(super) const RESOURCES: Key = key(
    "resources",
    With(&Map, " with `requests` and `limits`"),
    none("{requests: {cpu: 100m}, limits: {nvidia.com/gpu: 1}}"),
    "Requests and limits of any resource, as in a container.",
);

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
            spec: GroupSpec {
                name: GroupName::from("default"),
                target: 1,
                from_file: true,
                ..GroupSpec::default()
            },
            source: PodSource::Shorthands,
            pod: PodSettings::default(),
            shorthands: Shorthands::default(),
            beside: None,
            volumes: Vec::new(),
            security: None,
            scale: None,
            dev: DevOverlay::default(),
        }
    }
}

/// `executors`; `credentials`: those that the groups can name.
pub(super) fn groups(
    top: &Section<'_>,
    credentials: &[Credentials],
) -> Result<Vec<Group>, ConfigError> {
    let queue = queue(top)?;
    let mut groups: Vec<Group> = Vec::new();
    for (i, node) in top.list("executors")?.unwrap_or_default().iter().enumerate() {
        let section = Section::new(top.file, format!("executors[{i}]"), node)?;
        let group = group(&section, credentials, queue.clone())?;
        if let Some(other) = groups.iter().position(|other| other.spec.name == group.spec.name) {
            let message = format!(
                "`{}` is already the name of executors[{other}]; each group needs its own",
                group.spec.name
            );
            return Err(section.error("group", message));
        }
        groups.push(group);
    }
    Ok(groups)
}

fn group(
    section: &Section<'_>,
    credentials: &[Credentials],
    app_queue: Option<String>,
) -> Result<Group, ConfigError> {
    only(section, KEYS)?;
    let Group { spec: default, .. } = Group::default();
    let name = checked(section, "group", names::group_name_error)?;
    let (target, min, max) = counts(section)?;
    let restart = section.word("restart", &RESTART, default.restart)?;
    let volumes = volumes::volumes(section)?;
    let scale = scale(section, restart)?;
    let replace = section.word("replace", &REPLACE, default.replace)?;
    let slots = section.word("slots", &SLOTS, default.slots)?;
    let queue = queue(section)?.or(app_queue);
    let (together, gang) = gang(section, target, max, queue.as_deref())?;
    let mut spec = GroupSpec {
        name: name.map_or(default.name, |name| GroupName::from(name.as_str())),
        target,
        min,
        max,
        scale_down: section.word("scale_down", &SCALE_DOWN, default.scale_down)?,
        replace,
        slots,
        on_loss: section.word("on_loss", &ON_LOSS, default.on_loss)?,
        restart,
        completions: completions(section, restart)?,
        together: if section.flag("queue_group")?.unwrap_or(false) {
            Together::Queue
        } else {
            together
        },
        protect: section.word("protect", &PROTECT, default.protect)?,
        decommission: decommission(section)?,
        credentials: credentials_of(section, credentials)?,
        is_scaled: scale.is_some(),
        ..default
    };
    let written_replace = section.get("replace").map(|_| replace);
    let written_slots = section.get("slots").map(|_| slots);
    if let Some((key, what)) = spec.conflict(written_replace, written_slots) {
        return Err(section.error(key, what));
    }
    // The queue of another scheduler is none of Kueue's.
    let is_of_gang = gang.as_ref().is_some_and(|gang| gang.queue.is_some());
    let queue = queue.filter(|_| !is_of_gang);
    let queue_group = (spec.together == Together::Queue).then_some(target);
    if queue_group.is_some() {
        queue_group::check(section, &spec, queue.is_some())?;
        (spec.min, spec.max) = (target, Some(target));
    }
    let is_protected = spec.protect == Protect::Always;
    Ok(Group {
        spec,
        source: source(section)?,
        pod: PodSettings { queue, queue_group, gang, is_protected, ..pod_settings(section)? },
        shorthands: shorthands(section)?,
        beside: beside::beside(section)?,
        volumes,
        security: section.word("security", &SECURITY, None)?,
        scale,
        dev: dev(section)?,
    })
}

/// What a call says of a group beside its template: the keys have the values of a file.
pub(crate) fn of_call(
    section: &Section<'_>,
) -> Result<(GroupChange, Option<Beside>, Vec<SlotVolume>), ConfigError> {
    let number = |key: &str| section.number_up_to(key, EXECUTORS_MAX);
    let change = GroupChange {
        call: BTreeMap::new(),
        pod: Arc::default(),
        target: number("target")?,
        min: number("min")?,
        max: number("max")?,
        scale_down: section.chosen("scale_down", &SCALE_DOWN)?,
        replace: section.chosen("replace", &REPLACE)?,
        slots: section.chosen("slots", &SLOTS)?,
        on_loss: section.chosen("on_loss", &ON_LOSS)?,
        restart: section.chosen("restart", &RESTART)?,
        completions: number("completions")?,
        decommission: decommission(section)?,
    };
    Ok((change, beside::beside(section)?, volumes::volumes(section)?))
}

fn pod_settings(section: &Section<'_>) -> Result<PodSettings, ConfigError> {
    let max_age_s = section.duration_ms("max_age", 0)?.div_ceil(1_000);
    Ok(PodSettings {
        container: section.text("container")?,
        memory_scaling: nodes_and_memory::memory_scaling(section)?,
        max_age_s: Some(max_age_s).filter(|s| *s > 0),
        ..PodSettings::default()
    })
}

/// `queue`.
pub(super) fn queue(section: &Section<'_>) -> Result<Option<String>, ConfigError> {
    checked(section, "queue", names::queue_error)
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
    let number = |key: &str| section.number_up_to(key, EXECUTORS_MAX);
    let min = number("min")?.unwrap_or(0);
    let max = number("max")?;
    // A queue's length comes before long, and it may be 0.
    let usual = if section.get("scale").is_some() { 0 } else { 1 };
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
    match completions_error(n, restart) {
        Some(error) => Err(section.error("completions", error)),
        None => Ok(Some(n)),
    }
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
        command: section.words("command")?,
        args: section.words("args")?,
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
        let part = inner.section(part)?;
        for entry in part.entries {
            if entry.value.scalar().is_none_or(|text| Quantity::parse(&text).is_none()) {
                let wrong = part.expected(&entry.key, &entry.value, "an amount like 1 or 4Gi");
                return Err(ConfigError { at: entry.at, ..wrong });
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
