//! Which Events about the driver's pod are written to the API server, and when: repeated notices become
//! one Event with a series, and requests are at least a second apart. Sends nothing and reads no clock.

use std::collections::BTreeMap;

use posse_base::time::Millis;

/// The least time between two requests.
pub const REQUEST_INTERVAL_MS: u64 = 1_000;
/// The least time between two updates of one series.
pub const UPDATE_INTERVAL_MS: u64 = 10_000;
/// A series without a new notice for this time is over: the next notice begins another one. client-go's
/// recorder has the same time.
pub const SERIES_IDLE_MS: u64 = 6 * 60_000;
/// The series that are kept. A notice that would begin another one is dropped.
pub const SERIES_MAX: usize = 64;
/// The delay after a failed request; doubled with each further failure.
const BACKOFF_MS: u64 = 5_000;
const BACKOFF_MS_MAX: u64 = 60_000;

/// Something that happened, as an Event tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `reason` of the Event.
    pub reason: &'static str,
    /// What is the same in all notices of a series, beside the reason: a group, a node.
    pub about: String,
    /// `action` of the Event: what posse does about it.
    pub action: &'static str,
    pub is_warning: bool,
    /// It goes before all others.
    pub is_urgent: bool,
    /// One line. A series keeps that of its first notice, because the server lets nobody change it.
    pub note: String,
}

/// A request to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRequest {
    /// The number of the series, from 1; a part of the Event's name.
    pub series: u64,
    /// The Event is there already, and gets a new count and time.
    pub is_update: bool,
    pub notice: Notice,
    pub first_at: Millis,
    pub last_at: Millis,
    /// The number of notices.
    pub count: u64,
}

/// What to do now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesStep {
    Send(Box<EventRequest>),
    Wait {
        until: Millis,
    },
    /// There is nothing to send.
    Idle,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventAnswer {
    Done,
    /// The Event to update is gone.
    Gone,
    /// The server does not accept the Event: it is not sent again.
    Invalid,
    /// It failed for another reason. `retry_after_ms`: the least delay that the server asks for.
    Failed {
        retry_after_ms: u64,
    },
}

#[derive(Clone, Debug)]
struct Series {
    number: u64,
    notice: Notice,
    first_at: Millis,
    last_at: Millis,
    count: u64,
    /// The count in the Event on the server; 0: there is no Event yet.
    sent_count: u64,
    sent_at: Millis,
}

impl Series {
    /// When it may be sent next; none: the server knows all of it.
    fn due_at(&self, is_ending: bool) -> Option<Millis> {
        match self.sent_count {
            n if n == self.count => None,
            0 => Some(self.first_at),
            _ if is_ending => Some(self.last_at),
            _ => Some(self.sent_at.after(UPDATE_INTERVAL_MS)),
        }
    }

    /// New and urgent series come first, then the oldest.
    fn rank(&self) -> (bool, bool, Millis) {
        (!self.notice.is_urgent, self.sent_count > 0, self.first_at)
    }
}

/// The series of one driver's pod.
#[derive(Clone, Debug, Default)]
pub struct EventSeries {
    series: BTreeMap<(&'static str, String), Series>,
    n_series: u64,
    not_before: Millis,
    n_failures: u32,
    is_ending: bool,
}

impl EventSeries {
    /// Adds a notice. False: it was dropped, because too many series wait to be sent.
    pub fn add(&mut self, notice: Notice, at: Millis) -> bool {
        let key = (notice.reason, notice.about.clone());
        if let Some(series) = self.series.get_mut(&key)
            && (series.sent_count < series.count || at.since(series.last_at) < SERIES_IDLE_MS)
        {
            series.count += 1;
            series.last_at = at;
            return true;
        }
        self.series.remove(&key);
        if self.series.len() >= SERIES_MAX {
            let is_sent = |series: &Series| series.sent_count == series.count;
            let sent = self.series.iter().filter(|(_, series)| is_sent(series));
            let oldest = sent.min_by_key(|(_, series)| series.last_at).map(|(key, _)| key.clone());
            let Some(oldest) = oldest else { return false };
            self.series.remove(&oldest);
        }
        self.n_series += 1;
        let series = Series {
            number: self.n_series,
            notice,
            first_at: at,
            last_at: at,
            count: 1,
            sent_count: 0,
            sent_at: Millis::ZERO,
        };
        self.series.insert(key, series);
        true
    }

