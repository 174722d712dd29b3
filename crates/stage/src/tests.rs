//! Tests of the stage server over plain HTTP, with raw sockets and with the real clients.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use ring::digest::{SHA256, digest};
use rustls::version::TLS13;

use crate::fetch::fetch;
use crate::quotas::Uploader;
use crate::retry::check_answer;
use crate::send::{self, Upload};
use crate::server::{Admission, Options, Quotas, Reviews, Stage};
use posse_core::policy::bundle_expiry::BundleTimeouts;
use posse_kube::config::Sources;
use posse_kube::http::transfer::{Authorities, Peer, Transfer};
use posse_serve::token::Token;
use posse_testing::{Answer, Authority, Folder, TestServer, plain_client};
use posse_wire::bundle::{Entry, Label, accepted, hex, parse_accepted};

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

pub(super) fn label(namespace: &str, bytes: &[u8], secret: &str) -> Label {
    Label {
        namespace: namespace.to_owned(),
        owner: "wordcount".to_owned(),
        file: "a.jar".to_owned(),
        bytes: bytes.len() as u64,
        sha256: sha256(bytes),
        secret_sha256: sha256(secret.as_bytes()),
    }
}

/// The client of an upload that is never late.
#[derive(Debug)]
pub(super) struct Prompt;

impl Uploader for Prompt {
    fn behind(&self) -> Duration {
        Duration::ZERO
    }

    fn cut(&self) {}
}

/// Time limit of a test.
const PATIENCE_MS: u64 = 120_000;
const PATIENCE: Duration = Duration::from_millis(PATIENCE_MS);
const TOKEN: &str = "t0ken";
const NO_BUNDLE: &str =
    r#"{"error":"there is no such bundle, or it was dropped, or the secret does not match"}"#;

/// A server on plain HTTP and its folder.
struct Served {
    _stage: Stage,
    folder: Folder,
    address: SocketAddr,
}

impl Served {
    fn start(idle: Duration) -> Self {
        Self::start_with(idle, |folder| Admission::Shared(folder.join("token")))
    }

    fn start_with(idle: Duration, admission: impl FnOnce(&Path) -> Admission) -> Self {
        let folder = Folder::new();
        fs::write(folder.path().join("token"), TOKEN).unwrap();
        let stage = Stage::start(Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            dir: folder.path().join("store"),
            tls: None,
            admission: admission(folder.path()),
            quotas: Quotas {
                bundle_bytes_max: 300_000,
                namespace_bytes_max: 500_000,
                namespace_bundles_max: 100,
            },
            patience: BundleTimeouts {
                idle_ms: u64::try_from(idle.as_millis()).unwrap(),
                gone_ms: 1_000,
            },
            pods: None,
        })
        .unwrap();
        let address = stage.local_addr().unwrap();
        Self { _stage: stage, folder, address }
    }

    /// Sends all of it and reads to the end: status, headers, body.
    fn exchange(&self, request: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        (status, head, answer[end + 4..].to_vec())
    }

    fn post(&self, query: &str, authorization: &str, body: &[u8]) -> (u16, String) {
        let mut request = format!(
            "POST /v1/bundles?{query} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{authorization}\r\n",
            body.len()
        )
        .into_bytes();
        request.extend_from_slice(body);
        let (status, _, body) = self.exchange(&request);
        (status, String::from_utf8(body).unwrap())
    }

    fn get(&self, id: &str, headers: &str) -> (u16, String, Vec<u8>) {
        self.exchange(
            format!("GET /v1/bundles/{id} HTTP/1.1\r\nhost: x\r\n{headers}\r\n").as_bytes(),
        )
    }

    /// Uploads a bundle. Returns its id and secret.
    fn put(&self, bytes: &[u8]) -> (String, String) {
        let (status, body) = self.post(&query(bytes), AUTHORIZATION, bytes);
        assert_eq!(status, 201, "{body}");
        parse_accepted(body.as_bytes()).unwrap()
    }

    fn bundles(&self) -> usize {
        let entries = fs::read_dir(self.folder.path().join("store")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().file_name() != ".lock").count()
    }
}

