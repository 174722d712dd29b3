//! A followed driver that cannot start: the Job would try again for ever, or wait for an image for ever.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::state::{cannot_start, has_begun, image_problem, last_created, pod_line, running_rest};
use crate::stop::drivers;
use posse_core::model::ids::Uid;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::policy::orphans::OrphanCandidate;
use posse_kube::api::driver_job::rest_patch;
use posse_kube::api::objects::{Kind, Objects};
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::retry::with_retries;
use posse_wire::k8s::object::Meta;
use posse_wire::pod::details::PodDetails;

/// What was seen of a driver that does not start.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// When an image was first seen missing, without a pause since.
    image_missing_since: Option<Instant>,
    /// The Job was told to try no more.
    is_told: bool,
    /// The pods that were told to end, or whose rest was, by uid.
    told_pods: BTreeSet<String>,
}

impl Start {
    /// True once, if the last pod has ended because its command cannot be started: another pod would
    /// end in the same way.
    pub(super) fn is_hopeless(&mut self, pods: &[PodDetails]) -> bool {
        let is_new = !self.is_told && last_created(unless_one_runs(pods)).is_some_and(cannot_start);
        self.is_told |= is_new;
        is_new
    }

    /// Gives each pod in which others run on after the driver its deadline, once: posse sets it at its end, and a kernel
    /// that killed posse with the driver left it no time. What was done, in a line for each.
    pub(super) fn end_rests(&mut self, objects: &Objects, pods: &[PodDetails]) -> Vec<String> {
        let mut lines = Vec::new();
        for pod in pods {
            let Some(deadline_s) = self.rest_deadline_s(pod) else { continue };
            let patch = rest_patch(pod.uid(), deadline_s);
            let (name, rest) = (pod.name(), running_rest(pod).join(", "));
            lines.push(match with_retries(|| objects.patch(Kind::Pod, name, &patch)) {
                Ok(()) => {
                    format!("pod {name}: {rest} ends {} s after the driver", pod.facts.grace_s)
                }
                Err(refusal) => format!("pod {name}: {rest} does not end: {refusal}"),
            });
        }
        lines
    }

    fn rest_deadline_s(&mut self, pod: &PodDetails) -> Option<u32> {
        let deadline_s = pod.facts.rest_deadline_s(pod.facts.grace_s)?;
        self.told_pods.insert(pod.uid().to_owned()).then_some(deadline_s)
    }

    /// Ends the executors of the Job's ended pods, if none of its pods lives: its next one ends them first of all, and they
    /// may hold the quota that keeps it out. What was done, in a line.
    pub(super) fn make_room(
        &mut self,
        objects: &Objects,
        app: &str,
        pods: &[PodDetails],
    ) -> Option<String> {
        if pods.iter().any(PodDetails::is_live) {
            return None;
        }
        let executors = AppExecutors::of(objects, app);
        let uids: Vec<&Uid> =
            pods.iter().filter(|pod| pod.has_ended()).map(|pod| &pod.facts.uid).collect();
        let is_of_ended = |executor: &OrphanCandidate| {
            let is_owned = executor.owner.as_ref().is_some_and(|owner| uids.contains(&&owner.uid));
            executor.has_executor_name && is_owned && !executor.phase.is_final()
        };
        let ended = with_retries(|| executors.list()).and_then(|mut found| {
            found.retain(|one| is_of_ended(one) && !self.told_pods.contains(&one.uid.to_string()));
            for executor in &found {
                match with_retries(|| executors.delete(executor)) {
                    Err(refusal) if refusal.class != RefusalClass::NotFound => return Err(refusal),
                    Ok(()) | Err(_) => self.told_pods.insert(executor.uid.to_string()),
                };
            }
            Ok(found.len())
        });
        match ended {
            Ok(0) => None,
            Ok(n) => Some(format!(
                "{n} executors of ended drivers are deleted: they may hold what the next one needs"
            )),
            Err(refusal) => Some(format!("executors of ended drivers remain: {refusal}")),
        }
    }

