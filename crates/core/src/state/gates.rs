//! What must be true before executors are created, apart from what each group waits for.

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
}

impl Gates {
    pub fn new(is_lease_held: bool, is_driver_ready: bool) -> Self {
        Self {
            is_lease_held,
            is_driver_ready,
            driver_port_problem: None,
            are_creates_stopped: false,
            first_list_at: None,
            adopt_hold_until: None,
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

    /// The end of the run has begun.
    pub fn stop_creates(&mut self) {
        self.are_creates_stopped = true;
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

    /// Ends the protection of adopted executors when its time is over.
    pub fn expire(&mut self, now: Millis) {
        self.adopt_hold_until = self.adopt_hold_until.filter(|until| *until > now);
    }

    pub fn is_lease_held(&self) -> bool {
        self.is_lease_held
    }

    pub fn is_driver_ready(&self) -> bool {
        self.is_driver_ready
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
}
