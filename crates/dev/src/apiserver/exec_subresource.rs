//! The subresource `pods/exec`.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::{Value, json};

use crate::apiserver::api::Api;
use crate::apiserver::channels::{self, Channels, RESIZE, STDERR, STDIN, STDOUT};
use crate::apiserver::exec_orders::{CommandIo, ExecOrder, StartCommand, exit_code};
use crate::apiserver::logs;
use crate::apiserver::options;
use crate::apiserver::web_socket::{self, Socket, wait_ready};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use posse_process::supervisor::Running;
use posse_serve::{Request, Responder};

/// How long the node may take to answer.
const ORDER_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a command's end is looked for.
const TICK: Duration = Duration::from_millis(50);
/// Output may still arrive from the command's children after its end, for this long.
const DRAIN: Duration = Duration::from_secs(1);
/// A command whose client has left gets this long to end: clients that upload a file leave at once.
const ALONE: Duration = Duration::from_secs(2);
/// Output is read in pieces of this size.
const PIECE_BYTES: usize = 32 << 10;
/// The messages that are read before output is looked for again.
const MESSAGES_MAX: usize = 64;
/// The client is not read while this much input waits for the command.
const PENDING_BYTES_MAX: usize = 64 << 10;

/// A request for a command in a container.
#[derive(Debug)]
pub(crate) struct Exec {
    key: Key,
    uid: Box<str>,
    container: String,
    command: Vec<String>,
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

/// Handles `exec`.
pub(crate) fn answer(api: &Api, request: &Request, key: &Key) -> Result<Exec, StatusError> {
    let object = api.lock().store.get(key).cloned();
    let object = object.ok_or_else(|| StatusError::not_found(Kind::Pod, &key.name))?;
    let pod = object.value();
    let asked = request.query("container").unwrap_or_default();
    let container = logs::container(&pod, &key.name, asked)?;
    let bad = |message: String| StatusError::bad_request(message);
    if object.node().is_empty() {
        return Err(bad(format!("pod {} does not have a host assigned", key.name)));
    }
    if !web_socket::is_wanted(request) {
        return Err(bad("Upgrade request required".to_owned()));
    }
    let flag = |name: &str| options::flag(request, name);
    let (stdin, stdout, stderr) = (flag("stdin"), flag("stdout"), flag("stderr"));
    let command = request.queries("command").map(str::to_owned).collect();
    Ok(Exec {
        key: key.clone(),
        uid: object.uid.clone(),
        container,
        command,
        stdin,
        stdout,
        stderr,
        tty: flag("tty"),
    })
}

impl Exec {
    /// Runs the command until it ends or the client leaves.
    pub(crate) fn serve(
        &self,
        api: &Api,
        request: &Request,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        let protocol = match channels::protocol(request) {
            Ok(protocol) => protocol,
            Err(error) => return send(&error, responder),
        };
        let start = match self.order(api) {
            Ok(start) => start,
            Err(why) => {
                let message = format!("unable to upgrade connection: {why}");
                return send(&StatusError::internal(message), responder);
            }
        };
        let mut client = Channels(Socket::accept(request, protocol, responder)?);
        let mut session = match self.start(start) {
            Ok(session) => session,
            Err(why) => {
                let message = format!(
                    "error executing command in container: failed to exec in container: failed to \
                     start exec: {why}"
                );
                return client.end(&StatusError::internal(message).body());
            }
        };
        match session.run(&mut client) {
            Ok(code) => client.end(&exit_status(code)),
            Err(error) => {
                log::debug!("the client of a command has left: {error}");
                session.end_alone();
                Ok(())
            }
        }
    }

    fn order(&self, api: &Api) -> Result<StartCommand, String> {
        let (answer, receiver) = bounded(1);
        let order = ExecOrder {
            key: self.key.clone(),
            uid: self.uid.clone(),
            container: self.container.clone(),
            command: if self.tty { in_session(&self.command) } else { self.command.clone() },
            answer,
        };
        api.exec_orders.0.try_send(order).map_err(|_| "the node is busy".to_owned())?;
        receiver.recv_timeout(ORDER_TIMEOUT).map_err(|_| "the node does not answer".to_owned())?
    }

