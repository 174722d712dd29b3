//! Owns the containers' processes: their start, hooks, probes, memory and end. What runs when is
//! the pod's course to say.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{Due, Kubelet};
use crate::core::model::time::Millis;
use crate::dev::node::environment::Blocked;
use crate::dev::node::memory;
use crate::dev::node::probes::probe::{self, Action, Probe, Which};
use crate::dev::node::probes::{Exec, Purpose, Question, Reply};
use crate::dev::node::process::Process;
use crate::dev::node::run::{Ended, Role, State};
use crate::dev::node::start::{Place, Words, prepare};
use crate::dev::node::start_error::{NotStarted, StartFailed, not_started};
use crate::dev::schema::kind::Key;
use crate::dev::storage::log_files;
use crate::dev::storage::object::{Object, array_at, text_at};
use crate::wire::quantity::Quantity;

/// How long a failed pull is an error before it is a backoff.
const PULL_BACKOFF_MS: u64 = 2_000;
/// A container that cannot be started yet is tried again after this.
const RETRY_MS: u64 = 1_000;
/// What a process gets whose hook took all of the grace, and a side-car at least.
const LAST_GRACE_MS: u64 = 2_000;
/// How often the memory of limited containers is looked at, near their limit and far from it.
const MEMORY_MS: u64 = 250;
const MEMORY_FAR_MS: u64 = 1_000;
const TERMINATION_BYTES_MAX: usize = 4096;

/// A process and whose it is. The pod may be gone; then it is only reaped.
#[derive(Debug)]
pub(super) struct Owned {
    process: Process,
    pub(super) key: Key,
    pub(super) uid: Box<str>,
    container: usize,
    since: Millis,
    probes: Vec<Probe>,
    /// A probe's answer is awaited; by its place.
    asked: Vec<bool>,
    pre_stop: bool,
    /// Its `preStop` hook still runs, and the signal waits for it.
    in_hook: bool,
    memory_limit: Option<u64>,
    out_of_memory: bool,
    log: PathBuf,
    termination: PathBuf,
    falls_back_to_logs: bool,
}

impl Owned {
    pub(super) fn terminate(&self) {
        self.process.terminate();
    }

    pub(super) fn kill(&self) {
        self.process.kill();
    }
}

/// The container at this place of the pod: the initial ones first.
fn container_spec(pod: &Value, at: usize) -> Option<&Value> {
    let init = array_at(pod, "/spec/initContainers").iter();
    init.chain(array_at(pod, "/spec/containers")).nth(at)
}

impl Kubelet {
    /// Starts one container, for the first time or again.
    pub(super) fn start(&mut self, key: &Key, at: usize) {
        let object = self.api.lock().store.get(key).cloned();
        let Some(run) = self.runs.get_mut(key) else { return };
        let Some(object) = object.filter(|object| object.uid == run.uid) else {
            // Deleted meanwhile: the next look forgets it, and until then nothing starts.
            run.ending = Some(0);
            return;
        };
        let since = self.now_text();
        let started = match self.settings.simulate {
            true => Ok(()),
            false => self.start_process(key, at, &object),
        };
        let simulate = self.settings.simulate;
        let Some(container) = self.container_mut(key, at) else { return };
        let (was_tried, name) = (container.tried, container.name.clone());
        container.tried = true;
        container.stopping = false;
        match started {
            Ok(()) => {
                container.state = State::Running { since };
                (container.started, container.ready) = (simulate, simulate);
                if !simulate {
                    self.event(
                        key,
                        Some(at),
                        false,
                        "Started",
                        &format!("Started container {name}"),
                    );
                    self.begin(key, at, &object.value());
                }
            }
            Err(NotStarted::Blocked(blocked)) => self.block(key, at, blocked, was_tried),
            Err(NotStarted::Failed(StartFailed(message))) => {
                container.state = State::Ended(Ended {
                    exit_code: 128,
                    reason: "StartError",
                    message: message.clone(),
                    started_at: "1970-01-01T00:00:00Z".to_owned(),
                    finished_at: since,
                });
                self.event(key, Some(at), true, "Failed", &format!("Error: {message}"));
            }
        }
    }

