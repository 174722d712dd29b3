//! Owns how a connection comes about: name, socket, proxy, TLS; and tells an error that happened
//! before the request could reach the server from one that leaves its outcome unknown.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig, ClientConnection, StreamOwned};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, LazyBuffers, NextTimeout,
    SocksConnector, TcpConnector, Transport, TransportAdapter,
};

use crate::kube::config::server::unbracketed;

/// How often a connection that failed is read once more for the peer's reason.
const FAREWELL_READS_MAX: usize = 4;

/// Wraps an error that happened while there was no connection yet: nothing was sent.
#[derive(Debug)]
struct BeforeSend {
    error: Error,
    /// TLS was being agreed on.
    tls: bool,
}

impl fmt::Display for BeforeSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for BeforeSend {}

fn before_send(error: Error, tls: bool) -> Error {
    // The links of the chain mark on their own, and so does the chain as a whole.
    if marked(&error).is_some() { error } else { Error::Other(Box::new(BeforeSend { error, tls })) }
}

fn marked(error: &Error) -> Option<&BeforeSend> {
    let Error::Other(inner) = error else { return None };
    inner.downcast_ref()
}

/// What an error says about the request that met it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// The server cannot have seen the request.
    pub(super) not_sent: bool,
    /// TLS failed: a certificate may have been exchanged for another.
    pub(super) tls: bool,
    /// The connection ended before an answer, as an idle one does that the server closed.
    pub(super) cut: bool,
}

/// Reads an error of ureq.
pub(super) fn judge(error: &Error) -> Verdict {
    if let Some(BeforeSend { tls, .. }) = marked(error) {
        return Verdict { not_sent: true, tls: *tls, cut: false };
    }
    // With TLS 1.3 a server that refuses our certificate says so only after the handshake.
    if let Some(cause) = tls_cause(error) {
        return Verdict { not_sent: is_handshake_refusal(cause), tls: true, cut: false };
    }
    if let Error::Io(e) = error {
        // Not connected is how a pool that was shut down answers.
        let not_sent = e.kind() == io::ErrorKind::NotConnected;
        return Verdict { not_sent, tls: false, cut: is_cut(e.kind()) };
    }
    // Whatever else there is, the server may have seen the request.
    let not_sent = matches!(error, Error::BadUri(_) | Error::Http(_) | Error::RequireHttpsOnly(_));
    Verdict { not_sent, tls: false, cut: false }
}

/// The error in words, without ureq's prefix for what the system said.
pub(super) fn words(error: &Error) -> String {
    let error = marked(error).map_or(error, |mark| &mark.error);
    if let Error::Io(e) = error { e.to_string() } else { error.to_string() }
}

fn is_cut(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&kind)
}

fn tls_cause(error: &Error) -> Option<&rustls::Error> {
    if let Error::Rustls(cause) = error {
        return Some(cause);
    }
    let Error::Io(e) = error else { return None };
    e.get_ref()?.downcast_ref()
}

fn is_handshake_refusal(error: &rustls::Error) -> bool {
    let rustls::Error::AlertReceived(alert) = error else { return false };
    [
        AlertDescription::AccessDenied,
        AlertDescription::BadCertificate,
        AlertDescription::CertificateExpired,
        AlertDescription::CertificateRequired,
        AlertDescription::CertificateRevoked,
        AlertDescription::CertificateUnknown,
        AlertDescription::DecryptError,
        AlertDescription::HandshakeFailure,
        AlertDescription::NoCertificate,
        AlertDescription::UnknownCA,
        AlertDescription::UnsupportedCertificate,
    ]
    .contains(alert)
}

/// Finds addresses; an address needs no thread and no resolver.
#[derive(Debug, Default)]
pub(super) struct Names(DefaultResolver);

impl Resolver for Names {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, Error> {
        let ip = uri.host().and_then(|host| unbracketed(host).parse::<IpAddr>().ok());
        let port = uri.port_u16().or_else(|| match uri.scheme_str() {
            Some("https") => Some(443),
            Some("http") => Some(80),
            Some(_) | None => None,
        });
        if let (Some(ip), Some(port)) = (ip, port) {
            let mut addresses = self.empty();
            addresses.push(SocketAddr::new(ip, port));
            return Ok(addresses);
        }
        self.0.resolve(uri, config, timeout).map_err(|e| before_send(e, false))
    }
}

