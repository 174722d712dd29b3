//! Owns the configuration of a pod: the service variables and the service account's files.

use std::path::Path;

use super::config::{
    Bearer, Blob, BlobSource, Cluster, ConfigError, Identity, Server, Sources, Trust, bracketed,
    read_file, read_token,
};
use super::proxy;

const HOST: &str = "KUBERNETES_SERVICE_HOST";
const PORT: &str = "KUBERNETES_SERVICE_PORT";

/// The namespace of a pod whose service account names none.
const NAMESPACE_DEFAULT: &str = "default";

/// The API server's URL, where this is a pod.
pub(super) fn address(sources: &Sources<'_>) -> Option<String> {
    let host = sources.var(HOST)?;
    let port = sources.var(PORT)?;
    Some(format!("https://{}:{port}", bracketed(host.trim())))
}

/// The cluster that this pod runs in.
pub(super) fn cluster(sources: &Sources<'_>, url: &str) -> Result<Cluster, ConfigError> {
    let server = Server::parse(url).map_err(|e| ConfigError::field(format!("{HOST}/{PORT}"), e))?;
    let dir = sources.service_account_dir;
    let token = dir.join("token");
    let first = read_token(&token).map_err(|e| {
        ConfigError::field(
            "service account token",
            format!(
                "{e}; {HOST} says that this is a pod: mount a service account token \
                 (automountServiceAccountToken) or use --kubeconfig"
            ),
        )
    })?;
    let roots = Blob {
        field: "service account ca.crt".to_owned(),
        source: BlobSource::File(dir.join("ca.crt")),
    };
    roots.read()?;
    Ok(Cluster {
        proxy: proxy::from_env(sources, &server)?,
        namespace: namespace(dir),
        server,
        trust: Trust::Roots(roots),
        tls_server_name: None,
        identity: Identity {
            bearer: Bearer::TokenFile { path: token, first },
            ..Identity::default()
        },
        compression: true,
    })
}

fn namespace(dir: &Path) -> String {
    let path = dir.join("namespace");
    let text = read_file(&path).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    match text.as_deref().map(str::trim) {
        Some(name) if !name.is_empty() => name.to_owned(),
        Some(_) | None => {
            log::warn!("{} names no namespace: using {NAMESPACE_DEFAULT}", path.display());
            NAMESPACE_DEFAULT.to_owned()
        }
    }
}
