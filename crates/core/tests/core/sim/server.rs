//! Faults of the simulated API server that concern one group for ever, or all requests for a time.

use posse_base::rng::Rng;
use posse_core::model::action::Action;
use posse_core::model::event::{ClusterEvent, Event};
use posse_core::model::ids::GroupName;
use posse_core::model::input::{Input, ListSource};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::waiting::{ServerWait, Waiting};
use posse_core::reconciler::Reconciler;

use super::api::refusal;
use super::check::{CheckResult, fail};
use super::faults::{CreateFailure, ServerFaults, at};
use super::trace::trace;
use super::world::{Happening, World};

/// The client's time-out.
const TIME_OUT_MS: u64 = 35_000;
const SILENCE_MS_MAX: u64 = 120_000;
/// How long a balancer lets a connection live.
const CUT_EACH_MS: u64 = 60_000;

impl World {
    /// The same world with a server that fails for one group, or is silent for a time.
    pub fn with_server_faults(mut self, seed: u64) -> Self {
        let mut rng = Rng::new(seed.rotate_left(16) ^ 0x5e2);
        let faults = ServerFaults::draw(&mut rng);
        trace(|| format!("{faults:?}"));
        for _ in 0..faults.silences {
            let at = rng.below(self.profile.faulty_ms);
            self.at(at, Happening::Silence(1_000 + rng.below(SILENCE_MS_MAX)));
        }
        self.profile.server_faults = faults;
        self
    }

    /// The same world behind a balancer that cuts each watch after a minute, or with executors that end at once.
    pub fn with_cuts_and_instant_ends(mut self, seed: u64) -> Self {
        let mut rng = Rng::new(seed.rotate_left(48) ^ 0xc07);
        self.profile.cut_each_ms = [0, CUT_EACH_MS, CUT_EACH_MS][at(&mut rng, 3)];
        self.profile.ends_at_once = [0, 20, 60, 100][at(&mut rng, 4)];
        if self.profile.cut_each_ms > 0 {
            self.at(self.profile.cut_each_ms, Happening::Cut);
        }
        self
    }

    /// The watch delivers nothing now.
    pub fn pump_later(&mut self, stream: u64) {
        self.after(1_000, Happening::Pump { gen_: self.gen_, stream });
    }

    pub fn be_silent(&mut self, ms: u64) {
        let until = if self.is_calm { self.now } else { self.now + ms };
        self.check.silent_until = self.check.silent_until.max(until);
    }

    pub fn is_silent(&self) -> bool {
        self.now < self.check.silent_until && !self.is_calm
    }

    /// How a request is answered that the server does not execute, and after how many ms.
    pub fn server_failure(&mut self, action: &Action) -> Option<(u64, Refusal)> {
        if matches!(action, Action::ReserveIds { .. }) {
            return None;
        }
        let time_out = refusal(RefusalClass::OutcomeUnknown, 0, "no answer");
        if self.is_silent() {
            return Some((TIME_OUT_MS, time_out));
        }
        let Action::Create { group, .. } = action else { return None };
        match self.profile.server_faults.create_failure(group)? {
            CreateFailure::Internal => {
                Some((5, refusal(RefusalClass::OutcomeUnknown, 500, "webhook failed")))
            }
            CreateFailure::NotYet => {
                Some((5, refusal(RefusalClass::Transient, 403, "no service account")))
            }
            CreateFailure::TimeOut => Some((TIME_OUT_MS, time_out)),
            CreateFailure::WebhookBusy(code) => {
                let mut refusal = refusal(RefusalClass::WebhookBusy, code, "the webhook is busy");
                refusal.retry_after_ms = (code == 429).then_some(10_000);
                Some((5, refusal))
            }
            CreateFailure::Unplaced => None,
        }
    }

    /// The thread that reserves ids is busy.
    pub fn drops_reservation(&mut self, action: &Action) -> Option<Input> {
        let percent = self.profile.server_faults.dropped_reservations;
        match action {
            Action::ReserveIds { up_to } if percent > 0 && self.rng.chance(percent) => {
                Some(Input::IdsNotReserved { up_to: *up_to })
            }
            _ => None,
        }
    }

    /// A LIST gets no answer. The watcher sends it again.
    pub fn time_out_list(&mut self, stream: Option<u64>, source: ListSource) {
        let gen_ = self.gen_;
        self.after(TIME_OUT_MS, Happening::ListTimedOut { gen_, stream, source });
    }

    pub fn list_timed_out(&mut self, stream: Option<u64>, source: ListSource) -> CheckResult {
        if stream.is_some() {
            let gen_ = self.gen_;
            self.after(1_000, Happening::ListSent { gen_, stream, source });
        }
        let refusal = refusal(RefusalClass::OutcomeUnknown, 0, "no answer to the list");
        self.input(Input::ReadRefused { refusal })
    }

    /// Outages begin and end in turn, and a group whose creates fail says so.
    pub fn check_outages(&mut self, events: &[Event]) -> CheckResult {
        for event in events {
            let begins = match event {
                Event::Cluster(ClusterEvent::ServerUnavailable { .. }) => true,
                Event::Cluster(ClusterEvent::ServerAvailable { .. }) => false,
                _ => continue,
            };
            if begins == self.check.is_outage {
                return fail(format!("{event:?} again"));
            }
            self.check.is_outage = begins;
        }
        let Some(core) = &self.core else { return Ok(()) };
        if core.outage().is_some() != self.check.is_outage {
            return fail(format!("outage {:?} was not told", core.outage()));
        }
        let is_stopping = self.check.stop.is_some();
        for (name, group) in core.executors().groups().iter().filter(|_| !is_stopping) {
            let is_silent = group
                .wait
                .waiting()
                .is_none_or(|waiting| waiting == Waiting::Server(ServerWait::InFlight));
            if group.retries.failing_since().is_some() && is_silent {
                return fail(format!("the creates of {name} fail, and it waits for nothing"));
            }
        }
        Ok(())
    }
}

impl ServerFaults {
    fn create_failure(&self, group: &GroupName) -> Option<CreateFailure> {
        let (bad, how) = self.bad_group.as_ref()?;
        (bad == group).then_some(*how)
    }

    /// True if this group never starts.
    pub fn is_bad(&self, group: &GroupName) -> bool {
        self.create_failure(group).is_some()
    }

    /// True if no pod of this group finds a node.
    pub fn is_unplaced(&self, group: &GroupName) -> bool {
        self.create_failure(group) == Some(CreateFailure::Unplaced)
    }

    /// True if the action is about the group that never starts.
    pub fn is_about_bad_group(&self, action: &Action, core: &Reconciler) -> bool {
        let Some((bad, _)) = &self.bad_group else { return false };
        let of_uid = |uid| core.snapshot().get(uid).map(|pod| &pod.group);
        let group = match action {
            Action::Create { group, .. } => Some(group),
            Action::Get { id, .. } => core.executors().get(*id).map(|executor| &executor.group),
            Action::Delete { uid, .. }
            | Action::Patch { uid, .. }
            | Action::Protect { uid, .. } => of_uid(uid),
            // A time-out makes the core ask whether the server answers.
            Action::Poll => return true,
            _ => return false,
        };
        group.is_none_or(|group| group == bad)
    }
}
