//! The reconciler: the one owner of the state from which decisions are made. It does no I/O and reads
//! no clock: its caller does both. Its methods are of four kinds, and this is the order of calls.
//!
//! 1. *Handle*: tell it what happened, any number of times. `handle` takes what comes from the cluster
//!    and the threads, `command` takes a call and returns its reply. `set_target`, `stop_creates`,
//!    `begin_stop`, `hurry_stop`, `abandon_stop` and `set_start_time` are what the caller itself wants. These
//!    change the state; what follows from it is decided in the turn.
//! 2. *Turn*: call `turn` once after them, and whenever `next_deadline` has come. It fires the timers,
//!    plans, and decides.
//! 3. *Poll*: after each turn call `poll_event` until it returns none, then `poll_action` until it
//!    returns none, then `poll_verdict`. In this order: an event is public before the request that
//!    follows from it, so that after a kill in between the next run tells it again. Note `watermark`
//!    before a LIST or create is sent. Then wait for an input until `next_deadline`.
//! 4. *Getters*: they change nothing that a decision sees, and may be called at any time: `status`,
//!    `group_statuses`, `brief_group_statuses`, `budgets`, `outage`, `server_heard_at`,
//!    `n_avoided_nodes`, `had_first_list`, `recorded`, `has_credentials`, `executors`, `snapshot`, `stop_result`,
//!    `remaining`.
//!
//! It ends with `begin_stop`: turn and poll until `stop_result` returns the result.

mod adoption;
mod commands;
mod completions;
mod create_answers;
mod create_retries;
mod dismissals;
mod driver_reports;
mod gangs;
mod group_restarts;
mod groups;
mod losses;
mod memory;
mod mutations;
mod pods;
mod protection;
mod reads;
mod record;
mod retained;
mod server;
mod starts;
mod status;
mod stop;
mod tasks;
mod termination;
mod turn;

use crate::model::action::{Action, RunVerdict};
use crate::model::event::{
    ClusterEvent, Event, ExecutorEvent, GroupEvent, RestartKind, RunEvent, Subject,
};
use crate::model::ids::{ExecutorId, GroupName, Uid};
use crate::model::input::{Input, Watermark};
use crate::model::pod::Pod;
use crate::model::settings::{GroupSpec, Policy};
use crate::model::takeover::Takeover;
use crate::state::avoided_nodes::Nodes;
use crate::state::busy_protection::BusyProtection;
use crate::state::driver_reports::DriverReports;
use crate::state::due::Due;
use crate::state::errands::{Errands, MutationKind};
use crate::state::executors::{Executor, Executors, Group};
use crate::state::gates::Gates;
use crate::state::ledger::Create;
pub use crate::state::ours::InstanceIdentity;
use crate::state::ours::Ours;
use crate::state::outbox::Outbox;
use crate::state::run_end::RunEnd;
use crate::state::server::Server;
use crate::state::snapshot::Snapshot;
use crate::state::unrecorded::Unrecorded;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The owner of what is remembered: thirteen parts, each of which owns its state and says at its head what is always true
/// of it. A module of the reconciler is the rule of one occasion, and calls them.
#[derive(Clone, Debug)]
pub struct Reconciler {
    policy: Policy,
    /// For the jitter of delays.
    rng: Rng,
    /// What the cluster shows.
    snapshot: Snapshot,
    /// What is wanted, and what has come of it.
    executors: Executors,
    /// Whose a pod is, and which ids were given.
    ours: Ours,
    /// What was asked of the server beside creates.
    errands: Errands,
    /// What the record of the run lacks.
    unrecorded: Unrecorded,
    driver_reports: DriverReports,
    busy_protection: BusyProtection,
    /// What holds all creates back.
    gates: Gates,
    /// What the server bears.
    server: Server,
    /// Which nodes new executors avoid.
    nodes: Nodes,
    /// What comes without an input.
    due: Due,
    /// Whether, why and how the run ends.
    end: RunEnd,
    /// What is to be told and carried out.
    out: Outbox,
}

