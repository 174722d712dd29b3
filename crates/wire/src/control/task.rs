//! Tasks: the bodies of their calls, the annotation on their pods, and what a task changes in the pod
//! of its group.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::control::{CallError, check_names, optional, parse_object};
use crate::k8s::labels;
use posse_core::model::task::{KEY_BYTES_MAX, RETRIES_MAX, Task, TaskRun, TaskStatus};
use posse_encoding::quantity::Quantity;

/// The largest contents of a task as JSON, in bytes. All annotations of a pod may have 256 KiB.
pub const TASK_BYTES_MAX: usize = 32 << 10;

/// Variables with this prefix are posse's own.
const OUR_PREFIX: &str = "POSSE_";

/// A task as a call and the annotation have it.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskJson {
    /// Absent in the annotation: it is a label there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    #[serde(default)]
    pub retries: u32,
}

impl fmt::Debug for TaskJson {
    /// Without environment and arguments, because they may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskJson").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What a call answers about one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskStatusJson {
    pub key: String,
    pub state: String,
    pub executor: Option<u64>,
    pub attempts: u32,
    pub exit_code: Option<i32>,
    pub reason: Option<String>,
}

/// Reads the body of `POST /v1/groups/{group}/executors`.
pub fn parse_tasks(body: &[u8]) -> Result<Vec<Arc<Task>>, CallError> {
    let fields = parse_object(body)?;
    check_names(&fields, &["executors"])?;
    let list = fields.get("executors").ok_or_else(|| CallError::new("executors", "is missing"))?;
    let list = list.as_array().ok_or_else(|| CallError::new("executors", "must be a list"))?;
    list.iter().enumerate().map(|(i, task)| parse_task(i, task)).collect()
}

fn parse_task(i: usize, value: &Value) -> Result<Arc<Task>, CallError> {
    let path = |name: &str| format!("executors[{i}].{name}");
    let inside = |error: CallError| CallError {
        field: error.field.map(|field| path(&field)),
        error: error.error,
    };
    let fields = value.as_object();
    let fields = fields.ok_or_else(|| CallError::new(&path(""), "must be an object"))?;
    check_names(fields, &["key", "env", "args", "memory", "retries"]).map_err(inside)?;
    let task = Task {
        key: parse_key(fields.get("key").and_then(Value::as_str).unwrap_or_default())
            .map_err(inside)?,
        env: env(fields).map_err(inside)?,
        args: args(fields).map_err(inside)?,
        memory: memory(fields).map_err(inside)?,
        retries: retries(fields).map_err(inside)?,
    };
    let n_bytes = text(&task).len();
    if n_bytes > TASK_BYTES_MAX {
        let error = format!("has {n_bytes} bytes, and the maximum is {TASK_BYTES_MAX}");
        return Err(CallError::new(&format!("executors[{i}]"), error));
    }
    Ok(Arc::new(task))
}

/// Checks a key, also one in the path of a call.
pub fn parse_key(key: &str) -> Result<Arc<str>, CallError> {
    let is_end = |c: char| c.is_ascii_alphanumeric();
    let is_inner = |c: char| is_end(c) || "-_.".contains(c);
    match key {
        "" => Err(CallError::new("key", "is missing, empty or no text")),
        key if key.len() <= KEY_BYTES_MAX
            && key.chars().all(is_inner)
            && key.starts_with(is_end)
            && key.ends_with(is_end) =>
        {
            Ok(Arc::from(key))
        }
        _ => {
            let what = format!(
                "must be the value of a label: at most {KEY_BYTES_MAX} letters, digits, `-`, `_` \
                 and `.`, first and last a letter or digit"
            );
            Err(CallError::new("key", what))
        }
    }
}

fn env(fields: &Map<String, Value>) -> Result<BTreeMap<String, String>, CallError> {
    let Some(env) = optional(fields, "env") else { return Ok(BTreeMap::new()) };
    let env = env.as_object().ok_or_else(|| {
        CallError::new("env", "must be an object of texts, for example {\"INDEX\": \"7\"}")
    })?;
    let variable = |(name, value): (&String, &Value)| {
        let fail = |what: &str| Err(CallError::new(&format!("env.{name}"), what));
        let is_start = |c: char| c.is_ascii_alphabetic() || "-._".contains(c);
        let is_name =
            name.starts_with(is_start) && name.chars().all(|c| is_start(c) || c.is_ascii_digit());
        match value.as_str() {
            _ if !is_name => fail(
                "is no name of a variable: letters, digits, `_`, `-` and `.`, not first a digit",
            ),
            _ if name.starts_with(OUR_PREFIX) => fail("is a variable that posse sets"),
            Some(text) if !text.contains('\0') => Ok((name.clone(), text.to_owned())),
            Some(_) | None => fail("must be a text without NUL"),
        }
    };
    env.iter().map(variable).collect()
}

