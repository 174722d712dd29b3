//! The objects that each namespace has from its start: the `default` service account and the config
//! map with the certificate authority.

use serde_json::json;

use super::State;
use crate::schema::kind::{Key, Kind};

/// The service account of pods that name none.
pub(crate) const DEFAULT_ACCOUNT: &str = "default";
/// The config map with the certificate authority of the API server.
pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";

/// Namespaces that every cluster has and that cannot be deleted.
pub(crate) const NAMESPACES: [&str; 4] =
    ["default", "kube-node-lease", "kube-public", "kube-system"];

/// Creates the objects that a namespace lacks, unless the namespace is terminating.
pub(crate) fn ensure_objects(state: &mut State, namespace: &str) {
    let home = state.store.get(&Key::new(Kind::Namespace, "", namespace));
    if home.is_none_or(|home| home.deleting) {
        return;
    }
    let certificate = json!({ "data": { "ca.crt": state.authority } });
    state.ensure(Kind::ServiceAccount, namespace, DEFAULT_ACCOUNT, json!({}));
    state.ensure(Kind::ConfigMap, namespace, ROOT_CA, certificate);
}
