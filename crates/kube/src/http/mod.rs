//! HTTP requests and streams to the API server, with renewal of credentials and certificates.
//! Knows nothing of Kubernetes objects.

mod agent;
mod connector;
mod counts;
mod interrupt;
mod socket;
mod stream;
mod tls;
pub mod transfer;
pub mod websocket;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use ureq::http;
use ureq::http::header::{
    ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue,
};
use ureq::{Agent, AsSendBody, Body};

use self::agent::unary_agent;
use self::connector::{ErrorClass, classify, describe_error, tls_remedy};
use self::counts::SharedCounts;
use self::stream::{is_json, retry_after};
use self::tls::TlsMaterial;
use crate::auth::{Authenticator, Credentials};
use crate::config::pem::CertPair;
use crate::config::token_claims::subject;
use crate::config::{AuthSource, Cluster, ConfigError, Trust};
use posse_base::sync::lock;

pub use self::counts::RequestCounts;
pub use self::stream::{STREAM_HEAD_TIMEOUT, Stream, StreamHandle};

/// How often the certificate files are read again.
const CERT_FILES_AGE_MAX: Duration = Duration::from_secs(60);

/// How much of an unused body is read so that its connection can be reused, in bytes.
const DISCARD_BYTES_MAX: u64 = 64 << 10;

/// Room for a body of unknown length: API servers send most objects in chunks. A pod usually fits.
const BODY_BYTES_USUAL: u64 = 8 << 10;

/// An HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The only method that is repeated after a lost connection.
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Method {
    /// The method's name in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    fn as_http(self) -> http::Method {
        match self {
            Self::Get => http::Method::GET,
            Self::Post => http::Method::POST,
            Self::Put => http::Method::PUT,
            Self::Patch => http::Method::PATCH,
            Self::Delete => http::Method::DELETE,
        }
    }
}

/// A request with its limits.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub method: Method,
    /// Path and query, starting with `/api` or the like. The path of the server's URL is put in
    /// front of it.
    pub path: String,
    /// Unused if there is no body.
    pub content_type: &'static str,
    pub body: Option<&'a [u8]>,
    /// For everything, including retries and the answer's body, but without the run of a credential
    /// plugin (see `Http::with_plugin_in_timeout`).
    pub timeout: Duration,
    /// The largest body of an answer that is accepted, in bytes.
    pub body_bytes_max: u64,
}

/// A complete answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status, of success or error.
    pub status: u16,
    /// The `Retry-After` header.
    pub retry_after: Option<Duration>,
    /// Whether the content type is JSON.
    pub json: bool,
    /// The `Date` header.
    pub date: Option<String>,
    pub body: Vec<u8>,
}

impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("retry_after", &self.retry_after)
            .field("json", &self.json)
            .field("date", &self.date)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// There are no credentials. Nothing was sent.
    Credentials(String),
    /// The request did not reach the server, so it is safe to send it again.
    NotSent(String),
    /// As `NotSent`, because the TLS handshake failed.
    Tls { problem: String, remedy: &'static str },
    /// The server may have executed the request.
    Unknown(String),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(problem) | Self::NotSent(problem) | Self::Unknown(problem) => {
                f.write_str(problem)
            }
            Self::Tls { problem, remedy } => write!(f, "{problem}; {remedy}"),
        }
    }
}

impl std::error::Error for TransportError {}

pub(super) const JSON: &str = "application/json";

/// A client of one API server. Clones share connections, credentials and streams.
#[derive(Clone, Debug)]
pub struct Http {
    shared: Arc<Shared>,
    streams: StreamHandle,
    /// The wait for a credential plugin is part of a request's timeout.
    limits_plugin: bool,
    writes: Option<WriteLimit>,
    /// The encodings that it accepts: the header `Accept`.
    accept: &'static str,
}

/// How long writes may still be sent and take effect.
#[derive(Clone)]
pub struct WriteLimit(pub Arc<dyn Fn() -> Duration + Send + Sync>);

