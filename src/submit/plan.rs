//! Owns what is known of a submission before anything is made: names, labels, and all that the
//! builders of manifests read. Reads no file and asks nobody.

use serde_json::{Map, Value, json};

use crate::submit::files::Files;
use crate::wire::bundle::Ticket;
use crate::wire::config::DriverPod;
use crate::wire::labels::{APP, DRIVER, EXECUTORS, MANAGED_BY, SUBMISSION};
use crate::wire::staged::Staged;
use crate::wire::template::Template;

/// What a driver pod has beyond its driver's and its executors' time to end, seconds: for the last
/// requests.
const END_RESERVE_S: u64 = 5;

/// All that a driver's objects are made of.
#[derive(Clone, Debug)]
pub struct Plan {
    pub app: String,
    pub namespace: String,
    /// Which call this is: written on all that it makes.
    pub submission: String,
    pub pod: DriverPod,
    /// The driver's own template, with the shorthands to be laid over it.
    pub template: Template,
    /// The file, and the templates that it names.
    pub files: Files,
    /// What follows `posse run -f FILE --namespace NS`: flags, and the driver's command after `--`.
    pub args: Vec<String>,
    /// The driver's command is known without its template.
    pub has_driver_command: bool,
    /// How many executors there are at start, of all groups.
    pub n_executors: u64,
    /// What the driver gets to end in, and then its executors, milliseconds.
    pub grace_ms: u64,
    pub stop_timeout_ms: u64,
    /// No two drivers of the application at once.
    pub exclusive: bool,
    /// Make a service account with the rights that posse needs.
    pub create_rbac: bool,
    /// How the pods fetch staged files; none: there are none.
    pub ticket: Option<Ticket>,
}

/// The name of all that belongs to an application's driver.
pub fn driver_name(app: &str) -> String {
    format!("{app}-driver")
}

/// The selector of all drivers, or of one application's.
pub fn driver_selector(app: Option<&str>) -> String {
    let all = format!("{}={},{}={}", MANAGED_BY.0, MANAGED_BY.1, DRIVER.0, DRIVER.1);
    app.map_or_else(|| all.clone(), |app| format!("{APP}={app},{all}"))
}

impl Plan {
    /// Goes to this namespace where nothing named one.
    pub fn or_namespace(&mut self, default: &str) {
        if self.namespace.is_empty() {
            default.clone_into(&mut self.namespace);
        }
    }

    /// The name of everything but the pods of a Job.
    pub fn name(&self) -> String {
        driver_name(&self.app)
    }

    /// The labels that everything carries.
    pub fn labels(&self) -> Map<String, Value> {
        let pairs = [(APP, self.app.as_str()), MANAGED_BY, DRIVER];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
    }

    /// The metadata of everything but the pods of a Job.
    pub fn metadata(&self) -> Value {
        json!({
            "name": self.name(), "namespace": self.namespace, "labels": self.labels(),
            "annotations": { SUBMISSION: self.submission },
        })
    }

    /// The same of what keeps the pod: it tells the number of executors.
    pub fn workload_metadata(&self) -> Value {
        let mut metadata = self.metadata();
        metadata["annotations"][EXECUTORS] = json!(self.n_executors.to_string());
        metadata
    }

    /// What the driver's pod needs to end, in seconds.
    pub fn ends_in_s(&self) -> u64 {
        self.grace_ms.saturating_add(self.stop_timeout_ms).div_ceil(1_000) + END_RESERVE_S
    }

    /// What every pod gets that is to find the staged files.
    pub fn staged(&self) -> Option<Staged> {
        self.ticket.as_ref()?;
        let ours = self.pod.posse_image.as_ref().or(self.pod.shorthands.image.as_ref());
        // Without an image of its own posse is in the driver's.
        let theirs = || {
            let wanted = self.pod.container.as_deref();
            let mut all = self.template.spec.get("containers")?.as_array()?.iter();
            all.find(|one| wanted.is_none_or(|name| one["name"] == name))?["image"].as_str()
        };
        let image = ours.map(String::as_str).or_else(theirs).unwrap_or_default().to_owned();
        Some(Staged { secret: self.name(), image })
    }

    /// Whose rights the pod has.
    pub fn service_account(&self) -> Option<String> {
        match self.create_rbac {
            true => Some(self.name()),
            false => self.pod.service_account.clone(),
        }
    }
}
