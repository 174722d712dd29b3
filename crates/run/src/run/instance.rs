//! Chooses the run's instance, and acquires the Leases of the instance and the application. Without
//! permission for Leases, the run continues only if that is safe.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{debug, warn};

use super::Run;
use crate::inbox::Message;
use crate::job_pod::JobPod;
use crate::leases::acquire::{LeaseAcquisition, await_lease};
use crate::leases::handle::LeaseHandle;
use crate::leases::thread::LeaseSettings;
use crate::leases::{IdStore, RunLeases, holder};
use crate::record::OpenError;
use crate::run::awaited::open_in_time;
use crate::run::error::RunError;
use posse_base::rng::Rng;
use posse_core::machines::lease::{HolderWait, LeaseRelease, LeaseScope, LeaseTerms};
use posse_core::machines::startup::START_TIMEOUT_MS;
use posse_core::model::ids::{ExecutorId, Uid};
use posse_core::model::refusal::RefusalClass;
use posse_core::model::takeover::Takeover;
use posse_kube::api::driver_pod::DriverPod;
use posse_kube::api::leases::Leases;
use posse_kube::api::retry::with_retries;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::lease;
use posse_wire::names;
use posse_wire::pod::build::OwnerRef;

/// If the run cannot start, how long it waits for the release of a Lease.
const ABANDON_TIMEOUT: Duration = Duration::from_secs(1);

/// The run's instance, with its Leases.
pub(super) struct AcquiredInstance {
    pub selection: Selection,
    pub leases: RunLeases,
    pub id_high_water: u64,
    /// The instance's name was generated for this run.
    pub is_new: bool,
    /// Whom this process, which stood by, follows.
    pub from: Option<Takeover>,
}

/// What the acquisition of an instance needs.
pub(super) struct InstanceRequest<'a, 'r> {
    pub run: &'a Run<'r>,
    /// Both ends of the inbox: the lease threads send, this request receives.
    pub sender: &'a Sender<Message>,
    pub receiver: &'a Receiver<Message>,
    /// The Job, if its pods stand by for each other: this one waits as long as another has the application's Lease.
    pub standby_of: Option<OwnerRef>,
}

/// A Lease that is held.
struct AcquiredLease {
    lease: LeaseHandle,
    /// The highest id that is stored in it.
    id_high_water: u64,
    from: Option<Takeover>,
}

/// An instance without the application's Lease.
struct Instance {
    selection: Selection,
    ids: IdStore,
    id_high_water: u64,
    is_new: bool,
}

impl Instance {
    /// An instance that may have existed before and whose highest id is not stored.
    fn without_ids(selection: Selection) -> Self {
        Self { selection, ids: IdStore::None, id_high_water: 0, is_new: false }
    }
}

impl InstanceRequest<'_, '_> {
    /// Acquires the application's Lease if the run is exclusive, and then the instance.
    pub(super) fn acquire(&self, rng: &mut Rng) -> Result<AcquiredInstance, RunError> {
        let owner = self.run.context.instance_owner();
        let instance = match (&self.run.settings.instance, owner) {
            (Some(instance), _) => instance.clone(),
            (None, Some(owner)) => names::instance_from_uid(&owner.uid),
            (None, None) => names::instance_from_bits(rng.next_u64()),
        };
        let selection = Selection { app: self.run.settings.app.clone(), instance };
        let (application, from) = match self.run.settings.exclusive {
            true => {
                let (lease, from) = self.acquire_application(&selection, rng)?;
                (Some(lease), from)
            }
            false => (None, None),
        };
        // Who gave up the application's Lease acts no more, though its other Lease lasts a little longer.
        let ended_pod = from.as_ref().and_then(|from| from.pod.as_ref().map(|pod| pod.uid.clone()));
        match self.acquire_instance(selection, ended_pod, rng) {
            Ok(Instance { selection, ids, id_high_water, is_new }) => {
                let leases = RunLeases { application, ids };
                Ok(AcquiredInstance { selection, leases, id_high_water, is_new, from })
            }
            Err(error) => {
                if let Some(application) = application
                    && !application.stop(self.abandoned(), ABANDON_TIMEOUT)
                {
                    debug!("the application's lease may not be released");
                }
                Err(error)
            }
        }
    }

    /// The instance's name is chosen for this run: neither the settings nor the owner give it.
    fn is_new(&self) -> bool {
        self.run.settings.instance.is_none() && self.run.context.owner.is_none()
    }

    /// What becomes of a Lease with which the run does not start.
    fn abandoned(&self) -> LeaseRelease {
        LeaseRelease::of_failed_start(self.is_new())
    }