impl fmt::Debug for WriteLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WriteLimit").field(&(self.0)()).finish()
    }
}

#[derive(Debug)]
struct Shared {
    cluster: Cluster,
    /// The server's URL; every request's path is appended to it.
    base: String,
    auth: Authenticator,
    state: Mutex<AgentState>,
    counts: SharedCounts,
}

/// The agent for single requests, and the TLS configuration that it uses now.
#[derive(Debug)]
struct AgentState {
    unary: Agent,
    tls_config: Option<Arc<ClientConfig>>,
    material: TlsMaterial,
    /// The client certificate in `material`, if a credential plugin issued it.
    plugin_cert: Option<Arc<CertPair>>,
    /// Increases with every change of `material`.
    generation: u64,
    files_read_at: Instant,
}

/// The part of `AgentState` that one request uses.
#[derive(Debug)]
struct AgentSnapshot {
    unary: Agent,
    tls_config: Option<Arc<ClientConfig>>,
    generation: u64,
}

/// What stays the same in all attempts of a request.
struct RequestParts<'a> {
    method: Method,
    path: &'a str,
    accept: &'static str,
    content_type: &'static str,
    body: Option<&'a [u8]>,
    limit: TimeLimit,
    /// The longest wait for a credential plugin; none: its own timeout.
    plugin_until: Option<Instant>,
}

/// How long a request may take.
#[derive(Clone, Copy)]
enum TimeLimit {
    /// The whole request ends at this time.
    Deadline(Instant),
    /// The request ends if the answer's head does not arrive for so long, or then no byte of its body.
    Idle { head: Duration, body: Duration },
}

/// The retries that were made. There is at most one retry for each cause.
#[derive(Default)]
struct Retries {
    disconnected: bool,
    unauthorized: bool,
    tls: bool,
}

impl Http {
    /// A client for this cluster. Reads the certificate files, sends nothing and runs no plugin.
    ///
    /// # Errors
    /// A certificate or key cannot be used.
    pub fn connect(mut cluster: Cluster) -> Result<Self, ConfigError> {
        let material = TlsMaterial::read(&cluster, None)?;
        let tls_config =
            if cluster.server.tls { Some(material.tls_config(&cluster)?) } else { None };
        // Credentials are never sent without TLS.
        let authorization = std::mem::take(&mut cluster.identity.authorization);
        let authorization = if cluster.server.tls { authorization } else { AuthSource::Absent };
        let state = AgentState {
            unary: unary_agent(&cluster, tls_config.clone()),
            tls_config,
            material,
            plugin_cert: None,
            generation: 0,
            files_read_at: Instant::now(),
        };
        let origin = cluster.server.origin();
        let shared = Shared {
            base: format!("{origin}{}", cluster.server.prefix),
            cluster,
            auth: Authenticator::new(authorization),
            state: Mutex::new(state),
            counts: SharedCounts::default(),
        };
        let shared = Arc::new(shared);
        Ok(Self {
            shared,
            streams: StreamHandle::default(),
            limits_plugin: false,
            writes: None,
            accept: JSON,
        })
    }

    /// The same client, whose requests never wait longer than their timeout for a credential plugin.
    /// They use the present credentials while the plugin runs.
    #[must_use]
    pub fn with_plugin_in_timeout(&self) -> Self {
        Self { limits_plugin: true, ..self.clone() }
    }

    /// The same client, whose writes have a latest time, if there is one: none is sent after it, and none
    /// waits for its answer beyond it.
    #[must_use]
    pub fn with_write_limit(&self, writes: Option<WriteLimit>) -> Self {
        Self { writes, ..self.clone() }
    }

    /// The same client, which accepts other encodings than JSON.
    #[must_use]
    pub fn with_accept(&self, accept: &'static str) -> Self {
        Self { accept, ..self.clone() }
    }

    /// The server's URL, as the configuration gives it.
    pub fn server(&self) -> &str {
        &self.shared.base
    }

