//! `GET /v1/history`: what the page shows, or what has changed of it.

use crate::answer::Answer;
use crate::event_stream::{check_run, number};
use crate::page::history::ENDED_KEPT;
use crate::served_run::{Observed, ServedRun};
use posse_core::model::command::{Command, Reply};
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

/// `GET /v1/groups/{group}/executors`: the open tasks of a group, and the ended ones that the run remembers.
pub(crate) fn tasks(subject: &ServedRun, path: &str) -> Result<Answer, Answer> {
    let group = path.strip_prefix("/v1/groups/").and_then(|rest| rest.strip_suffix("/executors"));
    let group = group.ok_or_else(|| Answer::error(404, "there is no such call", None))?;
    let Reply::Tasks(tasks) = subject.core.ask(Command::ViewTasks(group.into()), None)? else {
        return Err(Answer::error(404, "there is no such group", Some("group")));
    };
    Ok(Answer::ok(statuses_body(&tasks)))
}
