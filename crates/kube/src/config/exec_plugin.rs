//! The description of a credential plugin in a kubeconfig.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// A version of the plugin protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExecVersion {
    V1,
    V1beta1,
}

impl ExecVersion {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        [Self::V1, Self::V1beta1].into_iter().find(|version| version.as_str() == text)
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }
}

/// A checked plugin entry of a kubeconfig.
#[derive(Clone)]
pub(crate) struct ExecPlugin {
    pub(crate) version: ExecVersion,
    /// A name that is searched in PATH, or a path relative to the kubeconfig's folder, resolved.
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, OsString)>,
    pub(crate) install_hint: Option<String>,
    /// The `spec.cluster` that the plugin gets; `None` without `provideClusterInfo`.
    pub(crate) cluster: Option<serde_json::Value>,
    pub(crate) timeout: Duration,
}

impl std::fmt::Debug for ExecPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments and environment may hold secrets.
        f.debug_struct("ExecPlugin")
            .field("version", &self.version)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

impl ExecPlugin {
    /// The default timeout. Plugins that ask a cloud take seconds.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
}
