//! `posse stop`: ends runs on this host, and applications in the cluster.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use jiff::Timestamp;
use serde_json::Value;

use crate::args::submit::StopArgs;
use crate::exit::{Code, Failure};
use crate::namespace::Namespace;
use crate::settings::socket_folders;
use crate::terminal::print;
use crate::world::World;
use posse_base::text::one_line;
use posse_control::address::{app_of, live_sockets};
use posse_control::client::Client;
use posse_control::run_process::RunProcess;
use posse_submit::apps::{is_pattern, matches};
use posse_submit::stop;
use posse_wire::control::event_text::facts;

/// How long a run on this host may take to end.
const LOCAL_LIMIT: Duration = Duration::from_secs(600);
/// A run that answers at all tells its first event within this time.
const FIRST_EVENT_LIMIT: Duration = Duration::from_secs(2);

/// `posse stop`: a name that a run on this host has is its name, and no cluster is asked about it.
///
/// # Errors
/// No application has one of the names, the API server refuses, or pods were not confirmed deleted
/// (exit code 12).
pub fn stop(args: &StopArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let wanted: Vec<String> = args.names.iter().chain(&args.app).cloned().collect();
    let local = local_runs(args, &wanted, world);
    if args.grace.is_some() && !local.is_empty() {
        log::warn!(
            "--grace is for submitted drivers: runs on this host take their `shutdown.grace`"
        );
    }
    let is_local = |name: &String| local.values().any(|app| matches(name, app));
    let rest: Vec<String> = wanted.into_iter().filter(|name| !is_local(name)).collect();
    let mut report = Report { out, written: Ok(()) };
    let mut stopped = stop_local(&local, &mut report);
    if !rest.is_empty() {
        let in_cluster = stop_in_cluster(args, &rest, world, &mut report);
        // The command fails with one of them.
        if let (Err(_), Err(failure)) = (&in_cluster, &stopped) {
            log::error!("{failure}");
        }
        stopped = in_cluster.and(stopped);
    }
    stopped.and(report.written).map(|()| Code::Clean)
}

/// Says what was stopped. Whoever does not read it any more wants all of them stopped, too.
struct Report<'a> {
    out: &'a mut dyn Write,
    written: Result<(), Failure>,
}

impl Report<'_> {
    fn stopped(&mut self, app: &str) {
        let written = print(self.out, &format!("application {} stopped\n", one_line(app)));
        if self.written.is_ok() {
            self.written = written;
        }
    }
}

/// The sockets of the runs on this host that are meant, and their applications; none if a namespace or a cluster is
/// named.
fn local_runs(args: &StopArgs, wanted: &[String], world: &World<'_>) -> BTreeMap<PathBuf, String> {
    // In a pod, a run of this name may be the submitted driver itself, whose Job would start it again.
    let is_in_pod = (world.env)("KUBERNETES_SERVICE_HOST").is_some();
    if is_in_pod || args.namespace.is_given() {
        return BTreeMap::new();
    }
    let sockets = live_sockets(None, &socket_folders(world)).into_iter();
    let runs =
        sockets.filter_map(|socket| app_of(&socket).map(str::to_owned).map(|app| (socket, app)));
    runs.filter(|(_, app)| wanted.iter().any(|name| matches(name, app))).collect()
}

/// Ends runs on this host. All are told to end before the first is waited for.
fn stop_local(runs: &BTreeMap<PathBuf, String>, report: &mut Report<'_>) -> Result<(), Failure> {
    let asked: Vec<_> = runs.iter().map(|(socket, app)| (app, LocalStop::begin(socket))).collect();
    let mut last = None::<Failure>;
    for (app, asked) in asked {
        let failure = match asked.and_then(LocalStop::finish) {
            Ok(None) => {
                report.stopped(app);
                continue;
            }
            Ok(Some(end)) => {
                let hint = format!("`posse cleanup --app {app}` shows what is left");
                Failure::new(Code::Remain, format!("application {app}: {end}; {hint}"))
            }
            Err(why) => {
                let message = format!("application {app} on this host: cannot be stopped: {why}");
                Failure::new(Code::Failed, message)
            }
        };
        if let Some(earlier) = last.replace(failure) {
            log::error!("{earlier}");
        }
    }
    last.map_or(Ok(()), Err)
}

/// The stop of a run on this host.
struct LocalStop {
    process: RunProcess,
    end: JoinHandle<Option<String>>,
}

impl LocalStop {
    /// Follows the events of a run, of which only the last one says whether the stop was clean, and tells it to end.
    fn begin(socket: &Path) -> io::Result<Self> {
        let process = RunProcess::at(socket)?;
        let client = Client::at(socket.to_owned());
        let (told, first_event) = bounded(1);
        let follow = move || unclean_end(&client, &told);
        let end = thread::Builder::new().name("events".to_owned()).spawn(follow)?;
        // A run with too many readers, or none that answers, is ended too.
        let _ = first_event.recv_timeout(FIRST_EVENT_LIMIT);
        process.terminate()?;
        Ok(Self { process, end })
    }

