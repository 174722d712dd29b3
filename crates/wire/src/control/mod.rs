//! JSON of the control API: bodies to commands, answers and errors to bodies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config;
use crate::config::section::{ConfigError, Section};
use crate::pod::slot_volume::SlotVolume;
use crate::pod::template::TemplateError;
use posse_core::model::command::{AfterKill, Command, GroupChange, GroupCommand};
use posse_core::model::ids::{ExecutorId, GroupName};
use posse_core::model::pod_text::PodText;
use posse_core::model::settings::CallFields;
use posse_core::model::settings::EXECUTORS_MAX;
use posse_encoding::json::check_size;
use posse_encoding::strict_json;
use posse_encoding::yaml::Node;

mod beside;
pub mod event;
pub mod event_text;
pub mod exposition;
pub mod history_json;
pub mod prefer;
pub mod record;
pub mod status_json;
pub mod task;
mod task_fields;
pub(crate) mod task_files;
pub mod task_secrets;

/// Answer to a kill call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Killed {
    pub killed: Vec<u64>,
    /// Not killed because they are busy.
    pub busy: Vec<u64>,
    pub unknown: Vec<u64>,
    /// The target now in force. None if the ids belong to no known group.
    pub target: Option<u32>,
}

impl Killed {
    /// The answer's body.
    pub fn to_json(&self) -> String {
        json!(self).to_string()
    }
}

/// What is wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    pub error: String,
    /// The wrong field. None if the body as a whole is wrong.
    pub field: Option<String>,
}

impl CallError {
    /// An error in one field.
    pub fn new(field: &str, error: impl Into<String>) -> Self {
        Self { error: error.into(), field: Some(field.to_owned()) }
    }
}

impl From<TemplateError> for CallError {
    /// The error with its path in the call's body.
    fn from(error: TemplateError) -> Self {
        let TemplateError { source: _, field, message } = error;
        let field =
            if field.is_empty() { TEMPLATE.to_owned() } else { format!("{TEMPLATE}.{field}") };
        Self { error: message, field: Some(field) }
    }
}

impl From<ConfigError> for CallError {
    fn from(error: ConfigError) -> Self {
        // The message begins with the path of the key.
        match error.message.split_once(": ") {
            Some((field, message)) => Self::new(field, message),
            None => Self { error: error.message, field: None },
        }
    }
}

/// The name of the field that holds the template of a group.
pub const TEMPLATE: &str = "template";
/// The name of the field that holds the volumes of each slot.
pub const VOLUMES: &str = "volumes_per_slot";

/// Body of `PUT /v1/groups/{group}`.
#[derive(Clone, Debug, PartialEq)]
pub enum PutGroup {
    /// Only a new target.
    Target(u32),
    /// The whole group.
    Whole(Box<NewGroup>),
}

/// A group from the control API, before its template is compiled: that needs the run's `PodContext`, which the reader of
/// the call does not have.
#[derive(Clone, Default, PartialEq)]
pub struct NewGroup {
    /// A v1 Pod or PodTemplate as it was sent.
    pub template: Value,
    /// Name of the main container. None: the first one.
    pub container: Option<String>,
    /// The other fields. Its pod is not compiled yet.
    pub change: GroupChange,
    /// The claims that each slot has.
    pub volumes: Vec<SlotVolume>,
}

impl fmt::Debug for NewGroup {
    /// Without the pod, because its environment may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewGroup").field("target", &self.change.target).finish_non_exhaustive()
    }
}

impl NewGroup {
    /// The command. `pod` is the compiled template.
    pub fn command(self, group: GroupName, pod: Arc<PodText>) -> Command {
        Command::Group(group, GroupCommand::Put { change: GroupChange { pod, ..self.change } })
    }
}

/// The most bytes of a group that a call makes, as the record has them: it keeps them in one object of the server, which takes
/// 1 MiB.
const GROUP_BYTES_MAX: usize = 900_000;

/// The fields of `PUT /v1/groups/{group}`.
const PUT_FIELDS: [&str; 14] = [
    "target",
    TEMPLATE,
    "beside",
    "min",
    "max",
    "container",
    "scale_down",
    "replace",
    "slots",
    "on_loss",
    "restart",
    "completions",
    "decommission",
    VOLUMES,
];

