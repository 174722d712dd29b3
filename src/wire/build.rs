//! Owns what posse adds to a template and the pods that come of it. All that can be decided once a
//! run is decided once; per pod only its ids are put between stretches of finished JSON.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::core::model::ids::ExecutorId;
use crate::core::model::pod_text::{Part, PodOverrides, PodText};
use crate::wire::keep_away;
use crate::wire::labels::{self, Selection};
use crate::wire::memory::{Growth, Steps};
use crate::wire::names::host_in_url;
use crate::wire::placeholders::{self, Piece, Word};
use crate::wire::staged::Staged;
use crate::wire::template::{Template, TemplateError, describe};

/// What the cluster keeps pods on a dead node for, when nobody says otherwise, are these taints.
const NODE_TAINTS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];
/// Fields of `metadata` that only a server writes; a pod that was fetched has them.
const SERVER_FIELDS: [&str; 6] =
    ["creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink", "uid"];
/// The field by which a pod's kubelet ends it.
const DEADLINE: &str = "activeDeadlineSeconds";
/// The prefix of labels and annotations that mean something to posse.
const OUR_PREFIX: &str = "posse.dev/";
/// Where a container's memory stands in its resources.
const LIMIT: &str = ".limits.memory";
const REQUEST: &str = ".requests.memory";

/// Whose executors are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub app: String,
    pub instance: String,
    pub namespace: String,
    pub group: String,
    /// The driver pod, where there is one.
    pub owner: Option<Owner>,
    /// What executors dial; an IPv6 address may come without brackets.
    pub driver_host: String,
    /// How long a pod stays on a node that is gone; none: no tolerations are added.
    pub node_loss_after_s: Option<u64>,
    /// Whose end decides; none: the first container.
    pub container: Option<String>,
    /// Any other container's failure is the executor's end, too.
    pub fails_with_sidecars: bool,
    /// Files that its pods find; none: no files are staged.
    pub staged: Option<Staged>,
    /// How memory grows after the deciding container ran out of it; none: it does not.
    pub growth: Option<Growth>,
    /// How old a pod gets, in seconds; none: as old as its template lets it.
    pub max_age_s: Option<u64>,
}

/// The object that executors belong to and go with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

/// A template with all filled in but the ids of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The pods, as the core hands them on.
    pub pod: Arc<PodText>,
    warnings: Vec<String>,
}

impl Compiled {
    /// The body of the POST that creates executor `id` in `slot`.
    #[must_use]
    pub fn render(&self, id: u64, slot: u32, overrides: &PodOverrides) -> Vec<u8> {
        self.pod.render(ExecutorId(id), slot, overrides)
    }

    /// What of the template was replaced or left out, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Template {
    /// Lays posse's part over the template: name, labels, owner, environment, tolerations.
    ///
    /// # Errors
    /// A field that posse has to change and that is not what it should be, an owner that is not
    /// ours, an unknown placeholder.
    pub fn compile(&self, identity: &Identity) -> Result<Compiled, TemplateError> {
        let mut build = Build {
            template: self,
            identity,
            memory: Steps::default(),
            memory_field: String::new(),
            warnings: Vec::new(),
        };
        let mut pod = build.pod()?;
        let parts = build.emit(&pod, false)?;
        keep_away::leave_gaps(&mut pod);
        let avoiding = build.emit(&pod, true)?;
        let memory = build.memory.amounts;
        let pod = PodText::new(parts, identity.pod_name_prefix());
        Ok(Compiled {
            pod: Arc::new(pod.with_node_affinity(avoiding).with_memory_steps(memory)),
            warnings: build.warnings,
        })
    }
}

impl Identity {
    /// A pod's name up to its id.
    fn pod_name_prefix(&self) -> String {
        let selection = Selection { app: self.app.clone(), instance: self.instance.clone() };
        let name = selection.pod_name(0);
        name.strip_suffix('0').expect("a pod's name ends with its id").to_owned()
    }

    /// What a word stands for; a gap where that differs from pod to pod.
    fn word(&self, word: Word) -> Part {
        match word {
            Word::App => Part::Text(self.app.clone()),
            Word::DriverHost => Part::Text(host_in_url(&self.driver_host)),
            Word::ExecutorId => Part::ExecutorId,
            Word::Group => Part::Text(self.group.clone()),
            Word::Instance => Part::Text(self.instance.clone()),
            Word::PodName => Part::PodName,
            Word::Slot => Part::Slot,
        }
    }
}

/// One compilation.
struct Build<'a> {
    template: &'a Template,
    identity: &'a Identity,
    memory: Steps,
    /// Where the deciding container's memory is written; empty where it does not grow.
    memory_field: String,
    warnings: Vec<String>,
}

