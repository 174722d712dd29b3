//! A record in ConfigMaps `APP-record-N`: how they are read and written. `posse_core::machines::record` decides.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use log::{debug, warn};
use serde_json::{Value, json};

use super::{ClusterPlace, OpenError};
use posse_core::machines::record::{
    Chunk, ChunkedRecord, FoundChunk, Line, ObjectVersion, RecordFailure, RecordNotice, RecordStore,
};
use posse_core::model::fact::Fact;
use posse_core::model::input::RecordError;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::Kind;
use posse_kube::api::retry::with_retries;
use posse_wire::control::record::{RECORD_FORMAT, line, parse};
use posse_wire::error::WireError;
use posse_wire::k8s::labels::{APP, MANAGED_BY, RECORD};
use posse_wire::time::unix_ms;

/// Between two writes, so that a record costs etcd at most five a second. What changes meanwhile is written together.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);

/// The keys of a ConfigMap.
const FORMAT: &str = "format";
const EPOCH: &str = "epoch";
const LINES: &str = "lines";

/// An open record.
#[derive(Debug)]
pub(super) struct ClusterRecord {
    record: ChunkedRecord,
    store: ConfigMaps,
}

/// The ConfigMaps of a run.
#[derive(Debug)]
struct ConfigMaps {
    place: ClusterPlace,
    last_write: Option<Instant>,
}

impl ClusterRecord {
    pub(super) fn open(place: ClusterPlace) -> Result<(Self, Vec<Fact>), OpenError> {
        let mut store = ConfigMaps { place, last_write: None };
        match ChunkedRecord::open(&mut store) {
            Ok((record, facts)) => Ok((Self { record, store }, facts)),
            Err(failure) => {
                let is_forbidden = matches!(
                    &failure,
                    RecordFailure::Refused(refusal) if refusal.class == RefusalClass::Forbidden
                );
                let why = store.describe(failure);
                Err(if is_forbidden { OpenError::Forbidden(why) } else { OpenError::Unusable(why) })
            }
        }
    }

    pub(super) fn append(&mut self, facts: Vec<Fact>) -> Result<(), RecordError> {
        let lines = facts.into_iter().map(|fact| {
            let line = Line { text: line(&fact).into(), is_removal: fact.knowledge.is_none() };
            (fact.topic, line)
        });
        let written = self.record.append(&mut self.store, lines.collect());
        written.map_err(|failure| self.store.error(failure))
    }

    pub(super) fn check(&mut self) -> Result<(), RecordError> {
        let checked = self.record.check(&mut self.store);
        checked.map_err(|failure| self.store.error(failure))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.record.is_empty()
    }

    pub(super) fn remove(&mut self) -> Result<(), RecordError> {
        let removed = self.record.remove(&mut self.store);
        removed.map_err(|failure| self.store.error(failure))
    }
}

impl RecordStore for ConfigMaps {
    const FORMAT: u32 = RECORD_FORMAT;

    fn list(&mut self) -> Result<Vec<FoundChunk>, Refusal> {
        let selector = format!("{APP}={},{}={}", self.place.app, RECORD.0, RECORD.1);
        let object =
            |bytes: &[u8]| -> Result<Value, WireError> { Ok(serde_json::from_slice(bytes)?) };
        let list = || self.place.objects.list(Kind::ConfigMap, &selector, &object);
        let (objects, _) = with_retries(list)?;
        Ok(objects.iter().filter_map(|object| self.read(object)).collect())
    }

    fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal> {
        let rest = self.last_write.map(|last| WRITE_INTERVAL.saturating_sub(last.elapsed()));
        thread::sleep(rest.unwrap_or_default());
        self.last_write = Some(Instant::now());
        let object = self.object(chunk);
        let name = self.name(chunk.number);
        let objects = &self.place.objects;
        let meta = match chunk.at {
            None => objects.create(Kind::ConfigMap, &object),
            Some(_) => objects.replace(Kind::ConfigMap, &name, &object),
        };
        meta.map(|meta| ObjectVersion { uid: meta.uid, version: meta.resource_version })
    }

    fn delete(&mut self, number: u64, uid: &str) -> Result<(), Refusal> {
        self.place.objects.delete(Kind::ConfigMap, &self.name(number), uid, None)
    }

