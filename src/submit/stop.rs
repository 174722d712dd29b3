//! Owns how an application in the cluster is ended: first its driver, which ends its executors and
//! needs its rights for that, then all that belongs to it.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::objects::{Kind, Objects};
use crate::submit::plan::{driver_name, driver_selector};
use crate::submit::retry::with_retries;
use crate::submit::state::{is_final, name_of, uid_of};
use crate::submit::workload::{find_workload, is_driver_of, is_owned};
use crate::wire::labels::{APP, COMPONENT};

/// What a pod has that names none, seconds.
const GRACE_DEFAULT_S: u64 = 30;
/// How much longer than its grace a pod may take to be gone.
const GONE_RESERVE: Duration = Duration::from_secs(30);
/// How long a Job's controller may take to end the pods of a Job that is to have none.
const CONTROLLER_LIMIT: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(200);

/// What goes with the driver, the rights last.
const PARTS: [Kind; 5] =
    [Kind::ConfigMap, Kind::Service, Kind::RoleBinding, Kind::Role, Kind::ServiceAccount];

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All of it is gone.
    Gone,
    /// There was no driver of that application, nor anything of it.
    Nothing,
    /// These pods were not seen to go.
    Remain(Vec<String>),
}

/// An application that has been told to end.
#[derive(Debug)]
pub struct StopRequest<'a> {
    objects: &'a Objects,
    app: String,
    workload: Option<(Kind, Value)>,
    drivers: Vec<Value>,
    grace_s: Option<u32>,
}

impl<'a> StopRequest<'a> {
    /// Tells an application's driver to end. `grace_s` is what it gets for that, instead of what its
    /// pod says.
    pub fn new(objects: &'a Objects, app: &str, grace_s: Option<u32>) -> Result<Self, Refusal> {
        let workload = find_workload(objects, app)?;
        let asked = Self {
            objects,
            app: app.to_owned(),
            workload,
            drivers: drivers(objects, app)?,
            grace_s,
        };
        if asked.live().next().is_some() {
            if let Some((Kind::Job, job)) = &asked.workload {
                empty(objects, app, job)?;
            }
            for pod in asked.live() {
                with_retries(|| objects.delete(Kind::Pod, name_of(pod), uid_of(pod), grace_s))?;
            }
        }
        Ok(asked)
    }

    fn live(&self) -> impl Iterator<Item = &Value> {
        self.drivers.iter().filter(|pod| !is_final(pod))
    }

    /// Sees it end, and removes what is left of it.
    pub fn finish(&self) -> Result<Stopped, Refusal> {
        let objects = self.objects;
        let live: Vec<&Value> = self.live().collect();
        let uids: Vec<&str> = self.drivers.iter().map(uid_of).collect();
        let remaining = wait_until_gone(objects, &self.app, &live, &uids, self.grace_s)?;
        if let Some((kind, workload)) = &self.workload {
            with_retries(|| objects.delete(*kind, name_of(workload), uid_of(workload), None))?;
        }
        for pod in self.drivers.iter().filter(|pod| is_final(pod)) {
            with_retries(|| objects.delete(Kind::Pod, name_of(pod), uid_of(pod), None))?;
        }
        let n_parts = remove_parts(objects, &self.app)?;
        Ok(match remaining.is_empty() {
            false => Stopped::Remain(remaining),
            true if self.workload.is_none() && self.drivers.is_empty() && n_parts == 0 => {
                Stopped::Nothing
            }
            true => Stopped::Gone,
        })
    }
}

/// The pods that were made for an application's driver.
pub fn drivers(objects: &Objects, app: &str) -> Result<Vec<Value>, Refusal> {
    objects.list(Kind::Pod, &driver_selector(Some(app)), &|pod| pod).map(|(pods, _)| pods)
}

