//! Where this run's record is, and how it is opened.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_channel::Sender;
use log::{debug, info, warn};

use super::Run;
use crate::dry_run::TemplateDryRun;
use crate::inbox::Message;
use crate::record::{ClusterPlace, OpenError, Record, RecordPlace, RecordThread};
use crate::run::error::RunError;
use crate::run::instance::AcquiredInstance;
use crate::run::settings::RecordSetting;
use posse_base::files;
use posse_core::model::command::{GroupChange, Reply};
use posse_core::model::fact::{Fact, Knowledge, Topic};
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{CallFields, RecordUse};
use posse_core::reconciler::Reconciler;
use posse_kube::api::driver_job::DriverJob;
use posse_wire::control::record::RecordOwner;
use posse_wire::control::{CallError, PutGroup, parse_put_fields};
use posse_wire::k8s::labels::Selection;
use posse_wire::pod::build::OwnerRef;

/// The record of a run as its start finds it.
pub(super) struct FoundRecord {
    pub usage: RecordUse,
    /// With what an earlier process has recorded.
    pub opened: Option<(Record, Vec<Fact>)>,
}

impl FoundRecord {
    fn none(usage: RecordUse) -> Self {
        Self { usage, opened: None }
    }
}

impl Run<'_> {
    /// Opens the record, if the run has one. Called with the Leases held.
    pub(super) fn open_record(&self, acquired: &AcquiredInstance) -> Result<FoundRecord, RunError> {
        let (place, is_named) = match &self.settings.record {
            RecordSetting::Off => return Ok(FoundRecord::none(RecordUse::Off)),
            RecordSetting::Cluster => (RecordPlace::Cluster, true),
            RecordSetting::File(path) => (RecordPlace::File(path.clone()), true),
            RecordSetting::Auto(_) if self.context.pod.is_some() => (RecordPlace::Cluster, false),
            RecordSetting::Auto(Some(folder)) if self.settings.instance.is_some() => {
                (RecordPlace::File(folder.join(self.file_name(&acquired.selection))), false)
            }
            RecordSetting::Auto(_) => {
                debug!("nothing is recorded: tasks end with this process");
                return Ok(FoundRecord::none(RecordUse::Off));
            }
        };
        let opened = match place {
            RecordPlace::Cluster => self.open_in_cluster(acquired)?,
            RecordPlace::File(path) => self.open_in_file(path, is_named, acquired),
        };
        match opened {
            Ok((record, facts)) => {
                if !facts.is_empty() {
                    info!("the record has {} facts of an earlier process", facts.len());
                }
                let opened = Some((record, facts));
                Ok(FoundRecord { usage: RecordUse::On, opened })
            }
            // A driver's program adds its tasks again when it is started again, and many add none.
            Err(OpenError::Forbidden(why))
                if !is_named && !self.settings.driver.command.is_empty() =>
            {
                debug!("there is no record, so tasks end with this process: {why}");
                Ok(FoundRecord::none(RecordUse::Off))
            }
            Err(OpenError::Forbidden(why)) if !is_named => {
                warn!("there is no record, so tasks are refused: {why}");
                Ok(FoundRecord::none(RecordUse::Missing(why)))
            }
            Err(OpenError::Forbidden(why) | OpenError::Unusable(why)) => {
                Err(RunError::Settings(why))
            }
        }
    }

    /// Gives the core what an earlier process has recorded, and starts the thread that writes.
    pub(super) fn restore(
        &self,
        core: &mut Reconciler,
        found: FoundRecord,
        templates: &TemplateDryRun,
        inbox: &Sender<Message>,
    ) -> Result<Option<RecordThread>, RunError> {
        let Some((record, facts)) = found.opened else { return Ok(None) };
        for fact in &facts {
            if let Fact { topic: Topic::Group(name), knowledge: Some(Knowledge::Group(call)) } =
                fact
                && let Err(why) = self.restore_group(core, name, call, templates)
            {
                warn!("group {name} of the record cannot be made again: {why}");
            }
        }
        core.restore(facts, self.clock.now());
        let thread = RecordThread::start(record, inbox.clone());
        thread.map(Some).map_err(|error| RunError::System(format!("threads: {error}")))
    }

    fn restore_group(
        &self,
        core: &mut Reconciler,
        name: &GroupName,
        call: &CallFields,
        templates: &TemplateDryRun,
    ) -> Result<(), String> {
        let refused = |CallError { error, field }: CallError| match field {
            Some(field) => format!("{field}: {error}"),
            None => error,
        };
        let PutGroup::Whole(mut new) = parse_put_fields(call).map_err(refused)? else {
            return Err("it has no template".to_owned());
        };
        let pod = templates.compile(name, &mut new).map_err(refused)?;
        let change = GroupChange { pod, ..new.change };
        let reply = core.restore_group(name.clone(), change, self.clock.now());
        if matches!(reply, Reply::Target(_)) { Ok(()) } else { Err(format!("{reply:?}")) }
    }

    /// The record is the Job's, and goes with it.
    pub(super) fn has_record_of_job(&self) -> bool {
        let is_in_cluster = match &self.settings.record {
            RecordSetting::Auto(_) | RecordSetting::Cluster => self.context.pod.is_some(),
            RecordSetting::File(_) | RecordSetting::Off => false,
        };
        is_in_cluster && self.job.is_some()
    }

    /// Who owns what the tasks need: the Job, whose next pod has the same tasks, or the driver's pod.
    pub(super) fn owner_of_tasks(&self) -> Option<OwnerRef> {
        match &self.settings.record {
            RecordSetting::Auto(_) | RecordSetting::Cluster => self.job_or_pod(),
            RecordSetting::File(_) | RecordSetting::Off => self.context.owner.clone(),
        }
    }

    /// The Job of the driver's pod, which outlives it; else the pod.
    fn job_or_pod(&self) -> Option<OwnerRef> {
        let pod = self.context.pod.clone()?;
        Some(self.job.as_ref().map_or(pod, DriverJob::owner_ref))
    }

    fn open_in_cluster(
        &self,
        acquired: &AcquiredInstance,
    ) -> Result<Result<(Record, Vec<Fact>), OpenError>, RunError> {
        let Some(owner) = self.job_or_pod() else {
            let what =
                "record: cluster needs a driver in a pod, which posse submit makes: name a file";
            return Err(RunError::Settings(what.to_owned()));
        };
        Ok(Record::in_cluster(ClusterPlace {
            objects: self.objects(acquired.leases.write_limit(self.clock)),
            app: acquired.selection.app.clone(),
            owner,
            common: Arc::clone(&self.settings.common),
        }))
    }

    /// One name for each instance of each cluster.
    fn file_name(&self, selection: &Selection) -> String {
        let Selection { app, instance } = selection;
        let server = self.server.http.server();
        let server = server.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
        format!("{app}-{instance}-{}-{server}.record", self.context.namespace)
    }

    fn open_in_file(
        &self,
        path: PathBuf,
        is_named: bool,
        acquired: &AcquiredInstance,
    ) -> Result<(Record, Vec<Fact>), OpenError> {
        if !is_named && let Some(folder) = path.parent() {
            make_folder(folder)?;
        }
        let owner = RecordOwner {
            app: acquired.selection.app.clone(),
            instance: acquired.selection.instance.clone(),
            namespace: self.context.namespace.clone(),
            server: self.server.http.server().to_owned(),
        };
        Record::in_file(path, &owner)
    }
}

/// The folder of the user's own records.
fn make_folder(folder: &Path) -> Result<(), OpenError> {
    let above = folder.parent().map_or(Ok(()), std::fs::create_dir_all);
    above.and_then(|()| files::own_folder(folder)).map_err(|error| {
        // Not what the user has asked for, so the run goes on.
        OpenError::Forbidden(format!(
            "the folder {}: {error}: name a file by --record FILE, or set `record: off`",
            folder.display()
        ))
    })
}
