//! Calls whose good reply promises that the next process of the run still knows of them: they are answered when the
//! record has what they have changed.

use std::collections::VecDeque;

use crossbeam_channel::Sender;

use posse_base::time::Millis;
use posse_core::model::command::Reply;
use posse_core::model::input::RecordError;

/// How long a call waits for the record. Its caller waits for ten seconds.
const WAIT_MS: u64 = 8_000;

/// The replies that wait, in the order of their calls.
#[derive(Debug, Default)]
pub(super) struct Promises {
    waiting: VecDeque<Promise>,
    /// Why the last write of the record has failed.
    why: Option<String>,
}

#[derive(Debug)]
struct Promise {
    /// The change that the record must have.
    change: u64,
    until: Millis,
    answer: Reply,
    reply: Sender<Reply>,
}

impl Promises {
    /// Holds a reply until the record has this change.
    pub(super) fn hold(&mut self, change: u64, answer: Reply, reply: Sender<Reply>, now: Millis) {
        self.waiting.push_back(Promise { change, until: now.after(WAIT_MS), answer, reply });
    }

    /// A write of the record has ended.
    pub(super) fn on_recorded(&mut self, answer: &Result<(), RecordError>) {
        self.why = answer.as_ref().err().map(|error| error.why.clone());
    }

    /// Sends the replies whose changes the record has, and gives up those that have waited for too long. Without the Lease
    /// nothing is written.
    pub(super) fn keep(&mut self, n_recorded: u64, is_lease_held: bool, now: Millis) {
        while let Some(first) = self.waiting.front()
            && (first.change <= n_recorded || first.until <= now)
        {
            let Some(Promise { change, answer, reply, .. }) = self.waiting.pop_front() else {
                return;
            };
            let is_recorded = change <= n_recorded;
            let answer = if is_recorded { answer } else { self.not_recorded(is_lease_held) };
            // The send fails if the caller has gone.
            let _ = reply.try_send(answer);
        }
    }

    /// When the first one has waited for too long.
    pub(super) fn next_deadline(&self) -> Option<Millis> {
        self.waiting.front().map(|first| first.until)
    }

    fn not_recorded(&self, is_lease_held: bool) -> Reply {
        let why = match &self.why {
            _ if !is_lease_held => {
                "the lease is lost, and nothing is written until it is held again"
            }
            Some(why) => why,
            None => "its write takes long",
        };
        let what = format!(
            "the call was carried out, and is not in the record of the run yet, so a restart may forget it: repeat the \
             call. Why: {why}"
        );
        Reply::NotRecorded { what }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn a_reply_waits_for_the_record_and_not_for_ever() {
        let mut promises = Promises::default();
        let calls: Vec<_> = (1..=3).map(|change| (change, bounded(1))).collect();
        for (change, (reply, _)) in &calls {
            promises.hold(*change, Reply::Done, reply.clone(), Millis(0));
        }
        let answers =
            || calls.iter().map(|(_, (_, answer))| answer.try_recv().ok()).collect::<Vec<_>>();
        promises.keep(0, true, Millis(1));
        assert_eq!(answers(), [None, None, None]);
        promises.keep(2, true, Millis(2));
        assert_eq!(answers(), [Some(Reply::Done), Some(Reply::Done), None]);
        assert_eq!(promises.next_deadline(), Some(Millis(WAIT_MS)));
        let mut late = |answer, is_lease_held| {
            promises.on_recorded(&answer);
            let (reply, answered) = bounded(1);
            promises.hold(3, Reply::Done, reply, Millis(0));
            promises.keep(2, is_lease_held, Millis(WAIT_MS));
            assert_eq!(promises.next_deadline(), None);
            answered.try_recv().ok()
        };
        let full = || Err(RecordError::failed("the disk is full".to_owned()));
        for (answer, is_lease_held, why) in [
            (full(), true, "the disk is full"),
            (Ok(()), true, "its write takes long"),
            (full(), false, "the lease is lost, and nothing is written until it is held again"),
        ] {
            let told = late(answer, is_lease_held);
            let says_why = |what: &str| what.ends_with(&format!("repeat the call. Why: {why}"));
            let is_told = matches!(&told, Some(Reply::NotRecorded { what }) if says_why(what));
            assert!(is_told, "{told:?}");
        }
    }
}