    fn block(&mut self, key: &Key, at: usize, blocked: Blocked, was_tried: bool) {
        let Blocked { reason, message } = blocked;
        let Some(container) = self.container_mut(key, at) else { return };
        let image = container.image.clone();
        let same = container.state == State::Waiting { reason, message: message.clone() };
        if reason == "ContainerCreating" {
            // The volumes are not there yet; the state stays what it is at a pod's begin.
            self.event(key, None, true, "FailedMount", &message);
            self.set_timer(RETRY_MS, key, Due::Retry(at));
            return;
        }
        container.state = State::Waiting { reason, message: message.clone() };
        if reason == "ErrImagePull" {
            let failed = format!("Failed to pull image \"{image}\": {message}");
            self.event(key, Some(at), true, "Failed", &failed);
            self.event(key, Some(at), true, "Failed", "Error: ErrImagePull");
            self.set_timer(PULL_BACKOFF_MS, key, Due::BackOff(at));
            return;
        }
        if !(same && was_tried) {
            self.event(key, Some(at), true, "Failed", &format!("Error: {message}"));
        }
        self.set_timer(RETRY_MS, key, Due::Retry(at));
    }

    fn start_process(&mut self, key: &Key, at: usize, object: &Object) -> Result<(), NotStarted> {
        let failed = |what: String| NotStarted::Failed(not_started(&what));
        let pod = object.value();
        let (Some(spec), Some(run)) = (container_spec(&pod, at), self.runs.get(key)) else {
            return Err(failed("the container is gone".to_owned()));
        };
        let restarts = run.containers.get(at).map_or(0, |container| container.restarts);
        let ip = run.ip.to_string();
        let folder = log_files::pod_folder(&self.api.logs, key, &object.uid);
        let log = log_files::file(&folder, text_at(spec, "/name"), restarts);
        let termination = log.with_extension("termination");
        make_files(&folder, &termination, text_at(spec, "/name"), restarts)
            .map_err(|error| failed(format!("{}: {error}", folder.display())))?;
        let place = Place {
            api: &self.api,
            key,
            pod: &pod,
            spec,
            base: &self.base_env,
            termination: &termination,
        };
        let prepared = prepare(&place, Words::Container)?;
        let (name, image) = (text_at(spec, "/name"), text_at(spec, "/image"));
        let message = format!("Container image \"{image}\" already present on machine");
        self.event(key, Some(at), false, "Pulled", &message);
        self.event(key, Some(at), false, "Created", &format!("Created container {name}"));
        self.processes_started += 1;
        let number = self.processes_started;
        let output = self
            .outputs
            .open(number, &log)
            .map_err(|error| failed(format!("{}: {error}", log.display())))?;
        let process = match Process::start(number, prepared, output, &self.inbox) {
            Ok(process) => process,
            Err(not_started) => {
                self.outputs.close(number);
                return Err(not_started);
            }
        };
        let probes = Probe::all(spec, &ip);
        let owned = Owned {
            process,
            key: key.clone(),
            uid: object.uid.clone(),
            container: at,
            since: self.api.clock.now(),
            asked: vec![false; probes.len()],
            probes,
            pre_stop: spec.pointer("/lifecycle/preStop").is_some(),
            in_hook: false,
            memory_limit: self.memory_limit(spec),
            out_of_memory: false,
            log,
            termination,
            falls_back_to_logs: text_at(spec, "/terminationMessagePolicy")
                == "FallbackToLogsOnError",
        };
        let limited = |owned: &Owned| owned.memory_limit.is_some();
        if limited(&owned) && !self.processes.values().any(limited) {
            self.set_own_timer(MEMORY_MS, Due::Memory);
        }
        self.processes.insert(number, owned);
        if let Some(container) = self.container_mut(key, at) {
            container.process = Some(number);
        }
        Ok(())
    }

    fn memory_limit(&self, spec: &Value) -> Option<u64> {
        let limit = Quantity::parse(text_at(spec, "/resources/limits/memory"));
        limit
            .filter(|limit| self.settings.memory_limits && !limit.is_zero())
            .and_then(|limit| u64::try_from(limit.divided(Quantity::parse("1")?)).ok())
    }

    /// What follows a container's start: its hook, then its probes.
    fn begin(&mut self, key: &Key, at: usize, pod: &Value) {
        let Some(number) = self.container_mut(key, at).and_then(|container| container.process)
        else {
            return;
        };
        match container_spec(pod, at).and_then(|spec| spec.pointer("/lifecycle/postStart")) {
            Some(hook) => self.ask_hook(number, pod, hook, Purpose::PostStart, u64::MAX),
            None => self.begin_probes(number),
        }
    }

    fn begin_probes(&mut self, number: u64) {
        let Some(owned) = self.processes.get(&number) else { return };
        let has = |which: Which| owned.probes.iter().any(|probe| probe.which == which);
        let (startup, readiness) = (has(Which::Startup), has(Which::Readiness));
        let (key, at) = (owned.key.clone(), owned.container);
        if let Some(container) = self.container_mut(&key, at) {
            container.started = !startup;
            container.ready = !startup && !readiness;
        }
        self.set_probes(number, |which| (which == Which::Startup) == startup);
    }