    /// The last words about an image that the last pod has waited for longer than the limit; zero: for ever.
    pub(super) fn missing_image(
        &mut self,
        pods: &[PodDetails],
        limit: Duration,
        now: Instant,
    ) -> Option<String> {
        let starting = last_created(unless_one_runs(pods).iter().filter(|pod| pod.is_live()));
        let Some(pod) = starting.filter(|pod| image_problem(pod).is_some()) else {
            self.image_missing_since = None;
            return None;
        };
        let since = *self.image_missing_since.get_or_insert(now);
        (!limit.is_zero() && now.duration_since(since) >= limit).then(|| pod_line(pod))
    }
}

/// No pods if one of them has begun and lives: it needs no image, and what runs beside it, or stands by, may miss one for
/// ever. A leader that has died keeps its label until another one leads.
fn unless_one_runs(pods: &[PodDetails]) -> &[PodDetails] {
    if pods.iter().any(|pod| pod.is_live() && has_begun(pod)) { &[] } else { pods }
}

/// Lets the Job end with its next status: no pod is created again.
pub(super) fn try_no_more(objects: &Objects, job: &Meta) -> Result<(), Refusal> {
    let patch = json!({ "metadata": { "uid": job.uid }, "spec": { "backoffLimit": 0 } });
    with_retries(|| objects.patch(Kind::Job, &job.name, &patch))
}

