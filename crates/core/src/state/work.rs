//! How much work of a group has ended.

/// Executors whose work has ended, also those whose pods are gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    n_completed: u32,
    n_given_up: u32,
}

impl Work {
    pub fn new(n_completed: u32, n_given_up: u32) -> Self {
        Self { n_completed, n_given_up }
    }

    /// The work of an executor is done, or given up: it failed and is not replaced.
    pub fn on_end(&mut self, is_completed: bool) {
        let n = if is_completed { &mut self.n_completed } else { &mut self.n_given_up };
        *n = n.saturating_add(1);
    }

    pub fn n_completed(&self) -> u32 {
        self.n_completed
    }

    pub fn n_given_up(&self) -> u32 {
        self.n_given_up
    }

    /// Both.
    pub fn n_ended(&self) -> u32 {
        self.n_completed.saturating_add(self.n_given_up)
    }
}
