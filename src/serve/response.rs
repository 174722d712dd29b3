//! Owns the way out: status line, headers, bodies and chunks. Does not read requests.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::serve::socket::Socket;

/// The way out of one connection, and how far the present answer got.
#[derive(Debug)]
pub(super) struct Output {
    socket: Arc<Socket>,
    write_timeout: Duration,
    buffer: Vec<u8>,
    /// The request was a HEAD: headers as for a GET, and no body.
    pub(super) head_only: bool,
    /// The client speaks HTTP/1.0: it knows no chunks, the end of the stream is the end.
    pub(super) old_client: bool,
    /// The connection stays open after this answer.
    pub(super) keep_alive: bool,
    /// What has become of the present answer.
    pub(super) answer: Answer,
}

/// How far an answer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Nothing was sent.
    Owed,
    /// It was begun, and not (yet) ended: the connection can carry nothing else.
    Begun,
    /// It was sent whole.
    Sent,
}

impl Output {
    pub(super) fn new(socket: Arc<Socket>, write_timeout: Duration) -> Self {
        Self {
            socket,
            write_timeout,
            buffer: Vec::new(),
            head_only: false,
            old_client: false,
            keep_alive: false,
            answer: Answer::Owed,
        }
    }

    /// Sends a whole answer.
    pub(super) fn send(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<()> {
        self.begin(status, headers);
        let has_body = !matches!(status, 100..=199 | 204 | 304);
        if has_body {
            push(&mut self.buffer, &["content-length: ", &body.len().to_string(), "\r\n"]);
        }
        self.buffer.extend_from_slice(b"\r\n");
        let body = if has_body && !self.head_only { body } else { &[] };
        // One write where it is small: one packet, and one wake-up of the client.
        if body.len() <= BUFFER_BYTES_KEPT {
            self.buffer.extend_from_slice(body);
            self.flush_buffer()?;
        } else {
            self.flush_buffer()?;
            self.socket.write_all(body, self.write_timeout)?;
        }
        self.answer = Answer::Sent;
        Ok(())
    }

    fn begin(&mut self, status: u16, headers: &[(&str, &str)]) {
        self.answer = Answer::Begun;
        self.buffer.clear();
        push(&mut self.buffer, &["HTTP/1.1 ", &status.to_string(), " ", reason(status), "\r\n"]);
        for (name, value) in headers {
            push(&mut self.buffer, &[name, ": "]);
            // A line end in a value would be a header, or an answer, of the client's making.
            let clean = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
            self.buffer.extend(value.bytes().map(clean));
            self.buffer.extend_from_slice(b"\r\n");
        }
        if !self.keep_alive {
            self.buffer.extend_from_slice(b"connection: close\r\n");
        }
    }

    fn flush_buffer(&mut self) -> io::Result<()> {
        let answer = self.socket.write_all(&self.buffer, self.write_timeout);
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        answer
    }
}

/// The one way to answer one request.
#[derive(Debug)]
pub struct Responder<'a> {
    output: &'a mut Output,
}

impl<'a> Responder<'a> {
    pub(super) fn new(output: &'a mut Output) -> Self {
        Self { output }
    }

    /// Answers with `body`; its length and the connection's fate are added to `headers`.
    ///
    /// # Errors
    /// The client has gone or takes nothing.
    pub fn send(self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        self.output.send(status, headers, body)
    }

