//! ureq agents: one that pools connections for single requests, one for streams.

use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use ureq::Agent;
use ureq::config::{Config, ConfigBuilder};
use ureq::typestate::AgentScope;

use super::connector::{AddressResolver, Dialer};
use crate::config::Cluster;

/// Idle connections that are kept: one for each request that can be in progress at once.
pub(super) const POOLED_MAX: usize = 32;

/// An idle connection is closed after this time. kube-apiserver closes it after 90 s.
const POOLED_AGE_MAX: Duration = Duration::from_secs(60);

/// Read buffer of a connection for single requests, in bytes. Small, because each pooled connection
/// has two: one for TLS and one for the socket.
const UNARY_INPUT_BYTES: usize = 16 << 10;

/// Read buffer of a connection for a stream, in bytes.
const STREAM_INPUT_BYTES: usize = 64 << 10;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// Write buffer of a connection, in bytes. A pod fits into it.
pub(super) const OUTPUT_BYTES: usize = 8 << 10;

/// An agent for single requests.
pub(super) fn unary_agent(cluster: &Cluster, tls_config: Option<Arc<ClientConfig>>) -> Agent {
    let config = agent_config(cluster)
        .max_idle_connections(POOLED_MAX)
        .max_idle_connections_per_host(POOLED_MAX)
        .max_idle_age(POOLED_AGE_MAX)
        .input_buffer_size(UNARY_INPUT_BYTES)
        .output_buffer_size(OUTPUT_BYTES)
        .build();
    agent(cluster, config, tls_config, true)
}

/// An agent for streams. It opens a connection for each stream.
pub(super) fn stream_agent(
    cluster: &Cluster,
    tls_config: Option<Arc<ClientConfig>>,
    output_bytes: usize,
) -> Agent {
    let config = agent_config(cluster)
        .max_idle_connections(0)
        .input_buffer_size(STREAM_INPUT_BYTES)
        .output_buffer_size(output_bytes)
        .build();
    agent(cluster, config, tls_config, false)
}

fn agent(
    cluster: &Cluster,
    config: Config,
    tls_config: Option<Arc<ClientConfig>>,
    joins_writes: bool,
) -> Agent {
    let name = cluster.tls_server_name.as_deref();
    let dialer = Dialer::new(tls_config, &cluster.server, name, joins_writes, None);
    Agent::with_parts(config, dialer, AddressResolver::default())
}

fn agent_config(cluster: &Cluster) -> ConfigBuilder<AgentScope> {
    Agent::config_builder()
        // Always set, also to `None`: the default reads the environment with other rules than ours.
        .proxy(cluster.proxy.clone())
        .http_status_as_error(false)
        .max_redirects(0)
        .https_only(cluster.server.tls)
        .user_agent(user_agent())
        .timeout_resolve(Some(RESOLVE_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_send_request(Some(SEND_TIMEOUT))
}

/// The user agent in kubectl's format: `posse/0.2.0 (linux/amd64)`.
fn user_agent() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!("posse/{} ({}/{arch})", env!("CARGO_PKG_VERSION"), std::env::consts::OS)
}
