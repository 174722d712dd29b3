//! The simulated driver: sends heartbeats and false reports, pauses, kills executors, and sets its
//! targets again after a restart of posse. Checks each answer and each loss that it reported.

use std::collections::{BTreeMap, BTreeSet};

use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::command::{AfterKill, Command, GroupCommand, Reply};
use posse_core::model::event::{Event, ExecutorEvent, LossReason};
use posse_core::model::ids::{ExecutorId, GroupName, ID_MAX, Uid};
use posse_core::model::pod::ContainerState;
use posse_core::model::settings::{Decommission, GroupSpec, Policy};
use posse_core::model::status::State;
use posse_core::reconciler::Reconciler;
use posse_core::state::driver_reports::heartbeat_first_ms;

use super::check::CheckResult;
use super::cluster::{Cluster, is_over};
use super::faults::at;
use super::trace::trace;
use super::world::{Happening, World};

/// Each world has its own random stream, so that a driver does not change what else the seed does.
const STREAM: u64 = 0x6472_6976_6572;
const IDLE_VALID_MS: u64 = 10_000;
const REASON_WAIT_MS: u64 = 30_000;

/// Chances in percent, times in milliseconds.
#[derive(Debug)]
pub struct Driver {
    rng: Rng,
    pub is_there: bool,
    pub every_ms: u64,
    lies: u64,
    sleeps: u64,
    kills: u64,
    breaks: u64,
    asleep_until: u64,
    /// Executors whose heartbeats it does not receive.
    pub deaf_to: BTreeSet<u64>,
    /// The process that it has sent its targets to.
    told_gen: u32,
    pub targets: BTreeMap<GroupName, u32>,
    last_kill: Option<Command>,
    said: Said,
    /// Pods that a read of the current process showed as over.
    pub shown_over: BTreeSet<Uid>,
}

/// What it reported to the current process.
#[derive(Debug, Default)]
struct Said {
    called_at: Option<u64>,
    since: u64,
    heard: BTreeMap<u64, u64>,
    lost: BTreeMap<u64, u64>,
    killed: BTreeSet<u64>,
    silent: BTreeSet<u64>,
    idle: Option<(BTreeSet<ExecutorId>, u64)>,
    /// When an executor of the group was last lost because of missing heartbeats.
    silenced: BTreeMap<GroupName, u64>,
}

impl Driver {
    /// No driver makes a call.
    pub fn absent() -> Self {
        let (told_gen, targets, last_kill) = (0, BTreeMap::new(), None);
        Self {
            rng: Rng::new(STREAM),
            is_there: false,
            every_ms: 0,
            lies: 0,
            sleeps: 0,
            kills: 0,
            breaks: 0,
            asleep_until: 0,
            deaf_to: BTreeSet::new(),
            told_gen,
            targets,
            last_kill,
            said: Said::default(),
            shown_over: BTreeSet::new(),
        }
    }

    /// The driver of a seed, with settings and groups that fit it.
    pub fn draw(seed: u64, policy: &mut Policy, groups: &mut [GroupSpec]) -> Self {
        let mut rng = Rng::new(seed ^ STREAM);
        if !rng.chance(60) {
            return Self::absent();
        }
        policy.heartbeat_timeout_ms = [0, 4_000, 20_000][at(&mut rng, 3)];
        // So that older seeds keep their meaning.
        rng.below(3);
        for group in groups {
            let after_ms = 1 + rng.below(30_000);
            group.decommission =
                rng.chance(40).then_some(Decommission { after_ms, label: None, by_term: false });
        }
        Self {
            is_there: true,
            every_ms: [500, 1_500, 9_000][at(&mut rng, 3)],
            lies: rng.below(30),
            sleeps: rng.below(4),
            kills: rng.below(10),
            breaks: rng.below(12),
            rng,
            ..Self::absent()
        }
    }

