//! Splits a watch stream into events, and coalesces watch events per pod into batches.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use posse_core::machines::watch::WatchEnd;
use posse_core::model::ids::{Uid, Version};
use posse_core::model::input::PodEvent;
use posse_core::model::pod::Pod;
use posse_wire::k8s::watch::Encoded;

/// The longest watch event, in bytes; etcd stores no object above 1.5 MiB.
pub const LINE_BYTES_MAX: usize = 8 << 20;
/// The most events in one batch. What fits into the read buffer is usually shorter.
pub const WATCH_BATCH_MAX: usize = 256;
/// After a long line, the buffer's memory above this is freed, in bytes.
const LINE_BYTES_KEPT: usize = 64 << 10;

/// In front of each event in protobuf is its length, big-endian, in so many bytes. The first of them is 0, as
/// an event has less than 16 MiB; no line begins so.
const LENGTH_BYTES: usize = 4;

/// Splits a byte stream into lines of JSON, and into events in protobuf.
#[derive(Debug, Default)]
pub struct Lines {
    /// The start of an event whose end has not arrived yet.
    partial: Vec<u8>,
}

impl Lines {
    /// Waits for bytes, takes everything that has arrived, and passes complete events to `on_event`.
    ///
    /// # Errors
    /// Why the watch ends: of `on_event`, or of the stream.
    pub fn fill(
        &mut self,
        reader: &mut dyn BufRead,
        mut on_event: impl FnMut(Encoded<'_>) -> Result<(), WatchEnd>,
    ) -> Result<(), WatchEnd> {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::TimedOut => return Err(WatchEnd::Idle),
            Err(e) => return Err(WatchEnd::Cut(e.to_string())),
        };
        let n_bytes = buffer.len();
        if n_bytes == 0 {
            return Err(self.end());
        }
        let taken = self.take(buffer, &mut on_event);
        reader.consume(n_bytes);
        taken
    }

    fn take(
        &mut self,
        mut bytes: &[u8],
        on_event: &mut impl FnMut(Encoded<'_>) -> Result<(), WatchEnd>,
    ) -> Result<(), WatchEnd> {
        while !bytes.is_empty() {
            let (n_bytes, is_complete) = self.next_piece(bytes);
            let (piece, rest) = bytes.split_at(n_bytes);
            bytes = rest;
            if self.partial.len() + piece.len() > LINE_BYTES_MAX {
                return Err(WatchEnd::Undecodable(format!(
                    "it is longer than {LINE_BYTES_MAX} bytes"
                )));
            }
            if is_complete && self.partial.is_empty() {
                pass(piece, on_event)?;
                continue;
            }
            self.partial.extend_from_slice(piece);
            if is_complete {
                pass(&self.partial, on_event)?;
                self.partial.clear();
                self.partial.shrink_to(LINE_BYTES_KEPT);
            }
        }
        Ok(())
    }

    /// How many of these bytes belong to the event that `partial` begins, and whether they complete it.
    fn next_piece(&self, bytes: &[u8]) -> (usize, bool) {
        let begun = || self.partial.iter().chain(bytes);
        if begun().next() != Some(&0) {
            let mut rest = bytes;
            // Cannot fail on a slice, and is the fastest byte search in std.
            let n_bytes = rest.skip_until(b'\n').unwrap_or(bytes.len());
            return (n_bytes, bytes[..n_bytes].ends_with(b"\n"));
        }
        if self.partial.len() + bytes.len() < LENGTH_BYTES {
            return (bytes.len(), false);
        }
        let length = begun().take(LENGTH_BYTES).fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        let missing = (LENGTH_BYTES + length).saturating_sub(self.partial.len());
        (missing.min(bytes.len()), missing <= bytes.len())
    }

    fn end(&self) -> WatchEnd {
        if self.partial.is_empty() {
            WatchEnd::Clean
        } else {
            WatchEnd::Cut("it ended in the middle of an event".to_owned())
        }
    }
}

/// Passes a complete event on. Empty lines are none.
fn pass(
    event: &[u8],
    on_event: &mut impl FnMut(Encoded<'_>) -> Result<(), WatchEnd>,
) -> Result<(), WatchEnd> {
    if event.first() == Some(&0) {
        return on_event(Encoded::Protobuf(event.get(LENGTH_BYTES..).unwrap_or_default()));
    }
    match event.trim_ascii() {
        [] => Ok(()),
        line => on_event(Encoded::Json(line)),
    }
}

/// Watch events for one message to the reconciler: only the last event of each pod, in the order of
/// these last events, and the newest bookmark.
#[derive(Debug, Default)]
pub struct Batch {
    events: Vec<Option<PodEvent>>,
    by_uid: BTreeMap<Uid, usize>,
    bookmark: Option<Version>,
}

impl Batch {
    pub(super) fn add_pod(&mut self, pod: Pod, event: impl FnOnce(Pod) -> PodEvent) {
        if let Some(before) = self.by_uid.insert(pod.uid.clone(), self.events.len()) {
            self.events[before] = None;
        }
        self.events.push(Some(event(pod)));
    }

    pub(super) fn add_bookmark(&mut self, version: Option<Version>) {
        self.bookmark = self.bookmark.max(version);
    }

    pub(super) fn is_full(&self) -> bool {
        self.events.len() >= WATCH_BATCH_MAX
    }

    pub(super) fn into_events(self) -> Vec<PodEvent> {
        let bookmark = self.bookmark.map(PodEvent::Bookmark);
        self.events.into_iter().flatten().chain(bookmark).collect()
    }
}
