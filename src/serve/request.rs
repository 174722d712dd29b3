//! Owns the way in: one request's head and body out of the bytes of a connection. Every answer
//! that HTTP asks for here is a `Stop::Refused`. Does not write.

use std::io::{self, Read};
use std::time::Duration;

use crate::serve::Limits;
use crate::serve::socket::{Pace, Socket, is_timeout};

/// One whole request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// As sent: methods are case-sensitive.
    pub method: String,
    /// As sent, without the query: segments can be told apart before they are decoded.
    pub path: String,
    /// Decoded, in their order; a name without `=` has an empty value.
    pub query: Vec<(String, String)>,
    headers: Vec<(String, String)>,
    /// At most `Limits::body_bytes_max`.
    pub body: Vec<u8>,
}

impl Request {
    /// The first header of that name, in any case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.headers.iter();
        headers.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The first query parameter of that name.
    #[must_use]
    pub fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Puts another body in the place of the one that came.
    pub fn replace_body(&mut self, media_type: &str, body: Vec<u8>) {
        self.headers.retain(|(key, _)| !key.eq_ignore_ascii_case("content-type"));
        self.headers.push(("content-type".to_owned(), media_type.to_owned()));
        self.body = body;
    }

    /// All headers of that name, in any case and in their order.
    pub fn headers(&self, name: &'static str) -> impl Iterator<Item = &str> {
        let ours = move |(key, _): &&(String, String)| key.eq_ignore_ascii_case(name);
        self.headers.iter().filter(ours).map(|(_, value)| value.as_str())
    }

    /// True where a comma-separated header holds that word.
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
    /// It speaks HTTP/1.0.
    pub(super) old_client: bool,
    pub(super) keep_alive: bool,
}

/// Where the body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Chunked,
    Length(u64),
}

/// Why no (further) request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The client has gone, or said nothing for the idle time.
    Closed,
    /// It is to be told this, and the connection ends.
    Refused(u16, &'static str),
}

const TOO_SLOW: Stop = Stop::Refused(408, "the request took too long");
const TOO_LARGE: Stop = Stop::Refused(413, "the body is too large");
const HEAD_TOO_LARGE: Stop = Stop::Refused(431, "the headers are too large");
const BAD_CHUNK: Stop = Stop::Refused(400, "malformed chunk");

/// The bytes of one connection that came and are not used yet.
#[derive(Debug)]
pub(super) struct Input<'a> {
    socket: &'a Socket,
    limits: &'a Limits,
    buffer: Vec<u8>,
    timeout: Option<Duration>,
}

impl<'a> Input<'a> {
    pub(super) fn new(socket: &'a Socket, limits: &'a Limits) -> Self {
        Self { socket, limits, buffer: Vec::new(), timeout: None }
    }

    /// Waits for the next request and reads its head.
    pub(super) fn read_head(&mut self) -> Result<Head, Stop> {
        self.buffer.shrink_to(READ_BYTES);
        if self.buffer.is_empty() {
            match self.fill(self.limits.idle_timeout) {
                Ok(0) | Err(Stop::Refused(..)) => return Err(Stop::Closed),
                Ok(_) => {}
                Err(stop) => return Err(stop),
            }
        }
        let pace = Pace::start(self.limits.read_timeout);
        let mut n_parsed = 0;
        loop {
            // Parsed again only when another line may be whole: no square cost for slow bytes.
            let worth_it = n_parsed == 0 || self.buffer[n_parsed..].contains(&b'\n');
            let parsed = if worth_it { parse_head(&self.buffer)? } else { None };
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
            // The allowance for what came is the body's alone: a head is small.
            if self.fill(pace.left(0).ok_or(TOO_SLOW)?)? == 0 {
                return Err(Stop::Closed);
            }
        }
    }

    /// Tells a client that waits for it to send the body.
    pub(super) fn ask(&self) -> io::Result<()> {
        self.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n", self.limits.write_timeout)
    }

    /// True where the client has sent (some of) the body without being asked to.
    pub(super) fn has_bytes(&self) -> bool {
        !self.buffer.is_empty()
    }

    /// Refuses a body that is announced as too large, before a byte of it is asked for.
    pub(super) fn check_length(&self, framing: Framing) -> Result<(), Stop> {
        match framing {
            Framing::Length(n) if n > self.limits.body_bytes_max as u64 => Err(TOO_LARGE),
            Framing::Length(_) | Framing::Chunked => Ok(()),
        }
    }

    /// Reads the body. Memory grows with what came, never with what is announced.
    pub(super) fn read_body(&mut self, framing: Framing) -> Result<Vec<u8>, Stop> {
        self.check_length(framing)?;
        let pace = Pace::start(self.limits.read_timeout);
        let mut body = Vec::new();
        match framing {
            Framing::Length(n) => self.take(n, &mut body, &pace)?,
            Framing::Chunked => self.read_chunks(&mut body, &pace)?,
        }
        Ok(body)
    }

