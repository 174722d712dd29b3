//! The state machine of list and watch: when to LIST, when to WATCH and from which version, and
//! when to wait. Sends nothing and reads no clock.

use crate::model::event::RestartKind;
use crate::model::refusal::{Advice, Refusal, RefusalClass, Verb};
use posse_base::backoff::{asked_ms, delay_ms};
use posse_base::rng::Rng;
use posse_base::time::Millis;

/// The first delay after a failure; doubled with each further failure.
pub const BACKOFF_MS: u64 = 800;
/// The longest delay.
pub const BACKOFF_MS_MAX: u64 = 30_000;
/// After this time without a failure the delay starts from the first value again.
pub const BACKOFF_RESET_MS: u64 = 120_000;
/// A watch that ends sooner than this without an event counts as failed, even if it ended in good
/// order.
pub const SHORT_WATCH_MS: u64 = 1_000;
/// A watch that did its work until it was cut, or until a server that shuts down ended it, is opened again within
/// this time. The time is random, because a balancer or server does so to those of many instances at once.
const REOPEN_MS_MAX: u64 = 1_000;
/// A watch that ended so long before its `timeoutSeconds` was ended for another reason.
const EARLY_END_MS: u64 = 5_000;
/// The smallest `timeoutSeconds` of a watch; the value is random, ...
pub const WATCH_S_MIN: u32 = 300;
/// ... and this is the largest, so that many instances do not reconnect at the same moment.
pub const WATCH_S_MAX: u32 = 600;

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchStep {
    /// LIST with a consistent read; then call `on_listed` or `on_list_failed`.
    List,
    /// Wait until then; then call `next` again.
    Wait { until: Millis },
    /// Open a watch from `version_text` with this `timeoutSeconds`.
    Watch { version_text: String, timeout_s: u32 },
}

/// How a watch ended, or why it did not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchEnd {
    /// The server ended the response in good order.
    Clean,
    /// The connection was cut; the transport's message.
    Cut(String),
    /// The server sent an ERROR event.
    ErrorEvent(Refusal),
    /// No byte arrived within the idle timeout.
    Idle,
    /// The inbox was full: the last events were not delivered.
    Overrun,
    /// The request failed: an HTTP error status or no connection.
    Refused(Refusal),
    /// A LIST was requested after a resourceVersion rollback.
    RelistRequested,
    /// A line is invalid or too long.
    Undecodable(String),
}

