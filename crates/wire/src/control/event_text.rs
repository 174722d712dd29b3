//! Events of a run as text for people: in the log, in the table of `posse events`, and in reports.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use crate::control::event::{ACTED, line};
use crate::time::Epoch;
use posse_base::text::sanitize;
use posse_base::time::Millis;
use posse_core::model::event::Event;
use posse_core::model::waiting::Waiting;

/// The longest value on a line, in bytes.
const FACT_BYTES_MAX: usize = 2_048;

/// The line of the log for an event. `is_told`: its message was logged a moment ago.
pub fn log_line(event: &Event, is_told: bool, now: Millis, epoch: Epoch) -> String {
    let line = line("", 0, now, event, epoch);
    let mut event: Value = serde_json::from_str(&line).unwrap_or_default();
    if is_told {
        event["message"] = "for the same reason".into();
    }
    // The lines of an application are not posse's to log.
    event["log"] = Value::Null;
    let now = epoch.rfc3339(now).parse().unwrap_or_default();
    let what = describe(&event, now);
    match (event["executor"].as_u64(), string(&event["group"])) {
        (Some(id), _) if event["pod"].is_string() => {
            format!("executor {id} {what}: {}", fact(&event["pod"]))
        }
        (_, "") => what,
        (_, group) => format!("group {group}: {what}"),
    }
}

/// An event about something that is known: its name without the executor's part, and what it says.
pub fn describe(event: &Value, now: Timestamp) -> String {
    let facts = facts(event, now);
    let name = string(&event["event"]);
    match name {
        "executor_completed" | "executor_running" | "waiting" => {
            format!("{} {facts}", name.trim_start_matches("executor_"))
        }
        name => {
            let name = name.trim_start_matches("executor_").replace('_', " ");
            if facts.is_empty() { name } else { format!("{name}: {facts}") }
        }
    }
}

/// What an event says besides its name, its executor and its group. The run may be of a newer version
/// with events that this version does not know: their message is shown.
pub fn facts(event: &Value, now: Timestamp) -> String {
    let value = |name: &str| fact(&event[name]);
    let message = given(event, "message", |text| format!(": {text}"));
    let at = |word: &str| match string(&event["until"]) {
        "" => String::new(),
        _ => format!("{word} {}", moment(&event["until"], now)),
    };
    let (until, again) = (at(" until"), at("; trying again at"));
    match string(&event["event"]) {
        ACTED => {
            let user =
                event["user"].as_u64().map_or_else(String::new, |uid| format!(", user {uid}"));
            let from = given(event, "from", |from| format!(", from {from}"));
            format!("{}{message} (by {}{user}{from})", value("call"), value("by"))
        }
        "took_over" => {
            let from = if string(&event["from"]).is_empty() {
                "an unknown pod".to_owned()
            } else {
                value("from")
            };
            format!("from {from}, {}, after {} s", value("cause"), event["seconds"])
        }
        "adopted" => format!("{} executors of an earlier process", event["count"]),
        "create_refused" => format!("{}{message}", value("cause")),
        "credentials_failed" => format!("{}{message}{again}", value("name")),
        "credentials_renewed" => match string(&event["expires"]) {
            "" => value("name"),
            _ => format!("{}, valid until {}", value("name"), moment(&event["expires"], now)),
        },
        "foreign_pod" => format!("pod {} is not counted and not deleted{message}", value("pod")),
        "gang_given_back" => {
            format!("{} of {} ran together{again}", event["running"], event["min"])
        }
        "gang_running" => format!("{} of {} run", event["running"], event["min"]),
        "group_restarted" => format!("attempt {}", event["attempt"]),
        "memory_grown" => format!("{}{message}", value("memory")),
        "missed" => format!("{} events are no longer available", event["count"]),
        "node_avoided" => format!("{}{until}: {}", value("node"), value("reason")),
        "started" if event["version"].is_string() => format!("posse {}", value("version")),
        "server_available" => format!("requests failed since {}", moment(&event["since"], now)),
        "server_unavailable" => {
            let what = value("message");
            format!("{what}; posse tries again, and executors that run are not affected")
        }
        "slot_skipped" => {
            let [slot, skipped, by] = ["slot", "skipped", "held_by"].map(|name| &event[name]);
            format!("slot {slot}: slot {skipped} still has executor {by}")
        }
        "stopped" if event["count"].as_u64() > Some(0) => {
            format!("pods not confirmed deleted: {}", event["count"])
        }
        "task_ended" => {
            let (key, outcome) = (value("key"), value("outcome"));
            format!("task {key} {outcome}, attempts: {}{message}", event["attempts"])
        }
        "target_changed" => format!("target {}", event["target"]),
        "waiting" => {
            let name = value("for");
            let known = Waiting::all().find(|waiting| waiting.as_str() == name);
            format!("for {}{until}{message}", known.map_or(name, wait_text))
        }
        "watch_restarted" => value("cause"),
        _ => executor_facts(event, &message, &until, now),
    }
}

