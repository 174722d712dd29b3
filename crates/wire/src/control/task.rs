//! Tasks: the bodies of their calls, the annotation on their pods, and what a task changes in the pod
//! of its group.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::config::duration;
pub use crate::control::task_fields::parse_key;
use crate::control::task_fields::{
    after, amount, array, deadline_s, env, files, image, node_selector, resources, retries,
    secret_env, words,
};
use crate::control::task_secrets::NewTask;
use crate::control::{CallError, check_names, parse_object};
use posse_core::model::task::{Task, TaskArray, TaskRun, TaskStatus};

/// The largest contents of a task as JSON, in bytes. All annotations of a pod may have 256 KiB.
pub const TASK_BYTES_MAX: usize = 32 << 10;

/// A task as a call and the annotation have it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskJson {
    /// Absent in the annotation: it is a label there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// In a call the values. In the annotation the keys at which a Secret has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub secret_env: BTreeMap<String, String>,
    /// Likewise: by path, the contents or their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    #[serde(default)]
    pub retries: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<ArrayJson>,
    #[serde(flatten)]
    pub shape: TaskShapeJson,
}

/// What differs from the template of its group, and decides when and on which nodes a task can start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskShapeJson {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Never in the annotation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub after: BTreeMap<String, String>,
}

/// The place of a task in its array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayJson {
    pub name: String,
    pub index: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<u32>,
}

/// The fields of a task, as calls have them.
const FIELDS: [&str; 15] = [
    "key",
    "env",
    "secret_env",
    "files",
    "image",
    "command",
    "args",
    "cpu",
    "memory",
    "resources",
    "node_selector",
    "retries",
    "deadline",
    "array",
    "after",
];

impl fmt::Debug for TaskJson {
    /// Without environment and arguments, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskJson").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What a call answers about one task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatusJson {
    pub key: String,
    pub state: String,
    pub executor: Option<u64>,
    pub attempts: u32,
    pub exit_code: Option<i32>,
    pub reason: Option<String>,
    pub message: Option<String>,
    #[serde(flatten)]
    pub shape: TaskShapeJson,
}

/// Reads the body of `POST /v1/groups/{group}/executors`.
pub fn parse_tasks(body: &[u8]) -> Result<Vec<NewTask>, CallError> {
    let fields = parse_object(body)?;
    check_names(&fields, &["executors"])?;
    let list = fields.get("executors").ok_or_else(|| CallError::new("executors", "is missing"))?;
    let list = list.as_array().ok_or_else(|| CallError::new("executors", "must be a list"))?;
    list.iter().enumerate().map(|(i, task)| parse_task(i, task)).collect()
}

fn parse_task(i: usize, value: &Value) -> Result<NewTask, CallError> {
    let path = |name: &str| format!("executors[{i}].{name}");
    let inside = |error: CallError| CallError {
        field: error.field.map(|field| path(&field)),
        error: error.error,
    };
    let fields = value.as_object();
    let fields = fields.ok_or_else(|| CallError::new(&path(""), "must be an object"))?;
    check_names(fields, &FIELDS).map_err(inside)?;
    let task = Task {
        key: parse_key(fields.get("key").and_then(Value::as_str).unwrap_or_default())
            .map_err(inside)?,
        env: env(fields, "env").map_err(inside)?,
        // They get their keys when the values are stored.
        secret_env: BTreeMap::new(),
        files: BTreeMap::new(),
        image: image(fields).map_err(inside)?,
        command: words(fields, "command").map_err(inside)?,
        args: words(fields, "args").map_err(inside)?,
        cpu: amount(fields, "cpu", "500m").map_err(inside)?,
        memory: amount(fields, "memory", "512Mi").map_err(inside)?,
        resources: resources(fields).map_err(inside)?,
        node_selector: node_selector(fields).map_err(inside)?,
        retries: retries(fields).map_err(inside)?,
        deadline_s: deadline_s(fields).map_err(inside)?,
        array: array(fields).map_err(inside)?,
        after: after(fields).map_err(inside)?,
    };
    let secrets = secret_env(fields, &task.env).map_err(inside)?;
    let files = files(fields).map_err(inside)?;
    let n_secret: usize = secrets.iter().map(|(name, value)| name.len() + value.len()).sum();
    let n_paths: usize = files.keys().map(String::len).sum();
    let n_bytes = json!(contents(&task)).to_string().len() - task.key.len() + n_secret + n_paths;
    if n_bytes > TASK_BYTES_MAX {
        let error = format!("has {n_bytes} bytes, and the maximum is {TASK_BYTES_MAX}");
        return Err(CallError::new(&format!("executors[{i}]"), error));
    }
    Ok(NewTask { task, secrets, files })
}

