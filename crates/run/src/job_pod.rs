//! The pod of a driver in a Job: counts the failures of the earlier ones, keeps the Job from counting drained
//! and lost pods, and ends it when no other pod may follow.

use std::thread;
use std::time::{Duration, Instant, SystemTime};

use log::{debug, error, info, warn};

use crate::run::error::RunError;
use crate::signals::Signals;
use posse_core::machines::retry::{RetryLimit, RetryRule};
use posse_core::machines::startup::START_TIMEOUT_MS;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_core::model::takeover::Takeover;
use posse_core::policy::driver_job::{FailedPods, JobEnd, PodEnd, backoff_limit, end_wait_ms};
use posse_core::policy::orphans::OrphanCandidate;
use posse_kube::api::driver_job::{DriverJob, JobTold, PodRest};
use posse_kube::api::retry::{Retries, with_retries};
use posse_kube::http::Http;
use posse_wire::names;
use posse_wire::pod::build::OwnerRef;

/// How a pod asks about its Job at its start.
const ASKING: Asking = Asking {
    rule: RetryRule {
        delay_ms: 500,
        delay_ms_max: 1_000,
        limit: RetryLimit::TimeMs(START_TIMEOUT_MS),
    },
    forbidden_ms: 4_000,
};
/// How often the wait before the next try looks for a signal.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

/// For how long an uncertain answer is no answer.
#[derive(Clone, Copy, Debug)]
struct Asking {
    rule: RetryRule,
    /// A 403 that lasts so long is meant, in milliseconds: a Role that is applied anew is away for a moment.
    forbidden_ms: u64,
}

impl Asking {
    /// Asks until the server answers, or refuses the permission for good, which is the inner error. A pod that took
    /// another answer for a no would begin the work of its Job as if nobody had before.
    fn ask<T>(
        self,
        signals: &Signals,
        mut request: impl FnMut() -> Result<T, Refusal>,
    ) -> Result<Result<T, Refusal>, Refusal> {
        let (mut retries, mut forbidden_at) = (Retries::new(self.rule), None);
        loop {
            let refusal = match request() {
                Ok(answer) => return Ok(Ok(answer)),
                Err(refusal) => refusal,
            };
            if refusal.class == RefusalClass::Forbidden {
                let at = *forbidden_at.get_or_insert_with(Instant::now);
                if at.elapsed() >= Duration::from_millis(self.forbidden_ms) {
                    return Ok(Err(refusal));
                }
            } else {
                forbidden_at = None;
            }
            let Some(delay) = retries.on_failure(refusal.retry_after_ms) else {
                return Err(refusal);
            };
            if retries.n_failures() == 1 {
                info!("asking about the job of this pod again: {refusal}");
            }
            let next = Instant::now() + delay;
            while Instant::now() < next {
                if signals.has_stop() {
                    return Err(refusal);
                }
                thread::sleep(SIGNAL_INTERVAL.min(next.saturating_duration_since(Instant::now())));
            }
        }
    }
}

/// What the settings say about the pods of the driver's Job.
#[derive(Clone, Copy, Debug)]
pub struct JobSettings {
    /// How often a failed driver is tried again.
    pub retries: u32,
    pub standby: u32,
    /// The driver is more than posse.
    pub has_program: bool,
}

/// The pod of a Job in which this process runs.
#[derive(Debug)]
pub struct JobPod {
    job: DriverJob,
    settings: JobSettings,
    /// `None` if the earlier pods could not be read.
    earlier: Option<FailedPods>,
    /// What the Job said at the start; none if posse may not read it.
    told: Option<JobTold>,
    is_ended: bool,
    found_at: Instant,
}

impl JobPod {
    /// This pod; `None` if no Job controls it, or posse may not read it.
    ///
    /// # Errors
    /// The server does not say.
    pub fn find(
        http: &Http,
        namespace: &str,
        pod: &OwnerRef,
        settings: JobSettings,
        signals: &Signals,
    ) -> Result<Option<Self>, Refusal> {
        let job = match ASKING.ask(signals, || DriverJob::find(http, namespace, pod))? {
            Ok(Some(job)) => job,
            Ok(None) => {
                debug!("pod {} has no job", pod.name);
                return Ok(None);
            }
            Err(refusal) => {
                warn!(
                    "the job of pod {} is unknown, so it counts all failures: {refusal}",
                    pod.name
                );
                return Ok(None);
            }
        };
        Ok(Some(Self {
            job,
            settings,
            earlier: None,
            told: None,
            is_ended: false,
            found_at: Instant::now(),
        }))
    }

