//! Owns the one state that decisions are made from, and the verbs to drive it: `handle` what
//! happened, `turn` once, take actions and events, sleep until `next_deadline`. The rules for
//! pods, answers, turns and the stop stand in files of their own beside this one.

mod answers;
mod commands;
mod driver_reports;
mod force_delete;
mod groups;
mod log_reads;
mod pods;
mod retained;
mod startup;
mod stop;
mod termination;
mod timers;
mod turn;

use std::collections::{BTreeSet, VecDeque};

use self::force_delete::TerminatingPods;
pub use self::log_reads::LOG_READS_IN_FLIGHT_MAX;
use self::log_reads::LogReads;
use self::stop::Stop;
use self::timers::Timers;
use crate::core::model::action::{Action, RunVerdict};
use crate::core::model::event::{Event, Subject};
use crate::core::model::ids::{ExecutorId, GroupName, Uid};
use crate::core::model::input::{Input, Watermark};
use crate::core::model::rng::Rng;
use crate::core::model::status::{ExecutorStatus, GroupStatus, Status};
use crate::core::model::time::Millis;
use crate::core::policy::budgets::Budgets;
use crate::core::policy::nodes::Nodes;
use crate::core::policy::settings::{GroupSpec, Policy};
use crate::core::policy::window::Window;
use crate::core::state::driver_reports::DriverReports;
use crate::core::state::executors::{Executors, Group};
use crate::core::state::id_allocator::IdAllocator;
use crate::core::state::id_set::IdSet;
use crate::core::state::ledger::{Mutations, UnresolvedCreates};
use crate::core::state::snapshot::Snapshot;

/// Who this run is, as far as decisions care.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    /// A pod's name is this and its id.
    pub pod_prefix: String,
    /// The uid of the driver's pod, which owns the executors; none outside a cluster.
    pub owner: Option<Uid>,
    /// The highest id that an earlier run of this instance may have given, as the server kept it.
    pub id_high_water: u64,
    /// The server keeps the high water for this run.
    pub is_id_high_water_kept: bool,
    /// When this process's time began, in milliseconds since 1970: pods tell wall time.
    pub start_unix_ms: u64,
    /// The instance is held; false: not before `Input::Lease` says so.
    pub is_lease_held: bool,
    /// Creates may begin; false: not before `Input::DriverReady`.
    pub is_driver_ready: bool,
}

/// The owner of snapshot, ledger and plan.
#[derive(Debug)]
pub struct Reconciler {
    identity: InstanceIdentity,
    policy: Policy,
    snapshot: Snapshot,
    executors: Executors,
    ids: IdAllocator,
    /// Ids whose pod is gone, or that never can have one any more.
    retired: IdSet,
    mutations: Mutations,
    unresolved_creates: UnresolvedCreates,
    driver_reports: DriverReports,
    stuck: TerminatingPods,
    logs: LogReads,
    window: Window,
    budgets: Budgets,
    nodes: Nodes,
    /// Failed pods kept as evidence, oldest first.
    retained: VecDeque<ExecutorId>,
    /// Creates whose next request waits for room only.
    due_creates: BTreeSet<ExecutorId>,
    timers: Timers,
    /// Starts whose time is up, to be judged by the next word from the server.
    overdue: BTreeSet<ExecutorId>,
    /// When the watch or a LIST last told anything.
    server_update_at: Option<Millis>,
    /// Something was told since `overdue` was last judged.
    has_server_update: bool,
    /// When it was asked to tell, for starts whose time was up.
    server_update_asked_at: Option<Millis>,
    had_first_list: bool,
    hold_until: Option<Millis>,
    is_lease_held: bool,
    is_driver_ready: bool,
    stop: Option<Stop>,
    has_told_stopping: bool,
    verdict: Option<RunVerdict>,
    rng: Rng,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    wait_until: Option<Millis>,
}

