//! Events of `events.k8s.io/v1` about the driver's pod: which of posse's events become one, its words, and
//! its JSON.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::control::event::describe_exhaustion;
use crate::k8s::common_metadata::CommonMetadata;
use crate::pod::build::OwnerRef;
use crate::time::Epoch;
use posse_base::text::sanitize;
use posse_base::time::Millis;
use posse_core::model::event::{
    ClusterEvent, Event, ExecutorEvent, GroupEvent, LossReason, RunEvent,
};
use posse_core::model::waiting::{ServerWait, StartWait, Waiting};

/// `reportingController`: who writes these Events.
const CONTROLLER: &str = "posse.dev/posse";
/// The longest note that the server accepts, in bytes.
const NOTE_BYTES_MAX: usize = 1_024;
/// The longest `reportingInstance` that the server accepts, in bytes.
const INSTANCE_BYTES_MAX: usize = 128;
/// The longest part of the pod's name in an Event's name, in bytes: object names have up to 253.
const POD_BYTES_MAX: usize = 200;

/// The driver's pod, and what each Event about it has.
#[derive(Clone, Debug)]
pub struct Regarding {
    pub namespace: String,
    pub pod: OwnerRef,
    /// Labels and annotations of the Events.
    pub common: Arc<CommonMetadata>,
}

/// Something that happened, as an Event tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// `reason` of the Event.
    pub reason: &'static str,
    /// What is the same if it happens again, beside the reason: a group, a node.
    pub about: String,
    /// `action` of the Event: what posse does about it.
    pub action: &'static str,
    pub is_warning: bool,
    /// It goes before all others.
    pub is_urgent: bool,
    /// One line.
    pub note: String,
}

/// An Event to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    /// From 1; a part of the Event's name.
    pub number: u64,
    pub at: Millis,
    pub notice: Notice,
}

/// What an Event says about one of posse's events; none for those that are not worth an Event.
pub fn notice(event: &Event, epoch: Epoch) -> Option<Notice> {
    let notice = |reason, about: &str, action, is_warning, note: String| {
        let note = sanitize(&note, NOTE_BYTES_MAX);
        let about = about.to_owned();
        Some(Notice { reason, about, action, is_warning, is_urgent: false, note })
    };
    match event {
        Event::Run(RunEvent::BudgetExhausted { budget, why }) => {
            let why = describe_exhaustion(*budget, why);
            let budget = budget.as_str();
            let note = format!("The application ends: {why}.");
            let notice = notice("BudgetExhausted", budget, "StopApplication", true, note)?;
            Some(Notice { is_urgent: true, ..notice })
        }
        Event::Run(RunEvent::CredentialsFailed { name, message, .. }) => {
            let note = format!("The credentials {name} could not be renewed: {message}");
            notice("CredentialsFailed", name, "RenewCredentials", true, note)
        }
        Event::Executor(subject, ExecutorEvent::Lost { node, reason, budget, message, .. }) => {
            let (group, id, word) = (&subject.group, subject.id, reason.as_str());
            let is_warning = budget.is_some() && *reason != LossReason::Completed;
            let budget = budget.map_or_else(String::new, |budget| {
                format!(", charged to the failure budget {}", budget.as_str())
            });
            let node = node.as_ref().map_or_else(String::new, |node| format!(" on node {node}"));
            let note = format!(
                "Executors of group {group} were lost: {word}{budget}. The first one is executor \
                 {id}{node}: {message}"
            );
            let about = format!("{group} {word}");
            notice("ExecutorLost", &about, "ReplaceExecutor", is_warning, note)
        }
        Event::Cluster(ClusterEvent::NodeAvoided { node, until, reason }) => {
            let note = format!(
                "New executors avoid node {node} until {}: it lost several. The last reason is {}.",
                epoch.rfc3339(*until),
                reason.as_str()
            );
            notice("NodeAvoided", node, "AvoidNode", true, note)
        }
        Event::Group(group, GroupEvent::Waiting { waiting, message, .. }) => {
            let (what, why) = waiting.describe();
            let why = if why.is_empty() { String::new() } else { format!(" ({why})") };
            let said = message.as_ref().map_or_else(String::new, |said| format!(": {said}"));
            let note = format!("Group {group} waits for {what}{why}{said}");
            notice(wait_reason(*waiting)?, group.as_str(), "WaitForCapacity", true, note)
        }
        Event::Run(RunEvent::TookOver(from)) => {
            let pod = from.pod.as_ref().map_or("an unknown pod", |pod| &*pod.name);
            let (cause, s) = (from.cause.as_str(), from.seconds());
            let note = format!("The driver goes on in this pod, {s:.1} s after {pod} ({cause}).");
            notice("TookOver", "driver", "TakeOver", true, note)
        }
        Event::Run(_) | Event::Cluster(_) | Event::Group(..) | Event::Executor(..) => None,
    }
}

