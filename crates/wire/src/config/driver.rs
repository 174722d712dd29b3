//! The keys of `driver`: the driver process, the host that executors connect to, and the pod that
//! `posse submit` creates.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;

use crate::config::dev::driver_dev;
use crate::config::group::{self, CPU, ENV_KEY, MEMORY, PodSource};
use crate::config::idle::idle;
use crate::config::key::Preset::Is;
use crate::config::key::Type::{self, Boolean, Duration, Integer, List, Map, Path, Text, Words};
use crate::config::key::{Key, key, none, told, words};
use crate::config::polled::PolledCommand;
use crate::config::section::{ConfigError, Section};
use crate::config::{checked, only};
use crate::pod::template::Shorthands;

/// What is before an image that is to be mounted.
const VOLUME: &str = "volume:";
/// The most pods that may stand by.
const STANDBY_MAX: u32 = 2;
/// Default of `driver.retries`.
const RETRIES_DEFAULT: u32 = 3;

/// The keys of `driver`.
#[rustfmt::skip]
pub(super) const KEYS: &[Key] = &[
    key("command", List, none("[python, driver.py]"),
        "The driver, the same as the words after `--`. Without a driver posse runs until you stop it, or until \
         [work that ends](#work-that-ends) has ended."),
    key("args", List, none("[--fast]"), "Added after `command`."),
    key("dev", Map, none("{command: [python, driver.py]}"),
        "Another `command` with `posse run --dev`. See [dev](#dev).").experimental(),
    key("host", Text, told("`$POD_IP`, else this machine's address towards the API server", "10.1.2.3"),
        "The address that executors dial."),
    key("port", PORT, none("auto"),
        "The port at which the driver listens for its executors. `auto`: posse chooses a free one. See [the \
         driver's port](#the-drivers-port)."),
    key("ready", READY, Is("none"),
        "What the first creates wait for: nothing; the call `POST /v1/driver/ready` or `posse ready`; the \
         port `port`, which posse opens for the driver ([the driver's port](#the-drivers-port)); a port of \
         `host` that accepts connections, which posse closes again; a GET there with a status from 200 to 399; a file \
         written after the driver's start. `tcp` and `http:/PATH` mean `port`."),
    key("page", Integer, none("8787"),
        "The port of the driver's own page, such as Dask's dashboard: [posse's page](CONTROL_API.md#the-page) has a link to it."),
    key("silence", Duration, Is("0s"),
        "If the driver makes no call for this time, the run ends with exit code 14. `0s`: the driver may be \
         silent."),
    key("idle", Map, none("{command: [./idle.sh], every: 5s}"),
        "A command that prints which executors have no work, for engines that do not tell it. See [idle](#idle).").beta(),
    key("kind", Words(&words(&KIND)), Is("job"),
        "What `posse submit` creates: a Job, or a bare pod, which is not created again after its end. `posse run` \
         ignores this key and those below."),
    key("image", Text, none("registry.example.com/my-driver:1"), "The image of the driver's container."),
    key("posse_image", POSSE_IMAGE, none("registry.example.com/posse:0.2.0"),
        "The image that brings posse if the driver's image has none: an init container of it copies posse, and \
         with `volume:IMAGE` it is [mounted](SUBMIT.md#the-pod). Without `image` it is the driver's image too."),
    key("template", Path, none("driver.yaml"),
        "A v1 Pod for everything that has no key here: labels, the service account (`posse-driver` of `deploy/rbac.yaml` if there is \
         none), Secrets and ConfigMaps, other resources, tolerations."),
    key("pod", Map, none("{spec: {containers: [{name: driver}]}}"), "The same as `template`, inline."),
    key("container", Text, told("kubectl's default container", "driver"),
        "The container of the template in which the driver runs."),
    ENV_KEY, CPU, MEMORY,
    key("keep_executors", Boolean, told("`true` without a `command`", "true"),
        "The executors are the Job's, so the driver's next pod goes on with [those that live](SUBMIT.md#the-next-pod). `true` is for \
         drivers whose executors connect again, under the same name. `posse run` reads this key and the next two in a Job alone."),
    key("standby", Integer, Is("0"),
        "How many more pods of the Job, 0 to 2, wait to [take over](SUBMIT.md#a-standby) from the driver's, on other nodes."),
    key("retries", Integer, Is("3"), "How often the Job starts a failed driver again."),
    key("deadline", Duration, Is("0s"), "When the whole application must be over. `0s`: never."),
];

