//! JSON of events: one object a line.

use std::borrow::Cow;

use serde::ser::{SerializeMap, Serializer};

use crate::core::model::event::{DeleteCause, Event, LossReason, Subject};
use crate::core::model::ids::{ExecutorId, GroupName};
use crate::core::model::task::TaskEnd;
use crate::core::model::text::printable_json;
use crate::core::model::time::Millis;
use crate::core::model::waiting::Waiting;
use crate::wire::time::Epoch;

/// The line of one event, newline included. Absent facts are null.
pub fn line(run: &str, seq: u64, at: Millis, event: &Event, epoch: Epoch) -> String {
    let mut bytes = Vec::with_capacity(LINE_BYTES_USUAL);
    let mut serializer = serde_json::Serializer::new(&mut bytes);
    serializer
        .serialize_map(None)
        .and_then(|mut map| {
            map.serialize_entry("run", run)?;
            map.serialize_entry("seq", &seq)?;
            map.serialize_entry("time", &epoch.rfc3339(at))?;
            map.serialize_entry("event", name(event))?;
            write_facts(&mut map, event, epoch)?;
            map.end()
        })
        .expect("strings and numbers can be written to memory");
    bytes.push(b'\n');
    let line = String::from_utf8(bytes).expect("JSON is written as UTF-8");
    // Lines are often read on a terminal.
    match printable_json(&line) {
        Cow::Borrowed(_) => line,
        Cow::Owned(escaped) => escaped,
    }
}

/// The event's documented name.
fn name(event: &Event) -> &'static str {
    match event {
        Event::BudgetExhausted { .. } => "budget_exhausted",
        Event::CreateRefused { .. } => "create_refused",
        Event::CredentialsFailed { .. } => "credentials_failed",
        Event::CredentialsRenewed { .. } => "credentials_renewed",
        Event::ExecutorCompleted { .. } => "executor_completed",
        Event::ExecutorDeleted { .. } => "executor_deleted",
        Event::ExecutorDraining { .. } => "executor_draining",
        Event::ExecutorLog { .. } => "executor_log",
        Event::ExecutorLost { .. } => "executor_lost",
        Event::ExecutorReady { .. } => "executor_ready",
        Event::ExecutorRequested { .. } => "executor_requested",
        Event::ExecutorRunning { .. } => "executor_running",
        Event::ForeignPod { .. } => "foreign_pod",
        Event::GroupRestarted { .. } => "group_restarted",
        Event::MemoryGrown { .. } => "memory_grown",
        Event::Missed { .. } => "missed",
        Event::NodeAvoided { .. } => "node_avoided",
        Event::ServerAvailable { .. } => "server_available",
        Event::ServerUnavailable { .. } => "server_unavailable",
        Event::SlotSkipped { .. } => "slot_skipped",
        Event::Started => "started",
        Event::Stopped => "stopped",
        Event::Stopping => "stopping",
        Event::TargetChanged { .. } => "target_changed",
        Event::TaskEnded { .. } => "task_ended",
        Event::Waiting { .. } => "waiting",
        Event::WatchRestarted { .. } => "watch_restarted",
    }
}

