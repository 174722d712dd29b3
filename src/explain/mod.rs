//! `posse explain`: says what the groups of a run wait for, or what happened to one executor. Reads the
//! run's control API and the cluster.

pub mod report;
pub mod text;

use std::collections::BTreeMap;
use std::io::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::ExplainArgs;
use crate::connection::Connection;
use crate::control_client::{FoundRun, find_run};
use crate::exit::{Code, Failure};
use crate::explain::report::{ExecutorReport, in_order};
use crate::listing::{Listing, print_listing};
use crate::location::connect_as;
use crate::namespace::Namespace;
use crate::world::World;
use posse_base::text::{age, one_line};
use posse_core::model::pod::StartProblemKind;
use posse_core::model::refusal::Refusal;
use posse_core::model::waiting::{StartWait, Waiting};
use posse_core::policy::loss::classify;
use posse_kube::api::CALL_TIMEOUT;
use posse_kube::api::objects::Objects;
use posse_kube::api::pods::Pods;
use posse_kube::api::queues;
use posse_kube::http::Http;
use posse_submit::apps::App;
use posse_submit::state::DriverState;
use posse_wire::control::event_text::{fact, facts, string};
use posse_wire::control::status_json::{GroupJson, RunNames, StatusJson};
use posse_wire::k8s::labels::{EXECUTOR_ID, INSTANCE, Selection};
use posse_wire::k8s::seen_event::pull;
use posse_wire::pod::details::PodDetails;

/// `posse explain`.
///
/// # Errors
/// There is no such run, group or executor, and the cluster has no executors of the application.
pub fn explain(
    args: &ExplainArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let now = Timestamp::now();
    let (client, id) = args.client.with_number(&args.words, "ID")?;
    if id.is_none() && args.logs.is_some() {
        return Err(Failure::usage("--logs needs the ID of an executor"));
    }
    if id.is_some() && args.group.is_some() {
        return Err(Failure::usage("--group and the ID of an executor cannot be used together"));
    }
    let run = find_run(&client, world).and_then(|run| {
        let status = run.client.status()?;
        Ok((run, status))
    });
    let (run, status) = match (run, &client.app) {
        (Ok(run), _) => run,
        // The run is gone, but its pods may still exist.
        (Err(failure), Some(app)) if failure.code != Code::Usage => {
            return explain_ended_run(args, (app, id), &failure, world, out);
        }
        (Err(failure), _) => return Err(failure),
    };
    let listing = match id {
        Some(id) => {
            let report = executor_report(args, id, &run, &status, world)?;
            Explanation {
                text: report.text(now),
                json: report.json(),
                names: report.pod_and_uid().map(|(pod, _)| pod).into_iter().collect(),
            }
        }
        None => {
            // Fails if there is no such group.
            let mut text = text::groups(&status, args.group.as_deref(), now).map_err(failed)?;
            text.push_str(&last_losses(&run, &status, args.group.as_deref())?);
            let groups = status.groups.iter();
            let shown = groups.filter(|one| args.group.as_ref().is_none_or(|g| *g == one.group));
            let groups: Vec<&GroupJson> = shown.collect();
            text.push_str(&pulls(args, &run, &status, &groups, world));
            Explanation {
                text,
                json: json!({"groups": groups, "outage": status.outage}),
                names: groups.iter().map(|one| one.group.clone()).collect(),
            }
        }
    };
    print_listing(&listing, args.output, out)
}

