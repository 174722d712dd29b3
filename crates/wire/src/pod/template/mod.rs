//! The executor template: a v1 Pod or PodTemplate, checked as far as posse needs, and the
//! shorthands on top of it. `build` adds posse's own part.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::pod::arguments::find_too_long;
use crate::pod::slot_volume::SlotVolume;
use posse_encoding::yaml::Node;

mod copied;
mod overlay;

/// Name of the container in a pod that is built from an image alone.
const CONTAINER_NAME: &str = "executor";
/// Annotation by which kubectl chooses a container. Service meshes write it, because they put their proxy first.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

/// A checked template. The API server checks the rest.
#[derive(Clone, PartialEq)]
pub struct Template {
    /// The file, for errors.
    pub(super) source: String,
    /// Path of the pod in the file: empty, or `template.` in a PodTemplate.
    pub(super) prefix: &'static str,
    pub metadata: Map<String, Value>,
    pub spec: Map<String, Value>,
    pub(crate) shorthands: Shorthands,
    /// What a copy of a live pod brought along. It is not in `metadata` and `spec`.
    dropped: Vec<String>,
    /// The volumes of each slot. Their mounts are in `spec` already.
    pub(super) slot_volumes: Vec<SlotVolume>,
}

/// Values that replace those of the main container.
#[derive(Clone, Default, PartialEq)]
pub struct Shorthands {
    pub image: Option<String>,
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// Entries of `env`. They replace entries of the same name.
    pub env: Vec<Value>,
    /// Request and limit, because a quota may require either.
    pub cpu: Option<String>,
    /// Request and limit, because memory cannot be taken back from a process.
    pub memory: Option<String>,
    /// Requests and limits of any resource, as in a pod spec: a map of maps.
    pub resources: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The file, possibly with line and column.
    pub source: String,
    /// The field, like `spec.containers[0].env`. Empty: the whole template.
    pub field: String,
    pub message: String,
}

impl fmt::Debug for Template {
    /// Without the pod, because its environment may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("source", &self.source).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shorthands {
    /// Without the environment, because it may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { image, command, args, env: _, cpu, memory, resources } = self;
        f.debug_struct("Shorthands")
            .field("image", image)
            .field("command", command)
            .field("args", args)
            .field("cpu", cpu)
            .field("memory", memory)
            .field("resources", resources)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, field, message } = self;
        match field.as_str() {
            "" => write!(f, "{source}: {message}"),
            field => write!(f, "{source}: {field}: {message}"),
        }
    }
}

impl std::error::Error for TemplateError {}

/// The error for a container that the kubelet would restart.
const RESTARTS_IN_PLACE: &str = "makes the kubelet restart containers in place, and a new pod would run beside them: remove it, \
     because posse replaces what ends by a new pod";

/// The kinds with a pod in `spec.template`.
const WORKLOADS: [&str; 6] =
    ["CronJob", "DaemonSet", "Deployment", "Job", "ReplicaSet", "StatefulSet"];

/// What to do with a file of another kind.
fn wrong_kind(kind: &str) -> String {
    match kind {
        "CronJob" => "expected Pod or PodTemplate, found CronJob: use its \
                      spec.jobTemplate.spec.template"
            .to_owned(),
        kind if WORKLOADS.contains(&kind) => {
            format!("expected Pod or PodTemplate, found {kind}: use its spec.template")
        }
        kind => format!("expected Pod or PodTemplate, found {kind}"),
    }
}

impl Template {
    /// Reads a template file. `file` is only used in errors.
    ///
    /// # Errors
    /// The text is not one v1 Pod or PodTemplate with containers.
    pub fn parse(file: &str, text: &str) -> Result<Self, TemplateError> {
        let node = Node::read(text).map_err(|error| TemplateError {
            source: match error.at.line {
                0 => file.to_owned(),
                line => format!("{file}:{line}:{}", error.at.column),
            },
            field: String::new(),
            message: error.message,
        })?;
        Self::from_json(file, node.to_json())
    }

