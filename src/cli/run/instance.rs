//! Owns which instance a run is, and how it takes it and the application: by their Leases, or
//! without one where that is safe. Opens nothing and runs nothing.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use log::{debug, warn};

use crate::cli::exit::{Code, Failure};
use crate::cli::rights;
use crate::cli::run::Run;
use crate::core::machines::lease::{LeaseRelease, LeaseScope};
use crate::core::model::ids::ExecutorId;
use crate::core::model::refusal::RefusalClass;
use crate::core::model::rng::Rng;
use crate::kube::api::driver_pod::DriverPod;
use crate::runtime::engine::START_TIMEOUT_MS;
use crate::runtime::hold::{
    self, ABANDON_TIMEOUT, Acquired, Hold, IdKeeper, LeaseHandle, LeaseSettings, await_lease,
};
use crate::runtime::inbox::Message;
use crate::runtime::lease;
use crate::wire::labels::Selection;
use crate::wire::names;

/// Who the run is, once the Leases have been asked for.
pub(super) struct Who {
    pub selection: Selection,
    pub hold: Hold,
    pub id_high_water: u64,
    /// Its name was made up for this run.
    pub is_new: bool,
}

/// The instance, once it was asked for.
struct Instance {
    selection: Selection,
    ids: IdKeeper,
    id_high_water: u64,
    is_new: bool,
}

impl Instance {
    /// An instance that may have been there before, and whose ids nobody keeps.
    fn unkept(selection: Selection) -> Self {
        Self { selection, ids: IdKeeper::Nobody, id_high_water: 0, is_new: false }
    }
}

/// Where the keepers of Leases speak, and what listens to them.
pub(super) struct Ears<'a> {
    pub sender: &'a Sender<Message>,
    pub receiver: &'a Receiver<Message>,
}

