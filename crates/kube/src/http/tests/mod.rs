//! HTTP against real sockets: TLS, credentials, proxies, streams, and the error of every kind of
//! failure.

mod proxies;
mod trust;
mod websocket;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustls::SupportedProtocolVersion;
use rustls::version::{TLS12, TLS13};

use ureq::http::header::RETRY_AFTER;

use super::agent::POOLED_MAX;
use super::*;
use crate::config::{
    Blob, BlobSource, ClientCert, ClientIdentity, Secret, Server, Trust, header_value,
};
use crate::testing::{counting_plugin, plain_client, plugin};
use posse_testing::{Answer, Authority, Folder, TestServer, as_version_1, server_with};

const BOTH: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

fn file(field: &str, path: std::path::PathBuf) -> Blob {
    Blob { field: field.to_owned(), source: BlobSource::File(path) }
}

/// A cluster at this server that trusts the authority in the file `ca`.
fn cluster(server: &TestServer, folder: &Folder) -> Cluster {
    Cluster {
        server: Server::parse(&format!("https://{}/prefix", server.address)).unwrap(),
        namespace: "default".to_owned(),
        home: None,
        origin: String::new(),
        trust: Trust::Roots(file("ca", folder.path().join("ca"))),
        tls_server_name: None,
        proxy: None,
        identity: ClientIdentity::default(),
    }
}

fn plain(server: &TestServer) -> Cluster {
    Cluster {
        server: Server::parse(&format!("http://{}", server.address)).unwrap(),
        trust: Trust::Anything,
        ..cluster(server, &Folder::new())
    }
}

fn request(method: Method, body: Option<&[u8]>) -> Request<'_> {
    Request {
        method,
        path: "/api/v1/pods?limit=500".to_owned(),
        content_type: "application/json",
        body,
        timeout: Duration::from_secs(20),
        body_bytes_max: 1 << 20,
    }
}

fn get(http: &Http) -> Result<Response, TransportError> {
    http.call(&request(Method::Get, None))
}

fn ok(body: &str) -> Answer {
    Answer::json(200, body)
}

/// A TLS server whose certificate authority is written to the folder's file `ca`.
fn secure(
    folder: &Folder,
    names: &[&str],
    script: impl Fn(&posse_testing::Seen) -> Answer + Send + Sync + 'static,
) -> TestServer {
    let authority = Authority::new();
    folder.write("ca", &authority.pem);
    TestServer::start(Some(authority.server(names, &BOTH, None)), script)
}

#[track_caller]
fn assert_not_sent(outcome: Result<Response, TransportError>, text: &str) {
    assert_lost(outcome, TransportError::NotSent, text);
}

/// Like `assert_not_sent`, but because of TLS.
#[track_caller]
fn assert_untrusted(outcome: Result<Response, TransportError>, text: &str) {
    let Err(TransportError::Tls { problem, .. }) = outcome else { panic!("{text:?}: {outcome:?}") };
    assert!(problem.contains(text), "{problem}");
}

#[track_caller]
fn assert_unknown(outcome: Result<Response, TransportError>, text: &str) {
    assert_lost(outcome, TransportError::Unknown, text);
}

#[track_caller]
fn assert_lost(
    outcome: Result<Response, TransportError>,
    kind: fn(String) -> TransportError,
    text: &str,
) {
    let error = outcome.expect_err("there is no answer");
    let problem = error.to_string();
    assert_eq!(error, kind(problem.clone()), "for {text:?}");
    assert!(problem.contains(text), "{problem}");
}