fn write_facts<M: SerializeMap>(map: &mut M, event: &Event, epoch: Epoch) -> Result<(), M::Error> {
    match event {
        Event::BudgetExhausted { budget } => map.serialize_entry("budget", budget.as_str()),
        Event::CreateRefused { group, cause, message } => {
            write_of_group(map, group, "cause", cause)?;
            map.serialize_entry("message", message)
        }
        Event::CredentialsFailed { name, message, until } => {
            map.serialize_entry("message", message)?;
            write_renewal(map, name, &epoch.rfc3339(*until))
        }
        Event::CredentialsRenewed { name, expires, until } => {
            map.serialize_entry("expires", &expires.map(|at| epoch.rfc3339(at)))?;
            write_renewal(map, name, &epoch.rfc3339(*until))
        }
        Event::ExecutorCompleted { subject, node } => {
            write_subject(map, subject).and_then(|()| map.serialize_entry("node", node))
        }
        Event::ExecutorDeleted { subject, cause } => write_cause(map, subject, *cause),
        Event::ExecutorDraining { subject, cause, until } => {
            write_cause(map, subject, *cause)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))
        }
        Event::ExecutorLog { subject, lines, message } => {
            write_subject(map, subject).and_then(|()| map.serialize_entry("log", lines))?;
            map.serialize_entry("message", message)
        }
        Event::ExecutorLost { subject, node, reason, exit_code, message } => {
            write_subject(map, subject)?;
            write_loss(map, node.as_ref(), *reason, *exit_code, message)
        }
        Event::ExecutorReady { subject } | Event::ExecutorRequested { subject } => {
            write_subject(map, subject)
        }
        Event::ExecutorRunning { subject, node, ip, host_ip, requested_at: _ } => {
            write_subject(map, subject).and_then(|()| map.serialize_entry("node", node))?;
            map.serialize_entry("ip", ip).and_then(|()| map.serialize_entry("host_ip", host_ip))
        }
        Event::ForeignPod { pod, uid, message } => {
            map.serialize_entry("pod", pod)?;
            map.serialize_entry("uid", &uid.to_string())?;
            map.serialize_entry("message", message)
        }
        Event::GroupRestarted { group, attempt } => write_of_group(map, group, "attempt", *attempt),
        Event::MemoryGrown { subject, memory } => {
            write_subject(map, subject).and_then(|()| map.serialize_entry("memory", memory))
        }
        Event::SlotSkipped { subject, slot, skipped, held_by } => {
            write_subject(map, subject).and_then(|()| write_skip(map, *slot, *skipped, *held_by))
        }
        Event::NodeAvoided { node, until, reason } => {
            map.serialize_entry("node", node)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))?;
            map.serialize_entry("reason", reason.as_str())
        }
        Event::Missed { count } => map.serialize_entry("count", count),
        Event::ServerAvailable { since } => map.serialize_entry("since", &epoch.rfc3339(*since)),
        Event::ServerUnavailable { message } => map.serialize_entry("message", message),
        Event::Started | Event::Stopped | Event::Stopping => Ok(()),
        Event::TargetChanged { group, target } => write_of_group(map, group, "target", *target),
        Event::TaskEnded { group, key, executor, attempts, end } => {
            write_of_group(map, group, "key", &**key)?;
            write_task_end(map, end, *attempts, *executor)
        }
        Event::Waiting { group, waiting, until, message } => {
            write_wait(map, (group, *waiting), until.map(|at| epoch.rfc3339(at)), message.as_ref())
        }
        Event::WatchRestarted { cause, .. } => map.serialize_entry("cause", cause),
    }
}

fn write_cause<M: SerializeMap>(
    map: &mut M,
    subject: &Subject,
    cause: DeleteCause,
) -> Result<(), M::Error> {
    write_subject(map, subject)?;
    map.serialize_entry("cause", cause.as_str())
}

fn write_skip<M: SerializeMap>(
    map: &mut M,
    slot: u32,
    skipped: u32,
    held_by: ExecutorId,
) -> Result<(), M::Error> {
    map.serialize_entry("slot", &slot)?;
    map.serialize_entry("skipped", &skipped)?;
    map.serialize_entry("held_by", &held_by.0)
}

fn write_of_group<M: SerializeMap>(
    map: &mut M,
    group: &GroupName,
    key: &str,
    value: impl serde::Serialize,
) -> Result<(), M::Error> {
    map.serialize_entry("group", group.as_str())?;
    map.serialize_entry(key, &value)
}

fn write_renewal<M: SerializeMap>(map: &mut M, name: &str, until: &str) -> Result<(), M::Error> {
    map.serialize_entry("name", name)?;
    map.serialize_entry("until", until)
}

fn write_wait<M: SerializeMap>(
    map: &mut M,
    (group, waiting): (&GroupName, Waiting),
    until: Option<String>,
    message: Option<&String>,
) -> Result<(), M::Error> {
    map.serialize_entry("group", group.as_str())?;
    map.serialize_entry("for", waiting.as_str())?;
    map.serialize_entry("until", &until)?;
    map.serialize_entry("message", &message)
}

fn write_loss<M: SerializeMap>(
    map: &mut M,
    node: Option<&String>,
    reason: LossReason,
    exit_code: Option<i32>,
    message: &str,
) -> Result<(), M::Error> {
    map.serialize_entry("node", &node)?;
    map.serialize_entry("reason", reason.as_str())?;
    map.serialize_entry("caused_by_app", &reason.caused_by_app())?;
    map.serialize_entry("exit_code", &exit_code)?;
    map.serialize_entry("message", message)?;
    map.serialize_entry("budget", &reason.budget().map(|budget| budget.as_str()))
}

