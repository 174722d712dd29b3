//! Owns the format of posse.yaml: its keys, their defaults and what is wrong with a value. Reads
//! no file itself, and knows no flags: `cli/` lays those over what comes from here.

use std::fmt;

use serde_json::{Value, json};

use crate::core::policy::{Decommission, FailureLimit, Policy, Replace, ScaleDown};
use crate::wire::control_addr::ControlAddr;
use crate::wire::duration;
use crate::wire::log::LOG_LINES_MAX;
use crate::wire::memory::Growth;
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};
use crate::wire::template::Shorthands;
use crate::wire::yaml::{Entry, Kind, Node};

/// The most creates under way at a time; each has a connection and a thread of its own.
pub const IN_FLIGHT_LIMIT: u32 = 256;

/// Keys of the contract whose behaviour is not built yet, each with the one value that is accepted
/// because it changes nothing. Delete a line when its behaviour is there.
const NOT_BUILT: &[(&str, &str)] = &[("metrics", "off")];

/// Every key, by the section it is in; the entries of `executors` are maps alike.
pub const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "allocation",
            "app",
            "bad_nodes",
            "control",
            "driver",
            "executors",
            "failures",
            "heartbeat",
            "lease",
            "metrics",
            "namespace",
            "shutdown",
            "watch",
        ],
    ),
    (
        "allocation",
        &[
            "adopt_hold",
            "image_timeout",
            "in_flight_max",
            "node_loss_after",
            "pending_max",
            "poll_interval",
            "start_timeout",
            "unschedulable_max",
            "unschedulable_timeout",
        ],
    ),
    ("bad_nodes", &["avoid_for", "losses", "share", "window"]),
    ("driver", &["command", "host", "ready", "silence"]),
    (
        "executors",
        &[
            "args",
            "command",
            "container",
            "count",
            "cpu",
            "decommission",
            "env",
            "group",
            "image",
            "max",
            "memory",
            "memory_max",
            "min",
            "oom_growth",
            "pod",
            "replace",
            "scale_down",
            "sidecar_failure",
            "template",
        ],
    ),
    ("decommission", &["after", "label"]),
    ("failures", &["app", "cluster", "keep_failed", "log_lines", "start", "window"]),
    ("heartbeat", &["reason_wait", "timeout"]),
    ("shutdown", &["grace", "timeout"]),
];

/// What posse.yaml says, checked. Times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// None where it has to come from `--app`.
    pub app: Option<String>,
    /// None: the service account's, or the context's.
    pub namespace: Option<String>,
    pub driver: Driver,
    pub executors: Vec<Group>,
    /// What the core is told.
    pub policy: Policy,
    /// 0: no poll.
    pub poll_interval_ms: u64,
    /// 0: no tolerations are added.
    pub node_loss_after_ms: u64,
    pub watch: bool,
    pub lease: bool,
    /// What the driver gets to end in.
    pub grace_ms: u64,
    pub control: Control,
}

/// The driver's part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Driver {
    /// Empty: posse runs without a driver of its own.
    pub command: Vec<String>,
    /// What executors dial; none: `$POD_IP`, or our address towards the API server.
    pub host: Option<String>,
    pub ready: Ready,
}

/// What holds the creates back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// Until the driver says so by the control API.
    Control,
    /// Nothing.
    #[default]
    None,
    /// Until this port of the driver host accepts.
    Tcp(u16),
}

/// Where the control API listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// At an address that was given.
    At(ControlAddr),
    /// A unix socket in the first writable of the usual folders.
    #[default]
    Default,
    /// Nowhere.
    Off,
}

/// One group of executors.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    pub name: String,
    pub count: u32,
    pub min: u32,
    pub max: Option<u32>,
    pub source: PodSource,
    /// Whose end decides; none: the first.
    pub container: Option<String>,
    pub shorthands: Shorthands,
    pub scale_down: ScaleDown,
    pub replace: Replace,
    /// Any other container's failure is the executor's end, too.
    pub fails_with_sidecars: bool,
    /// How memory grows after an executor ran out of it.
    pub growth: Option<Growth>,
    pub decommission: Option<Decommission>,
}