/// Reads the body of `PUT /v1/groups/{group}`.
pub fn parse_put_group(body: &[u8]) -> Result<PutGroup, CallError> {
    let mut fields = parse_object(body)?;
    check_names(&fields, &PUT_FIELDS)?;
    let Some(template) = fields.remove(TEMPLATE).filter(|template| !template.is_null()) else {
        if let Some(name) = fields.keys().find(|name| name.as_str() != "target") {
            return Err(CallError::new(name, "is only allowed together with a template"));
        }
        let target = fields.get("target").ok_or_else(|| CallError::new("target", "is missing"))?;
        return Ok(PutGroup::Target(count("target", target)?));
    };
    let call = call_fields(&fields, &template);
    let n_bytes: usize =
        call.iter().map(|(name, text)| name.len() + Value::from(&**text).to_string().len()).sum();
    if n_bytes > GROUP_BYTES_MAX {
        let what =
            format!("makes a group of {n_bytes} bytes, and the maximum is {GROUP_BYTES_MAX}");
        return Err(CallError::new(TEMPLATE, what));
    }
    let container = optional(&fields, "container").map(|value| text("container", value));
    let container = container.transpose()?;
    let fields = Node::from(Value::Object(fields));
    let (mut change, beside, volumes) =
        config::of_call(&Section::new("", String::new(), &fields)?)?;
    change.call = call;
    let template = match beside {
        Some(beside) => beside::place(template, &beside)?,
        None => template,
    };
    Ok(PutGroup::Whole(Box::new(NewGroup { template, container, change, volumes })))
}

fn call_fields(fields: &Map<String, Value>, template: &Value) -> CallFields {
    let fields = fields.iter().map(|(name, value)| (name.as_str(), value));
    // Null would hide what an earlier call has said.
    let all = fields.filter(|(_, value)| !value.is_null()).chain([(TEMPLATE, template)]);
    all.map(|(name, value)| (name.into(), value.to_string().into())).collect()
}

/// The call that has these fields, as one body.
///
/// # Errors
/// They are not the fields of such a call.
pub fn parse_put_fields(fields: &CallFields) -> Result<PutGroup, CallError> {
    let fields = fields.iter().map(|(name, text)| format!("{}:{text}", Value::from(&**name)));
    parse_put_group(format!("{{{}}}", fields.collect::<Vec<_>>().join(",")).as_bytes())
}

/// Reads the body of `POST /v1/executors/kill`.
pub fn parse_kill(body: &[u8]) -> Result<Command, CallError> {
    let fields = parse_object(body)?;
    let names = ["executors", "replace", "force", "heartbeat_timeout", "reason", "target"];
    check_names(&fields, &names)?;
    let after = match (optional(&fields, "replace"), optional(&fields, "target")) {
        (Some(_), Some(_)) => {
            return Err(CallError::new("target", "excludes replace: give one of the two"));
        }
        (Some(replace), None) if !flag("replace", replace)? => AfterKill::Lower,
        (None, Some(target)) => AfterKill::Target(count("target", target)?),
        (Some(_) | None, None) => AfterKill::Replace,
    };
    let is_set = |name| optional(&fields, name).map_or(Ok(false), |value| flag(name, value));
    let reason = optional(&fields, "reason").map(|value| text("reason", value)).transpose()?;
    let (force, is_silent) = (is_set("force")?, is_set("heartbeat_timeout")?);
    Ok(Command::Kill { executors: ids(&fields)?, after, force, is_silent, reason })
}

