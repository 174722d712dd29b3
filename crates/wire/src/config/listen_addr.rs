//! A TCP address to listen on: `HOST:PORT`, or `:PORT` for all addresses of the machine.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use posse_base::text::without_secrets;

/// Where a server listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenAddr {
    /// A port of all addresses, of IPv4 and IPv6.
    All(u16),
    /// A port of one address.
    At(SocketAddr),
}

impl ListenAddr {
    /// Reads an address.
    ///
    /// # Errors
    /// What is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        let all = text.strip_prefix(':').and_then(|port| port.parse().ok()).map(Self::All);
        all.or_else(|| tcp(text).map(Self::At)).ok_or_else(|| {
            let shown = without_secrets(text);
            format!("expected HOST:PORT with an IP address, or :PORT, or off, found `{shown}`")
        })
    }

    pub fn port(self) -> u16 {
        match self {
            Self::All(port) => port,
            Self::At(address) => address.port(),
        }
    }

    /// True if other machines can reach it.
    pub fn is_public(self) -> bool {
        match self {
            Self::All(_) => true,
            Self::At(address) => !address.ip().is_loopback(),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(port) => write!(f, ":{port}"),
            Self::At(address) => address.fmt(f),
        }
    }
}

/// Reads `HOST:PORT`. The host must be an IP address or `localhost`.
pub(super) fn tcp(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    let ip = match host {
        "localhost" => IpAddr::V4(Ipv4Addr::LOCALHOST),
        host => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(v6) => IpAddr::V6(v6.parse::<Ipv6Addr>().ok()?),
            None => IpAddr::V4(host.parse().ok()?),
        },
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_with_a_port_are_accepted() {
        for (text, written, is_public) in [
            (":9760", ":9760", true),
            ("0.0.0.0:9760", "0.0.0.0:9760", true),
            ("10.1.2.3:80", "10.1.2.3:80", true),
            ("[::]:80", "[::]:80", true),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("localhost:1", "127.0.0.1:1", false),
            ("[::1]:80", "[::1]:80", false),
        ] {
            let address = ListenAddr::parse(text).unwrap();
            assert_eq!((address.to_string().as_str(), address.is_public()), (written, is_public));
            assert_eq!(text.rsplit(':').next(), Some(address.port().to_string().as_str()));
        }
        for text in ["", ":", "9760", "10.1.2.3", "example.com:80", ":99999", "::1:80"] {
            let error = ListenAddr::parse(text).unwrap_err();
            assert!(error.contains("HOST:PORT") && error.contains(text), "{text}: {error}");
        }
        let error = ListenAddr::parse("http://me:secret@10.0.0.1:80").unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
