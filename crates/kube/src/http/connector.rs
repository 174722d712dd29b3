//! Opens connections: name lookup, proxy, socket, TLS. Tells errors that happen before the request
//! reaches the server from errors after which its outcome is unknown.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, ClientConfig, ClientConnection, StreamOwned};
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectProxyConnector, ConnectionDetails, Connector, LazyBuffers, NextTimeout,
    SocksConnector, Transport, TransportAdapter,
};

use super::interrupt::Interrupt;
use super::socket::{EarlyAnswer, SocketConnector};
use super::tls::is_authority_as_server;
use crate::config::server::{default_port, unbracketed};
use crate::config::{Cluster, Server};

/// How many TLS records are read from a failed connection to find the peer's alert.
const ALERT_READS_MAX: usize = 4;

/// A connection that holds back writes sends them when they have this many bytes.
const HELD_BYTES_MAX: usize = 16 << 10;

/// Wraps an error that happened before the connection was open: nothing was sent.
#[derive(Debug)]
struct BeforeSend {
    error: Error,
    /// The peer of the TLS handshake in which it happened.
    tls: Option<TlsPeer>,
}

/// With whom TLS is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsPeer {
    Server,
    /// An https proxy in front of it. It is verified with the same authorities, as kubectl does.
    Proxy,
}

impl fmt::Display for BeforeSend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for BeforeSend {}

fn before_send(error: Error, tls: Option<TlsPeer>) -> Error {
    // An inner connector may have wrapped the error already.
    if as_before_send(&error).is_some() {
        error
    } else {
        Error::Other(Box::new(BeforeSend { error, tls }))
    }
}

fn as_before_send(error: &Error) -> Option<&BeforeSend> {
    let Error::Other(inner) = error else { return None };
    inner.downcast_ref()
}

/// What an error means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ErrorClass {
    /// The server did not receive the request.
    pub(super) not_sent: bool,
    /// TLS failed. A certificate may have been replaced.
    pub(super) tls: bool,
    /// One of the two does not take what the other one shows or speaks: it is so again the next time.
    pub(super) is_final: bool,
    /// The connection was lost before the answer. This also happens if the server closes an idle
    /// connection.
    pub(super) disconnected: bool,
}

/// Classifies an error of ureq.
pub(super) fn classify(error: &Error) -> ErrorClass {
    let class = ErrorClass { not_sent: false, tls: false, is_final: false, disconnected: false };
    if let Some(BeforeSend { tls, error }) = as_before_send(error) {
        let is_final = tls_cause(error).is_some();
        return ErrorClass { not_sent: true, tls: tls.is_some(), is_final, ..class };
    }
    // With TLS 1.3 a server refuses a client certificate only after the client's handshake is done.
    if let Some(cause) = tls_cause(error) {
        let not_sent = is_handshake_refusal(cause);
        return ErrorClass { not_sent, tls: true, is_final: true, ..class };
    }
    if let Error::Io(e) = error {
        // `NotConnected` is the error of an agent that was shut down.
        let not_sent = e.kind() == io::ErrorKind::NotConnected;
        return ErrorClass { not_sent, disconnected: is_disconnect(e.kind()), ..class };
    }
    // After any other error the server may have received the request.
    let not_sent = matches!(error, Error::BadUri(_) | Error::Http(_) | Error::RequireHttpsOnly(_));
    ErrorClass { not_sent, ..class }
}

/// The error as text, with the way to the server if the problem may be the proxy's alone. Without the prefix that ureq
/// adds to system errors.
pub(super) fn describe_error(error: &Error, cluster: &Cluster) -> String {
    let said = format!("{}: {}", cluster.server, problem(error));
    match cluster.way().filter(|_| classify(error).not_sent) {
        Some(way) => format!("{said} ({way})"),
        None => said,
    }
}

fn problem(error: &Error) -> String {
    let wrapped = as_before_send(error);
    let error = wrapped.map_or(error, |wrapped| &wrapped.error);
    let mut text = if let Error::Io(e) = error { e.to_string() } else { error.to_string() };
    // What the library knows, in bytes.
    if tls_cause(error).is_some() {
        text.truncate(text.find(" {").unwrap_or(text.len()));
    }
    match wrapped.and_then(|wrapped| wrapped.tls) {
        Some(TlsPeer::Proxy) => format!("the proxy: {text}"),
        Some(TlsPeer::Server) | None => text,
    }
}

