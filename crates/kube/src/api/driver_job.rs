//! The Job of the driver's pod: its other pods, and its `backoffLimit`.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::objects::{Kind, Objects};
use super::orphans::AppExecutors;
use super::{CALL_TIMEOUT, OBJECT_BYTES_MAX, get, object_path, read};
use crate::http::Http;
use posse_core::model::ids::Uid;
use posse_core::model::owner::Owner;
use posse_core::model::pod::Pod;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::labels::{EXIT_CODE, LEADER, LEASED, RECORDED, TAKEOVER};
use posse_wire::k8s::orphan::parse_owner;
use posse_wire::k8s::status::Verb;
use posse_wire::pod::build::OwnerRef;
use posse_wire::pod::details::PodDetails;

/// The label that the Job controller gives to a Job's pods.
const JOB_LABEL: &str = "job-name";

/// The Job that controls the driver's pod.
#[derive(Clone, Debug)]
pub struct DriverJob {
    objects: Objects,
    job: Owner,
    /// The driver's pod.
    pod: Uid,
    pod_name: String,
}

/// What a Job says of its run.
#[derive(Clone, Copy, Debug)]
pub struct JobTold {
    /// How many of its pods have failed, as it counts them.
    pub n_failed: u64,
    /// The exit code that posse has written into it.
    pub exit_code: Option<u8>,
    pub created: Option<SystemTime>,
    /// A pod of it has had a record.
    pub is_recorded: bool,
    /// A pod of it has had its Leases.
    pub is_leased: bool,
}

/// What is in a driver's pod beside the driver.
#[derive(Clone, Debug)]
pub struct PodRest {
    /// The names of the containers that have not ended with 0.
    pub containers: Vec<String>,
    /// The deadline that ends those that run on; none if none does, or the pod has an earlier one.
    pub deadline_s: Option<u32>,
}

impl DriverJob {
    /// The Job that controls this pod; `None` if no Job does.
    pub fn find(http: &Http, namespace: &str, pod: &OwnerRef) -> Result<Option<Self>, Refusal> {
        let path = object_path("/api/v1", namespace, "pods", Some(&pod.name));
        let request = get(path, CALL_TIMEOUT, OBJECT_BYTES_MAX);
        let facts = read(http, &request, Verb::Get, parse_owner)?;
        let (pod, pod_name) = (Uid::new(&pod.uid), pod.name.clone());
        let objects = Objects::new(http.clone(), Some(namespace));
        let job = facts.job.filter(|_| facts.uid == pod);
        Ok(job.map(|job| Self { objects, job, pod, pod_name }))
    }

    /// The Job's name.
    pub fn name(&self) -> &str {
        &self.job.name
    }

    /// The Job's uid.
    pub fn uid(&self) -> &Uid {
        &self.job.uid
    }

    /// As the owner of what outlives the driver's pod.
    pub fn owner_ref(&self) -> OwnerRef {
        OwnerRef {
            api_version: "batch/v1".to_owned(),
            kind: "Job".to_owned(),
            name: self.job.name.clone(),
            uid: self.job.uid.to_string(),
        }
    }

    /// The executors of its application.
    pub fn executors(&self, app: &str) -> AppExecutors {
        AppExecutors::of(&self.objects, app)
    }

    /// Whether it makes another pod after this one. False if it is gone.
    pub fn goes_on(&self) -> Result<bool, Refusal> {
        let job = self.objects.job(&self.job.name)?;
        let ours = job.filter(|job| job.meta.uid == self.job.uid.to_string());
        Ok(ours.is_some_and(|job| job.goes_on(Timestamp::now())))
    }

    /// The uid of the driver's pod.
    pub fn pod(&self) -> &Uid {
        &self.pod
    }

    /// The pods of Jobs with this name, ours included.
    pub fn pods(&self) -> Result<Vec<Pod>, Refusal> {
        let selector = format!("{JOB_LABEL}={}", self.job.name);
        let facts = |pod: &[u8]| Ok(PodDetails::parse(pod)?.facts);
        self.objects.list(Kind::Pod, &selector, &facts).map(|(pods, _)| pods)
    }

    /// The pods of the Job that wait for this one to end.
    pub fn standbys(&self) -> Result<Vec<String>, Refusal> {
        let selector = format!("{JOB_LABEL}={}", self.job.name);
        let (pods, _) = self.objects.pods(&selector)?;
        let job = self.job.uid.to_string();
        let stands_by = |pod: &&PodDetails| {
            pod.facts.uid != self.pod && pod.is_live() && pod.meta.is_owned_by(&job)
        };
        Ok(pods.iter().filter(stands_by).map(|pod| pod.name().to_owned()).collect())
    }

