//! The ureq agents: one that pools connections for single requests, one for streams.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use ureq::Agent;
use ureq::config::{Config, ConfigBuilder};
use ureq::typestate::AgentScope;

use super::connector::{Dialer, Names};
use crate::kube::config::Cluster;

/// Connections kept open between requests: as many as there can be requests at once.
pub(super) const POOLED_MAX: usize = 32;

/// A pooled connection unused for so long is closed; servers close theirs at 90 s.
const POOLED_AGE_MAX: Duration = Duration::from_secs(60);

/// What a connection for single requests reads at once, in bytes; TLS and socket each have such a
/// buffer, and there can be as many connections as are pooled.
const UNARY_INPUT_BYTES: usize = 16 << 10;

/// What a stream's connection reads at once, in bytes.
const STREAM_INPUT_BYTES: usize = 64 << 10;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// What any connection writes at once, in bytes: a pod fits.
pub(super) const OUTPUT_BYTES: usize = 8 << 10;

pub(super) fn unary_agent(cluster: &Cluster, settings: Option<Arc<ClientConfig>>) -> Agent {
    let config = agent_config(cluster)
        .max_idle_connections(POOLED_MAX)
        .max_idle_connections_per_host(POOLED_MAX)
        .max_idle_age(POOLED_AGE_MAX)
        .input_buffer_size(UNARY_INPUT_BYTES)
        .output_buffer_size(OUTPUT_BYTES)
        .build();
    agent(cluster, config, settings)
}

/// An agent whose connections serve one stream each.
pub(super) fn stream_agent(
    cluster: &Cluster,
    settings: Option<Arc<ClientConfig>>,
    output_bytes: usize,
) -> Agent {
    let config = agent_config(cluster)
        .max_idle_connections(0)
        .input_buffer_size(STREAM_INPUT_BYTES)
        .output_buffer_size(output_bytes)
        .build();
    agent(cluster, config, settings)
}

fn agent(cluster: &Cluster, config: Config, settings: Option<Arc<ClientConfig>>) -> Agent {
    let name = cluster.tls_server_name.as_deref();
    let dialer = Dialer::new(settings, &cluster.server.host, name);
    Agent::with_parts(config, dialer, Names::default())
}

fn agent_config(cluster: &Cluster) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        // Always set: the default is read from the environment, by other rules than ours.
        .proxy(cluster.proxy.clone())
        .http_status_as_error(false)
        .max_redirects(0)
        .https_only(cluster.server.tls)
        .user_agent(user_agent())
        .accept("application/json")
        .timeout_resolve(Some(RESOLVE_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_send_request(Some(SEND_TIMEOUT))
}

/// Who asks, as kubectl words it: `posse/0.1.0 (linux/amd64)`.
fn user_agent() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("posse/{} ({}/{arch})", env!("CARGO_PKG_VERSION"), std::env::consts::OS)
}
