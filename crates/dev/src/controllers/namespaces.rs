//! Creates the objects that every namespace has, and creates them again after a delete: the
//! `default` service account and the config map with the cluster's certificate.

use std::collections::BTreeSet;

use crate::schema::kind::Kind;
use crate::storage::State;
use crate::storage::namespaces::{DEFAULT_ACCOUNT, ROOT_CA, ensure_objects};
use crate::storage::store::Change;

/// Namespaces in which one of these objects was deleted.
#[derive(Debug, Default)]
pub(super) struct Namespaces {
    dirty: BTreeSet<String>,
}

impl Namespaces {
    pub(super) fn on_change(&mut self, change: &Change) {
        let key = &change.now.key;
        let is_required = (key.kind == Kind::ServiceAccount && key.name == DEFAULT_ACCOUNT)
            || (key.kind == Kind::ConfigMap && key.name == ROOT_CA);
        if is_required && change.gone {
            self.dirty.insert(key.namespace.clone());
        }
    }

    pub(super) fn run(&mut self, state: &mut State) {
        for namespace in std::mem::take(&mut self.dirty) {
            ensure_objects(state, &namespace);
        }
    }
}
