//! Reads the logs of a driver's pods one after the other, and leaves a pod that another one has replaced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};
use jiff::Timestamp;

use crate::listener::Listener;
use crate::logs::LogFollower;
use crate::state::{has_begun, leads, newest};
use posse_kube::api::objects::Objects;
use posse_kube::http::StreamHandle;
use posse_wire::pod::details::PodDetails;

/// How many pods may wait for their logs to be read.
const PODS_MAX: usize = 100;
/// How long the rest of a log may take after the driver has ended, or another pod leads.
pub(super) const LOG_END: Duration = Duration::from_secs(10);

/// A log that is to be read.
pub(super) struct DriverLog {
    objects: Objects,
    pod: String,
    is_ended: Arc<AtomicBool>,
}

impl DriverLog {
    pub(super) fn read(self, listener: Listener<'_>, tail: Option<u32>) {
        let Self { objects, pod, is_ended } = self;
        let is_over = &|| false;
        LogFollower { objects, listener, tail, is_ended: &is_ended, is_over }.follow(&pod);
    }
}

/// Chooses which logs are read, and ends their reading.
pub(super) struct DriverLogs {
    objects: Objects,
    sender: Sender<DriverLog>,
    chosen: Vec<Chosen>,
    /// Since when pods run of which none leads.
    leaderless_at: Option<Instant>,
}

pub(super) struct Chosen {
    uid: String,
    streams: StreamHandle,
    is_ended: Arc<AtomicBool>,
    /// Since when the log that counts is another pod's, though this one has not ended.
    replaced_at: Option<Instant>,
}

impl Chosen {
    /// Ends the reading.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        self.streams.shutdown();
    }
}

impl DriverLogs {
    pub(super) fn new(objects: &Objects) -> (Self, Receiver<DriverLog>) {
        let (sender, receiver) = bounded(PODS_MAX);
        let objects = objects.clone();
        (Self { objects, sender, chosen: Vec::new(), leaderless_at: None }, receiver)
    }

    /// Takes the present pods into account.
    pub(super) fn update(&mut self, pods: &[PodDetails]) {
        let is_led = |pod: &PodDetails| pod.is_live() && leads(pod);
        let runs = pods.iter().any(|pod| pod.is_live() && has_begun(pod));
        self.leaderless_at = match runs && !pods.iter().any(is_led) {
            true => self.leaderless_at.or_else(|| Some(Instant::now())),
            false => None,
        };
        let is_leaderless = self.leaderless_at.is_some_and(|at| at.elapsed() >= LOG_END);
        let readable: Vec<&PodDetails> =
            pods.iter().filter(|pod| is_readable(pod, pods, is_leaderless)).collect();
        for chosen in &mut self.chosen {
            let is_replaced = match pods.iter().find(|pod| pod.uid() == chosen.uid) {
                Some(pod) if !is_overdue(pod) => is_replaced(pod, pods),
                // The log of a pod that is gone outright, or whose node is silent, may have no end.
                _ => readable.iter().any(|pod| pod.is_live()),
            };
            if !is_replaced {
                chosen.replaced_at = None;
            } else if chosen.replaced_at.get_or_insert_with(Instant::now).elapsed() >= LOG_END {
                chosen.end();
            }
        }
        // What was left may count again: its log is read anew.
        let counts = |uid: &str| readable.iter().any(|pod| pod.uid() == uid && pod.is_live());
        self.chosen.retain(|chosen| {
            let is_left = chosen.is_ended.load(Ordering::Acquire);
            !(is_left && chosen.replaced_at.is_none() && counts(&chosen.uid))
        });
        for pod in readable {
            if self.chosen.iter().any(|chosen| chosen.uid == pod.uid()) {
                continue;
            }
            let (objects, streams) = self.objects.with_own_streams();
            let is_ended = Arc::new(AtomicBool::new(false));
            let (uid, pod) = (pod.uid().to_owned(), pod.name().to_owned());
            let log = DriverLog { objects, pod: pod.clone(), is_ended: Arc::clone(&is_ended) };
            self.chosen.push(Chosen { uid, streams, is_ended, replaced_at: None });
            if self.sender.try_send(log).is_err() {
                log::warn!("the log of pod {pod} is not shown: too many logs are waiting");
            }
        }
    }

    /// No further log is to be read. Those that are being read are returned.
    pub(super) fn close(self) -> Vec<Chosen> {
        self.chosen
    }
}

/// A standby, or a driver whose node is silent: the log that counts is another pod's.
fn is_replaced(pod: &PodDetails, pods: &[PodDetails]) -> bool {
    !pod.has_ended() && !leads(pod) && pods.iter().any(|other| other.is_live() && leads(other))
}

