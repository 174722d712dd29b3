//! One group: its settings, what it wants, and what its executors come to. It shares its executors, and their memory,
//! between its own target and its tasks.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::model::fact::EndedWork;
use crate::model::ids::{ExecutorId, Uid};
use crate::model::pod::Pod;
use crate::model::pod_text::PreferredNode;
use crate::model::settings::{CallFields, GroupSpec, Restart, Together};
use crate::model::status::State;
use crate::model::task::Shape;
use crate::state::attempts::Attempts;
use crate::state::counts::Counts;
use crate::state::create_retries::Retries;
use crate::state::ended_indexes::Folded;
use crate::state::executor::Executor;
use crate::state::gang::GangState;
use crate::state::heartbeat_losses::HeartbeatLosses;
use crate::state::life::Start;
use crate::state::memory_scaling::MemoryScaling;
use crate::state::plan_wait::PlanWait;
use crate::state::records::Records;
use crate::state::slot_waits::SlotWaits;
use crate::state::slots::Slots;
use crate::state::start_problems::StartProblems;
use crate::state::tasks::Tasks;
use crate::state::victim_order::VictimOrder;
use crate::state::work::Work;
use posse_base::time::Millis;

/// One group: its settings, its executors, and what the past says about them.
#[derive(Clone, Debug, Default)]
pub struct Group {
    pub spec: GroupSpec,
    /// The target that the configuration has, if it has the group.
    pub(crate) of_file: Option<u32>,
    /// The target was set in this run, so surplus executors may be ended.
    pub(crate) is_target_set: bool,
    /// The group comes from the file or was created in this run; false: it is known only from
    /// adopted pods.
    pub(crate) is_known: bool,
    /// The group was deleted: it is removed once its executors are gone.
    pub(crate) is_removed: bool,
    /// What calls have said about it.
    pub(crate) calls: CallFields,
    /// Since when its executors do not start: the first one that failed to had its node then. None: none has failed since
    /// the pod changed, or since somebody wanted one again.
    pub(crate) starts_fail_since: Option<Millis>,
    /// An executor has run, so executors can start.
    pub(crate) has_run: bool,
    /// How many of its creates the server accepted, and how many pods were adopted.
    pub(crate) n_accepted: u64,
    /// The executors of its target. Those of tasks are counted with them.
    pub own: Counts,
    pub tasks: Tasks,
    /// The running executors whose pods are ready.
    pub n_ready: u32,
    pub members: BTreeSet<ExecutorId>,
    /// The executors that may be ended when the target falls, in this order.
    pub order: BTreeSet<VictimOrder>,
    /// The number of ending members that nothing replaces, because the target fell.
    n_surplus: u32,
    /// Losses reported since the start of the run.
    pub(crate) n_lost: u64,
    /// Failed creates that are sent again.
    pub retries: Retries,
    pub slots: Slots,
    pub slot_waits: SlotWaits,
    pub(crate) attempts: Attempts,
    pub gang: GangState,
    /// The nodes for its next executors.
    pub preferred: Arc<Vec<PreferredNode>>,
    pub problems: StartProblems,
    pub(crate) memory_scaling: MemoryScaling,
    pub work: Work,
    /// With `completions`: the indexes whose work has ended.
    pub(crate) ended: EndedWork,
    /// Without it: executors of which a record has said that they have lowered the target.
    pub(crate) recorded_ends: BTreeSet<ExecutorId>,
    /// A call had deleted the group of the file before another one made this.
    pub(crate) is_anew: bool,
    /// The pods that stay as the records of work that has ended.
    pub(crate) records: Records,
    /// The work that they tell of, and whose own pods give way.
    pub(crate) folded: Folded,
    /// The pods that are deleted as soon as a record tells of their work, and how many of them the label tells of
    /// that is being written to this pod.
    pub(crate) folding: Vec<Uid>,
    pub(crate) folding_sent: Option<(Uid, usize)>,
    pub(crate) heartbeat_losses: HeartbeatLosses,
    pub wait: PlanWait,
    /// Why the command that sets the target failed.
    pub(crate) scale_error: Option<String>,
    /// How many executors it had when a quota last refused one.
    quota_room: Option<u32>,
    /// The server's message for the refusal or failure that slows the group down.
    pub(crate) refusal: Option<String>,
}

impl Group {
    /// A group without executors.
    pub fn new(spec: GroupSpec, is_known: bool) -> Self {
        Self { spec, is_known, ..Self::default() }
    }

    /// A call has said this about the group, and is in force. The target has a fact of its own.
    pub(crate) fn note_call(&mut self, call: CallFields) {
        // These belong to the template of the same call.
        let is_of_template =
            |field: &str| matches!(field, "beside" | "container" | "volumes_per_slot");
        self.calls.retain(|field, _| !is_of_template(field));
        self.calls.extend(call);
        let has_completions = self.spec.completions.is_some();
        self.calls.retain(|field, _| {
            &**field != "target" && (has_completions || &**field != "completions")
        });
    }

    /// The target in force; 0 for a deleted group, and never more than the work that is left.
    pub fn target(&self) -> u32 {
        if self.is_removed { 0 } else { self.spec.target.min(self.n_left()) }
    }

