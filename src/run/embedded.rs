//! The embedded cluster of `posse run --dev`.

use std::path::Path;

use serde_json::Value;

use crate::args::RunArgs;
use crate::exit::Failure;
use posse_core::model::pod_text::PodOverrides;
use posse_encoding::dropped_fields::uncertain;
use posse_run::run::settings::GroupSettings;
use posse_run::run::settings::RunSettings;

/// The embedded cluster, if --dev is given.
#[derive(Debug)]
pub(super) struct Embedded {
    cluster: Option<posse_dev::Cluster>,
}

impl Embedded {
    /// # Errors
    /// The cluster cannot start, or a group's container could not run there.
    pub(super) fn start(args: &RunArgs, settings: &RunSettings) -> Result<Self, Failure> {
        if !args.embedded.dev {
            return Ok(Self { cluster: None });
        }
        for group in &settings.groups {
            check_commands(group)?;
        }
        let namespace = settings.namespace.as_deref();
        let options = posse_dev::Options {
            namespaces: namespace.into_iter().map(str::to_owned).collect(),
            insecure_no_auth: args.embedded.insecure_no_auth,
            ..posse_dev::Options::default()
        };
        let cluster = posse_dev::Cluster::start(options)
            .map_err(|error| Failure::new(crate::exit::Code::Server, format!("--dev: {error}")))?;
        log::info!("embedded cluster: export KUBECONFIG={}", cluster.kubeconfig().display());
        Ok(Self { cluster: Some(cluster) })
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        self.cluster.as_ref().map(posse_dev::Cluster::kubeconfig)
    }

    pub(super) fn stop(self) {
        if let Some(cluster) = self.cluster {
            cluster.stop();
        }
    }
}

/// The embedded node pulls no images, so a container without a command can never run there.
fn check_commands(group: &GroupSettings) -> Result<(), Failure> {
    let template = &group.template;
    let compiled = template.check(&group.pod, true)?;
    let body = compiled.render(1, 0, &PodOverrides::default());
    let pod: Value = serde_json::from_slice(&body)
        .map_err(|error| template.fail("", format!("the pod is not JSON: {error}")))?;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        let lacks = |container: &Value| container["command"].get(0).is_none();
        if let Some(i) = containers.iter().position(lacks) {
            let inside = format!("spec.{list}[{i}].");
            let unknown = uncertain(&pod)
                .into_iter()
                .find(|path| path.strip_prefix(&inside).is_some_and(|name| !name.contains('.')));
            if let Some(field) = unknown.filter(|path| !path.ends_with("].restartPolicy")) {
                let message = "a container has no such field, and no command";
                return Err(template.fail(&field, message.to_owned()).into());
            }
            let message = "is missing; with --dev a container needs one, because the embedded \
                           cluster pulls no images and runs commands of this machine: give \
                           --command 'python3 worker.py', for example, or set `command`";
            let field = format!("spec.{list}[{i}].command");
            return Err(template.fail(&field, message.to_owned()).into());
        }
    }
    Ok(())
}
