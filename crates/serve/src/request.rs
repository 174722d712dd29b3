//! Reads requests: one head and body at a time from the bytes of a connection. Violations of HTTP
//! or of the limits become `RequestError::Refused` with the status code of the response.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::Shutdown;

use crate::socket::{Socket, is_timeout};
use crate::{Limits, Rejection};

/// One complete request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// As sent; methods are case-sensitive.
    pub method: String,
    /// As sent, not decoded, without the query.
    pub path: String,
    /// Decoded names and values in order; a name without `=` has an empty value.
    pub query: Vec<(String, String)>,
    /// The host in the request's target, which clients send to proxies.
    target_host: Option<String>,
    headers: Vec<(String, String)>,
    /// At most `Limits::body_bytes_max`.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header with this name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The first query parameter with this name.
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// All values of a query parameter.
    pub fn queries(&self, name: &str) -> impl Iterator<Item = &str> {
        self.query.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Replaces the body and its `content-type`.
    pub fn replace_body(&mut self, media_type: &str, body: Vec<u8>) {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case("content-type"));
        self.headers.push(("content-type".to_owned(), media_type.to_owned()));
        self.body = body;
    }

    /// All headers with this name, ignoring case, in order.
    pub(super) fn headers(&self, name: &'static str) -> impl Iterator<Item = &str> {
        let has_name = move |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        self.headers.iter().filter(has_name).map(|(_, value)| value.as_str())
    }

    /// The hosts that the request names: in its target and in the `Host` header.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &str> {
        self.target_host.as_deref().into_iter().chain(self.header("host"))
    }

    /// True if the headers announce a body.
    pub fn announces_body(&self) -> bool {
        let length = self.header("content-length").unwrap_or("0");
        self.header("transfer-encoding").is_some() || length.bytes().any(|digit| digit != b'0')
    }

    /// A request with these headers and nothing else.
    #[cfg(test)]
    pub(super) fn with_headers(headers: &[(&str, &str)]) -> Self {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Self { headers: headers.iter().map(own).collect(), ..Self::default() }
    }

    /// True if a comma-separated header contains this word.
    fn header_has(&self, name: &'static str, word: &str) -> bool {
        self.headers(name).flat_map(|v| v.split(',')).any(|v| v.trim().eq_ignore_ascii_case(word))
    }
}

/// A request whose body has not been read yet.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) request: Request,
    pub(super) framing: Framing,
    /// The client waits for `100 Continue` before it sends the body.
    pub(super) expects_continue: bool,
    /// The client speaks HTTP/1.0.
    pub(super) is_http10: bool,
    pub(super) keep_alive: bool,
}

/// How the end of the body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Chunked,
    Length(u64),
}

/// Why the next request gets no handler.
#[derive(Debug)]
pub(super) enum RequestError {
    /// The client has disconnected, or was silent for the idle timeout.
    Closed,
    /// Respond with this status and message, then close the connection.
    Refused(u16, &'static str),
    /// The same with the receiver's response.
    Rejected(Rejection),
}

const TOO_SLOW: RequestError = RequestError::Refused(408, "the request took too long");
const TOO_LARGE: RequestError = RequestError::Refused(413, "the body is too large");
const HEAD_TOO_LARGE: RequestError = RequestError::Refused(431, "the headers are too large");
const BAD_CHUNK: RequestError = RequestError::Refused(400, "malformed chunk");

/// The receiving side of a connection, with the bytes that were read but not used yet.
#[derive(Debug)]
pub(super) struct Input<'a> {
    socket: &'a Arc<Socket>,
    limits: &'a Limits,
    buffer: Vec<u8>,
    /// No byte was read yet. The pace of the first request includes the TLS handshake.
    is_new: bool,
}

impl<'a> Input<'a> {
    pub(super) fn new(socket: &'a Arc<Socket>, limits: &'a Limits) -> Self {
        Self { socket, limits, buffer: Vec::new(), is_new: true }
    }