const AUTHORIZATION: &str = "authorization: Bearer t0ken\r\n";

fn query(bytes: &[u8]) -> String {
    format!("namespace=ns&app=wc&file=a.jar&sha256={}", sha256(bytes))
}

fn client(address: SocketAddr) -> Transfer {
    client_of(format!("http://{address}"), Authorities::Public)
}

fn secure_client(address: SocketAddr, authority: String) -> Transfer {
    client_of(format!("https://{address}"), Authorities::Given(authority))
}

fn client_of(url: String, authorities: Authorities) -> Transfer {
    let sources = Sources {
        kubeconfig: None,
        context: None,
        env: &|_| None,
        service_account_dir: Path::new("/nonexistent"),
        ca_bundles: &[],
    };
    let peer = Peer { url, authorities, insecure: false };
    Transfer::new(&sources, &peer).unwrap()
}

#[test]
fn invalid_uploads_are_refused() {
    let served = Served::start(PATIENCE);
    let good = query(b"hello");
    let large = vec![b'x'; 300_001];
    let most = vec![b'x'; 300_000];
    for (query, authorization, body, status, words) in [
        (good.as_str(), "", &b"hello"[..], 401, "bearer token"),
        (&good, "authorization: Bearer t0kem\r\n", b"hello", 401, "bearer token"),
        (&good, "authorization: Basic t0ken\r\n", b"hello", 401, "bearer token"),
        (&good.replace("=ns", "=N"), AUTHORIZATION, b"hello", 400, "\"field\":\"namespace\""),
        (&good.replace("=ns", "="), AUTHORIZATION, b"hello", 400, "\"field\":\"namespace\""),
        (&good.replace("=wc", "=-"), AUTHORIZATION, b"hello", 400, "\"field\":\"app\""),
        (&good.replace("=a.jar", "=..%2Fx"), AUTHORIZATION, b"hello", 400, "\"field\":\"file\""),
        (&good.replace("=a.jar", "=.."), AUTHORIZATION, b"hello", 400, "\"field\":\"file\""),
        (&good.replace("=a.jar", "=%00"), AUTHORIZATION, b"hello", 400, "\"field\":\"file\""),
        ("namespace=ns&app=wc&file=f", AUTHORIZATION, b"hello", 400, "\"field\":\"sha256\""),
        (&good, AUTHORIZATION, b"hellO", 422, "another sha256"),
        (&query(&large), AUTHORIZATION, &large, 413, "at most 300000 bytes"),
    ] {
        let (got, body) = served.post(query, authorization, body);
        assert!(got == status && body.contains(words), "{query}: {got} {body}");
        assert_eq!(served.bundles(), 0, "{query} left a file");
    }
    served.put(&most);
    let (status, body) = served.post(&query(&most), AUTHORIZATION, &most);
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("300000 of 500000 bytes are used"), "{body}");
    let chunked = format!(
        "POST /v1/bundles?{good} HTTP/1.1\r\nhost: x\r\n{AUTHORIZATION}transfer-encoding: chunked\r\n\r\n"
    );
    assert_eq!(served.exchange(chunked.as_bytes()).0, 411);
    let cut = format!(
        "POST /v1/bundles?{good} HTTP/1.1\r\nhost: x\r\n{AUTHORIZATION}content-length: 5\r\n\r\nhel"
    );
    assert_eq!(served.exchange(cut.as_bytes()).0, 408);
    assert_eq!(served.bundles(), 1);
    for (line, status) in [
        ("GET /v1/bundles", 405),
        ("PUT /v1/bundles/x", 405),
        ("POST /healthz", 405),
        ("GET /", 404),
        ("GET /v1/other", 404),
        ("GET /healthz", 200),
        ("HEAD /readyz", 200),
    ] {
        let request = format!("{line} HTTP/1.1\r\nhost: x\r\n\r\n");
        assert_eq!(served.exchange(request.as_bytes()).0, status, "{line}");
    }
    fs::remove_file(served.folder.path().join("token")).unwrap();
    let (status, body) = served.post(&good, AUTHORIZATION, b"hello");
    assert_eq!(status, 503, "{body}");
    assert!(!body.contains(served.folder.path().to_str().unwrap()), "{body}");
}

