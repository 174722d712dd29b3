//! Several requests of one thread: what they have in common with `Http::call`, and what they leave to it.

use std::collections::BTreeMap;
use std::sync::Barrier;

use super::*;
use crate::http::in_flight::{InFlight, Outcome};

/// The outcome of one request.
fn sent(in_flight: &mut InFlight<u32>, request: Request<'static>) -> Outcome {
    in_flight.send(request, 7);
    let (tag, outcome) = outcomes(in_flight, 1).remove(0);
    assert_eq!(tag, 7);
    outcome
}

/// The next outcomes, at least `n`.
fn outcomes(in_flight: &mut InFlight<u32>, n: usize) -> Vec<(u32, Outcome)> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut all = Vec::new();
    while all.len() < n {
        assert!(Instant::now() < deadline, "{} of {n} outcomes", all.len());
        all.extend(in_flight.wait());
    }
    all
}

fn start(http: &Http) -> InFlight<u32> {
    InFlight::new(http.clone(), 4).unwrap()
}

#[track_caller]
fn answer(outcome: Outcome) -> Result<Response, TransportError> {
    match outcome {
        Outcome::Answered(answer) => answer,
        Outcome::Declined => panic!("it is left to Http::call"),
    }
}

#[track_caller]
fn assert_declined(outcome: Outcome) {
    assert!(matches!(outcome, Outcome::Declined), "{outcome:?}");
}

fn post() -> Request<'static> {
    request(Method::Post, Some(b"{}"))
}

/// The head without its first line, in any order.
fn headers(seen: &posse_testing::Seen) -> Vec<String> {
    let mut lines: Vec<_> = seen.head.lines().skip(1).map(str::to_lowercase).collect();
    lines.sort();
    lines
}

#[test]
fn a_request_is_the_same_as_that_of_a_call() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |_| {
        Answer::Reply(409, "Retry-After: 7\r\nContent-Type: application/json\r\n", b"no".to_vec())
    });
    let mut cluster = cluster(&server, &folder);
    cluster.identity.authorization = AuthSource::Token(Secret::new("t0ken"));
    let user = header_value("jane").unwrap();
    cluster.identity.impersonate = vec![(http::HeaderName::from_static("impersonate-user"), user)];
    let http = Http::connect(cluster).unwrap().with_accept("text/x, application/json");
    let mut in_flight = start(&http);
    for (method, body) in [
        (Method::Get, None),
        (Method::Post, Some(&b"{\"a\":1}"[..])),
        (Method::Patch, Some(b"{}")),
        (Method::Delete, Some(b"{}")),
        (Method::Delete, None),
    ] {
        let called = http.call(&request(method, body)).unwrap();
        let by_call = server.wait();
        let got = answer(sent(&mut in_flight, request(method, body))).unwrap();
        let ours = server.wait();
        let without_date = |response: &Response| Response { date: None, ..response.clone() };
        assert_eq!(without_date(&got), without_date(&called), "{method:?}");
        assert_eq!((ours.line(), &ours.body), (by_call.line(), &by_call.body));
        assert_eq!(headers(&ours), headers(&by_call), "{method:?}");
    }
    assert_eq!(server.n_connections(), 2, "each has one connection, which it keeps");
    let counts = http.request_counts().by_status;
    assert_eq!(counts.get(&("DELETE", Some(409))), Some(&4));
}

#[test]
fn requests_are_in_flight_at_once_and_have_a_limit() {
    let folder = Folder::new();
    let both = Barrier::new(4);
    let server = secure(&folder, &["127.0.0.1"], move |seen| {
        both.wait();
        ok(seen.line())
    });
    let http = Http::connect(cluster(&server, &folder)).unwrap();
    let mut in_flight = start(&http);
    // No four are answered before four are there.
    (0..12).for_each(|tag| in_flight.send(Request { path: format!("/{tag}"), ..post() }, tag));
    let all: BTreeMap<u32, Outcome> = outcomes(&mut in_flight, 12).into_iter().collect();
    assert_eq!(all.len(), 12);
    for (tag, outcome) in all {
        let line = format!("POST /prefix/{tag} HTTP/1.1");
        assert_eq!(answer(outcome).unwrap().body, line.as_bytes());
    }
    assert_eq!(server.n_connections(), 4);
}

/// A burst has a connection for each request, though not all are opened at once.
#[test]
fn no_request_waits_for_the_answer_of_another() {
    let all_are_there = Barrier::new(12);
    let server = TestServer::start(None, move |_| {
        all_are_there.wait();
        ok("{}")
    });
    let mut in_flight = InFlight::new(plain_client(server.address), 12).unwrap();
    (0..12).for_each(|tag| in_flight.send(post(), tag));
    for (_, outcome) in outcomes(&mut in_flight, 12) {
        assert_eq!(answer(outcome).unwrap().status, 200);
    }
}