#[test]
fn requests_carry_the_right_headers_and_reuse_the_connection() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| match seen.line() {
        line if line.starts_with("POST") => {
            Answer::Reply(409, "Retry-After: 7\r\nContent-Type: text/plain\r\n", b"no".to_vec())
        }
        line if line.starts_with("DELETE") => {
            Answer::Reply(302, "Location: https://elsewhere/\r\n", Vec::new())
        }
        _ => ok("{}"),
    });
    let mut cluster = cluster(&server, &folder);
    cluster.identity.authorization = AuthSource::Token(Secret::new("t0ken"));
    let user = header_value("jane").unwrap();
    cluster.identity.impersonate = vec![(http::HeaderName::from_static("impersonate-user"), user)];
    let http = Http::connect(cluster).unwrap();
    assert_eq!(http.server(), format!("https://{}/prefix", server.address));

    let response = get(&http).unwrap();
    assert_eq!((response.status, response.json, response.body), (200, true, b"{}".to_vec()));
    let seen = server.wait();
    assert_eq!(seen.line(), "GET /prefix/api/v1/pods?limit=500 HTTP/1.1");
    let version = env!("CARGO_PKG_VERSION");
    assert!(seen.header("user-agent").unwrap().starts_with(&format!("posse/{version} (linux/")));
    for (name, value) in [
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
        ("authorization", "Bearer t0ken"),
        ("host", &server.address.to_string()),
        ("impersonate-user", "jane"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{}", seen.head);
    }
    assert_eq!(seen.header("content-type"), None);

    let response = http.call(&request(Method::Post, Some(b"[1]"))).unwrap();
    assert_eq!((response.status, response.json), (409, false));
    assert_eq!(response.retry_after, Some(Duration::from_secs(7)));
    let seen = server.wait();
    assert_eq!((seen.header("content-length"), &seen.body[..]), (Some("3"), &b"[1]"[..]));
    assert_eq!(seen.header("content-type"), Some("application/json"));

    // A DELETE may have a body. Redirects are not followed.
    for body in [None, Some(&b"{\"a\":1}"[..])] {
        assert_eq!(http.call(&request(Method::Delete, body)).unwrap().status, 302);
        assert_eq!(server.wait().body, body.unwrap_or_default());
    }
    for method in [Method::Put, Method::Patch] {
        assert_eq!(http.call(&request(method, Some(b"{}"))).unwrap().status, 200);
        assert_eq!(server.wait().body, b"{}");
    }
    assert_eq!(server.n_connections(), 1);
}

#[test]
fn parallel_requests_use_at_most_the_pooled_connections() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| ok(seen.line()));
    let http = Http::connect(cluster(&server, &folder)).unwrap();
    for _ in 0..3 {
        thread::scope(|scope| {
            for _ in 0..POOLED_MAX {
                scope.spawn(|| assert_eq!(get(&http).unwrap().status, 200));
            }
        });
    }
    assert!(server.n_connections() <= POOLED_MAX, "{} connections", server.n_connections());
}

#[test]
fn credentials_are_sent_over_tls_only() {
    let server = TestServer::start(None, |_| ok("{}"));
    let mut cluster = plain(&server);
    cluster.identity.authorization = AuthSource::Token(Secret::new("t0ken"));
    cluster.identity.impersonate =
        vec![(http::HeaderName::from_static("impersonate-user"), header_value("jane").unwrap())];
    get(&Http::connect(cluster).unwrap()).unwrap();
    let seen = server.wait();
    assert_eq!((seen.header("authorization"), seen.header("impersonate-user")), (None, None));
}

fn http_post(http: &Http) -> Result<Response, TransportError> {
    http.call(&request(Method::Post, Some(b"{}")))
}

#[test]
fn errors_tell_whether_the_request_was_sent() {
    // Nobody listens on this port. It stays bound, so that no other test gets it.
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let server = TestServer::start(None, |_| Answer::Cut);
    let mut nobody = plain(&server);
    nobody.server.port = SocketAddr::try_from(getsockname(&taken).unwrap()).unwrap().port();
    assert_not_sent(http_post(&Http::connect(nobody).unwrap()), "Connection refused");

    // The host name cannot be resolved.
    let mut nowhere = plain(&server);
    // A label is too long, so the lookup fails without a DNS request.
    nowhere.server.host = "x".repeat(64);
    assert_not_sent(http_post(&Http::connect(nowhere).unwrap()), "lookup");

    // The server closes the connection before the TLS handshake.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (folder, address) = (Folder::new(), listener.local_addr().unwrap());
    folder.write("ca", Authority::new().pem);
    let mut hung_up = cluster(&server, &folder);
    hung_up.server.port = address.port();
    let hanging_up = thread::spawn(move || drop(listener.accept().unwrap()));
    assert_untrusted(http_post(&Http::connect(hung_up).unwrap()), "https://127.0.0.1");
    hanging_up.join().unwrap();

    // The server closes the connection after the request.
    let http = Http::connect(plain(&server)).unwrap();
    assert_unknown(http_post(&http), "http://127.0.0.1");
    assert_eq!(server.seen().len(), 1, "a POST is sent once");
    assert_unknown(get(&http), "http://127.0.0.1");
    assert_eq!(server.seen().len(), 2, "a GET twice");
}

