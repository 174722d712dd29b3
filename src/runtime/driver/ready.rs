//! The readiness probes for `driver.ready`: tries until the driver is ready, and reports that once.

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info};

use crate::core::model::input::Input;
use crate::runtime::inbox::Message;

const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For each part of an HTTP answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest first line of an HTTP answer, in bytes.
const STATUS_LINE_BYTES_MAX: u64 = 1 << 10;

/// File systems take the time from a clock that is behind by up to a tick.
const COARSE_CLOCK: Duration = Duration::from_millis(100);

/// What shows that the driver is ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `host:port` accepts connections.
    Tcp(String),
    /// A GET of `path` at `host:port` returns a status from 200 to 399, which is Kubernetes' rule for
    /// probes, too.
    Http { address: String, path: String },
    /// The file exists and was written after the driver's start: an earlier run may have left one.
    File(PathBuf),
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address} accepts connections"),
            Self::Http { address, path } => write!(f, "http://{address}{path} answers"),
            Self::File(path) => write!(f, "{} is there", path.display()),
        }
    }
}

impl Probe {
    /// # Errors
    /// The driver is not ready; the error says why.
    fn check(&self, since: SystemTime) -> io::Result<()> {
        match self {
            Self::Tcp(address) => connect(address).map(|_| ()),
            Self::Http { address, path } => get(address, path),
            Self::File(path) => match fs::metadata(path)?.modified()? {
                written if written + COARSE_CLOCK < since => {
                    Err(io::Error::other("the file is an older one"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// A running probe. Dropping it ends the probe.
#[derive(Debug)]
pub struct ReadyProbe {
    _stop: Sender<()>,
}

impl ReadyProbe {
    /// Probes, and sends `Input::DriverReady` to the inbox after the first success. `since`: when the driver was
    /// started, or before.
    pub fn start(probe: Probe, since: SystemTime, inbox: Sender<Message>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        thread::Builder::new()
            .name("ready".to_owned())
            .spawn(move || run(&probe, since, &inbox, &stopped))?;
        Ok(Self { _stop: stop })
    }
}

fn run(probe: &Probe, since: SystemTime, inbox: &Sender<Message>, stopped: &Receiver<()>) {
    // Ends after the first success, or when the channel is closed because the probe was dropped.
    while stopped.recv_timeout(PROBE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        match probe.check(since) {
            Ok(()) => {
                info!("the driver is ready: {probe}");
                // The send fails if the run has ended.
                let _ = inbox.send(Message::Input(Input::DriverReady));
                return;
            }
            Err(error) => debug!("the driver is not ready: not yet that {probe}: {error}"),
        }
    }
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// HTTP/1.0, so that the server closes the connection. Only the first line of the answer is read.
fn get(address: &str, path: &str) -> io::Result<()> {
    let mut stream = connect(address)?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    stream.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut line = Vec::new();
    BufReader::new(stream.take(STATUS_LINE_BYTES_MAX)).read_until(b'\n', &mut line)?;
    let line = String::from_utf8_lossy(&line);
    let mut words = line.split_ascii_whitespace();
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    match words.next().and_then(|code| code.parse::<u16>().ok()) {
        Some(code) if is_http && (200..400).contains(&code) => Ok(()),
        Some(code) if is_http => Err(io::Error::other(format!("status {code}"))),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener};
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_millis(300);
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Not 127.0.0.1: another test could be given the port meanwhile.
    fn free_address() -> String {
        TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap().to_string()
    }

    fn expect_ready(inbox: &Receiver<Message>) {
        let message = inbox.recv_timeout(PATIENCE).unwrap();
        assert!(matches!(message, Message::Input(Input::DriverReady)));
    }

    #[test]
    fn the_first_success_is_reported_once() {
        let (sender, inbox) = bounded(4);
        let address = free_address();
        let probe =
            ReadyProbe::start(Probe::Tcp(address.clone()), SystemTime::now(), sender).unwrap();
        assert!(inbox.recv_timeout(SOON).is_err(), "not listening yet");
        let _listener = TcpListener::bind(address).unwrap();
        expect_ready(&inbox);
        drop(probe);
        assert!(inbox.recv_timeout(PATIENCE).is_err(), "reported once");
    }

    #[test]
    fn an_http_probe_waits_for_a_good_status() {
        let (sender, inbox) = bounded(4);
        let address = free_address();
        let listener = TcpListener::bind(&address).unwrap();
        let probe = Probe::Http { address, path: "/live?x=1".to_owned() };
        let _probe = ReadyProbe::start(probe, SystemTime::now(), sender).unwrap();
        // A busy machine may accept a connection after the probe has given it up.
        let serve = |(mut stream, _): (TcpStream, SocketAddr), answer: &str| {
            let mut request = [0; 27];
            stream.read_exact(&mut request).unwrap();
            assert_eq!(str::from_utf8(&request), Ok("GET /live?x=1 HTTP/1.0\r\nHos"));
            let _ = stream.write_all(answer.as_bytes());
        };
        for answer in ["SSH-2.0\r\n", "HTTP/1.1 503 Busy\r\n\r\n"] {
            assert!(inbox.try_recv().is_err(), "not before {answer:?}");
            serve(listener.accept().unwrap(), answer);
        }
        assert!(inbox.try_recv().is_err(), "not before a good status");
        listener.set_nonblocking(true).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while inbox.is_empty() {
            assert!(Instant::now() < deadline, "a good status is not enough");
            match listener.accept() {
                Ok(accepted) => serve(accepted, "HTTP/1.1 204 No Content\r\n\r\n"),
                Err(_) => thread::park_timeout(Duration::from_millis(5)),
            }
        }
        expect_ready(&inbox);
    }

    #[test]
    fn a_file_counts_if_it_is_newer_than_the_run() {
        let (sender, inbox) = bounded(4);
        let path = std::env::temp_dir().join(format!("posse-ready-{}", std::process::id()));
        fs::write(&path, "old").unwrap();
        let an_hour_ago = SystemTime::now() - Duration::from_secs(3_600);
        fs::File::open(&path).unwrap().set_modified(an_hour_ago).unwrap();
        let _probe =
            ReadyProbe::start(Probe::File(path.clone()), SystemTime::now(), sender).unwrap();
        assert!(inbox.recv_timeout(SOON).is_err(), "it is from an earlier run");
        fs::write(&path, "new").unwrap();
        expect_ready(&inbox);
        fs::remove_file(&path).unwrap();
    }
}