#[test]
fn another_thread_ends_the_wait() {
    let server = TestServer::start(None, |_| ok("{}"));
    let mut in_flight = start(&plain_client(server.address));
    let wake_up = in_flight.wake_up();
    wake_up.wake();
    assert!(in_flight.wait().is_empty());
    thread::scope(|scope| {
        scope.spawn(|| wake_up.wake());
        assert!(in_flight.wait().is_empty());
    });
}

#[test]
fn answers_of_every_form_are_read() {
    let large = "x".repeat(300_000);
    let chunked = format!(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n{:x}\r\n{large}\r\n0\r\n\r\n",
        large.len()
    );
    let interim =
        "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na";
    for (reply, wanted) in [
        (Answer::Raw(chunked.into_bytes()), format!("abc{large}")),
        (Answer::Raw(interim.into()), "a".to_owned()),
        (Answer::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()), String::new()),
        (Answer::ThenCut(b"HTTP/1.1 200 OK\r\n\r\nto the end".to_vec()), "to the end".to_owned()),
        (
            Answer::Raw(
                b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 1\r\n\r\nb".to_vec(),
            ),
            "b".to_owned(),
        ),
    ] {
        let reply = Mutex::new(Some(reply));
        let server = TestServer::start(None, move |_| {
            reply.lock().unwrap().take().unwrap_or_else(|| Answer::Reply(200, "", b"next".to_vec()))
        });
        let mut in_flight = start(&plain_client(server.address));
        let got = answer(sent(&mut in_flight, post())).unwrap();
        assert!(got.body == wanted.as_bytes(), "{} bytes", got.body.len());
        // The connection is used again where it can be.
        assert_eq!(answer(sent(&mut in_flight, post())).unwrap().body, b"next");
    }
}

#[test]
fn a_large_request_is_sent_in_pieces() {
    let folder = Folder::new();
    let n_bytes = |seen: &posse_testing::Seen| ok(&seen.body.len().to_string());
    let (secure, open) =
        (secure(&folder, &["127.0.0.1"], n_bytes), TestServer::start(None, n_bytes));
    let secure = Http::connect(cluster(&secure, &folder)).map(|http| (http, secure));
    for (http, _server) in [secure.unwrap(), (plain_client(open.address), open)] {
        let large = Request { body: Some(vec![b'a'; 8 << 20].into()), ..post() };
        let got = answer(sent(&mut start(&http), large)).unwrap();
        assert_eq!(got.body, (8 << 20).to_string().as_bytes());
    }
}

#[test]
fn a_lost_answer_of_a_write_has_an_unknown_outcome() {
    for (head, problem) in [
        (&b""[..], "Peer disconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-Le", "Peer disconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", "Peer disconnected"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "http"),
    ] {
        let server = TestServer::start(None, move |_| Answer::ThenCut(head.to_vec()));
        let http = plain_client(server.address);
        let outcome = sent(&mut start(&http), post());
        assert_unknown(answer(outcome), problem);
        assert_eq!(server.seen().len(), 1, "a POST is sent once");
        // A GET may be sent again.
        assert!(matches!(
            (sent(&mut start(&http), request(Method::Get, None)), problem),
            (Outcome::Declined, "Peer disconnected") | (Outcome::Answered(Err(_)), "http")
        ));
    }
}

/// With TLS an end without its own message can be an attack.
#[test]
fn a_cut_answer_without_a_length_is_not_complete_with_tls() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |_| {
        Answer::ThenCut(b"HTTP/1.1 200 OK\r\n\r\nhalf of".to_vec())
    });
    let http = Http::connect(cluster(&server, &folder)).unwrap();
    assert_unknown(answer(sent(&mut start(&http), post())), "https://127.0.0.1");
}

#[test]
fn a_request_ends_at_its_time() {
    let server = TestServer::start(None, |_| Answer::Stall(b"HTTP/1.1 200 OK\r\n".to_vec()));
    let mut in_flight = InFlight::new(plain_client(server.address), 1).unwrap();
    in_flight.send(Request { timeout: Duration::from_millis(500), ..post() }, 1);
    // The only connection is busy. An earlier request may have more time.
    in_flight.send(Request { timeout: Duration::from_secs(1), ..post() }, 4);
    in_flight.send(Request { timeout: Duration::from_millis(300), ..post() }, 2);
    let first = outcomes(&mut in_flight, 1).remove(0);
    assert_eq!(first.0, 2);
    let rest = outcomes(&mut in_flight, 2).into_iter().filter(|(tag, _)| *tag == 1);
    let all: BTreeMap<u32, Outcome> = rest.chain([first]).collect();
    let mut all = all.into_values().map(answer);
    assert_unknown(all.next().unwrap(), "timeout");
    assert_not_sent(all.next().unwrap(), "all connections are busy");
    // Another one was opened in its place, and again one.
    in_flight.send(Request { timeout: Duration::from_millis(100), ..post() }, 3);
    assert_unknown(answer(outcomes(&mut in_flight, 1).remove(0).1), "timeout");
    assert_eq!(server.n_connections(), 3);
}

