//! The kubelet: it watches the store for pods on its nodes, runs each pod and reports its status.

mod containers;
mod exec_commands;
mod termination;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use serde_json::Value;

use self::containers::ContainerProcess;
use crate::apiserver::api::Api;
use crate::faults::Fault;
use crate::node::addresses::Addresses;
use crate::node::nodes::Nodes;
use crate::node::output::Outputs;
use crate::node::run::{Container, ContainerState, NextAction, PodRun, RestartPolicy};
use crate::node::scheduler::{Requirements, Scheduler};
use crate::node::{Input, Settings, WATCHED, report, volumes};
use crate::schema::kind::{Key, Kind};
use crate::storage::events::{self, Note};
use crate::storage::object::{Object, array_at, text_at};
use crate::storage::store::Seen;
use crate::time;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The containers' PATH if this process has none itself.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// How often all volumes are updated.
const VOLUMES_MS: u64 = 60_000;

#[derive(Debug)]
pub(super) struct Kubelet {
    pub(super) api: Arc<Api>,
    settings: Settings,
    inbox: Sender<Input>,
    nodes: Nodes,
    scheduler: Scheduler,
    addresses: Addresses,
    rng: Rng,
    base_env: BTreeMap<String, String>,
    runs: BTreeMap<Key, PodRun>,
    /// Keyed by numbers that are never reused, unlike process ids.
    processes: BTreeMap<u64, ContainerProcess>,
    processes_started: u64,
    outputs: Outputs,
    timers: BTreeMap<(Millis, u64), Timer>,
    timers_set: u64,
    /// The value of the fault `node-loss` at the last sync.
    loss: Option<String>,
    /// The store changes that have been handled.
    seen: Seen,
}

#[derive(Debug)]
enum Timer {
    /// Compare the containers' memory with their limits.
    Memory,
    /// Update all volumes: tokens expire without a change of any object.
    Volumes,
    /// The pod's key and uid.
    Pod(Key, Box<str>, TimerKind),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum TimerKind {
    /// Report `ImagePullBackOff` in place of `ErrImagePull`.
    BackOff(usize),
    /// The pod's `activeDeadlineSeconds` are over.
    Deadline,
    /// The grace period of this process is over.
    Kill(u64),
    /// Run a probe of this process.
    Probe(u64, usize),
    /// The restart backoff of a container is over.
    Restart(usize),
    /// Try again to start a container that could not start.
    Retry(usize),
    /// End the simulated containers that are stopping.
    SimulatedEnd,
    /// The start delay is over.
    Start,
}

/// Appends the folder of this program to `path`: drivers expect `posse` on their PATH, as in a
/// driver image.
fn with_own_folder(path: String) -> String {
    let folder =
        std::env::current_exe().ok().and_then(|exe| exe.parent()?.to_str().map(str::to_owned));
    match folder {
        Some(folder) => format!("{path}:{folder}"),
        None => path,
    }
}

impl Kubelet {
    pub(super) fn new(api: Arc<Api>, settings: Settings, inbox: Sender<Input>) -> io::Result<Self> {
        let variable = |name: &str, default: &str| {
            let value = std::env::var(name).unwrap_or_else(|_| default.to_owned());
            (name.to_owned(), value)
        };
        let (name, path) = variable("PATH", PATH_DEFAULT);
        let mut kubelet = Self {
            nodes: Nodes::new(settings.nodes, settings.simulate),
            scheduler: Scheduler::default(),
            addresses: Addresses::new(settings.port),
            rng: Rng::new(settings.seed),
            base_env: [(name, with_own_folder(path)), variable("HOME", "/")].into(),
            runs: BTreeMap::new(),
            processes: BTreeMap::new(),
            processes_started: 0,
            outputs: Outputs::new(Arc::clone(&api))?,
            timers: BTreeMap::new(),
            timers_set: 0,
            loss: None,
            seen: Seen::default(),
            api,
            settings,
            inbox,
        };
        kubelet.nodes.register(&mut kubelet.api.lock());
        if !kubelet.settings.simulate {
            kubelet.set(VOLUMES_MS, Timer::Volumes);
        }
        Ok(kubelet)
    }