impl Reconciler {
    /// A reconciler that knows nothing of the server yet.
    #[must_use]
    pub fn new(
        identity: InstanceIdentity,
        policy: Policy,
        groups: Vec<GroupSpec>,
        seed: u64,
        now: Millis,
    ) -> Self {
        let mut reconciler = Self {
            ids: IdAllocator::new(identity.id_high_water, identity.is_id_high_water_kept),
            window: Window::new(policy.in_flight_max),
            budgets: Budgets::new(&policy),
            nodes: Nodes::new(policy.bad_nodes),
            is_lease_held: identity.is_lease_held,
            is_driver_ready: identity.is_driver_ready,
            identity,
            policy,
            snapshot: Snapshot::default(),
            executors: Executors::default(),
            retired: IdSet::default(),
            mutations: Mutations::default(),
            unresolved_creates: UnresolvedCreates::default(),
            driver_reports: DriverReports::default(),
            stuck: TerminatingPods::default(),
            logs: LogReads::default(),
            retained: VecDeque::new(),
            due_creates: BTreeSet::new(),
            timers: Timers::default(),
            overdue: BTreeSet::new(),
            server_update_at: None,
            has_server_update: false,
            server_update_asked_at: None,
            had_first_list: false,
            hold_until: None,
            stop: None,
            has_told_stopping: false,
            verdict: None,
            rng: Rng::new(seed),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            wait_until: None,
        };
        reconciler.events.push_back(Event::Started);
        for spec in groups {
            reconciler.executors.groups.insert(spec.name.clone(), Group::new(spec, true));
        }
        reconciler.note_targets(now);
        reconciler
    }

    /// Takes in what happened. Decides nothing yet.
    pub fn handle(&mut self, input: Input, now: Millis) {
        match input {
            Input::Created { id, asked, answer } => self.on_created(id, asked, answer, now),
            Input::Deleted { uid, answer } => self.on_deleted(&uid, answer, now),
            Input::DeletedAll { answer } => self.on_deleted_all(answer, now),
            Input::DriverReady => self.is_driver_ready = true,
            Input::Got { id, asked, answer } => self.on_got(id, asked, answer, now),
            Input::GotNode { name, answer } => self.on_node(&name, answer),
            Input::IdsReserved { up_to } => self.ids.on_reserved(up_to),
            Input::Lease { held, high_water } => {
                self.is_lease_held = held;
                self.ids.on_lease(high_water);
            }
            Input::List(list) => {
                self.on_list(list, now);
                self.note_server_update(now);
            }
            Input::ListRefused { refusal } => self.on_stop_list_refused(&refusal, now),
            Input::LogRead { uid, answer } => self.on_log_read(&uid, answer),
            Input::Patched { uid, answer } => self.on_patched(&uid, answer, now),
            Input::Watch { epoch, events } => {
                if epoch == self.mark().epoch {
                    self.note_server_update(now);
                }
                for event in events {
                    let change = self.snapshot.apply(epoch, event);
                    self.on_change(change, now);
                }
            }
            Input::WatchRestarted { cause } => {
                self.events.push_back(Event::WatchRestarted { cause });
            }
        }
    }

    /// Decides once, from all that was taken in.
    pub fn turn(&mut self, now: Millis) {
        self.fire_timers(now);
        self.judge_overdue(now);
        self.unresolved_creates.forget_past(now);
        self.wait_until =
            if self.stop.is_some() { self.turn_stop(now) } else { self.turn_run(now) };
        self.send_log_reads(now);
        self.send_mutations(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The next thing to tell.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The decision that ends the run, once.
    pub fn poll_verdict(&mut self) -> Option<RunVerdict> {
        self.verdict.take()
    }

    /// When the next turn is due even if nothing happens.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        [self.timers.next_at(), self.wait_until].into_iter().flatten().min()
    }

    /// What has been applied: to be noted before a LIST is sent.
    #[must_use]
    pub fn mark(&self) -> Watermark {
        self.snapshot.mark()
    }

    /// True once the first LIST was applied.
    #[must_use]
    pub fn had_first_list(&self) -> bool {
        self.had_first_list
    }

    /// Read access for invariant checks and status.
    #[must_use]
    pub fn executors(&self) -> &Executors {
        &self.executors
    }

    /// Read access for invariant checks and status.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The groups in numbers; costs nothing per executor.
    #[must_use]
    pub fn group_statuses(&self) -> Vec<GroupStatus> {
        let groups = self.executors.groups.iter();
        let status = |(name, group)| GroupStatus {
            message: self.waiting_message(group),
            ..group_status(name, group)
        };
        groups.map(status).collect()
    }

    /// The picture of the run.
    #[must_use]
    pub fn status(&self) -> Status {
        let executors = self.executors.iter().map(|(id, executor)| {
            let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
            ExecutorStatus {
                id,
                group: executor.group.clone(),
                slot: executor.slot,
                pod: self.pod_name(id),
                uid: executor.uid.clone(),
                state: executor.state,
                node: pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned),
                ip: pod.and_then(|pod| pod.ip),
                since: executor.since,
            }
        });
        Status {
            groups: self.group_statuses(),
            executors: executors.collect(),
            avoided_nodes: self.nodes.avoided().to_vec(),
        }
    }

