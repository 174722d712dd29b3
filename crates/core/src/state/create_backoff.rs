//! The create backoff of a group: refused and failing creates, executors that do not start, and
//! crash loops. One cause at a time. While a cause is active, one create at a time is sent as a
//! probe. A create that fails without a verdict (500, time-out) halves the group's creates in flight
//! and delays the next ones.

use std::collections::VecDeque;

use crate::model::event::LossReason;
use crate::model::ids::ExecutorId;
use crate::model::waiting::{ServerWait, StartWait, Waiting};
use posse_base::backoff::delay_ms;
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// Who ends within this time of its start has ended early.
pub const EARLY_END_MS: u64 = 60_000;
/// An executor that ends within this time, for whatever reason, has ended at once.
pub const AT_ONCE_MS: u64 = 5_000;
/// A group is in a loop if within the window each of its executors ended at once so often. One mass eviction
/// of executors that have just started is none.
const AT_ONCE_ENDS_EACH: usize = 2;
/// So many tries in a row that the application failed show that it cannot run. With the longest lives and
/// delays they take nine minutes.
pub const CRASH_LOOP_TRIES_MAX: u32 = 6;
const CRASH_LOOP_WINDOW_MS: u64 = 60_000;
const CRASH_LOOP_ENDS_MIN: usize = 5;
/// More entries are not needed to recognise a crash loop.
const ENTRIES_MAX: usize = 10_000;

/// Why creates are slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackoffCause {
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
    /// The namespace is gone, or another object that the request names. Somebody may make it again soon.
    NamespaceGone,
    /// A temporary failure of the server.
    Server,
    /// An executor was not running within `start_timeout`.
    Start,
    /// Crash loop: too many executors end soon after their start.
    CrashLoop,
}

impl BackoffCause {
    /// The documented name, used in events.
    pub fn as_str(self) -> &'static str {
        self.waiting().as_str()
    }

    /// The waiting reason of a group that is slowed down by this.
    pub fn waiting(self) -> Waiting {
        match self {
            Self::Capacity => Waiting::Server(ServerWait::Quota),
            Self::Config => Waiting::Start(StartWait::ConfigError),
            Self::Image => Waiting::Start(StartWait::ImageError),
            Self::Permanent | Self::MayPass | Self::NamespaceGone => {
                Waiting::Server(ServerWait::Permanent)
            }
            Self::Server => Waiting::Server(ServerWait::Failing),
            Self::Start => Waiting::Start(StartWait::Timeout),
            Self::CrashLoop => Waiting::Start(StartWait::CrashLoop),
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
            Self::NamespaceGone => (1_000, 20_000),
        }
    }
}

#[derive(Clone, Debug)]
struct Active {
    cause: BackoffCause,
    failures: u32,
    /// How many probes of a crash loop in a row the application failed.
    failed_tries: u32,
    since: Millis,
    until: Millis,
    /// The executor that was created as a probe.
    probe: Option<ExecutorId>,
}

/// How an executor ended, not by posse.
#[derive(Clone, Copy, Debug)]
pub struct ExecutorEnd {
    /// How long it ran; none: it never did.
    pub lived_ms: Option<u64>,
    pub caused_by_app: bool,
    /// How many executors its group should have.
    pub n_wanted: u32,
}

impl ExecutorEnd {
    /// An application that fails within a minute crashes. Any other end counts only if it comes at once.
    fn is_early(&self) -> bool {
        let early_ms = if self.caused_by_app { EARLY_END_MS } else { AT_ONCE_MS };
        self.lived_ms.is_none_or(|ms| ms < early_ms)
    }
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

/// The create backoff of one group.
#[derive(Clone, Debug, Default)]
pub struct CreateBackoff {
    active: Option<Active>,
    failure_delay: FailureDelay,
    /// After a cause has ended or a create has failed: the limit of creates in flight, which grows
    /// by one with each success; none: no limit.
    slow_start: Option<u32>,
    starts: VecDeque<Millis>,
    early_ends: VecDeque<Millis>,
    /// Ends at once that the application did not cause.
    ends_at_once: VecDeque<Millis>,
}

/// The slow start ends at this limit.
const SLOW_START_END: u32 = 32;

impl CreateBackoff {
    /// `works_together`: the probe of a crash loop is the whole group (`on_loss: group`, `gang`), because one
    /// executor alone cannot do its work. `starts_together`: also that of a start that failed, because one alone
    /// does not start.
    pub fn allowance(&self, now: Millis, works_together: bool, starts_together: bool) -> Allowance {
        let Some(active) = &self.active else { return self.retry_allowance(now) };
        let waiting = active.cause.waiting();
        let is_whole = works_together && active.cause == BackoffCause::CrashLoop
            || starts_together && active.cause.is_start_failure();
        match active.probe {
            _ if active.until > now => Allowance::Wait { waiting, until: Some(active.until) },
            _ if is_whole => self.retry_allowance(now),
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
            return Allowance::Wait {
                waiting: Waiting::Server(ServerWait::Failing),
                until: Some(until),
            };
        }
        Allowance::UpTo(self.slow_start.unwrap_or(u32::MAX))
    }