    /// Handles all changes in the store since the last call.
    pub(super) fn sync_changes(&mut self) {
        let loss = self.api.faults.text(Fault::NodeLoss);
        if loss != self.loss {
            // A node that is connected again has to see all objects and report all its pods.
            self.loss = loss;
            self.seen = Seen::default();
            let keys: Vec<Key> = self.runs.keys().cloned().collect();
            keys.iter().for_each(|key| self.catch_up(key));
        }
        let changed = self.changed();
        if changed.iter().any(|key| key.kind == Kind::Node) {
            self.sync_nodes();
        }
        for key in changed.iter().filter(|key| key.kind == Kind::Pod) {
            self.sync(key);
        }
        self.refresh_volumes(&changed);
        let bound = self.scheduler.run(&self.api);
        for (key, node) in bound {
            let message = format!("Successfully assigned {}/{} to {node}", key.namespace, key.name);
            self.record(
                &key,
                &Note {
                    reason: "Scheduled",
                    message: &message,
                    component: "default-scheduler",
                    ..Note::default()
                },
            );
        }
    }

    /// What has changed.
    fn changed(&mut self) -> BTreeSet<Key> {
        let state = self.api.lock();
        let changed: BTreeSet<Key> = match state.store.unseen(&mut self.seen) {
            Ok(changes) => changes.map(|change| change.now.key.clone()).collect(),
            // The change history no longer reaches back far enough: sync everything.
            Err(_) => {
                let stored = WATCHED.into_iter().flat_map(|kind| state.store.objects(kind, ""));
                let known = self.runs.keys().cloned().chain(self.scheduler.known());
                stored.map(|object| object.key.clone()).chain(known).collect()
            }
        };
        let is_claim =
            |key: &Key| matches!(key.kind, Kind::PersistentVolume | Kind::PersistentVolumeClaim);
        if changed.iter().any(is_claim) {
            self.scheduler.on_claim_change();
        }
        changed
    }

    /// Updates the volumes that hold data of changed objects.
    fn refresh_volumes(&self, changed: &BTreeSet<Key>) {
        let is_source = |key: &Key| matches!(key.kind, Kind::ConfigMap | Kind::Secret);
        let concerns_all = changed.iter().any(is_source);
        if self.settings.simulate {
            return;
        }
        for key in self.runs.keys().filter(|key| concerns_all || changed.contains(key)) {
            volumes::refresh(&self.api, key, Some(changed));
        }
    }

    /// Reads the nodes again and kills the pods of nodes that were deleted.
    fn sync_nodes(&mut self) {
        let nodes: Vec<Arc<Object>> =
            self.api.lock().store.objects(Kind::Node, "").cloned().collect();
        self.nodes.sync(&mut self.api.lock(), &nodes);
        self.scheduler.set_nodes(&nodes);
        let without_node: Vec<Key> = self
            .runs
            .iter()
            .filter(|(_, run)| !self.nodes.serves(&run.node))
            .map(|(key, _)| key.clone())
            .collect();
        without_node.iter().for_each(|key| self.forget(key));
    }

    /// Goes on with a pod of which a container has ended, or whose node is connected again. The last
    /// container of a terminating pod ends the pod.
    fn catch_up(&mut self, key: &Key) {
        self.advance(key);
        let Some(run) = self.runs.get(key).filter(|run| run.terminating.is_some()) else { return };
        if !run.has_running() {
            let uid = run.uid.clone();
            self.confirm_termination(key, &uid);
        }
    }

    /// True while the fault `node-loss` disconnects the pod's node from the API server.
    pub(super) fn is_disconnected(&self, key: &Key) -> bool {
        self.loss.is_some()
            && self.runs.get(key).is_some_and(|run| self.api.faults.is_lost(&run.node))
    }

    fn sync(&mut self, key: &Key) {
        let object = self.api.lock().store.get(key).cloned();
        self.update_scheduler(key, object.as_deref());
        let node = object.as_ref().map_or("", |object| object.node());
        if self.is_disconnected(key) || self.loss.is_some() && self.api.faults.is_lost(node) {
            return;
        }
        let same = |run: &PodRun| object.as_ref().is_some_and(|object| *object.uid == *run.uid);
        if self.runs.get(key).is_some_and(|run| !same(run)) {
            self.forget(key);
        }
        let Some(object) = object.filter(|object| self.nodes.serves(object.node())) else { return };
        let known = self.runs.contains_key(key);
        if object.deleting {
            self.begin_termination(key, &object);
        } else if !known && !object.is_terminal() {
            self.admit(key, &object);
        } else if known {
            // Parse only pods that have one of these fields: parsing thousands of pods is slow.
            let has_field = |field: &str| object.item_json().contains(field);
            if has_field("\"activeDeadlineSeconds\"") {
                self.set_deadline(key, &object.value());
            }
            if has_field("\"limits\"") {
                self.set_memory_limits(key, &object.value());
            }
        }
    }

