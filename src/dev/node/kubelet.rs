//! Owns the pods of the node: sees them in the store, starts and ends their processes, reports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use serde_json::Value;

use super::addresses::Addresses;
use super::environment::Blocked;
use super::process::{Process, StartFailed};
use super::run::{Container, Ended, Next, Restart, Run, State};
use super::scheduler::Scheduler;
use super::start::{NotStarted, Place, Words, prepare};
use super::{Input, Settings, report};
use crate::core::rng::Rng;
use crate::core::time::Millis;
use crate::dev::api::Api;
use crate::dev::deletion::DeleteOptions;
use crate::dev::kind::{Key, Kind};
use crate::dev::logs;
use crate::dev::object::{Object, array_at, text_at};
use crate::dev::time;

/// Where programs are looked for when this process has no PATH itself.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// A restart's delay: nothing for the first, then this, doubled to the maximum.
const CRASH_BACKOFF_MS: u64 = 10_000;
const CRASH_BACKOFF_MS_MAX: u64 = 300_000;
/// How long a failed pull is an error before it is a backoff.
const PULL_BACKOFF_MS: u64 = 2_000;
/// What a simulated process takes to end, at most.
const SIMULATED_END_MS_MAX: u64 = 100;

#[derive(Debug)]
pub(super) struct Kubelet {
    api: Arc<Api>,
    settings: Settings,
    inbox: Sender<Input>,
    scheduler: Scheduler,
    addresses: Addresses,
    rng: Rng,
    base_env: BTreeMap<String, String>,
    runs: BTreeMap<Key, Run>,
    processes: BTreeMap<u32, Owned>,
    timers: BTreeMap<(Millis, u64), Timer>,
    timers_set: u64,
    /// The store's version that has been looked at.
    seen: u64,
}

/// A process and whose it is. The pod may be gone; then it is only reaped.
#[derive(Debug)]
struct Owned {
    process: Process,
    key: Key,
    uid: Box<str>,
    container: usize,
}

#[derive(Debug)]
struct Timer {
    key: Key,
    uid: Box<str>,
    what: Due,
}

#[derive(Clone, Copy, Debug)]
enum Due {
    /// The pull failed again: from now on it is called a backoff.
    BackOff(usize),
    /// The grace is over.
    Kill,
    /// The backoff of a container is over.
    Restart(usize),
    /// A simulated end.
    SimulatedEnd,
    /// The start delay is over.
    Start,
}

impl Kubelet {
    pub(super) fn new(api: Arc<Api>, settings: Settings, inbox: Sender<Input>) -> Self {
        let scheduler = Scheduler::new(settings.nodes);
        scheduler.register(&mut api.lock());
        let variable = |name: &str, default: &str| {
            let value = std::env::var(name).unwrap_or_else(|_| default.to_owned());
            (name.to_owned(), value)
        };
        Self {
            scheduler,
            addresses: Addresses::new(settings.port),
            rng: Rng::new(settings.seed),
            base_env: [variable("PATH", PATH_DEFAULT), variable("HOME", "/")].into(),
            runs: BTreeMap::new(),
            processes: BTreeMap::new(),
            timers: BTreeMap::new(),
            timers_set: 0,
            seen: 0,
            api,
            settings,
            inbox,
        }
    }

    /// Takes up what has changed in the store.
    pub(super) fn look(&mut self) {
        for key in self.changed() {
            self.sync(&key);
        }
    }

    fn changed(&mut self) -> BTreeSet<Key> {
        let state = self.api.lock();
        let after = std::mem::replace(&mut self.seen, state.store.version());
        let pod = |key: &&Key| key.kind == Kind::Pod;
        match state.store.changes_after(after) {
            Ok(changes) => changes.map(|change| &change.now.key).filter(pod).cloned().collect(),
            // Too far behind: look at everything.
            Err(_) => {
                let there = state.store.objects(Kind::Pod, "").map(|object| object.key.clone());
                there.chain(self.runs.keys().cloned()).collect()
            }
        }
    }

