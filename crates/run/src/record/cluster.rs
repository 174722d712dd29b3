//! A record in ConfigMaps `APP-record-N`. The last line about a topic counts, and it is in the ConfigMap with the highest
//! number. New lines go into the last one while it is small, else into new ones; one that is half dead is moved to the
//! end and deleted.
//!
//! Who takes a record over writes the last ConfigMap first: its resourceVersion changes, so that a posse that has lost its
//! Lease without knowing it can no longer write.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, warn};
use serde_json::{Value, json};

use super::{ClusterPlace, OpenError};
use posse_core::model::fact::{Fact, Topic};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::Kind;
use posse_kube::api::retry::with_retries;
use posse_wire::control::record::{RECORD_FORMAT, line, parse};
use posse_wire::error::WireError;
use posse_wire::k8s::labels::{APP, MANAGED_BY, RECORD};

/// The most lines of one ConfigMap, bytes. An object may have 1 MiB.
const CHUNK_BYTES_MAX: usize = 256 << 10;
/// Up to this size the last ConfigMap gets more lines, bytes: each write sends all of it.
const TAIL_BYTES_MAX: usize = 32 << 10;
/// Between two writes, so that a record costs etcd at most five a second. What changes meanwhile is written together.
const WRITE_INTERVAL: Duration = Duration::from_millis(200);
/// How often a number is tried that is taken.
const TRIES_MAX: u32 = 10;

/// The keys of a ConfigMap.
const FORMAT: &str = "format";
const EPOCH: &str = "epoch";
const LINES: &str = "lines";

/// An open record.
#[derive(Debug)]
pub(super) struct ClusterRecord {
    place: ClusterPlace,
    /// How many processes have taken the record over.
    epoch: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// In which ConfigMaps a topic has a line.
    places: BTreeMap<Topic, BTreeSet<u64>>,
    last_write: Option<Instant>,
}

/// One ConfigMap.
#[derive(Clone, Debug, Default)]
struct Chunk {
    uid: String,
    version: String,
    /// The last line about each topic, and whether it says that nothing is known.
    lines: BTreeMap<Topic, Line>,
}

#[derive(Clone, Debug)]
struct Line {
    text: String,
    is_removal: bool,
}

/// A ConfigMap as the server has it.
struct Found {
    number: u64,
    epoch: u64,
    format: u32,
    uid: String,
    version: String,
    text: String,
}

impl ClusterRecord {
    pub(super) fn open(place: ClusterPlace) -> Result<(Self, Vec<Fact>), OpenError> {
        for _ in 0..TRIES_MAX {
            let found = with_retries(|| list(&place)).map_err(|refusal| open_error(&refusal))?;
            let newer = found.iter().find(|one| one.format > RECORD_FORMAT);
            if let Some(Found { number, format, .. }) = newer {
                return Err(OpenError::Unusable(format!(
                    "configmap {} has format {format} of the record, and this posse knows {RECORD_FORMAT}: use the posse \
                     that wrote it, or a newer one",
                    name(&place, *number)
                )));
            }
            let epoch = found.iter().map(|one| one.epoch).max().unwrap_or(0) + 1;
            let mut record = Self {
                place: place.clone(),
                epoch,
                chunks: BTreeMap::new(),
                places: BTreeMap::new(),
                last_write: None,
            };
            let facts = record.load(found);
            match record.fence() {
                Ok(()) => return Ok((record, facts)),
                // The process before has written once more.
                Err(refusal) if refusal.is_outdated() => {
                    debug!("the record has changed: {refusal}")
                }
                Err(refusal) => return Err(open_error(&refusal)),
            }
        }
        let what = "the record is changed by others all the time: is another posse of this application running?";
        Err(OpenError::Unusable(what.to_owned()))
    }