fn is_disconnect(kind: io::ErrorKind) -> bool {
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

/// The remedy for keys and signatures that the TLS library does not know.
const KEY_TYPES: &str = "P-521 keys and ECDSA with SHA-512 are not supported: give the server a certificate with a P-256, \
                         P-384, RSA or Ed25519 key, signed with such a key, and with SHA-256 or SHA-384 if it is ECDSA";

/// The remedy for a server that gives no reason: some send the same alert if they miss a client certificate.
const NOTHING_IN_COMMON: &str = "if the server's certificate has a P-521 key, which is not supported, give it a P-256, \
                                 P-384, RSA or Ed25519 key; if the server asks for a client certificate, the user of \
                                 the kubeconfig must have one";

/// What to do about a failed TLS handshake, by its cause: never what the user may have done already.
pub(super) fn tls_remedy(error: &Error) -> &'static str {
    let wrapped = as_before_send(error);
    let is_proxy = wrapped.is_some_and(|wrapped| wrapped.tls == Some(TlsPeer::Proxy));
    match tls_cause(wrapped.map_or(error, |wrapped| &wrapped.error)) {
        Some(rustls::Error::InvalidCertificate(problem)) => certificate_remedy(problem, is_proxy),
        Some(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)) => NOTHING_IN_COMMON,
        Some(error) if is_handshake_refusal(error) => {
            "the server refuses the client certificate: renew client-certificate-data of the user in \
             the kubeconfig, or use a token"
        }
        Some(_) | None => {
            "the server must speak TLS 1.2 or 1.3 at this address, and a proxy must pass it on"
        }
    }
}

fn certificate_remedy(problem: &CertificateError, is_proxy: bool) -> &'static str {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext,
    };
    let is_wrong_name = matches!(problem, NotValidForName | NotValidForNameContext { .. });
    let is_out_of_time = matches!(
        problem,
        Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
    );
    if *problem == CertificateError::UnknownIssuer && is_proxy {
        "add the CA that signed the proxy's certificate: certificate-authority-data in the kubeconfig \
         is for the server and for the proxy"
    } else if *problem == CertificateError::UnknownIssuer {
        "add the CA that signed the server's certificate, or this certificate itself: \
         certificate-authority-data in the kubeconfig, or SSL_CERT_FILE"
    } else if is_wrong_name {
        "use a name or an address that the certificate has, or set tls-server-name in the kubeconfig \
         to one"
    } else if is_out_of_time {
        "renew the server's certificate, or correct the clock of this machine"
    } else if *problem == CertificateError::BadSignature {
        "the authority has the right name but another key: take the one that the server uses now; or a key is RSA with \
         less than 2,048 bits, which is not supported: give the server a longer one"
    } else if is_authority_as_server(problem) {
        "the server shows the certificate of an authority as its own: put exactly this one into \
         certificate-authority-data, or issue one with CA:FALSE"
    } else if format!("{problem:?}").contains("UnsupportedSignatureAlgorithm") {
        KEY_TYPES
    } else {
        "look at the certificate: openssl s_client -showcerts -connect HOST:PORT"
    }
}

/// Resolves host names. For an IP address it skips the resolver and its thread.
#[derive(Debug, Default)]
pub(super) struct AddressResolver(DefaultResolver);

impl Resolver for AddressResolver {
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
        self.0.resolve(uri, config, timeout).map_err(|e| before_send(e, None))
    }
}

/// Opens connections: through SOCKS, CONNECT or a plain socket, then TLS if the URL is https.
#[derive(Debug)]
pub(super) struct Dialer {
    chain: Box<dyn Connector<(), Out = Box<dyn Transport>>>,
}

