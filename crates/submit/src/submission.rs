//! Creates a driver's objects: first a dry run of all, then one after the other, then the Job or Pod
//! becomes the owner of the others. If one is refused, those created before are deleted again.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::manifests::Manifests;
use crate::plan::Plan;
use crate::workload::Workload;
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects, owned_by};
use posse_kube::api::retry::with_retries;
use posse_wire::config::PosseImage;
use posse_wire::k8s::labels::{APP, MANAGED_BY, SUBMISSION};
use posse_wire::k8s::object::Meta;

/// How long the objects of a finished application may take to be deleted.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
const GONE_POLL: Duration = Duration::from_millis(200);
/// In seconds. Objects without a Job that are older than this were left by a killed `posse submit`: a
/// live one does not take that long.
const ABANDONED_AFTER_S: i64 = 300;

/// Why no driver was created.
#[derive(Clone, Debug, PartialEq)]
pub enum SubmitError {
    /// The application has a driver that is still running; names its Job or Pod.
    AlreadyRunning(String),
    /// Another submission has created this object, and no driver yet.
    InProgress { object: String, why: String },
    /// An object with the same name exists that we must not replace, for the reason `why`.
    NameTaken { object: String, why: String },
    /// The server refused `what`. All created objects were deleted again.
    Refused { what: String, refusal: Refusal },
    /// Interrupted by a signal. All created objects were deleted again.
    Interrupted,
    /// These created objects could not be deleted again.
    NotCleanedUp { objects: Vec<String>, because: Box<Self> },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyRunning(object) => {
                write!(
                    f,
                    "it is already running: {object} has not finished; `posse logs -f` follows it, \
                     `posse stop` ends it, --app NAME starts another one"
                )
            }
            Self::InProgress { object, why } | Self::NameTaken { object, why } => {
                write!(f, "{object} exists already: {why}")
            }
            Self::Refused { what, refusal } => write!(f, "{what}: {refusal}"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::NotCleanedUp { objects, because } => {
                write!(f, "{because}; these objects could not be deleted: {}", objects.join(", "))
            }
        }
    }
}

impl std::error::Error for SubmitError {}

/// One submission.
#[derive(Clone, Debug)]
pub struct Submission {
    pub objects: Objects,
    pub plan: Plan,
    /// What is built from the plan.
    pub manifests: Manifests,
}

/// An object that has one of our names.
struct ExistingObject {
    kind: Kind,
    meta: Meta,
    /// A Job or Pod that has finished or is being deleted.
    has_ended: bool,
}

/// An object that this call created.
struct CreatedObject {
    kind: Kind,
    meta: Meta,
}

impl ExistingObject {
    fn read(objects: &Objects, kind: Kind, name: &str) -> Result<Option<Self>, Refusal> {
        if !matches!(kind, Kind::Job | Kind::Pod) {
            let meta = objects.meta(kind, name)?;
            return Ok(meta.map(|meta| Self { kind, meta, has_ended: false }));
        }
        Ok(Workload::get(objects, kind, name)?.map(|workload| {
            let meta = workload.meta().clone();
            Self { kind, has_ended: meta.is_deleting() || workload.is_final(), meta }
        }))
    }

    fn is_workload(&self) -> bool {
        matches!(self.kind, Kind::Job | Kind::Pod)
    }

    fn describe(&self) -> String {
        self.kind.with_name(&self.meta.name)
    }
}

impl Submission {
    /// Asks the server whether it would accept all objects. Creates nothing.
    pub fn check(&self) -> Result<(), SubmitError> {
        let existing = self.find_existing()?;
        self.dry_run(&existing)
    }

    /// Creates the driver's objects, and returns the metadata of the Job or Pod. Checks `is_interrupted`
    /// before each of them.
    pub fn submit(&self, is_interrupted: &dyn Fn() -> bool) -> Result<Meta, SubmitError> {
        let existing = self.find_existing()?;
        self.dry_run(&existing)?;
        self.delete_existing(&existing)?;
        let mut created: Vec<CreatedObject> = Vec::new();
        self.create_all(&mut created, is_interrupted)
            .map_err(|why| self.delete_created(created, why))
    }