/// What the last executor of each group died of that slows down for it, and how to read more. Nothing of others.
fn last_losses(run: &FoundRun, status: &StatusJson, only: Option<&str>) -> Result<String, Failure> {
    let words =
        [StartWait::CrashLoop, StartWait::ConfigError, StartWait::ImageError, StartWait::Timeout];
    let words = words.map(|wait| Waiting::Start(wait).as_str());
    let is_meant = |group: &&GroupJson| {
        let is_slow = group.waiting.as_deref().is_some_and(|waiting| words.contains(&waiting));
        is_slow && only.is_none_or(|only| only == group.group)
    };
    let groups: Vec<&str> = status.groups.iter().filter(is_meant).map(|one| &*one.group).collect();
    if groups.is_empty() {
        return Ok(String::new());
    }
    let (mut losses, mut logs) = (BTreeMap::new(), BTreeMap::new());
    let mut each = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        let group = string(&event["group"]).to_owned();
        match string(&event["event"]) {
            "executor_lost" => drop(losses.insert(group, event)),
            "executor_log" => drop(logs.insert(event["executor"].as_u64(), event)),
            _ => {}
        }
        Ok(())
    };
    run.client.events(0, Some(&status.identity.run), false, &mut each)?;
    let app = &status.identity.app;
    let line = |group: &str| {
        let event = losses.get(group)?;
        let id = event["executor"].as_u64()?;
        let log = logs.get(&Some(id)).and_then(|log| log["log"].as_array()?.last());
        let wrote = log.map_or_else(String::new, |line| format!("; its last line: {}", fact(line)));
        let why = facts(event, Timestamp::now());
        let text = format!(
            "the last loss of group {group}: executor {id}: {why}{wrote}; `posse explain {app} {id} --logs 20` shows more"
        );
        Some(one_line(&text).into_owned() + "\n")
    };
    Ok(groups.into_iter().filter_map(line).collect())
}

/// How long the first starting executor of each group has pulled its image, as far as the cluster can be read.
fn pulls(
    args: &ExplainArgs,
    run: &FoundRun,
    status: &StatusJson,
    groups: &[&GroupJson],
    world: &World<'_>,
) -> String {
    let is_meant = |group: &&&GroupJson| group.waiting.is_none() && group.pending > 0;
    let starting = groups.iter().filter(is_meant).filter_map(|group| {
        let of_group = status.executors.iter().filter(|one| one.group == group.group);
        let first = of_group.filter(|one| one.state == "pending").min_by_key(|one| one.id)?;
        Some((first.id, first.uid.as_deref()?))
    });
    let starting: Vec<(u64, &str)> = starting.collect();
    if starting.is_empty() {
        return String::new();
    }
    let Ok(server) = server(args, run, status, world) else { return String::new() };
    let reader = ClusterReader::new(&server, &status.identity);
    let line = |(id, uid): (u64, &str)| {
        let events = reader.objects.events(uid).unwrap_or_default();
        let (text, seconds) = pull(&events, Timestamp::now())?;
        let text = format!("executor {id}: {text}, for {} so far", age(seconds));
        Some(one_line(&text).into_owned() + "\n")
    };
    starting.into_iter().filter_map(line).collect()
}

/// The cluster of a live run.
fn server(
    args: &ExplainArgs,
    run: &FoundRun,
    status: &StatusJson,
    world: &World<'_>,
) -> Result<Connection, Failure> {
    match &run.namespace {
        Some(namespace) => Ok(namespace.connection.clone()),
        None => connect_as(&status.identity, &args.client.namespace.server, world),
    }
}

/// What is printed, in all formats.
struct Explanation {
    text: String,
    json: Value,
    /// Of groups, or of executors' pods.
    names: Vec<String>,
}

impl Listing for Explanation {
    fn table(&self, _is_wide: bool) -> String {
        self.text.clone()
    }

    fn json(&self) -> Value {
        self.json.clone()
    }

    fn names(&self) -> Vec<String> {
        self.names.clone()
    }
}

fn failed(message: String) -> Failure {
    Failure::new(Code::Failed, message)
}

