//! The create throttle of a group: refused and failing creates, executors that do not start, and
//! crash loops. One cause at a time. While a cause is active, one create at a time is sent as a
//! probe. A create that fails without a verdict (500, time-out) halves the group's creates in flight
//! and delays the next ones.

use std::collections::VecDeque;

use crate::core::model::event::LossReason;
use crate::core::model::ids::ExecutorId;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::backoff::delay_ms;

const EARLY_END_MS: u64 = 60_000;
const CRASH_LOOP_WINDOW_MS: u64 = 60_000;
const CRASH_LOOP_ENDS_MIN: usize = 5;
/// More entries are not needed to recognise a crash loop.
const ENTRIES_MAX: usize = 10_000;

/// Why creates are throttled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleCause {
    /// A quota or another limit that can change.
    Capacity,
    /// Containers cannot be created or started as specified.
    Config,
    /// The image cannot be pulled.
    Image,
    /// The template is invalid: only a person can change that.
    Permanent,
    /// The same, but it may be over soon. A permission is missing: an API server that has just started
    /// forbids everything for some seconds, until its RBAC caches are filled. Or the pod of a task was
    /// refused, and those of others may be accepted.
    MayPass,
    /// A temporary failure of the server.
    Server,
    /// An executor was not running within `start_timeout`.
    Start,
    /// Crash loop: too many executors end soon after their start.
    CrashLoop,
}

impl ThrottleCause {
    /// The documented name, used in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "quota",
            Self::Config => "config_error",
            Self::Image => "image_error",
            Self::Permanent | Self::MayPass => "permanent",
            Self::Server => "server",
            Self::Start => "start_timeout",
            Self::CrashLoop => "backoff",
        }
    }

    /// The waiting reason of a group that is throttled by this.
    pub fn waiting(self) -> Waiting {
        match self {
            Self::Capacity => Waiting::Quota,
            Self::Config => Waiting::ConfigError,
            Self::Image => Waiting::ImageError,
            Self::Permanent | Self::MayPass => Waiting::Permanent,
            Self::Server => Waiting::Server,
            Self::Start => Waiting::StartTimeout,
            Self::CrashLoop => Waiting::Backoff,
        }
    }

    /// The cause for a loss of an executor that never ran.
    pub fn of_start(reason: LossReason) -> Option<Self> {
        match reason {
            LossReason::ConfigError => Some(Self::Config),
            LossReason::ImageError => Some(Self::Image),
            LossReason::StartTimeout => Some(Self::Start),
            LossReason::AdmissionRejected
            | LossReason::AppError
            | LossReason::Completed
            | LossReason::DeadlineExceeded
            | LossReason::DiskExceeded
            | LossReason::Deleted
            | LossReason::Disconnected
            | LossReason::Evicted
            | LossReason::HeartbeatTimeout
            | LossReason::Killed
            | LossReason::MaxAge
            | LossReason::NodeLost
            | LossReason::NodeShutdown
            | LossReason::OomKilled
            | LossReason::Preempted
            | LossReason::Unknown => None,
        }
    }

    /// True if only a running executor proves that the cause is gone.
    fn is_start_failure(self) -> bool {
        matches!(self, Self::Config | Self::Image | Self::Start)
    }

    /// The first and the longest delay before the next probe.
    fn delays_ms(self) -> (u64, u64) {
        match self {
            Self::Capacity | Self::Server => (1_000, 60_000),
            Self::Config | Self::Image | Self::Start => (10_000, 300_000),
            Self::Permanent => (300_000, 300_000),
            Self::MayPass | Self::CrashLoop => (1_000, 300_000),
        }
    }
}

#[derive(Clone, Debug)]
struct Active {
    cause: ThrottleCause,
    failures: u32,
    since: Millis,
    until: Millis,
    /// The executor that was created as a probe.
    probe: Option<ExecutorId>,
}

const FAILURE_DELAY_INITIAL_MS: u64 = 100;
const FAILURE_DELAY_MAX_MS: u64 = 30_000;

/// The delay of a group whose creates fail.
#[derive(Clone, Debug, Default)]
struct FailureDelay {
    /// Failures in a row.
    failures: u32,
    /// The last failure. Creates that were sent before are not counted again.
    since: Millis,
    until: Millis,
}

/// How many creates a group may send now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// At most this many in flight at a time (`u32::MAX`: no limit).
    UpTo(u32),
    Wait {
        waiting: Waiting,
        until: Option<Millis>,
    },
}

