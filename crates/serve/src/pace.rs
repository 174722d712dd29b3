//! How far a client is behind the slowest pace that a server allows. The same rule holds for the
//! TLS handshake, headers, bodies and responses.

use std::time::{Duration, Instant};

/// A client must transfer this many bytes a second on average. Only bytes of HTTP count: a client
/// could send the bytes of one TLS record one by one for ever.
const PACE_BYTES: u64 = 64 << 10;

/// The pace of one connection. Only the time counts in which the server waits for its client.
#[derive(Debug)]
pub(super) struct Pace {
    /// How far the client may be behind.
    limit: Duration,
    /// How far it was behind at the end of the last wait. Fast bytes make up for slow ones before
    /// them, but not for slow ones after them: a client that has sent much must not stop sending.
    behind: Duration,
    waiting_since: Option<Instant>,
    is_finished: bool,
}

impl Pace {
    pub(super) fn start(limit: Duration) -> Self {
        Self { limit, behind: Duration::ZERO, waiting_since: None, is_finished: false }
    }

    /// The pace of a new connection. Its client is the first to send.
    pub(super) fn of_new_connection(limit: Duration, now: Instant) -> Self {
        Self { waiting_since: Some(now), ..Self::start(limit) }
    }

    /// The server begins to wait for the client. Returns until when, or `None` if the client is too
    /// far behind.
    pub(super) fn begin_wait(&mut self, now: Instant) -> Option<Instant> {
        let remaining = self.limit.checked_sub(self.behind).filter(|left| !left.is_zero())?;
        self.waiting_since = Some(now);
        Some(now + remaining)
    }

    /// The wait is over, and `n_bytes` were transferred.
    pub(super) fn end_wait(&mut self, now: Instant, n_bytes: usize) {
        let Some(since) = self.waiting_since.take() else { return };
        let earned = (n_bytes as u64).saturating_mul(1_000_000_000) / PACE_BYTES;
        let waited = now.saturating_duration_since(since);
        self.behind =
            self.behind.saturating_add(waited).saturating_sub(Duration::from_nanos(earned));
    }

    /// The last response was sent: the connection can be closed at any time.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
    }

    /// How far the client is behind now.
    pub(super) fn behind(&self, now: Instant) -> Duration {
        let waited = self.waiting_since.map(|since| now.saturating_duration_since(since));
        self.behind.saturating_add(waited.unwrap_or_default())
    }

    /// How far the client is behind, if the server waits for it. The maximum after the last
    /// response, `None` while the server works for the client.
    pub(super) fn lag(&self, now: Instant) -> Option<Duration> {
        if self.is_finished {
            return Some(Duration::MAX);
        }
        self.waiting_since.map(|_| self.behind(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_may_be_behind_by_the_limit_and_no_more() {
        const KIB: usize = 1 << 10;
        let limit_s = 30;
        for (waits, ends_after) in [
            // Seconds waited and bytes that came then; the number of waits until the limit.
            (&[(10, 0)][..], Some(3)),
            (&[(10, 1)], Some(4)),
            // 64 KiB a second is enough for ever, and half of it is not.
            (&[(1, 64 * KIB)], None),
            (&[(1, 32 * KIB)], Some(60)),
            (&[(29, 29 * 64 * KIB)], None),
            // A gigabyte does not buy time for the bytes after it.
            (&[(1, 1024 * 1024 * KIB), (10, 0), (10, 0), (10, 0)], Some(4)),
        ] {
            let start = Instant::now();
            let (mut now, mut n_waits) = (start, 0);
            let mut pace = Pace::start(Duration::from_secs(limit_s));
            for (seconds, n_bytes) in waits.iter().cycle().take(1_000) {
                if pace.begin_wait(now).is_none() {
                    break;
                }
                now += Duration::from_secs(*seconds);
                pace.end_wait(now, *n_bytes);
                n_waits += 1;
            }
            assert_eq!(Some(n_waits).filter(|n| *n < 1_000), ends_after, "{waits:?}");
        }
    }

    #[test]
    fn only_the_time_of_waits_counts() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut pace = Pace::start(Duration::from_secs(10));
        assert_eq!(pace.lag(after(5)), None);
        assert_eq!(pace.begin_wait(after(100)), Some(after(110)));
        assert_eq!(pace.lag(after(103)), Some(Duration::from_secs(3)));
        pace.end_wait(after(104), 0);
        assert_eq!((pace.lag(after(200)), pace.behind(after(200)).as_secs()), (None, 4));
        assert_eq!(pace.begin_wait(after(200)), Some(after(206)));
        pace.end_wait(after(206), 0);
        assert_eq!(pace.begin_wait(after(206)), None);
        pace.finish();
        assert_eq!(pace.lag(after(206)), Some(Duration::MAX));
    }
}