    /// How many executors a quota had room for when it last refused one; `u32::MAX`: it has refused none beyond those that
    /// are there.
    pub fn n_in_quota(&self) -> u32 {
        self.quota_room.filter(|&room| self.n_pods() <= room).unwrap_or(u32::MAX)
    }

    fn n_pods(&self) -> u32 {
        self.counts().of(State::Pending) + self.counts().of(State::Running)
    }

    /// A quota has refused one more.
    pub fn on_quota(&mut self) {
        self.quota_room = Some(self.n_pods());
    }

    /// How many executors must still end for `completions`; `u32::MAX` without it.
    pub fn n_left(&self) -> u32 {
        self.spec.completions.map_or(u32::MAX, |n| n.saturating_sub(self.work.n_ended()))
    }

    /// All of its executors.
    pub fn counts(&self) -> Counts {
        self.own.plus(&self.tasks.counts)
    }

    /// The counts in which this executor is: by what it is for, and by its shape.
    pub(super) fn counts_of(&mut self, executor: &Executor) -> [&mut Counts; 2] {
        let Tasks { counts, throttles, .. } = &mut self.tasks;
        let by_use = if executor.task.is_some() { counts } else { &mut self.own };
        [by_use, &mut throttles.of_mut(executor.shape).counts]
    }

    /// How far the start of an executor has come.
    pub(super) fn note_start(&mut self, id: ExecutorId, shape: Shape, before: Start, after: Start) {
        self.problems.on_change(id, before, after);
        self.tasks.throttles.of_mut(shape).problems.on_change(id, before, after);
    }

    /// An executor has come into this state.
    pub(super) fn note_place(
        &mut self,
        id: ExecutorId,
        shape: Shape,
        state: State,
        pod: Option<&Pod>,
        now: Millis,
    ) {
        let places = &mut self.tasks.throttles.of_mut(shape).places;
        match pod.and_then(|pod| pod.node.as_deref()).filter(|_| state == State::Running) {
            Some(node) => places.add(id, node, now),
            None => places.remove(id),
        }
    }

    /// True if the group is a gang of which too few run.
    pub fn has_incomplete_gang(&self) -> bool {
        matches!(self.spec.together, Together::Gang { .. }) && !self.gang.is_complete()
    }

    /// A create of something is slowed down.
    pub fn is_slowed_down(&self) -> bool {
        self.tasks.throttles.all().any(|throttle| throttle.backoff.cause().is_some())
    }

    /// The number of pods that must go before executors are created with `replace: gone`. The pods of
    /// the group are then never more than they were, so a full quota suffices.
    pub fn n_awaited_ends(&self) -> u32 {
        self.n_ending().saturating_sub(self.n_surplus)
    }

    /// Call it after each plan: ending members beyond the missing ones are surplus, which replacements of
    /// others must not wait for (a drain may take hours).
    pub fn note_surplus(&mut self) {
        let missing = self.wanted().saturating_sub(self.counts().capacity());
        let n_unneeded = self.n_ending().saturating_sub(missing);
        self.n_surplus = self.n_surplus.min(self.n_ending()).max(n_unneeded);
    }

    /// The target rose by `n`: as many new executors wait for surplus ones that still end.
    pub fn on_target_raised(&mut self, n: u32) {
        self.n_surplus = self.n_surplus.saturating_sub(n);
    }

    fn n_ending(&self) -> u32 {
        let counts = self.counts();
        counts.of(State::Terminating) + counts.of(State::Draining)
    }

    /// The group's `max`, if this target takes all of it. `max: 0` is a group that only holds its tasks.
    pub fn max_without_room_for_tasks(target: u32, max: Option<u32>) -> Option<u32> {
        max.filter(|&max| target > 0 && max > 0 && target >= max)
    }

    /// How many executors the group should have: its target and one for each open task that nothing holds, up to `max`.
    pub fn wanted(&self) -> u32 {
        let n_free = u32::try_from(self.tasks.n_free()).unwrap_or(u32::MAX);
        let room = self.spec.max.map_or(u32::MAX, |max| max.saturating_sub(self.target()));
        self.target().saturating_add(n_free.min(room))
    }

    /// True if some work has ended, and none is left.
    pub fn is_finished(&self) -> bool {
        self.spec.restart != Restart::Always
            && self.tasks.n_open() == 0
            && self.work.n_ended() > 0
            && (self.n_left() == 0 || self.spec.completions.is_none() && self.spec.target == 0)
            && self.counts().capacity() == 0
    }

    /// True if it has no executors, is neither configured nor targeted, and tells of no ended tasks, so it can be removed.
    pub fn is_over(&self) -> bool {
        let is_unwanted = self.is_removed || self.is_idle_remnant() && self.tasks.n_ended() == 0;
        is_unwanted && self.members.is_empty()
    }

    /// True if nobody has asked for it in this run, and there is nothing for it to do.
    pub fn is_idle_remnant(&self) -> bool {
        !self.is_known && !self.is_target_set && self.tasks.n_open() == 0
    }
}
