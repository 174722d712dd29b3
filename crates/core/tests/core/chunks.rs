//! The objects of a record: who may write them, and what becomes of one that others change.
#![allow(clippy::unwrap_used)]

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher as _;

use crate::core_run::refusal;
use posse_core::machines::record::{
    Chunk, ChunkedRecord, FoundChunk, Line, ObjectVersion, RecordFailure, RecordNotice, RecordStore,
};
use posse_core::model::fact::{Fact, Knowledge, Target, Topic};
use posse_core::model::ids::GroupName;
use posse_core::model::refusal::{Refusal, RefusalClass};

/// The objects on the server.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    pub chunks: BTreeMap<u64, Chunk>,
    version: u64,
    /// What each line says.
    said: BTreeMap<String, Fact>,
}

/// A short line that stands for a fact.
fn text(fact: &Fact) -> String {
    let mut hasher = DefaultHasher::new();
    hasher.write(format!("{fact:?}").as_bytes());
    format!("{:016x}", hasher.finish())
}

pub(super) fn lines(facts: &[Fact]) -> Vec<(Topic, Line)> {
    let line = |fact: &Fact| {
        let line = Line { text: text(fact).into(), is_removal: fact.knowledge.is_none() };
        (fact.topic.clone(), line)
    };
    facts.iter().map(line).collect()
}

impl Objects {
    pub(super) fn learn(&mut self, facts: &[Fact]) {
        self.said.extend(facts.iter().map(|fact| (text(fact), fact.clone())));
    }

    pub(super) fn list(&self) -> Vec<FoundChunk> {
        let found = self.chunks.values().map(|chunk| FoundChunk {
            chunk: chunk.clone(),
            format: 1,
            facts: chunk.lines.values().map(|line| self.said[&*line.text].clone()).collect(),
            n_unreadable: 0,
        });
        found.collect()
    }

    /// The server replaces the version that was read, and no other.
    pub(super) fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal> {
        if chunk.at != self.chunks.get(&chunk.number).and_then(|there| there.at.clone()) {
            let is_new = chunk.at.is_none();
            let class = if is_new { RefusalClass::Exists } else { RefusalClass::Conflict };
            return Err(refusal(class, 409));
        }
        self.version += 1;
        let version = format!("V{}", self.version);
        let uid = chunk.at.as_ref().map_or(&version, |at| &at.uid).clone();
        let at = ObjectVersion { uid, version };
        self.chunks.insert(chunk.number, Chunk { at: Some(at.clone()), ..chunk.clone() });
        Ok(at)
    }

    pub(super) fn delete(&mut self, number: u64, uid: &str) {
        let is_it = |there: &Chunk| there.at.as_ref().is_some_and(|at| at.uid == uid);
        if self.chunks.get(&number).is_some_and(is_it) {
            self.chunks.remove(&number);
        }
    }

    fn change(&mut self, number: u64, change: impl Fn(&mut Chunk)) {
        let mut chunk = self.chunks[&number].clone();
        change(&mut chunk);
        self.write(&chunk).unwrap();
    }
}

/// How the next write ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    AnswerLost,
    Refused,
    /// Not this one, but one after it.
    Later,
    /// The next process takes the record over before it.
    TakenOver,
}

/// A server with faults.
#[derive(Debug, Default)]
struct Server {
    objects: Objects,
    /// Numbers whose names others have.
    taken: BTreeSet<u64>,
    format: u32,
    faults: Vec<Fault>,
    /// Nobody can change them any more, but delete them.
    immutable: BTreeSet<u64>,
    /// How many deletes were refused; none: they are permitted.
    n_deletes_refused: Option<u32>,
    n_lists: u32,
    told: Vec<RecordNotice>,
    unix_ms: u64,
}

impl RecordStore for Server {
    const FORMAT: u32 = 1;
    const CHUNK_BYTES_MAX: usize = 100;
    const TAIL_BYTES_MAX: usize = 50;

    fn list(&mut self) -> Result<Vec<FoundChunk>, Refusal> {
        self.n_lists += 1;
        let listed = self.objects.list().into_iter();
        let found = listed.filter(|one| !self.taken.contains(&one.chunk.number));
        Ok(found.map(|one| FoundChunk { format: one.format + self.format, ..one }).collect())
    }

