//! JSON of events: one object a line.

use std::borrow::Cow;

use serde::ser::{SerializeMap, Serializer};

use crate::time::Epoch;
use posse_base::text::printable_json;
use posse_base::time::Millis;
use posse_core::model::act::Act;
use posse_core::model::event::{
    Budget, ClusterEvent, Event, ExecutorEvent, Exhaustion, GroupEvent, RunEvent,
};

/// Why a failure budget ends the run.
pub fn describe_exhaustion(budget: Budget, why: &Exhaustion) -> String {
    let budget = budget.as_str();
    match why {
        Exhaustion::Losses => {
            format!("more executors were lost than the failure budget `{budget}` allows")
        }
        Exhaustion::CrashLoop { group, n_tries } => format!(
            "group {group} cannot run: its last {n_tries} executors, one after the other, failed \
             within a minute (failures.{budget}: auto)"
        ),
        Exhaustion::NeverStarted { group, ms } => {
            let minutes = ms / 60_000;
            format!(
                "group {group} cannot start: no executor of it has run within {minutes} minutes \
                 (failures.{budget}: auto)"
            )
        }
    }
}

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
        Event::Run(event) => match event {
            RunEvent::Acted(_) => ACTED,
            RunEvent::Adopted { .. } => "adopted",
            RunEvent::BudgetExhausted { .. } => "budget_exhausted",
            RunEvent::CredentialsFailed { .. } => "credentials_failed",
            RunEvent::CredentialsRenewed { .. } => "credentials_renewed",
            RunEvent::Missed { .. } => "missed",
            RunEvent::Started => "started",
            RunEvent::Stopped { .. } => "stopped",
            RunEvent::Stopping => "stopping",
            RunEvent::TookOver(_) => "took_over",
        },
        Event::Cluster(event) => match event {
            ClusterEvent::ForeignPod { .. } => "foreign_pod",
            ClusterEvent::NodeAvoided { .. } => "node_avoided",
            ClusterEvent::ServerAvailable { .. } => "server_available",
            ClusterEvent::ServerUnavailable { .. } => "server_unavailable",
            ClusterEvent::WatchRestarted { .. } => "watch_restarted",
        },
        Event::Group(_, event) => match event {
            GroupEvent::CreateRefused { .. } => "create_refused",
            GroupEvent::GangGivenBack { .. } => "gang_given_back",
            GroupEvent::GangRunning { .. } => "gang_running",
            GroupEvent::Restarted { .. } => "group_restarted",
            GroupEvent::TargetChanged { .. } => "target_changed",
            GroupEvent::TaskEnded { .. } => "task_ended",
            GroupEvent::Unprotected { .. } => "unprotected",
            GroupEvent::Waiting { .. } => "waiting",
        },
        Event::Executor(_, event) => match event {
            ExecutorEvent::Completed { .. } => "executor_completed",
            ExecutorEvent::Deleted { .. } => "executor_deleted",
            ExecutorEvent::Draining { .. } => "executor_draining",
            ExecutorEvent::Ending { .. } => "executor_ending",
            ExecutorEvent::Log { .. } => "executor_log",
            ExecutorEvent::Lost { .. } => "executor_lost",
            ExecutorEvent::MemoryGrown { .. } => "memory_grown",
            ExecutorEvent::Ready => "executor_ready",
            ExecutorEvent::Requested => "executor_requested",
            ExecutorEvent::Running { .. } => "executor_running",
            ExecutorEvent::SlotSkipped { .. } => "slot_skipped",
        },
    }
}

fn write_facts<M: SerializeMap>(map: &mut M, event: &Event, epoch: Epoch) -> Result<(), M::Error> {
    match event {
        Event::Run(event) => write_run(map, event, epoch),
        Event::Cluster(event) => write_cluster(map, event, epoch),
        Event::Group(group, event) => {
            map.serialize_entry("group", group.as_str())?;
            write_group(map, event, epoch)
        }
        Event::Executor(subject, event) => {
            map.serialize_entry("group", subject.group.as_str())?;
            map.serialize_entry("executor", &subject.id.0)?;
            map.serialize_entry("uid", &subject.uid.as_ref().map(ToString::to_string))?;
            map.serialize_entry("pod", &subject.pod)?;
            write_executor(map, event, epoch)
        }
    }
}

