//! The server for scrapes and probes: `/metrics`, `/healthz` and `/readyz`, without a token. It shows
//! numbers and changes nothing.

use std::io;
use std::sync::Arc;

use crate::RunHandle;
use crate::access::Door;
use crate::address::listen;
use posse_serve::{Handler, Limits, Listen, Request, Responder, Server};
use posse_wire::config::listen_addr::ListenAddr;
use posse_wire::control::exposition::CONTENT_TYPE;

/// The numbers of a run. `runtime` implements this.
pub trait Metrics: Send + Sync {
    /// The text of a scrape. Does not wait for the reconciler.
    fn text(&self) -> String;
}

/// Starts the server's threads.
///
/// # Errors
/// The address cannot be used, or the system cannot start a thread.
pub fn serve(
    address: ListenAddr,
    core: Arc<dyn RunHandle>,
    metrics: Arc<dyn Metrics>,
) -> io::Result<Server> {
    let listener = listen(address)?;
    let is_loopback = listener.local_addr()?.ip().is_loopback();
    let limits = Limits {
        connections_max: CONNECTIONS_MAX,
        spare_max: SPARE_MAX,
        header_bytes_max: HEADER_BYTES_MAX,
        body_bytes_max: 0,
        ..Limits::default()
    };
    let door = Door { token: None, read_token: None, is_loopback, files: &[] };
    let handler = Arc::new(MetricsHandler { core, metrics, door });
    Server::start(Listen::Tcp(listener), limits, "metrics", handler)
}

struct MetricsHandler {
    core: Arc<dyn RunHandle>,
    metrics: Arc<dyn Metrics>,
    door: Door,
}

impl Handler for MetricsHandler {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        self.door.refuse(request)
    }

    fn is_probe(&self, request: &Request) -> bool {
        matches!(request.path.as_str(), "/healthz" | "/readyz")
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        let text = ("content-type", "text/plain; charset=utf-8");
        let health = |good: bool| if good { (200, "ok\n") } else { (503, "not now\n") };
        let is_read = matches!(request.method.as_str(), "GET" | "HEAD");
        let (status, body) = match request.path.as_str() {
            "/healthz" | "/metrics" | "/readyz" if !is_read => {
                return responder.send(
                    405,
                    &[text, ("allow", "GET, HEAD")],
                    b"only GET and HEAD\n",
                );
            }
            "/metrics" => {
                let body = self.metrics.text();
                return responder.send(200, &[("content-type", CONTENT_TYPE)], body.as_bytes());
            }
            "/healthz" => health(self.core.is_alive()),
            "/readyz" => health(self.core.is_ready()),
            _ => (404, "there are only /metrics, /healthz and /readyz\n"),
        };
        responder.send(status, &[text], body.as_bytes())
    }
}

/// Concurrent scrapes: usually one of Prometheus, or two of a pair.
const CONNECTIONS_MAX: usize = 16;

/// More connections for probes.
const SPARE_MAX: usize = 8;

/// Request line and headers, in bytes.
const HEADER_BYTES_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::Busy;
    use posse_core::model::act::Caller;
    use posse_core::model::command::{Command, Reply};

    #[derive(Default)]
    struct Run {
        is_ready: AtomicBool,
    }

    impl RunHandle for Run {
        fn ask(&self, _: Command, _: Option<Caller>) -> Result<Reply, Busy> {
            Err(Busy::Stopping)
        }

        fn is_alive(&self) -> bool {
            true
        }

        fn is_ready(&self) -> bool {
            self.is_ready.load(Ordering::Relaxed)
        }
    }

    impl Metrics for Run {
        fn text(&self) -> String {
            "a 1\n".to_owned()
        }
    }

    fn server() -> (Arc<Run>, Server, SocketAddr) {
        server_at("127.0.0.1:0")
    }

    fn server_at(address: &str) -> (Arc<Run>, Server, SocketAddr) {
        let run = Arc::new(Run::default());
        let address = ListenAddr::parse(address).unwrap();
        let (core, metrics) = (Arc::clone(&run) as Arc<dyn RunHandle>, Arc::clone(&run) as _);
        let server = serve(address, core, metrics).unwrap();
        let at = server.local_addr().unwrap();
        (run, server, at)
    }

    /// Head and body of the answer.
    fn ask(at: SocketAddr, request: &str, headers: &str) -> (String, String) {
        ask_host(at, "localhost", request, headers)
    }

    fn ask_host(at: SocketAddr, host: &str, request: &str, headers: &str) -> (String, String) {
        let mut stream = TcpStream::connect(at).unwrap();
        write!(stream, "{request} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{headers}\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.to_ascii_lowercase(), body.to_owned())
    }

    #[test]
    fn a_scrape_needs_no_token() {
        let (_, server, at) = server();
        let (head, body) = ask(at, "GET /metrics", "");
        assert!(head.starts_with("http/1.1 200") && head.contains("version=0.0.4"), "{head}");
        assert_eq!(body, "a 1\n");
        let (head, body) = ask(at, "HEAD /metrics", "");
        assert!(head.contains("content-length: 4") && body.is_empty(), "{head}\n{body}");
        server.stop();
    }

    #[test]
    fn the_metrics_port_serves_nothing_else() {
        let (_, server, at) = server();
        for (request, headers, status) in [
            ("GET /", "", 404),
            ("GET /v1/status", "", 404),
            ("GET /metrics/", "", 404),
            ("GET /openapi.json", "", 404),
            ("POST /v1/executors/kill", "", 404),
            ("POST /metrics", "", 405),
            ("DELETE /healthz", "", 405),
            ("GET /metrics", "content-length: 5\r\n", 413),
            ("GET /metrics", "origin: http://example.com\r\n", 403),
            ("GET /metrics", "sec-fetch-site: cross-site\r\n", 403),
        ] {
            let (head, _) = ask(at, request, headers);
            assert!(head.starts_with(&format!("http/1.1 {status}")), "{request}: {head}");
        }
        server.stop();
    }

    #[test]
    fn other_names_are_refused_on_loopback_only() {
        let status = |at, host| ask_host(at, host, "GET /metrics", "").0;
        let (_, server, at) = server();
        for (host, want) in [
            ("evil.example:19760", 403),
            ("pod.example", 403),
            ("127.0.0.1:1", 200),
            ("[::1]", 200),
        ] {
            assert!(status(at, host).starts_with(&format!("http/1.1 {want}")), "{host}");
        }
        server.stop();
        let (_, server, at) = server_at("0.0.0.0:0");
        let at = SocketAddr::from(([127, 0, 0, 1], at.port()));
        assert!(status(at, "pod.example").starts_with("http/1.1 200"));
        server.stop();
    }

    #[test]
    fn probes_are_answered_beside_clients_that_hold_all_slots() {
        let (run, server, at) = server();
        let stalled: Vec<TcpStream> =
            (0..CONNECTIONS_MAX).map(|_| TcpStream::connect(at).unwrap()).collect();
        assert!(ask(at, "GET /healthz", "").0.starts_with("http/1.1 200"));
        assert!(ask(at, "GET /readyz", "").0.starts_with("http/1.1 503"));
        run.is_ready.store(true, Ordering::Relaxed);
        assert!(ask(at, "GET /readyz", "").0.starts_with("http/1.1 200"));
        drop(stalled);
        server.stop();
    }
}
