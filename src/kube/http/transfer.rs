//! Owns the client's side of a server of ours that is not the API server: bodies too large for
//! memory, in and out, with the same rules for TLS and proxies. Repeats nothing: that is for those
//! who know whether it does harm.

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
use super::connector::{judge, words};
use super::stream::{STREAM_HEAD_TIMEOUT, Stream, opened};
use super::tls::Material;
use crate::kube::config::{
    Blob, BlobSource, Cluster, ConfigError, Identity, Server, Sources, Trust, header_value, proxy,
};

/// A transfer ends after so long without a byte.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the server may think before it asks for a body; then it gets it unasked.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// What is written at once.
const OUTPUT_BYTES: usize = 64 << 10;
/// After the last byte the server has it all written to its disk.
const SYNC_TIMEOUT: Duration = Duration::from_secs(300);

/// Which server, and what it takes to believe it.
#[derive(Clone, Debug)]
pub struct Peer {
    pub url: String,
    pub authorities: Authorities,
    /// Plain HTTP is good enough, and not only on this machine.
    pub insecure: bool,
}

/// Whose certificates are believed.
#[derive(Clone, Debug)]
pub enum Authorities {
    /// Those in this file, PEM.
    File(PathBuf),
    /// These, PEM.
    Given(String),
    /// SSL_CERT_FILE's, else the machine's.
    Public,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferError {
    problem: String,
    /// Asking again would not help: a certificate that nobody vouches for, say.
    pub is_lasting: bool,
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for TransferError {}

/// A client of one such server.
#[derive(Clone, Debug)]
pub struct Transfer {
    agent: Agent,
    base: String,
}

impl Transfer {
    /// A client. Files are read, nothing is sent.
    ///
    /// # Errors
    /// The URL will not do, or no authority can vouch for the server.
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
            pod: None,
            trust,
            tls_server_name: None,
            identity: Identity::default(),
        };
        let settings = match cluster.server.tls {
            true => Some(Material::read(&cluster, None)?.settings(&cluster)?),
            false => None,
        };
        let base = cluster.server.to_string();
        Ok(Self { agent: stream_agent(&cluster, settings, OUTPUT_BYTES), base })
    }

    /// Sends `length` bytes of `body`, once the server has asked for them: what it refuses is not
    /// sent. Its answer, whatever it is; the body is the reader's.
    ///
    /// # Errors
    /// There is no answer, or `body` gave fewer bytes.
    pub fn post(
        &self,
        path: &str,
        bearer: &str,
        length: u64,
        body: &mut dyn Read,
    ) -> Result<Stream, TransferError> {
        let request = http::Request::post(format!("{}{path}", self.base))
            .header(AUTHORIZATION, authorization(bearer)?)
            .header(CONTENT_LENGTH, length)
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(EXPECT, "100-continue")
            .body(SendBody::from_reader(body));
        self.run(request, SYNC_TIMEOUT)
    }

    /// Asks for what `path` names, from byte `from` on. The answer, whatever it is; where it has
    /// another beginning its status is not 206.
    ///
    /// # Errors
    /// There is no answer.
    pub fn get(&self, path: &str, bearer: &str, from: u64) -> Result<Stream, TransferError> {
        let mut request = http::Request::get(format!("{}{path}", self.base))
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
        let unsendable =
            |e: http::Error| TransferError { problem: e.to_string(), is_lasting: true };
        let request = self
            .agent
            .configure_request(request.map_err(unsendable)?)
            .timeout_await_100(Some(ASK_TIMEOUT))
            .timeout_per_read(Some(IDLE_TIMEOUT))
            .timeout_per_write(Some(IDLE_TIMEOUT))
            .timeout_recv_response(Some(answer_timeout))
            .build();
        let response = self.agent.run(request).map_err(|error| {
            let problem = format!("{}: {}", self.base, words(&error));
            TransferError { problem, is_lasting: judge(&error).tls }
        })?;
        Ok(opened(response, IDLE_TIMEOUT))
    }
}

fn authorization(bearer: &str) -> Result<HeaderValue, TransferError> {
    header_value(&format!("Bearer {bearer}"))
        .map_err(|problem| TransferError { problem, is_lasting: true })
}
