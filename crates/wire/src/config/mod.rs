//! The format of posse.yaml: keys, defaults, checks. `cli` reads the file and applies flags on top.

use std::path::PathBuf;

use crate::config::control_addr::ControlAddr;
use crate::config::listen_addr::ListenAddr;
use crate::config::section::{ConfigError, Section, word};
use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::log::LOG_LINES_MAX;
use crate::names;
use crate::pod::credential_mounts::Credentials;
use posse_core::model::settings::{Limit, Policy};
use posse_encoding::yaml::{Kind, Node, YamlError};

pub use driver::{Driver, DriverKind, DriverPod, PortChoice, PosseImage, Ready, host_error};
pub(crate) use group::of_call;
pub use group::{Group, PodSource, cpu_error};
use key::Preset::Is;
use key::Type::{Boolean, Duration, Integer, Map, Maps, Name, Text, With};
pub use key::{Key, Preset, Stability, Type};
use key::{key, none, preset_ms, told};
pub use keys::SECTIONS;
use unknown_key::{map_at, only};

/// Upper limit of concurrent creates: each takes a connection and a thread.
pub const IN_FLIGHT_LIMIT: u32 = 256;

/// The keys at the top.
#[rustfmt::skip]
const TOP: &[Key] = &[
    key("app", Name,
        told("made from the driver's file name, else from the first group's command or image", "my-app"),
        "The application: pods are named `<app>-<instance>-exec-<id>`. Starts with a letter."),
    key("namespace", Text, told("the service account's, else the context's", "analytics"),
        "The namespace of the executors."),
    common_metadata::LABELS, common_metadata::ANNOTATIONS,
    key("driver", Map, none(""), "The program that uses the executors. See [driver](#driver)."),
    key("executors", Maps, none(""),
        "The groups of executors. With `executors: []` the driver creates groups by the [control \
         API](CONTROL_API.md#groups). See [executors](#executors)."),
    key("credentials", Maps,
        none("[{name: hdfs, command: [kinit, -k, -t, /keytabs/me.keytab, -c, '{{DIR}}/ccache', me], every: 8h, \
              expires: [./expires.sh, '{{DIR}}'], timeout: 60s, secret: my-app-hdfs, \
              mount: /var/posse/credentials/hdfs, env: {KRB5CCNAME: 'FILE:{{MOUNT}}/ccache'}}]"),
        "Credentials that posse renews for the driver and the executors. See [credentials](#credentials).").beta(),
    key("allocation", Map, none(""),
        "How posse creates executors and how long it waits. See [allocation](#allocation)."),
    key("bad_nodes", nodes_and_memory::OFF, none("off"),
        "When new executors avoid a node. `off` switches this off. See [bad_nodes](#bad_nodes)."),
    key("failures", Map, none(""),
        "How many losses end the run, and which failed pods stay. See [failures](#failures)."),
    key("heartbeat", Map, none(""), "When a silent executor is lost. See [heartbeat](#heartbeat)."),
    key("shutdown", Map, none(""), "The end of a run. See [shutdown](#shutdown)."),
    key("lease", Boolean, Is("true"),
        "A Lease keeps a second posse from running the same instance. It needs the permissions to get, create and \
         update leases."),
    key("exclusive", Boolean, told("`false`; `posse submit` sets `true`", "true"),
        "If `true`, no two drivers of this application run at once, whatever their instances. Needs the same \
         permissions as `lease`."),
    key("control", CONTROL, told("a unix socket in a private folder", "unix:/run/posse/my-app.sock"),
        "Where the control API listens: `unix:PATH`, or `HOST:PORT` on loopback, which needs \
         `--control-token-file`."),
    key("metrics", LISTEN, told("off; `posse submit` listens at `:9760`", "127.0.0.1:9760"),
        "Where posse serves `/metrics`, `/healthz` and `/readyz`, without a token: `HOST:PORT` with an IP \
         address, or `:PORT` for all addresses of the machine. See [MONITORING.md](MONITORING.md)."),
    key("queue", Name, none("team-a"),
        "The LocalQueue of Kueue that admits the driver of `posse submit` and the executors. See [queue](#queue).").beta(),
    key("task_output", OUTPUT,
        told("beside the file of `--events`, as `FILE.output`; else in the pod of `posse submit`, as `/run/posse/output`; \
              else off", "/data/output"),
        "The folder in which posse keeps the last MiB of the output of each [task](TASKS.md#output) that has ended. A \
         relative path begins at the folder in which posse runs.").beta(),
    key("record", RECORD,
        told("`cluster` for a driver in a pod; with `--instance` a file in the user's state folder; else off", "/data/my-app.record"),
        "Where posse keeps [what a run was told](TASKS.md#the-record) and its pods do not show: tasks and their ends, completions, targets. \
         `cluster`: in ConfigMaps that the driver's Job owns. A path: in this file. `off`: tasks end with posse.").beta(),
    key("task_secrets", Boolean, Is("false"),
        "Tasks have [secret variables](TASKS.md#secrets) or [files](TASKS.md#files): `posse submit --create-rbac` grants the permissions for the \
         Secret `APP-tasks`, and `posse check` looks whether they are there. A run that has them needs no key.").beta(),
    key("page", LISTEN, Is("off"),
        "Where [the page](CONTROL_API.md#the-page) listens: `HOST:PORT` with an IP address, or `:PORT` for all \
         addresses of the machine. Any other than a loopback address needs `--page-token-file`.").beta(),
];

