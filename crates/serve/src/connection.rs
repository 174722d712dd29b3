//! One connection: reads requests, calls the handler and sends the responses.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::request::{Body, Head, Input, Request, RequestError};
use crate::response::{Output, Responder, ResponseState};
use crate::slots::Slot;
use crate::socket::Socket;
use crate::{Handler, Limits, Rejection};

/// Serves a connection until it is closed.
pub(super) fn serve(slot: &Slot, handler: &dyn Handler) {
    let limits = slot.limits();
    let mut input = Input::new(&slot.socket, limits);
    let mut output = Output::new(Arc::clone(&slot.socket), limits.write_timeout);
    loop {
        output.state = ResponseState::NotStarted;
        match next_request(&mut input, &mut output, slot, handler) {
            Ok((request, body)) => {
                let responder = Responder { output: &mut output };
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
            Err(RequestError::Rejected(Rejection { status, body })) => {
                send_error(&mut output, status, &body);
                break;
            }
        }
    }
    linger(&slot.socket, output.state);
}

/// The next request, with a `Body` if a receiver reads it. Sets in `output` how to respond to it.
fn next_request<'i, 's>(
    input: &'i mut Input<'s>,
    output: &mut Output,
    slot: &Slot,
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
    let full = RequestError::Refused(slot.limits().full_status, "too many connections");
    if let Some((status, why)) = handler.refuse(&request) {
        return Err(RequestError::Refused(status, why));
    }
    if let Some(receiver) = handler.receiver(&request) {
        // While the check waits for another server, others can use the regular slot.
        if receiver.authorize_waits() && !slot.make_spare() {
            return Err(full);
        }
        receiver.authorize(&request, slot.socket.address()).map_err(RequestError::Rejected)?;
        if !slot.make_regular() {
            return Err(full);
        }
        return Ok((request, Some(Body::new(input, framing, expects_continue)?)));
    }
    if !handler.is_probe(&request) && !slot.make_regular() {
        return Err(full);
    }
    input.check_length(framing)?;
    if expects_continue && !input.has_bytes() {
        input.send_continue().map_err(|_| RequestError::Closed)?;
    }
    request.body = input.read_body(framing)?;
    output.keep_alive = keep_alive && slot.is_regular();
    Ok((request, None))
}

/// Sends an error response and closes the connection.
fn refuse(output: &mut Output, limits: &Limits, status: u16, why: &'static str) {
    send_error(output, status, (limits.refusal)(status, why).as_bytes());
}

fn send_error(output: &mut Output, status: u16, body: &[u8]) {
    output.keep_alive = false;
    let mut headers = vec![("content-type", "application/json")];
    match status {
        401 => headers.push(("www-authenticate", "Bearer")),
        429 | 503 => headers.push(("retry-after", RETRY_AFTER_S)),
        _ => {}
    }
    // An error changes nothing, because the connection ends anyway.
    let _ = output.send(status, &headers, &[body]);
}

/// Closes a connection so that the client can read the last response: closing a socket with unread
/// bytes resets the connection, which can discard the response (RFC 9112, 9.6). After an incomplete
/// response the reset is intended.
fn linger(socket: &Socket, state: ResponseState) {
    if state != ResponseState::Sent {
        socket.shutdown(Shutdown::Both);
        return;
    }
    // First: when the client sees the end, its next connection may need this one's slot.
    socket.start_pace(LINGER);
    socket.finish();
    socket.shutdown(Shutdown::Write);
    let mut discarded = [0; 4 << 10];
    let mut n_discarded = 0;
    while n_discarded < LINGER_BYTES_MAX {
        match socket.read(&mut discarded) {
            Ok(0) | Err(_) => return,
            Ok(n) => n_discarded += n,
        }
    }
}

/// When a client should try again that found no slot, in seconds.
const RETRY_AFTER_S: &str = "1";

/// How long the client gets to read the last response and close the connection.
const LINGER: Duration = Duration::from_secs(1);

/// How many bytes are read and discarded in this time.
const LINGER_BYTES_MAX: usize = 8 << 20;
