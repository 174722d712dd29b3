//! The containers' processes: start, hooks, probes, memory limits and end.
//! `run` decides when each of these happens.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::{Kubelet, Timer, TimerKind};
use crate::node::environment::Blocked;
use crate::node::probes::probe::{self, Handler, Probe, ProbeKind};
use crate::node::probes::{self, Exec, HandlerCall, HandlerOutcome, HandlerPurpose};
use crate::node::process::Process;
use crate::node::run::{ContainerState, Role, Terminated};
use crate::node::start::{CommandSource, ContainerContext, prepare};
use crate::node::start_error::{StartError, failed};
use crate::node::{Settings, memory};
use crate::schema::kind::Key;
use crate::storage::log_files;
use crate::storage::object::{Object, array_at, text_at};
use posse_base::time::Millis;
use posse_encoding::quantity::Quantity;

/// How long a failed pull is reported as `ErrImagePull` before it becomes `ImagePullBackOff`.
const PULL_BACKOFF_MS: u64 = 2_000;
/// Delay between attempts to start a container that cannot start yet.
const RETRY_MS: u64 = 1_000;
/// Time between SIGTERM and SIGKILL if the preStop hook used the whole grace period; also the least
/// that a sidecar gets. The kubelet has the same minimum of 2 s.
const LAST_GRACE_MS: u64 = 2_000;
/// How often the memory of containers with a limit is checked: above half of the limit, and below.
const MEMORY_MS: u64 = 250;
const MEMORY_FAR_MS: u64 = 1_000;
const TERMINATION_BYTES_MAX: usize = 4096;

/// A container's process. If its pod is gone, only its end is awaited.
#[derive(Debug)]
pub(super) struct ContainerProcess {
    pub(super) child: Process,
    pub(super) key: Key,
    pub(super) uid: Box<str>,
    container: usize,
    since: Millis,
    probes: Vec<Probe>,
    /// For each probe: whether it is running.
    probe_running: Vec<bool>,
    has_pre_stop: bool,
    /// Its `preStop` hook is running; SIGTERM follows when the hook has ended.
    in_pre_stop: bool,
    memory_limit: Option<u64>,
    out_of_memory: bool,
    log: PathBuf,
    termination: PathBuf,
    falls_back_to_logs: bool,
}

/// The bytes that a container may use; `None` if they are not limited.
fn memory_limit(settings: &Settings, spec: &Value) -> Option<u64> {
    let limit = Quantity::parse(text_at(spec, "/resources/limits/memory"));
    limit
        .filter(|limit| settings.memory_limits && !limit.is_zero())
        .and_then(|limit| u64::try_from(limit.divided(Quantity::parse("1")?)).ok())
}

/// The spec of the container with this index; init containers come first.
fn container_spec(pod: &Value, index: usize) -> Option<&Value> {
    let init = array_at(pod, "/spec/initContainers").iter();
    init.chain(array_at(pod, "/spec/containers")).nth(index)
}

impl Kubelet {
    /// Starts or restarts a container.
    pub(super) fn start(&mut self, key: &Key, index: usize) {
        let object = self.api.lock().store.get(key).cloned();
        let Some(run) = self.runs.get_mut(key) else { return };
        let Some(object) = object.filter(|object| object.uid == run.uid) else {
            // The pod was deleted: start nothing until the next sync forgets it.
            run.terminating = Some(0);
            return;
        };
        let since = self.now_text();
        let started = match self.settings.simulate {
            true => Ok(()),
            false => self.start_process(key, index, &object),
        };
        let simulate = self.settings.simulate;
        let Some(container) = self.container_mut(key, index) else { return };
        let (was_tried, name) = (container.tried, container.name.clone());
        container.tried = true;
        container.stopping = false;
        match started {
            Ok(()) => {
                container.state = ContainerState::Running { since };
                (container.started, container.ready) = (simulate, simulate);
                if !simulate {
                    self.event(
                        key,
                        Some(index),
                        false,
                        "Started",
                        &format!("Started container {name}"),
                    );
                    self.begin_hook_and_probes(key, index, &object.value());
                }
            }
            Err(StartError::Blocked(blocked)) => self.block(key, index, blocked, was_tried),
            Err(StartError::Failed(message)) => {
                container.state = ContainerState::Terminated(Terminated {
                    exit_code: 128,
                    reason: "StartError",
                    message: message.clone(),
                    started_at: "1970-01-01T00:00:00Z".to_owned(),
                    finished_at: since,
                });
                self.event(key, Some(index), true, "Failed", &format!("Error: {message}"));
            }
        }
    }