    fn write(&mut self, chunk: &Chunk) -> Result<ObjectVersion, Refusal> {
        let fault = self.faults.pop().filter(|fault| *fault != Fault::Later);
        if fault == Some(Fault::TakenOver) {
            self.open();
        }
        if fault == Some(Fault::Refused) {
            return Err(refusal(RefusalClass::Capacity, 403));
        }
        if self.taken.contains(&chunk.number) {
            let class =
                if chunk.at.is_none() { RefusalClass::Exists } else { RefusalClass::Conflict };
            return Err(refusal(class, 409));
        }
        if chunk.at.is_some() && self.immutable.contains(&chunk.number) {
            return Err(refusal(RefusalClass::Invalid, 422));
        }
        let written = self.objects.write(chunk)?;
        let answer = refusal(RefusalClass::OutcomeUnknown, 0);
        if fault == Some(Fault::AnswerLost) { Err(answer) } else { Ok(written) }
    }

    fn delete(&mut self, number: u64, uid: &str) -> Result<(), Refusal> {
        if let Some(n) = &mut self.n_deletes_refused {
            *n += 1;
            return Err(refusal(RefusalClass::Forbidden, 403));
        }
        self.objects.delete(number, uid);
        Ok(())
    }

    fn versions(&mut self) -> Result<BTreeMap<u64, ObjectVersion>, Refusal> {
        let found = self.objects.chunks.iter().filter(|(number, _)| !self.taken.contains(number));
        Ok(found.map(|(number, chunk)| (*number, chunk.at.clone().unwrap())).collect())
    }

    fn tell(&mut self, notice: RecordNotice) {
        self.told.push(notice);
    }

    fn unix_ms(&self) -> u64 {
        self.unix_ms
    }
}

impl Server {
    fn open(&mut self) -> (ChunkedRecord, Vec<Fact>) {
        ChunkedRecord::open(self).unwrap()
    }

    fn append(&mut self, record: &mut ChunkedRecord, facts: &[Fact]) -> Result<(), RecordFailure> {
        self.objects.learn(facts);
        record.append(self, lines(facts))
    }

    /// What the next process finds.
    fn known(&mut self) -> Vec<Fact> {
        self.open().1
    }
}

fn fact(group: &str, target: u32) -> Fact {
    let topic = Topic::Target(GroupName::from(group));
    Fact {
        topic,
        knowledge: Some(Knowledge::Target(Target { target, of_file: 1, ..Target::default() })),
    }
}

fn gone(group: &str) -> Fact {
    Fact { knowledge: None, ..fact(group, 0) }
}

/// So many that they fill more than one object.
fn many(prefix: &str, target: u32) -> Vec<Fact> {
    (0..9).map(|i| fact(&format!("{prefix}{i}"), target)).collect()
}

#[test]
fn the_last_line_about_each_topic_counts() {
    let mut server = Server::default();
    let (mut record, found) = server.open();
    assert_eq!(found, []);
    for facts in [many("g", 1), many("h", 1), many("g", 2), vec![gone("h3"), fact("i", 7)]] {
        server.append(&mut record, &facts).unwrap();
    }
    let mut want = [many("g", 2), many("h", 1), vec![fact("i", 7)]].concat();
    want.retain(|fact| fact.topic != gone("h3").topic);
    assert_eq!(server.known(), want);
    let sizes = server.objects.chunks.values().map(|chunk| chunk.lines.len());
    assert!(sizes.clone().all(|n| n > 0), "{:?}", sizes.collect::<Vec<_>>());
}

#[test]
fn an_object_that_is_half_dead_is_moved_to_the_end() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &many("g", 1)).unwrap();
    let first = *server.objects.chunks.first_key_value().unwrap().0;
    // All but the first one.
    for i in 0..8 {
        server.append(&mut record, &many("g", i)[1..]).unwrap();
    }
    assert!(!server.objects.chunks.contains_key(&first));
    let n_objects = server.objects.chunks.len();
    assert!(n_objects <= 5, "{n_objects}");
    let want = [many("g", 1)[..1].to_vec(), many("g", 7)[1..].to_vec()].concat();
    assert_eq!(server.known(), want);
    // What is gone leaves nothing behind.
    let all: Vec<Fact> = (0..9).map(|i| gone(&format!("g{i}"))).collect();
    let (mut record, _) = server.open();
    server.append(&mut record, &all).unwrap();
    assert_eq!(server.known(), []);
}

