//! Turns a template into executor pods: adds posse's labels, environment and owner once for each
//! run; rendering a pod then only fills its ids into finished JSON.

mod env;
pub mod gang;

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use self::env::posse_env;
use self::gang::PodGang;
use crate::k8s::common_metadata::CommonMetadata;
use crate::k8s::kueue;
use crate::k8s::labels::{self, Selection};
use crate::names::host_in_url;
use crate::pod::arguments::find_too_long;
use crate::pod::credential_mounts::Credentials;
use crate::pod::memory::MemoryScaling;
use crate::pod::node_affinity::{self, Gap};
use crate::pod::placeholders::{self, Piece, Word};
use crate::pod::slot_volume::KeepVolume;
use crate::pod::staged::Staged;
use crate::pod::template::{Template, TemplateError, describe};
use crate::pod::tolerations;
use crate::pod::volumes::mount_paths;
use posse_core::model::hash::stable_hash;
use posse_core::model::ids::ExecutorId;
use posse_core::model::pod_text::{
    AffineParts, MemoryGrowth, Part, PodOverrides, PodText, SlotClaim,
};
use posse_core::model::settings::{OnLoss, Restart};
use posse_encoding::amounts::requests_of_containers;
use posse_encoding::quantity::Quantity;

/// The kubelet ends a pod after this many seconds.
const DEADLINE: &str = "activeDeadlineSeconds";
/// The longest value of a label.
const LABEL_BYTES_MAX: usize = 63;
/// Path of a container's memory below `resources`.
const LIMIT: &str = ".limits.memory";
const REQUEST: &str = ".requests.memory";

/// Everything that is the same for all pods of one group in one run. It is the only input of a template that is
/// compiled, whether a file, a call, or `posse render` has the group, so a pod is made of no other setting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodContext {
    pub app: String,
    pub instance: String,
    pub namespace: String,
    pub group: String,
    /// The driver's pod, or its Job if the executors outlive the pod. None: the driver is outside of the cluster.
    pub owner: Option<OwnerRef>,
    /// Owns what is beside the pods: the driver's Job, whose next pod uses it too, else the same as `owner`.
    pub instance_owner: Option<OwnerRef>,
    /// What else owns the executors of a Job, and is their controller: `kubectl drain` leaves pods without one, and the
    /// Job's controller would take itself off pods that its selector does not match.
    pub controller: Option<OwnerRef>,
    /// Host that executors connect to. An IPv6 address may come without brackets.
    pub driver_host: String,
    /// The driver's port, if the configuration has `driver.port`.
    pub driver_port: Option<u16>,
    pub settings: PodSettings,
    /// What the group does when an executor ends.
    pub restart: Restart,
    /// What a loss ends. The pods of a group that restarts together show its attempt.
    pub on_loss: OnLoss,
    /// Staged files for the pods. None: no files are staged.
    pub staged: Option<Staged>,
    /// Credentials for the pods.
    pub credentials: Arc<[Credentials]>,
    /// Labels and annotations beside those of the template.
    pub common: Arc<CommonMetadata>,
}

/// What the keys of a group say about its pods, beside the template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSettings {
    /// Name of the main container: its end is the executor's end. None: kubectl's default, else the first.
    pub container: Option<String>,
    /// How memory scales after the main container was killed for its memory. None: it does not.
    pub memory_scaling: Option<MemoryScaling>,
    /// Maximum age of a pod, seconds. None: the template's deadline applies, if it has one.
    pub max_age_s: Option<u64>,
    /// The LocalQueue of Kueue that admits the pods. None: that of the template, if it has one.
    pub queue: Option<String>,
    /// The number of the pods, if Kueue admits all of them together or none.
    pub queue_group: Option<u32>,
    /// Autoscalers leave the pods alone from the beginning to the end.
    pub is_protected: bool,
    /// How a scheduler starts the pods together. None: it does not.
    pub gang: Option<PodGang>,
}

impl PodSettings {
    /// How many pods a queue or scheduler starts together.
    pub fn n_together(&self) -> Option<u32> {
        self.queue_group.or_else(|| self.gang.as_ref().map(|gang| gang.min))
    }
}

/// The owner of the executors (an ownerReference): they are garbage-collected with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerRef {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl OwnerRef {
    /// A pod, usually the driver's.
    pub fn pod(name: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: name.into(),
            uid: uid.into(),
        }
    }
}

/// A template with everything filled in except a pod's own ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The finished JSON with gaps, as `core` hands it on.
    pub pod: Arc<PodText>,
    warnings: Vec<String>,
}

