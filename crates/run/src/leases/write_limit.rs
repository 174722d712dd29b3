//! How long writes may still take effect: after that, another process may hold one of the Leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use posse_base::clock::Clock;
use posse_base::time::Millis;
use posse_kube::http::WriteLimit;

/// Until when one Lease permits writes. Its thread sets it, writers read it.
#[derive(Clone, Debug, Default)]
pub struct LeaseWriteLimit(Arc<AtomicU64>);

impl LeaseWriteLimit {
    /// Writes may take effect until then.
    pub fn set(&self, until: Millis) {
        self.0.store(until.0, Ordering::Release);
    }

    fn until(&self) -> Millis {
        Millis(self.0.load(Ordering::Acquire))
    }
}

/// The limit of writes that need all of these Leases.
pub fn combined(leases: Vec<LeaseWriteLimit>, clock: Clock) -> Option<WriteLimit> {
    if leases.is_empty() {
        return None;
    }
    let left = move || {
        let until = leases.iter().map(LeaseWriteLimit::until).min().unwrap_or_default();
        Duration::from_millis(until.since(clock.now()))
    };
    Some(WriteLimit(Arc::new(left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_that_expires_first_decides() {
        let clock = Clock::start();
        assert!(combined(Vec::new(), clock).is_none());
        let (one, other) = (LeaseWriteLimit::default(), LeaseWriteLimit::default());
        let limit = combined(vec![one.clone(), other.clone()], clock).unwrap();
        one.set(clock.now().after(60_000));
        assert_eq!(limit.0(), Duration::ZERO, "the other is not held");
        other.set(clock.now().after(10_000));
        let left = limit.0();
        assert!(left > Duration::ZERO && left <= Duration::from_secs(10), "{left:?}");
    }
}