    /// An exclusive run does not start without the application's Lease.
    fn acquire_application(
        &self,
        selection: &Selection,
        rng: &mut Rng,
    ) -> Result<(LeaseHandle, Option<Takeover>), RunError> {
        match self.acquire_lease(LeaseScope::Application, selection, None, rng)? {
            Ok(AcquiredLease { lease, from, .. }) => Ok((lease, from)),
            Err(message) => Err(RunError::Forbidden {
                namespace: self.run.context.namespace.clone(),
                message: format!(
                    "exclusive: true needs a lease, which is not permitted: {message}"
                ),
            }),
        }
    }

    /// Acquires the instance's Lease, or continues without it if that is safe.
    fn acquire_instance(
        &self,
        selection: Selection,
        ended_pod: Option<Uid>,
        rng: &mut Rng,
    ) -> Result<Instance, RunError> {
        if self.run.settings.lease {
            match self.acquire_lease(LeaseScope::Instance, &selection, ended_pod.as_ref(), rng)? {
                Ok(AcquiredLease { lease, id_high_water, .. }) => {
                    let is_new = self.is_new();
                    let ids = IdStore::Lease(lease);
                    return Ok(Instance { selection, ids, id_high_water, is_new });
                }
                Err(message) => {
                    warn!("leases are not permitted, continuing without one: {message}");
                    warn!("nothing prevents a second posse from running the same instance");
                }
            }
        }
        self.continue_without_lease(selection, rng)
    }

    /// The inner error is the server's message if Leases are not permitted, and no earlier pod of the Job has had them: who
    /// went on without one would be another instance, and its work beside that of the first.
    fn acquire_lease(
        &self,
        scope: LeaseScope,
        selection: &Selection,
        ended_pod: Option<&Uid>,
        rng: &mut Rng,
    ) -> Result<Result<AcquiredLease, String>, RunError> {
        open_in_time(
            "leases are not permitted",
            || self.try_lease(scope, selection, ended_pod.cloned(), rng),
            || self.run.job_pod.as_deref().is_some_and(JobPod::is_leased),
            |delay| self.run.rest(delay),
        )
    }

    fn try_lease(
        &self,
        scope: LeaseScope,
        selection: &Selection,
        ended_pod: Option<Uid>,
        rng: &mut Rng,
    ) -> Result<Result<AcquiredLease, OpenError>, RunError> {
        let pod = self.run.context.pod.as_ref();
        let identity = holder::identity(pod.map(|pod| pod.uid.as_str()), rng.next_u64());
        // The Lease names the holder's pod, and lasts as long as the instance.
        let job = self.run.context.job.as_ref();
        let is_jobs = job.is_some() && scope == LeaseScope::Instance;
        let stands_by = self.standby_of.is_some() && scope == LeaseScope::Application;
        let lasts_as = if stands_by { self.standby_of.as_ref() } else { job.filter(|_| is_jobs) };
        let owners = pod.into_iter().chain(lasts_as).cloned().collect();
        let wait = self.holder_wait(scope, is_jobs);
        let is_followed = self.standby_of.is_some();
        let terms = if is_followed { LeaseTerms::STANDBY } else { LeaseTerms::USUAL };
        let lease = LeaseSettings {
            http: self.run.server.http.clone(),
            scope,
            terms,
            wait,
            ended_pod,
            namespace: self.run.context.namespace.clone(),
            selection: selection.clone(),
            owners,
            common: Arc::clone(&self.run.settings.common),
            identity,
        };
        let rng = Rng::new(rng.next_u64());
        let handle = LeaseHandle::start(lease, self.sender.clone(), self.run.clock, rng)
            .map_err(|error| RunError::System(format!("the lease: {error}")))?;
        let timeout = Duration::from_millis(START_TIMEOUT_MS);
        let result = match await_lease(
            self.receiver,
            self.run.signals,
            self.run.clock,
            timeout,
            (scope, wait),
        ) {
            LeaseAcquisition::Acquired { id_high_water, from } => {
                return Ok(Ok(AcquiredLease { lease: handle, id_high_water, from }));
            }
            LeaseAcquisition::Forbidden { message } => Ok(Err(OpenError::Forbidden(message))),
            LeaseAcquisition::Foreign => {
                let name = lease::name_of(scope, selection);
                Err(RunError::Server(format!(
                    "lease {name} is not posse's (it lacks posse's labels), so posse does not take \
                     it over: delete it if nobody needs it, or take another --instance or app"
                )))
            }
            LeaseAcquisition::HeldBy { holder } => Err(held_by(scope, selection, &holder)),
            LeaseAcquisition::Interrupted { signal, holder } => {
                Err(RunError::Interrupted { signal, waited_for: holder })
            }
            LeaseAcquisition::Refused { message } => {
                Err(RunError::Server(format!("{}: {message}", self.run.server.http.server())))
            }
            LeaseAcquisition::TimedOut { message } => {
                Err(RunError::Unreachable(format!("the API server cannot be reached: {message}")))
            }
        };
        // A request that acquires the Lease may still be in flight.
        if !handle.stop(self.abandoned(), ABANDON_TIMEOUT) {
            debug!("the lease of {} may not be released", selection.pod_prefix());
        }
        result
    }

