//! Who is let in: tokens and their files, `Host`, and requests of web pages.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use serde_json::Value;

use posse_control::address::{ControlError, bind, bind_default};
use posse_control::api::{ControlServer, Tokens};
use posse_control::client::{Client, RunSelector};
use posse_core::model::act::{Caller, Key};
use posse_core::model::command::Command;
use posse_serve::token::Token;
use posse_testing::{FakeCore, FakeEvents, Folder, subject};
use posse_wire::config::control_addr::ControlAddr;

#[test]
fn tcp_needs_the_token() {
    let folder = Folder::new();
    let file = folder.path().join("token");
    fs::write(&file, "s3cret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let error = Token::read_private(&file).expect_err("others can read it").to_string();
    assert!(error.contains("chmod 600"), "{error}");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
    let tcp = || bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();

    let error = ControlServer::start(tcp(), Tokens::default(), subject(&core, &events))
        .expect_err("no token");
    assert!(matches!(error, ControlError::NoToken { .. }), "{error}");

    let tokens = Tokens { control: Some(Token::read_private(&file).unwrap()), read: None };
    let server = ControlServer::start(tcp(), tokens, subject(&core, &events)).unwrap();
    let address = server.address().to_string();
    for path in ["/v1/status", "/healthz", "/v1/events", "/nothing"] {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\nauthorization: Bearer wrong\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("HTTP/1.1 401 "), "{path}: {text}");
    }
    let selector =
        RunSelector { control: Some(address), token_file: Some(file), ..RunSelector::default() };
    assert_eq!(Client::find(&selector).unwrap().status().unwrap().executors.len(), 2);
    let error = Client::find(&RunSelector { token_file: None, ..selector }).expect_err("no token");
    assert!(error.to_string().contains("--control-token-file"), "{error}");
}

