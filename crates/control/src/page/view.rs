//! `GET /v1/history`: what the page shows, or what has changed of it.

use crate::answer::Answer;
use crate::event_stream::{check_run, number};
use crate::page::history::ENDED_KEPT;
use crate::served_run::{Observed, ServedRun};
use posse_core::model::command::{Command, Reply};
use posse_core::model::ids::GroupName;
use posse_serve::Request;
use posse_wire::control::history_json::HistoryJson;
use posse_wire::control::task::statuses_body;

/// Answers with the state of the groups, and with the part of the history after version `since`.
pub(crate) fn history(subject: &ServedRun, request: &Request) -> Result<Answer, Answer> {
    let Some(history) = &subject.history else {
        let what =
            "this run keeps no history: it has neither --page nor a control address HOST:PORT";
        return Err(Answer::error(404, what, None));
    };
    let since = number(request, "since")?;
    check_run(request, &subject.identity.run)?;
    let Observed { status, now, epoch } = subject.observe()?;
    let mut view = HistoryJson::new(&subject.identity, &status, now, epoch);
    view.newest_event = subject.events.newest();
    view.driver_page = subject.driver_page.get();
    view.add_usage(&subject.usage.read());
    let body = history.read(since, |changes| {
        let json = HistoryJson {
            version: changes.version,
            executors: changes.executors,
            ended: changes.n_ended,
            ended_kept: ENDED_KEPT,
            samples: changes.samples,
            ..view
        };
        json.to_json()
    });
    let what = "this version is too old, or of another run: start again without since";
    body.map(Answer::ok).ok_or_else(|| Answer::error(409, what, Some("since")))
}

/// `GET /v1/groups/{group}/executors`: the open tasks of a group, and the ended ones that the run remembers. Or the output of
/// one that has ended. `asks`: the listener asks for a token; without it every user of the machine would read what programs
/// print.
pub(crate) fn tasks(subject: &ServedRun, path: &str, asks: bool) -> Result<Answer, Answer> {
    let segments: Vec<&str> = path.split('/').collect();
    match segments.as_slice() {
        ["", "v1", "groups", group, "executors"] => {
            let view = Command::ViewTasks { group: (*group).into(), key: None };
            let Reply::Tasks(tasks) = subject.core.ask(view, None)? else {
                return Err(Answer::error(404, "there is no such group", Some("group")));
            };
            Ok(Answer::ok(statuses_body(&tasks)))
        }
        ["", "v1", "groups", group, "executors", key, "output"] if asks => {
            output(subject, &(*group).into(), key)
        }
        ["", "v1", "groups", _, "executors", _, "output"] => {
            let what = "only a page with --page-token-file shows what tasks have printed";
            Err(Answer::error(403, what, None))
        }
        _ => Err(Answer::error(404, "there is no such call", None)),
    }
}

/// The output of an ended task, also of one that the run has forgotten.
pub(crate) fn output(subject: &ServedRun, group: &GroupName, key: &str) -> Result<Answer, Answer> {
    let found = match &subject.outputs {
        Some(outputs) => outputs.find(group, key),
        None => {
            let why = "is not kept by this run: start it with `--events FILE`, or set task_output";
            Err(why.to_owned())
        }
    };
    let missing = |why| Answer::error(404, &format!("the output of the task {why}"), Some("key"));
    found.map(Answer::bytes).map_err(missing)
}