impl Compiled {
    /// The body of the POST that creates executor `id` in `slot`.
    pub fn render(&self, id: u64, slot: u32, overrides: &PodOverrides) -> Vec<u8> {
        self.pod.render(ExecutorId(id), slot, overrides)
    }

    /// What posse replaced or dropped in the template: one sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Template {
    /// Reports the errors that `compile` would report in any run.
    pub fn check(
        &self,
        settings: &PodSettings,
        has_driver_port: bool,
    ) -> Result<Compiled, TemplateError> {
        // Accept any owner here: in the run it may be the driver pod.
        let uid = self.metadata.get("ownerReferences").and_then(|owners| owners.get(0)?.get("uid"));
        let owner = uid.and_then(Value::as_str).map(|uid| OwnerRef::pod("driver", uid));
        let any = || "any".to_owned();
        self.compile(&PodContext {
            app: any(),
            instance: any(),
            namespace: any(),
            group: any(),
            owner,
            driver_host: any(),
            driver_port: has_driver_port.then_some(u16::MAX),
            settings: settings.clone(),
            ..PodContext::default()
        })
    }

    /// Adds posse's part to the template: name, labels, owner, environment, tolerations.
    ///
    /// # Errors
    /// A field that posse has to change has the wrong type, the owner is not the driver pod, or a
    /// placeholder is unknown.
    pub fn compile(&self, context: &PodContext) -> Result<Compiled, TemplateError> {
        let mut build = Build {
            template: self,
            context,
            memory: MemoryGrowth::default(),
            memory_field: String::new(),
            warnings: self.copied_warning().into_iter().collect(),
        };
        let mut pod = build.pod()?;
        let parts = build.emit(&pod, false)?;
        let mut preferring = pod.clone();
        node_affinity::leave_preferred_gap(&mut preferring);
        node_affinity::leave_gaps(&mut pod);
        let mut affine = AffineParts {
            avoiding: build.emit(&pod, true)?,
            preferring: build.emit(&preferring, true)?,
            both: Vec::new(),
        };
        node_affinity::leave_preferred_gap(&mut pod);
        affine.both = build.emit(&pod, true)?;
        let owner = context.instance_owner.as_ref().map(|owner| json!(owner));
        let claims = self.slot_volumes.iter();
        let claims = claims
            .map(|volume| {
                let claim = volume.claim(owner.clone(), &context.common);
                let is_of_run = volume.keep == KeepVolume::Run;
                Ok(SlotClaim { parts: build.emit(&claim, false)?, is_of_run })
            })
            .collect::<Result<_, TemplateError>>()?;
        let memory = std::mem::take(&mut build.memory);
        let (mount_paths, pod_name_prefix) = (mount_paths(&pod), context.pod_name_prefix());
        let pod_text = PodText { parts, affine, memory, claims, mount_paths, pod_name_prefix };
        build.check_arguments(&pod_text)?;
        Ok(Compiled { pod: Arc::new(pod_text), warnings: build.warnings })
    }
}

impl PodContext {
    /// The pod's name without the id.
    fn pod_name_prefix(&self) -> String {
        Selection { app: self.app.clone(), instance: self.instance.clone() }.pod_prefix()
    }

    /// The name of the group for its queue or scheduler: a label's value, and the name of an object.
    fn joint_name(&self) -> String {
        let Self { app, instance, group, .. } = self;
        let mut name = format!("{app}-{instance}-{group}");
        if name.len() > LABEL_BYTES_MAX {
            let hash = format!("-{:016x}", stable_hash(&name));
            name.truncate(LABEL_BYTES_MAX - hash.len());
            name.push_str(&hash);
        }
        name
    }

    /// The value of a placeholder. If the value differs between pods, a gap. `None`: there is no
    /// `driver.port`.
    fn word(&self, word: Word) -> Option<Part> {
        Some(match word {
            Word::App => Part::Text(self.app.clone()),
            Word::Attempt => Part::Attempt,
            Word::DriverHost => Part::Text(host_in_url(&self.driver_host)),
            Word::DriverPort => Part::Text(self.driver_port?.to_string()),
            Word::ExecutorId => Part::ExecutorId,
            Word::Group => Part::Text(self.group.clone()),
            // The kubelet fills these in: the node is not known when the pod is created.
            Word::HostIp => Part::Text("$(POSSE_HOST_IP)".to_owned()),
            Word::Instance => Part::Text(self.instance.clone()),
            Word::NodeName => Part::Text("$(POSSE_NODE_NAME)".to_owned()),
            Word::PodName => Part::PodName,
            Word::Slot => Part::Slot,
        })
    }
}

