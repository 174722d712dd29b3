//! Owns the course of one pod on the node: its containers, what runs next, and its phase. Pure: no
//! process, clock or store in here.

use std::net::Ipv4Addr;

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
    Running { since: String, process: Option<u32> },
    Waiting { reason: &'static str, message: String },
}

#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: String,
    pub(super) image: String,
    pub(super) state: State,
    pub(super) last: Option<Ended>,
    pub(super) restarts: u32,
}

impl Container {
    pub(super) fn new(name: &str, image: &str) -> Self {
        let state = State::Waiting { reason: "ContainerCreating", message: String::new() };
        Self { name: name.to_owned(), image: image.to_owned(), state, last: None, restarts: 0 }
    }

    fn exit_code(&self) -> Option<i32> {
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

    fn never_started(&self) -> bool {
        match self.state {
            State::Waiting { .. } => self.last.is_none(),
            State::Ended(_) | State::Running { .. } => false,
        }
    }
}

/// One pod on the node. Init containers come first in `containers`.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) uid: Box<str>,
    pub(super) node: Box<str>,
    pub(super) ip: Ipv4Addr,
    pub(super) since: String,
    pub(super) restart: Restart,
    pub(super) n_init: usize,
    pub(super) containers: Vec<Container>,
    /// The grace, once its end has been asked for.
    pub(super) ending: Option<i64>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Start this container again, after the backoff.
    Restart(usize),
    /// Start these for the first time.
    Start(Vec<usize>),
    Wait,
}

impl Run {
    pub(super) fn init(&self) -> &[Container] {
        self.containers.get(..self.n_init).unwrap_or_default()
    }

    pub(super) fn main(&self) -> &[Container] {
        self.containers.get(self.n_init..).unwrap_or_default()
    }

    pub(super) fn is_initialized(&self) -> bool {
        self.init().iter().all(|container| container.exit_code() == Some(0))
    }

    pub(super) fn has_running(&self) -> bool {
        self.containers.iter().any(Container::is_running)
    }

    pub(super) fn next(&self) -> Next {
        if self.ending.is_some() {
            return Next::Wait;
        }
        let initialized = self.is_initialized();
        let stage = match initialized {
            true => self.n_init..self.containers.len(),
            false => 0..self.n_init,
        };
        let restarted = stage.clone().find(|at| {
            let code = self.containers.get(*at).and_then(Container::exit_code);
            code.is_some_and(|code| match initialized {
                true => self.restart.applies(code),
                // An init container that did its work is done, whatever the policy.
                false => code != 0 && self.restart != Restart::Never,
            })
        });
        if let Some(at) = restarted {
            return Next::Restart(at);
        }
        if initialized {
            let fresh: Vec<usize> = stage.filter(|at| self.is_fresh(*at)).collect();
            return if fresh.is_empty() { Next::Wait } else { Next::Start(fresh) };
        }
        let first = self.init().iter().position(|container| container.exit_code() != Some(0));
        match first {
            Some(at) if self.is_fresh(at) => Next::Start(vec![at]),
            Some(_) | None => Next::Wait,
        }
    }

    /// True where nothing has been tried yet.
    fn is_fresh(&self, at: usize) -> bool {
        self.containers.get(at).is_some_and(|container| match &container.state {
            State::Waiting { reason, .. } => {
                matches!(*reason, "ContainerCreating" | "PodInitializing")
            }
            State::Ended(_) | State::Running { .. } => false,
        })
    }

    /// The phase as a kubelet computes it.
    pub(super) fn phase(&self) -> &'static str {
        let ended = |container: &Container| {
            container
                .exit_code()
                .filter(|code| self.ending.is_some() || !self.restart.applies(*code))
        };
        if !self.is_initialized() {
            let failed = self.init().iter().any(|container| {
                container.exit_code().is_some_and(|code| code != 0)
                    && (self.restart == Restart::Never || self.ending.is_some())
            });
            return if failed { "Failed" } else { "Pending" };
        }
        let codes: Vec<Option<i32>> = self.main().iter().map(ended).collect();
        if codes.iter().all(Option::is_some) {
            let failed = codes.into_iter().flatten().any(|code| code != 0);
            return if failed { "Failed" } else { "Succeeded" };
        }
        match self.main().iter().any(Container::never_started) {
            true => "Pending",
            false => "Running",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `r` running, `w` not started, a number: ended with it; `|` after the init containers.
    fn run(restart: Restart, states: &str) -> Run {
        let mut containers = Vec::new();
        let mut n_init = 0;
        for word in states.split(' ') {
            if word == "|" {
                n_init = containers.len();
                continue;
            }
            let mut container = Container::new("c", "i");
            container.state = match word {
                "w" => container.state,
                "r" => State::Running { since: String::new(), process: None },
                code => State::Ended(Ended {
                    exit_code: code.parse().expect("a number"),
                    reason: "Error",
                    message: String::new(),
                    started_at: String::new(),
                    finished_at: String::new(),
                }),
            };
            containers.push(container);
        }
        Run {
            uid: "u".into(),
            node: "n".into(),
            ip: Ipv4Addr::LOCALHOST,
            since: String::new(),
            restart,
            n_init,
            containers,
            ending: None,
        }
    }

    #[test]
    fn phases_and_steps_follow_from_the_containers() {
        use Restart::{Always, Never, OnFailure};
        let start = |at: &[usize]| Next::Start(at.to_vec());
        for (restart, states, phase, next) in [
            (Never, "w w", "Pending", start(&[0, 1])),
            (Never, "r r", "Running", Next::Wait),
            (Never, "0 r", "Running", Next::Wait),
            (Never, "1 r", "Running", Next::Wait),
            (Never, "0 0", "Succeeded", Next::Wait),
            (Never, "0 137", "Failed", Next::Wait),
            (OnFailure, "0", "Succeeded", Next::Wait),
            (OnFailure, "1", "Running", Next::Restart(0)),
            (Always, "0", "Running", Next::Restart(0)),
            (Never, "w w | w", "Pending", start(&[0])),
            (Never, "r w | w", "Pending", Next::Wait),
            (Never, "0 w | w", "Pending", start(&[1])),
            (Never, "0 0 | w", "Pending", start(&[2])),
            (Never, "0 1 | w", "Failed", Next::Wait),
            (OnFailure, "0 1 | w", "Pending", Next::Restart(1)),
            (Always, "0 | r", "Running", Next::Wait),
            (Always, "0 | 3", "Running", Next::Restart(1)),
        ] {
            let run = run(restart, states);
            assert_eq!((run.phase(), run.next()), (phase, next), "{restart:?} {states}");
        }
    }

    #[test]
    fn a_pod_that_ends_starts_nothing_and_has_a_final_phase() {
        for (states, phase) in [("0 143", "Failed"), ("0 0", "Succeeded"), ("r 0", "Running")] {
            let mut run = run(Restart::Always, states);
            run.ending = Some(30);
            assert_eq!((run.phase(), run.next()), (phase, Next::Wait), "{states}");
        }
    }
}