/// Makes connections: SOCKS, CONNECT or a plain socket, then TLS where the URL says https.
#[derive(Debug)]
pub(super) struct Dialer {
    chain: Box<dyn Connector<(), Out = Box<dyn Transport>>>,
}

impl Dialer {
    /// `server_name` is what the certificate of `server_host` must carry instead of that host.
    pub(super) fn new(
        settings: Option<Arc<ClientConfig>>,
        server_host: &str,
        server_name: Option<&str>,
    ) -> Self {
        let tls = Tls {
            settings,
            server_host: server_host.to_owned(),
            server_name: server_name.map(str::to_owned),
        };
        let chain =
            ().chain(SocksConnector::default())
                .chain(ConnectProxyConnector::default())
                .chain(TcpConnector::default())
                .chain(tls);
        Self { chain: Box::new(chain) }
    }
}

impl Connector<()> for Dialer {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<()>,
    ) -> Result<Option<Self::Out>, Error> {
        self.chain.connect(details, chained).map_err(|e| before_send(e, false))
    }
}

/// The last link of the chain: lays TLS over what the others made.
struct Tls {
    settings: Option<Arc<ClientConfig>>,
    server_host: String,
    server_name: Option<String>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

impl Tls {
    /// The name that the peer's certificate must carry; a proxy is known by its own.
    fn name(&self, uri: &Uri) -> Result<ServerName<'static>, Error> {
        let host = unbracketed(uri.host().unwrap_or_default());
        let name = match &self.server_name {
            Some(name) if host == self.server_host => name.as_str(),
            Some(_) | None => host,
        };
        ServerName::try_from(name.to_owned())
            .map_err(|_| Error::Tls("the server's name is neither a DNS name nor an address"))
    }
}

impl<In: Transport> Connector<In> for Tls {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        let Some(plain) = chained else { return Ok(None) };
        if !details.needs_tls() || plain.is_tls() {
            return Ok(Some(Box::new(plain)));
        }
        let Some(settings) = &self.settings else { return Err(Error::TlsRequired) };
        let connection = ClientConnection::new(Arc::clone(settings), self.name(details.uri)?)?;
        let plain: Box<dyn Transport> = Box::new(plain);
        let mut socket = TransportAdapter::new(plain, Arc::clone(&details.current_time));
        socket.set_timeout(details.timeout);
        let buffers = LazyBuffers::new(
            details.config.input_buffer_size(),
            details.config.output_buffer_size(),
        );
        let stream = StreamOwned::new(connection, socket);
        let mut transport = TlsTransport { buffers, stream };
        match transport.stream.conn.complete_io(&mut transport.stream.sock) {
            Ok(_) => Ok(Some(Box::new(transport))),
            Err(e) => Err(before_send(transport.farewell(e), true)),
        }
    }
}

/// A connection under TLS.
struct TlsTransport {
    buffers: LazyBuffers,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").field("socket", self.stream.sock.inner()).finish()
    }
}

impl TlsTransport {
    /// What a failure was about: a peer that hangs up on us may have said why, and that is still
    /// unread where writing failed first. A closed socket never blocks.
    fn farewell(&mut self, failure: io::Error) -> Error {
        let StreamOwned { conn, sock } = &mut self.stream;
        for _ in 0..FAREWELL_READS_MAX {
            if !is_cut(failure.kind()) || !matches!(conn.read_tls(sock), Ok(1..)) {
                break;
            }
            if let Err(reason) = conn.process_new_packets() {
                return Error::Io(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        }
        failure.into()
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.sock.set_timeout(timeout);
        let written = self.stream.write_all(&self.buffers.output()[..amount]);
        written.map_err(|e| self.farewell(e))
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.sock.set_timeout(timeout);
        let n_read = match self.stream.read(self.buffers.input_append_buf()) {
            Ok(n_read) => n_read,
            Err(e) => return Err(self.farewell(e)),
        };
        self.buffers.input_appended(n_read);
        Ok(n_read > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}
