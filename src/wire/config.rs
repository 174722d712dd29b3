//! The format of posse.yaml: keys, defaults, checks. `cli` reads the file and applies flags on top.

use serde_json::{Value, json};

use crate::core::machines::orphan_cleanup::OrphanPolicy;
use crate::core::policy::settings::{FailureLimit, Policy};
use crate::wire::control_addr::ControlAddr;
use crate::wire::credentials::Credentials;
use crate::wire::listen_addr::ListenAddr;
use crate::wire::log::LOG_LINES_MAX;
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};
use crate::wire::yaml::{Kind, Node};

pub use driver::{Driver, DriverKind, DriverPod, PortChoice, Ready, host_error};
pub use group::{Group, PodSource, cpu_error};
pub use keys::KEYS;
use keys::only;

/// Upper limit of concurrent creates: each takes a connection and a thread.
pub const IN_FLIGHT_LIMIT: u32 = 256;

/// The checked content of posse.yaml. Times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// None: `--app` must give it.
    pub app: Option<String>,
    /// None: the service account's namespace, or the context's.
    pub namespace: Option<String>,
    pub credentials: Vec<Credentials>,
    pub driver: Driver,
    pub executors: Vec<Group>,
    /// Settings for `core`.
    pub policy: Policy,
    /// `failures.log_lines`, if it is set.
    pub log_lines: Option<u32>,
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
    pub metrics: Metrics,
    /// Write Kubernetes Events about the driver's pod, if there is one.
    pub kubernetes_events: bool,
    /// Where the page is served. None: nowhere but on a control address HOST:PORT.
    pub page: Option<ListenAddr>,
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

/// Where scrapes and probes are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Metrics {
    At(ListenAddr),
    /// Nothing is configured: off, unless `posse submit` starts the run.
    #[default]
    Default,
    Off,
}

impl Metrics {
    /// Reads an address or `off`.
    ///
    /// # Errors
    /// What is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            text => ListenAddr::parse(text).map(Self::At),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            app: None,
            namespace: None,
            credentials: Vec::new(),
            driver: Driver::default(),
            executors: Vec::new(),
            policy: Policy::default(),
            log_lines: None,
            poll_interval_ms: 5 * 60_000,
            node_loss_after_ms: 60_000,
            watch: true,
            lease: true,
            exclusive: None,
            orphans: OrphanPolicy::Delete,
            grace_ms: 15_000,
            control: Control::Default,
            metrics: Metrics::Default,
            kubernetes_events: true,
            page: None,
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
        let credentials = credentials::credentials(&top)?;
        let mut config = Self {
            app: checked(&top, "app", names::app_name_error)?,
            namespace: checked(&top, "namespace", names::namespace_error)?,
            driver: driver::driver(&top.section("driver")?)?,
            executors: group::groups(&top, &credentials)?,
            credentials,
            watch: top.flag("watch", true)?,
            lease: top.flag("lease", true)?,
            exclusive: match top.get("exclusive") {
                Some(_) => Some(top.flag("exclusive", false)?),
                None => None,
            },
            control: control(&top)?,
            metrics: metrics(&top)?,
            kubernetes_events: top.flag("kubernetes_events", true)?,
            page: page(&top)?,
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
        self.log_lines = section.number("log_lines")?;
        policy.log_lines = self.log_lines.unwrap_or(policy.log_lines);
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

fn metrics(top: &Section<'_>) -> Result<Metrics, ConfigError> {
    let Some(node) = top.get("metrics") else { return Ok(Metrics::Default) };
    match (&node.kind, node.scalar()) {
        (Kind::Bool(false), _) => Ok(Metrics::Off),
        (_, Some(text)) => Metrics::parse(&text).map_err(|why| top.error("metrics", why)),
        (_, None) => Err(top.expected("metrics", node, "HOST:PORT, :PORT or off")),
    }
}

fn page(top: &Section<'_>) -> Result<Option<ListenAddr>, ConfigError> {
    let Some(node) = top.get("page") else { return Ok(None) };
    match (&node.kind, node.scalar()) {
        (Kind::Bool(false), _) => Ok(None),
        (_, Some(text)) if text == "off" => Ok(None),
        (_, Some(text)) => ListenAddr::parse(&text).map(Some).map_err(|why| top.error("page", why)),
        (_, None) => Err(top.expected("page", node, "HOST:PORT, :PORT or off")),
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

/// Reads the value of a group's key from the body of a call. The place of an error is one of the text
/// that is made of it.
fn of_json<T>(
    key: &str,
    value: &Value,
    read: impl FnOnce(&Section<'_>) -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    let text = json!({ key: value }).to_string();
    let node = Node::read(&text).map_err(|error| ConfigError::from_yaml("", error))?;
    read(&Section::new("", String::new(), &node)?)
}

mod beside;
mod credentials;
mod decommission;
pub mod dev;
mod driver;
mod env;
mod group;
mod keys;
mod nodes_and_memory;
mod pairs;
pub mod scale;
mod volumes;

pub use decommission::from_json as decommission_from_json;
pub use volumes::from_json as volumes_from_json;

#[cfg(test)]
pub(crate) mod tests;