    fn start(&self, start: StartCommand) -> Result<Session, String> {
        let words = |error: io::Error| error.to_string();
        if self.tty {
            let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map_err(io::Error::from);
            let terminal = terminal.map_err(words)?;
            let user = user_side(&terminal).map_err(words)?;
            let input = terminal.try_clone().map_err(words)?;
            let io = CommandIo {
                stdin: Some(user.try_clone().map_err(words)?),
                stdout: user.try_clone().map_err(words)?,
                stderr: user,
            };
            return Session::new(start(io)?, Some(input), vec![(STDOUT, terminal)], true);
        }
        let pipe = || io::pipe().map(|(read, write)| (OwnedFd::from(read), OwnedFd::from(write)));
        let stdin = self.stdin.then(pipe).transpose().map_err(words)?;
        let (read_stdin, stdin) =
            stdin.map_or((None, None), |(read, write)| (Some(read), Some(write)));
        let ((stdout, write_stdout), (stderr, write_stderr)) =
            pipe().and_then(|stdout| Ok((stdout, pipe()?))).map_err(words)?;
        let io = CommandIo { stdin: read_stdin, stdout: write_stdout, stderr: write_stderr };
        let running = start(io)?;
        // What the client did not ask for is read and dropped, so that the command does not block.
        let outputs = vec![
            (if self.stdout { STDOUT } else { DROPPED }, stdout),
            (if self.stderr { STDERR } else { DROPPED }, stderr),
        ];
        Session::new(running, stdin, outputs, false)
    }
}

/// The channel of output that is not sent.
const DROPPED: u8 = 254;

/// The command in a session that its terminal controls, as a container runtime starts it: without one Ctrl-C
/// interrupts nothing. Only a process of its own can begin a session, which util-linux has.
fn in_session(command: &[String]) -> Vec<String> {
    let setsid = ["setsid", "--ctty", "--wait"].map(str::to_owned);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join("setsid").is_file());
    setsid.into_iter().filter(|_| is_there).chain(command.iter().cloned()).collect()
}

/// The side of a pseudo terminal that a program uses.
fn user_side(terminal: &OwnedFd) -> io::Result<OwnedFd> {
    grantpt(terminal)?;
    unlockpt(terminal)?;
    let path = ptsname(terminal, Vec::new())?;
    Ok(rustix::fs::open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?)
}

/// A running command and the files that connect it to the client. Dropping it kills the command.
struct Session {
    running: Running,
    stdin: Option<File>,
    /// Input that the command has not read yet.
    pending: Vec<u8>,
    /// The client has closed stdin.
    stdin_closed: bool,
    outputs: Vec<(u8, File)>,
    tty: bool,
}

impl Session {
    fn new(
        running: Running,
        stdin: Option<OwnedFd>,
        outputs: Vec<(u8, OwnedFd)>,
        tty: bool,
    ) -> Result<Self, String> {
        let session = Self {
            running,
            stdin: stdin.map(File::from),
            pending: Vec::new(),
            stdin_closed: false,
            outputs: outputs.into_iter().map(|(channel, file)| (channel, file.into())).collect(),
            tty,
        };
        if let Some(stdin) = &session.stdin
            && let Err(error) = rustix::io::ioctl_fionbio(stdin, true)
        {
            return Err(error.to_string());
        }
        Ok(session)
    }

    /// Connects the command and the client until the command has ended; gives its exit code.
    ///
    /// # Errors
    /// The client has left, or sent something that is no message.
    fn run(&mut self, client: &mut Channels) -> io::Result<i32> {
        let mut ended: Option<(Instant, i32)> = None;
        loop {
            if ended.is_none()
                && let Some(status) = self.running.wait(Some(Duration::ZERO))
            {
                ended = Some((Instant::now(), exit_code(status)));
            }
            if let Some((at, code)) = ended
                && (self.outputs.is_empty() || at.elapsed() >= DRAIN)
            {
                return Ok(code);
            }
            let is_all = self.take_input(client)?;
            self.feed();
            let may_read = !is_all && self.pending.len() < PENDING_BYTES_MAX;
            let ready = self.wait(Some(client), if may_read { Duration::ZERO } else { TICK })?;
            self.send_output(client, &ready)?;
        }
    }