fn args(fields: &Map<String, Value>) -> Result<Option<Vec<String>>, CallError> {
    let Some(args) = optional(fields, "args") else { return Ok(None) };
    let text = |arg: &Value| arg.as_str().filter(|arg| !arg.contains('\0')).map(str::to_owned);
    let args = args.as_array().and_then(|args| args.iter().map(text).collect::<Option<Vec<_>>>());
    args.map(Some).ok_or_else(|| CallError::new("args", "must be a list of texts without NUL"))
}

fn memory(fields: &Map<String, Value>) -> Result<Option<String>, CallError> {
    let Some(memory) = optional(fields, "memory") else { return Ok(None) };
    let amount = memory.as_str().filter(|amount| {
        Quantity::parse(amount).is_some_and(|amount| !amount.is_zero() && !amount.is_negative())
    });
    let amount = amount.map(str::to_owned);
    amount.map(Some).ok_or_else(|| CallError::new("memory", "must be an amount like \"512Mi\""))
}

fn retries(fields: &Map<String, Value>) -> Result<u32, CallError> {
    let Some(retries) = optional(fields, "retries") else { return Ok(0) };
    let n = retries.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= RETRIES_MAX);
    n.ok_or_else(|| {
        CallError::new("retries", format!("must be a whole number from 0 to {RETRIES_MAX}"))
    })
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
    TaskStatusJson {
        key: status.key.to_string(),
        state: status.state.as_str().to_owned(),
        executor: status.executor.map(|id| id.0),
        attempts: status.attempts,
        exit_code: status.end.and_then(|end| end.exit_code),
        reason: status.end.and_then(|end| end.reason).map(str::to_owned),
    }
}

/// The annotation's value.
#[derive(Default, Serialize, Deserialize)]
struct Annotation {
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    retries_left: u32,
    #[serde(flatten)]
    task: TaskJson,
}

fn text(task: &Task) -> String {
    let Task { key: _, env, args, memory, retries } = task.clone();
    json!(TaskJson { key: String::new(), env, args, memory, retries }).to_string()
}

fn annotation(run: &TaskRun) -> String {
    let Task { key: _, env, args, memory, retries } = Task::clone(&run.task);
    let task = TaskJson { key: String::new(), env, args, memory, retries };
    json!(Annotation { attempt: run.attempt, retries_left: run.retries_left, task }).to_string()
}

/// The task of a pod, from its label and its annotation. The label decides; an annotation that somebody
/// has changed to something unreadable counts as empty.
pub fn parse_run(key: &str, annotation: &str) -> TaskRun {
    let Annotation { attempt, retries_left, task } =
        serde_json::from_str(annotation).unwrap_or_default();
    let TaskJson { key: _, env, args, memory, retries } = task;
    let task = Arc::new(Task { key: Arc::from(key), env, args, memory, retries });
    TaskRun { task, attempt: attempt.max(1), retries_left }
}

/// Changes the finished pod of a group to that of a task: label, annotation, environment, arguments
/// and memory.
///
/// # Errors
/// The text is not the JSON of a pod.
pub fn lay_over(pod: &[u8], run: &TaskRun) -> Result<Vec<u8>, serde_json::Error> {
    let mut pod: Value = serde_json::from_slice(pod)?;
    let main = pod["metadata"]["annotations"][labels::CONTAINER].as_str().map(str::to_owned);
    let metadata = &mut pod["metadata"];
    metadata["labels"][labels::KEY] = json!(&*run.task.key);
    if let Some(labels) = metadata["labels"].as_object_mut() {
        labels.remove(labels::SLOT);
    }
    metadata["annotations"][labels::TASK] = json!(annotation(run));
    let spec = &mut pod["spec"];
    for list in ["initContainers", "containers"] {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten() {
            if let Some(env) = container.get_mut("env").and_then(Value::as_array_mut) {
                env.retain(|entry| entry["name"] != "POSSE_SLOT");
                env.insert(0, json!({"name": "POSSE_KEY", "value": &*run.task.key}));
            }
        }
    }
    let containers = spec["containers"].as_array_mut();
    let is_main = |container: &&mut Value| container["name"].as_str() == main.as_deref();
    if let Some(container) = containers.and_then(|all| all.iter_mut().find(is_main)) {
        change_container(container, &run.task);
    }
    serde_json::to_vec(&pod)
}

