//! PodGroups, by which schedulers start pods together.

use serde_json::Value;

use super::preflight::{if_served, read_at};
use super::{
    LIST_BYTES_MAX, OBJECT_BYTES_MAX, call, delete_options, managed_selector, object_path,
    percent_encode, write, write_path,
};
use crate::http::{Http, Method};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::discovery;
use posse_wire::k8s::labels::{INSTANCE, Selection};
use posse_wire::k8s::status::Verb;
use posse_wire::pod::build::gang::POD_GROUP_APIS;

const RESOURCE: &str = "podgroups";

/// The root of the paths of PodGroups in a group of APIs, in the version that the server prefers among those that have
/// them.
///
/// # Errors
/// The server's refusal; `Invalid` if it has no such PodGroups.
pub fn root(http: &Http, api: &str) -> Result<String, Refusal> {
    let api = format!("/apis/{}", percent_encode(api));
    let versions = if_served(read_at(http, api.clone(), Verb::Get, discovery::versions))?;
    for version in versions.unwrap_or_default() {
        let root = format!("{api}/{}", percent_encode(&version));
        let has = |bytes: &[u8]| discovery::has(bytes, RESOURCE);
        if if_served(read_at(http, root.clone(), Verb::Get, has))? == Some(true) {
            return Ok(root);
        }
    }
    let message = format!(
        "the server has no PodGroups in {api}: install the scheduler of `gang.kind`, or write `kind: none`"
    );
    Err(Refusal::local(RefusalClass::Invalid, message))
}

/// Creates a PodGroup. Succeeds if there is one with this name.
///
/// # Errors
/// The server's refusal.
pub fn create(http: &Http, root: &str, namespace: &str, object: &Value) -> Result<(), Refusal> {
    let mut object = object.clone();
    object["apiVersion"] = root.trim_start_matches("/apis/").into();
    let path = write_path(&object_path(root, namespace, RESOURCE, None));
    let body = object.to_string();
    let request = write(Method::Post, path, body.as_bytes(), OBJECT_BYTES_MAX);
    match call(http, &request, Verb::Create) {
        Err(refusal) if refusal.class == RefusalClass::Exists => Ok(()),
        answer => answer.map(drop),
    }
}

/// Deletes a PodGroup, and does not wait until it is gone. Succeeds if there is none.
///
/// # Errors
/// The server's refusal.
pub fn delete(http: &Http, root: &str, namespace: &str, name: &str) -> Result<(), Refusal> {
    let path = write_path(&object_path(root, namespace, RESOURCE, Some(name)));
    let body = delete_options(None, None, None);
    let request = write(Method::Delete, path, &body, OBJECT_BYTES_MAX);
    match call(http, &request, Verb::Delete) {
        Err(refusal) if refusal.class == RefusalClass::NotFound => Ok(()),
        answer => answer.map(drop),
    }
}

/// Deletes the PodGroups of an instance that has ended, wherever the server has any.
///
/// # Errors
/// The server's refusal.
pub fn delete_of(http: &Http, namespace: &str, instance: &Selection) -> Result<(), Refusal> {
    let Selection { app, instance } = instance;
    let selector = format!("{},{INSTANCE}={instance}", managed_selector(Some(app)));
    for api in POD_GROUP_APIS {
        let root = match root(http, api) {
            Err(refusal) if refusal.class == RefusalClass::Invalid => continue,
            root => root?,
        };
        let path = write_path(&object_path(&root, namespace, RESOURCE, None));
        let path = format!("{path}&labelSelector={}", percent_encode(&selector));
        let body = delete_options(None, None, None);
        let request = write(Method::Delete, path, &body, LIST_BYTES_MAX);
        call(http, &request, Verb::Delete)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::plain_client;
    use posse_testing::{Answer, TestServer};
    use serde_json::json;

    /// A server whose version v1 has no PodGroups, and whose version v1alpha2 has them.
    fn server(status_of_post: u16) -> TestServer {
        TestServer::start(None, move |asked| {
            let line = asked.line();
            let path = line.split(['?', ' ']).nth(1).unwrap_or_default();
            let (status, body) = match (line.split(' ').next().unwrap_or_default(), path) {
                ("GET", "/apis/a.io") => (
                    200,
                    r#"{"versions":[{"version":"v1"},{"version":"v1alpha2"}],"preferredVersion":{"version":"v1"}}"#,
                ),
                ("GET", "/apis/a.io/v1") => (200, r#"{"resources":[{"name":"workloads"}]}"#),
                ("GET", "/apis/a.io/v1alpha2") => (200, r#"{"resources":[{"name":"podgroups"}]}"#),
                ("POST", "/apis/a.io/v1alpha2/namespaces/n/podgroups") => {
                    (status_of_post, r#"{"kind":"Status","reason":"AlreadyExists","code":409}"#)
                }
                ("DELETE", "/apis/a.io/v1alpha2/namespaces/n/podgroups/g") => (200, "{}"),
                _ => (404, r#"{"kind":"Status","reason":"NotFound"}"#),
            };
            Answer::json(status, body)
        })
    }

    #[test]
    fn a_pod_group_is_created_where_the_server_has_them() {
        for status in [201, 409] {
            let server = server(status);
            let http = plain_client(server.address);
            let root = root(&http, "a.io").unwrap();
            assert_eq!(root, "/apis/a.io/v1alpha2");
            create(&http, &root, "n", &json!({"kind": "PodGroup"})).unwrap();
            delete(&http, &root, "n", "g").unwrap();
            delete(&http, &root, "n", "gone").unwrap();
            let posted = server.seen().into_iter().find(|asked| asked.line().starts_with("POST"));
            let body: Value = serde_json::from_slice(&posted.unwrap().body).unwrap();
            assert_eq!(body, json!({"apiVersion": "a.io/v1alpha2", "kind": "PodGroup"}));
        }
    }

    #[test]
    fn a_server_without_pod_groups_is_told_with_the_remedy() {
        let server = server(201);
        let refusal = root(&plain_client(server.address), "b.io").unwrap_err();
        assert_eq!(refusal.class, RefusalClass::Invalid);
        assert!(refusal.message.contains("or write `kind: none`"), "{refusal}");
    }
}