impl Build<'_> {
    /// The pod with placeholders where a text differs from run to run or from pod to pod.
    fn pod(&mut self) -> Result<Value, TemplateError> {
        let mut metadata = self.template.metadata.clone();
        let mut spec = self.template.spec.clone();
        if let Some(staged) = &self.identity.staged {
            staged.lay_over(self.template, &mut spec)?;
        }
        self.add_containers(&mut spec, &mut metadata)?;
        self.add_restart_policy(&mut spec);
        self.add_max_age(&mut spec);
        self.add_tolerations(&mut spec)?;
        self.add_metadata(&mut metadata)?;
        Ok(json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec }))
    }

    fn emit(&self, pod: &Value, is_avoiding: bool) -> Result<Vec<Part>, TemplateError> {
        let mut emitter = Emitter { build: self, parts: Vec::new(), is_avoiding };
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
        let deciding = self.deciding(spec)?;
        for list in ["initContainers", "containers"] {
            let Some(Value::Array(containers)) = spec.get_mut(list) else { continue };
            for (i, container) in containers.iter_mut().enumerate() {
                let field = format!("spec.{list}[{i}]");
                let Value::Object(container) = container else {
                    return Err(self.fail(&field, "expected a map".to_owned()));
                };
                if (list, i) == ("containers", deciding) {
                    self.template.lay_over(container, &field)?;
                    self.add_growth(container, &field)?;
                }
                self.add_env(container, &field)?;
            }
        }
        let annotations = self.template.map(metadata, "annotations", "metadata.annotations")?;
        let theirs = keys_of_ours(annotations);
        for key in theirs {
            annotations.remove(&key);
            let field = format!("metadata.annotations.{key}");
            self.warn(&field, "is left out: posse keeps its own notes there".to_owned());
        }
        if deciding > 0 {
            let name = self.identity.container.clone().expect("only a named one is not the first");
            annotations.insert(labels::CONTAINER.to_owned(), Value::String(name));
        }
        if let Some(seconds) = self.identity.max_age_s {
            annotations.insert(labels::MAX_AGE.to_owned(), json!(format!("{seconds}s")));
        }
        if self.identity.fails_with_sidecars {
            annotations.insert(labels::SIDECAR_FAILURE.to_owned(), json!("fail"));
        }
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
        Ok(())
    }

    /// The index of the container whose end decides.
    fn deciding(&self, spec: &Map<String, Value>) -> Result<usize, TemplateError> {
        let Some(wanted) = &self.identity.container else { return Ok(0) };
        let containers = spec.get("containers").and_then(Value::as_array);
        let names: Vec<&str> = containers
            .into_iter()
            .flatten()
            .filter_map(|container| container.get("name").and_then(Value::as_str))
            .collect();
        names.iter().position(|name| name == wanted).ok_or_else(|| {
            let there = names.join(", ");
            self.fail("spec.containers", format!("none is named `{wanted}`; there are: {there}"))
        })
    }

    /// Makes gaps of the deciding container's memory, where it grows.
    fn add_growth(
        &mut self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let Some(growth) = &self.identity.growth else { return Ok(()) };
        let field = format!("{field}.resources");
        let limit = container.get("resources").and_then(|all| all.get("limits")?.get("memory"));
        let request = container.get("resources").and_then(|all| all.get("requests")?.get("memory"));
        self.memory = Steps::new(growth, limit, request)
            .map_err(|(part, what)| self.fail(&format!("{field}.{part}.memory"), what))?;
        self.memory_field = field;
        Ok(())
    }

    /// Puts our variables first, so that those of the template may refer to them.
    fn add_env(
        &mut self,
        container: &mut Map<String, Value>,
        field: &str,
    ) -> Result<(), TemplateError> {
        let field = format!("{field}.env");
        let ours = our_env();
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
            let message =
                format!("{what} is replaced by `Never`: a lost executor gets a successor");
            self.warn("spec.restartPolicy", message);
        }
    }

    /// Ends pods that have outlived their time, whether or not anybody is left to do it.
    fn add_max_age(&mut self, spec: &mut Map<String, Value>) {
        let Some(seconds) = self.identity.max_age_s else { return };
        let theirs = spec.insert(DEADLINE.to_owned(), json!(seconds));
        if let Some(theirs) = theirs.filter(|theirs| !theirs.is_null() && *theirs != seconds) {
            let what = describe(&theirs);
            let message = format!("{what} is replaced by {seconds}, the group's max_age");
            self.warn("spec.activeDeadlineSeconds", message);
        }
    }

    /// Shortens the stay of pods on lost nodes, as the server's own admission would lengthen it.
    fn add_tolerations(&self, spec: &mut Map<String, Value>) -> Result<(), TemplateError> {
        let Some(seconds) = self.identity.node_loss_after_s else { return Ok(()) };
        let list = self.template.list(spec, "tolerations", "spec.tolerations")?;
        for taint in NODE_TAINTS {
            let covers = |toleration: &Value| {
                let text = |key| toleration.get(key).and_then(Value::as_str).unwrap_or_default();
                matches!(text("effect"), "" | "NoExecute")
                    && (text("key") == taint || text("key").is_empty())
            };
            if !list.iter().any(covers) {
                list.push(json!({
                    "key": taint,
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": seconds,
                }));
            }
        }
        Ok(())
    }

    fn add_metadata(&mut self, metadata: &mut Map<String, Value>) -> Result<(), TemplateError> {
        for field in SERVER_FIELDS {
            metadata.remove(field);
        }
        for field in ["name", "generateName"] {
            if let Some(theirs) = metadata.remove(field).filter(|theirs| !theirs.is_null()) {
                let prefix = self.identity.pod_name_prefix();
                let what = describe(&theirs);
                let message =
                    format!("{what} is replaced: executors are named {prefix}1 and so on");
                self.warn(&format!("metadata.{field}"), message);
            }
        }
        metadata.insert("name".to_owned(), json!("{{POD_NAME}}"));
        let ours = json!(self.identity.namespace);
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
            (labels::APP, json!(self.identity.app)),
            (labels::INSTANCE, json!(self.identity.instance)),
            (labels::GROUP, json!(self.identity.group)),
            (labels::EXECUTOR_ID, json!("{{EXECUTOR_ID}}")),
            (labels::SLOT, json!("{{SLOT}}")),
            (labels::MANAGED_BY.0, json!(labels::MANAGED_BY.1)),
            (labels::COMPONENT.0, json!(labels::COMPONENT.1)),
        ];
        for key in keys_of_ours(list) {
            list.remove(&key);
            let field = format!("metadata.labels.{key}");
            self.warn(&field, "is left out: posse sets the labels of that prefix".to_owned());
        }
        for (key, value) in ours {
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
        let uid = self.identity.owner.as_ref().map(|owner| owner.uid.as_str());
        let other =
            |theirs: &Value| uid.is_none() || theirs.get("uid").and_then(Value::as_str) != uid;
        if list.iter().any(other) {
            let message = match &self.identity.owner {
                Some(owner) => format!(
                    "names another owner than the driver pod, {}; leave the owner out",
                    owner.name
                ),
                None => "names an owner; leave it out, posse sets the driver pod".to_owned(),
            };
            return Err(self.fail(field, message));
        }
        list.clear();
        match &self.identity.owner {
            None => {
                metadata.remove("ownerReferences");
            }
            Some(owner) => list.push(json!({
                "apiVersion": owner.api_version,
                "kind": owner.kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": true,
                "blockOwnerDeletion": false,
            })),
        }
        Ok(())
    }
}

