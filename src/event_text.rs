//! Events of a run as text for people.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;

use posse_base::text::sanitize;
use posse_wire::control::event::ACTED;

/// The longest value on a line, in bytes.
const FACT_BYTES_MAX: usize = 2_048;

/// What an event says besides its name, its executor and its group. The run may be of a newer version
/// with events that this version does not know: their message is shown.
pub(super) fn facts(event: &Value, now: Timestamp) -> String {
    let value = |name: &str| fact(&event[name]);
    let message = || match string(&event["message"]) {
        "" => String::new(),
        _ => format!(": {}", value("message")),
    };
    let until = || match string(&event["until"]) {
        "" => String::new(),
        _ => format!(" until {}", moment(&event["until"], now)),
    };
    match string(&event["event"]) {
        ACTED => {
            let user =
                event["user"].as_u64().map_or_else(String::new, |uid| format!(", user {uid}"));
            let from = match string(&event["from"]) {
                "" => String::new(),
                _ => format!(", from {}", value("from")),
            };
            format!("{}{} (by {}{user}{from})", value("call"), message(), value("by"))
        }
        "budget_exhausted" => format!("budget {}", value("budget")),
        "create_refused" => format!("{}{}", value("cause"), message()),
        "credentials_failed" => format!("{}{}", value("name"), message()),
        "credentials_renewed" => match string(&event["expires"]) {
            "" => value("name"),
            _ => format!("{}, valid until {}", value("name"), moment(&event["expires"], now)),
        },
        "executor_deleted" | "watch_restarted" => value("cause"),
        "executor_draining" => format!("{}{}", value("cause"), until()),
        "executor_ending" => {
            let deadline = moment(&event["deadline"], now);
            format!("{}, has until {deadline}{}", value("reason"), message())
        }
        "executor_log" if event["message"].is_string() => format!("no log{}", message()),
        "executor_log" => match event["log"].as_array().map_or(&[][..], Vec::as_slice) {
            [] => "empty".to_owned(),
            [.., last] => fact(last),
        },
        "executor_lost" => {
            let budget = event["budget"].as_str();
            let budget = budget.map_or_else(String::new, |budget| format!(" (budget {budget})"));
            format!("{}{budget}{}", value("reason"), message())
        }
        "executor_completed" => format!("on {}", value("node")),
        "executor_running" => format!("on {}, ip {}", value("node"), value("ip")),
        "foreign_pod" => format!("pod {}{}", value("pod"), message()),
        "gang_given_back" => {
            format!("{} of {} ran{}", event["running"], event["min"], until())
        }
        "gang_running" => format!("{} of {} run", event["running"], event["min"]),
        "group_restarted" => format!("attempt {}", event["attempt"]),
        "memory_grown" => value("memory"),
        "missed" => format!("{} events are no longer available", event["count"]),
        "node_avoided" => format!("{}{}: {}", value("node"), until(), value("reason")),
        "started" if event["version"].is_string() => format!("posse {}", value("version")),
        "server_available" => format!("it was silent since {}", moment(&event["since"], now)),
        "slot_skipped" => {
            format!(
                "slot {}: slot {} still has executor {}",
                event["slot"], event["skipped"], event["held_by"]
            )
        }
        "task_ended" => {
            let (key, outcome) = (value("key"), value("outcome"));
            format!("task {key} {outcome}, attempts: {}{}", event["attempts"], message())
        }
        "target_changed" => format!("target {}", event["target"]),
        "waiting" => format!("for {}{}{}", value("for"), until(), message()),
        _ => message().trim_start_matches(": ").to_owned(),
    }
}

pub(super) fn string(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// A value from outside, safe to print on one line.
pub(super) fn fact(value: &Value) -> String {
    sanitize(value.as_str().unwrap_or("?"), FACT_BYTES_MAX)
}

/// The time of day of a timestamp, with the date if it is not today.
pub(super) fn moment(value: &Value, now: Timestamp) -> String {
    value.as_str().map_or_else(|| "?".to_owned(), |at| sanitize(&time_of_day(at, now), 64))
}

/// A time of day, with the date if it is not today. Text that is not a timestamp is returned unchanged.
pub(super) fn time_of_day(moment: &str, now: Timestamp) -> String {
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
    use serde_json::json;

    use super::*;

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
                json!({"event": "executor_lost", "reason": "app_error", "budget": "app", "message": "exit code 7"}),
                "app_error (budget app): exit code 7",
            ),
            (
                json!({"event": "executor_lost", "reason": "deleted", "budget": null, "message": ""}),
                "deleted",
            ),
            (json!({"event": "executor_log", "log": ["a", "b"], "message": null}), "b"),
            (json!({"event": "executor_log", "log": [], "message": "gone"}), "no log: gone"),
            (json!({"event": "executor_deleted", "cause": "stopped"}), "stopped"),
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
            (json!({"event": "server_unavailable", "message": "refused"}), "refused"),
            (json!({"event": "server_available", "since": at}), "it was silent since 00:00:09 UTC"),
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
            (json!({"event": "budget_exhausted", "budget": "app"}), "budget app"),
            (json!({"event": "memory_grown", "memory": "2Gi"}), "2Gi"),
            (
                json!({"event": "slot_skipped", "slot": 2, "skipped": 0, "held_by": 1}),
                "slot 2: slot 0 still has executor 1",
            ),
            (
                json!({"event": "foreign_pod", "pod": "db", "message": "its owner"}),
                "pod db: its owner",
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
}