/// The keys of `allocation`.
#[rustfmt::skip]
const ALLOCATION: &[Key] = &[
    key("in_flight_max", With(&Integer, ", at most 256"), Is("32"),
        "Creates under way at once. `0`: the most that posse supports, 256."),
    key("pending_max", Integer, Is("0"),
        "Executors that do not run yet, over all groups. `0`: no limit. Those for which the scheduler finds no node \
         for 2 minutes give way beyond their group's even share. Without a limit, too, at most 100 of a group \
         (without `on_loss: group`) wait for a node, after each 15 s twice as many, and at most 1,000."),
    key("poll_interval", Duration, Is("5m"), "How often posse sends a LIST beside the watch. `0s`: never."),
    key("start_timeout", Duration, Is("10m"),
        "The longest time from the node's assignment to the start of the main container, and half of it from the \
         first failed image pull, also of the driver's pod while `posse submit` waits. `0s`: no limit."),
];

/// The keys of `failures`.
#[rustfmt::skip]
const FAILURES: &[Key] = &[
    key("app", LIMIT, Is("auto"), "Failures of the application itself: exit codes, memory, silence. `auto`: the run also ends when the last six executors of a crash loop, tried one after the other, have failed within a minute."),
    key("cluster", LIMIT, Is("off"), "Losses that the application did not cause: evictions, lost or bad nodes, deletes by others, unwanted ends with code 0."),
    key("start", LIMIT, Is("auto"),
        "Executors that did not start: bad images, bad configuration, time-outs. `auto`: the run ends if no executor \
         of a group has ever run, and starts have failed for 15 minutes."),
    key("window", With(&Duration, " above 0s"), Is("1h"), "The time in which posse counts the losses."),
    key("keep_failed", Integer, Is("5"),
        "How many failed pods posse retains for you to look at: the last ones that the application itself ended, \
         also if a side-car still runs in them."),
    key("log_lines", With(&Integer, ", at most 200"), told("0; 20 with `posse run --dev`", "20"),
        "How many last lines of a failed executor's log posse reports as an `executor_log` event. With `--dev`, \
         posse's own log shows the last ten of the first failure of each group. Needs the permission to get \
         `pods/log`."),
];

/// The keys of `heartbeat`.
#[rustfmt::skip]
const HEARTBEAT: &[Key] = &[
    key("timeout", Duration, Is("0s"),
        "posse replaces an executor from which the driver has reported no heartbeat for this time, or, once it has \
         reported others, none at all for this time and 2 minutes at least. `0s`: never. With a `timeout` an executor \
         is ready only when the driver has reported it."),
];

/// The keys of `shutdown`.
#[rustfmt::skip]
const SHUTDOWN: &[Key] = &[
    key("grace", Duration, Is("15s"), "The time that the driver gets to end."),
    key("timeout", Duration, Is("10s"),
        "The time that the executors get to end, and 5 s more for the API server to report it. posse waits longer for \
         a pod that was terminating before with a longer grace period."),
    key("idle_end", Duration, Is("0s"),
        "A run without a driver ends when it has had nothing to do for this time: no open [task](TASKS.md), and no \
         executor of its own. The exit code is 10 if tasks have failed or were skipped, and 0 otherwise. `0s`: it stays.").beta(),
];

const CONTROL: Type =
    Type::Own { page: "address or `off`", expected: "unix:PATH or a loopback HOST:PORT" };
