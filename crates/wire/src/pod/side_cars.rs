//! The rest of a pod: what runs on in it after the end of its main container, and the deadline that ends that. What
//! ends the rest says nothing about the main container.
//!
//! A deadline is the one way to end containers without deleting the pod, which is a record: a pod's
//! `activeDeadlineSeconds` may be set or lowered at any time. The kubelet counts from `status.startTime` by its own
//! clock, by which it has written `finishedAt` too, so no other clock matters.

use jiff::Timestamp;

use super::DISRUPTION_TARGET;
use super::fields::{RawContainerStatus, RawSpec, RawState, RawStatus};
use posse_core::model::pod::Rest;

/// The reason of a pod that its deadline has ended.
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
/// The reason of a condition `DisruptionTarget` that a kubelet writes before it ends the containers (since 1.26).
const BY_KUBELET: &str = "TerminationByKubelet";

/// What runs on in a pod that began at `start`, after `end`.
pub(super) fn rest(start: Option<Timestamp>, end: Timestamp, deadline_s: Option<u32>) -> Rest {
    let lived_s = start.map_or(0, |start| end.as_second() - start.as_second());
    // A second more, because both times are cut to seconds: what ends by itself at once has ended before.
    let from_s = u32::try_from(lived_s.max(0).saturating_add(1)).unwrap_or(u32::MAX);
    Rest { from_s, deadline_s }
}

impl RawStatus<'_> {
    /// How long the pod had been on its node when its main container ended.
    fn lived_s(&self, state: Option<&RawState<'_>>) -> Option<i64> {
        let (start, end) = (self.start()?, finished_at(state)?);
        Some(end.as_second() - start.as_second())
    }

    fn start(&self) -> Option<Timestamp> {
        self.start_time.parse().ok()
    }

    /// What runs on after the main container, whose `state` this is.
    pub(super) fn rest(
        &self,
        spec: &RawSpec<'_>,
        main: &str,
        state: Option<&RawState<'_>>,
    ) -> Option<Rest> {
        state?.terminated.as_ref()?;
        let runs_on = |status: &RawContainerStatus<'_>| {
            let has_ended = status.state.as_ref().is_some_and(|state| state.terminated.is_some());
            status.name != main && !has_ended
        };
        self.container_statuses.iter().find(|status| runs_on(status))?;
        // A kubelet always gives both times.
        let (start, end) = match (self.start(), finished_at(state)) {
            (Some(start), Some(end)) => (Some(start), end),
            (_, _) => (None, Timestamp::UNIX_EPOCH),
        };
        Some(rest(start, end, spec.deadline_s))
    }

    /// Whether the kubelet came only after the end of the main container, whose `state` this is. Both times are by its
    /// clock. Who else ends a pod has another one.
    pub(super) fn kubelet_ended_rest(&self, state: Option<&RawState<'_>>) -> bool {
        let said = self.condition(DISRUPTION_TARGET, "True");
        let said = said.filter(|said| said.reason == BY_KUBELET);
        let since = said.and_then(|said| said.since.parse::<Timestamp>().ok());
        finished_at(state).zip(since).is_some_and(|(end, since)| end < since)
    }

    /// The pod's reason and message, as far as they are about its main container.
    pub(super) fn reason_of_main(
        &self,
        spec: &RawSpec<'_>,
        state: Option<&RawState<'_>>,
    ) -> (&str, &str) {
        let lived_s = self.lived_s(state).and_then(|lived_s| u32::try_from(lived_s).ok());
        let is_of_deadline = self.reason == DEADLINE_EXCEEDED
            && lived_s
                .zip(spec.deadline_s)
                .is_some_and(|(lived_s, deadline_s)| lived_s < deadline_s);
        match is_of_deadline || self.kubelet_ended_rest(state) {
            true => ("", ""),
            false => (&self.reason, &self.message),
        }
    }
}

