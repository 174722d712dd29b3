//! Tests of slots and paces: slow clients, full servers, probes.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver as Channel, Sender, bounded};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig};

use super::*;
use crate::{Plain, Rejection};

/// A TLS server and a client configuration that trusts it.
fn start_tls(limits: Limits, handler: Arc<dyn Handler>) -> (Server, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, key) = (made.cert.der().clone(), made.signing_key.serialize_der());
    let provider = || Arc::new(rustls::crypto::ring::default_provider());
    let server = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], PrivateKeyDer::Pkcs8(key.into()))
        .unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(cert).unwrap();
    let client = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::Tls(listener, Arc::new(server), Plain::Refused);
    (Server::start(listen, limits, "test", handler).unwrap(), Arc::new(client))
}

/// A TLS client whose bytes the test sends when it wants to.
struct TlsClient {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl TlsClient {
    fn new(server: &Server, config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from("localhost").unwrap();
        let tls = ClientConnection::new(Arc::clone(config), name).unwrap();
        Self { tcp: connect(server), tls }
    }

    /// The bytes of the next records.
    fn records(&mut self, plain: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(plain).unwrap();
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        while self.tls.is_handshaking() {
            self.tls.complete_io(&mut self.tcp)?;
        }
        let records = self.records(plain);
        self.tcp.write_all(&records)
    }

    /// A client that uploads and has sent no byte of the body. Its request has a regular slot: the server
    /// asks for the body.
    fn uploading(server: &Server, config: &Arc<ClientConfig>) -> Self {
        let mut client = Self::new(server, config);
        let head = b"PUT /take HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\
                     content-length: 900000000\r\n\r\n";
        client.send(head).unwrap();
        let mut answer = [0; b"HTTP/1.1 100 Continue\r\n\r\n".len()];
        rustls::Stream::new(&mut client.tls, &mut client.tcp).read_exact(&mut answer).unwrap();
        client
    }