    fn read_chunks(&mut self, body: &mut Vec<u8>, pace: &Pace) -> Result<(), Stop> {
        loop {
            let line = self.read_line(CHUNK_LINE_BYTES_MAX, body.len() as u64, pace)?;
            let n_bytes = chunk_size(&line).ok_or(BAD_CHUNK)?;
            if n_bytes == 0 {
                return self.read_trailers(body.len() as u64, pace);
            }
            if n_bytes > (self.limits.body_bytes_max - body.len()) as u64 {
                return Err(TOO_LARGE);
            }
            self.take(n_bytes, body, pace)?;
            if !self.read_line(0, body.len() as u64, pace)?.is_empty() {
                return Err(BAD_CHUNK);
            }
        }
    }

    /// Trailers are read and forgotten: no header of ours may come late.
    fn read_trailers(&mut self, n_body: u64, pace: &Pace) -> Result<(), Stop> {
        let mut room = self.limits.header_bytes_max;
        loop {
            let line = self.read_line(room, n_body, pace)?;
            if line.is_empty() {
                return Ok(());
            }
            room = room.checked_sub(line.len() + 2).ok_or(HEAD_TOO_LARGE)?;
        }
    }

    /// Moves `n_bytes` from the connection to `body`.
    fn take(&mut self, n_bytes: u64, body: &mut Vec<u8>, pace: &Pace) -> Result<(), Stop> {
        let mut missing = usize::try_from(n_bytes).map_err(|_| TOO_LARGE)?;
        loop {
            let n = missing.min(self.buffer.len());
            body.extend_from_slice(&self.buffer[..n]);
            self.buffer.drain(..n);
            missing -= n;
            if missing == 0 {
                return Ok(());
            }
            if self.fill(pace.left(body.len() as u64).ok_or(TOO_SLOW)?)? == 0 {
                return Err(Stop::Closed);
            }
        }
    }

    /// One line that ends with CR LF, without these; 400 where it is longer than `bytes_max`.
    fn read_line(&mut self, bytes_max: usize, n_body: u64, pace: &Pace) -> Result<Vec<u8>, Stop> {
        loop {
            if let Some(end) = self.buffer.iter().take(bytes_max + 2).position(|&c| c == b'\n') {
                let mut line: Vec<u8> = self.buffer.drain(..=end).collect();
                line.pop();
                return if line.pop() == Some(b'\r') { Ok(line) } else { Err(BAD_CHUNK) };
            }
            if self.buffer.len() >= bytes_max + 2 {
                return Err(BAD_CHUNK);
            }
            if self.fill(pace.left(n_body).ok_or(TOO_SLOW)?)? == 0 {
                return Err(Stop::Closed);
            }
        }
    }

    /// One read; 0 is the end of the connection.
    fn fill(&mut self, timeout: Duration) -> Result<usize, Stop> {
        self.set_timeout(timeout).map_err(|_| Stop::Closed)?;
        let n_before = self.buffer.len();
        self.buffer.resize(n_before + READ_BYTES, 0);
        let answer = self.socket.read(&mut self.buffer[n_before..]);
        self.buffer.truncate(n_before + *answer.as_ref().unwrap_or(&0));
        answer.map_err(|error| if is_timeout(&error) { TOO_SLOW } else { Stop::Closed })
    }

    fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        if self.timeout != Some(timeout) {
            self.socket.set_read_timeout(timeout)?;
            self.timeout = Some(timeout);
        }
        Ok(())
    }
}

/// A body that is read as it comes, for a `Receiver`. `Ok(0)` is the end of all of it: a client that
/// goes earlier is an error, and so is one that is too slow.
#[derive(Debug)]
pub struct Body<'i, 's> {
    input: &'i mut Input<'s>,
    length: u64,
    n_read: u64,
    pace: Pace,
    /// The client has not been asked yet, and waits for it.
    waits: bool,
}

impl<'i, 's> Body<'i, 's> {
    /// Refuses chunks: who takes a large body has to know its length before it comes.
    pub(super) fn new(
        input: &'i mut Input<'s>,
        framing: Framing,
        expects_continue: bool,
    ) -> Result<Self, Stop> {
        let Framing::Length(length) = framing else {
            return Err(Stop::Refused(411, "the body's length is missing"));
        };
        let pace = Pace::start(input.limits.read_timeout);
        let waits = expects_continue && !input.has_bytes();
        Ok(Self { input, length, n_read: 0, pace, waits })
    }

