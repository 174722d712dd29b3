//! A record in numbered objects of the server: which line goes into which object, who may write it, and what becomes of
//! an object that others have changed. Sends nothing itself: a `RecordStore` does.
//!
//! The last line about a topic counts, and it is in the object with the highest number. New lines go into the last one
//! while it is small, else into new ones; one that is half dead is moved to the end and deleted.
//!
//! Who takes a record over writes the last object first: its resourceVersion changes, so that a posse that has lost its
//! Lease without knowing it can no longer write there. A new object of it may still arrive. It is above one of a later
//! process, and therefore counts for nothing. So who makes a new object writes the one before it once more, and
//! acknowledges only then: a later process that does not know the new object has changed that one.

mod space;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::fact::{Fact, Topic};
use crate::model::refusal::{Refusal, RefusalClass};

/// How often a write is tried that others are in the way of.
const TRIES_MAX: u32 = 10;

/// What an object says about a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    pub text: Arc<str>,
    /// It says that nothing is known.
    pub is_removal: bool,
}

/// The last line about each topic.
pub type Lines = BTreeMap<Topic, Line>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    pub uid: String,
    pub version: String,
}

/// One object of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub number: u64,
    /// Of the process that made it, or that took it over as the last one.
    pub epoch: u64,
    /// What a write replaces. None: it creates the object.
    pub at: Option<ObjectVersion>,
    pub lines: Lines,
}

/// An object as the server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundChunk {
    pub chunk: Chunk,
    pub format: u32,
    /// What its lines say, in their order.
    pub facts: Vec<Fact>,
    /// How many lines are none of this format.
    pub n_unreadable: usize,
}

/// What is told about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordNotice {
    /// It was changed, and is written anew.
    Changed(u64),
    /// It was deleted, and is written anew.
    Deleted(u64),
    /// It arrived after its process had lost the record. It counts for nothing.
    Late(u64),
    /// It is not needed any more, and cannot be deleted. That is tried again.
    NotDeleted(u64, Refusal),
    /// So many of its lines say nothing.
    Unreadable(u64, usize),
}

/// Where the objects are.
pub trait RecordStore {
    /// The highest format that it can read.
    const FORMAT: u32;
    /// The most lines of one object, bytes. The server takes 1 MiB.
    const CHUNK_BYTES_MAX: usize = 256 << 10;
    /// Up to this size the last object gets more lines, bytes: each write sends all of it.
    const TAIL_BYTES_MAX: usize = 32 << 10;

    /// The objects of this record.
    ///
    /// # Errors
    /// The server's refusal.
    fn list(&mut self) -> Result<Vec<FoundChunk>, Refusal>;

    /// The versions of the objects of this record.
    ///
    /// # Errors
    /// The server's refusal.
    fn versions(&mut self) -> Result<BTreeMap<u64, ObjectVersion>, Refusal> {
        Ok(versions(self.list()?.iter().map(|one| &one.chunk)))
    }

    /// Creates the object, or replaces the version that it names. The version changes, also if the lines are the same.
    ///
    /// # Errors
    /// The server's refusal; outdated if the object is there already, or has changed.
    fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal>;

    /// Deletes the object with this uid. Succeeds if it is gone.
    ///
    /// # Errors
    /// The server's refusal.
    fn delete(&mut self, number: u64, uid: &str) -> Result<(), Refusal>;

    fn tell(&mut self, notice: RecordNotice);

    /// The wall clock, ms since 1970.
    fn unix_ms(&self) -> u64;
}

/// Why a record was not read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordFailure {
    /// An object has a format that this posse does not know.
    NewerFormat {
        number: u64,
        format: u32,
    },
    Refused(Refusal),
    /// Others change it all the time.
    Restless,
    /// Another posse writes it now.
    TakenOver,
}

impl From<Refusal> for RecordFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// An open record.
#[derive(Clone, Debug)]
pub struct ChunkedRecord {
    /// Above that of each process that is known to have had the record. Of what a restored server no longer shows, the
    /// clock tells.
    epoch: u64,
    chunks: BTreeMap<u64, Chunk>,
    /// In which objects a topic has a line.
    places: BTreeMap<Topic, BTreeSet<u64>>,
    /// A write whose outcome is unknown. It is repeated before anything else is written.
    unknown: Option<Chunk>,
    /// The objects before new ones, which count when these are written once more.
    unproven: BTreeSet<u64>,
    /// The last delete has failed, and this was told.
    is_delete_failing: bool,
}

