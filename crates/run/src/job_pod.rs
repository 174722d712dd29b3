//! The pod of a driver in a Job: counts the failures of the earlier ones, keeps the Job from counting drained
//! and lost pods, and ends it when no other pod may follow.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use log::{debug, error, info, warn};

use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::takeover::Takeover;
use posse_core::policy::driver_job::{FailedPods, JobEnd, PodEnd, backoff_limit, end_wait_ms};
use posse_kube::api::driver_job::{DriverJob, PodRest};
use posse_kube::api::retry::with_retries;
use posse_kube::http::Http;
use posse_wire::names;
use posse_wire::pod::build::OwnerRef;

/// The pod of a Job in which this process runs.
#[derive(Debug)]
pub struct JobPod {
    job: DriverJob,
    /// How often a failed driver is tried again.
    retries: u32,
    /// `None` if the earlier pods could not be read.
    earlier: Option<FailedPods>,
    /// When the Job was made.
    created: Option<SystemTime>,
    /// Others stand by, and read how this one has ended.
    has_standby: bool,
    is_ended: bool,
    found_at: Instant,
    is_readable: bool,
}

impl JobPod {
    /// This pod; `None` if no Job controls it, or the server does not say.
    pub fn find(
        http: &Http,
        namespace: &str,
        pod: &OwnerRef,
        (retries, standby): (u32, u32),
    ) -> Option<Self> {
        match with_retries(|| DriverJob::find(http, namespace, pod)) {
            Ok(Some(job)) => {
                let found_at = Instant::now();
                Some(Self {
                    job,
                    retries,
                    earlier: None,
                    created: None,
                    has_standby: standby > 0,
                    is_ended: false,
                    found_at,
                    is_readable: false,
                })
            }
            Ok(None) => {
                debug!("pod {} has no job", pod.name);
                None
            }
            Err(refusal) => {
                warn!(
                    "the job of pod {} is unknown, so it counts all failures: {refusal}",
                    pod.name
                );
                None
            }
        }
    }

    pub fn job(&self) -> &DriverJob {
        &self.job
    }

    /// Whether its pods may leave their executors to each other: at the end of one the Job says whether another follows.
    pub fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Whether this Lease was that of another pod of the Job, and not of an earlier Job with its name.
    pub fn follows(&self, from: &Takeover, now: SystemTime) -> bool {
        let released_at = now.checked_sub(Duration::from_millis(from.silent_ms));
        released_at.zip(self.created).is_some_and(|(at, created)| at >= created)
    }

    /// Whether the pods of the Job wait for each other.
    pub fn has_standby(&self) -> bool {
        self.has_standby
    }

    /// Counts the earlier pods. Returns why the driver must not start, after it has ended the Job.
    pub fn begin(&mut self) -> Option<JobEnd> {
        let job = self.job.name().to_owned();
        let pods = match with_retries(|| self.job.pods()) {
            Ok(pods) => pods,
            Err(refusal) => {
                warn!("the earlier pods of job {job} cannot be read: {refusal}");
                return None;
            }
        };
        let earlier = FailedPods::of(&pods, self.job.uid(), self.job.pod());
        let FailedPods { n, .. } = earlier;
        let retries = self.retries;
        let job_end = earlier.at_start(retries);
        self.earlier = Some(earlier);
        if pods.len() > 1 {
            info!("failed pods of job {job} so far: {n} (driver.retries: {retries})");
        }
        let told = with_retries(|| self.job.told());
        self.is_readable = told.is_ok();
        let written = told.as_ref().ok().and_then(|told| told.exit_code.map(JobEnd::told));
        self.created = told.as_ref().ok().and_then(|told| told.created);
        let is_over = match job_end {
            Some(JobEnd::Done) => true,
            Some(JobEnd::Final { .. } | JobEnd::Spent { .. }) if written.is_none() => {
                job_end.is_some_and(|job_end| self.end_job(job_end))
            }
            Some(JobEnd::Final { .. } | JobEnd::Spent { .. }) | None => written.is_some(),
        };
        if let Some(job_end) = written.or(job_end).filter(|_| is_over) {
            info!("job {job} ends: an earlier pod has ended with exit code {}", job_end.code());
            return Some(job_end);
        }
        let raised = told
            .map(|told| backoff_limit(told.n_failed))
            .and_then(|limit| with_retries(|| self.job.set_backoff_limit(limit, None)));
        if let Err(refusal) = raised {
            self.warn_not_permitted(&refusal);
        }
        None
    }