    /// Takes over what is there. Gives the last fact about each topic.
    fn load(&mut self, found: Vec<Found>) -> Vec<Fact> {
        let mut known = BTreeMap::new();
        for Found { number, uid, version, text, .. } in found {
            let mut chunk = Chunk { uid, version, lines: BTreeMap::new() };
            let mut n_unreadable = 0;
            for text in text.lines() {
                let Ok(fact) = parse(text) else {
                    n_unreadable += 1;
                    continue;
                };
                let is_removal = fact.knowledge.is_none();
                let line = Line { text: text.to_owned(), is_removal };
                chunk.lines.insert(fact.topic.clone(), line);
                known.insert(fact.topic.clone(), fact);
            }
            if n_unreadable > 0 {
                warn!(
                    "configmap {}: somebody has changed it: {n_unreadable} lines are no lines of a record, and what they \
                     said is lost",
                    self.name(number)
                );
            }
            self.keep(number, chunk);
        }
        known.into_values().filter(|fact| fact.knowledge.is_some()).collect()
    }

    fn fence(&mut self) -> Result<(), Refusal> {
        let Some((&number, chunk)) = self.chunks.last_key_value() else { return Ok(()) };
        let chunk = self.replace(number, chunk.clone())?;
        self.keep(number, chunk);
        Ok(())
    }

    pub(super) fn append(&mut self, facts: Vec<Fact>) -> Result<(), String> {
        let mut lines: BTreeMap<Topic, Line> = BTreeMap::new();
        let wasteful = self.wasteful();
        for number in &wasteful {
            lines.extend(self.live_lines(*number));
        }
        for fact in facts {
            let is_removal = fact.knowledge.is_none();
            if is_removal && !self.places.contains_key(&fact.topic) {
                lines.remove(&fact.topic);
                continue;
            }
            let text = line(&fact);
            lines.insert(fact.topic, Line { text, is_removal });
        }
        self.write(lines)?;
        for number in wasteful {
            self.delete(number)?;
        }
        Ok(())
    }

    /// Writes lines into the last ConfigMap, or into new ones.
    fn write(&mut self, lines: BTreeMap<Topic, Line>) -> Result<(), String> {
        let n_new = lines.values().map(|line| line.text.len() + 1).sum::<usize>();
        let tail = self.chunks.last_key_value().map(|(&number, chunk)| (number, chunk.clone()));
        if lines.is_empty() {
            return Ok(());
        }
        if let Some((number, mut chunk)) =
            tail.filter(|(_, chunk)| chunk.n_bytes() + n_new <= TAIL_BYTES_MAX)
        {
            chunk.lines.extend(lines);
            return self.save(number, chunk);
        }
        let mut lines = lines.into_iter().peekable();
        while lines.peek().is_some() {
            let mut chunk = Chunk::default();
            let mut n_bytes = 0;
            while let Some((_, line)) = lines.peek()
                && (n_bytes == 0 || n_bytes + line.text.len() < CHUNK_BYTES_MAX)
            {
                n_bytes += line.text.len() + 1;
                chunk.lines.extend(lines.next());
            }
            let number = self.chunks.last_key_value().map_or(1, |(&number, _)| number + 1);
            self.save(number, chunk)?;
        }
        Ok(())
    }

    /// Stores a ConfigMap, whatever others have done to it.
    fn save(&mut self, mut number: u64, mut chunk: Chunk) -> Result<(), String> {
        let rest = self.last_write.map(|last| WRITE_INTERVAL.saturating_sub(last.elapsed()));
        thread::sleep(rest.unwrap_or_default());
        self.last_write = Some(Instant::now());
        for _ in 0..TRIES_MAX {
            let is_new = chunk.uid.is_empty();
            let saved = match is_new {
                true => self.create(number, chunk.clone()),
                false => self.replace(number, chunk.clone()),
            };
            let refusal = match saved {
                Ok(saved) => {
                    self.keep(number, saved);
                    return Ok(());
                }
                Err(refusal) => refusal,
            };
            if !refusal.is_outdated() {
                // It may have been executed: the next write finds out.
                return Err(describe(&refusal));
            }
            match self.look(number).map_err(|refusal| describe(&refusal))? {
                Place::Taken => number += 1,
                Place::Free if is_new => {}
                Place::Free => {
                    warn!("configmap {} was deleted: it is written anew", self.name(number));
                    (chunk.uid, chunk.version) = (String::new(), String::new());
                }
                Place::Ours { uid, version, text } => {
                    let stored = self.chunks.get(&number).map(Chunk::text);
                    // Else the answer to a write of ours was lost.
                    if text != chunk.text() && stored.as_ref() != Some(&text) {
                        let name = self.name(number);
                        warn!("configmap {name}: somebody has changed it: it is written anew");
                    }
                    (chunk.uid, chunk.version) = (uid, version);
                }
                Place::Lost => {
                    return Err("another posse has taken the record over: this one does not write it any more".to_owned());
                }
            }
        }
        Err(format!("configmap {} is changed by others all the time", self.name(number)))
    }