    pub fn job(&self) -> &DriverJob {
        &self.job
    }

    /// Whether its pods may leave their executors to each other: at the end of one the Job says whether another follows.
    pub fn is_readable(&self) -> bool {
        self.told.is_some()
    }

    /// Whether an earlier pod has had a record.
    pub fn is_recorded(&self) -> bool {
        self.told.is_some_and(|told| told.is_recorded)
    }

    /// Whether an earlier pod has had its Leases.
    pub fn is_leased(&self) -> bool {
        self.told.is_some_and(|told| told.is_leased)
    }

    /// Whether this Lease was that of another pod of the Job, and not of an earlier Job with its name.
    pub fn follows(&self, from: &Takeover, now: SystemTime) -> bool {
        let released_at = now.checked_sub(Duration::from_millis(from.silent_ms));
        let created = self.told.and_then(|told| told.created);
        released_at.zip(created).is_some_and(|(at, created)| at >= created)
    }

    /// Whether others stand by, and read how this one has ended.
    pub fn has_standby(&self) -> bool {
        self.settings.standby > 0
    }

    /// Counts the earlier pods. Returns why the driver must not start, after it has ended the Job.
    ///
    /// # Errors
    /// The server does not say what the Job is and has.
    pub fn begin(&mut self, signals: &Signals) -> Result<Option<JobEnd>, RunError> {
        let job = self.job.name().to_owned();
        let unknown = |refusal| RunError::Unreachable(format!("job {job}: {refusal}"));
        let pods = ASKING.ask(signals, || self.job.pods()).map_err(unknown)?;
        let told = ASKING.ask(signals, || self.job.told()).map_err(unknown)?;
        self.told = told.as_ref().ok().copied();
        let pods = match pods {
            Ok(pods) => pods,
            Err(refusal) => {
                warn!("the earlier pods of job {job} cannot be read: {refusal}");
                return Ok(None);
            }
        };
        let JobSettings { retries, has_program, .. } = self.settings;
        let earlier = FailedPods::of(&pods, self.job.uid(), self.job.pod(), has_program);
        let FailedPods { n, .. } = earlier;
        let job_end = earlier.at_start(retries);
        self.earlier = Some(earlier);
        if pods.len() > 1 {
            info!("failed pods of job {job} so far: {n} (driver.retries: {retries})");
        }
        let written = self.told.and_then(|told| told.exit_code.map(JobEnd::told));
        let is_over = match job_end {
            Some(JobEnd::Done) => true,
            Some(JobEnd::Final { .. } | JobEnd::Spent { .. }) if written.is_none() => {
                job_end.is_some_and(|job_end| self.end_job(job_end))
            }
            Some(JobEnd::Final { .. } | JobEnd::Spent { .. }) | None => written.is_some(),
        };
        if let Some(job_end) = written.or(job_end).filter(|_| is_over) {
            info!("job {job} ends: an earlier pod has ended with exit code {}", job_end.code());
            return Ok(Some(job_end));
        }
        let raised = told
            .map(|told| backoff_limit(told.n_failed))
            .and_then(|limit| with_retries(|| self.job.set_backoff_limit(limit, None)));
        if let Err(refusal) = raised {
            self.warn_not_permitted(&refusal);
        }
        Ok(None)
    }

