//! What tests need from a server: a trait with two implementations. Methods that only one of them
//! supports say so.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::access::Access;
use super::http::Client;
use super::real::Real;

/// The identities that tests use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// May do everything.
    Admin,
    /// Plays scheduler and kubelet.
    Node,
    /// The permissions of `posse run`, in the namespaces that were opened to it.
    Posse,
    /// A known user without permissions.
    Stranger,
}

/// How an executor ends.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// A controller marks it as disrupted for this reason and deletes it; real server only.
    Disrupted(&'static str),
    /// Its container exits with this code.
    Exit(i32),
    /// Its container is ended by SIGKILL, for no known reason.
    Killed,
    /// Its container cannot be started; real server only.
    NotStarted,
    /// Its container exceeds its memory limit; on the embedded server it must have one.
    OomKilled,
    /// The kubelet fails the whole pod with this reason, which may be empty; real server only.
    PodFailed(&'static str),
}

/// The node behind a server, for one namespace.
pub trait Node {
    /// Ends the pod's container.
    fn end(&self, pod: &str, end: End);

    /// While held, deleted pods stay terminating.
    fn hold_deletes(&self, hold: bool);

    /// While held, pods are bound to a node but do not start; real server only.
    fn hold_starts(&self, hold: bool);

    /// A node is out of reach: its containers run on, and its pods are marked to go. Another node must
    /// be in reach. On the embedded server the pods must not tolerate it.
    fn cut_off(&self, node: &str);

    /// The node is in reach again.
    fn connect(&self, node: &str);
}

/// One of the two servers.
pub trait Server: Send + Sync {
    fn access(&self, who: Who) -> Access;

    /// Creates the namespace and gives `Who::Posse` and `Who::Node` their permissions in it.
    fn open_namespace(&self, namespace: &str);

    /// The node for a namespace; `dir` is the scene's folder.
    fn node(&self, namespace: &str, dir: &Path) -> Box<dyn Node>;

    /// A separate server with two nodes, for a test that stops or pauses it, or loses a node.
    fn fresh(&self) -> Box<dyn Server>;

    /// From now on connections are cut and refused.
    fn down(&self);

    /// Accepts connections again, at the same address.
    fn up(&self);

    /// Keeps its connections and answers nothing.
    fn freeze(&self);

    fn thaw(&self);

    /// Forgets its history: a watch from an older version gets 410.
    fn compact(&self);

    /// Saves the current state for `restore`.
    fn back_up(&self);

    /// Restores the saved state: later writes are lost.
    fn restore(&self);

    /// The audit log; the embedded server has none.
    fn audit_log(&self) -> Option<PathBuf>;

    /// The real server, for what only that one has: TLS, users, tokens, quotas.
    fn real(&self) -> Option<&Real>;
}

/// The namespaced path of pods.
pub fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Creates a namespace.
pub fn create_namespace(admin: &Client, namespace: &str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    admin.post("/api/v1/namespaces", &body).ok();
}

/// The items of a list.
pub fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}
