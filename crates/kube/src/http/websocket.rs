//! WebSocket connections to the API server, over the same proxies, TLS and credentials as requests.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tungstenite::client::client_with_config;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::generate_key;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::{Bytes, Error, Message};
use ureq::http::header::{
    CONNECTION, HOST, HeaderName, HeaderValue, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use ureq::http::{self, Uri};
use ureq::unversioned::resolver::Resolver;
use ureq::unversioned::transport::time::{Duration as Limit, Instant as UreqInstant};
use ureq::unversioned::transport::{
    ConnectionDetails, Connector, NextTimeout, Transport, TransportAdapter,
};

use super::agent::{OUTPUT_BYTES, stream_agent};
use super::connector::{AddressResolver, Dialer};
use super::interrupt::Interrupt;
use super::{Http, Shared, TransportError};
use crate::auth::Credentials;

/// The longest message, in bytes. Kubelets send at most 32 KiB at once.
const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// How long name lookup, connect and handshake may take together.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one write may take.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// Load balancers drop connections that are silent, and a peer that is gone is found by its silence: a
/// ping is sent after this time without a byte, and the peer must answer it.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How many pings may stay without an answer.
const PINGS_MAX: u32 = 3;

/// A peer that may have more than this of our input to read, in bytes, need not answer: pings come after the
/// input, and a command that reads nothing holds it up. Less than this fits into the command's own pipe or terminal.
const UNREAD_BYTES_MAX: usize = 4_000;

/// Why a WebSocket was not opened.
#[derive(Debug)]
pub enum OpenError {
    /// The server answered with another status than 101. Its body is not known.
    Refused { status: u16 },
    /// There was no answer, or it was no WebSocket handshake.
    Transport(TransportError),
}

/// What a read gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received {
    Message(Bytes),
    /// The input has bytes or has ended; `read_input` does not block.
    Input,
    /// The time is over.
    Nothing,
    /// The peer closed properly.
    Closed,
}

/// An open WebSocket of binary messages. It is closed when dropped.
pub struct WebSocket {
    inner: tungstenite::WebSocket<TimedStream>,
    /// Pings sent since the last byte from the peer.
    n_pings: u32,
    /// When the last byte from the peer came, or the last ping was sent.
    quiet_since: Instant,
    /// Bytes that were sent since the last ping that the peer has answered.
    unread: usize,
    /// Counts the messages that were sent. A ping has it as its contents.
    n_sent: u64,
    input: Option<Arc<Interrupt>>,
}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSocket").field("n_pings", &self.n_pings).finish_non_exhaustive()
    }
}

impl WebSocket {
    /// Waits at most `limit` for a message or for input.
    ///
    /// # Errors
    /// The connection was cut, the peer is silent, or it sent bytes that are no WebSocket.
    pub fn read(&mut self, limit: Duration) -> io::Result<Received> {
        self.inner.get_mut().read_limit = limit.min(PING_INTERVAL);
        loop {
            let message = match self.inner.read() {
                Ok(Message::Binary(bytes)) => Some(bytes),
                Ok(Message::Text(text)) => Some(text.into()),
                Ok(Message::Pong(bytes)) => {
                    if *bytes == self.n_sent.to_be_bytes() {
                        self.unread = 0;
                    }
                    None
                }
                Ok(_) => None,
                Err(Error::ConnectionClosed) => return Ok(Received::Closed),
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.ping_if_silent()?;
                    let has_input = self.input.as_ref().is_some_and(|input| input.take());
                    return Ok(if has_input { Received::Input } else { Received::Nothing });
                }
                Err(error) => return Err(io_error(error)),
            };
            (self.n_pings, self.quiet_since) = (0, Instant::now());
            if let Some(message) = message {
                return Ok(Received::Message(message));
            }
        }
    }

    /// Sends a binary message.
    pub fn send(&mut self, message: Vec<u8>) -> io::Result<()> {
        self.n_sent = self.n_sent.wrapping_add(1);
        self.unread = self.unread.saturating_add(message.len());
        self.inner.send(Message::Binary(message.into())).map_err(io_error)
    }

    /// Reads the input after `Received::Input`: 0 bytes at its end, after which it is not waited for again;
    /// `None` if there is nothing to read after all.
    pub fn read_input(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let input = self.input.as_ref()?;
        let n = input.read(buffer);
        if n == Some(0) {
            input.arm(false);
        }
        n
    }

    /// True if a read ends as soon as there is input. Over a SOCKS proxy it ends only with its time.
    pub fn awaits_input(&self) -> bool {
        self.input.as_ref().is_none_or(|input| input.is_attached())
    }

    /// Pings a silent peer. Not one that takes no input now: it would not read pings either. One that has input
    /// to read may stay silent. The system ends the connection if such a peer is gone.
    fn ping_if_silent(&mut self) -> io::Result<()> {
        if self.input.as_ref().is_some_and(|input| input.is_held_up()) {
            (self.n_pings, self.quiet_since) = (0, Instant::now());
            return Ok(());
        }
        if self.quiet_since.elapsed() < PING_INTERVAL {
            return Ok(());
        }
        if self.n_pings == PINGS_MAX && self.unread > UNREAD_BYTES_MAX {
            (self.n_pings, self.quiet_since) = (0, Instant::now());
            return Ok(());
        }
        if self.n_pings == PINGS_MAX {
            let silent_s = u64::from(PINGS_MAX + 1) * PING_INTERVAL.as_secs();
            let problem = format!("the peer did not send a byte for {silent_s} s");
            return Err(io::Error::new(io::ErrorKind::TimedOut, problem));
        }
        // Each ping has its own time: nobody may have read or sent for longer than that.
        (self.n_pings, self.quiet_since) = (self.n_pings + 1, Instant::now());
        self.inner
            .send(Message::Ping(Bytes::copy_from_slice(&self.n_sent.to_be_bytes())))
            .map_err(io_error)
    }
}

