//! Executors and their Events as the API server stores them, for `posse explain`.

use serde_json::Value;

use super::{
    CALL_TIMEOUT, LIST_BYTES_MAX, OBJECT_BYTES_MAX, call, get, object_path, percent_encode,
};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::Http;
use crate::wire::labels::{EXECUTOR_ID, executor_selector};
use crate::wire::status::{Verb, unreadable};

/// Items of a list that are read. A person reads the result, so one page is enough.
const ITEMS_MAX: u32 = 500;

/// Looks executors up in one namespace.
#[derive(Clone, Debug)]
pub struct ExecutorLookup {
    http: Http,
    namespace: String,
}

impl ExecutorLookup {
    pub fn new(http: Http, namespace: impl Into<String>) -> Self {
        Self { http, namespace: namespace.into() }
    }

    /// Reads a pod; `None` if it does not exist.
    pub fn pod(&self, name: &str) -> Result<Option<Value>, Refusal> {
        match self.read(object_path("/api/v1", &self.namespace, "pods", Some(name)), Verb::Get) {
            Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(None),
            answer => answer.map(Some),
        }
    }

    /// The executors of an application, of all instances; with `id` only those with this id.
    pub fn executors(&self, app: &str, id: Option<u64>) -> Result<Vec<Value>, Refusal> {
        let id = id.map_or_else(String::new, |id| format!(",{EXECUTOR_ID}={id}"));
        let selector = executor_selector(app) + &id;
        self.list("pods", "labelSelector", &selector)
    }

    /// The Events about the object with this uid.
    pub fn events(&self, uid: &str) -> Result<Vec<Value>, Refusal> {
        self.list("events", "fieldSelector", &format!("involvedObject.uid={uid}"))
    }

    fn list(&self, resource: &str, by: &str, selector: &str) -> Result<Vec<Value>, Refusal> {
        let path = object_path("/api/v1", &self.namespace, resource, None);
        let path = format!("{path}?{by}={}&limit={ITEMS_MAX}", percent_encode(selector));
        let mut list = self.read(path, Verb::List)?;
        Ok(list["items"].as_array_mut().map(std::mem::take).unwrap_or_default())
    }

    fn read(&self, path: String, verb: Verb) -> Result<Value, Refusal> {
        let bytes_max = if verb == Verb::List { LIST_BYTES_MAX } else { OBJECT_BYTES_MAX };
        let (status, answer) = call(&self.http, &get(path, CALL_TIMEOUT, bytes_max), verb)?;
        serde_json::from_slice(&answer).map_err(|problem| unreadable(status, &problem.to_string()))
    }
}
