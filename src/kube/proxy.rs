//! Owns whether a proxy stands before the API server: `HTTPS_PROXY`, `HTTP_PROXY`, `NO_PROXY` as Go
//! reads them. A kubeconfig's `proxy-url` wins over all of it and is only parsed here.

use std::net::IpAddr;

use ureq::Proxy;

use super::config::{ConfigError, Server, Sources};

const SCHEMES: [&str; 4] = ["http", "https", "socks5", "socks5h"];

/// The proxy that the environment wants for this server.
pub(super) fn from_env(
    sources: &Sources<'_>,
    server: &Server,
) -> Result<Option<Proxy>, ConfigError> {
    let names =
        if server.tls { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let found = names.into_iter().find_map(|name| Some((name, sources.var(name)?)));
    let Some((name, url)) = found else { return Ok(None) };
    let no_proxy = ["NO_PROXY", "no_proxy"].into_iter().find_map(|name| sources.var(name));
    if is_direct(no_proxy.as_deref().unwrap_or_default(), server) {
        return Ok(None);
    }
    let url = if url.contains("://") { url } else { format!("http://{url}") };
    parse(&url).map(Some).map_err(|e| ConfigError::field(name, e))
}

/// Reads a proxy's URL; the problem does not quote it, for it may hold a password.
pub(super) fn parse(url: &str) -> Result<Proxy, String> {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
    match scheme {
        Some(scheme) if SCHEMES.contains(&scheme.as_str()) => {
            Proxy::new(url).map_err(|_| "not a valid proxy URL".to_owned())
        }
        Some(_) | None => Err(format!(
            "not a proxy URL: it starts with none of {}",
            SCHEMES.map(|scheme| format!("{scheme}://")).join(", ")
        )),
    }
}

/// Whether the server is reached without a proxy.
fn is_direct(no_proxy: &str, server: &Server) -> bool {
    let host = server.host.trim_end_matches('.').to_ascii_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    server.is_loopback()
        || no_proxy
            .split(',')
            .map(str::trim)
            .filter(|entry| !entry.is_empty())
            .any(|entry| matches(&entry.to_ascii_lowercase(), &host, ip, server.port))
}

fn matches(entry: &str, host: &str, ip: Option<IpAddr>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    if let Some((network, bits)) = entry.split_once('/') {
        return match (ip, network.parse(), bits.parse()) {
            (Some(ip), Ok(network), Ok(bits)) => contains(network, bits, ip),
            _ => false,
        };
    }
    let (name, port_wanted) = split_port(entry);
    if port_wanted.is_some_and(|wanted| wanted != port) {
        return false;
    }
    if let Ok(wanted) = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        return ip.is_some_and(|ip| ip.to_canonical() == wanted.to_canonical());
    }
    match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
        Some(suffix) => is_below(host, suffix),
        None => host == name || is_below(host, name),
    }
}

/// The entry's host and port; a bare IPv6 address has none.
fn split_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            (name, port.parse().ok().or(Some(0)))
        }
        Some(_) | None => (entry, None),
    }
}

fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// Whether `ip` lies in `network/bits`.
fn contains(network: IpAddr, bits: u32, ip: IpAddr) -> bool {
    match (network, ip.to_canonical()) {
        (IpAddr::V4(network), IpAddr::V4(ip)) if bits <= 32 => {
            let shift = 32 - bits;
            network.to_bits().checked_shr(shift) == ip.to_bits().checked_shr(shift)
        }
        (IpAddr::V6(network), IpAddr::V6(ip)) if bits <= 128 => {
            let shift = 128 - bits;
            network.to_bits().checked_shr(shift) == ip.to_bits().checked_shr(shift)
        }
        (IpAddr::V4(_) | IpAddr::V6(_), IpAddr::V4(_) | IpAddr::V6(_)) => false,
    }
}