    /// Sets the first timers of these probes: their delay counts from the container's start.
    fn set_probes(&mut self, number: u64, wanted: impl Fn(Which) -> bool) {
        let Some(owned) = self.processes.get(&number) else { return };
        let ran = self.api.clock.now().0.saturating_sub(owned.since.0);
        let key = owned.key.clone();
        let probes = owned.probes.iter().enumerate().filter(|(_, probe)| wanted(probe.which));
        let delays: Vec<_> =
            probes.map(|(at, probe)| (at, probe.delay_ms.saturating_sub(ran))).collect();
        for (at, delay) in delays {
            self.set_timer(delay, &key, Due::Probe(number, at));
        }
    }

    /// Asks a probe, and sets the time of its next question.
    pub(super) fn probe(&mut self, number: u64, at: usize) {
        let Some(owned) = self.processes.get_mut(&number) else { return };
        let (Some(probe), Some(asked)) = (owned.probes.get(at), owned.asked.get_mut(at)) else {
            return;
        };
        let key = owned.key.clone();
        let stopping = self
            .runs
            .get(&key)
            .and_then(|run| run.containers.get(owned.container))
            .is_none_or(|container| container.stopping);
        if probe.is_done() || stopping {
            return;
        }
        let (period, timeout) = (probe.period_ms, Duration::from_millis(probe.timeout_ms));
        // The last question is still open: this one is left out.
        if !std::mem::replace(asked, true) {
            let action = probe.action.clone();
            let output = owned.log.with_extension(format!("probe{at}"));
            let exec = match &action {
                Action::Exec(words) => self.exec(number, Words::Probe(words), output),
                Action::Faulty(_) | Action::Http { .. } | Action::Tcp { .. } => None,
            };
            let purpose = Purpose::Probe(at);
            let question = Question { number, purpose, action, timeout, exec };
            let room = self.askers.ask(question);
            if let Some(owned) = self.processes.get_mut(&number)
                && let Some(asked) = owned.asked.get_mut(at)
            {
                *asked = room;
            }
        }
        self.set_timer(period, &key, Due::Probe(number, at));
    }

    /// A command in the container of this process.
    fn exec(&self, number: u64, words: Words<'_>, output: PathBuf) -> Option<Exec> {
        let owned = self.processes.get(&number)?;
        let object = self.api.lock().store.get(&owned.key).cloned()?;
        let pod = object.value();
        let place = Place {
            api: &self.api,
            key: &owned.key,
            pod: &pod,
            spec: container_spec(&pod, owned.container)?,
            base: &self.base_env,
            termination: &owned.termination,
        };
        let prepared = prepare(&place, words).ok()?;
        Some(Exec { prepared, group: owned.process.id(), output })
    }

    fn ask_hook(&self, number: u64, pod: &Value, hook: &Value, purpose: Purpose, time_ms: u64) {
        /// A hook without a grace may take as long as the container runs.
        const HOOK_MS_MAX: u64 = 3_600_000;
        let timeout = Duration::from_millis(time_ms.min(HOOK_MS_MAX));
        let Some(owned) = self.processes.get(&number) else { return };
        let Some(spec) = container_spec(pod, owned.container) else { return };
        let ip = self.runs.get(&owned.key).map_or_else(String::new, |run| run.ip.to_string());
        let none = || Action::Faulty("no handler specified".to_owned());
        let action = probe::action(hook, spec, &ip).unwrap_or_else(none);
        let output = owned.log.with_extension(format!("hook{}", u8::from(owned.in_hook)));
        let exec = match &action {
            Action::Exec(words) => self.exec(number, Words::Hook(words), output),
            Action::Faulty(_) | Action::Http { .. } | Action::Tcp { .. } => None,
        };
        if !self.askers.ask_apart(Question { number, purpose, action, timeout, exec }) {
            let reply =
                Reply { good: false, errored: true, words: "there is no thread for it".to_owned() };
            // The inbox may be full, but it is this thread that empties it.
            let _ = self.inbox.try_send(crate::dev::node::Input::Asked(number, purpose, reply));
        }
    }

