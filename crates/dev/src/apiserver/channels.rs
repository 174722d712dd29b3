//! The channels of `exec` in the messages of a web socket: protocols v4 and v5 of the kubelet
//! (`k8s.io/kubelet`, remotecommand).

use std::io;

use serde_json::Value;

use crate::apiserver::web_socket::{self, Socket};
use crate::schema::status::StatusError;
use posse_serve::Request;

/// v5 lets the client close stdin (KEP-4006); nothing else differs.
const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

pub(super) const STDIN: u8 = 0;
pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
const ERROR: u8 = 3;
pub(super) const RESIZE: u8 = 4;
/// v5: the next byte is the channel that the sender closes.
const CLOSE: u8 = 255;

/// What the client sent.
pub(super) struct Input {
    pub(super) channel: u8,
    pub(super) bytes: Vec<u8>,
    /// Nothing more comes on this channel.
    pub(super) is_last: bool,
}

/// The open channels.
pub(super) struct Channels(pub(super) Socket);

/// Chooses the protocol.
pub(super) fn protocol(request: &Request) -> Result<&str, StatusError> {
    let mut offered = web_socket::protocols(request);
    offered.find(|offered| PROTOCOLS.contains(offered)).ok_or_else(|| {
        let message = format!("unable to upgrade: the protocols are {}", PROTOCOLS.join(", "));
        StatusError::bad_request(message)
    })
}

impl Channels {
    /// What has arrived; `WouldBlock` if there is nothing, `UnexpectedEof` after the client has closed.
    pub(super) fn read_now(&mut self) -> io::Result<Input> {
        loop {
            let message = self.0.read_now()?;
            match message.split_first() {
                Some((&CLOSE, [channel])) => {
                    return Ok(Input { channel: *channel, bytes: Vec::new(), is_last: true });
                }
                Some((channel, bytes)) => {
                    let (channel, bytes) = (*channel, bytes.to_vec());
                    return Ok(Input { channel, bytes, is_last: false });
                }
                None => {}
            }
        }
    }

    /// Says how the command ended, and closes.
    pub(super) fn end(mut self, status: &Value) -> io::Result<()> {
        self.0.send_on(ERROR, status.to_string().as_bytes())?;
        self.0.close()
    }
}