#[test]
fn a_client_that_waits_for_continue_is_refused_before_it_sends() {
    let served = Served::start(PATIENCE);
    for (authorization, length, want) in [
        (AUTHORIZATION, 300_001, "HTTP/1.1 413 "),
        ("", 5, "HTTP/1.1 401 "),
        (AUTHORIZATION, 5, "HTTP/1.1 100 "),
    ] {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let query = query(b"hello");
        write!(
            stream,
            "POST /v1/bundles?{query} HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
             content-length: {length}\r\n{authorization}\r\n"
        )
        .unwrap();
        let mut start = [0; 13];
        stream.read_exact(&mut start).unwrap();
        assert_eq!(String::from_utf8_lossy(&start), want);
    }
}

/// By a proxy that keeps the connection, and looks for no body. What it says is not the stage server's word.
#[test]
fn an_answer_of_a_proxy_instead_of_100_continue_is_told() {
    let (size, tls) = ("proxy-body-size: \"0\"", "backend-protocol: HTTPS");
    // Some of the answers come in two packets.
    for (status, n_first, want) in [(413, 0, size), (413, 9, size), (502, 0, tls), (504, 9, tls)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let transfer = client(listener.local_addr().unwrap());
        let proxy = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            let answer = format!("HTTP/1.1 {status} No\r\nContent-Length: 4\r\n\r\n<p/>");
            let (first, rest) = answer.split_at(n_first);
            for part in [first, rest] {
                stream.write_all(part.as_bytes()).unwrap();
                thread::sleep(Duration::from_millis(20));
            }
            // Until the client has gone.
            stream.read(&mut [0; 1]).map_or(0, |n| n)
        });
        let sent = transfer.post("/v1/bundles", "t0ken", 5, &mut &b"hello"[..]);
        let why = match check_answer(sent, "a.jar", &[201]) {
            Ok(retry) => retry.unwrap_err().0,
            Err(why) => why,
        };
        assert!(why.starts_with("a.jar: an Ingress or proxy "), "{why}");
        let want = format!("(ingress-nginx: nginx.ingress.kubernetes.io/{want}) ({status})");
        assert!(why.ends_with(&want), "{why}");
        drop(transfer);
        assert_eq!(proxy.join().unwrap(), 0, "no body was sent");
    }
}

