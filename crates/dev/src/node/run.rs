//! The state of one pod on the node: its containers, its phase, and what to start or stop next.
//! Pure: no process, clock or store.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::storage::object::text_at;

/// A pod's `restartPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RestartPolicy {
    Always,
    Never,
    OnFailure,
}

impl RestartPolicy {
    pub(super) fn parse(text: &str) -> Self {
        match text {
            "Never" => Self::Never,
            "OnFailure" => Self::OnFailure,
            _ => Self::Always,
        }
    }

    fn applies(self, exit_code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::OnFailure => exit_code != 0,
        }
    }
}

/// The role of a container in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Init,
    Main,
    /// An init container with `restartPolicy: Always`: it runs beside all containers after it.
    Sidecar,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Terminated {
    pub(super) exit_code: i32,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) started_at: String,
    pub(super) finished_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ContainerState {
    Terminated(Terminated),
    Running { since: String },
    Waiting { reason: &'static str, message: String },
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) role: Role,
    pub(super) state: ContainerState,
    pub(super) last: Option<Terminated>,
    pub(super) restarts: u32,
    /// The first start was tried: any further start is a restart.
    pub(super) tried: bool,
    /// The container has ended and a timer will start it again.
    pub(super) restarting: bool,
    /// The container is being terminated.
    pub(super) stopping: bool,
    /// Running, and its postStart hook and startup probe have succeeded.
    pub(super) started: bool,
    /// Started, and its readiness probe succeeds.
    pub(super) ready: bool,
    pub(super) backoff: Backoff,
    /// The kubelet's number of its process.
    pub(super) process: Option<u64>,
}

/// The delay between a container's restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    delay_ms: u64,
    /// When the last delay ended.
    at_ms: u64,
}

/// The first restart is immediate, the second waits this long, and each further one twice as long
/// as the one before, up to the maximum.
const BACKOFF_MS: u64 = 10_000;
const BACKOFF_MS_MAX: u64 = 300_000;
/// A container that has run this long after a restart has no backoff any more.
const BACKOFF_RESET_MS: u64 = 2 * BACKOFF_MS_MAX;

impl Backoff {
    /// The restart delay in milliseconds of a container that ended at `now_ms`.
    pub(super) fn next(&mut self, now_ms: u64) -> u64 {
        if now_ms.saturating_sub(self.at_ms) > BACKOFF_RESET_MS {
            self.delay_ms = 0;
        }
        let delay = self.delay_ms;
        self.delay_ms = match delay {
            0 => BACKOFF_MS,
            delay => (delay * 2).min(BACKOFF_MS_MAX),
        };
        self.at_ms = now_ms.saturating_add(delay);
        delay
    }
}

impl Container {
    /// A container that waits for its start. `list` is `initContainers` or `containers`.
    pub(super) fn new(spec: &Value, list: &str) -> Self {
        let role = match (list, text_at(spec, "/restartPolicy")) {
            ("initContainers", "Always") => Role::Sidecar,
            ("initContainers", _) => Role::Init,
            _ => Role::Main,
        };
        Self {
            name: text_at(spec, "/name").to_owned(),
            image: text_at(spec, "/image").to_owned(),
            role,
            state: ContainerState::Waiting { reason: "ContainerCreating", message: String::new() },
            last: None,
            restarts: 0,
            tried: false,
            restarting: false,
            stopping: false,
            started: false,
            ready: false,
            backoff: Backoff::default(),
            process: None,
        }
    }

