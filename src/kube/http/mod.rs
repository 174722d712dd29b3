//! Owns the transport: one request and its answer, one stream, and what becomes of both when the
//! connection, the credentials or the certificates change. Knows no Kubernetes object.

mod agent;
mod connector;
mod stream;
mod tls;
pub mod transfer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::ClientConfig;
use ureq::http;
use ureq::http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap};
use ureq::{Agent, AsSendBody, Body};

use self::agent::unary_agent;
use self::connector::{Verdict, judge, words};
use self::stream::{STREAM_HEAD_TIMEOUT, is_json, opened, retry_after};
use self::tls::Material;
use crate::kube::auth::{Auth, Grant};
use crate::kube::config::pem::CertPair;
use crate::kube::config::token_claims::subject;
use crate::kube::config::{Bearer, Cluster, ConfigError, Trust};

pub use self::stream::{Stream, StreamHandle};

/// How often the files of the certificates are looked at.
const MATERIAL_AGE_MAX: Duration = Duration::from_secs(60);

/// How much of a refused answer is read so that its connection can be used again, in bytes.
const DISCARD_BYTES_MAX: u64 = 64 << 10;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Reads; may be sent twice.
    Get,
    /// Creates.
    Post,
    /// Replaces.
    Put,
    /// Changes.
    Patch,
    /// Deletes.
    Delete,
}

impl Method {
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

/// One request, and what it may cost.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// What it does.
    pub method: Method,
    /// Path and query, from `/api` on; the server's own prefix is put before it.
    pub path: String,
    /// Of the body; unused without one.
    pub content_type: &'static str,
    /// What is sent.
    pub body: Option<&'a [u8]>,
    /// For all of it, repetitions and the answer's body included, but not a credential plugin.
    pub timeout: Duration,
    /// The largest answer that is taken.
    pub body_bytes_max: u64,
}

/// A whole answer.
#[derive(Clone, PartialEq, Eq)]
pub struct Response {
    /// The HTTP status, whatever it is.
    pub status: u16,
    /// What the server asks to wait.
    pub retry_after: Option<Duration>,
    /// Whether the body says to be JSON.
    pub json: bool,
    /// The server's clock, as it writes it; none where it says nothing.
    pub date: Option<String>,
    /// All of it.
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

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransportError {
    /// No credentials could be had; nothing was sent.
    Credentials(String),
    /// The request never reached the server: it is safe to send it again.
    NotSent(String),
    /// As `NotSent`: there was no agreement on TLS, or no trust.
    Tls(String),
    /// The server may have done it.
    Unknown(String),
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Credentials(problem)
            | Self::NotSent(problem)
            | Self::Tls(problem)
            | Self::Unknown(problem) => f.write_str(problem),
        }
    }
}

impl std::error::Error for TransportError {}

/// A client of one API server. Clones share connections, credentials and streams.
#[derive(Clone, Debug)]
pub struct Http {
    shared: Arc<Shared>,
    streams: StreamHandle,
}

#[derive(Debug)]
struct Shared {
    cluster: Cluster,
    /// What every request's path is appended to.
    base: String,
    auth: Auth,
    link: Mutex<Link>,
}

/// What connections are made with at the moment.
#[derive(Debug)]
struct Link {
    unary: Agent,
    settings: Option<Arc<ClientConfig>>,
    material: Material,
    /// The plugin's certificate that the material holds.
    given: Option<Arc<CertPair>>,
    /// Counts the changes of the material.
    generation: u64,
    checked_at: Instant,
}

/// A copy of `Link` that one request works with.
#[derive(Debug)]
struct Linked {
    unary: Agent,
    settings: Option<Arc<ClientConfig>>,
    generation: u64,
}

/// What is the same in all repetitions of a request.
struct Outgoing<'a> {
    method: Method,
    path: &'a str,
    content_type: &'static str,
    body: Option<&'a [u8]>,
    limit: Limit,
}

/// How long a request may take.
#[derive(Clone, Copy)]
enum Limit {
    /// Until then, all of it.
    Deadline(Instant),
    /// For ever, but never so long without a byte; nothing is compressed, so that each byte counts.
    Idle(Duration),
}

/// The causes for which a request is sent a second time, each at most once.
#[derive(Default)]
struct Repeats {
    cut: bool,
    refused: bool,
    tls: bool,
}

impl Http {
    /// A client for this cluster. Files are read, no request is made and no plugin is run.
    ///
    /// # Errors
    /// When a certificate or key cannot be used.
    pub fn connect(mut cluster: Cluster) -> Result<Self, ConfigError> {
        let material = Material::read(&cluster, None)?;
        let settings = if cluster.server.tls { Some(material.settings(&cluster)?) } else { None };
        // Credentials go over TLS only.
        let bearer = std::mem::take(&mut cluster.identity.bearer);
        let bearer = if cluster.server.tls { bearer } else { Bearer::Absent };
        let link = Link {
            unary: unary_agent(&cluster, settings.clone()),
            settings,
            material,
            given: None,
            generation: 0,
            checked_at: Instant::now(),
        };
        let origin = cluster.server.origin();
        let shared = Shared {
            base: format!("{origin}{}", cluster.server.prefix),
            cluster,
            auth: Auth::new(bearer),
            link: Mutex::new(link),
        };
        Ok(Self { shared: Arc::new(shared), streams: StreamHandle::default() })
    }