#[test]
fn who_has_lost_the_record_writes_no_more() {
    let mut server = Server::default();
    let (mut before, _) = server.open();
    server.append(&mut before, &[fact("g", 1)]).unwrap();
    let (mut after, found) = server.open();
    assert_eq!(found, [fact("g", 1)]);
    let stored = server.objects.chunks.clone();
    let taken_over = Err(RecordFailure::TakenOver);
    assert_eq!(server.append(&mut before, &[fact("g", 2)]), taken_over);
    assert_eq!(before.check(&mut server), taken_over);
    assert_eq!(before.remove(&mut server), taken_over);
    assert_eq!((server.objects.chunks.clone(), server.told.clone()), (stored, vec![]));
    server.append(&mut after, &[fact("g", 3)]).unwrap();
    assert_eq!(server.known(), [fact("g", 3)]);
}

#[test]
fn of_two_that_find_no_record_one_ends() {
    let mut server = Server::default();
    let ((mut one, _), (mut other, _)) = (server.open(), server.open());
    assert_eq!(server.append(&mut one, &[fact("g", 1)]), Err(RecordFailure::TakenOver));
    server.append(&mut other, &[fact("h", 1)]).unwrap();
    assert_eq!(server.known(), [fact("h", 1)]);
}

/// As one whose machine was paused: it makes a new object, and the last one is another's now.
#[test]
fn a_new_object_is_acknowledged_only_by_who_has_the_record() {
    for n_before in [0, 1, 2] {
        let mut server = Server::default();
        let (mut before, _) = server.open();
        for _ in 0..n_before {
            server.append(&mut before, &many("g", 1)).unwrap();
        }
        server.open();
        let stored = server.known();
        assert_eq!(server.append(&mut before, &many("h", 1)), Err(RecordFailure::TakenOver));
        assert_eq!(server.known(), stored, "{n_before}");
    }
}

#[test]
fn a_new_object_counts_after_the_one_before_it_was_written_once_more() {
    let mut server = Server::default();
    let (mut before, _) = server.open();
    server.open();
    // The new objects are there, and the write of what was before them is refused.
    server.faults = vec![Fault::Refused, Fault::Later, Fault::Later];
    let refused = server.append(&mut before, &many("g", 1));
    assert!(matches!(refused, Err(RecordFailure::Refused(_))), "{refused:?}");
    assert_eq!(server.append(&mut before, &[fact("h", 1)]), Err(RecordFailure::TakenOver));
}

/// A restored server has lost one, and whoever writes it again has found nobody else.
#[test]
fn an_object_that_is_made_again_is_acknowledged_only_by_who_has_the_record() {
    for number in [3, 4] {
        let mut server = Server::default();
        let (mut before, _) = server.open();
        server.append(&mut before, &many("g", 1)).unwrap();
        server.append(&mut before, &[fact("y", 1)]).unwrap();
        server.objects.chunks.retain(|&at, _| at < number);
        server.faults = vec![Fault::TakenOver, Fault::Later];
        let appended = server.append(&mut before, &[fact("z", 1)]);
        assert_eq!(appended, Err(RecordFailure::TakenOver), "{number}");
    }
}

#[test]
fn a_full_quota_does_not_keep_a_run_from_its_start() {
    let mut server = Server { faults: vec![Fault::Refused], ..Server::default() };
    let (mut record, _) = server.open();
    assert!(server.objects.chunks.is_empty());
    server.append(&mut record, &[fact("g", 1)]).unwrap();
    assert_eq!(server.known(), [fact("g", 1)]);
}

#[test]
fn what_arrives_late_counts_for_nothing() {
    let mut server = Server::default();
    let (mut before, _) = server.open();
    server.append(&mut before, &[fact("g", 1)]).unwrap();
    let (mut after, _) = server.open();
    server.append(&mut after, &[fact("g", 2)]).unwrap();
    // A new object that the process before had sent.
    let late = fact("g", 9);
    server.objects.learn(std::slice::from_ref(&late));
    let lines = lines(&[late]).into_iter().collect();
    server.objects.write(&Chunk { number: 2, epoch: 1, at: None, lines }).unwrap();
    assert_eq!(server.known(), [fact("g", 2)]);
    let (mut after, _) = server.open();
    after.check(&mut server).unwrap();
    assert_eq!(server.objects.chunks.len(), 1);
}

