//! Writes responses: status line, headers, bodies and chunks.

use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::Peer;
use crate::socket::Socket;
use crate::upgrade::Upgraded;

/// The sending side of a connection, and the state of the current response.
#[derive(Debug)]
pub(super) struct Output {
    socket: Arc<Socket>,
    write_timeout: Duration,
    buffer: Vec<u8>,
    /// The request is a HEAD: send the headers of a GET and no body.
    pub(super) head_only: bool,
    /// The client speaks HTTP/1.0, which has no chunks: the end of the connection ends the body.
    pub(super) is_http10: bool,
    /// The connection stays open after this response.
    pub(super) keep_alive: bool,
    pub(super) state: ResponseState,
}

/// How much of the current response was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseState {
    NotStarted,
    /// Started and not finished: nothing else can be sent on this connection.
    Started,
    /// Sent completely.
    Sent,
}

impl Output {
    pub(super) fn new(socket: Arc<Socket>, write_timeout: Duration) -> Self {
        Self {
            socket,
            write_timeout,
            buffer: Vec::new(),
            head_only: false,
            is_http10: false,
            keep_alive: false,
            state: ResponseState::NotStarted,
        }
    }

    /// Sends a complete response, whose body is made of `parts`.
    pub(super) fn send(
        &mut self,
        status: u16,
        headers: &[(&str, &str)],
        parts: &[&[u8]],
    ) -> io::Result<()> {
        self.begin(status, headers);
        let has_body = !matches!(status, 100..=199 | 204 | 304);
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if has_body {
            push(&mut self.buffer, &["content-length: ", &length.to_string(), "\r\n"]);
        }
        self.buffer.extend_from_slice(b"\r\n");
        let parts = if has_body && !self.head_only { parts } else { &[] };
        // A small response needs one write, so one packet.
        if length <= BUFFER_BYTES_KEPT {
            parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
            self.flush_buffer()?;
        } else {
            self.flush_buffer()?;
            let mut parts: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            self.socket.write_all_parts(&mut parts)?;
        }
        self.state = ResponseState::Sent;
        Ok(())
    }

    fn begin(&mut self, status: u16, headers: &[(&str, &str)]) {
        self.state = ResponseState::Started;
        self.socket.start_pace(self.write_timeout);
        self.buffer.clear();
        push(&mut self.buffer, &["HTTP/1.1 ", &status.to_string(), " ", reason(status), "\r\n"]);
        for (name, value) in headers {
            push(&mut self.buffer, &[name, ": "]);
            // A line break in a value would allow response splitting.
            let clean = |byte: u8| if byte.is_ascii_control() { b' ' } else { byte };
            self.buffer.extend(value.bytes().map(clean));
            self.buffer.extend_from_slice(b"\r\n");
        }
        if !self.keep_alive {
            self.buffer.extend_from_slice(b"connection: close\r\n");
        }
    }

    fn flush_buffer(&mut self) -> io::Result<()> {
        let result = self.socket.write_all(&self.buffer);
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        result
    }
}

/// Sends the response to one request. All methods fail if the client has disconnected or does not
/// read in time.
#[derive(Debug)]
pub struct Responder<'a> {
    pub(super) output: &'a mut Output,
}

impl<'a> Responder<'a> {
    /// Who the client is, as far as the system tells.
    pub fn peer(&self) -> Peer {
        self.output.socket.peer()
    }

    /// Sends a response with `body`. `content-length` and `connection` are added to `headers`.
    pub fn send(self, status: u16, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        self.output.send(status, headers, &[body])
    }

    /// The same with a body that is in parts.
    pub fn send_parts(
        self,
        status: u16,
        headers: &[(&str, &str)],
        parts: &[&[u8]],
    ) -> io::Result<()> {
        self.output.send(status, headers, parts)
    }