    /// Of all of it, in bytes, as it was announced.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.length
    }
}

impl Read for Body<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.length - self.n_read;
        let room = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
        if room == 0 {
            return Ok(0);
        }
        if std::mem::take(&mut self.waits) {
            self.input.ask()?;
        }
        let n_read = match self.input.buffer.len().min(room) {
            0 => {
                let given = self.pace.left(self.n_read).ok_or(io::ErrorKind::TimedOut)?;
                // A client that says nothing is not given what its earlier bytes have earned.
                self.input.set_timeout(given.min(self.input.limits.read_timeout))?;
                self.input.socket.read(&mut bytes[..room])?
            }
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

/// The head that `bytes` begin with and its length; none where it is not whole yet.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Stop> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Request::new(&mut headers);
    let n_bytes = match parsed.parse(bytes) {
        Ok(httparse::Status::Complete(n)) => n,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(HEAD_TOO_LARGE),
        Err(httparse::Error::Version) => {
            return Err(Stop::Refused(505, "only HTTP/1.1 is spoken here"));
        }
        Err(
            httparse::Error::HeaderName
            | httparse::Error::HeaderValue
            | httparse::Error::NewLine
            | httparse::Error::Status
            | httparse::Error::Token,
        ) => return Err(Stop::Refused(400, "malformed request")),
    };
    let (path, query) = split_target(parsed.path.unwrap_or_default())
        .ok_or(Stop::Refused(400, "malformed request target"))?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let request = Request {
        method: parsed.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: parse_query(query),
        headers: parsed.headers.iter().map(|h| (h.name.to_owned(), text(h.value))).collect(),
        body: Vec::new(),
    };
    Ok(Some((check_head(request, parsed.version == Some(0))?, n_bytes)))
}

/// What the headers say about the body and the connection, where they say it without a doubt.
fn check_head(request: Request, old_client: bool) -> Result<Head, Stop> {
    let n_hosts = request.headers("host").count();
    if n_hosts > 1 || (n_hosts == 0 && !old_client) {
        return Err(Stop::Refused(400, "there must be one host header"));
    }
    let framing = framing(&request, old_client)?;
    let expect = request.header("expect");
    if expect.is_some_and(|value| !value.eq_ignore_ascii_case("100-continue")) {
        return Err(Stop::Refused(417, "unknown expectation"));
    }
    let expects_continue = expect.is_some() && !old_client;
    let keep_alive = if old_client {
        request.header_has("connection", "keep-alive")
    } else {
        !request.header_has("connection", "close")
    };
    Ok(Head { framing, expects_continue, old_client, keep_alive, request })
}

/// Two parties that see different ends of one request can be played against each other: whatever
/// is said twice, or not plainly, is refused.
fn framing(request: &Request, old_client: bool) -> Result<Framing, Stop> {
    const UNCLEAR: Stop = Stop::Refused(400, "unclear length of the body");
    let mut encodings = request.headers("transfer-encoding");
    let mut lengths = request.headers("content-length");
    match (encodings.next(), lengths.next()) {
        (None, None) => Ok(Framing::Length(0)),
        (None, Some(length)) => {
            let plain = !length.is_empty() && length.bytes().all(|c| c.is_ascii_digit());
            if !plain || lengths.next().is_some() {
                return Err(UNCLEAR);
            }
            // More digits than a u64 holds are a number all the same.
            Ok(Framing::Length(length.parse().unwrap_or(u64::MAX)))
        }
        (Some(_), Some(_)) => Err(UNCLEAR),
        (Some(_), None) if old_client || encodings.next().is_some() => Err(UNCLEAR),
        (Some(encoding), None) if encoding.eq_ignore_ascii_case("chunked") => Ok(Framing::Chunked),
        (Some(_), None) => Err(Stop::Refused(501, "unknown transfer encoding")),
    }
}

/// Path and query of `/path?query`, `http://host/path?query` or `*`.
fn split_target(target: &str) -> Option<(&str, &str)> {
    let local = match target.strip_prefix("http://") {
        Some(rest) => &rest[rest.find('/')?..],
        None => target,
    };
    let (path, query) = local.split_once('?').unwrap_or((local, ""));
    (path.starts_with('/') || path == "*").then_some((path, query))
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

/// The size in a chunk's first line; what follows a semicolon is nobody's business.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|&c| c == b';').next()?.trim_ascii_end();
    let hex = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| hex)?;
    u64::from_str_radix(text, 16).ok()
}

/// One read asks for so many bytes.
const READ_BYTES: usize = 8 << 10;

/// Headers of one request; more is answered with 431.
const HEADERS_MAX: usize = 64;

/// A chunk's size and extensions.
const CHUNK_LINE_BYTES_MAX: usize = 256;
