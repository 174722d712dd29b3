//! Owns one connection from its first byte to its last: request, answer, request. Does not accept.

use std::net::Shutdown;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::serve::request::{Body, Head, Input, Request, Stop};
use crate::serve::response::{Answer, Output, Responder};
use crate::serve::socket::{Pace, Socket};
use crate::serve::{Handler, Limits};

/// How long a connection waits for its client: for the next request, or the rest of one.
#[derive(Debug, Default)]
pub(super) struct Waiting(Mutex<Step>);

#[derive(Clone, Copy, Debug, Default)]
enum Step {
    /// A request is being answered.
    #[default]
    AtWork,
    /// Its last answer is sent.
    Over,
    Since(Instant),
}

impl Waiting {
    fn set(&self, step: Step) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// None where it does not wait; without end where there is nothing to wait for.
    pub(super) fn time(&self) -> Option<Duration> {
        match *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Step::AtWork => None,
            Step::Over => Some(Duration::MAX),
            Step::Since(begun) => Some(begun.elapsed()),
        }
    }
}

/// Serves a connection until it ends.
pub(super) fn serve(
    socket: &Arc<Socket>,
    limits: &Limits,
    handler: &dyn Handler,
    waiting: &Waiting,
) {
    if socket.set_write_timeout(limits.write_timeout).is_err() {
        return;
    }
    let mut input = Input::new(socket, limits);
    let mut output = Output::new(Arc::clone(socket), limits.write_timeout);
    loop {
        output.answer = Answer::Owed;
        waiting.set(Step::Since(Instant::now()));
        let request = next_request(&mut input, &mut output, handler);
        waiting.set(Step::AtWork);
        match request {
            Ok((request, body)) => {
                let responder = Responder::new(&mut output);
                let handled = match body.zip(handler.receiver(&request)) {
                    Some((mut body, receiver)) => receiver.receive(request, &mut body, responder),
                    None => handler.handle(request, responder),
                };
                if output.answer == Answer::Owed {
                    refuse(&mut output, limits, 500, "the request was not answered");
                }
                if handled.is_err() || output.answer != Answer::Sent || !output.keep_alive {
                    break;
                }
            }
            Err(Stop::Closed) => break,
            Err(Stop::Refused(status, why)) => {
                refuse(&mut output, limits, status, why);
                break;
            }
        }
    }
    waiting.set(Step::Over);
    linger(socket, output.answer);
}

/// The next request with its body, or the way to it; `output` learns how to answer it.
fn next_request<'i, 's>(
    input: &'i mut Input<'s>,
    output: &mut Output,
    handler: &dyn Handler,
) -> Result<(Request, Option<Body<'i, 's>>), Stop> {
    // Until the request is understood, the end of the connection is all that can be promised.
    output.keep_alive = false;
    output.head_only = false;
    output.old_client = false;
    let Head { mut request, framing, expects_continue, old_client, keep_alive } =
        input.read_head()?;
    output.head_only = request.method == "HEAD";
    output.old_client = old_client;
    if let Some((status, why)) = handler.refuse(&request) {
        return Err(Stop::Refused(status, why));
    }
    if handler.receiver(&request).is_some() {
        return Ok((request, Some(Body::new(input, framing, expects_continue)?)));
    }
    input.check_length(framing)?;
    if expects_continue && !input.has_bytes() {
        input.ask().map_err(|_| Stop::Closed)?;
    }
    request.body = input.read_body(framing)?;
    output.keep_alive = keep_alive;
    Ok((request, None))
}

/// Tells the client what is wrong.
fn refuse(output: &mut Output, limits: &Limits, status: u16, why: &'static str) {
    output.keep_alive = false;
    let body = (limits.refusal)(status, why);
    let mut headers = vec![("content-type", "application/json")];
    if status == 401 {
        headers.push(("www-authenticate", "Bearer"));
    }
    // The connection ends either way.
    let _ = output.send(status, &headers, body.as_bytes());
}

/// Ends a connection so that the client can read the last answer: closing with unread bytes would
/// reset it, and the answer might be lost. An answer that was cut short is reset on purpose.
fn linger(socket: &Socket, answer: Answer) {
    if answer != Answer::Sent {
        socket.shutdown(Shutdown::Both);
        return;
    }
    socket.shutdown(Shutdown::Write);
    let pace = Pace::start(LINGER);
    let mut scrap = [0; 4 << 10];
    let mut n_scrapped = 0;
    while n_scrapped < LINGER_BYTES_MAX {
        let Some(left) = pace.left(0) else { return };
        if socket.set_read_timeout(left).is_err() {
            return;
        }
        match socket.read(&mut scrap) {
            Ok(0) | Err(_) => return,
            Ok(n) => n_scrapped += n,
        }
    }
}

/// How long a client gets to read the last answer and hang up.
const LINGER: Duration = Duration::from_secs(1);

/// What is read from it meanwhile.
const LINGER_BYTES_MAX: usize = 1 << 20;