impl Reconciler {
    /// A reconciler before the first LIST.
    pub fn new(
        identity: InstanceIdentity,
        policy: Policy,
        groups: Vec<GroupSpec>,
        seed: u64,
        now: Millis,
    ) -> Self {
        let mut reconciler = Self {
            server: Server::new(policy.in_flight_max),
            end: RunEnd::new(&policy),
            nodes: Nodes::new(policy.bad_nodes),
            gates: Gates::new(&policy.credentials),
            ours: Ours::new(identity),
            policy,
            snapshot: Snapshot::default(),
            executors: Executors::default(),
            errands: Errands::default(),
            driver_reports: DriverReports::default(),
            busy_protection: BusyProtection::default(),
            unrecorded: Unrecorded::default(),
            due: Due::default(),
            rng: Rng::new(seed),
            out: Outbox::default(),
        };
        reconciler.out.tell(Event::Run(RunEvent::Started));
        for spec in groups {
            let name = spec.name.clone();
            let of_file = Some(spec.target);
            reconciler.executors.group_or_insert(name, || Group::new(spec, true)).of_file = of_file;
        }
        reconciler.note_wanted(now);
        reconciler
    }

    /// This process goes on with the run of another, for which it stood by.
    pub fn note_takeover(&mut self, from: Takeover) {
        self.out.tell(Event::Run(RunEvent::TookOver(from)));
    }

    /// The wall clock may have been set: the time of `Millis::ZERO` in milliseconds since 1970.
    pub fn set_start_time(&mut self, start_unix_ms: u64) {
        self.ours.set_start_time(start_unix_ms);
    }

    /// Applies an input. Decisions follow in `turn`.
    pub fn handle(&mut self, input: Input, now: Millis) {
        let epoch_before = self.watermark().epoch;
        match input {
            Input::ClaimsGivenUp { n } => self.on_claims_given_up(n, now),
            Input::Created { id, watermark, answer } => self.on_created(id, watermark, answer, now),
            Input::Credentials(renewal) => self.on_credentials(renewal, now),
            Input::ScaleRead { group, outcome } => self.on_scale_read(&group, outcome, now),
            Input::Deleted { uid, answer } => {
                self.note_answer(&answer, None, now);
                self.on_deleted(&uid, answer, now);
            }
            Input::DriverPort { problem } => self.gates.set_driver_port_problem(problem),
            Input::DriverReady => self.gates.on_driver_ready(),
            Input::Got { id, watermark, answer } => self.on_got(id, watermark, answer, now),
            Input::GotNode { name, answer } => self.on_node_answer(&name, answer),
            Input::IdsNotReserved { up_to } => self.ours.on_dropped(up_to, now),
            Input::IdsReserved { up_to } => self.ours.on_reserved(up_to),
            Input::Lease { held, high_water } => {
                self.gates.set_lease(held);
                self.ours.on_lease(high_water);
                self.judge_foreign_again(now);
            }
            Input::List(list) => self.on_list(list, now),
            Input::ListRefused { refusal } => {
                self.on_read_refused(&refusal, now);
                self.on_stop_list_refused(&refusal, now);
            }
            // By a command, so it is no sign of life of the driver.
            Input::IdleRead { executors, valid_ms } => {
                self.driver_reports.on_idle(executors, valid_ms, now);
            }
            Input::LogRead { uid, answer } => self.on_log_read(&uid, answer),
            Input::NoAnswer { since, message } => self.on_no_answer(since, message),
            Input::OutputKept { uid } => self.on_output_kept(&uid),
            Input::Patched { uid, answer } => {
                self.note_answer(&answer, None, now);
                self.on_patched(&uid, answer, now);
            }
            Input::PodRead { id, watermark, answer } => {
                self.note_answer(&answer, None, now);
                self.on_pod_read(id, watermark, answer, now);
            }
            Input::Protected { id, uid, answer } => self.on_protected(id, &uid, answer, now),
            Input::Recorded { answer } => self.on_recorded(answer, now),
            Input::Resized { id, uid, answer } => {
                self.note_answer(&answer, None, now);
                self.on_resized(id, &uid, answer, now);
            }
            Input::OwnNodeLost { node } => self.snapshot.lose_own_node(node),
            Input::ReadRefused { refusal } => self.on_read_refused(&refusal, now),
            Input::WatchOpened => self.on_read(now),
            Input::Watch { epoch, events } => {
                self.on_read(now);
                // Otherwise the events are from before a resourceVersion rollback.
                if epoch == epoch_before {
                    for event in events {
                        let change = self.snapshot.apply(event);
                        self.on_change(change, now);
                    }
                }
            }
            Input::WatchRestarted { kind, cause } => {
                self.out.tell(Event::Cluster(ClusterEvent::WatchRestarted { kind, cause }));
            }
        }
        if self.watermark().epoch != epoch_before {
            self.on_rollback();
        }
    }

