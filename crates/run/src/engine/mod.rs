//! The reconciler thread's loop: takes messages from the inbox, lets the core decide once, sends out
//! actions and events, and controls the driver process. It blocks in one place, where it waits for messages.
//!
//! Shutdown order: no more creates; the driver, with its grace period; the executors, until a LIST
//! shows none; the inbox; the record; the writers, when their channels close; the watch and the poll; the
//! Leases; last the events and the control API, so that every event has been delivered.

mod job_control;
mod promises;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, Sender, never, select_biased};
use log::{debug, error, info, warn};

use crate::driver::pid_1::Reaper;
use crate::driver::ready::{DriverTree, Probe, ReadyProbe};
use crate::driver::{Driver, DriverEnv};
use crate::events::EventLog;
use crate::inbox::{Liveness, Message, TURN_MESSAGES_MAX};
use crate::leases::holder;
use crate::log_lines::{EventLogger, describe_verdict};
use crate::metrics::RunMetrics;
use crate::record::RecordThread;
use crate::server_threads::Threads;
use crate::signals::{Signal, Signals};
use crate::watermark::SharedWatermark;
use crate::worker::Worker;
use crate::writers::Writers;
use posse_base::clock::Clock;
use posse_base::time::Millis;
use posse_core::machines::lease::{LeaseScope, LeaseTerms, LeaseUpdate};
use posse_core::machines::lease_loss::HeldLeases;
use posse_core::machines::shutdown::{Shutdown, ShutdownOutcome, ShutdownStep};
use posse_core::machines::startup::StartStep;
use posse_core::model::action::{Action, RunVerdict};
use posse_core::model::command::{Command, Reply};
use posse_core::model::fact::Fact;
use posse_core::model::input::Input;
use posse_core::model::status::DriverStatus;
use posse_core::reconciler::Reconciler;
use posse_kube::api::driver_job::DriverJob;
use posse_wire::time;

use self::promises::Promises;

/// The longest time between two turns, so that the liveness stays fresh.
const IDLE_TURN_MS: u64 = 15_000;
/// While inputs keep coming, turns begin at least this far apart. What arrives in between shares one
/// turn, and its senders wake nobody: the hand-overs cost more than the decisions.
const TURN_INTERVAL_MIN: Duration = Duration::from_millis(4);
/// Turns longer than this are logged.
const TURN_SLOW: Duration = Duration::from_millis(100);

/// The stack of the thread that asks for the Job, bytes.
const JOB_STACK_BYTES: usize = 256 << 10;

/// How the driver is started, and when it counts as ready.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// Empty: posse does not start the driver.
    pub command: Vec<String>,
    pub env: DriverEnv,
    /// What shows that the driver is ready; `None`: no probe.
    pub probe: Option<Probe>,
    /// The driver reports readiness by the control API.
    pub is_ready_by_call: bool,
}

/// The reconciler thread.
#[derive(Debug)]
pub struct Engine<'a> {
    pub core: Reconciler,
    pub finish: Shutdown,
    pub lease_terms: LeaseTerms,
    pub clock: Clock,
    pub inbox: Receiver<Message>,
    pub sender: Sender<Message>,
    pub signals: &'a Signals,
    pub writers: Writers,
    pub upstream: &'a Threads<'a>,
    pub watermark: &'a SharedWatermark,
    pub liveness: Arc<Liveness>,
    pub log: Arc<EventLog>,
    /// Counts for scrapes; none: nobody scrapes.
    pub metrics: Option<Arc<RunMetrics>>,
    pub driver_plan: DriverPlan,
    /// None: the run has no record.
    pub record: Option<RecordThread>,
    /// The Job that owns the executors, if they outlive the driver's pod.
    pub job: Option<DriverJob>,
    pub state: EngineState,
}