    /// Tells the scheduler about a pod: its node, its requirements, or its end.
    fn update_scheduler(&mut self, key: &Key, object: Option<&Object>) {
        match object.filter(|object| !object.is_terminal()) {
            None => self.scheduler.release(key),
            Some(object) if object.node().is_empty() => {
                if object.deleting {
                    self.scheduler.release(key);
                } else if !self.scheduler.is_pending(key, object.version) {
                    self.scheduler.add(key, object);
                }
            }
            Some(object) => {
                if !self.scheduler.is_assigned(key, &object.uid) {
                    let requirements = Requirements::from_pod(&object.value());
                    self.scheduler.assign(key, &object.uid, object.node(), &requirements);
                }
            }
        }
    }

    /// Starts to run a pod that was bound to one of our nodes.
    fn admit(&mut self, key: &Key, object: &Object) {
        let pod = object.value();
        let containers = |list: &str| -> Vec<Container> {
            let items = array_at(&pod, &format!("/spec/{list}")).iter();
            items.map(|spec| Container::new(spec, list)).collect()
        };
        let init = containers("initContainers");
        let mut main = containers("containers");
        if !init.is_empty() {
            for container in &mut main {
                let message = String::new();
                container.state = ContainerState::Waiting { reason: "PodInitializing", message };
            }
        }
        let is_host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
        let run = PodRun {
            uid: object.uid.clone(),
            node: object.node().into(),
            ip: if is_host { Ipv4Addr::LOCALHOST } else { self.addresses.take() },
            since: self.now_text(),
            restart: RestartPolicy::parse(text_at(&pod, "/spec/restartPolicy")),
            grace: pod
                .pointer("/spec/terminationGracePeriodSeconds")
                .and_then(Value::as_i64)
                .unwrap_or(30),
            n_init: init.len(),
            containers: init.into_iter().chain(main).collect(),
            terminating: None,
            failed: None,
            end_by_ms: None,
        };
        self.runs.insert(key.clone(), run);
        self.report(key);
        self.set_deadline(key, &pod);
        let delay = u64::try_from(self.settings.start_delay.as_millis()).unwrap_or(u64::MAX);
        let jitter = if self.settings.simulate { self.rng.below(delay / 2 + 1) } else { 0 };
        match delay.saturating_add(jitter) {
            0 => self.advance(key),
            delay => self.set_timer(delay, key, TimerKind::Start),
        }
    }

    /// Starts, restarts and stops containers until the pod has to wait, then reports its status.
    /// Each round changes at least one container, so the number of containers bounds the loop.
    pub(super) fn advance(&mut self, key: &Key) {
        if self.is_disconnected(key) {
            return;
        }
        loop {
            let Some(run) = self.runs.get(key) else { return };
            match run.next_action() {
                NextAction::Wait => break,
                NextAction::Start(containers) => {
                    for index in containers {
                        self.start(key, index);
                    }
                }
                NextAction::Stop(containers) => self.stop(key, &containers),
                NextAction::Restart(index) => self.set_restart(key, index),
            }
        }
        self.report(key);
    }

    fn set_restart(&mut self, key: &Key, index: usize) {
        let now = self.api.clock.now();
        let Some(run) = self.runs.get_mut(key) else { return };
        let uid = run.uid.clone();
        let Some(container) = run.containers.get_mut(index) else { return };
        container.restarting = true;
        let delay = container.backoff.next(now.0);
        self.set_timer(delay, key, TimerKind::Restart(index));
        if delay == 0 {
            return;
        }
        let Some(container) = self.container_mut(key, index) else { return };
        let name = container.name.clone();
        let subject = format!("container={name} pod={}_{}({uid})", key.name, key.namespace);
        let message = format!("back-off {}s restarting failed {subject}", delay / 1000);
        let waiting = ContainerState::Waiting { reason: "CrashLoopBackOff", message };
        if let ContainerState::Terminated(ended) = std::mem::replace(&mut container.state, waiting)
        {
            container.last = Some(ended);
        }
        let message = format!(
            "Back-off restarting failed container {name} in pod {}_{}({uid})",
            key.name, key.namespace
        );
        self.event(key, Some(index), true, "BackOff", &message);
    }

    pub(super) fn container_mut(&mut self, key: &Key, index: usize) -> Option<&mut Container> {
        self.runs.get_mut(key)?.containers.get_mut(index)
    }