const PORT: Type = Type::Own { page: "`auto` or 1 to 65535", expected: "auto or 1 to 65535" };
const READY: Type = Type::Own {
    page: "`none`, `control`, `socket`, `tcp`, `tcp:PORT`, `http:PORT/PATH` or `file:PATH`",
    expected: "none, control, socket, tcp, tcp:PORT, http:PORT/PATH or file:PATH",
};
const POSSE_IMAGE: Type =
    Type::Own { page: "image or `volume:IMAGE`", expected: "IMAGE or volume:IMAGE" };
const KIND: [(&str, DriverKind); 2] = [("job", DriverKind::Job), ("pod", DriverKind::Pod)];

/// The `driver` section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// Program and arguments. Empty: posse starts no driver process.
    pub command: Vec<String>,
    /// Host that executors connect to. None: `$POD_IP`, or this machine's address towards the API
    /// server.
    pub host: Option<String>,
    /// The port at which the driver listens for its executors. None: posse does not know it.
    pub port: Option<PortChoice>,
    pub ready: Ready,
    /// The port of the driver's own page.
    pub page: Option<u16>,
    /// The command that tells which executors have no work.
    pub idle: Option<PolledCommand>,
    /// Program and arguments under `posse run --dev`, if they are others.
    pub dev_command: Option<Vec<String>>,
    /// The executors outlive the driver's pod. None: if no program depends on them.
    pub keep_executors: Option<bool>,
    /// Only used by `posse submit`.
    pub pod: DriverPod,
}

/// Which port the driver gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// posse chooses one that is free on the driver's host.
    Auto,
    /// This one.
    Number(u16),
}

impl PortChoice {
    /// # Errors
    /// The text is neither `auto` nor a port.
    pub fn parse(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(number @ 1..)) => Ok(Self::Number(number)),
            (_, Ok(0) | Err(_)) => Err(format!("expected {PORT}, found `{text}`")),
        }
    }
}

impl fmt::Display for PortChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// What must happen before the first executor is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// The driver reports ready through the control API.
    Control,
    /// This file exists, and was written after the driver's start.
    File(PathBuf),
    /// `GET http://HOST:PORT/PATH` to the driver host returns a status from 200 to 399. The path begins
    /// with a slash. Without a port: `driver.port`.
    Http(Option<u16>, String),
    /// Nothing.
    #[default]
    None,
    /// posse has opened `driver.port`, and the driver has it as an open socket.
    Socket,
    /// This port of the driver host accepts connections. Without a port: `driver.port`.
    Tcp(Option<u16>),
}

impl Ready {
    /// True if the probe needs `driver.port`.
    pub fn needs_driver_port(&self) -> bool {
        match self {
            Self::Http(port, _) | Self::Tcp(port) => port.is_none(),
            Self::Socket => true,
            Self::Control | Self::File(_) | Self::None => false,
        }
    }
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
    /// The image that brings posse if the driver's image does not contain it.
    pub posse_image: Option<PosseImage>,
    /// How many more pods of the Job wait for the Lease of the run.
    pub standby: u32,
    /// How often the Job retries a failed driver.
    pub retries: u32,
    /// Maximum run time of the Job, milliseconds. 0: no limit.
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
            standby: 0,
            retries: RETRIES_DEFAULT,
            deadline_ms: 0,
        }
    }
}

/// The image that brings posse, and how it gets into a pod of another image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PosseImage {
    /// An init container of this image copies posse.
    Copied(String),
    /// This image is a volume of the pod.
    Mounted(String),
}

