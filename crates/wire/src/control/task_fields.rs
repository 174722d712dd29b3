//! The fields of a task in a call, each checked.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::config::duration;
use crate::control::task_files::{FILES_BYTES_MAX, FILES_MAX, path_error};
use crate::control::{CallError, check_names, number_up_to, optional};
use crate::k8s::labels;
use crate::names;
use posse_core::model::task::{After, KEY_BYTES_MAX, RETRIES_MAX, TaskArray};
use posse_encoding::quantity::Quantity;

/// The object in a field, like that one; `None` if it is absent. `what` is expected.
fn object<'a>(
    fields: &'a Map<String, Value>,
    field: &str,
    what: &str,
    example: &str,
) -> Result<Option<&'a Map<String, Value>>, CallError> {
    let Some(value) = optional(fields, field) else { return Ok(None) };
    let wrong = || CallError::new(field, format!("must be {what}, for example {example}"));
    value.as_object().map(Some).ok_or_else(wrong)
}

/// Checks a key, also one in the path of a call.
pub fn parse_key(key: &str) -> Result<Arc<str>, CallError> {
    match key {
        "" => Err(CallError::new("key", "is missing, empty or no text")),
        key if names::is_label_pair(labels::KEY, key) => Ok(Arc::from(key)),
        _ => {
            let what = format!(
                "must be the value of a label: at most {KEY_BYTES_MAX} letters, digits, `-`, `_` \
                 and `.`, first and last a letter or digit"
            );
            Err(CallError::new("key", what))
        }
    }
}

