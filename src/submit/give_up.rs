//! A followed driver that cannot start: the Job would try again for ever, or wait for an image for ever.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::core::model::refusal::Refusal;
use crate::kube::api::objects::{Kind, Objects};
use crate::kube::api::retry::with_retries;
use crate::submit::state::{cannot_start, image_problem, name_of, pod_line, uid_of};
use crate::submit::stop::StopRequest;

/// When a driver that does not start is given up.
#[derive(Debug)]
pub struct GiveUp {
    /// From the first failed pull of an image; zero: never.
    pub image_timeout: Duration,
}

/// What was seen of a driver that does not start.
#[derive(Debug, Default)]
pub(super) struct Start {
    /// When an image was first seen missing, without a pause since.
    image_missing_since: Option<Instant>,
    /// The Job was told to try no more.
    is_told: bool,
}

impl Start {
    /// True once, if the newest pod has ended because its command cannot be started: another pod would
    /// end in the same way.
    pub(super) fn is_hopeless(&mut self, newest: &Value) -> bool {
        let is_new = !self.is_told && cannot_start(newest);
        self.is_told |= is_new;
        is_new
    }

    /// The last words about an image that has been missing for too long.
    pub(super) fn missing_image(
        &mut self,
        pods: &[Value],
        limits: &GiveUp,
        now: Instant,
    ) -> Option<String> {
        let Some(pod) = pods.iter().find(|pod| image_problem(pod).is_some()) else {
            self.image_missing_since = None;
            return None;
        };
        let since = *self.image_missing_since.get_or_insert(now);
        let limit = limits.image_timeout;
        (!limit.is_zero() && now.duration_since(since) >= limit).then(|| pod_line(pod))
    }
}

/// Lets the Job end with its next status: no pod is created again.
pub(super) fn try_no_more(objects: &Objects, job: &Value) -> Result<(), Refusal> {
    let patch = json!({ "metadata": { "uid": uid_of(job) }, "spec": { "backoffLimit": 0 } });
    with_retries(|| objects.patch(Kind::Job, name_of(job), &patch)).map(|_| ())
}

/// Removes an application whose driver has never run.
pub(super) fn remove(objects: &Objects, app: &str) -> Result<(), Refusal> {
    StopRequest::new(objects, app, None)?.finish().map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(state: Value) -> Value {
        json!({
            "metadata": { "name": "d-1" },
            "spec": { "containers": [{ "name": "driver", "image": "nowhere/none:1" }] },
            "status": { "containerStatuses": [{ "name": "driver", "state": state }] }
        })
    }

    #[test]
    fn an_image_is_waited_for_until_its_limit() {
        let missing =
            [pod(json!({ "waiting": { "reason": "ErrImagePull", "message": "no such image" } }))];
        let backing_off = [pod(json!({ "waiting": { "reason": "ImagePullBackOff" } }))];
        let running = [pod(json!({ "running": {} }))];
        let limits = GiveUp { image_timeout: Duration::from_secs(60) };
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut start = Start::default();
        assert_eq!(start.missing_image(&missing, &limits, at(0)), None);
        assert_eq!(start.missing_image(&backing_off, &limits, at(59)), None);
        // It was pulled meanwhile: the time begins anew.
        assert_eq!(start.missing_image(&running, &limits, at(60)), None);
        assert_eq!(start.missing_image(&backing_off, &limits, at(61)), None);
        assert_eq!(start.missing_image(&missing, &limits, at(120)), None);
        let line = start.missing_image(&missing, &limits, at(121)).unwrap();
        assert!(line.contains("ErrImagePull: no such image"), "{line}");
        let never = GiveUp { image_timeout: Duration::ZERO };
        assert_eq!(start.missing_image(&missing, &never, at(10_000)), None);
    }

    #[test]
    fn a_command_that_cannot_be_started_is_hopeless_once() {
        let ended = |reason: &str| {
            let mut pod = pod(json!({ "terminated": { "exitCode": 128, "reason": reason } }));
            pod["status"]["phase"] = json!("Failed");
            pod
        };
        let mut start = Start::default();
        assert!(!start.is_hopeless(&ended("Error")));
        assert!(start.is_hopeless(&ended("StartError")));
        assert!(!start.is_hopeless(&ended("StartError")), "the Job was told already");
    }
}
