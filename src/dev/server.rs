//! Owns the API server's sockets: requests to the verbs, answers and watches back. Decides nothing
//! but the faults that lie in the transport.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::dev::api::{Answer, Api};
use crate::dev::edge;
use crate::dev::refused::go_quoted;
use crate::serve::{Handler, Limits, Listen, Request, Responder, Server};

/// Watches hold a connection each; 32 writers and a few watches for a dozen of clients.
const CONNECTIONS_MAX: usize = 512;
/// The real server's limit for a request's body.
const BODY_BYTES_MAX: usize = 3 << 20;

struct Endpoint {
    api: Arc<Api>,
    address: String,
}

impl Handler for Endpoint {
    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        if !self.api.faults.latency.is_zero() {
            // The fault that was asked for: the answer comes so much later.
            thread::sleep(self.api.faults.latency);
        }
        log::debug!("{} {}", request.method, request.path);
        match self.api.answer(&request, &self.address) {
            Answer::Watch(watch) => watch.serve(&self.api, responder),
            Answer::Whole { code, content_type, body, retry_after } => {
                let seconds = retry_after.map(|seconds| seconds.to_string());
                let mut headers = vec![("content-type", content_type)];
                if let Some(seconds) = &seconds {
                    headers.push(("retry-after", seconds));
                }
                let warnings: Vec<String> = edge::warnings(&request)
                    .into_iter()
                    .map(|text| format!("299 - {}", go_quoted(&text)))
                    .collect();
                headers.extend(warnings.iter().map(|text| ("warning", text.as_str())));
                responder.send(code, &headers, &body)
            }
        }
    }
}

/// Serves the API on a bound listener.
pub(crate) fn start(listener: TcpListener, api: Arc<Api>) -> io::Result<(Server, SocketAddr)> {
    let address = listener.local_addr()?;
    let limits = Limits {
        connections_max: CONNECTIONS_MAX,
        body_bytes_max: BODY_BYTES_MAX,
        write_timeout: Duration::from_secs(30),
        idle_timeout: Duration::from_secs(90),
        ..Limits::default()
    };
    let endpoint = Endpoint { api, address: address.to_string() };
    let server = Server::start(Listen::Tcp(listener), limits, "dev-api", Arc::new(endpoint))?;
    Ok((server, address))
}
