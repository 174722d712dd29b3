//! The format of posse.yaml: keys, defaults, checks. `cli` reads the file and applies flags on top.

use crate::core::machines::orphan_cleanup::OrphanPolicy;
use crate::core::policy::settings::{FailureLimit, Policy};
use crate::wire::control_addr::ControlAddr;
use crate::wire::duration;
use crate::wire::log::LOG_LINES_MAX;
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};
use crate::wire::yaml::{Kind, Node};

pub use driver::{Driver, DriverKind, DriverPod, Ready, host_error};
pub use group::{Group, PodSource};

/// Upper limit of concurrent creates: each takes a connection and a thread.
pub const IN_FLIGHT_LIMIT: u32 = 256;

/// Documented keys without an implementation, each with the only accepted value (it changes
/// nothing). Remove a line once its key is implemented.
const NOT_BUILT: &[(&str, &str)] = &[("metrics", "off")];

/// All keys by section. `executors` lists the keys of each group.
pub const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "allocation",
            "app",
            "bad_nodes",
            "control",
            "driver",
            "exclusive",
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
    (
        "driver",
        &[
            "annotations",
            "args",
            "command",
            "config_maps",
            "container",
            "cpu",
            "deadline",
            "env",
            "host",
            "image",
            "image_pull_secrets",
            "kind",
            "labels",
            "memory",
            "node_loss_after",
            "node_selector",
            "pod",
            "posse_image",
            "ready",
            "resources",
            "retries",
            "secrets",
            "service_account",
            "silence",
            "template",
        ],
    ),
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
            "max_age",
            "memory",
            "memory_max",
            "min",
            "oom_growth",
            "pod",
            "replace",
            "resources",
            "scale_down",
            "security",
            "sidecar_failure",
            "template",
        ],
    ),
    ("decommission", &["after", "label"]),
    ("failures", &["app", "cluster", "keep_failed", "log_lines", "start", "window"]),
    ("heartbeat", &["first", "reason_wait", "timeout"]),
    ("shutdown", &["grace", "orphans", "timeout"]),
];

/// The checked content of posse.yaml. Times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// None: `--app` must give it.
    pub app: Option<String>,
    /// None: the service account's namespace, or the context's.
    pub namespace: Option<String>,
    pub driver: Driver,
    pub executors: Vec<Group>,
    /// Settings for `core`.
    pub policy: Policy,
    /// 0: no polling.
    pub poll_interval_ms: u64,
    /// 0: no tolerations are added.
    pub node_loss_after_ms: u64,
    pub watch: bool,
    pub lease: bool,
    /// Only one driver of the application at a time. None: the command that starts it decides.
    pub exclusive: Option<bool>,
    /// What to do with executors whose driver is gone.
    pub orphans: OrphanPolicy,
    /// How long the driver may take to end.
    pub grace_ms: u64,
    pub control: Control,
}

/// Address of the control API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// An address from the configuration.
    At(ControlAddr),
    /// A unix socket in the first writable default directory.
    #[default]
    Default,
    /// No control API.
    Off,
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
            exclusive: None,
            orphans: OrphanPolicy::Delete,
            grace_ms: 15_000,
            control: Control::Default,
        }
    }
}

impl Config {
    /// Reads a configuration. `file` is only used in errors.
    ///
    /// # Errors
    /// The first error, with its position.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let node = Node::read(text).map_err(|error| ConfigError::from_yaml(file, error))?;
        let top = Section::new(file, String::new(), &node)?;
        only(&top, "")?;
        let mut config = Self {
            app: checked(&top, "app", names::app_name_error)?,
            namespace: checked(&top, "namespace", names::namespace_error)?,
            driver: driver::driver(&top.section("driver")?)?,
            executors: group::groups(&top)?,
            watch: top.flag("watch", true)?,
            lease: top.flag("lease", true)?,
            exclusive: match top.get("exclusive") {
                Some(_) => Some(top.flag("exclusive", false)?),
                None => None,
            },
            control: control(&top)?,
            ..Self::default()
        };
        config.read_allocation(&top.section("allocation")?)?;
        config.policy.bad_nodes = nodes_and_memory::bad_nodes(&top)?;
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
            // 0 means no limit of its own: the upper limit applies.
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
            return Err(section
                .error("window", "must be longer than 0s; set a budget to `off` to disable it"));
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
        policy.heartbeat_first_ms = section.duration_ms("first", policy.heartbeat_first_ms)?;
        Ok(())
    }

    fn read_shutdown(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, "shutdown")?;
        self.grace_ms = section.duration_ms("grace", self.grace_ms)?;
        self.policy.stop_timeout_ms =
            section.duration_ms("timeout", self.policy.stop_timeout_ms)?;
        let words = [("delete", OrphanPolicy::Delete), ("keep", OrphanPolicy::Keep)];
        self.orphans = section.word("orphans", &words, self.orphans)?;
        Ok(())
    }
}

/// Error text if neither watch nor poll would tell posse about its pods.
pub const WATCH_AND_POLL_OFF: &str =
    "is off, and so is allocation.poll_interval: leave one of the two on";

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

/// A text that must pass `error_in`, which returns what is wrong.
fn checked(
    section: &Section<'_>,
    key: &str,
    error_in: impl FnOnce(&str) -> Option<String>,
) -> Result<Option<String>, ConfigError> {
    let text = section.text(key)?;
    match text.as_deref().and_then(error_in) {
        Some(why) => Err(section.error(key, why)),
        None => Ok(text),
    }
}

/// Rejects keys that `KEYS` does not list for this section, and values that are not implemented.
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
                "{} is not supported by this version yet; leave the key out or set it to {accepted}",
                node.describe()
            );
            return Err(section.error(key, message));
        }
    }
    Ok(())
}

/// Equal values get equal texts: milliseconds for durations, `off` for YAML's false.
fn canonical(text: &str) -> String {
    match (duration::parse_ms(text), text) {
        (Some(ms), _) => ms.to_string(),
        (None, "false" | "no") => "off".to_owned(),
        (None, text) => text.to_owned(),
    }
}

mod driver;
mod group;
mod nodes_and_memory;

#[cfg(test)]
pub(crate) mod tests;
