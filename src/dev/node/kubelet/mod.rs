//! Owns the pods of the nodes: sees them in the store, takes each through its course, reports.

mod containers;
mod ending;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::Sender;
use serde_json::Value;

use self::containers::Owned;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::dev::apiserver::api::Api;
use crate::dev::faults::Fault;
use crate::dev::node::addresses::Addresses;
use crate::dev::node::nodes::Nodes;
use crate::dev::node::output::Outputs;
use crate::dev::node::probes::Askers;
use crate::dev::node::run::{Container, Next, Restart, Run, State};
use crate::dev::node::scheduler::{Scheduler, Wants};
use crate::dev::node::{Input, Settings, report};
use crate::dev::schema::kind::{Key, Kind};
use crate::dev::storage::events::{self, Note};
use crate::dev::storage::object::{Object, array_at, text_at};
use crate::dev::storage::store::Seen;
use crate::dev::time;

/// Where programs are looked for when this process has no PATH itself.
const PATH_DEFAULT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

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
    runs: BTreeMap<Key, Run>,
    /// By numbers that never come again, as ids of processes do.
    processes: BTreeMap<u64, Owned>,
    processes_started: u64,
    outputs: Outputs,
    askers: Askers,
    timers: BTreeMap<(Millis, u64), Timer>,
    timers_set: u64,
    /// What the fault `node-loss` said when it was looked at.
    loss: Option<String>,
    /// The store's version that has been looked at.
    seen: Seen,
}

/// What is due, and of which pod; none: of the node.
#[derive(Debug)]
struct Timer {
    of: Option<(Key, Box<str>)>,
    what: Due,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// The pull failed again: from now on it is called a backoff.
    BackOff(usize),
    /// The pod has run as long as it may.
    Deadline,
    /// The nodes are to be heard of.
    Heartbeat,
    /// The grace of this process is over.
    Kill(u64),
    /// The containers' memory is to be looked at.
    Memory,
    /// A process's probe is to be asked.
    Probe(u64, usize),
    /// The backoff of a container is over.
    Restart(usize),
    /// What kept a container from its start may be gone.
    Retry(usize),
    /// A simulated end.
    SimulatedEnd,
    /// The start delay is over.
    Start,
}