/// Reads the body of `POST /v1/driver/ready`, which may be empty: the address of the driver's own page.
pub fn parse_ready(body: &[u8]) -> Result<Option<String>, CallError> {
    const PAGE: &str = "page";
    if body.is_empty() {
        return Ok(None);
    }
    let fields = parse_object(body)?;
    check_names(&fields, &[PAGE])?;
    let Some(page) = optional(&fields, PAGE) else { return Ok(None) };
    // A browser follows it, so it may be no `javascript:`.
    let is_web = |page: &&str| page.starts_with("http://") || page.starts_with("https://");
    let is_clean = |page: &&str| {
        page.len() <= URL_BYTES_MAX && page.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let page = page.as_str().filter(is_web).filter(is_clean);
    let page =
        page.ok_or_else(|| CallError::new(PAGE, "must be the URL of a page, http or https"))?;
    Ok(Some(page.to_owned()))
}

/// The longest address of a page.
const URL_BYTES_MAX: usize = 2 << 10;

/// Reads the body of `POST /v1/executors/heartbeat`.
pub fn parse_heartbeat(body: &[u8]) -> Result<Command, CallError> {
    const MEMORY: &str = "memory";
    let fields = parse_object(body)?;
    check_names(&fields, &["executors", MEMORY])?;
    let executors = ids(&fields)?;
    let mut memory = BTreeMap::new();
    match fields.get(MEMORY) {
        None | Some(Value::Null) => {}
        Some(Value::Object(amounts)) => {
            for (id, bytes) in amounts {
                let id = id.parse().map(ExecutorId).ok().filter(|id| executors.contains(id));
                let id = id.ok_or_else(|| {
                    CallError::new(MEMORY, "must have ids of `executors` as its fields")
                })?;
                let bytes = bytes
                    .as_u64()
                    .ok_or_else(|| CallError::new(MEMORY, "must hold whole numbers of bytes"))?;
                memory.insert(id, bytes);
            }
        }
        Some(_) => return Err(CallError::new(MEMORY, "must be an object with bytes by id")),
    }
    Ok(Command::Heartbeat { executors, memory })
}

/// Reads the body of `POST /v1/executors/idle`.
pub fn parse_executors(body: &[u8]) -> Result<BTreeSet<ExecutorId>, CallError> {
    let fields = parse_object(body)?;
    check_names(&fields, &["executors"])?;
    ids(&fields)
}

/// Reads the id in `POST /v1/executors/{id}/disconnected`.
pub fn parse_id(segment: &str) -> Result<ExecutorId, CallError> {
    let id = segment.parse::<u64>().ok().filter(|&id| id > 0).map(ExecutorId);
    id.ok_or_else(|| CallError::new("executor", "must be an executor id: a whole number from 1"))
}

/// Body of a call that names executors.
pub fn ids_body(executors: &BTreeSet<ExecutorId>) -> Vec<u8> {
    json!({"executors": numbers(executors)}).to_string().into_bytes()
}

/// Reads the answer to a call that names executors. None if the body is something else.
pub fn parse_unknown(body: &[u8]) -> Option<Vec<u64>> {
    #[derive(Deserialize)]
    struct Unknown {
        unknown: Vec<u64>,
    }
    serde_json::from_slice(body).ok().map(|Unknown { unknown }| unknown)
}

/// The answer to a call that names executors: those that posse does not know.
pub fn unknown_body(unknown: &[ExecutorId]) -> Vec<u8> {
    json!({"unknown": numbers(unknown)}).to_string().into_bytes()
}

/// Body of an error answer.
pub fn error_body(error: &str, field: Option<&str>) -> Vec<u8> {
    let body = match field {
        Some(field) => json!({"error": error, "field": field}),
        None => json!({"error": error}),
    };
    body.to_string().into_bytes()
}

/// Reads an error answer. None if another server wrote the body.
pub fn parse_error(body: &[u8]) -> Option<CallError> {
    let fields = parse_object(body).ok()?;
    let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
    Some(CallError { error: text("error")?, field: text("field") })
}

/// Body of a call that sets a target, and of its answer.
pub fn target_body(target: u32) -> Vec<u8> {
    json!({"target": target}).to_string().into_bytes()
}

/// Reads the answer to a call that sets a target. None if the body is something else.
pub fn parse_target(body: &[u8]) -> Option<u32> {
    let fields = parse_object(body).ok()?;
    fields.get("target").and_then(|target| count("target", target).ok())
}

/// Body of a kill call.
pub fn kill_body(
    executors: &BTreeSet<ExecutorId>,
    after: AfterKill,
    force: bool,
    reason: Option<&str>,
) -> Vec<u8> {
    let mut body = json!({"executors": numbers(executors), "force": force, "reason": reason});
    match after {
        AfterKill::Lower => body["replace"] = json!(false),
        AfterKill::Replace => body["replace"] = json!(true),
        AfterKill::Target(target) => body["target"] = json!(target),
    }
    body.to_string().into_bytes()
}

/// Body of the answer to a kill call.
pub fn killed_body(
    killed: &[ExecutorId],
    busy: &[ExecutorId],
    unknown: &[ExecutorId],
    target: Option<u32>,
) -> Vec<u8> {
    let (killed, busy, unknown) = (numbers(killed), numbers(busy), numbers(unknown));
    Killed { killed, busy, unknown, target }.to_json().into_bytes()
}

/// Reads the answer to a kill call. None if the body is something else.
pub fn parse_killed(body: &[u8]) -> Option<Killed> {
    serde_json::from_slice(body).ok()
}

fn numbers<'i>(ids: impl IntoIterator<Item = &'i ExecutorId>) -> Vec<u64> {
    ids.into_iter().map(|id| id.0).collect()
}

