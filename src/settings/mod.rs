//! Reads the configuration file, applies the flags, and checks the resulting settings.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::args::{FileArgs, RunArgs};
use crate::exit::Failure;
use crate::shell_words;
use crate::world::{Env, World};
use posse_control::address::default_folders;
use posse_core::model::settings::GroupSpec;
use posse_run::credentials::folder::candidates;
use posse_run::events::EventTarget;
use posse_run::run::settings::{GroupSettings, OutputFolder, RecordSetting, RunSettings};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::config::listen_addr::ListenAddr;
use posse_wire::config::{
    self, Config, Control, Driver, Group, Metrics, PodSource, Ready, Record, TaskOutput,
};
use posse_wire::control::task_secrets::secret_name;
use posse_wire::names;
use posse_wire::pod::security::Security;
use posse_wire::pod::slot_volume::{KeepVolume, NEEDS_EXCLUSIVE};
use posse_wire::pod::staged::Staged;
use posse_wire::pod::template::{Template, TemplateError};

pub mod found;
mod map;

/// The default configuration file.
pub const DEFAULT_FILE: &str = "posse.yaml";
/// What messages call the configuration if it consists of flags alone.
const NO_FILE: &str = "the command line";
/// The image of executors of the embedded cluster that have a command and no image. The cluster pulls
/// none, but the pods of Kubernetes have one.
const LOCAL_IMAGE: &str = "none";
/// `failures.log_lines` with --dev: a person looks on, and reading logs needs no permission there.
const DEV_LOG_LINES: u32 = 20;
/// The folder that the pod of `posse submit` has for what a run needs.
const POD_FOLDER: &str = "/run/posse";
/// What starts Spark, also behind a shell: `spark-submit` or `posse-spark-submit`.
const SPARK: &str = "spark-submit";
/// What to do if executors in a cluster have no image.
const NO_IMAGE: &str =
    "--command: give --image IMAGE or --template FILE too; only `run --dev` needs no image";
const NO_IMAGE_OF_LINES: &str =
    "the lines have no image to run in: give --image IMAGE, --template FILE or --dev";
/// The most bytes read from a file; the parsers have lower limits.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads the configuration, applies the flags, and checks the result.
///
/// # Errors
/// The first error; the exit code is 2.
pub fn run_settings(args: &RunArgs, world: &World<'_>) -> Result<RunSettings, Failure> {
    let (file, mut config) = read_config(&args.file, world)?;
    if args.embedded.dev {
        lay_dev_over(&mut config);
    }
    if let Some(jobs) = args.jobs {
        map::lay_map_over(&mut config, jobs, &file)?;
    }
    apply_flags(&mut config, &args.file, &file)?;
    let driver = driver(&mut config, args, world.env)?;
    if let Some(problem) = problem_of_driver(&driver) {
        return Err(Failure::usage(format!("{file}: driver.{problem}")));
    }
    let app = app_name(&config, &args.file, &driver.command, &file)?;
    let groups = std::mem::take(&mut config.executors)
        .into_iter()
        .enumerate()
        .map(|(i, group)| group_settings(group, i, args, driver.port.is_some(), &file, world))
        .collect::<Result<Vec<GroupSettings>, Failure>>()?;
    let control = control(&config, args)?;
    let page = page(&config, args, &control)?;
    check_end(&config, &driver, &control, &file)?;
    let exclusive = is_exclusive(&config, args, &file)?;
    check_volumes(&groups, exclusive, &file)?;
    check_secrets(&config, &app, &file)?;
    let events = events(args, &driver, world)?;
    let metrics = metrics(&config, args)?;
    let task_output = task_output(&config, events.as_ref(), args, world);
    let record = record(&config, args, world);
    Ok(RunSettings {
        app,
        namespace: args.file.namespace.clone().or(config.namespace),
        instance: args.file.instance.clone(),
        driver,
        groups,
        policy: config.policy,
        common: config.common.into(),
        queue: config.queue,
        poll_interval_ms: config.poll_interval_ms,
        staged: staged(args),
        credentials: config.credentials.into(),
        private_folders: private_folders(world),
        lease: config.lease,
        exclusive,
        driver_tells_failures: args.jobs.is_some(),
        grace_ms: config.grace_ms,
        control,
        socket_folders: socket_folders(world),
        control_token_file: args.control_token_file.clone(),
        page,
        page_token_file: args.page_token_file.clone(),
        events,
        task_output,
        record,
        task_secrets: config.task_secrets,
        metrics,
        keep: args.keep,
    })
}

