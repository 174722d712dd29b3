//! Owns what every namespace has: its `default` service account and the config map with the
//! cluster's certificate. Whoever deletes them gets them back.

use std::collections::BTreeSet;

use serde_json::json;

use crate::dev::admit::DEFAULT_ACCOUNT;
use crate::dev::kind::{Key, Kind};
use crate::dev::state::State;
use crate::dev::store::Change;

pub(crate) const ROOT_CA: &str = "kube-root-ca.crt";

/// Namespaces that may lack something.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    dirty: BTreeSet<String>,
}

impl Namespaces {
    pub(super) fn on_change(&mut self, change: &Change) {
        let key = &change.now.key;
        let lacks = (key.kind == Kind::ServiceAccount && key.name == DEFAULT_ACCOUNT)
            || (key.kind == Kind::ConfigMap && key.name == ROOT_CA);
        if lacks && change.gone {
            self.dirty.insert(key.namespace.clone());
        }
    }

    pub(super) fn run(&mut self, state: &mut State) {
        for namespace in std::mem::take(&mut self.dirty) {
            furnish(state, &namespace);
        }
    }
}

/// Gives a namespace what it lacks, unless it is on its way out.
pub(crate) fn furnish(state: &mut State, namespace: &str) {
    let home = state.store.get(&Key::new(Kind::Namespace, "", namespace));
    if home.is_none_or(|home| home.deleting) {
        return;
    }
    let certificate = json!({ "data": { "ca.crt": state.authority } });
    for (kind, name, mut value) in [
        (Kind::ServiceAccount, DEFAULT_ACCOUNT, json!({})),
        (Kind::ConfigMap, ROOT_CA, certificate),
    ] {
        if state.store.get(&Key::new(kind, namespace, name)).is_some() {
            continue;
        }
        value["metadata"] = json!({
            "name": name,
            "namespace": namespace,
            "uid": state.new_uid(),
            "creationTimestamp": state.now,
        });
        state.create(kind, value);
    }
}
