//! What a run makes of its settings: the core with its groups, and what its threads need.

use std::sync::Arc;

use crossbeam_channel::Sender;
use log::warn;

use super::Run;
use crate::claims::SlotClaims;
use crate::credentials::{CredentialContext, CredentialThreads};
use crate::driver::DriverEnv;
use crate::driver::port::DriverPort;
use crate::dry_run::with_what_is_added;
use crate::inbox::Message;
use crate::leases::IdStore;
use crate::pod_groups::{PodGroups, check_pod_group};
use crate::polled::PolledCommands;
use crate::run::error::RunError;
use crate::run::instance::AcquiredInstance;
use crate::run::settings::RunIdentity;
use crate::server_threads::{OrphanSettings, WatchSettings};
use crate::{idle, scale};
use posse_base::rng::Rng;
use posse_base::time::Millis;
use posse_core::model::ids::Uid;
use posse_core::model::pod_text::PodOverrides;
use posse_core::model::settings::{GroupSpec, RecordUse};
use posse_core::reconciler::{InstanceIdentity, Reconciler};
use posse_kube::api::objects::Objects;
use posse_kube::api::orphans::AppExecutors;
use posse_kube::api::pods::Pods;
use posse_kube::http::WriteLimit;
use posse_wire::config::{Control, PortChoice};
use posse_wire::k8s::labels::Selection;
use posse_wire::time;