    /// Waits for the next request and reads its head.
    pub(super) fn read_head(&mut self) -> Result<Head, RequestError> {
        self.buffer.shrink_to(READ_BYTES);
        let is_first = std::mem::take(&mut self.is_new);
        if self.buffer.is_empty() {
            if !is_first {
                self.socket.start_pace(self.limits.idle_timeout);
            }
            match self.fill() {
                Ok(0) | Err(RequestError::Refused(..)) => return Err(RequestError::Closed),
                Ok(_) => {}
                Err(stop) => return Err(stop),
            }
        }
        if !is_first {
            self.socket.start_pace(self.limits.read_timeout);
        }
        let mut n_parsed = 0;
        loop {
            // Parse again only after another line has arrived. Otherwise slow bytes cost quadratic
            // time.
            let has_new_line = n_parsed == 0 || self.buffer[n_parsed..].contains(&b'\n');
            let parsed = if has_new_line { parse_head(&self.buffer)? } else { None };
            if let Some((head, n_bytes)) = parsed {
                if n_bytes > self.limits.header_bytes_max {
                    return Err(HEAD_TOO_LARGE);
                }
                self.buffer.drain(..n_bytes);
                return Ok(head);
            }
            n_parsed = self.buffer.len();
            if n_parsed >= self.limits.header_bytes_max {
                return Err(HEAD_TOO_LARGE);
            }
            if self.fill()? == 0 {
                return Err(RequestError::Closed);
            }
        }
    }

    /// Sends `100 Continue`.
    pub(super) fn send_continue(&self) -> io::Result<()> {
        self.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")
    }

    /// True if the client has already sent a part of the body.
    pub(super) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Refuses a body whose announced length is too large.
    pub(super) fn check_length(&self, framing: Framing) -> Result<(), RequestError> {
        match framing {
            Framing::Length(n) if n > self.limits.body_bytes_max as u64 => Err(TOO_LARGE),
            Framing::Length(_) | Framing::Chunked => Ok(()),
        }
    }

    /// Reads the body. Memory grows with the bytes received, not with the announced length.
    pub(super) fn read_body(&mut self, framing: Framing) -> Result<Vec<u8>, RequestError> {
        self.check_length(framing)?;
        self.socket.start_pace(self.limits.read_timeout);
        let mut body = Vec::new();
        match framing {
            Framing::Length(n) => self.take(n, &mut body)?,
            Framing::Chunked => self.read_chunks(&mut body)?,
        }
        Ok(body)
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>) -> Result<(), RequestError> {
        loop {
            let line = self.read_line(CHUNK_LINE_BYTES_MAX)?;
            let n_bytes = chunk_size(&line).ok_or(BAD_CHUNK)?;
            if n_bytes == 0 {
                return self.read_trailers();
            }
            if n_bytes > (self.limits.body_bytes_max - body.len()) as u64 {
                return Err(TOO_LARGE);
            }
            self.take(n_bytes, body)?;
            if !self.read_line(0)?.is_empty() {
                return Err(BAD_CHUNK);
            }
        }
    }

    /// Reads and ignores trailers.
    fn read_trailers(&mut self) -> Result<(), RequestError> {
        let mut room = self.limits.header_bytes_max;
        loop {
            let line = self.read_line(room)?;
            if line.is_empty() {
                return Ok(());
            }
            room = room.checked_sub(line.len() + 2).ok_or(HEAD_TOO_LARGE)?;
        }
    }

    /// Moves `n_bytes` from the connection to `body`.
    fn take(&mut self, n_bytes: u64, body: &mut Vec<u8>) -> Result<(), RequestError> {
        let mut missing = usize::try_from(n_bytes).map_err(|_| TOO_LARGE)?;
        loop {
            let n = missing.min(self.buffer.len());
            body.extend_from_slice(&self.buffer[..n]);
            self.buffer.drain(..n);
            missing -= n;
            if missing == 0 {
                return Ok(());
            }
            if self.fill()? == 0 {
                return Err(RequestError::Closed);
            }
        }
    }

