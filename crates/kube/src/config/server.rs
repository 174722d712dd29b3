//! The URL of the API server: scheme, host, port and path prefix.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use ureq::http::uri::{Authority, Scheme, Uri};

use posse_base::text::without_secrets;

/// A parsed URL of an API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Use TLS. Without TLS, the client sends no credentials.
    pub tls: bool,
    /// A host name or IP address; IPv6 without brackets.
    pub host: String,
    /// The port in the URL, else the default port of the scheme.
    pub port: u16,
    /// The path in front of every request's path, without a trailing slash.
    pub prefix: String,
}

impl Server {
    /// Parses a URL. A URL without TLS must have a loopback address.
    ///
    /// # Errors
    /// What is wrong with the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        let server = Self::parse_any(url)?;
        if !server.tls && !server.is_loopback() {
            let shown = without_secrets(url);
            return Err(format!(
                "{shown:?}: plain http is allowed for loopback only, use https://"
            ));
        }
        Ok(server)
    }

    /// Like `parse`, but allows plain http to any host.
    pub(crate) fn parse_any(url: &str) -> Result<Self, String> {
        let shown = without_secrets(url);
        let uri: Uri = url.trim().parse().map_err(|e| format!("{shown:?} is not a URL: {e}"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(format!("{shown:?} is not a URL with scheme and host: write https://HOST"));
        };
        let tls = *scheme == Scheme::HTTPS;
        if !tls && *scheme != Scheme::HTTP {
            return Err(format!("{shown:?} is neither https:// nor http://"));
        }
        if authority.as_str().contains('@') {
            return Err("contains a user name: put it into the user's entry".to_owned());
        }
        if uri.query().is_some() {
            return Err(format!("{shown:?} has a query"));
        }
        let host = unbracketed(authority.host()).to_owned();
        let port = port(authority)?.unwrap_or_else(|| default_port(tls));
        if host.is_empty() || (host.contains(':') && host.parse::<Ipv6Addr>().is_err()) {
            return Err(format!("{shown:?} has no valid host"));
        }
        Ok(Self { tls, host, port, prefix: uri.path().trim_end_matches('/').to_owned() })
    }

    /// Whether the host is `localhost` or a loopback address. Resolves no names.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// `scheme://host:port`, without the port if it is the default.
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

/// The port of an authority, if there is one. `Authority::port` ignores an invalid port.
pub(crate) fn port(authority: &Authority) -> Result<Option<u16>, String> {
    let text = authority.as_str();
    let text = text.rsplit_once(['@', ']']).map_or(text, |(_, rest)| rest);
    match (text.rsplit_once(':'), authority.port_u16()) {
        (None, _) => Ok(None),
        (Some(_), Some(port)) if port > 0 => Ok(Some(port)),
        // Not quoted: it is the beginning of a password with a raw slash in `https://me:12/34@host`.
        (Some(_), _) => Err("the port is not a number from 1 to 65535".to_owned()),
    }
}

pub(crate) fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

/// A host as in a URL: IPv6 in brackets.
pub(crate) fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// A host without the brackets that URLs put around IPv6 addresses.
pub(crate) fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}