    /// Sends a request and reads to the end.
    fn exchange(&mut self, request: &str) -> io::Result<String> {
        self.send(request.as_bytes())?;
        let mut answer = Vec::new();
        rustls::Stream::new(&mut self.tls, &mut self.tcp).read_to_end(&mut answer)?;
        Ok(String::from_utf8(answer).unwrap())
    }
}

/// Sends bytes one by one until the server closes the connection.
fn drip(mut stream: TcpStream, bytes: Vec<u8>, begun: Instant) -> JoinHandle<()> {
    thread::spawn(move || {
        for byte in bytes {
            if begun.elapsed() > PATIENCE || stream.write_all(&[byte]).is_err() {
                return;
            }
            thread::park_timeout(Duration::from_millis(20));
        }
    })
}

#[test]
fn bytes_of_tls_records_do_not_extend_the_time_limit() {
    let (server, config) = start_tls(SHORT, Arc::new(Echo));
    let heads = [
        // The handshake itself, then each part of a request.
        None,
        Some(""),
        Some("GET / HTTP/1.1\r\n"),
        Some("PUT / HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n"),
        Some("PUT /take HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n"),
    ];
    for head in heads {
        let mut client = TlsClient::new(&server, &config);
        let begun = Instant::now();
        let slow = match head {
            None => client.records(b""),
            Some(head) => {
                client.send(head.as_bytes()).unwrap();
                client.records(&[b'x'; 4000])
            }
        };
        let dripping = drip(client.tcp.try_clone().unwrap(), slow, begun);
        // A 408, or the end of the connection.
        let _ = client.tcp.read_to_end(&mut Vec::new());
        assert!(begun.elapsed() < PATIENCE / 2, "{head:?}: {:?}", begun.elapsed());
        client.tcp.shutdown(Shutdown::Both).ok();
        dripping.join().unwrap();
    }
}

#[test]
fn a_client_that_reads_slowly_is_closed() {
    let (server, config) = start_tls(SHORT, Arc::new(Echo));
    let mut client = TlsClient::new(&server, &config);
    client.send(b"GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let begun = Instant::now();
    // Each read takes less than the server may send in this time: the response never ends.
    let mut few = [0; 1000];
    while begun.elapsed() < SHORT.write_timeout * 4 {
        assert!(client.tcp.read(&mut few).is_ok());
        thread::park_timeout(Duration::from_millis(20));
    }
    // What is left is in the kernel's buffers.
    io::copy(&mut (&client.tcp).take(1 << 30), &mut io::sink()).ok();
    assert!(begun.elapsed() < PATIENCE, "the response goes on");
}

#[test]
fn the_slowest_client_is_closed_first() {
    let limits = Limits { connections_max: 3, patience: Duration::from_secs(1), ..LIMITS };
    let (server, config) = start_tls(limits, Arc::new(Echo));
    let mut clients: Vec<TlsClient> =
        (0..3).map(|_| TlsClient::uploading(&server, &config)).collect();
    // The second one sends parts of a record, so the server receives bytes but no body.
    let record = clients[1].records(&[b'x'; 16_000]);
    let begun = Instant::now();
    let mut n_dripped = 0;
    let (mut is_served, mut last) = (false, String::new());
    while !is_served {
        assert!(begun.elapsed() < PATIENCE, "no slow connection was closed: {last}");
        for i in [0, 2] {
            clients[i].send(&[b'x'; 64 << 10]).expect("a fast client is not closed");
        }
        let _ = clients[1].tcp.write_all(&record[n_dripped..=n_dripped]);
        n_dripped += 1;
        let mut new = TlsClient::new(&server, &config);
        last = new.exchange("GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        assert!(last.starts_with("HTTP/1.1 200") || last.starts_with("HTTP/1.1 503"), "{last}");
        is_served = last.starts_with("HTTP/1.1 200");
        thread::park_timeout(Duration::from_millis(20));
    }
    let end = clients[1].tcp.read_to_end(&mut Vec::new());
    let is_open = end.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
    assert!(!is_open, "the slow one is still there");
}

#[test]
fn a_full_server_answers_probes_and_refuses_the_rest_in_tls() {
    let (server, config) = start_tls(LIMITS, Arc::new(Echo));
    let held: Vec<TlsClient> =
        (0..LIMITS.connections_max).map(|_| TlsClient::uploading(&server, &config)).collect();
    // They take all places at the door. Those in the spare slots are closed for new ones.
    let silent: Vec<TcpStream> = (0..20).map(|_| connect(&server)).collect();
    for _ in 0..40 {
        let mut probe = TlsClient::new(&server, &config);
        let text = probe.exchange("GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{text}");
        let mut other = TlsClient::new(&server, &config);
        let text = other.exchange("GET /a HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        assert_eq!(answers(&text), [(503, r#"{"error":"too many connections"}"#)]);
        assert!(text.contains("retry-after: 1\r\n"), "{text}");
    }
    drop((held, silent));
}

/// Waits in `authorize` until the test lets it go on.
struct Gate {
    entered: Sender<Option<IpAddr>>,
    go_on: Channel<bool>,
}

impl Handler for Gate {
    fn handle(&self, _: Request, responder: Responder<'_>) -> io::Result<()> {
        responder.send(200, &[], b"")
    }

    fn receiver(&self, request: &Request) -> Option<&dyn Receiver> {
        (request.method == "PUT").then_some(self)
    }
}

impl Receiver for Gate {
    fn authorize_waits(&self) -> bool {
        true
    }

    fn authorize(&self, _: &Request, source: Option<IpAddr>) -> Result<(), Rejection> {
        self.entered.send(source).unwrap();
        match self.go_on.recv() == Ok(true) {
            true => Ok(()),
            false => Err(Rejection { status: 401, body: b"{}".to_vec() }),
        }
    }

    fn receive(
        &self,
        _: Request,
        body: &mut Body<'_, '_>,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        io::copy(body, &mut io::sink())?;
        responder.send(201, &[], b"")
    }
}

#[test]
fn a_request_that_waits_for_permission_holds_no_regular_slot() {
    let limits = Limits { connections_max: 2, spare_max: 3, ..LIMITS };
    let ((entered, has_entered), (go, go_on)) = (bounded(8), bounded(8));
    let gate = Arc::new(Gate { entered, go_on });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(Listen::Tcp(listener), limits, "test", gate).unwrap();
    let head = b"PUT /x HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx";
    let mut waiting: Vec<TcpStream> = Vec::new();
    for _ in 0..limits.spare_max {
        let mut stream = connect(&server);
        stream.write_all(head).unwrap();
        let source = has_entered.recv_timeout(PATIENCE).unwrap();
        assert_eq!(source, Some(IpAddr::from([127, 0, 0, 1])));
        waiting.push(stream);
    }
    // These checks hold all spare slots, and the regular slots are free.
    let text = exchange(&server, b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    let text = exchange(&server, head);
    assert_eq!(answers(&text)[0].0, 503, "{text}");
    [true, false, true].into_iter().for_each(|is_permitted| go.send(is_permitted).unwrap());
    let mut statuses: Vec<u16> =
        waiting.iter_mut().map(|stream| answers(&read_all(stream))[0].0).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 201, 401]);
}

/// Admits requests with a token.
struct Guarded;

impl Handler for Guarded {
    fn refuse(&self, request: &Request) -> Option<(u16, &'static str)> {
        request.header("authorization").is_none().then_some((401, "who are you?"))
    }

    fn handle(&self, _: Request, responder: Responder<'_>) -> io::Result<()> {
        responder.send(200, &[], b"")
    }
}

#[test]
fn slow_strangers_cost_those_with_a_token_at_most_a_fifth_of_their_calls() {
    const N_STRANGERS: usize = 600;
    const N_THREADS: usize = 4;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = Limits::default();
    let server = Server::start(Listen::Tcp(listener), limits, "test", Arc::new(Guarded)).unwrap();
    let address = server.local_addr().unwrap();
    let is_over = AtomicBool::new(false);
    let call = || {
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = b"GET /a HTTP/1.1\r\nhost: x\r\nauthorization: a\r\nconnection: close\r\n\r\n";
        stream.write_all(head).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    };
    // They send a byte each 100 ms, and come again when they are closed.
    let trickle = || {
        let connect = || {
            let mut stream = TcpStream::connect(address).ok()?;
            stream.write_all(b"GET /").ok()?;
            Some(stream)
        };
        let mut held: Vec<Option<TcpStream>> = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            held.resize_with(N_STRANGERS / N_THREADS, connect);
            for one in &mut held {
                if one.as_mut().is_none_or(|stream| stream.write_all(b"a").is_err()) {
                    *one = connect();
                }
            }
            thread::park_timeout(Duration::from_millis(100));
        }
    };
    thread::scope(|scope| {
        (0..N_THREADS).for_each(|_| drop(scope.spawn(trickle)));
        // The first round of them holds all that it can get.
        thread::park_timeout(Duration::from_millis(300));
        let n_answered = (0..200).filter_map(|_| call()).count();
        is_over.store(true, Ordering::Relaxed);
        assert!(n_answered >= 160, "{n_answered} of 200 calls were answered");
    });
}
