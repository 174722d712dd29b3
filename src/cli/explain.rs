//! Owns the words of `posse explain`: a status as sentences. Asks nobody; the time is an argument.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::core::loss::MESSAGE_BYTES_MAX;
use crate::core::model::status::State;
use crate::core::model::text::sanitize;
use crate::core::model::waiting::Waiting;
use crate::wire::status_json::{ExecutorJson, GroupJson, StatusJson};

/// One sentence for each group, or for the one that is asked for.
///
/// # Errors
/// There is no such group.
pub fn groups(status: &StatusJson, only: Option<&str>, now: Timestamp) -> Result<String, String> {
    let shown = |group: &&GroupJson| only.is_none_or(|name| group.group == name);
    let mut text: String = status.groups.iter().filter(shown).map(|one| group(one, now)).collect();
    if only.is_none() && !text.is_empty() {
        for (node, until) in &status.avoided_nodes {
            let until = clock(until, now);
            text.push_str(&format!("node {node}: new executors keep away from it until {until}\n"));
        }
    }
    match (only, text.is_empty()) {
        (_, false) => Ok(text),
        (None, true) => Ok(format!("app {}: there is no group yet\n", status.identity.app)),
        (Some(name), true) => {
            let names: Vec<&str> = status.groups.iter().map(|one| one.group.as_str()).collect();
            Err(format!("there is no group `{name}`; there are: {}", names.join(", ")))
        }
    }
}

/// One sentence about one executor, without a line end.
#[must_use]
pub fn executor(one: &ExecutorJson, now: Timestamp) -> String {
    let state = match one.state.as_str() {
        state if state == State::Requested.as_str() => "asked for, no pod seen yet,",
        state if state == State::Failed.as_str() => "failed, and kept as evidence,",
        state => state,
    };
    let mut text = format!(
        "executor {} of group {}: {state} since {}; pod {}",
        one.id,
        one.group,
        clock(&one.since, now),
        one.pod
    );
    if let Some(node) = &one.node {
        text.push_str(&format!(" on node {node}"));
    }
    if let Some(ip) = one.ip {
        text.push_str(&format!(", ip {ip}"));
    }
    if let Some(slot) = one.slot {
        text.push_str(&format!(", slot {slot}"));
    }
    text
}

fn group(group: &GroupJson, now: Timestamp) -> String {
    let mut text = format!("group {}: {} of {} run", group.group, group.running, group.target);
    let others: Vec<String> = [
        (group.requested, "asked for"),
        (group.pending, "pending"),
        (group.draining, "draining"),
        (group.terminating, "terminating"),
        (group.failed, "failed and kept"),
    ]
    .iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"))
    .collect();
    if !others.is_empty() {
        text.push_str(&format!(" ({})", others.join(", ")));
    }
    text.push_str(&reason(group, now));
    if let Some(message) = &group.message {
        text.push_str(&format!("; the server says: {}", sanitize(message, MESSAGE_BYTES_MAX)));
    }
    text.push('\n');
    text
}

/// What it waits for, and until when.
fn reason(group: &GroupJson, now: Timestamp) -> String {
    let Some(name) = &group.waiting else {
        return match group.running.cmp(&group.target) {
            std::cmp::Ordering::Equal => "; nothing to do",
            std::cmp::Ordering::Greater => "; those above the target are being ended",
            std::cmp::Ordering::Less => "; nothing holds back the others",
        }
        .to_owned();
    };
    // A newer posse may wait for what this one has no words for.
    let (what, why) = WORDS
        .iter()
        .find(|(waiting, _, _)| waiting.as_str() == name)
        .map_or((name.as_str(), ""), |(_, what, why)| (*what, *why));
    let mut text = format!("; waiting for {what}");
    if let Some(until) = &group.until {
        text.push_str(&format!(" until {}", clock(until, now)));
    }
    if !why.is_empty() {
        text.push_str(&format!(" ({why})"));
    }
    text
}

