//! How a group shares its executors, and their memory, between its own target and its tasks.

use crate::state::executors::{Executor, Group};

impl Group {
    /// The number of executors that count towards the target: those that work on no task.
    pub fn own_capacity(&self) -> u32 {
        self.own.capacity()
    }

    /// How many executors for tasks may be created: `max` leaves them what the target does not need.
    pub fn n_missing_for_tasks(&self) -> u32 {
        let own = self.target().max(self.own_capacity());
        let room = self.spec.max.map_or(u32::MAX, |max| max.saturating_sub(own));
        self.tasks.n_ready().min(room.saturating_sub(self.tasks.counts.capacity()))
    }

    /// The group's `max`, if this target takes all of it. `max: 0` is a group that only holds its tasks.
    pub fn max_without_room_for_tasks(target: u32, max: Option<u32>) -> Option<u32> {
        max.filter(|&max| target > 0 && max > 0 && target >= max)
    }

    /// How many executors the group should have: its target and one for each open task that nothing holds, up to `max`.
    pub fn wanted(&self) -> u32 {
        let n_free = u32::try_from(self.tasks.n_free()).unwrap_or(u32::MAX);
        let room = self.spec.max.map_or(u32::MAX, |max| max.saturating_sub(self.target()));
        self.target().saturating_add(n_free.min(room))
    }
}

impl Executor {
    /// Its task says how much memory it has, so the group's memory does not grow with it.
    pub fn has_own_memory(&self) -> bool {
        self.task.as_ref().is_some_and(|run| run.task.memory.is_some())
    }
}
