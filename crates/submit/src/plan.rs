//! The input of a submission: names, labels, and everything that the manifests are built from.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::files::Files;
use crate::pod_files::PodFiles;
use posse_wire::config::{DriverPod, Metrics, PosseImage};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::kueue;
use posse_wire::k8s::labels::{APP, DRIVER, EXECUTORS, MANAGED_BY, SUBMISSION};
use posse_wire::k8s::permissions::Rule;
use posse_wire::pod::staged::Staged;
use posse_wire::pod::template::Template;

/// Everything that a driver's objects are built from.
#[derive(Clone, Debug)]
pub struct Plan {
    pub app: String,
    pub namespace: String,
    /// The id of this call of `posse submit`; an annotation of every object.
    pub submission: String,
    pub pod: DriverPod,
    /// The driver's template, without the shorthands.
    pub template: Template,
    /// The configuration file and the templates that it names.
    pub files: Files,
    /// The arguments after `posse run -f FILE --namespace NS`: flags, then `--` and the driver's command.
    pub args: Vec<String>,
    /// Labels and annotations of all objects.
    pub common: Arc<CommonMetadata>,
    /// The LocalQueue of Kueue that admits the Job or the driver's pod.
    pub queue: Option<String>,
    /// The driver's command is given outside of the template.
    pub has_driver_command: bool,
    /// A pod of each group as the driver would create it, with the group's name.
    pub executors: Vec<(String, Value)>,
    /// The number of executors of all groups at start.
    pub n_executors: u64,
    /// The time for the driver to end, then for the executors, in milliseconds.
    pub grace_ms: u64,
    pub stop_timeout_ms: u64,
    /// How long submit waits for the image of the driver's pod, in milliseconds; 0: for ever.
    pub image_timeout_ms: u64,
    /// Two drivers of the application must not run at the same time.
    pub exclusive: bool,
    /// Where Prometheus finds the driver's metrics; `None`: nowhere.
    pub scrape: Option<ScrapePort>,
    /// Create a service account with the permissions that posse needs.
    pub create_rbac: bool,
    /// The Secrets that the run writes for its credentials.
    pub credential_secrets: Vec<String>,
    /// The tasks of the run have secret variables.
    pub task_secrets: bool,
    /// What the run may need besides the rules of `deploy/rbac.yaml`.
    pub rules: Vec<Rule>,
    /// The files that come along.
    pub pod_files: PodFiles,
}

/// The port of the driver's metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrapePort {
    pub port: u16,
    /// The configuration does not name it: a flag does.
    pub is_default: bool,
}

/// The port of the metrics if the configuration names none.
const METRICS_PORT: u16 = 9760;

impl ScrapePort {
    /// The port for a configuration; `None` if no other machine can reach it.
    pub fn of(metrics: Metrics, template: &Template) -> Option<Self> {
        match metrics {
            Metrics::At(address) => {
                address.is_public().then_some(Self { port: address.port(), is_default: false })
            }
            // Two drivers on one node would want the same port of the node.
            Metrics::Default if template.spec.get("hostNetwork") == Some(&json!(true)) => None,
            Metrics::Default => Some(Self { port: METRICS_PORT, is_default: true }),
            Metrics::Off => None,
        }
    }
}

/// The name of all objects of an application's driver.
pub fn driver_name(app: &str) -> String {
    format!("{app}-driver")
}

/// The label selector of one application's driver, or of all drivers.
pub fn driver_selector(app: Option<&str>) -> String {
    let all = format!("{}={},{}={}", MANAGED_BY.0, MANAGED_BY.1, DRIVER.0, DRIVER.1);
    app.map_or_else(|| all.clone(), |app| format!("{APP}={app},{all}"))
}

impl Plan {
    /// Sets the namespace if none was given.
    pub fn or_namespace(&mut self, default: &str) {
        if self.namespace.is_empty() {
            default.clone_into(&mut self.namespace);
        }
    }

    /// The name of all objects except the pods of a Job.
    pub fn name(&self) -> String {
        driver_name(&self.app)
    }

    /// The labels of all objects.
    pub fn labels(&self) -> Map<String, Value> {
        let pairs = [(APP, self.app.as_str()), MANAGED_BY, DRIVER];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
    }

    /// The metadata of all objects except the pods of a Job.
    pub fn metadata(&self) -> Value {
        json!({
            "name": self.name(), "namespace": self.namespace, "labels": self.labels(),
            "annotations": { SUBMISSION: self.submission },
        })
    }

    /// The metadata of the Job or Pod. It also contains the number of executors, and the queue.
    pub fn workload_metadata(&self) -> Value {
        let mut metadata = self.metadata();
        metadata["annotations"][EXECUTORS] = json!(self.n_executors.to_string());
        if let Some(queue) = &self.queue {
            metadata["labels"][kueue::QUEUE] = json!(queue);
        }
        metadata
    }

    /// What pods need to find the files that come along.
    pub fn staged(&self) -> Option<Staged> {
        let image = match &self.pod_files {
            PodFiles::None => return None,
            PodFiles::Staged(_) => Some(self.image_with_posse()),
            PodFiles::Inline(_) => None,
        };
        Some(Staged { secret: self.name(), image })
    }

    fn image_with_posse(&self) -> String {
        let brings = self.pod.posse_image.as_ref().map(PosseImage::image);
        let ours = brings.or(self.pod.shorthands.image.as_deref());
        // Without an image for posse, the driver's image contains posse.
        let theirs = || {
            let (main, _) = self.template.main_container(self.pod.container.as_deref()).ok()?;
            self.template.spec.get("containers")?.get(main)?["image"].as_str()
        };
        ours.or_else(theirs).unwrap_or_default().to_owned()
    }
}
