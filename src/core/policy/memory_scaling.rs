//! Owns how much memory an executor gets that replaces one which ran out of it: step by step more,
//! and the template's own again once a grown one has proven that it suffices.

/// A grown executor that has run for so long shows that the trouble is over.
pub const GROWN_PROVEN_MS: u64 = 600_000;

/// The growth of one group's memory. A step is a place in `GroupSpec::memory_steps`, from 1 up; 0
/// is what the template says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryScaling {
    step: u32,
    /// So many creates get it: one for each executor that ran out of memory.
    n_owed: u32,
}

impl MemoryScaling {
    /// An executor that was created with `step` ran out of memory; there are `n_steps` above it all.
    pub fn on_oom(&mut self, step: u32, n_steps: u32) {
        if n_steps > 0 {
            self.step = self.step.max(step.saturating_add(1)).min(n_steps);
            self.n_owed = self.n_owed.saturating_add(1);
        }
    }

    /// The step of the next create.
    pub fn take(&mut self) -> u32 {
        if self.n_owed == 0 {
            return 0;
        }
        self.n_owed -= 1;
        self.step
    }

    /// A grown executor has run for `GROWN_PROVEN_MS`.
    pub fn on_proven(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy)]
    enum Step {
        Oom(u32),
        Create(u32),
        Proven,
    }

    #[test]
    fn memory_grows_with_each_oom_for_its_successor_alone() {
        use Step::{Create, Oom, Proven};
        for steps in [
            &[Create(0)][..],
            &[Oom(0), Create(1), Create(0)],
            // Several at a time are one step, each for its own successor.
            &[Oom(0), Oom(0), Create(1), Create(1), Create(0)],
            &[Oom(0), Create(1), Oom(1), Create(2), Oom(2), Create(3), Oom(3), Create(3)],
            // The trouble is known: one that was never grown gets what the last one got.
            &[Oom(0), Create(1), Oom(1), Create(2), Oom(0), Create(2)],
            &[Oom(0), Create(1), Proven, Create(0), Oom(0), Create(1)],
        ] {
            let mut memory_scaling = MemoryScaling::default();
            for (i, step) in steps.iter().enumerate() {
                match *step {
                    Oom(of) => memory_scaling.on_oom(of, 3),
                    Create(want) => {
                        assert_eq!(memory_scaling.take(), want, "step {i} of {}", steps.len())
                    }
                    Proven => memory_scaling.on_proven(),
                }
            }
        }
        let mut memory_scaling = MemoryScaling::default();
        memory_scaling.on_oom(0, 0);
        assert_eq!(memory_scaling.take(), 0, "no memory_scaling was asked for");
    }
}