    fn block(&mut self, key: &Key, index: usize, blocked: Blocked, was_tried: bool) {
        let Blocked { reason, message } = blocked;
        let Some(container) = self.container_mut(key, index) else { return };
        let image = container.image.clone();
        let same = container.state == ContainerState::Waiting { reason, message: message.clone() };
        if reason == "ContainerCreating" {
            // The volumes are not ready: the state stays `ContainerCreating`.
            self.event(key, None, true, "FailedMount", &message);
            self.set_timer(RETRY_MS, key, TimerKind::Retry(index));
            return;
        }
        container.state = ContainerState::Waiting { reason, message: message.clone() };
        if reason == "ErrImagePull" {
            let pull = format!("Failed to pull image \"{image}\": {message}");
            self.event(key, Some(index), true, "Failed", &pull);
            self.event(key, Some(index), true, "Failed", "Error: ErrImagePull");
            self.set_timer(PULL_BACKOFF_MS, key, TimerKind::BackOff(index));
            return;
        }
        if !(same && was_tried) {
            self.event(key, Some(index), true, "Failed", &format!("Error: {message}"));
        }
        self.set_timer(RETRY_MS, key, TimerKind::Retry(index));
    }

    fn start_process(
        &mut self,
        key: &Key,
        index: usize,
        object: &Object,
    ) -> Result<(), StartError> {
        let pod = object.value();
        let (Some(spec), Some(run)) = (container_spec(&pod, index), self.runs.get(key)) else {
            return Err(failed("the container is gone"));
        };
        let restarts = run.containers.get(index).map_or(0, |container| container.restarts);
        let ip = run.ip.to_string();
        let folder = log_files::pod_folder(&self.api.logs, key, &object.uid);
        let log = log_files::file(&folder, text_at(spec, "/name"), restarts);
        let termination = log.with_extension("termination");
        make_files(&folder, &termination, text_at(spec, "/name"), restarts)
            .map_err(|error| failed(format!("{}: {error}", folder.display())))?;
        let container = ContainerContext {
            api: &self.api,
            pod: &pod,
            spec,
            base: &self.base_env,
            termination: &termination,
        };
        let prepared = prepare(&container, CommandSource::Container)?;
        self.record_created(key, index, spec);
        self.processes_started += 1;
        let number = self.processes_started;
        let output = self
            .outputs
            .open(number, &log)
            .map_err(|error| failed(format!("{}: {error}", log.display())))?;
        let child = match Process::start(number, prepared, output, &self.api.runner, &self.inbox) {
            Ok(child) => child,
            Err(error) => {
                self.outputs.close(number);
                return Err(error);
            }
        };
        let probes = Probe::all(spec, &ip);
        let process = ContainerProcess {
            child,
            key: key.clone(),
            uid: object.uid.clone(),
            container: index,
            since: self.api.clock.now(),
            probe_running: vec![false; probes.len()],
            probes,
            has_pre_stop: spec.pointer("/lifecycle/preStop").is_some(),
            in_pre_stop: false,
            memory_limit: memory_limit(&self.settings, spec),
            out_of_memory: false,
            log,
            termination,
            falls_back_to_logs: text_at(spec, "/terminationMessagePolicy")
                == "FallbackToLogsOnError",
        };
        let limited = |process: &ContainerProcess| process.memory_limit.is_some();
        if limited(&process) && !self.processes.values().any(limited) {
            self.set(MEMORY_MS, Timer::Memory);
        }
        self.processes.insert(number, process);
        if let Some(container) = self.container_mut(key, index) {
            container.process = Some(number);
        }
        Ok(())
    }