impl Drop for WebSocket {
    fn drop(&mut self) {
        // The peer's close frame is not waited for: nobody reads after this.
        let _ = self.inner.close(None).and_then(|()| self.inner.flush());
    }
}

impl Http {
    /// Opens a WebSocket. `protocols` are the subprotocols that the caller speaks, the best one first;
    /// gives the one that the server chose, too. A read of the WebSocket ends early if `input` has bytes.
    ///
    /// # Errors
    /// The server cannot be reached or refuses. Nothing is open then.
    pub fn open_websocket(
        &self,
        path: &str,
        protocols: &[&'static str],
        input: Option<OwnedFd>,
    ) -> Result<(WebSocket, String), OpenError> {
        let input = input.map(|input| Arc::new(Interrupt::new(input)));
        let mut credentials = self.shared.credentials(None).map_err(OpenError::Transport)?;
        let mut opened = self.shared.try_websocket(path, protocols, &credentials, input.as_ref());
        if let Err(OpenError::Refused { status: 401 }) = &opened {
            let snapshot = self.shared.snapshot(&credentials);
            if self.shared.renew_credentials(&credentials, &snapshot, None) {
                credentials = self.shared.credentials(None).map_err(OpenError::Transport)?;
                opened = self.shared.try_websocket(path, protocols, &credentials, input.as_ref());
            }
        }
        opened
    }
}

impl Shared {
    fn try_websocket(
        &self,
        path: &str,
        protocols: &[&'static str],
        credentials: &Credentials,
        input: Option<&Arc<Interrupt>>,
    ) -> Result<(WebSocket, String), OpenError> {
        let failed = |error: &ureq::Error| OpenError::Transport(self.transport_error(error).0);
        let url = format!("{}{path}", self.base);
        let (uri, request) = handshake(&url, protocols, self.identity_headers(credentials))
            .map_err(|error| failed(&error.into()))?;
        let transport = self.dial(&uri, credentials, input).map_err(|error| failed(&error))?;
        let inner = TransportAdapter::new(transport, Arc::new(now));
        let stream = TimedStream { inner, read_limit: OPEN_TIMEOUT };
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        match client_with_config(request, stream, Some(limits)) {
            Ok((inner, answer)) => {
                let chosen = answer.headers().get(SEC_WEBSOCKET_PROTOCOL);
                let chosen = chosen.and_then(|value| value.to_str().ok()).unwrap_or_default();
                // Not before: the input must not end the handshake.
                input.iter().for_each(|input| input.arm(true));
                let (quiet_since, input) = (Instant::now(), input.cloned());
                let socket =
                    WebSocket { inner, n_pings: 0, quiet_since, unread: 0, n_sent: 0, input };
                Ok((socket, chosen.to_owned()))
            }
            Err(HandshakeError::Failure(Error::Http(answer))) => {
                Err(OpenError::Refused { status: answer.status().as_u16() })
            }
            Err(HandshakeError::Failure(error)) => Err(failed(&io_error(error).into())),
            Err(HandshakeError::Interrupted(_)) => {
                let problem = io::Error::new(io::ErrorKind::TimedOut, "no answer to the handshake");
                Err(failed(&problem.into()))
            }
        }
    }

    /// Connects to the server as a request would: ureq's agent gives no connection away.
    fn dial(
        &self,
        uri: &Uri,
        credentials: &Credentials,
        input: Option<&Arc<Interrupt>>,
    ) -> Result<Box<dyn Transport>, ureq::Error> {
        let snapshot = self.snapshot(credentials);
        let name = self.cluster.tls_server_name.as_deref();
        let (tls_config, server) = (snapshot.tls_config.clone(), &self.cluster.server);
        let dialer = Arc::new(Dialer::new(tls_config, server, name, false, input.cloned()));
        // Only for its configuration.
        let agent = stream_agent(&self.cluster, snapshot.tls_config, OUTPUT_BYTES);
        let config = agent.config();
        let resolver = AddressResolver::default();
        let timeout = limit(OPEN_TIMEOUT);
        let proxy = config.proxy().filter(|proxy| !proxy.is_no_proxy(uri));
        let addrs = match proxy {
            Some(proxy) if !proxy.resolve_target() => resolver.empty(),
            Some(_) | None => resolver.resolve(uri, config, timeout)?,
        };
        let inner = Arc::clone(&dialer);
        let no_connection = || ureq::Error::Io(io::ErrorKind::NotConnected.into());
        let details = ConnectionDetails {
            uri,
            addrs,
            config,
            request_level: false,
            resolver: &resolver,
            now: now(),
            timeout,
            current_time: Arc::new(now),
            run_connector: Arc::new(move |details: &ConnectionDetails<'_>| {
                inner.connect(details, None)?.ok_or_else(no_connection)
            }),
            register_shutdown: Arc::new(|_| Ok(())),
        };
        dialer.connect(&details, None)?.ok_or_else(no_connection)
    }
}

/// The URL to connect to, and the request that opens the web socket.
fn handshake<'a>(
    url: &str,
    protocols: &[&'static str],
    identity: impl Iterator<Item = (&'a HeaderName, &'a HeaderValue)>,
) -> Result<(Uri, http::Request<()>), http::Error> {
    let uri: Uri = url.parse()?;
    let host = uri.authority().map(ToString::to_string).unwrap_or_default();
    // tungstenite wants these schemes, and sends only path and query.
    let web_socket_url = url.replacen("http", "ws", 1);
    let mut request = http::Request::get(web_socket_url)
        .header(HOST, host)
        .header(CONNECTION, HeaderValue::from_static("Upgrade"))
        .header(UPGRADE, HeaderValue::from_static("websocket"))
        .header(SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"))
        .header(SEC_WEBSOCKET_KEY, generate_key())
        .header(SEC_WEBSOCKET_PROTOCOL, protocols.join(", "));
    for (name, value) in identity {
        request = request.header(name, value);
    }
    Ok((uri, request.body(())?))
}

fn now() -> UreqInstant {
    UreqInstant::Exact(Instant::now())
}

fn limit(after: Duration) -> NextTimeout {
    NextTimeout { after: Limit::Exact(after), ..NextTimeout::default() }
}

fn io_error(error: Error) -> io::Error {
    if let Error::Io(error) = error {
        return error;
    }
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// A connection whose reads and writes have a time limit each. A read that timed out may be repeated:
/// its error is `WouldBlock`, after which tungstenite goes on where it was.
struct TimedStream {
    inner: TransportAdapter,
    read_limit: Duration,
}

impl Read for TimedStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.inner.set_timeout(limit(self.read_limit));
        self.inner.read(buf).map_err(|error| match is_timeout(&error) {
            true => io::ErrorKind::WouldBlock.into(),
            false => error,
        })
    }
}

/// ureq hides its time-outs in errors of another kind.
fn is_timeout(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    matches!(inner, Some(ureq::Error::Timeout(_))) || error.kind() == io::ErrorKind::TimedOut
}

impl Write for TimedStream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.inner.set_timeout(limit(WRITE_TIMEOUT));
        self.inner.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::pipe;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::channel;
    use std::thread::{self, JoinHandle};