/// Where a group's pod comes from.
#[derive(Clone, PartialEq)]
pub enum PodSource {
    /// A file, relative to the configuration's folder.
    File(String),
    /// `pod:` in the configuration.
    Inline(Value),
    /// Made from the shorthands alone.
    Shorthands,
}

impl fmt::Debug for PodSource {
    /// Without the pod: its environment may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Inline(_) => f.write_str("Inline(..)"),
            Self::Shorthands => f.write_str("Shorthands"),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            app: None,
            namespace: None,
            driver: Driver::default(),
            executors: Vec::new(),
            policy: Policy::default(),
            poll_interval_ms: 5 * 60_000,
            node_loss_after_ms: 60_000,
            watch: true,
            lease: true,
            grace_ms: 15_000,
            control: Control::Default,
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
            growth: None,
            decommission: None,
        }
    }
}

impl Config {
    /// Reads a configuration. `file` is only named in errors.
    ///
    /// # Errors
    /// The first mistake, with its place.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let node = Node::read(text).map_err(|mistake| ConfigError::from_mistake(file, mistake))?;
        let top = Section::new(file, String::new(), &node)?;
        only(&top, "")?;
        let mut config = Self {
            app: checked(&top, "app", names::app_mistake)?,
            namespace: checked(&top, "namespace", names::namespace_mistake)?,
            driver: driver(&top.section("driver")?)?,
            executors: groups(&top)?,
            watch: top.flag("watch", true)?,
            lease: top.flag("lease", true)?,
            control: control(&top)?,
            ..Self::default()
        };
        config.read_allocation(&top.section("allocation")?)?;
        config.policy.bad_nodes = trouble::bad_nodes(&top)?;
        config.read_failures(&top.section("failures")?)?;
        config.read_heartbeat(&top.section("heartbeat")?)?;
        config.policy.driver_silence_ms = top.section("driver")?.duration_ms("silence", 0)?;
        config.read_shutdown(&top.section("shutdown")?)?;
        if !config.watch && config.poll_interval_ms == 0 {
            return Err(top.error("watch", WATCH_AND_POLL_OFF));
        }
        Ok(config)
    }

    fn read_allocation(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, "allocation")?;
        let policy = &mut self.policy;
        policy.in_flight_max = match section.number("in_flight_max")? {
            None => policy.in_flight_max,
            // Without a limit of its own: as many as there can be.
            Some(0) => IN_FLIGHT_LIMIT,
            Some(n @ 1..=IN_FLIGHT_LIMIT) => n,
            Some(n) => {
                let message = format!("{n} is above {IN_FLIGHT_LIMIT}, the most that is supported");
                return Err(section.error("in_flight_max", message));
            }
        };
        policy.pending_max = section.number("pending_max")?.unwrap_or(policy.pending_max);
        policy.unschedulable_max =
            section.number("unschedulable_max")?.unwrap_or(policy.unschedulable_max);
        policy.start_timeout_ms = section.duration_ms("start_timeout", policy.start_timeout_ms)?;
        policy.image_timeout_ms = section.duration_ms("image_timeout", policy.image_timeout_ms)?;
        policy.unschedulable_timeout_ms =
            section.duration_ms("unschedulable_timeout", policy.unschedulable_timeout_ms)?;
        policy.adopt_hold_ms = section.duration_ms("adopt_hold", policy.adopt_hold_ms)?;
        self.poll_interval_ms = section.duration_ms("poll_interval", self.poll_interval_ms)?;
        self.node_loss_after_ms =
            section.duration_ms("node_loss_after", self.node_loss_after_ms)?;
        Ok(())
    }

    fn read_failures(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, "failures")?;
        let policy = &mut self.policy;
        policy.failures_app = failure_limit(section, "app", policy.failures_app)?;
        policy.failures_cluster = failure_limit(section, "cluster", policy.failures_cluster)?;
        policy.failures_start = failure_limit(section, "start", policy.failures_start)?;
        policy.failures_window_ms = section.duration_ms("window", policy.failures_window_ms)?;
        if policy.failures_window_ms == 0 {
            return Err(section.error("window", "has to be longer than 0s; `off` ends a budget"));
        }
        policy.keep_failed = section.number("keep_failed")?.unwrap_or(policy.keep_failed);
        policy.log_lines = section.number("log_lines")?.unwrap_or(policy.log_lines);
        if policy.log_lines > LOG_LINES_MAX {
            let message = format!(
                "{} is above {LOG_LINES_MAX}, the most that is supported",
                policy.log_lines
            );
            return Err(section.error("log_lines", message));
        }
        Ok(())
    }

    fn read_heartbeat(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, "heartbeat")?;
        let policy = &mut self.policy;
        policy.reason_wait_ms = section.duration_ms("reason_wait", policy.reason_wait_ms)?;
        policy.heartbeat_timeout_ms =
            section.duration_ms("timeout", policy.heartbeat_timeout_ms)?;
        Ok(())
    }

    fn read_shutdown(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, "shutdown")?;
        self.grace_ms = section.duration_ms("grace", self.grace_ms)?;
        self.policy.stop_timeout_ms =
            section.duration_ms("timeout", self.policy.stop_timeout_ms)?;
        Ok(())
    }
}

