//! A record in ConfigMaps `APP-record-N`: how they are read and written. `posse_core::machines::record` decides.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use log::warn;
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
use posse_wire::k8s::object::Meta;
use posse_wire::time::unix_ms;

/// Between two writes, so that a record costs etcd at most five a second. What changes meanwhile is written together.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);

/// The keys of a ConfigMap.
const FORMAT: &str = "format";
const EPOCH: &str = "epoch";
const LINES: &str = "lines";
const WRITE: &str = "write";
/// ConfigMaps in a page of a list: their text is in memory one page at a time.
const PAGE_OBJECTS: u32 = 10;

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
    /// Each write changes its object, also if the lines stay: the server gives no new version to what is as it was.
    n_writes: u64,
    /// There was a record.
    is_found: bool,
}

impl ClusterRecord {
    pub(super) fn open(place: ClusterPlace) -> Result<(Self, Vec<Fact>), OpenError> {
        let mut store = ConfigMaps { place, last_write: None, n_writes: 0, is_found: false };
        match ChunkedRecord::open(&mut store) {
            Ok((record, facts)) => Ok((Self { record, store }, facts)),
            Err(failure) => {
                let of: fn(String) -> OpenError = match &failure {
                    RecordFailure::NewerFormat { .. } => OpenError::Unusable,
                    RecordFailure::Refused(refusal)
                        if refusal.class == RefusalClass::Forbidden && !store.is_found =>
                    {
                        OpenError::Forbidden
                    }
                    RecordFailure::Refused(_)
                    | RecordFailure::Restless
                    | RecordFailure::TakenOver => OpenError::Unavailable,
                };
                Err(of(store.describe(failure)))
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

    pub(super) fn is_first(&self) -> bool {
        !self.store.is_found
    }

    pub(super) fn remove(&mut self) -> Result<(), RecordError> {
        let removed = self.record.remove(&mut self.store);
        removed.map_err(|failure| self.store.error(failure))
    }
}

impl RecordStore for ConfigMaps {
    const FORMAT: u32 = RECORD_FORMAT;

    fn list(&mut self) -> Result<Vec<FoundChunk>, Refusal> {
        let (selector, read) = (self.selector(), |bytes: &[u8]| self.read(bytes));
        let list = || self.place.objects.list_by(Kind::ConfigMap, &selector, PAGE_OBJECTS, &read);
        let (found, _) = with_retries(list)?;
        let found: Vec<FoundChunk> = found.into_iter().flatten().collect();
        self.is_found |= !found.is_empty();
        Ok(found)
    }

    fn versions(&mut self) -> Result<BTreeMap<u64, ObjectVersion>, Refusal> {
        let selector = self.selector();
        let found =
            with_retries(|| self.place.objects.list_meta(Kind::ConfigMap, &selector))?.into_iter();
        Ok(found.filter_map(|meta| Some((self.number(&meta)?, version(meta)))).collect())
    }

    fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal> {
        let rest = self.last_write.map(|last| WRITE_INTERVAL.saturating_sub(last.elapsed()));
        thread::sleep(rest.unwrap_or_default());
        self.last_write = Some(Instant::now());
        self.n_writes += 1;
        let object = self.object(chunk);
        let name = self.name(chunk.number);
        let objects = &self.place.objects;
        let meta = match chunk.at {
            None => objects.create(Kind::ConfigMap, &object),
            Some(_) => objects.replace(Kind::ConfigMap, &name, &object),
        };
        meta.map(version)
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
            RecordNotice::NotDeleted(number, refusal) => warn!(
                "configmap {} is not needed any more, and cannot be deleted: {refusal}: posse tries it again each minute",
                self.name(number)
            ),
            RecordNotice::Unreadable(number, n_lines) => warn!(
                "configmap {}: somebody has changed it: {n_lines} lines are no lines of a record, and what they said \
                 is lost",
                self.name(number)
            ),
            RecordNotice::Late(number) => warn!(
                "configmap {} counts for nothing: it arrived after its process had lost the record, or somebody has \
                 changed its epoch",
                self.name(number)
            ),
        }
    }

    fn unix_ms(&self) -> u64 {
        unix_ms(SystemTime::now())
    }
}

impl ConfigMaps {
    fn selector(&self) -> String {
        format!("{APP}={},{}={}", self.place.app, RECORD.0, RECORD.1)
    }

    /// The number of a ConfigMap of the record of this run. `None`: it is something else, or of an earlier Job of this
    /// name.
    fn number(&self, meta: &Meta) -> Option<u64> {
        let is_ours = meta.label(APP) == Some(&self.place.app)
            && meta.label(RECORD.0) == Some(RECORD.1)
            && meta.is_owned_by(&self.place.owner.uid);
        meta.name.strip_prefix(&self.prefix()).filter(|_| is_ours)?.parse().ok()
    }

    fn read(&self, bytes: &[u8]) -> Result<Option<FoundChunk>, WireError> {
        let meta = Meta::parse(bytes)?;
        let Some(number) = self.number(&meta) else { return Ok(None) };
        let object: Value = serde_json::from_slice(bytes)?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
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
        let epoch = text(&data[EPOCH]).parse().unwrap_or(0);
        Ok(Some(FoundChunk {
            chunk: Chunk { number, epoch, at: Some(version(meta)), lines },
            format: text(&data[FORMAT]).parse().unwrap_or(RECORD_FORMAT),
            facts,
            n_unreadable,
        }))
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
            WRITE: self.n_writes.to_string(),
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

fn version(meta: Meta) -> ObjectVersion {
    ObjectVersion { uid: meta.uid, version: meta.resource_version }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_kube::api::objects::Objects;
    use posse_testing::{Answer, TestServer, plain_client};
    use posse_wire::k8s::common_metadata::CommonMetadata;
    use posse_wire::pod::build::OwnerRef;
    use std::sync::Arc;

    fn place(server: &TestServer) -> ClusterPlace {
        let [api_version, kind, name, uid] = ["batch/v1", "Job", "j", "ju"].map(str::to_owned);
        ClusterPlace {
            objects: Objects::new(plain_client(server.address), Some("ns")),
            app: "a".to_owned(),
            owner: OwnerRef { api_version, kind, name, uid },
            common: Arc::new(CommonMetadata::default()),
        }
    }

    fn object(format: u32) -> Value {
        json!({
            "metadata": { "name": "a-record-1", "uid": "u", "resourceVersion": "1",
                "labels": { APP: "a", RECORD.0: RECORD.1 }, "ownerReferences": [{ "uid": "ju" }] },
            "data": { FORMAT: format.to_string(), EPOCH: "1", LINES: "" },
        })
    }

    /// A server with a record of this format that answers lists and replaces with these codes.
    fn start(format: u32, list: u16, replace: u16) -> TestServer {
        TestServer::start(None, move |asked| {
            let is_list = asked.line().starts_with("GET ");
            let code = if is_list { list } else { replace };
            let body = match code {
                200 if is_list => {
                    json!({ "metadata": { "resourceVersion": "9" }, "items": [object(format)] })
                }
                200 => object(format),
                409 => json!({ "kind": "Status", "reason": "Conflict", "code": code }),
                _ => {
                    json!({ "kind": "Status", "reason": "Forbidden", "message": "no", "code": code })
                }
            };
            Answer::Reply(code, "Content-Type: application/json\r\n", body.to_string().into())
        })
    }

    #[test]
    fn a_refused_takeover_is_no_error_of_the_settings() {
        for (format, list, replace, want) in [
            (1, 200, 200, None),
            (2, 200, 200, Some("Unusable")),
            (1, 403, 200, Some("Forbidden")),
            (1, 200, 403, Some("Unavailable")),
            (1, 200, 429, Some("Unavailable")),
            (1, 200, 503, Some("Unavailable")),
            (1, 200, 401, Some("Unavailable")),
            (1, 200, 409, Some("Unavailable")),
        ] {
            let server = start(format, list, replace);
            let opened = ClusterRecord::open(place(&server)).map(|_| ()).err();
            let what = opened.map(|error| match error {
                OpenError::Forbidden(_) => "Forbidden",
                OpenError::Misnamed(_) => "Misnamed",
                OpenError::Unavailable(_) => "Unavailable",
                OpenError::Unusable(_) => "Unusable",
            });
            assert_eq!(what, want, "{format} {list} {replace}");
        }
    }

    #[test]
    fn a_check_asks_for_metadata_alone_and_a_start_for_small_pages() {
        let server = start(1, 200, 200);
        let (mut record, _) = ClusterRecord::open(place(&server)).unwrap();
        assert!(server.wait().line().contains("&limit=10 "));
        assert!(server.wait().line().starts_with("PUT "));
        record.check().unwrap();
        let asked = server.wait();
        let accept = asked.header("Accept").unwrap();
        assert!(accept.contains("as=PartialObjectMetadataList"), "{accept}");
        assert!(server.seen().is_empty());
    }
}