#[test]
fn a_bundle_needs_its_secret_and_all_failures_look_the_same() {
    let served = Served::start(PATIENCE);
    let bytes: Vec<u8> = (0..200_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    let (id, secret) = served.put(&bytes);
    let (_, other) = served.put(b"other");
    let bearer = format!("authorization: Bearer {secret}\r\n");
    let (status, head, body) = served.get(&id, &bearer);
    assert_eq!((status, body == bytes), (200, true));
    assert!(head.contains("content-disposition: attachment; filename*=UTF-8''a%2Ejar"), "{head}");
    assert!(head.contains("accept-ranges: bytes") && head.contains(&sha256(&bytes)), "{head}");
    for (range, status, from, to, content_range) in [
        ("0-", 206, 0, 200_000, "bytes 0-199999/200000"),
        ("150000-", 206, 150_000, 200_000, "bytes 150000-199999/200000"),
        ("7-7", 206, 7, 8, "bytes 7-7/200000"),
        ("-5", 206, 199_995, 200_000, "bytes 199995-199999/200000"),
        ("200000-", 416, 0, 0, "bytes */200000"),
        ("3-2", 200, 0, 200_000, ""),
        ("0-1,4-5", 200, 0, 200_000, ""),
    ] {
        let (got, head, body) = served.get(&id, &format!("{bearer}range: bytes={range}\r\n"));
        assert_eq!((got, body == bytes[from..to]), (status, true), "{range}");
        match content_range {
            "" => assert!(!head.contains("content-range"), "{head}"),
            text => assert!(head.contains(&format!("content-range: {text}\r\n")), "{head}"),
        }
    }
    // Absent and wrong secrets, another bundle's secret, the upload token, unknown and invalid ids.
    let gone = "0".repeat(32);
    let mut answers = Vec::new();
    for (id, authorization) in [
        (id.as_str(), String::new()),
        (&id, "authorization: Bearer\r\n".to_owned()),
        (&id, "authorization: Basic eDp4\r\n".to_owned()),
        (&id, format!("authorization: Bearer {other}\r\n")),
        (&id, AUTHORIZATION.to_owned()),
        (&gone, bearer.clone()),
        ("", bearer.clone()),
        ("..%2Ftoken", bearer.clone()),
        ("../token", bearer.clone()),
    ] {
        for range in ["", "range: bytes=9999999-\r\n"] {
            answers.push(served.get(id, &format!("{authorization}{range}")));
        }
    }
    assert_eq!((answers[0].0, String::from_utf8_lossy(&answers[0].2)), (404, NO_BUNDLE.into()));
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[test]
fn without_an_api_server_unused_bundles_are_dropped() {
    let served = Served::start(Duration::from_secs(3));
    let (id, secret) = served.put(b"hello");
    let bearer = format!("authorization: Bearer {secret}\r\n");
    let put = Instant::now();
    let mut last = served.get(&id, &bearer);
    assert_eq!(last.0, 200);
    while served.bundles() > 0 {
        assert!(put.elapsed() < PATIENCE, "the bundle was not dropped");
        thread::sleep(Duration::from_millis(20));
    }
    last = served.get(&id, &bearer);
    assert_eq!((last.0, String::from_utf8_lossy(&last.2)), (404, NO_BUNDLE.into()));
}

/// Uploads `bytes` and returns the ticket entry.
fn entry(served: &Served, bytes: &[u8]) -> Entry {
    let (id, secret) = served.put(bytes);
    Entry {
        id,
        secret,
        file: "data.csv".to_owned(),
        bytes: bytes.len() as u64,
        sha256: sha256(bytes),
        executable: false,
    }
}

#[test]
fn fetched_files_equal_the_uploaded_ones() {
    let served = Served::start(PATIENCE);
    let transfer = client(served.address);
    let token = Token::read(&served.folder.path().join("token")).unwrap();
    let path = |name: &str| served.folder.path().join(name);
    let paths = [path("run me.sh"), path("empty")];
    fs::write(&paths[0], vec![b'#'; 250_000]).unwrap();
    fs::write(&paths[1], "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&paths[0], mode).unwrap();
    let named =
        |path: &PathBuf| (path.clone(), path.file_name().unwrap().to_str().unwrap().to_owned());
    let files = paths.each_ref().map(named);
    let sources = send::read(&files).unwrap();
    let told = RefCell::new(Vec::new());
    let upload = Upload {
        transfer: &transfer,
        token: &token,
        namespace: "ns",
        app: "wc",
        timeout_ms: PATIENCE_MS,
        told: &|file, n, of| told.borrow_mut().push((file.to_owned(), n, of)),
    };
    let entries = upload.send(&sources).unwrap();
    let told = told.into_inner();
    assert!(told.is_sorted_by_key(|(file, n, _)| (file == "empty", *n)), "{told:?}");
    assert!(told.contains(&("run me.sh".to_owned(), 250_000, 250_000)), "{told:?}");
    let out = path("out");
    fs::create_dir(&out).unwrap();
    for (entry, source) in entries.iter().zip(&paths) {
        // Twice, because an existing identical file is kept.
        for _ in 0..2 {
            let file = fetch(&transfer, entry, &out, PATIENCE_MS).unwrap();
            assert_eq!(fs::read(&file).unwrap(), fs::read(source).unwrap());
            let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&file).unwrap());
            assert_eq!(mode & 0o777, if entry.executable { 0o755 } else { 0o644 });
        }
    }
    assert!(entries[0].executable && !entries[1].executable);
    assert_eq!(fs::read_dir(&out).unwrap().count(), 2, "no partial file is left");
    let twice = [files[0].clone(), files[0].clone()];
    assert!(send::read(&twice).unwrap_err().contains("two files have this name"));
    assert!(send::read(&[named(&out)]).unwrap_err().contains("not a regular file"));
    assert!(send::read(&[named(&path("absent"))]).unwrap_err().contains("absent: No such file"));
}

/// The first connection is cut after it has lasted longer than an upload may stand still.
#[test]
fn an_upload_that_got_on_is_tried_again() {
    const BYTES: usize = 16 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (short_ms, id, secret) = (900, "0".repeat(32), "1".repeat(64));
    let accepted = accepted(&id, &secret);
    thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").unwrap();
            if n == 0 {
                thread::sleep(Duration::from_millis(2 * short_ms));
                continue;
            }
            stream.read_exact(&mut vec![0; BYTES]).unwrap();
            let head = format!("HTTP/1.1 201 x\r\nContent-Length: {}\r\n\r\n", accepted.len());
            stream.write_all([head, accepted.clone()].concat().as_bytes()).unwrap();
        }
    });
    let folder = Folder::new();
    let path = folder.path().join("big");
    fs::File::create(&path).unwrap().set_len(BYTES as u64).unwrap();
    fs::write(folder.path().join("token"), TOKEN).unwrap();
    let upload = Upload {
        transfer: &client(address),
        token: &Token::read(&folder.path().join("token")).unwrap(),
        namespace: "ns",
        app: "wc",
        timeout_ms: short_ms,
        told: &|_, _, _| (),
    };
    let entries = upload.send(&send::read(&[(path, "big".to_owned())]).unwrap()).unwrap();
    assert_eq!(entries[0].id, id);
}