/// Body of `POST /v1/groups/{group}/executors`.
pub fn tasks_body(tasks: &[TaskJson]) -> Vec<u8> {
    json!({ "executors": tasks }).to_string().into_bytes()
}

/// The answer to a call about several tasks.
pub fn statuses_body(statuses: &[TaskStatus]) -> Vec<u8> {
    let statuses: Vec<TaskStatusJson> = statuses.iter().map(status_json).collect();
    json!({ "executors": statuses }).to_string().into_bytes()
}

/// The answer to a call about one task.
pub fn status_body(status: &TaskStatus) -> Vec<u8> {
    json!(status_json(status)).to_string().into_bytes()
}

/// Reads the answer to a call about several tasks. None if the body is something else.
pub fn parse_statuses(body: &[u8]) -> Option<Vec<TaskStatusJson>> {
    #[derive(Deserialize)]
    struct Statuses {
        executors: Vec<TaskStatusJson>,
    }
    serde_json::from_slice(body).ok().map(|Statuses { executors }| executors)
}

fn status_json(status: &TaskStatus) -> TaskStatusJson {
    let held = status.held_by.as_ref().map(|(n, first)| match n {
        1 => format!("after {first}"),
        n => format!("after {first} and {} more", n - 1),
    });
    let start = status.start_problem.as_deref().map(str::to_owned);
    let end = status.end.as_ref();
    TaskStatusJson {
        key: status.task.key.to_string(),
        state: status.state.as_str().to_owned(),
        executor: status.executor.map(|id| id.0),
        attempts: status.attempts,
        exit_code: end.and_then(|end| end.exit_code),
        reason: end.and_then(|end| end.reason).map(str::to_owned),
        message: end.and_then(|end| end.message.as_deref()).map(str::to_owned).or(held).or(start),
        shape: shape_json(&status.task),
    }
}

fn shape_json(task: &Task) -> TaskShapeJson {
    let after = task.after.iter();
    TaskShapeJson {
        image: task.image.clone(),
        cpu: task.cpu.clone(),
        memory: task.memory.clone(),
        resources: task.resources.clone(),
        node_selector: task.node_selector.clone(),
        after: after.map(|(key, after)| (key.to_string(), after.as_str().to_owned())).collect(),
    }
}

/// The annotation's value.
#[derive(Default, Serialize, Deserialize)]
struct Annotation {
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    retries_left: u32,
    #[serde(default, skip_serializing_if = "is_zero")]
    round: u32,
    #[serde(flatten)]
    task: TaskJson,
}

impl From<Task> for TaskJson {
    fn from(task: Task) -> Self {
        let texts = |keys: BTreeMap<String, Arc<str>>| {
            keys.into_iter().map(|(name, key)| (name, key.to_string())).collect()
        };
        let array =
            |TaskArray { name, index, max }| ArrayJson { name: name.to_string(), index, max };
        Self {
            key: task.key.to_string(),
            shape: shape_json(&task),
            env: task.env,
            secret_env: texts(task.secret_env),
            files: texts(task.files),
            command: task.command,
            args: task.args,
            retries: task.retries,
            deadline: task.deadline_s.map(|seconds| format!("{seconds}s")),
            array: task.array.map(array),
        }
    }
}

impl From<TaskJson> for Task {
    /// Of an annotation.
    fn from(json: TaskJson) -> Self {
        let seconds = |text: String| {
            let ms = duration::parse_ms(&text)?;
            u32::try_from(ms.div_ceil(1_000)).ok()
        };
        let array = |ArrayJson { name, index, max }| TaskArray { name: name.into(), index, max };
        let keys = |texts: BTreeMap<String, String>| {
            texts.into_iter().map(|(name, key)| (name, key.into())).collect()
        };
        let TaskShapeJson { image, cpu, memory, resources, node_selector, after: _ } = json.shape;
        Self {
            key: json.key.into(),
            env: json.env,
            secret_env: keys(json.secret_env),
            files: keys(json.files),
            image,
            command: json.command,
            args: json.args,
            cpu,
            memory,
            resources,
            node_selector,
            retries: json.retries,
            deadline_s: json.deadline.and_then(seconds),
            array: json.array.map(array),
            after: BTreeMap::new(),
        }
    }
}

