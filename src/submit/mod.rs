//! `posse submit`: creates a driver in the cluster from files and flags, and follows it to its end.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::args::submit::{NamespaceArgs, SubmitArgs};
use crate::args::{CleanupArgs, FileArgs, Output, RunArgs, ServerArgs};
use crate::connection::Connection;
use crate::exit::{Code, Failure};
use crate::namespace::{Namespace, start_signals};
use crate::pod_dialer::PodDialer;
use crate::required_permissions::of_settings;
use crate::settings;
use crate::shown_identity::shown_identity;
use crate::stage::Outgoing;
use crate::terminal::{print, with_log_output};
use crate::wait::describe;
use crate::world::World;
use crate::{cleanup, follow, manifest, pod_files};
use posse_base::text::one_line;
use posse_control::client::Client;
use posse_core::model::pod_text::PodOverrides;
use posse_core::model::refusal::RefusalClass;
use posse_core::model::waiting::Waiting;
use posse_kube::api::objects::{Kind, Objects};
use posse_run::random::random_bits;
use posse_run::run::settings::{GroupSettings, RunSettings};
use posse_run::signals::Signals;
use posse_submit::files::Files;
use posse_submit::follow::{Follower, RunWaits};
use posse_submit::give_up;
use posse_submit::listener::Listener;
use posse_submit::manifests::manifests;
use posse_submit::plan::{Plan, ScrapePort};
use posse_submit::pod_files::PodFiles;
use posse_submit::submission::{Submission, SubmitError};
use posse_wire::config::{DriverPod, PodSource, PosseImage, TaskOutput};
use posse_wire::control::status_json::GroupJson;
use posse_wire::k8s::object::Meta;
use posse_wire::k8s::permissions::{LOGS, Rule};
use posse_wire::names;
use posse_wire::pod::arguments::literal;
use posse_wire::pod::template::Template;

/// The driver's container, if the pod is made from an image only.
const CONTAINER_NAME: &str = "driver";

/// `posse submit`.
///
/// # Errors
/// Invalid settings (exit code 2), a refused template (4), an API server that refuses or does not
/// answer, or an application that is running already (3), objects that could not be deleted again (12).
pub fn submit(args: &SubmitArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let request = SubmitRequest {
        file: &args.file,
        driver: &args.driver,
        posse_image: args.posse_image.as_ref(),
        create_rbac: args.create_rbac,
    };
    // Errors in the files are reported before the server is contacted.
    let files = pod_files::named(args, world)?;
    let mut plan = plan(&request, world)?;
    let outgoing = Outgoing::of_submission(&args.stage, &files, world)?;
    plan.pod_files = match &outgoing {
        // The server checks all objects before any file is uploaded.
        Some(outgoing) => PodFiles::Staged(outgoing.ticket(Vec::new())),
        None if files.is_empty() => PodFiles::None,
        None => PodFiles::Inline(pod_files::read(&files)?),
    };
    settings::found::announce(request.file, world);
    let connection = Connection::told(&args.server, world)?;
    plan.or_namespace(&connection.namespace);
    let objects = Objects::new(connection.http.clone(), Some(&plan.namespace));
    let app = plan.app.clone();
    let mut submission =
        Submission { objects: objects.clone(), manifests: manifests(&plan)?, plan };
    submission.manifests.warnings.iter().for_each(|warning| log::warn!("{warning}"));
    let failed = |why: SubmitError| {
        if matches!(why, SubmitError::AlreadyRunning(_)) && !args.dry_run {
            end_rests(&objects, &app);
        }
        failure(&app, &connection, &why)
    };
    if let Some(outgoing) = outgoing.filter(|_| !args.dry_run) {
        submission.check().map_err(failed)?;
        let plan = &mut submission.plan;
        plan.pod_files = PodFiles::Staged(outgoing.send(&plan.namespace, &plan.app)?);
        submission.manifests = manifests(plan)?;
    }
    if args.dry_run {
        submission.check().map_err(failed)?;
        return manifest::print(submission.manifests.all(), Output::Yaml, out);
    }
    let signals = start_signals()?;
    let (workload, is_interrupted) = create(&submission, &signals, out)?;
    let workload = workload.map_err(failed)?;
    let plan = &submission.plan;
    let kind = Kind::of(&submission.manifests.workload).unwrap_or(Kind::Job);
    let line = format!(
        "application {} submitted: {} in namespace {}",
        plan.app,
        kind.with_name(&workload.name),
        plan.namespace
    );
    // It came too late for the creation.
    if is_interrupted {
        log::info!("{line}");
        return Ok(follow::detach(&plan.app));
    }
    if args.no_wait {
        return print(out, &format!("{}\n", one_line(&line))).map(|()| Code::Clean);
    }
    log::info!("{line}");
    let follower = follower(args, plan, objects, kind, workload, &connection);
    let code =
        with_log_output(out, args.raw, |out| follow::wait(follower, &connection, &signals, out))?;
    if code != follow::DETACHED {
        remove_executors(&plan.app, &plan.namespace, &args.server, world);
    }
    Ok(code)
}

