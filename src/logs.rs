//! `posse logs`: prints the log of an application's driver or of one of its executors.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use crate::args::submit::LogsArgs;
use crate::exit::{Code, Failure};
use crate::follow;
use crate::location::{Location, locate};
use crate::namespace::{Namespace, start_signals};
use crate::settings::socket_folders;
use crate::terminal::with_log_output;
use crate::world::World;
use posse_control::address::live_sockets;
use posse_core::model::pod::Phase;
use posse_kube::api::objects::{LogQuery, Objects};
use posse_submit::executor_logs::ExecutorLogs;
use posse_submit::follow::Follower;
use posse_submit::listener::Listener;
use posse_submit::logs::LogFollower;
use posse_submit::state::{newest, pod_line};
use posse_submit::stop;
use posse_submit::workload::{Workload, find_workload, owned_pods};
use posse_wire::pod::details::PodDetails;

/// The size of one read from a log, bytes.
const COPY_BYTES: usize = 16 << 10;

/// `posse logs`.
///
/// # Errors
/// There is no such application or executor, or the API server does not return its log.
pub fn logs(args: &LogsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let (client, id) = args.client.with_number(&args.words, "ID")?;
    if args.executors && id.is_some() {
        return Err(Failure::usage("name one executor, or all by --executors, but not both"));
    }
    let mut location = locate(&client, client.app.is_none(), world)?;
    if args.instance.is_some() {
        location.instance.clone_from(&args.instance);
    }
    let (app, namespace) = (location.app.as_deref().unwrap_or_default(), &location.namespace);
    let objects = namespace.objects();
    let local_folders = location.is_local.then(|| socket_folders(world));
    if args.executors {
        return executor_logs(args, &location, local_folders, out);
    }
    if id.is_none() && location.is_local {
        let message = format!(
            "the driver of application {app} runs on this host: its output is where `posse run` was \
             started. `posse logs {app} --executors` prints the logs of its executors"
        );
        return Err(Failure::new(Code::Failed, message));
    }
    if args.follow && id.is_none() {
        let keeper = namespace.keeper(&objects, app)?;
        if let Some(keeper) = keeper.filter(|keeper| !keeper.is_final()) {
            return follow_driver(args, app, namespace, &keeper, out);
        }
    }
    let pod = match id {
        Some(id) => location.executor(id)?,
        None => driver(app, namespace, &objects)?,
    };
    let pod_name = pod.name().to_owned();
    if args.follow {
        return follow_pod(args, app, objects, &pod_name, local_folders, out);
    }
    let query =
        LogQuery { container: Some(pod.main.clone()), tail: args.tail, ..LogQuery::default() };
    let mut stream = objects.log(&pod_name, &query).map_err(|refusal| {
        // The server answers without a body or with a 400, and does not say what the pod waits for.
        if pod.facts.phase == Phase::Pending {
            let message = format!("there is no log yet: {}", pod_line(&pod));
            return Failure::new(Code::Failed, message);
        }
        namespace.refused(&format!("cannot read the log of pod {pod_name}"), app, &refusal)
    })?;
    with_log_output(out, args.raw, |out| copy(stream.reader(), out)).map(|()| Code::Clean)
}

/// Prints a pod's log until it ends.
fn follow_pod(
    args: &LogsArgs,
    app: &str,
    objects: Objects,
    pod: &str,
    local_folders: Option<Vec<PathBuf>>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let (tail, app, pod) = (args.tail, app.to_owned(), pod.to_owned());
    let read = move |say: Listener<'_>| {
        let is_ended = &AtomicBool::new(false);
        let is_over = &|| {
            let folders = local_folders.as_ref();
            folders.is_some_and(|folders| live_sockets(Some(&app), folders).is_empty())
        };
        LogFollower { objects, listener: say, tail, is_ended, is_over }.follow(&pod)
    };
    let is_whole = with_log_output(out, args.raw, |out| {
        follow::pump(read, &start_signals()?, &mut || true, out)
    });
    Ok(match is_whole? {
        Some(true) => Code::Clean,
        Some(false) => Code::Failed,
        None => follow::DETACHED,
    })
}