impl Dialer {
    /// The certificate of `server` must be valid for `server_name`, or for its host if it is `None`. `joins_writes`: what is written over TLS is sent when an answer is awaited.
    /// `interrupt` ends reads early.
    pub(super) fn new(
        tls_config: Option<Arc<ClientConfig>>,
        server: &Server,
        server_name: Option<&str>,
        joins_writes: bool,
        interrupt: Option<Arc<Interrupt>>,
    ) -> Self {
        let tls = TlsConnector {
            tls_config,
            server: server.clone(),
            server_name: server_name.map(str::to_owned),
            joins_writes,
        };
        let chain =
            ().chain(SocksConnector::default())
                .chain(ConnectProxyConnector::default())
                .chain(SocketConnector { interrupt })
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
        self.chain.connect(details, chained).map_err(|e| before_send(e, None))
    }
}

/// The last connector of the chain: adds TLS to the connection that the others made.
struct TlsConnector {
    tls_config: Option<Arc<ClientConfig>>,
    server: Server,
    server_name: Option<String>,
    joins_writes: bool,
}

impl fmt::Debug for TlsConnector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnector")
            .field("server_name", &self.server_name)
            .finish_non_exhaustive()
    }
}

impl TlsConnector {
    /// An https proxy is connected to by its own URL.
    fn peer(&self, uri: &Uri) -> TlsPeer {
        let Server { host, port, tls, .. } = &self.server;
        let is_server = unbracketed(uri.host().unwrap_or_default()) == host
            && uri.port_u16().unwrap_or_else(|| default_port(*tls)) == *port;
        if is_server { TlsPeer::Server } else { TlsPeer::Proxy }
    }

    /// The name that the peer's certificate must be valid for.
    fn name(&self, uri: &Uri) -> Result<ServerName<'static>, Error> {
        let host = unbracketed(uri.host().unwrap_or_default());
        let name = match (&self.server_name, self.peer(uri)) {
            (Some(name), TlsPeer::Server) => name.as_str(),
            (Some(_), TlsPeer::Proxy) | (None, _) => host,
        };
        ServerName::try_from(name.to_owned())
            .map_err(|_| Error::Tls("the server's name is neither a DNS name nor an address"))
    }
}

impl<In: Transport> Connector<In> for TlsConnector {
    type Out = Box<dyn Transport>;

    fn connect(
        &self,
        details: &ConnectionDetails<'_>,
        chained: Option<In>,
    ) -> Result<Option<Self::Out>, Error> {
        let Some(plain) = chained else { return Ok(None) };
        // What came through an https proxy is in TLS already: that of the proxy, and not that of the server.
        if !details.needs_tls() {
            return Ok(Some(Box::new(plain)));
        }
        let Some(tls_config) = &self.tls_config else { return Err(Error::TlsRequired) };
        let connection = ClientConnection::new(Arc::clone(tls_config), self.name(details.uri)?)?;
        let plain: Box<dyn Transport> = Box::new(plain);
        let mut socket = TransportAdapter::new(plain, Arc::clone(&details.current_time));
        socket.set_timeout(details.timeout);
        let buffers = LazyBuffers::new(
            details.config.input_buffer_size(),
            details.config.output_buffer_size(),
        );
        let stream = StreamOwned::new(connection, socket);
        let held = self.joins_writes.then(Held::default);
        let mut transport = TlsTransport { buffers, early: EarlyAnswer::default(), stream, held };
        match transport.stream.conn.complete_io(&mut transport.stream.sock) {
            Ok(_) => Ok(Some(Box::new(transport))),
            Err(e) => {
                let peer = self.peer(details.uri);
                Err(before_send(transport.error_with_alert(e), Some(peer)))
            }
        }
    }
}

/// A TLS connection.
struct TlsTransport {
    buffers: LazyBuffers,
    early: EarlyAnswer,
    stream: StreamOwned<ClientConnection, TransportAdapter>,
    /// What was written and not sent yet; none: each write is sent at once.
    held: Option<Held>,
}

/// Writes that wait for the next read: a request's head and body are sent at once, and wake up the server
/// once.
#[derive(Default)]
struct Held {
    n_bytes: usize,
    /// Of the last write.
    timeout: NextTimeout,
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTransport").field("socket", self.stream.sock.inner()).finish()
    }
}

