//! `posse logs`: prints the log of an application's driver or of one of its executors.

use std::io::{self, Read, Write};
use std::sync::atomic::AtomicBool;

use serde_json::Value;

use crate::cli::args::submit::LogsArgs;
use crate::cli::exit::{Code, Failure};
use crate::cli::follow;
use crate::cli::namespace::{Namespace, start_signals};
use crate::cli::terminal::with_log_output;
use crate::cli::world::World;
use crate::core::model::refusal::Refusal;
use crate::kube::api::executor_lookup::ExecutorLookup;
use crate::kube::api::objects::{Kind, LogQuery, Objects};
use crate::submit::follow::Follower;
use crate::submit::listener::Listener;
use crate::submit::logs::LogFollower;
use crate::submit::state::{is_final, main_container, name_of, newest, uid_of};
use crate::submit::stop;
use crate::submit::workload::owned_pods;

/// The size of one read from a log, bytes.
const COPY_BYTES: usize = 16 << 10;

/// `posse logs`.
///
/// # Errors
/// There is no such application or executor, or the API server does not return its log.
pub fn logs(args: &LogsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let namespace = Namespace::new(&args.namespace, world)?;
    let objects = namespace.objects();
    if args.follow && args.executor.is_none() {
        let keeper = namespace.keeper(&objects, &args.app)?;
        if let Some((kind, keeper)) = keeper.filter(|(_, keeper)| !is_final(keeper)) {
            return follow_driver(args, &namespace, kind, &keeper, out);
        }
    }
    let pods = pods(args, &namespace, &objects)?;
    let Some(pod) = newest(&pods) else {
        return Err(match args.executor {
            None if namespace.keeper(&objects, &args.app)?.is_some() => {
                let message = format!("the driver of application {} has no pod now", args.app);
                Failure::new(Code::Failed, message)
            }
            None => namespace.no_such_app(&args.app),
            Some(id) => {
                let message = format!("application {} has no executor {id} now", args.app);
                Failure::new(Code::Failed, message)
            }
        });
    };
    let pod_name = name_of(pod).to_owned();
    if args.follow {
        let tail = args.tail;
        let read = move |say: Listener<'_>| {
            let is_ended = &AtomicBool::new(false);
            LogFollower { objects, listener: say, tail, is_ended }.follow(&pod_name);
        };
        let is_whole = with_log_output(out, args.raw, |out| {
            follow::pump(Box::new(read), &start_signals()?, &mut || true, out)
        });
        return Ok(if is_whole? { Code::Clean } else { follow::DETACHED });
    }
    let query = LogQuery {
        container: Some(main_container(pod).to_owned()),
        tail: args.tail,
        ..LogQuery::default()
    };
    let mut stream = objects.log(&pod_name, &query).map_err(|refusal| {
        namespace.refused(&format!("cannot read the log of pod {pod_name}"), &args.app, &refusal)
    })?;
    with_log_output(out, args.raw, |out| copy(stream.reader(), out))
        .map(|()| Code::Clean)
        .map_err(|error| Failure::new(Code::Failed, format!("the log: {error}")))
}

fn copy(reader: &mut dyn Read, out: &mut dyn Write) -> io::Result<()> {
    let mut piece = vec![0; COPY_BYTES];
    loop {
        match reader.read(&mut piece)? {
            0 => return out.flush(),
            n => out.write_all(&piece[..n])?,
        }
    }
}

/// The pods of the driver, or those of the executor that is asked for.
fn pods(args: &LogsArgs, namespace: &Namespace, objects: &Objects) -> Result<Vec<Value>, Failure> {
    let refused = |refusal: Refusal| namespace.refused("cannot be read", &args.app, &refusal);
    match args.executor {
        None => {
            let keeper = namespace.keeper(objects, &args.app)?;
            let job = keeper.filter(|(kind, _)| *kind == Kind::Job).map(|(_, job)| job);
            let pods = stop::drivers(objects, &args.app).map_err(refused)?;
            Ok(owned_pods(job.as_ref(), pods))
        }
        id @ Some(_) => {
            let http = namespace.connection.http.clone();
            let lookup = ExecutorLookup::new(http, namespace.name.as_str());
            lookup.executors(&args.app, id).map_err(refused)
        }
    }
}

fn follow_driver(
    args: &LogsArgs,
    namespace: &Namespace,
    kind: Kind,
    keeper: &Value,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let follower = Follower {
        objects: namespace.objects(),
        app: args.app.clone(),
        kind,
        name: name_of(keeper).to_owned(),
        uid: uid_of(keeper).to_owned(),
        logs: true,
        tail: args.tail,
    };
    let signals = start_signals()?;
    let code = with_log_output(out, args.raw, |out| {
        follow::wait(follower, &namespace.connection, &signals, out)
    })?;
    // The exit code of the application is not the exit code of `posse logs`.
    Ok(if code == follow::DETACHED { code } else { Code::Clean })
}