fn write_run<M: SerializeMap>(map: &mut M, event: &RunEvent, epoch: Epoch) -> Result<(), M::Error> {
    match event {
        RunEvent::Acted(Act { by, call, group, message }) => {
            map.serialize_entry("call", call.as_str())?;
            if let Some(group) = group {
                map.serialize_entry("group", group.as_str())?;
            }
            map.serialize_entry("message", message)?;
            map.serialize_entry("by", by.key.as_str())?;
            map.serialize_entry("user", &by.user)?;
            map.serialize_entry("from", &by.from)
        }
        RunEvent::TookOver(takeover) => {
            map.serialize_entry("from", &takeover.pod.as_ref().map(|pod| &*pod.name))?;
            map.serialize_entry("cause", takeover.cause.as_str())?;
            map.serialize_entry("seconds", &takeover.seconds())
        }
        RunEvent::Adopted { executors, count } => {
            let ids: Vec<u64> = executors.iter().map(|id| id.0).collect();
            map.serialize_entry("executors", &ids)?;
            map.serialize_entry("count", count)
        }
        RunEvent::BudgetExhausted { budget, why } => {
            map.serialize_entry("budget", budget.as_str())?;
            map.serialize_entry("message", &describe_exhaustion(*budget, why))
        }
        RunEvent::CredentialsFailed { name, message, until } => {
            map.serialize_entry("message", message)?;
            map.serialize_entry("name", name)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))
        }
        RunEvent::CredentialsRenewed { name, expires, until } => {
            map.serialize_entry("expires", &expires.map(|at| epoch.rfc3339(at)))?;
            map.serialize_entry("name", name)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))
        }
        RunEvent::Missed { count } => map.serialize_entry("count", count),
        RunEvent::Started => {
            map.serialize_entry("version", env!("CARGO_PKG_VERSION"))?;
            map.serialize_entry("format", &FORMAT)
        }
        RunEvent::Stopped { count } => map.serialize_entry("count", count),
        RunEvent::Stopping => Ok(()),
    }
}

fn write_cluster<M: SerializeMap>(
    map: &mut M,
    event: &ClusterEvent,
    epoch: Epoch,
) -> Result<(), M::Error> {
    match event {
        ClusterEvent::ForeignPod { pod, uid, message } => {
            map.serialize_entry("pod", pod)?;
            map.serialize_entry("uid", &uid.to_string())?;
            map.serialize_entry("message", message)
        }
        ClusterEvent::NodeAvoided { node, until, reason } => {
            map.serialize_entry("node", node)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))?;
            map.serialize_entry("reason", reason.as_str())
        }
        ClusterEvent::ServerAvailable { since } => {
            map.serialize_entry("since", &epoch.rfc3339(*since))
        }
        ClusterEvent::ServerUnavailable { message } => map.serialize_entry("message", message),
        ClusterEvent::WatchRestarted { kind: _, cause } => map.serialize_entry("cause", cause),
    }
}

fn write_group<M: SerializeMap>(
    map: &mut M,
    event: &GroupEvent,
    epoch: Epoch,
) -> Result<(), M::Error> {
    match event {
        GroupEvent::CreateRefused { cause, message } => {
            map.serialize_entry("cause", cause)?;
            map.serialize_entry("message", message)
        }
        GroupEvent::GangGivenBack { running, min, until } => {
            map.serialize_entry("running", running)?;
            map.serialize_entry("min", min)?;
            map.serialize_entry("until", &epoch.rfc3339(*until))
        }
        GroupEvent::GangRunning { running, min } => {
            map.serialize_entry("running", running)?;
            map.serialize_entry("min", min)
        }
        GroupEvent::Unprotected { executor, message } => {
            map.serialize_entry("executor", &executor.map(|id| id.0))?;
            map.serialize_entry("message", message)
        }
        GroupEvent::Restarted { attempt } => map.serialize_entry("attempt", attempt),
        GroupEvent::TargetChanged { target } => map.serialize_entry("target", target),
        GroupEvent::TaskEnded { key, executor, attempts, end } => {
            map.serialize_entry("key", &**key)?;
            map.serialize_entry("outcome", end.outcome.as_str())?;
            map.serialize_entry("exit_code", &end.exit_code)?;
            map.serialize_entry("reason", &end.reason)?;
            map.serialize_entry("message", &end.message.as_deref())?;
            map.serialize_entry("attempts", attempts)?;
            map.serialize_entry("executor", &executor.map(|id| id.0))
        }
        GroupEvent::Waiting { waiting, until, message } => {
            map.serialize_entry("for", waiting.as_str())?;
            map.serialize_entry("until", &until.map(|at| epoch.rfc3339(at)))?;
            map.serialize_entry("message", message)
        }
    }
}