fn executor_facts(event: &Value, message: &str, until: &str, now: Timestamp) -> String {
    let value = |name: &str| fact(&event[name]);
    match string(&event["event"]) {
        "executor_completed" => format!("on {}", value("node")),
        "executor_deleted" => value("cause"),
        "executor_draining" => format!("{}{until}", value("cause")),
        "executor_ending" => {
            let deadline = moment(&event["deadline"], now);
            format!("{}, has until {deadline}{message}", value("reason"))
        }
        "executor_log" if event["message"].is_string() => format!("no log{message}"),
        "executor_log" => match event["log"].as_array().map(Vec::as_slice) {
            Some([.., last]) => fact(last),
            Some([]) => "empty".to_owned(),
            None => "its end is in the events".to_owned(),
        },
        "executor_lost" => {
            let on = given(event, "node", |node| format!(" on {node}"));
            let budget = given(event, "budget", |budget| format!(" (budget {budget})"));
            format!("{}{on}{budget}{message}", value("reason"))
        }
        "executor_running" => format!("on {}, ip {}", value("node"), value("ip")),
        _ => message.trim_start_matches(": ").to_owned(),
    }
}

/// What `text` makes of a field; nothing if it is empty or absent.
fn given(event: &Value, name: &str, text: impl FnOnce(String) -> String) -> String {
    match string(&event[name]) {
        "" => String::new(),
        _ => text(fact(&event[name])),
    }
}

/// What a group waits for, with the word that the status and the documentation have for it.
pub fn wait_text(waiting: Waiting) -> String {
    match (waiting.describe().0, waiting.as_str()) {
        (what, word) if what.ends_with(word) => what.to_owned(),
        (what, word) => format!("{what} ({word})"),
    }
}

/// The text of a value; empty if it has none.
pub fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A value from outside, safe to print on one line.
pub fn fact(value: &Value) -> String {
    sanitize(value.as_str().unwrap_or("?"), FACT_BYTES_MAX)
}

/// The time of day of a timestamp, with the date if it is not today.
pub fn moment(value: &Value, now: Timestamp) -> String {
    value.as_str().map_or_else(|| "?".to_owned(), |at| sanitize(&time_of_day(at, now), 64))
}