const LISTEN: Type = Type::Own { page: "address or `off`", expected: "HOST:PORT, :PORT or off" };
const OUTPUT: Type = Type::Own { page: "folder or `off`", expected: "a folder or off" };
const RECORD: Type = Type::Own {
    page: "`auto`, `off`, `cluster` or path",
    expected: "auto, off, cluster or a path",
};
const LIMIT: Type =
    Type::Own { page: "`auto`, `off` or integer", expected: "auto, off or a whole number" };

/// The checked content of posse.yaml. Times in milliseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// None: `--app` must give it.
    pub app: Option<String>,
    /// None: the service account's namespace, or the context's.
    pub namespace: Option<String>,
    /// The labels and annotations of every object.
    pub common: CommonMetadata,
    /// The LocalQueue of the driver, and of each group that names none.
    pub queue: Option<String>,
    pub credentials: Vec<Credentials>,
    pub driver: Driver,
    pub executors: Vec<Group>,
    /// Settings for `core`.
    pub policy: Policy,
    /// `failures.log_lines`, if it is set.
    pub log_lines: Option<u32>,
    /// 0: no polling.
    pub poll_interval_ms: u64,
    pub lease: bool,
    /// Only one driver of the application at a time. None: the command that starts it decides.
    pub exclusive: Option<bool>,
    /// How long the driver may take to end.
    pub grace_ms: u64,
    pub control: Control,
    pub metrics: Metrics,
    pub task_output: TaskOutput,
    pub record: Record,
    /// Tasks have secret variables.
    pub task_secrets: bool,
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

/// Where the output of ended tasks is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TaskOutput {
    At(PathBuf),
    /// Nothing is configured: beside the file of events, or in a folder of the driver's pod.
    #[default]
    Default,
    Off,
}

/// Where a run keeps what it was told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Record {
    #[default]
    Auto,
    Cluster,
    File(PathBuf),
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
            common: CommonMetadata::default(),
            queue: None,
            credentials: Vec::new(),
            driver: Driver::default(),
            executors: Vec::new(),
            policy: Policy::default(),
            log_lines: None,
            poll_interval_ms: preset_ms(ALLOCATION, "poll_interval"),
            lease: true,
            exclusive: None,
            grace_ms: preset_ms(SHUTDOWN, "grace"),
            control: Control::Default,
            metrics: Metrics::Default,
            task_output: TaskOutput::Default,
            record: Record::Auto,
            task_secrets: false,
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
        let wrong = |YamlError { at, message }| ConfigError { file: file.to_owned(), at, message };
        let node = Node::read(text).map_err(wrong)?;
        let top = Section::new(file, String::new(), &node)?;
        only(&top, TOP)?;
        let credentials = credentials::credentials(&top)?;
        let mut config = Self {
            app: checked(&top, "app", names::app_name_error)?,
            namespace: checked(&top, "namespace", names::namespace_error)?,
            common: common_metadata::common_metadata(&top)?,
            queue: group::queue(&top)?,
            driver: driver::driver(&top.section("driver")?)?,
            executors: group::groups(&top, &credentials)?,
            credentials,
            lease: top.flag("lease")?.unwrap_or(true),
            exclusive: top.flag("exclusive")?,
            control: control(&top)?,
            metrics: metrics(&top)?,
            task_output: task_output(&top)?,
            record: record(&top)?,
            task_secrets: top.flag("task_secrets")?.unwrap_or(false),
            page: page(&top)?,
            ..Self::default()
        };
        if config.driver.pod.standby > 0 && (!config.lease || config.exclusive == Some(false)) {
            let key = if config.lease { "exclusive" } else { "lease" };
            let message = format!("needs the application's Lease: leave out `{key}: false`");
            return Err(top.section("driver")?.error("standby", message));
        }
        config.read_allocation(&top.section("allocation")?)?;
        config.policy.bad_nodes = nodes_and_memory::bad_nodes(&top)?;
        config.read_failures(&top.section("failures")?)?;
        config.read_heartbeat(&top.section("heartbeat")?)?;
        config.policy.driver_silence_ms = top.section("driver")?.duration_ms("silence", 0)?;
        config.read_shutdown(&top.section("shutdown")?)?;
        Ok(config)
    }

    fn read_allocation(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, ALLOCATION)?;
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
        let together = self.executors.iter().filter_map(|group| group.pod.n_together()).max();
        if let Some(n) = together.filter(|n| (1..*n).contains(&policy.pending_max)) {
            let message = format!(
                "is below {n}, the number of executors of a group that start together: none of them would"
            );
            return Err(section.error("pending_max", message));
        }
        policy.start_timeout_ms = section.duration_ms("start_timeout", policy.start_timeout_ms)?;
        self.poll_interval_ms = section.duration_ms("poll_interval", self.poll_interval_ms)?;
        Ok(())
    }

    fn read_failures(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, FAILURES)?;
        let policy = &mut self.policy;
        policy.failures_app = limit(section, "app", policy.failures_app)?;
        policy.failures_cluster = limit(section, "cluster", policy.failures_cluster)?;
        policy.failures_start = limit(section, "start", policy.failures_start)?;
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
        only(section, HEARTBEAT)?;
        let policy = &mut self.policy;
        policy.heartbeat_timeout_ms =
            section.duration_ms("timeout", policy.heartbeat_timeout_ms)?;
        Ok(())
    }

    fn read_shutdown(&mut self, section: &Section<'_>) -> Result<(), ConfigError> {
        only(section, SHUTDOWN)?;
        self.grace_ms = section.duration_ms("grace", self.grace_ms)?;
        self.policy.stop_timeout_ms =
            section.duration_ms("timeout", self.policy.stop_timeout_ms)?;
        self.policy.idle_end_ms = section.duration_ms("idle_end", 0)?;
        Ok(())
    }
}

