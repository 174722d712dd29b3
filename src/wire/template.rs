//! Owns the executor template as its author wrote it: a v1 Pod or PodTemplate, read once, and the
//! shorthands that are laid over it. What posse adds to it is `build.rs`'s.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::wire::build::{Compiled, Identity, Owner};
use crate::wire::memory::Growth;
use crate::wire::yaml::Node;

mod overlay;

/// The container of a pod that is made from an image alone.
const CONTAINER_NAME: &str = "executor";

/// A template, sound as far as posse looks into it; the rest is the server's to judge.
#[derive(Clone, PartialEq)]
pub struct Template {
    /// Where it is from, as errors name it.
    pub(super) source: String,
    /// The way to the pod within the source: empty, or `template.` in a PodTemplate.
    pub(super) prefix: &'static str,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) spec: Map<String, Value>,
    pub(crate) shorthands: Shorthands,
}

/// What is laid over the deciding container.
#[derive(Clone, Default, PartialEq)]
pub struct Shorthands {
    pub image: Option<String>,
    pub command: Option<Vec<String>>,
    pub args: Option<Vec<String>>,
    /// Entries of a container's `env`; they replace those of the same name.
    pub env: Vec<Value>,
    /// Request and limit alike, so that quotas on either let the pod in.
    pub cpu: Option<String>,
    /// Request and limit alike: memory cannot be taken back from a process.
    pub memory: Option<String>,
    /// Requests and limits of any resource, as a container has them: a map of maps.
    pub resources: Option<Value>,
}

/// What is wrong with a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// The file, perhaps with line and column.
    pub source: String,
    /// The field, like `spec.containers[0].env`; empty where the whole is meant.
    pub field: String,
    pub message: String,
}

impl fmt::Debug for Template {
    /// Without the pod: its environment may hold what is nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("source", &self.source).finish_non_exhaustive()
    }
}

impl fmt::Debug for Shorthands {
    /// Without the environment, as above.
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

impl Template {
    /// Reads a template file; `file` is only named in errors.
    ///
    /// # Errors
    /// Anything that is not one v1 Pod or PodTemplate with containers.
    pub fn parse(file: &str, text: &str) -> Result<Self, TemplateError> {
        let node = Node::read(text).map_err(|mistake| TemplateError {
            source: match mistake.at.line {
                0 => file.to_owned(),
                line => format!("{file}:{line}:{}", mistake.at.column),
            },
            field: String::new(),
            message: mistake.message,
        })?;
        Self::from_json(file, node.to_json())
    }

    /// Takes a template that is JSON already; `source` is only named in errors.
    ///
    /// # Errors
    /// As for `parse`.
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
        if let Some(version) = object.get("apiVersion").filter(|version| *version != "v1") {
            return Err(fail("apiVersion", format!("expected v1, found {version}")));
        }
        let prefix = match object.get("kind") {
            // A `pod:` within posse.yaml need not repeat what it is.
            None => "",
            Some(kind) if kind == "Pod" => "",
            Some(kind) if kind == "PodTemplate" => "template.",
            Some(kind) => {
                return Err(fail("kind", format!("expected Pod or PodTemplate, found {kind}")));
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
        let metadata = match object.remove("metadata") {
            None | Some(Value::Null) => Map::new(),
            value => part(value, "metadata")?,
        };
        let spec = part(object.remove("spec"), "spec")?;
        let shorthands = Shorthands::default();
        let template = Self { source: source.to_owned(), prefix, metadata, spec, shorthands };
        template.check_containers()?;
        Ok(template)
    }

    /// A pod with one container of this image.
    ///
    /// # Errors
    /// No image.
    pub fn from_image(source: &str, image: Option<&str>) -> Result<Self, TemplateError> {
        let Some(image) = image else {
            return Err(TemplateError {
                source: source.to_owned(),
                field: String::new(),
                message: "there is no pod: give template, pod or image".to_owned(),
            });
        };
        let pod = json!({ "spec": { "containers": [{ "name": CONTAINER_NAME, "image": image }] } });
        Self::from_json(source, pod)
    }

    /// The template with these shorthands to be laid over its deciding container.
    #[must_use]
    pub fn with_shorthands(self, shorthands: Shorthands) -> Self {
        Self { shorthands, ..self }
    }

    /// Finds what `compile` would find, whatever the run turns out to be.
    ///
    /// # Errors
    /// As for `compile`.
    pub fn check(
        &self,
        container: Option<&str>,
        growth: Option<&Growth>,
    ) -> Result<Compiled, TemplateError> {
        // Whoever is named as the owner may turn out to be the driver pod.
        let uid = self.metadata.get("ownerReferences").and_then(|owners| owners.get(0)?.get("uid"));
        let owner = uid.and_then(Value::as_str).map(|uid| Owner {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: "driver".to_owned(),
            uid: uid.to_owned(),
        });
        let any = || "any".to_owned();
        self.compile(&Identity {
            app: any(),
            instance: any(),
            namespace: any(),
            group: any(),
            owner,
            driver_host: any(),
            node_loss_after_s: Some(1),
            staged: None,
            container: container.map(str::to_owned),
            fails_with_sidecars: false,
            growth: growth.cloned(),
            max_age_s: None,
        })
    }

    fn check_containers(&self) -> Result<(), TemplateError> {
        let containers = match self.spec.get("containers") {
            None | Some(Value::Null) => {
                let message = "is missing; a pod needs at least one container".to_owned();
                return Err(self.fail("spec.containers", message));
            }
            Some(Value::Array(containers)) => containers,
            Some(other) => {
                let message = format!("expected a list, found {}", describe(other));
                return Err(self.fail("spec.containers", message));
            }
        };
        if containers.is_empty() {
            let message = "is empty; a pod needs at least one container".to_owned();
            return Err(self.fail("spec.containers", message));
        }
        self.check_each("containers", containers)?;
        match self.spec.get("initContainers") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::Array(containers)) => self.check_each("initContainers", containers),
            Some(other) => {
                let message = format!("expected a list, found {}", describe(other));
                Err(self.fail("spec.initContainers", message))
            }
        }
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
            if let Some(env) = container.get("env").filter(|env| !env.is_null() && !env.is_array())
            {
                let message = format!("expected a list, found {}", describe(env));
                return Err(self.fail(&format!("{field}.env"), message));
            }
        }
        Ok(())
    }

    /// An error about a field of the pod.
    pub(crate) fn fail(&self, field: &str, message: String) -> TemplateError {
        let field = format!("{}{field}", self.prefix);
        TemplateError { source: self.source.clone(), field, message }
    }
}

fn expected_map(found: Option<&Value>) -> String {
    match found {
        None | Some(Value::Null) => "is missing; expected a map".to_owned(),
        Some(other) => format!("expected a map, found {}", describe(other)),
    }
}

/// What a value is, for "expected ..., found ...".
pub(crate) fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".to_owned(),
        Value::Null => "nothing".to_owned(),
        Value::Object(_) => "a map".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{value}`"),
        Value::String(text) => format!("`{}`", text.chars().take(40).collect::<String>()),
    }
}
