//! Recognises requests that a web page made a browser send, and names that are not this server's.
//!
//! A page of any origin can make the user's browser send requests to loopback. It can also let its own
//! name resolve to 127.0.0.1 (DNS rebinding): to the browser the server then belongs to the page, and
//! only the `Host` header still says whose request it is.

use std::net::IpAddr;

use crate::Request;

/// Refuses a request that a page of another origin sent (Fetch Standard; W3C Fetch Metadata). This
/// server's own origin is admitted: that of posse's own page, and what some WebSocket libraries send.
pub fn refuse_pages(request: &Request) -> Option<(u16, &'static str)> {
    let is_ours = |origin: &str| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some_and(|host| request.hosts().all(|own| own == host))
            && request.hosts().next().is_some()
    };
    if !request.headers("origin").all(is_ours) {
        return Some((403, "requests of web pages (header Origin) are refused"));
    }
    // `none` is an address that the user typed. `same-site` is a page from another port or subdomain.
    let is_own = |site: &str| matches!(site.trim(), "none" | "same-origin");
    (!request.headers("sec-fetch-site").all(is_own))
        .then_some((403, "requests of other web sites (header Sec-Fetch-Site) are refused"))
}

/// Refuses a request whose `Host` is neither a loopback address nor one of `names`. Only an HTTP/1.0
/// client may omit the header, and no browser does.
pub fn refuse_foreign_host(request: &Request, names: &[&str]) -> Option<(u16, &'static str)> {
    let is_own = |name: &str| {
        let is_loopback = name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
        is_loopback || names.iter().any(|own| own.eq_ignore_ascii_case(name))
    };
    (!request.hosts().all(|host| host_name(host).is_some_and(is_own))).then_some((
        403,
        "the Host header names another server; use the address that posse printed",
    ))
}

/// The name or address in `NAME`, `NAME:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT`.
fn host_name(host: &str) -> Option<&str> {
    let (name, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find(':').unwrap_or(host.len())),
    };
    let is_port = |text: &str| text.strip_prefix(':').is_some_and(|n| n.parse::<u16>().is_ok());
    (rest.is_empty() || is_port(rest)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_names_and_loopback_addresses_are_own_hosts() {
        let answer = |host: &str| {
            let request = Request::with_headers(&[("Host", host)]);
            refuse_foreign_host(&request, &["localhost", "posse"]).is_none()
        };
        for own in [
            "127.0.0.1",
            "127.0.0.1:6443",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:6443",
            "localhost",
            "LocalHost:80",
            "posse",
        ] {
            assert!(answer(own), "{own}");
        }
        for foreign in [
            "",
            ":80",
            "evil.example",
            "evil.example:6443",
            "localhost.evil.example",
            "localhost.",
            "127.0.0.1.nip.io",
            "127.0.0.1@evil.example",
            "evil.example:80@127.0.0.1",
            "10.0.0.1",
            "0.0.0.0:80",
            "[::]:80",
            "[::1",
            "[::1]x",
            "[::1]:",
            "127.0.0.1:port",
            "127.1",
            "2130706433",
            "127.0.0.1, evil.example",
            "posse.evil.example",
        ] {
            assert!(!answer(foreign), "{foreign}");
        }
        assert_eq!(refuse_foreign_host(&Request::with_headers(&[]), &[]), None, "HTTP/1.0");
    }

    #[test]
    fn what_only_browsers_send_for_pages_is_refused() {
        let answer = |headers: &[(&str, &str)]| {
            refuse_pages(&Request::with_headers(headers)).map(|(status, _)| status)
        };
        assert_eq!(answer(&[]), None);
        for site in ["none", "same-origin"] {
            assert_eq!(answer(&[("Sec-Fetch-Site", site)]), None, "{site}");
        }
        for site in ["cross-site", "same-site", "Cross-Site", "", "new"] {
            assert_eq!(answer(&[("Sec-Fetch-Site", site)]), Some(403), "{site}");
        }
        for origin in ["http://evil.example", "null", "http://127.0.0.1:6443", ""] {
            assert_eq!(answer(&[("Origin", origin)]), Some(403), "{origin}");
        }
        let from = |origin| answer(&[("Host", "127.0.0.1:6443"), ("Origin", origin)]);
        assert_eq!(from("https://127.0.0.1:6443"), None);
        for origin in ["https://127.0.0.1:6444", "https://127.0.0.1", "127.0.0.1:6443", "https://"]
        {
            assert_eq!(from(origin), Some(403), "{origin}");
        }
        let two = [("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")];
        assert_eq!(answer(&two), Some(403));
    }
}
