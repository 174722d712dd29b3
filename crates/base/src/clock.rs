//! The clock of the process: milliseconds that never go back for decisions, wall time for what is
//! written down.

use std::time::{Duration, Instant, SystemTime};

use rustix::time::clock_gettime;

use crate::system::SINCE_BOOT;
use crate::time::Millis;

/// Started once per process; copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// Time since the boot of the host.
    started: Duration,
}

impl Clock {
    /// Begins to count.
    #[must_use]
    pub fn start() -> Self {
        Self { started: since_boot() }
    }

    /// Milliseconds since `start`. The time in which the host was suspended counts, because others'
    /// clocks went on: a Lease that was not renewed meanwhile is lost.
    #[must_use]
    pub fn now(&self) -> Millis {
        let elapsed = since_boot().saturating_sub(self.started);
        Millis(u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX))
    }

    /// The `Instant` of a moment, for waiting until it; none where it lies beyond all time. The wait is
    /// longer if the host is suspended meanwhile.
    #[must_use]
    pub fn instant(&self, at: Millis) -> Option<Instant> {
        let (now, instant) = (self.now(), Instant::now());
        if at < now {
            return Some(instant.checked_sub(ms(now.since(at))).unwrap_or(instant));
        }
        instant.checked_add(ms(at.since(now)))
    }

    /// The wall time of a moment, by the wall clock as it is set now.
    #[must_use]
    pub fn wall(&self, at: Millis) -> SystemTime {
        wall_of(at, self.now(), SystemTime::now())
    }
}

fn since_boot() -> Duration {
    let time = clock_gettime(SINCE_BOOT);
    let s = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(s, u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn wall_of(at: Millis, now: Millis, wall: SystemTime) -> SystemTime {
    let moved = match at < now {
        true => wall.checked_sub(ms(now.since(at))),
        false => wall.checked_add(ms(at.since(now))),
    };
    moved.unwrap_or(wall)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_time_follows_a_clock_that_is_set() {
        let year = SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600);
        let now = Millis(60_000);
        // The host was suspended, or somebody set its clock: a moment's wall time is counted from now.
        for step_s in [0, 3_600, 86_400] {
            let wall = year + Duration::from_secs(step_s);
            assert_eq!(wall_of(now, now, wall), wall);
            assert_eq!(wall_of(Millis(0), now, wall), wall - ms(60_000));
            assert_eq!(wall_of(Millis(90_000), now, wall), wall + ms(30_000));
        }
    }

    #[test]
    fn moments_and_instants_agree() {
        let clock = Clock::start();
        let (wall, now) = (SystemTime::now(), clock.now());
        let later = clock.wall(now.after(5_000)).duration_since(wall).unwrap();
        assert!(later.abs_diff(ms(5_000)) < ms(1_000), "{later:?}");
        let wait = clock.instant(now.after(5_000)).unwrap().duration_since(Instant::now());
        assert!(wait.abs_diff(ms(5_000)) < ms(1_000), "{wait:?}");
        assert!(clock.instant(now).unwrap() <= Instant::now());
    }
}
