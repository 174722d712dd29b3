//! Sentences about groups and executors, from a run's status.

use jiff::Timestamp;

use posse_base::text::{one_line, sanitize};
use posse_core::model::status::State;
use posse_core::model::waiting::{GroupWait, RunWait, ServerWait, Waiting};
use posse_core::policy::loss::MESSAGE_BYTES_MAX;
use posse_wire::control::event_text::time_of_day;
use posse_wire::control::status_json::{ExecutorJson, GroupJson, StatusJson};

/// One sentence for each group, or only for group `only`.
pub fn groups(status: &StatusJson, only: Option<&str>, now: Timestamp) -> Result<String, String> {
    let shown = |group: &&GroupJson| only.is_none_or(|name| group.group == name);
    let mut text: String = status.groups.iter().filter(shown).map(|one| group(one, now)).collect();
    if let Some(outage) = status.outage.as_ref().filter(|_| !text.is_empty()) {
        let since = time_of_day(&outage.since, now);
        let message = sanitize(&outage.message, MESSAGE_BYTES_MAX);
        text.push_str(&format!(
            "requests to the API server have failed since {since}: {message}; posse tries again, and \
             executors that run are not affected\n"
        ));
    }
    if only.is_none() && !text.is_empty() {
        for (node, until) in &status.avoided_nodes {
            let until = time_of_day(until, now);
            let line = format!("node {node}: new executors avoid it until {until}");
            text.push_str(&one_line(&line));
            text.push('\n');
        }
    }
    match (only, text.is_empty()) {
        (_, false) => Ok(text),
        (None, true) => Ok(format!("app {}: there is no group yet\n", status.identity.app)),
        (Some(name), true) => {
            let names: Vec<&str> = status.groups.iter().map(|one| one.group.as_str()).collect();
            Err(format!("there is no group `{name}`; the groups are: {}", names.join(", ")))
        }
    }
}