/// Said where nothing would tell posse what became of its pods.
pub const WATCH_AND_POLL_OFF: &str =
    "is off, and so is allocation.poll_interval: leave one of the two on";

fn driver(section: &Section<'_>) -> Result<Driver, ConfigError> {
    only(section, "driver")?;
    let ready = match section.text("ready")? {
        None => Ready::None,
        Some(text) => match (text.as_str(), text.strip_prefix("tcp:")) {
            ("none", _) => Ready::None,
            ("control", _) => Ready::Control,
            (_, Some(port)) if port.parse::<u16>().is_ok_and(|port| port > 0) => {
                Ready::Tcp(port.parse().expect("it was parsed a line above"))
            }
            _ => {
                let message = format!("expected none, tcp:PORT or control, found `{text}`");
                return Err(section.error("ready", message));
            }
        },
    };
    let host = checked(section, "host", host_mistake)?;
    Ok(Driver { command: section.texts("command")?.unwrap_or_default(), host, ready })
}

/// What is wrong with a host that executors are to dial.
#[must_use]
pub fn host_mistake(host: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let sound = !host.is_empty() && host.len() <= 255 && host.chars().all(is_allowed);
    (!sound).then(|| format!("`{host}` is not a host name or an address"))
}

fn groups(top: &Section<'_>) -> Result<Vec<Group>, ConfigError> {
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
    let name = checked(section, "group", names::group_mistake)?.unwrap_or(default.name);
    let min = section.number("min")?.unwrap_or(default.min);
    let max = section.number("max")?;
    let count = section.number("count")?.unwrap_or_else(|| default.count.max(min));
    if count < min {
        return Err(section.error("count", format_args!("{count} is below min, which is {min}")));
    }
    if let Some(max) = max.filter(|max| count > *max) {
        return Err(section.error("count", format_args!("{count} is above max, which is {max}")));
    }
    let source = match (section.text("template")?, section.json_map("pod")?) {
        (Some(_), Some(_)) => return Err(section.error("pod", "give either pod or template")),
        (Some(path), None) => PodSource::File(path),
        (None, Some(pod)) => PodSource::Inline(pod),
        (None, None) => PodSource::Shorthands,
    };
    Ok(Group {
        name,
        count,
        min,
        max,
        source,
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
        growth: trouble::growth(section)?,
        decommission: decommission(section)?,
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
        let message = "has to be longer than 0s: the time that a running executor gets to end";
        return Err(section.error("after", message));
    }
    let label = checked(&section, "label", names::label_mistake)?;
    let label = label.map(|text| {
        let (key, value) = text.split_once('=').unwrap_or((&text, ""));
        (key.to_owned(), value.to_owned())
    });
    Ok(Some(Decommission { after_ms, label }))
}

fn shorthands(section: &Section<'_>) -> Result<Shorthands, ConfigError> {
    Ok(Shorthands {
        image: section.text("image")?,
        command: section.texts("command")?,
        args: section.texts("args")?,
        env: env(section)?,
        cpu: checked(section, "cpu", cpu_mistake)?,
        memory: checked(section, "memory", memory_mistake)?,
    })
}

/// `env` is a map of NAME: value, or a list as Kubernetes has it.
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

fn cpu_mistake(text: &str) -> Option<String> {
    let number = text.strip_suffix('m').unwrap_or(text);
    (!is_decimal(number))
        .then(|| format!("expected a number of CPUs like 2, 0.5 or 500m, found `{text}`"))
}

fn memory_mistake(text: &str) -> Option<String> {
    const UNITS: [&str; 12] = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "k", "M", "G", "T", "P", "E"];
    let number = UNITS.iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
    (!is_decimal(number)).then(|| {
        // Kubernetes reads `512m` as half a byte.
        let hint = match text.strip_suffix(['m', 'g']) {
            Some(number) if is_decimal(number) => {
                let unit = if text.ends_with('m') { "Mi" } else { "Gi" };
                format!("; did you mean {number}{unit}")
            }
            Some(_) | None => String::new(),
        };
        format!("expected an amount of memory like 512Mi or 2Gi, found `{text}`{hint}")
    })
}

