//! What a test may ask of a server, whichever of the two it is. Where only one can do a thing,
//! the method says so.

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
    /// What `posse run` needs, in the namespaces that were opened to it.
    Posse,
    /// Known to the server, and without a right.
    Stranger,
}

/// How an executor is made to end.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// A controller marks it for this reason and deletes it; real server only.
    Disrupted(&'static str),
    /// Its container ends by itself with this code.
    Exit(i32),
    /// Its container is ended by SIGKILL, nobody says by whom.
    Killed,
    /// Its container cannot be started as it is written; real server only.
    NotStarted,
    /// Its container runs into its memory limit; on the embedded server it has to have one.
    OomKilled,
    /// The kubelet ends all of it for this reason, the empty one too; real server only.
    PodFailed(&'static str),
}

/// The node behind a server, for one namespace.
pub trait Node {
    /// Ends the pod's container.
    fn end(&self, pod: &str, end: End);

    /// While held, a pod that is being deleted does not go.
    fn hold_deletes(&self, hold: bool);

    /// While held, pods are bound to a node and do not start; real server only.
    fn hold_starts(&self, hold: bool);
}

/// One of the two servers.
pub trait Server: Send + Sync {
    fn access(&self, who: Who) -> Access;

    /// Makes the namespace and gives `Who::Posse` and `Who::Node` their rights in it.
    fn open_namespace(&self, namespace: &str);

    /// The node for a namespace; `dir` is the scene's own folder.
    fn node(&self, namespace: &str, dir: &Path) -> Box<dyn Node>;

    /// A server of its own for a test that stops or freezes it.
    fn fresh(&self) -> Box<dyn Server>;

    /// Out of reach from here on: connections are cut and refused.
    fn down(&self);

    /// Within reach again at the same address.
    fn up(&self);

    /// Keeps its connections and answers nothing.
    fn freeze(&self);

    fn thaw(&self);

    /// Forgets all history: who watches from an older version is told 410.
    fn compact(&self);

    /// Keeps what there is, for `restore`.
    fn back_up(&self);

    /// Goes back to what was kept: what was written since never was.
    fn restore(&self);

    /// The audit log; the embedded server writes none.
    fn audit_log(&self) -> Option<PathBuf>;

    /// The real server, for what only that one has: TLS, users, tokens, quotas.
    fn real(&self) -> Option<&Real>;
}

/// The namespaced path of pods.
pub fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Makes a namespace.
pub fn create_namespace(admin: &Client, namespace: &str) {
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    admin.post("/api/v1/namespaces", &body).ok();
}

/// The items of a list.
pub fn items(list: &Value) -> Vec<Value> {
    list["items"].as_array().cloned().unwrap_or_default()
}
