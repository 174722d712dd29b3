//! How many executors of a group are in each state.

use crate::model::status::State;

/// The number of executors of a group by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    by_state: [u32; 7],
}

impl Counts {
    /// The number in `state`.
    pub fn of(&self, state: State) -> u32 {
        self.by_state[state as usize]
    }

    /// The number that count as capacity: they run, or will run.
    pub fn capacity(&self) -> u32 {
        self.not_running() + self.of(State::Running)
    }

    /// The number that do not run yet.
    pub fn not_running(&self) -> u32 {
        self.of(State::Requested) + self.of(State::Pending)
    }

    /// Both together.
    #[must_use]
    pub fn plus(mut self, other: &Self) -> Self {
        for (sum, n) in self.by_state.iter_mut().zip(other.by_state) {
            *sum += n;
        }
        self
    }

    /// All of them.
    pub fn n(&self) -> u32 {
        self.by_state.iter().sum()
    }

    /// An executor in this state is new.
    pub fn add(&mut self, state: State) {
        self.by_state[state as usize] += 1;
    }

    /// An executor in this state is gone.
    pub fn remove(&mut self, state: State) {
        self.by_state[state as usize] -= 1;
    }
}
