//! Pods whose node no longer exists: after a while they are failed and deleted, as the pod garbage
//! collector of kube-controller-manager does.

use std::collections::BTreeMap;

use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::object::object_mut;
use crate::storage::pods::set_condition;
use crate::storage::store::Change;
use posse_base::time::Millis;

#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Nodes that have pods but do not exist, and since when.
    missing: BTreeMap<String, Millis>,
}

impl Orphans {
    pub(super) fn on_change(&mut self, change: &Change, state: &State, now: Millis) {
        let object = &change.now;
        let node = match () {
            () if object.key.kind == Kind::Node => object.key.name.as_str(),
            () if object.key.kind == Kind::Pod && !change.gone => object.node(),
            () => return,
        };
        if node.is_empty() {
            return;
        }
        match state.store.get(&Key::new(Kind::Node, "", node)) {
            Some(_) => {
                self.missing.remove(node);
            }
            None => {
                self.missing.entry(node.to_owned()).or_insert(now);
            }
        }
    }

    /// Deletes the pods of nodes that have been missing for `quarantine_ms`. Returns when to run
    /// again.
    pub(super) fn run(
        &mut self,
        state: &mut State,
        now: Millis,
        quarantine_ms: u64,
    ) -> Option<Millis> {
        let (expired, waiting): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.missing)
                .into_iter()
                .partition(|(_, since)| since.after(quarantine_ms) <= now);
        self.missing = waiting;
        for node in expired.keys() {
            let pods = state.store.objects(Kind::Pod, "").filter(|pod| pod.node() == node);
            for key in pods.map(|pod| pod.key.clone()).collect::<Vec<_>>() {
                fail_and_delete(state, &key);
            }
        }
        self.missing.values().min().map(|since| since.after(quarantine_ms))
    }
}

fn fail_and_delete(state: &mut State, key: &Key) {
    let Some(pod) = state.store.get(key).cloned() else { return };
    if !pod.is_terminal() {
        let now = state.now.clone();
        let mut value = pod.value();
        let message = "PodGC: node no longer exists";
        set_condition(&mut value, "DisruptionTarget", "True", "DeletionByPodGC", message, &now);
        object_mut(&mut value, "status").insert("phase".to_owned(), "Failed".into());
        state.replace(Kind::Pod, value);
    }
    let options = crate::storage::deletion::DeleteOptions {
        grace_seconds: Some(0),
        uid: Some(pod.uid.to_string()),
        ..Default::default()
    };
    if let Err(refused) = state.delete(key, &options) {
        log::debug!("cannot delete the orphaned pod {key}: {}", refused.message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing;

    #[test]
    fn pods_of_a_missing_node_are_deleted_after_the_quarantine() {
        let api = testing::api();
        let mut state = api.lock();
        for (name, node) in [("a", "here"), ("b", "gone"), ("c", "back")] {
            state.create(
                Kind::Pod,
                json!({
                    "metadata": { "name": name, "namespace": "default", "uid": name },
                    "spec": { "nodeName": node },
                }),
            );
        }
        state.ensure(Kind::Node, "here", json!({}));
        let mut orphans = Orphans::default();
        let mut seen = 0;
        let mut observe = |orphans: &mut Orphans, state: &State, now| {
            let after = std::mem::replace(&mut seen, state.store.version());
            let changes = state.store.changes_after(after.max(state.store.oldest()));
            changes.expect("kept").for_each(|change| orphans.on_change(change, state, now));
        };
        observe(&mut orphans, &state, Millis(1_000));
        assert_eq!(orphans.run(&mut state, Millis(2_000), 40_000), Some(Millis(41_000)));
        state.ensure(Kind::Node, "back", json!({}));
        observe(&mut orphans, &state, Millis(3_000));
        assert_eq!(orphans.run(&mut state, Millis(41_000), 40_000), None);
        let left: Vec<_> = state.store.objects(Kind::Pod, "").map(|p| p.key.name.clone()).collect();
        assert_eq!(left, ["a", "c"]);
        let changes = state.store.changes_after(0).or_else(|_| state.store.changes_after(1));
        let removed = changes.expect("kept").rfind(|change| change.gone).expect("a removed pod");
        let pod = removed.now.value();
        assert_eq!(pod["status"]["conditions"][0]["reason"], "DeletionByPodGC");
        assert_eq!(pod["status"]["phase"], "Failed");
    }
}
