//! Tests of the server with clients on raw sockets.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::connection;
use crate::slots::Slots;
use crate::socket::{Socket, Stream};
use crate::{Body, Handler, Limits, Listen, Receiver, Request, Responder, Server};
use posse_base::rng::Rng;

mod slots;

/// Answers with the request it got. Some paths stream, hang or fail.
struct Echo;

impl Handler for Echo {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        (request.path == "/secret").then_some((401, "who are you?"))
    }

    fn is_probe(&self, request: &Request) -> bool {
        request.path == "/healthz"
    }

    fn receiver(&self, request: &Request) -> Option<&dyn Receiver> {
        request.path.starts_with("/take").then_some(self)
    }

    fn handle(&self, request: Request, responder: Responder<'_>) -> io::Result<()> {
        match request.path.as_str() {
            "/stream" => {
                let mut writer = responder.stream(200, &[])?;
                for line in ["one\n", "two\n"] {
                    writer.write_all(line.as_bytes())?;
                    writer.flush()?;
                }
                writer.write_all(&vec![b'x'; 100_000])?;
                writer.finish()
            }
            "/cut" => {
                let mut writer = responder.stream(200, &[])?;
                writer.write_all(b"half")?;
                writer.flush()
            }
            "/forever" => {
                let mut writer = responder.stream(200, &[])?;
                while writer.is_open() {
                    writer.write_all(b"\n")?;
                    writer.flush()?;
                    std::thread::park_timeout(Duration::from_millis(5));
                }
                Ok(())
            }
            "/silent" => Ok(()),
            "/large" => responder.send_from(206, &[], 200_000, &mut io::repeat(b'l')),
            "/endless" => responder.send_from(200, &[], 1 << 40, &mut io::repeat(b'e')),
            "/short" => responder.send_from(200, &[], 200_000, &mut io::repeat(b's').take(100_000)),
            "/split" => responder.send(200, &[("x-echo", "a\r\nx-bad: 1")], b""),
            "/none" => responder.send(204, &[], b""),
            _ => {
                let n_bytes = request.body.len();
                let text = format!("{} {} {:?}", request.method, request.path, request.query);
                let body = match n_bytes {
                    0..100 => format!("{text} {}", String::from_utf8_lossy(&request.body)),
                    _ => format!("{text} {n_bytes} bytes"),
                };
                responder.send(200, &[], body.as_bytes())
            }
        }
    }
}

/// Answers with the number of bytes received. `/take/not` does not read the body.
impl Receiver for Echo {
    fn receive(
        &self,
        request: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        if request.path == "/take/not" {
            return responder.send(403, &[], b"not you");
        }
        let (length, copied) = (body.length(), io::copy(body, &mut io::sink()));
        let text = match copied {
            Ok(n) => format!("{n} of {length}"),
            Err(error) => format!("{:?}", error.kind()),
        };
        responder.send(200, &[], text.as_bytes())
    }
}

const LIMITS: Limits = Limits {
    connections_max: 4,
    spare_max: 2,
    full_status: 503,
    header_bytes_max: 1024,
    body_bytes_max: 1000,
    read_timeout: PATIENCE,
    write_timeout: PATIENCE,
    idle_timeout: PATIENCE,
    patience: PATIENCE,
    door_patience: PATIENCE,
    refusal: |_, why| format!("{{\"error\":\"{why}\"}}"),
};

/// For tests that wait for a time-out.
const SHORT: Limits = Limits {
    // A busy machine takes a while until the client has sent what it must send before.
    read_timeout: Duration::from_millis(1_500),
    write_timeout: Duration::from_millis(1_500),
    idle_timeout: Duration::from_millis(3_000),
    ..LIMITS
};

/// The time-out of a test step; much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(120);

fn start(limits: Limits) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    Server::start(Listen::Tcp(listener), limits, "test", Arc::new(Echo)).unwrap()
}

fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(server.local_addr().unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn read_all(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an end, and no reset");
    String::from_utf8(answer).unwrap()
}

/// Sends `bytes`, shuts down the sending side, and reads until the server closes.
fn exchange(server: &Server, bytes: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(bytes).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    read_all(&mut stream)
}

/// Status codes and bodies of the responses in `text`. A response without a length has an empty
/// body.
fn answers(mut text: &str) -> Vec<(u16, &str)> {
    let mut answers = Vec::new();
    while let Some((head, rest)) = text.split_once("\r\n\r\n") {
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status line");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let (body, rest) = rest.split_at(length.map_or(0, |n| n.parse().unwrap()));
        answers.push((status, body));
        text = rest;
    }
    assert_eq!(text, "", "nothing after the last answer");
    answers
}

#[test]
fn valid_requests_are_answered() {
    let big =
        format!("PUT /b HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{}", "b".repeat(999));
    let table: &[(&str, &[(u16, &str)])] = &[
        ("GET /a/b HTTP/1.1\r\nhost: x\r\n\r\n", &[(200, "GET /a/b [] ")]),
        ("\r\nGET / HTTP/1.1\r\nHOST: x\r\n\r\n", &[(200, "GET / [] ")]),
        ("GET http://x:1/p?q HTTP/1.1\r\nhost: x\r\n\r\n", &[(200, "GET /p [(\"q\", \"\")] ")]),
        (
            "GET /p%2F?a=1%262&&b+c=%zz&d=%ff HTTP/1.1\r\nhost: x\r\n\r\n",
            &[(200, "GET /p%2F [(\"a\", \"1&2\"), (\"b c\", \"%zz\"), (\"d\", \"\u{fffd}\")] ")],
        ),
        // Keep-alive and pipelining: requests are answered in order.
        (
            "PUT /1 HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabcGET /2 HTTP/1.1\r\nhost: x\r\n\r\n",
            &[(200, "PUT /1 [] abc"), (200, "GET /2 [] ")],
        ),
        (
            "GET /1 HTTP/1.1\r\nhost: x\r\nconnection: a, Close\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n",
            &[(200, "GET /1 [] ")],
        ),
        ("GET /1 HTTP/1.0\r\n\r\nGET /2 HTTP/1.0\r\n\r\n", &[(200, "GET /1 [] ")]),
        (
            "POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: Chunked\r\n\r\n3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nt: u\r\n\r\nGET /2 HTTP/1.1\r\nhost: x\r\n\r\n",
            &[(200, "POST /c [] abc0123456789"), (200, "GET /2 [] ")],
        ),
        (&big, &[(200, "PUT /b [] 999 bytes")]),
        ("GET /none HTTP/1.1\r\nhost: x\r\n\r\n", &[(204, "")]),
        (
            "GET /silent HTTP/1.1\r\nhost: x\r\n\r\n",
            &[(500, r#"{"error":"the request was not answered"}"#)],
        ),
    ];
    check(table);
}

fn check(table: &[(&str, &[(u16, &str)])]) {
    let server = start(LIMITS);
    for (request, want) in table {
        assert_eq!(answers(&exchange(&server, request.as_bytes())), *want, "{request:?}");
    }
    server.stop();
}

const BARE_LF: &str = r#"{"error":"a line of the headers ends without CR"}"#;
const TWICE: &str = r#"{"error":"two authorization or content-type headers"}"#;

#[test]
fn invalid_requests_are_refused() {
    let long_header = format!("GET / HTTP/1.1\r\nhost: x\r\na: {}\r\n\r\n", "a".repeat(1100));
    let many_headers = format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "a: b\r\n".repeat(80));
    let table: &[(&str, &[(u16, &str)])] = &[
        ("GET / HTTP/1.1\r\n\r\n", &[(400, r#"{"error":"exactly one host header is required"}"#)]),
        (
            "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
            &[(400, r#"{"error":"exactly one host header is required"}"#)],
        ),
        ("GET x HTTP/1.1\r\nhost: x\r\n\r\n", &[(400, r#"{"error":"malformed request target"}"#)]),
        ("\x16\x03\x01\x02\0\x01", &[(400, r#"{"error":"malformed request"}"#)]),
        ("GET / HTTP/1.1\r\nhost : x\r\n\r\n", &[(400, r#"{"error":"malformed request"}"#)]),
        (
            "GET / HTTP/1.1\r\nhost: x\r\n folded\r\n\r\n",
            &[(400, r#"{"error":"malformed request"}"#)],
        ),
        ("GET / HTTP/1.1\nhost: x\n\n", &[(400, BARE_LF)]),
        ("GET / HTTP/1.1\r\nhost: x\nauthorization: a\r\n\r\n", &[(400, BARE_LF)]),
        ("GET / HTTP/1.1\r\nhost: x\r\n\n", &[(400, BARE_LF)]),
        ("\nGET / HTTP/1.1\r\nhost: x\r\n\r\n", &[(400, BARE_LF)]),
        (
            "GET / HTTP/1.1\r\nhost: x\r\nAuthorization: a\r\nauthorization: b\r\n\r\n",
            &[(400, TWICE)],
        ),
        ("GET / HTTP/1.0\r\nauthorization: a\r\nauthorization: a\r\n\r\n", &[(400, TWICE)]),
        (
            "GET / HTTP/1.1\r\nhost: x\r\ncontent-type: a\r\ncontent-type: b\r\n\r\n",
            &[(400, TWICE)],
        ),
        (
            "GET / HTTP/2.0\r\nhost: x\r\n\r\n",
            &[(505, r#"{"error":"only HTTP/1.1 is supported"}"#)],
        ),
        (&long_header, &[(431, r#"{"error":"the headers are too large"}"#)]),
        (&many_headers, &[(431, r#"{"error":"the headers are too large"}"#)]),
        (
            "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 1001\r\n\r\n",
            &[(413, r#"{"error":"the body is too large"}"#)],
        ),
        (
            "PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
            &[(413, r#"{"error":"the body is too large"}"#)],
        ),
        (
            "PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffff\r\n",
            &[(413, r#"{"error":"the body is too large"}"#)],
        ),
        (
            "PUT / HTTP/1.1\r\nhost: x\r\nexpect: tea\r\n\r\n",
            &[(417, r#"{"error":"unknown expectation"}"#)],
        ),
        // Incomplete requests get no response.
        ("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nab", &[]),
        ("PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab", &[]),
        ("GET / HTT", &[]),
        ("", &[]),
    ];
    check(table);
}

#[test]
fn ambiguous_body_lengths_are_refused() {
    let server = start(LIMITS);
    let table = [
        ("content-length: 3\r\ntransfer-encoding: chunked\r\n", 400),
        ("transfer-encoding: chunked\r\ncontent-length: 3\r\n", 400),
        ("content-length: 3\r\ncontent-length: 3\r\n", 400),
        ("content-length: 3, 3\r\n", 400),
        ("content-length: +3\r\n", 400),
        ("content-length: -1\r\n", 400),
        ("content-length: \r\n", 400),
        ("content-length: 0x3\r\n", 400),
        ("transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", 400),
        ("transfer-encoding: gzip, chunked\r\n", 501),
        ("transfer-encoding: identity\r\n", 501),
    ];
    for (headers, want) in table {
        let smuggled = "GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n";
        let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{headers}\r\n{smuggled}");
        let text = exchange(&server, request.as_bytes());
        let statuses: Vec<u16> = answers(&text).iter().map(|(status, _)| *status).collect();
        assert_eq!(statuses, [want], "{headers:?}");
        assert!(text.contains("connection: close\r\n"), "{headers:?}");
    }
    for chunk in
        ["g\r\n", "+3\r\nabc\r\n0\r\n\r\n", "3\nabc\r\n", "3\r\nabcd\r\n", "\r\n", " 3\r\nabc"]
    {
        let request =
            format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{chunk}");
        let text = exchange(&server, request.as_bytes());
        assert_eq!(answers(&text), [(400, r#"{"error":"malformed chunk"}"#)], "{chunk:?}");
    }
}

#[test]
fn streams_use_chunks_for_http11_and_none_for_http10() {
    let server = start(LIMITS);
    let text = exchange(&server, b"GET /stream HTTP/1.1\r\nhost: x\r\n\r\n");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert_eq!(head, "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked");
    let x = |n: usize| "x".repeat(n);
    let rest = 100_000 - (64 << 10);
    let want = format!(
        "4\r\none\n\r\n4\r\ntwo\n\r\n10000\r\n{}\r\n{rest:x}\r\n{}\r\n0\r\n\r\n",
        x(64 << 10),
        x(rest)
    );
    assert!(body == want, "{} bytes, not {}", body.len(), want.len());

    let text = exchange(&server, b"GET /stream HTTP/1.0\r\nconnection: keep-alive\r\n\r\n");
    assert_eq!(
        text,
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none\ntwo\n{}", x(100_000))
    );

    let two = b"HEAD /stream HTTP/1.1\r\nhost: x\r\n\r\nHEAD /a HTTP/1.1\r\nhost: x\r\n\r\n";
    let want = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 11\r\n\r\n";
    assert_eq!(exchange(&server, two), want);
}

#[test]
fn an_unfinished_stream_cuts_the_connection() {
    let server = start(LIMITS);
    let text =
        exchange(&server, b"GET /cut HTTP/1.1\r\nhost: x\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(text.ends_with("4\r\nhalf\r\n"), "{text:?}");
}

#[test]
fn a_header_value_cannot_end_its_line() {
    let server = start(LIMITS);
    let text = exchange(&server, b"GET /split HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(text.contains("\r\nx-echo: a  x-bad: 1\r\n"), "{text:?}");
}

#[test]
fn continue_is_sent_only_if_the_body_is_small_enough() {
    let server = start(LIMITS);
    let mut stream = connect(&server);
    stream
        .write_all(
            b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-Continue\r\ncontent-length: 2\r\n\r\n",
        )
        .unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"ok").unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answers(&read_all(&mut stream)), [(200, "PUT / [] ok")]);

    let large =
        b"PUT / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2000\r\n\r\n";
    let text = exchange(&server, large);
    assert_eq!(answers(&text), [(413, r#"{"error":"the body is too large"}"#)]);
}

#[test]
fn a_refused_request_gets_no_continue() {
    let server = start(LIMITS);
    let mut stream = connect(&server);
    let head = "PUT /secret HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n";
    write!(stream, "{head}expect: 100-continue\r\n\r\n").unwrap();
    let text = read_all(&mut stream);
    assert_eq!(answers(&text), [(401, r#"{"error":"who are you?"}"#)]);
    assert!(text.contains("www-authenticate: Bearer\r\n"), "{text:?}");
}

#[test]
fn a_response_sent_before_the_end_of_the_body_is_not_lost() {
    let server = start(LIMITS);
    let mut stream = connect(&server);
    stream.write_all(b"PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 500000\r\n\r\n").unwrap();
    stream.write_all(&vec![b'x'; 500_000]).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answers(&read_all(&mut stream)), [(413, r#"{"error":"the body is too large"}"#)]);
}

#[test]
fn bodies_larger_than_the_limit_are_received_and_sent_in_pieces() {
    let server = start(LIMITS);
    let put = |path: &str, framing: &str, body: &str| {
        let head = format!("PUT {path} HTTP/1.1\r\nhost: x\r\n{framing}\r\n\r\n{body}");
        exchange(&server, head.as_bytes())
    };
    let large = "b".repeat(500_000);
    for (path, framing, body, want) in [
        ("/take", "content-length: 500000", large.as_str(), (200, "500000 of 500000")),
        ("/take", "content-length: 0", "", (200, "0 of 0")),
        ("/take", "content-length: 500001", &large, (200, "UnexpectedEof")),
        (
            "/take",
            "transfer-encoding: chunked",
            "0\r\n\r\n",
            (411, r#"{"error":"the content-length is missing"}"#),
        ),
        ("/take/not", "content-length: 500000", &large, (403, "not you")),
    ] {
        let text = put(path, framing, body);
        assert_eq!(answers(&text), [want], "{path} {framing}");
        assert!(text.contains("connection: close\r\n"), "{text:?}");
    }
    let text = exchange(&server, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n");
    assert_eq!(answers(&text), [(206, "l".repeat(200_000).as_str())]);
    let text = exchange(&server, b"HEAD /large HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(text.contains("content-length: 200000\r\n") && text.ends_with("\r\n\r\n"), "{text:?}");
}

#[test]
fn a_response_body_that_ends_early_cuts_the_connection() {
    let server = start(LIMITS);
    let mut stream = connect(&server);
    stream.write_all(b"GET /short HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // Either a reset or an early end: both show the client that the body is incomplete.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.len() < 200_000, "{}", answer.len());
}

#[test]
fn the_first_read_of_a_large_body_sends_continue() {
    let server = start(LIMITS);
    let head = "HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n";
    let mut stream = connect(&server);
    write!(stream, "PUT /take {head}").unwrap();
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"body").unwrap();
    assert_eq!(answers(&read_all(&mut stream)), [(200, "4 of 4")]);
    let mut stream = connect(&server);
    write!(stream, "PUT /take/not {head}").unwrap();
    assert_eq!(answers(&read_all(&mut stream)), [(403, "not you")]);
    // Earlier bytes do not extend the wait for a client that has become silent.
    let server = start(SHORT);
    let mut stream = connect(&server);
    let head = "PUT /take HTTP/1.1\r\nhost: x\r\ncontent-length: 900000\r\n\r\n";
    stream.write_all(&[head.as_bytes(), &[b'x'; 800_000]].concat()).unwrap();
    assert_eq!(answers(&read_all(&mut stream)), [(200, "WouldBlock")]);
}

#[test]
fn slow_bytes_do_not_extend_the_time_limit() {
    let server = start(SHORT);
    for (begin, slow) in [
        ("GET / HTTP/1.1\r\n", "a: b\r\n"),
        ("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n", "b"),
        ("PUT / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", "1\r\na\r\n"),
    ] {
        let mut stream = connect(&server);
        let begun = Instant::now();
        stream.write_all(begin.as_bytes()).unwrap();
        let mut dripping = stream.try_clone().unwrap();
        let dripper = std::thread::spawn(move || {
            while begun.elapsed() < PATIENCE && dripping.write_all(slow.as_bytes()).is_ok() {
                // Slow enough that the headers are not too many first.
                std::thread::park_timeout(Duration::from_millis(100));
            }
        });
        let mut answer = [0; 20];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408 Request", "{begin:?}");
        assert!(begun.elapsed() < PATIENCE / 2, "{begin:?}: {:?}", begun.elapsed());
        stream.shutdown(Shutdown::Both).unwrap();
        dripper.join().unwrap();
    }
}

#[test]
fn an_idle_connection_is_closed_without_a_response() {
    let server = start(SHORT);
    let mut stream = connect(&server);
    assert_eq!(read_all(&mut stream), "");
}

/// Opens as many connections as allowed. Each has got a response, so each is registered.
fn fill(server: &Server) -> Vec<TcpStream> {
    let one = |_| {
        let mut stream = connect(server);
        stream.write_all(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        stream.read_exact(&mut [0; 39]).unwrap();
        stream
    };
    (0..LIMITS.connections_max).map(one).collect()
}

/// Tries until a connection is accepted and answered.
fn await_room(server: &Server) -> TcpStream {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut stream = connect(server);
        let _ = stream.write_all(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut answer = [0; 39];
        if stream.read_exact(&mut answer).is_ok() && answer.starts_with(b"HTTP/1.1 200") {
            return stream;
        }
        assert!(Instant::now() < deadline, "no connection was accepted");
    }
}

#[test]
fn a_new_connection_replaces_one_that_waits_for_its_client() {
    let none = Duration::ZERO;
    let limits = Limits { patience: none, door_patience: none, read_timeout: PATIENCE, ..LIMITS };
    let server = start(limits);
    let mut held = fill(&server);
    // A connection with half a request also counts as waiting.
    held[0].write_all(b"GET /a HT").unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut newer = Vec::new();
    while !held.is_empty() {
        assert!(Instant::now() < deadline, "{} connections were not replaced", held.len());
        // A connection may not have started to wait yet, so a newer one may be replaced instead.
        newer.push(await_room(&server));
        held.retain_mut(|stream| {
            stream.set_nonblocking(true).unwrap();
            match stream.read(&mut [0]) {
                Ok(n) => assert_eq!(n, 0, "the connection must end without a response"),
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
            false
        });
    }
}

#[test]
fn a_request_above_the_limit_is_refused_until_others_close() {
    let server = start(LIMITS);
    let held = fill(&server);
    for _ in 0..40 {
        let text = exchange(&server, b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(answers(&text), [(503, r#"{"error":"too many connections"}"#)]);
        assert!(text.contains("connection: close\r\n"), "{text:?}");
    }
    drop(held);
    // Retries, because the threads of the closed connections need a moment to end.
    await_room(&server);
}

#[test]
fn stop_ends_idle_streaming_and_reading_connections_at_once() {
    let server = start(LIMITS);
    let address = server.local_addr().unwrap();
    let mut idle = connect(&server);
    idle.write_all(b"HEAD /a HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 39]).unwrap();
    let mut streaming = connect(&server);
    streaming.write_all(b"GET /forever HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    streaming.read_exact(&mut [0; 60]).unwrap();
    let mut half = connect(&server);
    half.write_all(b"GET / HT").unwrap();
    let begun = Instant::now();
    server.stop();
    // Connections that do not end are left behind after 5 s.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(TcpStream::connect(address).is_err(), "the server still listens");
}

#[test]
fn a_stream_ends_when_its_client_disconnects() {
    let server = start(Limits { connections_max: 1, ..LIMITS });
    for _ in 0..3 {
        let deadline = Instant::now() + PATIENCE;
        // With a limit of one connection, each round needs the end of the stream before.
        while !streams_once(&server) {
            assert!(Instant::now() < deadline, "the earlier stream did not end");
        }
    }
}

fn streams_once(server: &Server) -> bool {
    let mut stream = connect(server);
    let _ = stream.write_all(b"GET /forever HTTP/1.1\r\nhost: x\r\n\r\n");
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).is_ok() && &answer == b"HTTP/1.1 200"
}

#[test]
fn unix_sockets_are_served() {
    let folder = std::env::temp_dir().join(format!("posse-serve-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let server = Server::start(Listen::Unix(listener), LIMITS, "test", Arc::new(Echo)).unwrap();
    let mut stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"GET /u HTTP/1.0\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert_eq!(answers(&text), [(200, "GET /u [] ")]);
    server.stop();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Feeds mutated valid requests to a connection. It runs on the test's thread, so a panic fails the
/// test.
#[test]
fn mutated_requests_cause_no_panic_and_no_hang() {
    let seeds: [&[u8]; 4] = [
        b"PUT /x?a=%41 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\nhello",
        b"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5;e\r\nhello\r\n0\r\nt: v\r\n\r\n",
        b"HEAD /none HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n\r\n",
        b"GET http://h/cut HTTP/1.0\r\n\r\n",
    ];
    let mut statuses = BTreeSet::new();
    for seed in 0..5000 {
        let bytes = mutated(&seeds, &mut Rng::new(seed));
        let (mut client, server) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(&bytes).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let begun = Instant::now();
        let socket = Socket::new(Stream::Unix(server), LIMITS.read_timeout);
        let slot = Slots::new(LIMITS).admit(Arc::new(socket)).unwrap();
        connection::serve(&slot, &Echo);
        drop(slot);
        assert!(begun.elapsed() < PATIENCE, "seed {seed}");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 "), "seed {seed}");
        statuses.insert(answer.get(9..12).map(<[u8]>::to_vec));
    }
    // Checks that the mutations produce both valid and invalid requests.
    for status in ["200", "204", "400"] {
        assert!(
            statuses.contains(&Some(status.as_bytes().to_vec())),
            "no response had status {status}"
        );
    }
}

fn mutated(seeds: &[&[u8]], rng: &mut Rng) -> Vec<u8> {
    let pick = |rng: &mut Rng, n: usize| usize::try_from(rng.below(n as u64)).unwrap();
    let mut bytes = seeds[pick(rng, seeds.len())].to_vec();
    for _ in 0..=pick(rng, 4) {
        let at = pick(rng, bytes.len() + 1);
        match rng.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, rng.next_u64().to_le_bytes()[0]),
            2 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            3 => bytes.extend_from_slice(seeds[pick(rng, seeds.len())]),
            _ => {
                let digits = rng.next_u64().to_string();
                bytes.splice(at..at, digits.bytes());
            }
        }
    }
    bytes
}
