//! The Leases of a run after its start: what a renewal and a loss mean for the run.
//!
//! Nothing is created or deleted unless all requested Leases are held. A Lease that another holder has is
//! not a failure of the server, and a lost Lease of the application means that another driver has taken over.

use crate::machines::lease::LeaseScope;
use crate::model::action::RunVerdict;
use crate::model::ids::ExecutorId;
use crate::model::input::Input;
use posse_base::time::Millis;

/// Which Leases are held. One that was not requested counts as held.
#[derive(Clone, Debug)]
pub struct HeldLeases {
    has_application: bool,
    has_instance: bool,
    /// Another posse holds one of them.
    is_taken_over: bool,
}

/// What follows from the loss of a Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostLease {
    /// For the reconciler, in this order.
    pub inputs: Vec<Input>,
    pub verdict: Option<RunVerdict>,
}

impl Default for HeldLeases {
    fn default() -> Self {
        Self { has_application: true, has_instance: true, is_taken_over: false }
    }
}

impl HeldLeases {
    pub fn has_all(&self) -> bool {
        self.has_application && self.has_instance
    }

    pub fn is_taken_over(&self) -> bool {
        self.is_taken_over
    }

    /// The Lease is held again. The input for the reconciler.
    pub fn on_held(&mut self, scope: LeaseScope, high_water: Option<ExecutorId>) -> Input {
        *self.of(scope) = true;
        let held = self.has_all();
        self.is_taken_over &= !held;
        Input::Lease { held, high_water }
    }

    /// The Lease is lost, to this holder if one is known; else it was not renewed for `silent_ms`. `why`: in words.
    pub fn on_lost(
        &mut self,
        scope: LeaseScope,
        holder: Option<String>,
        why: String,
        (silent_ms, now): (u64, Millis),
    ) -> LostLease {
        *self.of(scope) = false;
        let mut inputs = Vec::new();
        if holder.is_none() {
            let since = Millis(now.0.saturating_sub(silent_ms));
            inputs.push(Input::NoAnswer { since, message: why });
        }
        inputs.push(Input::Lease { held: false, high_water: None });
        self.is_taken_over |= holder.is_some();
        let verdict = holder.filter(|_| scope == LeaseScope::Application);
        LostLease { inputs, verdict: verdict.map(|holder| RunVerdict::TakenOver { holder }) }
    }

    fn of(&mut self, scope: LeaseScope) -> &mut bool {
        match scope {
            LeaseScope::Application => &mut self.has_application,
            LeaseScope::Instance => &mut self.has_instance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LeaseScope::{Application, Instance};
    use super::*;

    const NOW: Millis = Millis(100_000);

    #[test]
    fn a_loss_without_a_holder_is_an_outage_and_one_to_another_driver_ends_the_run() {
        let unanswered = Input::NoAnswer { since: Millis(60_000), message: "why".to_owned() };
        let lost = || Input::Lease { held: false, high_water: None };
        let end = || Some(RunVerdict::TakenOver { holder: "b".to_owned() });
        for (scope, holder, inputs, verdict) in [
            (Application, None, vec![unanswered.clone(), lost()], None),
            (Instance, None, vec![unanswered, lost()], None),
            (Application, Some("b".to_owned()), vec![lost()], end()),
            (Instance, Some("b".to_owned()), vec![lost()], None),
        ] {
            let (mut leases, is_taken_over) = (HeldLeases::default(), holder.is_some());
            let got = leases.on_lost(scope, holder, "why".to_owned(), (40_000, NOW));
            assert_eq!(got, LostLease { inputs, verdict });
            assert_eq!((leases.has_all(), leases.is_taken_over()), (false, is_taken_over));
        }
    }

    #[test]
    fn work_goes_on_when_both_leases_are_held() {
        let mut leases = HeldLeases::default();
        assert!(leases.has_all() && !leases.is_taken_over());
        leases.on_lost(Instance, Some("b".to_owned()), String::new(), (0, NOW));
        leases.on_lost(Application, None, String::new(), (0, NOW));
        let held = |held| Input::Lease { held, high_water: None };
        assert_eq!(leases.on_held(Instance, None), held(false));
        assert!(leases.is_taken_over(), "the other one may still be gone to that holder");
        assert_eq!(leases.on_held(Application, None), held(true));
        assert!(leases.has_all() && !leases.is_taken_over());
    }
}
