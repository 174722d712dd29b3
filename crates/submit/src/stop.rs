//! Stops an application in the cluster: first the driver, which needs its service account to stop its
//! executors, then all objects that belong to it.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::plan::{driver_name, driver_selector};
use crate::workload::{Workload, find_workload, is_driver_of};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_kube::api::retry::with_retries;
use posse_wire::k8s::labels::{APP, RECORD, executor_selector};
use posse_wire::k8s::object::Meta;
use posse_wire::pod::details::PodDetails;

/// How much longer than its grace period a pod may take to disappear: kubelets remove the containers of some pods that
/// never ran only once a minute (ContainerGCPeriod).
const GONE_RESERVE: Duration = Duration::from_secs(90);
/// How long those who have set finalizers may take to remove them from pods that have ended.
const HELD_LIMIT: Duration = Duration::from_secs(10);
/// How long the Job controller may take to delete the pods after parallelism was set to 0.
const CONTROLLER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(200);

/// The objects that are deleted with the driver, the permissions last.
const PARTS: [Kind; 6] = [
    Kind::ConfigMap,
    Kind::Secret,
    Kind::Service,
    Kind::RoleBinding,
    Kind::Role,
    Kind::ServiceAccount,
];

/// The result of a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Everything is deleted.
    Gone,
    /// The application has no driver and no other objects.
    Nothing,
    /// These pods still exist: their names, and the finalizers that hold them.
    Remain(Vec<String>),
}

/// An application whose driver is being stopped.
#[derive(Debug)]
pub struct StopRequest<'a> {
    objects: &'a Objects,
    app: String,
    workload: Option<Workload>,
    drivers: Vec<PodDetails>,
    grace_s: Option<u32>,
}

impl<'a> StopRequest<'a> {
    /// Deletes an application's driver. `grace_s` replaces the grace period of its pod.
    pub fn new(objects: &'a Objects, app: &str, grace_s: Option<u32>) -> Result<Self, Refusal> {
        let workload = find_workload(objects, app)?;
        let mut drivers = drivers(objects, app)?;
        // Also without a pod now: the Job would create its next one while its executors end.
        if let Some(job) =
            workload.as_ref().and_then(Workload::job).filter(|job| job.outcome().is_none())
        {
            delete_pods_of_job(objects, app, &job.meta)?;
            let mut late = drivers_left(objects, app)?;
            late.retain(|pod| drivers.iter().all(|known| known.uid() != pod.uid()));
            drivers.append(&mut late);
        }
        let request = Self { objects, app: app.to_owned(), workload, drivers, grace_s };
        for pod in request.live() {
            with_retries(|| objects.delete(Kind::Pod, pod.name(), pod.uid(), grace_s))?;
        }
        Ok(request)
    }

    fn live(&self) -> impl Iterator<Item = &PodDetails> {
        self.drivers.iter().filter(|pod| !pod.is_final())
    }

    /// Waits for the driver's end and deletes its other objects.
    pub fn finish(&self) -> Result<Stopped, Refusal> {
        let objects = self.objects;
        // Executors are the pod's, or the Job's.
        let job = self.workload.as_ref().map(|workload| workload.meta().uid.as_str());
        let uids: Vec<&str> = self.drivers.iter().map(PodDetails::uid).chain(job).collect();
        let longest = self.live().map(|pod| pod.facts.grace_s).max().unwrap_or(0);
        let grace_s = self.grace_s.unwrap_or(longest);
        let remaining = wait_until_gone(objects, &self.app, &uids, grace_s)?;
        if let Some(workload) = &self.workload {
            let meta = workload.meta();
            with_retries(|| objects.delete(workload.kind(), &meta.name, &meta.uid, None))?;
        }
        for pod in self.drivers.iter().filter(|pod| pod.is_final()) {
            with_retries(|| objects.delete(Kind::Pod, pod.name(), pod.uid(), None))?;
        }
        let n_parts = delete_parts(objects, &self.app)?;
        Ok(match remaining.is_empty() {
            false => Stopped::Remain(remaining),
            true if self.workload.is_none() && self.drivers.is_empty() && n_parts == 0 => {
                Stopped::Nothing
            }
            true => Stopped::Gone,
        })
    }
}

/// All pods of an application's driver.
pub fn drivers(objects: &Objects, app: &str) -> Result<Vec<PodDetails>, Refusal> {
    objects.pods(&driver_selector(Some(app))).map(|(pods, _)| pods)
}