/// State of one `compile` call.
struct Build<'a> {
    template: &'a Template,
    context: &'a PodContext,
    memory: MemoryGrowth,
    /// Path of the main container's resources. Empty if memory does not scale.
    memory_field: String,
    warnings: Vec<String>,
}

impl Build<'_> {
    /// The pod as JSON, still with placeholders.
    fn pod(&mut self) -> Result<Value, TemplateError> {
        let mut metadata = self.template.metadata.clone();
        let mut spec = self.template.spec.clone();
        if let Some(staged) = &self.context.staged {
            staged.mount(self.template, &mut spec)?;
        }
        for credentials in self.context.credentials.iter() {
            credentials.mount(self.template, &mut spec)?;
        }
        self.add_containers(&mut spec, &mut metadata)?;
        self.add_restart_policy(&mut spec);
        if spec.get("nodeName").and_then(Value::as_str).is_some_and(|node| !node.is_empty()) {
            let message = "puts all executors on this node, past the scheduler: a nodeSelector lets it look for room";
            self.warn("spec.nodeName", message.to_owned());
        }
        self.add_max_age(&mut spec);
        tolerations::add(self.template, &mut spec)?;
        self.add_metadata(&mut metadata)?;
        gang::mark(self.context, &mut metadata, &mut spec);
        self.context.common.lay_under(&mut metadata);
        Ok(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
    }

    /// Looks at a finished pod, because posse and its placeholders add to the template.
    fn check_arguments(&self, pod: &PodText) -> Result<(), TemplateError> {
        let body = pod.render(ExecutorId(u64::MAX), u32::MAX, &PodOverrides::default());
        let pod: Value = serde_json::from_slice(&body).unwrap_or_default();
        match pod["spec"].as_object().and_then(find_too_long) {
            Some((field, what)) => Err(self.fail(&field, what)),
            None => Ok(()),
        }
    }

    fn emit(&self, pod: &Value, has_gaps: bool) -> Result<Vec<Part>, TemplateError> {
        let mut emitter = Emitter { build: self, parts: Vec::new(), has_gaps };
        emitter.value(pod, "")?;
        Ok(emitter.parts)
    }

    fn fail(&self, field: &str, message: String) -> TemplateError {
        self.template.fail(field, message)
    }

    fn warn(&mut self, field: &str, message: String) {
        self.warnings.push(self.template.fail(field, message).to_string());
    }

    fn add_containers(
        &mut self,
        spec: &mut Map<String, Value>,
        metadata: &mut Map<String, Value>,
    ) -> Result<(), TemplateError> {
        let (main, main_container) =
            self.template.main_container(self.context.settings.container.as_deref())?;
        for list in ["initContainers", "containers"] {
            let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
            for (i, container) in containers.iter_mut().enumerate() {
                let field = format!("spec.{list}[{i}]");
                // `Template::check_containers` has reported those that are not maps.
                let Value::Object(container) = container else { continue };
                if (list, i) == ("containers", main) {
                    self.template.lay_over(container, &field)?;
                    self.add_memory_scaling(container, &field)?;
                }
                self.add_env(container, &field)?;
            }
        }
        self.check_memory_of_pod(spec, main)?;
        let annotations = self.template.map(metadata, "annotations", "metadata.annotations")?;
        // A webhook may put a container before it, so its place says nothing.
        annotations.insert(labels::CONTAINER.to_owned(), json!(main_container));
        if let Some(seconds) = self.context.settings.max_age_s {
            annotations.insert(labels::MAX_AGE.to_owned(), json!(format!("{seconds}s")));
        }
        if self.context.restart != Restart::Always {
            let restart = self.context.restart.as_str();
            annotations.insert(labels::RESTART.to_owned(), json!(restart));
        }
        if self.context.settings.is_protected {
            for (key, value) in [labels::DO_NOT_DISRUPT, labels::SAFE_TO_EVICT] {
                annotations.insert(key.to_owned(), json!(value));
            }
        }
        if self.is_queued_apart() {
            annotations.insert(kueue::OWN_WORKLOAD.0.to_owned(), json!(kueue::OWN_WORKLOAD.1));
        }
        if let Some(count) = self.context.settings.queue_group {
            annotations.insert(kueue::POD_GROUP_COUNT.to_owned(), json!(count.to_string()));
            for (key, value) in [kueue::ROLE, kueue::SERVING] {
                annotations.insert(key.to_owned(), json!(value));
            }
        }
        Ok(())
    }

    /// Whether Kueue must be told that it counts the pod apart from its owner.
    fn is_queued_apart(&self) -> bool {
        self.context.settings.queue.is_some() && self.context.owner.is_some()
    }

    /// Replaces the main container's memory by gaps if memory scales.
    fn add_memory_scaling(
        &mut self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let Some(memory_scaling) = &self.context.settings.memory_scaling else { return Ok(()) };
        let field = format!("{field}.resources");
        let limit = container.get("resources").and_then(|all| all.get("limits")?.get("memory"));
        let request = container.get("resources").and_then(|all| all.get("requests")?.get("memory"));
        let steps = memory_scaling
            .steps(limit, request)
            .map_err(|(part, what)| self.fail(&format!("{field}.{part}.memory"), what))?;
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        let grow_at_permille = memory_scaling.grow_at_permille;
        self.memory = MemoryGrowth { container: name.to_owned(), steps, grow_at_permille };
        self.memory_field = field;
        Ok(())
    }

    /// Containers cannot have more than their whole pod (KEP-2837): the server would refuse each pod whose memory has
    /// grown. A pod without a request gets that of its containers.
    fn check_memory_of_pod(
        &self,
        spec: &Map<String, Value>,
        main: usize,
    ) -> Result<(), TemplateError> {
        let (Some(step), Some(of_pod)) = (self.memory.steps.last(), spec.get("resources")) else {
            return Ok(());
        };
        let mut grown = spec.clone();
        let containers = grown.get_mut("containers");
        let resources = containers.and_then(|all| all.get_mut(main)?.get_mut("resources"));
        if let Some(resources) = resources {
            for (list, amount) in [("limits", &step.limit), ("requests", &step.request)] {
                let memory = resources.get_mut(list).and_then(|list| list.get_mut("memory"));
                memory.into_iter().for_each(|memory| *memory = json!(amount));
            }
        }
        let asked = requests_of_containers(&grown).get("memory");
        // The main container may get more than all ask for.
        let limit = Quantity::parse(&step.limit)
            .filter(|limit| asked.is_none_or(|asked| limit.exceeds(asked)));
        for (list, least) in [("limits", limit.or(asked)), ("requests", asked)] {
            let given = of_pod.get(list).and_then(|list| Quantity::of(list.get("memory")?));
            let is_too_much = |least: &Quantity| given.is_some_and(|given| least.exceeds(given));
            if let Some(least) = least.filter(is_too_much) {
                let least = least.canonical();
                let message = format!(
                    "is below the {least} that its containers take at memory_max: raise it, or lower memory_max"
                );
                return Err(self.fail(&format!("spec.resources.{list}.memory"), message));
            }
        }
        Ok(())
    }

    /// Puts posse's variables first, so that the template's own may refer to them (`$(NAME)`).
    fn add_env(
        &mut self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let field = format!("{field}.env");
        let ours = posse_env(self.context);
        let list = self.template.list(container, "env", &field)?;
        let mut theirs = std::mem::take(list);
        let taken = |entry: &Value| ours.iter().any(|our| our.get("name") == entry.get("name"));
        for entry in theirs.iter().filter(|entry| taken(entry)) {
            let name = entry.get("name").and_then(Value::as_str).unwrap_or_default();
            self.warn(&field, format!("{name} is replaced by posse's own"));
        }
        theirs.retain(|entry| !taken(entry));
        *list = ours;
        list.append(&mut theirs);
        Ok(())
    }

    fn add_restart_policy(&mut self, spec: &mut Map<String, Value>) {
        let theirs = spec.insert("restartPolicy".to_owned(), json!("Never"));
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_null() && theirs != "Never") {
            let what = describe(&theirs);
            let message = format!(
                "{what} is replaced by `Never`: posse replaces a lost executor by a new pod"
            );
            self.warn("spec.restartPolicy", message);
        }
    }

    /// Sets the deadline that makes the kubelet end a pod of that age, even if posse is gone.
    fn add_max_age(&mut self, spec: &mut Map<String, Value>) {
        let Some(seconds) = self.context.settings.max_age_s else { return };
        let theirs = spec.insert(DEADLINE.to_owned(), json!(seconds));
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_null() && *theirs != seconds) {
            let what = describe(&theirs);
            let message = format!("{what} is replaced by {seconds}, the group's max_age");
            self.warn("spec.activeDeadlineSeconds", message);
        }
    }

    fn add_metadata(&mut self, metadata: &mut Map<String, Value>) -> Result<(), TemplateError> {
        for field in ["name", "generateName"] {
            if let Some(theirs) = metadata.remove(field).filter(|theirs| !theirs.is_null()) {
                let prefix = self.context.pod_name_prefix();
                let what = describe(&theirs);
                let message =
                    format!("{what} is replaced: executors are named {prefix}1 and so on");
                self.warn(&format!("metadata.{field}"), message);
            }
        }
        metadata.insert("name".to_owned(), json!("{{POD_NAME}}"));
        let ours = json!(self.context.namespace);
        let theirs = metadata.insert("namespace".to_owned(), ours.clone());
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_null() && *theirs != ours) {
            let what = describe(&theirs);
            let message = format!("{what} is replaced by the run's namespace, {ours}");
            self.warn("metadata.namespace", message);
        }
        self.add_labels(metadata)?;
        self.add_owner(metadata)
    }

    fn add_labels(&mut self, metadata: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let list = self.template.map(metadata, "labels", "metadata.labels")?;
        let ours = [
            (labels::APP, json!(self.context.app)),
            (labels::INSTANCE, json!(self.context.instance)),
            (labels::GROUP, json!(self.context.group)),
            (labels::EXECUTOR_ID, json!("{{EXECUTOR_ID}}")),
            (labels::SLOT, json!("{{SLOT}}")),
            (labels::MANAGED_BY.0, json!(labels::MANAGED_BY.1)),
            (labels::COMPONENT.0, json!(labels::COMPONENT.1)),
        ];
        let attempt = (self.context.on_loss == OnLoss::Group)
            .then(|| (labels::ATTEMPT, json!("{{ATTEMPT}}")));
        let queue = self.context.settings.queue.as_ref().map(|name| (kueue::QUEUE, json!(name)));
        let managed = self.is_queued_apart().then(|| (kueue::MANAGED.0, json!(kueue::MANAGED.1)));
        let group = self.context.settings.queue_group;
        let group = group.map(|_| (kueue::POD_GROUP, json!(self.context.joint_name())));
        for (key, value) in ours.into_iter().chain(attempt).chain(queue).chain(managed).chain(group)
        {
            let theirs = list.insert(key.to_owned(), value.clone());
            if let Some(theirs) = theirs.filter(|theirs| *theirs != value) {
                let message = format!("{} is replaced by {value}", describe(&theirs));
                self.warn(&format!("metadata.labels.{key}"), message);
            }
        }
        Ok(())
    }

    fn add_owner(&self, metadata: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let field = "metadata.ownerReferences";
        let list = self.template.list(metadata, "ownerReferences", field)?;
        let uid = self.context.owner.as_ref().map(|owner| owner.uid.as_str());
        let other =
            |theirs: &Value| uid.is_none() || theirs.get("uid").and_then(Value::as_str) != uid;
        if list.iter().any(other) {
            let message = match &self.context.owner {
                Some(owner) => format!(
                    "names another owner than the driver, {}; leave the owner out",
                    owner.name
                ),
                None => "names an owner; leave it out, posse sets the driver's".to_owned(),
            };
            return Err(self.fail(field, message));
        }
        list.clear();
        let PodContext { owner, controller, .. } = self.context;
        for (one, is_controller) in [(owner, controller.is_none()), (controller, true)] {
            let Some(one) = one else { continue };
            let mut one = json!(one);
            one["controller"] = json!(is_controller);
            one["blockOwnerDeletion"] = json!(false);
            list.push(one);
        }
        if list.is_empty() {
            metadata.remove("ownerReferences");
        }
        Ok(())
    }
}

