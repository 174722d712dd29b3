//! Why the Job of a driver has no pod that could run: only its Events tell it.

use crate::state::{DriverState, newest, reason_and_message, state};
use posse_core::policy::room_of_ended_pods::Holders;
use posse_kube::api::objects::Objects;
use posse_wire::k8s::job::Job;
use posse_wire::k8s::seen_event::SeenEvent;
use posse_wire::pod::details::PodDetails;

/// What the server says of a pod for which a quota has no room.
pub(super) const NO_ROOM: &str = "exceeded quota";

/// The last warning about an object, of those whose time is one that counts.
pub(super) fn last_warning(
    objects: &Objects,
    uid: &str,
    counts: impl Fn(&str) -> bool,
) -> Option<String> {
    fn seen(event: &SeenEvent) -> &str {
        event.time().or(event.meta.creation_timestamp.as_deref()).unwrap_or_default()
    }
    let events = objects.events(uid).unwrap_or_default();
    let warnings = events.iter().filter(|event| event.is_warning() && counts(seen(event)));
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let last = warnings.max_by_key(|event| seen(event))?;
    Some(reason_and_message(&text(&last.reason), &text(&last.message)))
}

/// Why the Job has no pod that could run: the newest warning Event since its last pod was created.
pub(super) fn why_no_pod(objects: &Objects, job: &Job, pods: &[PodDetails]) -> Option<String> {
    let is_new = pods.is_empty() && state(Some(job), &[]) == DriverState::Pending;
    let is_between =
        !pods.is_empty() && !pods.iter().any(PodDetails::is_live) && job.outcome().is_none();
    if !is_new && !is_between {
        return None;
    }
    let made = newest(pods).and_then(|pod| pod.meta.creation_timestamp.as_deref());
    let name = &job.meta.name;
    match last_warning(objects, &job.meta.uid, |seen| seen > made.unwrap_or_default()) {
        Some(why) if is_new => Some(format!("job {name} has no pod: {why}")),
        // The old pod may be terminating for long, and count in a quota.
        Some(why) => {
            let held = held_by_ended(&why, pods);
            Some(format!("job {name} cannot replace its pod: {why}{held}"))
        }
        None => is_new.then(|| format!("job {name} has no pod yet")),
    }
}

/// A quota on `count/pods` counts pods that have ended, and these pods are how posse counts the retries: it deletes none.
fn held_by_ended(why: &str, pods: &[PodDetails]) -> String {
    let ended: Vec<&str> =
        pods.iter().filter(|pod| pod.has_ended()).map(PodDetails::name).collect();
    let is_held = why.contains(NO_ROOM) && Holders::of_quota(why) == Holders::All;
    if ended.is_empty() || !is_held {
        return String::new();
    }
    format!(
        "; its ended pods ({}) hold a part of it: raise the quota, or delete one, for which the job tries once more",
        ended.join(", ")
    )
}