/// True for digits with at most one point among them.
fn is_decimal(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    [whole, fraction]
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit()))
}

fn failure_limit(
    section: &Section<'_>,
    key: &str,
    default: FailureLimit,
) -> Result<FailureLimit, ConfigError> {
    let Some(node) = section.get(key) else { return Ok(default) };
    match (&node.kind, node.scalar().as_deref()) {
        // YAML 1.1 reads a bare `off` as false.
        (Kind::Bool(false), _) | (_, Some("off")) => Some(FailureLimit::Off),
        (_, Some("auto")) => Some(FailureLimit::Auto),
        (Kind::Number(number), _) => {
            number.as_u64().and_then(|n| u32::try_from(n).ok()).map(FailureLimit::Max)
        }
        _ => None,
    }
    .ok_or_else(|| section.expected(key, node, "auto, off or a whole number"))
}

fn control(top: &Section<'_>) -> Result<Control, ConfigError> {
    let Some(node) = top.get("control") else { return Ok(Control::Default) };
    match (&node.kind, node.scalar()) {
        (Kind::Bool(false), _) => Ok(Control::Off),
        (_, Some(text)) if text == "off" => Ok(Control::Off),
        (_, Some(text)) => {
            ControlAddr::parse(&text).map(Control::At).map_err(|why| top.error("control", why))
        }
        (_, None) => Err(top.expected("control", node, "unix:PATH or a loopback HOST:PORT")),
    }
}

/// A text that has to pass a check of its own.
fn checked(
    section: &Section<'_>,
    key: &str,
    mistake: impl FnOnce(&str) -> Option<String>,
) -> Result<Option<String>, ConfigError> {
    let text = section.text(key)?;
    match text.as_deref().and_then(mistake) {
        Some(why) => Err(section.error(key, why)),
        None => Ok(text),
    }
}

/// Refuses keys that `KEYS` does not have for this section, and values that are not built yet.
fn only(section: &Section<'_>, name: &str) -> Result<(), ConfigError> {
    let found = KEYS.iter().find(|(section, _)| *section == name);
    let (_, known) = found.expect("every section has a line in KEYS");
    section.only(known)?;
    for key in *known {
        let path = section.path_of(key);
        let Some((_, accepted)) = NOT_BUILT.iter().find(|(not_built, _)| *not_built == path) else {
            continue;
        };
        let Some(node) = section.get(key) else { continue };
        if node.scalar().map(|text| canonical(&text)) != Some(canonical(accepted)) {
            let message = format!(
                "{} is not supported by this version yet; leave the key out or say {accepted}",
                node.describe()
            );
            return Err(section.error(key, message));
        }
    }
    Ok(())
}

/// One spelling for equal values: milliseconds for durations, `off` for YAML's false.
fn canonical(text: &str) -> String {
    match (duration::parse_ms(text), text) {
        (Some(ms), _) => ms.to_string(),
        (None, "false" | "no") => "off".to_owned(),
        (None, text) => text.to_owned(),
    }
}

mod trouble;

#[cfg(test)]
pub(in crate::wire) mod tests;
