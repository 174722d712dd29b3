//! Reads the configuration file, applies the flags, and checks the resulting settings.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::cli::args::{FileArgs, RunArgs};
use crate::cli::exit::Failure;
use crate::cli::world::{Env, World};
use crate::control::address::default_folders;
use crate::core::model::ids::GroupName;
use crate::core::policy::settings::GroupSpec;
use crate::runtime::events::EventTarget;
use crate::runtime::run::settings::{GroupSettings, RunSettings};
use crate::wire::config::{self, Config, Control, Driver, Group, PodSource, Ready};
use crate::wire::control_addr::ControlAddr;
use crate::wire::names;
use crate::wire::security::Security;
use crate::wire::staged::Staged;
use crate::wire::template::Template;

/// The default configuration file.
pub const DEFAULT_FILE: &str = "posse.yaml";
/// The most bytes read from a file; the parsers have lower limits.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads the configuration, applies the flags, and checks the result.
///
/// # Errors
/// The first error; the exit code is 2.
pub fn run_settings(args: &RunArgs, world: &World<'_>) -> Result<RunSettings, Failure> {
    let (file, mut config) = read_config(&args.file, world)?;
    let Some(app) = args.file.app.clone().or_else(|| config.app.take()) else {
        let message = format!("{file}: the application has no name; set app, or --app NAME");
        return Err(Failure::usage(message));
    };
    let longest = args.file.instance.as_deref().unwrap_or("xxxxx");
    if let Some(why) = names::pod_name_error(&app, longest) {
        return Err(Failure::usage(why));
    }
    apply_flags(&mut config, &args.file, &file)?;
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
            let message = format!("{file}: {key} needs the control API, which is off");
            return Err(Failure::usage(message));
        }
    }
    let exclusive = args.exclusive || config.exclusive.unwrap_or(false);
    if exclusive && !config.lease {
        let message = format!("{file}: exclusive needs the lease, and lease is false");
        return Err(Failure::usage(message));
    }
    let events = events(args, &driver, world)?;
    Ok(RunSettings {
        app,
        namespace: args.file.namespace.clone().or(config.namespace),
        instance: args.file.instance.clone(),
        driver,
        groups,
        policy: config.policy,
        watch: config.watch,
        poll_interval_ms: config.poll_interval_ms,
        // Whole seconds, rounded up.
        node_loss_after_s: Some(config.node_loss_after_ms.div_ceil(1_000)).filter(|s| *s > 0),
        staged: staged(args),
        lease: config.lease,
        exclusive,
        orphans: config.orphans,
        grace_ms: config.grace_ms,
        control,
        socket_folders: socket_folders(world),
        control_token_file: args.control_token_file.clone(),
        events,
        keep: args.keep,
    })
}

/// The folders for control sockets, from the environment.
pub(super) fn socket_folders(world: &World<'_>) -> Vec<PathBuf> {
    let env = |name: &str| (world.env)(name).filter(|value| !value.is_empty());
    default_folders(env("XDG_RUNTIME_DIR").as_deref(), env("TMPDIR").as_deref())
}

/// True if there is neither a configuration file nor a flag that replaces it.
pub fn are_absent(args: &FileArgs, world: &World<'_>) -> bool {
    let flagged = args.file.is_some()
        || args.app.is_some()
        || args.image.is_some()
        || args.template.is_some()
        || args.executors.is_some();
    !flagged && !world.dir.join(DEFAULT_FILE).exists()
}

/// Each of the two flags requires the other.
fn staged(args: &RunArgs) -> Option<Staged> {
    let (secret, image) = (args.files_secret.clone(), args.files_image.clone());
    secret.zip(image).map(|(secret, image)| Staged { secret, image })
}

/// Reads the configuration. Also returns the file's name for messages.
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
                 create the file with `posse init`",
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

/// Applies --executors, --image and --template to the only group.
fn apply_flags(config: &mut Config, args: &FileArgs, file: &str) -> Result<(), Failure> {
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
            let message = format!("{flag} needs a single group, and {file} has several: {names}");
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
    let is_image_alone = args.template.is_none() && group.source == PodSource::Shorthands;
    let mut template = match (&args.template, group.source) {
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
    if is_image_alone && group.security != Some(Security::Baseline) {
        template.harden()?;
    }
    if group.security == Some(Security::Restricted) {
        template.restrict()?;
    }
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
            // Compiled at the start of the run.
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
        return Err(Failure::usage("the first word of the driver command is empty"));
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

fn events(
    args: &RunArgs,
    driver: &Driver,
    world: &World<'_>,
) -> Result<Option<EventTarget>, Failure> {
    match &args.events {
        None => Ok(None),
        Some(path) if path.as_os_str() != "-" => Ok(Some(EventTarget::File(world.dir.join(path)))),
        Some(_) if driver.command.is_empty() => Ok(Some(EventTarget::Stdout)),
        Some(_) => Err(Failure::usage(
            "--events - would mix the events with the driver's output; give --events FILE",
        )),
    }
}

#[cfg(test)]
mod tests;