/// The report about an executor of a live run.
fn executor_report(
    args: &ExplainArgs,
    id: u64,
    run: &FoundRun,
    status: &StatusJson,
    world: &World<'_>,
) -> Result<ExecutorReport, Failure> {
    let state = status.executors.iter().find(|one| one.id == id).cloned();
    let mut report = ExecutorReport { id, state, ..ExecutorReport::default() };
    let mut n_missed = 0;
    let mut each = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        n_missed += event["count"].as_u64().filter(|_| event["event"] == "missed").unwrap_or(0);
        if event["executor"].as_u64() == Some(id) {
            report.events.push(event);
        }
        Ok(())
    };
    run.client.events(0, Some(&status.identity.run), false, &mut each)?;
    if n_missed > 0 {
        report.notes.push(format!("{n_missed} older events of the run are no longer available"));
    }
    let Some((name, uid)) = report.pod_and_uid() else {
        return Err(failed(format!(
            "there is no executor {id} now, and no available event mentions it"
        )));
    };
    match server(args, run, status, world) {
        Ok(server) => {
            let cluster = ClusterReader::new(&server, &status.identity);
            cluster.add_pod_by_name(&name, uid.as_deref(), args.logs, &mut report);
        }
        Err(error) => report.notes.push(format!("the cluster was not read: {error}")),
    }
    Ok(report)
}

/// Explains the executors of a run that has ended, from the cluster alone.
fn explain_ended_run(
    args: &ExplainArgs,
    (app, id): (&str, Option<u64>),
    failure: &Failure,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let why = &failure.message;
    let nothing = |more: &str| failed(format!("{why}; {more}"));
    let place = Namespace::new(&args.client.namespace, world)
        .map_err(|error| nothing(&format!("the cluster cannot be read either: {error}")))?;
    let (server, namespace, objects) = (&place.connection, &place.name, place.objects());
    let pods = objects
        .executors(app, id)
        .map_err(|refusal| server.failure(&format!("{why}; its executors"), &refusal))?;
    let apps = place.apps(&objects, &[app.to_owned()]).unwrap_or_default();
    let ended = apps.iter().find_map(|app| Some((app, driver_line(app)?)));
    if let (true, None, Some((ended, line))) = (pods.is_empty(), id, &ended) {
        let application = ended.to_json(Timestamp::now().as_second());
        let (text, json) = (line.clone(), json!({"application": application, "executors": []}));
        return print_listing(&Explanation { text, json, names: Vec::new() }, args.output, out);
    }
    if pods.is_empty() {
        return Err(nothing(&format!("namespace {namespace} has no executors of it")));
    }
    let now = Timestamp::now();
    let mut reports = Vec::new();
    for pod in pods {
        let label = |name: &str| pod.meta.label(name).unwrap_or("?").to_owned();
        let of_pod: u64 = label(EXECUTOR_ID).parse().unwrap_or(0);
        let mut report = ExecutorReport { id: of_pod, ..ExecutorReport::default() };
        let identity = RunNames {
            app: app.to_owned(),
            instance: label(INSTANCE),
            namespace: namespace.clone(),
            ..RunNames::default()
        };
        let cluster = ClusterReader::new(server, &identity);
        if id.is_none() {
            let line = ClusterReader::line(&pod, of_pod);
            report.pod = Some(pod);
            reports.push((line, report));
            continue;
        }
        cluster.add_pod(pod, args.logs, &mut report);
        reports.push((report.text(now), report));
    }
    let head = match &ended {
        Some((_, line)) => line.clone(),
        None => format!("{}; in namespace {namespace}:\n", one_line(why)),
    };
    let all: Vec<Value> = reports.iter().map(|(_, report)| report.json()).collect();
    let listing = Explanation {
        text: reports.iter().fold(head, |text, (line, _)| text + line),
        names: all.iter().filter_map(|one| Some(one["pod"]["name"].as_str()?.to_owned())).collect(),
        json: json!({"executors": all}),
    };
    print_listing(&listing, args.output, out)
}