/// It should have been gone by now. Until then it may still say its last words, whether it leads or not.
fn is_overdue(pod: &PodDetails) -> bool {
    let gone_at = pod.meta.deletion_timestamp.as_deref().map(str::parse::<Timestamp>);
    !pod.has_ended() && gone_at.is_some_and(|at| at.is_ok_and(|at| at < Timestamp::now()))
}

/// Of several pods that live, the one that leads is the driver's: a log is read to its end, and that of a standby
/// ends last. If none leads for a while, the label cannot be set, and the newest is taken, as all commands do.
fn is_readable(pod: &PodDetails, pods: &[PodDetails], is_leaderless: bool) -> bool {
    let live = || pods.iter().filter(|pod| pod.is_live());
    let is_newest = || {
        newest(live().filter(|pod| has_begun(pod))).is_some_and(|newest| newest.uid() == pod.uid())
    };
    let is_drivers = leads(pod) || live().count() <= 1 || (is_leaderless && is_newest());
    has_begun(pod) && (is_drivers || !pod.is_live())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use posse_testing::{Answer, TestServer, plain_client};
    use serde_json::{Value, json};

    use super::*;
    use crate::follow::Follower;
    use crate::listener::FollowEvent;
    use crate::state::tests::read;
    use posse_kube::api::objects::Kind;

    fn pod(name: &str, phase: &str, is_leader: bool) -> Value {
        let gone_at = match phase {
            "overdue" => Some("2026-01-01T00:00:00Z".to_owned()),
            "deleting" => Some((Timestamp::now() + Duration::from_secs(30)).to_string()),
            _ => None,
        };
        let phase = if gone_at.is_some() { "Running" } else { phase };
        let state = match phase {
            "Running" => json!({"running": {}}),
            "Pending" => json!({"waiting": {"reason": "ContainerCreating"}}),
            _ => json!({"terminated": {"exitCode": 1}}),
        };
        let mut labels = json!({"posse.dev/app": "a"});
        if is_leader {
            labels["posse.dev/leader"] = json!("true");
        }
        json!({"kind": "Pod", "metadata": {"name": name, "uid": name, "labels": labels,
                "deletionTimestamp": gone_at,
                "ownerReferences": [{"kind": "Job", "name": "j", "uid": "ju", "controller": true}]},
            "spec": {"containers": [{"name": "driver"}]},
            "status": {"phase": phase, "containerStatuses": [{"name": "driver", "state": state}]}})
    }

    #[test]
    fn the_log_of_a_driver_is_that_of_the_pod_that_leads() {
        // Each pod leads or not. The two answers: at first, and if nobody has led for a while.
        for (pods, want, later) in [
            (vec![("p", "Running", true)], "p", "p"),
            // Of another version, or begun by hand.
            (vec![("p", "Running", false)], "p", "p"),
            (vec![("p", "Pending", true)], "", ""),
            // Nobody leads yet, or the label cannot be set.
            (vec![("p", "Running", false), ("q", "Pending", false)], "", "p"),
            (vec![("p", "Running", false), ("q", "Running", false)], "", "q"),
            (vec![("p", "Running", false), ("q", "Running", true)], "q", "q"),
            (vec![("p", "Failed", false), ("q", "Running", true)], "p q", "p q"),
            (vec![("p", "Failed", false), ("q", "Running", false)], "p q", "p q"),
            (
                vec![("o", "Failed", true), ("p", "Running", false), ("q", "Running", false)],
                "o",
                "o q",
            ),
        ] {
            let pods: Vec<_> =
                pods.iter().map(|(name, phase, leads)| read(&pod(name, phase, *leads))).collect();
            for (is_leaderless, want) in [(false, want), (true, later)] {
                let is_read = |pod: &&PodDetails| is_readable(pod, &pods, is_leaderless);
                let names: Vec<_> = pods.iter().filter(is_read).map(PodDetails::name).collect();
                assert_eq!(names.join(" "), want, "{is_leaderless}");
            }
        }
    }

    /// Each step is a list of pods and, after a while, whose log is being read and whose has been left.
    #[test]
    fn the_log_follows_the_lead() {
        let (p, q) = (("p", "Running", false), ("q", "Running", false));
        let (leader_p, leader_q) = (("p", "Running", true), ("q", "Running", true));
        let overdue_p = ("p", "overdue", false);
        for steps in [
            // A pod that is gone outright has a log without an end.
            vec![(vec![leader_p], "p"), (vec![leader_q], "p: q")],
            vec![(vec![p], "p"), (vec![q], "p: q")],
            vec![(vec![p], "p"), (vec![p, leader_q], "p: q"), (vec![leader_q], "p: q")],
            // Nobody is there to replace it.
            vec![(vec![leader_p], "p"), (vec![], "p"), (vec![("q", "Pending", true)], "p")],
            // The lead comes back.
            vec![(vec![p], "p"), (vec![p, leader_q], "p: q"), (vec![leader_p], "q: p")],
            // Nobody has the label.
            vec![(vec![p, q], "q"), (vec![leader_p, q], "q: p")],
            // A silent node: the pod there should have been gone long ago.
            vec![(vec![p], "p"), (vec![overdue_p, q], "p: q")],
            vec![(vec![leader_p], "p"), (vec![("p", "overdue", true), q], "p: q")],
            vec![(vec![p], "p"), (vec![overdue_p, ("q", "Pending", false)], "p")],
            // It still says its last words.
            vec![(vec![p], "p"), (vec![("p", "deleting", false), q], "p q")],
        ] {
            let nobody = TestServer::start(None, |_| Answer::json(404, ""));
            let objects = Objects::new(plain_client(nobody.address), Some("ns"));
            let (mut logs, _receiver) = DriverLogs::new(&objects);
            for (pods, want) in steps {
                let pods: Vec<_> = pods
                    .iter()
                    .map(|(name, phase, leads)| read(&pod(name, phase, *leads)))
                    .collect();
                for _ in 0..3 {
                    logs.update(&pods);
                    let earlier = Instant::now().checked_sub(LOG_END).unwrap();
                    logs.leaderless_at = logs.leaderless_at.map(|_| earlier);
                    logs.chosen
                        .iter_mut()
                        .for_each(|one| one.replaced_at = one.replaced_at.map(|_| earlier));
                }
                let told = |is_left: bool| {
                    let of = |one: &&Chosen| one.is_ended.load(Ordering::Acquire) == is_left;
                    let names: Vec<_> =
                        logs.chosen.iter().filter(of).map(|one| one.uid.as_str()).collect();
                    names.join(" ")
                };
                let told = format!("{}: {}", told(true), told(false));
                assert_eq!(told.trim_start_matches(": "), want);
            }
        }
    }

    #[test]
    fn a_pod_is_left_if_another_one_has_the_lead() {
        for (ours, other, want) in [
            (("Running", false), ("Running", true), true),
            (("Running", true), ("Running", false), false),
            (("Running", false), ("Running", false), false),
            (("Failed", false), ("Running", true), false),
            (("Running", false), ("Failed", true), false),
        ] {
            let pods = [read(&pod("p", ours.0, ours.1)), read(&pod("q", other.0, other.1))];
            assert_eq!(is_replaced(&pods[0], &pods), want, "{ours:?} {other:?}");
        }
    }

    /// The standby is listed first, and both run.
    #[test]
    fn a_standby_does_not_hide_the_drivers_log() {
        let is_over = Arc::new(AtomicBool::new(false));
        let (told, begun) = (Arc::clone(&is_over), Instant::now());
        let standby = pod("standby", "Running", false);
        let leader = pod("leader", "Running", true);
        let server = TestServer::start(None, move |asked| match asked.line() {
            line if line.contains("/pods/leader/log") => Answer::Stall(
                b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                  31\r\n2026-01-01T00:00:01.123456789Z the driver's line\n\r\n"
                    .to_vec(),
            ),
            line if line.contains("/pods/standby/log") => {
                Answer::Stall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec())
            }
            line if line.contains("watch=1") => Answer::json(200, ""),
            line if line.contains("/pods/leader") => Answer::json(200, leader.to_string()),
            line if line.contains("/pods/standby") => Answer::json(200, standby.to_string()),
            line if line.contains("/pods?") => {
                let list = json!({"metadata": {"resourceVersion": "1"},
                    "items": [standby, leader]});
                Answer::json(200, list.to_string())
            }
            line if line.contains("/jobs/") => {
                let is_over = told.load(Ordering::Acquire) || begun.elapsed() >= LOG_END;
                let status = match is_over {
                    true => json!({"conditions": [{"type": "Complete", "status": "True"}]}),
                    false => json!({"active": 2}),
                };
                let job = json!({"metadata": {"name": "j", "uid": "ju"}, "status": status});
                Answer::json(200, job.to_string())
            }
            _ => Answer::json(200, r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#),
        });
        let follower = Follower {
            objects: Objects::new(plain_client(server.address), Some("ns")),
            app: "a".to_owned(),
            kind: Kind::Job,
            name: "j".to_owned(),
            uid: "ju".to_owned(),
            logs: true,
            tail: None,
            gives_up: None,
            run_waits: None,
        };
        let lines = Mutex::new(Vec::new());
        let listener = |event| {
            let FollowEvent::Log(line) = event else { return true };
            lines.lock().unwrap().push(String::from_utf8(line).unwrap());
            is_over.store(true, Ordering::Release);
            false
        };
        follower.follow(&listener).unwrap();
        assert_eq!(*lines.lock().unwrap(), ["the driver's line\n"]);
    }
}