#[test]
fn what_arrives_late_counts_for_nothing_after_a_restore_to_before_the_record() {
    let mut server = Server { unix_ms: 7, ..Server::default() };
    let (mut before, _) = server.open();
    server.append(&mut before, &[fact("g", 9)]).unwrap();
    let late = server.objects.chunks.remove(&1).unwrap();
    server.unix_ms = 8;
    let (mut after, _) = server.open();
    server.append(&mut after, &[fact("g", 2)]).unwrap();
    server.objects.write(&Chunk { number: 2, at: None, ..late }).unwrap();
    assert_eq!(server.known(), [fact("g", 2)]);
}

#[test]
fn a_write_of_unknown_outcome_is_repeated_first() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &[fact("a", 1)]).unwrap();
    // Into a new object, which is there; what follows would have room in the one before.
    server.faults = vec![Fault::AnswerLost];
    assert!(server.append(&mut record, &many("g", 1)).is_err());
    let all: Vec<Fact> = (0..9).map(|i| gone(&format!("g{i}"))).collect();
    server.append(&mut record, &all[..1]).unwrap();
    assert_eq!(server.told, [], "nobody has changed it");
    let known = server.known();
    assert!(!known.contains(&fact("g0", 1)), "{known:?}");
}

#[test]
fn a_record_is_taken_over_although_an_answer_is_lost() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &[fact("a", 1)]).unwrap();
    server.faults = vec![Fault::AnswerLost];
    assert_eq!(server.known(), [fact("a", 1)]);
    server.faults = vec![Fault::AnswerLost; 10];
    let failed = ChunkedRecord::open(&mut server).unwrap_err();
    assert_eq!(failed, RecordFailure::Refused(refusal(RefusalClass::OutcomeUnknown, 0)));
}

