//! The JSON of a group's pods, with gaps for what differs between executors. `wire/` builds it; the
//! core only passes it on with a create.

use std::fmt;
use std::sync::Arc;

use crate::model::ids::ExecutorId;
use crate::model::task::TaskRun;

/// The largest object that etcd takes, in bytes (its `--max-request-bytes`, 1.5 MiB). No retry helps a larger one, and a
/// dry run does not find it, because it does not reach etcd.
pub const ETCD_BYTES_MAX: usize = 3 << 19;

/// The JSON of a pod with gaps.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct PodText {
    pub parts: Vec<Part>,
    /// The same with node affinity.
    pub affine: AffineParts,
    pub memory: MemoryGrowth,
    /// The claims that the pod mounts. They are created before the pod.
    pub claims: Vec<SlotClaim>,
    /// Where the main container has volumes: absolute, and without a slash at the end.
    pub mount_paths: Vec<String>,
    /// A pod's name is this followed by the executor's id.
    pub pod_name_prefix: String,
}

/// A claim of each slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotClaim {
    /// Its JSON with gaps.
    pub parts: Vec<Part>,
    /// It is of no use after the run, nor after the work of its slot.
    pub is_of_run: bool,
}

/// The text of a pod with node affinity. Empty: as without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AffineParts {
    /// For a pod that avoids nodes.
    pub avoiding: Vec<Part>,
    /// For a pod that prefers nodes.
    pub preferring: Vec<Part>,
    /// For a pod that does both.
    pub both: Vec<Part>,
}

/// A node on which the scheduler should place an executor, if it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredNode {
    /// A DNS name.
    pub name: String,
    /// 1 to 100.
    pub weight: u8,
}

/// How the main container's memory grows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryGrowth {
    /// The main container's name.
    pub container: String,
    /// The first step is the template's own memory. Empty: it does not grow.
    pub steps: Vec<MemoryStep>,
    /// A running executor that uses this part of its limit, in thousandths, gets more; none: only the replacement
    /// of one that was killed for its memory does.
    pub grow_at_permille: Option<u32>,
}

/// One step of the main container's memory, as the pod has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryStep {
    pub limit: String,
    /// Empty: the template has none.
    pub request: String,
    pub limit_bytes: u64,
}

/// How the pod of one executor differs from its template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOverrides {
    /// The nodes to avoid.
    pub avoid: Arc<Vec<String>>,
    /// The nodes to prefer.
    pub prefer: Arc<Vec<PreferredNode>>,
    /// The group's memory step; 0: the template's own memory.
    pub memory_step: u32,
    /// The attempt of the group (`on_loss: group`), from 1.
    pub attempt: u32,
    /// The task that the executor works on.
    pub task: Option<Box<TaskRun>>,
}

impl Default for PodOverrides {
    fn default() -> Self {
        Self {
            avoid: Arc::default(),
            prefer: Arc::default(),
            memory_step: 0,
            attempt: 1,
            task: None,
        }
    }
}

/// A text or a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// The number of the group's attempt.
    Attempt,
    /// One node affinity expression for each avoided node.
    AvoidedNodes,
    ExecutorId,
    /// The main container's memory limit.
    MemoryLimit,
    MemoryRequest,
    PodName,
    /// One term of the preferred node affinity for each preferred node.
    PreferredNodes,
    Slot,
    Text(String),
}

impl fmt::Debug for PodText {
    /// Does not print the pod: its environment may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PodText").finish_non_exhaustive()
    }
}