/// The engine's own state between turns.
#[derive(Debug, Default)]
pub struct EngineState {
    driver: Option<Driver>,
    driver_status: Option<DriverStatus>,
    /// Kept until the end of the run, because dropping it kills what the driver left behind.
    ended_driver: Option<Driver>,
    reaper: Option<Reaper>,
    reap_at: Option<Millis>,
    probe: Option<ReadyProbe>,
    logger: EventLogger,
    /// The signal that ended the run before its start.
    interrupted_by: Option<Signal>,
    leases: HeldLeases,
    promises: Promises,
    /// How often an executor was missing in the table, as far as it was told.
    n_missing: u64,
    /// The last inputs came within `TURN_INTERVAL_MIN` after the turn before them.
    is_busy: bool,
    /// The driver has read the terminal.
    wants_terminal: bool,
    /// posse has stopped itself, as Ctrl-Z does.
    is_suspended: bool,
    /// The driver runs without the terminal that it has read.
    foreground_check_at: Option<Millis>,
}

impl EngineState {
    pub fn new(logger: EventLogger) -> Self {
        Self { reaper: Reaper::new(), logger, ..Self::default() }
    }
}

/// What has ended a wait without a message.
enum Woken {
    BySignal,
    InTime,
}

/// The end of the engine.
#[derive(Debug)]
pub struct Ended {
    pub outcome: ShutdownOutcome,
    /// The signal that ended the run before its start.
    pub interrupted_by: Option<Signal>,
    /// The next process of the run has tasks to do whose values are in the Secret.
    pub leaves_secret_tasks: bool,
    /// The record, and the last facts that it lacks.
    pub record: Option<(RecordThread, Vec<Fact>)>,
}

