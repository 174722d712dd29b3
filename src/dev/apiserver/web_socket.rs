//! The server side of web sockets: the handshake and a stream of messages.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tungstenite::handshake::derive_accept_key;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{CloseFrame, Role, WebSocketConfig};
use tungstenite::{Bytes, Error, Message, WebSocket};

use crate::serve::{Request, Responder, Upgraded};

/// The longest message of a client, in bytes.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

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

    /// Sends a binary message: `channel`, then `bytes`.
    pub(crate) fn send(&mut self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(bytes.len() + 1);
        message.push(channel);
        message.extend_from_slice(bytes);
        self.inner.send(Message::Binary(message.into())).map_err(io::Error::other)
    }

    /// Closes properly.
    pub(crate) fn close(&mut self) -> io::Result<()> {
        // kubectl reports any other code, and a close without a code, as an error.
        let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
        self.inner.close(Some(normal)).and_then(|()| self.inner.flush()).map_err(io::Error::other)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.get_ref().as_fd()
    }
}