    /// The server's URL, as the configuration gives it.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.shared.base
    }

    /// Whom our token is about, by its own claims; none where there is no token, or an opaque one.
    #[must_use]
    pub fn token_subject(&self) -> Option<String> {
        let authorization = self.shared.grant().ok()?.authorization?;
        subject(authorization.to_str().ok()?.strip_prefix("Bearer ")?)
    }

    /// Our address as the API server sees it, told by the routing table alone: no packet is sent.
    ///
    /// # Errors
    /// When the server's name has no address or no route leads to it.
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

    /// Sends a request and reads all of the answer, whatever its status. A 401 has the credentials
    /// renewed and the request sent once more; a GET is repeated once when the connection was cut.
    ///
    /// # Errors
    /// When there is no whole answer; the error says whether the server can have seen the request.
    pub fn call(&self, request: &Request<'_>) -> Result<Response, TransportError> {
        // A plugin may have to run, which has a time of its own.
        self.shared.grant()?;
        let outgoing = Outgoing {
            method: request.method,
            path: &request.path,
            content_type: request.content_type,
            body: request.body,
            limit: Limit::Deadline(Instant::now() + request.timeout),
        };
        let response = self.shared.exchange(&outgoing, &|link| Ok(link.unary.clone()))?;
        let (head, body) = response.into_parts();
        Ok(Response {
            status: head.status.as_u16(),
            retry_after: retry_after(&head.headers),
            json: is_json(&head.headers),
            date: date(&head.headers),
            body: self.shared.read_whole(body, request.body_bytes_max)?,
        })
    }

    /// Opens a GET whose answer goes on for as long as the server likes, and ends when no byte came
    /// for `idle_timeout`, or by the `interrupter`.
    ///
    /// # Errors
    /// As `call`.
    pub fn open_stream(
        &self,
        path: &str,
        idle_timeout: Duration,
    ) -> Result<Stream, TransportError> {
        let outgoing = Outgoing {
            method: Method::Get,
            path,
            content_type: "",
            body: None,
            limit: Limit::Idle(idle_timeout),
        };
        let agent = |linked: &Linked| {
            self.streams
                .agent(&self.shared.cluster, linked.settings.as_ref(), linked.generation)
                .ok_or_else(|| TransportError::NotSent("the streams were shut down".to_owned()))
        };
        Ok(opened(self.shared.exchange(&outgoing, &agent)?, idle_timeout))
    }

    /// Ends the streams of this client and its clones, from any thread.
    #[must_use]
    pub fn interrupter(&self) -> StreamHandle {
        self.streams.clone()
    }

    /// The same client with streams of its own, which the interrupter of the others does not end.
    #[must_use]
    pub fn with_own_streams(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), streams: StreamHandle::default() }
    }
}