    /// Waits until something can be read or written; says which outputs can.
    fn wait(&self, client: Option<&Channels>, at_most: Duration) -> io::Result<Vec<bool>> {
        let mut fds: Vec<PollFd<'_>> =
            self.outputs.iter().map(|(_, file)| PollFd::new(file, PollFlags::IN)).collect();
        if let Some(client) = client.filter(|_| self.pending.len() < PENDING_BYTES_MAX) {
            fds.push(PollFd::new(&client.0, PollFlags::IN));
        }
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.pending.is_empty()) {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        wait_ready(&mut fds, at_most)?;
        Ok(fds.iter().take(self.outputs.len()).map(|fd| !fd.revents().is_empty()).collect())
    }

    /// Takes input while there is room; true if no more has arrived.
    fn take_input(&mut self, client: &mut Channels) -> io::Result<bool> {
        for _ in 0..MESSAGES_MAX {
            if self.pending.len() >= PENDING_BYTES_MAX {
                break;
            }
            let input = match client.read_now() {
                Ok(input) => input,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            };
            match input.channel {
                STDIN if self.stdin.is_some() => {
                    self.pending.extend_from_slice(&input.bytes);
                    self.stdin_closed |= input.is_last;
                }
                RESIZE if self.tty => self.resize(&input.bytes),
                _ => {}
            }
        }
        Ok(false)
    }

    fn resize(&self, size: &[u8]) {
        let Ok(size) = serde_json::from_slice::<Value>(size) else { return };
        let cells = |name: &str| size[name].as_u64().and_then(|n| u16::try_from(n).ok());
        if let (Some(columns), Some(rows), Some((_, terminal))) =
            (cells("Width"), cells("Height"), self.outputs.first())
        {
            let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
            // An error means that the terminal is closed.
            let _ = tcsetwinsize(terminal, size);
        }
    }

    /// Gives the command what it can take of the waiting input.
    fn feed(&mut self) {
        let Some(stdin) = &mut self.stdin else { return };
        while !self.pending.is_empty() {
            match stdin.write(&self.pending) {
                Ok(n) => drop(self.pending.drain(..n)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // The command reads no more.
                    self.pending.clear();
                    self.stdin_closed = true;
                }
            }
        }
        if self.stdin_closed {
            self.stdin = None;
        }
    }

    fn send_output(&mut self, client: &mut Channels, ready: &[bool]) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut still_open = Vec::new();
        let outputs = std::mem::take(&mut self.outputs);
        for ((channel, mut file), is_ready) in outputs.into_iter().zip(ready) {
            if !is_ready {
                still_open.push((channel, file));
                continue;
            }
            match file.read(&mut piece) {
                // A terminal that nobody has open gives EIO.
                Ok(0) | Err(_) => {}
                Ok(n) => {
                    if channel != DROPPED {
                        client.0.send_on(channel, piece.get(..n).unwrap_or_default())?;
                    }
                    still_open.push((channel, file));
                }
            }
        }
        self.outputs = still_open;
        Ok(())
    }

    /// Gives the command the rest of its input, and time to end. Nobody reads its output: it gets EPIPE.
    fn end_alone(&mut self) {
        self.stdin_closed = true;
        self.outputs.clear();
        let deadline = Instant::now() + ALONE;
        while Instant::now() < deadline && self.running.wait(Some(Duration::ZERO)).is_none() {
            self.feed();
            if self.wait(None, TICK).is_err() {
                break;
            }
        }
    }
}

fn exit_status(code: i32) -> Value {
    if code == 0 {
        return json!({ "metadata": {}, "status": "Success" });
    }
    json!({
        "metadata": {},
        "status": "Failure",
        "message": format!("command terminated with non-zero exit code: exit status {code}"),
        "reason": "NonZeroExitCode",
        "details": { "causes": [{ "reason": "ExitCode", "message": code.to_string() }] },
    })
}

fn send(error: &StatusError, responder: Responder<'_>) -> io::Result<()> {
    let body = error.body().to_string();
    responder.send(error.code, &[("content-type", "application/json")], body.as_bytes())
}