/// Variables, from this field.
pub(super) fn env(
    fields: &Map<String, Value>,
    field: &str,
) -> Result<BTreeMap<String, String>, CallError> {
    let env = object(fields, field, "an object of texts", r#"{"INDEX": "7"}"#)?;
    let variable = |(name, value): (&String, &Value)| {
        let fail = |what: &str| Err(CallError::new(&format!("{field}.{name}"), what));
        match value.as_str() {
            _ if names::variable_error(name).is_some() => fail(
                "is no name of a variable: letters, digits, `_`, `-` and `.`, not first a digit",
            ),
            _ if name.starts_with(names::OWN_VARIABLES) => fail("is a variable that posse sets"),
            Some(text) if !text.contains('\0') => Ok((name.clone(), text.to_owned())),
            Some(_) | None => fail("must be a text without NUL"),
        }
    };
    env.into_iter().flatten().map(variable).collect()
}

/// The secret variables of a task that has these other ones.
pub(super) fn secret_env(
    fields: &Map<String, Value>,
    others: &BTreeMap<String, String>,
) -> Result<BTreeMap<String, String>, CallError> {
    const FIELD: &str = "secret_env";
    let env = env(fields, FIELD)?;
    match env.keys().find(|&name| others.contains_key(name)) {
        Some(name) => Err(CallError::new(&format!("{FIELD}.{name}"), "is also in env")),
        None => Ok(env),
    }
}

/// The files of a task: paths in its main container, and contents.
pub(super) fn files(fields: &Map<String, Value>) -> Result<BTreeMap<String, String>, CallError> {
    const FIELD: &str = "files";
    let example = r#"{"/etc/app.conf": "mode = fast"}"#;
    let Some(files) = object(fields, FIELD, "an object of paths and texts", example)? else {
        return Ok(BTreeMap::new());
    };
    let file = |(path, content): (&String, &Value)| {
        let fail = |what: &str| CallError::new(&format!("{FIELD}.{path}"), what);
        if let Some(problem) = path_error(path) {
            return Err(fail(&problem));
        }
        let is_above = |other: &&String| {
            path.strip_prefix(other.as_str()).is_some_and(|rest| rest.starts_with('/'))
        };
        if let Some(other) = files.keys().find(is_above) {
            return Err(fail(&format!("is below {other}, which is a file too")));
        }
        let content = content.as_str().ok_or_else(|| fail("must be a text, the file's content"))?;
        Ok((path.clone(), content.to_owned()))
    };
    let read: BTreeMap<String, String> = files.iter().map(file).collect::<Result<_, _>>()?;
    let n_bytes: usize = read.values().map(String::len).sum();
    let what = match (read.len(), n_bytes) {
        (0..=FILES_MAX, 0..=FILES_BYTES_MAX) => return Ok(read),
        (0..=FILES_MAX, _) => format!("have {n_bytes} bytes, and the maximum is {FILES_BYTES_MAX}"),
        (n, _) => format!("are {n}, and the maximum is {FILES_MAX}"),
    };
    let remedy = "put more into the image, or into a volume of the template";
    Err(CallError::new(FIELD, format!("{what}: {remedy}")))
}

pub(super) fn image(fields: &Map<String, Value>) -> Result<Option<String>, CallError> {
    let Some(image) = optional(fields, "image") else { return Ok(None) };
    let image = image.as_str().filter(|image| !image.is_empty() && !image.contains('\0'));
    let image = image.map(str::to_owned);
    image.map(Some).ok_or_else(|| CallError::new("image", "must be the name of an image"))
}

pub(super) fn words(
    fields: &Map<String, Value>,
    name: &str,
) -> Result<Option<Vec<String>>, CallError> {
    let Some(words) = optional(fields, name) else { return Ok(None) };
    let text = |word: &Value| word.as_str().filter(|word| !word.contains('\0')).map(str::to_owned);
    let words =
        words.as_array().and_then(|words| words.iter().map(text).collect::<Option<Vec<_>>>());
    words.map(Some).ok_or_else(|| CallError::new(name, "must be a list of texts without NUL"))
}

pub(super) fn amount(
    fields: &Map<String, Value>,
    name: &str,
    example: &str,
) -> Result<Option<String>, CallError> {
    let Some(amount) = optional(fields, name) else { return Ok(None) };
    let amount = amount.as_str().filter(|amount| {
        // Kubernetes reads `512m` as half a byte.
        let is_of_milli = name == "memory" && amount.ends_with('m');
        !is_of_milli
            && Quantity::parse(amount)
                .is_some_and(|amount| !amount.is_zero() && !amount.is_negative())
    });
    let amount = amount.map(str::to_owned);
    let what = || CallError::new(name, format!("must be an amount like {example:?}"));
    amount.map(Some).ok_or_else(what)
}

pub(super) fn node_selector(
    fields: &Map<String, Value>,
) -> Result<BTreeMap<String, String>, CallError> {
    const FIELD: &str = "node_selector";
    let labels = object(fields, FIELD, "an object of labels", r#"{"disk": "ssd"}"#)?;
    let label = |(key, value): (&String, &Value)| {
        let error = |what: &str| CallError::new(&format!("{FIELD}.{key}"), what);
        let text = value.as_str().ok_or_else(|| error("must be a text"))?;
        match names::is_label_pair(key, text) {
            true => Ok((key.clone(), text.to_owned())),
            false => Err(error("is no label of a node")),
        }
    };
    labels.into_iter().flatten().map(label).collect()
}

pub(super) fn retries(fields: &Map<String, Value>) -> Result<u32, CallError> {
    let retries = optional(fields, "retries");
    retries.map_or(Ok(0), |retries| number_up_to("retries", retries, RETRIES_MAX))
}

pub(super) fn after(fields: &Map<String, Value>) -> Result<BTreeMap<Arc<str>, After>, CallError> {
    const FIELD: &str = "after";
    let after = object(fields, FIELD, "an object of keys", r#"{"task-16": "ok"}"#)?;
    let one = |(key, how): (&String, &Value)| {
        let after = how.as_str().and_then(After::parse);
        let error = || CallError::new(&format!("{FIELD}.{key}"), "must be \"ok\" or \"any\"");
        Ok((Arc::from(key.as_str()), after.ok_or_else(error)?))
    };
    after.into_iter().flatten().map(one).collect()
}

pub(super) fn resources(
    fields: &Map<String, Value>,
) -> Result<BTreeMap<String, String>, CallError> {
    const FIELD: &str = "resources";
    let Some(amounts) =
        object(fields, FIELD, "an object of amounts", r#"{"nvidia.com/gpu": "1"}"#)?
    else {
        return Ok(BTreeMap::new());
    };
    let one = |name: &String| {
        let at = |error: CallError| CallError { field: Some(format!("{FIELD}.{name}")), ..error };
        let own = matches!(name.as_str(), "cpu" | "memory");
        match amount(amounts, name, "1").map_err(at)? {
            Some(amount) if !own && names::is_label_pair(name, "") => Ok((name.clone(), amount)),
            Some(_) if own => {
                Err(at(CallError::new("", format!("has a field of its own, `{name}`"))))
            }
            Some(_) => Err(at(CallError::new("", "is no name of a resource"))),
            None => Err(at(CallError::new("", "must be an amount"))),
        }
    };
    amounts.keys().map(one).collect()
}

pub(super) fn deadline_s(fields: &Map<String, Value>) -> Result<Option<u32>, CallError> {
    let Some(deadline) = optional(fields, "deadline") else { return Ok(None) };
    let ms = deadline.as_str().and_then(duration::parse_ms).filter(|&ms| ms > 0);
    let seconds = ms.and_then(|ms| u32::try_from(ms.div_ceil(1_000)).ok());
    let what = || CallError::new("deadline", format!("must be {}", duration::EXPECTED));
    seconds.map(Some).ok_or_else(what)
}

pub(super) fn array(fields: &Map<String, Value>) -> Result<Option<TaskArray>, CallError> {
    let example = r#"{"name": "sim", "index": 7, "max": 20}"#;
    let Some(array) = object(fields, "array", "an object", example)? else { return Ok(None) };
    let inside = |error: CallError| CallError {
        field: Some(format!("array.{}", error.field.unwrap_or_default())),
        error: error.error,
    };
    check_names(array, &["name", "index", "max"]).map_err(inside)?;
    let number = |name: &str, min: u32| match optional(array, name) {
        None => Ok(None),
        Some(n) => {
            let n = n.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n >= min);
            let what = || CallError::new(name, format!("must be a whole number from {min} on"));
            n.map(Some).ok_or_else(what)
        }
    };
    let name = array.get("name").and_then(Value::as_str).unwrap_or_default();
    let name =
        parse_key(name).map_err(|error| CallError::new("name", error.error)).map_err(inside)?;
    let index = number("index", 0).map_err(inside)?;
    let index = index.ok_or_else(|| inside(CallError::new("index", "is missing")))?;
    Ok(Some(TaskArray { name, index, max: number("max", 1).map_err(inside)? }))
}