/// The same while an application is being stopped: a server that is away for a moment must not leave it half stopped.
fn drivers_left(objects: &Objects, app: &str) -> Result<Vec<PodDetails>, Refusal> {
    with_retries(|| drivers(objects, app))
}

/// Sets the Job's parallelism to 0, so that its controller deletes the pods and creates no others. If
/// the Job were deleted now, the garbage collector would delete the driver's permissions while the
/// driver still stops its executors.
fn delete_pods_of_job(objects: &Objects, app: &str, job: &Meta) -> Result<(), Refusal> {
    let patch = json!({ "metadata": { "uid": job.uid }, "spec": { "parallelism": 0 } });
    match with_retries(|| objects.patch(Kind::Job, &job.name, &patch)) {
        Ok(()) => {}
        Err(refusal) if refusal.class == RefusalClass::Forbidden => {
            log::debug!("parallelism cannot be set, so the job is deleted now: {refusal}");
            return with_retries(|| objects.delete(Kind::Job, &job.name, &job.uid, None));
        }
        Err(refusal)
            if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
        {
            return Ok(());
        }
        Err(refusal) => return Err(refusal),
    }
    let started_at = Instant::now();
    while started_at.elapsed() < CONTROLLER_LIMIT {
        if !drivers_left(objects, app)?.iter().any(PodDetails::is_live) {
            return Ok(());
        }
        thread::park_timeout(POLL);
    }
    log::debug!("the job controller has not deleted the pods yet");
    Ok(())
}

/// Waits until the driver's pods and their executors are gone. Returns the names of those that are
/// left after the grace period.
fn wait_until_gone(
    objects: &Objects,
    app: &str,
    uids: &[&str],
    grace_s: u32,
) -> Result<Vec<String>, Refusal> {
    let limit = Duration::from_secs(u64::from(grace_s)).saturating_add(GONE_RESERVE);
    let started_at = Instant::now();
    let executors = executor_selector(app);
    // Since when nothing but finalizers holds what is left.
    let mut held_since = None;
    loop {
        let mut left = drivers_left(objects, app)?;
        let is_driver_gone = left.iter().all(PodDetails::is_final);
        let (mut owned, _) = with_retries(|| objects.pods(&executors))?;
        owned.retain(|pod| uids.iter().any(|uid| pod.meta.is_owned_by(uid)));
        left.extend(owned.iter().cloned());
        // The garbage collector deletes retained failed pods with their owner.
        left.retain(is_left);
        let is_held = left.iter().all(PodDetails::is_final);
        let held_at = held_since.filter(|_| is_held).unwrap_or_else(Instant::now);
        held_since = Some(held_at);
        if left.is_empty() || started_at.elapsed() > limit || held_at.elapsed() > HELD_LIMIT {
            return Ok(left.iter().map(name_left).collect());
        }
        if is_driver_gone {
            // The driver, which should have deleted them, is gone.
            for pod in owned.iter().filter(|pod| !pod.facts.deleting) {
                with_retries(|| objects.delete(Kind::Pod, pod.name(), pod.uid(), None))?;
            }
        }
        thread::park_timeout(POLL);
    }
}

/// It runs, or it is deleted and stays.
fn is_left(pod: &PodDetails) -> bool {
    !pod.is_final() || pod.facts.held_by().is_some()
}

fn name_left(pod: &PodDetails) -> String {
    let name = pod.name();
    match pod.facts.held_by() {
        None => name.to_owned(),
        Some(held_by) => {
            format!("{name} (held by finalizer {held_by}, which nobody here removes)")
        }
    }
}