pub(super) fn parse_object(body: &[u8]) -> Result<Map<String, Value>, CallError> {
    let wrong = |error: String| CallError { error, field: None };
    check_size(body).map_err(|why| wrong(format!("the body {why}")))?;
    let value = strict_json::parse(body)
        .map_err(|error| wrong(format!("the body is not JSON: {error}")))?;
    match value {
        Value::Object(fields) => Ok(fields),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Err(wrong("the body must be a JSON object".to_owned()))
        }
    }
}

/// Rejects unknown fields: a misspelt field must not silently change what a call does.
pub(super) fn check_names(fields: &Map<String, Value>, known: &[&str]) -> Result<(), CallError> {
    match fields.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(CallError::new(
            name,
            format!("unknown field, expected one of {}", known.join(", ")),
        )),
        None => Ok(()),
    }
}

/// Null counts as absent.
pub(super) fn optional<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

fn count(field: &str, value: &Value) -> Result<u32, CallError> {
    number_up_to(field, value, EXECUTORS_MAX)
}

pub(super) fn number_up_to(field: &str, value: &Value, max: u32) -> Result<u32, CallError> {
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n <= max);
    number.ok_or_else(|| CallError::new(field, format!("must be a whole number from 0 to {max}")))
}

fn flag(field: &str, value: &Value) -> Result<bool, CallError> {
    value.as_bool().ok_or_else(|| CallError::new(field, "must be true or false"))
}

fn text(field: &str, value: &Value) -> Result<String, CallError> {
    let text = value.as_str().filter(|text| text.len() <= REASON_BYTES_MAX);
    text.map(str::to_owned).ok_or_else(|| {
        CallError::new(field, format!("must be a text of at most {REASON_BYTES_MAX} bytes"))
    })
}

fn ids(fields: &Map<String, Value>) -> Result<BTreeSet<ExecutorId>, CallError> {
    const FIELD: &str = "executors";
    let list = fields.get(FIELD).ok_or_else(|| CallError::new(FIELD, "is missing"))?;
    let list = list.as_array().ok_or_else(|| CallError::new(FIELD, "must be a list of numbers"))?;
    let mut ids = BTreeSet::new();
    for id in list {
        let id = id.as_u64().filter(|&id| id > 0).map(ExecutorId);
        ids.insert(id.ok_or_else(|| {
            CallError::new(FIELD, "must hold executor ids: whole numbers from 1")
        })?);
    }
    Ok(ids)
}

