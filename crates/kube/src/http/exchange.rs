//! One request and its answer as bytes, without a socket and without a wait.

use std::io;
use std::mem;

use ureq::http;
use ureq_proto::BodyMode;
use ureq_proto::client::{
    Call, RecvBodyResult, RecvResponseResult, SendRequestResult,
    state::{RecvBody, RecvResponse},
};

use super::{Response, complete, too_large};

/// The largest head of an answer that is accepted, in bytes: as ureq's own.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Room for the first line of a request, and for the headers that this module does not know.
const HEAD_BYTES_SPARE: usize = 1 << 10;

/// A request that was sent, and what has arrived of its answer.
pub(super) struct Exchange {
    state: State,
    body_bytes_max: u64,
}

enum State {
    Head(Call<RecvResponse>),
    Body(Call<RecvBody>, Response),
    Over,
}

/// A complete answer.
pub(super) struct Answer {
    pub(super) response: Response,
    /// The connection can be used again.
    pub(super) keeps_connection: bool,
}

impl Exchange {
    /// The exchange, and the bytes of the request. `head` has the length of the body, if there is one.
    ///
    /// # Errors
    /// The head is not valid in HTTP.
    pub(super) fn start(
        head: http::Request<()>,
        body: Option<&[u8]>,
        body_bytes_max: u64,
    ) -> Result<(Self, Vec<u8>), ureq::Error> {
        let headers =
            head.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4);
        let n_bytes = headers.sum::<usize>() + head.uri().to_string().len() + HEAD_BYTES_SPARE;
        let mut bytes = vec![0; n_bytes];
        let mut call = Call::new(head)?;
        if body.is_some() {
            call.force_send_body();
        }
        let mut call = call.proceed();
        let n_written = call.write(&mut bytes)?;
        bytes.truncate(n_written);
        let call = match call.proceed()? {
            Some(SendRequestResult::RecvResponse(call)) => Some(call),
            Some(SendRequestResult::SendBody(mut call)) => {
                let body = body.unwrap_or_default();
                call.consume_direct_write(body.len())?;
                bytes.extend_from_slice(body);
                call.proceed()
            }
            // posse sends no `Expect`, and the head has room.
            Some(SendRequestResult::Await100(_)) | None => None,
        };
        let call = call.ok_or(ureq::Error::Protocol(ureq_proto::Error::OutputOverflow))?;
        Ok((Self { state: State::Head(call), body_bytes_max }, bytes))
    }

    /// Takes out of `input` what has arrived; none: the answer is not complete yet.
    ///
    /// # Errors
    /// It is no answer in HTTP, or it is too large.
    pub(super) fn take(&mut self, input: &mut Vec<u8>) -> Result<Option<Answer>, ureq::Error> {
        if let State::Head(call) = &mut self.state {
            let Some(head) = read_head(call, input)? else { return Ok(None) };
            let State::Head(call) = mem::replace(&mut self.state, State::Over) else {
                return Ok(None);
            };
            let response = complete(&head, Vec::new());
            let is_closed = match call.proceed() {
                Some(RecvResponseResult::RecvBody(call)) => {
                    self.state = State::Body(call, response);
                    return self.take(input);
                }
                Some(RecvResponseResult::Cleanup(call)) => call.must_close_connection(),
                Some(RecvResponseResult::Redirect(call)) => call.must_close_connection(),
                None => true,
            };
            return Ok(Some(Answer { response, keeps_connection: !is_closed }));
        }
        let State::Body(call, response) = &mut self.state else { return Ok(None) };
        let is_over = read_body(call, input, &mut response.body)?;
        if response.body.len() as u64 > self.body_bytes_max {
            return Err(too_large(self.body_bytes_max));
        }
        Ok(if is_over { self.finish() } else { None })
    }

    /// The connection has ended. An answer without a length is complete with that.
    ///
    /// # Errors
    /// It is not complete.
    pub(super) fn end(&mut self) -> Result<Answer, ureq::Error> {
        let lost = || io::Error::new(io::ErrorKind::UnexpectedEof, "Peer disconnected");
        self.finish().ok_or_else(|| lost().into())
    }

    fn finish(&mut self) -> Option<Answer> {
        match mem::replace(&mut self.state, State::Over) {
            State::Body(call, response) => {
                let is_closed = match call.proceed()? {
                    RecvBodyResult::Cleanup(call) => call.must_close_connection(),
                    RecvBodyResult::Redirect(call) => call.must_close_connection(),
                };
                Some(Answer { response, keeps_connection: !is_closed })
            }
            State::Head(_) | State::Over => None,
        }
    }
}

/// The head of the answer, after interim answers (1xx).
fn read_head(
    call: &mut Call<RecvResponse>,
    input: &mut Vec<u8>,
) -> Result<Option<http::Response<()>>, ureq::Error> {
    loop {
        let (n_used, head) = call.try_response(input, false)?;
        input.drain(..n_used);
        if head.is_some() {
            return Ok(head);
        }
        if input.len() > HEAD_BYTES_MAX {
            return Err(ureq::Error::LargeResponseHeader(input.len(), HEAD_BYTES_MAX));
        }
        if n_used == 0 {
            return Ok(None);
        }
    }
}

/// Moves what belongs to the body. True: it is complete.
fn read_body(
    call: &mut Call<RecvBody>,
    input: &mut Vec<u8>,
    body: &mut Vec<u8>,
) -> Result<bool, ureq::Error> {
    let ends_with_connection = call.body_mode() == BodyMode::CloseDelimited;
    let (mut n_used, mut is_over) = (0, false);
    while !is_over {
        let (rest, n_before) = (&input[n_used..], body.len());
        body.resize(n_before + rest.len(), 0);
        let (n_taken, n_put) = call.read(rest, &mut body[n_before..])?;
        body.truncate(n_before + n_put);
        n_used += n_taken;
        is_over = call.can_proceed() && !ends_with_connection;
        if n_taken == 0 {
            break;
        }
    }
    input.drain(..n_used);
    Ok(is_over)
}
