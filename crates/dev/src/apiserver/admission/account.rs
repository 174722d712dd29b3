//! The admission plugin ServiceAccount: sets a pod's service account and its token volume. Nothing is pulled, so
//! pull secrets are left out.

use serde_json::{Value, json};

use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::State;
use crate::storage::namespaces::{DEFAULT_ACCOUNT, ROOT_CA};
use crate::storage::object::{array_at, array_mut, object_mut, text_at};

/// The path at which clients in pods expect their token.
const TOKEN_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// Sets the service account of a new pod; fails if it does not exist.
pub(super) fn admit(
    state: &State,
    namespace: &str,
    name: &str,
    pod: &mut Value,
) -> Result<(), StatusError> {
    let account = match text_at(pod, "/spec/serviceAccountName") {
        "" => DEFAULT_ACCOUNT.to_owned(),
        account => account.to_owned(),
    };
    let Some(object) = state.store.get(&Key::new(Kind::ServiceAccount, namespace, &account)) else {
        let detail = format!(
            "error looking up service account {namespace}/{account}: serviceaccount \"{account}\" \
             not found"
        );
        return Err(StatusError::forbidden(Kind::Pod, name, &detail));
    };
    let spec = object_mut(pod, "spec");
    // `serviceAccount` is the deprecated name.
    for field in ["serviceAccount", "serviceAccountName"] {
        spec.insert(field.to_owned(), account.as_str().into());
    }
    let own = spec.get("automountServiceAccountToken").cloned();
    let asked = own.or_else(|| object.value().get("automountServiceAccountToken").cloned());
    if asked.as_ref().and_then(Value::as_bool).unwrap_or(state.has_roles) {
        mount_token(pod);
    }
    Ok(())
}

/// Mounts a token into each container, as current servers do. Without RBAC a pod gets one only on
/// request, because mounting a volume takes longer than most commands run.
fn mount_token(pod: &mut Value) {
    let suffix: String = text_at(pod, "/metadata/uid").chars().take(5).collect();
    let name = format!("kube-api-access-{suffix}");
    // With all default values, because the defaults were set before.
    let volume = json!({ "name": name, "projected": { "defaultMode": 420, "sources": [
        { "serviceAccountToken": { "expirationSeconds": 3607, "path": "token" } },
        { "configMap": {
            "name": ROOT_CA, "items": [{ "key": "ca.crt", "path": "ca.crt" }],
        } },
        { "downwardAPI": { "items": [{
            "path": "namespace",
            "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" },
        }] } },
    ] } });
    let spec = object_mut(pod, "spec");
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let has = |mount: &Value| text_at(mount, "/mountPath") == TOKEN_PATH;
            if array_at(container, "/volumeMounts").iter().any(has) {
                continue;
            }
            let mount = json!({ "name": name, "mountPath": TOKEN_PATH, "readOnly": true });
            array_mut(container, "volumeMounts").push(mount);
            mounted = true;
        }
    }
    if mounted {
        array_mut(&mut pod["spec"], "volumes").push(volume);
    }
}
