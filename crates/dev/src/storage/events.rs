//! Records the Events of the scheduler, the kubelet and the controllers, and counts repeated ones.

use std::collections::{BTreeMap, VecDeque};

use serde_json::json;

use super::State;
use super::object::Object;
use crate::schema::kind::{Key, Kind};

/// The content of an Event about an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note<'a> {
    /// The type is `Warning`, else `Normal`.
    pub(crate) warning: bool,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
    /// The reporting component: `kubelet`, `default-scheduler`, `job-controller`.
    pub(crate) component: &'a str,
    /// The node of the reporting component; empty for components without a node.
    pub(crate) host: &'a str,
    /// The part of the object: `spec.containers{c}`; empty for the whole object.
    pub(crate) field: &'a str,
}

/// The recorder's caches.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The Events of ten thousand simulated pods would push the changes of the pods out of the
    /// history. Then only warnings, and Events about other kinds, are recorded.
    pub(crate) pods_are_simulated: bool,
    known: BTreeMap<String, Key>,
    /// The keys of `known`, oldest first.
    order: VecDeque<String>,
}

/// The recorded Events to keep; the oldest is deleted first.
const EVENTS_MAX: usize = 4096;
/// Records an Event about an object, or increments the count of the same Event.
pub(crate) fn record(state: &mut State, about: &Object, note: &Note<'_>) {
    if about.key.kind == Kind::Pod && state.events.pods_are_simulated && !note.warning {
        return;
    }
    let identity = format!(
        "{}\n{}\n{}\n{}\n{}\n{}\n{}",
        note.component, note.host, about.uid, note.field, note.warning, note.reason, note.message
    );
    let known = state.events.known.get(&identity).and_then(|key| state.store.get(key)).cloned();
    match known {
        Some(event) => {
            let mut value = event.value();
            let count = value["count"].as_i64().unwrap_or_default().saturating_add(1);
            value["count"] = count.into();
            value["lastTimestamp"] = state.now.clone().into();
            state.replace(Kind::Event, value);
        }
        None => create(state, about, note, identity),
    }
}

fn create(state: &mut State, about: &Object, note: &Note<'_>, identity: String) {
    let of = &about.key;
    let namespace = if of.namespace.is_empty() { "default" } else { &of.namespace };
    let home_namespace = state.store.get(&Key::new(Kind::Namespace, "", namespace));
    if home_namespace.is_none_or(|home_namespace| home_namespace.deleting) {
        return;
    }
    let mut source = json!({ "component": note.component });
    if !note.host.is_empty() {
        source["host"] = note.host.into();
    }
    let mut involved = json!({
        "kind": of.kind.name(),
        "name": of.name,
        "uid": *about.uid,
        "apiVersion": of.kind.api_version(),
        "resourceVersion": about.version.to_string(),
    });
    for (name, text) in [("namespace", of.namespace.as_str()), ("fieldPath", note.field)] {
        if !text.is_empty() {
            involved[name] = text.into();
        }
    }
    let name = format!("{}.{:016x}", of.name, state.rng.next_u64());
    let event = json!({
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": state.new_uid(),
            "creationTimestamp": state.now,
        },
        "involvedObject": involved,
        "reason": note.reason,
        "message": note.message,
        "source": source,
        "firstTimestamp": state.now,
        "lastTimestamp": state.now,
        "count": 1,
        "type": if note.warning { "Warning" } else { "Normal" },
        "eventTime": null,
        "reportingComponent": note.component,
        "reportingInstance": note.host,
    });
    let key = state.create(Kind::Event, event).key.clone();
    if let Some(oldest) = state.events.insert(identity, key) {
        state.remove(&oldest);
    }
}

impl Events {
    /// Adds a new Event; returns the key of the Event to delete for it.
    fn insert(&mut self, identity: String, key: Key) -> Option<Key> {
        if self.known.insert(identity.clone(), key).is_none() {
            self.order.push_back(identity);
        }
        if self.order.len() <= EVENTS_MAX {
            return None;
        }
        self.order.pop_front().and_then(|oldest| self.known.remove(&oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::object::text_at;
    use crate::testing::api;

    const NOTE: Note<'_> = Note {
        warning: false,
        reason: "Started",
        message: "Started container c",
        component: "kubelet",
        host: "n",
        field: "",
    };

    fn pod(state: &mut State, name: &str) -> std::sync::Arc<Object> {
        let uid = state.new_uid();
        let metadata = json!({ "name": name, "namespace": "default", "uid": uid });
        state.create(Kind::Pod, json!({ "metadata": metadata }))
    }

    fn events(state: &State) -> Vec<serde_json::Value> {
        state.store.objects(Kind::Event, "default").map(|event| event.value()).collect()
    }

    #[test]
    fn repeated_events_are_counted() {
        let api = api();
        let mut state = api.lock();
        let about = pod(&mut state, "a");
        record(&mut state, &about, &NOTE);
        record(&mut state, &about, &NOTE);
        record(&mut state, &about, &Note { warning: true, ..NOTE });
        record(&mut state, &about, &Note { field: "spec.containers{c}", ..NOTE });
        let events = events(&state);
        let mut counts: Vec<i64> = events.iter().filter_map(|e| e["count"].as_i64()).collect();
        counts.sort_unstable();
        assert_eq!(counts, [1, 1, 2]);
        let involved = &events[0]["involvedObject"];
        assert_eq!((text_at(involved, "/kind"), text_at(involved, "/uid")), ("Pod", &*about.uid));
    }

    #[test]
    fn simulated_pods_record_only_warnings_and_a_missing_namespace_records_nothing() {
        let api = api();
        let mut state = api.lock();
        state.events.pods_are_simulated = true;
        let about = pod(&mut state, "a");
        record(&mut state, &about, &NOTE);
        assert!(events(&state).is_empty());
        record(&mut state, &about, &Note { warning: true, ..NOTE });
        assert_eq!(events(&state).len(), 1);
        let uid = state.new_uid();
        let metadata = json!({ "name": "p", "namespace": "gone", "uid": uid });
        let elsewhere = state.create(Kind::Pod, json!({ "metadata": metadata }));
        record(&mut state, &elsewhere, &Note { warning: true, ..NOTE });
        assert_eq!(state.store.objects(Kind::Event, "").count(), 1);
    }

    #[test]
    fn events_are_bounded() {
        let api = api();
        let mut state = api.lock();
        for n in 0..EVENTS_MAX + 3 {
            let about = pod(&mut state, &format!("p{n}"));
            record(&mut state, &about, &NOTE);
        }
        assert_eq!(state.store.objects(Kind::Event, "").count(), EVENTS_MAX);
    }
}