fn change_container(container: &mut Value, task: &Task) {
    let Task { key: _, env, args, memory, retries: _ } = task;
    if let Some(args) = args {
        container["args"] = json!(args);
    }
    if let Some(memory) = memory {
        for kind in ["requests", "limits"] {
            container["resources"][kind]["memory"] = json!(memory);
        }
    }
    if let Some(list) = container["env"].as_array_mut() {
        list.retain(|entry| entry["name"].as_str().is_none_or(|name| !env.contains_key(name)));
        list.extend(env.iter().map(|(name, value)| json!({"name": name, "value": value})));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::task::{TaskEnd, TaskOutcome, TaskState};

    fn task() -> Task {
        Task {
            key: "t-1".into(),
            env: [("A".to_owned(), "x \"y\"".to_owned())].into(),
            args: Some(vec!["-c".to_owned(), "exit 3".to_owned()]),
            memory: Some("1Gi".to_owned()),
            retries: 2,
        }
    }

    #[test]
    fn calls_and_annotations_are_read_back() {
        let Task { key, env, args, memory, retries } = task();
        let json = TaskJson { key: key.to_string(), env, args, memory, retries };
        let only_key = TaskJson { key: "b".to_owned(), ..TaskJson::default() };
        let read = parse_tasks(&tasks_body(&[json, only_key])).unwrap();
        let plain = Task { key: "b".into(), ..Task::default() };
        assert!(read == [Arc::new(task()), Arc::new(plain)]);
        let run = TaskRun { task: Arc::new(task()), attempt: 2, retries_left: 1 };
        assert_eq!(parse_run("t-1", &annotation(&run)), run);
        // Somebody has changed the annotation.
        let bare = Arc::new(Task { key: "k".into(), ..Task::default() });
        let want = TaskRun { task: bare, attempt: 1, retries_left: 0 };
        for text in ["", "{", "[1]", "{\"attempt\": -1}", "{\"env\": 7}"] {
            assert_eq!(parse_run("k", text), want, "{text}");
        }
    }

    #[test]
    fn answers_are_as_documented_and_read_back() {
        let end =
            TaskEnd { outcome: TaskOutcome::Failed, exit_code: Some(3), reason: Some("app_error") };
        let status = TaskStatus {
            key: "t".into(),
            state: TaskState::Ended(TaskOutcome::Failed),
            executor: Some(ExecutorId(7)),
            attempts: 2,
            end: Some(end),
        };
        let want = r#"{"key":"t","state":"failed","executor":7,"attempts":2,"exit_code":3,"reason":"app_error"}"#;
        let sorted: Value = serde_json::from_str(want).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&status_body(&status)).unwrap(), sorted);
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
        check(r#"{"key":"a","args":"x"}"#, "executors[1].args", "list");
        check(r#"{"key":"a","args":["a\u0000"]}"#, "executors[1].args", "NUL");
        check(r#"{"key":"a","memory":"much"}"#, "executors[1].memory", "512Mi");
        check(r#"{"key":"a","memory":"0"}"#, "executors[1].memory", "512Mi");
        check(r#"{"key":"a","retries":101}"#, "executors[1].retries", "0 to 100");
        check(r#"{"key":"a","image":"x"}"#, "executors[1].image", "unknown field");
        let long = "x".repeat(TASK_BYTES_MAX);
        check(&format!(r#"{{"key":"a","args":["{long}"]}}"#), "executors[1]", "maximum is 32768");
    }

    #[test]
    fn a_task_changes_the_main_container_alone() {
        let pod = json!({
            "metadata": {"labels": {"posse.dev/slot": "0"}, "annotations": {"posse.dev/container": "b"}},
            "spec": {"containers": [
                {"name": "a", "env": [{"name": "POSSE_SLOT", "value": "0"}, {"name": "A", "value": "1"}]},
                {"name": "b", "args": ["old"], "env": [{"name": "A", "value": "1"}],
                 "resources": {"limits": {"cpu": "1", "memory": "1Mi"}}},
            ]},
        });
        let run = TaskRun { task: Arc::new(task()), attempt: 1, retries_left: 2 };
        let body = lay_over(pod.to_string().as_bytes(), &run).unwrap();
        let got: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(got["metadata"]["labels"], json!({"posse.dev/key": "t-1"}));
        let key = json!({"name": "POSSE_KEY", "value": "t-1"});
        let [a, b] = [0, 1].map(|i| &got["spec"]["containers"][i]);
        assert_eq!(a["env"], json!([key, {"name": "A", "value": "1"}]));
        assert_eq!(b["env"], json!([key, {"name": "A", "value": "x \"y\""}]));
        assert_eq!(b["args"], json!(["-c", "exit 3"]));
        let want = json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "1Gi"}});
        assert_eq!(b["resources"], want);
        let text = got["metadata"]["annotations"]["posse.dev/task"].as_str().unwrap();
        assert_eq!(parse_run("t-1", text), run);
    }
}