    /// Records the Events that precede a start. The node pulls no image, so it reports it as present.
    fn record_created(&self, key: &Key, index: usize, spec: &Value) {
        let (name, image) = (text_at(spec, "/name"), text_at(spec, "/image"));
        let message = format!("Container image \"{image}\" already present on machine");
        self.event(key, Some(index), false, "Pulled", &message);
        self.event(key, Some(index), false, "Created", &format!("Created container {name}"));
    }

    /// Applies memory limits that a client has changed by `pods/resize`.
    pub(super) fn set_memory_limits(&mut self, key: &Key, pod: &Value) {
        let limited = |process: &ContainerProcess| process.memory_limit.is_some();
        let is_checked = self.processes.values().any(limited);
        for process in self.processes.values_mut().filter(|process| process.key == *key) {
            let spec = container_spec(pod, process.container).unwrap_or(&Value::Null);
            process.memory_limit = memory_limit(&self.settings, spec);
        }
        if !is_checked && self.processes.values().any(limited) {
            self.set(MEMORY_MS, Timer::Memory);
        }
    }

    /// Runs the postStart hook of a started container, then its probes.
    fn begin_hook_and_probes(&mut self, key: &Key, index: usize, pod: &Value) {
        let Some(number) = self.container_mut(key, index).and_then(|container| container.process)
        else {
            return;
        };
        match container_spec(pod, index).and_then(|spec| spec.pointer("/lifecycle/postStart")) {
            Some(hook) => self.run_hook(number, pod, hook, HandlerPurpose::PostStart, u64::MAX),
            None => self.begin_probes(number),
        }
    }

    fn begin_probes(&mut self, number: u64) {
        let Some(process) = self.processes.get(&number) else { return };
        let has = |kind: ProbeKind| process.probes.iter().any(|probe| probe.kind == kind);
        let (startup, readiness) = (has(ProbeKind::Startup), has(ProbeKind::Readiness));
        let (key, index) = (process.key.clone(), process.container);
        if let Some(container) = self.container_mut(&key, index) {
            container.started = !startup;
            container.ready = !startup && !readiness;
        }
        self.set_probes(number, |kind| (kind == ProbeKind::Startup) == startup);
    }

    /// Sets the first timers of the probes of these kinds. The delay counts from the container's
    /// start.
    fn set_probes(&mut self, number: u64, wanted: impl Fn(ProbeKind) -> bool) {
        let Some(process) = self.processes.get(&number) else { return };
        let age_ms = self.api.clock.now().0.saturating_sub(process.since.0);
        let key = process.key.clone();
        let probes = process.probes.iter().enumerate().filter(|(_, probe)| wanted(probe.kind));
        let delays: Vec<_> =
            probes.map(|(index, probe)| (index, probe.delay_ms.saturating_sub(age_ms))).collect();
        for (index, delay) in delays {
            self.set_timer(delay, &key, TimerKind::Probe(number, index));
        }
    }

