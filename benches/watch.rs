//! Measures watch events per second in both encodings: the parser alone, and the whole path through TLS and HTTP. `cargo bench --bench watch` builds with the optimisation of the shipped binary.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

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
use posse_kube::api::pods::{Pods, WATCH_IDLE};
use posse_kube::config::Sources;
use posse_kube::http::Http;
use posse_run::watch::lines::Lines;
use posse_testing::Authority;
use posse_wire::k8s::labels::Selection;
use posse_wire::k8s::watch::{Encoded, LineEvent, parse_event};
use rustix::time::{ClockId, clock_gettime};
use rustls::{DEFAULT_VERSIONS, ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
/// Typical size of a user's pod: environment and volumes make it larger than the fixture.
const LINE_BYTES: usize = 7_200;
/// One write of the server, as kube-apiserver writes each event by itself.
const EVENTS_MAX: usize = 2_000_000;

fn main() {
    let (line, message) = event();
    let framed = [&u32::try_from(message.len()).unwrap().to_be_bytes(), &message[..]].concat();
    let json = ("JSON", Encoded::Json(&line), [&line[..], b"\n"].concat());
    for (name, event, sent) in [json, ("protobuf", Encoded::Protobuf(&message), framed)] {
        println!("{name}: {} bytes an event", sent.len());
        report("  from memory", sent.len(), || {
            let begun = Instant::now();
            let mut n_events = 0_u64;
            while begun.elapsed() < ROUND {
                for _ in 0..1_000 {
                    check(black_box(event), &selection());
                }
                n_events += 1_000;
            }
            (n_events, begun.elapsed())
        });
        let pods = Server::start(&sent).pods();
        report("  through TLS, HTTP chunks and the split into events", sent.len(), || {
            let mut stream = pods.open_watch("1", 60, WATCH_IDLE).unwrap();
            let (begun, mut n_events, mut lines) = (Instant::now(), 0_u64, Lines::default());
            while begun.elapsed() < ROUND {
                let on_event = |event: Encoded<'_>| {
                    check(event, pods.selection());
                    n_events += 1;
                    Ok(())
                };
                lines.fill(stream.reader(), on_event).unwrap();
            }
            (n_events, begun.elapsed())
        });
    }
}

fn check(event: Encoded<'_>, selection: &Selection) {
    let read = parse_event(event, selection).unwrap();
    assert!(matches!(black_box(read).event, LineEvent::Applied(_)));
}

fn report(what: &str, n_bytes: usize, mut round: impl FnMut() -> (u64, Duration)) {
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
        median * n_bytes as f64 / 1e6,
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

/// A MODIFIED of a running executor in both encodings, as a real server wrote it, with a longer environment.
fn event() -> (Vec<u8>, Vec<u8>) {
    let lines = include_str!("../fixtures/protobuf/watch.jsonl");
    let (at, line) = lines.lines().enumerate().find(|(_, line)| line.contains("Running")).unwrap();
    let mut stream = &include_bytes!("../fixtures/protobuf/watch.bin")[..];
    let mut message = Vec::new();
    for _ in 0..=at {
        let (length, rest) = stream.split_first_chunk().unwrap();
        let (first, rest) = rest.split_at(u32::from_be_bytes(*length) as usize);
        (message, stream) = (first.to_vec(), rest);
    }
    let mut whole: Value = serde_json::from_str(line).unwrap();
    for i in 0.. {
        let line = whole.to_string();
        if line.len() >= LINE_BYTES {
            return (line.into_bytes(), message);
        }
        let (name, value) = (format!("SETTING_{i}"), "of the application");
        let env = &mut whole["object"]["spec"]["containers"][0]["env"];
        env.as_array_mut().unwrap().push(json!({"name": name, "value": value}));
        let entry = [field(1, name.as_bytes()), field(2, value.as_bytes())].concat();
        // WatchEvent, RawExtension, Unknown behind its four magic bytes, Pod, PodSpec, Container.
        message = appended(&message, &[2, 1, 2, 2, 2], &field(7, &entry));
    }
    unreachable!("it grows with every turn")
}

/// A message with a field more in the message at `path`.
fn appended(message: &[u8], path: &[u8], more: &[u8]) -> Vec<u8> {
    let Some((number, path)) = path.split_first() else { return [message, more].concat() };
    let (magic, mut rest) = message.split_at(if message.starts_with(b"k8s\0") { 4 } else { 0 });
    let (mut whole, mut is_found) = (magic.to_vec(), false);
    while !rest.is_empty() {
        let (tag, after) = varint(rest);
        let (length, after) = varint(after);
        let (value, after) = after.split_at(if tag & 7 == 2 { length } else { 0 });
        if tag >> 3 == usize::from(*number) && !is_found {
            is_found = true;
            whole.extend(field(*number, &appended(value, path, more)));
        } else {
            whole.extend_from_slice(&rest[..rest.len() - after.len()]);
        }
        rest = after;
    }
    whole
}

fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut head = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        head.push(u8::try_from(length & 0x7F).unwrap() | 0x80);
        length >>= 7;
    }
    head.push(u8::try_from(length).unwrap());
    [&head[..], bytes].concat()
}

/// The number that begins here, and the bytes after it.
fn varint(bytes: &[u8]) -> (usize, &[u8]) {
    let n_bytes = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let (number, rest) = bytes.split_at(n_bytes);
    let number = number.iter().rev();
    (number.fold(0, |number, byte| number << 7 | usize::from(byte & 0x7F)), rest)
}

/// A server that sends the same event again and again, over TLS.
struct Server {
    port: u16,
    ca: String,
}

impl Server {
    fn start(line: &[u8]) -> Self {
        let authority = Authority::new();
        let config = authority.server(&["127.0.0.1"], DEFAULT_VERSIONS, None);
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let line = line.to_owned();
        thread::spawn(move || {
            for socket in listener.incoming() {
                // The client hangs up in the middle: that is how a round ends.
                let _ = serve(socket.unwrap(), Arc::clone(&config), &line);
            }
        });
        Self { port, ca: authority.pem }
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
