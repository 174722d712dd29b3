//! Owns the course of one pod on the node: its containers, what runs next, what ends next, and its
//! phase. Pure: no process, clock or store in here.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::dev::storage::object::text_at;

/// When an ended container is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Restart {
    Always,
    Never,
    OnFailure,
}

impl Restart {
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

/// What a container is in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Init,
    Main,
    /// An init container that is always restarted: it runs beside all that follow it.
    Sidecar,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) exit_code: i32,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) started_at: String,
    pub(super) finished_at: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Ended(Ended),
    Running { since: String },
    Waiting { reason: &'static str, message: String },
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) role: Role,
    pub(super) state: State,
    pub(super) last: Option<Ended>,
    pub(super) restarts: u32,
    /// Its start was tried: what comes next is a restart.
    pub(super) tried: bool,
    /// It ended, and a timer starts it again.
    pub(super) restarting: bool,
    /// Its end has been asked for.
    pub(super) stopping: bool,
    /// Running, past its hook and its startup probe.
    pub(super) started: bool,
    /// Started, and its readiness probe says so.
    pub(super) ready: bool,
    pub(super) backoff: Backoff,
    /// The process that runs it, by the kubelet's own number.
    pub(super) process: Option<u64>,
}

/// The delay between a container's restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backoff {
    delay_ms: u64,
    /// When the delay was last set.
    at_ms: u64,
}

/// The first restart comes at once, the second after this, doubled to the maximum.
const BACKOFF_MS: u64 = 10_000;
const BACKOFF_MS_MAX: u64 = 300_000;
/// Who runs so long after a restart begins anew.
const BACKOFF_RESET_MS: u64 = 2 * BACKOFF_MS_MAX;

impl Backoff {
    /// How long a container that ended at `now_ms` waits.
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
    /// Of a container of `list`: `initContainers` or `containers`.
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
            state: State::Waiting { reason: "ContainerCreating", message: String::new() },
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
            State::Ended(ended) => Some(ended.exit_code),
            State::Running { .. } | State::Waiting { .. } => None,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        match self.state {
            State::Running { .. } => true,
            State::Ended(_) | State::Waiting { .. } => false,
        }
    }

    /// How it ended, be it that it waits for its next start.
    fn last_code(&self) -> Option<i32> {
        match &self.state {
            State::Ended(ended) => Some(ended.exit_code),
            State::Waiting { .. } => self.last.as_ref().map(|last| last.exit_code),
            State::Running { .. } => None,
        }
    }

    fn never_ran(&self) -> bool {
        match self.state {
            State::Waiting { .. } => self.last.is_none(),
            State::Ended(_) | State::Running { .. } => false,
        }
    }
}

/// One pod on the node. Init containers and side-cars come first in `containers`.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) uid: Box<str>,
    pub(super) node: Box<str>,
    pub(super) ip: Ipv4Addr,
    pub(super) since: String,
    pub(super) restart: Restart,
    /// The seconds between its first signal and its last, unless a delete says otherwise.
    pub(super) grace: i64,
    pub(super) n_init: usize,
    pub(super) containers: Vec<Container>,
    /// The grace, once its end has been asked for.
    pub(super) ending: Option<i64>,
    /// Why the node ends it by itself: a reason and a message.
    pub(super) failed: Option<(&'static str, String)>,
    /// When the grace of its end is over.
    pub(super) end_by_ms: Option<u64>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start this container again, after the backoff.
    Restart(usize),
    /// Start these for the first time.
    Start(Vec<usize>),
    /// End these.
    Stop(Vec<usize>),
    Wait,
}

impl Run {
    pub(super) fn init(&self) -> &[Container] {
        self.containers.get(..self.n_init).unwrap_or_default()
    }

    pub(super) fn main(&self) -> &[Container] {
        self.containers.get(self.n_init..).unwrap_or_default()
    }

    /// All that comes before the main containers is done, or as far as it has to be.
    pub(super) fn is_initialized(&self) -> bool {
        self.has_begun() || self.init().iter().all(Container::is_passed)
    }

    /// The main containers had their turn: nothing that happens to a side-car takes it back.
    fn has_begun(&self) -> bool {
        self.main().iter().any(|container| container.tried)
    }

    pub(super) fn has_running(&self) -> bool {
        self.containers.iter().any(Container::is_running)
    }

    /// Nothing of it will be started any more.
    pub(super) fn is_over(&self) -> bool {
        let final_end = |container: &Container| {
            container.exit_code().is_some_and(|code| !self.restart.applies(code))
        };
        self.ending.is_some()
            || self.failed.is_some()
            || self.init_failed_for_good()
            || self.main().iter().all(final_end)
    }