impl ChunkedRecord {
    /// Opens a record and takes it over from an earlier process. Gives the last fact about each topic.
    ///
    /// # Errors
    /// The server refuses it, or it cannot be read.
    pub fn open<S: RecordStore>(store: &mut S) -> Result<(Self, Vec<Fact>), RecordFailure> {
        let mut why = RecordFailure::Restless;
        for n_tried in 0..TRIES_MAX {
            let found = sorted(store.list()?);
            if let Some(newer) = found.iter().find(|one| one.format > S::FORMAT) {
                let FoundChunk { chunk: Chunk { number, .. }, format, .. } = *newer;
                return Err(RecordFailure::NewerFormat { number, format });
            }
            let last = found.iter().map(|one| one.chunk.epoch).max().unwrap_or(0);
            let epoch = store.unix_ms().max(last.saturating_add(1));
            let mut record = Self {
                epoch,
                chunks: BTreeMap::new(),
                places: BTreeMap::new(),
                unknown: None,
                unproven: BTreeSet::new(),
                is_delete_failing: false,
            };
            let facts = record.load(found, store);
            match record.fence(store, u64::from(n_tried) + 1) {
                Ok(()) => return Ok((record, facts)),
                // The process before has written once more.
                Err(refusal) if refusal.is_outdated() => {}
                // Whether it is taken over is not known.
                Err(refusal) if refusal.class == RefusalClass::OutcomeUnknown => {
                    why = refusal.into();
                }
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Err(why)
    }

    fn load(&mut self, found: Vec<FoundChunk>, store: &mut impl RecordStore) -> Vec<Fact> {
        let mut known = BTreeMap::new();
        let mut latest = 0;
        for FoundChunk { chunk, facts, n_unreadable, .. } in found {
            if chunk.epoch < latest {
                store.tell(RecordNotice::Late(chunk.number));
                continue;
            }
            latest = chunk.epoch;
            if n_unreadable > 0 {
                store.tell(RecordNotice::Unreadable(chunk.number, n_unreadable));
            }
            for fact in facts {
                known.insert(fact.topic.clone(), fact);
            }
            self.keep(chunk);
        }
        known.into_values().filter(|fact| fact.knowledge.is_some()).collect()
    }

    /// Makes the last object, or a first one, this process's own. `step`: to a new number, of which the next ones may be
    /// names of something else.
    fn fence(&mut self, store: &mut impl RecordStore, step: u64) -> Result<(), Refusal> {
        let last = self.chunks.last_key_value().map(|(_, last)| last.clone());
        let is_first = last.is_none();
        let mut last = last.unwrap_or(Chunk { number: 0, epoch: 0, at: None, lines: Lines::new() });
        last.epoch = self.epoch;
        if is_first {
            last.number = step;
        }
        let mut written = store.write(&last);
        if written
            .as_ref()
            .is_err_and(|refusal| refusal.class == RefusalClass::Invalid && !is_first)
        {
            // Nobody can write it any more. So its lines go into the next one, which nobody else can make then.
            (last.number, last.at) = (last.number.saturating_add(step), None);
            written = store.write(&last);
        }
        match written {
            Ok(at) => self.keep(Chunk { at: Some(at), ..last }),
            // A full quota is no reason not to start: the first line makes the object.
            Err(refusal) if is_first && says_no(&refusal) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Stores these lines.
    ///
    /// # Errors
    /// They are not known to be stored. What was stored before is.
    pub fn append(
        &mut self,
        store: &mut impl RecordStore,
        new: Vec<(Topic, Line)>,
    ) -> Result<(), RecordFailure> {
        self.settle(store)?;
        let mut lines = Lines::new();
        // What cannot be deleted is not moved either: it would stay, too.
        let wasteful = if self.is_delete_failing { vec![] } else { self.wasteful() };
        for &number in &wasteful {
            let live = self.live_lines(number);
            lines.extend(live.map(|(topic, line)| (topic.clone(), line.clone())));
        }
        for (topic, line) in new {
            if line.is_removal && !self.places.contains_key(&topic) {
                lines.remove(&topic);
            } else {
                lines.insert(topic, line);
            }
        }
        self.write(store, lines)?;
        self.prove(store)?;
        self.delete(store, wasteful);
        Ok(())
    }

    /// Writes lines into the last object, or into new ones.
    fn write<S: RecordStore>(&mut self, store: &mut S, lines: Lines) -> Result<(), RecordFailure> {
        if lines.is_empty() {
            return Ok(());
        }
        let n_new = n_bytes(lines.values());
        let last = self.chunks.last_key_value().map(|(_, last)| last);
        if let Some(last) =
            last.filter(|last| n_bytes(last.lines.values()) + n_new <= S::TAIL_BYTES_MAX)
        {
            let mut last = last.clone();
            last.lines.extend(lines);
            return self.save(store, last);
        }
        let mut lines = lines.into_iter().peekable();
        while lines.peek().is_some() {
            let mut part = Lines::new();
            let mut n_bytes = 0;
            while let Some((_, line)) = lines.peek()
                && (n_bytes == 0 || n_bytes + line.text.len() < S::CHUNK_BYTES_MAX)
            {
                n_bytes += line.text.len() + 1;
                part.extend(lines.next());
            }
            let number = self.chunks.last_key_value().map_or(1, |(&number, _)| number + 1);
            self.save(store, Chunk { number, epoch: self.epoch, at: None, lines: part })?;
        }
        Ok(())
    }

    /// Stores an object, whatever others have done to it.
    fn save(
        &mut self,
        store: &mut impl RecordStore,
        mut chunk: Chunk,
    ) -> Result<(), RecordFailure> {
        // Whose name something else has.
        let mut lost = None;
        for _ in 0..TRIES_MAX {
            match store.write(&chunk) {
                Ok(at) => {
                    lost.into_iter().for_each(|number| self.forget(number));
                    // Also one that is made again: a later process may have begun while it was gone.
                    if chunk.at.is_none() {
                        let before = self.chunks.range(..chunk.number).next_back();
                        self.unproven.extend(before.map(|(&number, _)| number));
                    }
                    self.keep(Chunk { at: Some(at), ..chunk });
                    return Ok(());
                }
                Err(refusal) if refusal.is_outdated() => {}
                // Somebody has made it immutable. It is dead then, and is deleted.
                Err(refusal) if refusal.class == RefusalClass::Invalid && chunk.at.is_some() => {
                    if !self.move_behind(&mut chunk, 0) {
                        return Ok(());
                    }
                    continue;
                }
                Err(refusal) => {
                    let is_unknown = refusal.class == RefusalClass::OutcomeUnknown;
                    self.unknown = is_unknown.then_some(chunk);
                    return Err(refusal.into());
                }
            }
            let mut found = self.look(store)?;
            let is_new = chunk.at.is_none();
            match found.remove(&chunk.number) {
                Some(there) => {
                    let is_known = there.lines == chunk.lines || self.has_written(&there);
                    if !is_new && !is_known {
                        store.tell(RecordNotice::Changed(chunk.number));
                    }
                    chunk.at = there.at;
                }
                // Something else has this name.
                None if is_new => {
                    let number = chunk.number;
                    let last = found.last_key_value().map_or(0, |(&last, _)| last);
                    let is_moved = self.move_behind(&mut chunk, last);
                    if self.chunks.contains_key(&number) {
                        lost = Some(number);
                    }
                    if !is_moved {
                        self.forget(number);
                        return Ok(());
                    }
                }
                None => {
                    store.tell(RecordNotice::Deleted(chunk.number));
                    chunk.at = None;
                }
            }
        }
        Err(RecordFailure::Restless)
    }

    /// Gives an object the number after the last one, of the known and of the found. What an object behind it says
    /// anew stays behind. False: nothing is left to move.
    fn move_behind(&self, chunk: &mut Chunk, last_found: u64) -> bool {
        let last = self.chunks.last_key_value().map_or(0, |(&last, _)| last);
        let is_last = |topic: &Topic| {
            let places = self.places.get(topic);
            places.is_none_or(|places| places.last() <= Some(&chunk.number))
        };
        let lines = std::mem::take(&mut chunk.lines);
        chunk.lines = lines.into_iter().filter(|(topic, _)| is_last(topic)).collect();
        let is_moved = chunk.number >= last || !chunk.lines.is_empty();
        chunk.number = last.max(last_found).max(chunk.number).saturating_add(1);
        (chunk.at, chunk.epoch) = (None, self.epoch);
        is_moved
    }

    /// Writes the objects before new ones once more: if nobody else has changed them, no later process has begun
    /// without the new ones.
    fn prove(&mut self, store: &mut impl RecordStore) -> Result<(), RecordFailure> {
        for _ in 0..self.unproven.len().saturating_add(TRIES_MAX as usize) {
            let Some(&number) = self.unproven.first() else { return Ok(()) };
            if let Some(chunk) = self.chunks.get(&number).cloned() {
                match store.write(&chunk) {
                    Ok(at) => self.keep(Chunk { at: Some(at), ..chunk }),
                    // A later process cannot write it either, and makes an object instead: with the same number.
                    Err(refusal) if refusal.class == RefusalClass::Invalid => {}
                    Err(refusal) if refusal.is_outdated() => self.save(store, chunk)?,
                    Err(refusal) => return Err(refusal.into()),
                }
            }
            self.unproven.remove(&number);
        }
        Err(RecordFailure::Restless)
    }

    /// What is there, unless a later process has taken it over.
    fn look(&self, store: &mut impl RecordStore) -> Result<BTreeMap<u64, Chunk>, RecordFailure> {
        let found = store.list()?;
        if found.iter().any(|one| one.chunk.epoch > self.epoch) {
            return Err(RecordFailure::TakenOver);
        }
        Ok(found.into_iter().map(|one| (one.chunk.number, one.chunk)).collect())
    }

    fn has_written(&self, there: &Chunk) -> bool {
        self.chunks.get(&there.number).is_some_and(|chunk| chunk.lines == there.lines)
    }

    /// Repeats the write whose outcome is unknown: if it has arrived, it is the last word about what it says.
    fn settle(&mut self, store: &mut impl RecordStore) -> Result<(), RecordFailure> {
        let Some(chunk) = self.unknown.take() else { return Ok(()) };
        let saved = self.save(store, chunk.clone());
        if saved.is_err() {
            self.unknown = Some(chunk);
        }
        saved
    }

    /// Writes anew what others have changed or deleted, and deletes what arrived after its process had lost the record.
    ///
    /// # Errors
    /// As `append`.
    pub fn check(&mut self, store: &mut impl RecordStore) -> Result<(), RecordFailure> {
        if self.chunks.is_empty() {
            return Ok(());
        }
        self.settle(store)?;
        if store.versions()? != versions(self.chunks.values()) {
            self.mend(store)?;
        }
        self.prove(store)?;
        let dead = self.wasteful();
        self.delete(store, dead.into_iter().filter(|&number| self.is_dead(number)).collect());
        Ok(())
    }

    fn mend(&mut self, store: &mut impl RecordStore) -> Result<(), RecordFailure> {
        let mut found = self.look(store)?;
        for mut chunk in self.chunks.clone().into_values() {
            let there = found.remove(&chunk.number);
            let at = there.as_ref().and_then(|there| there.at.clone());
            if at.is_some() && at == chunk.at {
                continue;
            }
            match &there {
                None => store.tell(RecordNotice::Deleted(chunk.number)),
                Some(there) if self.has_written(there) => {}
                Some(_) => store.tell(RecordNotice::Changed(chunk.number)),
            }
            chunk.at = at;
            self.save(store, chunk)?;
        }
        for (number, stray) in found {
            self.delete_object(store, number, stray.uid());
        }
        Ok(())
    }

    /// Deletes all of it.
    ///
    /// # Errors
    /// The server's refusal, or another posse has taken it over.
    pub fn remove(&mut self, store: &mut impl RecordStore) -> Result<(), RecordFailure> {
        for (number, chunk) in self.look(store)? {
            store.delete(number, chunk.uid())?;
            self.forget(number);
        }
        Ok(())
    }

    fn keep(&mut self, chunk: Chunk) {
        for topic in chunk.lines.keys() {
            self.places.entry(topic.clone()).or_default().insert(chunk.number);
        }
        self.chunks.insert(chunk.number, chunk);
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
}

impl Chunk {
    fn uid(&self) -> &str {
        self.at.as_ref().map_or("", |at| &at.uid)
    }
}

fn n_bytes<'a>(lines: impl Iterator<Item = &'a Line>) -> usize {
    lines.map(|line| line.text.len() + 1).sum()
}

fn versions<'a>(chunks: impl Iterator<Item = &'a Chunk>) -> BTreeMap<u64, ObjectVersion> {
    chunks.filter_map(|chunk| Some((chunk.number, chunk.at.clone()?))).collect()
}

/// The server has judged the object itself, and not who sends it or when.
fn says_no(refusal: &Refusal) -> bool {
    matches!(refusal.class, RefusalClass::Capacity | RefusalClass::Invalid)
}

fn sorted(mut found: Vec<FoundChunk>) -> Vec<FoundChunk> {
    found.sort_by_key(|one| one.chunk.number);
    found
}