#[test]
fn what_others_change_is_told_and_written_anew() {
    for number in [2, 4] {
        let mut server = Server::default();
        let (mut record, _) = server.open();
        server.append(&mut record, &many("g", 1)).unwrap();
        server.append(&mut record, &[fact("y", 1)]).unwrap();
        assert_eq!(server.objects.chunks.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        let clear = |chunk: &mut Chunk| chunk.lines.clear();
        server.objects.change(number, clear);
        record.check(&mut server).unwrap();
        assert_eq!(server.told, [RecordNotice::Changed(number)]);
        let uid = server.objects.chunks[&number].at.clone().unwrap().uid;
        server.objects.delete(number, &uid);
        record.check(&mut server).unwrap();
        assert_eq!(server.told[1..], [RecordNotice::Deleted(number)]);
        // Also without a look, where the next write goes.
        let last = *server.objects.chunks.last_key_value().unwrap().0;
        server.objects.change(last, clear);
        server.append(&mut record, &[fact("z", 1)]).unwrap();
        assert_eq!(server.told[2..], [RecordNotice::Changed(last)]);
        record.check(&mut server).unwrap();
        assert_eq!(server.told.len(), 3);
        assert_eq!(server.known(), [many("g", 1), vec![fact("y", 1), fact("z", 1)]].concat());
    }
}

/// Who takes the label or the owner from an object, or its name after a delete, costs the record nothing.
#[test]
fn lines_whose_name_is_taken_move_behind_the_last_object() {
    for lost in [vec![2], vec![3], vec![4], vec![3, 4], vec![2, 3, 4]] {
        for is_checked in [true, false] {
            let mut server = Server::default();
            let (mut record, _) = server.open();
            server.append(&mut record, &many("g", 1)).unwrap();
            server.append(&mut record, &[fact("y", 1)]).unwrap();
            // What counts of an older object only.
            server.append(&mut record, &[fact("g8", 2)]).unwrap();
            assert_eq!(server.objects.chunks.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
            server.taken.extend(&lost);
            for round in 0..3 {
                if is_checked || round > 0 {
                    record.check(&mut server).unwrap();
                }
                server.append(&mut record, &[fact("z", round)]).unwrap();
            }
            record.check(&mut server).unwrap();
            let told: Vec<RecordNotice> =
                lost.iter().map(|number| RecordNotice::Deleted(*number)).collect();
            assert!(told.iter().all(|one| server.told.contains(one)), "{:?}", server.told);
            assert_eq!(server.told.len(), lost.len(), "{:?}", server.told);
            let others = [fact("g8", 2), fact("y", 1), fact("z", 2)];
            let want = [&many("g", 1)[..8], &others].concat();
            assert_eq!(server.known(), want, "{lost:?}");
        }
    }
}

#[test]
fn the_lines_of_an_object_that_nobody_can_change_move_behind_the_last_one() {
    for number in [2, 3, 4] {
        let mut server = Server::default();
        let (mut record, _) = server.open();
        server.append(&mut record, &many("g", 1)).unwrap();
        server.append(&mut record, &[fact("y", 1)]).unwrap();
        server.objects.change(number, |_| {});
        server.immutable.insert(number);
        server.append(&mut record, &[fact("z", 1)]).unwrap();
        record.check(&mut server).unwrap();
        assert!(!server.objects.chunks.contains_key(&number), "{number}");
        let want = [many("g", 1), vec![fact("y", 1), fact("z", 1)]].concat();
        assert_eq!(server.known(), want);
    }
    // Also for who takes the record over.
    let mut server = Server::default();
    let (mut before, _) = server.open();
    server.append(&mut before, &[fact("y", 1)]).unwrap();
    server.immutable.extend([1]);
    let (mut after, found) = server.open();
    assert_eq!(found, [fact("y", 1)]);
    assert_eq!(server.append(&mut before, &[fact("z", 1)]), Err(RecordFailure::TakenOver));
    server.append(&mut after, &[fact("z", 2)]).unwrap();
    assert_eq!(server.known(), [fact("y", 1), fact("z", 2)]);
}

#[test]
fn a_delete_that_fails_is_told_once_and_tried_again() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &many("g", 1)).unwrap();
    server.n_deletes_refused = Some(0);
    for target in 2..9 {
        server.append(&mut record, &many("g", target)).unwrap();
        server.append(&mut record, &[fact("y", target)]).unwrap();
    }
    record.check(&mut server).unwrap();
    assert!(matches!(server.told[..], [RecordNotice::NotDeleted(1, _)]), "{:?}", server.told);
    assert_eq!(server.n_deletes_refused.take(), Some(2), "one append, and one check");
    let n_objects = server.objects.chunks.len();
    record.check(&mut server).unwrap();
    assert!(server.objects.chunks.len() + 10 < n_objects, "{:?}", server.objects.chunks);
    assert_eq!(server.known(), [many("g", 8), vec![fact("y", 8)]].concat());
}

#[test]
fn a_check_reads_no_line_of_what_nobody_has_changed() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &many("g", 1)).unwrap();
    let n_lists = server.n_lists;
    record.check(&mut server).unwrap();
    assert_eq!(server.n_lists, n_lists);
}

#[test]
fn a_refused_write_loses_nothing() {
    let mut server = Server { taken: [1].into(), ..Server::default() };
    let (mut record, _) = server.open();
    server.append(&mut record, &[fact("a", 1)]).unwrap();
    assert_eq!(server.objects.chunks.keys().copied().collect::<Vec<_>>(), [2], "1 is taken");
    // The second object is refused.
    server.faults = vec![Fault::Refused];
    let refused = server.append(&mut record, &many("g", 1));
    assert!(matches!(refused, Err(RecordFailure::Refused(_))), "{refused:?}");
    assert_eq!(server.known(), [fact("a", 1)]);
    let (mut record, _) = server.open();
    server.append(&mut record, &many("g", 1)).unwrap();
    assert_eq!(server.known(), [vec![fact("a", 1)], many("g", 1)].concat());
}

#[test]
fn a_newer_format_is_not_misread() {
    let mut server = Server::default();
    let (mut record, _) = server.open();
    server.append(&mut record, &[fact("a", 1)]).unwrap();
    let stored = server.objects.chunks.clone();
    server.format = 1;
    let opened = ChunkedRecord::open(&mut server).err();
    assert_eq!(opened, Some(RecordFailure::NewerFormat { number: 1, format: 2 }));
    assert_eq!(server.objects.chunks, stored, "it stays as it is");
}