    /// The active cause.
    pub fn cause(&self) -> Option<BackoffCause> {
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
                if active.cause != BackoffCause::CrashLoop
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
        cause: BackoffCause,
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
        let is_waiting = |active: &&mut Active| active.cause == BackoffCause::Capacity;
        if let Some(active) = self.active.as_mut().filter(is_waiting) {
            (active.failures, active.until) = (0, active.until.min(now));
        }
    }

    /// An executor runs.
    pub fn on_started(&mut self, now: Millis) {
        push(&mut self.starts, now);
        if self.cause().is_some_and(BackoffCause::is_start_failure) {
            self.active = None;
            self.slow_start = Some(2);
        }
    }

    /// An executor was lost before it ran. True if this slows the group down.
    pub fn on_start_failed(
        &mut self,
        id: ExecutorId,
        cause: BackoffCause,
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

    /// An executor ended, not by posse. True if the group is in a crash loop, which begins or goes on by this.
    pub fn on_ended(
        &mut self,
        id: ExecutorId,
        end: ExecutorEnd,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let is_early = end.is_early();
        let is_probe = self.active.as_ref().is_some_and(|active| active.probe == Some(id));
        if is_early {
            push(
                if end.caused_by_app { &mut self.early_ends } else { &mut self.ends_at_once },
                now,
            );
        }
        if end.lived_ms.is_none() {
            push(&mut self.starts, now);
        }
        let begins = self.active.is_none() && is_early && self.is_in_crash_loop(end.n_wanted, now);
        let (failures, failed_tries) = match &self.active {
            Some(active) if active.cause == BackoffCause::CrashLoop && is_probe && is_early => {
                let in_a_row = if end.caused_by_app { active.failed_tries + 1 } else { 0 };
                (active.failures, in_a_row)
            }
            Some(_) => {
                self.discard_probe(id);
                return false;
            }
            None if begins => (0, 0),
            None => return false,
        };
        self.begin(BackoffCause::CrashLoop, failures.saturating_add(1), now, rng);
        if let Some(active) = &mut self.active {
            active.failed_tries = failed_tries;
        }
        true
    }

    /// The last tries of a crash loop all failed by the application's own doing. The delays between them
    /// grow beyond any budget that counts losses in a window.
    pub fn is_hopeless(&self) -> bool {
        self.active.as_ref().is_some_and(|active| active.failed_tries >= CRASH_LOOP_TRIES_MAX)
    }

    /// The loss of this executor, by the application's own doing, ends its whole group. `n_early`: how
    /// many others end with it soon after their start. In a crash loop it stands for the probe.
    pub fn on_group_ended(&mut self, id: ExecutorId, n_early: usize, now: Millis) {
        for _ in 0..n_early.min(ENTRIES_MAX) {
            push(&mut self.early_ends, now);
        }
        if let Some(active) = &mut self.active
            && active.cause == BackoffCause::CrashLoop
        {
            active.probe = Some(id);
        }
    }

    /// The executor that is to show whether the shape starts, if one was sent.
    pub fn start_probe(&self) -> Option<ExecutorId> {
        self.active.as_ref().filter(|active| active.cause.is_start_failure())?.probe
    }

    /// The probe of a crash loop, if one was sent.
    pub fn crash_loop_probe(&self) -> Option<ExecutorId> {
        let active =
            self.active.as_ref().filter(|active| active.cause == BackoffCause::CrashLoop)?;
        active.probe
    }

    /// When a probe that runs since `running_since` has proven that the crash loop is over.
    pub fn proven_at(running_since: Millis) -> Millis {
        running_since.after(EARLY_END_MS)
    }

    /// This executor works, or has run long enough. If it is the probe of a crash loop, that is over.
    pub fn on_proven(&mut self, id: ExecutorId) {
        if self.crash_loop_probe() == Some(id) {
            self.active = None;
            self.slow_start = Some(2);
            self.early_ends.clear();
            self.ends_at_once.clear();
        }
    }

    fn begin(&mut self, cause: BackoffCause, failures: u32, now: Millis, rng: &mut Rng) {
        let (initial, max) = cause.delays_ms();
        let until = now.after(delay_ms(failures, initial, max, rng).min(max));
        // After everything that was sent in this millisecond.
        let since = now.after(1);
        self.active = Some(Active { cause, failures, failed_tries: 0, since, until, probe: None });
    }

    fn is_in_crash_loop(&mut self, n_wanted: u32, now: Millis) -> bool {
        for times in [&mut self.starts, &mut self.early_ends, &mut self.ends_at_once] {
            forget_old(times, now);
        }
        let n = self.early_ends.len();
        let crashes = n >= CRASH_LOOP_ENDS_MIN && n * 2 > self.starts.len();
        let again_and_again = usize::try_from(n_wanted)
            .map_or(ENTRIES_MAX, |n| n.saturating_mul(AT_ONCE_ENDS_EACH))
            .clamp(CRASH_LOOP_ENDS_MIN, ENTRIES_MAX);
        crashes || self.ends_at_once.len() >= again_and_again
    }
}

fn push(times: &mut VecDeque<Millis>, now: Millis) {
    forget_old(times, now);
    if times.len() == ENTRIES_MAX {
        times.pop_front();
    }
    times.push_back(now);
}

fn forget_old(times: &mut VecDeque<Millis>, now: Millis) {
    while times.front().is_some_and(|&at| now.since(at) > CRASH_LOOP_WINDOW_MS) {
        times.pop_front();
    }
}