/// The token is right, so only the headers decide.
#[test]
fn requests_of_web_pages_and_for_other_hosts_are_refused() {
    let folder = Folder::new();
    let file = folder.path().join("token");
    fs::write(&file, "s3cret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
    let tcp = bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();
    let tokens = Tokens { control: Some(Token::read_private(&file).unwrap()), read: None };
    let server = ControlServer::start(tcp, tokens, subject(&core, &events)).unwrap();
    let address = server.address().to_string();
    let unix = bind_default("w", "pages", &[folder.path().to_owned()]).unwrap();
    let ControlAddr::Unix(socket) = unix.address.clone() else { panic!("a unix socket") };
    let _second = ControlServer::start(unix, Tokens::default(), subject(&core, &events)).unwrap();
    let ask = |mut stream: Box<dyn ReadWrite>, headers: &str| {
        let token = "authorization: Bearer s3cret\r\nconnection: close\r\n";
        write!(stream, "GET /v1/status HTTP/1.1\r\n{token}{headers}\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()).unwrap()
    };
    let by_tcp = |headers: &str| ask(Box::new(TcpStream::connect(&address).unwrap()), headers);
    let by_unix = |headers: &str| ask(Box::new(UnixStream::connect(&socket).unwrap()), headers);
    for (headers, tcp, unix) in [
        (format!("host: {address}\r\n"), 200, 200),
        ("host: posse\r\n".to_owned(), 200, 200),
        ("host: localhost:1\r\n".to_owned(), 200, 200),
        ("host: localhost\r\nsec-fetch-site: none\r\n".to_owned(), 200, 200),
        // DNS rebinding. A browser does not reach unix sockets, whose clients may send any host.
        ("host: evil.example\r\n".to_owned(), 403, 200),
        (format!("host: evil.example:{}\r\n", address.rsplit(':').next().unwrap()), 403, 200),
        ("host: localhost\r\norigin: http://evil.example\r\n".to_owned(), 403, 403),
        ("host: localhost\r\norigin: null\r\n".to_owned(), 403, 403),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n".to_owned(), 403, 403),
        ("host: localhost\r\nsec-fetch-site: same-site\r\n".to_owned(), 403, 403),
        ("host: localhost\r\nauthorization: Bearer s3cret\r\n".to_owned(), 400, 400),
        ("host: localhost\r\nhost: localhost\r\n".to_owned(), 400, 400),
        ("host: localhost\nx: y\r\n".to_owned(), 400, 400),
    ] {
        assert_eq!((by_tcp(&headers), by_unix(&headers)), (tcp, unix), "{headers:?}");
    }
}

trait ReadWrite: Read + Write {}

impl<T: Read + Write> ReadWrite for T {}

#[test]
fn invalid_token_files_are_errors() {
    let folder = Folder::new();
    let path = folder.path().join("token");
    for (content, part) in
        [("", "empty"), (" \n", "empty"), ("two words", "one word"), (&"x".repeat(5000), "4096")]
    {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let error = Token::read_private(&path).expect_err(part).to_string();
        assert!(error.contains(part) && error.contains("token"), "{error}");
    }
    assert!(Token::read_private(&folder.path().join("missing")).is_err());
}

/// All calls of the API's description, so that a new one is refused until it is named as one that reads.
#[test]
fn the_token_that_reads_changes_nothing() {
    const READING: [&str; 10] = [
        "/healthz",
        "/openapi.json",
        "/readyz",
        "/v1/events",
        "/v1/executors",
        "/v1/groups/{group}/executors",
        "/v1/groups/{group}/executors/{key}",
        "/v1/groups/{group}/executors/{key}/output",
        "/v1/history",
        "/v1/status",
    ];
    let folder = Folder::new();
    let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
    let tcp = bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();
    let tokens = Tokens { control: token_in(&folder, "acts"), read: token_in(&folder, "reads") };
    let server = ControlServer::start(tcp, tokens, subject(&core, &events)).unwrap();
    let address = server.address().to_string();
    let unix = bind_default("w", "reads", &[folder.path().to_owned()]).unwrap();
    let ControlAddr::Unix(socket) = unix.address.clone() else { panic!("a unix socket") };
    let tokens = Tokens { control: None, read: token_in(&folder, "reads") };
    let _second = ControlServer::start(unix, tokens, subject(&core, &events)).unwrap();
    let ask = |is_tcp: bool, token: &str, method: &str, path: &str| {
        let mut stream: Box<dyn ReadWrite> = match is_tcp {
            true => Box::new(TcpStream::connect(&address).unwrap()),
            false => Box::new(UnixStream::connect(&socket).unwrap()),
        };
        write!(stream, "{method} {path} HTTP/1.0\r\nauthorization: Bearer {token}\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split(' ').nth(1).and_then(|code| code.parse::<u16>().ok()).unwrap()
    };
    let calls = described_calls();
    assert!(calls.len() > 12, "{calls:?}");
    for is_tcp in [true, false] {
        for (path, method) in &calls {
            let at = path.replace("{group}", "default").replace("{key}", "a").replace("{id}", "1");
            let got = ask(is_tcp, "reads", method, &at);
            if method == "GET" && READING.contains(&path.as_str()) {
                // This run keeps no output.
                let is_there = matches!(got, 200 | 503) || path.ends_with("/output") && got == 404;
                assert!(is_there, "{method} {path} {is_tcp}: {got}");
            } else {
                assert_eq!(got, 403, "{method} {path} {is_tcp}");
            }
            assert_ne!(ask(is_tcp, "acts", method, &at), 403, "{method} {path} {is_tcp}");
            assert_eq!(ask(is_tcp, "reads", "PATCH", &at), 403, "{path} {is_tcp}");
        }
        core.asked.lock().unwrap().clear();
        for path in
            ["/v1/groups/g/executors", "/v1/groups/g/executors/a", "/v1/status", "/v1/executors"]
        {
            assert_eq!(ask(is_tcp, "reads", "GET", path), 200);
        }
        let asked = std::mem::take(&mut *core.asked.lock().unwrap());
        let tasks = |key| Command::ViewTasks { group: "g".into(), key };
        let looks = [tasks(None), tasks(Some("a".into())), Command::View, Command::View];
        assert_eq!(asked, looks, "no sign of life of the driver");
        let by = core.caller.lock().unwrap().unwrap();
        let me = Some(rustix::process::geteuid().as_raw());
        let (key, from) = match is_tcp {
            true => (Key::ControlToken, Some([127, 0, 0, 1].into())),
            false => (Key::Socket, None),
        };
        assert_eq!(by, Caller { key, user: me, from });
        assert_eq!(ask(is_tcp, "wrong", "GET", "/v1/status"), if is_tcp { 401 } else { 200 });
    }
}

/// As it was before there were two.
#[test]
fn one_token_for_page_and_control_api_acts() {
    let folder = Folder::new();
    let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
    let bound = bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();
    let tokens = Tokens { control: token_in(&folder, "acts"), read: token_in(&folder, "acts") };
    let server = ControlServer::start(bound, tokens, subject(&core, &events)).unwrap();
    let mut stream = TcpStream::connect(server.address().to_string()).unwrap();
    let head = "POST /v1/driver/ready HTTP/1.0\r\nauthorization: Bearer acts\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
}

/// A token that is its file's name.
fn token_in(folder: &Folder, name: &str) -> Option<Token> {
    let file = folder.path().join(name);
    fs::write(&file, name).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    Some(Token::read_private(&file).unwrap())
}

/// Path and method of each call that the API's description has.
fn described_calls() -> Vec<(String, String)> {
    let description: Value = serde_json::from_str(include_str!("../../src/openapi.json")).unwrap();
    let paths = description["paths"].as_object().unwrap().iter();
    let calls = paths.flat_map(|(path, methods)| {
        let methods = methods.as_object().unwrap().keys().filter(|name| *name != "parameters");
        methods.map(|method| (path.clone(), method.to_uppercase()))
    });
    calls.collect()
}
