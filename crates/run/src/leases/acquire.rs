//! Waits at the start of a run until a Lease is acquired, or cannot be.

use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use log::info;

use crate::inbox::Message;
use crate::leases::holder::describe;
use crate::signals::{Signal, Signals};
use posse_base::clock::Clock;
use posse_base::time::Millis;
use posse_core::machines::lease::{HolderWait, LeaseScope, LeaseUpdate};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::takeover::Takeover;
use posse_process::job;

/// The result of acquiring a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseAcquisition {
    /// The Lease is held. Ids up to `id_high_water` may have been used before. `from`: whom the standby follows.
    Acquired { id_high_water: u64, from: Option<Takeover> },
    /// This signal ended the wait. `holder`: who held the Lease, if the run was waiting for that.
    Interrupted { signal: Signal, holder: Option<String> },
    /// Another program's Lease has our name.
    Foreign,
    /// Another live process holds the Lease.
    HeldBy { holder: String },
    /// The server does not permit access to Leases.
    Forbidden { message: String },
    /// Credentials or namespace are wrong: retrying does not help.
    Refused { message: String },
    /// The server did not answer, or answered with errors only, until the time-out.
    TimedOut { message: String },
}

/// Waits until the Lease of `scope` is acquired or refused. The server must answer within `timeout`,
/// not counting the time in which another holder's Lease is awaited; a standby outlives each outage.
/// Until this returns, the inbox receives messages of lease threads only.
#[must_use]
pub fn await_lease(
    inbox: &Receiver<Message>,
    signals: &Signals,
    clock: Clock,
    timeout: Duration,
    (scope, holder_wait): (LeaseScope, HolderWait),
) -> LeaseAcquisition {
    let deadline = Instant::now() + timeout;
    let last_error = "no answer".to_owned();
    let (n_not_found, waited_for) = (0, None);
    let mut wait =
        Wait { clock, timeout, scope, holder_wait, deadline, last_error, n_not_found, waited_for };
    let mut was_suspended = false;
    loop {
        let message = select! {
            recv(inbox) -> message => message,
            recv(signals.wake()) -> _ => {
                if let Some(signal) = take_stop(signals, &mut was_suspended) {
                    let holder = wait.waited_for.as_deref().map(describe);
                    return LeaseAcquisition::Interrupted { signal, holder };
                }
                continue;
            }
            default(wait.deadline.saturating_duration_since(Instant::now())) => {
                if std::mem::take(&mut was_suspended) || wait.stands_by() {
                    wait.deadline = Instant::now() + timeout;
                    continue;
                }
                break;
            }
        };
        let Ok(message) = message else { break };
        let update = match message {
            Message::Lease(which, update) if which == scope => update,
            // The application's Lease was lost while this run waited for the instance's.
            Message::Lease(_, LeaseUpdate::Lost { holder }) => return held_by(holder.as_deref()),
            Message::Lease(..)
            | Message::Command { .. }
            | Message::Input(_)
            | Message::Job { .. }
            | Message::ReadRefused(_) => continue,
        };
        if let Some(acquisition) = wait.on_update(update) {
            return acquisition;
        }
    }
    LeaseAcquisition::TimedOut { message: wait.last_error }
}

/// A wait for a Lease.
struct Wait {
    clock: Clock,
    timeout: Duration,
    scope: LeaseScope,
    holder_wait: HolderWait,
    deadline: Instant,
    last_error: String,
    n_not_found: u32,
    waited_for: Option<String>,
}

impl Wait {
    fn stands_by(&self) -> bool {
        self.holder_wait == HolderWait::StandsBy && self.waited_for.is_some()
    }

    fn on_update(&mut self, update: LeaseUpdate) -> Option<LeaseAcquisition> {
        match update {
            LeaseUpdate::Held { id_high_water, from } => {
                let id_high_water = id_high_water.map_or(0, |id| id.0);
                return Some(LeaseAcquisition::Acquired { id_high_water, from });
            }
            LeaseUpdate::Foreign => return Some(LeaseAcquisition::Foreign),
            LeaseUpdate::HeldBy { holder } => return Some(held_by(Some(&holder))),
            LeaseUpdate::Forbidden { message } => {
                let told = self.standby_ends(&message);
                return Some(told.unwrap_or(LeaseAcquisition::Forbidden { message }));
            }
            LeaseUpdate::Retrying { refusal } => {
                self.n_not_found += u32::from(refusal.class == RefusalClass::NotFound);
                if let Some(remedy) = remedy(&refusal, self.n_not_found) {
                    let message = format!("{refusal}; {remedy}");
                    let told = self.standby_ends(&message);
                    return Some(told.unwrap_or(LeaseAcquisition::Refused { message }));
                }
                if self.last_error != refusal.to_string() {
                    self.last_error = refusal.to_string();
                    let (s, why) = (self.timeout.as_secs(), &self.last_error);
                    info!("waiting for the lease (retrying for up to {s} s): {why}");
                }
            }
            LeaseUpdate::Waiting { holder, until } => self.on_holder(holder, until),
            LeaseUpdate::IdsReserved { .. } | LeaseUpdate::Lost { .. } => {}
        }
        None
    }

