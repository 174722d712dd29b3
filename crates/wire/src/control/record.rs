//! The lines of a run's record: one fact each, as JSON. `{"task":["GROUP","KEY"],"is":{...}}` says what is known about
//! a topic from now on, and without `is` that nothing is.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::control::task::{TaskJson, is_zero};
use posse_core::model::fact::{EndedWork, Fact, Knowledge, Progress, Target, Topic, end_reason};
use posse_core::model::ids::{ExecutorId, GroupName, STORED_ID_MAX};
use posse_core::model::settings::EXECUTORS_MAX;
use posse_core::model::task::{After, Task, TaskEnd, TaskOutcome};

/// The version of these lines. A posse that knows only older ones refuses a record instead of misreading it.
pub const RECORD_FORMAT: u32 = 1;

/// Which run a file is the record of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordOwner {
    pub app: String,
    pub instance: String,
    pub namespace: String,
    /// The URL of the API server.
    pub server: String,
}

#[derive(Serialize, Deserialize)]
struct Header {
    posse_record: u32,
    #[serde(flatten)]
    owner: RecordOwner,
}

/// The first line of a file, without its end.
pub fn header(owner: &RecordOwner) -> String {
    json!(Header { posse_record: RECORD_FORMAT, owner: owner.clone() }).to_string()
}

/// Reads the first line of a file: the version of its lines, and whose it is. `None`: it is no record.
pub fn parse_header(line: &str) -> Option<(u32, RecordOwner)> {
    let Header { posse_record, owner } = serde_json::from_str(line).ok()?;
    Some((posse_record, owner))
}

/// A line that is none of this format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAFact;

impl fmt::Display for NotAFact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it is no line of a record")
    }
}

