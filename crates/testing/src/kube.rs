//! A client of the scripted server.

use std::net::SocketAddr;
use std::path::Path;

use posse_kube::config::Sources;
use posse_kube::http::Http;
use serde_json::json;

use crate::folder::Folder;

/// A client of a plain HTTP server on loopback.
///
/// # Panics
/// Its kubeconfig cannot be written or read.
#[must_use]
pub fn plain_client(address: SocketAddr) -> Http {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test", "users": [],
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "namespace": "analytics"}}],
    });
    let folder = Folder::new();
    let path = folder.write("config", config.to_string());
    let sources = Sources {
        kubeconfig: Some(&path),
        context: None,
        env: &|_| None,
        service_account_dir: Path::new(""),
        ca_bundles: &[],
    };
    Http::connect(sources.resolve().expect("a valid kubeconfig")).expect("a client")
}