impl Run<'_> {
    pub(super) fn core(
        &self,
        selection: &Selection,
        groups: Vec<GroupSpec>,
        record: RecordUse,
        (ids, id_high_water): (&IdStore, u64),
        rng: &mut Rng,
    ) -> Reconciler {
        let settings = self.settings;
        let identity = InstanceIdentity {
            pod_prefix: selection.pod_prefix(),
            owner: self.context.owner.as_ref().map(|owner| Uid::new(&owner.uid)),
            id_high_water,
            is_id_high_water_stored: !matches!(ids, IdStore::None),
            start_unix_ms: time::unix_ms(self.clock.wall(Millis::ZERO)),
        };
        let mut policy = settings.policy.clone();
        if settings.control == Control::Off {
            // Without the control API no target can arrive that the hold would wait for.
            policy.adopt_hold_ms = 0;
        }
        policy.credentials = settings.credentials.iter().map(|entry| entry.name.clone()).collect();
        policy.keeps_task_output = self.outputs.is_some();
        policy.record = record;
        policy.ends_with_work = settings.driver.command.is_empty();
        policy.outlives_driver = self.outlives_driver();
        policy.begins_anew = !policy.outlives_driver && self.context.job.is_some();
        Reconciler::new(identity, policy, groups, rng.next_u64(), self.clock.now())
    }

    /// Executors, groups and targets outlive the driver: it has no program, or one that finds them again.
    pub(super) fn outlives_driver(&self) -> bool {
        self.settings.driver.command.is_empty() || self.context.is_outlived()
    }

    /// The groups of the settings, with their pods.
    pub(super) fn groups(
        &self,
        selection: &Selection,
        run: &RunIdentity,
    ) -> Result<Vec<GroupSpec>, RunError> {
        let groups = self.settings.groups.iter().map(|group| {
            let identity = self.settings.identity(Some(group), run);
            let compiled = group
                .template
                .compile(&identity)
                .map_err(|error| RunError::Settings(error.to_string()))?;
            for warning in compiled.warnings() {
                warn!("group {}: {warning}", group.spec.name);
            }
            let body = compiled.render(1, 0, &PodOverrides::default());
            let refused =
                |refusal| RunError::Template(format!("group {}: {refusal}", group.spec.name));
            check_pod_group(&self.server.http, &identity).map_err(refused)?;
            let pods = self.pods(selection);
            pods.check_fields(&body).map_err(refused)?;
            let compiled = with_what_is_added(&group.template, &identity, &pods, compiled);
            Ok(GroupSpec { pod: Some(compiled.pod), ..group.spec.clone() })
        });
        groups.collect()
    }

    /// The driver's port, if the configuration has `driver.port`.
    pub(super) fn driver_port(
        &self,
        acquired: &AcquiredInstance,
    ) -> Result<Option<DriverPort>, RunError> {
        let driver = &self.settings.driver;
        let AcquiredInstance { selection, is_new, .. } = acquired;
        let port = driver.port.map(|choice| match choice {
            PortChoice::Number(number) if driver.command.is_empty() => {
                Ok(DriverPort::of_others(number))
            }
            PortChoice::Auto | PortChoice::Number(_) => {
                DriverPort::choose(choice, &self.context.namespace, selection, *is_new)
            }
        });
        port.transpose().map_err(RunError::Settings)
    }

    pub(super) fn identity(
        &self,
        selection: &Selection,
        port: Option<&DriverPort>,
    ) -> Result<RunIdentity, RunError> {
        let controller = match self.context.is_outlived() {
            true => Some(self.lease_ref(selection)?),
            false => None,
        };
        Ok(RunIdentity {
            instance: selection.instance.clone(),
            namespace: self.context.namespace.clone(),
            owner: self.context.owner.clone(),
            instance_owner: self.context.instance_owner().cloned(),
            controller,
            driver_host: self.context.driver_host.clone(),
            driver_port: port.map(|port| port.number),
        })
    }

    pub(super) fn pods(&self, selection: &Selection) -> Pods {
        Pods::new(self.server.http.clone(), self.context.namespace.as_str(), selection.clone())
    }

    pub(super) fn watch_settings(&self, seed: u64) -> WatchSettings {
        let poll_interval_ms = self.settings.poll_interval_ms;
        WatchSettings { clock: self.clock, seed, poll_interval_ms }
    }

    /// The PodGroups of the groups in the file.
    pub(super) fn pod_groups(&self, run: &RunIdentity) -> PodGroups {
        let groups = self.settings.groups.iter().filter_map(|group| {
            let pod_group = self.settings.identity(Some(group), run).pod_group()?;
            Some((group.spec.name.clone(), pod_group))
        });
        PodGroups::new(self.server.http.clone(), &self.context.namespace, groups.collect())
    }

    /// The objects of the namespace, for writes while the Lease is held.
    pub(super) fn objects(&self, limit: Option<WriteLimit>) -> Objects {
        let http = self.server.http.with_write_limit(limit);
        Objects::new(http, Some(&self.context.namespace))
    }

    pub(super) fn claims(&self, selection: &Selection, objects: Objects) -> SlotClaims {
        let claims = SlotClaims::new(objects, selection.clone());
        for group in &self.settings.groups {
            claims.note(&group.volumes);
        }
        claims
    }

    pub(super) fn orphans(&self) -> OrphanSettings {
        let (http, app) = (self.server.http.clone(), self.settings.app.as_str());
        let pods = AppExecutors::new(http, &self.context.namespace, Some(app));
        let is_exclusive = self.settings.exclusive;
        OrphanSettings { pods, is_exclusive }
    }

    /// Starts the threads that keep the credentials fresh.
    pub(super) fn credentials(
        &self,
        selection: &Selection,
        write_limit: Option<WriteLimit>,
        inbox: &Sender<Message>,
        rng: &mut Rng,
    ) -> Result<CredentialThreads, RunError> {
        let context = CredentialContext {
            objects: self.objects(write_limit),
            selection: selection.clone(),
            owner: self.context.instance_owner().cloned(),
            common: Arc::clone(&self.settings.common),
            is_embedded: self.server.is_embedded,
            clock: self.clock,
            inbox: inbox.clone(),
        };
        CredentialThreads::start(self.settings, &context, rng)
            .map_err(|error| RunError::System(format!("credentials: {error}")))
    }

    /// Starts the commands of `scale` and `idle`.
    pub(super) fn polled_commands(
        &self,
        env: &DriverEnv,
        sender: &Sender<Message>,
    ) -> Result<PolledCommands, RunError> {
        let groups = self.settings.groups.iter();
        let scales = groups.filter_map(|group| scale::reader(group, &env.credentials, self.clock));
        let idle = self.settings.driver.idle.clone();
        let idle = idle.map(|command| ("idle", idle::reader(command, env.complete())));
        let mut threads = PolledCommands::default();
        for (name, reader) in scales.map(|reader| ("scale", reader)).chain(idle) {
            threads
                .start(name, reader, sender)
                .map_err(|error| RunError::System(format!("threads: {error}")))?;
        }
        Ok(threads)
    }
}
