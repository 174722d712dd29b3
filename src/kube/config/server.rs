//! The URL of the API server: scheme, host, port and path prefix.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ureq::http::uri::{Authority, Scheme, Uri};

/// A parsed server URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Whether it is spoken to over TLS; where not, it is on loopback and gets no credentials.
    pub tls: bool,
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port, also where the URL leaves it out.
    pub port: u16,
    /// The path that every request's path is appended to, without a trailing slash.
    pub prefix: String,
}

impl Server {
    /// Reads a server URL; what is wrong with it otherwise. Without TLS it has to be this machine's.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let server = Self::parse_any(url)?;
        if !server.tls && !server.is_loopback() {
            return Err(format!("{url:?}: plain http is for loopback only, write https://"));
        }
        Ok(server)
    }

    /// The same for a server that is spoken to without TLS wherever it is.
    pub(crate) fn parse_any(url: &str) -> Result<Self, String> {
        let uri: Uri = url.trim().parse().map_err(|e| format!("{url:?} is not a URL: {e}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(format!("{url:?} is not a URL with scheme and host: write https://HOST"));
        };
        let tls = *scheme == Scheme::HTTPS;
        if !tls && *scheme != Scheme::HTTP {
            return Err(format!("{url:?} is neither https:// nor http://"));
        }
        if authority.as_str().contains('@') {
            return Err("holds a user name: put it into the user's entry".to_owned());
        }
        if uri.query().is_some() {
            return Err(format!("{url:?} has a query"));
        }
        let host = unbracketed(authority.host()).to_owned();
        let port = port(authority)?.unwrap_or_else(|| default_port(tls));
        if host.is_empty() || (host.contains(':') && host.parse::<Ipv6Addr>().is_err()) {
            return Err(format!("{url:?} has no valid host"));
        }
        Ok(Self { tls, host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Whether the host is this machine, told from its spelling alone.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// `scheme://host:port`, as URLs want it.
    pub(crate) fn origin(&self) -> String {
        let scheme = if self.tls { "https" } else { "http" };
        if self.port == default_port(self.tls) {
            format!("{scheme}://{}", bracketed(&self.host))
        } else {
            format!("{scheme}://{}:{}", bracketed(&self.host), self.port)
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.prefix)
    }
}

/// The port that an authority names, if it names one: `Authority::port` overlooks a bad one.
pub(crate) fn port(authority: &Authority) -> Result<Option<u16>, String> {
    let text = authority.as_str();
    let text = text.rsplit_once(['@', ']']).map_or(text, |(_, rest)| rest);
    match (text.rsplit_once(':'), authority.port_u16()) {
        (None, _) => Ok(None),
        (Some(_), Some(port)) if port > 0 => Ok(Some(port)),
        (Some((_, port)), _) => Err(format!("{port:?} is not a port")),
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// A host as it stands in a URL: IPv6 in brackets.
pub(crate) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// A host as names and addresses are parsed: IPv6 without brackets.
pub(crate) fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