    fn tell(&mut self, notice: RecordNotice) {
        match notice {
            RecordNotice::Changed(number) => {
                let name = self.name(number);
                warn!("configmap {name}: somebody has changed it: it is written anew");
            }
            RecordNotice::Deleted(number) => {
                warn!("configmap {} was deleted: it is written anew", self.name(number));
            }
            RecordNotice::Unreadable(number, n_lines) => warn!(
                "configmap {}: somebody has changed it: {n_lines} lines are no lines of a record, and what they said \
                 is lost",
                self.name(number)
            ),
            RecordNotice::Late(number) => {
                debug!("configmap {} arrived late, and counts for nothing", self.name(number));
            }
        }
    }

    fn unix_ms(&self) -> u64 {
        unix_ms(SystemTime::now())
    }
}

impl ConfigMaps {
    /// A ConfigMap of the record of this run. `None`: it is something else, or of an earlier Job of this name.
    fn read(&self, object: &Value) -> Option<FoundChunk> {
        let metadata = &object["metadata"];
        let labels = &metadata["labels"];
        let owners = metadata["ownerReferences"].as_array()?;
        let is_ours = labels[APP] == self.place.app.as_str()
            && labels[RECORD.0] == RECORD.1
            && owners.iter().any(|owner| owner["uid"] == self.place.owner.uid.as_str());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let name = text(&metadata["name"]);
        let number = name.strip_prefix(&self.prefix()).and_then(|number| number.parse().ok());
        let data = &object["data"];
        let (mut facts, mut lines, mut n_unreadable) = (Vec::new(), BTreeMap::new(), 0);
        for text in data[LINES].as_str().unwrap_or_default().lines() {
            let Ok(fact) = parse(text) else {
                n_unreadable += 1;
                continue;
            };
            let line = Line { text: text.into(), is_removal: fact.knowledge.is_none() };
            lines.insert(fact.topic.clone(), line);
            facts.push(fact);
        }
        let at = ObjectVersion {
            uid: text(&metadata["uid"]),
            version: text(&metadata["resourceVersion"]),
        };
        let epoch = text(&data[EPOCH]).parse().unwrap_or(0);
        let number = number.filter(|_| is_ours)?;
        Some(FoundChunk {
            chunk: Chunk { number, epoch, at: Some(at), lines },
            format: text(&data[FORMAT]).parse().unwrap_or(RECORD_FORMAT),
            facts,
            n_unreadable,
        })
    }

    fn object(&self, chunk: &Chunk) -> Value {
        let ClusterPlace { app, owner, common, .. } = &self.place;
        let mut metadata = json!({
            "name": self.name(chunk.number),
            "labels": { APP: app, MANAGED_BY.0: MANAGED_BY.1, RECORD.0: RECORD.1 },
            "ownerReferences": [owner],
        });
        if let Some(ObjectVersion { uid, version }) = &chunk.at {
            // The server replaces only this version of this object.
            metadata["uid"] = json!(uid);
            metadata["resourceVersion"] = json!(version);
        }
        let mut lines = String::new();
        for line in chunk.lines.values() {
            lines.push_str(&line.text);
            lines.push('\n');
        }
        let data = json!({
            FORMAT: RECORD_FORMAT.to_string(), EPOCH: chunk.epoch.to_string(), LINES: lines,
        });
        let mut object =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        common.lay_under_object(&mut object);
        object
    }

    fn prefix(&self) -> String {
        format!("{}-record-", self.place.app)
    }

    fn name(&self, number: u64) -> String {
        format!("{}{number}", self.prefix())
    }

    fn error(&self, failure: RecordFailure) -> RecordError {
        let is_taken_over = failure == RecordFailure::TakenOver;
        RecordError { is_taken_over, why: self.describe(failure) }
    }

    /// What has failed, and what to do.
    fn describe(&self, failure: RecordFailure) -> String {
        match failure {
            RecordFailure::NewerFormat { number, format } => format!(
                "configmap {} has format {format} of the record, and this posse knows {RECORD_FORMAT}: use the posse that \
                 wrote it, or a newer one",
                self.name(number)
            ),
            RecordFailure::Refused(refusal) if refusal.class == RefusalClass::Forbidden => format!(
                "{refusal}: posse needs the verbs get, list, create, update and delete on configmaps for its record: grant \
                 them (posse submit --create-rbac does), or set `record: off`"
            ),
            RecordFailure::Refused(refusal) => refusal.to_string(),
            RecordFailure::Restless => {
                "the record is changed by others all the time: is another posse of this application running?".to_owned()
            }
            RecordFailure::TakenOver => {
                "another posse has taken the record over: this one does not write it any more".to_owned()
            }
        }
    }
}