    /// Reads one line without its CR LF. A line longer than `bytes_max` is an error.
    fn read_line(&mut self, bytes_max: usize) -> Result<Vec<u8>, RequestError> {
        loop {
            if let Some(end) = self.buffer.iter().take(bytes_max + 2).position(|&c| c == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                return if line.pop() == Some(b'\r') { Ok(line) } else { Err(BAD_CHUNK) };
            }
            if self.buffer.len() >= bytes_max + 2 {
                return Err(BAD_CHUNK);
            }
            if self.fill()? == 0 {
                return Err(RequestError::Closed);
            }
        }
    }

    /// Reads once into the buffer; 0 is the end of the connection.
    fn fill(&mut self) -> Result<usize, RequestError> {
        let n_before = self.buffer.len();
        self.buffer.resize(n_before + READ_BYTES, 0);
        let result = self.socket.read(&mut self.buffer[n_before..]);
        self.buffer.truncate(n_before + *result.as_ref().unwrap_or(&0));
        result.map_err(|error| if is_timeout(&error) { TOO_SLOW } else { RequestError::Closed })
    }
}

/// A body that a `Receiver` reads in pieces. `Ok(0)` is the end of the complete body. A client that
/// disconnects earlier or is too slow is an error.
#[derive(Debug)]
pub struct Body<'i, 's> {
    input: &'i mut Input<'s>,
    length: u64,
    n_read: u64,
    /// The client waits for `100 Continue`.
    needs_continue: bool,
}

impl<'i, 's> Body<'i, 's> {
    /// Refuses chunks: a `Receiver` has to know the length in advance.
    pub(super) fn new(
        input: &'i mut Input<'s>,
        framing: Framing,
        expects_continue: bool,
    ) -> Result<Self, RequestError> {
        let Framing::Length(length) = framing else {
            return Err(RequestError::Refused(411, "the content-length is missing"));
        };
        input.socket.start_pace(input.limits.read_timeout);
        let needs_continue = expects_continue && !input.has_bytes();
        Ok(Self { input, length, n_read: 0, needs_continue })
    }

    /// The announced length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The client that sends this body, for other threads.
    pub fn client(&self) -> Client {
        Client(Arc::clone(self.input.socket))
    }
}

/// The client of a body.
#[derive(Clone, Debug)]
pub struct Client(Arc<Socket>);

impl Client {
    /// How far it is behind the pace that `Limits::read_timeout` describes.
    pub fn behind(&self) -> Duration {
        self.0.behind()
    }

    /// Ends its body early. The response can still be sent.
    pub fn cut(&self) {
        self.0.shutdown(Shutdown::Read);
    }
}

impl Read for Body<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let remaining = self.length - self.n_read;
        let room = usize::try_from(remaining).map_or(bytes.len(), |n| n.min(bytes.len()));
        if room == 0 {
            return Ok(0);
        }
        if std::mem::take(&mut self.needs_continue) {
            self.input.send_continue()?;
        }
        let n_read = match self.input.buffer.len().min(room) {
            0 => self.input.socket.read(&mut bytes[..room])?,
            n => {
                bytes[..n].copy_from_slice(&self.input.buffer[..n]);
                self.input.buffer.drain(..n);
                n
            }
        };
        if n_read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.n_read += n_read as u64;
        Ok(n_read)
    }
}

/// Parses the head at the start of `bytes`. Returns it with its length, or `None` if it is
/// incomplete.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let n_bytes = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HEAD_TOO_LARGE),
        Err(httparse::Error::Version) => {
            return Err(RequestError::Refused(505, "only HTTP/1.1 is supported"));
        }
        Err(
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token,
        ) => return Err(RequestError::Refused(400, "malformed request")),
    };
    // httparse accepts lines that end in a bare LF. A proxy may see another end of the line, and so
    // other headers (RFC 9112, 2.2).
    let lines = bytes.get(..n_bytes).unwrap_or_default().split(|&c| c == b'\n');
    if lines.rev().skip(1).any(|line| line.last() != Some(&b'\r')) {
        return Err(RequestError::Refused(400, "a line of the headers ends without CR"));
    }
    let (authority, path, query) = split_target(parsed.path.unwrap_or_default())
        .ok_or(RequestError::Refused(400, "malformed request target"))?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: parse_query(query),
        target_host: authority.map(str::to_owned),
        headers: parsed.headers.iter().map(|h| (h.name.to_owned(), text(h.value))).collect(),
        body: Vec::new(),
    };
    Ok(Some((check_head(request, parsed.version == Some(0))?, n_bytes)))
}

