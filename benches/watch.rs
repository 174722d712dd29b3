//! Measures watch events per second: the parser alone, and the whole path through TLS, HTTP and the
//! line reader. `cargo bench --bench watch` builds with the optimisation of the shipped binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "../tests/support/certs.rs"]
#[allow(dead_code, unreachable_pub)]
mod certs;

use std::fs;
use std::hint::black_box;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use posse::kube::api::pods::Pods;
use posse::kube::config::Sources;
use posse::kube::http::Http;
use posse::wire::labels::Selection;
use posse::wire::watch::{LineEvent, parse_line};
use rustix::time::{ClockId, clock_gettime};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
/// Typical size of a user's pod: environment and volumes make it larger than the fixture.
const LINE_BYTES: usize = 7_200;
/// One write of the server, as kube-apiserver writes each event by itself.
const EVENTS_MAX: usize = 2_000_000;

fn main() {
    let line = event();
    println!("one event: {} bytes", line.len());
    report("parse_line, from memory", &line, || {
        let begun = Instant::now();
        let mut n_events = 0_u64;
        while begun.elapsed() < ROUND {
            for _ in 0..1_000 {
                let parsed = parse_line(black_box(&line), &selection()).unwrap();
                assert!(matches!(black_box(parsed).event, LineEvent::Applied(_)));
            }
            n_events += 1_000;
        }
        (n_events, begun.elapsed())
    });
    let server = Server::start(&line);
    let pods = server.pods();
    report("through TLS, HTTP chunks and parse_line", &line, || {
        let mut stream = pods.open_watch("1", 60).unwrap();
        let (begun, mut n_events, mut whole) = (Instant::now(), 0_u64, Vec::new());
        while begun.elapsed() < ROUND {
            whole.clear();
            stream.reader().read_until(b'\n', &mut whole).unwrap();
            let parsed = parse_line(&whole, pods.selection()).unwrap();
            assert!(matches!(black_box(parsed).event, LineEvent::Applied(_)));
            n_events += 1;
        }
        (n_events, begun.elapsed())
    });
}

fn report(what: &str, line: &[u8], mut round: impl FnMut() -> (u64, Duration)) {
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let cpu = thread_cpu();
        let (n_events, took) = round();
        rates.push(n_events as f64 / took.as_secs_f64());
        costs.push((thread_cpu() - cpu).as_secs_f64() * 1e6 / n_events as f64);
    }
    let middle = |values: &mut [f64]| {
        values.sort_by(f64::total_cmp);
        (values[ROUNDS / 2], values[0], values[ROUNDS - 1])
    };
    let ((median, least, most), (cost, ..)) = (middle(&mut rates), middle(&mut costs));
    println!(
        "{what}: {median:.0} events/s ({least:.0} .. {most:.0}), {:.0} MB/s, {cost:.2} us of processor time each",
        median * line.len() as f64 / 1e6,
    );
}

/// Processor time of this thread so far.
fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}

fn selection() -> Selection {
    Selection { app: "wordcount".to_owned(), instance: "ab3de".to_owned() }
}

/// A MODIFIED of a running executor, as a real server wrote it, with a longer environment.
fn event() -> Vec<u8> {
    let pod = include_str!("../fixtures/pods/running.json");
    let mut object: Value = serde_json::from_str(pod).unwrap();
    let head = r#"{"type":"MODIFIED","object":"#;
    for i in 0.. {
        let line = format!("{head}{object}}}\n");
        if line.len() >= LINE_BYTES {
            return line.into_bytes();
        }
        let env = object["spec"]["containers"][0]["env"].as_array_mut().unwrap();
        env.push(json!({"name": format!("SETTING_{i}"), "value": "of the application"}));
    }
    unreachable!("it grows with every turn")
}

/// A server that sends the same event again and again, over TLS.
struct Server {
    port: u16,
    ca: String,
}

impl Server {
    fn start(line: &[u8]) -> Self {
        let authority = certs::Authority::new("bench-ca");
        let pair = authority.server();
        let chain = CertificateDer::pem_slice_iter(pair.cert.as_bytes());
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(
                    chain.collect::<Result<_, _>>().unwrap(),
                    PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap(),
                )
                .unwrap();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (config, line) = (Arc::new(config), line.to_owned());
        thread::spawn(move || {
            for socket in listener.incoming() {
                // The client hangs up in the middle: that is how a round ends.
                let _ = serve(socket.unwrap(), Arc::clone(&config), &line);
            }
        });
        Self { port, ca: authority.cert }
    }

    fn pods(&self) -> Pods {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "bench", "users": [],
            "clusters": [{"name": "bench", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.port),
                "certificate-authority-data": STANDARD.encode(&self.ca)}}],
            "contexts": [{"name": "bench", "context": {"cluster": "bench"}}],
        });
        let path = std::env::temp_dir().join(format!("posse-bench-{}.json", std::process::id()));
        fs::write(&path, config.to_string()).unwrap();
        let sources = Sources {
            kubeconfig: Some(&path),
            context: None,
            env: &|_| None,
            service_account_dir: Path::new(""),
            ca_bundles: &[],
        };
        let cluster = sources.resolve().unwrap();
        fs::remove_file(&path).unwrap();
        Pods::new(Http::connect(cluster).unwrap(), "analytics", selection())
    }
}

fn serve(socket: TcpStream, config: Arc<ServerConfig>, line: &[u8]) -> std::io::Result<()> {
    let tls = ServerConnection::new(config).map_err(std::io::Error::other)?;
    let mut stream = BufReader::new(StreamOwned::new(tls, socket));
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        stream.read_line(&mut head)?;
    }
    let stream = stream.get_mut();
    stream.write_all(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
    )?;
    // Each event is a chunk and a write of its own, as kube-apiserver does it.
    let mut chunk = format!("{:x}\r\n", line.len()).into_bytes();
    chunk.extend_from_slice(line);
    chunk.extend_from_slice(b"\r\n");
    for _ in 0..EVENTS_MAX {
        stream.write_all(&chunk)?;
    }
    stream.write_all(b"0\r\n\r\n")
}