    /// Ends the executors that an earlier pod has left to this one, which does not start its driver.
    pub fn end_executors(&self, app: &str) {
        let instance = names::instance_from_uid(&self.job.uid().to_string());
        let executors = self.job.executors(app);
        let ended = with_retries(|| executors.list()).and_then(|pods| {
            let left = pods.into_iter().filter(|pod| pod.instance.as_ref() == Some(&instance));
            left.map(|pod| with_retries(|| executors.delete(&pod)))
                .filter(|answer| !is_gone(answer))
                .collect()
        });
        let ended: Result<(), Refusal> = ended;
        if let Err(refusal) = ended {
            warn!(
                "executors of the earlier pod remain until job {} is deleted: {refusal}",
                self.job.name()
            );
        }
    }

    /// Ends the Job if no other pod may follow this one, and the pod if others run on in it: the Job waits for its
    /// end, and it would last for ever. The first call counts. `is_idle`: the run had nothing more to do.
    pub fn end(&mut self, code: u8, is_signalled: bool, is_idle: bool) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let rest = self.read_rest();
        let end = PodEnd { code, is_signalled, is_idle, has_rest: rest.is_some() };
        // If the earlier pods are unknown, only the exit code can end the Job.
        let (earlier, retries) = match &self.earlier {
            Some(earlier) => (earlier.clone(), self.retries),
            None => (FailedPods::default(), u32::MAX),
        };
        match earlier.at_end(end, retries) {
            Some(job_end) => {
                self.end_job(job_end);
            }
            None if code == 0 && self.has_standby => self.tell_done(),
            None => {}
        }
        if let Some(PodRest { containers, deadline_s: Some(deadline_s) }) = rest {
            self.end_rest(&containers.join(", "), deadline_s);
        }
    }

    /// Tells those that stand by that the driver has ended with 0. The Job is complete when they have ended too.
    fn tell_done(&self) {
        let told = with_retries(|| self.job.told()).and_then(|told| {
            let limit = backoff_limit(told.n_failed);
            with_retries(|| self.job.set_backoff_limit(limit, Some(0)))
        });
        if let Err(refusal) = told {
            self.warn_not_permitted(&refusal);
        }
    }

    /// What runs on in the pod after this process, or has failed in it.
    fn read_rest(&self) -> Option<PodRest> {
        with_retries(|| self.job.rest()).unwrap_or_else(|refusal| {
            warn!("cannot find out what else runs in the driver's pod: {refusal}");
            None
        })
    }

    fn end_rest(&self, containers: &str, deadline_s: u32) {
        match with_retries(|| self.job.end_rest(deadline_s)) {
            Ok(()) => info!(
                "the driver has ended, and {containers} may run on for the pod's grace period \
                 (activeDeadlineSeconds: {deadline_s})"
            ),
            Err(refusal) => warn!(
                "{containers} runs on in the driver's pod, and job {} with it: {refusal}; grant get and patch on \
                 pods, as deploy/rbac.yaml does, or make it a native side-car",
                self.job.name()
            ),
        }
    }

    /// Ends the Job: it then fails with the next pod that fails, and not before, because it would delete this pod and
    /// its log. False if that is not permitted.
    fn end_job(&self, job_end: JobEnd) -> bool {
        let job = self.job.name();
        let why = match job_end {
            JobEnd::Done => "the driver has ended with 0, and its pod will not".to_owned(),
            JobEnd::Final { code } => {
                format!("another pod would end with exit code {code} too")
            }
            JobEnd::Spent { n, code } => {
                let retries = self.retries;
                format!(
                    "{n} of {} pods failed, the last one with exit code {code} \
                     (driver.retries: {retries})",
                    n.max(u64::from(retries).saturating_add(1))
                )
            }
        };
        let n_failed = with_retries(|| self.job.told()).ok().map(|told| told.n_failed);
        let lives_ms = u64::try_from(self.found_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        thread::sleep(Duration::from_millis(end_wait_ms(lives_ms, n_failed)));
        let limit = n_failed.unwrap_or(0);
        match with_retries(|| self.job.set_backoff_limit(limit, Some(job_end.code()))) {
            Ok(()) => {
                match job_end {
                    JobEnd::Done => info!("job {job} ends: {why}"),
                    JobEnd::Final { .. } | JobEnd::Spent { .. } => error!("job {job} ends: {why}"),
                }
                true
            }
            Err(refusal) => {
                warn!("job {job} should end, because {why}");
                self.warn_not_permitted(&refusal);
                false
            }
        }
    }

    fn warn_not_permitted(&self, refusal: &Refusal) {
        let job = self.job.name();
        warn!(
            "cannot set the backoffLimit of job {job}, so the job counts drained, evicted and lost \
             driver pods as failures (driver.retries: {}): {refusal}; grant get and patch on this \
             job, as deploy/rbac.yaml does",
            self.retries
        );
    }
}

fn is_gone(answer: &Result<(), Refusal>) -> bool {
    answer.as_ref().is_err_and(|refusal| refusal.class == RefusalClass::NotFound)
}