    fn holder_wait(&self, scope: LeaseScope, is_jobs: bool) -> HolderWait {
        let settings = &self.run.settings;
        match scope {
            LeaseScope::Application if self.standby_of.is_some() => HolderWait::StandsBy,
            // Who comes again under this name, after a reboot for example, goes on with its work.
            LeaseScope::Instance if settings.instance.is_some() => HolderWait::ForItsEnd,
            _ if settings.exclusive || is_jobs => HolderWait::ForItsEnd,
            LeaseScope::Application | LeaseScope::Instance => HolderWait::No,
        }
    }

    /// Without a Lease, executors of an earlier run are adopted only if no other posse can be using
    /// them: with an explicit instance, or as PID 1 of the driver's pod.
    fn continue_without_lease(
        &self,
        selection: Selection,
        rng: &mut Rng,
    ) -> Result<Instance, RunError> {
        let owner = self.run.context.pod.as_ref();
        let is_init = std::process::id() == 1;
        let selection = match (&self.run.settings.instance, owner) {
            (None, Some(pod)) => {
                Selection { instance: names::instance_from_uid(&pod.uid), ..selection }
            }
            (Some(_), _) | (None, None) => selection,
        };
        let can_adopt = self.run.settings.instance.is_some() || (owner.is_some() && is_init);
        if !can_adopt {
            let instance = names::instance_from_bits(rng.next_u64());
            let selection = Selection { instance, ..selection };
            if owner.is_some() {
                warn!(
                    "executors of an earlier run are not adopted: without a lease, another posse \
                     in this pod may be using them"
                );
            }
            return Ok(Instance { is_new: true, ..Instance::without_ids(selection) });
        }
        let Some(owner) = owner else {
            return Ok(Instance::without_ids(selection));
        };
        let pod = DriverPod::new(self.run.server.http.clone(), &self.run.context.namespace, owner);
        // Written back at once, so that a missing permission shows now and not with the first create.
        let stored = pod.id_high_water().and_then(|id_high_water| {
            pod.save_id_high_water(ExecutorId(id_high_water)).map(|()| id_high_water)
        });
        match stored {
            Ok(id_high_water) => {
                let ids = IdStore::DriverPod(pod);
                Ok(Instance { selection, ids, id_high_water, is_new: false })
            }
            Err(refusal) if refusal.class == RefusalClass::OutcomeUnknown => {
                Err(RunError::Unreachable(format!("the driver pod {}: {refusal}", owner.name)))
            }
            Err(refusal) => {
                warn!("cannot store the highest executor id on pod {}: {refusal}", owner.name);
                Ok(Instance::without_ids(selection))
            }
        }
    }
}

impl Run<'_> {
    /// The instance's Lease, as an owner.
    pub(super) fn lease_ref(&self, selection: &Selection) -> Result<OwnerRef, RunError> {
        let name = lease::name_of(LeaseScope::Instance, selection);
        let leases = Leases::new(self.server.http.clone(), self.context.namespace.as_str());
        // It was held a moment ago, so the next try finds it.
        let refused =
            |what: &dyn fmt::Display| RunError::Unreachable(format!("lease {name}: {what}"));
        let found = with_retries(|| leases.get(&name)).map_err(|refusal| refused(&refusal))?;
        let uid = found.ok_or_else(|| refused(&"it was deleted"))?.uid.to_string();
        let (api_version, kind) = ("coordination.k8s.io/v1".to_owned(), "Lease".to_owned());
        Ok(OwnerRef { api_version, kind, name, uid })
    }
}

/// Another live process holds the Lease.
fn held_by(scope: LeaseScope, selection: &Selection, holder: &str) -> RunError {
    let Selection { app, instance } = selection;
    RunError::HeldBy(match scope {
        LeaseScope::Application => format!(
            "application {app} is held by {holder}, which is alive: end it, or run without \
             exclusive: true beside it"
        ),
        LeaseScope::Instance => format!(
            "instance {instance} of application {app} is held by {holder}, which is alive or may \
             be: end it, or take another --instance, which begins all work anew"
        ),
    })
}