    fn init_failed_for_good(&self) -> bool {
        let failed = |container: &Container| {
            container.role == Role::Init && container.last_code().is_some_and(|code| code != 0)
        };
        self.restart == Restart::Never && self.init().iter().any(failed)
    }

    pub(super) fn next(&self) -> Next {
        if self.is_over() {
            return self.next_stop();
        }
        let indexed = || self.containers.iter().enumerate();
        for (at, container) in indexed().take(self.n_init) {
            if !container.tried {
                return Next::Start(vec![at]);
            }
            let again = container.exit_code().is_some_and(|code| match container.role {
                Role::Sidecar => true,
                // An init container that did its work is done, whatever the policy.
                Role::Init | Role::Main => code != 0,
            });
            if again && !container.restarting {
                return Next::Restart(at);
            }
            if !container.is_passed() && !self.has_begun() {
                return Next::Wait;
            }
        }
        let mut main = indexed().skip(self.n_init);
        let again = main.find(|(_, container)| {
            !container.restarting
                && container.exit_code().is_some_and(|code| self.restart.applies(code))
        });
        if let Some((at, _)) = again {
            return Next::Restart(at);
        }
        let fresh = indexed().skip(self.n_init).filter(|(_, container)| !container.tried);
        match fresh.map(|(at, _)| at).collect::<Vec<_>>() {
            none if none.is_empty() => Next::Wait,
            fresh => Next::Start(fresh),
        }
    }

    /// The main containers end together, then the side-cars one by one, the last first.
    fn next_stop(&self) -> Next {
        let running = |container: &Container| container.is_running();
        let indexed = || self.containers.iter().enumerate();
        let work = || indexed().filter(|(_, c)| c.role != Role::Sidecar && running(c));
        let fresh: Vec<usize> = work().filter(|(_, c)| !c.stopping).map(|(at, _)| at).collect();
        if !fresh.is_empty() {
            return Next::Stop(fresh);
        }
        if work().next().is_some() {
            return Next::Wait;
        }
        match indexed().rev().find(|(_, container)| running(container)) {
            Some((at, sidecar)) if !sidecar.stopping => Next::Stop(vec![at]),
            Some(_) | None => Next::Wait,
        }
    }

    /// The phase as a kubelet computes it: a final one is told when nothing runs any more.
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
        let ended_by_us = self.ending.is_some() || self.failed.is_some();
        if self.failed.is_some() || self.init_failed_for_good() {
            return "Failed";
        }
        if !self.is_initialized() {
            let failed = self.init().iter().any(|container| {
                container.role == Role::Init && container.exit_code().is_some_and(|code| code != 0)
            });
            return if failed && ended_by_us { "Failed" } else { "Pending" };
        }
        if self.main().iter().any(Container::never_ran) {
            return "Pending";
        }
        let stopped: Vec<i32> = self.main().iter().filter_map(Container::last_code).collect();
        if self.has_running() && stopped.len() < self.main().len() {
            return "Running";
        }
        let failed = stopped.iter().any(|code| *code != 0);
        match (ended_by_us, self.restart, failed) {
            (false, Restart::Always, _) | (false, Restart::OnFailure, true) => "Running",
            (_, _, true) => "Failed",
            (_, _, false) => "Succeeded",
        }
    }
}

impl Container {
    /// What follows it may start.
    pub(super) fn is_passed(&self) -> bool {
        match self.role {
            Role::Sidecar => self.is_running() && self.started,
            Role::Init | Role::Main => self.exit_code() == Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// One word for each container: `w` not started, `r` running, `s` running but not yet past its
    /// startup, `x` running and being ended, `b` in its backoff after an error, a number: ended
    /// with it; `S:` before those of side-cars, `|` after the init containers.
    fn run(restart: Restart, states: &str) -> Run {
        let mut containers = Vec::new();
        let mut n_init = 0;
        let ended = |code: &str| Ended {
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
                    container.state = State::Running { since: String::new() };
                    container.started = word != "s";
                    container.stopping = word == "x";
                }
                "b" => container.last = Some(ended("1")),
                code => container.state = State::Ended(ended(code)),
            }
            containers.push(container);
        }
        Run {
            uid: "u".into(),
            node: "n".into(),
            ip: Ipv4Addr::LOCALHOST,
            since: String::new(),
            restart,
            grace: 30,
            n_init,
            containers,
            ending: None,
            failed: None,
            end_by_ms: None,
        }
    }