    /// What has the name of this ConfigMap.
    fn look(&self, number: u64) -> Result<Place, Refusal> {
        let name = self.name(number);
        let Some(object) = self.place.objects.get(Kind::ConfigMap, &name)? else {
            return Ok(Place::Free);
        };
        Ok(match read(&self.place, &object) {
            None => Place::Taken,
            Some(found) if found.epoch > self.epoch => Place::Lost,
            Some(Found { uid, version, text, .. }) => Place::Ours { uid, version, text },
        })
    }

    fn create(&self, number: u64, chunk: Chunk) -> Result<Chunk, Refusal> {
        let meta = self.place.objects.create(Kind::ConfigMap, &self.object(number, &chunk))?;
        Ok(Chunk { uid: meta.uid, version: meta.resource_version, ..chunk })
    }

    fn replace(&self, number: u64, chunk: Chunk) -> Result<Chunk, Refusal> {
        let name = self.name(number);
        let object = self.object(number, &chunk);
        let meta = self.place.objects.replace(Kind::ConfigMap, &name, &object)?;
        Ok(Chunk { version: meta.resource_version, ..chunk })
    }

    fn object(&self, number: u64, chunk: &Chunk) -> Value {
        let ClusterPlace { app, owner, common, .. } = &self.place;
        let mut metadata = json!({
            "name": self.name(number),
            "labels": { APP: app, MANAGED_BY.0: MANAGED_BY.1, RECORD.0: RECORD.1 },
            "ownerReferences": [owner],
        });
        if !chunk.uid.is_empty() {
            // The server replaces only this version of this object.
            metadata["uid"] = json!(chunk.uid);
            metadata["resourceVersion"] = json!(chunk.version);
        }
        let data = json!({
            FORMAT: RECORD_FORMAT.to_string(), EPOCH: self.epoch.to_string(), LINES: chunk.text(),
        });
        let mut object =
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data });
        common.lay_under_object(&mut object);
        object
    }

    /// The ConfigMaps of which half is dead; the last one is written anew with each write.
    fn wasteful(&self) -> Vec<u64> {
        let last = self.chunks.last_key_value().map(|(&number, _)| number);
        let older = self.chunks.iter().filter(|(number, _)| Some(**number) != last);
        let is_wasteful = |(number, chunk): &(&u64, &Chunk)| {
            let live = self.live_lines(**number);
            live.map(|(_, line)| line.text.len() + 1).sum::<usize>() * 2 < chunk.n_bytes()
        };
        // One at a time: a move is a write, too.
        older.filter(is_wasteful).map(|(&number, _)| number).take(1).collect()
    }

    /// The lines of a ConfigMap that count.
    fn live_lines(&self, number: u64) -> impl Iterator<Item = (Topic, Line)> {
        let lines = self.chunks.get(&number).into_iter().flat_map(|chunk| &chunk.lines);
        let is_live = move |topic: &Topic, line: &Line| {
            let places = self.places.get(topic);
            let is_last = places.is_none_or(|places| places.last() == Some(&number));
            let is_only = places.is_none_or(|places| places.len() == 1);
            is_last && !(line.is_removal && is_only)
        };
        lines
            .filter(move |(topic, line)| is_live(topic, line))
            .map(|(topic, line)| (topic.clone(), line.clone()))
    }

    fn delete(&mut self, number: u64) -> Result<(), String> {
        let Some(chunk) = self.chunks.get(&number) else { return Ok(()) };
        let name = self.name(number);
        let deleted = self.place.objects.delete(Kind::ConfigMap, &name, &chunk.uid, None);
        deleted.map_err(|refusal| describe(&refusal))?;
        self.forget(number);
        Ok(())
    }

    /// It says nothing about any topic.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.keys().all(|number| self.live_lines(*number).next().is_none())
    }

    /// Deletes all of it.
    pub(super) fn remove(&mut self) -> Result<(), String> {
        let numbers: Vec<u64> = self.chunks.keys().copied().collect();
        numbers.into_iter().try_for_each(|number| self.delete(number))
    }

    fn keep(&mut self, number: u64, chunk: Chunk) {
        for topic in chunk.lines.keys() {
            self.places.entry(topic.clone()).or_default().insert(number);
        }
        self.chunks.insert(number, chunk);
    }

    fn forget(&mut self, number: u64) {
        let Some(chunk) = self.chunks.remove(&number) else { return };
        for topic in chunk.lines.into_keys() {
            if let Some(places) = self.places.get_mut(&topic) {
                places.remove(&number);
                if places.is_empty() {
                    self.places.remove(&topic);
                }
            }
        }
    }

    fn name(&self, number: u64) -> String {
        name(&self.place, number)
    }
}