#[test]
fn a_truncated_answer_has_an_unknown_outcome() {
    for head in
        [&b"HTTP/1.1 200 OK\r\nContent-Le"[..], b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
    {
        let server = TestServer::start(None, |_| Answer::ThenCut(head.to_vec()));
        assert_unknown(http_post(&Http::connect(plain(&server)).unwrap()), "http://127.0.0.1");
        assert_eq!(server.seen().len(), 1);
    }
    let server = TestServer::start(None, |_| Answer::Raw(b"SSH-2.0-OpenSSH_9\r\n\r\n".to_vec()));
    assert_unknown(http_post(&Http::connect(plain(&server)).unwrap()), "http://127.0.0.1");
}

#[test]
fn a_get_is_repeated_if_an_idle_connection_was_closed() {
    let n_requests = AtomicUsize::new(0);
    let server = TestServer::start(None, move |_| {
        // The server closes the connection when the second request arrives.
        if n_requests.fetch_add(1, Ordering::Relaxed) == 1 { Answer::Cut } else { ok("{}") }
    });
    let http = Http::connect(plain(&server)).unwrap();
    for _ in 0..3 {
        assert_eq!(get(&http).unwrap().status, 200);
    }
    assert_eq!((server.seen().len(), server.n_connections()), (4, 2));
}

#[test]
fn a_request_ends_at_its_timeout() {
    for stalled in
        [&b""[..], b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
    {
        let server = TestServer::start(None, |_| Answer::Stall(stalled.to_vec()));
        let http = Http::connect(plain(&server)).unwrap();
        let timeout = Duration::from_secs(1);
        let outcome = http.call(&Request { timeout, ..request(Method::Get, None) });
        assert_unknown(outcome, "timeout");
        server.wait();
        assert_eq!(server.seen().len(), 0, "no time is left for a retry");
    }
}

#[test]
fn an_answer_has_a_size_limit() {
    let server = TestServer::start(None, |seen| {
        assert_eq!(seen.header("accept-encoding"), Some("identity"), "answers are not compressed");
        Answer::Reply(200, "", vec![b'a'; 20_000])
    });
    let http = Http::connect(plain(&server)).unwrap();
    let limited = Request { body_bytes_max: 19_999, ..request(Method::Get, None) };
    assert_unknown(http.call(&limited), "larger than 19999 bytes");
    let exact = Request { body_bytes_max: 20_000, ..request(Method::Get, None) };
    assert_eq!(http.call(&exact).unwrap().body.len(), 20_000);
}

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Transfer-Encoding: chunked\r\n\r\n";

fn line(stream: &mut Stream) -> std::io::Result<String> {
    let mut line = String::new();
    stream.reader().read_line(&mut line)?;
    Ok(line)
}

#[test]
fn a_stream_returns_each_line_when_it_arrives() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| match seen.line() {
        line if line.contains("/clean") => Answer::Raw([HEAD, b"3\r\nab\n\r\n0\r\n\r\n"].concat()),
        line if line.contains("/cut") => Answer::ThenCut([HEAD, b"3\r\nab\n\r\n"].concat()),
        line if line.contains("/gone") => {
            Answer::Reply(410, "Retry-After: 3\r\n", b"gone\n".to_vec())
        }
        _ => Answer::Stall([HEAD, b"3\r\nab\n\r\n"].concat()),
    });
    let http = Http::connect(cluster(&server, &folder)).unwrap();
    let long = Duration::from_secs(20);

    let mut clean = http.open_stream("/clean", STREAM_HEAD_TIMEOUT, long).unwrap();
    assert_eq!((clean.status, clean.json), (200, true));
    assert_eq!(server.wait().header("accept-encoding"), Some("identity"));
    assert_eq!(line(&mut clean).unwrap(), "ab\n");
    assert_eq!(line(&mut clean).unwrap(), "", "a clean end");

    let mut cut = http.open_stream("/cut", STREAM_HEAD_TIMEOUT, long).unwrap();
    assert_eq!(line(&mut cut).unwrap(), "ab\n");
    assert_eq!(line(&mut cut).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);

    let mut gone = http.open_stream("/gone", STREAM_HEAD_TIMEOUT, long).unwrap();
    assert_eq!((gone.status, gone.retry_after), (410, Some(Duration::from_secs(3))));
    assert_eq!(line(&mut gone).unwrap(), "gone\n");

    let mut silent =
        http.open_stream("/silent", STREAM_HEAD_TIMEOUT, Duration::from_millis(1_500)).unwrap();
    assert_eq!(line(&mut silent).unwrap(), "ab\n");
    let error = line(&mut silent).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "no byte for 1.5 s");
}