    /// Finds the objects that have our names and checks that we may replace them.
    fn find_existing(&self) -> Result<Vec<ExistingObject>, SubmitError> {
        let mut found = Vec::new();
        let own = self.manifests.all().filter_map(Kind::of);
        // The driver may have been a Job in the last submission and be a Pod now.
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in own.chain([Kind::Job, Kind::Pod]) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let workload_kind = Kind::of(&self.manifests.workload);
        let name = self.plan.name();
        for kind in kinds {
            let is_other_kind =
                matches!(kind, Kind::Job | Kind::Pod) && Some(kind) != workload_kind;
            match ExistingObject::read(&self.objects, kind, &name) {
                Ok(None) => {}
                Ok(Some(object)) => found.push(object),
                Err(refusal) if is_other_kind && refusal.class == RefusalClass::Forbidden => {}
                Err(refusal) => {
                    let hint = permission_hint(kind, &refusal);
                    let what = format!("reading {} {name}{hint}", kind.word());
                    return Err(SubmitError::Refused { what, refusal });
                }
            }
        }
        for workload in found.iter().filter(|one| one.is_workload()) {
            self.check_ours(workload)?;
            if !workload.has_ended {
                return Err(SubmitError::AlreadyRunning(workload.describe()));
            }
        }
        for part in found.iter().filter(|one| !one.is_workload()) {
            self.check_part(part, &found)?;
        }
        Ok(found)
    }

    fn check_ours(&self, found: &ExistingObject) -> Result<(), SubmitError> {
        let ours = [MANAGED_BY, (APP, &self.plan.app)];
        if ours.iter().all(|(key, value)| found.meta.label(key) == Some(value)) {
            return Ok(());
        }
        let why = format!("it does not belong to application {}", self.plan.app);
        Err(SubmitError::NameTaken { object: found.describe(), why })
    }

    /// An object without an owner may belong to another submission that is in progress.
    fn check_part(
        &self,
        part: &ExistingObject,
        found: &[ExistingObject],
    ) -> Result<(), SubmitError> {
        self.check_ours(part)?;
        let meta = &part.meta;
        let has_owner = !meta.owner_references.is_empty();
        let submission = meta.annotation(SUBMISSION);
        let same = |one: &ExistingObject| one.meta.annotation(SUBMISSION) == submission;
        let has_workload = found.iter().any(|one| one.is_workload() && same(one));
        let created: Option<Timestamp> =
            meta.creation_timestamp.as_ref().and_then(|text| text.parse().ok());
        let age_s = created.map_or(0, |at| Timestamp::now().as_second() - at.as_second());
        if has_owner || has_workload || age_s > ABANDONED_AFTER_S {
            return Ok(());
        }
        let why = format!(
            "it was created {age_s} s ago and belongs to no job: another `posse submit` is in \
             progress or was killed; in the latter case `posse stop {}` deletes it",
            self.plan.app
        );
        Err(SubmitError::InProgress { object: part.describe(), why })
    }

    /// Sends all objects as a dry run.
    fn dry_run(&self, existing: &[ExistingObject]) -> Result<(), SubmitError> {
        for object in self.manifests.all() {
            let kind = kind_of(object);
            let exists = existing.iter().any(|found| found.kind == kind);
            let mut checked = object.clone();
            if exists {
                // The name is not free until the existing object is deleted.
                checked["metadata"]["name"] = json!(format!("{}-check", self.plan.name()));
            }
            if kind == Kind::Pod {
                self.leave_out_account(&mut checked);
            }
            match self.objects.dry_run(kind, &checked) {
                Ok(_) => {}
                // The server checks a binding against its role, which does not exist yet.
                Err(refusal)
                    if kind == Kind::RoleBinding && refusal.class == RefusalClass::NotFound => {}
                // Deleting the existing object frees its quota.
                Err(refusal) if exists && refusal.class == RefusalClass::Capacity => {}
                Err(refusal) => return Err(self.refused(kind, refusal)),
            }
        }
        self.dry_run_pod()?;
        self.dry_run_executors()
    }