/// Ends what runs on in the pods of drivers that have ended, as a follower does: nobody else may be there to do it. What
/// was done, in a line for each.
pub fn end_rests(objects: &Objects, app: &str) -> Result<Vec<String>, Refusal> {
    Ok(Start::default().end_rests(objects, &drivers(objects, app)?))
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use posse_testing::{Answer, TestServer, plain_client};
    use posse_wire::k8s::labels::{APP, EXECUTOR_ID, INSTANCE};
    use serde_json::Value;

    use super::*;
    use crate::state::tests::read;

    fn pod(phase: &str, state: Value) -> PodDetails {
        read(&json!({
            "metadata": { "name": "d-1", "uid": "u" },
            "spec": { "containers": [{ "name": "driver", "image": "nowhere/none:1" }] },
            "status": { "phase": phase, "containerStatuses": [{ "name": "driver", "state": state }] }
        }))
    }

    fn leader(state: Value) -> PodDetails {
        read(&json!({
            "metadata": { "name": "d-0", "uid": "u0", "labels": { "posse.dev/leader": "true" } },
            "spec": { "containers": [{ "name": "driver" }] },
            "status": { "containerStatuses": [{ "name": "driver", "state": state }] }
        }))
    }

    #[test]
    fn an_image_is_waited_for_until_its_limit() {
        let missing = [pod(
            "Pending",
            json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } }),
        )];
        let backing_off = [pod("Pending", json!({ "waiting": { "reason": "ImagePullBackOff" } }))];
        let running = [pod("Pending", json!({ "running": {} }))];
        let limit = Duration::from_secs(60);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut start = Start::default();
        assert_eq!(start.missing_image(&missing, limit, at(0)), None);
        assert_eq!(start.missing_image(&backing_off, limit, at(59)), None);
        // It was pulled meanwhile: the time begins anew.
        assert_eq!(start.missing_image(&running, limit, at(60)), None);
        assert_eq!(start.missing_image(&backing_off, limit, at(61)), None);
        assert_eq!(start.missing_image(&missing, limit, at(120)), None);
        let line = start.missing_image(&missing, limit, at(121)).unwrap();
        assert!(line.contains("ErrImagePull: no such image"), "{line}");
        assert_eq!(start.missing_image(&missing, Duration::ZERO, at(10_000)), None);
        // The driver runs, and a container beside it misses its image; an older pod is stuck on a lost node.
        let beside = read(&json!({
            "metadata": { "name": "d-2", "uid": "u2", "creationTimestamp": "2026-01-01T00:00:09Z" },
            "spec": { "containers": [{ "name": "driver" }, { "name": "proxy" }] },
            "status": { "phase": "Pending", "containerStatuses": [
                { "name": "driver", "state": { "running": {} } },
                { "name": "proxy", "state": { "waiting": { "reason": "ImagePullBackOff" } } }] }
        }));
        let [old] = missing;
        let pods = [old, beside];
        assert_eq!(start.missing_image(&pods, limit, at(20_000)), None);
        assert_eq!(start.missing_image(&pods, limit, at(20_061)), None);
        assert!(pod_line(&pods[1]).ends_with("pod d-2 runs"), "{}", pod_line(&pods[1]));
        // A leader has died, and its label stays until a standby leads, whose image is missing.
        let [old, _] = pods;
        let pods = [leader(json!({ "terminated": {} })), old];
        assert_eq!(start.missing_image(&pods, limit, at(30_000)), None);
        assert!(start.missing_image(&pods, limit, at(30_060)).is_some());
    }

    #[test]
    fn the_rest_of_a_killed_driver_is_told_to_end_once() {
        let mut killed = json!({
            "metadata": { "name": "d-1", "uid": "u" },
            "spec": { "terminationGracePeriodSeconds": 30,
                "containers": [{ "name": "driver" }, { "name": "proxy" }] },
            "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                "containerStatuses": [
                    { "name": "driver", "state": { "terminated": { "exitCode": 137,
                        "reason": "OOMKilled", "finishedAt": "2026-01-01T00:01:00Z" } } },
                    { "name": "proxy", "state": { "running": {} } }] }
        });
        let mut start = Start::default();
        assert_eq!(start.rest_deadline_s(&read(&killed)), Some(60 + 30 + 1));
        assert_eq!(start.rest_deadline_s(&read(&killed)), None);
        // posse has set it, or somebody an earlier one.
        killed["spec"]["activeDeadlineSeconds"] = json!(91);
        assert_eq!(Start::default().rest_deadline_s(&read(&killed)), None);
    }

    /// Nobody follows it, and the Job makes no other pod before this one ends.
    #[test]
    fn the_rest_of_a_killed_driver_ends_at_the_next_submit() {
        let main = |state| json!({ "name": "driver", "state": state });
        let pod = |name: &str, state: Value| {
            json!({
                "metadata": { "name": name, "uid": name },
                "spec": { "containers": [{ "name": "driver" }, { "name": "proxy" }] },
                "status": { "phase": "Running", "startTime": "2026-01-01T00:00:00Z",
                    "containerStatuses": [main(state),
                        { "name": "proxy", "state": { "running": {} } }] }
            })
        };
        let killed = json!({ "terminated": { "exitCode": 137, "reason": "Error",
            "finishedAt": "2026-01-01T00:01:00Z" } });
        let pods = [pod("killed", killed), pod("lives", json!({ "running": {} }))];
        let list = json!({ "metadata": { "resourceVersion": "1" }, "items": pods }).to_string();
        for (answer, want) in [
            (200, "pod killed: proxy ends 30 s after the driver"),
            (403, "pod killed: proxy does not end: "),
        ] {
            let patches = Arc::new(Mutex::new(Vec::new()));
            let (list, seen) = (list.clone(), Arc::clone(&patches));
            let server = TestServer::start(None, move |asked| {
                if asked.line().starts_with("GET") {
                    return Answer::json(200, list.clone());
                }
                let body = String::from_utf8_lossy(&asked.body).into_owned();
                seen.lock().unwrap().push(format!("{} {body}", asked.line()));
                Answer::json(answer, "{}")
            });
            let objects = Objects::new(plain_client(server.address), Some("ns"));
            let lines = end_rests(&objects, "a").unwrap();
            assert!(lines.len() == 1 && lines[0].starts_with(want), "{lines:?}");
            let patches = patches.lock().unwrap();
            assert_eq!(patches.len(), 1, "{patches:?}");
            assert!(patches[0].contains("/pods/killed"), "{patches:?}");
            assert!(patches[0].contains("\"activeDeadlineSeconds\":91"), "{patches:?}");
        }
    }

    /// They may hold the quota that keeps the next pod out, which would end them.
    #[test]
    fn the_executors_of_an_ended_pod_make_room_once() {
        let pod = |name: &str, phase: &str| {
            json!({ "metadata": { "name": name, "uid": name },
                "spec": { "containers": [{ "name": "driver" }] }, "status": { "phase": phase } })
        };
        let executor = |id: u64, kind: &str, owner: &str, phase: &str| {
            let labels = json!({ APP: "a", INSTANCE: "i", EXECUTOR_ID: id.to_string() });
            let owner = json!([{ "apiVersion": "v1", "kind": kind, "name": owner, "uid": owner, "controller": true }]);
            json!({ "metadata": { "name": format!("a-i-exec-{id}"), "uid": format!("e{id}"), "labels": labels,
                "ownerReferences": owner }, "status": { "phase": phase } })
        };
        let executors = [
            executor(1, "Pod", "failed", "Running"),
            executor(2, "Pod", "failed", "Failed"),
            executor(3, "Pod", "other", "Running"),
            executor(4, "Job", "job", "Running"),
        ];
        let list =
            json!({ "metadata": { "resourceVersion": "1" }, "items": executors }).to_string();
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&deleted);
        let server = TestServer::start(None, move |asked| {
            if asked.line().starts_with("GET") {
                return Answer::json(200, list.clone());
            }
            seen.lock().unwrap().push(asked.line().to_owned());
            Answer::json(200, "{}")
        });
        let objects = Objects::new(plain_client(server.address), Some("ns"));
        let (failed, lives) = (read(&pod("failed", "Failed")), read(&pod("lives", "Running")));
        let mut start = Start::default();
        assert_eq!(start.make_room(&objects, "a", &[failed.clone(), lives]), None);
        let line = start.make_room(&objects, "a", std::slice::from_ref(&failed)).unwrap();
        assert!(line.starts_with("1 executors of ended drivers are deleted"), "{line}");
        assert_eq!(start.make_room(&objects, "a", &[failed]), None, "it was told already");
        let deleted = deleted.lock().unwrap();
        assert!(deleted.len() == 1 && deleted[0].contains("/pods/a-i-exec-1"), "{deleted:?}");
    }

    #[test]
    fn a_command_that_cannot_be_started_is_hopeless_once() {
        let ended = |reason: &str, message: &str| {
            let end = json!({ "exitCode": 128, "reason": reason, "message": message });
            [pod("Failed", json!({ "terminated": end }))]
        };
        let absent = "failed to create containerd task: runc create failed: unable to start container process: exec: \
                      \"x\": executable file not found in $PATH: unknown";
        for message in [
            "error running prestart hook #0: exit status 1, stderr: nvidia-container-cli: initialization error",
            "exec: \"/usr/bin/nvidia-container-runtime-hook\": executable file not found in $PATH: hook",
            "mkdir /run/containerd/x: no space left on device",
            "exec /bin/driver: exec format error",
        ] {
            assert!(!Start::default().is_hopeless(&ended("StartError", message)), "{message}");
        }
        for message in [
            "exec: \"/bin/x\": stat /bin/x: no such file or directory",
            "exec: \"/bin/x\": permission denied: unknown",
            "executable file `x` not found in $PATH: No such file or directory",
        ] {
            assert!(Start::default().is_hopeless(&ended("StartError", message)), "{message}");
        }
        let mut start = Start::default();
        assert!(!start.is_hopeless(&ended("Error", absent)));
        assert!(start.is_hopeless(&ended("StartError", absent)));
        assert!(!start.is_hopeless(&ended("StartError", absent)), "the Job was told already");
        // A standby's pods cannot be started, and one of the same Job led before.
        for (state, want) in [("terminated", true), ("running", false)] {
            let led = leader(json!({ state: {} }));
            let [last] = ended("StartError", absent);
            assert_eq!(Start::default().is_hopeless(&[led, last]), want, "{state}");
        }
    }
}
