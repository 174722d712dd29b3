//! The page of all applications: who gets it, what many readers cost, and what it says of a server that is away.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

use super::page::{BEARER, OWN, ask, token};
use posse_control::page::apps::{Apps, AppsServer, Shown};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::config::listen_addr::ListenAddr;

/// A scripted list.
struct Script {
    answer: Mutex<Result<Vec<Value>, Refusal>>,
    n_reads: AtomicU64,
}

impl Apps for Script {
    fn read(&self) -> Result<Vec<Value>, Refusal> {
        self.n_reads.fetch_add(1, Ordering::Relaxed);
        self.answer.lock().unwrap().clone()
    }
}

struct Page {
    script: Arc<Script>,
    server: AppsServer,
}

impl Page {
    fn start(answer: Result<Vec<Value>, Refusal>) -> Self {
        let script = Script { answer: Mutex::new(answer), n_reads: AtomicU64::new(0) };
        let script = Arc::new(script);
        let shown = Shown { server: "https://k".to_owned(), namespace: Some("n".to_owned()) };
        let at = ListenAddr::parse("127.0.0.1:0").unwrap();
        let apps = Arc::clone(&script) as Arc<dyn Apps>;
        let server = AppsServer::start(at, token(), (apps, shown), 1).unwrap();
        Self { script, server }
    }

    fn read(&self) -> Value {
        let (code, head, body) = ask(self.address(), "GET /v1/apps", BEARER);
        assert_eq!(code, 200, "{body}");
        assert!(head.contains("content-type: application/json"), "{head}");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        serde_json::from_str(&body).unwrap()
    }

    fn address(&self) -> SocketAddr {
        self.server.address()
    }

    fn n_reads(&self) -> u64 {
        self.script.n_reads.load(Ordering::Relaxed)
    }
}

#[test]
fn many_readers_share_one_list() {
    let hostile = "<script>\"'\\";
    let page = Page::start(Ok(vec![json!({"app": "a", "waiting": hostile})]));
    thread::scope(|scope| {
        for _ in 0..30 {
            scope.spawn(|| {
                let read = page.read();
                assert_eq!(read["apps"], json!([{"app": "a", "waiting": hostile}]));
                let head = ["server", "namespace", "error", "left_out"].map(|name| &read[name]);
                assert_eq!(head, [&json!("https://k"), &json!("n"), &Value::Null, &json!(0)]);
                assert!(read["age_ms"].is_u64(), "{read}");
            });
        }
    });
    assert_eq!(page.n_reads(), 1);
}

#[test]
fn a_server_that_is_away_is_told() {
    let away = Refusal::local(RefusalClass::Transient, "connection refused");
    let page = Page::start(Err(away));
    for _ in 0..3 {
        let read = page.read();
        assert_eq!((&read["apps"], &read["age_ms"]), (&json!([]), &Value::Null));
        assert!(read["error"].as_str().unwrap().contains("connection refused"), "{read}");
    }
    assert_eq!(page.n_reads(), 1, "it is not asked again at once");
}

#[test]
fn a_list_without_end_is_cut() {
    let page = Page::start(Ok((0..5_003).map(|i| json!({"app": i})).collect()));
    let read = page.read();
    assert_eq!((read["apps"].as_array().unwrap().len(), &read["left_out"]), (5_000, &json!(3)));
}

#[test]
fn only_who_has_the_token_reads_the_applications() {
    let page = Page::start(Ok(Vec::new()));
    let code = |line: &str, headers: &str| ask(page.address(), line, headers).0;
    for path in ["/", "/page.css", "/common.js", "/apps.js"] {
        assert_eq!(code(&format!("GET {path}"), OWN), 200, "{path}");
    }
    let (_, head, body) = ask(page.address(), "GET /", OWN);
    assert!(body.contains("Applications") && head.contains("frame-ancestors 'none'"), "{head}");
    for (line, headers, want) in [
        ("GET /v1/apps", OWN, 401),
        ("GET /v1/apps", "host: localhost\r\nauthorization: Bearer s3cre\r\n", 401),
        ("GET /v1/apps?token=s3cret", OWN, 401),
        ("GET /page.js", OWN, 401),
        ("GET /page.js", BEARER, 404),
        ("GET /v1/status", BEARER, 404),
        ("POST /v1/apps", BEARER, 405),
        ("POST /", BEARER, 405),
    ] {
        assert_eq!(code(line, headers), want, "{line} {headers}");
    }
    for foreign in [
        "sec-fetch-site: cross-site\r\n",
        "sec-fetch-site: same-site\r\n",
        "origin: http://evil.example\r\n",
    ] {
        assert_eq!(code("GET /v1/apps", &format!("{BEARER}{foreign}")), 403, "{foreign}");
    }
    // DNS rebinding.
    let rebound = BEARER.replace("localhost", "evil.example");
    assert_eq!(code("GET /v1/apps", &rebound), 403);
    assert_eq!(code("GET /", "host: evil.example\r\n"), 403);
    assert_eq!(page.n_reads(), 0, "none of them was worth a LIST");
}