fn follower(
    args: &SubmitArgs,
    plan: &Plan,
    objects: Objects,
    kind: Kind,
    workload: Meta,
    connection: &Connection,
) -> Follower {
    Follower {
        objects,
        app: plan.app.clone(),
        kind,
        name: workload.name,
        uid: workload.uid,
        logs: args.logs,
        tail: None,
        gives_up: Some(Duration::from_millis(plan.image_timeout_ms)),
        run_waits: Some(run_waits(&plan.app, &plan.namespace, connection)),
    }
}

/// Lets a Job go on whose driver was killed together with posse, beside a container that runs on.
fn end_rests(objects: &Objects, app: &str) {
    match give_up::end_rests(objects, app) {
        Ok(lines) => lines.iter().for_each(|line| log::warn!("{}", one_line(line))),
        Err(refusal) => log::debug!("the driver's pods cannot be listed: {refusal}"),
    }
}

/// Asks the run through its pod, as `posse status` does.
fn run_waits(app: &str, namespace: &str, connection: &Connection) -> RunWaits {
    let (app, name) = (app.to_owned(), namespace.to_owned());
    let namespace = Namespace { connection: connection.clone(), name };
    Box::new(move || {
        let dialer = PodDialer::find(&namespace, &app).map_err(|failure| failure.message)?;
        let status = Client::through(Box::new(dialer)).observe().map_err(|e| e.to_string())?;
        let pace = Waiting::all().filter(|one| one.is_pace()).map(Waiting::as_str);
        let pace: Vec<&str> = pace.collect();
        let waits = |group: &&GroupJson| {
            group.waiting.as_deref().is_some_and(|waiting| !pace.contains(&waiting))
        };
        Ok(status.groups.iter().filter(waits).map(describe).collect())
    })
}

/// Creates the driver on a thread of its own, so that an interrupt works even if the server is slow. Also says whether
/// there was one.
fn create(
    submission: &Submission,
    signals: &Signals,
    out: &mut dyn Write,
) -> Result<(Result<Meta, SubmitError>, bool), Failure> {
    let submission = submission.clone();
    let is_interrupted = Arc::new(AtomicBool::new(false));
    let is_cancelled = Arc::clone(&is_interrupted);
    let work = move |_: Listener<'_>| submission.submit(&|| is_cancelled.load(Ordering::Acquire));
    let mut interrupt = || {
        is_interrupted.store(true, Ordering::Release);
        log::info!("interrupted: if not all objects are created, those that are will be deleted");
        false
    };
    let created = follow::pump(work, signals, &mut interrupt, out)?;
    let created = created.unwrap_or(Err(SubmitError::Interrupted));
    Ok((created, is_interrupted.load(Ordering::Acquire)))
}

/// The arguments of a plan.
#[derive(Clone, Copy)]
pub struct SubmitRequest<'a> {
    pub file: &'a FileArgs,
    pub driver: &'a [String],
    pub posse_image: Option<&'a PosseImage>,
    pub create_rbac: bool,
}