/// The create throttle of one group.
#[derive(Clone, Debug, Default)]
pub struct CreateThrottle {
    active: Option<Active>,
    failure_delay: FailureDelay,
    /// After a cause has ended or a create has failed: the limit of creates in flight, which grows
    /// by one with each success; none: no limit.
    slow_start: Option<u32>,
    starts: VecDeque<Millis>,
    early_ends: VecDeque<Millis>,
}

/// The slow start ends at this limit.
const SLOW_START_END: u32 = 32;

impl CreateThrottle {
    /// `is_whole`: the probe of a crash loop is the whole group (`on_loss: group`), because one
    /// executor alone cannot do its work.
    pub fn allowance(&self, now: Millis, is_whole: bool) -> Allowance {
        let Some(active) = &self.active else { return self.retry_allowance(now) };
        let waiting = active.cause.waiting();
        match active.probe {
            _ if active.until > now => Allowance::Wait { waiting, until: Some(active.until) },
            _ if is_whole && active.cause == ThrottleCause::CrashLoop => self.retry_allowance(now),
            Some(_) => Allowance::Wait { waiting, until: None },
            None => match self.retry_allowance(now) {
                Allowance::UpTo(_) => Allowance::UpTo(1),
                delayed @ Allowance::Wait { .. } => delayed,
            },
        }
    }

    /// The same for creates that are sent again: only failed creates delay them.
    pub fn retry_allowance(&self, now: Millis) -> Allowance {
        let until = self.failure_delay.until;
        if until > now {
            return Allowance::Wait { waiting: Waiting::Server, until: Some(until) };
        }
        Allowance::UpTo(self.slow_start.unwrap_or(u32::MAX))
    }

    /// The active cause.
    pub fn cause(&self) -> Option<ThrottleCause> {
        self.active.as_ref().map(|active| active.cause)
    }

    /// A create was sent. If a cause is active, this executor is the probe.
    pub fn on_sent(&mut self, id: ExecutorId) {
        if let Some(active) = &mut self.active {
            active.probe = Some(id);
        }
    }

    /// The server accepted the create of `id` that was sent at `sent_at`.
    pub fn on_created(&mut self, id: ExecutorId, sent_at: Millis) {
        self.failure_delay = FailureDelay::default();
        match &self.active {
            // A create that was sent before the cause began proves nothing. The probe does, even if
            // it was sent in the same millisecond.
            Some(active)
                if active.cause != ThrottleCause::CrashLoop
                    && !active.cause.is_start_failure()
                    && (sent_at >= active.since || active.probe == Some(id)) =>
            {
                self.active = None;
                self.slow_start = Some(2);
            }
            Some(_) => {}
            None => {
                self.slow_start = self.slow_start.map(|n| n + 1).filter(|&n| n < SLOW_START_END);
            }
        }
    }

    /// The server refused a create that was sent at `sent_at`. True if the cause is new.
    pub fn on_refused(
        &mut self,
        cause: ThrottleCause,
        sent_at: Millis,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let is_new = self.cause() != Some(cause);
        let failures = match &self.active {
            // Refusals of creates that were sent before count as one failure.
            Some(active) if !is_new && sent_at < active.since => return false,
            Some(active) if !is_new => active.failures.saturating_add(1),
            Some(_) | None => 1,
        };
        self.begin(cause, failures, now, rng);
        is_new
    }

    /// A create that was sent at `sent_at` failed without a verdict. `n_in_flight`: how many creates
    /// of the group were in flight with it. `delay_ms_min`: the shortest delay before the next one.
    pub fn on_failed(
        &mut self,
        sent_at: Millis,
        n_in_flight: u32,
        delay_ms_min: u64,
        now: Millis,
        rng: &mut Rng,
    ) {
        let delay = &mut self.failure_delay;
        if delay.failures == 0 || sent_at >= delay.since {
            delay.failures = delay.failures.saturating_add(1);
            // After everything that was sent in this millisecond.
            delay.since = now.after(1);
            let (initial, max) = (FAILURE_DELAY_INITIAL_MS, FAILURE_DELAY_MAX_MS);
            delay.until = now.after(delay_ms(delay.failures, initial, max, rng));
            let limit = self.slow_start.unwrap_or(u32::MAX).min(n_in_flight);
            self.slow_start = Some((limit / 2).max(1));
        }
        delay.until = delay.until.max(now.after(delay_ms_min));
    }

    /// The probe ended without a result (it was cancelled, for example): send another one.
    pub fn discard_probe(&mut self, id: ExecutorId) {
        if let Some(active) = &mut self.active
            && active.probe == Some(id)
        {
            active.probe = None;
        }
    }