    fn on_holder(&mut self, holder: String, until: Millis) {
        let wait = Duration::from_millis(until.since(self.clock.now()));
        if self.waited_for.as_ref() != Some(&holder) {
            match self.holder_wait {
                HolderWait::StandsBy => info!("stands by for {}", describe(&holder)),
                HolderWait::No | HolderWait::ForItsEnd => log_wait(self.scope, &holder, wait),
            }
        }
        self.waited_for = Some(holder);
        self.deadline = Instant::now() + wait + self.timeout;
    }

    /// A standby that ends is no failure of the driver, so the Job does not count it.
    fn standby_ends(&self, why: &str) -> Option<LeaseAcquisition> {
        let holder = self.waited_for.as_deref().filter(|_| self.stands_by())?;
        let holder = format!("{}, and its standby cannot go on: {why}", describe(holder));
        Some(LeaseAcquisition::HeldBy { holder })
    }
}

fn held_by(holder: Option<&str>) -> LeaseAcquisition {
    let holder = holder.map_or_else(|| "an unknown holder".to_owned(), describe);
    LeaseAcquisition::HeldBy { holder }
}

/// The signal that ends a wait. After Ctrl-Z, `was_suspended`: the time went on while nothing ran.
pub(crate) fn take_stop(signals: &Signals, was_suspended: &mut bool) -> Option<Signal> {
    signals.take().find(|signal| {
        *was_suspended |= *signal == Signal::Tstp && job::suspend();
        // The driver is not running yet, so SIGHUP and SIGQUIT are for posse.
        signal.is_stop_without_driver()
    })
}

fn log_wait(scope: LeaseScope, holder: &str, wait: Duration) {
    info!(
        "the {} is held by {}: waiting until the holder releases the lease, or has not renewed it for \
         {} s",
        scope.as_str(),
        describe(holder),
        wait.as_secs()
    );
}

/// What the user has to do, if retrying does not help.
fn remedy(refusal: &Refusal, n_not_found: u32) -> Option<&'static str> {
    if refusal.class == RefusalClass::Unauthorized {
        return Some("renew the token or the client certificate");
    }
    // The first 404 may be for the Lease itself, which is then created. A 404 for the create means that
    // the namespace does not exist.
    let is_of_namespace = refusal.message.starts_with("namespaces \"");
    let is_gone = n_not_found > 1 || (n_not_found == 1 && is_of_namespace);
    is_gone.then_some("create the namespace, or choose another with --namespace")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::inbox;
    use crate::leases::handle::LeaseHandle;
    use crate::leases::testing::settings;
    use posse_base::rng::Rng;
    use posse_core::machines::lease::LeaseRelease;
    use posse_testing::{Answer, PATIENCE, TestServer};

    fn refused(code: u16, reason: &str, message: &str) -> Answer {
        let status = serde_json::json!({
            "kind": "Status", "code": code, "reason": reason, "message": message,
        });
        Answer::json(code, status.to_string())
    }

    fn acquire(
        timeout: Duration,
        script: impl Fn(&str) -> Answer + Send + Sync + 'static,
    ) -> LeaseAcquisition {
        let server = TestServer::start(None, move |seen| script(seen.line()));
        let lease = settings(&server);
        let (sender, receiver) = inbox();
        let (signals, clock) = (Signals::start().unwrap(), Clock::start());
        let handle = LeaseHandle::start(lease, sender, clock, Rng::new(1)).unwrap();
        let acquired = await_lease(
            &receiver,
            &signals,
            clock,
            timeout,
            (LeaseScope::Instance, HolderWait::No),
        );
        assert!(handle.stop(LeaseRelease::Keep, PATIENCE), "nothing is held or asked");
        acquired
    }

    #[test]
    fn each_server_answer_has_its_result() {
        let absent = || refused(404, "NotFound", "leases \"w\" not found");
        let got =
            acquire(PATIENCE, move |_| refused(403, "Forbidden", "leases is forbidden: User"));
        assert!(matches!(got, LeaseAcquisition::Forbidden { .. }), "{got:?}");
        let got = acquire(PATIENCE, move |_| refused(401, "Unauthorized", "Unauthorized"));
        assert!(
            matches!(&got, LeaseAcquisition::Refused { message } if message.contains("renew the token")),
            "{got:?}"
        );
        let got = acquire(PATIENCE, move |line| match line.starts_with("GET") {
            true => absent(),
            false => refused(404, "NotFound", "namespaces \"ns\" not found"),
        });
        assert!(
            matches!(&got, LeaseAcquisition::Refused { message } if message.contains("--namespace")),
            "{got:?}"
        );
        let got = acquire(Duration::from_secs(4), |_| refused(503, "ServiceUnavailable", "later"));
        assert_eq!(got, LeaseAcquisition::TimedOut { message: "later (503)".to_owned() });
    }
}
