//! Address of the control API: `unix:PATH` or a loopback `HOST:PORT`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::config::listen_addr::tcp;
use posse_base::text::without_secrets;

/// Longest path of a unix socket, bytes: `sun_path` has 108 with the final NUL.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Address of the control API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlAddr {
    /// A loopback address.
    Tcp(SocketAddr),
    /// Path of a unix socket.
    Unix(PathBuf),
}

impl ControlAddr {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong, and what is allowed.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err("`unix:` lacks the path of the socket".to_owned()),
                1..=SOCKET_PATH_BYTES_MAX => Ok(Self::Unix(PathBuf::from(path))),
                n => Err(format!(
                    "the path of a unix socket takes at most {SOCKET_PATH_BYTES_MAX} bytes, this \
                     one has {n}"
                )),
            };
        }
        let shown = without_secrets(text);
        let address = tcp(text).ok_or_else(|| {
            format!("expected unix:PATH or a loopback HOST:PORT, found `{shown}`")
        })?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "`{shown}` is not a loopback address; use 127.0.0.1:PORT or a socket"
            ));
        }
        Ok(Self::Tcp(address))
    }
}

impl fmt::Display for ControlAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unix_sockets_and_loopback_are_accepted() {
        for (text, written) in [
            ("unix:/run/posse/a.sock", Ok("unix:/run/posse/a.sock")),
            ("127.0.0.1:7077", Ok("127.0.0.1:7077")),
            ("127.8.9.1:0", Ok("127.8.9.1:0")),
            ("localhost:1", Ok("127.0.0.1:1")),
            ("[::1]:80", Ok("[::1]:80")),
            ("0.0.0.0:80", Err("not a loopback")),
            ("10.0.0.1:80", Err("not a loopback")),
            ("[::]:80", Err("not a loopback")),
            ("example.com:80", Err("expected unix:PATH")),
            ("127.0.0.1", Err("expected unix:PATH")),
            ("127.0.0.1:99999", Err("expected unix:PATH")),
            ("::1:80", Err("expected unix:PATH")),
            ("unix:", Err("lacks the path")),
            ("", Err("expected unix:PATH")),
            ("http://me:secret@127.0.0.1:80", Err("found `http://***@127.0.0.1:80`")),
        ] {
            match (ControlAddr::parse(text), written) {
                (Ok(got), Ok(want)) => assert_eq!(got.to_string(), want),
                (Err(got), Err(want)) => assert!(got.contains(want), "{text}: {got}"),
                (got, want) => panic!("{text}: {got:?}, expected {want:?}"),
            }
        }
        let path = "x".repeat(SOCKET_PATH_BYTES_MAX);
        assert!(ControlAddr::parse(&format!("unix:{path}")).is_ok());
        assert!(ControlAddr::parse(&format!("unix:{path}x")).unwrap_err().contains("has 108"));
    }
}