/// Deletes the other objects of the driver and returns how many there were. The garbage collector
/// would also delete them, but not those of a killed `posse submit`, which have no owner.
fn delete_parts(objects: &Objects, app: &str) -> Result<u32, Refusal> {
    let name = driver_name(app);
    let mut n_parts = 0;
    for kind in PARTS {
        match with_retries(|| objects.meta(kind, &name)) {
            Ok(Some(part)) if is_driver_of(&part, app) => {
                n_parts += 1;
                match with_retries(|| objects.delete(kind, &name, &part.uid, None)) {
                    Err(refusal) if refusal.class != RefusalClass::Forbidden => {
                        return Err(refusal);
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(_) => {}
            Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                log::debug!("no permission to read the {}: {refusal}", kind.name());
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(n_parts + delete_record(objects, app)?)
}

/// Deletes what is left of the record of a Job that was deleted without it, and returns how many objects there were. One
/// with an owner ends with its owner.
fn delete_record(objects: &Objects, app: &str) -> Result<u32, Refusal> {
    let selector = format!("{APP}={app},{}={}", RECORD.0, RECORD.1);
    let found = match with_retries(|| objects.list_meta(Kind::ConfigMap, &selector)) {
        Err(refusal) if refusal.class == RefusalClass::Forbidden => {
            log::debug!("no permission to list configmaps: {refusal}");
            return Ok(0);
        }
        found => found?,
    };
    let mut n_left = 0;
    for left in found.iter().filter(|one| one.owner_references.is_empty()) {
        with_retries(|| objects.delete(Kind::ConfigMap, &left.name, &left.uid, None))?;
        n_left += 1;
    }
    Ok(n_left)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use posse_testing::{Answer, TestServer, plain_client};
    use posse_wire::k8s::labels::{DRIVER, MANAGED_BY};

    use super::*;

    /// Else the application would stay without a driver and with its Job. Between two tries of its driver the Job has no
    /// pod, and would begin the next one in the stop.
    #[test]
    fn an_outage_does_not_end_a_stop_that_has_begun() {
        [true, false].into_iter().for_each(stops);
    }

    fn stops(has_pod: bool) {
        // What was asked since the Job was told to have no pods.
        let asked_since = Mutex::new(None::<BTreeSet<String>>);
        let server = TestServer::start(None, move |asked| {
            let line = asked.line();
            let mut asked_since = asked_since.lock().unwrap();
            if line.starts_with("PATCH") {
                *asked_since = Some(BTreeSet::new());
            }
            let is_lost = ["/pods?", "/configmaps/"].iter().any(|path| line.contains(path));
            if is_lost
                && let Some(lines) = asked_since.as_mut()
                && lines.insert(line.to_owned())
            {
                return Answer::json(503, "{}");
            }
            let labels = json!({ APP: "a", MANAGED_BY.0: MANAGED_BY.1, DRIVER.0: DRIVER.1 });
            let job = json!({ "metadata": { "name": "a-driver", "uid": "j", "labels": labels } });
            let mut pods = json!({ "metadata": { "resourceVersion": "1" }, "items": [] });
            if has_pod && asked_since.is_none() {
                pods["items"] = json!([{ "metadata": { "name": "d", "uid": "d" },
                    "spec": { "containers": [{ "name": "driver" }] },
                    "status": { "phase": "Running" } }]);
            }
            let records = json!({ "metadata": { "resourceVersion": "1" }, "items": [
                { "metadata": { "name": "a-record-1", "uid": "r" } },
                { "metadata": { "name": "a-record-2", "uid": "s",
                    "ownerReferences": [{ "kind": "Job", "name": "a-driver", "uid": "j" }] } },
            ] });
            match line {
                _ if line.contains("/configmaps?") => Answer::json(200, records.to_string()),
                _ if line.contains("/pods?") => Answer::json(200, pods.to_string()),
                _ if line.contains("/jobs/") => Answer::json(200, job.to_string()),
                _ if line.starts_with("GET") => {
                    let status = json!({ "kind": "Status", "code": 404, "reason": "NotFound" });
                    Answer::json(404, status.to_string())
                }
                _ => Answer::json(200, "{}"),
            }
        });
        let objects = Objects::new(plain_client(server.address), Some("ns"));
        let stopped = StopRequest::new(&objects, "a", None).and_then(|request| request.finish());
        assert_eq!(stopped, Ok(Stopped::Gone));
        let asked = server.seen().into_iter().map(|asked| asked.line().to_owned());
        let asked: Vec<String> = asked.collect();
        let first_write = asked.iter().find(|line| !line.starts_with("GET ")).unwrap();
        assert!(
            first_write.starts_with("PATCH ") && first_write.contains("/jobs/"),
            "{first_write}"
        );
        let records = asked.into_iter().filter(|line| line.contains("-record-"));
        let deleted = records.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
        let is_one = |line: &str| line.starts_with("DELETE ") && line.contains("/a-record-1?");
        assert!(matches!(&deleted[..], [line] if is_one(line)), "{deleted:?}");
    }
}
