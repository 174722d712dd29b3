//! The settings of a run, complete and checked.

use std::path::PathBuf;
use std::sync::Arc;

use crate::events::EventTarget;
use posse_core::model::settings::{GroupSpec, OnLoss, Policy, Restart};
use posse_wire::config::listen_addr::ListenAddr;
use posse_wire::config::scale::ScaleCommand;
use posse_wire::config::{Control, Driver};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::pod::build::{OwnerRef, PodContext, PodSettings};
use posse_wire::pod::credential_mounts::Credentials;
use posse_wire::pod::slot_volume::SlotVolume;
use posse_wire::pod::staged::Staged;
use posse_wire::pod::template::Template;

/// The settings of a run. The unit of a time is in its name.
#[derive(Clone, Debug)]
pub struct RunSettings {
    pub app: String,
    /// `None`: the service account's namespace, or the kubeconfig context's.
    pub namespace: Option<String>,
    /// `None`: derived from the driver pod's uid, or random.
    pub instance: Option<String>,
    pub driver: Driver,
    pub groups: Vec<GroupSettings>,
    pub policy: Policy,
    /// Labels and annotations of every object.
    pub common: Arc<CommonMetadata>,
    /// The LocalQueue of groups that come by a call.
    pub queue: Option<String>,
    /// 0: no poll.
    pub poll_interval_ms: u64,
    /// Staged files for the executors.
    pub staged: Option<Staged>,
    /// Credentials for the driver and the executors.
    pub credentials: Arc<[Credentials]>,
    /// Folders for the private folder of credentials, in order of preference.
    pub private_folders: Vec<PathBuf>,
    /// Whether a Lease guards the instance.
    pub lease: bool,
    /// No other driver of the application may run, in any instance.
    pub exclusive: bool,
    /// The driver tells which of its tasks failed, so that posse does not warn of them too.
    pub driver_tells_failures: bool,
    /// The driver's grace period at shutdown.
    pub grace_ms: u64,
    pub control: Control,
    /// Folders for the default control socket, in order of preference.
    pub socket_folders: Vec<PathBuf>,
    /// Set if the control API listens on TCP.
    pub control_token_file: Option<PathBuf>,
    /// Where the page listens, besides a control API on TCP.
    pub page: Option<ListenAddr>,
    /// Set if the page asks for a token.
    pub page_token_file: Option<PathBuf>,
    pub events: Option<EventTarget>,
    /// Where the output of ended tasks is kept.
    pub task_output: Option<OutputFolder>,
    /// Where the run keeps what it was told.
    pub record: RecordSetting,
    /// Tasks have secret variables, says the configuration.
    pub task_secrets: bool,
    /// Where scrapes and probes are served.
    pub metrics: Option<ListenAddr>,
    /// Leave the executors running at the end.
    pub keep: bool,
}

/// Where a run keeps what it was told and its pods do not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordSetting {
    Off,
    /// In the cluster if the driver has a pod there; else, if the instance has a name, in a file of this folder; else
    /// nowhere.
    Auto(Option<PathBuf>),
    Cluster,
    File(PathBuf),
}

/// A folder for the output of ended tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputFolder {
    pub path: PathBuf,
    /// The configuration names it. Otherwise a run goes on without it.
    pub is_named: bool,
}

/// One group as a run starts it: the core's part, and what the core does not know, which is how its pods are made and
/// who sets its target.
#[derive(Clone, Debug)]
pub struct GroupSettings {
    pub spec: GroupSpec,
    pub template: Template,
    pub pod: PodSettings,
    /// The command that sets the target.
    pub scale: Option<ScaleCommand>,
    /// The claims that each slot has.
    pub volumes: Vec<SlotVolume>,
}

/// The part of the pods' identity that is known only at the start of the run.
#[derive(Clone, Debug)]
pub struct RunIdentity {
    pub instance: String,
    pub namespace: String,
    pub owner: Option<OwnerRef>,
    pub instance_owner: Option<OwnerRef>,
    /// The Lease that is the executors' controller, if a Job owns them.
    pub controller: Option<OwnerRef>,
    pub driver_host: String,
    /// The driver's port, if the configuration has `driver.port`.
    pub driver_port: Option<u16>,
}

impl RunSettings {
    /// In a Job the executors outlive the driver's pod: no program of it is theirs, or it says so.
    pub fn keeps_executors(&self) -> bool {
        self.lease && self.driver.keep_executors.unwrap_or(self.driver.command.is_empty())
    }

    /// The credentials of the executors of a group; without a group, all.
    fn credentials_of(&self, group: Option<&GroupSettings>) -> Arc<[Credentials]> {
        match group.and_then(|group| group.spec.credentials.as_ref()) {
            None => Arc::clone(&self.credentials),
            Some(names) => {
                let all = self.credentials.iter();
                all.filter(|entry| names.contains(&entry.name)).cloned().collect()
            }
        }
    }

    /// The identity for the pods of a group; without a group, for a group that is not known yet.
    pub fn identity(&self, group: Option<&GroupSettings>, run: &RunIdentity) -> PodContext {
        PodContext {
            app: self.app.clone(),
            instance: run.instance.clone(),
            namespace: run.namespace.clone(),
            group: group.map_or_else(String::new, |group| group.spec.name.to_string()),
            owner: run.owner.clone(),
            instance_owner: run.instance_owner.clone(),
            controller: run.controller.clone(),
            driver_host: run.driver_host.clone(),
            driver_port: run.driver_port,
            staged: self.staged.clone(),
            credentials: self.credentials_of(group),
            common: Arc::clone(&self.common),
            settings: group.map_or_else(
                || PodSettings { queue: self.queue.clone(), ..PodSettings::default() },
                |group| group.pod.clone(),
            ),
            restart: group.map_or(Restart::Always, |group| group.spec.restart),
            on_loss: group.map_or(OnLoss::Executor, |group| group.spec.on_loss),
        }
    }
}