/// What needs calls, and what ends a run without a driver.
fn check_end(
    config: &Config,
    driver: &Driver,
    control: &Control,
    file: &str,
) -> Result<(), Failure> {
    for (is_set, key) in [
        (driver.ready == Ready::Control, "driver.ready: control"),
        (config.policy.driver_silence_ms > 0, "driver.silence"),
        (config.policy.heartbeat_timeout_ms > 0, "heartbeat.timeout"),
        (config.policy.idle_end_ms > 0, "shutdown.idle_end"),
    ] {
        if is_set && *control == Control::Off {
            let message = format!("{file}: {key} needs the control API, which is off");
            return Err(Failure::usage(message));
        }
    }
    if config.policy.idle_end_ms > 0 && !driver.command.is_empty() {
        let message = format!(
            "{file}: shutdown.idle_end is for a run without a driver, and this one ends with its driver: remove one of \
             the two"
        );
        return Err(Failure::usage(message));
    }
    Ok(())
}

fn is_exclusive(config: &Config, args: &RunArgs, file: &str) -> Result<bool, Failure> {
    let has_standby = args.as_job && config.driver.pod.standby > 0;
    let exclusive = args.exclusive || config.exclusive.unwrap_or(has_standby);
    if exclusive && !config.lease {
        let message = format!("{file}: exclusive needs the lease, and lease is false");
        return Err(Failure::usage(message));
    }
    Ok(exclusive)
}

/// The folders for control sockets, from the environment.
pub(super) fn socket_folders(world: &World<'_>) -> Vec<PathBuf> {
    default_folders((world.env)("XDG_RUNTIME_DIR").as_deref(), (world.env)("TMPDIR").as_deref())
}

/// The folders for credentials, from the environment.
fn private_folders(world: &World<'_>) -> Vec<PathBuf> {
    candidates((world.env)("XDG_RUNTIME_DIR").as_deref(), (world.env)("TMPDIR").as_deref())
}

/// True if there is a configuration file.
pub(super) fn has_file(args: &FileArgs, world: &World<'_>) -> bool {
    args.file.is_some() || world.dir.join(DEFAULT_FILE).exists()
}

/// The application's name: given, or made from the driver, else from the executors.
fn app_name(
    config: &Config,
    args: &FileArgs,
    driver: &[String],
    file: &str,
) -> Result<String, Failure> {
    let group = config.executors.first().map(|group| &group.shorthands);
    let of_group = || {
        let command = group.and_then(|group| group.command.as_deref());
        let image = || names::app_name_of_image(group?.image.as_deref()?);
        command.and_then(names::app_name_of_command).or_else(image)
    };
    let given = args.app.clone().or_else(|| config.app.clone());
    let name = given.or_else(|| names::app_name_of_command(driver)).or_else(of_group);
    let Some(app) = name else {
        let message = format!("{file}: the application has no name; set app, or --app NAME");
        return Err(Failure::usage(message));
    };
    let longest = args.instance.as_deref().unwrap_or("xxxxx");
    match names::pod_name_error(&app, longest) {
        Some(why) => Err(Failure::usage(why)),
        None => Ok(app),
    }
}

fn staged(args: &RunArgs) -> Option<Staged> {
    let secret = args.files_secret.clone()?;
    Some(Staged { secret, image: args.files_image.clone() })
}

/// Reads the configuration. Also returns the file's name for messages.
pub(super) fn read_config(args: &FileArgs, world: &World<'_>) -> Result<(String, Config), Failure> {
    let Some((shown, text)) = config_text(args, world)? else {
        return match has_pod(args) {
            true => Ok((NO_FILE.to_owned(), Config::default())),
            false => Err(Failure::usage(
                "there is no ./posse.yaml: give -f FILE, or the executors' --image (with `run --dev` \
                 their --command), or create the file with `posse init`",
            )),
        };
    };
    let config = Config::parse(&shown, &text)?;
    Ok((shown, config))
}

/// The name of the configuration for messages, and its text. `None` if no file is named and the default
/// one does not exist.
pub(super) fn config_text(
    args: &FileArgs,
    world: &World<'_>,
) -> Result<Option<(String, String)>, Failure> {
    let path = match &args.file {
        Some(path) if path.as_os_str() == "-" => return stdin_text().map(Some),
        Some(path) => path.as_path(),
        None if world.dir.join(DEFAULT_FILE).exists() => Path::new(DEFAULT_FILE),
        None => return Ok(None),
    };
    let shown = path.display().to_string();
    let text = read_text(&shown, &world.dir.join(path))?;
    Ok(Some((shown, text)))
}