/// What has the name of a ConfigMap.
enum Place {
    Free,
    Ours {
        uid: String,
        version: String,
        text: String,
    },
    /// A later process has written it.
    Lost,
    /// It is somebody else's.
    Taken,
}

impl Chunk {
    fn n_bytes(&self) -> usize {
        self.lines.values().map(|line| line.text.len() + 1).sum()
    }

    fn text(&self) -> String {
        let mut text = String::with_capacity(self.n_bytes());
        for line in self.lines.values() {
            text.push_str(&line.text);
            text.push('\n');
        }
        text
    }
}

/// The application's ConfigMaps, by number.
fn list(place: &ClusterPlace) -> Result<Vec<Found>, Refusal> {
    let selector = format!("{APP}={},{}={}", place.app, RECORD.0, RECORD.1);
    let object = |bytes: &[u8]| -> Result<Value, WireError> { Ok(serde_json::from_slice(bytes)?) };
    let (objects, _) = place.objects.list(Kind::ConfigMap, &selector, &object)?;
    let mut found: Vec<Found> = objects.iter().filter_map(|object| read(place, object)).collect();
    found.sort_by_key(|one| one.number);
    Ok(found)
}

/// A ConfigMap of the record of this run. `None`: it is something else, or of an earlier Job of this name.
fn read(place: &ClusterPlace, object: &Value) -> Option<Found> {
    let metadata = &object["metadata"];
    let labels = &metadata["labels"];
    let owners = metadata["ownerReferences"].as_array()?;
    let is_ours = labels[APP] == place.app.as_str()
        && labels[RECORD.0] == RECORD.1
        && owners.iter().any(|owner| owner["uid"] == place.owner.uid.as_str());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let name = text(&metadata["name"]);
    let number = name.strip_prefix(&prefix(place)).and_then(|number| number.parse().ok());
    let number: u64 = number.filter(|_| is_ours)?;
    let data = &object["data"];
    Some(Found {
        number,
        epoch: text(&data[EPOCH]).parse().unwrap_or(0),
        format: text(&data[FORMAT]).parse().unwrap_or(RECORD_FORMAT),
        uid: text(&metadata["uid"]),
        version: text(&metadata["resourceVersion"]),
        text: text(&data[LINES]),
    })
}

fn prefix(place: &ClusterPlace) -> String {
    format!("{}-record-", place.app)
}

fn name(place: &ClusterPlace, number: u64) -> String {
    format!("{}{number}", prefix(place))
}

fn open_error(refusal: &Refusal) -> OpenError {
    let what = describe(refusal);
    let is_forbidden = refusal.class == RefusalClass::Forbidden;
    if is_forbidden { OpenError::Forbidden(what) } else { OpenError::Unusable(what) }
}

/// The refusal, and what to do.
fn describe(refusal: &Refusal) -> String {
    if refusal.class != RefusalClass::Forbidden {
        return refusal.to_string();
    }
    format!(
        "{refusal}: posse needs the verbs get, list, create, update and delete on configmaps for its record: grant them \
         (posse submit --create-rbac does), or set `record: off`"
    )
}
