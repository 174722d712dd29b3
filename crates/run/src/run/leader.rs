//! Which pod of the Job acts: it takes the lead when it has the Leases, and tells the Job how the run has ended.

use std::sync::Arc;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use log::{debug, warn};
use rustix::process::{Signal, getpid, kill_process};

use super::{OWN_POD_INTERVAL, Run, STACK_BYTES};
use crate::inbox::Message;
use crate::job_pod::JobPod;
use crate::run::error::RunError;
use crate::run::instance::AcquiredInstance;
use crate::worker::Worker;
use posse_base::sync::lock;
use posse_core::machines::lease::LeaseTerms;
use posse_core::machines::own_deletion::OwnDeletion;
use posse_core::machines::shutdown::ShutdownOutcome;
use posse_core::model::input::Input;
use posse_core::model::takeover::Takeover;
use posse_kube::api::driver_job::DriverJob;
use posse_kube::api::driver_pod::DriverPod;
use posse_kube::api::retry::with_retries;
use posse_wire::control::status_json::LeaderJson;
use posse_wire::k8s::takeover;

/// The times of the Leases of a run.
pub(super) fn lease_terms(job_pod: Option<&JobPod>) -> LeaseTerms {
    match job_pod.is_some_and(JobPod::has_standby) {
        true => LeaseTerms::STANDBY,
        false => LeaseTerms::USUAL,
    }
}

impl Run<'_> {
    /// Tells the Job how the run has ended, and returns the exit code, and whether the Job has no other pod. While the Leases
    /// are held: a standby that has them next reads it.
    pub(super) fn end_job(&mut self, outcome: &ShutdownOutcome) -> (u8, bool) {
        let code = (self.exit_code)(outcome);
        let is_idle = outcome.leaves_no_work();
        let end = |job_pod: &mut &mut JobPod| job_pod.end(code, outcome.is_signalled, is_idle);
        (code, self.job_pod.as_mut().is_some_and(end))
    }

    /// Makes this pod the one that acts, which holds the Leases. Returns whom it follows.
    pub(super) fn take_lead(
        &mut self,
        acquired: &AcquiredInstance,
    ) -> Result<Option<Takeover>, RunError> {
        let Some(job_pod) = &mut self.job_pod else { return Ok(None) };
        if job_pod.has_standby()
            && let Some(job_end) = job_pod.begin(self.signals)?
        {
            if self.settings.lease {
                job_pod.end_executors(&self.settings.app);
            }
            return Err(RunError::Over(job_end.code()));
        }
        let now = self.clock.wall(self.clock.now());
        let from = acquired.from.as_ref().filter(|from| job_pod.follows(from, now));
        let takeover = from.map(|from| takeover::Takeover::of(from, now));
        let text = takeover.as_ref().map(takeover::Takeover::to_text);
        if job_pod.has_standby() {
            let pod = self.context.pod.as_ref().map(|pod| pod.name.clone()).unwrap_or_default();
            let leader = LeaderJson { pod, standby: Vec::new(), takeover };
            *lock(&self.leader) = Some(leader);
        }
        if let Err(refusal) = with_retries(|| job_pod.job().take_lead(text.as_deref())) {
            warn!(
                "the driver's Service does not lead to this pod: {refusal}; grant list and patch on pods, as \
                 deploy/rbac.yaml does"
            );
        }
        Ok(from.cloned())
    }

    /// Checks the driver's pod on a thread of its own, and then looks for its deletion until the returned
    /// sender is dropped.
    pub(super) fn watch_driver_pod(&self, inbox: &Sender<Message>) -> Option<Sender<()>> {
        let pod = self.context.pod.as_ref()?;
        let pod = DriverPod::new(self.server.http.clone(), &self.context.namespace, pod);
        let has_driver = !self.settings.driver.command.is_empty();
        let grace_ms = if has_driver { self.settings.grace_ms } else { 0 };
        let needed_s = (grace_ms + self.settings.policy.stop_timeout_ms).div_ceil(1_000);
        let clock = self.clock;
        let of_standbys = self.job_pod.as_deref().filter(|pod| pod.has_standby());
        let job = of_standbys.map(|pod| pod.job().clone());
        let leader = Arc::clone(&self.leader);
        let inbox = inbox.clone();
        let (sender, is_over) = bounded::<()>(0);
        let body = move || {
            if let Some(problem) = pod.problem(needed_s) {
                warn!("{problem}");
            }
            let see_standbys = || {
                let standby = match job.as_ref().map(DriverJob::standbys) {
                    Some(Ok(standby)) => standby,
                    Some(Err(refusal)) => return debug!("standbys cannot be listed: {refusal}"),
                    None => return,
                };
                let mut leader = lock(&leader);
                *leader = leader.take().map(|leader| LeaderJson { standby, ..leader });
            };
            see_standbys();
            let mut deletion = OwnDeletion::default();
            while is_over.recv_timeout(OWN_POD_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                see_standbys();
                let ours = match pod.deletion() {
                    Ok(ours) => ours,
                    Err(refusal) => {
                        debug!("the driver's pod cannot be read: {refusal}");
                        continue;
                    }
                };
                if deletion.is_abandoned(ours, clock.now()) {
                    warn!("the driver's pod was deleted, and no kubelet ends it: ending");
                    if let Ok(Some(node)) = pod.node() {
                        // The run has ended if the send fails.
                        let lost = Input::OwnNodeLost { node: node.into() };
                        drop(inbox.send(Message::Input(lost)));
                    }
                    let sent = kill_process(getpid(), Signal::TERM);
                    return sent.unwrap_or_else(|error| warn!("cannot send SIGTERM: {error}"));
                }
            }
        };
        match Worker::start("driver-pod", STACK_BYTES, body) {
            Ok(_) => Some(sender),
            Err(error) => {
                debug!("cannot start a thread to check the driver's pod: {error}");
                None
            }
        }
    }
}
