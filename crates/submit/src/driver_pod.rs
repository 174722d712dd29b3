//! Builds the driver's pod: changes the user's template so that posse runs in it as the parent process
//! of the driver.

use serde_json::{Map, Value, json};

use crate::files::CONFIG_DIR;
use crate::plan::Plan;
use posse_wire::config::{DriverKind, PosseImage};
use posse_wire::k8s::labels::{APP, CONTAINER, DRIVER, LEADER};
use posse_wire::pod::arguments::find_too_long;
use posse_wire::pod::security::own_container;
use posse_wire::pod::staged::Staged;
use posse_wire::pod::template::{Template, TemplateError, describe};
use posse_wire::pod::tolerations;

/// The folder of the control API's socket: the first one that posse tries.
const RUN_DIR: &str = "/run/posse";
/// Our volumes: the ConfigMap as a folder, single files of the ConfigMap, the folder of the control
/// API's socket, and the posse binary.
const CONFIG_VOLUME: &str = "posse-config";
const FILES_VOLUME: &str = "posse-config-files";
const RUN_VOLUME: &str = "posse-run";
pub(super) const BIN_VOLUME: &str = "posse-bin";
/// The folder of posse: an init container copies it there, or its image is mounted, which has it in the root folder.
const BIN_DIR: &str = "/opt/posse";
/// The command, which is in the PATH of posse's image and of a driver image with posse in it.
const PROGRAM: &str = "posse";
/// The labels of nodes by which pods are spread.
const HOST_NAME: &str = "kubernetes.io/hostname";
const ZONE: &str = "topology.kubernetes.io/zone";
/// The prefix of the annotations by which Prometheus finds what to scrape.
const SCRAPE: &str = "prometheus.io/";
/// The service account that `deploy/rbac.yaml` creates.
const SERVICE_ACCOUNT: &str = "posse-driver";
/// Added to the grace period of the driver's pod, in seconds: time for posse's last requests after the
/// driver and the executors have ended.
const END_RESERVE_S: u64 = 5;

/// The driver's pod, without a name, and a warning for each replaced field of the template.
pub(super) struct DriverPodParts {
    pub(super) metadata: Map<String, Value>,
    pub(super) spec: Map<String, Value>,
    pub(super) warnings: Vec<String>,
}

/// Builds the driver's pod.
///
/// # Errors
/// A field of the template that must be changed has the wrong type, or arguments or variables are longer than Linux takes.
pub(super) fn driver_pod(plan: &Plan) -> Result<DriverPodParts, TemplateError> {
    let template = plan.template.clone().with_shorthands(plan.pod.shorthands.clone());
    let build = Build { plan, template: &template, parts: parts() };
    let mut warnings: Vec<String> = template.copied_warning().into_iter().collect();
    let mut spec = template.spec.clone();
    // First, because the containers that posse adds depend on it.
    spec.entry("securityContext").or_insert_with(|| build.parts["podSecurity"].clone());
    let container = build.add_driver(&mut spec)?;
    if let Some(staged) = plan.staged() {
        staged.mount(&template, &mut spec)?;
    }
    build.add_posse(&mut spec)?;
    build.add_volumes(&mut spec)?;
    build.add_scheduling(&mut spec)?;
    build.add_termination(&mut spec, &mut warnings);
    if let Some((field, what)) = find_too_long(&spec) {
        return Err(template.fail(&field, what));
    }
    let metadata = build.metadata(&container)?;
    Ok(DriverPodParts { metadata, spec, warnings })
}

/// The constant parts of a driver's pod, Job and Service. The init container has limits because some
/// quotas require them.
const PARTS: &str = include_str!("parts.json");

/// `PARTS`, parsed.
pub(super) fn parts() -> Value {
    serde_json::from_slice(PARTS.as_bytes()).expect("parts.json is valid JSON; a test parses it")
}

struct Build<'a> {
    plan: &'a Plan,
    template: &'a Template,
    parts: Value,
}

