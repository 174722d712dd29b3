//! What must be true before executors are created, apart from what each group waits for.
//!
//! Always true: what was adopted is held only after the first LIST; and when the end of the run has begun, it has begun
//! for good.

use crate::state::stored_credentials::Credentials;
use posse_base::time::Millis;

/// The gates of a run.
#[derive(Clone, Debug)]
pub struct Gates {
    is_lease_held: bool,
    is_driver_ready: bool,
    /// Why the driver's port does not make it ready.
    driver_port_problem: Option<String>,
    /// The end of the run has begun: creates are never sent again.
    are_creates_stopped: bool,
    first_list_at: Option<Millis>,
    /// Until when adopted surplus executors are kept, because the driver has not spoken yet.
    adopt_hold_until: Option<Millis>,
    credentials: Credentials,
}

/// The gates that are shut for all groups, by what they wait for.
#[derive(Clone, Copy, Debug)]
pub struct Shut {
    pub stopping: bool,
    pub lease: bool,
    pub first_list: bool,
    pub stale_snapshot: bool,
    pub driver_ready: bool,
}

impl Gates {
    /// A run begins with its Lease. `credentials`: the names of those that executors need.
    pub fn new(credentials: &[String]) -> Self {
        Self {
            is_lease_held: true,
            is_driver_ready: false,
            driver_port_problem: None,
            are_creates_stopped: false,
            first_list_at: None,
            adopt_hold_until: None,
            credentials: Credentials::new(credentials),
        }
    }

    pub fn set_lease(&mut self, is_held: bool) {
        self.is_lease_held = is_held;
    }

    pub fn on_driver_ready(&mut self) {
        self.is_driver_ready = true;
    }

    pub fn set_driver_port_problem(&mut self, problem: Option<String>) {
        self.driver_port_problem = problem;
    }

    /// The end of the run has begun. True if that is new.
    pub fn stop_creates(&mut self) -> bool {
        !std::mem::replace(&mut self.are_creates_stopped, true)
    }

    /// The first LIST is applied.
    pub fn on_first_list(&mut self, now: Millis) {
        debug_assert!(self.first_list_at.is_none(), "there is one first LIST");
        self.first_list_at = Some(now);
    }

    /// Executors of an earlier run were found. Those that are surplus are kept until then.
    pub fn hold_adopted(&mut self, until: Millis) {
        self.adopt_hold_until = Some(until);
    }

    /// Looks at a turn what is over: the protection of adopted executors, and credentials that executors could use.
    pub fn expire(&mut self, now: Millis) {
        self.adopt_hold_until = self.adopt_hold_until.filter(|until| *until > now);
        self.credentials.refresh(now);
    }

    /// When the next credentials expire.
    pub fn next_expiry(&self, now: Millis) -> Option<Millis> {
        self.credentials.next_expiry(now)
    }

    /// A renewal has ended: until when the credentials are valid (none: nobody knows), or why it failed. True if all
    /// credentials are stored by this.
    pub fn on_renewal(&mut self, name: &str, outcome: &Result<Option<Millis>, String>) -> bool {
        let were_stored = self.credentials.are_stored();
        match outcome {
            Ok(expires) => self.credentials.on_renewed(name, *expires),
            Err(message) => self.credentials.on_failed(name, message),
        }
        !were_stored && self.credentials.are_stored()
    }

    /// All credentials were stored, so that the driver can start.
    pub fn has_credentials(&self) -> bool {
        self.credentials.are_stored()
    }

    /// Which credentials keep a group from creating executors, and why. `needed`: the names of those that it needs; none:
    /// all. Before the driver is ready these are also those that only the driver needs.
    pub fn credentials_problem(&self, needed: Option<&[String]>) -> Option<&String> {
        let is_for_driver = !self.is_driver_ready && !self.credentials.are_stored();
        self.credentials.problem(needed.filter(|_| !is_for_driver))
    }

    /// Which gates are shut for all groups. `is_synced`: the snapshot is.
    pub fn shut(&self, is_synced: bool) -> Shut {
        Shut {
            stopping: self.are_creates_stopped,
            lease: !self.is_lease_held,
            first_list: self.first_list_at.is_none(),
            stale_snapshot: self.first_list_at.is_some() && !is_synced,
            driver_ready: !self.is_driver_ready,
        }
    }

    pub fn is_lease_held(&self) -> bool {
        self.is_lease_held
    }

    pub fn driver_port_problem(&self) -> Option<&str> {
        self.driver_port_problem.as_deref()
    }

    pub fn are_creates_stopped(&self) -> bool {
        self.are_creates_stopped
    }

    pub fn first_list_at(&self) -> Option<Millis> {
        self.first_list_at
    }

    pub fn adopt_hold_until(&self) -> Option<Millis> {
        self.adopt_hold_until
    }

    pub fn check(&self) {
        debug_assert!(self.adopt_hold_until.is_none() || self.first_list_at.is_some());
    }
}