/// How a submitted application ended, and what shows more, or why its driver has no pod; else none.
fn driver_line(app: &App) -> Option<String> {
    let state = app.state?;
    if matches!(state, DriverState::Pending | DriverState::Retrying) {
        let line =
            format!("application {}: {}, {}", app.name, state.as_str(), app.waiting.as_ref()?);
        return Some(one_line(&line).into_owned() + "\n");
    }
    if !state.is_over() {
        return None;
    }
    let code = app.exit_code.map_or_else(String::new, |code| format!(", exit code {code}"));
    let pod = app.driver.as_ref().map_or_else(String::new, |pod| format!(", driver pod {pod}"));
    let (name, state) = (&app.name, state.as_str());
    let line = format!(
        "application {name} has ended: {state}{code}{pod}; `posse logs {name}` prints its log"
    );
    Some(one_line(&line).into_owned() + "\n")
}

/// Reads pods, events and logs of one instance from the cluster.
struct ClusterReader {
    http: Http,
    namespace: String,
    objects: Objects,
    pods: Pods,
}

impl ClusterReader {
    fn new(server: &Connection, identity: &RunNames) -> Self {
        let namespace = identity.namespace.as_str();
        let selection =
            Selection { app: identity.app.clone(), instance: identity.instance.clone() };
        Self {
            http: server.http.clone(),
            namespace: namespace.to_owned(),
            objects: Objects::new(server.http.clone(), Some(namespace)),
            pods: Pods::new(server.http.clone(), namespace, selection),
        }
    }

    /// Adds the pod if it has this uid; another pod of the same name is ignored.
    fn add_pod_by_name(
        &self,
        name: &str,
        uid: Option<&str>,
        n_log: Option<u32>,
        report: &mut ExecutorReport,
    ) {
        match self.objects.pod(name) {
            Ok(Some(pod)) if uid.is_none_or(|uid| pod.uid() == uid) => {
                self.add_pod(pod, n_log, report);
            }
            Ok(_) => {
                report.notes.push(format!("pod {name} is no longer in the cluster"));
                if let Some(uid) = uid {
                    self.add_events(uid, report);
                }
            }
            Err(refusal) => report.notes.push(format!("pod {name} cannot be read: {refusal}")),
        }
    }

    fn add_pod(&self, pod: PodDetails, n_log: Option<u32>, report: &mut ExecutorReport) {
        self.add_events(pod.uid(), report);
        if pod.facts.start_problem.as_ref().is_some_and(|one| one.kind == StartProblemKind::Queued)
        {
            match queues::workload(&self.http, &self.namespace, pod.uid()) {
                Ok(workload) => report.workload = workload,
                Err(refusal) => {
                    report.notes.push(format!("the pod's Workload cannot be read: {refusal}"));
                }
            }
        }
        if let Some(n_lines) = n_log {
            match self.read_log(&pod, n_lines) {
                Ok(lines) => report.log = lines,
                Err(refusal) => {
                    report.notes.push(format!("the pod's log cannot be read: {refusal}"));
                }
            }
        }
        report.pod = Some(pod);
    }

    fn add_events(&self, uid: &str, report: &mut ExecutorReport) {
        match self.objects.events(uid) {
            Ok(events) => report.pod_events = in_order(events),
            Err(refusal) => {
                report.notes.push(format!("the pod's events cannot be read: {refusal}"));
            }
        }
    }

    fn read_log(&self, pod: &PodDetails, n_lines: u32) -> Result<Vec<String>, Refusal> {
        let init = pod.facts.end.as_ref().and_then(|end| end.init.as_ref());
        let container = init.map_or(pod.main.as_str(), |init| &*init.name);
        self.pods.log(pod.name(), Some(container), n_lines, CALL_TIMEOUT)
    }

    /// One line about an executor.
    fn line(pod: &PodDetails, id: u64) -> String {
        let (name, phase) = (pod.name(), pod.phase());
        let why = match &pod.facts.end {
            Some(_) => {
                let loss = classify(&pod.facts, false);
                format!(": {}: {}", loss.reason.as_str(), loss.message)
            }
            None => String::new(),
        };
        one_line(&format!("executor {id}: {phase}, pod {name}{why}")).into_owned() + "\n"
    }
}