/// The text on stdin, which can be read only once in a process.
fn stdin_text() -> Result<(String, String), Failure> {
    static STDIN: OnceLock<Result<String, Failure>> = OnceLock::new();
    let text = STDIN.get_or_init(|| read_all(STDIN_SHOWN, || Ok(std::io::stdin())));
    text.clone().map(|text| (STDIN_SHOWN.to_owned(), text))
}

/// The name of stdin in messages.
const STDIN_SHOWN: &str = "stdin";

/// Reads a text file of a bounded size.
pub(super) fn read_text(shown: &str, path: &Path) -> Result<String, Failure> {
    read_all(shown, || std::fs::File::open(path))
}

fn read_all<R: std::io::Read>(
    shown: &str,
    open: impl FnOnce() -> std::io::Result<R>,
) -> Result<String, Failure> {
    let read = || {
        let mut text = String::new();
        open()?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        Ok::<_, std::io::Error>(text)
    };
    read().map_err(|error| Failure::usage(format!("{shown}: cannot be read: {error}")))
}

/// The flags about the only group, and whether each is given.
pub(super) fn group_flags(args: &FileArgs) -> [(&'static str, bool); 6] {
    [
        ("--executors", args.executors.is_some()),
        ("--command", args.command.is_some()),
        ("--image", args.image.is_some()),
        ("--cpu", args.cpu.is_some()),
        ("--memory", args.memory.is_some()),
        ("--template", args.template.is_some()),
    ]
}

/// Applies what the file says about --dev. Flags win over it.
fn lay_dev_over(config: &mut Config) {
    for group in &mut config.executors {
        std::mem::take(&mut group.dev).apply_to(&mut group.shorthands);
    }
    if let Some(command) = config.driver.dev_command.take() {
        config.driver.command = command;
    }
    if config.log_lines.is_none() {
        config.policy.log_lines = DEV_LOG_LINES;
    }
}

/// True if the flags say what an executor is.
pub fn has_pod(args: &FileArgs) -> bool {
    args.command.is_some() || args.image.is_some() || args.template.is_some()
}

/// Applies the flags about the only group.
fn apply_flags(config: &mut Config, args: &FileArgs, file: &str) -> Result<(), Failure> {
    let flags = group_flags(args);
    let Some((flag, _)) = flags.iter().find(|(_, given)| *given) else { return Ok(()) };
    if config.executors.is_empty() && has_pod(args) {
        config.executors.push(Group::default());
    }
    let group = match config.executors.as_mut_slice() {
        [group] => group,
        [] => {
            let message =
                format!("{flag}: {file} has no group; give --image, --command or --template too");
            return Err(Failure::usage(message));
        }
        several => {
            let names: Vec<&str> = several.iter().map(|group| group.spec.name.as_str()).collect();
            let names = names.join(", ");
            let message = format!("{flag} needs a single group, and {file} has several: {names}");
            return Err(Failure::usage(message));
        }
    };
    let shorthands = &mut group.shorthands;
    for (value, flag) in [
        (&mut shorthands.image, &args.image),
        (&mut shorthands.cpu, &args.cpu),
        (&mut shorthands.memory, &args.memory),
    ] {
        if flag.is_some() {
            value.clone_from(flag);
        }
    }
    if let Some(command) = &args.command {
        let words = shell_words::split(command)
            .map_err(|why| Failure::usage(format!("--command `{command}`: {why}")))?;
        shorthands.command = Some(words);
        // The arguments of the file or the template belong to another command.
        shorthands.args = Some(Vec::new());
    }
    if let Some(n) = args.executors {
        let GroupSpec { target, min, max, .. } = &mut group.spec;
        if n < *min || max.is_some_and(|max| n > max) {
            let max = max.map_or_else(|| "any".to_owned(), |max| max.to_string());
            let message = format!("--executors: {n} is not within min {min} and max {max}");
            return Err(Failure::usage(message));
        }
        *target = n;
    }
    Ok(())
}

fn group_settings(
    mut group: Group,
    i: usize,
    run: &RunArgs,
    has_driver_port: bool,
    file: &str,
    world: &World<'_>,
) -> Result<GroupSettings, Failure> {
    let args = &run.file;
    let place = format!("{file}: executors[{i}]");
    let is_image_alone = args.template.is_none() && group.source == PodSource::Shorthands;
    let source = std::mem::replace(&mut group.source, PodSource::Shorthands);
    let mut template = match (&args.template, source) {
        (Some(path), _) => read_template(&world.dir.join(path))?,
        (None, PodSource::File(path)) => {
            let folder = args.file.as_deref().and_then(Path::parent);
            let path = world.dir.join(folder.unwrap_or_else(|| Path::new(""))).join(path);
            let shown = path.display().to_string();
            let text = read_text(&shown, &path).map_err(|failure| {
                Failure::usage(format!("{place}.template: {}", failure.message))
            })?;
            Template::parse(&shown, &text)?
        }
        (None, PodSource::Inline(pod)) => Template::from_json(&format!("{place}.pod"), pod)?,
        (None, PodSource::Shorthands) => {
            let image = group.shorthands.image.as_deref();
            let is_local = run.embedded.dev && group.shorthands.command.is_some();
            if image.is_none() && !is_local && args.command.is_some() {
                let is_map = run.jobs.is_some();
                return Err(Failure::usage(if is_map { NO_IMAGE_OF_LINES } else { NO_IMAGE }));
            }
            let local = is_local.then_some(LOCAL_IMAGE);
            Template::from_image(&place, image.or(local))?
        }
    };
    add_to_pod(&mut template, &group, is_image_alone)?;
    let template = template.with_shorthands(group.shorthands);
    let Group { spec, pod, scale, volumes, .. } = group;
    // The pod itself is compiled at the start of the run.
    template.check(&pod, has_driver_port)?;
    Ok(GroupSettings { spec, template, pod, scale, volumes })
}

/// Adds the security fields, the affinity and the volumes that the group's keys ask for.
fn add_to_pod(
    template: &mut Template,
    group: &Group,
    is_image_alone: bool,
) -> Result<(), TemplateError> {
    if is_image_alone && group.security != Some(Security::Baseline) {
        template.harden()?;
    }
    if group.security == Some(Security::Restricted) {
        template.restrict()?;
    }
    if let Some(beside) = &group.beside {
        template.place_beside(beside)?;
    }
    template.mount_slot_volumes(group.pod.container.as_deref(), &group.volumes)
}

/// The Secret of tasks must not be that of an entry of `credentials`.
fn check_secrets(config: &Config, app: &str, file: &str) -> Result<(), Failure> {
    let name = secret_name(app);
    match config.credentials.iter().position(|entry| entry.secret == name) {
        None => Ok(()),
        Some(i) => Err(Failure::usage(format!(
            "{file}: credentials[{i}].secret: {name} is the Secret of the application's tasks: take another name"
        ))),
    }
}

/// Volumes that outlive a run have no instance in their names, so two runs would use them at once.
fn check_volumes(groups: &[GroupSettings], exclusive: bool, file: &str) -> Result<(), Failure> {
    let keeps = |group: &&GroupSettings| {
        group.volumes.iter().any(|volume| volume.keep == KeepVolume::Application)
    };
    match groups.iter().find(keeps).filter(|_| !exclusive) {
        None => Ok(()),
        Some(group) => {
            let message = format!(
                "{file}: volumes_per_slot of group {} has `keep: application`, which {NEEDS_EXCLUSIVE}",
                group.spec.name
            );
            Err(Failure::usage(message))
        }
    }
}

pub(super) fn read_template(path: &Path) -> Result<Template, Failure> {
    let shown = path.display().to_string();
    Ok(Template::parse(&shown, &read_text(&shown, path)?)?)
}

/// Why nothing could make the driver ready, or why its executors could not be kept.
fn problem_of_driver(driver: &Driver) -> Option<&'static str> {
    if driver.ready.needs_driver_port() && driver.port.is_none() {
        Some("ready has no port: write tcp:PORT or http:PORT/PATH, or set driver.port")
    } else if driver.ready == Ready::Socket && driver.command.is_empty() {
        Some("ready: socket is for a driver that posse starts: name driver.command")
    } else if driver.keep_executors == Some(true)
        && driver.command.iter().any(|word| word.contains(SPARK))
    {
        Some(
            "keep_executors: Spark's executors end with their driver, because they do not connect to \
             another one; leave it out",
        )
    } else {
        None
    }
}

