//! Several requests of one thread at once, each on a connection of its own. The thread sleeps until one of them
//! has an answer, and is woken up for one more: a thread for each request costs a wake-up for each, and memory.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, read, write};
use ureq::Timeout;

use super::agent::POOLED_AGE_MAX;
use super::connection::Connection;
use super::exchange::{Answer, Exchange};
use super::{AgentSnapshot, Http, Method, Request, Response, TransportError};
use crate::auth::Credentials;

/// What one read takes from a connection, in bytes. An answer about a pod fits.
const READ_BYTES: usize = 32 << 10;

/// Connections that are being opened at once.
const OPENING_MAX: usize = 4;

/// The stack of a thread that opens a connection, bytes.
const STACK_BYTES: usize = 256 << 10;

/// A request that is older is not left to `Http::call`: the core counts on a create of unknown outcome to take effect
/// within 60 s, of which the call may need 35 s.
const DECLINED_AGE_MAX: Duration = Duration::from_secs(20);

/// After a wait that the system refused.
const POLL_RETRY_PAUSE: Duration = Duration::from_millis(10);

/// How a request ended.
#[derive(Debug)]
pub enum Outcome {
    /// As `Http::call` gives it.
    Answered(Result<Response, TransportError>),
    /// The server has executed nothing of it, and what is to be done now is for `Http::call`, which may wait:
    /// open a connection through a proxy, renew credentials or certificates, or say why that fails.
    Declined,
}

/// The requests that one thread has in flight. `T` is what the caller knows of a request.
pub struct InFlight<T> {
    http: Http,
    /// There is no proxy between.
    is_direct: bool,
    connections_max: usize,
    busy: Vec<Busy<T>>,
    /// The one that was used last is the last.
    idle: Vec<Connection>,
    /// Requests without a connection.
    waiting: VecDeque<Asked<T>>,
    opened: (Sender<Opened>, Receiver<Opened>),
    n_opening: usize,
    done: Vec<(T, Outcome)>,
    wake_up: WakeUp,
    buffer: Vec<u8>,
}

type Opened = Result<Connection, ureq::Error>;

struct Asked<T> {
    request: Request<'static>,
    tag: T,
    asked_at: Instant,
    deadline: Instant,
}

struct Busy<T> {
    asked: Asked<T>,
    sent_at: Instant,
    exchange: Exchange,
    connection: Connection,
}

/// Ends the wait of an `InFlight` from any thread.
#[derive(Clone, Debug)]
pub struct WakeUp(Arc<OwnedFd>);

impl WakeUp {
    /// The present wait ends, or the next one.
    pub fn wake(&self) {
        // It fails only if the number of calls that nobody has read fills 64 bits.
        let _ = write(&*self.0, &1_u64.to_ne_bytes());
    }
}

impl<T> fmt::Debug for InFlight<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InFlight")
            .field("busy", &self.busy.len())
            .field("idle", &self.idle.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}