#[test]
fn an_answer_has_a_size_limit_in_flight_too() {
    let server = TestServer::start(None, |_| Answer::Reply(200, "", vec![b'a'; 20_000]));
    let mut in_flight = start(&plain_client(server.address));
    let limited = Request { body_bytes_max: 19_999, ..post() };
    assert_unknown(answer(sent(&mut in_flight, limited)), "larger than 19999 bytes");
    let exact = Request { body_bytes_max: 20_000, ..post() };
    assert_eq!(answer(sent(&mut in_flight, exact)).unwrap().body.len(), 20_000);
    let endless = TestServer::start(None, |_| {
        Answer::Raw([b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'a'; 100_000]].concat())
    });
    let outcome = sent(&mut start(&plain_client(endless.address)), post());
    assert_unknown(answer(outcome), "header");
}

#[test]
fn a_write_has_a_latest_time_in_flight_too() {
    let server = TestServer::start(None, |_| ok("{}"));
    let limit = WriteLimit(Arc::new(|| Duration::ZERO));
    let http = plain_client(server.address).with_write_limit(limit);
    assert_not_sent(answer(sent(&mut start(&http), post())), "lease");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn an_idle_connection_that_the_server_closes_is_not_used() {
    let folder = Folder::new();
    let (secure, open) =
        (secure(&folder, &["127.0.0.1"], closing), TestServer::start(None, closing));
    let secure = Http::connect(cluster(&secure, &folder)).map(|http| (http, secure));
    for (http, server) in [secure.unwrap(), (plain_client(open.address), open)] {
        let mut in_flight = start(&http);
        for n in 1..=3 {
            assert_eq!(answer(sent(&mut in_flight, post())).unwrap().status, 200);
            assert_eq!(server.n_connections(), n);
            // Ends when the end of the connection has arrived.
            assert!(in_flight.wait().is_empty());
        }
    }
}

/// An answer that does not say that it is the last.
fn closing(_: &posse_testing::Seen) -> Answer {
    Answer::ThenCut(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec())
}

#[test]
fn what_needs_more_than_a_connection_is_left_to_a_call() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], |_| Answer::Reply(401, "", Vec::new()));
    let known = cluster(&server, &folder);
    let connect = |cluster: &Cluster| start(&Http::connect(cluster.clone()).unwrap());
    // Credentials that the server refuses.
    assert_declined(sent(&mut connect(&known), post()));
    assert_eq!(server.seen().len(), 1);

    // A server that is not trusted, or not there.
    folder.write("ca", Authority::new().pem);
    assert_declined(sent(&mut connect(&known), post()));
    let mut nowhere = known.clone();
    nowhere.server.host = "x".repeat(64);
    assert_declined(sent(&mut connect(&nowhere), post()));

    // A proxy.
    let mut far = known.clone();
    far.proxy = Some(ureq::Proxy::new("http://127.0.0.1:1").unwrap());
    assert_declined(sent(&mut connect(&far), post()));

    // A credential plugin that has not ended yet.
    let mut slow = known;
    let gate = folder.path().join("gate");
    slow.identity.authorization = AuthSource::Exec(Box::new(folder.gated_plugin(&gate)));
    assert_declined(sent(&mut connect(&slow), post()));
    folder.write("gate", "");
    assert_eq!(server.seen().len(), 0);
}

#[test]
fn a_client_certificate_that_is_refused_or_replaced_is_left_to_a_call() {
    for versions in [&[&TLS12][..], &[&TLS13]] {
        let (folder, authority, clients) = (Folder::new(), Authority::new(), Authority::new());
        folder.write("ca", &authority.pem);
        let tls = |clients| authority.server(&["127.0.0.1"], versions, Some(clients));
        let server = TestServer::start(Some(tls(&clients)), |_| ok("{}"));
        let http = Http::connect(trust::with_certificate(&server, &folder, &clients)).unwrap();
        let mut in_flight = start(&http);
        assert_eq!(answer(sent(&mut in_flight, post())).unwrap().status, 200);
        let nobody = Http::connect(cluster(&server, &folder)).unwrap();
        assert_declined(sent(&mut start(&nobody), post()));

        // After a call has read the new certificate, no connection of the old one is used.
        let next = Authority::new();
        server.set_tls(tls(&next));
        let (chain, key) = next.issue(&["me"]);
        folder.write("chain", chain);
        folder.write("key", key);
        assert_eq!(http.with_own_streams().open_stream("/", PATIENCE).unwrap().status, 200);
        let before = server.n_connections();
        assert_eq!(answer(sent(&mut in_flight, post())).unwrap().status, 200);
        assert_eq!(server.n_connections(), before + 1);
    }
}

const PATIENCE: Duration = Duration::from_secs(60);