    pub(super) fn exit_code(&self) -> Option<i32> {
        match &self.state {
            ContainerState::Terminated(ended) => Some(ended.exit_code),
            ContainerState::Running { .. } | ContainerState::Waiting { .. } => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        match self.state {
            ContainerState::Running { .. } => true,
            ContainerState::Terminated(_) | ContainerState::Waiting { .. } => false,
        }
    }

    /// The containers after this one may start.
    pub(super) fn is_passed(&self) -> bool {
        match self.role {
            Role::Sidecar => self.is_running() && self.started,
            Role::Init | Role::Main => self.exit_code() == Some(0),
        }
    }

    /// The exit code of the last run, also while the container waits for a restart.
    fn last_exit_code(&self) -> Option<i32> {
        match &self.state {
            ContainerState::Terminated(ended) => Some(ended.exit_code),
            ContainerState::Waiting { .. } => self.last.as_ref().map(|last| last.exit_code),
            ContainerState::Running { .. } => None,
        }
    }

    fn never_ran(&self) -> bool {
        match self.state {
            ContainerState::Waiting { .. } => self.last.is_none(),
            ContainerState::Terminated(_) | ContainerState::Running { .. } => false,
        }
    }
}

/// One pod on the node. In `containers`, the init containers and sidecars come first.
#[derive(Clone, Debug)]
pub(super) struct PodRun {
    pub(super) uid: Box<str>,
    pub(super) node: Box<str>,
    pub(super) ip: Ipv4Addr,
    pub(super) since: String,
    pub(super) restart: RestartPolicy,
    /// Seconds between SIGTERM and SIGKILL, unless a delete request gives another value.
    pub(super) grace: i64,
    pub(super) n_init: usize,
    pub(super) containers: Vec<Container>,
    /// The grace period in seconds, if the pod is being deleted.
    pub(super) terminating: Option<i64>,
    /// Reason and message, if the node itself ends the pod.
    pub(super) failed: Option<(&'static str, String)>,
    /// When the grace period is over.
    pub(super) end_by_ms: Option<u64>,
}

/// What the kubelet has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NextAction {
    /// Schedule the restart of this container.
    Restart(usize),
    /// Start these containers for the first time.
    Start(Vec<usize>),
    /// Terminate these containers.
    Stop(Vec<usize>),
    Wait,
}

impl PodRun {
    pub(super) fn init(&self) -> &[Container] {
        self.containers.get(..self.n_init).unwrap_or_default()
    }

    pub(super) fn main(&self) -> &[Container] {
        self.containers.get(self.n_init..).unwrap_or_default()
    }

    /// All init containers have succeeded and all sidecars have started.
    pub(super) fn is_initialized(&self) -> bool {
        self.has_begun() || self.init().iter().all(Container::is_passed)
    }

    /// A main container was started, so the pod stays initialized even if a sidecar fails later.
    fn has_begun(&self) -> bool {
        self.main().iter().any(|container| container.tried)
    }

    pub(super) fn has_running(&self) -> bool {
        self.containers.iter().any(Container::is_running)
    }

    /// No container will be started any more.
    pub(super) fn is_over(&self) -> bool {
        let final_end = |container: &Container| {
            container.exit_code().is_some_and(|code| !self.restart.applies(code))
        };
        self.terminating.is_some()
            || self.failed.is_some()
            || self.init_failed_for_good()
            || self.main().iter().all(final_end)
    }

    fn init_failed_for_good(&self) -> bool {
        let failed = |container: &Container| {
            let ended = container.last_exit_code().filter(|code| *code != 0);
            container.role == Role::Init && ended.is_some_and(|code| !self.restart.applies(code))
        };
        self.init().iter().any(failed)
    }

    pub(super) fn next_action(&self) -> NextAction {
        if self.is_over() {
            return self.next_stop();
        }
        let indexed = || self.containers.iter().enumerate();
        for (index, container) in indexed().take(self.n_init) {
            if !container.tried {
                return NextAction::Start(vec![index]);
            }
            let needs_restart = container.exit_code().is_some_and(|code| match container.role {
                Role::Sidecar => true,
                // An init container that succeeded is not restarted, whatever the policy.
                Role::Init | Role::Main => code != 0,
            });
            if needs_restart && !container.restarting {
                return NextAction::Restart(index);
            }
            if !container.is_passed() && !self.has_begun() {
                return NextAction::Wait;
            }
        }
        let mut main = indexed().skip(self.n_init);
        let to_restart = main.find(|(_, container)| {
            !container.restarting
                && container.exit_code().is_some_and(|code| self.restart.applies(code))
        });
        if let Some((index, _)) = to_restart {
            return NextAction::Restart(index);
        }
        let not_started = indexed().skip(self.n_init).filter(|(_, container)| !container.tried);
        match not_started.map(|(index, _)| index).collect::<Vec<_>>() {
            none if none.is_empty() => NextAction::Wait,
            containers => NextAction::Start(containers),
        }
    }

    /// First all main containers are stopped, then the sidecars one by one in reverse order.
    fn next_stop(&self) -> NextAction {
        let indexed = || self.containers.iter().enumerate();
        let work = || indexed().filter(|(_, c)| c.role != Role::Sidecar && c.is_running());
        let to_stop: Vec<usize> =
            work().filter(|(_, c)| !c.stopping).map(|(index, _)| index).collect();
        if !to_stop.is_empty() {
            return NextAction::Stop(to_stop);
        }
        if work().next().is_some() {
            return NextAction::Wait;
        }
        match indexed().rev().find(|(_, container)| container.is_running()) {
            Some((index, sidecar)) if !sidecar.stopping => NextAction::Stop(vec![index]),
            Some(_) | None => NextAction::Wait,
        }
    }

