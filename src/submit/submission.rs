//! Owns how a driver's objects come to be: all shown to the server first, then made one by one, then
//! bound to the Job; where the server refuses one, what this call made goes again. Says nothing:
//! what became of it is its answer.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::api::objects::{Kind, Objects, owned_by};
use crate::submit::manifests::{Manifests, NEWER_FIELDS};
use crate::submit::plan::Plan;
use crate::submit::retry::with_retries;
use crate::submit::state::{is_final, kind_and_name, name_of, uid_of};
use crate::wire::labels::{APP, MANAGED_BY, SUBMISSION};

/// How long what is left of an ended application may take to go.
const GONE_TIMEOUT: Duration = Duration::from_secs(60);
const GONE_POLL: Duration = Duration::from_millis(200);
/// Parts without a Job that are older than this are what a submit left that was killed, seconds: it
/// takes no longer itself.
const ABANDONED_AFTER_S: i64 = 300;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Submitted {
    /// The Job or Pod as the server has it.
    pub workload: Value,
    /// Fields of the Job that this server does not know.
    pub unknown_fields: Vec<&'static str>,
}

/// Why there is no driver.
#[derive(Clone, Debug, PartialEq)]
pub enum SubmitError {
    /// The application has a driver that is still running; names its Job or Pod.
    AlreadyRunning(String),
    /// An object with the same name exists that we must not replace, for the reason `why`.
    NameTaken { object: String, why: String },
    /// The server refused this; nothing is left of what was made.
    Refused { what: String, refusal: Refusal },
    /// We were told to stop in time; nothing is left.
    Interrupted,
    /// What is left could not be removed.
    NotCleanedUp { objects: Vec<String>, because: Box<Self> },
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AlreadyRunning(object) => write!(f, "it runs already: {object} is not over"),
            Self::NameTaken { object, why } => write!(f, "{object} is in the way: {why}"),
            Self::Refused { what, refusal } => write!(f, "{what}: {refusal}"),
            Self::Interrupted => write!(f, "interrupted"),
            Self::NotCleanedUp { objects, because } => {
                write!(f, "{because}; could not be removed again: {}", objects.join(", "))
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
    /// Now, in seconds since 1970.
    pub now_s: i64,
}

/// An object that is there under one of our names.
struct Found {
    kind: Kind,
    object: Value,
}

/// An object that this call made.
struct Made {
    kind: Kind,
    name: String,
    uid: String,
}

impl Submission<'_> {
    /// Asks the server whether it would take all of it; nothing is made.
    pub fn check(&self) -> Result<Vec<&'static str>, SubmitError> {
        let in_the_way = self.survey()?;
        self.dry_run(&in_the_way)
    }

    /// Makes the driver. `is_interrupted` is asked between the steps.
    ///
    /// # Errors
    /// Why there is none, and what is left of it.
    pub fn submit(&self, is_interrupted: &dyn Fn() -> bool) -> Result<Submitted, SubmitError> {
        let in_the_way = self.survey()?;
        let unknown_fields = self.dry_run(&in_the_way)?;
        self.make_room(&in_the_way)?;
        let mut made: Vec<Made> = Vec::new();
        let workload = self.make(&mut made, is_interrupted).map_err(|why| self.undo(made, why))?;
        Ok(Submitted { workload, unknown_fields })
    }

    /// Looks at what is there under our names.
    fn survey(&self) -> Result<Vec<Found>, SubmitError> {
        let mut found = Vec::new();
        let own = self.manifests.all().filter_map(Kind::of);
        // An application may have been a Job before and be a Pod now.
        let mut kinds: Vec<Kind> = Vec::new();
        for kind in own.chain([Kind::Job, Kind::Pod]) {
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let workload_kind = Kind::of(&self.manifests.workload);
        let name = self.plan.name();
        for kind in kinds {
            let other = matches!(kind, Kind::Job | Kind::Pod) && Some(kind) != workload_kind;
            match self.objects.get(kind, &name) {
                Ok(None) => {}
                Ok(Some(object)) => found.push(Found { kind, object }),
                Err(refusal) if other && refusal.class == RefusalClass::Forbidden => {}
                Err(refusal) => {
                    let what = format!("whether there is a {} {name}", kind.word());
                    return Err(SubmitError::Refused { what, refusal });
                }
            }
        }
        let workloads = found.iter().filter(|one| matches!(one.kind, Kind::Job | Kind::Pod));
        for workload in workloads {
            self.check_ours(workload)?;
            let is_ending = !workload.object["metadata"]["deletionTimestamp"].is_null();
            if !is_ending && !is_final(&workload.object) {
                return Err(SubmitError::AlreadyRunning(named(&workload.object)));
            }
        }
        for part in found.iter().filter(|one| !matches!(one.kind, Kind::Job | Kind::Pod)) {
            self.check_part(part, &found)?;
        }
        Ok(found)
    }

    fn check_ours(&self, found: &Found) -> Result<(), SubmitError> {
        let labels = &found.object["metadata"]["labels"];
        if labels[MANAGED_BY.0] == MANAGED_BY.1 && labels[APP] == *self.plan.app {
            return Ok(());
        }
        let why = format!("it does not belong to application {}", self.plan.app);
        Err(SubmitError::NameTaken { object: named(&found.object), why })
    }

    /// A part without an owner may be that of a submit which is under way just now.
    fn check_part(&self, part: &Found, found: &[Found]) -> Result<(), SubmitError> {
        self.check_ours(part)?;
        let meta = &part.object["metadata"];
        let has_owner = meta["ownerReferences"].as_array().is_some_and(|list| !list.is_empty());
        let submission = &meta["annotations"][SUBMISSION];
        let same = |one: &Found| one.object["metadata"]["annotations"][SUBMISSION] == *submission;
        let has_workload =
            found.iter().any(|one| matches!(one.kind, Kind::Job | Kind::Pod) && same(one));
        let made_s = meta["creationTimestamp"].as_str().and_then(|text| text.parse().ok());
        let age_s = made_s.map_or(0, |made: jiff::Timestamp| self.now_s - made.as_second());
        if has_owner || has_workload || age_s > ABANDONED_AFTER_S {
            return Ok(());
        }
        let why = format!(
            "it was made {age_s} s ago and has no job: another submit is under way, or was cut \
             short; `posse stop {}` removes what that left",
            self.plan.app
        );
        Err(SubmitError::NameTaken { object: named(&part.object), why })
    }

    /// Shows all of it to the server. Gives the fields of the Job that it does not know.
    fn dry_run(&self, in_the_way: &[Found]) -> Result<Vec<&'static str>, SubmitError> {
        let mut unknown = Vec::new();
        for object in self.manifests.all() {
            let kind = kind_of(object);
            let taken = in_the_way.iter().any(|found| found.kind == kind);
            let mut shown = object.clone();
            if taken {
                // Its name is free only when what is over has been removed.
                shown["metadata"]["name"] = json!(format!("{}-check", self.plan.name()));
            }
            match self.objects.create(kind, &shown, true) {
                Ok(answer) if kind == Kind::Job => {
                    let kept = |field: &&str| !answer["spec"][*field].is_null();
                    unknown.extend(NEWER_FIELDS.into_iter().filter(|field| !kept(field)));
                }
                Ok(_) => {}
                // Whether a binding may be made is judged by its role, which is not there yet.
                Err(refusal)
                    if kind == Kind::RoleBinding && refusal.class == RefusalClass::NotFound => {}
                // What is removed makes room.
                Err(refusal) if taken && refusal.class == RefusalClass::Capacity => {}
                Err(refusal) => return Err(refused(object, refusal)),
            }
        }
        self.dry_run_pod()?;
        Ok(unknown)
    }

    /// A Job is taken though its pods would not be; so the pod is shown as well.
    fn dry_run_pod(&self) -> Result<(), SubmitError> {
        if kind_of(&self.manifests.workload) == Kind::Pod {
            return Ok(());
        }
        let mut pod = self.manifests.pod.clone();
        pod["metadata"]["name"] = json!(format!("{}-check", self.plan.name()));
        if self.plan.create_rbac {
            // It is not there yet.
            pod["spec"]["serviceAccountName"] = Value::Null;
        }
        match self.objects.create(Kind::Pod, &pod, true) {
            Ok(_) => Ok(()),
            Err(refusal) if refusal.class == RefusalClass::Capacity => {
                log::warn!("the driver's pod has to wait: {refusal}");
                Ok(())
            }
            // Whoever may make Jobs need not be allowed to make pods.
            Err(refusal) if refusal.class == RefusalClass::Forbidden => {
                log::debug!("the driver's pod cannot be shown to the server: {refusal}");
                Ok(())
            }
            Err(refusal) => {
                let remedy = match refusal.message.contains("error looking up service account") {
                    true => "; --create-rbac makes one, deploy/rbac.yaml makes posse-driver",
                    false => "",
                };
                let what = format!("the driver's pod would be refused{remedy}");
                Err(SubmitError::Refused { what, refusal })
            }
        }
    }

    /// Removes what is left of an application that is over, and waits until it is gone.
    fn make_room(&self, in_the_way: &[Found]) -> Result<(), SubmitError> {
        for found in in_the_way {
            let (name, uid) = (name_of(&found.object), uid_of(&found.object));
            let removed = self.objects.delete(found.kind, name, uid, None);
            removed.map_err(|refusal| refused(&found.object, refusal))?;
        }
        let asked = Instant::now();
        for found in in_the_way {
            let (name, uid) = (name_of(&found.object), uid_of(&found.object));
            loop {
                let there = self.objects.get(found.kind, name);
                let there = there.map_err(|refusal| refused(&found.object, refusal))?;
                if there.is_none_or(|object| uid_of(&object) != uid) {
                    break;
                }
                if asked.elapsed() > GONE_TIMEOUT {
                    let why =
                        format!("it does not go, {} s after its delete", GONE_TIMEOUT.as_secs());
                    return Err(SubmitError::NameTaken { object: named(&found.object), why });
                }
                thread::park_timeout(GONE_POLL);
            }
        }
        Ok(())
    }

    /// Makes all of it, and then binds the parts to the Job. What was made is in `made`, also where
    /// this fails.
    fn make(
        &self,
        made: &mut Vec<Made>,
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
            made.push(Made { kind, name, uid });
            workload = answer;
        }
        for part in made.iter().take(self.manifests.parts.len()) {
            let patch = owned_by(&workload, &part.uid);
            with_retries(|| self.objects.patch(part.kind, &part.name, &patch)).map_err(
                |refusal| {
                    let what =
                        format!("{} {} cannot be bound to its job", part.kind.word(), part.name);
                    SubmitError::Refused { what, refusal }
                },
            )?;
        }
        Ok(workload)
    }

    /// Creates an object; where the outcome is unknown it is looked for, and known by our mark.
    fn create(&self, kind: Kind, object: &Value) -> Result<Value, Refusal> {
        let mut is_unsure = false;
        with_retries(|| {
            let refusal = match self.objects.create(kind, object, false) {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            is_unsure |= refusal.class == RefusalClass::OutcomeUnknown;
            if !is_unsure {
                return Err(refusal);
            }
            let ours = |there: &Value| {
                there["metadata"]["annotations"][SUBMISSION] == *self.plan.submission
            };
            match self.objects.get(kind, name_of(object)) {
                Ok(Some(there)) if ours(&there) => Ok(there),
                Ok(_) | Err(_) => Err(refusal),
            }
        })
    }

    /// Removes exactly what this call made, the last first.
    fn undo(&self, made: Vec<Made>, because: SubmitError) -> SubmitError {
        let mut remains = Vec::new();
        for Made { kind, name, uid } in made.into_iter().rev() {
            if let Err(refusal) = with_retries(|| self.objects.delete(kind, &name, &uid, None)) {
                remains.push(format!("{} {name} ({refusal})", kind.word()));
            }
        }
        match remains.is_empty() {
            true => because,
            false => SubmitError::NotCleanedUp { objects: remains, because: Box::new(because) },
        }
    }
}

fn refused(object: &Value, refusal: Refusal) -> SubmitError {
    SubmitError::Refused { what: named(object), refusal }
}

fn kind_of(object: &Value) -> Kind {
    Kind::of(object).expect("we make objects of known kinds only")
}

fn named(object: &Value) -> String {
    kind_and_name(object)
}
