//! Records the Events of the scheduler, the kubelet and the controllers: it counts repeated Events,
//! combines similar ones and limits their rate as client-go's recorder does. All Events expire,
//! those of clients too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::json;

use super::State;
use super::object::Object;
use crate::schema::kind::{Key, Kind};
use crate::time;
use posse_base::time::Millis;

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
    similar: BTreeMap<String, Similar>,
    rate_limits: BTreeMap<String, RateLimit>,
}

/// The messages about one object with one reason.
#[derive(Debug, Default)]
struct Similar {
    messages: BTreeSet<String>,
    last: i64,
}

/// The rate limit of one component for one object (a token bucket).
#[derive(Debug)]
struct RateLimit {
    left: i64,
    since: i64,
}

/// The recorded Events to keep; the oldest is deleted first.
const EVENTS_MAX: usize = 4096;
/// The default of kube-apiserver's `--event-ttl`.
const EVENT_TTL_MS: u64 = 3_600_000;
/// This many messages with one reason within `SIMILAR_SECONDS` are recorded one by one; later ones
/// are combined.
const SIMILAR_MAX: usize = 10;
const SIMILAR_SECONDS: i64 = 600;
/// The Events that one component may record about one object, and the time in which it earns one
/// more.
const BURST_MAX: i64 = 25;
const REFILL_SECONDS: i64 = 300;

/// Records an Event about an object, or increments the count of the same Event.
pub(crate) fn record(state: &mut State, about: &Object, note: &Note<'_>) {
    if about.key.kind == Kind::Pod && state.events.pods_are_simulated && !note.warning {
        return;
    }
    let now = time::seconds(&state.now);
    let source = format!("{}\n{}\n{}\n{}", note.component, note.host, about.uid, note.field);
    let same_reason = format!("{source}\n{}\n{}", note.warning, note.reason);
    let combined = state.events.combines(&same_reason, note.message, now);
    let (identity, message) = match combined {
        true => (same_reason, format!("(combined from similar events): {}", note.message)),
        false => (format!("{same_reason}\n{}", note.message), note.message.to_owned()),
    };
    if !state.events.take_token(&source, now) {
        return;
    }
    let known = state.events.known.get(&identity).and_then(|key| state.store.get(key)).cloned();
    match known {
        Some(event) => {
            let mut value = event.value();
            let count = value["count"].as_i64().unwrap_or_default().saturating_add(1);
            value["count"] = count.into();
            value["message"] = message.into();
            value["lastTimestamp"] = state.now.clone().into();
            state.replace(Kind::Event, value);
        }
        None => create(state, about, note, identity, &message),
    }
}

fn create(state: &mut State, about: &Object, note: &Note<'_>, identity: String, message: &str) {
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
        "message": message,
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
    /// True if so many similar messages were recorded that this one is combined with them.
    fn combines(&mut self, same_reason: &str, message: &str, now: i64) -> bool {
        clear_when_full(&mut self.similar);
        let similar = self.similar.entry(same_reason.to_owned()).or_default();
        if now - similar.last > SIMILAR_SECONDS {
            similar.messages.clear();
        }
        similar.last = now;
        similar.messages.insert(message.to_owned());
        let combines = similar.messages.len() >= SIMILAR_MAX;
        if combines {
            similar.messages.pop_first();
        }
        combines
    }

    /// Takes one token of the rate limit; false if none is left.
    fn take_token(&mut self, source: &str, now: i64) -> bool {
        clear_when_full(&mut self.rate_limits);
        let limit = self
            .rate_limits
            .entry(source.to_owned())
            .or_insert(RateLimit { left: BURST_MAX, since: now });
        let earned = (now - limit.since).max(0) / REFILL_SECONDS;
        limit.left = limit.left.saturating_add(earned).min(BURST_MAX);
        limit.since += earned * REFILL_SECONDS;
        if limit.left == 0 {
            return false;
        }
        limit.left -= 1;
        true
    }

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

/// client-go's caches drop the least recently used entry instead. This makes no difference below
/// `EVENTS_MAX` objects with Events.
fn clear_when_full<T>(map: &mut BTreeMap<String, T>) {
    if map.len() >= EVENTS_MAX {
        map.clear();
    }
}

/// When the version of each Event was first seen.
#[derive(Debug, Default)]
pub(crate) struct Ages {
    seen: BTreeMap<Key, (u64, Millis)>,
}

impl Ages {
    /// Removes the Events that were not written for `EVENT_TTL_MS`, whoever recorded them.
    pub(crate) fn expire(&mut self, state: &mut State, now: Millis) {
        let there: Vec<(Key, u64)> = state
            .store
            .objects(Kind::Event, "")
            .map(|event| (event.key.clone(), event.version))
            .collect();
        let mut seen = BTreeMap::new();
        for (key, version) in there {
            let since = match self.seen.get(&key) {
                Some((known, since)) if *known == version => *since,
                Some(_) | None => now,
            };
            if since.after(EVENT_TTL_MS) <= now {
                state.remove(&key);
            } else {
                seen.insert(key, (version, since));
            }
        }
        self.seen = seen;
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
    fn similar_events_are_combined_and_frequent_ones_are_limited() {
        let api = api();
        let mut state = api.lock();
        let about = pod(&mut state, "a");
        for n in 0..40 {
            let message = format!("Created pod: p-{n}");
            record(&mut state, &about, &Note { message: &message, ..NOTE });
        }
        let events = events(&state);
        assert_eq!(events.len(), SIMILAR_MAX);
        let combined: Vec<_> =
            events.iter().filter(|e| text_at(e, "/message").starts_with("(combined")).collect();
        assert_eq!(combined.len(), 1);
        let recorded = i64::try_from(SIMILAR_MAX).unwrap() - 1;
        assert_eq!(combined[0]["count"], BURST_MAX - recorded);
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
    fn events_are_bounded_and_expire() {
        let api = api();
        let mut state = api.lock();
        for n in 0..EVENTS_MAX + 3 {
            let about = pod(&mut state, &format!("p{n}"));
            record(&mut state, &about, &NOTE);
        }
        assert_eq!(state.store.objects(Kind::Event, "").count(), EVENTS_MAX);
        let mut ages = Ages::default();
        ages.expire(&mut state, Millis(5));
        let about = pod(&mut state, &format!("p{}", EVENTS_MAX + 2));
        record(&mut state, &about, &NOTE);
        ages.expire(&mut state, Millis(6));
        ages.expire(&mut state, Millis(5 + EVENT_TTL_MS));
        assert_eq!(events(&state).len(), 1, "the one that was written since");
        ages.expire(&mut state, Millis(6 + EVENT_TTL_MS));
        assert!(events(&state).is_empty());
    }
}