fn limit(section: &Section<'_>, key: &str, default: Limit) -> Result<Limit, ConfigError> {
    let Some(node) = section.get(key) else { return Ok(default) };
    match (&node.kind, word(node).as_deref()) {
        (_, Some("off")) => Some(Limit::Off),
        (_, Some("auto")) => Some(Limit::Auto),
        (Kind::Number(number), _) => {
            number.as_u64().and_then(|n| u32::try_from(n).ok()).map(Limit::Max)
        }
        _ => None,
    }
    .ok_or_else(|| section.expected(key, node, LIMIT))
}

fn control(top: &Section<'_>) -> Result<Control, ConfigError> {
    let Some(node) = top.get("control") else { return Ok(Control::Default) };
    match word(node).as_deref() {
        Some("off") => Ok(Control::Off),
        Some(text) => {
            ControlAddr::parse(text).map(Control::At).map_err(|why| top.error("control", why))
        }
        None => Err(top.expected("control", node, CONTROL)),
    }
}

fn metrics(top: &Section<'_>) -> Result<Metrics, ConfigError> {
    let Some(node) = top.get("metrics") else { return Ok(Metrics::Default) };
    match word(node) {
        Some(text) => Metrics::parse(&text).map_err(|why| top.error("metrics", why)),
        None => Err(top.expected("metrics", node, LISTEN)),
    }
}

fn task_output(top: &Section<'_>) -> Result<TaskOutput, ConfigError> {
    let Some(node) = top.get("task_output") else { return Ok(TaskOutput::Default) };
    match word(node).as_deref() {
        Some("off") => Ok(TaskOutput::Off),
        Some(path) if !path.is_empty() => Ok(TaskOutput::At(PathBuf::from(path))),
        Some(_) | None => Err(top.expected("task_output", node, OUTPUT)),
    }
}

fn record(top: &Section<'_>) -> Result<Record, ConfigError> {
    let Some(node) = top.get("record") else { return Ok(Record::Auto) };
    match word(node).as_deref() {
        Some("off") => Ok(Record::Off),
        Some("auto") => Ok(Record::Auto),
        Some("cluster") => Ok(Record::Cluster),
        Some(path) if !path.is_empty() => Ok(Record::File(PathBuf::from(path))),
        Some(_) | None => Err(top.expected("record", node, RECORD)),
    }
}

fn page(top: &Section<'_>) -> Result<Option<ListenAddr>, ConfigError> {
    let Some(node) = top.get("page") else { return Ok(None) };
    match word(node).as_deref() {
        Some("off") => Ok(None),
        Some(text) => ListenAddr::parse(text).map(Some).map_err(|why| top.error("page", why)),
        None => Err(top.expected("page", node, LISTEN)),
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

mod beside;
mod common_metadata;
pub mod control_addr;
mod credentials;
mod decommission;
pub mod dev;
mod driver;
pub mod duration;
mod env;
mod gang;
mod group;
mod idle;
mod key;
mod keys;
pub mod listen_addr;
mod nodes_and_memory;
mod pairs;
pub mod polled;
mod queue_group;
pub mod scale;
pub mod section;
pub mod unknown_key;
mod volumes;

#[cfg(test)]
pub(crate) mod tests;