    /// A probe or a hook has its answer.
    pub(crate) fn on_reply(&mut self, number: u64, purpose: Purpose, reply: &Reply) {
        let Some(owned) = self.processes.get_mut(&number) else { return };
        let (key, at) = (owned.key.clone(), owned.container);
        if self.runs.get(&key).is_none_or(|run| run.uid != owned.uid) {
            return;
        }
        match purpose {
            Purpose::PostStart if reply.good => self.begin_probes(number),
            Purpose::PostStart => {
                self.hook_failed(&key, at, "PostStartHook", reply);
                self.end_process(number, None, "FailedPostStartHook");
            }
            Purpose::PreStop => {
                owned.in_hook = false;
                owned.terminate();
                if !reply.good {
                    self.hook_failed(&key, at, "PreStopHook", reply);
                }
                return;
            }
            Purpose::Probe(probe) => self.on_probed(number, probe, reply),
        }
        self.advance(&key);
    }

    fn hook_failed(&self, key: &Key, at: usize, hook: &str, reply: &Reply) {
        let message = format!("{hook} failed: {}", reply.words);
        self.event(key, Some(at), true, &format!("Failed{hook}"), &message);
    }

    fn on_probed(&mut self, number: u64, probe: usize, reply: &Reply) {
        let Some(owned) = self.processes.get_mut(&number) else { return };
        let (key, at) = (owned.key.clone(), owned.container);
        if let Some(asked) = owned.asked.get_mut(probe) {
            *asked = false;
        }
        let Some(probe) = owned.probes.get_mut(probe) else { return };
        let (which, grace) = (probe.which, probe.grace_seconds);
        let verdict = probe.count(reply.good);
        let has_readiness = owned.probes.iter().any(|probe| probe.which == Which::Readiness);
        let Some(container) = self.container_mut(&key, at).filter(|c| !c.stopping) else { return };
        let name = container.name.clone();
        match (which, verdict) {
            (Which::Startup, Some(true)) => {
                container.started = true;
                container.ready = !has_readiness;
                self.set_probes(number, |which| which != Which::Startup);
            }
            (Which::Readiness, Some(good)) => container.ready = good,
            (Which::Liveness | Which::Readiness | Which::Startup, _) => {}
        }
        if reply.good {
            return;
        }
        let how = if reply.errored { "errored" } else { "failed" };
        let message = format!("{} probe {how}: {}", which.word(), reply.words);
        self.event(&key, Some(at), true, "Unhealthy", &message);
        if verdict == Some(false) && which != Which::Readiness {
            let word = which.word().to_lowercase();
            let message = format!("Container {name} failed {word} probe, will be restarted");
            self.end_process(number, grace, &message);
        }
    }

    /// Ends these containers of a pod whose end has come.
    pub(super) fn stop(&mut self, key: &Key, containers: &[usize]) {
        let now = self.api.clock.now();
        let Some(run) = self.runs.get_mut(key) else { return };
        let grace_ms = millis(run.ending.unwrap_or(run.grace));
        let by = *run.end_by_ms.get_or_insert_with(|| now.0.saturating_add(grace_ms));
        let mut numbers = Vec::new();
        for at in containers {
            let Some(container) = run.containers.get_mut(*at) else { continue };
            container.stopping = true;
            let least = if container.role == Role::Sidecar { LAST_GRACE_MS } else { 0 };
            let left = by.saturating_sub(now.0).max(least.min(grace_ms));
            numbers.extend(container.process.map(|number| (number, left, container.name.clone())));
        }
        if self.settings.simulate {
            self.end_simulated(key);
        }
        for (number, left, name) in numbers {
            self.end_in(number, left, &format!("Stopping container {name}"));
        }
    }

    /// Ends one container of a pod that goes on, with the pod's grace or one of its own.
    fn end_process(&mut self, number: u64, grace: Option<i64>, why: &str) {
        let Some(owned) = self.processes.get(&number) else { return };
        let (key, at) = (owned.key.clone(), owned.container);
        let Some(run) = self.runs.get_mut(&key) else { return };
        let grace = grace.unwrap_or(run.grace);
        let Some(container) = run.containers.get_mut(at).filter(|c| !c.stopping) else { return };
        (container.stopping, container.ready) = (true, false);
        self.end_in(number, millis(grace), why);
    }

    fn end_in(&mut self, number: u64, grace_ms: u64, why: &str) {
        let Some(owned) = self.processes.get_mut(&number) else { return };
        let (key, at) = (owned.key.clone(), owned.container);
        owned.in_hook = owned.pre_stop && grace_ms > 0;
        let in_hook = owned.in_hook;
        if !in_hook {
            owned.terminate();
        }
        self.event(&key, Some(at), false, "Killing", why);
        self.set_timer(grace_ms, &key, Due::Kill(number));
        let object = self.api.lock().store.get(&key).cloned().filter(|_| in_hook);
        let Some(pod) = object.map(|object| object.value()) else { return };
        if let Some(hook) = container_spec(&pod, at).and_then(|s| s.pointer("/lifecycle/preStop")) {
            self.ask_hook(number, &pod, hook, Purpose::PreStop, grace_ms);
        }
    }