pub(super) fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// The contents without what a pod has behind it.
fn contents(task: &Task) -> TaskJson {
    TaskJson::from(Task { after: BTreeMap::new(), ..task.clone() })
}

pub(crate) fn annotation(run: &TaskRun) -> String {
    let TaskRun { task, attempt, retries_left, round } = run;
    let (attempt, retries_left, round) = (*attempt, *retries_left, *round);
    json!(Annotation { attempt, retries_left, round, task: contents(task) }).to_string()
}

/// The task of a pod, by its annotation: people change labels. The label names the task of an older posse's pod, and of
/// one whose annotation is no longer readable: that counts as empty.
pub fn parse_run(label: &str, annotation: &str) -> Option<TaskRun> {
    if label.is_empty() && annotation.is_empty() {
        return None;
    }
    let Annotation { attempt, retries_left, round, task } =
        serde_json::from_str(annotation).unwrap_or_default();
    let key = parse_key(&task.key).or_else(|_| parse_key(label)).ok()?;
    let task = Arc::new(Task { key, ..Task::from(task) });
    Some(TaskRun { task, attempt: attempt.max(1), retries_left, round })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::task_files::{FILES_BYTES_MAX, FILES_MAX};
    use crate::pod::task::of_task;
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::task::{After, TaskEnd, TaskOutcome, TaskState};
    use serde_json::Map;

    fn task() -> Task {
        Task {
            key: "t-1".into(),
            env: [("A".to_owned(), "x \"y\"".to_owned())].into(),
            secret_env: [("TOKEN".to_owned(), "i.0af3".into())].into(),
            files: [("/a/b".to_owned(), "i.0af4".into())].into(),
            image: Some("other:2".to_owned()),
            command: Some(vec!["sh".to_owned()]),
            args: Some(vec!["-c".to_owned(), "exit 3".to_owned()]),
            cpu: Some("2".to_owned()),
            memory: Some("1Gi".to_owned()),
            resources: [("nvidia.com/gpu".to_owned(), "1".to_owned())].into(),
            node_selector: [("disk".to_owned(), "ssd".to_owned())].into(),
            retries: 2,
            deadline_s: Some(90),
            array: Some(TaskArray { name: "t".into(), index: 7, max: Some(3) }),
            after: BTreeMap::new(),
        }
    }

    #[test]
    fn calls_and_annotations_are_read_back() {
        let after = [("a".into(), After::Ok), ("b".into(), After::Any)].into();
        let ordered = Task { after, ..task() };
        let json = TaskJson::from(ordered.clone());
        let only_key = TaskJson { key: "b".to_owned(), ..TaskJson::default() };
        let read = parse_tasks(&tasks_body(&[json, only_key])).unwrap();
        let plain = Task { key: "b".into(), ..Task::default() };
        // What a call gives for a secret variable is its value.
        let secrets = [("TOKEN".to_owned(), "i.0af3".to_owned())].into();
        let files = [("/a/b".to_owned(), "i.0af4".to_owned())].into();
        let (secret_env, none) = (BTreeMap::new(), BTreeMap::new());
        let bare = Task { secret_env, files: none, ..ordered.clone() };
        let new = NewTask { task: bare, secrets, files };
        let (secrets, files) = (BTreeMap::new(), BTreeMap::new());
        assert!(read == [new, NewTask { task: plain, secrets, files }]);
        let run = TaskRun { task: Arc::new(ordered), attempt: 2, retries_left: 1, round: 3 };
        let want = TaskRun { task: Arc::new(task()), attempt: 2, retries_left: 1, round: 3 };
        // Somebody has changed the label.
        for label in ["t-1", "", "other"] {
            assert_eq!(parse_run(label, &annotation(&run)).as_ref(), Some(&want), "{label}");
        }
        // Somebody has changed the annotation.
        let bare = Arc::new(Task { key: "k".into(), ..Task::default() });
        let want = TaskRun { task: bare, attempt: 1, retries_left: 0, round: 0 };
        for text in ["", "{", "[1]", "{\"attempt\": -1}", "{\"env\": 7}", "{\"key\": \"a/b\"}"] {
            assert_eq!(parse_run("k", text).as_ref(), Some(&want), "{text}");
            assert_eq!(parse_run("", text), None, "{text}");
        }
    }

    #[test]
    fn answers_are_as_documented_and_read_back() {
        let end = TaskEnd {
            outcome: TaskOutcome::Failed,
            exit_code: Some(3),
            reason: Some("app_error"),
            message: None,
        };
        let status = TaskStatus {
            task: Arc::new(Task { key: "t".into(), ..Task::default() }),
            state: TaskState::Ended(TaskOutcome::Failed),
            executor: Some(ExecutorId(7)),
            attempts: 2,
            held_by: None,
            start_problem: None,
            end: Some(end),
        };
        let want = r#"{"key":"t","state":"failed","executor":7,"attempts":2,"exit_code":3,"reason":"app_error","message":null}"#;
        let sorted: Value = serde_json::from_str(want).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&status_body(&status)).unwrap(), sorted);
        for (n, want) in [(1, "after a"), (3, "after a and 2 more")] {
            let held_by = Some((n, "a".into()));
            let held = TaskStatus { state: TaskState::Held, held_by, end: None, ..status.clone() };
            assert_eq!(status_json(&held).message.as_deref(), Some(want));
        }
        let shaped = Task {
            key: "t".into(),
            cpu: Some("2".to_owned()),
            after: [("a".into(), After::Any)].into(),
            ..Task::default()
        };
        let shaped = status_json(&TaskStatus { task: Arc::new(shaped), ..status.clone() });
        let text = serde_json::to_string(&shaped).unwrap();
        assert!(text.ends_with(r#""message":null,"cpu":"2","after":{"a":"any"}}"#), "{text}");
        let start_problem = Some("no node".into());
        let pending =
            TaskStatus { state: TaskState::Pending, start_problem, end: None, ..status.clone() };
        assert_eq!(status_json(&pending).message.as_deref(), Some("no node"));
        let read = parse_statuses(&statuses_body(&[status])).unwrap();
        assert_eq!((read[0].key.as_str(), read[0].exit_code), ("t", Some(3)));
        assert_eq!(parse_statuses(b"{}"), None);
        let newer = br#"{"executors":[{"key":"t","state":"parked","executor":null,"attempts":1,
            "exit_code":null,"reason":null,"rank":3}],"next":"page"}"#;
        let read = parse_statuses(newer).unwrap();
        assert_eq!(
            (read[0].key.as_str(), read[0].state.as_str()),
            ("t", "parked"),
            "a newer posse"
        );
    }

    #[test]
    fn errors_name_the_task_and_the_field() {
        #[track_caller]
        fn check(task: &str, field: &str, part: &str) {
            let body = format!(r#"{{"executors":[{{"key":"ok"}},{task}]}}"#);
            let bad = parse_tasks(body.as_bytes()).expect_err("it must be refused");
            assert_eq!(bad.field.as_deref(), Some(field), "{bad:?}");
            assert!(bad.error.contains(part), "{bad:?}");
        }
        check("{}", "executors[1].key", "missing");
        check(r#"{"key":7}"#, "executors[1].key", "missing");
        check(r#"{"key":"a b"}"#, "executors[1].key", "letters");
        check(&format!(r#"{{"key":"{}"}}"#, "k".repeat(64)), "executors[1].key", "at most 63");
        check(r#"{"key":"-a"}"#, "executors[1].key", "first and last");
        check(r#"{"key":"a","env":{"A":1}}"#, "executors[1].env.A", "text");
        check(r#"{"key":"a","env":{"1A":"1"}}"#, "executors[1].env.1A", "name");
        check(r#"{"key":"a","env":{"POSSE_APP":"1"}}"#, "executors[1].env.POSSE_APP", "posse");
        check(r#"{"key":"a","env":[]}"#, "executors[1].env", "object");
        check(r#"{"key":"a","secret_env":["A"]}"#, "executors[1].secret_env", "object");
        check(r#"{"key":"a","secret_env":{"A":1}}"#, "executors[1].secret_env.A", "text");
        check(r#"{"key":"a","secret_env":{"POSSE_A":"1"}}"#, "executors[1].secret_env.POSSE_A", "");
        check(
            r#"{"key":"a","env":{"A":"1"},"secret_env":{"A":"2"}}"#,
            "executors[1].secret_env.A",
            "also in env",
        );
        check(r#"{"key":"a","args":"x"}"#, "executors[1].args", "list");
        check(r#"{"key":"a","args":["a\u0000"]}"#, "executors[1].args", "NUL");
        check(r#"{"key":"a","memory":"much"}"#, "executors[1].memory", "512Mi");
        check(r#"{"key":"a","memory":"0"}"#, "executors[1].memory", "512Mi");
        check(r#"{"key":"a","retries":101}"#, "executors[1].retries", "0 to 100");
        check(r#"{"key":"a","image":""}"#, "executors[1].image", "name of an image");
        check(r#"{"key":"a","command":"x"}"#, "executors[1].command", "list");
        check(r#"{"key":"a","cpu":2}"#, "executors[1].cpu", "500m");
        check(r#"{"key":"a","node_selector":["x"]}"#, "executors[1].node_selector", "object");
        check(r#"{"key":"a","node_selector":{"a b":"c"}}"#, "executors[1].node_selector.a b", "");
        check(r#"{"key":"a","node_selector":{"a":1}}"#, "executors[1].node_selector.a", "text");
        check(r#"{"key":"a","deadline":"soon"}"#, "executors[1].deadline", "duration");
        check(r#"{"key":"a","deadline":"0"}"#, "executors[1].deadline", "duration");
        check(r#"{"key":"a","array":7}"#, "executors[1].array", "object");
        check(r#"{"key":"a","array":{"name":"a"}}"#, "executors[1].array.index", "missing");
        check(r#"{"key":"a","array":{"index":1}}"#, "executors[1].array.name", "missing");
        check(
            r#"{"key":"a","array":{"name":"a","index":1,"max":0}}"#,
            "executors[1].array.max",
            "1",
        );
        check(
            r#"{"key":"a","array":{"name":"a","index":1,"n":0}}"#,
            "executors[1].array.n",
            "unknown",
        );
        check(r#"{"key":"a","resources":{"cpu":"1"}}"#, "executors[1].resources.cpu", "own");
        check(r#"{"key":"a","resources":{"x":1}}"#, "executors[1].resources.x", "amount");
        check(r#"{"key":"a","after":["b"]}"#, "executors[1].after", "object");
        check(r#"{"key":"a","after":{"b":"good"}}"#, "executors[1].after.b", "ok");
        check(r#"{"key":"a","images":"x"}"#, "executors[1].images", "unknown field");
        let long = "x".repeat(TASK_BYTES_MAX);
        check(&format!(r#"{{"key":"a","args":["{long}"]}}"#), "executors[1]", "maximum is 32768");
        let secret = format!(r#"{{"key":"a","secret_env":{{"A":"{long}"}}}}"#);
        check(&secret, "executors[1]", "maximum is 32768");
        let path = "/d".repeat(2_000);
        let files: Map<String, Value> =
            (0..9).map(|i| (format!("{path}/{i}"), json!("x"))).collect();
        let files = json!({"key": "a", "files": files}).to_string();
        check(&files, "executors[1]", "maximum is 32768");
    }

    #[test]
    fn errors_about_files_name_the_path() {
        #[track_caller]
        fn check(files: Value, field: &str, part: &str) {
            let body = json!({"executors": [{"key": "a", "files": files}]}).to_string();
            let bad = parse_tasks(body.as_bytes()).expect_err("it must be refused");
            assert_eq!(bad.field, Some(format!("executors[0].files{field}")), "{bad:?}");
            assert!(bad.error.contains(part), "{bad:?}");
        }
        check(json!(["/a"]), "", "object of paths");
        check(json!({"a": "x"}), ".a", "absolute");
        check(json!({"/a": 1}), "./a", "text");
        check(json!({"/a/../b": "x"}), "./a/../b", "`..`");
        check(json!({"/a/b": "x", "/a": "y", "/a.c": ""}), "./a/b", "below /a,");
        let files = |n: usize, content: &str| -> Value {
            (0..n).map(|i| (format!("/{i}"), json!(content))).collect::<Map<_, _>>().into()
        };
        check(
            files(FILES_MAX + 1, ""),
            "",
            "are 65, and the maximum is 64: put more into the image",
        );
        let half = "x".repeat(FILES_BYTES_MAX / 2);
        check(files(3, &half), "", "have 393216 bytes, and the maximum is 262144: put more into");
        let full = json!({"executors": [{"key": "a", "files": files(2, &half)}]}).to_string();
        assert_eq!(parse_tasks(full.as_bytes()).unwrap()[0].values().count(), 2);
    }

    #[test]
    fn a_task_changes_the_main_container_alone() {
        let pod = json!({
            "metadata": {"labels": {"posse.dev/slot": "0", "posse.dev/app": "q"},
                "annotations": {"posse.dev/container": "b", "posse.dev/max-age": "9s"}},
            "spec": {"containers": [
                {"name": "a", "env": [{"name": "POSSE_SLOT", "value": "0"}, {"name": "A", "value": "1"}]},
                {"name": "b", "args": ["old"], "env": [{"name": "A", "value": "1"},
                    {"name": "TOKEN", "value": "of the template"}],
                 "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}},
            ]},
        });
        let run = TaskRun { task: Arc::new(task()), attempt: 1, retries_left: 2, round: 0 };
        let body = of_task(pod.to_string().as_bytes(), &run).unwrap();
        let got: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            got["metadata"]["labels"],
            json!({"posse.dev/app": "q", "posse.dev/key": "t-1"})
        );
        assert_eq!(got["spec"]["activeDeadlineSeconds"], 90);
        assert_eq!(got["metadata"]["annotations"]["posse.dev/max-age"], Value::Null);
        let key = json!({"name": "POSSE_KEY", "value": "t-1"});
        let index = json!({"name": "POSSE_TASK_INDEX", "value": "7"});
        let [a, b] = [0, 1].map(|i| &got["spec"]["containers"][i]);
        assert_eq!(a["env"], json!([key, index, {"name": "A", "value": "1"}]));
        let from = json!({"secretKeyRef": {"name": "q-tasks", "key": "i.0af3"}});
        let token = json!({"name": "TOKEN", "valueFrom": from});
        assert_eq!(b["env"], json!([key, index, {"name": "A", "value": "x \"y\""}, token]));
        assert_eq!((&b["image"], &b["command"]), (&json!("other:2"), &json!(["sh"])));
        assert_eq!(b["args"], json!(["-c", "exit 3"]));
        assert_eq!(got["spec"]["nodeSelector"], json!({"disk": "ssd"}));
        let amounts = json!({"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"});
        let want = json!({"limits": amounts, "requests": amounts});
        assert_eq!(b["resources"], want);
        let mount = json!({"name": "posse-task-files", "mountPath": "/a/b", "subPath": "i.0af4",
            "readOnly": true});
        assert_eq!((&a["volumeMounts"], &b["volumeMounts"]), (&Value::Null, &json!([mount])));
        let items = json!([{"key": "i.0af4", "path": "i.0af4"}]);
        let source = json!({"secretName": "q-tasks", "items": items, "defaultMode": 0o555});
        let want = json!([{"name": "posse-task-files", "secret": source}]);
        assert_eq!(got["spec"]["volumes"], want);
        let text = got["metadata"]["annotations"]["posse.dev/task"].as_str().unwrap();
        assert_eq!(parse_run("", text), Some(run));
    }

    /// A server refuses such a pod. Where it cannot be asked first, the template comes as far as here.
    #[test]
    fn what_a_template_has_of_another_type_stays() {
        for odd in [json!("x"), json!(["x"]), json!(true)] {
            let container = json!({"name": "b", "resources": odd, "env": odd, "volumeMounts": odd});
            let pod = json!({"metadata": {"annotations": {"posse.dev/container": "b"}},
                "spec": {"containers": [container], "nodeSelector": odd, "volumes": odd}});
            let run = TaskRun { task: Arc::new(task()), attempt: 1, retries_left: 2, round: 0 };
            let body = of_task(pod.to_string().as_bytes(), &run).unwrap();
            let got: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(got["spec"]["nodeSelector"], odd);
            assert_eq!(got["spec"]["containers"][0]["resources"], odd);
        }
    }
}
