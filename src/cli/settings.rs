//! Owns the way from what was typed, and what the file says, to settings that are checked and
//! whole. Starts nothing.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::cli::args::{FileArgs, RunArgs};
use crate::cli::exit::Failure;
use crate::cli::{Env, World};
use crate::core::machines::orphan_cleanup::OrphanPolicy;
use crate::core::model::ids::GroupName;
use crate::core::policy::settings::{GroupSpec, Policy};
use crate::wire::build::{OwnerRef, PodContext};
use crate::wire::config::{self, Config, Control, Driver, Group, PodSource, Ready};
use crate::wire::control_addr::ControlAddr;
use crate::wire::memory::MemoryScaling;
use crate::wire::names;
use crate::wire::staged::Staged;
use crate::wire::template::Template;

/// The configuration that is looked for when none is named.
pub const DEFAULT_FILE: &str = "posse.yaml";
/// Files are read up to here; the readers of their texts have limits below it.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// All that `posse run` has to know. Times in milliseconds unless the name says otherwise.
#[derive(Clone, Debug)]
pub struct RunSettings {
    pub app: String,
    /// None: the service account's, or the context's.
    pub namespace: Option<String>,
    /// None: from the driver pod's uid, or random.
    pub instance: Option<String>,
    pub server: Server,
    pub driver: Driver,
    pub groups: Vec<GroupSettings>,
    pub policy: Policy,
    pub watch: bool,
    /// 0: no poll.
    pub poll_interval_ms: u64,
    /// None: no tolerations are added.
    pub node_loss_after_s: Option<u64>,
    /// Files that the executors find; none: no files are staged.
    pub staged: Option<Staged>,
    pub lease: bool,
    /// No two drivers of the application at once, of whatever instances.
    pub exclusive: bool,
    /// Whether executors of instances whose driver is gone are removed.
    pub orphans: OrphanPolicy,
    /// What the driver gets to end in.
    pub grace_ms: u64,
    pub control: Control,
    /// Set where the control API listens on TCP.
    pub control_token_file: Option<PathBuf>,
    pub events: Option<EventsTo>,
    /// Leave the executors behind at the end.
    pub keep: bool,
    /// A signal's end is a failure to whoever started us.
    pub as_job: bool,
}

/// Which API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// An embedded one in this process.
    Dev,
    /// A real one.
    Kube { kubeconfig: Option<PathBuf>, context: Option<String> },
}

/// Where events are written to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventsTo {
    File(PathBuf),
    Stdout,
}

/// One group: what the core decides by, and what its pods are made of.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    pub spec: GroupSpec,
    pub template: Template,
    /// Whose end decides; none: the first container.
    pub container: Option<String>,
    /// Any other container's failure is the executor's end, too.
    pub fails_with_sidecars: bool,
    /// How memory grows after an executor ran out of it.
    pub memory_scaling: Option<MemoryScaling>,
    /// `activeDeadlineSeconds` of its pods.
    pub max_age_s: Option<u64>,
}

/// What is only known once the API server has answered.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    pub instance: String,
    pub namespace: String,
    pub owner: Option<OwnerRef>,
    pub driver_host: String,
}

impl RunSettings {
    /// Reads the file, lays the flags over it, and checks the whole.
    ///
    /// # Errors
    /// The first mistake; all are exit code 2.
    pub fn new(args: &RunArgs, world: &World<'_>) -> Result<Self, Failure> {
        let (file, mut config) = read_config(&args.file, world)?;
        let Some(app) = args.file.app.clone().or_else(|| config.app.take()) else {
            let message = format!("{file}: the application has no name; set app, or --app NAME");
            return Err(Failure::usage(message));
        };
        let longest = args.file.instance.as_deref().unwrap_or("xxxxx");
        if let Some(why) = names::pod_name_error(&app, longest) {
            return Err(Failure::usage(why));
        }
        lay_over(&mut config, &args.file, &file)?;
        let groups = std::mem::take(&mut config.executors)
            .into_iter()
            .enumerate()
            .map(|(i, group)| group_settings(group, i, &args.file, &file, world))
            .collect::<Result<_, Failure>>()?;
        let driver = driver(&mut config, args, world.env)?;
        let control = control(&config, args)?;
        for (is_set, key) in [
            (driver.ready == Ready::Control, "driver.ready: control"),
            (config.policy.driver_silence_ms > 0, "driver.silence"),
            (config.policy.heartbeat_timeout_ms > 0, "heartbeat.timeout"),
        ] {
            if is_set && control == Control::Off {
                let message = format!("{file}: {key} needs the control API, and it is off");
                return Err(Failure::usage(message));
            }
        }
        let exclusive = args.exclusive || config.exclusive.unwrap_or(false);
        if exclusive && !config.lease {
            let message = format!("{file}: exclusive needs the lease, and lease is false");
            return Err(Failure::usage(message));
        }
        let events = events(args, &driver)?;
        Ok(Self {
            app,
            namespace: args.file.namespace.clone().or(config.namespace),
            instance: args.file.instance.clone(),
            server: server(args),
            driver,
            groups,
            policy: config.policy,
            watch: config.watch,
            poll_interval_ms: config.poll_interval_ms,
            // Whole seconds, never shorter than what was asked for.
            node_loss_after_s: Some(config.node_loss_after_ms.div_ceil(1_000)).filter(|s| *s > 0),
            staged: staged(args),
            lease: config.lease,
            exclusive,
            orphans: config.orphans,
            grace_ms: config.grace_ms,
            control,
            control_token_file: args.control_token_file.clone(),
            events,
            keep: args.keep,
            as_job: args.as_job,
        })
    }

