//! Creates a driver's objects: first a dry run of all, then one after the other, then the Job or Pod
//! becomes the owner of the others. If one is refused, those created before are deleted again.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::objects::{Kind, Objects, owned_by};
use crate::kube::api::retry::with_retries;
use crate::submit::manifests::Manifests;
use crate::submit::plan::Plan;
use crate::submit::state::{is_final, kind_and_name, name_of, uid_of};
use crate::wire::labels::{APP, MANAGED_BY, SUBMISSION};

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
            Self::NameTaken { object, why } => write!(f, "{object} exists already: {why}"),
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
#[derive(Debug)]
pub struct Submission<'a> {
    pub objects: &'a Objects,
    pub plan: &'a Plan,
    pub manifests: &'a Manifests,
    /// The current time, in seconds since 1970.
    pub now_s: i64,
}

/// An object that has one of our names.
struct ExistingObject {
    kind: Kind,
    object: Value,
}

/// An object that this call created.
struct CreatedObject {
    kind: Kind,
    name: String,
    uid: String,
}

impl Submission<'_> {
    /// Asks the server whether it would accept all objects. Creates nothing.
    pub fn check(&self) -> Result<(), SubmitError> {
        let existing = self.find_existing()?;
        self.dry_run(&existing)
    }

    /// Creates the driver's objects, and returns the Job or Pod. Checks `is_interrupted` before each of them.
    pub fn submit(&self, is_interrupted: &dyn Fn() -> bool) -> Result<Value, SubmitError> {
        let existing = self.find_existing()?;
        self.dry_run(&existing)?;
        self.delete_existing(&existing)?;
        let mut created: Vec<CreatedObject> = Vec::new();
        let workload = self
            .create_all(&mut created, is_interrupted)
            .map_err(|why| self.delete_created(created, why))?;
        Ok(workload)
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
            match self.objects.get(kind, &name) {
                Ok(None) => {}
                Ok(Some(object)) => found.push(ExistingObject { kind, object }),
                Err(refusal) if is_other_kind && refusal.class == RefusalClass::Forbidden => {}
                Err(refusal) => {
                    let hint = permission_hint(kind, &refusal);
                    let what = format!("reading {} {name}{hint}", kind.word());
                    return Err(SubmitError::Refused { what, refusal });
                }
            }
        }
        let workloads = found.iter().filter(|one| matches!(one.kind, Kind::Job | Kind::Pod));
        for workload in workloads {
            self.check_ours(workload)?;
            let is_ending = !workload.object["metadata"]["deletionTimestamp"].is_null();
            if !is_ending && !is_final(&workload.object) {
                return Err(SubmitError::AlreadyRunning(kind_and_name(&workload.object)));
            }
        }
        for part in found.iter().filter(|one| !matches!(one.kind, Kind::Job | Kind::Pod)) {
            self.check_part(part, &found)?;
        }
        Ok(found)
    }

    fn check_ours(&self, found: &ExistingObject) -> Result<(), SubmitError> {
        let labels = &found.object["metadata"]["labels"];
        if labels[MANAGED_BY.0] == MANAGED_BY.1 && labels[APP] == *self.plan.app {
            return Ok(());
        }
        let why = format!("it does not belong to application {}", self.plan.app);
        Err(SubmitError::NameTaken { object: kind_and_name(&found.object), why })
    }

    /// An object without an owner may belong to another submission that is in progress.
    fn check_part(
        &self,
        part: &ExistingObject,
        found: &[ExistingObject],
    ) -> Result<(), SubmitError> {
        self.check_ours(part)?;
        let meta = &part.object["metadata"];
        let has_owner = meta["ownerReferences"].as_array().is_some_and(|list| !list.is_empty());
        let submission = &meta["annotations"][SUBMISSION];
        let same =
            |one: &ExistingObject| one.object["metadata"]["annotations"][SUBMISSION] == *submission;
        let has_workload =
            found.iter().any(|one| matches!(one.kind, Kind::Job | Kind::Pod) && same(one));
        let created_s = meta["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
        let age_s =
            created_s.map_or(0, |created: jiff::Timestamp| self.now_s - created.as_second());
        if has_owner || has_workload || age_s > ABANDONED_AFTER_S {
            return Ok(());
        }
        let why = format!(
            "it was created {age_s} s ago and belongs to no job: another `posse submit` is in \
             progress or was killed; in the latter case `posse stop {}` deletes it",
            self.plan.app
        );
        Err(SubmitError::NameTaken { object: kind_and_name(&part.object), why })
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
            match self.objects.create(kind, &checked, true) {
                Ok(_) => {}
                // The server checks a binding against its role, which does not exist yet.
                Err(refusal)
                    if kind == Kind::RoleBinding && refusal.class == RefusalClass::NotFound => {}
                // Deleting the existing object frees its quota.
                Err(refusal) if exists && refusal.class == RefusalClass::Capacity => {}
                Err(refusal) => return Err(refused(object, refusal)),
            }
        }
        self.dry_run_pod()?;
        self.dry_run_executors()
    }

    /// A driver whose executors' template is invalid would end as soon as it runs.
    fn dry_run_executors(&self) -> Result<(), SubmitError> {
        for (group, pod) in &self.plan.executors {
            let mut pod = pod.clone();
            pod["metadata"]["namespace"] = json!(self.plan.namespace);
            match self.objects.create(Kind::Pod, &pod, true) {
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
        if self.plan.create_rbac {
            // The service account does not exist yet.
            pod["spec"]["serviceAccountName"] = Value::Null;
        }
        match self.objects.create(Kind::Pod, &pod, true) {
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
            Err(mut refusal) => {
                if refusal.message.contains("error looking up service account") {
                    refusal.message.push_str(
                        "; use --create-rbac, which creates one for this application, or set \
                         driver.service_account (deploy/rbac.yaml creates posse-driver)",
                    );
                }
                let what = "the driver's pod would be refused".to_owned();
                Err(SubmitError::Refused { what, refusal })
            }
        }
    }

    /// Deletes the objects of the finished application and waits until they are gone.
    fn delete_existing(&self, existing: &[ExistingObject]) -> Result<(), SubmitError> {
        for found in existing {
            let (name, uid) = (name_of(&found.object), uid_of(&found.object));
            let removed = self.objects.delete(found.kind, name, uid, None);
            removed.map_err(|refusal| refused(&found.object, refusal))?;
        }
        let deleted_at = Instant::now();
        for found in existing {
            let (name, uid) = (name_of(&found.object), uid_of(&found.object));
            loop {
                let current = self.objects.get(found.kind, name);
                let current = current.map_err(|refusal| refused(&found.object, refusal))?;
                if current.is_none_or(|object| uid_of(&object) != uid) {
                    break;
                }
                if deleted_at.elapsed() > GONE_TIMEOUT {
                    let why =
                        format!("it still exists {} s after its deletion", GONE_TIMEOUT.as_secs());
                    return Err(SubmitError::NameTaken {
                        object: kind_and_name(&found.object),
                        why,
                    });
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
    ) -> Result<Value, SubmitError> {
        let mut workload = Value::Null;
        for object in self.manifests.all() {
            if is_interrupted() {
                return Err(SubmitError::Interrupted);
            }
            let kind = kind_of(object);
            let answer = self.create(kind, object).map_err(|refusal| refused(object, refusal))?;
            let (name, uid) = (name_of(&answer).to_owned(), uid_of(&answer).to_owned());
            created.push(CreatedObject { kind, name, uid });
            workload = answer;
        }
        for part in created.iter().take(self.manifests.parts.len()) {
            let patch = owned_by(&workload, &part.uid);
            with_retries(|| self.objects.patch(part.kind, &part.name, &patch)).map_err(
                |refusal| {
                    let (kind, name) = (part.kind.word(), &part.name);
                    let hint = permission_hint(part.kind, &refusal);
                    let what = format!("setting the owner of {kind} {name}{hint}");
                    SubmitError::Refused { what, refusal }
                },
            )?;
        }
        Ok(workload)
    }

    /// Creates an object. If the outcome is unknown, it reads the object and recognizes its own by the
    /// submission's annotation.
    fn create(&self, kind: Kind, object: &Value) -> Result<Value, Refusal> {
        let mut is_outcome_unknown = false;
        with_retries(|| {
            let refusal = match self.objects.create(kind, object, false) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            is_outcome_unknown |= refusal.class == RefusalClass::OutcomeUnknown;
            if !is_outcome_unknown {
                return Err(refusal);
            }
            let is_ours = |object: &Value| {
                object["metadata"]["annotations"][SUBMISSION] == *self.plan.submission
            };
            match self.objects.get(kind, name_of(object)) {
                Ok(Some(object)) if is_ours(&object) => Ok(object),
                Ok(_) | Err(_) => Err(refusal),
            }
        })
    }

    /// Deletes what this call created, in reverse order.
    fn delete_created(&self, created: Vec<CreatedObject>, because: SubmitError) -> SubmitError {
        let mut remaining = Vec::new();
        for CreatedObject { kind, name, uid } in created.into_iter().rev() {
            if let Err(refusal) = with_retries(|| self.objects.delete(kind, &name, &uid, None)) {
                remaining.push(format!("{} {name} ({refusal})", kind.word()));
            }
        }
        match remaining.is_empty() {
            true => because,
            false => SubmitError::NotCleanedUp { objects: remaining, because: Box::new(because) },
        }
    }
}

fn refused(object: &Value, refusal: Refusal) -> SubmitError {
    let hint = permission_hint(kind_of(object), &refusal);
    SubmitError::Refused { what: format!("{}{hint}", kind_and_name(object)), refusal }
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
