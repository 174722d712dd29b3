//! The secret variables and the files of tasks: the Secret that has their values, and what posse writes into it. Each
//! distinct value has one key, so that ten thousand tasks with the same token need one.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use crate::k8s::labels::Selection;
use posse_core::model::task::Task;

/// The most bytes that all keys and values of the Secret may have together; keys count twice, because the server also
/// notes who wrote each. A Secret takes 1 MiB (1,048,576).
pub const TASK_SECRET_BYTES_MAX: usize = 900_000;

/// A task of a call, whose values are not stored yet.
#[derive(Clone, PartialEq, Eq)]
pub struct NewTask {
    /// Without its `secret_env` and `files`.
    pub task: Task,
    /// The values of its `secret_env`, by name.
    pub secrets: BTreeMap<String, String>,
    /// The contents of its `files`, by path.
    pub files: BTreeMap<String, String>,
}

impl fmt::Debug for NewTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewTask").field("task", &self.task).finish_non_exhaustive()
    }
}

impl NewTask {
    /// What the Secret must have for the task.
    pub fn values(&self) -> impl Iterator<Item = &String> {
        self.secrets.values().chain(self.files.values())
    }

    /// The task, with the key that each of its values got. None if a value has no key.
    pub fn with_keys(self, key: impl Fn(&str) -> Option<Arc<str>>) -> Option<Arc<Task>> {
        let Self { mut task, secrets, files } = self;
        let keys = |values: BTreeMap<String, String>| {
            let keys = values.into_iter().map(|(name, value)| Some((name, key(&value)?)));
            keys.collect::<Option<BTreeMap<_, _>>>()
        };
        task.secret_env = keys(secrets)?;
        task.files = keys(files)?;
        Some(Arc::new(task))
    }
}

/// The name of the Secret, one for each application: a role can name it before there is a task.
pub fn secret_name(app: &str) -> String {
    format!("{app}-tasks")
}

/// The beginning of the keys of an instance. The instances of an application share the Secret.
fn prefix(instance: &str) -> String {
    format!("{instance}.")
}

/// A key for a new value. It says nothing of the value.
pub fn new_key(instance: &str, random: u64) -> Arc<str> {
    format!("{}{random:016x}", prefix(instance)).into()
}

/// How much of `TASK_SECRET_BYTES_MAX` these take.
pub fn n_bytes(key: &str, value: &str) -> usize {
    2 * key.len() + value.len()
}

/// What a Secret has: the values of an instance by key, and whether there are others.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Stored {
    pub values: BTreeMap<Arc<str>, String>,
    pub has_others: bool,
    /// How much of `TASK_SECRET_BYTES_MAX` the others take.
    pub n_other_bytes: usize,
}

impl fmt::Debug for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stored").field("n_values", &self.values.len()).finish_non_exhaustive()
    }
}

/// Reads a Secret.
pub fn stored(secret: &Value, selection: &Selection) -> Stored {
    let prefix = prefix(&selection.instance);
    let mut stored = Stored::default();
    for (key, value) in secret["data"].as_object().into_iter().flatten() {
        let bytes = BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default();
        match String::from_utf8(bytes) {
            Ok(text) if key.starts_with(&prefix) => {
                stored.values.insert(Arc::from(key.as_str()), text);
            }
            other => {
                stored.has_others = true;
                stored.n_other_bytes +=
                    2 * key.len() + other.map_or_else(|e| e.as_bytes().len(), |s| s.len());
            }
        }
    }
    stored
}

/// The `data` of a Secret or of a merge patch. None removes a key.
pub fn data<'a>(values: impl IntoIterator<Item = (&'a Arc<str>, Option<&'a str>)>) -> Value {
    let encoded = |value: &str| json!(BASE64_STANDARD.encode(value));
    let entries = values
        .into_iter()
        .map(|(key, value)| (key.to_string(), value.map_or(Value::Null, encoded)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::k8s::common_metadata::CommonMetadata;
    use crate::pod::credential_files::{CredentialFiles, is_ours, secret};

    #[test]
    fn values_are_stored_and_read_back() {
        let selection = Selection { app: "q".to_owned(), instance: "i1".to_owned() };
        let (a, b) = (new_key("i1", 7), new_key("i1", 8));
        assert_eq!(&*a, "i1.0000000000000007");
        let common = CommonMetadata::default();
        let mut object =
            secret(&secret_name("q"), &selection, None, &common, &CredentialFiles::new(), None);
        object["data"] = data([(&a, Some("p\u{e4}ss")), (&b, None)]);
        object["data"]["i2.0000000000000001"] = json!("eA==");
        object["data"]["mine"] = json!("not base64");
        assert_eq!(object["metadata"]["name"], "q-tasks");
        assert!(is_ours(&object, "q"));
        assert_eq!(object["data"]["i1.0000000000000008"], Value::Null);
        object["data"].as_object_mut().unwrap().remove(&*b);
        let read = stored(&object, &selection);
        assert_eq!(read.values, [(a, "p\u{e4}ss".to_owned())].into());
        assert!(read.has_others);
        assert_eq!(read.n_other_bytes, 2 * 19 + 1 + 2 * 4);
        assert_eq!(stored(&json!({}), &selection), Stored::default());
    }

    #[test]
    fn no_text_for_logs_has_a_value() {
        let secrets = [("TOKEN".to_owned(), "s3cr3t".to_owned())].into();
        let files = [("/f".to_owned(), "s3cr3t".to_owned())].into();
        let new = NewTask { task: Task { key: "t".into(), ..Task::default() }, secrets, files };
        assert_eq!(new.values().collect::<Vec<_>>(), ["s3cr3t", "s3cr3t"]);
        assert!(!format!("{new:?}").contains("s3cr3t"));
        let values = [(new_key("i", 1), "s3cr3t".to_owned())].into();
        assert!(!format!("{:?}", Stored { values, ..Stored::default() }).contains("s3cr3t"));
        assert_eq!(new.clone().with_keys(|_| None), None);
        let task = new.with_keys(|value| (value == "s3cr3t").then(|| "i.1".into())).unwrap();
        assert_eq!(task.secret_env, [("TOKEN".to_owned(), "i.1".into())].into());
        assert_eq!(task.files, [("/f".to_owned(), "i.1".into())].into());
        assert_eq!(task.secret_keys().count(), 2);
    }
}
