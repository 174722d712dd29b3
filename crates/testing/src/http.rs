//! A scripted HTTP server on loopback, with or without TLS.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Longer than any step of a test takes. A test that hangs fails after this time.
const PATIENCE: Duration = Duration::from_secs(120);
/// A wait tells what it waits for each time that this is over.
const TOLD_AFTER: Duration = Duration::from_secs(20);

/// A request that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The request line and headers, without the empty line at the end.
    pub head: String,
    pub body: Vec<u8>,
    /// The number of its connection, from 0.
    pub connection: usize,
}

impl Seen {
    /// The value of a header; its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

/// How the server answers a request.
pub enum Answer {
    /// Closes the connection without an answer.
    Cut,
    /// Sends these bytes and keeps the connection open.
    Raw(Vec<u8>),
    /// Sends an answer with this status, headers and body.
    Reply(u16, &'static str, Vec<u8>),
    /// Sends these bytes and then nothing until the client closes the connection.
    Stall(Vec<u8>),
    /// Sends these bytes and closes the connection.
    ThenCut(Vec<u8>),
}

impl Answer {
    /// An answer of JSON.
    pub fn json(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self::Reply(status, "Content-Type: application/json\r\n", body.into())
    }
}

type Script = dyn Fn(&Seen) -> Answer + Send + Sync;

struct Inner {
    tls: Mutex<Option<Arc<ServerConfig>>>,
    script: Box<Script>,
    seen: mpsc::Sender<Seen>,
    n_connections: AtomicUsize,
    ended: AtomicBool,
}

/// A scripted HTTP server on loopback.
pub struct TestServer {
    pub address: SocketAddr,
    inner: Arc<Inner>,
    seen: mpsc::Receiver<Seen>,
}

impl TestServer {
    pub fn start(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, seen) = mpsc::channel();
        let inner = Arc::new(Inner {
            tls: Mutex::new(tls),
            script: Box::new(script),
            seen: send,
            n_connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for socket in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let inner = Arc::clone(&accepting);
                // Several tests make a connection fail on purpose.
                thread::spawn(move || inner.serve(socket?));
            }
        });
        Self { address, inner, seen }
    }

    /// Changes the TLS settings for new connections.
    pub fn set_tls(&self, tls: Arc<ServerConfig>) {
        *self.inner.tls.lock().unwrap() = Some(tls);
    }

    pub fn n_connections(&self) -> usize {
        self.inner.n_connections.load(Ordering::Relaxed)
    }

    /// The requests since the last call.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.try_iter().collect()
    }

    /// Waits for the next request. A wait that takes long says what it waits for.
    pub fn wait(&self) -> Seen {
        let started = Instant::now();
        loop {
            match self.seen.recv_timeout(TOLD_AFTER) {
                Ok(seen) => return seen,
                Err(RecvTimeoutError::Timeout) if started.elapsed() < PATIENCE => {
                    let (at, waited) = (self.address, started.elapsed().as_secs());
                    let what = format!(
                        "waiting for a request to the test server at {at} for {waited} s\n"
                    );
                    let _ = io::stderr().write_all(what.as_bytes());
                }
                Err(error) => panic!("no request to the test server at {}: {error}", self.address),
            }
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Inner {
    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        let connection = self.n_connections.fetch_add(1, Ordering::Relaxed);
        socket.set_read_timeout(Some(PATIENCE))?;
        let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut stream: Box<dyn ReadWrite> = match tls {
            None => Box::new(socket),
            Some(tls) => {
                let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(connection, socket))
            }
        };
        while let Some(seen) = read_request(&mut stream, connection)? {
            let answer = (self.script)(&seen);
            // The test may have ended.
            let _ = self.seen.send(seen);
            match answer {
                Answer::Cut => return Ok(()),
                Answer::Raw(bytes) => stream.write_all(&bytes)?,
                Answer::Reply(status, headers, body) => {
                    let head = format!(
                        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n",
                        body.len()
                    );
                    stream.write_all(&[head.as_bytes(), &body].concat())?;
                }
                Answer::Stall(bytes) => {
                    stream.write_all(&bytes)?;
                    stream.flush()?;
                    // Waits until the client closes the connection, or for the read timeout.
                    let _ = stream.read(&mut [0; 1]);
                    return Ok(());
                }
                Answer::ThenCut(bytes) => {
                    stream.write_all(&bytes)?;
                    return stream.flush();
                }
            }
            stream.flush()?;
        }
        Ok(())
    }
}

fn read_request(stream: &mut dyn ReadWrite, connection: usize) -> io::Result<Option<Seen>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        let mut buf = [0; 4096];
        match stream.read(&mut buf)? {
            0 => return Ok(None),
            n => bytes.extend_from_slice(&buf[..n]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut seen = Seen { head, body: bytes.split_off(end + 4), connection };
    let length = seen.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    while seen.body.len() < length {
        let mut buf = [0; 4096];
        match stream.read(&mut buf)? {
            0 => return Ok(None),
            n => seen.body.extend_from_slice(&buf[..n]),
        }
    }
    Ok(Some(seen))
}