/// A time of day, with the date if it is not today. Text that is not a timestamp is returned unchanged.
pub fn time_of_day(moment: &str, now: Timestamp) -> String {
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

    use serde_json::json;

    use super::*;
    use posse_core::model::event::{
        Budget, ClusterEvent, ExecutorEvent, GroupEvent, LossReason, Subject,
    };
    use posse_core::model::ids::ExecutorId;
    use posse_core::model::waiting::{GroupWait, ServerWait, StartWait};

    #[test]
    fn every_event_has_its_facts() {
        let at = "1970-01-01T00:00:09Z";
        for (event, want) in [
            (json!({"event": "started"}), ""),
            (json!({"event": "started", "version": "9.1.0"}), "posse 9.1.0"),
            (json!({"event": "target_changed", "target": 4}), "target 4"),
            (
                json!({"event": "executor_running", "node": "n1", "ip": "10.0.0.1"}),
                "on n1, ip 10.0.0.1",
            ),
            (
                json!({"event": "executor_draining", "cause": "killed", "until": at}),
                "killed until 00:00:09 UTC",
            ),
            (
                json!({"event": "executor_ending", "reason": "evicted", "deadline": at, "message": "a drain"}),
                "evicted, has until 00:00:09 UTC: a drain",
            ),
            (
                json!({"event": "executor_lost", "node": "n1", "reason": "app_error", "budget": "app", "message": "exit code 7"}),
                "app_error on n1 (budget app): exit code 7",
            ),
            (
                json!({"event": "executor_lost", "reason": "deleted", "budget": null, "message": ""}),
                "deleted",
            ),
            (json!({"event": "executor_log", "log": ["a", "b"], "message": null}), "b"),
            (json!({"event": "executor_log", "log": [], "message": "gone"}), "no log: gone"),
            (json!({"event": "executor_deleted", "cause": "stopped"}), "stopped"),
        ] {
            assert_eq!(facts(&event, Timestamp::UNIX_EPOCH), want, "{event}");
        }
    }

    #[test]
    fn events_of_groups_and_of_the_cluster_have_their_facts() {
        let at = "1970-01-01T00:00:09Z";
        for (event, want) in [
            (
                json!({"event": "create_refused", "cause": "quota", "message": "full\u{1b}"}),
                "quota: full\\u{1b}",
            ),
            (
                json!({"event": "waiting", "for": "quota", "until": at, "message": "full"}),
                "for quota until 00:00:09 UTC: full",
            ),
            (
                json!({"event": "waiting", "for": "quota", "until": null, "message": null}),
                "for quota",
            ),
            (
                json!({"event": "server_unavailable", "message": "refused"}),
                "refused; posse tries again, and executors that run are not affected",
            ),
            (
                json!({"event": "server_available", "since": at}),
                "requests failed since 00:00:09 UTC",
            ),
            (json!({"event": "stopped", "count": 0}), ""),
            (json!({"event": "stopped", "count": 2}), "pods not confirmed deleted: 2"),
            (json!({"event": "watch_restarted", "cause": "410"}), "410"),
            (
                json!({"event": "credentials_failed", "name": "hdfs", "message": "no KDC"}),
                "hdfs: no KDC",
            ),
            (
                json!({"event": "credentials_renewed", "name": "hdfs", "expires": at}),
                "hdfs, valid until 00:00:09 UTC",
            ),
            (json!({"event": "missed", "count": 5}), "5 events are no longer available"),
            (
                json!({"event": "budget_exhausted", "budget": "app", "message": "more were lost"}),
                "more were lost",
            ),
            (json!({"event": "memory_grown", "memory": "2Gi"}), "2Gi"),
            (
                json!({"event": "slot_skipped", "slot": 2, "skipped": 0, "held_by": 1}),
                "slot 2: slot 0 still has executor 1",
            ),
            (
                json!({"event": "foreign_pod", "pod": "db", "message": "its owner"}),
                "pod db is not counted and not deleted: its owner",
            ),
            (
                json!({"event": "node_avoided", "node": "n1", "until": at, "reason": "node_lost"}),
                "n1 until 00:00:09 UTC: node_lost",
            ),
            (json!({"event": "of_a_newer_version", "message": "words"}), "words"),
        ] {
            assert_eq!(facts(&event, Timestamp::UNIX_EPOCH), want, "{event}");
        }
    }

    #[test]
    fn an_act_says_who_made_it() {
        for (event, want) in [
            (
                json!({"event": "acted", "call": "scale", "message": "target 8", "by": "socket", "user": 1000, "from": null}),
                "scale: target 8 (by socket, user 1000)",
            ),
            (
                json!({"event": "acted", "call": "delete_group", "message": "", "by": "control_token", "user": null, "from": "127.0.0.1"}),
                "delete_group (by control_token, from 127.0.0.1)",
            ),
        ] {
            assert_eq!(facts(&event, Timestamp::UNIX_EPOCH), want, "{event}");
        }
    }

    #[test]
    fn the_log_has_the_same_words() {
        let epoch = Epoch(SystemTime::UNIX_EPOCH);
        let said = |event: &Event, is_told| log_line(event, is_told, Millis(1_000), epoch);
        let lost = ExecutorEvent::Lost {
            node: Some("n1".to_owned()),
            reason: LossReason::AppError,
            exit_code: Some(7),
            message: "exit code 7".to_owned(),
            budget: Some(Budget::App),
        };
        let subject =
            Subject { group: "g".into(), id: ExecutorId(3), uid: None, pod: "w-3".to_owned() };
        let event = Event::Executor(subject, lost);
        let want = "executor 3 lost: app_error on n1 (budget app): exit code 7: w-3";
        assert_eq!(said(&event, false), want);
        let waits = |waiting| {
            let message = Some("full".to_owned());
            let event = GroupEvent::Waiting { waiting, until: None, message };
            Event::Group("g".into(), event)
        };
        for (waiting, want) in [
            (Waiting::Server(ServerWait::Quota), "group g: waiting for quota: full"),
            (Waiting::Start(StartWait::CrashLoop), "group g: waiting for a backoff: full"),
            (
                Waiting::Group(GroupWait::ScaleDownPending),
                "group g: waiting for the driver to end executors (scale_down_pending): full",
            ),
        ] {
            assert_eq!(said(&waits(waiting), false), want);
        }
        let again = said(&waits(Waiting::Server(ServerWait::Quota)), true);
        assert_eq!(again, "group g: waiting for quota: for the same reason");
        let message = "pods is forbidden".to_owned();
        let outage = said(&Event::Cluster(ClusterEvent::ServerUnavailable { message }), false);
        assert!(outage.starts_with("server unavailable: pods is forbidden; posse"), "{outage}");
    }
}
