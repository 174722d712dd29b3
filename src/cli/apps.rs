//! Owns `posse apps`, `posse logs` and `posse stop`: what they are asked for, and what they print.

use std::io::{self, Write};
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use serde_json::Value;

use crate::cli::args::submit::{AppsArgs, AppsOutput, LogsArgs, PlaceArgs, StopArgs};
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::submit::wait;
use crate::cli::{World, print};
use crate::control::table::table;
use crate::core::model::refusal::Refusal;
use crate::kube::api::executor_lookup::ExecutorLookup;
use crate::kube::api::objects::{Kind, LogQuery, Objects};
use crate::runtime::signals::Signals;
use crate::submit::apps::{App, age, find};
use crate::submit::follow::Follower;
use crate::submit::listener::Listener;
use crate::submit::logs::LogFollower;
use crate::submit::state::{is_final, main_container, name_of, newest, uid_of};
use crate::submit::stop;
use crate::submit::workload::{find_workload, owned_pods};

/// How much of a log is read at once, bytes.
const COPY_BYTES: usize = 16 << 10;

/// A namespace of a server.
struct Place {
    connection: Connection,
    namespace: String,
}

impl Place {
    fn new(args: &PlaceArgs, world: &World<'_>) -> Result<Self, Failure> {
        let connection = Connection::new(&args.server, world)?;
        let namespace = args.namespace.clone().unwrap_or_else(|| connection.namespace.clone());
        Ok(Self { connection, namespace })
    }

    fn objects(&self) -> Objects {
        Objects::new(self.connection.http.clone(), Some(&self.namespace))
    }

    fn find(&self, objects: &Objects, names: &[String]) -> Result<Vec<App>, Failure> {
        find(objects, names).map_err(|refusal| {
            self.connection.failure("the applications cannot be listed", &refusal)
        })
    }

    fn nothing(&self, name: &str) -> Failure {
        let message = format!("there is no application {name} in namespace {}", self.namespace);
        Failure::new(Code::Failed, message)
    }

    /// What a refusal about an application comes to.
    fn failure(&self, what: &str, app: &str, refusal: &Refusal) -> Failure {
        self.connection.failure(&format!("application {app}: {what}"), refusal)
    }
}

/// `posse apps`.
///
/// # Errors
/// The server cannot be asked, or does not allow it.
pub fn apps(args: &AppsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let place = Place::new(&args.place, world)?;
    let objects = match args.all_namespaces {
        true => Objects::new(place.connection.http.clone(), None),
        false => place.objects(),
    };
    let apps = place.find(&objects, &args.names)?;
    let now_s = Timestamp::now().as_second();
    let text = match (args.output, apps.is_empty()) {
        (Some(AppsOutput::Json), _) => {
            let all: Value = apps.iter().map(|app| app.to_json(now_s)).collect();
            format!("{all:#}\n")
        }
        (Some(AppsOutput::Wide) | None, true) => match args.all_namespaces {
            true => "there are no applications\n".to_owned(),
            false => format!("there are no applications in namespace {}\n", place.namespace),
        },
        (Some(AppsOutput::Wide), false) => wide(&apps, now_s),
        (None, false) => narrow(&apps, now_s, args.all_namespaces),
    };
    print(out, &text).map(|()| Code::Clean)
}

fn narrow(apps: &[App], now_s: i64, all_namespaces: bool) -> String {
    let heads = ["NAME", "STATE", "EXECUTORS", "AGE", "DRIVER"].map(str::to_owned);
    let rows = apps.iter().map(|app| {
        let [namespace, rest @ ..] = cells(app, now_s);
        let [name, state, executors, age, driver, ..] = rest;
        let name = if all_namespaces { format!("{namespace}/{name}") } else { name };
        [name, state, executors, age, driver]
    });
    table(&heads, rows.collect())
}

fn wide(apps: &[App], now_s: i64) -> String {
    let heads = [
        "NAMESPACE",
        "NAME",
        "STATE",
        "EXECUTORS",
        "AGE",
        "DRIVER",
        "NODE",
        "INSTANCE",
        "FAILED",
        "EXIT",
    ];
    table(&heads.map(str::to_owned), apps.iter().map(|app| cells(app, now_s)).collect())
}

fn cells(app: &App, now_s: i64) -> [String; 10] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        app.namespace.clone(),
        app.name.clone(),
        or_dash(app.state.map(|state| state.as_str().to_owned())),
        app.executors(),
        or_dash(app.created_s.map(|created_s| age(now_s - created_s))),
        or_dash(app.driver.clone()),
        or_dash(app.node.clone()),
        or_dash(app.instance.clone()),
        app.n_failed.to_string(),
        or_dash(app.exit_code.map(|code| code.to_string())),
    ]
}