impl Run<'_> {
    /// Takes the application, where it is to be this run's alone, and then the instance.
    pub(super) fn take_instance(&self, ears: &Ears<'_>, rng: &mut Rng) -> Result<Who, Failure> {
        let owner = self.ground.owner.as_ref();
        let instance = match (&self.settings.instance, owner) {
            (Some(instance), _) => instance.clone(),
            (None, Some(owner)) => names::instance_from_uid(&owner.uid),
            (None, None) => names::instance_from_bits(rng.next_u64()),
        };
        let selection = Selection { app: self.settings.app.clone(), instance };
        let application = match self.settings.exclusive {
            true => Some(self.take_application(&selection, ears, rng)?),
            false => None,
        };
        match self.take_one(selection, ears, rng) {
            Ok(Instance { selection, ids, id_high_water, is_new }) => {
                let hold = Hold { application, ids };
                Ok(Who { selection, hold, id_high_water, is_new })
            }
            Err(failure) => {
                if let Some(application) = application {
                    application.stop(LeaseRelease::Delete, ABANDON_TIMEOUT);
                }
                Err(failure)
            }
        }
    }

    /// Without the application's Lease an exclusive run does not begin.
    fn take_application(
        &self,
        selection: &Selection,
        ears: &Ears<'_>,
        rng: &mut Rng,
    ) -> Result<LeaseHandle, Failure> {
        match self.take_lease(LeaseScope::Application, selection, ears, rng)? {
            Ok((lease, _)) => Ok(lease),
            Err(message) => {
                rights::advise(&self.server.http, &self.ground.namespace);
                let message =
                    format!("exclusive: true needs a lease, and there is no right: {message}");
                Err(Failure::new(Code::Server, message))
            }
        }
    }

    /// Takes the instance's Lease, or goes on without one where that is safe.
    fn take_one(
        &self,
        selection: Selection,
        ears: &Ears<'_>,
        rng: &mut Rng,
    ) -> Result<Instance, Failure> {
        if self.settings.lease {
            match self.take_lease(LeaseScope::Instance, &selection, ears, rng)? {
                Ok((lease, id_high_water)) => {
                    let is_named = self.settings.instance.is_some();
                    let is_new = !is_named && self.ground.owner.is_none();
                    let ids = IdKeeper::Lease(lease);
                    return Ok(Instance { selection, ids, id_high_water, is_new });
                }
                Err(message) => {
                    warn!("no right on leases, going on without one: {message}");
                    warn!("nothing guards this instance against a second posse of the same");
                }
            }
        }
        self.go_without_lease(selection, rng)
    }

    /// The Lease and its id high water, or what the server says where we have no right to it.
    fn take_lease(
        &self,
        scope: LeaseScope,
        selection: &Selection,
        ears: &Ears<'_>,
        rng: &mut Rng,
    ) -> Result<Result<(LeaseHandle, u64), String>, Failure> {
        let owner = self.ground.owner.clone();
        let failed = |error| Failure::new(Code::Failed, format!("the lease: {error}"));
        let uid = owner.as_ref().map(|owner| owner.uid.as_str());
        let identity = lease::identity(uid, rng.next_u64());
        let lease = LeaseSettings {
            http: self.server.http.clone(),
            scope,
            is_patient: self.settings.exclusive,
            namespace: self.ground.namespace.clone(),
            selection: selection.clone(),
            owner,
            identity,
        };
        let rng = Rng::new(rng.next_u64());
        let handle =
            LeaseHandle::start(lease, ears.sender.clone(), self.clock, rng).map_err(failed)?;
        let timeout = Duration::from_millis(START_TIMEOUT_MS);
        let refused = match await_lease(ears.receiver, self.signals, self.clock, timeout, scope) {
            Acquired::Held { id_high_water } => return Ok(Ok((handle, id_high_water))),
            Acquired::NoRights { message } => Ok(Err(message)),
            Acquired::HeldBy { holder } => Err(held_by(scope, selection, &holder)),
            Acquired::Interrupted { holder: None } => {
                Err(Failure::new(Code::Clean, "interrupted before the start"))
            }
            // Nobody may take it for an application that has done its work.
            Acquired::Interrupted { holder: Some(holder) } => Err(Failure::new(
                Code::Server,
                format!("interrupted while {holder} held the {}", hold::what(scope)),
            )),
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
        if !handle.stop(LeaseRelease::Delete, ABANDON_TIMEOUT) {
            debug!("the lease of {} may be left behind", selection.pod_prefix());
        }
        refused
    }

    /// Without a Lease only that is adopted which nobody else can be keeping.
    fn go_without_lease(&self, selection: Selection, rng: &mut Rng) -> Result<Instance, Failure> {
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
            return Ok(Instance { is_new: true, ..Instance::unkept(selection) });
        }
        let Some(owner) = owner else {
            return Ok(Instance::unkept(selection));
        };
        let pod = DriverPod::new(self.server.http.clone(), &self.ground.namespace, owner);
        // Written back at once: a right that is missing must not turn up with the first executor.
        let kept = pod.id_high_water().and_then(|id_high_water| {
            pod.save_id_high_water(ExecutorId(id_high_water)).map(|()| id_high_water)
        });
        match kept {
            Ok(id_high_water) => {
                let ids = IdKeeper::DriverPod(pod);
                Ok(Instance { selection, ids, id_high_water, is_new: false })
            }
            Err(refusal) if refusal.class == RefusalClass::OutcomeUnknown => {
                let message = format!("the driver pod {}: {refusal}", owner.name);
                Err(Failure::new(Code::Server, message))
            }
            Err(refusal) => {
                warn!("the driver pod {} cannot keep the ids: {refusal}", owner.name);
                Ok(Instance::unkept(selection))
            }
        }
    }
}

/// Somebody else has it, and lives.
fn held_by(scope: LeaseScope, selection: &Selection, holder: &str) -> Failure {
    let Selection { app, instance } = selection;
    let message = match scope {
        LeaseScope::Application => format!(
            "application {app} is held by {holder}, which is alive: end it, or run without \
             exclusive: true beside it"
        ),
        LeaseScope::Instance => format!(
            "instance {instance} of application {app} is held by {holder}, which is alive or may \
             be: end it, or take another --instance"
        ),
    };
    Failure::new(Code::Server, message)
}
