//! The client of posse's staging server: uploads and downloads that are too large for memory, with
//! the same rules for TLS and proxies as for the API server. Never retries: that is up to the caller.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use ureq::http::HeaderValue;
use ureq::http::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, RANGE,
};
use ureq::{Agent, SendBody, http};

use super::agent::stream_agent;
use super::connector::{classify, describe_error};
use super::stream::{STREAM_HEAD_TIMEOUT, Stream};
use super::tls::TlsMaterial;
use crate::config::{
    Blob, BlobSource, ClientIdentity, Cluster, ConfigError, Server, Sources, Trust, header_value,
    proxy,
};

/// A transfer ends if no byte arrives for this long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for `100 Continue` before the body is sent anyway (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Write buffer, in bytes.
const OUTPUT_BYTES: usize = 64 << 10;
/// How long the server may take to write an upload to its disk after the last byte.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// The server and how it is verified.
#[derive(Clone, Debug)]
pub struct Peer {
    pub url: String,
    pub authorities: Authorities,
    /// Allow plain HTTP to other hosts than this one.
    pub insecure: bool,
}

/// Which certificate authorities are trusted.
#[derive(Clone, Debug)]
pub enum Authorities {
    /// The certificates in this PEM file.
    File(PathBuf),
    /// These certificates, PEM.
    Given(String),
    /// The certificates in SSL_CERT_FILE, else those of the operating system.
    Public,
}

/// Why a request got no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferError {
    problem: String,
    /// A retry would not help, for example if the certificate is not trusted.
    pub is_permanent: bool,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for TransferError {}

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Transfer {
    agent: Agent,
    cluster: Cluster,
}

impl Transfer {
    /// Reads the certificates. Sends nothing.
    ///
    /// # Errors
    /// The URL is not valid, or no trusted authority is known.
    pub fn new(sources: &Sources<'_>, peer: &Peer) -> Result<Self, ConfigError> {
        let server = match peer.insecure {
            true => Server::parse_any(&peer.url),
            false => Server::parse(&peer.url),
        };
        let server = server.map_err(|problem| ConfigError::field("URL", problem))?;
        let blob = |source| Trust::Roots(Blob { field: "CA".to_owned(), source });
        let trust = match &peer.authorities {
            Authorities::File(path) => blob(BlobSource::File(path.clone())),
            Authorities::Given(pem) => blob(BlobSource::Inline(pem.clone().into_bytes())),
            Authorities::Public if server.tls => sources.public_roots("CA")?,
            Authorities::Public => Trust::Anything,
        };
        let cluster = Cluster {
            proxy: proxy::from_env(sources, &server)?,
            server,
            namespace: String::new(),
            home: None,
            origin: "a ticket".to_owned(),
            trust,
            tls_server_name: None,
            identity: ClientIdentity::default(),
        };
        let tls_config = match cluster.server.tls {
            true => Some(TlsMaterial::read(&cluster, None)?.tls_config(&cluster)?),
            false => None,
        };
        Ok(Self { agent: stream_agent(&cluster, tls_config, OUTPUT_BYTES), cluster })
    }

    /// Uploads `length` bytes of `body`. The body is sent only after the server accepted the headers
    /// (`Expect: 100-continue`). Returns the answer, of any status.
    ///
    /// # Errors
    /// There is no answer, or `body` has fewer bytes.
    pub fn post(
        &self,
        path: &str,
        bearer: &str,
        length: u64,
        body: &mut dyn Read,
    ) -> Result<Stream, TransferError> {
        let request = http::Request::post(format!("{}{path}", self.cluster.server))
            .header(AUTHORIZATION, authorization(bearer)?)
            .header(CONTENT_LENGTH, length)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(EXPECT, "100-continue")
            .body(SendBody::from_reader(body));
        self.run(request, SYNC_TIMEOUT)
    }

    /// Downloads `path` from byte `from` on. Returns the answer, of any status. If `from` is not 0
    /// and the status is not 206, the body does not start at `from`.
    pub fn get(&self, path: &str, bearer: &str, from: u64) -> Result<Stream, TransferError> {
        let mut request = http::Request::get(format!("{}{path}", self.cluster.server))
            .header(AUTHORIZATION, authorization(bearer)?)
            .header(ACCEPT_ENCODING, "identity");
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        self.run(request.body(SendBody::none()), STREAM_HEAD_TIMEOUT)
    }

    fn run(
        &self,
        request: http::Result<http::Request<SendBody<'_>>>,
        answer_timeout: Duration,
    ) -> Result<Stream, TransferError> {
        let invalid = |e: http::Error| TransferError { problem: e.to_string(), is_permanent: true };
        let request = self
            .agent
            .configure_request(request.map_err(invalid)?)
            .timeout_await_100(Some(CONTINUE_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .timeout_per_write(Some(IDLE_TIMEOUT))
            .timeout_recv_response(Some(answer_timeout))
            .build();
        let response = self.agent.run(request).map_err(|error| {
            let problem = describe_error(&error, &self.cluster);
            TransferError { problem, is_permanent: classify(&error).is_final }
        })?;
        Ok(Stream::new(response, IDLE_TIMEOUT))
    }
}

fn authorization(bearer: &str) -> Result<HeaderValue, TransferError> {
    header_value(&format!("Bearer {bearer}"))
        .map_err(|problem| TransferError { problem, is_permanent: true })
}