    /// Whose executors a group's template is compiled for; without a group: of no group yet.
    #[must_use]
    pub fn identity(&self, group: Option<&GroupSettings>, run: &RunIdentity) -> PodContext {
        PodContext {
            app: self.app.clone(),
            instance: run.instance.clone(),
            namespace: run.namespace.clone(),
            group: group.map_or_else(String::new, |group| group.spec.name.to_string()),
            owner: run.owner.clone(),
            driver_host: run.driver_host.clone(),
            node_loss_after_s: self.node_loss_after_s,
            staged: self.staged.clone(),
            container: group.and_then(|group| group.container.clone()),
            fails_with_sidecars: group.is_some_and(|group| group.fails_with_sidecars),
            memory_scaling: group.and_then(|group| group.memory_scaling.clone()),
            max_age_s: group.and_then(|group| group.max_age_s),
        }
    }
}

/// True where nothing says what is to be run: no file, and no flag in its place.
#[must_use]
pub fn are_absent(args: &FileArgs, world: &World<'_>) -> bool {
    let flagged = args.file.is_some()
        || args.app.is_some()
        || args.image.is_some()
        || args.template.is_some()
        || args.executors.is_some();
    !flagged && !world.dir.join(DEFAULT_FILE).exists()
}

/// Each of the two flags asks for the other.
fn staged(args: &RunArgs) -> Option<Staged> {
    let (secret, image) = (args.files_secret.clone(), args.files_image.clone());
    secret.zip(image).map(|(secret, image)| Staged { secret, image })
}

/// Random bits from the system's own source, for what only has to differ from run to run.
#[must_use]
pub fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Reads the configuration, and says under which name.
pub(super) fn read_config(args: &FileArgs, world: &World<'_>) -> Result<(String, Config), Failure> {
    let (shown, path) = match &args.file {
        Some(path) => (path.display().to_string(), world.dir.join(path)),
        None => (DEFAULT_FILE.to_owned(), world.dir.join(DEFAULT_FILE)),
    };
    if args.file.is_none() && !path.exists() {
        return match args.app.is_some() && (args.image.is_some() || args.template.is_some()) {
            true => Ok((shown, Config::default())),
            false => Err(Failure::usage(
                "there is no ./posse.yaml: give -f FILE, or --app with --image or --template, or \
                 write one with `posse init`",
            )),
        };
    }
    let text = read_text(&shown, &path)?;
    let config = Config::parse(&shown, &text)?;
    Ok((shown, config))
}