    /// No more calls, and all heartbeats arrive.
    pub fn calm(&mut self) {
        (self.lies, self.sleeps, self.kills, self.breaks) = (0, 0, 0, 0);
        self.asleep_until = 0;
        // Minutes without calls are rare, so that they cost little time, but they occur.
        self.every_ms = self.every_ms.max(5_000);
        self.deaf_to.clear();
    }

    /// Every new process gets all reports again.
    pub fn on_start(&mut self) {
        self.said = Said::default();
        self.shown_over.clear();
    }

    /// A loss that is based on a report of the driver must have had that report.
    pub fn on_event(
        &mut self,
        event: &Event,
        core: &Reconciler,
        policy: &Policy,
        now: u64,
    ) -> CheckResult {
        let Event::Executor(subject, ExecutorEvent::Lost { reason, .. }) = event else {
            return Ok(());
        };
        let (id, timeout) = (subject.id.0, policy.heartbeat_timeout_ms);
        let is_meant = match reason {
            LossReason::Killed => self.said.killed.contains(&id),
            LossReason::Disconnected => {
                let asked_at = self.said.lost.get(&id);
                let was_shown = subject.uid.as_ref().is_some_and(|u| self.shown_over.contains(u));
                asked_at.is_some_and(|at| now >= at + REASON_WAIT_MS) && !was_shown
            }
            // The driver says it in a kill call.
            LossReason::HeartbeatTimeout if self.said.silent.contains(&id) => true,
            LossReason::HeartbeatTimeout => {
                let heard_at = self.said.heard.get(&id).copied();
                let first = heartbeat_first_ms(policy.heartbeat_timeout_ms);
                let since = core.executors().get(subject.id).and_then(|e| e.running_since);
                let is_silent = match heard_at {
                    Some(at) => now >= at.max(self.said.since) + timeout,
                    None => {
                        let from = since.map_or(u64::MAX, |at| at.0).max(self.said.since);
                        !self.said.heard.is_empty() && now >= from.saturating_add(first)
                    }
                };
                let is_awake = self.said.called_at.is_some_and(|at| now <= at + timeout / 2);
                let last = self.said.silenced.insert(subject.group.clone(), now);
                let group = core.executors().groups().get(&subject.group);
                // A tenth of fewer than twenty is one.
                let is_small = group.is_none_or(|group| group.members.len() < 20);
                let is_first = last.is_none_or(|at| now >= at + timeout) || !is_small;
                is_silent && is_awake && is_first
            }
            _ => true,
        };
        if is_meant { Ok(()) } else { Err(format!("{event:?}: {:?}", self.said)) }
    }

    fn some_id(&mut self, cluster: &Cluster) -> u64 {
        let ids: Vec<u64> =
            cluster.lives.values().map(|life| life.id).filter(|id| *id < ID_MAX).collect();
        if ids.is_empty() || self.rng.chance(10) {
            return 1 + self.rng.below(3_000);
        }
        // Young executors more often.
        let last = ids.len() as u64;
        let reach = 1 + self.rng.below(last.min(12));
        ids[usize::try_from(last - reach).unwrap()]
    }
}

impl World {
    /// One turn of the driver.
    pub fn talk(&mut self) -> CheckResult {
        let ms = 1 + self.driver.rng.below(2 * self.driver.every_ms);
        self.after(ms, Happening::Driver);
        if self.core.is_none() || self.now < self.driver.asleep_until {
            return Ok(());
        }
        if self.driver.told_gen != self.gen_ {
            self.driver.told_gen = self.gen_;
            for (group, target) in self.driver.targets.clone() {
                let told = Command::Group(group.clone(), GroupCommand::SetTarget { target });
                if let Some(Reply::Target(target)) = self.call(told)? {
                    self.driver.targets.insert(group, target);
                }
            }
        }
        if self.driver.rng.chance(self.driver.sleeps) {
            let most = 1 + 4 * self.policy.heartbeat_timeout_ms;
            self.driver.asleep_until = self.now + self.driver.rng.below(most);
            trace(|| {
                format!("{:>9} the driver sleeps until {}", self.now, self.driver.asleep_until)
            });
            return Ok(());
        }
        self.beat()?;
        if self.driver.rng.chance(20) {
            self.say_idle()?;
        }
        if self.driver.rng.chance(self.driver.breaks) {
            let id = self.driver.some_id(&self.cluster);
            self.driver.said.lost.entry(id).or_insert(self.now);
            self.call(Command::Disconnected { executor: ExecutorId(id) })?;
        }
        if self.driver.rng.chance(self.driver.breaks) {
            let id = self.driver.some_id(&self.cluster);
            self.driver.deaf_to.insert(id);
        }
        if self.driver.rng.chance(self.driver.kills) {
            self.kill_some()?;
        }
        Ok(())
    }