    /// Reads a template from JSON. `source` is only used in errors.
    pub fn from_json(source: &str, value: Value) -> Result<Self, TemplateError> {
        let fail = |field: &str, message: String| TemplateError {
            source: source.to_owned(),
            field: field.to_owned(),
            message,
        };
        let what = describe(&value);
        let Value::Object(mut object) = value else {
            return Err(fail("", format!("a v1 Pod is expected, found {what}")));
        };
        let has_pod = |kind: &Value| kind.as_str().is_some_and(|kind| WORKLOADS.contains(&kind));
        let is_workload = object.get("kind").is_some_and(has_pod);
        let version = object.get("apiVersion").filter(|version| *version != "v1" && !is_workload);
        if let Some(version) = version {
            return Err(fail("apiVersion", format!("expected v1, found {version}")));
        }
        let prefix = match object.get("kind") {
            // `pod:` in posse.yaml needs no kind.
            None => "",
            Some(kind) if kind == "Pod" => "",
            Some(kind) if kind == "PodTemplate" => "template.",
            Some(kind) => {
                let kind = kind.as_str().map_or_else(|| kind.to_string(), str::to_owned);
                return Err(fail("kind", wrong_kind(&kind)));
            }
        };
        if !prefix.is_empty() {
            object = match object.remove("template") {
                Some(Value::Object(object)) => object,
                other => return Err(fail("template", expected_map(other.as_ref()))),
            };
        }
        let part = |value: Option<Value>, field: &str| match value {
            Some(Value::Object(map)) => Ok(map),
            other => Err(fail(&format!("{prefix}{field}"), expected_map(other.as_ref()))),
        };
        let mut metadata = match object.remove("metadata") {
            None | Some(Value::Null) => Map::new(),
            value => part(value, "metadata")?,
        };
        let mut spec = part(object.remove("spec"), "spec")?;
        let dropped = copied::remove(&mut metadata, &mut spec);
        let template = Self {
            source: source.to_owned(),
            prefix,
            metadata,
            spec,
            shorthands: Shorthands::default(),
            dropped,
            slot_volumes: Vec::new(),
        };
        template.check_containers()?;
        match find_too_long(&template.spec) {
            Some((field, what)) => Err(template.fail(&field, what)),
            None => Ok(template),
        }
    }

    /// The same kind of object as `from_json` has read, without the shorthands and the claims.
    pub fn into_json(self) -> Value {
        let pod = json!({ "metadata": self.metadata, "spec": self.spec });
        if self.prefix.is_empty() { pod } else { json!({ "kind": "PodTemplate", "template": pod }) }
    }

    /// A pod with one container of this image. No image is an error.
    pub fn from_image(source: &str, image: Option<&str>) -> Result<Self, TemplateError> {
        let Some(image) = image else {
            return Err(TemplateError {
                source: source.to_owned(),
                field: String::new(),
                message: "no pod is given: set template, pod or image".to_owned(),
            });
        };
        let pod = json!({ "spec": { "containers": [{ "name": CONTAINER_NAME, "image": image }] } });
        Self::from_json(source, pod)
    }

    /// The template with these shorthands.
    pub fn with_shorthands(self, shorthands: Shorthands) -> Self {
        Self { shorthands, ..self }
    }

    fn check_containers(&self) -> Result<(), TemplateError> {
        let needed = |what: &str| {
            Err(self.fail("spec.containers", format!("{what}; a pod needs at least one container")))
        };
        for (list, is_needed) in [("containers", true), ("initContainers", false)] {
            match self.spec.get(list) {
                None | Some(Value::Null) if is_needed => return needed("is missing"),
                None | Some(Value::Null) => {}
                Some(Value::Array(all)) if is_needed && all.is_empty() => {
                    return needed("is empty");
                }
                Some(Value::Array(containers)) => self.check_each(list, containers)?,
                Some(other) => {
                    let message = format!("expected a list, found {}", describe(other));
                    return Err(self.fail(&format!("spec.{list}"), message));
                }
            }
        }
        Ok(())
    }

