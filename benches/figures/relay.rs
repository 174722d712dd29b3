//! Relays TCP connections to a server on loopback, and counts them and their bytes. TLS passes
//! unchanged: a client verifies the same certificate.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

const BUFFER_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Counts {
    n_connections: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

/// What passed, in bytes of TCP payload; TLS and HTTP heads included.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    pub n_connections: u64,
    /// To the server.
    pub sent: u64,
    /// From the server.
    pub received: u64,
}

/// A relay that works until the program ends.
#[derive(Debug)]
pub struct Relay {
    counts: Arc<Counts>,
    port: u16,
}

impl Relay {
    /// `url`: of the server, `https://127.0.0.1:6443`.
    pub fn start(url: &str) -> Self {
        let server: SocketAddr = url
            .rsplit_once("//")
            .and_then(|(_, address)| address.parse().ok())
            .expect("the server's address is numeric");
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has free ports");
        let port = listener.local_addr().expect("a bound socket has an address").port();
        let counts = Arc::new(Counts::default());
        let ours = Arc::clone(&counts);
        thread::spawn(move || {
            for client in listener.incoming() {
                // A connection that cannot be opened is the client's to report.
                let _ = client.and_then(|client| connect(&client, server, &ours));
            }
        });
        Self { counts, port }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    pub fn traffic(&self) -> Traffic {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Traffic {
            n_connections: read(&self.counts.n_connections),
            sent: read(&self.counts.sent),
            received: read(&self.counts.received),
        }
    }
}

fn connect(client: &TcpStream, server: SocketAddr, counts: &Arc<Counts>) -> io::Result<()> {
    let server = TcpStream::connect(server)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    counts.n_connections.fetch_add(1, Ordering::Relaxed);
    let (out, back) = (Arc::clone(counts), Arc::clone(counts));
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    thread::spawn(move || copy(from, to, &out.sent));
    let (from, to) = (server, client.try_clone()?);
    thread::spawn(move || copy(from, to, &back.received));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, count: &AtomicU64) {
    let mut buffer = vec![0; BUFFER_BYTES];
    // An end or an error of one side ends both.
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
        count.fetch_add(n as u64, Ordering::Relaxed);
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