    /// Ends the executors that an earlier pod has left to this one, which does not start its driver.
    pub fn end_executors(&self, app: &str) {
        let instance = names::instance_from_uid(&self.job.uid().to_string());
        let executors = self.job.executors(app);
        let ended = with_retries(|| executors.list()).and_then(|pods| {
            let is_left = |pod: &OrphanCandidate| {
                pod.instance.as_ref() == Some(&instance) && !pod.phase.is_final()
            };
            let left = pods.into_iter().filter(is_left);
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
    /// end, and it would last for ever. The first call counts. `is_idle`: the run had nothing more to do. True: it has ended
    /// the Job.
    pub fn end(&mut self, code: u8, is_signalled: bool, is_idle: bool) -> bool {
        if std::mem::replace(&mut self.is_ended, true) {
            return false;
        }
        let rest = self.read_rest();
        let end = PodEnd { code, is_signalled, is_idle, has_rest: rest.is_some() };
        let (earlier, retries) = self.tries();
        let job_end = earlier.at_end(end, retries);
        if job_end.is_none() && code == 0 && self.has_standby() {
            self.tell_done();
        }
        let is_last = job_end.is_some_and(|job_end| self.end_job(job_end));
        if let Some(PodRest { containers, deadline_s: Some(deadline_s) }) = rest {
            self.end_rest(&containers.join(", "), deadline_s);
        }
        is_last
    }

    /// The earlier pods, and how many failures the Job takes. If they are unknown, only the exit code can end the Job.
    pub fn tries(&self) -> (FailedPods, u32) {
        match &self.earlier {
            Some(earlier) => (earlier.clone(), self.settings.retries),
            None => (FailedPods::default(), u32::MAX),
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
                let retries = self.settings.retries;
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
             job: deploy/rbac.yaml has the rule, for my-app-driver",
            self.settings.retries
        );
    }
}

fn is_gone(answer: &Result<(), Refusal>) -> bool {
    answer.as_ref().is_err_and(|refusal| refusal.class == RefusalClass::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::{Answer, TestServer, plain_client};

    /// A try to ask gives this class of refusal, or an answer. The limits, in milliseconds: of all, and of a 403.
    fn ask(
        (limit_ms, forbidden_ms): (u64, u64),
        tries: impl Fn(u32) -> Option<RefusalClass>,
    ) -> Result<Result<u32, Refusal>, Refusal> {
        let limit = RetryLimit::TimeMs(limit_ms);
        let rule = RetryRule { delay_ms: 1, delay_ms_max: 2, limit };
        let mut n = 0;
        Asking { rule, forbidden_ms }.ask(&Signals::start().unwrap(), || {
            n += 1;
            tries(n).map_or(Ok(n), |class| Err(Refusal::local(class, "not now")))
        })
    }

    #[test]
    fn only_a_certain_answer_means_that_there_is_no_job() {
        const LONG: (u64, u64) = (60_000, 60_000);
        const SHORT: (u64, u64) = (1_000, 20);
        for class in [
            RefusalClass::Transient,
            RefusalClass::Unauthorized,
            RefusalClass::Forbidden,
            RefusalClass::NotFound,
        ] {
            let for_a_moment = ask(LONG, |n| (n < 8).then_some(class));
            assert_eq!(for_a_moment, Ok(Ok(8)), "{class:?}");
            let lasting = ask(SHORT, |_| Some(class));
            let is_no = lasting.is_ok_and(|answer| answer.is_err());
            assert_eq!(is_no, class == RefusalClass::Forbidden, "{class:?}");
        }
        let either = |n| if n % 2 == 0 { RefusalClass::Forbidden } else { RefusalClass::Transient };
        assert!(ask(SHORT, |n| Some(either(n))).is_err(), "nothing is certain");
    }

    /// The pod that leads may have told the end of the run since the Job was read.
    #[test]
    fn a_start_is_silent_about_the_end() {
        const POD: &str = r#"{"metadata":{"name":"p","uid":"u","ownerReferences":[
            {"kind":"Job","name":"j","uid":"ju","controller":true}]}}"#;
        let server = TestServer::start(None, |asked| {
            let body = match asked.line() {
                line if line.contains("/pods/p") => POD,
                line if line.contains("/pods?") => {
                    r#"{"metadata":{"resourceVersion":"1"},"items":[]}"#
                }
                _ => r#"{"metadata":{"name":"j","uid":"ju"},"status":{"failed":2}}"#,
            };
            Answer::Reply(200, "Content-Type: application/json\r\n", body.into())
        });
        let pod = OwnerRef::pod("p", "u");
        let signals = Signals::start().unwrap();
        let http = plain_client(server.address);
        let settings = JobSettings { retries: 3, standby: 0, has_program: true };
        let found = JobPod::find(&http, "ns", &pod, settings, &signals);
        let mut job_pod = found.unwrap().expect("a Job controls it");
        assert_eq!(job_pod.begin(&signals), Ok(None));
        assert!(job_pod.is_readable());
        let patch = server.seen().pop().expect("the limit is raised");
        let want = r#"{"metadata":{"uid":"ju"},"spec":{"backoffLimit":52}}"#;
        assert_eq!(String::from_utf8_lossy(&patch.body), want, "{}", patch.head);
    }
}
