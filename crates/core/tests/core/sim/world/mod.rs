//! Virtual time: a queue of events, the core under test, and a simple model of the runtime around
//! it (watcher, poller, lease, driver).

mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::action::Action;
use posse_core::model::event::{Event, ExecutorEvent};
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::input::{Input, List, ListSource, Watermark};
use posse_core::model::settings::{GroupSpec, Policy};
use posse_core::model::stop::StopOrder;
use posse_core::reconciler::{InstanceIdentity, Reconciler};

use super::check::{Check, CheckResult};
use super::cluster::Cluster;
use super::driver::Driver;
use super::faults::{Profile, policy};
use super::groups::group;
use super::tasks::TaskDriver;
use super::trace::{short, trace};

pub const PREFIX: &str = "app-x-exec-";
/// Longer than all timeouts, backoffs and lifetimes of the core, one after the other.
pub const CALM_MS: u64 = 660_000;
const QUIET_MS: u64 = 60_000;
const STEPS_MAX: u64 = 400_000;
/// Turns in a row at one time: the places of displaced executors go to others in steps.
const IDLE_TURNS_MAX: u32 = 8;

/// What happens at a time.
#[derive(Clone, Debug)]
pub enum Happening {
    Answer(u64, Box<Input>),
    BackUp,
    Calm,
    Call,
    Cut,
    Drive,
    Driver,
    Execute(u64),
    Foreign,
    Impostor,
    Kill,
    LastStop,
    Lease(bool),
    ListIn {
        gen_: u32,
        stream: Option<u64>,
        list: Box<List>,
    },
    ListSent {
        gen_: u32,
        stream: Option<u64>,
        source: ListSource,
    },
    ListTaken {
        gen_: u32,
        stream: Option<u64>,
        source: ListSource,
        watermark: Watermark,
    },
    ListTimedOut {
        gen_: u32,
        stream: Option<u64>,
        source: ListSource,
    },
    Node(Uid, Step),
    NodeLoss,
    Noise,
    Poll(u32),
    Pump {
        gen_: u32,
        stream: u64,
    },
    QuietBegins,
    Renew {
        gen_: u32,
        high_water: u64,
    },
    Reopen {
        gen_: u32,
        stream: u64,
    },
    Restore,
    /// The server answers nothing for so many milliseconds.
    Silence(u64),
    Start,
    Stop,
    /// The draw says of which pod.
    Unlabel(u64),
}

/// A step in a pod's life.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    Bind,
    Die,
    Gone,
    Ready,
    Run,
    SideCar,
}

/// A request in flight.
#[derive(Clone, Debug)]
pub struct Request {
    pub gen_: u32,
    pub action: Action,
    /// The client does not get its answer.
    pub is_unheard: bool,
}

struct Stream {
    number: u64,
    epoch: u32,
    cursor: u64,
    is_open: bool,
    is_pumping: bool,
}