    /// Sets a group's target, within its bounds. The target in force; none: no such group.
    pub fn set_target(&mut self, name: &GroupName, target: u32, now: Millis) -> Option<u32> {
        let group = self.executors.groups.get_mut(name).filter(|group| !group.is_removed)?;
        group.is_target_set = true;
        self.change_target(name, target, now)
    }

    /// The same for a change that follows from something else: what was adopted is held on to.
    fn change_target(&mut self, name: &GroupName, target: u32, now: Millis) -> Option<u32> {
        let group = self.executors.groups.get_mut(name).filter(|group| !group.is_removed)?;
        let spec = &mut group.spec;
        let target = target.max(spec.min).min(spec.max.unwrap_or(u32::MAX));
        if spec.target != target {
            spec.target = target;
            self.events.push_back(Event::TargetChanged { group: name.clone(), target });
            self.note_targets(now);
        }
        Some(target)
    }

    /// Nothing is created from here on: the end is near.
    pub fn hold_creates(&mut self) {
        self.is_driver_ready = false;
        self.tell_stopping();
    }

    fn tell_stopping(&mut self) {
        if !self.has_told_stopping {
            self.has_told_stopping = true;
            self.events.push_back(Event::Stopping);
        }
    }

    fn note_targets(&mut self, now: Millis) {
        let total = self.executors.groups.values().map(|group| u64::from(group.spec.target)).sum();
        self.budgets.on_target(total, now);
    }

    fn pod_name(&self, id: ExecutorId) -> String {
        format!("{}{id}", self.identity.pod_prefix)
    }

    fn subject(&self, id: ExecutorId) -> Option<Subject> {
        let executor = self.executors.get(id)?;
        let uid = executor.uid.clone();
        Some(Subject { group: executor.group.clone(), id, uid, pod: self.pod_name(id) })
    }

    /// Brings an executor's state in line with its pod.
    fn refresh_state(&mut self, id: ExecutorId, now: Millis) {
        let Some(executor) = self.executors.get(id) else { return };
        let pod = executor.uid.as_ref().and_then(|uid| self.snapshot.get(uid));
        self.executors.refresh_state(id, pod, now);
    }

    /// The create of this executor is settled. `is_acknowledged`: by the answer to its last POST.
    fn close_entry(&mut self, id: ExecutorId, is_acknowledged: bool) {
        self.due_creates.remove(&id);
        if let Some(create) = self.executors.get_mut(id).and_then(|e| e.create.take()) {
            self.unresolved_creates.note(id, &create, is_acknowledged);
        }
    }

    /// Takes an executor out for good: its id is spent.
    fn drop_executor(&mut self, id: ExecutorId) {
        self.close_entry(id, false);
        let Some(executor) = self.executors.remove(id) else { return };
        self.retired.insert(id);
        self.driver_reports.forget(id);
        self.retained.retain(|kept| *kept != id);
        if let Some(group) = self.executors.groups.get_mut(&executor.group) {
            group.throttle.on_probe_void(id);
            if group.is_over() {
                self.executors.groups.remove(&executor.group);
            }
        }
    }

    /// History went back: what was known by version is void, and the watch has to begin anew.
    fn roll_back(&mut self) {
        self.snapshot.roll_back();
        self.mutations.roll_back();
        self.actions.push_back(Action::Relist);
        if let Some(up_to) = self.ids.reserved() {
            // The server may have forgotten it.
            self.actions.push_back(Action::ReserveIds { up_to });
        }
        self.events.push_back(Event::WatchRestarted { cause: "history went back".to_owned() });
    }
}

fn group_status(name: &GroupName, group: &Group) -> GroupStatus {
    use crate::core::model::status::State;
    GroupStatus {
        group: name.clone(),
        target: group.spec.target,
        min: group.spec.min,
        max: group.spec.max,
        requested: group.counts.of(State::Requested),
        pending: group.counts.of(State::Pending),
        running: group.counts.of(State::Running),
        draining: group.counts.of(State::Draining),
        terminating: group.counts.of(State::Terminating),
        failed: group.counts.of(State::Failed),
        waiting: group.waiting.map(|(waiting, _)| waiting),
        until: group.waiting.and_then(|(_, until)| until),
        message: None,
    }
}
