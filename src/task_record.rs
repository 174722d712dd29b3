//! The record of ended tasks: the file of `--events`, which outlives its run.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use crate::exit::{Code, Failure};
use posse_base::text::one_line;
use posse_wire::control::event::TASK_ENDED;
use posse_wire::control::task::TaskStatusJson;

/// A task and its group.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GroupTask {
    pub group: String,
    #[serde(flatten)]
    pub task: TaskStatusJson,
}

/// The longest line that is read, in bytes. posse writes none as long.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// The most ended tasks of a file.
const TASKS_MAX: usize = 1_000_000;
/// So many wrong lines are told one by one; further ones are counted.
const TOLD_MAX: u64 = 10;

/// The ended tasks, by group and key. A wrong line is told and left out.
///
/// # Errors
/// The file cannot be read, or has too many tasks.
pub(super) fn read_record(path: &Path, group: Option<&str>) -> Result<Vec<GroupTask>, Failure> {
    let shown = path.display();
    let failure = |what: String| Failure::new(Code::Failed, format!("{shown}: {what}"));
    let file = File::open(path).map_err(|error| failure(format!("cannot be read: {error}")))?;
    let mut n_wrong = 0;
    let mut tell = |line: u64, what: &str| {
        n_wrong += 1;
        if n_wrong <= TOLD_MAX {
            log::warn!("{shown}: line {line} {what}");
        }
    };
    let tasks = read(BufReader::new(file), group, &mut tell).map_err(failure)?;
    if n_wrong > TOLD_MAX {
        log::warn!("{shown}: {} more lines are left out", n_wrong - TOLD_MAX);
    }
    Ok(tasks)
}

/// The ends by group and key.
type Ended = BTreeMap<String, BTreeMap<String, TaskStatusJson>>;

fn read(
    mut input: impl BufRead,
    group: Option<&str>,
    tell: &mut dyn FnMut(u64, &str),
) -> Result<Vec<GroupTask>, String> {
    let mut ended = Ended::new();
    let mut n_tasks = 0;
    for n in 1.. {
        let line = read_line(&mut input).map_err(|error| format!("line {n}: {error}"))?;
        match line {
            Line::End => break,
            Line::Long => {
                tell(n, &format!("is longer than {LINE_BYTES_MAX} bytes, so it is left out"));
            }
            Line::Text { bytes, .. } if bytes.trim_ascii().is_empty() => {}
            Line::Text { bytes, is_whole } => match parse(&bytes) {
                Ok(Some((of, task))) if group.is_none_or(|group| group == of) => {
                    // A task that was run again has ended again: the last end counts.
                    let before = ended.entry(of).or_default().insert(task.key.clone(), task);
                    n_tasks += usize::from(before.is_none());
                }
                Ok(_) => {}
                Err(what) if is_whole => tell(n, &what),
                Err(_) => tell(n, "is cut off, so it is left out"),
            },
        }
        if n_tasks > TASKS_MAX {
            return Err(format!("line {n}: more than {TASKS_MAX} tasks"));
        }
    }
    let of_group = |(group, tasks): (String, BTreeMap<String, TaskStatusJson>)| {
        tasks.into_values().map(move |task| GroupTask { group: group.clone(), task })
    };
    Ok(ended.into_iter().flat_map(of_group).collect())
}

/// One line of the file, without its end.
enum Line {
    /// The last one may have no end, so that it is not whole: posse was killed while it wrote it, or writes it now.
    Text {
        bytes: Vec<u8>,
        is_whole: bool,
    },
    Long,
    End,
}

fn read_line(input: &mut impl BufRead) -> std::io::Result<Line> {
    let mut bytes = Vec::new();
    let n_bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
        return Ok(Line::Text { bytes, is_whole: true });
    }
    if n_bytes == 0 {
        return Ok(Line::End);
    }
    if (n_bytes as u64) < LINE_BYTES_MAX {
        return Ok(Line::Text { bytes, is_whole: false });
    }
    // Each piece is shorter than the limit, and nothing of it is kept.
    loop {
        bytes.clear();
        let n_bytes = input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)?;
        if n_bytes == 0 || bytes.last() == Some(&b'\n') {
            return Ok(Line::Long);
        }
    }
}

