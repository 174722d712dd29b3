//! Owns `posse explain`: asks the run, and the cluster for what the run does not tell. The words are
//! `explain`'s and `story`'s.

use std::io::Write;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::args::ExplainArgs;
use crate::cli::client::find;
use crate::cli::exit::{Code, Failure};
use crate::cli::server::Connection;
use crate::cli::story::Story;
use crate::cli::{World, explain, print};
use crate::control::client::{Client, ClientError};
use crate::core::loss::classify;
use crate::core::model::input::PodAnswer;
use crate::core::model::refusal::Refusal;
use crate::kube::api::CALL_TIMEOUT;
use crate::kube::api::executor_lookup::ExecutorLookup;
use crate::kube::api::pods::Pods;
use crate::wire::labels::{EXECUTOR_ID, INSTANCE, Selection};
use crate::wire::pod;
use crate::wire::status_json::{RunNames, StatusJson};

/// `posse explain`.
///
/// # Errors
/// There is neither a run nor anything in the cluster that tells of what is asked for.
pub fn explain(
    args: &ExplainArgs,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let now = Timestamp::now();
    let run = find(&args.client, world).and_then(|client| {
        let status = client.status()?;
        Ok((client, status))
    });
    let (client, status) = match (run, &args.client.app) {
        (Ok(run), _) => run,
        // What it left behind may tell.
        (Err(error), Some(app)) if is_gone(&error) => {
            return left_behind(args, app, &error, world, out);
        }
        (Err(error), _) => return Err(error.into()),
    };
    let text = match args.id {
        Some(id) => {
            let story = of_run(args, id, &client, &status, world)?;
            told(&story, args, now)
        }
        None if args.json => {
            // A group that is not there is a mistake in either form.
            explain::groups(&status, args.group.as_deref(), now).map_err(failed)?;
            let groups = status.groups.iter();
            let shown = groups.filter(|one| args.group.as_ref().is_none_or(|g| *g == one.group));
            format!("{}\n", json!({"groups": shown.collect::<Vec<_>>()}))
        }
        None => explain::groups(&status, args.group.as_deref(), now).map_err(failed)?,
    };
    print(out, &text).map(|()| Code::Clean)
}

fn is_gone(error: &ClientError) -> bool {
    matches!(error, ClientError::None { .. } | ClientError::Unreachable { .. })
}

fn failed(message: String) -> Failure {
    Failure::new(Code::Failed, message)
}

fn told(story: &Story, args: &ExplainArgs, now: Timestamp) -> String {
    if args.json { format!("{}\n", story.json()) } else { story.text(now) }
}

/// An executor that a run knows, or knew.
fn of_run(
    args: &ExplainArgs,
    id: u64,
    client: &Client,
    status: &StatusJson,
    world: &World<'_>,
) -> Result<Story, Failure> {
    let state = status.executors.iter().find(|one| one.id == id).cloned();
    let mut story = Story { id, state, ..Story::default() };
    let mut n_missed = 0;
    let mut each = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        n_missed += event["count"].as_u64().filter(|_| event["event"] == "missed").unwrap_or(0);
        if event["executor"].as_u64() == Some(id) {
            story.events.push(event);
        }
        Ok(())
    };
    client.events(0, Some(&status.identity.run), false, &mut each)?;
    if n_missed > 0 {
        story.notes.push(format!("{n_missed} older events of the run are kept no more"));
    }
    let Some((name, uid)) = story.pod_and_uid() else {
        return Err(failed(format!(
            "there is no executor {id} now, and no event that is kept tells of one"
        )));
    };
    match Connection::new(&args.server, world) {
        Ok(server) => {
            let sight = Sight::new(&server, &status.identity);
            sight.look_at(&name, uid.as_deref(), args.logs, &mut story);
        }
        Err(error) => story.notes.push(format!("the cluster was not asked: {error}")),
    }
    Ok(story)
}

