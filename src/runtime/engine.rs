//! Owns the loop: takes what came, lets the core decide once, hands actions and events out, and
//! runs the driver's life beside it. Never blocks on anything but its channels.
//!
//! The order of a stop: no creates; the driver, with its grace; the executors, until a LIST shows
//! none; then the watch and the poll, the lease, the writers (by their channel's end), and last the
//! events and the control API, so that everything that happened has been told.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, select_biased};
use log::{debug, error, info, warn};

use crate::clock::Clock;
use crate::core::machines::lease::{LeaseScope, LeaseUpdate};
use crate::core::machines::shutdown::{Shutdown, ShutdownOutcome, ShutdownStep};
use crate::core::model::action::{Action, RunVerdict};
use crate::core::model::event::Event;
use crate::core::model::ids::{ExecutorId, Version};
use crate::core::model::input::{Input, Watermark};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::core::model::stop::StopOrder;
use crate::core::model::time::Millis;
use crate::core::reconciler::Reconciler;
use crate::runtime::driver::{Driver, DriverEnv, Reaper};
use crate::runtime::events::EventLog;
use crate::runtime::hold;
use crate::runtime::inbox::{Message, Pulse, TURN_MESSAGES_MAX};
use crate::runtime::narrate::{self, Narrator};
use crate::runtime::progress::{Facts, Progress};
use crate::runtime::ready::ReadyProbe;
use crate::runtime::signals::{Signal, Signals};
use crate::runtime::writers::Writers;

/// How long the first LIST may fail before the API server counts as not reachable.
pub const START_TIMEOUT_MS: u64 = 30_000;
/// How long the answer to the last delete is waited for when somebody is in a hurry.
const HURRY_MS: u64 = 5_000;
/// The loop turns at least so often, so that its pulse tells that it lives.
const PULSE_MS: u64 = 15_000;
/// A turn longer than this is worth a line in the log.
const TURN_SLOW: Duration = Duration::from_millis(100);

/// What the reconciler has applied, for the threads that send LISTs: read before a request leaves.
#[derive(Debug, Default)]
pub struct SharedMark {
    epoch: AtomicU32,
    position: AtomicU64,
}

impl SharedMark {
    /// Written by the reconciler alone, after each turn.
    pub fn publish(&self, mark: Watermark) {
        // A reader between the two sees the old epoch (whose answers are no longer believed) or
        // the new one without a position: never a position of another epoch.
        if self.epoch.load(Ordering::Acquire) != mark.epoch {
            self.position.store(0, Ordering::Release);
            self.epoch.store(mark.epoch, Ordering::Release);
        }
        self.position.store(mark.position.map_or(0, |version| version.0), Ordering::Release);
    }

    /// What was applied by now.
    #[must_use]
    pub fn read(&self) -> Watermark {
        let epoch = self.epoch.load(Ordering::Acquire);
        let position = self.position.load(Ordering::Acquire);
        if self.epoch.load(Ordering::Acquire) != epoch {
            return Watermark { epoch, position: None };
        }
        Watermark { epoch, position: (position > 0).then_some(Version(position)) }
    }
}

/// What the loop asks of the threads that look at the server.
pub trait Upstream {
    /// LIST now, beside the watch.
    fn poll(&self);

    /// The snapshot is wrong: LIST again under the new epoch.
    fn relist(&self);

    /// The first LIST is in: what earlier instances left may be looked at.
    fn sweep(&self);

    /// Keep this id high water on the server; `Input::IdsReserved` answers.
    fn reserve_ids(&self, up_to: ExecutorId);
}

/// How the driver is started and when its executors are asked for.
#[derive(Clone, Debug)]
pub struct DriverPlan {
    /// Empty: somebody else runs the driver.
    pub command: Vec<String>,
    pub env: DriverEnv,
    /// `host:port` that has to accept a connection; none: nothing is probed.
    pub probe: Option<String>,
    /// The driver says by the control API when it is ready.
    pub is_ready_by_call: bool,
}

/// All that a loop needs.
#[derive(Debug)]
pub struct Engine<'a, U> {
    pub core: Reconciler,
    pub finish: Shutdown,
    pub clock: Clock,
    pub inbox: Receiver<Message>,
    pub sender: Sender<Message>,
    pub signals: &'a Signals,
    pub writers: Writers,
    pub upstream: &'a U,
    pub mark: &'a SharedMark,
    pub pulse: Arc<Pulse>,
    pub log: Arc<EventLog>,
    /// The live line, on a terminal.
    pub progress: Option<Progress>,
    pub driver_plan: DriverPlan,
    /// Nothing of this instance can exist before this run creates it.
    pub is_new_instance: bool,
    pub state: LoopState,
}

