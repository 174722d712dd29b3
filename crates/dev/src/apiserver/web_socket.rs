//! The server side of web sockets: the handshake and a stream of messages.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Bytes, Error, Message, WebSocket};

use posse_serve::{Request, Responder, Upgraded};

/// The longest message of a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// The client gets this long to close after the last message.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// What the client wants to speak.
pub(crate) fn protocols(request: &Request) -> impl Iterator<Item = &str> {
    let offered = request.header("sec-websocket-protocol").unwrap_or_default();
    offered.split(',').map(str::trim).filter(|name| !name.is_empty())
}

/// True if the client asks for a web socket.
pub(crate) fn is_wanted(request: &Request) -> bool {
    request.header("upgrade").is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
}

/// An open web socket.
pub(crate) struct Socket {
    inner: WebSocket<Upgraded>,
}

impl Socket {
    /// Completes the handshake; the client speaks `protocol` then, unless it is empty.
    pub(crate) fn accept(
        request: &Request,
        protocol: &str,
        responder: Responder<'_>,
    ) -> io::Result<Self> {
        let key = request.header("sec-websocket-key").unwrap_or_default();
        let accept = derive_accept_key(key.as_bytes());
        let mut headers = vec![
            ("upgrade", "websocket"),
            ("connection", "Upgrade"),
            ("sec-websocket-accept", accept.as_str()),
        ];
        if !protocol.is_empty() {
            headers.push(("sec-websocket-protocol", protocol));
        }
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let stream = responder.upgrade(&headers)?;
        Ok(Self { inner: WebSocket::from_raw_socket(stream, Role::Server, Some(limits)) })
    }

    /// The next message that has arrived; `WouldBlock` if there is none, `UnexpectedEof` after the
    /// client has closed.
    pub(crate) fn read_now(&mut self) -> io::Result<Bytes> {
        loop {
            match self.inner.read() {
                Ok(Message::Binary(bytes)) => return Ok(bytes),
                Ok(Message::Text(text)) => return Ok(text.into()),
                Ok(_) => {}
                Err(Error::Io(error)) => return Err(error),
                Err(Error::ConnectionClosed | Error::AlreadyClosed) => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }

    /// False if the client has left. What it sends is dropped. Does not wait.
    pub(crate) fn is_open(&mut self) -> bool {
        loop {
            match self.read_now() {
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Sends a binary message: `channel`, then `bytes`.
    pub(crate) fn send_on(&mut self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        let message = [&[channel], bytes].concat();
        self.inner.send(Message::Binary(message.into())).map_err(io::Error::other)
    }

    /// Sends a text message; bytes that are no UTF-8 are replaced.
    pub(crate) fn send_text(&mut self, text: &[u8]) -> io::Result<()> {
        let text = String::from_utf8_lossy(text).into_owned();
        self.inner.send(Message::Text(text.into())).map_err(io::Error::other)
    }

    /// Closes properly, and gives the client time to do so.
    pub(crate) fn close(mut self) -> io::Result<()> {
        // kubectl reports any other code, and a close without a code, as an error.
        let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        let closed = self.inner.close(Some(normal)).and_then(|()| self.inner.flush());
        closed.map_err(io::Error::other)?;
        // Closing with unread bytes would reset the connection, and the client could lose the end.
        let deadline = Instant::now() + CLOSE_WAIT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.read_now() {
                _ if left.is_zero() => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_ready(&mut [PollFd::new(&self, PollFlags::IN)], left)?;
                }
                Err(_) => return Ok(()),
            }
        }
    }
}

/// Waits until one of the files is ready, or a signal comes.
pub(crate) fn wait_ready(fds: &mut [PollFd<'_>], at_most: Duration) -> io::Result<()> {
    let at_most = Timespec::try_from(at_most).map_err(io::Error::other)?;
    match poll(fds, Some(&at_most)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.get_ref().as_fd()
    }
}