/// What the cluster alone tells: there is no run any more.
fn left_behind(
    args: &ExplainArgs,
    app: &str,
    error: &ClientError,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let why = error.to_string();
    let nothing = |more: &str| failed(format!("{why}; {more}"));
    let server = Connection::new(&args.server, world)
        .map_err(|error| nothing(&format!("the cluster cannot be asked either: {error}")))?;
    let namespace = args.namespace.clone().unwrap_or_else(|| server.namespace.clone());
    let witness = ExecutorLookup::new(server.http.clone(), namespace.as_str());
    let pods = witness
        .executors(app, args.id)
        .map_err(|refusal| nothing(&server.failure("its executors", &refusal).to_string()))?;
    if pods.is_empty() {
        return Err(nothing(&format!("namespace {namespace} holds none of its executors")));
    }
    let now = Timestamp::now();
    let mut stories = Vec::new();
    for pod in pods {
        let label = |name: &str| pod["metadata"]["labels"][name].as_str().unwrap_or("?").to_owned();
        let id: u64 = label(EXECUTOR_ID).parse().unwrap_or(0);
        let mut story = Story { id, ..Story::default() };
        let who = RunNames {
            run: String::new(),
            app: app.to_owned(),
            instance: label(INSTANCE),
            namespace: namespace.clone(),
        };
        let sight = Sight::new(&server, &who);
        if args.id.is_none() {
            let line = sight.line(&pod, id);
            story.pod = Some(pod);
            stories.push((line, story));
            continue;
        }
        sight.look_into(pod, args.logs, &mut story);
        stories.push((story.text(now), story));
    }
    let text = if args.json {
        let all: Vec<Value> = stories.iter().map(|(_, story)| story.json()).collect();
        format!("{}\n", json!({"executors": all}))
    } else {
        let head = format!("{why}; namespace {namespace} still tells:\n");
        stories.iter().fold(head, |text, (line, _)| text + line)
    };
    print(out, &text).map(|()| Code::Clean)
}

/// A look into the cluster for one instance.
struct Sight {
    witness: ExecutorLookup,
    pods: Pods,
}

impl Sight {
    fn new(server: &Connection, who: &RunNames) -> Self {
        let namespace = who.namespace.as_str();
        let selection = Selection { app: who.app.clone(), instance: who.instance.clone() };
        Self {
            witness: ExecutorLookup::new(server.http.clone(), namespace),
            pods: Pods::new(server.http.clone(), namespace, selection),
        }
    }

    /// Adds what the cluster knows of that pod; of another one of its name it is silent.
    fn look_at(&self, name: &str, uid: Option<&str>, n_log: Option<u32>, story: &mut Story) {
        match self.witness.pod(name) {
            Ok(Some(pod)) if uid.is_none_or(|uid| pod["metadata"]["uid"] == uid) => {
                self.look_into(pod, n_log, story);
            }
            Ok(_) => {
                story.notes.push(format!("pod {name} is not in the cluster any more"));
                if let Some(uid) = uid {
                    self.add_events(uid, story);
                }
            }
            Err(refusal) => story.notes.push(format!("pod {name} cannot be read: {refusal}")),
        }
    }

    fn look_into(&self, pod: Value, n_log: Option<u32>, story: &mut Story) {
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        self.add_events(&uid, story);
        if let Some(n_lines) = n_log {
            match self.read_log(&pod, n_lines) {
                Ok(lines) => story.log = lines,
                Err(refusal) => story.notes.push(format!("its log cannot be read: {refusal}")),
            }
        }
        story.pod = Some(pod);
    }

    fn add_events(&self, uid: &str, story: &mut Story) {
        match self.witness.events(uid) {
            Ok(events) => story.pod_events = events,
            Err(refusal) => {
                story.notes.push(format!("what was recorded about it cannot be read: {refusal}"));
            }
        }
    }

    fn read_log(&self, pod: &Value, n_lines: u32) -> Result<Vec<String>, Refusal> {
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let container = match pod::parse(pod.to_string().as_bytes(), self.pods.selection()) {
            Ok(PodAnswer::Ours(pod)) => match pod.end.and_then(|end| end.init) {
                Some(init) => Some(init.name),
                None => pod.main_container,
            },
            Ok(PodAnswer::Foreign(_)) | Err(_) => None,
        };
        self.pods.log(name, container.as_deref(), n_lines, CALL_TIMEOUT)
    }

    /// One executor in one line.
    fn line(&self, pod: &Value, id: u64) -> String {
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let (name, phase) = (text(&pod["metadata"]["name"]), text(&pod["status"]["phase"]));
        let why = match pod::parse(pod.to_string().as_bytes(), self.pods.selection()) {
            Ok(PodAnswer::Ours(pod)) if pod.end.is_some() => {
                let loss = classify(&pod, false);
                format!(": {}: {}", loss.reason.as_str(), loss.message)
            }
            Ok(_) | Err(_) => String::new(),
        };
        format!("executor {id}: {phase}, pod {name}{why}\n")
    }
}
