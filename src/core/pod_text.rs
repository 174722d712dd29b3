//! Owns the text of a group's pods, finished but for the ids of each. What it says is `wire/`'s; the
//! core hands it on with a create and never looks into it.

use std::fmt;

use crate::core::ids::ExecutorId;

/// The JSON of a pod with gaps where its ids go.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PodText {
    parts: Vec<Part>,
    pod_name_prefix: String,
}

/// A stretch of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    ExecutorId,
    PodName,
    Slot,
    Text(String),
}

impl fmt::Debug for PodText {
    /// Without the pod: its environment may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodText").finish_non_exhaustive()
    }
}

impl PodText {
    /// A pod's name is the prefix and its id.
    #[must_use]
    pub fn new(parts: Vec<Part>, pod_name_prefix: String) -> Self {
        Self { parts, pod_name_prefix }
    }

    /// The pod of executor `id` in `slot`.
    #[must_use]
    pub fn render(&self, id: ExecutorId, slot: u32) -> Vec<u8> {
        let id = id.to_string();
        let slot = slot.to_string();
        // Digits and labels need no escapes in JSON.
        let pieces = || {
            self.parts.iter().flat_map(|part| match part {
                Part::ExecutorId => [id.as_str(), ""],
                Part::PodName => [self.pod_name_prefix.as_str(), id.as_str()],
                Part::Slot => [slot.as_str(), ""],
                Part::Text(text) => [text.as_str(), ""],
            })
        };
        let mut body = Vec::with_capacity(pieces().map(str::len).sum());
        pieces().for_each(|piece| body.extend_from_slice(piece.as_bytes()));
        body
    }
}