    /// With `create_rbac` the service account of the driver's pod does not exist before this submission.
    fn leave_out_account(&self, pod: &mut Value) {
        if self.plan.create_rbac {
            pod["spec"]["serviceAccountName"] = Value::Null;
        }
    }

    /// A driver whose executors' template is invalid would end as soon as it runs.
    fn dry_run_executors(&self) -> Result<(), SubmitError> {
        for (group, pod) in &self.plan.executors {
            let mut pod = pod.clone();
            pod["metadata"]["namespace"] = json!(self.plan.namespace);
            match self.objects.dry_run(Kind::Pod, &pod) {
                Ok(_) => {}
                Err(refusal) if refusal.class == RefusalClass::Invalid => {
                    let what = format!("group {group}: the server would refuse its pods");
                    return Err(SubmitError::Refused { what, refusal });
                }
                // The driver creates the pods, later and with other permissions.
                Err(refusal) => log::debug!("the pods of {group} cannot be checked: {refusal}"),
            }
        }
        Ok(())
    }

    /// A Job is accepted even if its pods would be refused, so the pod is checked too.
    fn dry_run_pod(&self) -> Result<(), SubmitError> {
        if kind_of(&self.manifests.workload) == Kind::Pod {
            return Ok(());
        }
        let mut pod = self.manifests.pod.clone();
        pod["metadata"]["name"] = json!(format!("{}-check", self.plan.name()));
        self.leave_out_account(&mut pod);
        match self.objects.dry_run(Kind::Pod, &pod) {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.class == RefusalClass::Capacity => {
                log::warn!("the driver's pod has to wait: {refusal}");
                Ok(())
            }
            // A user who may create Jobs may not be permitted to create pods.
            Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                log::debug!("the driver's pod cannot be checked: {refusal}");
                Ok(())
            }
            Err(refusal) => {
                let mut refusal = self.with_volume_hint(refusal);
                if refusal.message.contains("error looking up service account") {
                    refusal.message.push_str(
                        "; use --create-rbac, which creates one for this application, or name one \
                         in driver.pod: spec.serviceAccountName (deploy/rbac.yaml creates posse-driver)",
                    );
                }
                let what = "the driver's pod would be refused".to_owned();
                Err(SubmitError::Refused { what, refusal })
            }
        }
    }

    /// Adds what to do if the server does not keep or take a volume that is an image.
    fn with_volume_hint(&self, mut refusal: Refusal) -> Refusal {
        let is_mounted = matches!(self.plan.pod.posse_image, Some(PosseImage::Mounted(_)));
        let is_about_volumes = refusal.message.contains("volumes[");
        if is_mounted && is_about_volumes && refusal.class == RefusalClass::Invalid {
            refusal.message.push_str(
                "; driver.posse_image mounts its image (`volume:`), which Kubernetes can since 1.35: \
                 without this word an init container copies posse",
            );
        }
        refusal
    }

    /// Deletes the objects of the finished application and waits until they are gone.
    fn delete_existing(&self, existing: &[ExistingObject]) -> Result<(), SubmitError> {
        for found in existing {
            let (kind, Meta { name, uid, .. }) = (found.kind, &found.meta);
            let removed = with_retries(|| self.objects.delete(kind, name, uid, None));
            removed.map_err(|refusal| self.refused(found.kind, refusal))?;
        }
        let deleted_at = Instant::now();
        for found in existing {
            loop {
                let current = with_retries(|| self.objects.meta(found.kind, &found.meta.name));
                let current = current.map_err(|refusal| self.refused(found.kind, refusal))?;
                if current.is_none_or(|current| current.uid != found.meta.uid) {
                    break;
                }
                if deleted_at.elapsed() > GONE_TIMEOUT {
                    let why =
                        format!("it still exists {} s after its deletion", GONE_TIMEOUT.as_secs());
                    return Err(SubmitError::NameTaken { object: found.describe(), why });
                }
                thread::park_timeout(GONE_POLL);
            }
        }
        Ok(())
    }

    /// Creates all objects, then makes the Job or Pod the owner of the others. After an error,
    /// `created` contains what was created until then.
    fn create_all(
        &self,
        created: &mut Vec<CreatedObject>,
        is_interrupted: &dyn Fn() -> bool,
    ) -> Result<Meta, SubmitError> {
        let mut workload = (Kind::Job, Meta::default());
        for object in self.manifests.all() {
            if is_interrupted() {
                return Err(SubmitError::Interrupted);
            }
            let kind = kind_of(object);
            let meta = self.create(kind, object).map_err(|refusal| self.refused(kind, refusal))?;
            created.push(CreatedObject { kind, meta: meta.clone() });
            workload = (kind, meta);
        }
        let (kind, owner) = workload;
        for part in created.iter().take(self.manifests.parts.len()) {
            let patch = owned_by(kind, &owner, &part.meta.uid);
            with_retries(|| self.objects.patch(part.kind, &part.meta.name, &patch)).map_err(
                |refusal| {
                    let part_name = part.kind.with_name(&part.meta.name);
                    let hint = permission_hint(part.kind, &refusal);
                    let what = format!("setting the owner of {part_name}{hint}");
                    SubmitError::Refused { what, refusal }
                },
            )?;
        }
        Ok(owner)
    }

    /// Creates an object. If the outcome is unknown, it reads the object and recognizes its own by the
    /// submission's annotation.
    fn create(&self, kind: Kind, object: &Value) -> Result<Meta, Refusal> {
        let mut is_outcome_unknown = false;
        with_retries(|| {
            let refusal = match self.objects.create(kind, object) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            is_outcome_unknown |= refusal.class == RefusalClass::OutcomeUnknown;
            if !is_outcome_unknown {
                return Err(refusal);
            }
            let ours = Some(self.plan.submission.as_str());
            match self.objects.meta(kind, &self.plan.name()) {
                Ok(Some(meta)) if meta.annotation(SUBMISSION) == ours => Ok(meta),
                Ok(_) | Err(_) => Err(refusal),
            }
        })
    }

    /// Deletes what this call created, in reverse order.
    fn delete_created(&self, created: Vec<CreatedObject>, because: SubmitError) -> SubmitError {
        let mut remaining = Vec::new();
        for CreatedObject { kind, meta: Meta { name, uid, .. } } in created.into_iter().rev() {
            if let Err(refusal) = with_retries(|| self.objects.delete(kind, &name, &uid, None)) {
                remaining.push(format!("{} ({refusal})", kind.with_name(&name)));
            }
        }
        match remaining.is_empty() {
            true => because,
            false => SubmitError::NotCleanedUp { objects: remaining, because: Box::new(because) },
        }
    }

    /// The server refused a request about our object of this kind.
    fn refused(&self, kind: Kind, refusal: Refusal) -> SubmitError {
        let object = kind.with_name(&self.plan.name());
        // It did not exist when this submission began.
        if refusal.class == RefusalClass::Exists {
            let why = "another `posse submit` has just created it".to_owned();
            return SubmitError::InProgress { object, why };
        }
        let hint = permission_hint(kind, &refusal);
        let refusal = self.with_volume_hint(refusal);
        SubmitError::Refused { what: format!("{object}{hint}"), refusal }
    }
}

/// What to do about missing permissions that few users have.
fn permission_hint(kind: Kind, refusal: &Refusal) -> &'static str {
    match kind == Kind::Secret && refusal.class == RefusalClass::Forbidden {
        true => " (--file needs the permissions get, create, patch and delete for secrets)",
        false => "",
    }
}

fn kind_of(object: &Value) -> Kind {
    Kind::of(object).expect("all manifests are of known kinds")
}