/// A reason appears in events and logs, so it has to be short.
const REASON_BYTES_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::settings::{
        Decommission, OnLoss, Replace, Restart, ScaleDown, SlotPolicy,
    };

    fn kill(ids: &[u64], after: AfterKill, force: bool, reason: Option<&str>) -> Command {
        let executors = ids.iter().copied().map(ExecutorId).collect();
        let reason = reason.map(str::to_owned);
        Command::Kill { executors, after, force, is_silent: false, reason }
    }

    #[test]
    fn reads_heartbeats() {
        let id = ExecutorId;
        let executors = BTreeSet::from([id(1), id(2)]);
        for (text, memory) in [
            (r#"{"executors":[1,2]}"#, BTreeMap::new()),
            (r#"{"executors":[1,2],"memory":null}"#, BTreeMap::new()),
            (
                r#"{"executors":[1,2],"memory":{"2":1073741824}}"#,
                BTreeMap::from([(id(2), 1 << 30)]),
            ),
        ] {
            let want = Command::Heartbeat { executors: executors.clone(), memory };
            assert_eq!(parse_heartbeat(text.as_bytes()), Ok(want), "{text}");
        }
        for (text, field) in [
            (r#"{"executors":[1],"memory":{"2":1}}"#, "memory"),
            (r#"{"executors":[1],"memory":{"x":1}}"#, "memory"),
            (r#"{"executors":[1],"memory":{"1":-1}}"#, "memory"),
            (r#"{"executors":[1],"memory":{"1":"1Gi"}}"#, "memory"),
            (r#"{"executors":[1],"memory":[1]}"#, "memory"),
            (r#"{"memory":{}}"#, "executors"),
        ] {
            let error = parse_heartbeat(text.as_bytes()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{text}");
        }
    }

    #[test]
    fn reads_kill_calls() {
        let table = [
            (r#"{"executors":[2,1,2]}"#, kill(&[1, 2], AfterKill::Replace, false, None)),
            (r#"{"executors":[],"replace":true}"#, kill(&[], AfterKill::Replace, false, None)),
            (
                r#"{"executors":[1],"replace":false,"force":true,"reason":"slow"}"#,
                kill(&[1], AfterKill::Lower, true, Some("slow")),
            ),
            (
                r#" {"target":0,"executors":[1],"reason":null} "#,
                kill(&[1], AfterKill::Target(0), false, None),
            ),
        ];
        for (body, want) in table {
            assert_eq!(parse_kill(body.as_bytes()), Ok(want), "{body}");
        }
    }

    #[test]
    fn a_key_that_is_given_twice_is_refused() {
        let error = |body: &str| parse_put_group(body.as_bytes()).unwrap_err().error;
        for body in [
            r#"{"target": 1, "target": 2}"#,
            r#"{"template": {"spec": {"hostPID": true, "hostPID": false}}}"#,
        ] {
            assert!(error(body).contains("is given twice"), "{}", error(body));
        }
        let kill = parse_kill(br#"{"executors": [1], "executors": [2]}"#).unwrap_err();
        assert!(kill.error.contains("\"executors\" is given twice"), "{kill:?}");
    }

    #[test]
    fn a_group_that_no_record_can_keep_is_refused() {
        let put = |n: usize| {
            parse_put_group(format!(r#"{{"template":"{}","target":1}}"#, "x".repeat(n)).as_bytes())
        };
        assert!(put(GROUP_BYTES_MAX - 100).is_ok());
        let error = put(GROUP_BYTES_MAX).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(TEMPLATE));
        assert!(error.error.ends_with("and the maximum is 900000"), "{error:?}");
    }

    #[test]
    fn reads_groups() {
        let body = r#"{"template":{"spec":1},"target":3,"min":1,"max":9,"container":"w",
            "scale_down":"pending","replace":"gone","slots":"stable","on_loss":"group","restart":"never","completions":7,
            "decommission":{"signal":"TERM","after":"30s","label":null}}"#;
        let want = NewGroup {
            template: json!({"spec": 1}),
            container: Some("w".to_owned()),
            change: GroupChange {
                target: Some(3),
                min: Some(1),
                max: Some(9),
                scale_down: Some(ScaleDown::Pending),
                replace: Some(Replace::Gone),
                slots: Some(SlotPolicy::Stable),
                on_loss: Some(OnLoss::Group),
                restart: Some(Restart::Never),
                completions: Some(7),
                decommission: Some(Decommission { after_ms: 30_000, label: None, by_term: true }),
                ..GroupChange::default()
            },
            volumes: Vec::new(),
        };
        assert!(whole(body) == want);
        let body = r#"{"template":{"spec":1},"max":null,"scale_down":"any"}"#;
        let want = NewGroup {
            template: json!({"spec": 1}),
            change: GroupChange { scale_down: Some(ScaleDown::Any), ..GroupChange::default() },
            ..NewGroup::default()
        };
        assert!(whole(body) == want);
    }

    /// The group of this body, without the call, which is the same group.
    fn whole(body: &str) -> NewGroup {
        let read = |group| match group {
            Ok(PutGroup::Whole(group)) => *group,
            other => panic!("{other:?}"),
        };
        let mut group = read(parse_put_group(body.as_bytes()));
        assert!(read(parse_put_fields(&group.change.call)) == group);
        let is_absent = |text: &Arc<str>| **text == *"null";
        assert!(!group.change.call.values().any(is_absent), "what a call does not say stays");
        group.change.call.clear();
        group
    }

    #[test]
    fn bodies_are_read_back() {
        let executors: BTreeSet<ExecutorId> = [ExecutorId(7), ExecutorId(9)].into();
        for after in [AfterKill::Lower, AfterKill::Replace, AfterKill::Target(3)] {
            for (force, reason) in [(true, Some("why \"so\"")), (false, None)] {
                let want = kill(&[7, 9], after, force, reason);
                assert_eq!(parse_kill(&kill_body(&executors, after, force, reason)), Ok(want));
            }
        }
        assert!(parse_put_group(&target_body(5)) == Ok(PutGroup::Target(5)));
        assert_eq!(parse_target(&target_body(5)), Some(5));
        let want = CallError::new("target", "is missing");
        assert_eq!(parse_error(&error_body("is missing", Some("target"))), Some(want));
        let killed = killed_body(&[ExecutorId(1)], &[], &[ExecutorId(4)], None);
        assert_eq!(killed, br#"{"busy":[],"killed":[1],"target":null,"unknown":[4]}"#);
        let want = Killed { killed: vec![1], unknown: vec![4], ..Killed::default() };
        assert_eq!(parse_killed(&killed), Some(want));
        assert_eq!(parse_killed(b"{}"), None);
    }

    #[test]
    fn errors_name_the_wrong_field() {
        #[track_caller]
        fn check(got: Result<Command, CallError>, field: Option<&str>, part: &str) {
            let bad = got.expect_err("it must be refused");
            assert_eq!(bad.field.as_deref(), field, "{bad:?}");
            assert!(bad.error.contains(part), "{bad:?}");
        }
        let put = |body: &str| parse_put_group(body.as_bytes()).map(|_| Command::Status);
        check(put(""), None, "not JSON");
        check(put("{\"target\":1"), None, "line 1");
        check(put("[1]"), None, "object");
        check(put(&"[".repeat(100_000)), None, "the body is nested deeper than 64");
        check(put(&format!("[{}1]", "{\"\":1},".repeat(90_000))), None, "more than 100000 values");
        check(put("{}"), Some("target"), "missing");
        check(put(r#"{"target":null}"#), Some("target"), "whole number");
        check(put(r#"{"target":-1}"#), Some("target"), "whole number");
        check(put(r#"{"target":1.5}"#), Some("target"), "whole number");
        check(put(r#"{"target":"3"}"#), Some("target"), "whole number");
        check(put(r#"{"target":4294967296}"#), Some("target"), "whole number");
        check(put(r#"{"target":1,"tarjet":1}"#), Some("tarjet"), "unknown field");
        check(put(r#"{"target":1,"min":1}"#), Some("min"), "together with a template");
        check(put(r#"{"template":null}"#), Some("target"), "missing");
        check(put(r#"{"template":{},"max":"2"}"#), Some("max"), "whole number");
        check(put(r#"{"template":{},"scale_down":"all"}"#), Some("scale_down"), "any or pending");
        check(put(r#"{"template":{},"replace":1}"#), Some("replace"), "terminating or gone");
        check(put(r#"{"template":{},"restart":"no"}"#), Some("restart"), "on-failure or never");
        check(put(r#"{"template":{},"container":["a"]}"#), Some("container"), "text");
        check(put(r#"{"template":{},"image":"a"}"#), Some("image"), "unknown field");
        let volumes =
            |list: &str| put(&format!(r#"{{"template":{{}},"volumes_per_slot":{list}}}"#));
        check(volumes("{}"), Some("volumes_per_slot"), "expected a list");
        check(volumes(r#"["a"]"#), Some("volumes_per_slot[0]"), "expected a map");
        let odd = r#"[{"name":"a: b","size":"1Gi","mount":"/a"}]"#;
        check(volumes(odd), Some("volumes_per_slot[0].name"), "`a: b` is not a name");

        let decommission = |map: &str| put(&format!(r#"{{"template":{{}},"decommission":{map}}}"#));
        check(decommission("\"30s\""), Some("decommission"), "expected a map");
        check(decommission("{}"), Some("decommission.after"), "longer than 0s");

        let kill = |body: &str| parse_kill(body.as_bytes());
        check(kill("{}"), Some("executors"), "missing");
        check(kill(r#"{"executors":1}"#), Some("executors"), "list");
        check(kill(r#"{"executors":[0]}"#), Some("executors"), "from 1");
        check(kill(r#"{"executors":["1"]}"#), Some("executors"), "from 1");
        check(kill(r#"{"executors":[1],"force":1}"#), Some("force"), "true or false");
        check(kill(r#"{"executors":[1],"replace":"no"}"#), Some("replace"), "true or false");
        check(kill(r#"{"executors":[1],"reason":[]}"#), Some("reason"), "text");
        check(
            kill(r#"{"executors":[1],"replace":true,"target":1}"#),
            Some("target"),
            "excludes replace",
        );
        check(kill(r#"{"executor":[1]}"#), Some("executor"), "unknown field");
    }
}