impl WatchEnd {
    /// The kind of the restart that follows.
    pub fn kind(&self) -> RestartKind {
        match self {
            Clean => RestartKind::Short,
            Cut(_) => RestartKind::Cut,
            ErrorEvent(refusal) | Refused(refusal) if refusal.class == RefusalClass::Expired => {
                RestartKind::Expired
            }
            ErrorEvent(_) => RestartKind::ServerError,
            Idle => RestartKind::Idle,
            Overrun => RestartKind::Overrun,
            Refused(_) => RestartKind::Refused,
            RelistRequested => RestartKind::Rollback,
            Undecodable(_) => RestartKind::InvalidLine,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Listing,
    /// `until`: when the server ends it in good order, or later.
    Watching {
        opened_at: Millis,
        until: Millis,
        n_lines: u64,
    },
    Ready,
}

/// The list and watch state machine of one resource.
#[derive(Clone, Debug)]
pub struct WatchMachine {
    phase: Phase,
    /// The last version: of a LIST, an event or a bookmark. A text, because it need not be a
    /// number.
    version_text: String,
    listed_at: Millis,
    not_before: Millis,
    /// The `timeoutSeconds` of the last watch.
    timeout_s: u32,
    n_failures: u32,
    failed_at: Option<Millis>,
    rng: Rng,
}

impl WatchMachine {
    /// A machine that begins with a LIST.
    pub fn new(rng: Rng) -> Self {
        Self {
            phase: Phase::Listing,
            version_text: String::new(),
            listed_at: Millis::ZERO,
            not_before: Millis::ZERO,
            timeout_s: 0,
            n_failures: 0,
            failed_at: None,
            rng,
        }
    }

    /// The next step. A second call without an input in between gives the same kind of step.
    pub fn next(&mut self, now: Millis) -> WatchStep {
        if now < self.not_before {
            return WatchStep::Wait { until: self.not_before };
        }
        match self.phase {
            Phase::Listing => WatchStep::List,
            Phase::Ready | Phase::Watching { .. } => {
                let spread = u64::from(WATCH_S_MAX - WATCH_S_MIN) + 1;
                let extra = u32::try_from(self.rng.below(spread)).unwrap_or(0);
                self.timeout_s = WATCH_S_MIN + extra;
                WatchStep::Watch {
                    version_text: self.version_text.clone(),
                    timeout_s: self.timeout_s,
                }
            }
        }
    }

    /// A complete LIST was received and delivered.
    pub fn on_listed(&mut self, version_text: &str, now: Millis) {
        version_text.clone_into(&mut self.version_text);
        self.listed_at = now;
        self.phase = Phase::Ready;
    }

    /// A LIST failed or could not be delivered.
    pub fn on_list_failed(&mut self, refusal: &Refusal, now: Millis) {
        self.phase = Phase::Listing;
        self.fail(now, refusal.retry_delay_ms());
    }

    /// The watch has started.
    pub fn on_opened(&mut self, now: Millis) {
        let until = now.after(u64::from(self.timeout_s) * 1_000);
        self.phase = Phase::Watching { opened_at: now, until, n_lines: 0 };
    }

    /// An event was received and delivered; `version_text` is its object's, if it has one.
    pub fn on_line(&mut self, version_text: Option<&str>) {
        if let Phase::Watching { n_lines, .. } = &mut self.phase {
            *n_lines += 1;
        }
        if let Some(text) = version_text.filter(|text| !text.is_empty()) {
            text.clone_into(&mut self.version_text);
        }
    }

    /// The watch ended or did not start. Returns why it is restarted; none after an ordinary end,
    /// when the watch continues from the last version.
    pub fn on_ended(&mut self, end: &WatchEnd, now: Millis) -> Option<String> {
        let (short, has_worked, is_early) = match self.phase {
            Phase::Watching { opened_at, until, n_lines } => {
                let short = n_lines == 0 && now.since(opened_at) < SHORT_WATCH_MS;
                (short, !short, now.after(EARLY_END_MS) < until)
            }
            Phase::Listing | Phase::Ready => (false, false, false),
        };
        self.phase = if needs_list(end) { Phase::Listing } else { Phase::Ready };
        match end {
            Clean if !short => {
                self.n_failures = 0;
                if is_early {
                    self.reopen_soon(now);
                }
                return None;
            }
            Idle if !short => {}
            Cut(_) if has_worked => {
                self.n_failures = 0;
                self.reopen_soon(now);
            }
            RelistRequested => self.not_before = now,
            // A version that is expired right after its LIST: back off, or LIST and WATCH would
            // alternate for ever.
            ErrorEvent(refusal) | Refused(refusal)
                if refusal.class == RefusalClass::Expired
                    && now.since(self.listed_at) >= SHORT_WATCH_MS =>
            {
                if has_worked {
                    self.reopen_soon(now);
                }
            }
            ErrorEvent(refusal) | Refused(refusal) => self.fail(now, refusal.retry_delay_ms()),
            Clean | Cut(_) | Idle | Overrun | Undecodable(_) => self.fail(now, 0),
        }
        Some(describe(end))
    }

    /// How long nothing is read from now on, because of a delay.
    pub fn blind_ms(&self, now: Millis) -> u64 {
        self.not_before.since(now)
    }

    /// Requests a LIST at once, without waiting for a delay.
    pub fn relist(&mut self, now: Millis) {
        self.phase = Phase::Listing;
        self.not_before = now;
    }

    /// The end of a watch that may have ended those of others at the same moment.
    fn reopen_soon(&mut self, now: Millis) {
        self.not_before = now.after(self.rng.below(REOPEN_MS_MAX));
    }

    fn fail(&mut self, now: Millis, retry_delay_ms: u64) {
        if self.failed_at.is_some_and(|at| now.since(at) >= BACKOFF_RESET_MS) {
            self.n_failures = 0;
        }
        self.n_failures = self.n_failures.saturating_add(1);
        self.failed_at = Some(now);
        let backoff = delay_ms(self.n_failures, BACKOFF_MS, BACKOFF_MS_MAX, &mut self.rng);
        let asked = asked_ms(retry_delay_ms, &mut self.rng);
        self.not_before = now.after(backoff.max(asked));
    }
}

use WatchEnd::{Clean, Cut, ErrorEvent, Idle, Overrun, Refused, RelistRequested, Undecodable};

/// Whether a watch from the last version is not enough after this end.
fn needs_list(end: &WatchEnd) -> bool {
    match end {
        Clean | Cut(_) | Idle => false,
        // Only after 429 the version is certainly valid; other errors of a running watch may be
        // about the version.
        ErrorEvent(refusal) => refusal.class != RefusalClass::Throttled,
        Overrun | RelistRequested | Undecodable(_) => true,
        Refused(refusal) => refusal.advice(Verb::Watch) == Advice::Check,
    }
}

fn describe(end: &WatchEnd) -> String {
    match end {
        Clean => "the server ended the watch at once, without an event".to_owned(),
        Cut(problem) => format!("the connection was cut: {problem}"),
        ErrorEvent(refusal) if refusal.class == RefusalClass::Expired => {
            format!("the version expired: {refusal}")
        }
        ErrorEvent(refusal) => format!("the server ended the watch: {refusal}"),
        Idle => "no byte from the server within the idle timeout".to_owned(),
        Overrun => "the inbox was full".to_owned(),
        RelistRequested => "resourceVersion rollback".to_owned(),
        Refused(refusal) => format!("the server refused the watch: {refusal}"),
        Undecodable(problem) => format!("invalid line: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: Millis = Millis(1_000_000);

    fn refusal(class: RefusalClass, code: u16, retry_after_ms: Option<u64>) -> Refusal {
        Refusal { code, retry_after_ms, ..Refusal::local(class, "no") }
    }

    fn watching() -> WatchMachine {
        let mut machine = WatchMachine::new(Rng::new(1));
        assert_eq!(machine.next(LISTED), WatchStep::List);
        machine.on_listed("100", LISTED);
        assert!(
            matches!(machine.next(LISTED), WatchStep::Watch { version_text, .. } if version_text == "100")
        );
        machine
    }

    /// The step after an end (a version: WATCH; none: LIST), and the delay before it.
    fn after(machine: &mut WatchMachine, now: Millis) -> (Option<String>, u64) {
        let mut at = now;
        loop {
            match machine.next(at) {
                WatchStep::Wait { until } => at = until,
                WatchStep::List => return (None, at.since(now)),
                WatchStep::Watch { version_text, .. } => {
                    return (Some(version_text), at.since(now));
                }
            }
        }
    }

    #[test]
    fn each_end_of_a_watch_leads_to_a_list_or_a_watch() {
        let first = 800..1_600;
        let (at_once, soon) = (0..1, 0..1_000);
        let r = refusal;
        // The end; how long the watch was open, in ms; lines; continues with a watch; delay;
        // reported.
        let table = [
            (Clean, 600_000, 5, true, at_once.clone(), false),
            (Clean, 600_000, 0, true, at_once.clone(), false),
            (Clean, 200_000, 5, true, soon.clone(), false),
            (Clean, 999, 1, true, soon.clone(), false),
            (Clean, 999, 0, true, first.clone(), true),
            (Idle, 120_000, 0, true, at_once.clone(), true),
            (Idle, 10, 0, true, first.clone(), true),
            (Cut("x".into()), 10, 3, true, soon.clone(), true),
            (Cut("x".into()), 10, 0, true, first.clone(), true),
            (ErrorEvent(r(RefusalClass::Expired, 410, None)), 5_000, 0, false, soon.clone(), true),
            (ErrorEvent(r(RefusalClass::Expired, 410, None)), 10, 0, false, first.clone(), true),
            (
                ErrorEvent(r(RefusalClass::Throttled, 429, None)),
                5_000,
                0,
                true,
                first.clone(),
                true,
            ),
            (
                ErrorEvent(r(RefusalClass::Throttled, 429, Some(7_000))),
                5_000,
                0,
                true,
                7_000..14_000,
                true,
            ),
            (
                ErrorEvent(r(RefusalClass::OutcomeUnknown, 500, None)),
                5_000,
                0,
                false,
                first.clone(),
                true,
            ),
            (
                ErrorEvent(r(RefusalClass::Forbidden, 403, None)),
                5_000,
                0,
                false,
                first.clone(),
                true,
            ),
            (Overrun, 5_000, 9, false, first.clone(), true),
            (Undecodable("x".into()), 5_000, 9, false, first.clone(), true),
            (RelistRequested, 5_000, 9, false, at_once.clone(), true),
        ];
        for (end, open_ms, n_lines, watches, delay, is_reported) in table {
            let mut machine = watching();
            machine.on_opened(LISTED);
            for i in 0..n_lines {
                machine.on_line(Some(&format!("{}", 101 + i)));
            }
            let now = LISTED.after(open_ms);
            assert_eq!(machine.on_ended(&end, now).is_some(), is_reported, "{end:?}");
            let (version, waited) = after(&mut machine, now);
            let wanted = watches.then(|| format!("{}", 100 + n_lines));
            assert_eq!(version, wanted, "{end:?}");
            assert!(delay.contains(&waited), "{end:?}: {waited}");
        }
    }

    #[test]
    fn a_refused_watch_leads_to_a_list_or_a_watch() {
        let table = [
            (RefusalClass::Expired, 410, Some(0), false, 0..1),
            (RefusalClass::Throttled, 429, None, true, 800..1_600),
            (RefusalClass::Throttled, 429, Some(9_000), true, 9_000..18_000),
            (RefusalClass::Throttled, 429, Some(10), true, 800..1_600),
            (RefusalClass::Throttled, 429, Some(86_400_000), true, 60_000..70_000),
            (RefusalClass::Transient, 0, None, true, 800..1_600),
            (RefusalClass::Transient, 503, None, true, 800..1_600),
            (RefusalClass::OutcomeUnknown, 500, None, true, 800..1_600),
            (RefusalClass::OutcomeUnknown, 504, None, true, 800..1_600),
            (RefusalClass::Unauthorized, 401, None, true, 800..1_600),
            (RefusalClass::Forbidden, 403, None, true, 800..1_600),
            (RefusalClass::NotFound, 404, None, false, 800..1_600),
            (RefusalClass::Invalid, 400, None, false, 800..1_600),
        ];
        for (class, code, retry_after_ms, watches, delay) in table {
            let mut machine = watching();
            let now = LISTED.after(2_000);
            let end = Refused(refusal(class, code, retry_after_ms));
            assert!(machine.on_ended(&end, now).is_some());
            let (version, waited) = after(&mut machine, now);
            assert_eq!(version.is_some(), watches, "{class:?}");
            assert!(delay.contains(&waited), "{class:?}: {waited}");
        }
    }

    #[test]
    fn the_backoff_doubles_to_its_maximum_and_is_reset_when_quiet() {
        let mut machine = watching();
        let mut now = LISTED;
        for low in [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000] {
            machine.on_ended(&Cut("x".into()), now);
            let (_, waited) = after(&mut machine, now);
            assert!((low..2 * low).contains(&waited), "{low}: {waited}");
            now = now.after(waited);
        }
        now = now.after(BACKOFF_RESET_MS);
        machine.on_ended(&Cut("x".into()), now);
        let (_, waited) = after(&mut machine, now);
        assert!((800..1_600).contains(&waited), "{waited}");
    }

    /// 300 applications whose watches a server ends at one moment: in no tenth of the time after it do many more than
    /// a tenth of them come back.
    #[test]
    fn watches_that_end_at_once_are_opened_again_one_after_the_other() {
        let expired = || refusal(RefusalClass::Expired, 410, None);
        let busy = || refusal(RefusalClass::Throttled, 429, Some(1_000));
        // The end, and the time after it in which they come back.
        let table = [
            (Clean, 0..1_000),
            (Cut("x".into()), 0..1_000),
            (ErrorEvent(expired()), 0..1_000),
            (Refused(busy()), 1_000..2_000),
            (Undecodable("x".into()), 800..1_600),
        ];
        for (end, times) in table {
            let now = LISTED.after(60_000);
            let mut tenths = [0; 10];
            for seed in 0..300 {
                let mut machine = WatchMachine::new(Rng::new(seed));
                machine.on_listed("100", LISTED);
                machine.next(LISTED);
                machine.on_opened(LISTED);
                machine.on_ended(&end, now);
                let (_, waited) = after(&mut machine, now);
                assert!(times.contains(&waited), "{end:?}: {waited}");
                let tenth = (waited - times.start) * 10 / (times.end - times.start);
                tenths[usize::try_from(tenth).unwrap()] += 1;
            }
            assert!(tenths.iter().all(|n| *n < 60), "{end:?}: {tenths:?}");
        }
    }

    /// A balancer that ends each connection after a minute.
    #[test]
    fn watches_that_are_cut_each_minute_reconnect_within_a_second() {
        let mut machine = watching();
        let mut now = LISTED;
        for n in 0..50 {
            machine.on_opened(now);
            now = now.after(60_000);
            machine.on_ended(&Cut("x".into()), now);
            let (_, waited) = after(&mut machine, now);
            assert!(waited <= 1_000, "cut {n}: {waited} ms");
            now = now.after(waited);
        }
        // A failure after that is the first one.
        machine.on_ended(&Cut("x".into()), now);
        let (_, waited) = after(&mut machine, now);
        assert!((800..1_600).contains(&waited), "{waited}");
    }

    #[test]
    fn a_failed_list_is_repeated_later() {
        let mut machine = WatchMachine::new(Rng::new(1));
        machine.on_list_failed(&refusal(RefusalClass::OutcomeUnknown, 200, None), LISTED);
        let (version, waited) = after(&mut machine, LISTED);
        assert_eq!(version, None);
        assert!((800..1_600).contains(&waited));
        machine.on_list_failed(&refusal(RefusalClass::Throttled, 429, Some(5_000)), LISTED);
        let (version, waited) = after(&mut machine, LISTED);
        assert_eq!(version, None);
        assert!((5_000..10_000).contains(&waited), "{waited}");
    }

    #[test]
    fn versions_that_are_no_numbers_are_kept_as_text() {
        let mut machine = watching();
        machine.on_opened(LISTED);
        machine.on_line(Some("v-abc"));
        machine.on_line(None);
        machine.on_line(Some(""));
        machine.on_ended(&Clean, LISTED.after(400_000));
        assert_eq!(after(&mut machine, LISTED.after(400_000)).0, Some("v-abc".to_owned()));
    }

    #[test]
    fn a_relist_does_not_wait() {
        let mut machine = watching();
        machine.on_ended(&Cut("x".into()), LISTED);
        assert!(matches!(machine.next(LISTED), WatchStep::Wait { .. }));
        machine.relist(LISTED);
        assert_eq!(machine.next(LISTED), WatchStep::List);
    }

    #[test]
    fn watch_timeouts_are_random() {
        let mut machine = watching();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..2_000 {
            let WatchStep::Watch { timeout_s, .. } = machine.next(LISTED) else {
                panic!("no watch")
            };
            assert!((WATCH_S_MIN..=WATCH_S_MAX).contains(&timeout_s));
            seen.insert(timeout_s);
        }
        assert!(seen.len() > 250, "{}", seen.len());
    }
}