    /// Sets a target, with or without a driver.
    pub fn drive(&mut self) {
        let i = at(&mut self.rng, self.groups.len() as u64);
        let target = u32::try_from(self.rng.below(9)).unwrap();
        let name = self.groups[i].name.clone();
        if let Some(core) = &mut self.core {
            let in_force = core.set_target(&name, target, Millis(self.now));
            self.driver.targets.extend(in_force.map(|target| (name, target)));
            self.wake();
        }
    }

    fn call(&mut self, command: Command) -> Result<Option<Reply>, String> {
        let Some(core) = &mut self.core else { return Ok(None) };
        trace(|| format!("{:>9}   <= {command:?}", self.now));
        let reply = core.command(command, Millis(self.now));
        trace(|| format!("{:>9}   => {reply:?}", self.now));
        self.wake();
        Ok(Some(reply))
    }

    fn beat(&mut self) -> CheckResult {
        let up = self.cluster.pods.values().filter(|stored| {
            stored.is_ours()
                && stored.pod.container == ContainerState::Running
                && !is_over(&stored.pod)
        });
        let up = up.map(|stored| stored.pod.id.0);
        let mut ids: BTreeSet<u64> = up.filter(|id| !self.driver.deaf_to.contains(id)).collect();
        if self.driver.rng.chance(self.driver.lies) {
            let lie = self.driver.some_id(&self.cluster);
            ids.insert(lie);
        }
        let half = self.policy.heartbeat_timeout_ms / 2;
        let executors: BTreeSet<ExecutorId> = ids.into_iter().map(ExecutorId).collect();
        let want = self.unknown(&executors);
        let said = &mut self.driver.said;
        if said.called_at.is_none_or(|at| self.now > at + half) {
            said.since = self.now;
        }
        said.called_at = Some(self.now);
        // The answer names those that posse does not know, for example before its first LIST: it
        // cannot note a report about them.
        let known = executors.iter().filter(|id| !want.contains(id));
        said.heard.extend(known.map(|id| (id.0, self.now)));
        let reply = self.call(Command::Heartbeat { executors, memory: BTreeMap::new() })?;
        let is_right = matches!(&reply, Some(Reply::Noted { unknown }) if *unknown == want);
        if is_right { Ok(()) } else { Err(format!("{reply:?}, but {want:?} are unknown")) }
    }

    fn unknown(&self, ids: &BTreeSet<ExecutorId>) -> Vec<ExecutorId> {
        let Some(core) = &self.core else { return Vec::new() };
        ids.iter().copied().filter(|id| core.executors().get(*id).is_none()).collect()
    }

    fn say_idle(&mut self) -> CheckResult {
        let n = self.driver.rng.below(5);
        let ids = (0..n).map(|_| ExecutorId(self.driver.some_id(&self.cluster))).collect();
        self.driver.said.idle = Some((BTreeSet::clone(&ids), self.now));
        self.call(Command::Idle { executors: ids }).map(drop)
    }