    /// Runs a probe and sets the timer for its next run.
    pub(super) fn probe(&mut self, number: u64, index: usize) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (Some(probe), Some(running)) =
            (process.probes.get(index), process.probe_running.get_mut(index))
        else {
            return;
        };
        let key = process.key.clone();
        let stopping = self
            .runs
            .get(&key)
            .and_then(|run| run.containers.get(process.container))
            .is_none_or(|container| container.stopping);
        if probe.is_done() || stopping {
            return;
        }
        let (period, timeout) = (probe.period_ms, Duration::from_millis(probe.timeout_ms));
        // If the last run has not finished, this one is skipped.
        if !std::mem::replace(running, true) {
            let handler = probe.handler.clone();
            let output = process.log.with_extension(format!("probe{index}"));
            let exec = match &handler {
                Handler::Exec(command) => self.exec(number, CommandSource::Probe(command), output),
                Handler::Invalid(_) | Handler::Http { .. } | Handler::Tcp { .. } => None,
            };
            let purpose = HandlerPurpose::Probe(index);
            let call = HandlerCall { number, purpose, handler, timeout, exec };
            let queued = probes::start(call, &self.inbox);
            if let Some(process) = self.processes.get_mut(&number)
                && let Some(running) = process.probe_running.get_mut(index)
            {
                *running = queued;
            }
        }
        self.set_timer(period, &key, TimerKind::Probe(number, index));
    }

    /// Prepares a command that runs in the container of this process.
    pub(super) fn exec(
        &self,
        number: u64,
        source: CommandSource<'_>,
        output: PathBuf,
    ) -> Option<Exec> {
        let process = self.processes.get(&number)?;
        let object = self.api.lock().store.get(&process.key).cloned()?;
        let pod = object.value();
        let container = ContainerContext {
            api: &self.api,
            pod: &pod,
            spec: container_spec(&pod, process.container)?,
            base: &self.base_env,
            termination: &process.termination,
        };
        let prepared = prepare(&container, source).ok()?;
        Some(Exec { prepared, link: process.child.link.clone(), output })
    }

    fn run_hook(
        &self,
        number: u64,
        pod: &Value,
        hook: &Value,
        purpose: HandlerPurpose,
        timeout_ms: u64,
    ) {
        /// The most for a postStart hook, which Kubernetes does not limit.
        const HOOK_MS_MAX: u64 = 3_600_000;
        let timeout = Duration::from_millis(timeout_ms.min(HOOK_MS_MAX));
        let Some(process) = self.processes.get(&number) else { return };
        let Some(spec) = container_spec(pod, process.container) else { return };
        let ip = self.runs.get(&process.key).map_or_else(String::new, |run| run.ip.to_string());
        let none = || Handler::Invalid("no handler specified".to_owned());
        let handler = probe::handler(hook, spec, &ip).unwrap_or_else(none);
        let output = process.log.with_extension(format!("hook{}", u8::from(process.in_pre_stop)));
        let exec = match &handler {
            Handler::Exec(command) => self.exec(number, CommandSource::Hook(command), output),
            Handler::Invalid(_) | Handler::Http { .. } | Handler::Tcp { .. } => None,
        };
        if !probes::start(HandlerCall { number, purpose, handler, timeout, exec }, &self.inbox) {
            let outcome = HandlerOutcome::error("cannot start a thread for the hook");
            // This thread empties the inbox, so a blocking send could wait for ever.
            let _ = self.inbox.try_send(crate::node::Input::HandlerDone(number, purpose, outcome));
        }
    }

    /// A probe or a hook has finished.
    pub(crate) fn on_handler_done(
        &mut self,
        number: u64,
        purpose: HandlerPurpose,
        outcome: &HandlerOutcome,
    ) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (key, index) = (process.key.clone(), process.container);
        if self.runs.get(&key).is_none_or(|run| run.uid != process.uid) {
            return;
        }
        match purpose {
            HandlerPurpose::PostStart if outcome.succeeded => self.begin_probes(number),
            HandlerPurpose::PostStart => {
                self.hook_failed(&key, index, "PostStartHook", outcome);
                self.terminate_container(number, None, "FailedPostStartHook");
            }
            HandlerPurpose::PreStop => {
                process.in_pre_stop = false;
                process.child.terminate();
                if !outcome.succeeded {
                    self.hook_failed(&key, index, "PreStopHook", outcome);
                }
                return;
            }
            HandlerPurpose::Probe(probe) => self.on_probed(number, probe, outcome),
        }
        self.advance(&key);
    }

    fn hook_failed(&self, key: &Key, index: usize, hook: &str, outcome: &HandlerOutcome) {
        let message = format!("{hook} failed: {}", outcome.message);
        self.event(key, Some(index), true, &format!("Failed{hook}"), &message);
    }

    fn on_probed(&mut self, number: u64, probe: usize, outcome: &HandlerOutcome) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (key, index) = (process.key.clone(), process.container);
        if let Some(running) = process.probe_running.get_mut(probe) {
            *running = false;
        }
        let Some(probe) = process.probes.get_mut(probe) else { return };
        let (kind, grace) = (probe.kind, probe.grace_seconds);
        let change = probe.record(outcome.succeeded);
        let has_readiness = process.probes.iter().any(|probe| probe.kind == ProbeKind::Readiness);
        let Some(container) = self.container_mut(&key, index).filter(|c| !c.stopping) else {
            return;
        };
        let name = container.name.clone();
        match (kind, change) {
            (ProbeKind::Startup, Some(true)) => {
                container.started = true;
                container.ready = !has_readiness;
                self.set_probes(number, |kind| kind != ProbeKind::Startup);
            }
            (ProbeKind::Readiness, Some(is_ready)) => container.ready = is_ready,
            (ProbeKind::Liveness | ProbeKind::Readiness | ProbeKind::Startup, _) => {}
        }
        if outcome.succeeded {
            return;
        }
        let how = if outcome.errored { "errored" } else { "failed" };
        let message = format!("{} probe {how}: {}", kind.name(), outcome.message);
        self.event(&key, Some(index), true, "Unhealthy", &message);
        if change == Some(false) && kind != ProbeKind::Readiness {
            let kind = kind.name().to_lowercase();
            let message = format!("Container {name} failed {kind} probe, will be restarted");
            self.terminate_container(number, grace, &message);
        }
    }

    /// Terminates these containers, within the pod's grace period.
    pub(super) fn stop(&mut self, key: &Key, containers: &[usize]) {
        let now = self.api.clock.now();
        let Some(run) = self.runs.get_mut(key) else { return };
        let grace_ms = millis(run.terminating.unwrap_or(run.grace));
        let deadline = *run.end_by_ms.get_or_insert_with(|| now.0.saturating_add(grace_ms));
        let mut numbers = Vec::new();
        for index in containers {
            let Some(container) = run.containers.get_mut(*index) else { continue };
            container.stopping = true;
            let least = if container.role == Role::Sidecar { LAST_GRACE_MS } else { 0 };
            let left = deadline.saturating_sub(now.0).max(least.min(grace_ms));
            numbers.extend(container.process.map(|number| (number, left, container.name.clone())));
        }
        if self.settings.simulate {
            self.end_simulated(key);
        }
        for (number, left, name) in numbers {
            self.terminate(number, left, &format!("Stopping container {name}"));
        }
    }

    /// Terminates one container of a pod that goes on. `grace` replaces the pod's grace period.
    fn terminate_container(&mut self, number: u64, grace: Option<i64>, why: &str) {
        let Some(process) = self.processes.get(&number) else { return };
        let (key, index) = (process.key.clone(), process.container);
        let Some(run) = self.runs.get_mut(&key) else { return };
        let grace = grace.unwrap_or(run.grace);
        let Some(container) = run.containers.get_mut(index).filter(|c| !c.stopping) else { return };
        (container.stopping, container.ready) = (true, false);
        self.terminate(number, millis(grace), why);
    }

    fn terminate(&mut self, number: u64, grace_ms: u64, why: &str) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        let (key, index) = (process.key.clone(), process.container);
        process.in_pre_stop = process.has_pre_stop && grace_ms > 0;
        let in_pre_stop = process.in_pre_stop;
        if !in_pre_stop {
            process.child.terminate();
        }
        self.event(&key, Some(index), false, "Killing", why);
        self.set_timer(grace_ms, &key, TimerKind::Kill(number));
        let object = self.api.lock().store.get(&key).cloned().filter(|_| in_pre_stop);
        let Some(pod) = object.map(|object| object.value()) else { return };
        if let Some(hook) =
            container_spec(&pod, index).and_then(|s| s.pointer("/lifecycle/preStop"))
        {
            self.run_hook(number, &pod, hook, HandlerPurpose::PreStop, grace_ms);
        }
    }

    /// The grace period of a process is over.
    pub(super) fn kill(&mut self, number: u64) {
        let Some(process) = self.processes.get_mut(&number) else { return };
        if !std::mem::take(&mut process.in_pre_stop) {
            process.child.kill();
            return;
        }
        // The preStop hook used the whole grace period, so SIGTERM was not sent yet.
        process.child.terminate();
        let key = process.key.clone();
        self.set_timer(LAST_GRACE_MS, &key, TimerKind::Kill(number));
    }

    /// A process has ended, with all of its descendants.
    pub(crate) fn on_end(&mut self, number: u64, exit_code: i32) {
        let Some(process) = self.processes.remove(&number) else { return };
        self.outputs.close(number);
        let finished_at = self.now_text();
        let Some(run) = self.runs.get_mut(&process.key).filter(|run| run.uid == process.uid) else {
            return;
        };
        let Some(container) = run.containers.get_mut(process.container) else { return };
        let reason = match (exit_code, process.out_of_memory) {
            (_, true) => "OOMKilled",
            (0, false) => "Completed",
            (_, false) => "Error",
        };
        let started_at = match &container.state {
            ContainerState::Running { since } => since.clone(),
            ContainerState::Terminated(_) | ContainerState::Waiting { .. } => finished_at.clone(),
        };
        let message = termination_message(
            &process.termination,
            (process.falls_back_to_logs && exit_code != 0).then_some(&process.log),
        );
        container.state = ContainerState::Terminated(Terminated {
            exit_code,
            reason,
            message,
            started_at,
            finished_at,
        });
        (container.started, container.ready, container.process) = (false, false, None);
        // Otherwise a restarted container would count as stopping.
        container.stopping = false;
        self.catch_up(&process.key);
    }

    /// Kills containers above their memory limit, as the kernel does with a container's cgroup.
    pub(super) fn check_memory(&mut self) {
        let groups = memory::group_usage();
        let mut next = None;
        for process in self.processes.values_mut() {
            let Some(limit) = process.memory_limit else { continue };
            let Some((bytes, pids)) =
                groups.get(&process.child.pid.as_raw_nonzero().get().unsigned_abs())
            else {
                next.get_or_insert(MEMORY_FAR_MS);
                continue;
            };
            let interval = if *bytes > limit / 2 { MEMORY_MS } else { MEMORY_FAR_MS };
            next = Some(next.map_or(interval, |next: u64| next.min(interval)));
            if *bytes > limit && memory::exact_usage(pids).unwrap_or(*bytes) > limit {
                process.out_of_memory = true;
                process.child.kill();
            }
        }
        if let Some(next) = next {
            self.set(next, Timer::Memory);
        }
    }

    /// A process has ended, and its pod does not matter: the cluster is stopping.
    pub(crate) fn forget_process(&mut self, number: u64, code: i32) {
        if let Some(process) = self.processes.remove(&number) {
            self.outputs.close(number);
            log::debug!("container of pod {} ended with exit code {code}", process.key);
        }
    }

    pub(crate) fn terminate_all(&self) {
        self.processes.values().for_each(|process| process.child.terminate());
    }

    pub(crate) fn kill_all(&self) {
        self.processes.values().for_each(|process| process.child.kill());
    }
}

pub(super) fn millis(seconds: i64) -> u64 {
    u64::try_from(seconds).unwrap_or_default().saturating_mul(1000)
}

/// Creates the pod's folder and the container's termination message file. Of earlier runs, only the
/// log of the last one is kept.
fn make_files(
    folder: &PathBuf,
    termination: &PathBuf,
    name: &str,
    restarts: u32,
) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    fs::write(termination, "")?;
    if let Some(outdated) = restarts.checked_sub(2) {
        let log = log_files::file(folder, name, outdated);
        for old in [log.with_extension("termination"), log.with_extension("log.1"), log] {
            // A missing file is fine.
            let _ = fs::remove_file(old);
        }
    }
    Ok(())
}

/// The container's termination message. If it is empty and `log` is given, the end of the log.
fn termination_message(termination: &PathBuf, log: Option<&PathBuf>) -> String {
    let mut message = fs::read(termination).unwrap_or_default();
    message.truncate(TERMINATION_BYTES_MAX);
    match (message.is_empty(), log) {
        (true, Some(log)) => log_files::tail_message(log),
        _ => String::from_utf8_lossy(&message).into_owned(),
    }
}