fn write_task_end<M: SerializeMap>(
    map: &mut M,
    end: &TaskEnd,
    attempts: u32,
    executor: Option<ExecutorId>,
) -> Result<(), M::Error> {
    map.serialize_entry("outcome", end.outcome.as_str())?;
    map.serialize_entry("exit_code", &end.exit_code)?;
    map.serialize_entry("reason", &end.reason)?;
    map.serialize_entry("attempts", &attempts)?;
    map.serialize_entry("executor", &executor.map(|id| id.0))
}

fn write_subject<M: SerializeMap>(map: &mut M, subject: &Subject) -> Result<(), M::Error> {
    map.serialize_entry("group", subject.group.as_str())?;
    map.serialize_entry("executor", &subject.id.0)?;
    map.serialize_entry("uid", &subject.uid.as_ref().map(ToString::to_string))?;
    map.serialize_entry("pod", &subject.pod)
}

/// Initial buffer size: most lines fit.
const LINE_BYTES_USUAL: usize = 320;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::core::model::event::{Budget, DeleteCause, RestartKind};
    use crate::core::model::ids::{ExecutorId, Uid};
    use crate::core::model::task::TaskOutcome;

    #[track_caller]
    fn check(event: Event, facts: &str) {
        let epoch = Epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        let got = line("k3f9", 7, Millis(1500), &event, epoch);
        let head = r#"{"run":"k3f9","seq":7,"time":"2026-01-01T00:00:01.500Z","event":"#;
        assert_eq!(got, format!("{head}{facts}}}\n"));
    }

    #[test]
    fn an_outage_of_the_server_has_its_documented_form() {
        check(
            Event::ServerAvailable { since: Millis(1_000) },
            r#""server_available","since":"2026-01-01T00:00:01.000Z""#,
        );
        check(
            Event::ServerUnavailable { message: "refused".into() },
            r#""server_unavailable","message":"refused""#,
        );
    }

    #[test]
    fn every_event_has_its_documented_form() {
        let group = GroupName::from("default");
        let nameless = Subject {
            group: group.clone(),
            id: ExecutorId(3),
            uid: None,
            pod: "w-a-exec-3".into(),
        };
        let subject = Subject { uid: Some(Uid::new("u1")), ..nameless.clone() };
        let who = r#""group":"default","executor":3,"uid":"u1","pod":"w-a-exec-3""#;

        check(Event::Started, r#""started""#);
        check(Event::Stopping, r#""stopping""#);
        check(Event::Stopped, r#""stopped""#);
        check(Event::Missed { count: 5 }, r#""missed","count":5"#);
        check(
            Event::BudgetExhausted { budget: Budget::App },
            r#""budget_exhausted","budget":"app""#,
        );
        check(
            Event::GroupRestarted { group: group.clone(), attempt: 2 },
            r#""group_restarted","group":"default","attempt":2"#,
        );
        check(
            Event::TargetChanged { group, target: 4 },
            r#""target_changed","group":"default","target":4"#,
        );
        check(
            Event::ExecutorRequested { subject: nameless },
            r#""executor_requested","group":"default","executor":3,"uid":null,"pod":"w-a-exec-3""#,
        );
        check(
            Event::ExecutorRunning {
                subject: subject.clone(),
                node: Some("n1".into()),
                ip: Some([10, 0, 0, 1].into()),
                host_ip: Some([192, 168, 0, 1].into()),
                requested_at: None,
            },
            &format!(
                r#""executor_running",{who},"node":"n1","ip":"10.0.0.1","host_ip":"192.168.0.1""#
            ),
        );
        check(
            Event::ExecutorLost {
                subject: subject.clone(),
                node: None,
                reason: LossReason::OomKilled,
                exit_code: Some(137),
                message: "a \"b\"\n".into(),
            },
            &format!(
                r#""executor_lost",{who},"node":null,"reason":"oom_killed","caused_by_app":true,"exit_code":137,"message":"a \"b\"\n","budget":"app""#
            ),
        );
        check(
            Event::ExecutorCompleted { subject: subject.clone(), node: Some("n1".into()) },
            &format!(r#""executor_completed",{who},"node":"n1""#),
        );
        check(
            Event::ExecutorDeleted { subject, cause: DeleteCause::ScaledDown },
            &format!(r#""executor_deleted",{who},"cause":"scaled_down""#),
        );
        check(
            Event::ForeignPod { pod: "db".into(), uid: Uid::new("u9"), message: "why".into() },
            r#""foreign_pod","pod":"db","uid":"u9","message":"why""#,
        );
        check(
            Event::WatchRestarted { kind: RestartKind::Expired, cause: "410".into() },
            r#""watch_restarted","cause":"410""#,
        );
    }

    #[test]
    fn the_end_of_a_task_has_its_documented_form() {
        let end =
            TaskEnd { outcome: TaskOutcome::Failed, exit_code: Some(3), reason: Some("evicted") };
        check(
            Event::TaskEnded {
                group: GroupName::from("default"),
                key: "t-1".into(),
                executor: Some(ExecutorId(3)),
                attempts: 2,
                end,
            },
            r#""task_ended","group":"default","key":"t-1","outcome":"failed","exit_code":3,"reason":"evicted","attempts":2,"executor":3"#,
        );
    }

    #[test]
    fn refusals_and_waits_have_their_documented_form() {
        let group = GroupName::from("default");
        check(
            Event::CreateRefused { group: group.clone(), cause: "quota", message: "no".into() },
            r#""create_refused","group":"default","cause":"quota","message":"no""#,
        );
        check(
            Event::Waiting {
                group: group.clone(),
                waiting: Waiting::Quota,
                until: Some(Millis(0)),
                message: Some("full".into()),
            },
            r#""waiting","group":"default","for":"quota","until":"2026-01-01T00:00:00.000Z","message":"full""#,
        );
        check(
            Event::Waiting { group, waiting: Waiting::FirstList, until: None, message: None },
            r#""waiting","group":"default","for":"first_list","until":null,"message":null"#,
        );
    }

    #[test]
    fn events_about_credentials() {
        let (name, until) = ("hdfs".to_owned(), Millis(1_000));
        check(
            Event::CredentialsRenewed { name: name.clone(), expires: Some(Millis(2_000)), until },
            r#""credentials_renewed","expires":"2026-01-01T00:00:02.000Z","name":"hdfs","until":"2026-01-01T00:00:01.000Z""#,
        );
        check(
            Event::CredentialsFailed { name, message: "no KDC".into(), until },
            r#""credentials_failed","message":"no KDC","name":"hdfs","until":"2026-01-01T00:00:01.000Z""#,
        );
    }

    #[test]
    fn events_about_memory_and_nodes() {
        let group = GroupName::from("default");
        let subject = Subject { group, id: ExecutorId(3), uid: None, pod: "w-a-exec-3".into() };
        let who = r#""group":"default","executor":3,"uid":null,"pod":"w-a-exec-3""#;
        check(
            Event::MemoryGrown { subject: subject.clone(), memory: "1280Mi".into() },
            &format!(r#""memory_grown",{who},"memory":"1280Mi""#),
        );
        check(
            Event::SlotSkipped { subject, slot: 2, skipped: 0, held_by: ExecutorId(1) },
            &format!(r#""slot_skipped",{who},"slot":2,"skipped":0,"held_by":1"#),
        );
        check(
            Event::NodeAvoided {
                node: "n1".into(),
                until: Millis(1_000),
                reason: LossReason::NodeLost,
            },
            r#""node_avoided","node":"n1","until":"2026-01-01T00:00:01.000Z","reason":"node_lost""#,
        );
    }

    #[test]
    fn the_event_of_a_draining_executor() {
        let subject = Subject {
            group: GroupName::from("g"),
            id: ExecutorId(3),
            uid: Some(Uid::new("u1")),
            pod: "w-a-exec-3".into(),
        };
        let (cause, until) = (DeleteCause::Killed, Millis(30_000));
        check(
            Event::ExecutorDraining { subject, cause, until },
            r#""executor_draining","group":"g","executor":3,"uid":"u1","pod":"w-a-exec-3","cause":"killed","until":"2026-01-01T00:00:30.000Z""#,
        );
    }

    #[test]
    fn the_event_with_the_end_of_a_log() {
        let subject = Subject {
            group: GroupName::from("default"),
            id: ExecutorId(3),
            uid: Some(Uid::new("u1")),
            pod: "w-a-exec-3".into(),
        };
        let who = r#""group":"default","executor":3,"uid":"u1","pod":"w-a-exec-3""#;
        check(
            Event::ExecutorLog {
                subject: subject.clone(),
                lines: vec!["a".into(), "\"b\"".into()],
                message: None,
            },
            &format!(r#""executor_log",{who},"log":["a","\"b\""],"message":null"#),
        );
        check(
            Event::ExecutorLog { subject, lines: Vec::new(), message: Some("x".into()) },
            &format!(r#""executor_log",{who},"log":[],"message":"x""#),
        );
    }
}