/// Images of drivers have posse on their PATH; here it is ours, where no other comes first.
fn with_ourselves(path: String) -> String {
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
            base_env: [(name, with_ourselves(path)), variable("HOME", "/")].into(),
            runs: BTreeMap::new(),
            processes: BTreeMap::new(),
            processes_started: 0,
            outputs: Outputs::new(Arc::clone(&api))?,
            askers: Askers::new(inbox.clone()),
            timers: BTreeMap::new(),
            timers_set: 0,
            loss: None,
            seen: Seen::default(),
            api,
            settings,
            inbox,
        };
        kubelet.nodes.register(&mut kubelet.api.lock());
        kubelet.heartbeat();
        Ok(kubelet)
    }

    /// Takes up what has changed in the store.
    pub(super) fn look(&mut self) {
        let loss = self.api.faults.text(Fault::NodeLoss);
        if loss != self.loss {
            // A node that is back catches up: with what it was told, and with what it has to tell.
            self.loss = loss;
            self.seen = Seen::default();
            let keys: Vec<Key> = self.runs.keys().cloned().collect();
            keys.iter().for_each(|key| self.catch_up(key));
        }
        let (pods, nodes_changed) = self.changed();
        if nodes_changed {
            self.look_at_nodes();
        }
        for key in pods {
            self.sync(&key);
        }
        let bound = self.scheduler.run(&self.api);
        for (key, node) in bound {
            let message = format!("Successfully assigned {}/{} to {node}", key.namespace, key.name);
            self.say(
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

    /// The pods that have changed, and whether a node has.
    fn changed(&mut self) -> (BTreeSet<Key>, bool) {
        let state = self.api.lock();
        match state.store.unseen(&mut self.seen) {
            Ok(changes) => {
                let mut nodes = false;
                let mut pods = BTreeSet::new();
                for key in changes.map(|change| &change.now.key) {
                    nodes |= key.kind == Kind::Node;
                    if key.kind == Kind::Pod {
                        pods.insert(key.clone());
                    }
                }
                (pods, nodes)
            }
            // Too far behind: look at everything.
            Err(_) => {
                let there = state.store.objects(Kind::Pod, "").map(|object| object.key.clone());
                (
                    there.chain(self.runs.keys().cloned()).chain(self.scheduler.known()).collect(),
                    true,
                )
            }
        }
    }

    /// What runs on a node that is no more ends with it.
    fn look_at_nodes(&mut self) {
        let nodes: Vec<Arc<Object>> =
            self.api.lock().store.objects(Kind::Node, "").cloned().collect();
        self.nodes.look(&mut self.api.lock(), &nodes);
        self.scheduler.look_at_nodes(&nodes);
        let homeless: Vec<Key> = self
            .runs
            .iter()
            .filter(|(_, run)| !self.nodes.serves(&run.node))
            .map(|(key, _)| key.clone())
            .collect();
        homeless.iter().for_each(|key| self.forget(key));
    }

    /// Reports what a pod did while its node was out of reach.
    fn catch_up(&mut self, key: &Key) {
        if self.is_cut_off(key) {
            return;
        }
        self.advance(key);
        let Some(run) = self.runs.get(key).filter(|run| run.ending.is_some()) else { return };
        if !run.has_running() {
            let uid = run.uid.clone();
            self.confirm_end(key, &uid);
        }
    }

    /// True while the fault keeps the pod's node from hearing and being heard.
    pub(super) fn is_cut_off(&self, key: &Key) -> bool {
        self.loss.is_some()
            && self.runs.get(key).is_some_and(|run| self.api.faults.is_lost(&run.node))
    }

    fn sync(&mut self, key: &Key) {
        let object = self.api.lock().store.get(key).cloned();
        self.account(key, object.as_deref());
        let node = object.as_ref().map_or("", |object| object.node());
        if self.is_cut_off(key) || self.loss.is_some() && self.api.faults.is_lost(node) {
            return;
        }
        let same = |run: &Run| object.as_ref().is_some_and(|object| *object.uid == *run.uid);
        if self.runs.get(key).is_some_and(|run| !same(run)) {
            self.forget(key);
        }
        let Some(object) = object.filter(|object| self.nodes.serves(object.node())) else { return };
        let known = self.runs.contains_key(key);
        if object.deleting {
            self.begin_end(key, &object);
        } else if !known && !object.is_terminal() {
            self.admit(key, &object);
        } else if known {
            // Few pods have these, and looking into each of many takes long.
            let names = |field: &str| object.item_json().contains(field);
            if names("\"activeDeadlineSeconds\"") {
                self.set_deadline(key, &object.value());
            }
            if names("\"readinessGates\"") {
                self.report(key);
            }
        }
    }

    /// Tells the scheduler what the pod takes, or wants.
    fn account(&mut self, key: &Key, object: Option<&Object>) {
        match object.filter(|object| !object.is_terminal()) {
            None => self.scheduler.release(key),
            Some(object) if object.node().is_empty() => {
                if object.deleting {
                    self.scheduler.release(key);
                } else if !self.scheduler.waits(key, object.version) {
                    self.scheduler.add(key, object);
                }
            }
            Some(object) => {
                if !self.scheduler.has(key, &object.uid) {
                    let wants = Wants::of(&object.value());
                    self.scheduler.take(key, &object.uid, object.node(), &wants);
                }
            }
        }
    }

    /// Takes in a pod that was bound to a node of ours.
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
                container.state = State::Waiting { reason: "PodInitializing", message };
            }
        }
        let is_host = pod.pointer("/spec/hostNetwork") == Some(&Value::Bool(true));
        let run = Run {
            uid: object.uid.clone(),
            node: object.node().into(),
            ip: if is_host { Ipv4Addr::LOCALHOST } else { self.addresses.take() },
            since: self.now_text(),
            restart: Restart::parse(text_at(&pod, "/spec/restartPolicy")),
            grace: pod
                .pointer("/spec/terminationGracePeriodSeconds")
                .and_then(Value::as_i64)
                .unwrap_or(30),
            n_init: init.len(),
            containers: init.into_iter().chain(main).collect(),
            ending: None,
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
            delay => self.set_timer(delay, key, Due::Start),
        }
    }

    /// Does what the pod's containers ask for next, then reports. Each round starts what was not
    /// started, restarts what ended or ends what runs, so the number of containers bounds them.
    pub(super) fn advance(&mut self, key: &Key) {
        if self.is_cut_off(key) {
            return;
        }
        loop {
            let Some(run) = self.runs.get(key) else { return };
            match run.next() {
                Next::Wait => break,
                Next::Start(containers) => {
                    for at in containers {
                        self.start(key, at);
                    }
                }
                Next::Stop(containers) => self.stop(key, &containers),
                Next::Restart(at) => self.set_restart(key, at),
            }
        }
        self.report(key);
    }

    fn set_restart(&mut self, key: &Key, at: usize) {
        let now = self.api.clock.now();
        let Some(run) = self.runs.get_mut(key) else { return };
        let uid = run.uid.clone();
        let Some(container) = run.containers.get_mut(at) else { return };
        container.restarting = true;
        let delay = container.backoff.next(now.0);
        self.set_timer(delay, key, Due::Restart(at));
        if delay == 0 {
            return;
        }
        let Some(container) = self.container_mut(key, at) else { return };
        let name = container.name.clone();
        let subject = format!("container={name} pod={}_{}({uid})", key.name, key.namespace);
        let time = go_seconds(delay / 1000);
        let message = format!("back-off {time} restarting failed {subject}");
        let waiting = State::Waiting { reason: "CrashLoopBackOff", message };
        if let State::Ended(ended) = std::mem::replace(&mut container.state, waiting) {
            container.last = Some(ended);
        }
        let message = format!(
            "Back-off restarting failed container {name} in pod {}_{}({uid})",
            key.name, key.namespace
        );
        self.event(key, Some(at), true, "BackOff", &message);
    }

    pub(super) fn container_mut(&mut self, key: &Key, at: usize) -> Option<&mut Container> {
        self.runs.get_mut(key)?.containers.get_mut(at)
    }

    pub(super) fn report(&self, key: &Key) {
        let Some(run) = self.runs.get(key).filter(|_| !self.is_cut_off(key)) else { return };
        let now = self.now_text();
        self.api.edit(key, &run.uid, |pod| report::write(run, pod, &now));
    }

    /// Records an Event about a pod, or one of its containers.
    pub(super) fn event(
        &self,
        key: &Key,
        at: Option<usize>,
        warning: bool,
        reason: &str,
        message: &str,
    ) {
        if self.settings.simulate {
            return;
        }
        let Some(run) = self.runs.get(key).filter(|_| !self.is_cut_off(key)) else { return };
        let field = at.and_then(|at| {
            let list = if at < run.n_init { "initContainers" } else { "containers" };
            run.containers.get(at).map(|container| format!("spec.{list}{{{}}}", container.name))
        });
        let (field, host) = (field.unwrap_or_default(), run.node.clone());
        let component = "kubelet";
        self.say(key, &Note { warning, reason, message, component, host: &host, field: &field });
    }

    fn say(&self, key: &Key, note: &Note<'_>) {
        let mut state = self.api.lock();
        if let Some(about) = state.store.get(key).cloned() {
            events::record(&mut state, &about, note);
        }
    }

    pub(super) fn now_text(&self) -> String {
        time::text(self.api.wall())
    }

    pub(super) fn set_timer(&mut self, delay_ms: u64, key: &Key, what: Due) {
        let Some(run) = self.runs.get(key) else { return };
        let of = Some((key.clone(), run.uid.clone()));
        self.set(delay_ms, Timer { of, what });
    }

    /// For what is of no pod.
    pub(super) fn set_own_timer(&mut self, delay_ms: u64, what: Due) {
        self.set(delay_ms, Timer { of: None, what });
    }

    fn set(&mut self, delay_ms: u64, timer: Timer) {
        self.timers_set += 1;
        let at = (self.api.clock.now().after(delay_ms), self.timers_set);
        self.timers.insert(at, timer);
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
            let Timer { of, what } = entry.remove();
            match of {
                None => self.on_own_timer(what),
                Some((key, uid)) => {
                    if self.runs.get(&key).is_some_and(|run| run.uid == uid) {
                        self.on_timer(&key, what);
                    }
                }
            }
        }
    }

    fn on_own_timer(&mut self, what: Due) {
        if matches!(what, Due::Heartbeat) {
            self.heartbeat();
        } else if matches!(what, Due::Memory) {
            self.look_at_memory();
        }
    }

    fn heartbeat(&mut self) {
        let faults = &self.api.faults;
        let every = self.nodes.heartbeat(&mut self.api.lock(), |node| faults.is_lost(node));
        self.set_own_timer(every, Due::Heartbeat);
    }

    fn on_timer(&mut self, key: &Key, what: Due) {
        let over = self.runs.get(key).is_some_and(Run::is_over);
        match what {
            Due::Heartbeat | Due::Memory => {}
            Due::Kill(number) => self.kill(number),
            Due::Deadline => self.on_deadline(key),
            Due::SimulatedEnd => self.simulate_end(key),
            Due::Probe(number, at) => self.probe(number, at),
            Due::BackOff(_) | Due::Restart(_) | Due::Retry(_) | Due::Start if over => {}
            Due::Start => self.advance(key),
            Due::Restart(at) => self.restart(key, at),
            Due::Retry(at) => {
                self.start(key, at);
                self.advance(key);
            }
            Due::BackOff(at) => self.back_off_pulling(key, at),
        }
    }

    fn restart(&mut self, key: &Key, at: usize) {
        if self.is_cut_off(key) {
            // Nothing starts there; when it is back, the time has come again.
            self.set_timer(1000, key, Due::Restart(at));
            return;
        }
        let Some(container) = self.container_mut(key, at) else { return };
        container.restarts += 1;
        container.restarting = false;
        if let State::Ended(ended) = &container.state {
            container.last = Some(ended.clone());
        }
        self.start(key, at);
        self.advance(key);
    }

    fn back_off_pulling(&mut self, key: &Key, at: usize) {
        let Some(container) = self.container_mut(key, at) else { return };
        let message = format!("Back-off pulling image \"{}\"", container.image);
        if let State::Waiting { reason, .. } = &mut container.state {
            *reason = "ImagePullBackOff";
        }
        self.event(key, Some(at), false, "BackOff", &message);
        self.event(key, Some(at), true, "Failed", "Error: ImagePullBackOff");
        self.report(key);
    }

    pub(super) fn has_processes(&self) -> bool {
        !self.processes.is_empty()
    }
}

/// A time as Go writes it.
fn go_seconds(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, seconds) => format!("{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_go_writes_them() {
        for (seconds, text) in [(10, "10s"), (80, "1m20s"), (300, "5m0s")] {
            assert_eq!(go_seconds(seconds), text);
        }
    }
}
