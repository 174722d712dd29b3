//! Splits a watch stream into lines, and coalesces watch events per pod into batches.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use crate::core::machines::watch::WatchEnd;
use crate::core::model::ids::{Uid, Version};
use crate::core::model::input::PodEvent;
use crate::core::model::pod::Pod;

/// The longest watch line, in bytes; etcd stores no object above 1.5 MiB.
pub const LINE_BYTES_MAX: usize = 8 << 20;
/// The most events in one batch. What fits into the read buffer is usually shorter.
pub const WATCH_BATCH_MAX: usize = 256;
/// After a long line, the buffer's memory above this is freed, in bytes.
const LINE_BYTES_KEPT: usize = 64 << 10;

/// Splits a byte stream into lines.
#[derive(Debug, Default)]
pub struct Lines {
    /// The start of a line whose end has not arrived yet.
    partial: Vec<u8>,
}

impl Lines {
    /// Waits for bytes, takes everything that has arrived, and passes complete lines to `on_line`.
    pub(super) fn fill(
        &mut self,
        reader: &mut dyn BufRead,
        mut on_line: impl FnMut(&[u8]) -> Result<(), WatchEnd>,
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
        let taken = self.take(buffer, &mut on_line);
        reader.consume(n_bytes);
        taken
    }

    fn take(
        &mut self,
        mut bytes: &[u8],
        on_line: &mut impl FnMut(&[u8]) -> Result<(), WatchEnd>,
    ) -> Result<(), WatchEnd> {
        while !bytes.is_empty() {
            let mut rest = bytes;
            // Cannot fail on a slice, and is the fastest byte search in std.
            let n_bytes = rest.skip_until(b'\n').unwrap_or(bytes.len());
            let (piece, is_complete) = match bytes[..n_bytes].strip_suffix(b"\n") {
                Some(piece) => (piece, true),
                None => (bytes, false),
            };
            bytes = rest;
            if self.partial.len() + piece.len() > LINE_BYTES_MAX {
                return Err(WatchEnd::Undecodable(format!(
                    "it is longer than {LINE_BYTES_MAX} bytes"
                )));
            }
            if is_complete && self.partial.is_empty() {
                if !piece.trim_ascii().is_empty() {
                    on_line(piece)?;
                }
            } else {
                self.partial.extend_from_slice(piece);
                if is_complete {
                    on_line(&self.partial)?;
                    self.partial.clear();
                    self.partial.shrink_to(LINE_BYTES_KEPT);
                }
            }
        }
        Ok(())
    }

    fn end(&self) -> WatchEnd {
        if self.partial.is_empty() {
            WatchEnd::Clean
        } else {
            WatchEnd::Cut("it ended in the middle of a line".to_owned())
        }
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