/// `posse logs`.
///
/// # Errors
/// There is no such application or executor, or the server does not give its log.
pub fn logs(args: &LogsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let place = Place::new(&args.place, world)?;
    let objects = place.objects();
    let refused = |refusal: Refusal| place.failure("it cannot be looked at", &args.app, &refusal);
    if args.follow && args.executor.is_none() {
        let workload = find_workload(&objects, &args.app).map_err(refused)?;
        if let Some((kind, workload)) = workload.filter(|(_, workload)| !is_final(workload)) {
            return follow_driver(args, &place, kind, &workload, out);
        }
    }
    let pods = match args.executor {
        None => {
            let workload = find_workload(&objects, &args.app).map_err(refused)?;
            let job = workload.filter(|(kind, _)| *kind == Kind::Job).map(|(_, job)| job);
            let pods = stop::drivers(&objects, &args.app).map_err(refused)?;
            owned_pods(job.as_ref(), pods)
        }
        id @ Some(_) => {
            let witness =
                ExecutorLookup::new(place.connection.http.clone(), place.namespace.as_str());
            witness.executors(&args.app, id).map_err(refused)?
        }
    };
    let Some(pod) = newest(&pods) else {
        let workload = find_workload(&objects, &args.app).map_err(refused)?;
        return Err(match args.executor {
            None if workload.is_some() => {
                let message = format!("the driver of application {} has no pod now", args.app);
                Failure::new(Code::Failed, message)
            }
            None => place.nothing(&args.app),
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
        return Ok(match wait::pump(Box::new(read), &signals()?, &mut || true, out)? {
            true => Code::Clean,
            false => wait::DETACHED,
        });
    }
    let query = LogQuery {
        container: Some(main_container(pod).to_owned()),
        tail: args.tail,
        ..LogQuery::default()
    };
    let mut stream = objects.log(&pod_name, &query).map_err(|refusal| {
        place.failure(&format!("no log of pod {pod_name}"), &args.app, &refusal)
    })?;
    let cut = |error: io::Error| Failure::new(Code::Failed, format!("the log: {error}"));
    let mut piece = vec![0; COPY_BYTES];
    loop {
        let n = stream.reader().read(&mut piece).map_err(cut)?;
        if n == 0 {
            return out.flush().map(|()| Code::Clean).map_err(cut);
        }
        out.write_all(&piece[..n]).map_err(cut)?;
    }
}

fn follow_driver(
    args: &LogsArgs,
    place: &Place,
    kind: Kind,
    workload: &Value,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let follower = Follower {
        objects: place.objects(),
        app: args.app.clone(),
        kind,
        name: name_of(workload).to_owned(),
        uid: uid_of(workload).to_owned(),
        logs: true,
        tail: args.tail,
    };
    let code = wait::wait(follower, &place.connection, &signals()?, out)?;
    // Its code is not ours: what was asked for is its log.
    Ok(if code == wait::DETACHED { code } else { Code::Clean })
}

fn signals() -> Result<Signals, Failure> {
    Signals::start().map_err(|error| Failure::new(Code::Failed, format!("signals: {error}")))
}

/// `posse stop`.
///
/// # Errors
/// A name that fits no application, a server that does not allow it, pods that were not seen to go
/// (exit code 12).
pub fn stop(args: &StopArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let place = Place::new(&args.place, world)?;
    let objects = place.objects();
    let apps = place.find(&objects, &args.names)?;
    let outside: Vec<String> =
        apps.iter().filter(|app| app.state.is_none()).map(|app| app.name.clone()).collect();
    let mut names: Vec<String> = apps.into_iter().map(|app| app.name).collect();
    for name in &args.names {
        let is_pattern = name.contains(['*', '?']);
        if !is_pattern && !names.contains(name) {
            // Parts without a Job are what a submit left that was killed.
            names.push(name.clone());
        } else if is_pattern && !names.iter().any(|app| crate::submit::apps::matches(name, app)) {
            return Err(place.nothing(name));
        }
    }
    let grace_s = args.grace.map(|ms| u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX));
    // All are told before the first is waited for: they end at the same time.
    let asked: Vec<_> =
        names.iter().map(|app| (app, stop::StopRequest::new(&objects, app, grace_s))).collect();
    let mut worst: Option<Failure> = None;
    for (app, asked) in asked {
        let failure = match asked.and_then(|asked| asked.finish()) {
            Ok(stop::Stopped::Gone) => {
                print(out, &format!("application {app} stopped\n"))?;
                continue;
            }
            Ok(stop::Stopped::Nothing) if outside.contains(app) => {
                let message = format!(
                    "application {app} was not submitted: end the `posse run` that keeps its \
                     executors, or see `posse cleanup --app {app}`"
                );
                Failure::new(Code::Failed, message)
            }
            Ok(stop::Stopped::Nothing) => place.nothing(app),
            Ok(stop::Stopped::Remain(pods)) => {
                let message = format!("application {app}: may remain: {}", pods.join(", "));
                Failure::new(Code::Remain, message)
            }
            Err(refusal) => place.failure("it cannot be stopped", app, &refusal),
        };
        if let Some(earlier) = worst.replace(failure) {
            log::error!("{earlier}");
        }
    }
    worst.map_or(Ok(Code::Clean), Err)
}