pub struct World {
    pub now: u64,
    pub rng: Rng,
    pub profile: Profile,
    pub policy: Policy,
    pub driver: Driver,
    pub cluster: Cluster,
    pub core: Option<Reconciler>,
    pub gen_: u32,
    pub check: Check,
    pub requests: BTreeMap<u64, Request>,
    pub outstanding: BTreeSet<u64>,
    pub groups: Vec<GroupSpec>,
    /// A separate random stream, so that older seeds keep their meaning.
    pub calls_rng: Rng,
    pub n_calls: u64,
    pub tasks: TaskDriver,
    pub stuck: BTreeSet<Uid>,
    /// The random stream of start and node problems.
    pub node_faults_rng: Rng,
    /// The nodes that a pod avoids.
    pub avoided: BTreeMap<Uid, Arc<Vec<String>>>,
    pub is_calm: bool,
    /// The random stream of impostors and of ends at `max_age`.
    pub impostors_rng: Rng,
    pub high_water_at_start: u64,
    n_impostors: usize,
    queue: BTreeMap<(u64, u64), Happening>,
    n_queued: u64,
    n_requests: u64,
    n_streams: u64,
    stream: Option<Stream>,
    turn_at: Option<u64>,
    n_idle_turns: u32,
    is_held: bool,
    is_done: bool,
    is_last_stop: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let mut profile = Profile::draw(&mut rng);
        let mut policy = policy(&mut rng);
        let mut groups: Vec<GroupSpec> =
            (0..profile.n_groups).map(|i| group(&format!("g{i}"), &mut rng)).collect();
        let mut calls_rng = Rng::new(seed.rotate_left(32));
        if calls_rng.chance(50) {
            profile.group_calls = 1 + calls_rng.below(12);
        }
        // A seed has either driver reports or calls that put and delete groups, because each would
        // take the targets of the other for an error.
        let driver = match profile.group_calls {
            0 => Driver::draw(seed, &mut policy, &mut groups),
            _ => Driver::absent(),
        };
        Self { driver, calls_rng, ..Self::with(rng, profile, policy, groups) }
    }

    pub fn with(rng: Rng, profile: Profile, policy: Policy, groups: Vec<GroupSpec>) -> Self {
        let mut cluster = Cluster::default();
        (cluster.version, cluster.quota) = (10, profile.quota);
        trace(|| format!("{profile:?}\n{policy:?}\n{groups:?}"));
        Self {
            now: 0,
            rng,
            check: Check::new(profile.is_high_water_kept),
            profile,
            policy,
            driver: Driver::absent(),
            cluster,
            core: None,
            gen_: 0,
            requests: BTreeMap::new(),
            outstanding: BTreeSet::new(),
            groups,
            calls_rng: Rng::new(0),
            n_calls: 0,
            tasks: TaskDriver::default(),
            stuck: BTreeSet::new(),
            node_faults_rng: Rng::new(0),
            avoided: BTreeMap::new(),
            is_calm: false,
            impostors_rng: Rng::new(0),
            high_water_at_start: 0,
            n_impostors: 0,
            queue: BTreeMap::new(),
            n_queued: 0,
            n_requests: 0,
            n_streams: 0,
            stream: None,
            turn_at: None,
            n_idle_turns: 0,
            is_held: true,
            is_done: false,
            is_last_stop: false,
        }
    }

    /// A whole run: faults, a phase without faults, no more changes, stop.
    pub fn run(&mut self) -> CheckResult {
        let calm = self.schedule_faults();
        self.at(calm + CALM_MS, Happening::QuietBegins);
        self.at(calm + CALM_MS + QUIET_MS, Happening::LastStop);
        self.run_until(u64::MAX)
    }

    /// Stops what has nothing left to do.
    pub fn run_last_stop(&mut self) -> CheckResult {
        self.check.n_actions = 0;
        self.at(self.now, Happening::LastStop);
        self.run_until(u64::MAX)
    }

    /// Runs until that time, or until no event is left.
    pub fn run_until(&mut self, end: u64) -> CheckResult {
        for _ in 0..STEPS_MAX {
            if self.is_done {
                return Ok(());
            }
            let queued = self.queue.first_key_value().map(|(&(at, _), _)| at);
            let turn_at = self.turn_at.filter(|_| self.core.is_some());
            let next = queued.into_iter().chain(turn_at).min();
            let Some(next) = next.filter(|&next| next <= end) else {
                self.now = if end == u64::MAX { self.now } else { self.now.max(end) };
                return Ok(());
            };
            self.now = self.now.max(next);
            if turn_at.is_some_and(|at| at <= self.now) {
                self.turn()?;
            } else if let Some((_, happening)) = self.queue.pop_first() {
                self.happen(happening)?;
            }
            self.wake_watch();
        }
        Err(format!("more than {STEPS_MAX} steps: something goes in circles"))
    }

    pub fn at(&mut self, at: u64, happening: Happening) {
        self.n_queued += 1;
        self.queue.insert((at, self.n_queued), happening);
    }

    pub fn after(&mut self, ms: u64, happening: Happening) {
        self.at(self.now + ms, happening);
    }

    /// The test has changed something, so a turn is due now.
    pub fn wake(&mut self) {
        self.turn_at = Some(self.now);
    }

    /// The start, and all that happens until the calm. Returns when that begins.
    pub fn schedule_faults(&mut self) -> u64 {
        let end = self.profile.faulty_ms;
        for _ in 0..self.profile.kills {
            let at = self.rng.below(end);
            self.at(at, Happening::Kill);
        }
        for _ in 0..self.profile.restores {
            let at = self.rng.below(end);
            self.at(at, Happening::BackUp);
            let gap = self.rng.below(20_000);
            self.at((at + gap).min(end), Happening::Restore);
        }
        for _ in 0..self.profile.lease_losses {
            let at = self.rng.below(end);
            self.at(at, Happening::Lease(false));
            let gap = self.rng.below(20_000);
            self.at((at + gap).min(end), Happening::Lease(true));
        }
        for _ in 0..self.profile.node_losses {
            let at = self.rng.below(end);
            self.at(at, Happening::NodeLoss);
        }
        for _ in 0..self.profile.retargets {
            let at = self.rng.below(end);
            self.at(at, Happening::Drive);
        }
        for _ in 0..self.profile.group_calls {
            let at = self.calls_rng.below(end);
            self.at(at, Happening::Call);
        }
        self.schedule_unlabelling(end);
        if self.profile.early_stop {
            let at = self.rng.below(end);
            self.at(at, Happening::Stop);
        }
        if self.profile.noise > 0 {
            self.at(100, Happening::Noise);
        }
        if self.profile.foreign > 0 {
            self.at(0, Happening::Foreign);
        }
        if self.profile.impostors > 0 {
            self.at(0, Happening::Impostor);
        }
        if self.driver.is_there {
            self.at(1, Happening::Driver);
        }
        self.at(0, Happening::Start);
        self.at(end, Happening::Calm);
        end
    }

    fn happen(&mut self, happening: Happening) -> CheckResult {
        match happening {
            Happening::Answer(request, input) => {
                let is_ours =
                    self.requests.remove(&request).is_some_and(|request| request.gen_ == self.gen_);
                if is_ours && self.outstanding.remove(&request) {
                    self.tasks.on_input(&input);
                    return self.input(*input);
                }
            }
            Happening::Driver => return self.talk(),
            Happening::Execute(request) => return self.execute(request),
            Happening::Node(uid, step) => self.live(&uid, step),
            Happening::Unlabel(draw) => self.unlabel(draw),
            Happening::ListSent { gen_, stream, source } if gen_ == self.gen_ => {
                let Some(core) = &self.core else { return Ok(()) };
                let watermark = core.watermark();
                let ms = 1 + self.rng.below(self.profile.answer_ms);
                self.after(ms, Happening::ListTaken { gen_, stream, source, watermark });
            }
            Happening::ListTaken { gen_, stream, source, watermark } if gen_ == self.gen_ => {
                self.take_list(stream, source, watermark);
            }
            Happening::ListTimedOut { gen_, stream, source } if gen_ == self.gen_ => {
                return self.list_timed_out(stream, source);
            }
            Happening::ListIn { gen_, stream, list } if gen_ == self.gen_ => {
                return self.list_in(stream, *list);
            }
            Happening::Poll(gen_) if gen_ == self.gen_ => {
                if self.core.as_ref().is_some_and(Reconciler::had_first_list) {
                    let source = ListSource::Poll;
                    self.after(0, Happening::ListSent { gen_, stream: None, source });
                }
                self.after(self.profile.poll_ms, Happening::Poll(gen_));
            }
            Happening::Pump { stream, .. } if self.is_silent() => self.pump_later(stream),
            Happening::Pump { gen_, stream } if gen_ == self.gen_ => return self.pump(stream),
            Happening::Reopen { gen_, stream } if gen_ == self.gen_ => self.reopen(stream),
            Happening::ListSent { .. }
            | Happening::ListTaken { .. }
            | Happening::ListTimedOut { .. }
            | Happening::ListIn { .. }
            | Happening::Poll(_)
            | Happening::Pump { .. }
            | Happening::Reopen { .. } => {}
            Happening::Noise => {
                let n = 1 + self.rng.below(3);
                self.cluster.write_elsewhere(n);
                if let Some(gap) = 20_000_u64.checked_div(self.profile.noise) {
                    let ms = 1 + self.rng.below(gap);
                    self.after(ms, Happening::Noise);
                }
            }
            other => return self.upset(other),
        }
        Ok(())
    }

    /// Faults of the world around the run.
    fn upset(&mut self, happening: Happening) -> CheckResult {
        trace(|| format!("{:>9} {happening:?}", self.now));
        match happening {
            Happening::BackUp => self.cluster.back_up(),
            Happening::Restore => {
                let high_water = self.cluster.high_water;
                if self.cluster.restore() {
                    self.renew_after_restore(high_water);
                    self.check.on_restore(self.core.as_ref(), self.cluster.high_water);
                    self.revive_after_restore();
                }
            }
            Happening::Kill => {
                if self.core.is_some() {
                    self.kill();
                    let ms = self.rng.below(5_000);
                    self.after(ms, Happening::Start);
                }
            }
            Happening::Start => self.start(),
            Happening::Lease(held) => return self.lease(held),
            Happening::Call if self.tasks.is_there => self.say_tasks(4)?,
            Happening::Call => self.call_group()?,
            Happening::Drive => self.drive(),
            Happening::NodeLoss => self.lose_node(),
            Happening::Foreign => self.squat(),
            Happening::Impostor => self.impersonate(),
            Happening::Renew { gen_, high_water } if gen_ == self.gen_ && self.is_held => {
                self.cluster.high_water = self.cluster.high_water.max(high_water);
            }
            Happening::Silence(ms) => self.be_silent(ms),
            Happening::Stop => {
                let keep = self.profile.keep;
                let keep_failed = self.rng.chance(50);
                self.stop(StopOrder { keep, keep_failed, is_over: false });
            }
            Happening::Calm => self.calm_down(),
            Happening::Cut => self.cut_by_balancer(),
            Happening::QuietBegins => {
                self.check.n_actions = 0;
                self.targets_are_kept()?;
                return Check::converged(self);
            }
            Happening::LastStop => {
                self.check.quiet(self)?;
                self.is_last_stop = true;
                self.n_impostors = self.n_impostors();
                self.free_the_stuck();
                self.stop(StopOrder { keep: false, keep_failed: false, is_over: false });
            }
            Happening::Answer(..)
            | Happening::Driver
            | Happening::Execute(_)
            | Happening::ListIn { .. }
            | Happening::ListSent { .. }
            | Happening::ListTaken { .. }
            | Happening::ListTimedOut { .. }
            | Happening::Node(..)
            | Happening::Noise
            | Happening::Poll(_)
            | Happening::Pump { .. }
            | Happening::Renew { .. }
            | Happening::Reopen { .. }
            | Happening::Unlabel(_) => {}
        }
        Ok(())
    }

    /// No more faults.
    fn calm_down(&mut self) {
        self.is_calm = true;
        self.cluster.forget_unlabelled();
        self.driver.calm();
        self.profile = self.profile.calm();
        self.cluster.quota = None;
        let uids: Vec<Uid> =
            self.cluster.pods.values().map(|stored| stored.pod.uid.clone()).collect();
        for uid in uids {
            self.after(100, Happening::Node(uid, Step::Bind));
        }
        if self.core.is_none() {
            self.start();
        }
    }

    pub fn start(&mut self) {
        if self.core.is_some() {
            return;
        }
        self.gen_ += 1;
        let kept = self.profile.is_high_water_kept;
        let identity = InstanceIdentity {
            pod_prefix: PREFIX.to_owned(),
            owner: self.cluster.owner.clone(),
            id_high_water: if kept { self.cluster.high_water } else { 0 },
            is_id_high_water_stored: kept,
            start_unix_ms: 0,
        };
        self.disown_unrecorded();
        let seed = self.rng.next_u64();
        let groups = self.groups.clone();
        trace(|| format!("{:>9} process {} starts", self.now, self.gen_));
        let mut core =
            Reconciler::new(identity, self.policy.clone(), groups, seed, Millis(self.now));
        core.handle(Input::Lease { held: self.is_held, high_water: None }, Millis(self.now));
        core.handle(Input::DriverReady, Millis(self.now));
        core.restore(self.cluster.facts(), Millis(self.now));
        self.tasks.are_restored(&core, &self.cluster);
        self.core = Some(core);
        self.check.on_start(self.is_held, &self.cluster, &self.groups);
        self.check.work.on_start(&self.cluster, self.requests.values().map(|one| &one.action));
        self.driver.on_start();
        self.tasks.on_start(self.cluster.n_restores);
        self.open_stream();
        self.after(self.profile.poll_ms, Happening::Poll(self.gen_));
        self.turn_at = Some(self.now);
    }

    fn kill(&mut self) {
        if let Some(core) = &self.core {
            self.tasks.on_kill(core);
        }
        self.core = None;
        self.gen_ += 1;
        self.stream = None;
        self.turn_at = None;
        self.outstanding.clear();
        self.cluster.forget_unlabelled();
        self.lose_driver_pod();
    }

    fn lease(&mut self, held: bool) -> CheckResult {
        self.is_held = held;
        if held && self.rng.chance(40) {
            // Another process had the Lease for a while.
            let before = self.cluster.high_water;
            self.cluster.high_water += 1_000;
            self.own_above(before);
        }
        let high_water = self.profile.is_high_water_kept.then_some(self.cluster.high_water);
        let high_water = high_water.filter(|_| held).map(ExecutorId);
        if self.core.is_some() {
            self.input(Input::Lease { held, high_water })?;
        }
        Ok(())
    }

    fn stop(&mut self, order: StopOrder) {
        if let Some(core) = &mut self.core {
            trace(|| format!("{:>9} {order:?}", self.now));
            core.begin_stop(order, Millis(self.now));
            self.check.on_stop(order);
            if let Some(core) = &self.core {
                self.check.note_late_ends(core);
            }
            self.turn_at = Some(self.now);
        }
    }

    pub fn input(&mut self, input: Input) -> CheckResult {
        let Some(core) = &mut self.core else { return Ok(()) };
        trace(|| format!("{:>9}   <- {}", self.now, short(&input)));
        self.check.before_input(core, &input, &self.cluster);
        core.handle(input.clone(), Millis(self.now));
        let ms = if self.profile.batch_ms == 0 { 0 } else { self.rng.below(self.profile.batch_ms) };
        let at = self.now + ms;
        self.turn_at = Some(self.turn_at.map_or(at, |before| before.min(at)));
        self.n_idle_turns = 0;
        self.check.after_input(core, &input, &self.cluster)
    }

    fn turn(&mut self) -> CheckResult {
        let Some(core) = &mut self.core else { return Ok(()) };
        core.turn(Millis(self.now));
        self.turn_at = core.next_deadline().map(|at| at.0);
        if self.turn_at.is_some_and(|at| at <= self.now) {
            self.n_idle_turns += 1;
            if self.n_idle_turns > IDLE_TURNS_MAX {
                return Err(format!("busy: the next deadline {:?} is not later", self.turn_at));
            }
        }
        let mut events = Vec::new();
        while let Some(event) = core.poll_event() {
            trace(|| format!("{:>9}   ** {event:?}", self.now));
            events.push(event);
        }
        let mut actions = Vec::new();
        while let Some(action) = core.poll_action() {
            trace(|| format!("{:>9}   -> {action:?}", self.now));
            actions.push(action);
        }
        let _ = core.poll_verdict();
        let n_before = self.n_requests;
        for action in &actions {
            self.send(action);
        }
        Check::after_turn(self, &events, &actions)?;
        self.check_outages(&events)?;
        self.crash(&events, n_before);
        self.end_of_stop()
    }

    /// The process may end between the loss it reported and the request that follows.
    fn crash(&mut self, events: &[Event], n_before: u64) {
        let is_end = |event: &Event| {
            matches!(
                event,
                Event::Executor(_, ExecutorEvent::Completed { .. })
                    | Event::Executor(_, ExecutorEvent::Lost { .. })
            )
        };
        let told = events.iter().any(is_end);
        if !told || self.profile.crashes == 0 || !self.rng.chance(20) {
            return;
        }
        self.profile.crashes -= 1;
        let n_sent = self.rng.below(self.n_requests - n_before + 1);
        trace(|| format!("{:>9} crash, {n_sent} requests left", self.now));
        self.requests.retain(|n, _| *n <= n_before + n_sent);
        self.kill();
        let ms = self.rng.below(5_000);
        self.after(ms, Happening::Start);
    }

    fn end_of_stop(&mut self) -> CheckResult {
        let Some(core) = &self.core else { return Ok(()) };
        let Some(result) = core.stop_result().cloned() else { return Ok(()) };
        trace(|| format!("{:>9} {result:?}", self.now));
        Check::stopped(self, &result, self.is_last_stop)?;
        self.check.ended_gen = Some(self.gen_);
        self.core = None;
        self.stream = None;
        self.outstanding.clear();
        if self.is_last_stop {
            self.is_done = true;
            if self.n_impostors() < self.n_impostors {
                return Err("the calm stop deleted pods of others".to_owned());
            }
        } else if self.rng.chance(70) {
            self.gen_ += 1;
            self.check.ended_gen = None;
            let ms = 61_000 + self.rng.below(5_000);
            self.after(ms, Happening::Start);
        } else {
            // Late commits of this run may still come; the names must be among the reported ones.
            let end = self.now + 70_000;
            self.queue.retain(|_, h| matches!(h, Happening::Execute(_)));
            self.run_until(end)?;
            self.is_done = true;
        }
        Ok(())
    }

    pub fn next_request(&mut self, action: Action) -> u64 {
        self.n_requests += 1;
        let request = Request { gen_: self.gen_, action, is_unheard: false };
        self.requests.insert(self.n_requests, request);
        self.outstanding.insert(self.n_requests);
        self.n_requests
    }
}