/// Reads and checks the configuration and the files that it names. The plan's namespace is empty if
/// none is configured.
pub fn plan(request: &SubmitRequest<'_>, world: &World<'_>) -> Result<Plan, Failure> {
    let file = request.file;
    if file.instance.is_some() {
        let message =
            "--instance is not for drivers in the cluster: each driver pod is an instance";
        return Err(Failure::usage(message));
    }
    let run = RunArgs { file: file.clone(), driver: request.driver.to_vec(), ..RunArgs::default() };
    let settings = settings::run_settings(&run, world)?;
    let (shown, config) = settings::read_config(file, world)?;
    let driver = &settings.driver;
    let mut pod = driver.pod.clone();
    if let Some(image) = request.posse_image {
        pod.posse_image = Some(image.clone());
    }
    if !settings::has_file(file, world) {
        // One image, for the driver and its executors.
        pod.shorthands.image.clone_from(&file.image);
    }
    let template = driver_template(&mut pod, &shown, folder(file), world)?;
    check_account(request.create_rbac, &template, &shown)?;
    // Without a file, a text that says nothing: the flags say it all.
    let text =
        settings::config_text(file, world)?.map_or_else(|| "{}\n".to_owned(), |(_, text)| text);
    // --template replaces the templates of the groups.
    let groups = if file.template.is_none() { config.executors.as_slice() } else { &[] };
    let templates = groups.iter().filter_map(|group| match &group.source {
        PodSource::File(path) => Some(path),
        PodSource::Inline(_) | PodSource::Shorthands => None,
    });
    let read = |path: &String| {
        let at = world.dir.join(folder(file)).join(path);
        Ok((path.clone(), settings::read_text(&at.display().to_string(), &at)?))
    };
    let mut files = Files::new(text, templates.map(read).collect::<Result<_, Failure>>()?);
    let app = file.app.clone().or_else(|| config.app.is_none().then(|| settings.app.clone()));
    let args = run_args(request, app, &mut files, world)?;
    let scrape = ScrapePort::of(config.metrics, &template);
    // A queue of tasks keeps their output, if nothing else is said.
    let keeps_output = match &config.task_output {
        TaskOutput::At(_) => true,
        TaskOutput::Default => driver.command.is_empty(),
        TaskOutput::Off => false,
    };
    let mut rules: Vec<Rule> = of_settings(&settings).into_iter().map(|(rule, _)| rule).collect();
    if keeps_output && !rules.contains(&LOGS) {
        rules.push(LOGS);
    }
    Ok(Plan {
        app: settings.app.clone(),
        namespace: settings.namespace.clone().unwrap_or_default(),
        submission: names::instance_from_bits(random_bits()),
        pod,
        template,
        files,
        args,
        common: Arc::clone(&settings.common),
        queue: settings.queue.clone(),
        has_driver_command: !driver.command.is_empty(),
        executors: executor_pods(&settings)?,
        n_executors: settings.groups.iter().map(|group| u64::from(group.spec.target)).sum(),
        grace_ms: settings.grace_ms,
        stop_timeout_ms: settings.policy.stop_timeout_ms,
        image_timeout_ms: settings.policy.image_timeout_ms(),
        // A Job may create a second pod while the first still runs on an unreachable node. Only a
        // Lease can prevent two drivers.
        exclusive: config.exclusive.unwrap_or(config.lease),
        scrape,
        create_rbac: request.create_rbac,
        credential_secrets: settings.credentials.iter().map(|one| one.secret.clone()).collect(),
        task_secrets: config.task_secrets,
        rules,
        pod_files: PodFiles::None,
    })
}

/// A pod of each group, with placeholders for what only a run can know.
fn executor_pods(settings: &RunSettings) -> Result<Vec<(String, Value)>, Failure> {
    let run = shown_identity(settings);
    let pod = |group: &GroupSettings| {
        let compiled = group.template.compile(&settings.identity(Some(group), &run))?;
        let body = compiled.render(1, 0, &PodOverrides::default());
        let pod = serde_json::from_slice(&body).expect("a rendered pod is JSON; build.rs tests it");
        Ok((group.spec.name.to_string(), pod))
    };
    settings.groups.iter().map(pod).collect()
}