/// Has a Job end its pods and make no other. Were it deleted, the garbage collector would take the
/// driver's rights away while it ends its executors.
fn empty(objects: &Objects, app: &str, job: &Value) -> Result<(), Refusal> {
    let patch = json!({ "metadata": { "uid": uid_of(job) }, "spec": { "parallelism": 0 } });
    match with_retries(|| objects.patch(Kind::Job, name_of(job), &patch)) {
        Ok(_) => {}
        Err(refusal) if refusal.class == RefusalClass::Forbidden => {
            log::debug!("the job is deleted first: {refusal}");
            return with_retries(|| objects.delete(Kind::Job, name_of(job), uid_of(job), None));
        }
        Err(refusal)
            if matches!(refusal.class, RefusalClass::Conflict | RefusalClass::NotFound) =>
        {
            return Ok(());
        }
        Err(refusal) => return Err(refusal),
    }
    let asked = Instant::now();
    while asked.elapsed() < CONTROLLER_LIMIT {
        let is_told =
            |pod: &Value| is_final(pod) || !pod["metadata"]["deletionTimestamp"].is_null();
        if drivers(objects, app)?.iter().all(is_told) {
            return Ok(());
        }
        thread::park_timeout(POLL);
    }
    log::debug!("the job's pods are not ended by its controller");
    Ok(())
}

/// Waits for the driver's pods to go, and for the executors that are theirs.
fn wait_until_gone(
    objects: &Objects,
    app: &str,
    live: &[&Value],
    uids: &[&str],
    grace_s: Option<u32>,
) -> Result<Vec<String>, Refusal> {
    let own = |pod: &&Value| pod["spec"]["terminationGracePeriodSeconds"].as_u64();
    let longest = live.iter().map(|pod| own(pod).unwrap_or(GRACE_DEFAULT_S)).max().unwrap_or(0);
    let grace_s = grace_s.map_or(longest, u64::from);
    let limit = Duration::from_secs(grace_s).saturating_add(GONE_RESERVE);
    let asked = Instant::now();
    let executors = format!("{APP}={app},{}={}", COMPONENT.0, COMPONENT.1);
    loop {
        let mut left: Vec<String> = Vec::new();
        for pod in drivers(objects, app)? {
            if live.iter().any(|one| uid_of(one) == uid_of(&pod)) && !is_final(&pod) {
                left.push(name_of(&pod).to_owned());
            }
        }
        let is_driver_gone = left.is_empty();
        let (pods, _) = objects.list(Kind::Pod, &executors, &|pod| pod)?;
        let theirs = pods.iter().filter(|pod| uids.iter().any(|uid| is_owned(pod, uid)));
        let theirs: Vec<&Value> = theirs.collect();
        // Failed ones that were kept to be looked at go with their owner.
        let alive = theirs.iter().filter(|pod| !is_final(pod));
        left.extend(alive.map(|pod| name_of(pod).to_owned()));
        if left.is_empty() || asked.elapsed() > limit {
            return Ok(left);
        }
        if is_driver_gone {
            // Whoever should have ended them is gone.
            for pod in theirs.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()) {
                with_retries(|| objects.delete(Kind::Pod, name_of(pod), uid_of(pod), None))?;
            }
        }
        thread::park_timeout(POLL);
    }
}

/// Removes what belongs to the driver: by the garbage collector's hand it would go as well, but not
/// what a submit left that was killed. Gives how many there were.
fn remove_parts(objects: &Objects, app: &str) -> Result<u32, Refusal> {
    let name = driver_name(app);
    let mut n_parts = 0;
    for kind in PARTS {
        match objects.get(kind, &name) {
            Ok(Some(part)) if is_driver_of(&part, app) => {
                n_parts += 1;
                match with_retries(|| objects.delete(kind, &name, uid_of(&part), None)) {
                    Err(refusal) if refusal.class != RefusalClass::Forbidden => {
                        return Err(refusal);
                    }
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(_) => {}
            Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                log::debug!("whether there is a {} cannot be told: {refusal}", kind.name());
            }
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(n_parts)
}