    use tungstenite::accept_hdr;
    use tungstenite::handshake::server::{Request, Response};

    use super::*;
    use crate::testing::plain_client;

    /// A peer that speaks the protocol `p`, and `serve`s the connection.
    fn opened(
        input: Option<OwnedFd>,
        serve: impl FnOnce(tungstenite::WebSocket<TcpStream>) + Send + 'static,
    ) -> (WebSocket, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let http = plain_client(listener.local_addr().unwrap());
        let server = thread::spawn(move || {
            #[expect(clippy::result_large_err, reason = "the type of tungstenite's callback")]
            let choose = |_: &Request, mut response: Response| {
                response
                    .headers_mut()
                    .insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static("p"));
                Ok(response)
            };
            serve(accept_hdr(listener.accept().unwrap().0, choose).unwrap());
        });
        (http.open_websocket("/", &["p"], input).unwrap().0, server)
    }

    #[test]
    fn a_peer_that_takes_no_input_need_not_answer_pings() {
        let (release, held) = channel::<()>();
        let (read, mut write) = pipe().unwrap();
        write.write_all(b"input").unwrap();
        let (mut socket, server) = opened(Some(read.into()), move |peer| {
            assert!(held.recv().is_err());
            drop(peer);
        });
        let deadline = Instant::now() + Duration::from_secs(120);
        loop {
            assert!(Instant::now() < deadline, "a ping is sent again and again");
            (socket.n_pings, socket.quiet_since) = (0, Instant::now() - PING_INTERVAL);
            if socket.read(Duration::from_millis(20)).unwrap() == Received::Input {
                socket.send(vec![0; 1 << 12]).unwrap();
            } else if socket.n_pings == 0 {
                break;
            }
        }
        drop(release);
        server.join().unwrap();
    }

    /// Nobody read for longer than the peer may be silent: no ping was sent meanwhile.
    #[test]
    fn after_a_pause_of_ours_the_peer_has_time_to_answer() {
        let (release, held) = channel::<()>();
        let (mut socket, server) = opened(None, move |mut peer| {
            assert!(held.recv().is_err());
            while peer.read().is_ok() {}
        });
        socket.quiet_since = Instant::now() - PING_INTERVAL * (PINGS_MAX + 2);
        for _ in 0..3 * PINGS_MAX {
            assert_eq!(socket.read(Duration::from_millis(1)).unwrap(), Received::Nothing);
        }
        assert_eq!(socket.n_pings, 1);
        drop((release, socket));
        server.join().unwrap();
    }

    /// The input has ended, and lies in buffers: nothing says any more that the peer takes none.
    #[test]
    fn a_peer_that_has_not_read_its_input_need_not_answer_pings() {
        let (release, held) = channel::<()>();
        let (mut socket, server) = opened(None, move |mut peer| {
            held.recv().unwrap();
            // Everything, with the pings after it, which are answered.
            while held.try_recv().is_err() {
                peer.read().unwrap();
            }
            assert!(held.recv().is_err());
        });
        let input = vec![0; UNREAD_BYTES_MAX + 1];
        socket.send(input).unwrap();
        let is_silent = |socket: &mut WebSocket| {
            socket.quiet_since = Instant::now() - PING_INTERVAL * (PINGS_MAX + 2);
            socket.read(Duration::from_millis(1))
        };
        for _ in 0..3 * PINGS_MAX {
            assert_eq!(is_silent(&mut socket).unwrap(), Received::Nothing);
        }
        release.send(()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while socket.unread > 0 {
            assert!(Instant::now() < deadline, "the peer answers pings");
            socket.read(Duration::from_millis(10)).unwrap();
        }
        release.send(()).unwrap();
        // It has read all, and must answer now.
        let error = (0..3 * PINGS_MAX).find_map(|_| is_silent(&mut socket).err());
        assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::TimedOut));
        drop(release);
        server.join().unwrap();
    }
}