/// What is waited for, and why, in words.
const WORDS: [(Waiting, &str, &str); 20] = [
    (
        Waiting::AdoptHold,
        "its target to be set again",
        "executors that were there before this run are kept for so long",
    ),
    (Waiting::Backoff, "a while", "its executors died young, so one is sent to see"),
    (
        Waiting::ConfigError,
        "containers that can be started",
        "they cannot as they are written; one at a time is tried",
    ),
    (Waiting::DriverReady, "the driver", "it has not said that it is ready"),
    (Waiting::FirstList, "the first list", "what is there already is not known yet"),
    (Waiting::Gated, "scheduling gates to be removed", "somebody else holds the pods back"),
    (Waiting::Ids, "ids", "the next block of them is not reserved yet"),
    (Waiting::ImageError, "an image that can be pulled", "one at a time is tried"),
    (Waiting::InFlight, "answers", "as many requests are under way as the server takes now"),
    (Waiting::Lease, "the lease", "the instance is not ours now"),
    (Waiting::PendingLimit, "pending executors to run", "allocation.pending_max is reached"),
    (
        Waiting::Permanent,
        "a template or rights that the server takes",
        "it refuses these for good; they are tried now and then",
    ),
    (Waiting::Quota, "quota", ""),
    (Waiting::ReplaceGone, "lost executors to be gone", "replace: gone"),
    (
        Waiting::ScaleDownPending,
        "the driver to end some",
        "scale_down: pending leaves running ones to it",
    ),
    (Waiting::Server, "the API server", "it is overloaded or out of reach"),
    (
        Waiting::StartTimeout,
        "executors that start in time",
        "allocation.start_timeout was up; one at a time is tried",
    ),
    (
        Waiting::Template,
        "its template",
        "it was found and is not in this run's file: PUT it again by the control API",
    ),
    (Waiting::StaleSnapshot, "a new list", "what is known is out of date"),
    (Waiting::Unschedulable, "the scheduler to place some", "it finds no node for them"),
];

/// A moment as people say it: without the day where it is today. What is no moment stays as it is.
pub(super) fn clock(moment: &str, now: Timestamp) -> String {
    let Ok(at) = moment.parse::<Timestamp>() else { return moment.to_owned() };
    let moment = |at: Timestamp| at.to_zoned(TimeZone::UTC).datetime();
    let (at, now) = (moment(at), moment(now));
    match at.date() == now.date() {
        true => format!("{:.0} UTC", at.time()),
        false => format!("{} {:.0} UTC", at.date(), at.time()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::wire::status_json::{RunNames, tests::sample};
    use crate::wire::time::Epoch;

    fn status() -> StatusJson {
        StatusJson::new(&RunNames::default(), &sample(), Epoch(SystemTime::UNIX_EPOCH))
    }

    const DAY_0: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn a_group_says_what_it_waits_for() {
        let head = "group default: 7 of 10 run (1 asked for, 2 pending, 1 terminating, 3 failed \
                    and kept)";
        let with = |waiting: Option<&str>, until: Option<&str>, message: Option<&str>| GroupJson {
            waiting: waiting.map(str::to_owned),
            until: until.map(str::to_owned),
            message: message.map(str::to_owned),
            ..status().groups[0].clone()
        };
        let until = Some("1970-01-01T12:03:04.000Z");
        for (one, want) in [
            (
                with(Some("quota"), until, Some("exceeded quota: q\n")),
                "; waiting for quota until 12:03:04 UTC; the server says: exceeded quota: q\n",
            ),
            (
                with(Some("backoff"), until, None),
                "; waiting for a while until 12:03:04 UTC (its executors died young, so one is \
                 sent to see)\n",
            ),
            (
                with(Some("driver_ready"), None, None),
                "; waiting for the driver (it has not said that it is ready)\n",
            ),
            (with(Some("full_moon"), until, None), "; waiting for full_moon until 12:03:04 UTC\n"),
            (with(None, None, None), "; nothing holds back the others\n"),
        ] {
            assert_eq!(group(&one, DAY_0), format!("{head}{want}"));
        }
        let quiet = GroupJson { running: 10, requested: 0, ..with(None, None, None) };
        assert!(group(&quiet, DAY_0).ends_with("; nothing to do\n"));
    }

    #[test]
    fn every_wait_has_words_once() {
        let names: std::collections::BTreeSet<Waiting> =
            WORDS.iter().map(|(waiting, _, _)| *waiting).collect();
        assert_eq!(names.len(), WORDS.len());
    }

    #[test]
    fn groups_and_executors_are_found_or_missed_in_words() {
        let status = status();
        let all = groups(&status, None, DAY_0).unwrap();
        assert_eq!(all.lines().count(), 3);
        let node = "node n9: new executors keep away from it until 00:00:03 UTC";
        assert_eq!(all.lines().last(), Some(node));
        let one = groups(&status, Some("big"), DAY_0).unwrap();
        assert!(one.starts_with("group big: ") && one.lines().count() == 1, "{one}");
        let missed = groups(&status, Some("small"), DAY_0).unwrap_err();
        assert_eq!(missed, "there is no group `small`; there are: default, big");

        let later: Timestamp = "1970-01-02T00:00:00Z".parse().unwrap();
        for (id, now, want) in [
            (
                1,
                DAY_0,
                "executor 1 of group default: running since 00:00:01 UTC; pod w-a1b2c-exec-1 on \
                 node n1, ip 10.0.0.1, slot 0",
            ),
            (
                2,
                later,
                "executor 2 of group default: asked for, no pod seen yet, since 1970-01-01 \
                 00:00:01 UTC; pod w-a1b2c-exec-2",
            ),
        ] {
            let one = status.executors.iter().find(|one| one.id == id).expect("an executor");
            assert_eq!(executor(one, now), want);
        }
    }
}
