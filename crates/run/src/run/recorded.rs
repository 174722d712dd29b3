//! Where this run's record is, and how it is opened.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Sender, select};
use log::{debug, info, warn};

use super::Run;
use super::awaited::open_in_time;
use crate::dry_run::TemplateDryRun;
use crate::inbox::Message;
use crate::job_pod::JobPod;
use crate::leases::IdStore;
use crate::leases::acquire::take_stop;
use crate::record::{ClusterPlace, OpenError, Record, RecordThread, is_of_name};
use crate::run::error::RunError;
use crate::run::instance::AcquiredInstance;
use crate::run::settings::RecordSetting;
use posse_base::files;
use posse_core::model::command::{GroupChange, Reply};
use posse_core::model::fact::{Fact, Knowledge, Target, Topic};
use posse_core::model::ids::GroupName;
use posse_core::model::settings::{CallFields, RecordUse};
use posse_core::reconciler::Reconciler;
use posse_kube::api::driver_job::DriverJob;
use posse_kube::api::retry::with_retries;
use posse_wire::control::record::RecordOwner;
use posse_wire::control::{CallError, PutGroup, parse_put_fields};
use posse_wire::k8s::labels::{LEASED, RECORDED, Selection};
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
    /// Opens the record, if the run has one, and tells the next pods of the Job what this one has, before the record has a
    /// line. Called with the Leases held.
    pub(super) fn open_record(&self, acquired: &AcquiredInstance) -> Result<FoundRecord, RunError> {
        let found = self.find_record(acquired)?;
        let is_recorded = found.usage == RecordUse::On;
        let is_leased = matches!(acquired.leases.ids, IdStore::Lease(_));
        let had = [(RECORDED, is_recorded), (LEASED, is_leased)];
        let had: Vec<&str> =
            had.into_iter().filter_map(|(what, had)| had.then_some(what)).collect();
        if let Some(job) = &self.job
            && let Err(refusal) = with_retries(|| job.note(&had))
        {
            debug!("the next pod of the job is not told what this one has: {refusal}");
        }
        Ok(found)
    }

    fn find_record(&self, acquired: &AcquiredInstance) -> Result<FoundRecord, RunError> {
        // Without a file the record is in the cluster.
        let (file, is_named) = match &self.settings.record {
            RecordSetting::Off => return Ok(FoundRecord::none(RecordUse::Off)),
            RecordSetting::Cluster => (None, true),
            RecordSetting::File(path) => (Some(path.clone()), true),
            RecordSetting::Auto(_) if self.context.pod.is_some() => (None, false),
            RecordSetting::Auto(Some(folder)) if self.settings.instance.is_some() => {
                (Some(folder.join(self.file_name(&acquired.selection))), false)
            }
            RecordSetting::Auto(_) => {
                let what = "nothing is recorded: tasks end with this process";
                match self.settings.instance {
                    Some(_) => {
                        warn!("{what}, since there is no `HOME`; `record: PATH` names a file")
                    }
                    None => debug!("{what}"),
                }
                return Ok(FoundRecord::none(RecordUse::Off));
            }
        };
        let open = || match &file {
            Some(path) => Ok(self.open_in_file(path.clone(), is_named, acquired)),
            None => self.open_in_cluster(acquired),
        };
        let what = "the record of the run cannot be opened";
        match open_in_time(what, open, || self.was_recorded(), |delay| self.rest(delay))? {
            Ok((record, facts)) => {
                if !facts.is_empty() {
                    info!("the record has {} facts of an earlier process", facts.len());
                } else if record.is_first() && self.was_recorded() {
                    warn!(
                        "an earlier pod of the job has had a record, and it is gone: somebody has deleted its ConfigMaps. \
                         Tasks are forgotten, and completed indexes may run again"
                    );
                }
                let opened = Some((record, facts));
                Ok(FoundRecord { usage: RecordUse::On, opened })
            }
            Err(why) if is_named => Err(RunError::Settings(why)),
            Err(why) => Ok(FoundRecord::none(without_record(why, self.outlives_driver()))),
        }
    }

    /// Whether an earlier pod of the Job has had a record: without it the run forgets.
    fn was_recorded(&self) -> bool {
        self.job_pod.as_deref().is_some_and(JobPod::is_recorded)
    }

    pub(super) fn rest(&self, delay: Duration) -> Result<(), RunError> {
        select! {
            recv(self.signals.wake()) -> _ => match take_stop(self.signals, &mut false) {
                Some(signal) => Err(RunError::Interrupted { signal, waited_for: None }),
                None => Ok(()),
            },
            default(delay) => Ok(()),
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
        core.restore_deleted(&facts, self.clock.now());
        for fact in &facts {
            if let Fact { topic: Topic::Group(name), knowledge: Some(Knowledge::Group(call)) } =
                fact
                && let Err(why) = self.restore_group(core, name, call, templates)
            {
                warn!("group {name} of the record cannot be made again: {why}");
            }
        }
        let is_there = |name: &GroupName| core.executors().groups().contains_key(name);
        let of_work: BTreeSet<_> = facts.iter().filter_map(group_of_ended_work).collect();
        for name in of_work.into_iter().filter(|name| !is_there(name)) {
            info!(
                "the record has ended work of group {name}, which posse.yaml does not have: it counts when a call makes the \
                 group again"
            );
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
        let (job_or_pod, owner) = (self.job_or_pod(), self.context.owner.clone());
        owner_of_tasks(&self.settings.record, job_or_pod, owner)
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

    /// One name for each instance of each cluster: no part but the last one has a `_`.
    fn file_name(&self, selection: &Selection) -> String {
        let Selection { app, instance } = selection;
        let server = self.server.http.server();
        let server = server.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
        format!("{app}_{instance}_{}_{server}.record", self.context.namespace)
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
        Record::in_file(path, &owner, acquired.leases.write_limit(self.clock))
    }
}

/// How a run goes on without the record that it should have. `why` says what to do.
fn without_record(why: String, outlives_driver: bool) -> RecordUse {
    if outlives_driver {
        warn!(
            "there is no record, so tasks are refused, and groups, targets and completed indexes end with this process: {why}"
        );
        return RecordUse::Missing(why);
    }
    // A driver's program adds its tasks again when it is started again, and many add none.
    warn!("there is no record, so tasks and completed indexes end with this process: {why}");
    RecordUse::Off
}

/// The tasks of a record outlive the driver's pod, and so does what they need.
fn owner_of_tasks(
    record: &RecordSetting,
    job_or_pod: Option<OwnerRef>,
    owner: Option<OwnerRef>,
) -> Option<OwnerRef> {
    match record {
        RecordSetting::Auto(_) | RecordSetting::Cluster | RecordSetting::File(_) => job_or_pod,
        RecordSetting::Off => owner,
    }
}

/// Of a fact about ended indexes, or without `completions` about how much has ended.
fn group_of_ended_work(fact: &Fact) -> Option<&GroupName> {
    let (Topic::Target(name) | Topic::Work(name, _)) = &fact.topic else { return None };
    let knowledge = fact.knowledge.as_ref()?;
    let none = matches!(knowledge, Knowledge::Target(Target { n_completed: 0, n_given_up: 0, .. }));
    (!none).then_some(name)
}

/// The folder of the user's own records.
fn make_folder(folder: &Path) -> Result<(), OpenError> {
    let above = folder.parent().map_or(Ok(()), std::fs::create_dir_all);
    above.and_then(|()| files::own_folder(folder)).map_err(|error| {
        let why = format!(
            "the folder {}: {error}: name a file by --record FILE, or set `record: off`",
            folder.display()
        );
        // Not what the user has asked for, so the run goes on.
        match is_of_name(&error) || error.kind() == ErrorKind::ReadOnlyFilesystem {
            true => OpenError::Forbidden(why),
            false => OpenError::Unavailable(why),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::model::fact::EndedWork;

    #[test]
    fn ended_work_of_a_group_is_told() {
        let (work, target) = (Topic::Work("g".into(), 0), Topic::Target("g".into()));
        let ended = Knowledge::Work { attempt: 1, ended: EndedWork::default() };
        let known = |n_completed, n_given_up| {
            Knowledge::Target(Target { n_completed, n_given_up, ..Target::default() })
        };
        for (topic, knowledge, want) in [
            (&work, Some(ended), true),
            (&work, None, false),
            (&target, Some(known(1, 0)), true),
            (&target, Some(known(0, 1)), true),
            (&target, Some(known(0, 0)), false),
        ] {
            let fact = Fact { topic: topic.clone(), knowledge };
            assert_eq!(group_of_ended_work(&fact).is_some(), want, "{fact:?}");
        }
    }

    /// What was promised to outlive the driver would be lost without a word. A program that begins anew adds its tasks again.
    #[test]
    fn who_outlives_the_driver_takes_no_tasks_without_a_record() {
        let why = || "not permitted".to_owned();
        assert_eq!(without_record(why(), true), RecordUse::Missing(why()));
        assert_eq!(without_record(why(), false), RecordUse::Off);
    }

    #[test]
    fn what_tasks_of_a_record_need_outlives_the_drivers_pod() {
        let owner = |kind: &str| {
            let [api_version, kind, name, uid] = ["v1", kind, "n", "u"].map(str::to_owned);
            Some(OwnerRef { api_version, kind, name, uid })
        };
        let of = |record| owner_of_tasks(&record, owner("Job"), owner("Pod"));
        for record in [
            RecordSetting::Auto(None),
            RecordSetting::Cluster,
            RecordSetting::File("/data/record".into()),
        ] {
            assert_eq!(of(record), owner("Job"));
        }
        assert_eq!(of(RecordSetting::Off), owner("Pod"));
    }
}