    /// The grace of a process is over.
    pub(super) fn kill(&mut self, number: u64) {
        let Some(owned) = self.processes.get_mut(&number) else { return };
        if !std::mem::take(&mut owned.in_hook) {
            owned.kill();
            return;
        }
        // Its hook took all the time: it has not been told yet.
        owned.terminate();
        let key = owned.key.clone();
        self.set_timer(LAST_GRACE_MS, &key, Due::Kill(number));
    }

    /// A process has ended.
    pub(crate) fn on_end(&mut self, number: u64) {
        let Some(owned) = self.processes.remove(&number) else { return };
        let exit_code = owned.process.reap();
        self.outputs.close(number);
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(&owned.key).filter(|run| run.uid == owned.uid) else {
            return;
        };
        let Some(container) = run.containers.get_mut(owned.container) else { return };
        let reason = match (exit_code, owned.out_of_memory) {
            (_, true) => "OOMKilled",
            (0, false) => "Completed",
            (_, false) => "Error",
        };
        let started_at = match &container.state {
            State::Running { since } => since.clone(),
            State::Ended(_) | State::Waiting { .. } => finished_at.clone(),
        };
        let message = last_message(
            &owned.termination,
            (owned.falls_back_to_logs && exit_code != 0).then_some(&owned.log),
        );
        container.state =
            State::Ended(Ended { exit_code, reason, message, started_at, finished_at });
        (container.started, container.ready, container.process) = (false, false, None);
        // Who goes on is started again as one who was not asked to end.
        container.stopping = false;
        let over = run.ending.is_some() && !run.has_running();
        self.advance(&owned.key);
        if over {
            self.confirm_end(&owned.key, &owned.uid);
        }
    }

    /// Kills what holds more memory than its limit, as the kernel does to a container's group.
    pub(super) fn look_at_memory(&mut self) {
        let groups = memory::groups();
        let mut next = None;
        for owned in self.processes.values_mut() {
            let Some(limit) = owned.memory_limit else { continue };
            let Some((bytes, pids)) = groups.get(&owned.process.id()) else {
                next.get_or_insert(MEMORY_FAR_MS);
                continue;
            };
            let near = *bytes > limit / 2;
            next = next.min(Some(if near { MEMORY_MS } else { MEMORY_FAR_MS })).or(Some(if near {
                MEMORY_MS
            } else {
                MEMORY_FAR_MS
            }));
            if *bytes > limit && memory::exact(pids).unwrap_or(*bytes) > limit {
                owned.out_of_memory = true;
                owned.process.kill();
            }
        }
        if let Some(next) = next {
            self.set_own_timer(next, Due::Memory);
        }
    }

    /// Reaps a process without looking at its pod: the cluster ends.
    pub(crate) fn reap(&mut self, number: u64) {
        if let Some(owned) = self.processes.remove(&number) {
            let code = owned.process.reap();
            self.outputs.close(number);
            log::debug!("{}: ended with {code}", owned.key);
        }
    }

    pub(crate) fn terminate_all(&self) {
        self.processes.values().for_each(Owned::terminate);
    }

    pub(crate) fn kill_all(&self) {
        self.processes.values().for_each(Owned::kill);
    }
}

fn millis(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or_default().saturating_mul(1000)
}

/// Makes the pod's folder and the file for the container's message; of the container's former
/// output only the last is kept.
fn make_files(
    folder: &PathBuf,
    termination: &PathBuf,
    name: &str,
    restarts: u32,
) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::write(termination, "")?;
    if let Some(former) = restarts.checked_sub(2) {
        let log = log_files::file(folder, name, former);
        for old in [log.with_extension("termination"), log.with_extension("log.1"), log] {
            // It need not be there.
            let _ = fs::remove_file(old);
        }
    }
    Ok(())
}

/// What the container said at its end; where that is nothing, the end of its output.
fn last_message(termination: &PathBuf, log: Option<&PathBuf>) -> String {
    let mut said = fs::read(termination).unwrap_or_default();
    said.truncate(TERMINATION_BYTES_MAX);
    match (said.is_empty(), log) {
        (true, Some(log)) => log_files::tail_message(log),
        _ => String::from_utf8_lossy(&said).into_owned(),
    }
}
