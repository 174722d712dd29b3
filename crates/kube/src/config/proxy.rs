//! The proxy in front of the API server: `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` with the rules of
//! Go's `httpproxy`. A kubeconfig's `proxy-url` takes precedence over these variables.

use std::net::IpAddr;

use ureq::Proxy;

use super::server::{port, unbracketed};
use super::{ConfigError, Server, Sources};

const SCHEMES: [&str; 4] = ["http", "https", "socks5", "socks5h"];

/// The proxy that the environment sets for this server.
pub(crate) fn from_env(
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

/// Parses a proxy's URL. The error does not contain the URL, which may contain a password.
pub(crate) fn parse(url: &str) -> Result<Proxy, String> {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let scheme = match scheme.to_ascii_lowercase() {
        // As in Go, the proxy looks up the server's name: it may be known there alone.
        scheme if scheme == "socks5" => "socks5h".to_owned(),
        scheme => scheme,
    };
    if !SCHEMES.contains(&scheme.as_str()) {
        let schemes = SCHEMES.map(|scheme| format!("{scheme}://")).join(", ");
        return Err(format!("not a proxy URL: it starts with none of {schemes}"));
    }
    let proxy = Proxy::new(&format!("{scheme}://{rest}"))
        .map_err(|_| "not a valid proxy URL".to_owned())?;
    if let Some(authority) = proxy.uri().authority() {
        port(authority)?;
    }
    Ok(proxy)
}

/// Whether to connect to the server without a proxy.
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
    if let Ok(wanted) = unbracketed(name).parse::<IpAddr>() {
        return ip.is_some_and(|ip| ip.to_canonical() == wanted.to_canonical());
    }
    match name.strip_prefix("*.").or_else(|| name.strip_prefix('.')) {
        Some(suffix) => is_below(host, suffix),
        None => host == name || is_below(host, name),
    }
}

/// Splits an entry into host and port. An IPv6 address without brackets has no port.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{no_env, sources};

    #[track_caller]
    fn check(no_proxy: &str, url: &str, direct: bool) {
        let server = Server::parse(url).unwrap();
        assert_eq!(is_direct(no_proxy, &server), direct, "{url} with NO_PROXY={no_proxy:?}");
    }

    #[test]
    fn no_proxy_follows_the_rules_of_go() {
        let ip = "https://10.96.0.1";
        for entry in ["*", "10.96.0.1", "10.96.0.0/12", "a, 10.0.0.0/8 ,b", "0.0.0.0/0"] {
            check(entry, ip, true);
        }
        for entry in ["10.96.0.1:443", "10.96.0.1/32", "::ffff:10.96.0.1"] {
            check(entry, ip, true);
        }
        for entry in ["", ",", "10.96.0.2", "10.96.0.1:6443", "10.112.0.0/12", "10.96.0.1/33"] {
            check(entry, ip, false);
        }
        for entry in ["10.96.0.1/x", "fd00::/8", ".10.96.0.1.", "10.96.0.1:x", "0.96.0.1"] {
            check(entry, ip, false);
        }

        let six = "https://[fd00::1]:6443";
        for entry in ["fd00::1", "[fd00::1]", "[fd00::1]:6443", "fd00::/8", "::/0", "FD00::1"] {
            check(entry, six, true);
        }
        for entry in ["[fd00::1]:443", "fe00::/8", "fd00::2", "fd00::/129", "10.0.0.0/0"] {
            check(entry, six, false);
        }

        let name = "https://Kube.Example.com:6443";
        for entry in ["example.com", ".example.com", "*.example.com", "EXAMPLE.COM:6443", "com"] {
            check(entry, name, true);
        }
        for entry in ["ample.com", "example.com:443", "be.example.com", "10.0.0.0/8", "*.com.x"] {
            check(entry, name, false);
        }
        check("kube.example.com", name, true);
        // With a leading dot the domain itself does not match.
        check(".kube.example.com", name, false);
        check("*.kube.example.com", name, false);

        for loopback in
            ["https://localhost:1", "https://127.9.9.9", "https://[::1]", "http://[::1]"]
        {
            check("", loopback, true);
        }
    }

    #[track_caller]
    fn check_env(variables: &[(&str, &str)], want: Result<Option<&str>, &str>) {
        let env = |name: &str| {
            variables.iter().find(|(given, _)| *given == name).map(|(_, v)| (*v).to_owned())
        };
        let server = Server::parse("https://10.96.0.1").unwrap();
        let found = from_env(&sources(None, &env), &server)
            .map(|proxy| proxy.map(|proxy| format!("{}:{}", proxy.host(), proxy.port())))
            .map_err(|e| e.to_string());
        let want = want.map(|proxy| proxy.map(str::to_owned)).map_err(str::to_owned);
        assert_eq!(found, want, "{variables:?}");
    }

    #[test]
    fn the_proxy_is_read_from_the_environment() {
        check_env(&[], Ok(None));
        check_env(&[("HTTPS_PROXY", "http://p:3128")], Ok(Some("p:3128")));
        check_env(&[("https_proxy", "p:3128")], Ok(Some("p:3128")));
        check_env(&[("HTTPS_PROXY", "a"), ("https_proxy", "b")], Ok(Some("a:80")));
        check_env(&[("HTTPS_PROXY", ""), ("https_proxy", "b:1")], Ok(Some("b:1")));
        check_env(&[("HTTPS_PROXY", "socks5://p")], Ok(Some("p:1080")));
        check_env(&[("HTTP_PROXY", "p"), ("ALL_PROXY", "p")], Ok(None));
        check_env(&[("HTTPS_PROXY", "p"), ("NO_PROXY", "10.0.0.0/8")], Ok(None));
        check_env(&[("HTTPS_PROXY", "p"), ("no_proxy", "10.96.0.1")], Ok(None));
        check_env(&[("HTTPS_PROXY", "p"), ("NO_PROXY", "*"), ("no_proxy", "")], Ok(None));
        let schemes = "it starts with none of http://, https://, socks5://, socks5h://";
        check_env(
            &[("HTTPS_PROXY", "ftp://me:s3cr3t@p")],
            Err(&format!("HTTPS_PROXY: not a proxy URL: {schemes}")),
        );
        check_env(
            &[("https_proxy", "http://me:s3cr3t@")],
            Err("https_proxy: not a valid proxy URL"),
        );
        check_env(
            &[("https_proxy", "http://me:s3cr3t@p:x")],
            Err("https_proxy: the port is not a number from 1 to 65535"),
        );
    }

    #[test]
    fn http_proxy_does_not_apply_to_loopback() {
        let env = |name: &str| (name == "HTTP_PROXY").then(|| "p".to_owned());
        let server = Server::parse("http://127.0.0.1:8001").unwrap();
        assert_eq!(from_env(&sources(None, &env), &server).unwrap(), None);
        assert_eq!(from_env(&sources(None, &no_env), &server).unwrap(), None);
    }
}