    /// Sets a group's target, limited to its bounds. Returns the target in force; none if the group
    /// does not exist.
    pub fn set_target(&mut self, name: &GroupName, target: u32, now: Millis) -> Option<u32> {
        let group = self.executors.group_mut(name).filter(|group| !group.is_removed)?;
        group.is_target_set = true;
        self.change_target(name, target, now)
    }

    /// Creates no more executors, because the run is about to end.
    pub fn stop_creates(&mut self) {
        if self.gates.stop_creates() {
            self.out.tell(Event::Run(RunEvent::Stopping));
        }
    }

    /// Decides once, from all inputs so far.
    pub fn turn(&mut self, now: Millis) {
        self.fire_timers(now);
        self.judge_overdue(now);
        self.ours.expire_creates(now);
        self.trim_records(now);
        let until = if self.end.is_stopping() { self.turn_stop(now) } else { self.turn_run(now) };
        self.due.set_turn(until);
        self.judge_end(now);
        self.send_reads(now);
        self.send_mutations(now);
        self.send_facts(now);
        if cfg!(debug_assertions) {
            self.check(now);
        }
    }

    /// What each part says is always true of it, and what is true of two.
    fn check(&self, now: Millis) {
        self.snapshot.check();
        self.executors.check();
        self.ours.check();
        self.errands.check();
        self.unrecorded.check();
        self.driver_reports.check();
        self.busy_protection.check();
        self.gates.check();
        self.server.window.check();
        self.nodes.check();
        self.due.check(now);
        self.end.check();
        self.out.check();
        let groups = self.executors.groups().values();
        let n_in_flight: u32 = groups.map(|group| group.tasks.throttles.n_in_flight()).sum();
        debug_assert_eq!(n_in_flight, self.server.window.in_flight(), "creates in flight");
        debug_assert!(!self.end.is_stopping() || self.gates.are_creates_stopped());
    }

