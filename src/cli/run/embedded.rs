//! The embedded cluster of `posse run --dev`.

use std::path::Path;

#[cfg(feature = "dev")]
use serde_json::Value;

use crate::cli::args::RunArgs;
use crate::cli::exit::Failure;
#[cfg(feature = "dev")]
use crate::core::model::pod_text::PodOverrides;
#[cfg(feature = "dev")]
use crate::runtime::run::settings::GroupSettings;
use crate::runtime::run::settings::RunSettings;

/// The embedded cluster, if --dev is given.
#[derive(Debug)]
pub(super) struct Embedded {
    #[cfg(feature = "dev")]
    cluster: Option<crate::dev::Cluster>,
}

#[cfg(feature = "dev")]
impl Embedded {
    /// # Errors
    /// The cluster cannot start, or a group's container could not run there.
    pub(super) fn start(args: &RunArgs, settings: &RunSettings) -> Result<Self, Failure> {
        if !args.dev {
            return Ok(Self { cluster: None });
        }
        for group in &settings.groups {
            check_commands(group)?;
        }
        let namespace = settings.namespace.as_deref();
        let options = crate::dev::Options {
            namespaces: namespace.into_iter().map(str::to_owned).collect(),
            insecure_no_auth: args.insecure_no_auth,
            ..crate::dev::Options::default()
        };
        let cluster = crate::dev::Cluster::start(options).map_err(|error| {
            Failure::new(crate::cli::exit::Code::Server, format!("--dev: {error}"))
        })?;
        log::info!("embedded cluster: export KUBECONFIG={}", cluster.kubeconfig().display());
        Ok(Self { cluster: Some(cluster) })
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        self.cluster.as_ref().map(crate::dev::Cluster::kubeconfig)
    }

    pub(super) fn stop(self) {
        if let Some(cluster) = self.cluster {
            cluster.stop();
        }
    }
}

#[cfg(not(feature = "dev"))]
impl Embedded {
    pub(super) fn start(_: &RunArgs, _: &RunSettings) -> Result<Self, Failure> {
        Ok(Self {})
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        None
    }

    pub(super) fn stop(self) {}
}

/// The embedded node pulls no images, so a container without a command can never run there.
#[cfg(feature = "dev")]
fn check_commands(group: &GroupSettings) -> Result<(), Failure> {
    let template = &group.template;
    let compiled =
        template.check(group.container.as_deref(), group.memory_scaling.as_ref(), true)?;
    let body = compiled.render(1, 0, &PodOverrides::default());
    let pod: Value = serde_json::from_slice(&body)
        .map_err(|error| template.fail("", format!("the pod is not JSON: {error}")))?;
    for list in ["initContainers", "containers"] {
        let containers = pod["spec"][list].as_array().map_or(&[][..], Vec::as_slice);
        let lacks = |container: &Value| container["command"].get(0).is_none();
        if let Some(i) = containers.iter().position(lacks) {
            let message = "is missing; with --dev a container needs one, because the embedded \
                           cluster pulls no images and runs commands of this machine: give \
                           --command 'python3 worker.py', for example, or set `command`";
            let field = format!("spec.{list}[{i}].command");
            return Err(template.fail(&field, message.to_owned()).into());
        }
    }
    Ok(())
}
