//! The embedded cluster of `posse run --dev`.

use std::path::Path;

use crate::cli::exit::Failure;

/// The embedded cluster, if --dev is given.
#[derive(Debug)]
pub(super) struct Embedded {
    #[cfg(feature = "dev")]
    cluster: Option<crate::dev::Cluster>,
}

#[cfg(feature = "dev")]
impl Embedded {
    pub(super) fn start(is_dev: bool, namespace: Option<&str>) -> Result<Self, Failure> {
        if !is_dev {
            return Ok(Self { cluster: None });
        }
        let options = crate::dev::Options {
            namespaces: namespace.into_iter().map(str::to_owned).collect(),
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
    pub(super) fn start(_: bool, _: Option<&str>) -> Result<Self, Failure> {
        Ok(Self {})
    }

    pub(super) fn kubeconfig(&self) -> Option<&Path> {
        None
    }

    pub(super) fn stop(self) {}
}