    /// The phase as a kubelet computes it. A final phase is reported only when no container runs.
    pub(super) fn phase(&self) -> &'static str {
        match self.phase_of_containers() {
            "Failed" | "Succeeded" if self.has_running() => match self.has_begun() {
                true => "Running",
                false => "Pending",
            },
            phase => phase,
        }
    }

    fn phase_of_containers(&self) -> &'static str {
        let ended_by_node = self.terminating.is_some() || self.failed.is_some();
        if self.failed.is_some() || self.init_failed_for_good() {
            return "Failed";
        }
        if !self.is_initialized() {
            let failed = self.init().iter().any(|container| {
                container.role == Role::Init && container.exit_code().is_some_and(|code| code != 0)
            });
            return if failed && ended_by_node { "Failed" } else { "Pending" };
        }
        if self.main().iter().any(Container::never_ran) {
            return "Pending";
        }
        let stopped: Vec<i32> = self.main().iter().filter_map(Container::last_exit_code).collect();
        if self.has_running() && stopped.len() < self.main().len() {
            return "Running";
        }
        let restarts = |container: &Container| {
            let ended = container.last_exit_code();
            ended.is_some_and(|code| self.restart.applies(code))
        };
        match (ended_by_node, self.main().iter().any(restarts)) {
            (false, true) => "Running",
            (true, _) | (_, false) if stopped.iter().any(|code| *code != 0) => "Failed",
            (true, _) | (_, false) => "Succeeded",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One word for each container: `w` not started, `r` running, `s` running but its startup probe
    /// has not succeeded, `x` running and stopping, `b` in backoff after an error, a number: ended
    /// with this exit code. `S:` marks sidecars; `|` follows the init containers.
    fn run(restart: RestartPolicy, states: &str) -> PodRun {
        let mut containers = Vec::new();
        let mut n_init = 0;
        let ended = |code: &str| Terminated {
            exit_code: code.parse().expect("a number"),
            reason: "Error",
            message: String::new(),
            started_at: String::new(),
            finished_at: String::new(),
        };
        let is_split = states.contains('|');
        for word in states.split(' ') {
            if word == "|" {
                n_init = containers.len();
                continue;
            }
            let (policy, word) = match word.strip_prefix("S:") {
                Some(word) => ("Always", word),
                None => ("", word),
            };
            let list = if is_split && n_init == 0 { "initContainers" } else { "containers" };
            let spec = json!({"name": "c", "restartPolicy": policy});
            let mut container = Container::new(&spec, list);
            container.tried = word != "w";
            match word {
                "w" => {}
                "r" | "s" | "x" => {
                    container.state = ContainerState::Running { since: String::new() };
                    container.started = word != "s";
                    container.stopping = word == "x";
                }
                "b" => container.last = Some(ended("1")),
                code => container.state = ContainerState::Terminated(ended(code)),
            }
            containers.push(container);
        }
        PodRun {
            uid: "u".into(),
            node: "n".into(),
            ip: Ipv4Addr::LOCALHOST,
            since: String::new(),
            restart,
            grace: 30,
            n_init,
            containers,
            terminating: None,
            failed: None,
            end_by_ms: None,
        }
    }

    #[test]
    fn phase_and_next_action_follow_from_the_containers() {
        use RestartPolicy::{Always, Never, OnFailure};
        let start = |index: &[usize]| NextAction::Start(index.to_vec());
        let stop = |index: &[usize]| NextAction::Stop(index.to_vec());
        for (restart, states, phase, next) in [
            (Never, "w w", "Pending", start(&[0, 1])),
            (Never, "r r", "Running", NextAction::Wait),
            (Never, "0 r", "Running", NextAction::Wait),
            (Never, "1 r", "Running", NextAction::Wait),
            (Never, "0 0", "Succeeded", NextAction::Wait),
            (Never, "0 137", "Failed", NextAction::Wait),
            (OnFailure, "0", "Succeeded", NextAction::Wait),
            (OnFailure, "1", "Running", NextAction::Restart(0)),
            (OnFailure, "b", "Running", NextAction::Wait),
            (OnFailure, "b 0", "Running", NextAction::Wait),
            (Always, "0", "Running", NextAction::Restart(0)),
            (Always, "r 0", "Running", NextAction::Restart(1)),
            (Never, "w w | w", "Pending", start(&[0])),
            (Never, "r w | w", "Pending", NextAction::Wait),
            (Never, "0 w | w", "Pending", start(&[1])),
            (Never, "0 0 | w", "Pending", start(&[2])),
            (Never, "0 1 | w", "Failed", NextAction::Wait),
            (OnFailure, "0 1 | w", "Pending", NextAction::Restart(1)),
            (OnFailure, "0 b | w", "Pending", NextAction::Wait),
            (Always, "0 | r", "Running", NextAction::Wait),
            (Always, "0 | 3", "Running", NextAction::Restart(1)),
            // Sidecars: the next container waits until they have started, they are restarted
            // whatever the pod's policy is, and they end after the others in reverse order.
            (Never, "S:w w | w", "Pending", start(&[0])),
            (Never, "S:s w | w", "Pending", NextAction::Wait),
            (Never, "S:r w | w", "Pending", start(&[1])),
            (Never, "S:r 0 S:s | w", "Pending", NextAction::Wait),
            (Never, "S:r 0 S:r | w", "Pending", start(&[3])),
            (Never, "S:7 w | w", "Pending", NextAction::Restart(0)),
            (Never, "S:b w | w", "Pending", NextAction::Wait),
            (Never, "S:0 | r", "Running", NextAction::Restart(0)),
            (Never, "S:b | r", "Running", NextAction::Wait),
            (Never, "S:s | r", "Running", NextAction::Wait),
            (Never, "S:r S:r | r", "Running", NextAction::Wait),
            (Never, "S:r S:r | 0", "Running", stop(&[1])),
            (Never, "S:r S:x | 0", "Running", NextAction::Wait),
            (Never, "S:r S:137 | 0", "Running", stop(&[0])),
            (Never, "S:137 S:137 | 0", "Succeeded", NextAction::Wait),
            (Never, "S:0 | 2", "Failed", NextAction::Wait),
            (Never, "S:r 1 | w", "Pending", stop(&[0])),
            (Never, "S:143 1 | w", "Failed", NextAction::Wait),
            (OnFailure, "S:r | 0", "Running", stop(&[0])),
            (Always, "S:r | 0", "Running", NextAction::Restart(1)),
        ] {
            let run = run(restart, states);
            assert_eq!((run.phase(), run.next_action()), (phase, next), "{restart:?} {states}");
        }
    }

    #[test]
    fn a_terminating_pod_starts_nothing_and_gets_a_final_phase() {
        let stop = |index: &[usize]| NextAction::Stop(index.to_vec());
        for (states, phase, next) in [
            ("0 143", "Failed", NextAction::Wait),
            ("0 0", "Succeeded", NextAction::Wait),
            ("r r", "Running", stop(&[0, 1])),
            ("x 0", "Running", NextAction::Wait),
            ("S:r S:r | r", "Running", stop(&[2])),
            ("S:r S:r | 143", "Running", stop(&[1])),
            ("S:r S:x | 0", "Running", NextAction::Wait),
            ("S:r r | w", "Pending", stop(&[1])),
            ("143 | w", "Failed", NextAction::Wait),
            ("b", "Failed", NextAction::Wait),
            ("w", "Pending", NextAction::Wait),
        ] {
            let mut run = run(RestartPolicy::Always, states);
            run.terminating = Some(30);
            assert_eq!((run.phase(), run.next_action()), (phase, next), "{states}");
        }
        let mut late = run(RestartPolicy::Always, "r");
        late.failed = Some(("DeadlineExceeded", String::new()));
        assert_eq!((late.phase(), late.next_action()), ("Running", stop(&[0])));
        let mut late = run(RestartPolicy::Always, "0");
        late.failed = Some(("DeadlineExceeded", String::new()));
        assert_eq!((late.phase(), late.next_action()), ("Failed", NextAction::Wait));
    }

    #[test]
    fn the_restart_delay_doubles_and_is_reset_after_a_long_run() {
        let mut backoff = Backoff::default();
        let mut now = 5;
        for want_seconds in [0, 10, 20, 40, 80, 160, 300, 300] {
            let delay = backoff.next(now);
            assert_eq!(delay, want_seconds * 1000);
            now += delay + 3;
        }
        assert_eq!(backoff.next(now + BACKOFF_RESET_MS), 0);
        assert_eq!(backoff.next(now + BACKOFF_RESET_MS + 9), BACKOFF_MS);
    }
}