impl PosseImage {
    /// # Errors
    /// The text names no image.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mounted = text.strip_prefix(VOLUME);
        let image = mounted.unwrap_or(text).to_owned();
        match (image.is_empty() || image.contains(char::is_whitespace), mounted) {
            (true, _) => Err(format!("expected {POSSE_IMAGE}, found `{text}`")),
            (false, Some(_)) => Ok(Self::Mounted(image)),
            (false, None) => Ok(Self::Copied(image)),
        }
    }

    /// The image itself.
    pub fn image(&self) -> &str {
        match self {
            Self::Copied(image) | Self::Mounted(image) => image,
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
    only(section, KEYS)?;
    let ready = match section.text("ready")? {
        None => Ready::None,
        Some(text) => parse_ready(&text).ok_or_else(|| {
            section.error("ready", format_args!("expected {READY}, found `{text}`"))
        })?,
    };
    let host = checked(section, "host", host_error)?;
    let port = match section.text("port")? {
        None => None,
        Some(text) => {
            Some(PortChoice::parse(&text).map_err(|message| section.error("port", message))?)
        }
    };
    let mut shorthands = group::shorthands(section)?;
    let mut command = shorthands.command.take().unwrap_or_default();
    let args = shorthands.args.take().unwrap_or_default();
    if command.is_empty() && !args.is_empty() {
        let message = "needs driver.command: posse starts the driver itself, and does not know \
                       the entry point of its image";
        return Err(section.error("args", message));
    }
    let dev_command = driver_dev(section)?.command.map(|words| [&words[..], &args].concat());
    command.extend(args);
    let idle = idle(section)?;
    let keep_executors = section.flag("keep_executors")?;
    let pod = pod(section, shorthands)?;
    if pod.kind == DriverKind::Pod && keep_executors == Some(true) {
        let message = "a bare pod has no successor, so its executors end with it; set kind: job";
        return Err(section.error("keep_executors", message));
    }
    let page = match section.number("page")? {
        None => None,
        Some(port) => match u16::try_from(port) {
            Ok(port @ 1..) => Some(port),
            Ok(0) | Err(_) => return Err(section.error("page", "expected a port, 1 to 65535")),
        },
    };
    Ok(Driver { command, host, port, ready, page, idle, dev_command, keep_executors, pod })
}

fn parse_ready(text: &str) -> Option<Ready> {
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    let port = |port: &str| port.parse().ok().filter(|port| *port > 0);
    match kind {
        "none" if value.is_empty() => Some(Ready::None),
        "control" if value.is_empty() => Some(Ready::Control),
        "socket" if text == "socket" => Some(Ready::Socket),
        "tcp" if text == "tcp" => Some(Ready::Tcp(None)),
        "tcp" => port(value).map(|port| Ready::Tcp(Some(port))),
        "http" => {
            let (number, path) = value.split_once('/').unwrap_or((value, ""));
            // The path stands in the first line of a request.
            let is_clean = path.bytes().all(|byte| byte.is_ascii_graphic());
            let port = match number {
                "" if value.starts_with('/') => None,
                number => Some(port(number)?),
            };
            is_clean.then(|| Ready::Http(port, format!("/{path}")))
        }
        "file" if !value.is_empty() => Some(Ready::File(value.into())),
        _ => None,
    }
}

fn pod(section: &Section<'_>, shorthands: Shorthands) -> Result<DriverPod, ConfigError> {
    let default = DriverPod::default();
    let kind = section.word("kind", &KIND, default.kind)?;
    let retries = section.number("retries")?;
    if kind == DriverKind::Pod && retries.is_some_and(|n| n > 0) {
        return Err(section.error("retries", "a bare pod is not retried; set kind: job"));
    }
    let standby = section.number_up_to("standby", STANDBY_MAX)?.unwrap_or(default.standby);
    if kind == DriverKind::Pod && standby > 0 {
        return Err(section.error("standby", "a bare pod has no successor; set kind: job"));
    }
    Ok(DriverPod {
        kind,
        source: group::source(section)?,
        container: section.text("container")?,
        shorthands,
        posse_image: posse_image(section)?,
        standby,
        retries: retries.unwrap_or(default.retries),
        deadline_ms: section.duration_ms("deadline", default.deadline_ms)?,
    })
}

fn posse_image(section: &Section<'_>) -> Result<Option<PosseImage>, ConfigError> {
    let Some(text) = section.text("posse_image")? else { return Ok(None) };
    PosseImage::parse(&text).map(Some).map_err(|message| section.error("posse_image", message))
}

/// What is wrong with a host that executors should connect to.
pub fn host_error(host: &str) -> Option<String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let sound = match address.contains(':') {
        true => address.parse::<Ipv6Addr>().is_ok(),
        false => !host.is_empty() && host.len() <= 255 && host.chars().all(is_allowed),
    };
    (!sound).then(|| format!("`{host}` is not a host name or an address"))
}