fn write_executor<M: SerializeMap>(
    map: &mut M,
    event: &ExecutorEvent,
    epoch: Epoch,
) -> Result<(), M::Error> {
    match event {
        ExecutorEvent::Completed { node } => map.serialize_entry("node", node),
        ExecutorEvent::Deleted { cause } => map.serialize_entry("cause", cause.as_str()),
        ExecutorEvent::Draining { cause, until } => {
            map.serialize_entry("cause", cause.as_str())?;
            map.serialize_entry("until", &epoch.rfc3339(*until))
        }
        ExecutorEvent::Ending { node, reason, message, deadline } => {
            map.serialize_entry("node", node)?;
            map.serialize_entry("reason", reason.as_str())?;
            map.serialize_entry("message", message)?;
            map.serialize_entry("deadline", &epoch.rfc3339(*deadline))
        }
        ExecutorEvent::Log { lines, message } => {
            map.serialize_entry("log", lines)?;
            map.serialize_entry("message", message)
        }
        ExecutorEvent::Lost { node, reason, budget, exit_code, message } => {
            map.serialize_entry("node", node)?;
            map.serialize_entry("reason", reason.as_str())?;
            map.serialize_entry("caused_by_app", &budget.is_some_and(Budget::is_of_app))?;
            map.serialize_entry("exit_code", exit_code)?;
            map.serialize_entry("message", message)?;
            map.serialize_entry("budget", &budget.map(Budget::as_str))
        }
        ExecutorEvent::MemoryGrown { memory, message } => {
            map.serialize_entry("memory", memory)?;
            map.serialize_entry("message", message)
        }
        ExecutorEvent::Ready | ExecutorEvent::Requested => Ok(()),
        ExecutorEvent::Running { node, ip, host_ip, requested_at: _ } => {
            map.serialize_entry("node", node)?;
            map.serialize_entry("ip", ip)?;
            map.serialize_entry("host_ip", host_ip)
        }
        ExecutorEvent::SlotSkipped { slot, skipped, held_by } => {
            map.serialize_entry("slot", slot)?;
            map.serialize_entry("skipped", skipped)?;
            map.serialize_entry("held_by", &held_by.0)
        }
    }
}

/// The version of the lines: a number that grows if a line of an older reader would be misread.
const FORMAT: u32 = 1;

/// The name of the event about a call that has changed the run.
pub const ACTED: &str = "acted";