/// What the loop remembers from turn to turn, beside the core's own.
#[derive(Debug)]
pub struct LoopState {
    driver: Option<Driver>,
    reaper: Option<Reaper>,
    reap_at: Option<Millis>,
    probe: Option<ReadyProbe>,
    /// The last refusal of a LIST before the first one succeeded.
    list_refusal: Option<Refusal>,
    /// When the first LIST must have succeeded.
    start_by: Millis,
    narrator: Narrator,
    hurry_until: Option<Millis>,
    is_driver_begun: bool,
    /// What of it is held. Without the whole nothing is created or deleted.
    held: Held,
    /// Another posse holds the instance.
    is_taken_over: bool,
    redraw_at: Option<Millis>,
    n_lost: u64,
}

/// Which Leases are ours; one that was not asked for is.
#[derive(Clone, Copy, Debug)]
struct Held {
    application: bool,
    instance: bool,
}

impl Held {
    fn set(&mut self, scope: LeaseScope, is_held: bool) {
        match scope {
            LeaseScope::Application => self.application = is_held,
            LeaseScope::Instance => self.instance = is_held,
        }
    }

    fn all(self) -> bool {
        self.application && self.instance
    }
}

impl Default for LoopState {
    fn default() -> Self {
        Self {
            driver: None,
            reaper: Reaper::new(),
            reap_at: None,
            probe: None,
            list_refusal: None,
            start_by: Millis(START_TIMEOUT_MS),
            narrator: Narrator::default(),
            hurry_until: None,
            is_driver_begun: false,
            held: Held { application: true, instance: true },
            is_taken_over: false,
            redraw_at: None,
            n_lost: 0,
        }
    }
}