/// The flags that are passed on to `posse run` in the pod, and the driver's command.
fn run_args(
    request: &SubmitRequest<'_>,
    app: Option<String>,
    files: &mut Files,
    world: &World<'_>,
) -> Result<Vec<String>, Failure> {
    let FileArgs {
        executors,
        command,
        image,
        cpu,
        memory,
        template,
        driver_port,
        app: _,
        file: _,
        namespace: _,
        instance: _,
    } = request.file;
    let template = template.as_ref().map(|path| {
        let at = world.dir.join(path);
        let text = settings::read_text(&at.display().to_string(), &at)?;
        Ok::<_, Failure>(files.add_flag("template", text))
    });
    let flags = [
        ("--app", app),
        ("--executors", executors.map(|n| n.to_string())),
        ("--command", command.as_deref().map(literal)),
        ("--image", image.clone()),
        ("--cpu", cpu.clone()),
        ("--memory", memory.clone()),
        ("--template", template.transpose()?),
        ("--driver-port", driver_port.map(|port| port.to_string())),
    ];
    let mut args = Vec::new();
    for (flag, value) in flags {
        // In one word, because a value may begin with `-`.
        args.extend(value.map(|value| format!("{flag}={value}")));
    }
    if !request.driver.is_empty() {
        args.push("--".to_owned());
        args.extend(request.driver.iter().map(|word| literal(word)));
    }
    Ok(args)
}

fn folder(file: &FileArgs) -> &Path {
    file.file.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new(""))
}

/// A service account is either created or named.
fn check_account(is_created: bool, template: &Template, shown: &str) -> Result<(), Failure> {
    if is_created && template.spec.get("serviceAccountName").is_some_and(|name| !name.is_null()) {
        return Err(Failure::usage(format!(
            "{shown}: driver.pod: spec.serviceAccountName and --create-rbac exclude each other"
        )));
    }
    Ok(())
}

fn driver_template(
    pod: &mut DriverPod,
    shown: &str,
    folder: &Path,
    world: &World<'_>,
) -> Result<Template, Failure> {
    let source = std::mem::replace(&mut pod.source, PodSource::Shorthands);
    let template = match &source {
        PodSource::File(path) => settings::read_template(&world.dir.join(folder).join(path))?,
        PodSource::Inline(value) => {
            Template::from_json(&format!("{shown}: driver.pod"), value.clone())?
        }
        PodSource::Shorthands => {
            // Without an own image the driver runs in posse's image.
            let brings = pod.posse_image.as_ref().map(|brings| brings.image().to_owned());
            let Some(image) = pod.shorthands.image.clone().or(brings) else {
                return Err(Failure::usage(format!(
                    "{shown}: driver: there is no pod: give image, template or pod, or posse_image \
                     to run without a driver"
                )));
            };
            let containers = json!([{ "name": CONTAINER_NAME, "image": image }]);
            pod.shorthands.image = Some(image);
            let value: Value = json!({ "spec": { "containers": containers } });
            Template::from_json(&format!("{shown}: driver"), value)?
        }
    };
    pod.source = source;
    Ok(template)
}

/// Deletes executors that run on though their driver pod has ended. Needed if the driver was killed, because posse runs in
/// the same pod.
fn remove_executors(app: &str, namespace: &str, server: &ServerArgs, world: &World<'_>) {
    let args = CleanupArgs {
        app: Some(app.to_owned()),
        namespace: NamespaceArgs { namespace: Some(namespace.to_owned()), server: server.clone() },
        yes: true,
        spares_ended: true,
        ..CleanupArgs::default()
    };
    let mut text = Vec::new();
    let done = cleanup::cleanup(&args, world, &mut text);
    let text = String::from_utf8_lossy(&text);
    if let Some(line) = text.lines().find(|line| line.starts_with("removed ")) {
        log::info!("executors of ended drivers: {line}");
    }
    if let Err(failure) = done {
        log::warn!("executors of ended drivers may remain: {failure}");
    }
}

/// The exit code and message of a failed submission.
pub fn failure(app: &str, connection: &Connection, why: &SubmitError) -> Failure {
    let message = format!("application {app} is not submitted: {why}");
    let code = match why {
        SubmitError::NotCleanedUp { .. } => Code::Remain,
        SubmitError::Interrupted => follow::DETACHED,
        SubmitError::AlreadyRunning(_) | SubmitError::InProgress { .. } => Code::Server,
        SubmitError::NameTaken { .. } => Code::Failed,
        SubmitError::Refused { refusal, what } => {
            use RefusalClass::{Forbidden, Invalid, NamespaceGone, Unauthorized};
            let class = refusal.class;
            if class.is_temporary() || [Forbidden, NamespaceGone, Unauthorized].contains(&class) {
                let what = format!("application {app} is not submitted: {what}");
                return connection.failure(&what, refusal);
            }
            if class == Invalid { Code::TemplateRefused } else { Code::Failed }
        }
    };
    Failure::new(code, message)
}