    pub(super) fn report(&self, key: &Key) {
        let Some(run) = self.runs.get(key).filter(|_| !self.is_disconnected(key)) else { return };
        let now = self.now_text();
        self.api.lock().edit(key, &run.uid, |pod| report::write(run, pod, &now));
    }

    /// Records a kubelet Event about a pod, or about its container `index`.
    pub(super) fn event(
        &self,
        key: &Key,
        index: Option<usize>,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        if self.settings.simulate {
            return;
        }
        let Some(run) = self.runs.get(key).filter(|_| !self.is_disconnected(key)) else { return };
        let field = index.and_then(|index| {
            let list = if index < run.n_init { "initContainers" } else { "containers" };
            run.containers.get(index).map(|container| format!("spec.{list}{{{}}}", container.name))
        });
        let (field, host) = (field.unwrap_or_default(), run.node.clone());
        let component = "kubelet";
        self.record(key, &Note { warning, reason, message, component, host: &host, field: &field });
    }

    fn record(&self, key: &Key, note: &Note<'_>) {
        let mut state = self.api.lock();
        if let Some(about) = state.store.get(key).cloned() {
            events::record(&mut state, &about, note);
        }
    }

    pub(super) fn now_text(&self) -> String {
        time::text(self.api.wall())
    }

    pub(super) fn set_timer(&mut self, delay_ms: u64, key: &Key, kind: TimerKind) {
        let Some(run) = self.runs.get(key) else { return };
        let timer = Timer::Pod(key.clone(), run.uid.clone(), kind);
        self.set(delay_ms, timer);
    }

    fn set(&mut self, delay_ms: u64, timer: Timer) {
        self.timers_set += 1;
        let due = (self.api.clock.now().after(delay_ms), self.timers_set);
        self.timers.insert(due, timer);
    }

    /// When the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        let ((due, _), _) = self.timers.first_key_value()?;
        self.api.clock.instant(*due)
    }

    /// Runs all timers that are due.
    pub(super) fn on_timers(&mut self) {
        let now = self.api.clock.now();
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= now) {
            match entry.remove() {
                Timer::Memory => self.check_memory(),
                Timer::Volumes => {
                    self.runs.keys().for_each(|key| volumes::refresh(&self.api, key, None));
                    self.set(VOLUMES_MS, Timer::Volumes);
                }
                Timer::Pod(key, uid, kind) => {
                    if self.runs.get(&key).is_some_and(|run| run.uid == uid) {
                        self.on_timer(&key, kind);
                    }
                }
            }
        }
    }

    fn on_timer(&mut self, key: &Key, kind: TimerKind) {
        let is_over = self.runs.get(key).is_some_and(PodRun::is_over);
        match kind {
            TimerKind::Kill(number) => self.kill(number),
            TimerKind::Deadline => self.on_deadline(key),
            TimerKind::SimulatedEnd => self.simulate_end(key),
            TimerKind::Probe(number, index) => self.probe(number, index),
            TimerKind::BackOff(_)
            | TimerKind::Restart(_)
            | TimerKind::Retry(_)
            | TimerKind::Start
                if is_over => {}
            TimerKind::Start => self.advance(key),
            TimerKind::Restart(index) => self.restart(key, index),
            TimerKind::Retry(index) => {
                self.start(key, index);
                self.advance(key);
            }
            TimerKind::BackOff(index) => self.back_off_pulling(key, index),
        }
    }

    fn restart(&mut self, key: &Key, index: usize) {
        if self.is_disconnected(key) {
            // A disconnected node starts nothing: try again later.
            self.set_timer(1000, key, TimerKind::Restart(index));
            return;
        }
        let Some(container) = self.container_mut(key, index) else { return };
        container.restarts += 1;
        container.restarting = false;
        if let ContainerState::Terminated(ended) = &container.state {
            container.last = Some(ended.clone());
        }
        self.start(key, index);
        self.advance(key);
    }

    fn back_off_pulling(&mut self, key: &Key, index: usize) {
        let Some(container) = self.container_mut(key, index) else { return };
        let message = format!("Back-off pulling image \"{}\"", container.image);
        if let ContainerState::Waiting { reason, .. } = &mut container.state {
            *reason = "ImagePullBackOff";
        }
        self.event(key, Some(index), false, "BackOff", &message);
        self.event(key, Some(index), true, "Failed", "Error: ImagePullBackOff");
        self.report(key);
    }

    pub(super) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }
}
