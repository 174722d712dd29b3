//! The readiness probes for `driver.ready`: tries until the driver is ready, and reports that once.

use std::fmt;
use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info, warn};

use crate::inbox::Message;
use posse_base::socket_owner::{self, SocketOwner};
use posse_core::model::input::Input;
use posse_process::tree;

const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// For each part of an HTTP answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How many open files of a process are looked at.
const FILES_MAX: usize = 100_000;
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
    fn check(&self, since: SystemTime, driver: Option<DriverTree>) -> Result<(), NotReady> {
        match self {
            Self::Tcp(address) => connect(address, driver).map(|_| ()),
            Self::Http { address, path } => Ok(get(connect(address, driver)?, address, path)?),
            Self::File(path) => match fs::metadata(path)?.modified()? {
                written if written + COARSE_CLOCK < since => {
                    Err(io::Error::other("the file is an older one").into())
                }
                _ => Ok(()),
            },
        }
    }
}

/// Why the driver is not ready.
#[derive(Debug)]
enum NotReady {
    /// Not yet.
    Waits(io::Error),
    /// Somebody else has the port.
    Held(String),
}

impl From<io::Error> for NotReady {
    fn from(error: io::Error) -> Self {
        Self::Waits(error)
    }
}

/// The driver's process, whose descendants may listen for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTree {
    /// Its supervisor, to which processes fall whose parents have ended.
    pub supervisor: u32,
}

impl DriverTree {
    /// Checks who listens at the other end of a connection. Another user of this machine may have taken the
    /// port before the driver, and executors run what they get from there.
    ///
    /// # Errors
    /// It is another user than this one or root, and no process of the driver.
    fn check(self, stream: &TcpStream) -> Result<(), NotReady> {
        let (here, there) = (plain(stream.local_addr()?), plain(stream.peer_addr()?));
        if !there.ip().is_loopback() && there.ip() != here.ip() {
            // Another machine, or another network namespace.
            return Ok(());
        }
        match socket_owner::of_listener(there)? {
            Some(owner) => self.check_owner(owner, there.port()),
            // Its other end may be in another network namespace, which NAT reaches (a container's published
            // port). Here nobody could close the listener since without a trace of the connection.
            None if socket_owner::of_end(there, here)?.is_none()
                && socket_owner::of_end(here, there)?.is_some() =>
            {
                Ok(())
            }
            None => Err(io::Error::other("who listened has closed the port").into()),
        }
    }

    fn check_owner(self, owner: SocketOwner, port: u16) -> Result<(), NotReady> {
        let SocketOwner { uid, inode } = owner;
        // Root reads and writes what it wants to anyway, and publishes the ports of containers.
        let is_own = uid == 0 || uid == rustix::process::geteuid().as_raw();
        match is_own || self.has_socket(inode) {
            true => Ok(()),
            false => Err(NotReady::Held(format!(
                "port {port} is held by another user (uid {uid}), not by the driver"
            ))),
        }
    }

    /// True if a process of the driver, which may have another user, has this socket.
    fn has_socket(self, inode: u32) -> bool {
        let link = format!("socket:[{inode}]");
        tree::descendants(self.supervisor).into_iter().any(|pid| {
            let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            files.take(FILES_MAX).any(|file| {
                fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == link.as_str())
            })
        })
    }
}

/// An address as IPv4 where IPv6 only wraps it.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// True if the kernel tells the owner of a socket: one without this protocol says that there is none.
fn are_owners_told() -> bool {
    let told = || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").ok()?;
        socket_owner::of_listener(listener.local_addr().ok()?).ok()?
    };
    told().is_some()
}

/// A running probe. Dropping it ends the probe.
#[derive(Debug)]
pub struct ReadyProbe {
    _stop: Sender<()>,
}

impl ReadyProbe {
    /// Probes, and sends `Input::DriverReady` to the inbox after the first success. `since`: when the driver was
    /// started, or before. `driver`: who must listen; none if posse has not started the driver.
    pub fn start(
        probe: Probe,
        since: SystemTime,
        driver: Option<DriverTree>,
        inbox: Sender<Message>,
    ) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        thread::Builder::new()
            .name("ready".to_owned())
            .spawn(move || run(&probe, since, driver, &inbox, &stopped))?;
        Ok(Self { _stop: stop })
    }
}