impl<T> InFlight<T> {
    /// Opens no connection yet. `http` says what the requests accept, and how late a write may be.
    ///
    /// # Errors
    /// No file can be opened any more.
    pub fn new(http: Http, connections_max: usize) -> io::Result<Self> {
        let wake_up = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self {
            is_direct: http.shared.is_direct(),
            http,
            connections_max,
            busy: Vec::new(),
            idle: Vec::new(),
            waiting: VecDeque::new(),
            opened: channel(),
            n_opening: 0,
            done: Vec::new(),
            wake_up: WakeUp(Arc::new(wake_up)),
            buffer: vec![0; READ_BYTES],
        })
    }

    /// What ends `wait`.
    pub fn wake_up(&self) -> WakeUp {
        self.wake_up.clone()
    }

    /// Sends a request, or keeps it until a connection is open. `wait` gives its outcome.
    pub fn send(&mut self, request: Request<'static>, tag: T) {
        match self.http.deadline(&request) {
            Ok(_) if !self.is_direct => self.done.push((tag, Outcome::Declined)),
            Ok(deadline) => {
                self.place(Asked { request, tag, asked_at: Instant::now(), deadline });
            }
            Err(error) => self.done.push((tag, Outcome::Answered(Err(error)))),
        }
    }

    /// Sleeps until there is an outcome, or until it is woken up. Gives the outcomes.
    pub fn wait(&mut self) -> Vec<(T, Outcome)> {
        if self.done.is_empty() {
            self.sleep();
        }
        std::mem::take(&mut self.done)
    }

    fn sleep(&mut self) {
        let n_busy = self.busy.len();
        let ready = self.poll().unwrap_or_else(|errno| {
            // The system has no memory for it, or a signal came. Nothing blocks if nothing is ready.
            log::debug!("poll: {errno}");
            thread::sleep(POLL_RETRY_PAUSE);
            vec![true; n_busy + self.idle.len()]
        });
        let _ = read(&*self.wake_up.0, &mut [0; 8]);
        let mut is_ready = ready[n_busy..].iter();
        self.idle.retain_mut(|connection| {
            // TLS has messages of its own. Bytes of HTTP that nobody asked for are none of them.
            is_ready.next() != Some(&true)
                || connection.read(&mut self.buffer).is_ok_and(|is_open| is_open)
                    && connection.input.is_empty()
        });
        // From the end: one that is done leaves its place to the last one, which had its turn.
        for i in (0..n_busy).rev().filter(|i| ready[*i]) {
            self.advance(i);
        }
        self.take_opened();
        self.end_late(Instant::now());
    }

    /// Waits, and says of each busy connection, and then of each idle one, whether it can be read or written.
    fn poll(&self) -> Result<Vec<bool>, Errno> {
        let asked = self.busy.iter().map(|busy| &busy.asked).chain(&self.waiting);
        let next = asked.map(|asked| asked.deadline).min();
        let left = next.map(|at| at.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let connections = self.busy.iter().map(|busy| &busy.connection).chain(&self.idle);
        let fds = connections.map(|connection| PollFd::new(connection, connection.interest()));
        let mut fds: Vec<PollFd<'_>> =
            fds.chain([PollFd::new(&*self.wake_up.0, PollFlags::IN)]).collect();
        poll(&mut fds, left.as_ref())?;
        fds.pop();
        Ok(fds.iter().map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Reads and writes what a busy connection can.
    fn advance(&mut self, i: usize) {
        let Busy { connection, exchange, .. } = &mut self.busy[i];
        let result = match progress(connection, exchange, &mut self.buffer) {
            Ok(None) => return,
            Ok(Some(answer)) => Ok(answer),
            Err(error) => Err(error),
        };
        let Busy { asked, sent_at, connection, .. } = self.busy.swap_remove(i);
        match result {
            Ok(Answer { response, keeps_connection }) => {
                if keeps_connection && connection.input.is_empty() {
                    self.idle.push(connection);
                }
                self.count(asked.request.method, Some(response.status), sent_at);
                match response.status {
                    401 => self.decline(asked, Ok(response)),
                    _ => self.done.push((asked.tag, Outcome::Answered(Ok(response)))),
                }
            }
            Err(error) => self.fail(asked, sent_at, &error),
        }
        self.place_next();
    }

    /// The request was sent, at least in part.
    fn fail(&mut self, asked: Asked<T>, sent_at: Instant, error: &ureq::Error) {
        self.count(asked.request.method, None, sent_at);
        let (error, class) = self.http.shared.transport_error(error);
        // The server has probably closed an idle connection while a GET was sent.
        let is_harmless = class.disconnected && asked.request.method == Method::Get;
        match class.not_sent || is_harmless {
            true => self.decline(asked, Err(error)),
            false => self.done.push((asked.tag, Outcome::Answered(Err(error)))),
        }
    }

    fn count(&self, method: Method, status: Option<u16>, sent_at: Instant) {
        self.http.shared.counts.add(method.as_str(), status, sent_at.elapsed());
    }

    /// Sends a request on an idle connection, or has one opened.
    fn place(&mut self, asked: Asked<T>) {
        let shared = &self.http.shared;
        // Not later than now: a credential plugin must not hold up the others.
        let credentials = match shared.credentials(Some(Instant::now())) {
            Ok(credentials) => credentials,
            Err(error) => return self.decline(asked, Err(error)),
        };
        let snapshot = shared.snapshot(&credentials);
        self.idle.retain(|connection| {
            connection.generation == snapshot.generation
                && connection.used_at.elapsed() < POOLED_AGE_MAX
        });
        match self.idle.pop() {
            Some(connection) => self.start(asked, connection, &credentials),
            None => {
                self.waiting.push_back(asked);
                self.open(snapshot);
            }
        }
    }

    fn open_next(&mut self) {
        let shared = &self.http.shared;
        // Without credentials, the next one that is placed says so.
        if let Ok(credentials) = shared.credentials(Some(Instant::now())) {
            self.open(shared.snapshot(&credentials));
        }
    }

    fn place_next(&mut self) {
        if let Some(asked) = self.waiting.pop_front() {
            self.place(asked);
        }
    }

    fn start(&mut self, asked: Asked<T>, mut connection: Connection, credentials: &Credentials) {
        let request = &asked.request;
        let head = self.http.shared.whole_head(credentials, request, self.http.accept);
        let started = head.map_err(ureq::Error::from).and_then(|head| {
            Exchange::start(head, request.body.as_deref(), request.body_bytes_max)
        });
        let (exchange, bytes) = match started {
            Ok(started) => started,
            Err(error) => {
                let error = self.http.shared.transport_error(&error).0;
                return self.decline(asked, Err(error));
            }
        };
        let sent_at = Instant::now();
        // The next read fails too, and finds the reason if the server gave one.
        if let Err(error) = connection.send(bytes) {
            log::debug!("a request was not sent whole: {error}");
        }
        self.busy.push(Busy { asked, sent_at, exchange, connection });
    }

    /// Leaves a request to `Http::call`. One that is too old ends as it would without that.
    fn decline(&mut self, asked: Asked<T>, otherwise: Result<Response, TransportError>) {
        let outcome = match asked.asked_at.elapsed() < DECLINED_AGE_MAX {
            true => Outcome::Declined,
            false => Outcome::Answered(otherwise),
        };
        self.done.push((asked.tag, outcome));
    }

    fn decline_waiting(&mut self, error: &dyn fmt::Display) {
        let problem = format!("{}: {error}", self.http.server());
        log::debug!("no connection for {} requests: {problem}", self.waiting.len());
        for asked in std::mem::take(&mut self.waiting) {
            self.decline(asked, Err(TransportError::NotSent(problem.clone())));
        }
    }

    /// Opens one more connection, if requests wait for it and the limits allow it.
    fn open(&mut self, snapshot: AgentSnapshot) {
        let is_enough = self.n_opening >= self.waiting.len().min(OPENING_MAX);
        if is_enough || self.busy.len() + self.n_opening >= self.connections_max {
            return;
        }
        let (shared, opened) = (Arc::clone(&self.http.shared), self.opened.0.clone());
        let wake_up = self.wake_up();
        let spawned = thread::Builder::new()
            .name("connect".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                // Without a receiver nobody needs the connection any more.
                let _ = opened.send(Connection::open(&shared, &snapshot));
                wake_up.wake();
            });
        match spawned {
            Ok(_) => self.n_opening += 1,
            Err(error) => self.decline_waiting(&error),
        }
    }

    fn take_opened(&mut self) {
        while let Ok(opened) = self.opened.1.try_recv() {
            self.n_opening -= 1;
            match opened {
                Ok(connection) => {
                    self.idle.push(connection);
                    self.place_next();
                    // The others must not wait for its answer, which a webhook may hold up.
                    self.open_next();
                }
                Err(error) => self.decline_waiting(&error),
            }
        }
    }

    /// Ends the requests whose time is over.
    fn end_late(&mut self, now: Instant) {
        let late: Vec<Busy<T>> =
            self.busy.extract_if(.., |busy| busy.asked.deadline <= now).collect();
        for Busy { asked, sent_at, .. } in late {
            self.fail(asked, sent_at, &ureq::Error::Timeout(Timeout::Global));
            self.place_next();
        }
        let is_late = |asked: &Asked<T>| asked.deadline <= now;
        let (late, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(is_late);
        self.waiting = waiting;
        for asked in Vec::from(late) {
            let problem = format!("{}: all connections are busy", self.http.server());
            let error = TransportError::NotSent(problem);
            self.done.push((asked.tag, Outcome::Answered(Err(error))));
        }
    }
}

/// Sends and reads what it can. None: the answer is not complete.
fn progress(
    connection: &mut Connection,
    exchange: &mut Exchange,
    buffer: &mut [u8],
) -> Result<Option<Answer>, ureq::Error> {
    let sent = connection.flush();
    let is_open = connection.read(buffer)?;
    if let Some(answer) = exchange.take(&mut connection.input)? {
        let keeps_connection = answer.keeps_connection && is_open && sent.is_ok();
        return Ok(Some(Answer { keeps_connection, ..answer }));
    }
    sent?;
    if is_open { Ok(None) } else { exchange.end().map(Some) }
}
