//! Owns the text of a group's pods, finished but for the ids of each. What it says is `wire/`'s; the
//! core hands it on with a create and never looks into it.

use std::fmt;
use std::sync::Arc;

use crate::core::model::ids::ExecutorId;

/// The JSON of a pod with gaps where its ids go.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PodText {
    parts: Vec<Part>,
    /// The same for a pod that keeps away from nodes; empty where that is no matter.
    avoiding: Vec<Part>,
    /// The deciding container's limit and request, by step; the first is the template's own.
    memory: Vec<(String, String)>,
    pod_name_prefix: String,
}

/// How this executor's pod differs from what its template says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// The nodes that it keeps away from.
    pub avoid: Arc<Vec<String>>,
    /// The step of its group's memory; 0: the template's own.
    pub memory_step: u32,
}

/// A stretch of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// One requirement for each node to keep away from.
    Avoid,
    ExecutorId,
    /// The deciding container's limit.
    MemoryLimit,
    MemoryRequest,
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
        Self { parts, pod_name_prefix, ..Self::default() }
    }

    /// With another text for a pod that keeps away from nodes.
    #[must_use]
    pub fn avoiding(self, avoiding: Vec<Part>) -> Self {
        Self { avoiding, ..self }
    }

    /// With limits and requests of the deciding container's memory, by step.
    #[must_use]
    pub fn growing(self, memory: Vec<(String, String)>) -> Self {
        Self { memory, ..self }
    }

    /// What memory grows to, step by step, above the template's own; empty where it does not.
    #[must_use]
    pub fn memory_steps(&self) -> Vec<String> {
        self.memory.iter().skip(1).map(|(limit, _)| limit.clone()).collect()
    }

    /// Limit and request of a step; the last one where there are fewer.
    fn memory_at(&self, step: u32) -> (&str, &str) {
        let step = (step as usize).min(self.memory.len().saturating_sub(1));
        self.memory.get(step).map_or(("", ""), |(limit, request)| (limit, request))
    }

    /// The pod of executor `id` in `slot`.
    #[must_use]
    pub fn render(&self, id: ExecutorId, slot: u32, shape: &Shape) -> Vec<u8> {
        let id = id.to_string();
        let slot = slot.to_string();
        let is_plain = shape.avoid.is_empty() || self.avoiding.is_empty();
        let parts = if is_plain { &self.parts } else { &self.avoiding };
        let avoid = requirements(&shape.avoid);
        let (limit, request) = self.memory_at(shape.memory_step);
        // Digits, labels and amounts need no escapes in JSON.
        let pieces = || {
            parts.iter().flat_map(|part| match part {
                Part::Avoid => [avoid.as_str(), ""],
                Part::ExecutorId => [id.as_str(), ""],
                Part::MemoryLimit => [limit, ""],
                Part::MemoryRequest => [request, ""],
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

/// What goes into a gap: the server takes one name a requirement.
fn requirements(nodes: &[String]) -> String {
    let mut out = String::new();
    // A node's name is a DNS name; nothing else is put into JSON unescaped.
    let is_sound =
        |name: &&String| name.bytes().all(|c| c.is_ascii_alphanumeric() || b".-".contains(&c));
    for node in nodes.iter().filter(is_sound) {
        let comma = if out.is_empty() { "" } else { "," };
        out +=
            &format!(r#"{comma}{{"key":"metadata.name","operator":"NotIn","values":["{node}"]}}"#);
    }
    out
}