fn finished_at(state: Option<&RawState<'_>>) -> Option<Timestamp> {
    state?.terminated.as_ref()?.finished_at.parse().ok()
}

#[cfg(test)]
mod tests {
    use posse_core::model::pod::Pod;
    use serde_json::{Value, json};

    use super::super::details::PodDetails;

    fn ended(code: i32, at: &str) -> Value {
        json!({"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at}})
    }

    /// A pod that began at midnight, with another container beside the main one.
    fn pod(main: &Value, proxy: &Value, phase: &str, deadline_s: Option<u32>) -> Value {
        json!({
            "metadata": {"name": "p", "uid": "u", "annotations": {"posse.dev/container": "worker"}},
            "spec": {"activeDeadlineSeconds": deadline_s, "terminationGracePeriodSeconds": 30,
                "containers": [{"name": "proxy"}, {"name": "worker"}]},
            "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z", "containerStatuses": [
                {"name": "proxy", "state": proxy}, {"name": "worker", "state": main}]},
        })
    }

    fn read(pod: &Value) -> Pod {
        PodDetails::parse(pod.to_string().as_bytes()).unwrap().facts
    }

    /// What runs on has the pod's grace period, by the kubelet's own clock.
    #[test]
    fn the_rest_of_a_pod_gets_a_deadline() {
        let running = json!({"running": {}});
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let over = ended(3, "2026-01-01T00:01:00Z");
        for (main, proxy, phase, set, want) in [
            (&over, &running, "Running", None, Some(60 + 30 + 1)),
            (&over, &waiting, "Running", None, Some(91)),
            (&over, &running, "Running", Some(92), Some(91)),
            (&over, &running, "Running", Some(91), None),
            (&over, &ended(1, "2026-01-01T00:00:09Z"), "Running", None, None),
            (&running, &running, "Running", None, None),
            (&over, &running, "Failed", None, None),
        ] {
            let json = pod(main, proxy, phase, set);
            assert_eq!(read(&json).rest_deadline_s(30), want, "{json}");
        }
        // The kubelet ends native side-cars itself.
        let mut native = pod(&over, &running, "Running", None);
        native["spec"]["initContainers"] = json!([{"name": "proxy", "restartPolicy": "Always"}]);
        native["status"]["initContainerStatuses"] = json!([{"name": "proxy", "state": running}]);
        native["status"]["containerStatuses"] = json!([{"name": "worker", "state": over}]);
        assert_eq!(read(&native).rest_deadline_s(30), None);
        // A kubelet always gives the times. Without them the deadline counts from the start.
        let mut timeless = pod(&over, &running, "Running", None);
        timeless["status"]["startTime"] = Value::Null;
        assert_eq!(read(&timeless).rest_deadline_s(30), Some(31));
    }

    /// A deadline that came after the end of the main container says nothing about it.
    #[test]
    fn a_deadline_is_of_what_it_ended() {
        for (code, at, reason, is_of_main) in [
            (3, "2026-01-01T00:00:59Z", "DeadlineExceeded", false),
            (0, "2026-01-01T00:00:59Z", "DeadlineExceeded", false),
            (137, "2026-01-01T00:01:00Z", "DeadlineExceeded", true),
            (0, "2026-01-01T00:01:01Z", "DeadlineExceeded", true),
            (137, "2026-01-01T00:00:59Z", "Evicted", true),
        ] {
            let proxy = ended(137, "2026-01-01T00:01:02Z");
            let mut json = pod(&ended(code, at), &proxy, "Failed", Some(60));
            json["status"]["reason"] = json!(reason);
            json["status"]["message"] = json!("the words");
            let end = read(&json).end.expect("it has ended");
            let want = if is_of_main { (reason, "the words") } else { ("", "") };
            assert_eq!((&*end.pod_reason, &*end.pod_message), want, "{json}");
            assert_eq!(end.exit_code, Some(code));
        }
    }
}