/// Initial buffer size: most lines fit.
const LINE_BYTES_USUAL: usize = 320;

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use posse_core::model::act::{Call, Caller, Key};
    use posse_core::model::event::{DeleteCause, LossReason, RestartKind, Subject};
    use posse_core::model::ids::{ExecutorId, GroupName, Uid};
    use posse_core::model::owner::{Owner, OwnerKind};
    use posse_core::model::takeover::{Takeover, TakeoverCause};
    use posse_core::model::task::{TaskEnd, TaskOutcome};
    use posse_core::model::waiting::{RunWait, ServerWait, Waiting};

    #[track_caller]
    fn check(event: Event, facts: &str) {
        let epoch = Epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600));
        let got = line("k3f9", 7, Millis(1500), &event, epoch);
        let head = r#"{"run":"k3f9","seq":7,"time":"2026-01-01T00:00:01.500Z","event":"#;
        assert_eq!(got, format!("{head}{facts}}}\n"));
    }

    #[test]
    fn an_act_says_who_from_where_and_what() {
        let act = |call, group, message: &str, by| {
            let message = message.to_owned();
            Event::Run(RunEvent::Acted(Act { by, call, group, message }))
        };
        let by = Caller { key: Key::Socket, user: Some(1000), from: None };
        check(
            act(Call::Scale, Some(GroupName::from("big")), "target 8", by),
            r#""acted","call":"scale","group":"big","message":"target 8","by":"socket","user":1000,"from":null"#,
        );
        let from = Some([127, 0, 0, 1].into());
        check(
            act(
                Call::Kill,
                None,
                "executor 1",
                Caller { key: Key::ControlToken, user: None, from },
            ),
            r#""acted","call":"kill","message":"executor 1","by":"control_token","user":null,"from":"127.0.0.1""#,
        );
    }

    #[test]
    fn events_of_the_server_and_its_nodes_have_their_documented_form() {
        check(
            Event::Cluster(ClusterEvent::ServerAvailable { since: Millis(1_000) }),
            r#""server_available","since":"2026-01-01T00:00:01.000Z""#,
        );
        check(
            Event::Cluster(ClusterEvent::ServerUnavailable { message: "refused".into() }),
            r#""server_unavailable","message":"refused""#,
        );
        let (until, reason) = (Millis(1_000), LossReason::NodeLost);
        check(
            Event::Cluster(ClusterEvent::NodeAvoided { node: "n1".into(), until, reason }),
            r#""node_avoided","node":"n1","until":"2026-01-01T00:00:01.000Z","reason":"node_lost""#,
        );
    }

    #[test]
    fn events_of_runs_groups_and_pods_have_their_documented_form() {
        let group = GroupName::from("default");
        let version = env!("CARGO_PKG_VERSION");
        let started = format!(r#""started","version":"{version}","format":1"#);
        check(Event::Run(RunEvent::Started), &started);
        check(Event::Run(RunEvent::Stopping), r#""stopping""#);
        check(Event::Run(RunEvent::Stopped { count: 2 }), r#""stopped","count":2"#);
        check(Event::Run(RunEvent::Missed { count: 5 }), r#""missed","count":5"#);
        check(
            Event::Run(RunEvent::BudgetExhausted { budget: Budget::App, why: Exhaustion::Losses }),
            r#""budget_exhausted","budget":"app","message":"more executors were lost than the failure budget `app` allows""#,
        );
        check(
            Event::Group(group.clone(), GroupEvent::Restarted { attempt: 2 }),
            r#""group_restarted","group":"default","attempt":2"#,
        );
        check(
            Event::Group(group.clone(), GroupEvent::GangRunning { running: 4, min: 3 }),
            r#""gang_running","group":"default","running":4,"min":3"#,
        );
        let until = Millis(1_000);
        check(
            Event::Group(group.clone(), GroupEvent::GangGivenBack { running: 2, min: 3, until }),
            r#""gang_given_back","group":"default","running":2,"min":3,"until":"2026-01-01T00:00:01.000Z""#,
        );
        let message = "why".to_owned();
        check(
            Event::Group(
                group.clone(),
                GroupEvent::Unprotected { executor: Some(ExecutorId(3)), message },
            ),
            r#""unprotected","group":"default","executor":3,"message":"why""#,
        );
        check(
            Event::Group(group, GroupEvent::TargetChanged { target: 4 }),
            r#""target_changed","group":"default","target":4"#,
        );
        let pod = Owner { kind: OwnerKind::Pod, name: "d-1".into(), uid: Uid::new("u1") };
        let (pod, cause) = (Some(pod), TakeoverCause::Silent);
        check(
            Event::Run(RunEvent::TookOver(Takeover { pod, cause, silent_ms: 15_900 })),
            r#""took_over","from":"d-1","cause":"silent","seconds":15.9"#,
        );
        check(
            Event::Run(RunEvent::Adopted {
                executors: vec![ExecutorId(3), ExecutorId(1_001)],
                count: 2,
            }),
            r#""adopted","executors":[3,1001],"count":2"#,
        );
        check(
            Event::Cluster(ClusterEvent::ForeignPod {
                pod: "db".into(),
                uid: Uid::new("u9"),
                message: "why".into(),
            }),
            r#""foreign_pod","pod":"db","uid":"u9","message":"why""#,
        );
        check(
            Event::Cluster(ClusterEvent::WatchRestarted {
                kind: RestartKind::Expired,
                cause: "410".into(),
            }),
            r#""watch_restarted","cause":"410""#,
        );
    }

    /// An event of an executor that has a uid: its name, and the facts of its own.
    #[track_caller]
    fn check_executor(event: ExecutorEvent, name: &str, facts: &str) {
        let subject = Subject {
            group: GroupName::from("default"),
            id: ExecutorId(3),
            uid: Some(Uid::new("u1")),
            pod: "w-a-exec-3".into(),
        };
        let who = r#""group":"default","executor":3,"uid":"u1","pod":"w-a-exec-3""#;
        check(Event::Executor(subject, event), &format!(r#""{name}",{who}{facts}"#));
    }

    #[test]
    fn the_events_of_an_executor_have_their_documented_form() {
        let (group, pod) = (GroupName::from("default"), "w-a-exec-3".into());
        let nameless = Subject { group, id: ExecutorId(3), uid: None, pod };
        check(
            Event::Executor(nameless, ExecutorEvent::Requested),
            r#""executor_requested","group":"default","executor":3,"uid":null,"pod":"w-a-exec-3""#,
        );
        check_executor(
            ExecutorEvent::Running {
                node: Some("n1".into()),
                ip: Some([10, 0, 0, 1].into()),
                host_ip: Some([192, 168, 0, 1].into()),
                requested_at: None,
            },
            "executor_running",
            r#","node":"n1","ip":"10.0.0.1","host_ip":"192.168.0.1""#,
        );
        check_executor(
            ExecutorEvent::Lost {
                node: None,
                reason: LossReason::OomKilled,
                budget: Some(Budget::App),
                exit_code: Some(137),
                message: "a \"b\"\n".into(),
            },
            "executor_lost",
            r#","node":null,"reason":"oom_killed","caused_by_app":true,"exit_code":137,"message":"a \"b\"\n","budget":"app""#,
        );
        let node = Some("n1".to_owned());
        let completed = ExecutorEvent::Completed { node: node.clone() };
        check_executor(completed, "executor_completed", r#","node":"n1""#);
        let deleted = ExecutorEvent::Deleted { cause: DeleteCause::ScaledDown };
        check_executor(deleted, "executor_deleted", r#","cause":"scaled_down""#);
        let (deadline, message) = (Millis(30_000), "a drain".to_owned());
        check_executor(
            ExecutorEvent::Ending { node, reason: LossReason::Evicted, message, deadline },
            "executor_ending",
            r#","node":"n1","reason":"evicted","message":"a drain","deadline":"2026-01-01T00:00:30.000Z""#,
        );
        check_executor(
            ExecutorEvent::Draining { cause: DeleteCause::Killed, until: deadline },
            "executor_draining",
            r#","cause":"killed","until":"2026-01-01T00:00:30.000Z""#,
        );
    }

    #[test]
    fn what_executors_say_and_get_has_its_documented_form() {
        let log = ExecutorEvent::Log { lines: vec!["a".into(), "\"b\"".into()], message: None };
        check_executor(log, "executor_log", r#","log":["a","\"b\""],"message":null"#);
        let no_log = ExecutorEvent::Log { lines: Vec::new(), message: Some("x".into()) };
        check_executor(no_log, "executor_log", r#","log":[],"message":"x""#);
        let grown = ExecutorEvent::MemoryGrown { memory: "1280Mi".into(), message: None };
        check_executor(grown, "memory_grown", r#","memory":"1280Mi","message":null"#);
        let skipped = ExecutorEvent::SlotSkipped { slot: 2, skipped: 0, held_by: ExecutorId(1) };
        check_executor(skipped, "slot_skipped", r#","slot":2,"skipped":0,"held_by":1"#);
    }

    #[test]
    fn the_end_of_a_task_has_its_documented_form() {
        let end = TaskEnd {
            outcome: TaskOutcome::Skipped,
            exit_code: Some(3),
            reason: Some("after"),
            message: Some("task a failed".into()),
        };
        check(
            Event::Group(
                GroupName::from("default"),
                GroupEvent::TaskEnded {
                    key: "t-1".into(),
                    executor: Some(ExecutorId(3)),
                    attempts: 2,
                    end,
                },
            ),
            r#""task_ended","group":"default","key":"t-1","outcome":"skipped","exit_code":3,"reason":"after","message":"task a failed","attempts":2,"executor":3"#,
        );
    }

    #[test]
    fn refusals_and_waits_have_their_documented_form() {
        let group = GroupName::from("default");
        check(
            Event::Group(
                group.clone(),
                GroupEvent::CreateRefused { cause: "quota", message: "no".into() },
            ),
            r#""create_refused","group":"default","cause":"quota","message":"no""#,
        );
        check(
            Event::Group(
                group.clone(),
                GroupEvent::Waiting {
                    waiting: Waiting::Server(ServerWait::Quota),
                    until: Some(Millis(0)),
                    message: Some("full".into()),
                },
            ),
            r#""waiting","group":"default","for":"quota","until":"2026-01-01T00:00:00.000Z","message":"full""#,
        );
        check(
            Event::Group(
                group,
                GroupEvent::Waiting {
                    waiting: Waiting::Run(RunWait::FirstList),
                    until: None,
                    message: None,
                },
            ),
            r#""waiting","group":"default","for":"first_list","until":null,"message":null"#,
        );
    }

    #[test]
    fn events_about_credentials() {
        let (name, until) = ("hdfs".to_owned(), Millis(1_000));
        check(
            Event::Run(RunEvent::CredentialsRenewed {
                name: name.clone(),
                expires: Some(Millis(2_000)),
                until,
            }),
            r#""credentials_renewed","expires":"2026-01-01T00:00:02.000Z","name":"hdfs","until":"2026-01-01T00:00:01.000Z""#,
        );
        check(
            Event::Run(RunEvent::CredentialsFailed { name, message: "no KDC".into(), until }),
            r#""credentials_failed","message":"no KDC","name":"hdfs","until":"2026-01-01T00:00:01.000Z""#,
        );
    }
}
