//! Owns what the ServiceAccount plugin does to new pods: the account's name, that it exists, its
//! pull secrets.

use serde_json::Value;

use crate::dev::kind::{Key, Kind};
use crate::dev::object::{array_at, object_mut, text_at};
use crate::dev::refused::Refused;
use crate::dev::state::State;

/// The account of pods that name none.
pub(crate) const DEFAULT: &str = "default";

/// Gives a new pod its service account.
pub(super) fn admit(
    state: &State,
    namespace: &str,
    name: &str,
    pod: &mut Value,
) -> Result<(), Refused> {
    let account = match text_at(pod, "/spec/serviceAccountName") {
        "" => DEFAULT.to_owned(),
        account => account.to_owned(),
    };
    let Some(object) = state.store.get(&Key::new(Kind::ServiceAccount, namespace, &account)) else {
        let detail = format!(
            "error looking up service account {namespace}/{account}: serviceaccount \"{account}\" \
             not found"
        );
        return Err(Refused::forbidden(Kind::Pod, name, &detail));
    };
    let secrets = match array_at(pod, "/spec/imagePullSecrets") {
        [] => array_at(&object.value(), "/imagePullSecrets").to_vec(),
        own => own.to_vec(),
    };
    let spec = object_mut(pod, "spec");
    // The old name of the field says the same.
    for field in ["serviceAccount", "serviceAccountName"] {
        spec.insert(field.to_owned(), account.as_str().into());
    }
    if !secrets.is_empty() {
        spec.insert("imagePullSecrets".to_owned(), secrets.into());
    }
    Ok(())
}
