//! A group whose executors are of use only together (`gang`): since when too few of them run, and until when
//! none is created because they were given back.

use posse_base::backoff::delay_ms;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The first and the longest pause after the executors were given back. Its jitter is as long as itself, so that
/// two applications that hold each other's halves do not begin together again.
const PAUSE_INITIAL_MS: u64 = 10_000;
const PAUSE_MAX_MS: u64 = 300_000;

/// How many executors of the group run together, and how many hold something.
#[derive(Clone, Copy, Debug)]
pub struct GangCounts {
    pub target: u32,
    pub running: u32,
    /// Those whose pods exist.
    pub held: u32,
}

/// What has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangStep {
    Unchanged,
    /// Enough executors run together now.
    Complete,
    /// Since this time something is held, and too few run.
    Incomplete(Millis),
}

/// The gang of one group.
#[derive(Clone, Debug, Default)]
pub struct GangState {
    is_complete: bool,
    /// Since when executors exist without being enough.
    incomplete_since: Option<Millis>,
    /// How often in a row the executors were given back.
    failures: u32,
    paused_until: Option<Millis>,
}

impl GangState {
    /// The number of executors may have changed. `min`: how many the gang needs.
    pub fn observe(&mut self, min: u32, counts: GangCounts, now: Millis) -> GangStep {
        self.paused_until = self.paused_until.filter(|until| *until > now);
        let needed = min.min(counts.target);
        let was_complete = std::mem::replace(&mut self.is_complete, counts.running >= needed);
        if self.is_complete {
            self.incomplete_since = None;
            if needed == 0 || was_complete {
                return GangStep::Unchanged;
            }
            (self.failures, self.paused_until) = (0, None);
            return GangStep::Complete;
        }
        if counts.held == 0 {
            self.incomplete_since = None;
            return GangStep::Unchanged;
        }
        GangStep::Incomplete(*self.incomplete_since.get_or_insert(now))
    }

    /// The executors are given back. Until when none is created.
    pub fn give_back(&mut self, now: Millis, rng: &mut Rng) -> Millis {
        self.failures = self.failures.saturating_add(1);
        self.incomplete_since = None;
        let until = now.after(delay_ms(self.failures, PAUSE_INITIAL_MS, PAUSE_MAX_MS, rng));
        self.paused_until = Some(until);
        until
    }

    /// Enough executors run together.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    pub fn paused_until(&self) -> Option<Millis> {
        self.paused_until
    }
}