    /// A pod is gone, so a quota may have capacity: the next probe is due, and refusals count from the
    /// start again, because the server counts its quota a moment later.
    pub fn on_capacity_freed(&mut self, now: Millis) {
        let is_waiting = |active: &&mut Active| active.cause == ThrottleCause::Capacity;
        if let Some(active) = self.active.as_mut().filter(is_waiting) {
            (active.failures, active.until) = (0, active.until.min(now));
        }
    }

    /// An executor runs.
    pub fn on_started(&mut self, now: Millis) {
        push(&mut self.starts, now);
        if self.cause().is_some_and(ThrottleCause::is_start_failure) {
            self.active = None;
            self.slow_start = Some(2);
        }
    }

    /// An executor was lost before it ran. True if this throttles the group.
    pub fn on_start_failed(
        &mut self,
        id: ExecutorId,
        cause: ThrottleCause,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let failures = match &self.active {
            // The probe failed for the same cause, or for another.
            Some(active) if active.probe == Some(id) && active.cause == cause => active.failures,
            Some(active) if active.probe == Some(id) => 0,
            // The other executors were requested before the cause was known.
            Some(_) => return false,
            None => 0,
        };
        self.begin(cause, failures.saturating_add(1), now, rng);
        true
    }

    /// An executor ended, not by posse, `lived_ms` after it began to run (none: it never ran). True
    /// if the group is in a crash loop.
    pub fn on_ended(
        &mut self,
        id: ExecutorId,
        lived_ms: Option<u64>,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let is_early = lived_ms.is_none_or(|ms| ms < EARLY_END_MS);
        let is_probe = self.active.as_ref().is_some_and(|active| active.probe == Some(id));
        if is_early {
            push(&mut self.early_ends, now);
        }
        if lived_ms.is_none() {
            push(&mut self.starts, now);
        }
        let is_crash_loop = self.active.is_none() && is_early && self.is_in_crash_loop(now);
        let failures = match &self.active {
            Some(active) if active.cause == ThrottleCause::CrashLoop && is_probe && is_early => {
                active.failures
            }
            Some(_) => {
                self.discard_probe(id);
                return false;
            }
            None if is_crash_loop => 0,
            None => return false,
        };
        self.begin(ThrottleCause::CrashLoop, failures.saturating_add(1), now, rng);
        true
    }

    /// The loss of this executor, by the application's own doing, ends its whole group. `n_early`: how
    /// many others end with it soon after their start. In a crash loop it stands for the probe.
    pub fn on_group_ended(&mut self, id: ExecutorId, n_early: usize, now: Millis) {
        for _ in 0..n_early.min(ENTRIES_MAX) {
            push(&mut self.early_ends, now);
        }
        if let Some(active) = &mut self.active
            && active.cause == ThrottleCause::CrashLoop
        {
            active.probe = Some(id);
        }
    }

    /// The probe of a crash loop, if one was sent.
    pub fn crash_loop_probe(&self) -> Option<ExecutorId> {
        let active =
            self.active.as_ref().filter(|active| active.cause == ThrottleCause::CrashLoop)?;
        active.probe
    }

    /// When a probe that runs since `running_since` has proven that the crash loop is over.
    pub fn proven_at(running_since: Millis) -> Millis {
        running_since.after(EARLY_END_MS)
    }

    /// The probe has run long enough.
    pub fn on_probe_proven(&mut self) {
        self.active = None;
        self.slow_start = Some(2);
        self.early_ends.clear();
    }

    fn begin(&mut self, cause: ThrottleCause, failures: u32, now: Millis, rng: &mut Rng) {
        let (initial, max) = cause.delays_ms();
        let until = now.after(delay_ms(failures, initial, max, rng).min(max));
        // After everything that was sent in this millisecond.
        self.active = Some(Active { cause, failures, since: now.after(1), until, probe: None });
    }

    fn is_in_crash_loop(&mut self, now: Millis) -> bool {
        for times in [&mut self.starts, &mut self.early_ends] {
            while times.front().is_some_and(|&at| now.since(at) > CRASH_LOOP_WINDOW_MS) {
                times.pop_front();
            }
        }
        let n = self.early_ends.len();
        n >= CRASH_LOOP_ENDS_MIN && n * 2 > self.starts.len()
    }
}

fn push(times: &mut VecDeque<Millis>, now: Millis) {
    if times.len() == ENTRIES_MAX {
        times.pop_front();
    }
    times.push_back(now);
}