impl Shared {
    /// Sends until there is an answer or no cause left to repeat; the body is not read yet.
    fn exchange(
        &self,
        outgoing: &Outgoing<'_>,
        agent: &dyn Fn(&Linked) -> Result<Agent, TransportError>,
    ) -> Result<http::Response<Body>, TransportError> {
        let mut repeats = Repeats::default();
        loop {
            let grant = self.grant()?;
            let linked = self.linked(&grant);
            let error = match self.send(&agent(&linked)?, &grant, outgoing) {
                Ok(response) => {
                    let refused = response.status() == http::StatusCode::UNAUTHORIZED;
                    if refused && !repeats.refused && self.renewed(&grant, &linked) {
                        repeats.refused = true;
                        discard(response);
                        continue;
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            let (failure, verdict) = self.failed(&error);
            if verdict.tls && verdict.not_sent && !repeats.tls && self.reload(linked.generation) {
                repeats.tls = true;
            } else if verdict.cut && outgoing.method == Method::Get && !repeats.cut {
                // The server closed an idle connection at the moment we used it.
                repeats.cut = true;
            } else {
                return Err(failure);
            }
        }
    }

    fn grant(&self) -> Result<Grant, TransportError> {
        self.auth.grant(Instant::now()).map_err(TransportError::Credentials)
    }

    fn send(
        &self,
        agent: &Agent,
        grant: &Grant,
        outgoing: &Outgoing<'_>,
    ) -> Result<http::Response<Body>, ureq::Error> {
        let mut builder = http::Request::builder()
            .method(outgoing.method.as_http())
            .uri(format!("{}{}", self.base, outgoing.path));
        if let Some(authorization) = &grant.authorization {
            builder = builder.header(AUTHORIZATION, authorization);
        }
        if self.cluster.server.tls {
            for (name, value) in &self.cluster.identity.impersonate {
                builder = builder.header(name, value);
            }
        }
        if outgoing.body.is_some() {
            builder = builder.header(CONTENT_TYPE, outgoing.content_type);
        }
        // A server packs large lists alone, and those are read as fast as they are unpacked: the code
        // for it would cost more room than it ever saves.
        builder = builder.header(ACCEPT_ENCODING, "identity");
        match outgoing.body {
            Some(body) => run(agent, builder.body(body), outgoing.limit),
            None => run(agent, builder.body(()), outgoing.limit),
        }
    }

    /// Reads a body to its end. ureq's own limit counts what is on the wire, packed.
    fn read_whole(&self, body: Body, bytes_max: u64) -> Result<Vec<u8>, TransportError> {
        let expected = body.content_length().unwrap_or(0).min(bytes_max);
        let mut bytes = Vec::with_capacity(usize::try_from(expected).unwrap_or(0));
        let mut reader = body.into_reader().take(bytes_max.saturating_add(1));
        reader.read_to_end(&mut bytes).map_err(|e| self.failed(&e.into()).0)?;
        if bytes.len() as u64 > bytes_max {
            let problem = format!("{}: the answer is larger than {bytes_max} bytes", self.base);
            return Err(TransportError::Unknown(problem));
        }
        Ok(bytes)
    }

    /// What the next request works with; the files are looked at when it is time to.
    fn linked(&self, grant: &Grant) -> Linked {
        let mut link = self.lock();
        let given_anew = match (&link.given, &grant.client_cert) {
            (Some(ours), Some(theirs)) => !Arc::ptr_eq(ours, theirs),
            (None, None) => false,
            (Some(_), None) | (None, Some(_)) => true,
        };
        if given_anew || link.checked_at.elapsed() >= MATERIAL_AGE_MAX {
            link.given.clone_from(&grant.client_cert);
            self.refresh(&mut link);
        }
        Linked {
            unary: link.unary.clone(),
            settings: link.settings.clone(),
            generation: link.generation,
        }
    }

    /// A 401 came: true when there are other credentials or another certificate by now.
    fn renewed(&self, grant: &Grant, linked: &Linked) -> bool {
        let by_header = self.auth.refused(grant, Instant::now());
        let by_certificate =
            self.cluster.identity.client_cert.is_some() && self.reload(linked.generation);
        by_header || by_certificate
    }

    /// Reads the certificates' files now: true when they changed after `generation`.
    fn reload(&self, generation: u64) -> bool {
        let mut link = self.lock();
        if link.generation == generation {
            self.refresh(&mut link);
        }
        link.generation != generation
    }

    fn refresh(&self, link: &mut Link) {
        link.checked_at = Instant::now();
        if !self.cluster.server.tls {
            return;
        }
        let read = Material::read(&self.cluster, link.given.as_deref());
        let material = match read {
            Ok(material) if material == link.material => return,
            Ok(material) => material,
            Err(e) => return log::warn!("the certificates stay as they were: {e}"),
        };
        match material.settings(&self.cluster) {
            // The old agent's idle connections close with it; what is in flight ends by itself.
            Ok(settings) => {
                link.unary = unary_agent(&self.cluster, Some(Arc::clone(&settings)));
                link.settings = Some(settings);
                link.material = material;
                link.generation += 1;
                log::info!("the certificates changed: connecting anew");
            }
            Err(e) => log::warn!("the certificates stay as they were: {e}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sorts an error, and words it with the server it happened with.
    fn failed(&self, error: &ureq::Error) -> (TransportError, Verdict) {
        let verdict = judge(error);
        let mut problem = format!("{}: {}", self.base, words(error));
        if verdict.tls
            && let Trust::Roots(blob) = &self.cluster.trust
        {
            problem = format!("{problem} (authorities: {})", blob.place());
        }
        let failure = match (verdict.not_sent, verdict.tls) {
            (true, true) => TransportError::Tls(problem),
            (true, false) => TransportError::NotSent(problem),
            (false, _) => TransportError::Unknown(problem),
        };
        (failure, verdict)
    }
}

fn run<B: AsSendBody>(
    agent: &Agent,
    request: Result<http::Request<B>, http::Error>,
    limit: Limit,
) -> Result<http::Response<Body>, ureq::Error> {
    let config = agent.configure_request(request?);
    let config = match limit {
        Limit::Deadline(at) => {
            config.timeout_global(Some(at.saturating_duration_since(Instant::now())))
        }
        Limit::Idle(idle) => {
            config.timeout_per_read(Some(idle)).timeout_recv_response(Some(STREAM_HEAD_TIMEOUT))
        }
    };
    agent.run(config.build())
}

/// Takes what is left of an answer, so that its connection can be used again.
fn discard(response: http::Response<Body>) {
    let mut rest = response.into_body().into_reader().take(DISCARD_BYTES_MAX);
    // Where it cannot be read the connection is closed, which is as good.
    let _ = io::copy(&mut rest, &mut io::sink());
}

fn date(headers: &HeaderMap) -> Option<String> {
    headers.get(DATE)?.to_str().ok().map(str::to_owned)
}
