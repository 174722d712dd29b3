//! One connection: reads requests, calls the handler and sends the responses.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::serve::request::{Body, Head, Input, Request, RequestError};
use crate::serve::response::{Output, Responder, ResponseState};
use crate::serve::socket::{Pace, Socket};
use crate::serve::{Handler, Limits};

/// Whether a connection is waiting for its client, and since when.
#[derive(Debug, Default)]
pub(super) struct ClientWait(Mutex<WaitState>);

#[derive(Clone, Copy, Debug, Default)]
enum WaitState {
    /// A request is being answered.
    #[default]
    Busy,
    /// The last response was sent.
    Finished,
    /// Waiting for a request, or for the rest of one.
    WaitingSince(Instant),
}

impl ClientWait {
    fn set(&self, state: WaitState) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// How long the connection has been waiting. `None` while it answers a request; the maximum
    /// after its last response, because it can be closed at any time.
    pub(super) fn time(&self) -> Option<Duration> {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            WaitState::Busy => None,
            WaitState::Finished => Some(Duration::MAX),
            WaitState::WaitingSince(start) => Some(start.elapsed()),
        }
    }
}

/// Serves a connection until it is closed.
pub(super) fn serve(
    socket: &Arc<Socket>,
    limits: &Limits,
    handler: &dyn Handler,
    client_wait: &ClientWait,
) {
    if socket.set_write_timeout(limits.write_timeout).is_err() {
        return;
    }
    let mut input = Input::new(socket, limits);
    let mut output = Output::new(Arc::clone(socket), limits.write_timeout);
    loop {
        output.state = ResponseState::NotStarted;
        client_wait.set(WaitState::WaitingSince(Instant::now()));
        let request = next_request(&mut input, &mut output, handler);
        client_wait.set(WaitState::Busy);
        match request {
            Ok((request, body)) => {
                let responder = Responder::new(&mut output);
                let handled = match body.zip(handler.receiver(&request)) {
                    Some((mut body, receiver)) => receiver.receive(request, &mut body, responder),
                    None => handler.handle(request, responder),
                };
                if output.state == ResponseState::NotStarted {
                    refuse(&mut output, limits, 500, "the request was not answered");
                }
                if handled.is_err() || output.state != ResponseState::Sent || !output.keep_alive {
                    break;
                }
            }
            Err(RequestError::Closed) => break,
            Err(RequestError::Refused(status, why)) => {
                refuse(&mut output, limits, status, why);
                break;
            }
        }
    }
    client_wait.set(WaitState::Finished);
    linger(socket, output.state);
}

/// The next request, with a `Body` if a receiver reads it. Sets in `output` how to respond to it.
fn next_request<'i, 's>(
    input: &'i mut Input<'s>,
    output: &mut Output,
    handler: &dyn Handler,
) -> Result<(Request, Option<Body<'i, 's>>), RequestError> {
    // An invalid request ends the connection, because the start of the next one is unknown.
    output.keep_alive = false;
    output.head_only = false;
    output.is_http10 = false;
    let Head { mut request, framing, expects_continue, is_http10, keep_alive } =
        input.read_head()?;
    output.head_only = request.method == "HEAD";
    output.is_http10 = is_http10;
    if let Some((status, why)) = handler.refuse(&request) {
        return Err(RequestError::Refused(status, why));
    }
    if handler.receiver(&request).is_some() {
        return Ok((request, Some(Body::new(input, framing, expects_continue)?)));
    }
    input.check_length(framing)?;
    if expects_continue && !input.has_bytes() {
        input.send_continue().map_err(|_| RequestError::Closed)?;
    }
    request.body = input.read_body(framing)?;
    output.keep_alive = keep_alive;
    Ok((request, None))
}

/// Sends an error response and closes the connection.
fn refuse(output: &mut Output, limits: &Limits, status: u16, why: &'static str) {
    output.keep_alive = false;
    let body = (limits.refusal)(status, why);
    let mut headers = vec![("content-type", "application/json")];
    if status == 401 {
        headers.push(("www-authenticate", "Bearer"));
    }
    // An error changes nothing, because the connection ends anyway.
    let _ = output.send(status, &headers, body.as_bytes());
}

/// Closes a connection so that the client can read the last response: closing a socket with unread
/// bytes resets the connection, which can discard the response (RFC 9112, 9.6). After an incomplete
/// response the reset is intended.
fn linger(socket: &Socket, state: ResponseState) {
    if state != ResponseState::Sent {
        socket.shutdown(Shutdown::Both);
        return;
    }
    socket.shutdown(Shutdown::Write);
    let pace = Pace::start(LINGER);
    let mut discarded = [0; 4 << 10];
    let mut n_discarded = 0;
    while n_discarded < LINGER_BYTES_MAX {
        let Some(remaining) = pace.remaining(0) else { return };
        if socket.set_read_timeout(remaining).is_err() {
            return;
        }
        match socket.read(&mut discarded) {
            Ok(0) | Err(_) => return,
            Ok(n) => n_discarded += n,
        }
    }
}

/// How long the client gets to read the last response and close the connection.
const LINGER: Duration = Duration::from_secs(1);

/// How many bytes are read and discarded in this time.
const LINGER_BYTES_MAX: usize = 8 << 20;
