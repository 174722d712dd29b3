//! Owns what holds a group's creates back: refusals sorted by cause, executors that do not start, and
//! executors that die young.
//! One cause at a time; while it holds, one create at a time goes to see.

use std::collections::VecDeque;

use crate::core::model::event::LossReason;
use crate::core::model::ids::ExecutorId;
use crate::core::model::rng::Rng;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::core::policy::backoff::delay_ms;

const YOUNG_MS: u64 = 60_000;
const YOUNG_WINDOW_MS: u64 = 60_000;
const YOUNG_DEATHS_MIN: usize = 5;
/// More are not needed to see that a group is in trouble.
const YOUNG_ENTRIES_MAX: usize = 10_000;

/// Why a group is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrottleCause {
    /// A quota or another limit that moves.
    Capacity,
    /// Its executors cannot be started as they are written.
    Config,
    /// Their image cannot be pulled.
    Image,
    /// The template: nothing changes unless a person does something.
    Permanent,
    /// Our rights. A server that has just begun forbids everything for some seconds.
    Rights,
    /// A cause that passes by itself.
    Server,
    /// One was not running in time.
    Start,
    /// The group's executors die young.
    Young,
}

impl ThrottleCause {
    /// The name used in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "quota",
            Self::Config => "config_error",
            Self::Image => "image_error",
            Self::Permanent | Self::Rights => "permanent",
            Self::Server => "server",
            Self::Start => "start_timeout",
            Self::Young => "backoff",
        }
    }

    /// What a group that is held back by this waits for.
    #[must_use]
    pub fn waiting(self) -> Waiting {
        match self {
            Self::Capacity => Waiting::Quota,
            Self::Config => Waiting::ConfigError,
            Self::Image => Waiting::ImageError,
            Self::Permanent | Self::Rights => Waiting::Permanent,
            Self::Server => Waiting::Server,
            Self::Start => Waiting::StartTimeout,
            Self::Young => Waiting::Backoff,
        }
    }

    /// The cause that a loss stands for, where the executor came to nothing before it ran.
    #[must_use]
    pub fn of_start(reason: LossReason) -> Option<Self> {
        match reason {
            LossReason::ConfigError => Some(Self::Config),
            LossReason::ImageError => Some(Self::Image),
            LossReason::StartTimeout => Some(Self::Start),
            LossReason::AdmissionRejected
            | LossReason::AppError
            | LossReason::Completed
            | LossReason::DeadlineExceeded
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

    /// True where only an executor that runs shows that the trouble is over.
    fn is_start(self) -> bool {
        matches!(self, Self::Config | Self::Image | Self::Start)
    }

    /// First and longest delay before the next try.
    fn delays_ms(self) -> (u64, u64) {
        match self {
            Self::Capacity | Self::Server => (1_000, 60_000),
            Self::Config | Self::Image | Self::Start => (10_000, 300_000),
            Self::Permanent => (300_000, 300_000),
            Self::Rights | Self::Young => (1_000, 300_000),
        }
    }
}

#[derive(Clone, Debug)]
struct Hold {
    cause: ThrottleCause,
    failures: u32,
    since: Millis,
    until: Millis,
    /// The one that was sent to see.
    probe: Option<ExecutorId>,
}

/// How many creates a group may begin now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance {
    /// At most so many under way at a time (`u32::MAX`: no limit by this).
    UpTo(u32),
    /// None now.
    Wait { waiting: Waiting, until: Option<Millis> },
}

/// The brake of one group.
#[derive(Clone, Debug, Default)]
pub struct CreateThrottle {
    hold: Option<Hold>,
    /// After a hold: how many at a time, growing by one a success; none: no limit.
    slow_start: Option<u32>,
    starts: VecDeque<Millis>,
    young_ends: VecDeque<Millis>,
}

/// Beyond so many at a time a group that was held back is as fast as any.
const SLOW_START_END: u32 = 32;

impl CreateThrottle {
    /// What the group may do now.
    #[must_use]
    pub fn allowance(&self, now: Millis) -> Allowance {
        let Some(hold) = &self.hold else {
            return Allowance::UpTo(self.slow_start.unwrap_or(u32::MAX));
        };
        let waiting = hold.cause.waiting();
        match hold.probe {
            _ if hold.until > now => Allowance::Wait { waiting, until: Some(hold.until) },
            Some(_) => Allowance::Wait { waiting, until: None },
            None => Allowance::UpTo(1),
        }
    }

    /// The cause that holds the group back.
    #[must_use]
    pub fn cause(&self) -> Option<ThrottleCause> {
        self.hold.as_ref().map(|hold| hold.cause)
    }

    /// A create was sent: where the group is held back, it is the one that goes to see.
    pub fn on_sent(&mut self, id: ExecutorId) {
        if let Some(hold) = &mut self.hold {
            hold.probe = Some(id);
        }
    }

