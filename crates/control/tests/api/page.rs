//! The page: who gets it, and what it can do.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use serde_json::{Value, json};

use posse_control::address::bind;
use posse_control::api::{ControlServer, Tokens};
use posse_control::page::PageServer;
use posse_core::model::command::Command;
use posse_serve::token::Token;
use posse_testing::{FakeCore, FakeEvents, Fixture, Folder, PATIENCE, subject};
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::config::listen_addr::ListenAddr;
use posse_wire::k8s::usage::PodUsage;

/// A page on its own listener.
struct Page {
    core: Arc<FakeCore>,
    events: Arc<FakeEvents>,
    server: PageServer,
}

impl Page {
    fn start(at: &str, token: Option<Token>) -> Self {
        let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
        let server =
            PageServer::start(ListenAddr::parse(at).unwrap(), token, subject(&core, &events))
                .unwrap();
        Self { core, events, server }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.server.address().port()))
    }
}

pub(super) fn token() -> Token {
    let folder = Folder::new();
    let file = folder.path().join("token");
    fs::write(&file, "s3cret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    Token::read_private(&file).unwrap()
}

/// The status code, the head in lower case, and the body.
pub(super) fn ask(address: SocketAddr, line: &str, headers: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "{line} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, head.to_lowercase(), body.to_owned())
}

pub(super) const OWN: &str = "host: localhost\r\n";
pub(super) const BEARER: &str = "host: localhost\r\nauthorization: Bearer s3cret\r\n";

#[test]
fn the_page_is_served_with_a_strict_policy() {
    let page = Page::start("127.0.0.1:0", None);
    for (path, kind, part) in [
        ("/", "text/html", "<main>"),
        ("/page.css", "text/css", "prefers-color-scheme"),
        ("/page.js", "text/javascript", "v1/history"),
        ("/common.js", "text/javascript", "authorization"),
    ] {
        let (code, head, body) = ask(page.address(), &format!("GET {path}"), OWN);
        assert_eq!(code, 200, "{path}");
        assert!(body.contains(part), "{path}");
        for header in [
            &*format!("content-type: {kind}; charset=utf-8"),
            "content-security-policy: default-src 'none';",
            "frame-ancestors 'none'",
            "trusted-types 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(header), "{path}: {header} is not in {head}");
        }
        let (code, head, body) = ask(page.address(), &format!("HEAD {path}"), OWN);
        assert_eq!((code, &*body), (200, ""), "{path}");
        assert!(head.contains("content-length"), "{path}: {head}");
    }
}

/// A page has nothing of another server, and at most 60 kB in all.
#[test]
fn a_page_needs_no_other_server() {
    for (html, program) in [("page.html", "page.js"), ("apps.html", "apps.js")] {
        needs_no_other_server([html, "page.css", "common.js", program]);
    }
}

fn needs_no_other_server(names: [&str; 4]) {
    let parts = names.map(|name| {
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/page/").to_owned() + name)
            .unwrap()
    });
    assert!(parts.iter().map(String::len).sum::<usize>() <= 60_000);
    for part in &parts {
        let links = part.replace("http://www.w3.org/2000/svg", "");
        assert!(!links.contains("://") && !links.contains("url("), "{links}");
        for unsafe_way in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("]
        {
            assert!(!part.contains(unsafe_way), "{unsafe_way}");
        }
    }
}

#[test]
fn the_page_on_its_own_listener_only_reads() {
    let page = Page::start("127.0.0.1:0", None);
    page.events.push("{\"seq\":1}\n");
    page.events.end();
    let code = |line: &str, headers: &str| ask(page.address(), line, headers).0;
    assert_eq!(code("GET /v1/history", OWN), 200);
    let line = "GET /v1/groups/default/executors?observe=true";
    let (status, _, body) = ask(page.address(), line, OWN);
    assert!(status == 200 && body.contains(r#""key":"a""#), "{body}");
    let (status, _, body) = ask(page.address(), "GET /v1/events?follow=true", OWN);
    assert!(status == 200 && body.contains("{\"seq\":1}"), "{body}");
    // Every user of the machine reads this page, and may not read what tasks have printed.
    let output = "GET /v1/groups/default/executors/a/output";
    let (status, _, body) = ask(page.address(), output, OWN);
    assert!(status == 403 && body.contains("--page-token-file"), "{body}");
    let secret = Page::start("127.0.0.1:0", Some(token()));
    assert_eq!(ask(secret.address(), output, OWN).0, 401);
    assert_eq!(ask(secret.address(), output, BEARER).0, 404, "this run keeps none");
    drop(secret);
    for line in ["GET /v1/status", "GET /openapi.json", "GET /healthz", "GET /page", "GET //"] {
        assert_eq!(code(line, OWN), 404, "{line}");
    }
    for line in [
        "PUT /v1/groups/default",
        "DELETE /v1/groups/default",
        "POST /v1/executors/kill",
        "POST /v1/history",
        "POST /",
    ] {
        assert_eq!(code(line, OWN), 405, "{line}");
    }
    assert_eq!(code("POST /v1/executors/kill", "host: localhost\r\ncontent-length: 2\r\n"), 413);
    // A page that somebody left open is no sign of life of the driver.
    let tasks = Command::ViewTasks { group: "default".into(), key: None };
    let asked = page.core.asked.lock().unwrap();
    assert!(asked.contains(&tasks), "{asked:?}");
    assert!(asked.iter().all(|command| [&Command::View, &tasks].contains(&command)), "{asked:?}");
    drop(asked);
    page.server.stop();
}

#[test]
fn foreign_pages_and_hosts_do_not_reach_the_page() {
    let page = Page::start("127.0.0.1:0", None);
    for (headers, want) in [
        ("host: localhost\r\nsec-fetch-site: same-origin\r\n", 200),
        ("host: 127.0.0.1:1\r\nsec-fetch-site: none\r\n", 200),
        ("host: localhost\r\nsec-fetch-site: cross-site\r\n", 403),
        ("host: localhost\r\nsec-fetch-site: same-site\r\n", 403),
        ("host: localhost\r\norigin: http://evil.example\r\n", 403),
        // DNS rebinding.
        ("host: evil.example\r\n", 403),
        ("host: evil.example\r\nsec-fetch-site: same-origin\r\n", 403),
    ] {
        for path in ["/", "/page.js", "/v1/history", "/v1/events"] {
            let (code, ..) = ask(page.address(), &format!("GET {path}"), headers);
            assert_eq!(code, want, "{path}: {headers:?}");
        }
    }
}

/// The files say nothing of the run. All that does needs the token.
#[test]
fn with_a_token_the_page_asks_for_it() {
    let page = Page::start("0.0.0.0:0", Some(token()));
    let address = bind(&ControlAddr::parse("127.0.0.1:0").unwrap()).unwrap();
    let (core, events) = (Arc::new(FakeCore::default()), Arc::new(FakeEvents::default()));
    let tokens = Tokens { control: Some(token()), read: None };
    let control = ControlServer::start(address, tokens, subject(&core, &events)).unwrap();
    let ControlAddr::Tcp(control) = *control.address() else { panic!("TCP") };
    for address in [page.address(), control] {
        for path in ["/", "/page.css", "/page.js"] {
            assert_eq!(ask(address, &format!("GET {path}"), OWN).0, 200, "{path}");
        }
        for path in ["/v1/history", "/v1/events", "/v1/history?token=s3cret", "/nothing"] {
            let line = format!("GET {path}");
            assert_eq!(ask(address, &line, OWN).0, 401, "{path}");
            let wrong = "host: localhost\r\nauthorization: Bearer s3cre\r\n";
            assert_eq!(ask(address, &line, wrong).0, 401, "{path}");
        }
        assert_eq!(ask(address, "GET /v1/history", BEARER).0, 200);
        assert_eq!(ask(address, "POST /", OWN).0, 401);
    }
    // The names of an address that is not loopback are not known. A page after DNS rebinding has no token.
    let rebound = "host: evil.example\r\n";
    assert_eq!(ask(page.address(), "GET /v1/history", rebound).0, 401);
    let named = "host: posse.example\r\nauthorization: Bearer s3cret\r\n";
    assert_eq!(ask(page.address(), "GET /v1/history", named).0, 200);
    assert_eq!(ask(control, "GET /v1/history", named).0, 403);
}

#[test]
fn a_unix_socket_serves_no_page() {
    let fixture = Fixture::new();
    let missing = r#"{"error":"there is no such call"}"#;
    fixture.check(&[("GET", "/", "", 404, missing), ("GET", "/page.js", "", 404, missing)]);
    assert_eq!(fixture.call("GET", "/v1/history", "").0, 200);
}

#[test]
fn the_history_has_its_documented_form() {
    let page = Page::start("127.0.0.1:0", None);
    let get = |query: &str| {
        let (code, _, body) = ask(page.address(), &format!("GET /v1/history{query}"), OWN);
        (code, serde_json::from_str::<Value>(&body).unwrap())
    };
    let (code, all) = get("");
    assert_eq!((code, &all["run"], &all["app"]), (200, &"k3f9".into(), &"w".into()));
    assert_eq!(all["executors"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&all["groups"][0]["waiting"], &all["groups"][0]["waits_for"]),
        (&"quota".into(), &"quota".into())
    );
    assert_eq!(all["groups"][0]["message"], "exceeded quota");
    assert_eq!(all["outage"]["message"], "connection refused");
    assert_eq!(all["samples"][0]["target"], 10);
    let version = all["version"].as_u64().unwrap();
    let (code, rest) = get(&format!("?since={version}&run=k3f9"));
    assert_eq!((code, rest["executors"].as_array().unwrap().len()), (200, 0));
    assert_eq!(get(&format!("?since={}", version + 100)).0, 409);
    assert_eq!((&rest["driver_page"], &rest["usage"]), (&Value::Null, &json!({})));
    assert_eq!(get("?since=1&run=other").0, 409);
    assert_eq!(get("?since=x").0, 400);
}

/// The driver tells where its own page is, and only a page that a browser may follow.
#[test]
fn the_page_links_to_the_drivers_own_page() {
    let fixture = Fixture::new();
    let history =
        || serde_json::from_str::<Value>(&fixture.call("GET", "/v1/history", "").1).unwrap();
    let pod = |id: u64| format!("{}{id}", history()["pod_prefix"].as_str().unwrap());
    let usage = PodUsage { pod: pod(2), cpu_milli: 1_500, memory_bytes: 4_096 };
    let other = PodUsage { pod: "other-1".to_owned(), ..usage.clone() };
    *fixture.core.usage.lock().unwrap() = vec![usage, other];
    assert_eq!(history()["usage"], json!({"2": {"cpu_milli": 1500, "memory": 4096}}));
    let ready = |body: &str| fixture.call("POST", "/v1/driver/ready", body).0;
    assert_eq!((ready(""), ready("{}"), &history()["driver_page"]), (200, 200, &Value::Null));
    assert_eq!(ready(r#"{"page":"https://10.1.2.3:8787/status"}"#), 200);
    let asked = fixture.core.asked.lock().unwrap().clone();
    assert_eq!(asked.iter().filter(|one| **one == Command::DriverReady).count(), 3);
    for bad in ["javascript:alert(1)", "8787", "http://a b/", r"https://a/\u0007", ""] {
        assert_eq!(ready(&format!(r#"{{"page":"{bad}"}}"#)), 400, "{bad}");
    }
    assert_eq!(
        history()["driver_page"],
        "https://10.1.2.3:8787/status",
        "a call without one keeps it"
    );
}