#[test]
fn a_handle_ends_streams_before_during_and_after_opening() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |seen| match seen.line() {
        line if line.contains("/pods") => ok("{}"),
        // Never answers.
        line if line.contains("/mute") => Answer::Stall(Vec::new()),
        _ => Answer::Stall([HEAD, b"3\r\nab\n\r\n"].concat()),
    });
    let (http, handle) = Http::connect(cluster(&server, &folder)).unwrap().with_own_streams();
    let long = Duration::from_secs(600);

    // During a read; all streams of the client end.
    let mut streams: Vec<_> =
        (0..3).map(|_| http.open_stream("/watch", STREAM_HEAD_TIMEOUT, long).unwrap()).collect();
    let (reading, is_reading) = mpsc::channel();
    thread::scope(|scope| {
        let readers: Vec<_> = streams
            .iter_mut()
            .map(|stream| {
                let reading = reading.clone();
                scope.spawn(move || {
                    assert_eq!(line(stream).unwrap(), "ab\n");
                    reading.send(()).unwrap();
                    line(stream)
                })
            })
            .collect();
        for _ in &readers {
            is_reading.recv().unwrap();
        }
        handle.shutdown();
        for reader in readers {
            assert_eq!(reader.join().unwrap().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        }
    });

    // Afterwards: no new streams, but single requests still work.
    let error = http.open_stream("/watch", STREAM_HEAD_TIMEOUT, long).unwrap_err();
    assert_eq!(error, TransportError::NotSent("the streams were shut down".to_owned()));
    assert_eq!(get(&http).unwrap().status, 200);
    handle.shutdown();

    // While a stream is being opened: the headers have not arrived.
    let (own, handle) = http.with_own_streams();
    server.seen();
    thread::scope(|scope| {
        let opening = scope.spawn(|| own.open_stream("/mute", STREAM_HEAD_TIMEOUT, long));
        assert!(server.wait().line().contains("/mute"));
        handle.shutdown();
        assert!(matches!(opening.join().unwrap(), Err(TransportError::NotSent(_))));
    });
}

#[test]
fn the_local_address_is_found_without_a_connection() {
    let server = TestServer::start(None, |_| ok("{}"));
    let http = Http::connect(plain(&server)).unwrap();
    assert_eq!(http.local_address().unwrap(), IpAddr::from([127, 0, 0, 1]));
    assert_eq!(server.n_connections(), 0);
}

#[test]
fn a_write_has_a_latest_time() {
    let server = TestServer::start(None, |asked| match asked.line().contains("/stall") {
        true => Answer::Stall(Vec::new()),
        false => Answer::Reply(200, "", Vec::new()),
    });
    let request = |method, path: &str| Request {
        method,
        path: path.to_owned(),
        content_type: "application/json",
        body: None,
        timeout: Duration::from_secs(60),
        body_bytes_max: 1_000,
    };
    let limited = |left| {
        let limit = WriteLimit(Arc::new(move || left));
        plain_client(server.address).with_write_limit(Some(limit))
    };
    let expired = limited(Duration::ZERO);
    for method in [Method::Post, Method::Put, Method::Patch, Method::Delete] {
        let error = expired.call(&request(method, "/x")).expect_err("it is too late");
        assert!(matches!(&error, TransportError::NotSent(why) if why.contains("lease")), "{error}");
    }
    assert_eq!(server.seen().len(), 0);
    assert_eq!(expired.call(&request(Method::Get, "/x")).unwrap().status, 200);
    // The wait for the answer ends at that time, too.
    let began = Instant::now();
    let error = limited(Duration::from_millis(100)).call(&request(Method::Delete, "/stall"));
    assert!(matches!(error, Err(TransportError::Unknown(_))), "{error:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_retry_after_is_a_number_of_seconds_or_a_date() {
    const NOW: &str = "Thu, 01 Jan 2026 00:00:00 GMT";
    for (after, date, want_s) in [
        ("7", NOW, Some(7)),
        ("Thu, 01 Jan 2026 00:00:08 GMT", NOW, Some(8)),
        // It is over.
        ("Wed, 31 Dec 2025 23:59:00 GMT", NOW, Some(0)),
        // By our own clock.
        ("Thu, 01 Jan 1970 00:00:08 GMT", "", Some(0)),
        ("Thu, 01 Jan 1970 00:00:08 GMT", "now", Some(0)),
        ("-7", NOW, None),
        ("soon", NOW, None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, after.parse().unwrap());
        headers.insert(DATE, date.parse().unwrap());
        let want = want_s.map(Duration::from_secs);
        assert_eq!(retry_after(&headers), want, "{after} {date}");
    }
    assert_eq!(retry_after(&HeaderMap::new()), None);
}