    fn sync(&mut self, key: &Key) {
        let object = self.api.lock().store.get(key).cloned();
        let same = |run: &Run| object.as_ref().is_some_and(|object| *object.uid == *run.uid);
        if self.runs.get(key).is_some_and(|run| !same(run)) {
            self.forget(key);
        }
        let Some(object) = object else { return };
        let known = self.runs.contains_key(key);
        if object.node().is_empty() {
            if !object.deleting {
                let mut pod = object.value();
                self.scheduler.schedule(&mut self.api.lock(), key, &mut pod);
            }
        } else if object.deleting {
            self.begin_end(key, &object);
        } else if !known && !object.is_terminal() && self.scheduler.has(object.node()) {
            self.admit(key, &object);
        }
    }

    /// Takes in a pod that was bound to this node.
    fn admit(&mut self, key: &Key, object: &Object) {
        let pod = object.value();
        let containers = |list: &str| -> Vec<Container> {
            let items = array_at(&pod, list).iter();
            items.map(|c| Container::new(text_at(c, "/name"), text_at(c, "/image"))).collect()
        };
        let init = containers("/spec/initContainers");
        let mut main = containers("/spec/containers");
        if !init.is_empty() {
            for container in &mut main {
                let message = String::new();
                container.state = State::Waiting { reason: "PodInitializing", message };
            }
        }
        let run = Run {
            uid: object.uid.clone(),
            ip: self.addresses.take(),
            since: self.now_text(),
            restart: Restart::parse(text_at(&pod, "/spec/restartPolicy")),
            n_init: init.len(),
            containers: init.into_iter().chain(main).collect(),
            ending: None,
        };
        self.runs.insert(key.clone(), run);
        self.report(key);
        let delay = u64::try_from(self.settings.start_delay.as_millis()).unwrap_or(u64::MAX);
        let jitter = if self.settings.simulate { self.rng.below(delay / 2 + 1) } else { 0 };
        match delay.saturating_add(jitter) {
            0 => self.advance(key),
            delay => self.set_timer(delay, key, Due::Start),
        }
    }

    /// Does what the pod's containers ask for next, then reports. Each round starts what was not
    /// started or restarts what ended, so the number of containers bounds the rounds.
    fn advance(&mut self, key: &Key) {
        loop {
            let Some(run) = self.runs.get(key) else { return };
            match run.next() {
                Next::Wait => break,
                Next::Start(containers) => {
                    for at in containers {
                        self.start(key, at);
                    }
                }
                Next::Restart(at) => self.set_restart(key, at),
            }
        }
        self.report(key);
    }

    fn set_restart(&mut self, key: &Key, at: usize) {
        let Some(container) = self.container_mut(key, at) else { return };
        let delay = match container.restarts {
            0 => 0,
            n => (CRASH_BACKOFF_MS << (n - 1).min(10)).min(CRASH_BACKOFF_MS_MAX),
        };
        let message = format!("back-off {}s restarting failed container", delay / 1000);
        let waiting = State::Waiting { reason: "CrashLoopBackOff", message };
        if let State::Ended(ended) = std::mem::replace(&mut container.state, waiting) {
            container.last = Some(ended);
        }
        self.set_timer(delay, key, Due::Restart(at));
    }

    fn container_mut(&mut self, key: &Key, at: usize) -> Option<&mut Container> {
        self.runs.get_mut(key)?.containers.get_mut(at)
    }