    /// A kill call, or the last one again, and then the same call at once, which must change
    /// nothing.
    fn kill_some(&mut self) -> CheckResult {
        let driver = &mut self.driver;
        let n = 1 + driver.rng.below(4);
        let executors: BTreeSet<_> =
            (0..n).map(|_| ExecutorId(driver.some_id(&self.cluster))).collect();
        let after = match driver.rng.below(3) {
            0 => AfterKill::Lower,
            1 => AfterKill::Replace,
            _ => AfterKill::Target(u32::try_from(driver.rng.below(9)).unwrap()),
        };
        let (force, is_silent) = (driver.rng.chance(40), n == 4);
        let fresh = Command::Kill { executors, after, force, is_silent, reason: None };
        let again = driver.last_kill.take().filter(|_| driver.rng.chance(30));
        let command = again.unwrap_or(fresh);
        self.driver.last_kill = Some(command.clone());
        let Command::Kill { executors, after, force, is_silent, .. } = &command else {
            return Ok(());
        };
        self.driver.said.killed.extend(executors.iter().map(|id| id.0));
        if *is_silent {
            self.driver.said.silent.extend(executors.iter().map(|id| id.0));
        }
        let before = self.targets_now();
        let spared = if *force { Vec::new() } else { self.busy(executors) };
        let groups_of: BTreeMap<ExecutorId, GroupName> = self
            .core
            .iter()
            .flat_map(|core| core.executors().iter())
            .map(|(id, executor)| (id, executor.group.clone()))
            .collect();
        let unknown = self.unknown(executors);
        let Some(Reply::Killed { killed, busy, unknown: told, .. }) = self.call(command.clone())?
        else {
            // A target for several groups is refused as a whole.
            return self.must_be(&before, "a refused kill");
        };
        if busy != spared || told != unknown {
            return Err(format!(
                "{busy:?} are busy, {told:?} unknown; not {spared:?}, {unknown:?}"
            ));
        }
        let mut want = before.clone();
        if *after == AfterKill::Lower {
            for id in &killed {
                let group = want.get_mut(&groups_of[id]).expect("its group");
                group.0 = group.0.saturating_sub(1).max(group.1);
            }
        }
        if !matches!(after, AfterKill::Target(_)) {
            self.must_be(&want, "a kill")?;
        }
        let now = self.targets_now();
        let twice = self.call(command)?;
        if !matches!(&twice, Some(Reply::Killed { killed, .. }) if killed.is_empty()) {
            return Err(format!("a kill said twice kills twice: {twice:?}"));
        }
        self.must_be(&now, "a kill said twice")?;
        for (name, (target, _)) in now {
            self.driver.targets.insert(name, target);
        }
        Ok(())
    }

    /// Target and min of each group.
    fn targets_now(&self) -> BTreeMap<GroupName, (u32, u32)> {
        let groups = self.core.iter().flat_map(|core| core.executors().groups().iter());
        groups.map(|(name, group)| (name.clone(), (group.spec.target, group.spec.min))).collect()
    }

    fn must_be(&self, want: &BTreeMap<GroupName, (u32, u32)>, what: &str) -> CheckResult {
        let now = self.targets_now();
        if now == *want { Ok(()) } else { Err(format!("after {what}: {now:?}, not {want:?}")) }
    }

    fn busy(&self, ids: &BTreeSet<ExecutorId>) -> Vec<ExecutorId> {
        let Some((idle, at)) = &self.driver.said.idle else { return Vec::new() };
        let Some(core) = self.core.as_ref().filter(|_| self.now < at + IDLE_VALID_MS) else {
            return Vec::new();
        };
        let runs = |id: &ExecutorId| {
            core.executors().get(*id).is_some_and(|executor| executor.state == State::Running)
        };
        ids.iter().copied().filter(|id| runs(id) && !idle.contains(id)).collect()
    }

    /// The last report of the driver applies, whichever processes ended meanwhile.
    pub fn targets_are_kept(&self) -> CheckResult {
        let now = self.targets_now();
        for (name, target) in &self.driver.targets {
            if now.get(name).is_some_and(|(now, _)| now != target) && self.driver.is_there {
                return Err(format!("{name}: {now:?}, the driver said {target}"));
            }
        }
        Ok(())
    }
}
