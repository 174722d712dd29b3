//! Memory scaling after OOM: the replacement of an executor that was OOM-killed gets more memory.
//! Once such an executor has run long enough, the group starts from the template's memory again.

use std::collections::BTreeSet;

/// An executor with more memory that has run for this long has proven that the memory suffices.
pub const MEMORY_PROVEN_MS: u64 = 600_000;

/// The memory scaling of one group. A step counts the entries of `PodText::memory_steps` from 1;
/// 0 is the template's own memory. `slot`: given if only the next executor of this slot goes on with the work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryScaling {
    step: u32,
    /// The server refused the step after this one; none: it refused no step.
    most: Option<u32>,
    /// How many next creates get `step`: one for each OOM-killed executor.
    n_pending: u32,
    /// The slots whose next create gets it.
    slots: BTreeSet<u32>,
}

impl MemoryScaling {
    /// An executor that was created with `step` was OOM-killed. `n_steps`: how many steps there
    /// are.
    pub fn on_oom(&mut self, step: u32, slot: Option<u32>, n_steps: u32) {
        if n_steps > 0 {
            let most = self.most.map_or(n_steps, |most| most.min(n_steps));
            self.step = self.step.max(step.saturating_add(1)).min(most);
            self.add(slot);
        }
    }

    fn add(&mut self, slot: Option<u32>) {
        match slot {
            Some(slot) => drop(self.slots.insert(slot)),
            None => self.n_pending = self.n_pending.saturating_add(1),
        }
    }

    /// The step of the next create. `is_whole`: the group restarts as a whole, and each rank of the next attempt may need
    /// what one of them did.
    pub fn take(&mut self, slot: Option<u32>, is_whole: bool) -> u32 {
        if slot.is_some_and(|slot| self.slots.remove(&slot)) {
            return self.step;
        }
        if self.n_pending == 0 && !is_whole {
            return 0;
        }
        self.n_pending = self.n_pending.saturating_sub(1);
        self.step
    }

    /// A create with `step` produced no pod, so another create gets the memory.
    pub fn on_unused(&mut self, step: u32, slot: Option<u32>) {
        if step > 0 && step <= self.step {
            self.add(slot);
        }
    }

    /// The server refuses the memory of this step, so the one before is the last. True if it did not refuse it before.
    pub fn on_refused(&mut self, step: u32, slot: Option<u32>) -> bool {
        let before = step.saturating_sub(1);
        let is_new = self.most.is_none_or(|most| before < most);
        self.most = Some(self.most.map_or(before, |most| most.min(before)));
        self.step = self.step.min(before);
        self.add(slot);
        is_new
    }

    /// An executor with more memory has run for `MEMORY_PROVEN_MS`.
    pub fn on_proven(&mut self) {
        *self = Self { most: self.most, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Stage {
        Oom(u32),
        Create(u32),
        Unused(u32),
        Refused(u32),
        Proven,
    }

    #[test]
    fn memory_grows_with_each_oom_only_for_the_replacement() {
        use Stage::{Create, Oom, Proven, Refused, Unused};
        for steps in [
            &[Create(0)][..],
            &[Oom(0), Create(1), Create(0)],
            // Several OOM kills at a time are one step, each for its own replacement.
            &[Oom(0), Oom(0), Create(1), Create(1), Create(0)],
            &[Oom(0), Create(1), Oom(1), Create(2), Oom(2), Create(3), Oom(3), Create(3)],
            // An executor with the template's memory gets the last known step.
            &[Oom(0), Create(1), Oom(1), Create(2), Oom(0), Create(2)],
            &[Oom(0), Create(1), Proven, Create(0), Oom(0), Create(1)],
            &[Oom(0), Create(1), Unused(1), Create(1), Create(0), Unused(0), Create(0)],
            &[Oom(0), Create(1), Proven, Unused(1), Create(0)],
            // What the server refuses is not asked for again, and the replacement gets what it takes.
            &[Oom(0), Create(1), Oom(1), Create(2), Refused(2), Unused(2), Create(1), Create(0)],
            &[Oom(0), Create(1), Refused(1), Create(0), Oom(0), Create(0)],
            &[
                Oom(0),
                Create(1),
                Oom(1),
                Create(2),
                Refused(2),
                Create(1),
                Proven,
                Oom(1),
                Create(1),
            ],
        ] {
            let mut memory_scaling = MemoryScaling::default();
            for (i, step) in steps.iter().enumerate() {
                match *step {
                    Oom(of) => memory_scaling.on_oom(of, None, 3),
                    Create(want) => {
                        assert_eq!(
                            memory_scaling.take(None, false),
                            want,
                            "step {i} of {}",
                            steps.len()
                        )
                    }
                    Unused(of) => memory_scaling.on_unused(of, None),
                    Refused(of) => assert!(memory_scaling.on_refused(of, None)),
                    Proven => memory_scaling.on_proven(),
                }
            }
        }
        let mut memory_scaling = MemoryScaling::default();
        memory_scaling.on_oom(0, None, 0);
        assert_eq!(memory_scaling.take(None, true), 0, "memory scaling is off");
        memory_scaling.on_oom(0, None, 3);
        assert_eq!([1, 1, 1], [(); 3].map(|()| memory_scaling.take(None, true)), "all ranks");
    }
}