    /// Answers with the `length` bytes that `body` gives, which are never held all at once. Where
    /// it gives fewer the connection is cut, so that the client knows.
    ///
    /// # Errors
    /// The client has gone or takes nothing, or `body` cannot be read.
    pub fn send_from(
        self,
        status: u16,
        headers: &[(&str, &str)],
        length: u64,
        body: &mut dyn Read,
    ) -> io::Result<()> {
        let output = self.output;
        output.begin(status, headers);
        push(&mut output.buffer, &["content-length: ", &length.to_string(), "\r\n\r\n"]);
        output.flush_buffer()?;
        let mut left = if output.head_only { 0 } else { length };
        let mut block = vec![0; BLOCK_BYTES];
        while left > 0 {
            let room = usize::try_from(left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
            let n_read = body.read(&mut block[..room])?;
            if n_read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            output.socket.write_all(&block[..n_read], output.write_timeout)?;
            left -= n_read as u64;
        }
        output.answer = Answer::Sent;
        Ok(())
    }

    /// Ends the connection without an answer.
    pub fn cut(self) {
        self.output.keep_alive = false;
        self.output.answer = Answer::Begun;
    }

    /// Sends the headers at once and goes on with chunks.
    ///
    /// # Errors
    /// The client has gone or takes nothing.
    pub fn stream(self, status: u16, headers: &[(&str, &str)]) -> io::Result<ChunkWriter<'a>> {
        let output = self.output;
        if output.old_client {
            output.keep_alive = false;
        }
        output.begin(status, headers);
        let end: &[u8] =
            if output.old_client { b"\r\n" } else { b"transfer-encoding: chunked\r\n\r\n" };
        output.buffer.extend_from_slice(end);
        output.flush_buffer()?;
        Ok(ChunkWriter { output, buffer: vec![0; CHUNK_HEAD_BYTES] })
    }
}

/// A body that is written bit by bit: buffered, one chunk and one system call for each `flush`,
/// and for each `CHUNK_BYTES_MAX` in between. Dropped without `finish` the connection is cut, so
/// that the client knows that it did not get everything.
#[derive(Debug)]
pub struct ChunkWriter<'a> {
    output: &'a mut Output,
    /// Room for the chunk's head, then its bytes.
    buffer: Vec<u8>,
}

impl ChunkWriter<'_> {
    /// False where the client has gone, or the server is being stopped. Never waits.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.output.socket.is_open()
    }

    /// Ends the body properly.
    ///
    /// # Errors
    /// The client has gone or takes nothing.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        if !self.output.old_client && !self.output.head_only {
            self.output.socket.write_all(b"0\r\n\r\n", self.output.write_timeout)?;
        }
        self.output.answer = Answer::Sent;
        Ok(())
    }
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_HEAD_BYTES + CHUNK_BYTES_MAX - self.buffer.len();
        let taken = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..taken]);
        if self.buffer.len() == CHUNK_HEAD_BYTES + CHUNK_BYTES_MAX {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        let n_bytes = self.buffer.len() - CHUNK_HEAD_BYTES;
        if n_bytes == 0 {
            return Ok(());
        }
        if self.output.head_only {
            self.buffer.truncate(CHUNK_HEAD_BYTES);
            return Ok(());
        }
        let mut start = CHUNK_HEAD_BYTES;
        if !self.output.old_client {
            // The head ends where the bytes begin, so that one write takes both.
            let head = format!("{n_bytes:x}\r\n");
            start -= head.len();
            self.buffer[start..CHUNK_HEAD_BYTES].copy_from_slice(head.as_bytes());
            self.buffer.extend_from_slice(b"\r\n");
        }
        let answer = self.output.socket.write_all(&self.buffer[start..], self.output.write_timeout);
        self.buffer.truncate(CHUNK_HEAD_BYTES);
        answer
    }
}

fn push(buffer: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        buffer.extend_from_slice(part.as_bytes());
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        201 => "Created",
        202 => "Accepted",
        204 => "No Content",
        206 => "Partial Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        410 => "Gone",
        411 => "Length Required",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        416 => "Range Not Satisfiable",
        417 => "Expectation Failed",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        507 => "Insufficient Storage",
        // The phrase may be empty; only people read it.
        _ => "",
    }
}

/// Larger bodies are written without being copied; the buffer is never kept larger.
const BUFFER_BYTES_KEPT: usize = 16 << 10;

/// What is read of a large body at once; each such block is given the time of one write.
const BLOCK_BYTES: usize = 64 << 10;

/// A chunk is sent at the latest when it is this large.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Room for the size of a chunk in hexadecimal and its line end.
const CHUNK_HEAD_BYTES: usize = 10;
