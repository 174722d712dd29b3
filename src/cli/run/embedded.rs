//! Owns the embedded cluster of `posse run --dev`: its start and its end. What it is is `dev`'s.

use std::path::Path;

use crate::cli::Env;
use crate::cli::exit::Failure;
use crate::cli::settings::RunSettings;

/// The embedded cluster of `--dev`, where it was asked for.
#[derive(Debug)]
pub(super) struct Embedded {
    #[cfg(feature = "dev")]
    cluster: Option<crate::dev::Cluster>,
}

#[cfg(feature = "dev")]
impl Embedded {
    pub(super) fn start(settings: &RunSettings, _env: &Env<'_>) -> Result<Self, Failure> {
        if settings.server != crate::cli::settings::Server::Dev {
            return Ok(Self { cluster: None });
        }
        let options = crate::dev::Options {
            namespaces: settings.namespace.iter().cloned().collect(),
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
    pub(super) fn start(_: &RunSettings, _: &Env<'_>) -> Result<Self, Failure> {
        Ok(Self {})
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        None
    }

    pub(super) fn stop(self) {}
}