#[derive(Serialize, Deserialize)]
struct Line {
    #[serde(flatten)]
    topic: TopicJson,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    is: Option<Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TopicJson {
    Dismissed(String),
    Group(String),
    Progress(String, String),
    Target(String),
    Task(String, String),
    /// The group, and which block of its indexes.
    Work(String, u32),
}

#[derive(Serialize, Deserialize)]
struct ProgressJson {
    attempts: u32,
    retries_left: u32,
    #[serde(default)]
    round: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    end: Option<EndJson>,
}

#[derive(Serialize, Deserialize)]
struct EndJson {
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    executor: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct TargetJson {
    target: u32,
    of_file: u32,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    deleted: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    completed: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    given_up: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ended: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
struct OrderedTaskJson {
    order: u64,
    #[serde(flatten)]
    task: TaskJson,
}

/// Ranges with both ends, since most indexes that have ended are beside each other.
#[derive(Serialize, Deserialize)]
struct WorkJson {
    #[serde(default = "first", skip_serializing_if = "is_first")]
    attempt: u32,
    #[serde(default)]
    completed: Vec<(u32, u32)>,
    #[serde(default)]
    given_up: Vec<(u32, u32)>,
}

const fn first() -> u32 {
    1
}

fn is_first(attempt: &u32) -> bool {
    *attempt == first()
}

/// The line of a fact, without its end.
pub fn line(fact: &Fact) -> String {
    let topic = match &fact.topic {
        Topic::Dismissed(group) => TopicJson::Dismissed(group.to_string()),
        Topic::Group(group) => TopicJson::Group(group.to_string()),
        Topic::Progress(group, key) => TopicJson::Progress(group.to_string(), key.to_string()),
        Topic::Target(group) => TopicJson::Target(group.to_string()),
        Topic::Task(group, key) => TopicJson::Task(group.to_string(), key.to_string()),
        Topic::Work(group, block) => TopicJson::Work(group.to_string(), *block),
    };
    let is = fact.knowledge.as_ref().map(|knowledge| match knowledge {
        Knowledge::Dismissed(ids) => {
            json!(ids.iter().map(|ids| (ids.start(), ids.end())).collect::<Vec<_>>())
        }
        Knowledge::Group(fields) => {
            json!(fields.iter().map(|(name, text)| (&**name, &**text)).collect::<BTreeMap<_, _>>())
        }
        Knowledge::Progress(progress) => json!(progress_json(progress)),
        Knowledge::Target(known) => {
            json!(TargetJson {
                target: known.target,
                of_file: known.of_file,
                deleted: known.is_deleted,
                completed: known.n_completed,
                given_up: known.n_given_up,
                ended: known.ended.iter().map(|id| id.0).collect(),
            })
        }
        Knowledge::Task { order, task } => {
            let task = TaskJson { key: String::new(), ..TaskJson::from(Task::clone(task)) };
            json!(OrderedTaskJson { order: *order, task })
        }
        Knowledge::Work { attempt, ended: EndedWork { completed, given_up } } => {
            let (completed, given_up) = (ranges(completed), ranges(given_up));
            json!(WorkJson { attempt: *attempt, completed, given_up })
        }
    });
    json!(Line { topic, is }).to_string()
}

fn ranges(indexes: &BTreeSet<u32>) -> Vec<(u32, u32)> {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &index in indexes {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    ranges
}

/// The indexes of these ranges, each of which lies above the one before. Somebody may have edited them.
fn indexes(ranges: &[(u32, u32)]) -> Result<BTreeSet<u32>, NotAFact> {
    let are_apart = ranges.is_sorted_by(|before, after| before.1 < after.0);
    let is_range = |(first, last): &(u32, u32)| first <= last && *last < EXECUTORS_MAX;
    if !are_apart || !ranges.iter().all(is_range) {
        return Err(NotAFact);
    }
    Ok(ranges.iter().flat_map(|(first, last)| *first..=*last).collect())
}

fn progress_json(progress: &Progress) -> ProgressJson {
    let Progress { attempts, retries_left, round, end } = progress;
    let end = end.as_ref().map(|(end, executor)| EndJson {
        outcome: end.outcome.as_str().to_owned(),
        executor: executor.map(|id| id.0),
        exit_code: end.exit_code,
        reason: end.reason.map(str::to_owned),
        message: end.message.as_deref().map(str::to_owned),
    });
    ProgressJson { attempts: *attempts, retries_left: *retries_left, round: *round, end }
}

/// Reads a line.
///
/// # Errors
/// It is no line of this format.
pub fn parse(line: &str) -> Result<Fact, NotAFact> {
    let Line { topic, is } = serde_json::from_str(line).map_err(|_| NotAFact)?;
    let group = |name: String| GroupName::from(name.as_str());
    let topic = match topic {
        TopicJson::Dismissed(name) => Topic::Dismissed(group(name)),
        TopicJson::Group(name) => Topic::Group(group(name)),
        TopicJson::Progress(name, key) => Topic::Progress(group(name), key.into()),
        TopicJson::Target(name) => Topic::Target(group(name)),
        TopicJson::Task(name, key) => Topic::Task(group(name), key.into()),
        TopicJson::Work(name, block) => Topic::Work(group(name), block),
    };
    let knowledge = is.map(|is| knowledge(&topic, is)).transpose()?;
    Ok(Fact { topic, knowledge })
}

fn knowledge(topic: &Topic, is: Value) -> Result<Knowledge, NotAFact> {
    fn read<T: for<'de> Deserialize<'de>>(is: Value) -> Result<T, NotAFact> {
        serde_json::from_value(is).map_err(|_| NotAFact)
    }
    Ok(match topic {
        Topic::Dismissed(_) => {
            let ids: Vec<(u64, u64)> = read(is)?;
            let is_range = |(first, last): &(u64, u64)| first <= last && *last <= STORED_ID_MAX;
            if !ids.iter().all(is_range) {
                return Err(NotAFact);
            }
            Knowledge::Dismissed(ids.into_iter().map(|(first, last)| first..=last).collect())
        }
        Topic::Group(_) => {
            let fields: BTreeMap<String, String> = read(is)?;
            let fields = fields.into_iter().map(|(name, text)| (name.into(), text.into()));
            Knowledge::Group(fields.collect())
        }
        Topic::Progress(..) => Knowledge::Progress(progress(read(is)?)?),
        Topic::Target(_) => {
            let known: TargetJson = read(is)?;
            Knowledge::Target(Target {
                target: known.target,
                of_file: known.of_file,
                is_deleted: known.deleted,
                n_completed: known.completed,
                n_given_up: known.given_up,
                ended: known.ended.into_iter().map(ExecutorId).collect(),
            })
        }
        Topic::Task(_, key) => {
            let OrderedTaskJson { order, task } = read(is)?;
            let after = task.shape.after.iter().map(|(other, after)| {
                Ok((Arc::from(other.as_str()), After::parse(after).ok_or(NotAFact)?))
            });
            let after = after.collect::<Result<_, NotAFact>>()?;
            let task = Task { key: Arc::clone(key), after, ..Task::from(task) };
            Knowledge::Task { order, task: Arc::new(task) }
        }
        Topic::Work(..) => {
            let WorkJson { attempt, completed, given_up } = read(is)?;
            let (completed, given_up) = (indexes(&completed)?, indexes(&given_up)?);
            Knowledge::Work { attempt, ended: EndedWork { completed, given_up } }
        }
    })
}

fn progress(json: ProgressJson) -> Result<Progress, NotAFact> {
    let ProgressJson { attempts, retries_left, round, end } = json;
    let end = end.map(|end| {
        let EndJson { outcome, executor, exit_code, reason, message } = end;
        let outcome = TaskOutcome::ALL.into_iter().find(|one| one.as_str() == outcome);
        let reason = reason.map(|name| end_reason(&name).ok_or(NotAFact)).transpose()?;
        let message = message.map(Arc::from);
        let end = TaskEnd { outcome: outcome.ok_or(NotAFact)?, exit_code, reason, message };
        Ok((end, executor.map(ExecutorId)))
    });
    Ok(Progress { attempts, retries_left, round, end: end.transpose()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::task::TaskArray;

    fn facts() -> Vec<Fact> {
        let (group, key): (GroupName, Arc<str>) = (GroupName::from("g"), "t".into());
        let task = Task {
            key: Arc::clone(&key),
            env: [("A".to_owned(), "x \"y\"\n".to_owned())].into(),
            secret_env: [("TOKEN".to_owned(), "i.0af3".into())].into(),
            args: Some(vec!["-c".to_owned()]),
            retries: 2,
            deadline_s: Some(90),
            array: Some(TaskArray { name: "t".into(), index: 7, max: Some(3) }),
            after: [("a".into(), After::Ok), ("b".into(), After::Any)].into(),
            ..Task::default()
        };
        let progress = |end| Progress { attempts: 2, retries_left: 1, round: 3, end };
        let failed = TaskEnd {
            outcome: TaskOutcome::Failed,
            exit_code: Some(3),
            reason: end_reason("app_error"),
            message: Some("container: exit code 3".into()),
        };
        let work = EndedWork { completed: [0, 2, 3, 4].into(), given_up: [1].into() };
        let known = [
            (
                Topic::Task(group.clone(), Arc::clone(&key)),
                Knowledge::Task { order: 7, task: Arc::new(task) },
            ),
            (Topic::Progress(group.clone(), Arc::clone(&key)), Knowledge::Progress(progress(None))),
            (
                Topic::Progress(group.clone(), "u".into()),
                Knowledge::Progress(progress(Some((failed, Some(ExecutorId(9)))))),
            ),
            (Topic::Group(group.clone()), Knowledge::Group([("target".into(), "5".into())].into())),
            (
                Topic::Target(group.clone()),
                Knowledge::Target(Target { target: 5, of_file: 3, ..Target::default() }),
            ),
            (
                Topic::Target("h".into()),
                Knowledge::Target(Target {
                    is_deleted: true,
                    n_completed: 3,
                    n_given_up: 1,
                    ended: [ExecutorId(2), ExecutorId(1_001)].into(),
                    ..Target::default()
                }),
            ),
            (Topic::Dismissed(group.clone()), Knowledge::Dismissed(vec![1..=7, 9..=9])),
            (Topic::Work("h".into(), 0), Knowledge::Work { attempt: 1, ended: work.clone() }),
            (Topic::Work(group.clone(), 7), Knowledge::Work { attempt: 3, ended: work }),
        ];
        let known = known.map(|(topic, known)| Fact { topic, knowledge: Some(known) });
        known.into_iter().chain([Fact { topic: Topic::Work(group, 0), knowledge: None }]).collect()
    }

    #[test]
    fn facts_are_read_back() {
        for fact in facts() {
            let line = line(&fact);
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(parse(&line), Ok(fact), "{line}");
        }
    }

    #[test]
    fn what_is_no_fact_is_refused() {
        for line in [
            "",
            "{",
            "{}",
            "[1]",
            r#"{"is":{}}"#,
            r#"{"riddle":["g"],"is":1}"#,
            r#"{"group":"g","is":{"target":5}}"#,
            r#"{"task":["g"],"is":{"order":1}}"#,
            r#"{"task":["g","k"],"is":{}}"#,
            r#"{"work":"g","is":{}}"#,
            r#"{"work":["g",0],"is":{"completed":[[2,1]]}}"#,
            r#"{"dismissed":"g","is":[[2,1]]}"#,
            r#"{"dismissed":"g","is":[[1,18446744073709551615]]}"#,
            r#"{"work":["g",0],"is":{"completed":[[0,4294967295]]}}"#,
            r#"{"work":["g",0],"is":{"completed":[[0,7],[7,8]]}}"#,
            r#"{"target":"g","is":{"target":-1,"of_file":1}}"#,
            r#"{"progress":["g","k"],"is":{"attempts":1,"retries_left":0,"end":{"outcome":"lost"}}}"#,
            r#"{"progress":["g","k"],"is":{"attempts":1,"retries_left":0,
                "end":{"outcome":"failed","reason":"mood"}}}"#,
        ] {
            assert_eq!(parse(line), Err(NotAFact), "{line}");
        }
    }
}