    fn check_each(&self, list: &str, containers: &[Value]) -> Result<(), TemplateError> {
        for (i, container) in containers.iter().enumerate() {
            let field = format!("spec.{list}[{i}]");
            let Value::Object(container) = container else {
                return Err(self.fail(&field, expected_map(Some(container))));
            };
            if container.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
                let message = "is missing; every container needs a name".to_owned();
                return Err(self.fail(&format!("{field}.name"), message));
            }
            self.check_restarts(container, list, &field)?;
            if let Some(env) = container.get("env").filter(|env| !env.is_null() && !env.is_array())
            {
                let message = format!("expected a list, found {}", describe(env));
                return Err(self.fail(&format!("{field}.env"), message));
            }
        }
        Ok(())
    }

    /// A pod has one life: its end is the executor's or the driver's, and another pod takes its place. Native
    /// side-cars restart, and init containers, before any other container has started.
    fn check_restarts(
        &self,
        container: &Map<String, Value>,
        list: &str,
        field: &str,
    ) -> Result<(), TemplateError> {
        let policy = container.get("restartPolicy").filter(|policy| !policy.is_null());
        if let Some(policy) = policy.filter(|policy| list == "containers" && *policy != "Never") {
            let message = format!("{} {RESTARTS_IN_PLACE}", describe(policy));
            return Err(self.fail(&format!("{field}.restartPolicy"), message));
        }
        let rules = container.get("restartPolicyRules");
        match rules.filter(|rules| !rules.is_null() && **rules != json!([])) {
            Some(_) => {
                let message = format!("a rule {RESTARTS_IN_PLACE}");
                Err(self.fail(&format!("{field}.restartPolicyRules"), message))
            }
            None => Ok(()),
        }
    }

    /// Index and name of the main container: the one of this name, else kubectl's default, else the first.
    ///
    /// # Errors
    /// No container has this name.
    pub fn main_container(&self, wanted: Option<&str>) -> Result<(usize, String), TemplateError> {
        let containers =
            self.spec.get("containers").and_then(Value::as_array).into_iter().flatten();
        let names: Vec<&str> = containers.filter_map(|one| one["name"].as_str()).collect();
        let default =
            self.metadata.get("annotations").and_then(|all| all[DEFAULT_CONTAINER].as_str());
        let default = default.filter(|name| names.contains(name));
        let first = || names.first().copied().unwrap_or_default();
        let main = wanted.or(default).unwrap_or_else(first);
        let place = names.iter().position(|name| *name == main).ok_or_else(|| {
            let there = names.join(", ");
            let message = format!("none is named `{main}`; the containers are: {there}");
            self.fail("spec.containers", message)
        })?;
        Ok((place, main.to_owned()))
    }

    /// What to tell about a template that was copied from a live pod.
    pub fn copied_warning(&self) -> Option<String> {
        if self.dropped.is_empty() {
            return None;
        }
        let fields: Vec<String> =
            self.dropped.iter().map(|field| format!("{}{field}", self.prefix)).collect();
        Some(format!(
            "{}: {}: dropped, because they belong to one live pod",
            self.source,
            fields.join(", ")
        ))
    }

    /// An error about a field of the pod.
    pub fn fail(&self, field: &str, message: String) -> TemplateError {
        let field = format!("{}{field}", self.prefix);
        TemplateError { source: self.source.clone(), field, message }
    }
}

/// The containers of a pod's spec, also its init containers, each with the name of its field.
/// `Template::check_containers` reports those that are not maps.
pub(crate) fn containers_mut(
    spec: &mut Map<String, Value>,
) -> impl Iterator<Item = (String, &mut Map<String, Value>)> {
    let lists = spec
        .iter_mut()
        .filter(|(list, _)| matches!(list.as_str(), "containers" | "initContainers"));
    lists.flat_map(|(list, containers)| {
        let containers = containers.as_array_mut().into_iter().flatten().enumerate();
        containers.filter_map(move |(i, container)| {
            Some((format!("spec.{list}[{i}]"), container.as_object_mut()?))
        })
    })
}

fn expected_map(found: Option<&Value>) -> String {
    match found {
        None | Some(Value::Null) => "is missing; expected a map".to_owned(),
        Some(other) => format!("expected a map, found {}", describe(other)),
    }
}

/// For "expected ..., found ...".
pub fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Null => "nothing".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{value}`"),
        Value::String(text) => format!("`{}`", text.chars().take(40).collect::<String>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::build::tests::{context, rendered};
    use crate::pod::build::{PodContext, PodSettings};

    #[test]
    fn the_main_container_is_the_named_one_or_kubectls_default_or_the_first() {
        let container = Some("istio-proxy".to_owned());
        let named = PodSettings { container, ..PodSettings::default() };
        for (settings, default, want) in [
            (PodSettings::default(), "worker", "worker"),
            (PodSettings::default(), "absent", "istio-proxy"),
            (PodSettings::default(), "", "istio-proxy"),
            (named, "worker", "istio-proxy"),
        ] {
            let text = format!(
                "{{metadata: {{annotations: {{kubectl.kubernetes.io/default-container: '{default}'}}}}, \
             spec: {{containers: [{{name: istio-proxy, image: p}}, {{name: worker, image: w}}]}}}}"
            );
            let template = Template::parse("t.yaml", &text).unwrap();
            let image = Some("mine".to_owned());
            let template = template.with_shorthands(Shorthands { image, ..Shorthands::default() });
            let compiled = template.compile(&PodContext { settings, ..context() }).unwrap();
            let pod = rendered(&compiled);
            assert_eq!(pod["metadata"]["annotations"]["posse.dev/container"], want);
            let mut containers = pod["spec"]["containers"].as_array().unwrap().iter();
            assert_eq!(containers.find(|one| one["image"] == "mine").unwrap()["name"], want);
        }
    }
}
