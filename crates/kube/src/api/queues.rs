//! What `posse check` and `posse explain` read of Kueue. A run needs none of it.

use serde_json::Value;

use super::preflight::{group_path, read_at};
use super::{object_path, percent_encode};
use crate::http::Http;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::kueue::{API, JOB_UID};
use posse_wire::k8s::kueue_objects::{self, LocalQueue};
use posse_wire::k8s::preflight::Namespace;
use posse_wire::k8s::status::Verb;

/// A LocalQueue, and why its ClusterQueue admits nothing of its namespace; the latter is an error if we may not read
/// ClusterQueues.
///
/// # Errors
/// The server's refusal; `NotFound` if there is no Kueue, or no such queue.
pub fn queue(
    http: &Http,
    namespace: &Namespace,
    name: &str,
    queue: &str,
) -> Result<(LocalQueue, Result<Option<String>, Refusal>), Refusal> {
    let api = group_path(http, API)?;
    let path = object_path(&api, name, "localqueues", Some(queue));
    let local = read_at(http, path, Verb::Get, kueue_objects::local_queue)?;
    let path = format!("{api}/clusterqueues/{}", percent_encode(&local.cluster_queue));
    let closed =
        read_at(http, path, Verb::Get, |bytes| kueue_objects::closed(bytes, &namespace.labels));
    Ok((local, closed))
}

/// The Workload that Kueue made for the pod with this uid; none if it made none, or if there is no Kueue.
pub fn workload(http: &Http, namespace: &str, uid: &str) -> Result<Option<Value>, Refusal> {
    let api = match group_path(http, API) {
        Ok(api) => api,
        Err(refusal) if refusal.class == RefusalClass::NotFound => return Ok(None),
        Err(refusal) => return Err(refusal),
    };
    let path = object_path(&api, namespace, "workloads", None);
    let by = percent_encode(&format!("{JOB_UID}={uid}"));
    read_at(
        http,
        format!("{path}?labelSelector={by}&limit=1"),
        Verb::List,
        kueue_objects::first_workload,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain_client;
    use posse_testing::{Answer, TestServer};

    /// An API server says without a Status that it has no such API.
    #[test]
    fn a_server_without_kueue_is_told_as_such() {
        let server = TestServer::start(None, |_| {
            Answer::Reply(404, "Content-Type: text/plain\r\n", "404 page not found\n".into())
        });
        let http = plain_client(server.address);
        let labels = serde_json::Map::new();
        let namespace = Namespace { phase: "Active".to_owned(), pod_security: None, labels };
        let refusal = queue(&http, &namespace, "n", "q").unwrap_err();
        assert_eq!(refusal.class, RefusalClass::NotFound);
        assert_eq!(refusal.to_string(), "the server has no /apis/kueue.x-k8s.io");
        assert_eq!(workload(&http, "n", "u").unwrap(), None);
        assert_eq!(
            super::super::preflight::whoami(&http).unwrap_err().class,
            RefusalClass::NotFound
        );
    }
}
