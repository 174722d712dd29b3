//! The Job or Pod that runs an application's driver.

use crate::plan::driver_name;
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::job::Job;
use posse_wire::k8s::labels::{APP, DRIVER, MANAGED_BY};
use posse_wire::k8s::object::Meta;
use posse_wire::pod::details::PodDetails;

/// What runs a driver.
#[derive(Clone, Debug)]
pub enum Workload {
    Job(Box<Job>),
    Pod(Box<PodDetails>),
}

impl Workload {
    /// Reads the Job of this name, or with any other `kind` the Pod; `None` if it does not exist.
    pub fn get(objects: &Objects, kind: Kind, name: &str) -> Result<Option<Self>, Refusal> {
        Ok(match kind == Kind::Job {
            true => objects.job(name)?.map(|job| Self::Job(Box::new(job))),
            false => objects.pod(name)?.map(|pod| Self::Pod(Box::new(pod))),
        })
    }

    pub fn kind(&self) -> Kind {
        match self {
            Self::Job(_) => Kind::Job,
            Self::Pod(_) => Kind::Pod,
        }
    }

    pub fn meta(&self) -> &Meta {
        match self {
            Self::Job(job) => &job.meta,
            Self::Pod(pod) => &pod.meta,
        }
    }

    /// The Job, if it is one.
    pub fn job(&self) -> Option<&Job> {
        match self {
            Self::Job(job) => Some(job),
            Self::Pod(_) => None,
        }
    }

    /// True if its driver has ended for good: the Job has finished, or posse has told its end in it.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Job(job) => job.outcome().is_some() || job.exit_code().is_some(),
            Self::Pod(pod) => pod.has_ended(),
        }
    }
}

/// Finds the Job or Pod that runs an application's driver.
pub fn find_workload(objects: &Objects, app: &str) -> Result<Option<Workload>, Refusal> {
    let name = driver_name(app);
    for kind in [Kind::Job, Kind::Pod] {
        let found = Workload::get(objects, kind, &name)?;
        if let Some(workload) = found.filter(|workload| is_driver_of(workload.meta(), app)) {
            log::debug!("{} runs the driver of {app}", kind.with_name(&name));
            return Ok(Some(workload));
        }
    }
    Ok(None)
}

/// True if the object has the labels of this application's driver.
pub fn is_driver_of(meta: &Meta, app: &str) -> bool {
    [(APP, app), MANAGED_BY, DRIVER].iter().all(|(key, value)| meta.label(key) == Some(value))
}

/// The driver's pods without those of an earlier Job with the same name, which the garbage collector
/// has not deleted yet.
pub fn owned_pods(job: Option<&Job>, mut pods: Vec<PodDetails>) -> Vec<PodDetails> {
    if let Some(job) = job {
        pods.retain(|pod| pod.meta.is_owned_by(&job.meta.uid));
    }
    pods
}