    /// Starts one container, for the first time or again.
    fn start(&mut self, key: &Key, at: usize) {
        let object = self.api.lock().store.get(key).cloned();
        let Some(run) = self.runs.get_mut(key) else { return };
        let Some(object) = object.filter(|object| object.uid == run.uid) else {
            // Deleted meanwhile: the next look forgets it, and until then nothing starts.
            run.ending = Some(0);
            return;
        };
        let since = self.now_text();
        let started = match self.settings.simulate {
            true => Ok(None),
            false => self.start_process(key, at, &object).map(Some),
        };
        let state = match started {
            Ok(process) => State::Running { since, process },
            Err(NotStarted::Blocked(Blocked { reason, message })) => {
                if reason == "ErrImagePull" {
                    self.set_timer(PULL_BACKOFF_MS, key, Due::BackOff(at));
                }
                State::Waiting { reason, message }
            }
            Err(NotStarted::Failed(StartFailed(message))) => State::Ended(Ended {
                exit_code: 128,
                reason: "StartError",
                message,
                started_at: "1970-01-01T00:00:00Z".to_owned(),
                finished_at: since,
            }),
        };
        if let Some(container) = self.container_mut(key, at) {
            container.state = state;
        }
    }

    fn start_process(&mut self, key: &Key, at: usize, object: &Object) -> Result<u32, NotStarted> {
        let pod = object.value();
        let all: Vec<&Value> = array_at(&pod, "/spec/initContainers")
            .iter()
            .chain(array_at(&pod, "/spec/containers"))
            .collect();
        let (Some(spec), Some(run)) = (all.get(at), self.runs.get(key)) else {
            return Err(NotStarted::Failed(StartFailed("the container is gone".to_owned())));
        };
        let restarts = run.containers.get(at).map_or(0, |container| container.restarts);
        let folder = logs::pod_folder(&self.api.logs, key, &object.uid);
        let log = logs::file(&folder, text_at(spec, "/name"), restarts);
        let termination = log.with_extension("termination");
        let place = Place {
            api: &self.api,
            key,
            pod: &pod,
            spec,
            base: &self.base_env,
            termination: &termination,
        };
        let prepared = prepare(&place, Words::Container)?;
        let process = Process::start(prepared, &log, &self.inbox).map_err(NotStarted::Failed)?;
        let id = process.id();
        let owned = Owned { process, key: key.clone(), uid: object.uid.clone(), container: at };
        self.processes.insert(id, owned);
        Ok(id)
    }

    /// A process has ended.
    pub(super) fn on_end(&mut self, id: u32) {
        let Some(owned) = self.processes.remove(&id) else { return };
        let exit_code = owned.process.reap();
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(&owned.key).filter(|run| run.uid == owned.uid) else {
            return;
        };
        let Some(container) = run.containers.get_mut(owned.container) else { return };
        end(container, exit_code, finished_at);
        let ending = run.ending.is_some();
        let over = ending && !run.has_running();
        self.advance(&owned.key);
        if over {
            self.confirm_end(&owned.key, &owned.uid);
        }
    }

