//! SPDY/3.1, as much of it as Kubernetes' clients use: the client opens streams, both sides send data,
//! without flow control. It runs on an upgraded connection, or in the messages of a web socket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use crate::apiserver::spdy_headers::{EMPTY, FIRST, HeaderReader, Headers};
use crate::apiserver::web_socket::{Socket, drain};
use posse_serve::{Request, Responder, Upgraded};

const VERSION: u16 = 3;
/// The frames that matter here.
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;
/// The flag of a sender's last frame on a stream.
const FIN: u8 = 1;
/// Set in the first byte of all frames but those of data.
const CONTROL: u8 = 0x80;
const HEAD_BYTES: usize = 8;
/// The longest frame of a client; they send 32 KiB at a time.
const FRAME_BYTES_MAX: usize = 1 << 20;
/// How much is read at a time.
const READ_BYTES: usize = 32 << 10;

/// What the client did.
pub(crate) enum Event {
    /// It opened a stream.
    Opened(u32, Headers),
    /// It sent bytes on a stream, perhaps its last ones.
    Data(u32, Vec<u8>, bool),
    /// It gave a stream up.
    Reset(u32),
}

enum Carrier {
    Connection(Upgraded),
    /// KEP-4006: the frames' bytes are the web socket's messages.
    Messages(Box<Socket>),
}

/// The server's side of a connection.
pub(crate) struct Spdy {
    carrier: Carrier,
    /// What has arrived and is no whole frame yet.
    input: Vec<u8>,
    headers: HeaderReader,
    has_replied: bool,
}

/// True if the client asks for SPDY.
pub(crate) fn is_wanted(request: &Request) -> bool {
    request.header("upgrade").is_some_and(|to| to.eq_ignore_ascii_case("SPDY/3.1"))
}

/// True if the client offers this protocol for its streams.
pub(crate) fn offers(request: &Request, protocol: &str) -> bool {
    let offered = request.headers("x-stream-protocol-version").flat_map(|line| line.split(','));
    offered.map(str::trim).any(|offered| offered == protocol)
}

impl Spdy {
    /// Switches the connection to SPDY; its streams have this protocol.
    pub(crate) fn accept(protocol: &str, responder: Responder<'_>) -> io::Result<Self> {
        let headers = [
            ("upgrade", "SPDY/3.1"),
            ("connection", "Upgrade"),
            ("x-stream-protocol-version", protocol),
        ];
        Ok(Self::new(Carrier::Connection(responder.upgrade(&headers)?)))
    }

    pub(crate) fn in_messages(socket: Socket) -> Self {
        Self::new(Carrier::Messages(Box::new(socket)))
    }

    fn new(carrier: Carrier) -> Self {
        Self { carrier, input: Vec::new(), headers: HeaderReader::new(), has_replied: false }
    }

    /// The next event that has arrived; `WouldBlock` if there is none, `UnexpectedEof` after the
    /// client has closed.
    pub(crate) fn read_now(&mut self) -> io::Result<Event> {
        loop {
            while let Some((head, body)) = self.frame()? {
                if let Some(event) = self.take(head, body)? {
                    return Ok(event);
                }
            }
            self.fill()?;
        }
    }

    fn fill(&mut self) -> io::Result<()> {
        match &mut self.carrier {
            Carrier::Messages(socket) => self.input.extend_from_slice(&socket.read_now()?),
            Carrier::Connection(connection) => {
                let mut piece = vec![0; READ_BYTES];
                match connection.read(&mut piece)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    n => self.input.extend_from_slice(piece.get(..n).unwrap_or_default()),
                }
            }
        }
        Ok(())
    }

    /// The next whole frame.
    fn frame(&mut self) -> io::Result<Option<([u8; HEAD_BYTES], Vec<u8>)>> {
        let Some(head) = self.input.first_chunk::<HEAD_BYTES>().copied() else { return Ok(None) };
        let [_, _, _, _, _, high, middle, low] = head;
        let length = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        if length > FRAME_BYTES_MAX {
            return Err(invalid("a SPDY frame is too long"));
        }
        let end = HEAD_BYTES + length;
        if self.input.len() < end {
            return Ok(None);
        }
        let body = self.input.drain(..end).skip(HEAD_BYTES).collect();
        Ok(Some((head, body)))
    }

    /// Handles a frame; `None` if it is of no interest.
    fn take(&mut self, head: [u8; HEAD_BYTES], body: Vec<u8>) -> io::Result<Option<Event>> {
        let [first, second, third, fourth, flags, ..] = head;
        let is_last = flags & FIN != 0;
        if first & CONTROL == 0 {
            let stream = u32::from_be_bytes([first, second, third, fourth]);
            return Ok(Some(Event::Data(stream, body, is_last)));
        }
        if u16::from_be_bytes([first & !CONTROL, second]) != VERSION {
            return Err(invalid("the client does not speak SPDY/3"));
        }
        let stream = body.first_chunk().map(|bytes| u32::from_be_bytes(*bytes) & 0x7FFF_FFFF);
        let stream = stream.ok_or_else(|| invalid("a SPDY frame is cut"));
        match u16::from_be_bytes([third, fourth]) {
            SYN_STREAM => {
                // The stream, its parent, priority and slot come before the headers.
                let (stream, block) = (stream?, body.get(10..).unwrap_or_default());
                let headers = self.headers.read(block)?;
                self.reply(stream)?;
                Ok(Some(Event::Opened(stream, headers)))
            }
            // Read only because the blocks are one compressed stream.
            HEADERS => self.headers.read(body.get(4..).unwrap_or_default()).map(|_| None),
            RST_STREAM => Ok(Some(Event::Reset(stream?))),
            PING => self.write(&[&head, body.as_slice()].concat()).map(|()| None),
            GOAWAY => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(None),
        }
    }

    fn reply(&mut self, stream: u32) -> io::Result<()> {
        let mut body = stream.to_be_bytes().to_vec();
        if !std::mem::replace(&mut self.has_replied, true) {
            body.extend_from_slice(&FIRST);
        }
        body.extend_from_slice(&EMPTY);
        let [_, low] = VERSION.to_be_bytes();
        let [_, kind] = SYN_REPLY.to_be_bytes();
        let length = u8::try_from(body.len()).unwrap_or_default();
        self.write(&[&[CONTROL, low, 0, kind, 0, 0, 0, length], body.as_slice()].concat())
    }

    /// Sends bytes on a stream. After `is_last` nothing more may follow.
    ///
    /// # Errors
    /// The client has left.
    pub(crate) fn send(&mut self, stream: u32, bytes: &[u8], is_last: bool) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let flags = u32::from(u8::from(is_last) * FIN) << 24;
        let head = [stream.to_be_bytes(), (flags | length).to_be_bytes()].concat();
        self.write(&[head.as_slice(), bytes].concat())
    }

    fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        match &mut self.carrier {
            Carrier::Connection(connection) => connection.write_all(frame),
            Carrier::Messages(socket) => socket.send(frame.to_vec()),
        }
    }

    /// Gives the client time to read the end and to close.
    pub(crate) fn close(self) -> io::Result<()> {
        match self.carrier {
            Carrier::Messages(socket) => socket.close(),
            Carrier::Connection(mut connection) => {
                let mut piece = vec![0; READ_BYTES];
                drain(&mut connection, |connection| connection.read(&mut piece).map(|n| n > 0))
            }
        }
    }
}

impl AsFd for Spdy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.carrier {
            Carrier::Connection(connection) => connection.as_fd(),
            Carrier::Messages(socket) => socket.as_fd(),
        }
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