    /// Sends `length` bytes from `body` in blocks. If `body` ends early, the connection is cut, so
    /// that the client notices.
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
        let mut remaining = if output.head_only { 0 } else { length };
        let mut block = vec![0; BLOCK_BYTES];
        while remaining > 0 {
            let room = usize::try_from(remaining).map_or(BLOCK_BYTES, |n| n.min(BLOCK_BYTES));
            let n_read = body.read(&mut block[..room])?;
            if n_read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            output.socket.write_all(&block[..n_read])?;
            remaining -= n_read as u64;
        }
        output.state = ResponseState::Sent;
        Ok(())
    }

    /// Answers `101 Switching Protocols` and gives the connection away. It is closed when the
    /// request has been handled.
    pub fn upgrade(self, headers: &[(&str, &str)]) -> io::Result<Upgraded> {
        let output = self.output;
        // Keeps `connection: close` away, which contradicts `connection: upgrade`.
        output.keep_alive = true;
        output.begin(101, headers);
        output.buffer.extend_from_slice(b"\r\n");
        output.flush_buffer()?;
        Ok(Upgraded { socket: Arc::clone(&output.socket), write_timeout: output.write_timeout })
    }

    /// Closes the connection without a response.
    pub fn cut(self) {
        self.output.keep_alive = false;
        self.output.state = ResponseState::Started;
    }

    /// Sends the headers at once; the body follows in chunks.
    pub fn stream(self, status: u16, headers: &[(&str, &str)]) -> io::Result<ChunkWriter<'a>> {
        let output = self.output;
        if output.is_http10 {
            output.keep_alive = false;
        }
        output.begin(status, headers);
        let end: &[u8] =
            if output.is_http10 { b"\r\n" } else { b"transfer-encoding: chunked\r\n\r\n" };
        output.buffer.extend_from_slice(end);
        output.flush_buffer()?;
        Ok(ChunkWriter { output, buffer: vec![0; CHUNK_HEAD_BYTES] })
    }
}

/// Writes a body in chunks. Bytes are buffered; each `flush`, or each `CHUNK_BYTES_MAX`, sends one
/// chunk with one system call. Without `finish` the connection is cut, so that the client knows
/// that the body is incomplete.
#[derive(Debug)]
pub struct ChunkWriter<'a> {
    output: &'a mut Output,
    /// Space for the chunk's head, then the chunk's bytes.
    buffer: Vec<u8>,
}

impl ChunkWriter<'_> {
    /// False if the client has disconnected or the server is stopping. Does not block.
    pub fn is_open(&self) -> bool {
        self.output.socket.is_open()
    }

    /// Ends the body.
    pub fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        if !self.output.is_http10 && !self.output.head_only {
            self.output.socket.write_all(b"0\r\n\r\n")?;
        }
        self.output.state = ResponseState::Sent;
        Ok(())
    }
}

impl Write for ChunkWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = CHUNK_HEAD_BYTES + CHUNK_BYTES_MAX - self.buffer.len();
        let n = bytes.len().min(room);
        self.buffer.extend_from_slice(&bytes[..n]);
        if self.buffer.len() == CHUNK_HEAD_BYTES + CHUNK_BYTES_MAX {
            self.flush()?;
        }
        Ok(n)
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
        if !self.output.is_http10 {
            // The head goes directly before the bytes, so that one write sends both.
            let head = format!("{n_bytes:x}\r\n");
            start -= head.len();
            self.buffer[start..CHUNK_HEAD_BYTES].copy_from_slice(head.as_bytes());
            self.buffer.extend_from_slice(b"\r\n");
        }
        // A stream may last for days, so each chunk has a pace of its own.
        self.output.socket.start_pace(self.output.write_timeout);
        let result = self.output.socket.write_all(&self.buffer[start..]);
        self.buffer.truncate(CHUNK_HEAD_BYTES);
        result
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
        101 => "Switching Protocols",
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
        // The reason phrase may be empty (RFC 9112, 4).
        _ => "",
    }
}

/// Larger bodies are written without a copy into the buffer, which shrinks to this size.
const BUFFER_BYTES_KEPT: usize = 16 << 10;

/// Block size of `send_from`.
const BLOCK_BYTES: usize = 64 << 10;

/// The largest chunk.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// Space for a chunk's size in hexadecimal and CR LF.
const CHUNK_HEAD_BYTES: usize = 10;
