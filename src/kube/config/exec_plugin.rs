//! A credential plugin as a kubeconfig describes it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// How long a plugin may take; some ask a cloud, which takes seconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);

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

/// A plugin as a kubeconfig describes it, checked.
#[derive(Clone)]
pub(crate) struct ExecPlugin {
    pub(crate) version: ExecVersion,
    /// Found on PATH, or a path that was resolved against the kubeconfig's folder.
    pub(crate) command: PathBuf,
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(String, OsString)>,
    pub(crate) install_hint: Option<String>,
    /// The `spec.cluster` it is told, as JSON; none where it is told nothing.
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
    /// The time a plugin is given unless a test says otherwise.
    pub(crate) const TIMEOUT: Duration = EXEC_TIMEOUT;
}