    #[test]
    fn phases_and_steps_follow_from_the_containers() {
        use Restart::{Always, Never, OnFailure};
        let start = |at: &[usize]| Next::Start(at.to_vec());
        let stop = |at: &[usize]| Next::Stop(at.to_vec());
        for (restart, states, phase, next) in [
            (Never, "w w", "Pending", start(&[0, 1])),
            (Never, "r r", "Running", Next::Wait),
            (Never, "0 r", "Running", Next::Wait),
            (Never, "1 r", "Running", Next::Wait),
            (Never, "0 0", "Succeeded", Next::Wait),
            (Never, "0 137", "Failed", Next::Wait),
            (OnFailure, "0", "Succeeded", Next::Wait),
            (OnFailure, "1", "Running", Next::Restart(0)),
            (OnFailure, "b", "Running", Next::Wait),
            (OnFailure, "b 0", "Running", Next::Wait),
            (Always, "0", "Running", Next::Restart(0)),
            (Always, "r 0", "Running", Next::Restart(1)),
            (Never, "w w | w", "Pending", start(&[0])),
            (Never, "r w | w", "Pending", Next::Wait),
            (Never, "0 w | w", "Pending", start(&[1])),
            (Never, "0 0 | w", "Pending", start(&[2])),
            (Never, "0 1 | w", "Failed", Next::Wait),
            (OnFailure, "0 1 | w", "Pending", Next::Restart(1)),
            (OnFailure, "0 b | w", "Pending", Next::Wait),
            (Always, "0 | r", "Running", Next::Wait),
            (Always, "0 | 3", "Running", Next::Restart(1)),
            // Side-cars: the next one waits until they have started, whatever the policy they are
            // restarted, and they end after the others, the last first.
            (Never, "S:w w | w", "Pending", start(&[0])),
            (Never, "S:s w | w", "Pending", Next::Wait),
            (Never, "S:r w | w", "Pending", start(&[1])),
            (Never, "S:r 0 S:s | w", "Pending", Next::Wait),
            (Never, "S:r 0 S:r | w", "Pending", start(&[3])),
            (Never, "S:7 w | w", "Pending", Next::Restart(0)),
            (Never, "S:b w | w", "Pending", Next::Wait),
            (Never, "S:0 | r", "Running", Next::Restart(0)),
            (Never, "S:b | r", "Running", Next::Wait),
            (Never, "S:s | r", "Running", Next::Wait),
            (Never, "S:r S:r | r", "Running", Next::Wait),
            (Never, "S:r S:r | 0", "Running", stop(&[1])),
            (Never, "S:r S:x | 0", "Running", Next::Wait),
            (Never, "S:r S:137 | 0", "Running", stop(&[0])),
            (Never, "S:137 S:137 | 0", "Succeeded", Next::Wait),
            (Never, "S:0 | 2", "Failed", Next::Wait),
            (Never, "S:r 1 | w", "Pending", stop(&[0])),
            (Never, "S:143 1 | w", "Failed", Next::Wait),
            (OnFailure, "S:r | 0", "Running", stop(&[0])),
            (Always, "S:r | 0", "Running", Next::Restart(1)),
        ] {
            let run = run(restart, states);
            assert_eq!((run.phase(), run.next()), (phase, next), "{restart:?} {states}");
        }
    }

    #[test]
    fn a_pod_that_ends_starts_nothing_and_has_a_final_phase() {
        let stop = |at: &[usize]| Next::Stop(at.to_vec());
        for (states, phase, next) in [
            ("0 143", "Failed", Next::Wait),
            ("0 0", "Succeeded", Next::Wait),
            ("r r", "Running", stop(&[0, 1])),
            ("x 0", "Running", Next::Wait),
            ("S:r S:r | r", "Running", stop(&[2])),
            ("S:r S:r | 143", "Running", stop(&[1])),
            ("S:r S:x | 0", "Running", Next::Wait),
            ("S:r r | w", "Pending", stop(&[1])),
            ("143 | w", "Failed", Next::Wait),
            ("b", "Failed", Next::Wait),
            ("w", "Pending", Next::Wait),
        ] {
            let mut run = run(Restart::Always, states);
            run.ending = Some(30);
            assert_eq!((run.phase(), run.next()), (phase, next), "{states}");
        }
        let mut late = run(Restart::Always, "r");
        late.failed = Some(("DeadlineExceeded", String::new()));
        assert_eq!((late.phase(), late.next()), ("Running", stop(&[0])));
        let mut late = run(Restart::Always, "0");
        late.failed = Some(("DeadlineExceeded", String::new()));
        assert_eq!((late.phase(), late.next()), ("Failed", Next::Wait));
    }

    #[test]
    fn restarts_slow_down_and_begin_anew() {
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
