//! Owns the keys of `driver`: what the driver is, where executors find it, what holds them back, and
//! the pod that `posse submit` puts it into.

use crate::wire::config::group::{self, PodSource};
use crate::wire::config::{checked, only};
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};
use crate::wire::template::Shorthands;
use crate::wire::yaml::Kind as NodeKind;

/// How often a failed driver is tried again where nobody says otherwise.
const RETRIES_DEFAULT: u32 = 3;

/// The driver's part of posse.yaml.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// The program and its arguments. Empty: posse runs without a driver of its own.
    pub command: Vec<String>,
    /// What executors dial; none: `$POD_IP`, or our address towards the API server.
    pub host: Option<String>,
    pub ready: Ready,
    /// Where `posse submit` puts it; nothing else looks at this.
    pub pod: DriverPod,
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

/// The pod of a driver in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverPod {
    pub kind: DriverKind,
    pub source: PodSource,
    /// The template's container that is the driver's; none: the first.
    pub container: Option<String>,
    /// Image, environment and resources; the command is posse's.
    pub shorthands: Shorthands,
    /// Where posse comes from, where the driver's image does not have it.
    pub posse_image: Option<String>,
    pub node_selector: Vec<(String, String)>,
    pub labels: Vec<(String, String)>,
    pub annotations: Vec<(String, String)>,
    pub service_account: Option<String>,
    pub image_pull_secrets: Vec<String>,
    /// Secrets to mount, and where.
    pub secrets: Vec<(String, String)>,
    /// ConfigMaps to mount, and where.
    pub config_maps: Vec<(String, String)>,
    /// How often a driver that failed is tried again, as a Job.
    pub retries: u32,
    /// When all of it has to be over, milliseconds; 0: never.
    pub deadline_ms: u64,
}

impl Default for DriverPod {
    fn default() -> Self {
        Self {
            kind: DriverKind::Job,
            source: PodSource::Shorthands,
            container: None,
            shorthands: Shorthands::default(),
            posse_image: None,
            node_selector: Vec::new(),
            labels: Vec::new(),
            annotations: Vec::new(),
            service_account: None,
            image_pull_secrets: Vec::new(),
            secrets: Vec::new(),
            config_maps: Vec::new(),
            retries: RETRIES_DEFAULT,
            deadline_ms: 0,
        }
    }
}

/// What keeps the driver's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// A Job: another pod where one fails or its node goes.
    Job,
    /// Nothing: a pod that is lost is lost.
    Pod,
}

pub(super) fn driver(section: &Section<'_>) -> Result<Driver, ConfigError> {
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
    let mut shorthands = group::shorthands(section)?;
    let mut command = shorthands.command.take().unwrap_or_default();
    let args = shorthands.args.take().unwrap_or_default();
    if command.is_empty() && !args.is_empty() {
        let message = "needs driver.command: posse starts the driver itself, and does not know \
                       the entry point of its image";
        return Err(section.error("args", message));
    }
    command.extend(args);
    Ok(Driver { command, host, ready, pod: pod(section, shorthands)? })
}

fn pod(section: &Section<'_>, shorthands: Shorthands) -> Result<DriverPod, ConfigError> {
    let default = DriverPod::default();
    let kinds = [("job", DriverKind::Job), ("pod", DriverKind::Pod)];
    let kind = section.word("kind", &kinds, default.kind)?;
    let retries = section.number("retries")?;
    if kind == DriverKind::Pod && retries.is_some_and(|n| n > 0) {
        return Err(section.error("retries", "a bare pod is not tried again; say kind: job"));
    }
    Ok(DriverPod {
        kind,
        source: group::source(section)?,
        container: section.text("container")?,
        shorthands,
        posse_image: section.text("posse_image")?,
        node_selector: pairs(section, "node_selector")?,
        labels: labels(section)?,
        annotations: pairs(section, "annotations")?,
        service_account: section.text("service_account")?,
        image_pull_secrets: section.texts("image_pull_secrets")?.unwrap_or_default(),
        secrets: mounts(section, "secrets")?,
        config_maps: mounts(section, "config_maps")?,
        retries: retries.unwrap_or(default.retries),
        deadline_ms: section.duration_ms("deadline", default.deadline_ms)?,
    })
}

/// A map of texts, in the order of the file.
fn pairs(section: &Section<'_>, key: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let Some(node) = section.get(key) else { return Ok(Vec::new()) };
    let expected = || section.expected(key, node, "a map of NAME: text");
    let NodeKind::Map(entries) = &node.kind else { return Err(expected()) };
    let pair = |entry: &crate::wire::yaml::Entry| {
        entry.value.scalar().map(|text| (entry.key.clone(), text)).ok_or_else(expected)
    };
    entries.iter().map(pair).collect()
}

/// Labels that are none of posse's own.
fn labels(section: &Section<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let labels = pairs(section, "labels")?;
    for (key, value) in &labels {
        if let Some(why) = names::label_mistake(&format!("{key}={value}")) {
            return Err(section.error("labels", why));
        }
    }
    Ok(labels)
}

/// A map from objects to the folders that they are mounted at.
fn mounts(section: &Section<'_>, key: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let mounts = pairs(section, key)?;
    match mounts.iter().find(|(_, path)| !path.starts_with('/')) {
        None => Ok(mounts),
        Some((name, path)) => {
            let message =
                format!("`{name}` is to be mounted at `{path}`, which has to begin with `/`");
            Err(section.error(key, message))
        }
    }
}

/// What is wrong with a host that executors are to dial.
#[must_use]
pub fn host_mistake(host: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let sound = !host.is_empty() && host.len() <= 255 && host.chars().all(is_allowed);
    (!sound).then(|| format!("`{host}` is not a host name or an address"))
}
