//! What of a record takes room and says nothing any more.

use super::{Chunk, ChunkedRecord, Line, RecordNotice, RecordStore, n_bytes};
use crate::model::fact::Topic;

impl ChunkedRecord {
    /// The objects that are dead, and one of which half is: a move is a write, too. The last one is written anew with
    /// each write.
    pub(super) fn wasteful(&self) -> Vec<u64> {
        let mut moves = false;
        let last = self.chunks.last_key_value().map(|(&number, _)| number);
        let mut is_wasteful = |number: u64, chunk: &Chunk| {
            let n_live = n_bytes(self.live_lines(number).map(|(_, line)| line));
            let is_dead = n_live == 0;
            let is_moved = !is_dead && !moves && n_live * 2 < n_bytes(chunk.lines.values());
            moves |= is_moved;
            Some(number) != last && (is_dead || is_moved)
        };
        let chunks = self.chunks.iter().map(|(&number, chunk)| (number, chunk));
        chunks
            .filter(|(number, chunk)| is_wasteful(*number, chunk))
            .map(|(number, _)| number)
            .collect()
    }

    /// The lines of an object that count.
    pub(super) fn live_lines(&self, number: u64) -> impl Iterator<Item = (&Topic, &Line)> {
        let lines = self.chunks.get(&number).into_iter().flat_map(|chunk| &chunk.lines);
        let is_live = move |topic: &Topic, line: &Line| {
            let places = self.places.get(topic);
            let is_last = places.is_none_or(|places| places.last() == Some(&number));
            let is_only = places.is_none_or(|places| places.len() == 1);
            is_last && !(line.is_removal && is_only)
        };
        lines.filter(move |(topic, line)| is_live(topic, line))
    }

    pub(super) fn is_dead(&self, number: u64) -> bool {
        self.live_lines(number).next().is_none()
    }

    /// Deletes objects that are dead, up to the first failure: they are deleted later.
    pub(super) fn delete(&mut self, store: &mut impl RecordStore, dead: Vec<u64>) {
        for number in dead {
            let uid = self.chunks.get(&number).map_or("", Chunk::uid).to_owned();
            if !self.delete_object(store, number, &uid) {
                return;
            }
            self.forget(number);
        }
    }

    /// A failure is told once.
    pub(super) fn delete_object(
        &mut self,
        store: &mut impl RecordStore,
        number: u64,
        uid: &str,
    ) -> bool {
        let deleted = store.delete(number, uid);
        let was_failing = std::mem::replace(&mut self.is_delete_failing, deleted.is_err());
        match deleted {
            Ok(()) => true,
            Err(refusal) => {
                if !was_failing {
                    store.tell(RecordNotice::NotDeleted(number, refusal));
                }
                false
            }
        }
    }
}