    /// The API wants the pod gone: a signal now, another when the grace is over.
    fn begin_end(&mut self, key: &Key, object: &Object) {
        let Some(run) = self.runs.get_mut(key).filter(|run| run.has_running()) else {
            self.confirm_end(key, &object.uid);
            return;
        };
        let pod = object.value();
        let grace = pod.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64);
        let grace = grace.unwrap_or_default();
        let first = run.ending.is_none();
        if run.ending.is_some_and(|present| present <= grace) {
            return;
        }
        run.ending = Some(grace);
        if self.settings.simulate {
            let delay = self.rng.below(SIMULATED_END_MS_MAX);
            self.set_timer(delay, key, Due::SimulatedEnd);
            return;
        }
        if first {
            self.signal(key, Process::terminate);
        }
        let grace_ms = u64::try_from(grace).unwrap_or_default().saturating_mul(1000);
        self.set_timer(grace_ms, key, Due::Kill);
    }

    fn signal(&self, key: &Key, signal: impl Fn(&Process)) {
        for owned in self.processes.values().filter(|owned| owned.key == *key) {
            signal(&owned.process);
        }
    }

    /// Nothing of the pod runs any more: its object may go.
    fn confirm_end(&mut self, key: &Key, uid: &str) {
        let options = DeleteOptions {
            grace_seconds: Some(0),
            uid: Some(uid.to_owned()),
            ..DeleteOptions::default()
        };
        if let Err(refused) = self.api.lock().delete(key, &options) {
            log::debug!("{key}: {}", refused.message);
        }
    }

    /// The pod's object is gone: so is what runs of it, and what it wrote.
    fn forget(&mut self, key: &Key) {
        let Some(run) = self.runs.remove(key) else { return };
        for owned in self.processes.values().filter(|owned| owned.uid == run.uid) {
            owned.process.kill();
        }
        let folder = logs::pod_folder(&self.api.logs, key, &run.uid);
        if let Err(error) = std::fs::remove_dir_all(&folder)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            log::warn!("{}: {error}", folder.display());
        }
    }

    fn report(&self, key: &Key) {
        let Some(run) = self.runs.get(key) else { return };
        let now = self.now_text();
        self.api.edit(key, &run.uid, |pod| report::write(run, pod, &now));
    }

    fn now_text(&self) -> String {
        time::text(self.api.clock.wall(self.api.clock.now()))
    }

    fn set_timer(&mut self, delay_ms: u64, key: &Key, what: Due) {
        let Some(run) = self.runs.get(key) else { return };
        self.timers_set += 1;
        let at = (self.api.clock.now().after(delay_ms), self.timers_set);
        self.timers.insert(at, Timer { key: key.clone(), uid: run.uid.clone(), what });
    }

    /// When the next timer is due.
    pub(super) fn due(&self) -> Option<Instant> {
        let ((at, _), _) = self.timers.first_key_value()?;
        self.api.clock.instant(*at)
    }

    /// Does what is due.
    pub(super) fn on_timers(&mut self) {
        let now = self.api.clock.now();
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            let Timer { key, uid, what } = entry.remove();
            if self.runs.get(&key).is_some_and(|run| run.uid == uid) {
                self.on_timer(&key, what);
            }
        }
    }

    fn on_timer(&mut self, key: &Key, what: Due) {
        let ending = self.runs.get(key).is_some_and(|run| run.ending.is_some());
        match what {
            Due::Kill => self.signal(key, Process::kill),
            Due::SimulatedEnd => self.simulate_end(key),
            Due::BackOff(_) | Due::Restart(_) | Due::Start if ending => {}
            Due::Start => self.advance(key),
            Due::Restart(at) => {
                if let Some(container) = self.container_mut(key, at) {
                    container.restarts += 1;
                    self.start(key, at);
                    self.advance(key);
                }
            }
            Due::BackOff(at) => {
                let Some(container) = self.container_mut(key, at) else { return };
                if let State::Waiting { reason, .. } = &mut container.state {
                    *reason = "ImagePullBackOff";
                }
                self.report(key);
            }
        }
    }

    fn simulate_end(&mut self, key: &Key) {
        const TERMINATED: i32 = 143;
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(key) else { return };
        for container in run.containers.iter_mut().filter(|container| container.is_running()) {
            end(container, TERMINATED, finished_at.clone());
        }
        let uid = run.uid.clone();
        self.report(key);
        self.confirm_end(key, &uid);
    }

    pub(super) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Reaps a process without looking at its pod: the cluster ends.
    pub(super) fn reap(&mut self, id: u32) {
        if let Some(owned) = self.processes.remove(&id) {
            let code = owned.process.reap();
            log::debug!("{}: ended with {code}", owned.key);
        }
    }

    pub(super) fn terminate_all(&self) {
        self.processes.values().for_each(|owned| owned.process.terminate());
    }

    pub(super) fn kill_all(&self) {
        self.processes.values().for_each(|owned| owned.process.kill());
    }
}

fn end(container: &mut Container, exit_code: i32, finished_at: String) {
    let started_at = match &container.state {
        State::Running { since, .. } => since.clone(),
        State::Ended(_) | State::Waiting { .. } => finished_at.clone(),
    };
    container.state = State::Ended(Ended {
        exit_code,
        reason: if exit_code == 0 { "Completed" } else { "Error" },
        message: String::new(),
        started_at,
        finished_at,
    });
}