/// Reads a text file of a bounded size.
pub(super) fn read_text(shown: &str, path: &Path) -> Result<String, Failure> {
    let read = || {
        let mut text = String::new();
        std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    read().map_err(|error| Failure::usage(format!("{shown}: cannot be read: {error}")))
}

/// Lays --executors, --image and --template over the only group.
fn lay_over(config: &mut Config, args: &FileArgs, file: &str) -> Result<(), Failure> {
    let flags = [
        ("--executors", args.executors.is_some()),
        ("--image", args.image.is_some()),
        ("--template", args.template.is_some()),
    ];
    let Some((flag, _)) = flags.iter().find(|(_, given)| *given) else { return Ok(()) };
    if config.executors.is_empty() && (args.image.is_some() || args.template.is_some()) {
        config.executors.push(Group::default());
    }
    let group = match config.executors.as_mut_slice() {
        [group] => group,
        [] => {
            let message = format!("{flag}: {file} has no group; give --image or --template too");
            return Err(Failure::usage(message));
        }
        several => {
            let names: Vec<&str> = several.iter().map(|group| group.name.as_str()).collect();
            let names = names.join(", ");
            let message = format!("{flag} acts on the only group, and {file} has several: {names}");
            return Err(Failure::usage(message));
        }
    };
    if let Some(image) = &args.image {
        group.shorthands.image = Some(image.clone());
    }
    if let Some(n) = args.executors {
        if n < group.min || group.max.is_some_and(|max| n > max) {
            let max = group.max.map_or_else(|| "any".to_owned(), |max| max.to_string());
            let message = format!("--executors: {n} is not within min {} and max {max}", group.min);
            return Err(Failure::usage(message));
        }
        group.count = n;
    }
    Ok(())
}

fn group_settings(
    group: Group,
    i: usize,
    args: &FileArgs,
    file: &str,
    world: &World<'_>,
) -> Result<GroupSettings, Failure> {
    let place = format!("{file}: executors[{i}]");
    let template = match (&args.template, group.source) {
        (Some(path), _) => read_template(&world.dir.join(path))?,
        (None, PodSource::File(path)) => {
            let folder =
                args.file.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new(""));
            read_template(&world.dir.join(folder).join(path))?
        }
        (None, PodSource::Inline(pod)) => Template::from_json(&format!("{place}.pod"), pod)?,
        (None, PodSource::Shorthands) => {
            Template::from_image(&place, group.shorthands.image.as_deref())?
        }
    };
    let template = template.with_shorthands(group.shorthands);
    let compiled = template.check(group.container.as_deref(), group.memory_scaling.as_ref())?;
    Ok(GroupSettings {
        spec: GroupSpec {
            name: GroupName::from(group.name.as_str()),
            target: group.count,
            min: group.min,
            max: group.max,
            scale_down: group.scale_down,
            replace: group.replace,
            memory_steps: compiled.pod.memory_steps(),
            decommission: group.decommission,
            from_file: true,
            // Not before the run knows who it is.
            pod: None,
        },
        template,
        container: group.container,
        fails_with_sidecars: group.fails_with_sidecars,
        memory_scaling: group.memory_scaling,
        max_age_s: group.max_age_s,
    })
}

pub(super) fn read_template(path: &Path) -> Result<Template, Failure> {
    let shown = path.display().to_string();
    Ok(Template::parse(&shown, &read_text(&shown, path)?)?)
}

fn driver(config: &mut Config, args: &RunArgs, env: Env<'_>) -> Result<Driver, Failure> {
    let mut driver = std::mem::take(&mut config.driver);
    if !args.driver.is_empty() {
        driver.command.clone_from(&args.driver);
    }
    if driver.command.first().is_some_and(String::is_empty) {
        return Err(Failure::usage("the driver command begins with an empty word"));
    }
    if driver.host.is_none()
        && let Some(host) = env("POD_IP").filter(|host| !host.is_empty())
    {
        if let Some(why) = config::host_error(&host) {
            return Err(Failure::usage(format!("POD_IP: {why}; set driver.host")));
        }
        driver.host = Some(host);
    }
    Ok(driver)
}

fn control(config: &Config, args: &RunArgs) -> Result<Control, Failure> {
    let control = match &args.control {
        Some(text) => Control::At(parse_control("--control", text)?),
        None => config.control.clone(),
    };
    let is_tcp = matches!(control, Control::At(ControlAddr::Tcp(_)));
    match (is_tcp, &args.control_token_file) {
        (true, None) => Err(Failure::usage(
            "a control API on HOST:PORT needs --control-token-file FILE; a unix socket needs none",
        )),
        (false, Some(_)) => Err(Failure::usage(
            "--control-token-file is for a control API on HOST:PORT; a unix socket needs none",
        )),
        (true, Some(_)) | (false, None) => Ok(control),
    }
}

fn parse_control(from: &str, text: &str) -> Result<ControlAddr, Failure> {
    ControlAddr::parse(text).map_err(|why| Failure::usage(format!("{from}: {why}")))
}

fn events(args: &RunArgs, driver: &Driver) -> Result<Option<EventsTo>, Failure> {
    match &args.events {
        None => Ok(None),
        Some(path) if path.as_os_str() != "-" => Ok(Some(EventsTo::File(path.clone()))),
        Some(_) if driver.command.is_empty() => Ok(Some(EventsTo::Stdout)),
        Some(_) => Err(Failure::usage(
            "--events - would mix the events with the driver's output; give --events FILE",
        )),
    }
}

#[cfg(feature = "dev")]
fn is_dev(args: &RunArgs) -> bool {
    args.dev
}

#[cfg(not(feature = "dev"))]
fn is_dev(_: &RunArgs) -> bool {
    false
}

fn server(args: &RunArgs) -> Server {
    if is_dev(args) {
        return Server::Dev;
    }
    Server::Kube {
        kubeconfig: args.server.kubeconfig.clone(),
        context: args.server.context.clone(),
    }
}

#[cfg(test)]
mod tests;