/// A load balancer whose server begins anew cuts connections before TLS is spoken.
#[test]
fn a_connection_that_is_cut_before_tls_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(drop));
    let folder = Folder::new();
    let transfer = secure_client(address, Authority::new().pem);
    let (id, secret) = ("0".repeat(32), "secret".to_owned());
    let (file, sha256) = ("data.csv".to_owned(), sha256(b"hello"));
    let entry = Entry { id, secret, file, bytes: 5, sha256, executable: false };
    let why = fetch(&transfer, &entry, folder.path(), 900).unwrap_err();
    assert!(why.contains("gave up after") && !why.contains("after 1 tries"), "{why}");
    // What trying again does not change is told at once.
    let other = Authority::new().server(&["127.0.0.1"], &[&TLS13], None);
    let server = TestServer::start(Some(other), |_| Answer::Cut);
    let transfer = secure_client(server.address, Authority::new().pem);
    let why = fetch(&transfer, &entry, folder.path(), PATIENCE_MS).unwrap_err();
    assert!(why.contains("UnknownIssuer"), "{why}");
}

/// A proxy to `to` that cuts the first `n_cut` connections after `answer_bytes_max` bytes.
fn cutting_proxy(to: SocketAddr, answer_bytes_max: u64, n_cut: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for (n, client) in listener.incoming().enumerate() {
            let (Ok(mut client), Ok(mut server)) = (client, TcpStream::connect(to)) else { return };
            let (mut up_from, mut up_to) =
                (client.try_clone().unwrap(), server.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut up_from, &mut up_to));
            let room = if n < n_cut as usize { answer_bytes_max } else { u64::MAX };
            let _ = std::io::copy(&mut (&mut server).take(room), &mut client);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    });
    address
}