impl TlsTransport {
    /// The peer's TLS alert if it sent one before it closed the connection, else `failure`. The
    /// alert is still unread if a write failed first. Reading from a closed socket does not block.
    fn error_with_alert(&mut self, failure: io::Error) -> Error {
        let StreamOwned { conn, sock } = &mut self.stream;
        for _ in 0..ALERT_READS_MAX {
            if !is_disconnect(failure.kind()) || !matches!(conn.read_tls(sock), Ok(1..)) {
                break;
            }
            if let Err(reason) = conn.process_new_packets() {
                return Error::Io(io::Error::new(io::ErrorKind::InvalidData, reason));
            }
        }
        failure.into()
    }

    /// Sends all that was encrypted, with as few writes as the socket's buffer allows.
    fn send_written(&mut self, timeout: NextTimeout) -> Result<(), Error> {
        self.held = self.held.as_ref().map(|_| Held::default());
        while self.stream.conn.wants_write() {
            let StreamOwned { conn, sock } = &mut self.stream;
            let socket = sock.get_mut();
            let mut free = socket.buffers().output();
            let n_bytes = conn.write_tls(&mut free)?;
            if let Err(error) = socket.transmit_output(n_bytes, timeout) {
                return Err(self.error_with_alert(error.into_io()));
            }
        }
        Ok(())
    }

    /// Decrypts what the socket's buffer holds besides the first record, without waiting for more: a
    /// server may send each event of a watch as a record, or several.
    fn take_arrived(&mut self) {
        let StreamOwned { conn, sock } = &mut self.stream;
        let socket = sock.get_mut().buffers();
        loop {
            // An error comes again with the next read, which reports it.
            while let Ok(n @ 1..) = conn.reader().read(self.buffers.input_append_buf()) {
                self.buffers.input_appended(n);
            }
            let mut arrived = socket.input();
            if arrived.is_empty() || self.buffers.input_append_buf().is_empty() {
                return;
            }
            let Ok(n @ 1..) = conn.read_tls(&mut arrived) else { return };
            socket.input_consume(n);
            if conn.process_new_packets().is_err() {
                return;
            }
        }
    }
}

impl Transport for TlsTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.early.on_sent();
        let mut n_written = 0;
        while n_written < amount {
            let rest = &self.buffers.output()[n_written..amount];
            n_written += self.stream.conn.writer().write(rest)?;
            if n_written < amount {
                self.send_written(timeout)?;
            }
        }
        match &mut self.held {
            Some(held) if held.n_bytes + amount < HELD_BYTES_MAX => {
                *held = Held { n_bytes: held.n_bytes + amount, timeout };
                Ok(())
            }
            Some(_) | None => self.send_written(timeout),
        }
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        if let Some(Held { n_bytes: 1.., timeout }) = self.held {
            self.send_written(timeout)?;
        }
        if self.early.take(&mut self.buffers) {
            return Ok(true);
        }
        self.stream.sock.set_timeout(timeout);
        let n_read = match self.stream.read(self.buffers.input_append_buf()) {
            Ok(n_read) => n_read,
            Err(e) => return Err(self.error_with_alert(e)),
        };
        self.buffers.input_appended(n_read);
        self.take_arrived();
        Ok(n_read > 0)
    }

    fn is_open(&mut self) -> bool {
        self.stream.sock.get_mut().is_open()
    }

    fn is_tls(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_certificate_has_a_short_name_and_a_way_out() {
        use CertificateError::{
            BadSignature, UnsupportedSignatureAlgorithmContext as OfHash,
            UnsupportedSignatureAlgorithmForPublicKeyContext as OfKey,
        };
        let id = || vec![6_u8; 300];
        let of_hash = OfHash { signature_algorithm_id: id(), supported_algorithms: Vec::new() };
        let of_key = OfKey { signature_algorithm_id: id(), public_key_algorithm_id: id() };
        let no_common = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
        for (error, name, part) in [
            (of_hash.into(), "UnsupportedSignatureAlgorithmContext", "ECDSA with SHA-512"),
            (of_key.into(), "UnsupportedSignatureAlgorithmForPublicKeyContext", "P-521 keys"),
            (BadSignature.into(), "BadSignature", "2,048 bits"),
            (no_common, "HandshakeFailure", "P-384, RSA"),
        ] {
            let error = Error::Rustls(error);
            let (said, remedy) = (problem(&error), tls_remedy(&error));
            assert!(said.ends_with(name), "{said}");
            assert!(remedy.contains(part) && !remedy.contains("  "), "{remedy}");
        }
    }
}