/// The end of a task and its group, if the line is one.
fn parse(line: &[u8]) -> Result<Option<(String, TaskStatusJson)>, String> {
    const FOREIGN: &str = "is not an event of posse, so it is left out";
    let event: Value = serde_json::from_slice(line).map_err(|_| FOREIGN.to_owned())?;
    match event["event"].as_str() {
        None => return Err(FOREIGN.to_owned()),
        Some("missed") => {
            return Err(format!("tells that {} events before it are missing", event["count"]));
        }
        Some(name) if name != TASK_ENDED => return Ok(None),
        Some(_) => {}
    }
    let wrong =
        |field: &str| format!("is a {TASK_ENDED} without a valid {field}, so it is left out");
    let text = |name: &str| event[name].as_str().map(str::to_owned);
    let needed = |name: &str| text(name).ok_or_else(|| wrong(name));
    // A foreign text in a table takes one line.
    let message = text("message").map(|message| one_line(&message).into_owned());
    let attempts = event["attempts"].as_u64().and_then(|n| u32::try_from(n).ok());
    let exit_code = event["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    let status = TaskStatusJson {
        key: needed("key")?,
        state: needed("outcome")?,
        executor: event["executor"].as_u64(),
        attempts: attempts.ok_or_else(|| wrong("attempts"))?,
        exit_code,
        reason: text("reason"),
        message,
        ..TaskStatusJson::default()
    };
    Ok(Some((needed("group")?, status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(key: &str, group: &str, outcome: &str) -> String {
        format!(
            r#"{{"run":"r","seq":7,"time":"t","event":"task_ended","group":"{group}","key":"{key}","outcome":"{outcome}","exit_code":3,"reason":"app_error","message":"a\nb","attempts":2,"executor":9}}"#
        )
    }

    type Told = Vec<(u64, String)>;

    fn check(text: &[u8], group: Option<&str>) -> (Result<Vec<TaskStatusJson>, String>, Told) {
        let mut told = Vec::new();
        let tasks = read(text, group, &mut |line, what| told.push((line, what.to_owned())));
        (tasks.map(|all| all.into_iter().map(|one| one.task).collect()), told)
    }

    #[test]
    fn the_last_end_of_each_task_is_listed() {
        let other = r#"{"event":"executor_lost","group":"b","executor":1}"#;
        let lines = [
            ended("b", "g", "failed"),
            other.to_owned(),
            String::new(),
            ended("a", "g", "skipped"),
            ended("b", "g", "succeeded"),
        ];
        let (tasks, told) = check(lines.join("\n").as_bytes(), None);
        assert_eq!(told, []);
        let tasks = tasks.unwrap();
        let shown: Vec<(&str, &str)> =
            tasks.iter().map(|task| (task.key.as_str(), task.state.as_str())).collect();
        assert_eq!(shown, [("a", "skipped"), ("b", "succeeded")]);
        let want = TaskStatusJson {
            key: "a".to_owned(),
            state: "skipped".to_owned(),
            executor: Some(9),
            attempts: 2,
            exit_code: Some(3),
            reason: Some("app_error".to_owned()),
            message: Some("a b".to_owned()),
            ..TaskStatusJson::default()
        };
        assert_eq!((tasks[0].executor, tasks[0].attempts), (want.executor, want.attempts));
        assert_eq!((tasks[0].exit_code, &tasks[0].reason), (want.exit_code, &want.reason));
        assert!(!tasks[0].message.as_ref().unwrap().contains('\n'), "{:?}", tasks[0]);
        assert_eq!(check(b"", None).0, Ok(vec![]));
    }

    #[test]
    fn all_groups_are_listed_or_the_named_one() {
        let text = [ended("a", "g", "failed"), ended("a", "h", "failed")].join("\n");
        let all = read(text.as_bytes(), None, &mut |_, _| ()).unwrap();
        assert_eq!(all.iter().map(|one| &*one.group).collect::<Vec<_>>(), ["g", "h"]);
        assert_eq!(check(text.as_bytes(), Some("h")).0.unwrap().len(), 1);
        assert_eq!(check(text.as_bytes(), Some("i")).0.unwrap().len(), 0);
    }

    #[test]
    fn a_wrong_line_is_told_by_its_number_and_left_out() {
        let long = format!("\"{}\"", "x".repeat(3 << 20));
        let good = ended("a", "g", "failed");
        for (wrong, part) in [
            (&b"\xff\xfe"[..], "is not an event"),
            (b"hello", "is not an event"),
            (b"[1]", "is not an event"),
            (b"{\"event\":7}", "is not an event"),
            (b"{\"event\":\"missed\",\"count\":5}", "5 events"),
            (b"{\"event\":\"task_ended\",\"group\":\"g\"}", "without a valid key"),
            (
                br#"{"event":"task_ended","group":"g","key":"k","outcome":"failed","attempts":-1}"#,
                "without a valid attempts",
            ),
            (
                br#"{"event":"task_ended","key":"k","outcome":"failed","attempts":1}"#,
                "without a valid group",
            ),
            (long.as_bytes(), "longer than"),
        ] {
            let text = [good.as_bytes(), b"\n", wrong, b"\n", good.as_bytes(), b"\n"].concat();
            let (tasks, told) = check(&text, None);
            assert_eq!(tasks.unwrap().len(), 1);
            assert_eq!((told.len(), told[0].0), (1, 2), "{told:?}");
            assert!(told[0].1.contains(part), "{told:?}");
        }
        for n in 1..good.len() {
            let text = [good.as_bytes(), b"\n", &good.as_bytes()[..n]].concat();
            let (tasks, told) = check(&text, None);
            assert_eq!(
                (tasks.unwrap().len(), told),
                (1, vec![(2, "is cut off, so it is left out".to_owned())])
            );
        }
    }
}