/// Reads from the headers how the body is framed and whether the connection stays open.
fn check_head(request: Request, is_http10: bool) -> Result<Head, RequestError> {
    let n_hosts = request.headers("host").count();
    if n_hosts > 1 || (n_hosts == 0 && !is_http10) {
        return Err(RequestError::Refused(400, "exactly one host header is required"));
    }
    // Two programs might each read another one of them.
    for name in ["authorization", "content-type"] {
        if request.headers(name).count() > 1 {
            return Err(RequestError::Refused(400, "two authorization or content-type headers"));
        }
    }
    let framing = framing(&request, is_http10)?;
    let expect = request.header("expect");
    if expect.is_some_and(|value| !value.eq_ignore_ascii_case("100-continue")) {
        return Err(RequestError::Refused(417, "unknown expectation"));
    }
    let expects_continue = expect.is_some() && !is_http10;
    let keep_alive = if is_http10 {
        request.header_has("connection", "keep-alive")
    } else {
        !request.header_has("connection", "close")
    };
    Ok(Head { framing, expects_continue, is_http10, keep_alive, request })
}

/// How the body is framed. Repeated or ambiguous lengths are refused: if a proxy and this server
/// saw different ends of one request, an attacker could smuggle requests (RFC 9112, 11.2).
fn framing(request: &Request, is_http10: bool) -> Result<Framing, RequestError> {
    const AMBIGUOUS: RequestError = RequestError::Refused(400, "ambiguous length of the body");
    let mut encodings = request.headers("transfer-encoding");
    let mut lengths = request.headers("content-length");
    match (encodings.next(), lengths.next()) {
        (None, None) => Ok(Framing::Length(0)),
        (None, Some(length)) => {
            let is_number = !length.is_empty() && length.bytes().all(|c| c.is_ascii_digit());
            if !is_number || lengths.next().is_some() {
                return Err(AMBIGUOUS);
            }
            // A number too large for u64 is still valid; the limit refuses it.
            Ok(Framing::Length(length.parse().unwrap_or(u64::MAX)))
        }
        (Some(_), Some(_)) => Err(AMBIGUOUS),
        (Some(_), None) if is_http10 || encodings.next().is_some() => Err(AMBIGUOUS),
        (Some(encoding), None) if encoding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        (Some(_), None) => Err(RequestError::Refused(501, "unknown transfer encoding")),
    }
}

/// Host, path and query of `/path?query`, `http://host/path?query` or `*`.
fn split_target(target: &str) -> Option<(Option<&str>, &str, &str)> {
    let (authority, local) = match target.strip_prefix("http://") {
        Some(rest) => {
            rest.split_at_checked(rest.find('/')?).map(|(host, path)| (Some(host), path))?
        }
        None => (None, target),
    };
    let (path, query) = local.split_once('?').unwrap_or((local, ""));
    (path.starts_with('/') || path == "*").then_some((authority, path, query))
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

fn decode(text: &str) -> String {
    let spaced = text.replace('+', " ");
    percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
}

/// The size in a chunk's first line. Chunk extensions after a semicolon are ignored.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&c| c == b';').next()?.trim_ascii_end();
    let is_hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| is_hex)?;
    u64::from_str_radix(text, 16).ok()
}

/// Bytes requested by one read.
const READ_BYTES: usize = 8 << 10;

/// The most headers of one request. More are answered with 431.
const HEADERS_MAX: usize = 64;

/// The longest chunk line: size and extensions.
const CHUNK_LINE_BYTES_MAX: usize = 256;