impl Build<'_> {
    /// Makes posse the command of the driver's container. Returns the container's name.
    fn add_driver(&self, spec: &mut Map<String, Value>) -> Result<String, TemplateError> {
        let (i, name) = self.template.main_container(self.plan.pod.container.as_deref())?;
        let field = format!("spec.containers[{i}]");
        let own_image = self.is_own_image();
        let container = self.container(spec, i, &field)?;
        let template_command: Vec<Value> = ["command", "args"]
            .iter()
            .filter_map(|key| container.remove(*key))
            .flat_map(|words| words.as_array().cloned().unwrap_or_default())
            .collect();
        self.template.lay_over(container, &field)?;
        let program = match self.brought() {
            Some(_) => format!("{BIN_DIR}/{PROGRAM}"),
            None => PROGRAM.to_owned(),
        };
        container.insert("command".to_owned(), json!([program]));
        let config = self.plan.files.config_path();
        let scrape = self.plan.scrape.filter(|scrape| scrape.is_default);
        let metrics = scrape.map(|scrape| format!(":{}", scrape.port));
        let first = ["run", "-f", &config, "--namespace", &self.plan.namespace];
        let as_job = (self.plan.pod.kind == DriverKind::Job).then_some("--as-job");
        let staged = self.plan.staged();
        let files = staged.iter().flat_map(|Staged { secret, image }| {
            let image = image.iter().flat_map(|image| ["--files-image", image.as_str()]);
            ["--files-secret", secret].into_iter().chain(image)
        });
        let given = self.plan.args.iter().map(String::as_str);
        let exclusive = self.plan.exclusive.then_some("--exclusive");
        let metrics = metrics.iter().flat_map(|address| ["--metrics", address]);
        let words = first.into_iter().chain(as_job).chain(exclusive).chain(metrics);
        let words = words.chain(files).chain(given);
        let mut args: Vec<Value> = words.map(|word| json!(word)).collect();
        // Unless the driver's command is given elsewhere, it is the one in the template.
        if !template_command.is_empty() && !self.plan.has_driver_command {
            args.push(json!("--"));
            args.extend(template_command);
        }
        container.insert("args".to_owned(), Value::Array(args));
        // Whoever follows the driver sees why it failed, also without its log.
        container
            .entry("terminationMessagePolicy")
            .or_insert_with(|| json!("FallbackToLogsOnError"));
        self.add_pod_variables(container, &field)?;
        self.declare_metrics(container, &field)?;
        if own_image {
            container.entry("resources").or_insert_with(|| self.parts["ownResources"].clone());
        }
        self.add_security(container, own_image);
        let mounts =
            self.template.list(container, "volumeMounts", &format!("{field}.volumeMounts"))?;
        self.add_mounts(mounts);
        Ok(name)
    }

    /// Adds the variables by which posse knows its pod, and its address.
    fn add_pod_variables(
        &self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let env = self.template.list(container, "env", &format!("{field}.env"))?;
        let ours = self.parts["env"].as_array().cloned().unwrap_or_default();
        env.retain(|entry| !ours.iter().any(|our| entry["name"] == our["name"]));
        env.splice(0..0, ours);
        Ok(())
    }

    /// Declares the port of the metrics: a PodMonitor finds no other one.
    fn declare_metrics(
        &self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let Some(scrape) = self.plan.scrape else { return Ok(()) };
        let ports = self.template.list(container, "ports", &format!("{field}.ports"))?;
        if !ports.iter().any(|port| port["containerPort"] == scrape.port) {
            ports.push(json!({ "containerPort": scrape.port }));
        }
        Ok(())
    }

    /// Adds the mounts of the driver's container. The server refuses two mounts at the same path.
    fn add_mounts(&self, mounts: &mut Vec<Value>) {
        // The template may mount its own volume for the control API's socket.
        let has_run_dir = mounts.iter().any(|theirs| theirs["mountPath"] == RUN_DIR);
        let mut add = |name: &str, path: &str, is_read_only: bool| {
            let mount = json!({ "name": name, "mountPath": path, "readOnly": is_read_only });
            mounts.push(mount);
        };
        add(CONFIG_VOLUME, CONFIG_DIR, true);
        if self.brought().is_some() {
            add(BIN_VOLUME, BIN_DIR, true);
        }
        if !has_run_dir {
            add(RUN_VOLUME, RUN_DIR, false);
        }
        for (key, path) in self.plan.files.absolute() {
            let mut mount = json!({ "name": FILES_VOLUME, "mountPath": path, "readOnly": true });
            mount["subPath"] = json!(key);
            mounts.push(mount);
        }
    }

    fn add_volumes(&self, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let files = &self.plan.files;
        let name = self.plan.name();
        let volumes = self.template.list(spec, "volumes", "spec.volumes")?;
        let mut add = |name: &str, kind: &str, source: Value| {
            volumes.push(json!({ "name": name, kind: source }));
        };
        let config_map = |name: &str| json!({ "name": name });
        let mut config = config_map(&name);
        config["items"] = Value::Array(files.items());
        add(CONFIG_VOLUME, "configMap", config);
        if files.absolute().next().is_some() {
            add(FILES_VOLUME, "configMap", config_map(&name));
        }
        let empty = || Value::Object(Map::new());
        add(RUN_VOLUME, "emptyDir", empty());
        match self.brought() {
            Some(PosseImage::Copied(_)) => add(BIN_VOLUME, "emptyDir", empty()),
            Some(PosseImage::Mounted(image)) => {
                add(BIN_VOLUME, "image", json!({ "reference": image }));
            }
            None => {}
        }
        Ok(())
    }

    /// Adds the init container that copies posse into a pod whose image does not contain it.
    fn add_posse(&self, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let Some(PosseImage::Copied(image)) = self.brought() else { return Ok(()) };
        let mut container = self.parts["init"].as_object().cloned().unwrap_or_default();
        container.insert("image".to_owned(), json!(image));
        container.insert("securityContext".to_owned(), own_container(spec));
        let list = self.template.list(spec, "initContainers", "spec.initContainers")?;
        list.insert(0, Value::Object(container));
        Ok(())
    }

    /// Adds the tolerations, the service account, and that standbys are elsewhere.
    fn add_scheduling(&self, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
        tolerations::add(self.template, spec)?;
        if self.plan.pod.standby > 0 {
            self.add_spread(spec)?;
        }
        if self.plan.create_rbac {
            spec.insert("serviceAccountName".to_owned(), json!(self.plan.name()));
        }
        spec.entry("serviceAccountName").or_insert_with(|| json!(SERVICE_ACCOUNT));
        Ok(())
    }

    /// Spreads the pods over nodes, and over zones where nodes have them. A spread over nodes does not count a pod that is
    /// terminating, and one over zones ignores each node without a zone, so the zones are an affinity.
    fn add_spread(&self, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let selector = json!({ "matchLabels": { APP: self.plan.app, DRIVER.0: DRIVER.1 } });
        let (key, soft) = ("topologySpreadConstraints", "ScheduleAnyway");
        let constraints = self.template.list(spec, key, &format!("spec.{key}"))?;
        let has_own = constraints
            .iter()
            .any(|own| own["topologyKey"] == HOST_NAME && own["whenUnsatisfiable"] == soft);
        if !has_own {
            constraints
                .push(json!({ "maxSkew": 1, "topologyKey": HOST_NAME, "whenUnsatisfiable": soft,
                "labelSelector": selector }));
        }
        let affinity = self.template.map(spec, "affinity", "spec.affinity")?;
        let field = "spec.affinity.podAntiAffinity";
        let anti = self.template.map(affinity, "podAntiAffinity", field)?;
        let key = "preferredDuringSchedulingIgnoredDuringExecution";
        let terms = self.template.list(anti, key, &format!("{field}.{key}"))?;
        let term = json!({ "topologyKey": ZONE, "labelSelector": selector });
        terms.push(json!({ "weight": 100, "podAffinityTerm": term }));
        Ok(())
    }

    /// Sets the restart policy, the grace period and the deadline.
    fn add_termination(&self, spec: &mut Map<String, Value>, warnings: &mut Vec<String>) {
        let mut replaced = |field: &str, theirs: &Value, why: &str| {
            let message = format!("{} is replaced: {why}", describe(theirs));
            warnings.push(self.template.fail(field, message).to_string());
        };
        let policy = spec.entry("restartPolicy").or_insert_with(|| json!("Never"));
        let is_job = self.plan.pod.kind == DriverKind::Job;
        if is_job && *policy != "Never" {
            replaced("spec.restartPolicy", policy, "the Job creates another pod if this one fails");
            *policy = json!("Never");
        }
        let needed_s = self.termination_s();
        let field = "terminationGracePeriodSeconds";
        let grace = spec.entry(field).or_insert_with(|| json!(needed_s));
        if grace.as_u64().is_none_or(|s| s < needed_s) {
            let why = format!("shutdown.grace and shutdown.timeout need {needed_s}");
            replaced(&format!("spec.{field}"), grace, &why);
            *grace = json!(needed_s);
        }
        if !is_job && self.plan.pod.deadline_ms > 0 {
            let deadline_s = self.plan.pod.deadline_ms.div_ceil(1_000);
            spec.insert("activeDeadlineSeconds".to_owned(), json!(deadline_s));
        }
    }

    /// The time that the driver's pod needs to terminate, in seconds.
    fn termination_s(&self) -> u64 {
        self.plan.grace_ms.saturating_add(self.plan.stop_timeout_ms).div_ceil(1_000) + END_RESERVE_S
    }

    fn metadata(&self, container: &str) -> Result<Map<String, Value>, TemplateError> {
        let theirs = &self.template.metadata;
        let fields = ["labels", "annotations"].into_iter();
        let mut metadata: Map<String, Value> =
            fields.filter_map(|key| Some((key.to_owned(), theirs.get(key)?.clone()))).collect();
        let labels = self.template.map(&mut metadata, "labels", "metadata.labels")?;
        labels.extend(self.plan.labels());
        if self.plan.pod.standby == 0 {
            labels.insert(LEADER.0.to_owned(), json!(LEADER.1));
        }
        self.add_scrape(&mut metadata)?;
        // The end of an attempt is that of the driver's container. A webhook may put others before it.
        let annotations =
            self.template.map(&mut metadata, "annotations", "metadata.annotations")?;
        annotations.insert(CONTAINER.to_owned(), json!(container));
        Ok(metadata)
    }

    /// Adds the annotations by which Prometheus finds the metrics, unless the pod has such annotations of
    /// its own: they are then for the driver's metrics.
    fn add_scrape(&self, metadata: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let Some(scrape) = self.plan.scrape else { return Ok(()) };
        let field = "metadata.annotations";
        let annotations = self.template.map(metadata, "annotations", field)?;
        if !annotations.keys().any(|key| key.starts_with(SCRAPE)) {
            let port = scrape.port.to_string();
            for (key, value) in [("scrape", "true"), ("port", &port), ("path", "/metrics")] {
                annotations.insert(format!("{SCRAPE}{key}"), json!(value));
            }
        }
        Ok(())
    }

    fn container<'m>(
        &self,
        spec: &'m mut Map<String, Value>,
        i: usize,
        field: &str,
    ) -> Result<&'m mut Map<String, Value>, TemplateError> {
        let containers = spec.get_mut("containers").and_then(Value::as_array_mut);
        let container = containers.and_then(|list| list.get_mut(i)).and_then(Value::as_object_mut);
        container.ok_or_else(|| self.template.fail(field, "expected a map".to_owned()))
    }

    /// Adds the security context that the Pod Security level `restricted` requires, unless the template
    /// has one. The file system is read-only only in posse's image: a driver may need to write.
    fn add_security(&self, container: &mut Map<String, Value>, is_own_image: bool) {
        container.entry("securityContext").or_insert_with(|| {
            let mut context = self.parts["security"].clone();
            if is_own_image {
                context["readOnlyRootFilesystem"] = Value::Bool(true);
            }
            context
        });
    }

    /// The image that brings posse into a driver's image without it.
    fn brought(&self) -> Option<&PosseImage> {
        self.plan.pod.posse_image.as_ref().filter(|_| !self.is_own_image())
    }

    /// True if the container's image is posse's own.
    fn is_own_image(&self) -> bool {
        let image = self.plan.pod.shorthands.image.as_deref();
        image.is_some() && image == self.plan.pod.posse_image.as_ref().map(PosseImage::image)
    }
}