impl PodText {
    /// The volume's path that leaves no place for a file at `path`: it is the same, or below it.
    pub fn mount_in_place_of(&self, path: &str) -> Option<&str> {
        let is_in_place = |mount: &&String| {
            mount.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        self.mount_paths.iter().find(is_in_place).map(String::as_str)
    }

    /// How many bytes the JSON has without what fills its gaps.
    pub fn n_bytes(&self) -> usize {
        let n_bytes = |part: &Part| if let Part::Text(text) = part { text.len() } else { 0 };
        self.parts.iter().map(n_bytes).sum()
    }

    /// The memory limits above the template's own, by step; empty without memory scaling.
    pub fn memory_steps(&self) -> impl ExactSizeIterator<Item = &str> {
        self.memory.steps.iter().skip(1).map(|step| step.limit.as_str())
    }

    /// The memory of a step; that of the last step if there are fewer; none without memory scaling.
    pub fn memory_at(&self, step: u32) -> Option<&MemoryStep> {
        let last = self.memory.steps.len().checked_sub(1)?;
        self.memory.steps.get((step as usize).min(last))
    }

    /// The step of a pod that has this limit: the largest one that is not above it; 0: the template's own.
    pub fn step_of(&self, limit_bytes: u64) -> u32 {
        let larger = (0_u32..).zip(self.memory.steps.iter().skip(1));
        let n = larger.take_while(|(_, step)| step.limit_bytes <= limit_bytes).last();
        n.map_or(0, |(n, _)| n + 1)
    }

    /// The step to which the memory of a running executor should grow that has a limit of `limit_bytes` and uses
    /// `used_bytes`: the first one with enough of it free again, else the last; none if it need not or cannot grow.
    pub fn step_for(&self, used_bytes: u64, limit_bytes: u64) -> Option<(u32, &MemoryStep)> {
        let grow_at = u128::from(self.memory.grow_at_permille?);
        let is_short = |limit: u64| u128::from(used_bytes) * 1_000 >= grow_at * u128::from(limit);
        if limit_bytes == 0 || !is_short(limit_bytes) {
            return None;
        }
        let larger = (0_u32..).zip(&self.memory.steps);
        let larger = || larger.clone().filter(|(_, step)| step.limit_bytes > limit_bytes);
        larger().find(|(_, step)| !is_short(step.limit_bytes)).or_else(|| larger().last())
    }

    /// The JSON of the pod of executor `id` in `slot`.
    pub fn render(&self, id: ExecutorId, slot: u32, shape: &PodOverrides) -> Vec<u8> {
        let affine = match (shape.avoid.is_empty(), shape.prefer.is_empty()) {
            (true, true) => &self.parts,
            (false, true) => &self.affine.avoiding,
            (true, false) => &self.affine.preferring,
            (false, false) => &self.affine.both,
        };
        let parts = if affine.is_empty() { &self.parts } else { affine };
        self.fill_in(parts, id, slot, shape)
    }

    /// The JSON of the claims that this pod mounts.
    pub fn render_claims(&self, id: ExecutorId, slot: u32, shape: &PodOverrides) -> Vec<Vec<u8>> {
        self.claims.iter().map(|claim| self.fill_in(&claim.parts, id, slot, shape)).collect()
    }

    fn fill_in(&self, parts: &[Part], id: ExecutorId, slot: u32, shape: &PodOverrides) -> Vec<u8> {
        let id = id.to_string();
        let slot = slot.to_string();
        let attempt = shape.attempt.to_string();
        let avoid = affinity_expressions(&shape.avoid);
        let prefer = preferences(&shape.prefer);
        let memory = self.memory_at(shape.memory_step);
        let (limit, request) = memory.map_or(("", ""), |step| (&step.limit, &step.request));
        // Digits, labels and quantities need no escapes in JSON.
        let pieces = || {
            parts.iter().flat_map(|part| match part {
                Part::Attempt => [attempt.as_str(), ""],
                Part::AvoidedNodes => [avoid.as_str(), ""],
                Part::ExecutorId => [id.as_str(), ""],
                Part::MemoryLimit => [limit, ""],
                Part::MemoryRequest => [request, ""],
                Part::PreferredNodes => [prefer.as_str(), ""],
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

/// The node affinity expressions. A `matchFields` expression takes only one value.
fn affinity_expressions(nodes: &[String]) -> String {
    let mut out = String::new();
    // A node's name is a DNS name. Other names are left out, because they could need escapes.
    let is_dns_name =
        |name: &&String| name.bytes().all(|c| c.is_ascii_alphanumeric() || b".-".contains(&c));
    for node in nodes.iter().filter(is_dns_name) {
        let comma = if out.is_empty() { "" } else { "," };
        out +=
            &format!(r#"{comma}{{"key":"metadata.name","operator":"NotIn","values":["{node}"]}}"#);
    }
    out
}

/// The terms of the preferred node affinity. A `matchFields` expression takes only one value.
fn preferences(nodes: &[PreferredNode]) -> String {
    let terms = nodes.iter().map(|PreferredNode { name, weight }| {
        format!(
            r#"{{"weight":{weight},"preference":{{"matchFields":[{{"key":"metadata.name","operator":"In","values":["{name}"]}}]}}}}"#
        )
    });
    terms.collect::<Vec<_>>().join(",")
}