fn driver(config: &mut Config, args: &RunArgs, env: Env<'_>) -> Result<Driver, Failure> {
    let mut driver = std::mem::take(&mut config.driver);
    if !args.driver.is_empty() {
        driver.command.clone_from(&args.driver);
    }
    driver.port = args.file.driver_port.or(driver.port);
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
        Some(text) if text == "off" => Control::Off,
        Some(text) => Control::At(
            ControlAddr::parse(text).map_err(|why| Failure::usage(format!("--control: {why}")))?,
        ),
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

fn metrics(config: &Config, args: &RunArgs) -> Result<Option<ListenAddr>, Failure> {
    let metrics = match &args.metrics {
        Some(text) => {
            Metrics::parse(text).map_err(|why| Failure::usage(format!("--metrics: {why}")))?
        }
        None => config.metrics,
    };
    match metrics {
        Metrics::At(address) => Ok(Some(address)),
        Metrics::Default | Metrics::Off => Ok(None),
    }
}

fn page(config: &Config, args: &RunArgs, control: &Control) -> Result<Option<ListenAddr>, Failure> {
    let page = match args.page.as_deref() {
        None => config.page,
        Some("off") => None,
        Some(text) => {
            let page = ListenAddr::parse(text);
            Some(page.map_err(|why| Failure::usage(format!("--page: {why}")))?)
        }
    };
    match (page, &args.page_token_file) {
        (Some(at), None) if at.is_public() => Err(Failure::usage(format!(
            "a page on {at} needs --page-token-file FILE, because others can reach this address; \
             127.0.0.1:{} needs none",
            at.port()
        ))),
        (None, Some(_)) if !matches!(control, Control::At(ControlAddr::Tcp(_))) => {
            Err(Failure::usage(
                "--page-token-file needs --page HOST:PORT, or a control API on HOST:PORT",
            ))
        }
        (page, _) => Ok(page),
    }
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

/// The folder for the output of ended tasks: the one in the configuration, else one that lives as long as the record
/// of them. The tasks of `posse map` print their output.
fn task_output(
    config: &Config,
    events: Option<&EventTarget>,
    args: &RunArgs,
    world: &World<'_>,
) -> Option<OutputFolder> {
    let found = |path| Some(OutputFolder { path, is_named: false });
    match (&config.task_output, events) {
        (TaskOutput::Off, _) => None,
        (TaskOutput::At(path), _) => {
            Some(OutputFolder { path: world.dir.join(path), is_named: true })
        }
        (TaskOutput::Default, _) if args.jobs.is_some() => None,
        (TaskOutput::Default, Some(EventTarget::File(path))) if may_be_file(path) => {
            let mut folder = path.as_os_str().to_owned();
            folder.push(".output");
            found(folder.into())
        }
        (TaskOutput::Default, _) => {
            let is_in_cluster = (world.env)("KUBERNETES_SERVICE_HOST").is_some();
            let folder = Path::new(POD_FOLDER);
            (is_in_cluster && folder.is_dir()).then(|| folder.join("output")).and_then(found)
        }
    }
}

/// Where the run keeps what it was told. The embedded cluster ends with the run, and so do its tasks.
fn record(config: &Config, args: &RunArgs, world: &World<'_>) -> RecordSetting {
    if let Some(path) = &args.record {
        if path.as_os_str() == "off" {
            return RecordSetting::Off;
        }
        return RecordSetting::File(world.dir.join(path));
    }
    match &config.record {
        // `posse map` takes its lines anew each time, and has a record of its own in --resume.
        Record::Auto if args.embedded.dev || args.jobs.is_some() => RecordSetting::Off,
        Record::Auto => RecordSetting::Auto(records_folder(world.env)),
        Record::Cluster => RecordSetting::Cluster,
        Record::File(path) => RecordSetting::File(world.dir.join(path)),
        Record::Off => RecordSetting::Off,
    }
}

/// The folder of this user's records.
fn records_folder(env: Env<'_>) -> Option<PathBuf> {
    let state = env("XDG_STATE_HOME").filter(|path| path.starts_with('/')).map(PathBuf::from);
    let home =
        || Some(Path::new(&env("HOME").filter(|home| !home.is_empty())?).join(".local/state"));
    Some(state.or_else(home)?.join("posse"))
}

/// True if it is a regular file, or will be one.
fn may_be_file(path: &Path) -> bool {
    !path.starts_with("/dev") && std::fs::metadata(path).map_or(true, |facts| facts.is_file())
}

#[cfg(test)]
mod tests;