/// The error for `{{NODE_NAME}}` or `{{HOST_IP}}` in a field that stays as it is created.
const NOT_EXPANDED: &str = "{{NODE_NAME}} and {{HOST_IP}} are known only on the node: use them in a container's command, \
     args, env values or subPathExpr, where the kubelet fills in variables";

/// The error for `{{DRIVER_PORT}}` without a port.
const NO_DRIVER_PORT: &str = "{{DRIVER_PORT}} needs `driver.port: auto` or `driver.port: NUMBER`";

/// True for the fields in which the kubelet replaces `$(NAME)` by the container's variable.
fn is_expanded(field: &str) -> bool {
    let field = field.strip_prefix("spec.").unwrap_or_default();
    let lists = ["containers[", "initContainers["];
    let container = lists.iter().find_map(|list| field.strip_prefix(list)?.split_once("]."));
    container.is_some_and(|(_, field)| {
        ["command[", "args["].iter().any(|list| field.starts_with(list))
            || field.starts_with("env[") && field.ends_with("].value")
            || field.starts_with("volumeMounts[") && field.ends_with("].subPathExpr")
    })
}

/// Writes JSON and leaves a gap for each value that differs between pods.
struct Emitter<'a> {
    build: &'a Build<'a>,
    parts: Vec<Part>,
    /// Also leave gaps for the nodes that the pod avoids or prefers.
    has_gaps: bool,
}