fn copy(reader: &mut dyn Read, out: &mut dyn Write) -> Result<(), Failure> {
    let mut piece = vec![0; COPY_BYTES];
    loop {
        let n = reader
            .read(&mut piece)
            .map_err(|error| Failure::new(Code::Failed, format!("the log: {error}")))?;
        let written = if n == 0 { out.flush() } else { out.write_all(&piece[..n]) };
        written.map_err(Failure::output)?;
        if n == 0 {
            return Ok(());
        }
    }
}

/// The pod of the driver.
fn driver(app: &str, namespace: &Namespace, objects: &Objects) -> Result<PodDetails, Failure> {
    let keeper = namespace.keeper(objects, app)?;
    let pods = stop::drivers(objects, app)
        .map_err(|refusal| namespace.refused("cannot be read", app, &refusal))?;
    let pods = owned_pods(keeper.as_ref().and_then(Workload::job), pods);
    newest(&pods).cloned().ok_or_else(|| match keeper {
        Some(_) => {
            let message = format!("the driver of application {app} has no pod now");
            Failure::new(Code::Failed, message)
        }
        None => namespace.no_such_app(app),
    })
}

/// Prints the logs of all executors. With --follow until the driver has ended: its pod, or the run on this host.
fn executor_logs(
    args: &LogsArgs,
    location: &Location,
    local_folders: Option<Vec<PathBuf>>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let (app, namespace) = (location.app.as_deref().unwrap_or_default(), &location.namespace);
    let logs = ExecutorLogs {
        objects: namespace.objects(),
        app: app.to_owned(),
        instance: location.instance.clone(),
        group: args.group.clone(),
        tail: args.tail,
    };
    let is_followed = args.follow;
    let read = move |listener: Listener<'_>| {
        let is_over = || match &local_folders {
            Some(folders) => live_sockets(Some(&logs.app), folders).is_empty(),
            None => has_driver_ended(&logs.objects, &logs.app),
        };
        match is_followed {
            true => logs.follow(listener, &is_over).map(|()| (1, 1)),
            false => logs.read(listener),
        }
    };
    let read = with_log_output(out, args.raw, |out| {
        follow::pump(read, &start_signals()?, &mut || true, out)
    });
    match read? {
        Some(Ok((0, _))) => {
            let group = args.group.as_ref().map(|group| format!(" of group {group}"));
            let (group, namespace) = (group.unwrap_or_default(), &namespace.name);
            let message =
                format!("application {app} has no executors{group} in namespace {namespace}");
            Err(Failure::new(Code::Failed, message))
        }
        Some(Ok((n, 0))) => {
            let what = if n == 1 { "1 executor has" } else { "executors have" };
            let message = format!("application {app}: {what} no log yet");
            Err(Failure::new(Code::Failed, message))
        }
        Some(Err(refusal)) => {
            Err(namespace.refused("its executors cannot be listed", app, &refusal))
        }
        Some(Ok(_)) => Ok(Code::Clean),
        None => Ok(follow::DETACHED),
    }
}

/// True if the driver's Job or pod has finished or is gone. If the server does not answer, it has not.
fn has_driver_ended(objects: &Objects, app: &str) -> bool {
    match find_workload(objects, app) {
        Ok(Some(workload)) => workload.is_final(),
        Ok(None) => true,
        Err(_) => false,
    }
}

fn follow_driver(
    args: &LogsArgs,
    app: &str,
    namespace: &Namespace,
    keeper: &Workload,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let follower = Follower {
        objects: namespace.objects(),
        app: app.to_owned(),
        kind: keeper.kind(),
        name: keeper.meta().name.clone(),
        uid: keeper.meta().uid.clone(),
        logs: true,
        tail: args.tail,
        gives_up: None,
        run_waits: None,
    };
    let signals = start_signals()?;
    let code = with_log_output(out, args.raw, |out| {
        follow::wait(follower, &namespace.connection, &signals, out)
    })?;
    // The exit code of the application is not the exit code of `posse logs`.
    Ok(if code == follow::DETACHED { code } else { Code::Clean })
}