    /// What the Job says; a Job that is gone says nothing.
    pub fn told(&self) -> Result<JobTold, Refusal> {
        let job = self.objects.job(&self.job.name)?.unwrap_or_default();
        let created = job.meta.creation_timestamp.as_ref();
        let created = created.and_then(|text| text.parse::<Timestamp>().ok()).map(SystemTime::from);
        let is_ours = job.meta.uid == self.job.uid.to_string();
        let has_had = |what| is_ours && job.meta.annotation(what).is_some();
        Ok(JobTold {
            n_failed: job.status.failed,
            exit_code: job.exit_code(),
            created,
            is_recorded: has_had(RECORDED),
            is_leased: has_had(LEASED),
        })
    }

    /// Tells the pods that come after this one what it has.
    pub fn note(&self, what: &[&str]) -> Result<(), Refusal> {
        let annotations: BTreeMap<_, _> = what.iter().map(|&what| (what, "true")).collect();
        let metadata = json!({ "uid": self.job.uid.to_string(), "annotations": annotations });
        self.objects.patch(Kind::Job, &self.job.name, &json!({ "metadata": metadata }))
    }

    /// Leads the driver's Service to this pod alone: an earlier one may stay on a node that is lost. `takeover`: what
    /// is told of it.
    pub fn take_lead(&self, takeover: Option<&str>) -> Result<(), Refusal> {
        let selector = format!("{JOB_LABEL}={},{}", self.job.name, LEADER.0);
        let (pods, _) = self.objects.pods(&selector)?;
        let (ours, others): (Vec<_>, _) = pods.iter().partition(|pod| pod.facts.uid == self.pod);
        for pod in others {
            let patch = json!({ "metadata": { "uid": pod.uid(), "labels": { LEADER.0: null } } });
            match self.objects.patch(Kind::Pod, pod.name(), &patch) {
                Err(refusal) if refusal.class == RefusalClass::NotFound => {}
                answer => answer?,
            }
        }
        if takeover.is_none() && !ours.is_empty() {
            return Ok(());
        }
        let patch = json!({ "metadata": {
            "uid": self.pod.to_string(), "labels": { LEADER.0: LEADER.1 },
            "annotations": { TAKEOVER: takeover },
        } });
        self.objects.patch(Kind::Pod, &self.pod_name, &patch)
    }

    /// What is in the driver's pod beside the driver, which ends now. `None` if it is nothing that has not ended with
    /// 0, or if the pod is being deleted.
    pub fn rest(&self) -> Result<Option<PodRest>, Refusal> {
        let pod = self.objects.pod(&self.pod_name)?;
        let pod = pod.filter(|pod| pod.facts.uid == self.pod && !pod.facts.deleting);
        Ok(pod.filter(|pod| pod.rest().next().is_some()).map(|pod| {
            let containers = pod.rest().map(|one| one.name.clone()).collect();
            PodRest { containers, deadline_s: pod.rest_deadline_s(Timestamp::now()) }
        }))
    }

    /// Ends what runs on in the driver's pod when this deadline is over.
    pub fn end_rest(&self, deadline_s: u32) -> Result<(), Refusal> {
        let patch = rest_patch(&self.pod.to_string(), deadline_s);
        self.objects.patch(Kind::Pod, &self.pod_name, &patch)
    }

    /// Sets the number of failed pods after which the Job fails. `exit_code`: the application's, if the
    /// Job has to end.
    pub fn set_backoff_limit(&self, limit: u64, exit_code: Option<u8>) -> Result<(), Refusal> {
        let mut patch = json!({
            "metadata": { "uid": self.job.uid.to_string() },
            "spec": { "backoffLimit": limit },
        });
        // Without a code the patch is silent about it: a pod that ends may have told one since the Job was read.
        if let Some(code) = exit_code {
            patch["metadata"]["annotations"] = json!({ EXIT_CODE: code.to_string() });
        }
        self.objects.patch(Kind::Job, &self.job.name, &patch)
    }
}

/// The patch of a pod's deadline that ends what runs on in it.
pub fn rest_patch(uid: &str, deadline_s: u32) -> Value {
    json!({ "metadata": { "uid": uid }, "spec": { "activeDeadlineSeconds": deadline_s } })
}