/// The reason of the Event; none for waits that are short, or that a person wanted.
fn wait_reason(waiting: Waiting) -> Option<&'static str> {
    match waiting {
        Waiting::Server(wait) => match wait {
            ServerWait::Permanent => Some("ExecutorRefused"),
            ServerWait::Quota => Some("WaitingForQuota"),
            ServerWait::Failing | ServerWait::InFlight => None,
        },
        Waiting::Start(wait) => match wait {
            StartWait::ConfigError => Some("WaitingForConfig"),
            StartWait::CrashLoop => Some("CrashLoop"),
            StartWait::ImageError => Some("WaitingForImage"),
            StartWait::Unschedulable => Some("WaitingForNode"),
            StartWait::Gated | StartWait::Queue | StartWait::Timeout => None,
        },
        // `CredentialsFailed` says why the run waits for them.
        Waiting::Run(_) | Waiting::Group(_) => None,
    }
}

/// The name of an Event. `run`: the run's id, which makes the name unique.
fn name(regarding: &Regarding, run: &str, number: u64) -> String {
    // A pod's name is ASCII; another one is refused by the server.
    let pod: String = regarding.pod.name.chars().take(POD_BYTES_MAX).collect();
    format!("{}.{run}-{number:x}", pod.trim_end_matches(['.', '-']))
}