#[test]
fn a_cut_download_is_resumed() {
    let served = Served::start(PATIENCE);
    let bytes: Vec<u8> = (0..250_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let entry = entry(&served, &bytes);
    // With 100,000 bytes per connection it needs three. Without resuming it would never end.
    let transfer = client(cutting_proxy(served.address, 100_000, 1_000));
    let out = served.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let file = fetch(&transfer, &entry, &out, PATIENCE_MS).unwrap();
    assert_eq!(fs::read(file).unwrap(), bytes);
    // A partial file of an earlier process is resumed, or replaced if its content is wrong.
    let part = out.join(format!(".{}.part", entry.id));
    for left in [&bytes[..170_000], b"something else", &[b'x'; 260_000], &bytes] {
        fs::remove_file(out.join("data.csv")).unwrap();
        fs::write(&part, left).unwrap();
        let file = fetch(&client(served.address), &entry, &out, PATIENCE_MS).unwrap();
        assert_eq!(fs::read(file).unwrap(), bytes);
        assert!(!part.exists());
    }
}

#[test]
fn a_failed_fetch_has_a_reason_and_leaves_no_file() {
    let served = Served::start(PATIENCE);
    let entry = entry(&served, b"hello");
    let transfer = client(served.address);
    let out = served.folder.path().join("out");
    fs::create_dir(&out).unwrap();
    let short = 900;
    let try_one = |transfer: &Transfer, shape: &dyn Fn(&mut Entry)| {
        let mut entry = entry.clone();
        shape(&mut entry);
        let why = fetch(transfer, &entry, &out, short).unwrap_err();
        assert!(!out.join("data.csv").exists());
        assert!(!why.contains(&entry.secret), "{why}");
        why
    };
    let why = try_one(&transfer, &|entry| entry.secret = "wrong".to_owned());
    assert!(
        why.starts_with("data.csv: there is no such bundle") && why.ends_with("(404)"),
        "{why}"
    );
    let why = try_one(&transfer, &|entry| entry.sha256 = sha256(b"hellO"));
    assert_eq!(why, "data.csv: the received content has another sha256 than the ticket says");
    // The ticket's length is larger than the bundle.
    let why = try_one(&transfer, &|entry| entry.bytes = 6);
    assert!(why.starts_with("data.csv: "), "{why}");
    // Remove the complete partial file, so that the server is needed.
    fs::remove_file(out.join(format!(".{}.part", entry.id))).unwrap();
    // Not 127.0.0.1: another test could be given the port meanwhile.
    let closed_port = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let why = try_one(&client(closed_port), &|_| ());
    assert!(why.contains("refused") && why.contains("gave up after"), "{why}");
    fs::write(out.join("sub"), "").unwrap();
    let error = fetch(&transfer, &entry, &out.join("sub"), short).unwrap_err();
    assert!(error.contains("sub/data.csv: Not a directory"), "{error}");
}

/// 128 clients with tokens that nobody knows, while the API server does not answer.
#[test]
fn junk_tokens_take_no_slots_while_the_api_server_is_slow() {
    let (release, held) = crossbeam_channel::bounded::<()>(0);
    let (begins, begun_reviews) = crossbeam_channel::bounded(256);
    let api_server = TestServer::start(None, move |_| {
        begins.send(()).unwrap();
        // Until the test has seen enough, or is over.
        let _ = held.recv();
        let body = r#"{"kind":"TokenReview","status":{"user":{},"error":"unknown token"}}"#;
        Answer::json(201, body)
    });
    let http = plain_client(api_server.address);
    let served = Served::start_with(PATIENCE, |_| Admission::Review(Reviews::new(http)));
    let junk = |n: usize| {
        let mut stream = TcpStream::connect(served.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let query = query(b"x");
        write!(
            stream,
            "POST /v1/bundles?{query} HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\
             authorization: Bearer junk{n}\r\n\r\nx"
        )
        .unwrap();
        stream
    };
    let begun = Instant::now();
    let status = |mut stream: TcpStream| {
        let mut start = [0; 12];
        stream.read_exact(&mut start).map(|()| String::from_utf8_lossy(&start[9..]).into_owned())
    };
    // Four of one address are under review, the rest is told to come back.
    let waiting: Vec<TcpStream> = (0..4)
        .map(|n| {
            let s = junk(n);
            begun_reviews.recv_timeout(PATIENCE).unwrap();
            s
        })
        .collect();
    for n in 4..128 {
        assert_eq!(status(junk(n)).unwrap(), "503", "{n}");
    }
    assert!(begun_reviews.is_empty(), "more than four reviews of one address");
    assert_eq!(served.exchange(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").0, 200);
    assert_eq!(served.get(&"0".repeat(32), "").0, 404);
    assert!(begun.elapsed() < PATIENCE, "{:?}", begun.elapsed());
    drop(release);
    for stream in waiting {
        assert_eq!(status(stream).unwrap(), "401");
    }
    // A refused token is not reviewed again for some time.
    assert_eq!(status(junk(0)).unwrap(), "401");
    assert!(begun_reviews.is_empty(), "a refused token was reviewed again");
}