    /// The server took the create of `id` that was sent at `sent_at`.
    pub fn on_created(&mut self, id: ExecutorId, sent_at: Millis) {
        match &self.hold {
            // A create that left before the trouble began says nothing about it; the one that was
            // sent to see does, even where it left at the very moment that the hold began.
            Some(hold)
                if hold.cause != ThrottleCause::Young
                    && !hold.cause.is_start()
                    && (sent_at >= hold.since || hold.probe == Some(id)) =>
            {
                self.hold = None;
                self.slow_start = Some(2);
            }
            Some(_) => {}
            None => {
                self.slow_start = self.slow_start.map(|n| n + 1).filter(|&n| n < SLOW_START_END);
            }
        }
    }

    /// The server refused a create that was sent at `sent_at`. True where that is news.
    pub fn on_refused(
        &mut self,
        cause: ThrottleCause,
        sent_at: Millis,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let is_news = self.cause() != Some(cause);
        let failures = match &self.hold {
            // Others of the same round trip: one failure, not many.
            Some(hold) if !is_news && sent_at < hold.since => return false,
            Some(hold) if !is_news => hold.failures.saturating_add(1),
            Some(_) | None => 1,
        };
        self.begin(cause, failures, now, rng);
        is_news
    }

    /// The one that went to see has come to nothing by itself (cancelled, say): send another.
    pub fn on_probe_void(&mut self, id: ExecutorId) {
        if let Some(hold) = &mut self.hold
            && hold.probe == Some(id)
        {
            hold.probe = None;
        }
    }

    /// A pod went: a quota may have room now.
    pub fn on_room(&mut self, now: Millis) -> bool {
        match &mut self.hold {
            Some(hold) if hold.cause == ThrottleCause::Capacity && hold.until > now => {
                hold.until = now;
                true
            }
            Some(_) | None => false,
        }
    }

    /// An executor began to run.
    pub fn on_started(&mut self, now: Millis) {
        push(&mut self.starts, now);
        if self.cause().is_some_and(ThrottleCause::is_start) {
            self.hold = None;
            self.slow_start = Some(2);
        }
    }

    /// An executor came to nothing before it ran. True where the group slows down for it.
    pub fn on_start_failed(
        &mut self,
        id: ExecutorId,
        cause: ThrottleCause,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let failures = match &self.hold {
            // The one that went to see found the same trouble, or another.
            Some(hold) if hold.probe == Some(id) && hold.cause == cause => hold.failures,
            Some(hold) if hold.probe == Some(id) => 0,
            // The others were asked for before the trouble was known.
            Some(_) => return false,
            None => 0,
        };
        self.begin(cause, failures.saturating_add(1), now, rng);
        true
    }

    /// An executor ended, not by us, `lived_ms` after it began to run (none: it never ran).
    /// True where the group slows down for it.
    pub fn on_ended(
        &mut self,
        id: ExecutorId,
        lived_ms: Option<u64>,
        now: Millis,
        rng: &mut Rng,
    ) -> bool {
        let is_young = lived_ms.is_none_or(|ms| ms < YOUNG_MS);
        let is_probe = self.hold.as_ref().is_some_and(|hold| hold.probe == Some(id));
        if is_young {
            push(&mut self.young_ends, now);
        }
        if lived_ms.is_none() {
            push(&mut self.starts, now);
        }
        let is_dying = self.hold.is_none() && is_young && self.is_dying_young(now);
        let failures = match &self.hold {
            Some(hold) if hold.cause == ThrottleCause::Young && is_probe && is_young => {
                hold.failures
            }
            Some(_) => {
                self.on_probe_void(id);
                return false;
            }
            None if is_dying => 0,
            None => return false,
        };
        self.begin(ThrottleCause::Young, failures.saturating_add(1), now, rng);
        true
    }

    /// The executor that has to live for the group to go on, where one was sent.
    #[must_use]
    pub fn young_probe(&self) -> Option<ExecutorId> {
        let hold = self.hold.as_ref().filter(|hold| hold.cause == ThrottleCause::Young)?;
        hold.probe
    }

    /// When the one sent to see has lived long enough, given when it began to run.
    #[must_use]
    pub fn proven_at(running_since: Millis) -> Millis {
        running_since.after(YOUNG_MS)
    }

    /// The one sent to see has lived long enough.
    pub fn on_proven(&mut self) {
        self.hold = None;
        self.slow_start = Some(2);
        self.young_ends.clear();
    }

    fn begin(&mut self, cause: ThrottleCause, failures: u32, now: Millis, rng: &mut Rng) {
        let (initial, max) = cause.delays_ms();
        let until = now.after(delay_ms(failures, initial, max, rng).min(max));
        // Strictly after what was sent at this same moment.
        self.hold = Some(Hold { cause, failures, since: now.after(1), until, probe: None });
    }

    fn is_dying_young(&mut self, now: Millis) -> bool {
        for times in [&mut self.starts, &mut self.young_ends] {
            while times.front().is_some_and(|&at| now.since(at) > YOUNG_WINDOW_MS) {
                times.pop_front();
            }
        }
        let n = self.young_ends.len();
        n >= YOUNG_DEATHS_MIN && n * 2 > self.starts.len()
    }
}

fn push(times: &mut VecDeque<Millis>, now: Millis) {
    if times.len() == YOUNG_ENTRIES_MAX {
        times.pop_front();
    }
    times.push_back(now);
}