    /// The run ends: updates wait no longer for their interval.
    pub fn end(&mut self) {
        self.is_ending = true;
    }

    /// What to do now. `on_answer` must follow a `Send`.
    pub fn next(&self, now: Millis) -> SeriesStep {
        let due = |series: &Series| series.due_at(self.is_ending);
        let open = || self.series.values().filter_map(|series| Some((due(series)?, series)));
        let Some(first_due) = open().map(|(at, _)| at).min() else { return SeriesStep::Idle };
        let until = first_due.max(self.not_before);
        if now < until {
            return SeriesStep::Wait { until };
        }
        let ready = open().filter(|(at, _)| *at <= now).map(|(_, series)| series);
        let Some(series) = ready.min_by_key(|series| series.rank()) else {
            return SeriesStep::Idle;
        };
        SeriesStep::Send(Box::new(EventRequest {
            series: series.number,
            is_update: series.sent_count > 0,
            notice: series.notice.clone(),
            first_at: series.first_at,
            last_at: series.last_at,
            count: series.count,
        }))
    }

    pub fn on_answer(&mut self, request: &EventRequest, answer: EventAnswer, now: Millis) {
        self.not_before = now.after(REQUEST_INTERVAL_MS);
        if let EventAnswer::Failed { retry_after_ms } = answer {
            let doublings = self.n_failures.min(BACKOFF_MS_MAX.ilog2());
            let backoff = BACKOFF_MS.saturating_mul(1 << doublings).min(BACKOFF_MS_MAX);
            self.n_failures = self.n_failures.saturating_add(1);
            self.not_before = now.after(backoff.max(retry_after_ms));
            return;
        }
        self.n_failures = 0;
        let key = (request.notice.reason, request.notice.about.clone());
        let Some(series) = self.series.get_mut(&key).filter(|one| one.number == request.series)
        else {
            return;
        };
        series.sent_at = now;
        match answer {
            // The server has deleted the Event: the next request makes another one.
            EventAnswer::Gone => {
                self.n_series += 1;
                (series.number, series.sent_count) = (self.n_series, 0);
            }
            EventAnswer::Done | EventAnswer::Invalid | EventAnswer::Failed { .. } => {
                series.sent_count = request.count;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(reason: &'static str, about: &str) -> Notice {
        Notice {
            reason,
            about: about.to_owned(),
            action: "Act",
            is_warning: true,
            is_urgent: reason == "BudgetSpent",
            note: String::new(),
        }
    }

    /// Sends all that is due until `until`, each with this answer: `reason/about xCOUNT @TIME`.
    fn run(series: &mut EventSeries, from: u64, until: u64, answer: EventAnswer) -> Vec<String> {
        let mut sent = Vec::new();
        let mut now = Millis(from);
        loop {
            match series.next(now) {
                SeriesStep::Send(request) => {
                    let update = if request.is_update { "+" } else { "" };
                    let EventRequest { notice, count, .. } = &*request;
                    sent.push(format!(
                        "{update}{}/{} x{count} @{}",
                        notice.reason, notice.about, now.0
                    ));
                    series.on_answer(&request, answer, now);
                }
                SeriesStep::Wait { until: at } if at.0 <= until => now = at,
                SeriesStep::Wait { .. } | SeriesStep::Idle => return sent,
            }
        }
    }

    #[test]
    fn repeated_notices_become_one_event_with_a_series() {
        let mut series = EventSeries::default();
        for at in 0..50 {
            assert!(series.add(notice("ExecutorLost", "g oom"), Millis(at)));
        }
        let done = EventAnswer::Done;
        assert_eq!(run(&mut series, 100, 60_000, done), ["ExecutorLost/g oom x50 @100"]);
        series.add(notice("ExecutorLost", "g oom"), Millis(200));
        series.add(notice("ExecutorLost", "g oom"), Millis(20_000));
        assert_eq!(run(&mut series, 300, 60_000, done), ["+ExecutorLost/g oom x52 @10100"]);
        // After a long pause another Event begins.
        series.add(notice("ExecutorLost", "g oom"), Millis(20_000 + SERIES_IDLE_MS));
        let later = 21_000 + SERIES_IDLE_MS;
        let want = [format!("ExecutorLost/g oom x1 @{later}")];
        assert_eq!(run(&mut series, later, u64::MAX, done), want);
    }

    #[test]
    fn requests_are_a_second_apart_and_urgent_ones_come_first() {
        let mut series = EventSeries::default();
        for about in ["a", "b", "c"] {
            series.add(notice("WaitingForQuota", about), Millis(0));
        }
        series.add(notice("BudgetSpent", ""), Millis(5));
        let want = [
            "BudgetSpent/ x1 @10",
            "WaitingForQuota/a x1 @1010",
            "WaitingForQuota/b x1 @2010",
            "WaitingForQuota/c x1 @3010",
        ];
        assert_eq!(run(&mut series, 10, 60_000, EventAnswer::Done), want);
    }

    #[test]
    fn failures_are_repeated_with_growing_delays() {
        let mut series = EventSeries::default();
        series.add(notice("NodeAvoided", "n"), Millis(0));
        let failed = EventAnswer::Failed { retry_after_ms: 0 };
        let sent = run(&mut series, 0, 200_000, failed);
        let at: Vec<&str> = sent.iter().map(|one| one.rsplit('@').next().unwrap()).collect();
        assert_eq!(at, ["0", "5000", "15000", "35000", "75000", "135000", "195000"]);
        series.add(notice("NodeAvoided", "n"), Millis(200_000));
        let asked = EventAnswer::Failed { retry_after_ms: 90_000 };
        assert_eq!(run(&mut series, 255_000, 256_000, asked).len(), 1);
        assert_eq!(series.next(Millis(260_000)), SeriesStep::Wait { until: Millis(345_000) });
        assert_eq!(
            run(&mut series, 345_000, u64::MAX, EventAnswer::Done),
            ["NodeAvoided/n x2 @345000"]
        );
    }

    #[test]
    fn an_event_that_is_gone_is_made_again_and_an_invalid_one_is_not() {
        let mut series = EventSeries::default();
        series.add(notice("NodeAvoided", "n"), Millis(0));
        run(&mut series, 0, 10, EventAnswer::Done);
        series.add(notice("NodeAvoided", "n"), Millis(100));
        let SeriesStep::Send(update) = series.next(Millis(20_000)) else { panic!("an update") };
        series.on_answer(&update, EventAnswer::Gone, Millis(20_000));
        let SeriesStep::Send(again) = series.next(Millis(21_000)) else { panic!("a create") };
        assert!(!again.is_update && again.series != update.series && again.count == 2);
        series.on_answer(&again, EventAnswer::Invalid, Millis(21_000));
        assert_eq!(series.next(Millis(60_000)), SeriesStep::Idle);
    }

    #[test]
    fn a_notice_without_space_is_dropped_and_sent_series_make_space() {
        let mut series = EventSeries::default();
        for n in 0..SERIES_MAX {
            assert!(series.add(notice("NodeAvoided", &n.to_string()), Millis(0)));
        }
        assert!(!series.add(notice("NodeAvoided", "one more"), Millis(1)));
        assert!(series.add(notice("NodeAvoided", "7"), Millis(1)), "a known one is counted");
        let SeriesStep::Send(request) = series.next(Millis(2)) else { panic!("a create") };
        series.on_answer(&request, EventAnswer::Done, Millis(2));
        assert!(series.add(notice("NodeAvoided", "one more"), Millis(3)));
        assert!(!series.add(notice("NodeAvoided", "two more"), Millis(3)));
    }

    #[test]
    fn at_the_end_updates_do_not_wait() {
        let mut series = EventSeries::default();
        series.add(notice("ExecutorLost", "g"), Millis(0));
        run(&mut series, 0, 10, EventAnswer::Done);
        series.add(notice("ExecutorLost", "g"), Millis(100));
        assert_eq!(series.next(Millis(2_000)), SeriesStep::Wait { until: Millis(10_000) });
        series.end();
        assert_eq!(
            run(&mut series, 2_000, 60_000, EventAnswer::Done),
            ["+ExecutorLost/g x2 @2000"]
        );
    }
}
