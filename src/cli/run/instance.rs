//! Owns which instance a run is, and how it takes it: by its Lease, or without one where that is
//! safe. Opens nothing and runs nothing.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{debug, warn};

use crate::cli::exit::{Code, Failure};
use crate::cli::run::Run;
use crate::core::ids::ExecutorId;
use crate::core::lease::Release;
use crate::core::refusal::Class;
use crate::core::rng::Rng;
use crate::kube::api::Leases;
use crate::kube::owner::DriverPod;
use crate::runtime::engine::START_TIMEOUT_MS;
use crate::runtime::inbox::Message;
use crate::runtime::lease;
use crate::runtime::upstream::{
    ABANDON_TIMEOUT, Acquired, IdKeeper, LeaseHandle, LeaseSettings, await_lease,
};
use crate::wire::labels::Selection;
use crate::wire::names;

/// Who the run is, once the Lease has been asked for.
pub(super) struct Who {
    pub selection: Selection,
    pub ids: IdKeeper,
    pub id_high_water: u64,
    /// Its name was made up for this run.
    pub is_new: bool,
}

impl Who {
    /// An instance that may have been there before, and whose ids nobody keeps.
    fn unkept(selection: Selection) -> Self {
        Self { selection, ids: IdKeeper::Nobody, id_high_water: 0, is_new: false }
    }
}

impl Run<'_> {
    /// Takes the Lease, or goes on without one where that is safe.
    pub(super) fn take_instance(
        &self,
        sender: &Sender<Message>,
        receiver: &Receiver<Message>,
        rng: &mut Rng,
    ) -> Result<Who, Failure> {
        let owner = self.ground.owner.as_ref();
        let instance = match (&self.settings.instance, owner) {
            (Some(instance), _) => instance.clone(),
            (None, Some(owner)) => names::instance_from_uid(&owner.uid),
            (None, None) => names::instance_from_bits(rng.next_u64()),
        };
        let selection = Selection { app: self.settings.app.clone(), instance };
        if self.settings.lease {
            match self.take_lease(&selection, sender, receiver, rng)? {
                Some((lease, id_high_water)) => {
                    let is_new = self.settings.instance.is_none() && owner.is_none();
                    let ids = IdKeeper::Lease(lease);
                    return Ok(Who { selection, ids, id_high_water, is_new });
                }
                None => warn!("nothing guards this instance against a second posse of the same"),
            }
        }
        self.go_without_lease(selection, rng)
    }

    fn take_lease(
        &self,
        selection: &Selection,
        sender: &Sender<Message>,
        receiver: &Receiver<Message>,
        rng: &mut Rng,
    ) -> Result<Option<(LeaseHandle, u64)>, Failure> {
        let owner = self.ground.owner.clone();
        let failed = |error| Failure::new(Code::Failed, format!("the lease: {error}"));
        let uid = owner.as_ref().map(|owner| owner.uid.as_str());
        let identity = lease::identity(uid, rng.next_u64());
        let lease = LeaseSettings {
            leases: Leases::new(self.server.http.clone(), self.ground.namespace.as_str()),
            namespace: self.ground.namespace.clone(),
            selection: selection.clone(),
            owner,
            identity,
        };
        let rng = Rng::new(rng.next_u64());
        let handle = LeaseHandle::start(lease, sender.clone(), self.clock, rng).map_err(failed)?;
        let timeout = Duration::from_millis(START_TIMEOUT_MS);
        let refused = match await_lease(receiver, self.signals, self.clock, timeout) {
            Acquired::Held { id_high_water } => return Ok(Some((handle, id_high_water))),
            Acquired::NoRights { message } => {
                warn!("no right on leases, going on without one: {message}");
                Ok(None)
            }
            Acquired::HeldBy { holder } => {
                let Selection { app, instance } = selection;
                Err(Failure::new(
                    Code::Server,
                    format!(
                        "instance {instance} of application {app} is held by {holder}, which is \
                         alive or may be: end it, or take another --instance"
                    ),
                ))
            }
            Acquired::Interrupted => Err(Failure::new(Code::Clean, "interrupted before the start")),
            Acquired::Refused { message } => {
                let message = format!("{}: {message}", self.server.http.server());
                Err(Failure::new(Code::Server, message))
            }
            Acquired::TimedOut { message } => {
                let message = format!("the API server cannot be reached: {message}");
                Err(Failure::new(Code::Server, message))
            }
        };
        // A request that takes it may be under way.
        if !handle.stop(Release::Delete, ABANDON_TIMEOUT) {
            debug!("the lease of {} may be left behind", selection.pod_prefix());
        }
        refused
    }

    /// Without a Lease only that is adopted which nobody else can be keeping.
    fn go_without_lease(&self, selection: Selection, rng: &mut Rng) -> Result<Who, Failure> {
        let owner = self.ground.owner.as_ref();
        let is_init = std::process::id() == 1;
        let adopts = self.settings.instance.is_some() || (owner.is_some() && is_init);
        if !adopts {
            let instance = names::instance_from_bits(rng.next_u64());
            let selection = Selection { instance, ..selection };
            if owner.is_some() {
                warn!(
                    "executors of an earlier run are not adopted: without a lease another posse \
                       of this pod may be keeping them"
                );
            }
            return Ok(Who { is_new: true, ..Who::unkept(selection) });
        }
        let Some(owner) = owner else {
            return Ok(Who::unkept(selection));
        };
        let pod = DriverPod::new(self.server.http.clone(), &self.ground.namespace, owner);
        // Written back at once: a right that is missing must not turn up with the first executor.
        let kept = pod.id_high_water().and_then(|id_high_water| {
            pod.keep_id_high_water(ExecutorId(id_high_water)).map(|()| id_high_water)
        });
        match kept {
            Ok(id_high_water) => {
                let ids = IdKeeper::DriverPod(pod);
                Ok(Who { selection, ids, id_high_water, is_new: false })
            }
            Err(refusal) if refusal.class == Class::Unknown => {
                let message = format!("the driver pod {}: {refusal}", owner.name);
                Err(Failure::new(Code::Server, message))
            }
            Err(refusal) => {
                warn!("the driver pod {} cannot keep the ids: {refusal}", owner.name);
                Ok(Who::unkept(selection))
            }
        }
    }
}
