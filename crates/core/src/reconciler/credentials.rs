//! What a renewal of credentials means for the run.

use super::Reconciler;
use crate::model::event::{Event, RunEvent};
use crate::model::input::Renewal;
use crate::state::executors::Group;
use posse_base::time::Millis;

impl Reconciler {
    /// A renewal has ended. Until all credentials are there, no driver and no executor starts.
    pub(super) fn on_credentials(&mut self, renewal: Renewal, now: Millis) {
        let Renewal { name, outcome, next_at } = renewal;
        let were_stored = self.credentials.are_stored();
        self.out.tell(match outcome {
            Ok(expires) => {
                self.credentials.on_renewed(&name, expires);
                Event::Run(RunEvent::CredentialsRenewed { name, expires, until: next_at })
            }
            Err(message) => {
                self.credentials.on_failed(&name, &message);
                Event::Run(RunEvent::CredentialsFailed { name, message, until: next_at })
            }
        });
        if !were_stored && self.credentials.are_stored() {
            // The driver starts now, and could not make calls before.
            self.on_driver_call(now);
        }
    }

    /// Which credentials keep a group from creating executors, and why. Before the driver is ready these
    /// are also those that only the driver needs.
    pub(super) fn credentials_problem(&self, group: &Group) -> Option<&String> {
        let is_for_driver = !self.gates.is_driver_ready() && !self.credentials.are_stored();
        let needed = group.spec.credentials.as_deref().filter(|_| !is_for_driver);
        self.credentials.problem(needed)
    }

    /// All credentials were stored, so that the driver can start.
    pub fn has_credentials(&self) -> bool {
        self.credentials.are_stored()
    }
}