fn run(
    probe: &Probe,
    since: SystemTime,
    driver: Option<DriverTree>,
    inbox: &Sender<Message>,
    stopped: &Receiver<()>,
) {
    let driver = driver.filter(|_| !matches!(probe, Probe::File(_)));
    let driver = driver.filter(|_| {
        let are_told = are_owners_told();
        if !are_told {
            warn!(
                "this kernel does not tell who listens at a port (sock_diag): it could be anybody"
            );
        }
        are_told
    });
    let mut told = None;
    // Ends after the first success, or when the channel is closed because the probe was dropped.
    while stopped.recv_timeout(PROBE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let problem = match probe.check(since, driver) {
            Ok(()) => {
                info!("the driver is ready: {probe}");
                // The send fails if the run has ended.
                let _ = inbox.send(Message::Input(Input::DriverReady));
                return;
            }
            Err(NotReady::Waits(error)) => {
                debug!("the driver is not ready: not yet that {probe}: {error}");
                None
            }
            Err(NotReady::Held(problem)) => Some(problem),
        };
        if problem != told {
            if let Some(problem) = &problem {
                warn!("the driver is not ready: {problem}; end that process, or take another port");
            }
            told.clone_from(&problem);
            let _ = inbox.send(Message::Input(Input::DriverPort { problem }));
        }
    }
}

fn connect(address: &str, driver: Option<DriverTree>) -> Result<TcpStream, NotReady> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(stream) => {
                driver.map_or(Ok(()), |driver| driver.check(&stream))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last.into())
}

/// HTTP/1.0, so that the server closes the connection. Only the first line of the answer is read.
fn get(mut stream: TcpStream, address: &str, path: &str) -> io::Result<()> {
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
    use posse_testing::{PATIENCE, Wait};
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    const SOON: Duration = Duration::from_millis(300);
    /// No process of this test is in it, so only the user counts.
    const OURS: Option<DriverTree> = Some(DriverTree { supervisor: u32::MAX });

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
        let probe = ReadyProbe::start(Probe::Tcp(address.clone()), SystemTime::now(), OURS, sender)
            .unwrap();
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
        let _probe = ReadyProbe::start(probe, SystemTime::now(), OURS, sender).unwrap();
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
        let mut wait = Wait::new("the report of a good status", PATIENCE);
        while inbox.is_empty() {
            assert!(wait.goes_on(), "a good status is not enough");
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
            ReadyProbe::start(Probe::File(path.clone()), SystemTime::now(), OURS, sender).unwrap();
        assert!(inbox.recv_timeout(SOON).is_err(), "it is from an earlier run");
        fs::write(&path, "new").unwrap();
        expect_ready(&inbox);
        fs::remove_file(&path).unwrap();
    }

    /// The socket that a listener is.
    fn owner(listener: &TcpListener, uid: u32) -> SocketOwner {
        let found = socket_owner::of_listener(listener.local_addr().unwrap()).unwrap().unwrap();
        SocketOwner { uid, ..found }
    }

    #[test]
    fn the_driver_is_who_has_its_user_or_its_processes() {
        let listener = TcpListener::bind("127.77.0.1:0").unwrap();
        // Above the users that a machine has.
        let other = 3_999_999_999;
        let own = rustix::process::geteuid().as_raw();
        let nobody = OURS.unwrap();
        let driver = DriverTree {
            supervisor: rustix::process::getppid().unwrap().as_raw_nonzero().get().unsigned_abs(),
        };
        for (tree, uid, want) in
            [(nobody, own, true), (nobody, 0, true), (nobody, other, false), (driver, other, true)]
        {
            match tree.check_owner(owner(&listener, uid), 7_077) {
                Ok(()) => assert!(want, "{tree:?} {uid}"),
                Err(NotReady::Held(said)) => {
                    assert!(!want, "{tree:?} {uid}");
                    let held = format!(
                        "port 7077 is held by another user (uid {other}), not by the driver"
                    );
                    assert_eq!(said, held);
                }
                Err(NotReady::Waits(error)) => panic!("{error}"),
            }
        }
    }

    /// Who closes the port between the connection and the question who has it is not ready.
    #[test]
    fn a_listener_that_is_gone_again_is_not_ready() {
        let listener = TcpListener::bind("127.77.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(OURS.unwrap().check(&stream).is_ok());
        let accepted = listener.accept().unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        // A child that another test starts has it, too, until its program begins.
        let mut wait = Wait::new("the end of the listener", PATIENCE);
        while socket_owner::of_listener(address).unwrap().is_some() {
            assert!(wait.goes_on(), "it is there without its owner");
            thread::park_timeout(Duration::from_millis(5));
        }
        assert!(matches!(OURS.unwrap().check(&stream), Err(NotReady::Waits(_))));
        drop(accepted);
        assert!(matches!(OURS.unwrap().check(&stream), Err(NotReady::Waits(_))));
    }
}