impl<U: Upstream> Engine<'_, U> {
    /// Runs until the end has come out one way or another.
    pub fn run(mut self) -> ShutdownOutcome {
        self.state.start_by = self.clock.now().after(START_TIMEOUT_MS);
        loop {
            let began = Instant::now();
            self.turn();
            let took = began.elapsed();
            if took > TURN_SLOW {
                debug!("a turn took {} ms", took.as_millis());
            }
            if let Some(outcome) = self.finish.outcome() {
                return outcome.clone();
            }
            self.wait();
            // Decided among the messages: nothing is told after it.
            if let Some(outcome) = self.finish.outcome() {
                return outcome.clone();
            }
        }
    }

    /// Waits for something to happen, and takes in all that has, up to a limit.
    fn wait(&mut self) {
        let now = self.clock.now();
        let timeout = Duration::from_millis(self.next_deadline(now).since(now));
        let (signals, inbox) = (self.signals.wake().clone(), self.inbox.clone());
        // Signals and the driver's end come first, however much else there is.
        select_biased! {
            recv(signals) -> _ => {},
            recv(inbox) -> message => {
                if let Ok(message) = message {
                    self.take(message);
                }
            },
            default(timeout) => {},
        }
        for message in inbox.try_iter().take(TURN_MESSAGES_MAX) {
            self.take(message);
        }
        for signal in self.signals.take() {
            self.on_signal(signal);
        }
    }

    fn next_deadline(&self, now: Millis) -> Millis {
        let start = (!self.core.had_first_list()).then_some(self.state.start_by);
        [
            self.core.next_deadline(),
            self.finish.next_deadline(),
            self.state.reap_at,
            self.state.hurry_until,
            start.filter(|at| *at > now),
            self.state.redraw_at,
        ]
        .into_iter()
        .flatten()
        .fold(now.after(PULSE_MS), Millis::min)
    }

    fn take(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Command { command, reply } => {
                debug!("call: {command:?}");
                // The caller may have given up meanwhile.
                let _ = reply.try_send(self.core.command(command, now));
            }
            Message::Lease(scope, update) => self.on_lease(scope, update, now),
            Message::Input(input) => {
                let is_last = matches!(input, Input::DeletedAll { .. });
                self.core.handle(input, now);
                if is_last && self.state.hurry_until.is_some() {
                    self.give_up_waiting();
                }
            }
            Message::ListRefused(refusal) => self.state.list_refusal = Some(refusal),
        }
    }

    fn on_lease(&mut self, scope: LeaseScope, update: LeaseUpdate, now: Millis) {
        let what = hold::what(scope);
        match update {
            LeaseUpdate::Held { id_high_water } => {
                info!("the {what} is held again");
                self.state.held.set(scope, true);
                let held = self.state.held.all();
                self.state.is_taken_over &= !held;
                self.core.handle(Input::Lease { held, high_water: id_high_water }, now);
            }
            LeaseUpdate::IdsReserved { up_to } => {
                self.core.handle(Input::IdsReserved { up_to }, now);
            }
            LeaseUpdate::Lost { holder } => {
                let by = holder.as_deref().unwrap_or("nobody yet");
                warn!(
                    "the lease of the {what} is lost (held by {by}): nothing is created or deleted"
                );
                self.state.is_taken_over |= holder.is_some();
                self.state.held.set(scope, false);
                self.core.handle(Input::Lease { held: false, high_water: None }, now);
                if let (LeaseScope::Application, Some(holder)) = (scope, holder) {
                    self.on_verdict(RunVerdict::TakenOver { holder }, now);
                }
            }
            // Said at start only, and answered there.
            LeaseUpdate::HeldBy { .. }
            | LeaseUpdate::Forbidden { .. }
            | LeaseUpdate::Retrying { .. }
            | LeaseUpdate::Waiting { .. } => debug!("the lease: {update:?}"),
        }
    }

    fn turn(&mut self) {
        let now = self.clock.now();
        self.check_start(now);
        self.core.turn(now);
        self.mark.publish(self.core.watermark());
        // First told, then marked as told or deleted: whoever kills us in between hears it again.
        self.tell_events(now);
        while let Some(action) = self.core.poll_action() {
            self.act(action);
        }
        if let Some(verdict) = self.core.poll_verdict() {
            self.on_verdict(verdict, now);
        }
        let orders = self.finish.on_time(now);
        self.obey(orders, now);
        if self.state.reap_at.is_some_and(|at| at <= now) {
            self.reap(now);
        }
        if let Some(result) = self.core.stop_result().cloned()
            && self.finish.outcome().is_none()
        {
            self.tell_events(now);
            self.finish.on_stopped(result, self.state.is_taken_over);
        } else if self.state.hurry_until.is_some_and(|at| at <= now) {
            self.give_up_waiting();
        }
        self.pulse.beat(now.0, self.core.had_first_list());
        let groups = self.core.group_statuses();
        self.state.narrator.groups(&groups, now);
        if let Some(progress) = &self.progress {
            let facts = Facts::new(&groups, self.state.n_lost);
            self.state.redraw_at = Some(progress.show(&facts, now));
        }
    }

    fn tell_events(&mut self, now: Millis) {
        while let Some(event) = self.core.poll_event() {
            self.state.n_lost += u64::from(matches!(event, Event::ExecutorLost { .. }));
            self.state.narrator.event(&event, now);
            self.log.push(&event);
        }
    }

    fn act(&mut self, action: Action) {
        debug!("do: {action:?}");
        match action {
            Action::Poll => self.upstream.poll(),
            Action::Relist => self.upstream.relist(),
            Action::ReserveIds { up_to } => self.upstream.reserve_ids(up_to),
            action @ (Action::Create { .. }
            | Action::Delete { .. }
            | Action::DeleteAll { .. }
            | Action::Get { .. }
            | Action::GetNode { .. }
            | Action::List { .. }
            | Action::Patch { .. }
            | Action::ReadLog { .. }) => self.writers.send(action),
        }
    }

    /// Before the first LIST a refusal ends the run; after it, the driver begins.
    fn check_start(&mut self, now: Millis) {
        if self.state.is_driver_begun || !self.finish.is_running() {
            return;
        }
        if self.core.had_first_list() {
            self.state.is_driver_begun = true;
            self.upstream.sweep();
            let n_found = self.core.executors().iter().count();
            if n_found > 0 {
                info!("{n_found} executors of an earlier run are there and kept");
            }
            self.begin_driver(now);
            return;
        }
        let is_late = now >= self.state.start_by;
        if is_late && self.state.list_refusal.is_none() {
            let s = START_TIMEOUT_MS / 1_000;
            self.state.list_refusal =
                Some(silence(format!("no answer to the first list in {s} s")));
        }
        let Some(refusal) = &self.state.list_refusal else { return };
        let message = refusal.to_string();
        let verdict = match refusal.class {
            RefusalClass::Forbidden | RefusalClass::Unauthorized | RefusalClass::NotFound => {
                RunVerdict::NotAllowed { message }
            }
            RefusalClass::Capacity
            | RefusalClass::Conflict
            | RefusalClass::Exists
            | RefusalClass::Expired
            | RefusalClass::NamespaceGone
            | RefusalClass::Invalid
            | RefusalClass::Throttled
            | RefusalClass::Transient
            | RefusalClass::OutcomeUnknown => {
                if !is_late {
                    return;
                }
                RunVerdict::NotReachable { message }
            }
        };
        self.on_verdict(verdict, now);
    }

    fn begin_driver(&mut self, now: Millis) {
        let plan = &self.driver_plan;
        if !plan.command.is_empty() {
            match Driver::start(&plan.command, &plan.env) {
                Ok(driver) => {
                    info!("driver started, process {}", driver.pid().as_raw_nonzero());
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
            Some(address) => match ReadyProbe::start(address.clone(), self.sender.clone()) {
                Ok(probe) => self.state.probe = Some(probe),
                Err(error) => warn!("{address} cannot be probed, not waiting for it: {error}"),
            },
            None if plan.is_ready_by_call => {}
            None => self.core.handle(Input::DriverReady, now),
        }
    }

    fn on_signal(&mut self, signal: Signal) {
        let now = self.clock.now();
        if signal == Signal::Chld {
            self.on_child_ended(now);
            return;
        }
        if let Some(driver) = &self.state.driver {
            driver.pass(signal);
        }
        // Without a driver of ours there is nobody whom a hang-up could concern but us.
        let is_ours = self.state.driver.is_none() && signal.is_stop_without_driver();
        if signal.is_stop() || is_ours {
            info!("SIG{}: stopping", format!("{signal:?}").to_uppercase());
            let orders = self.finish.on_signal(now);
            self.obey(orders, now);
        }
    }

    fn on_child_ended(&mut self, now: Millis) {
        if let Some(driver) = &mut self.state.driver
            && let Some(end) = driver.poll()
        {
            info!("driver ended: {end}");
            driver.terminate_group();
            let orders = self.finish.on_driver_ended(end.code);
            self.state.driver = None;
            self.obey(orders, now);
        }
        self.reap(now);
    }

    fn reap(&mut self, now: Millis) {
        let driver = self.state.driver.as_ref().map(Driver::pid);
        self.state.reap_at = self.state.reaper.as_mut().and_then(|reaper| reaper.reap(now, driver));
    }

    fn on_verdict(&mut self, verdict: RunVerdict, now: Millis) {
        error!("{}", narrate::verdict(&verdict));
        let orders = self.finish.on_verdict(verdict, now);
        self.obey(orders, now);
    }

    fn obey(&mut self, orders: Vec<ShutdownStep>, now: Millis) {
        for order in orders {
            debug!("order: {order:?}");
            match order {
                ShutdownStep::StopCreates => self.core.stop_creates(),
                ShutdownStep::KillDriver => {
                    if let Some(driver) = &self.state.driver {
                        warn!("killing the driver: it has not ended in its time");
                        driver.kill_group_now();
                    }
                }
                ShutdownStep::FinalDelete => {
                    warn!("asked again: not waiting for the executors");
                    self.state.hurry_until = Some(now.after(HURRY_MS));
                    let keep = self.finish.keeps_executors();
                    // What goes from here on goes by our own will.
                    self.core.begin_stop(StopOrder { keep, keep_failed: false }, now);
                    if self.state.held.all() && !keep {
                        self.writers.send(Action::DeleteAll { grace_s: 0, keep_counted: false });
                    }
                }
                ShutdownStep::Stop(order) => {
                    self.state.probe = None;
                    self.core.begin_stop(order, now);
                    let is_blind = !self.core.had_first_list();
                    if is_blind && (self.is_new_instance || self.state.list_refusal.is_some()) {
                        // Nothing was created yet, or nobody is there to be asked what was.
                        self.give_up_waiting();
                        return;
                    }
                    // What the stop asks for leaves in this turn.
                    self.core.turn(now);
                    while let Some(action) = self.core.poll_action() {
                        self.act(action);
                    }
                }
                ShutdownStep::TermDriver => {
                    if let Some(driver) = &self.state.driver {
                        driver.terminate_group();
                    }
                }
            }
        }
    }

    /// In a hurry: what may remain is named, not waited for.
    fn give_up_waiting(&mut self) {
        self.state.hurry_until = None;
        let now = self.clock.now();
        self.tell_events(now);
        self.state.narrator.event(&Event::Stopped, now);
        self.log.push(&Event::Stopped);
        let remaining = self.core.remaining();
        self.finish.on_stopped(remaining, self.state.is_taken_over);
    }
}

fn silence(message: String) -> Refusal {
    Refusal {
        class: RefusalClass::OutcomeUnknown,
        code: 0,
        reason: String::new(),
        message,
        retry_after_ms: None,
    }
}
