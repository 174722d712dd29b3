//! The client of `exec` and `attach`: the channels of a web socket (protocols v4 and v5 of the kubelet,
//! `k8s.io/kubelet`, remotecommand), or SPDY streams (v4), which kubectl used before 1.31.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use serde_json::Value;

use crate::apiserver::spdy::{self, Event, Spdy};
use crate::apiserver::web_socket::{self, Socket, wait_ready};
use crate::schema::status::StatusError;
use posse_serve::{Request, Responder};

/// v5 lets the client close stdin (KEP-4006); nothing else differs.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", V4];
/// SPDY closes each direction of a stream, so v5 adds nothing there.
const V4: &str = "v4.channel.k8s.io";

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
pub(super) const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;
/// v5: the next byte is the channel that the sender closes.
const CLOSE: u8 = 255;

/// The values of a SPDY stream's header `streamType`, by channel.
const STREAM_TYPES: [&str; 5] = ["stdin", "stdout", "stderr", "error", "resize"];

/// The client of SPDY gets this long to open its streams, as in the kubelet.
const STREAMS_WAIT: Duration = Duration::from_secs(30);

/// How the client wants to talk.
pub(super) enum Handshake<'a> {
    WebSocket(&'a str),
    Spdy,
}

/// What the client sent.
pub(super) struct Input {
    pub(super) channel: u8,
    pub(super) bytes: Vec<u8>,
    /// Nothing more comes on this channel.
    pub(super) is_last: bool,
}

/// The open channels.
pub(super) enum Channels {
    WebSocket(Socket),
    /// With the streams' numbers, by channel.
    Spdy(Spdy, [Option<u32>; 5]),
}

/// Chooses the protocol.
pub(super) fn handshake(request: &Request) -> Result<Handshake<'_>, StatusError> {
    let offered = web_socket::protocols(request).find(|offered| PROTOCOLS.contains(offered));
    match offered {
        Some(protocol) if web_socket::is_wanted(request) => Ok(Handshake::WebSocket(protocol)),
        Some(_) | None if spdy::is_wanted(request) && spdy::offers(request, V4) => {
            Ok(Handshake::Spdy)
        }
        Some(_) | None => {
            let message = format!("unable to upgrade: the protocols are {}", PROTOCOLS.join(", "));
            Err(StatusError::bad_request(message))
        }
    }
}

impl Channels {
    /// Switches the protocol. A client of SPDY opens its streams: `wanted`, and that of errors.
    pub(super) fn open(
        handshake: Handshake<'_>,
        wanted: &[u8],
        request: &Request,
        responder: Responder<'_>,
    ) -> io::Result<Self> {
        let mut spdy = match handshake {
            Handshake::WebSocket(protocol) => {
                return Socket::accept(request, protocol, responder).map(Self::WebSocket);
            }
            Handshake::Spdy => Spdy::accept(V4, responder)?,
        };
        let mut streams = [None; 5];
        let deadline = Instant::now() + STREAMS_WAIT;
        while streams[usize::from(ERROR)].is_none()
            || wanted.iter().any(|channel| streams[usize::from(*channel)].is_none())
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            match spdy.read_now() {
                Ok(Event::Opened(stream, headers)) => {
                    let of =
                        headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("streamType"));
                    let channel =
                        STREAM_TYPES.iter().position(|name| of.is_some_and(|of| of.1 == *name));
                    if let Some(known) = channel.and_then(|channel| streams.get_mut(channel)) {
                        *known = Some(stream);
                    }
                }
                Ok(Event::Data(..) | Event::Reset(_)) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    wait_ready(&mut [PollFd::new(&spdy, PollFlags::IN)], left)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Self::Spdy(spdy, streams))
    }

    /// What has arrived; `WouldBlock` if there is nothing, `UnexpectedEof` after the client has closed.
    pub(super) fn read_now(&mut self) -> io::Result<Input> {
        loop {
            match self {
                Self::WebSocket(socket) => {
                    let message = socket.read_now()?;
                    match message.split_first() {
                        Some((&CLOSE, [channel])) => {
                            return Ok(Input {
                                channel: *channel,
                                bytes: Vec::new(),
                                is_last: true,
                            });
                        }
                        Some((channel, bytes)) => {
                            let (channel, bytes) = (*channel, bytes.to_vec());
                            return Ok(Input { channel, bytes, is_last: false });
                        }
                        None => {}
                    }
                }
                Self::Spdy(spdy, streams) => {
                    let (stream, bytes, is_last) = match spdy.read_now()? {
                        Event::Data(stream, bytes, is_last) => (stream, bytes, is_last),
                        Event::Reset(stream) => (stream, Vec::new(), true),
                        Event::Opened(..) => continue,
                    };
                    let channel = streams.iter().position(|known| *known == Some(stream));
                    if let Some(channel) = channel.and_then(|channel| u8::try_from(channel).ok()) {
                        return Ok(Input { channel, bytes, is_last });
                    }
                }
            }
        }
    }

    /// Sends what is not empty.
    pub(super) fn send(&mut self, channel: u8, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::WebSocket(socket) => socket.send_on(channel, bytes),
            Self::Spdy(spdy, streams) => match streams.get(usize::from(channel)) {
                Some(Some(stream)) => spdy.send(*stream, bytes, false),
                Some(None) | None => Ok(()),
            },
        }
    }

    /// Says how the command ended, and closes.
    pub(super) fn end(mut self, status: &Value) -> io::Result<()> {
        self.send(ERROR, status.to_string().as_bytes())?;
        match self {
            Self::WebSocket(socket) => socket.close(),
            Self::Spdy(mut spdy, streams) => {
                for stream in streams.into_iter().flatten() {
                    spdy.send(stream, &[], true)?;
                }
                spdy.close()
            }
        }
    }
}

impl AsFd for Channels {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::WebSocket(socket) => socket.as_fd(),
            Self::Spdy(spdy, _) => spdy.as_fd(),
        }
    }
}