    /// The next action to carry out.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.out.next_action()
    }

    /// The next event to report.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.out.next_event()
    }

    /// The decision that ends the run. Returned once.
    pub fn poll_verdict(&mut self) -> Option<RunVerdict> {
        self.end.take_verdict()
    }

    /// When the next turn is due without an input.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.due.next_at()
    }

    /// The watermark, to be noted when a LIST is sent.
    pub fn watermark(&self) -> Watermark {
        self.snapshot.watermark()
    }

    pub fn had_first_list(&self) -> bool {
        self.gates.first_list_at().is_some()
    }

    /// For status and invariant checks.
    pub fn executors(&self) -> &Executors {
        &self.executors
    }

    /// For status and invariant checks.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The same, but adopted surplus stays protected: the target was not set explicitly.
    fn change_target(&mut self, name: &GroupName, target: u32, now: Millis) -> Option<u32> {
        let group = self.executors.group_mut(name).filter(|group| !group.is_removed)?;
        let before = group.target();
        let spec = &mut group.spec;
        spec.target = target.max(spec.min).min(spec.max.unwrap_or(u32::MAX));
        let target = group.target();
        if target != before {
            group.on_target_raised(target.saturating_sub(before));
            self.note_target(name);
            self.on_target_changed(name.clone(), target, now);
        }
        Some(target)
    }

    /// Tells something of an executor, which must be in the table.
    fn tell(&mut self, id: ExecutorId, event: ExecutorEvent) {
        match self.subject(id) {
            Some(subject) => self.out.tell(Event::Executor(subject, event)),
            None => self.executors.note_missing(id),
        }
    }

    fn on_target_changed(&mut self, group: GroupName, target: u32, now: Millis) {
        if let Some(group) = self.executors.group_mut(&group).filter(|_| target == 0) {
            group.starts_fail_since = None;
        }
        self.out.tell(Event::Group(group, GroupEvent::TargetChanged { target }));
        self.note_wanted(now);
    }

    fn note_wanted(&mut self, now: Millis) {
        let total = self.executors.groups().values().map(|group| u64::from(group.wanted())).sum();
        self.end.budgets.on_wanted(total, now);
    }

    fn subject(&self, id: ExecutorId) -> Option<Subject> {
        let executor = self.executors.get(id)?;
        let uid = executor.uid.clone();
        Some(Subject { group: executor.group.clone(), id, uid, pod: self.ours.pod_name(id) })
    }

    /// Changes an executor, which must be in the table.
    fn change<T: Default>(
        &mut self,
        id: ExecutorId,
        now: Millis,
        change: impl FnOnce(&mut Executor) -> T,
    ) -> T {
        self.executors.change(id, &self.snapshot, now, change)
    }

    /// Changes the create of an executor that has one.
    fn change_create(&mut self, id: ExecutorId, now: Millis, change: impl FnOnce(&mut Create)) {
        self.change(id, now, |executor| executor.create.as_deref_mut().map(change));
    }

    fn create_of(&self, id: ExecutorId) -> Option<&Create> {
        self.executors.get(id)?.create.as_deref()
    }

    fn seen(&self, id: ExecutorId) -> Option<(&Executor, &Pod)> {
        let executor = self.executors.get(id)?;
        Some((executor, executor.pod(&self.snapshot)?))
    }

    /// Requests a mutation of a pod, if the snapshot has it.
    fn request(&mut self, uid: &Uid, kind: MutationKind) {
        if let Some(pod) = self.snapshot.get(uid) {
            self.errands.mutations.request(uid, &pod.name, kind);
        }
    }

    /// Closes the create of this executor. `is_acknowledged`: by the answer to its last POST.
    fn close_create_entry(&mut self, id: ExecutorId, is_acknowledged: bool) {
        self.resolve_retry(id);
        if let Some(create) = self.executors.take_create(id) {
            self.ours.on_create_closed(id, &create, is_acknowledged);
        }
    }

    /// Removes an executor and retires its id.
    fn drop_executor(&mut self, id: ExecutorId) {
        self.close_create_entry(id, false);
        self.release_task(id);
        self.executors.discard_probe(id);
        let group = self.executors.get(id).map(|executor| executor.group.clone());
        if self.executors.remove(id) {
            self.ours.retire(id);
            self.driver_reports.forget(id);
        }
        group.iter().for_each(|name| self.forget_dismissed_one(id, name));
    }

    /// After a resourceVersion rollback the watcher must LIST again, and what was written may have
    /// been undone.
    fn on_rollback(&mut self) {
        self.errands.mutations.on_rollback();
        self.note_everything();
        if let Some(stop) = self.end.stop_mut() {
            stop.forget_left_queues();
        }
        self.out.act(Action::Relist);
        if let Some(up_to) = self.ours.reserved() {
            self.out.act(Action::ReserveIds { up_to });
        }
        let cause = "resourceVersion rollback".to_owned();
        self.out.tell(Event::Cluster(ClusterEvent::WatchRestarted {
            kind: RestartKind::Rollback,
            cause,
        }));
    }
}