    /// What this client and its clones have sent so far.
    pub fn request_counts(&self) -> RequestCounts {
        self.shared.counts.read()
    }

    /// The `sub` claim of our token; `None` without a token or if the token is not a JWT.
    pub fn token_subject(&self) -> Option<String> {
        let authorization = self.shared.credentials(None).ok()?.authorization?;
        subject(authorization.to_str().ok()?.strip_prefix("Bearer ")?)
    }

    /// The local address that the routing table selects for the API server. No packet is sent.
    ///
    /// # Errors
    /// The server's name has no address, or there is no route to the server.
    pub fn local_address(&self) -> io::Result<IpAddr> {
        let server = &self.shared.cluster.server;
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the server's name has no address");
        for address in (server.host.as_str(), server.port).to_socket_addrs()? {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            match UdpSocket::bind(any).and_then(|socket| {
                socket.connect(address)?;
                socket.local_addr()
            }) {
                Ok(ours) => return Ok(ours.ip()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Sends a request and reads the whole answer, of any status. After a 401 it renews the
    /// credentials and sends the request once more; a GET is repeated once if the connection was
    /// lost.
    ///
    /// # Errors
    /// There is no complete answer. The error says whether the server may have seen the request.
    pub fn call(&self, request: &Request<'_>) -> Result<Response, TransportError> {
        // This may wait for a credential plugin, which has its own timeout.
        let plugin_until = self.limits_plugin.then(|| Instant::now() + request.timeout);
        self.shared.credentials(plugin_until)?;
        let deadline = self.deadline(request)?;
        let parts = RequestParts {
            method: request.method,
            path: &request.path,
            accept: self.accept,
            content_type: request.content_type,
            body: request.body,
            limit: TimeLimit::Deadline(plugin_until.map_or(deadline, |at| at.min(deadline))),
            plugin_until,
        };
        let response =
            self.shared.send_with_retries(&parts, &|snapshot| Ok(snapshot.unary.clone()))?;
        let (head, body) = response.into_parts();
        Ok(Response {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            json: is_json(&head.headers),
            date: date(&head.headers),
            body: self.shared.read_whole(body, request.body_bytes_max)?,
        })
    }

    fn deadline(&self, request: &Request<'_>) -> Result<Instant, TransportError> {
        let now = Instant::now();
        let Some(WriteLimit(left)) = self.writes.as_ref().filter(|_| request.method != Method::Get)
        else {
            return Ok(now + request.timeout);
        };
        match left() {
            Duration::ZERO => {
                let problem = "not sent: the lease was not renewed in time".to_owned();
                Err(TransportError::NotSent(problem))
            }
            left => Ok(now + request.timeout.min(left)),
        }
    }

    /// Sends a GET whose body is read while it arrives. It fails if the answer does not begin within
    /// `head_timeout`. The stream ends if no byte arrives for `idle_timeout`, or if the handle of
    /// `with_own_streams` is used.
    ///
    /// # Errors
    /// As `call`.
    pub fn open_stream(
        &self,
        path: &str,
        head_timeout: Duration,
        idle_timeout: Duration,
    ) -> Result<Stream, TransportError> {
        let parts = RequestParts {
            method: Method::Get,
            path,
            accept: self.accept,
            content_type: "",
            body: None,
            limit: TimeLimit::Idle { head: head_timeout, body: idle_timeout },
            plugin_until: None,
        };
        let agent = |snapshot: &AgentSnapshot| {
            self.streams
                .agent(&self.shared.cluster, snapshot.tls_config.as_ref(), snapshot.generation)
                .ok_or_else(|| TransportError::NotSent("the streams were shut down".to_owned()))
        };
        Ok(Stream::new(self.shared.send_with_retries(&parts, &agent)?, idle_timeout))
    }

    /// The same client with separate streams, and a handle that ends them from any thread.
    #[must_use]
    pub fn with_own_streams(&self) -> (Self, StreamHandle) {
        let streams = StreamHandle::default();
        (Self { streams: streams.clone(), ..self.clone() }, streams)
    }
}

impl Shared {
    /// Sends a request, and again for each cause in `Retries`. The body of the answer is not read
    /// yet.
    fn send_with_retries(
        &self,
        parts: &RequestParts<'_>,
        agent: &dyn Fn(&AgentSnapshot) -> Result<Agent, TransportError>,
    ) -> Result<http::Response<Body>, TransportError> {
        let mut retries = Retries::default();
        loop {
            let credentials = self.credentials(parts.plugin_until)?;
            let snapshot = self.snapshot(&credentials);
            let error = match self.send(&agent(&snapshot)?, &credentials, parts) {
                Ok(response) => {
                    if response.status() == http::StatusCode::UNAUTHORIZED
                        && !retries.unauthorized
                        && self.renew_credentials(&credentials, &snapshot, parts.plugin_until)
                    {
                        retries.unauthorized = true;
                        discard(response);
                        continue;
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            let (error, class) = self.transport_error(&error);
            if class.tls && class.not_sent && !retries.tls && self.reload(snapshot.generation) {
                retries.tls = true;
            } else if class.disconnected && parts.method == Method::Get && !retries.disconnected {
                // The server probably closed an idle connection while we sent the request.
                retries.disconnected = true;
            } else {
                return Err(error);
            }
        }
    }

    fn credentials(&self, plugin_until: Option<Instant>) -> Result<Credentials, TransportError> {
        self.auth.credentials(Instant::now(), plugin_until).map_err(TransportError::Credentials)
    }

    fn send(
        &self,
        agent: &Agent,
        credentials: &Credentials,
        parts: &RequestParts<'_>,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let mut builder = http::Request::builder()
            .method(parts.method.as_http())
            .uri(format!("{}{}", self.base, parts.path));
        for (name, value) in self.identity_headers(credentials) {
            builder = builder.header(name, value);
        }
        if parts.body.is_some() {
            builder = builder.header(CONTENT_TYPE, parts.content_type);
        }
        // API servers compress large lists only. On a fast network, decompression takes as long as
        // it saves in transfer.
        builder = builder.header(ACCEPT_ENCODING, "identity").header(ACCEPT, parts.accept);
        let sent_at = Instant::now();
        let answer = match parts.body {
            Some(body) => run(agent, builder.body(body), parts.limit),
            None => run(agent, builder.body(()), parts.limit),
        };
        let status = answer.as_ref().ok().map(|answer| answer.status().as_u16());
        self.counts.add(parts.method.as_str(), status, sent_at.elapsed());
        answer
    }

    /// The headers that say who sends a request. Without TLS they are never sent.
    fn identity_headers<'a>(
        &'a self,
        credentials: &'a Credentials,
    ) -> impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)> {
        let authorization = credentials.authorization.iter().map(|value| (&AUTHORIZATION, value));
        let impersonate = &self.cluster.identity.impersonate;
        let impersonate = impersonate.iter().map(|(name, value)| (name, value));
        authorization.chain(impersonate.filter(|_| self.cluster.server.tls))
    }

    /// Reads a body to its end, at most `bytes_max`.
    fn read_whole(&self, body: Body, bytes_max: u64) -> Result<Vec<u8>, TransportError> {
        let expected = body.content_length().unwrap_or(BODY_BYTES_USUAL).min(bytes_max);
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        let mut reader = body.into_reader().take(bytes_max.saturating_add(1));
        reader.read_to_end(&mut bytes).map_err(|e| self.transport_error(&e.into()).0)?;
        if bytes.len() as u64 > bytes_max {
            let problem = format!("{}: the answer is larger than {bytes_max} bytes", self.base);
            return Err(TransportError::Unknown(problem));
        }
        Ok(bytes)
    }

    /// The agent and TLS settings for the next request. Reads the certificate files again if the last
    /// time is too long ago.
    fn snapshot(&self, credentials: &Credentials) -> AgentSnapshot {
        let mut state = lock(&self.state);
        let is_plugin_cert_new = match (&state.plugin_cert, &credentials.client_cert) {
            (Some(ours), Some(theirs)) => !Arc::ptr_eq(ours, theirs),
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
        };
        if is_plugin_cert_new || state.files_read_at.elapsed() >= CERT_FILES_AGE_MAX {
            state.plugin_cert.clone_from(&credentials.client_cert);
            self.refresh(&mut state);
        }
        AgentSnapshot {
            unary: state.unary.clone(),
            tls_config: state.tls_config.clone(),
            generation: state.generation,
        }
    }

    /// Renews the credentials after a 401. True if there are other credentials or another client
    /// certificate to try.
    fn renew_credentials(
        &self,
        credentials: &Credentials,
        snapshot: &AgentSnapshot,
        plugin_until: Option<Instant>,
    ) -> bool {
        let by_header = self.auth.renew_after_401(credentials, Instant::now(), plugin_until);
        let by_certificate =
            self.cluster.identity.client_cert.is_some() && self.reload(snapshot.generation);
        by_header || by_certificate
    }

    /// Reads the certificate files now. True if they have changed since `generation`.
    fn reload(&self, generation: u64) -> bool {
        let mut state = lock(&self.state);
        if state.generation == generation {
            self.refresh(&mut state);
        }
        state.generation != generation
    }

    fn refresh(&self, state: &mut AgentState) {
        state.files_read_at = Instant::now();
        if !self.cluster.server.tls {
            return;
        }
        let read = TlsMaterial::read(&self.cluster, state.plugin_cert.as_deref());
        let material = match read {
            Ok(material) if material == state.material => return,
            Ok(material) => material,
            Err(e) => {
                return log::warn!(
                    "the new certificates cannot be used, the old ones stay in use: {e}"
                );
            }
        };
        match material.tls_config(&self.cluster) {
            // The idle connections of the old agent are closed; requests in progress finish.
            Ok(tls_config) => {
                state.unary = unary_agent(&self.cluster, Some(Arc::clone(&tls_config)));
                state.tls_config = Some(tls_config);
                state.material = material;
                state.generation += 1;
                log::info!("the certificates have changed: new connections use them");
            }
            Err(e) => {
                log::warn!("the new certificates cannot be used, the old ones stay in use: {e}")
            }
        }
    }

    /// The error for the caller, with the server's URL in the message.
    fn transport_error(&self, error: &ureq::Error) -> (TransportError, ErrorClass) {
        let class = classify(error);
        let mut problem = describe_error(error, &self.cluster);
        if class.tls
            && let Trust::Roots(blob) = &self.cluster.trust
        {
            problem = format!("{problem} (trusted authorities: {})", blob.location());
        }
        let error = match (class.not_sent, class.tls) {
            (true, true) => TransportError::Tls { problem, remedy: tls_remedy(error) },
            (true, false) => TransportError::NotSent(problem),
            (false, _) => TransportError::Unknown(problem),
        };
        (error, class)
    }
}

fn run<B: AsSendBody>(
    agent: &Agent,
    request: Result<http::Request<B>, http::Error>,
    limit: TimeLimit,
) -> Result<http::Response<Body>, ureq::Error> {
    let config = agent.configure_request(request?);
    let config = match limit {
        TimeLimit::Deadline(at) => {
            config.timeout_global(Some(at.saturating_duration_since(Instant::now())))
        }
        TimeLimit::Idle { head, body } => {
            config.timeout_per_read(Some(body)).timeout_recv_response(Some(head))
        }
    };
    agent.run(config.build())
}

/// Reads the rest of an answer, so that its connection can be reused.
fn discard(response: http::Response<Body>) {
    let mut rest = response.into_body().into_reader().take(DISCARD_BYTES_MAX);
    // If this fails, the connection is closed and the next request opens another one.
    let _ = io::copy(&mut rest, &mut io::sink());
}

fn date(headers: &HeaderMap) -> Option<String> {
    headers.get(DATE)?.to_str().ok().map(str::to_owned)
}