/// The keys of a map of labels or annotations that only posse may set.
fn keys_of_ours(map: &Map<String, Value>) -> Vec<String> {
    map.keys().filter(|key| key.starts_with(OUR_PREFIX)).cloned().collect()
}

/// The variables that every container gets; what they hold is filled in with the placeholders.
fn our_env() -> Vec<Value> {
    let field = |name: &str, path: &str| {
        let from = json!({ "fieldRef": { "fieldPath": path } });
        json!({ "name": name, "valueFrom": from })
    };
    let text = |name: &str, value: &str| json!({ "name": name, "value": value });
    vec![
        text("POSSE_APP", "{{APP}}"),
        text("POSSE_INSTANCE", "{{INSTANCE}}"),
        text("POSSE_GROUP", "{{GROUP}}"),
        text("POSSE_EXECUTOR_ID", "{{EXECUTOR_ID}}"),
        text("POSSE_SLOT", "{{SLOT}}"),
        text("POSSE_DRIVER_HOST", "{{DRIVER_HOST}}"),
        field("POSSE_POD_NAME", "metadata.name"),
        field("POSSE_POD_IP", "status.podIP"),
    ]
}

/// Writes JSON, and leaves gaps where a pod's ids go.
struct Emitter<'a> {
    build: &'a Build<'a>,
    parts: Vec<Part>,
    /// Gaps are left where the nodes go that the pod keeps away from.
    is_avoiding: bool,
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
                    if self.is_avoiding && keep_away::is_gap(field, item) {
                        self.parts.push(Part::AvoidedNodes);
                    } else {
                        self.value(item, &format!("{field}[{i}]"))?;
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

    /// True for what grows.
    fn is_memory(&self, field: &str) -> bool {
        let rest = field.strip_prefix(&self.build.memory_field);
        !self.build.memory_field.is_empty() && matches!(rest, Some(LIMIT | REQUEST))
    }

    fn string(&mut self, text: &str, field: &str) -> Result<(), TemplateError> {
        let pieces = placeholders::split(text)
            .map_err(|unknown| self.build.fail(field, unknown.to_string()))?;
        self.text("\"");
        for piece in pieces {
            match piece {
                Piece::Text(text) => self.escaped(text),
                Piece::Word(word) => match self.build.identity.word(word) {
                    Part::Text(text) => self.escaped(&text),
                    gap @ (Part::AvoidedNodes
                    | Part::ExecutorId
                    | Part::MemoryLimit
                    | Part::MemoryRequest
                    | Part::PodName
                    | Part::Slot) => self.parts.push(gap),
                },
            }
        }
        self.text("\"");
        Ok(())
    }

    /// Adds what stands between the quotes of a JSON string.
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
mod tests;