/// The body of the request that creates an Event.
pub fn create_body(regarding: &Regarding, run: &str, event: &NewEvent, epoch: Epoch) -> Value {
    let Regarding { namespace, pod, common } = regarding;
    let NewEvent { number, at, notice } = event;
    let instance: String = pod.name.chars().take(INSTANCE_BYTES_MAX).collect();
    let mut body = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": { "name": name(regarding, run, *number), "namespace": namespace },
        "eventTime": epoch.rfc3339_micros(*at),
        "reportingController": CONTROLLER,
        "reportingInstance": instance,
        "regarding": {
            "apiVersion": pod.api_version, "kind": pod.kind, "namespace": namespace,
            "name": pod.name, "uid": pod.uid,
        },
        "reason": notice.reason,
        "action": notice.action,
        "note": notice.note,
        "type": if notice.is_warning { "Warning" } else { "Normal" },
    });
    common.lay_under_object(&mut body);
    body
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use posse_core::model::event::{Budget, Exhaustion, Subject};
    use posse_core::model::ids::ExecutorId;

    fn epoch() -> Epoch {
        Epoch(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    }

    fn lost(reason: LossReason, message: &str) -> Event {
        let subject = Subject {
            group: "big".into(),
            id: ExecutorId(7),
            uid: None,
            pod: "shop-a-exec-7".to_owned(),
        };
        let (node, message) = (Some("n3".to_owned()), message.to_owned());
        let (budget, exit_code) = (reason.budget(), None);
        Event::Executor(subject, ExecutorEvent::Lost { node, reason, budget, exit_code, message })
    }

    fn waiting(waiting: Waiting, message: Option<&str>) -> Event {
        let message = message.map(str::to_owned);
        Event::Group("big".into(), GroupEvent::Waiting { waiting, until: None, message })
    }

    #[test]
    fn the_words_of_each_event() {
        let avoided = Event::Cluster(ClusterEvent::NodeAvoided {
            node: "n3".to_owned(),
            until: Millis(1_000),
            reason: LossReason::NodeLost,
        });
        let exhausted = RunEvent::BudgetExhausted { budget: Budget::App, why: Exhaustion::Losses };
        for (event, reason, about, note) in [
            (
                lost(LossReason::OomKilled, "exit code 137"),
                "ExecutorLost",
                "big oom_killed",
                "Executors of group big were lost: oom_killed, charged to the failure budget app. \
                 The first one is executor 7 on node n3: exit code 137",
            ),
            (
                lost(LossReason::Killed, "by the driver"),
                "ExecutorLost",
                "big killed",
                "Executors of group big were lost: killed. The first one is executor 7 on node n3: \
                 by the driver",
            ),
            (
                Event::Run(exhausted),
                "BudgetExhausted",
                "app",
                "The application ends: more executors were lost than the failure budget `app` allows.",
            ),
            (
                waiting(Waiting::Server(ServerWait::Quota), Some("exceeded quota: pods")),
                "WaitingForQuota",
                "big",
                "Group big waits for quota: exceeded quota: pods",
            ),
            (
                Event::Run(RunEvent::CredentialsFailed {
                    name: "hdfs".to_owned(),
                    message: "no KDC".to_owned(),
                    until: Millis(0),
                }),
                "CredentialsFailed",
                "hdfs",
                "The credentials hdfs could not be renewed: no KDC",
            ),
            (
                waiting(Waiting::Start(StartWait::ImageError), None),
                "WaitingForImage",
                "big",
                "Group big waits for an image that can be pulled (one executor is tried at a time)",
            ),
            (
                waiting(Waiting::Start(StartWait::Unschedulable), Some("0/3 nodes are available")),
                "WaitingForNode",
                "big",
                "Group big waits for the scheduler (it finds no node for some pods): 0/3 nodes are \
                 available",
            ),
            (
                avoided,
                "NodeAvoided",
                "n3",
                "New executors avoid node n3 until 2026-01-01T00:00:01.000Z: it lost several. The \
                 last reason is node_lost.",
            ),
        ] {
            let notice = notice(&event, epoch()).unwrap();
            assert_eq!((notice.reason, &*notice.about, &*notice.note), (reason, about, note));
        }
    }

    #[test]
    fn most_events_are_no_event_of_kubernetes_and_none_is_too_long() {
        assert_eq!(notice(&waiting(Waiting::Server(ServerWait::InFlight), None), epoch()), None);
        assert_eq!(notice(&Event::Run(RunEvent::Started), epoch()), None);
        let long = notice(&lost(LossReason::AppError, &"x".repeat(5_000)), epoch()).unwrap();
        assert!(long.note.len() <= NOTE_BYTES_MAX, "{}", long.note.len());
    }

    #[test]
    fn the_body_of_an_event() {
        let owner = OwnerRef::pod("driver", "u1");
        let regarding = Regarding { namespace: "n".to_owned(), pod: owner, common: Arc::default() };
        let notice = notice(&waiting(Waiting::Server(ServerWait::Quota), None), epoch()).unwrap();
        let event = NewEvent { number: 26, at: Millis(5), notice };
        let body = create_body(&regarding, "k3f9x", &event, epoch());
        let want = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"name": "driver.k3f9x-1a", "namespace": "n"},
            "eventTime": "2026-01-01T00:00:00.005000Z",
            "reportingController": "posse.dev/posse", "reportingInstance": "driver",
            "regarding": {
                "apiVersion": "v1", "kind": "Pod", "namespace": "n", "name": "driver", "uid": "u1",
            },
            "reason": "WaitingForQuota", "action": "WaitForCapacity", "type": "Warning",
            "note": "Group big waits for quota",
        });
        assert_eq!(body, want);
    }
}