/// One sentence about an executor, without a line end.
pub fn executor(one: &ExecutorJson, now: Timestamp) -> String {
    let state = match one.state.as_str() {
        state if state == State::Requested.as_str() => "requested, no pod yet,",
        state if state == State::Failed.as_str() => "failed, pod retained,",
        state if state == State::Completed.as_str() => "completed, pod kept as the record,",
        state => state,
    };
    let mut text = format!(
        "executor {} of group {}: {state} since {}; pod {}",
        one.id,
        one.group,
        time_of_day(&one.since, now),
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
    let mut text =
        format!("group {}: {} of {} running", group.group, group.running, group.wanted());
    let for_tasks = group.for_tasks();
    let wanted = (for_tasks > 0).then(|| format!("target {}, {for_tasks} for tasks", group.target));
    let others = [
        (group.requested, "requested"),
        (group.pending, "pending"),
        (group.draining, "draining"),
        (group.terminating, "terminating"),
        (group.failed, "failed and retained"),
    ]
    .into_iter()
    .filter(|(n, _)| *n > 0)
    .map(|(n, what)| format!("{n} {what}"));
    let others: Vec<String> = wanted.into_iter().chain(others).collect();
    if !others.is_empty() {
        text.push_str(&format!(" ({})", others.join(", ")));
    }
    match group.completions {
        Some(all) => text.push_str(&format!("; {} of {all} completed", group.completed)),
        None if group.completed > 0 => text.push_str(&format!("; {} completed", group.completed)),
        None => {}
    }
    text.push_str(&reason(group, now));
    text.push_str(&limits("create", group.would_create, group, now));
    text.push_str(&limits("end", group.would_end, group, now));
    for other in group.limits.iter().filter(|one| one.what == "start") {
        if group.waiting.as_ref() != Some(&other.waiting) {
            text.push_str(&format!("; also waiting for {}", other.waiting));
        }
    }
    if let Some(message) = &group.message {
        let is_for = |waiting: Waiting| group.waiting.as_deref() == Some(waiting.as_str());
        let own = [
            Waiting::Run(RunWait::Credentials),
            Waiting::Run(RunWait::DriverReady),
            Waiting::Group(GroupWait::ScaleCommand),
            Waiting::Group(GroupWait::Slot),
        ];
        // If the server was not reached, the message is the network's; posse says the others of its own.
        let who = match is_for(Waiting::Server(ServerWait::Failing)) {
            true => "the last failure: ",
            false if own.into_iter().any(is_for) => "",
            false => "the server says: ",
        };
        text.push_str(&format!("; {who}{}", sanitize(message, MESSAGE_BYTES_MAX)));
    }
    one_line(&text).into_owned() + "\n"
}

/// All that limits what is created, or ended, for the group: the tightest first.
fn limits(what: &str, wanted: u32, group: &GroupJson, now: Timestamp) -> String {
    let of_what = group.limits.iter().filter(|limit| limit.what == what);
    let each = of_what.filter_map(|limit| {
        let mut text = format!("at most {}", limit.at_most?);
        if let Some(of) = limit.of.filter(|&of| of != wanted) {
            text.push_str(&format!(" of {of}"));
        }
        text.push_str(&format!(" by {}", limit.waiting));
        if let Some(until) = &limit.until {
            text.push_str(&format!(" until {}", time_of_day(until, now)));
        }
        Some(text)
    });
    let each: Vec<String> = each.collect();
    if each.is_empty() {
        return String::new();
    }
    format!("; would {what} {wanted}: {}", each.join(", "))
}

/// What the group waits for, and until when.
fn reason(group: &GroupJson, now: Timestamp) -> String {
    let Some(name) = &group.waiting else {
        let n_starting = group.requested.saturating_add(group.pending);
        return match group.running.cmp(&group.wanted()) {
            std::cmp::Ordering::Equal => "; nothing to do",
            std::cmp::Ordering::Greater => "; executors above the target are being deleted",
            std::cmp::Ordering::Less
                if group.running.saturating_add(n_starting) >= group.wanted() =>
            {
                "; the others are starting"
            }
            std::cmp::Ordering::Less => "; no reason known (please report this)",
        }
        .to_owned();
    };
    // The run may be of a newer version with a reason that this version does not know.
    let (what, why) = Waiting::all()
        .find(|waiting| waiting.as_str() == name)
        .map_or((name.as_str(), ""), |waiting| waiting.describe());
    let mut text = format!("; waiting for {what}");
    if let Some(since) = &group.since {
        text.push_str(&format!(" since {}", time_of_day(since, now)));
    }
    if let Some(until) = &group.until {
        let is_retry = name == Waiting::Server(ServerWait::Failing).as_str();
        let what = if is_retry { ", trying again at" } else { " until" };
        text.push_str(&format!("{what} {}", time_of_day(until, now)));
    }
    if !why.is_empty() {
        text.push_str(&format!(" ({why})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::sample_status_json;
    use posse_wire::control::status_json::{LimitJson, RunNames};

    fn status() -> StatusJson {
        sample_status_json(&RunNames::default())
    }

    const DAY_0: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn a_group_has_its_waiting_reason() {
        let head = "group default: 7 of 10 running (1 requested, 2 pending, 1 terminating, 3 \
                    failed and retained); 57 of 100 completed";
        let with = |waiting: Option<&str>, until: Option<&str>, message: Option<&str>| GroupJson {
            waiting: waiting.map(str::to_owned),
            since: waiting.map(|_| "1970-01-01T12:00:01.000Z".to_owned()),
            until: until.map(str::to_owned),
            message: message.map(str::to_owned),
            limits: Vec::new(),
            ..status().groups[0].clone()
        };
        let until = Some("1970-01-01T12:03:04.000Z");
        for (one, want) in [
            (
                with(Some("quota"), until, Some("exceeded quota: q\n")),
                "; waiting for quota since 12:00:01 UTC until 12:03:04 UTC; the server says: \
                 exceeded quota: q\n",
            ),
            (
                with(Some("driver_ready"), None, Some("port 7077 is held")),
                "; waiting for the driver since 12:00:01 UTC (it has not reported that it is ready); \
                 port 7077 is held\n",
            ),
            (
                with(Some("server"), until, Some("time-out")),
                "; waiting for the API server to accept its pods since 12:00:01 UTC, trying again at \
                 12:03:04 UTC (creates fail, or the server is overloaded or unreachable); the last failure: \
                 time-out\n",
            ),
            (
                with(Some("backoff"), until, None),
                "; waiting for a backoff since 12:00:01 UTC until 12:03:04 UTC (its executors \
                 crashed soon after the start; one is tried at a time)\n",
            ),
            (
                with(Some("driver_ready"), None, None),
                "; waiting for the driver since 12:00:01 UTC (it has not reported that it is \
                 ready)\n",
            ),
            (
                with(Some("full_moon"), until, None),
                "; waiting for full_moon since 12:00:01 UTC until 12:03:04 UTC\n",
            ),
            (with(None, None, None), "; the others are starting\n"),
        ] {
            assert_eq!(group(&one, DAY_0), format!("{head}{want}"));
        }
        let with_tasks = GroupJson { running: 13, wanted: 13, ..with(None, None, None) };
        let text = group(&with_tasks, DAY_0);
        let want = "group default: 13 of 13 running (target 10, 3 for tasks, 1 requested, ";
        assert!(text.starts_with(want) && text.ends_with("; nothing to do\n"), "{text}");
        let quiet = GroupJson { running: 10, requested: 0, ..with(None, None, None) };
        assert!(group(&quiet, DAY_0).ends_with("; nothing to do\n"));
        let unexplained = GroupJson { requested: 0, ..with(None, None, None) };
        assert!(group(&unexplained, DAY_0).ends_with("; no reason known (please report this)\n"));
    }

    #[test]
    fn a_group_tells_all_its_limits_the_tightest_first() {
        let one = status().groups[0].clone();
        let text = group(&one, DAY_0);
        let limits = "; would create 12: at most 1 of 8 by quota until 00:00:02 UTC, at most 6 by \
                      pending_limit; also waiting for unschedulable; the server says: exceeded quota\n";
        assert!(text.ends_with(limits), "{text}");
        let ends = |limit: LimitJson| LimitJson { what: "end".to_owned(), of: Some(3), ..limit };
        let limits = one.limits[..1].iter().cloned().map(ends).collect();
        let text = group(&GroupJson { would_end: 3, limits, ..one }, DAY_0);
        assert!(text.contains("; would end 3: at most 1 by quota until 00:00:02 UTC;"), "{text}");
    }

    #[test]
    fn groups_and_executors_become_sentences() {
        let status = status();
        let all = groups(&status, None, DAY_0).unwrap();
        assert_eq!(all.lines().count(), 4);
        let outage = "requests to the API server have failed since 00:00:04 UTC: connection refused; posse \
                      tries again, and executors that run are not affected";
        assert_eq!(all.lines().nth(2), Some(outage));
        let node = "node n9: new executors avoid it until 00:00:03 UTC";
        assert_eq!(all.lines().last(), Some(node));
        let one = groups(&status, Some("big"), DAY_0).unwrap();
        assert!(one.starts_with("group big: ") && one.lines().count() == 2, "{one}");
        let error = groups(&status, Some("small"), DAY_0).unwrap_err();
        assert_eq!(error, "there is no group `small`; the groups are: default, big");

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
                "executor 2 of group default: requested, no pod yet, since 1970-01-01 \
                 00:00:01 UTC; pod w-a1b2c-exec-2",
            ),
        ] {
            let one = status.executors.iter().find(|one| one.id == id).expect("an executor");
            assert_eq!(executor(one, now), want);
        }
    }
}
