//! The keys of `driver`: the driver process, the host that executors connect to, and the pod that
//! `posse submit` creates.

use crate::wire::config::group::{self, PodSource};
use crate::wire::config::{checked, only};
use crate::wire::names;
use crate::wire::section::{ConfigError, Section};
use crate::wire::template::Shorthands;
use crate::wire::yaml::Kind as NodeKind;

/// Default of `driver.retries`.
const RETRIES_DEFAULT: u32 = 3;
/// Default of `driver.node_loss_after`, in milliseconds.
const NODE_LOSS_AFTER_MS_DEFAULT: u64 = 60_000;

/// The `driver` section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// Program and arguments. Empty: posse starts no driver process.
    pub command: Vec<String>,
    /// Host that executors connect to. None: `$POD_IP`, or this machine's address towards the API
    /// server.
    pub host: Option<String>,
    pub ready: Ready,
    /// Only used by `posse submit`.
    pub pod: DriverPod,
}

/// What must happen before the first executor is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// The driver reports ready through the control API.
    Control,
    /// Nothing.
    #[default]
    None,
    /// This port of the driver host accepts connections.
    Tcp(u16),
}

/// The driver's pod in the cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverPod {
    pub kind: DriverKind,
    pub source: PodSource,
    /// Name of the driver's container in the template. None: the first.
    pub container: Option<String>,
    /// Image, environment and resources. posse sets the command.
    pub shorthands: Shorthands,
    /// Image to copy posse from if the driver's image does not contain it.
    pub posse_image: Option<String>,
    pub node_selector: Vec<(String, String)>,
    pub labels: Vec<(String, String)>,
    pub annotations: Vec<(String, String)>,
    pub service_account: Option<String>,
    pub image_pull_secrets: Vec<String>,
    /// Secrets to mount: name and path.
    pub secrets: Vec<(String, String)>,
    /// ConfigMaps to mount: name and path.
    pub config_maps: Vec<(String, String)>,
    /// How often the Job retries a failed driver.
    pub retries: u32,
    /// Maximum run time of the Job, milliseconds. 0: no limit.
    pub deadline_ms: u64,
    /// How long the pod stays bound to a lost node, milliseconds. 0: posse adds no tolerations.
    pub node_loss_after_ms: u64,
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
            node_loss_after_ms: NODE_LOSS_AFTER_MS_DEFAULT,
        }
    }
}

/// The object that `posse submit` creates for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverKind {
    /// A Job: creates another pod if one fails or its node is lost.
    Job,
    /// A bare pod: it is not replaced.
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
    let host = checked(section, "host", host_error)?;
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
        return Err(section.error("retries", "a bare pod is not retried; set kind: job"));
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
        node_loss_after_ms: section.duration_ms("node_loss_after", default.node_loss_after_ms)?,
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

/// Labels without posse's prefix.
fn labels(section: &Section<'_>) -> Result<Vec<(String, String)>, ConfigError> {
    let labels = pairs(section, "labels")?;
    for (key, value) in &labels {
        if let Some(why) = names::label_error(&format!("{key}={value}")) {
            return Err(section.error("labels", why));
        }
    }
    Ok(labels)
}

/// A map from object names to mount paths.
fn mounts(section: &Section<'_>, key: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let mounts = pairs(section, key)?;
    match mounts.iter().find(|(_, path)| !path.starts_with('/')) {
        None => Ok(mounts),
        Some((name, path)) => {
            let message = format!("the mount path `{path}` of `{name}` has to start with `/`");
            Err(section.error(key, message))
        }
    }
}

/// What is wrong with a host that executors should connect to.
pub fn host_error(host: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._:[]%".contains(c);
    let sound = !host.is_empty() && host.len() <= 255 && host.chars().all(is_allowed);
    (!sound).then(|| format!("`{host}` is not a host name or an address"))
}