impl Engine<'_> {
    /// Runs until the shutdown is complete.
    pub fn run(mut self) -> Ended {
        loop {
            let began = Instant::now();
            self.turn();
            let took = began.elapsed();
            if took > TURN_SLOW {
                debug!("a turn took {} ms", took.as_millis());
            }
            let n_missing = self.core.executors().n_missing();
            if n_missing > std::mem::replace(&mut self.state.n_missing, n_missing) {
                error!(
                    "an executor is not in the table ({n_missing} times): this is a defect of posse, please report it"
                );
            }
            if let Some(metrics) = &self.metrics {
                metrics.on_turn(&self.core, took, self.inbox.len(), self.clock.now());
            }
            if let Some(outcome) = self.finish.outcome().cloned() {
                return self.end(outcome);
            }
            self.wait(began);
            // A message may have completed the shutdown; no further turn is needed.
            if let Some(outcome) = self.finish.outcome().cloned() {
                return self.end(outcome);
            }
        }
    }

    fn end(self, outcome: ShutdownOutcome) -> Ended {
        let Self { mut core, inbox, record, clock, state, .. } = self;
        // Nobody reads it any more, and the record's thread may wait for room in it.
        drop(inbox);
        let mut leaves_secret_tasks = false;
        if record.is_some() {
            let keys = core.command(Command::TaskSecretKeys, clock.now());
            leaves_secret_tasks = !outcome.has_done_all()
                && matches!(keys, Reply::TaskSecretKeys(keys) if !keys.is_empty());
        }
        let record = record.map(|record| (record, core.take_unrecorded()));
        Ended { outcome, interrupted_by: state.interrupted_by, leaves_secret_tasks, record }
    }

    /// Waits for a message, a signal or a deadline, and takes all waiting messages up to a limit.
    /// `turned`: when the last turn began.
    fn wait(&mut self, turned: Instant) {
        let (inbox, nobody) = (self.inbox.clone(), never());
        let left = || TURN_INTERVAL_MIN.saturating_sub(turned.elapsed());
        // Before this thread listens, so that the next senders need not wake it up.
        let pauses = std::mem::take(&mut self.state.is_busy);
        let mut woken = Err(Woken::InTime);
        if pauses {
            woken = self.wait_for(&nobody, left());
        }
        let mut is_busy = pauses && !inbox.is_empty();
        if matches!(woken, Err(Woken::InTime)) {
            let now = self.clock.now();
            let timeout = Duration::from_millis(self.next_deadline(now).since(now));
            woken = self.wait_for(&inbox, timeout);
        }
        let mut has_input = false;
        if let Ok(message) = woken {
            // A caller of the control API waits for its answer.
            has_input = matches!(message, Message::Input(_));
            self.take(message);
            if has_input && !is_busy && !left().is_zero() {
                is_busy = true;
                let _woken = self.wait_for(&nobody, left());
            }
        }
        for message in inbox.try_iter().take(TURN_MESSAGES_MAX) {
            has_input |= matches!(message, Message::Input(_));
            self.take(message);
        }
        self.state.is_busy = is_busy && has_input;
        for signal in self.signals.take() {
            self.on_signal(signal);
        }
    }

    /// The one place in which this thread waits: for a signal, a message, or until it is due.
    fn wait_for(&self, messages: &Receiver<Message>, timeout: Duration) -> Result<Message, Woken> {
        // Signals and the driver's end take precedence over other messages.
        select_biased! {
            recv(self.signals.wake()) -> _ => Err(Woken::BySignal),
            recv(messages) -> message => message.map_err(|_| Woken::InTime),
            default(timeout) => Err(Woken::InTime),
        }
    }

    fn next_deadline(&self, now: Millis) -> Millis {
        [
            self.core.next_deadline(),
            self.finish.next_deadline(),
            self.state.reap_at,
            self.state.foreground_check_at,
            self.state.promises.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .fold(now.after(IDLE_TURN_MS), Millis::min)
    }

    fn take(&mut self, message: Message) {
        let now = self.clock.now();
        self.core.set_start_time(time::unix_ms(self.clock.wall(Millis::ZERO)));
        if let Some(metrics) = &self.metrics {
            metrics.on_message(&message);
        }
        match message {
            Message::Command { command, by, reply } => {
                debug!("call: {command:?}");
                let is_recorded = command.is_recorded();
                let mut answer = match by {
                    Some(by) => self.core.call(command, by, now),
                    None => self.core.command(command, now),
                };
                if let Reply::Status(status) = &mut answer {
                    status.driver = self.state.driver_status;
                }
                if is_recorded && let Some(change) = self.core.awaited_change(&answer) {
                    self.state.promises.hold(change, answer, reply, now);
                } else {
                    // The send fails if the caller has timed out.
                    let _ = reply.try_send(answer);
                }
            }
            Message::Lease(scope, update) => self.on_lease(scope, update, now),
            Message::Input(input) => {
                if let Input::Recorded { answer } = &input {
                    self.state.promises.on_recorded(answer);
                }
                self.core.handle(input, now);
                if self.core.had_first_list() {
                    self.finish.on_first_list();
                }
            }
            Message::Job { goes_on } => {
                match goes_on {
                    true => info!("the job goes on: its next pod takes the executors over"),
                    false => info!("the job ends, and the executors with it"),
                }
                let orders = self.finish.on_job(goes_on);
                self.obey(orders, now);
            }
            Message::ReadRefused(refusal) => {
                self.finish.on_list_refused(refusal.clone());
                self.core.handle(Input::ReadRefused { refusal }, now);
            }
        }
    }

    fn on_lease(&mut self, scope: LeaseScope, update: LeaseUpdate, now: Millis) {
        let what = scope.as_str();
        match update {
            LeaseUpdate::Held { id_high_water, from: _ } => {
                info!("the lease of the {what} is held again");
                let input = self.state.leases.on_held(scope, id_high_water);
                self.core.handle(input, now);
                if scope == LeaseScope::Application {
                    // Another driver may have held it and ended.
                    self.upstream.start_orphan_cleanup();
                }
            }
            LeaseUpdate::IdsReserved { up_to } => {
                self.core.handle(Input::IdsReserved { up_to }, now);
            }
            LeaseUpdate::Lost { holder } => {
                let why = holder::loss(holder.as_deref(), self.lease_terms);
                warn!("lost the lease of the {what}: {why}: creates and deletes are paused");
                let silent = (self.lease_terms.give_up_ms, now);
                let lost = self.state.leases.on_lost(scope, holder, why, silent);
                for input in lost.inputs {
                    self.core.handle(input, now);
                }
                if let Some(verdict) = lost.verdict {
                    self.on_verdict(verdict, now);
                }
            }
            // Sent only at the start, where `await_lease` handles them.
            LeaseUpdate::Foreign
            | LeaseUpdate::HeldBy { .. }
            | LeaseUpdate::Forbidden { .. }
            | LeaseUpdate::Retrying { .. }
            | LeaseUpdate::Waiting { .. } => debug!("the lease: {update:?}"),
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.core.set_start_time(time::unix_ms(self.clock.wall(Millis::ZERO)));
        self.start(now);
        self.core.turn(now);
        self.watermark.publish(self.core.watermark());
        let has_leases = self.state.leases.has_all();
        self.state.promises.keep(self.core.recorded().1, has_leases, now);
        // Events go out before the pods are marked as counted or deleted, so that after a kill in
        // between, the next run reports them again.
        self.publish_events(now);
        while let Some(action) = self.core.poll_action() {
            self.perform(action);
        }
        if let Some(verdict) = self.core.poll_verdict() {
            self.on_verdict(verdict, now);
        }
        self.check_foreground(now);
        let orders = self.finish.on_time(now);
        self.obey(orders, now);
        if self.state.reap_at.is_some_and(|at| at <= now) {
            self.reap(now);
        }
        if let Some(result) = self.core.stop_result().cloned()
            && self.finish.outcome().is_none()
        {
            self.publish_events(now);
            self.finish.on_stopped(result, self.state.leases.is_taken_over());
        }
        let is_ready = self.core.had_first_list() && self.state.leases.has_all();
        self.liveness.record_turn(now.0, is_ready);
        self.state.logger.log_groups(self.core.brief_group_statuses(), now);
    }

    fn publish_events(&mut self, now: Millis) {
        while let Some(event) = self.core.poll_event() {
            self.state.logger.log_event(&event, now);
            if let Some(metrics) = &self.metrics {
                metrics.on_event(&event, now);
            }
            self.log.push(event);
        }
    }

    fn perform(&mut self, action: Action) {
        debug!("action: {action:?}");
        match action {
            Action::Poll => self.upstream.poll(),
            Action::Relist => self.upstream.relist(),
            Action::Record { facts } => {
                if let Some(record) = &self.record {
                    record.write(facts);
                }
            }
            Action::ReserveIds { up_to } => {
                if !self.upstream.reserve_ids(up_to) {
                    self.core.handle(Input::IdsNotReserved { up_to }, self.clock.now());
                }
            }
            action @ (Action::Create { .. }
            | Action::Delete { .. }
            | Action::Get { .. }
            | Action::GetNode { .. }
            | Action::GiveUpClaims { .. }
            | Action::KeepOutput { .. }
            | Action::List { .. }
            | Action::Patch { .. }
            | Action::Protect { .. }
            | Action::ReadLog { .. }
            | Action::ReadPod { .. }
            | Action::Resize { .. }) => self.writers.send(action),
        }
    }

    /// Takes the steps of the start that are due.
    fn start(&mut self, now: Millis) {
        while let Some(step) = self.finish.next_start_step(self.core.has_credentials(), now) {
            match step {
                StartStep::Listed => self.upstream.start_orphan_cleanup(),
                StartStep::StartDriver => self.start_driver(now),
                StartStep::End(verdict) => self.on_verdict(verdict, now),
            }
        }
    }

    fn start_driver(&mut self, now: Millis) {
        let plan = &self.driver_plan;
        let since = SystemTime::now();
        if let Some((program, arguments)) = plan.command.split_first() {
            match Driver::start(program, arguments, &plan.env) {
                Ok(driver) => {
                    let pid = driver.pid().as_raw_nonzero();
                    info!("driver started, pid {pid}");
                    let pid = pid.get().unsigned_abs();
                    self.state.driver_status =
                        Some(DriverStatus { since: now, pid, exit_code: None });
                    self.state.driver = Some(driver);
                    self.finish.on_driver_started();
                }
                Err(error) => {
                    self.on_verdict(
                        RunVerdict::DriverNotStarted { message: error.to_string() },
                        now,
                    );
                    return;
                }
            }
        }
        match &plan.probe {
            Some(probe) => {
                let driver = self.state.driver.as_ref().map(|driver| DriverTree {
                    supervisor: driver.supervisor().as_raw_nonzero().get().unsigned_abs(),
                });
                match ReadyProbe::start(probe.clone(), since, driver, self.sender.clone()) {
                    Ok(probe) => self.state.probe = Some(probe),
                    Err(error) => {
                        warn!("no probe can be started, not waiting for the driver: {error}");
                    }
                }
            }
            None if plan.is_ready_by_call => {}
            None => self.core.handle(Input::DriverReady, now),
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        let now = self.clock.now();
        if signal == Signal::Chld {
            self.on_child_ended(now);
            self.on_driver_stopped();
            return;
        }
        if self.on_terminal_signal(signal) {
            return;
        }
        if let Some(driver) = &self.state.driver {
            driver.forward(signal);
        }
        // With a driver process, SIGHUP and SIGQUIT are only forwarded.
        let is_ours = self.state.driver.is_none() && signal.is_stop_without_driver();
        if signal.is_stop() || is_ours {
            // A later one is logged with what it does.
            if self.finish.is_running() {
                info!("{signal}: stopping");
                self.state.logger.on_stop_signal();
            }
            if !self.finish.is_started() && self.finish.is_running() {
                self.state.interrupted_by = Some(signal);
            }
            let orders = self.finish.on_signal(now);
            self.obey(orders, now);
        }
    }

    fn on_child_ended(&mut self, now: Millis) {
        let had_terminal = self.state.driver.as_ref().is_some_and(Driver::has_terminal);
        if let Some(driver) = &mut self.state.driver
            && let Some(end) = driver.poll()
        {
            if let Some(status) = &mut self.state.driver_status {
                (status.since, status.exit_code) = (now, Some(end.code));
            }
            driver.terminate_group();
            self.state.wants_terminal = false;
            info!("driver ended: {end}");
            if had_terminal && end.code == Signal::Int.exit_code() {
                // Ctrl-C went to the driver alone.
                let orders = self.finish.on_signal(now);
                self.obey(orders, now);
            }
            let orders = self.finish.on_driver_ended(end.code, now);
            self.state.ended_driver = self.state.driver.take();
            self.obey(orders, now);
        }
        self.reap(now);
    }

    fn reap(&mut self, now: Millis) {
        let driver = self.state.driver.as_ref().map(Driver::supervisor);
        self.state.reap_at = self.state.reaper.as_mut().and_then(|reaper| reaper.reap(now, driver));
    }

    fn on_verdict(&mut self, verdict: RunVerdict, now: Millis) {
        match matches!(verdict, RunVerdict::AllEnded { n_given_up: 0 }) {
            true => info!("{}", describe_verdict(&verdict)),
            false if self.finish.is_running() => error!("{}", describe_verdict(&verdict)),
            // A reason for the end was logged already.
            false => debug!("{}", describe_verdict(&verdict)),
        }
        let orders = self.finish.on_verdict(verdict, now);
        self.obey(orders, now);
    }

    /// Asks on a thread of its own whether the Job has another pod after this one.
    fn ask_job(&mut self) {
        let Some(job) = self.job.take() else { return };
        let inbox = self.sender.clone();
        let body = move || match job.goes_on() {
            // The engine has ended if the send fails.
            Ok(goes_on) => drop(inbox.send(Message::Job { goes_on })),
            Err(refusal) => debug!("nobody says whether the job goes on: {refusal}"),
        };
        if let Err(error) = Worker::start("job", JOB_STACK_BYTES, body) {
            debug!("cannot start a thread to ask for the job: {error}");
        }
    }

    fn obey(&mut self, orders: Vec<ShutdownStep>, now: Millis) {
        for order in orders {
            debug!("order: {order:?}");
            match order {
                ShutdownStep::AskJob => self.ask_job(),
                ShutdownStep::StopCreates => self.core.stop_creates(),
                ShutdownStep::KillDriver { is_forced } => {
                    if let Some(driver) = &self.state.driver {
                        match is_forced {
                            true => warn!("second signal: killing the driver"),
                            false => {
                                warn!("the driver has not ended within shutdown.grace: killing it")
                            }
                        }
                        driver.kill_all_now();
                    }
                }
                ShutdownStep::HurryStop { keep } => {
                    warn!("second signal: no longer waiting for the executors");
                    self.core.hurry_stop(keep, now);
                }
                ShutdownStep::AbandonStop(order) => {
                    self.state.probe = None;
                    self.core.abandon_stop(order, now);
                }
                ShutdownStep::Stop(order) => {
                    self.state.probe = None;
                    self.core.begin_stop(order, now);
                }
                ShutdownStep::TermDriver => {
                    if let Some(driver) = &self.state.driver {
                        driver.terminate_group();
                    }
                }
            }
        }
    }
}