impl Emitter<'_> {
    fn value(&mut self, value: &Value, field: &str) -> Result<(), TemplateError> {
        match value {
            Value::String(_) | Value::Number(_) if self.is_memory(field) => {
                self.text("\"");
                let is_limit = field.ends_with(LIMIT);
                self.parts.push(if is_limit { Part::MemoryLimit } else { Part::MemoryRequest });
                self.text("\"");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => self.text(&value.to_string()),
            Value::String(text) => self.string(text, field)?,
            Value::Array(items) => {
                self.text("[");
                for (i, item) in items.iter().enumerate() {
                    self.text(if i > 0 { "," } else { "" });
                    let gap = node_affinity::gap(field, item).filter(|_| self.has_gaps);
                    match gap {
                        Some(Gap::Avoided) => self.parts.push(Part::AvoidedNodes),
                        Some(Gap::Preferred) => self.parts.push(Part::PreferredNodes),
                        None => self.value(item, &format!("{field}[{i}]"))?,
                    }
                }
                self.text("]");
            }
            Value::Object(map) => {
                self.text("{");
                for (i, (key, item)) in map.iter().enumerate() {
                    let field =
                        if field.is_empty() { key.clone() } else { format!("{field}.{key}") };
                    self.text(if i > 0 { "," } else { "" });
                    self.string(key, &field)?;
                    self.text(":");
                    self.value(item, &field)?;
                }
                self.text("}");
            }
        }
        Ok(())
    }

    /// True for the main container's memory if memory scales.
    fn is_memory(&self, field: &str) -> bool {
        let rest = field.strip_prefix(&self.build.memory_field);
        !self.build.memory_field.is_empty() && matches!(rest, Some(LIMIT | REQUEST))
    }

    fn string(&mut self, text: &str, field: &str) -> Result<(), TemplateError> {
        let pieces = placeholders::split(text)
            .map_err(|unknown| self.build.fail(field, unknown.to_string()))?;
        self.text("\"");
        let mut is_after_dollar = false;
        for piece in pieces {
            if let Piece::Word(Word::HostIp | Word::NodeName) = piece {
                if !is_expanded(field) {
                    return Err(self.build.fail(field, NOT_EXPANDED.to_owned()));
                }
                // `$$` stands for one `$`, so the one in front would take the next one's place.
                self.text(if is_after_dollar { "$" } else { "" });
            }
            is_after_dollar = match piece {
                Piece::Text(text) => {
                    let n_dollars = text.bytes().rev().take_while(|c| *c == b'$').count();
                    n_dollars % 2 == 1
                }
                Piece::Word(_) => false,
            };
            match piece {
                Piece::Text(text) => self.escaped(text),
                Piece::Word(word) => match self.build.context.word(word) {
                    None => return Err(self.build.fail(field, NO_DRIVER_PORT.to_owned())),
                    Some(Part::Text(text)) => self.escaped(&text),
                    Some(
                        gap @ (Part::Attempt
                        | Part::AvoidedNodes
                        | Part::ExecutorId
                        | Part::MemoryLimit
                        | Part::MemoryRequest
                        | Part::PodName
                        | Part::PreferredNodes
                        | Part::Slot),
                    ) => self.parts.push(gap),
                },
            }
        }
        self.text("\"");
        Ok(())
    }

    /// Appends `text` escaped as the inside of a JSON string.
    fn escaped(&mut self, text: &str) {
        let quoted = Value::String(text.to_owned()).to_string();
        self.text(&quoted[1..quoted.len() - 1]);
    }

    fn text(&mut self, text: &str) {
        if let Some(Part::Text(last)) = self.parts.last_mut() {
            last.push_str(text);
        } else {
            self.parts.push(Part::Text(text.to_owned()));
        }
    }
}

#[cfg(test)]
mod common_tests;
#[cfg(test)]
mod queue_tests;
#[cfg(test)]
pub(crate) mod tests;
