//! Commands in running containers (`pods/exec`).

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::{
    CALL_TIMEOUT, REFUSAL_BYTES_MAX, get, object_path, percent_encode, refusal_of,
    transport_refusal,
};
use crate::http::Http;
use crate::http::websocket::{OpenError, Received, WebSocket};
use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_wire::k8s::exec_channels::{
    Channel, CommandEnd, PROTOCOLS, STDIN, STDIN_END, TerminalSize, command_end, resize,
};
use posse_wire::k8s::status::Verb;

/// How often the size of a terminal is asked for, and whether to stop.
const TICK: Duration = Duration::from_millis(100);
/// How long a read waits otherwise. Nothing depends on it.
const LONG: Duration = Duration::from_secs(60);
/// Input that is sent at once, in bytes: a socket that takes anything takes so much without blocking.
const INPUT_BYTES: usize = 4 << 10;

/// The longest path of a request, in bytes: with the server's URL before it, the `http` crate takes 65,534.
const PATH_BYTES_MAX: usize = 64_000;

/// A container of a pod.
#[derive(Clone, Debug)]
pub struct ContainerPath {
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// The output of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output<'a> {
    Stdout(&'a [u8]),
    Stderr(&'a [u8]),
}

/// What a command gets besides its words.
#[derive(Default)]
pub struct Input<'a> {
    /// Is passed on to the command until it ends.
    pub stdin: Option<OwnedFd>,
    /// The command has a terminal.
    pub terminal: Option<&'a dyn RemoteTerminal>,
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("stdin", &self.stdin).finish_non_exhaustive()
    }
}

/// The terminal that a command has in its container.
pub trait RemoteTerminal {
    /// The size that it should have; `None` if it is not known.
    fn size(&self) -> Option<TerminalSize>;
    /// True if the command is no longer waited for.
    fn is_stopped(&self) -> bool;
}

/// Why the end of a command is not known.
#[derive(Debug)]
pub enum ExecError {
    /// The command was not started.
    Refused(Refusal),
    /// The connection was cut while the command ran. It may still run.
    Cut(io::Error),
    /// The caller's output failed.
    Output(io::Error),
    /// The caller stopped waiting.
    Stopped,
}

impl fmt::Display for ExecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Cut(error) => write!(f, "the connection was cut: {error}"),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
            Self::Stopped => f.write_str("stopped by a signal"),
        }
    }
}

impl std::error::Error for ExecError {}

/// Runs a command in a container, and passes its output on until it ends.
///
/// # Errors
/// The command was not started, or its end is not known.
pub fn exec(
    http: &Http,
    target: &ContainerPath,
    command: &[String],
    input: Input<'_>,
    each: &mut dyn FnMut(Output<'_>) -> io::Result<()>,
) -> Result<CommandEnd, ExecError> {
    let path = exec_path(target, command, &input);
    if path.len() > PATH_BYTES_MAX {
        let message = format!(
            "the command is longer than {PATH_BYTES_MAX} bytes, as a URL has it: let a shell read it from its \
             standard input"
        );
        return Err(ExecError::Refused(Refusal::local(RefusalClass::Invalid, message)));
    }
    let Input { stdin, terminal } = input;
    let (mut socket, protocol) = match http.open_websocket(&path, &PROTOCOLS, stdin) {
        Ok(opened) => opened,
        Err(error) => return Err(ExecError::Refused(open_refusal(http, path, error))),
    };
    let limit = if terminal.is_some() || !socket.awaits_input() { TICK } else { LONG };
    let mut size = None;
    loop {
        if let Some(terminal) = terminal {
            if terminal.is_stopped() {
                return Err(ExecError::Stopped);
            }
            let now = terminal.size();
            if let Some(now) = now.filter(|now| size != Some(*now)) {
                socket.send(resize(now)).map_err(ExecError::Cut)?;
                size = Some(now);
            }
        }
        let message = match socket.read(limit).map_err(ExecError::Cut)? {
            Received::Message(message) => message,
            Received::Input => {
                pass_input(&mut socket, &protocol).map_err(ExecError::Cut)?;
                continue;
            }
            Received::Nothing => continue,
            Received::Closed => {
                let early = "it was closed before the command's end";
                return Err(ExecError::Cut(io::Error::new(io::ErrorKind::UnexpectedEof, early)));
            }
        };
        match Channel::split(&message) {
            // Every channel begins with an empty message.
            Some((_, [])) | None => {}
            Some((Channel::Stdout, bytes)) => {
                each(Output::Stdout(bytes)).map_err(ExecError::Output)?
            }
            Some((Channel::Stderr, bytes)) => {
                each(Output::Stderr(bytes)).map_err(ExecError::Output)?
            }
            Some((Channel::Error, bytes)) => return Ok(command_end(bytes)),
        }
    }
}

/// Passes input on, or its end.
fn pass_input(socket: &mut WebSocket, protocol: &str) -> io::Result<()> {
    let mut message = vec![STDIN; INPUT_BYTES + 1];
    match socket.read_input(&mut message[1..]) {
        Some(0) if protocol == PROTOCOLS[0] => socket.send(STDIN_END.to_vec()),
        Some(0) => {
            log::warn!(
                "the API server speaks {protocol}, which cannot tell the command that its input has ended"
            );
            Ok(())
        }
        Some(n) => {
            message.truncate(n + 1);
            socket.send(message)
        }
        None => Ok(()),
    }
}

fn exec_path(target: &ContainerPath, command: &[String], input: &Input<'_>) -> String {
    let pod = object_path("/api/v1", &target.namespace, "pods", Some(&target.pod));
    let container = percent_encode(&target.container);
    let stdin = if input.stdin.is_some() { "&stdin=true" } else { "" };
    // A terminal has one output.
    let kind = if input.terminal.is_some() { "&tty=true" } else { "&stderr=true" };
    let words = command.iter().map(|word| format!("&command={}", percent_encode(word)));
    let words = words.collect::<String>();
    format!("{pod}/exec?container={container}{stdin}&stdout=true{kind}{words}")
}

/// The server's own words for a handshake that it refused. They are in a body that the handshake does
/// not give us, and the server says the same to a plain GET: it checks permissions and the pod first.
fn open_refusal(http: &Http, path: String, error: OpenError) -> Refusal {
    let status = match error {
        OpenError::Transport(error) => return transport_refusal(error),
        OpenError::Refused { status } => status,
    };
    match http.call(&get(path, CALL_TIMEOUT, REFUSAL_BYTES_MAX)) {
        Ok(answer) if answer.status == status => refusal_of(&answer, Verb::Get),
        Ok(_) | Err(_) => {
            let message = "the server did not open the connection";
            Refusal { code: status, ..Refusal::local(RefusalClass::Transient, message) }
        }
    }
}