    /// Waits for the end of the run; none: it was clean.
    fn finish(self) -> io::Result<Option<String>> {
        if !self.process.wait(LOCAL_LIMIT)? {
            let what = format!("it still runs after {} s", LOCAL_LIMIT.as_secs());
            return Err(io::Error::other(what));
        }
        self.end.join().map_err(|_| io::Error::other("the thread that followed it has failed"))
    }
}

/// Follows a run to its end; `told` learns of the first event. None: it was clean, or the run has too many readers and is
/// not followed.
fn unclean_end(client: &Client, told: &Sender<()>) -> Option<String> {
    let mut last = None;
    let followed = client.events(0, None, true, &mut |line| {
        let _ = told.try_send(());
        last = Some(line.to_owned());
        Ok(())
    });
    let last = last?;
    if followed.is_err() {
        return Some("its run ended without a word".to_owned());
    }
    let stopped: Value = serde_json::from_str(&last).unwrap_or_default();
    let is_unclean = stopped["count"].as_u64() > Some(0);
    is_unclean.then(|| facts(&stopped, Timestamp::now()))
}

fn stop_in_cluster(
    args: &StopArgs,
    wanted: &[String],
    world: &World<'_>,
    report: &mut Report<'_>,
) -> Result<(), Failure> {
    let namespace = Namespace::new(&args.namespace, world)?;
    let objects = namespace.objects();
    let apps = namespace.apps(&objects, wanted)?;
    let not_submitted: Vec<String> =
        apps.iter().filter(|app| app.state.is_none()).map(|app| app.name.clone()).collect();
    let mut names: Vec<String> = apps.into_iter().map(|app| app.name).collect();
    for name in wanted {
        if !is_pattern(name) && !names.contains(name) {
            // A submit that was killed may have left objects without a Job.
            names.push(name.clone());
        } else if is_pattern(name) && !names.iter().any(|app| matches(name, app)) {
            return Err(namespace.no_such_app(name));
        }
    }
    let grace_s = args.grace.map(|ms| u32::try_from(ms.div_ceil(1_000)).unwrap_or(u32::MAX));
    // All applications are told to end before the first is waited for, so that they end together.
    let asked: Vec<_> =
        names.iter().map(|app| (app, stop::StopRequest::new(&objects, app, grace_s))).collect();
    let mut last = None::<Failure>;
    for (app, asked) in asked {
        let failure = match asked.and_then(|asked| asked.finish()) {
            Ok(stop::Stopped::Gone) => {
                report.stopped(app);
                continue;
            }
            Ok(stop::Stopped::Nothing) if not_submitted.contains(app) => {
                let message = format!(
                    "application {app} was not submitted: end the `posse run` that keeps its \
                     executors, or see `posse cleanup --app {app}`"
                );
                Failure::new(Code::Failed, message)
            }
            Ok(stop::Stopped::Nothing) => namespace.no_such_app(app),
            Ok(stop::Stopped::Remain(pods)) => {
                let pods = pods.join(", ");
                let message = format!("application {app}: not confirmed deleted: {pods}");
                Failure::new(Code::Remain, message)
            }
            Err(refusal) => namespace.refused("cannot be stopped", app, &refusal),
        };
        if let Some(earlier) = last.replace(failure) {
            log::error!("{earlier}");
        }
    }
    last.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use posse_testing::{Answer, TestServer};
    use serde_json::json;

    use crate::testing::{Broken, Folder};

    use super::*;

    #[test]
    fn all_are_stopped_though_nobody_can_read_it() {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&deleted);
        let server = TestServer::start(None, move |asked| {
            let words: Vec<&str> = asked.line().split([' ', '?', '/']).collect();
            let name = words.iter().find(|word| word.ends_with("-driver"));
            match (name, words.contains(&"configmaps")) {
                (None, _) => {
                    Answer::json(200, r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#)
                }
                (Some(name), true) => {
                    if asked.line().starts_with("DELETE") {
                        seen.lock().unwrap().push((*name).to_owned());
                    }
                    let labels = json!({"posse.dev/app": name.trim_end_matches("-driver"),
                        "app.kubernetes.io/managed-by": "posse",
                        "app.kubernetes.io/component": "driver"});
                    let meta = json!({"name": name, "uid": "u", "labels": labels});
                    Answer::json(200, json!({ "metadata": meta }).to_string())
                }
                (Some(_), false) => {
                    Answer::json(404, json!({"kind": "Status", "reason": "NotFound"}).to_string())
                }
            }
        });
        let folder = Folder::with_server(server.address);
        let no_room = "posse: cannot write the output: ";
        for (kind, want) in
            [(io::ErrorKind::StorageFull, (1, no_room)), (io::ErrorKind::BrokenPipe, (0, ""))]
        {
            let words = "stop a b -n n --kubeconfig k";
            let (code, told) = folder.posse_to(words, &[], &mut Broken(kind));
            assert_eq!((code, told.get(..want.1.len())), (want.0, Some(want.1)), "{told}");
            assert_eq!(std::mem::take(&mut *deleted.lock().unwrap()), ["a-driver", "b-driver"]);
        }
    }
}
