//! Commands in running containers (`pods/exec`).

use std::fmt;
use std::io;

use super::{
    CALL_TIMEOUT, REFUSAL_BYTES_MAX, get, object_path, percent_encode, refusal_of,
    transport_refusal,
};
use crate::core::model::refusal::{Refusal, RefusalClass};
use crate::kube::http::Http;
use crate::kube::http::websocket::OpenError;
use crate::wire::exec::{Channel, CommandEnd, PROTOCOLS, command_end};
use crate::wire::status::Verb;

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

/// Why the end of a command is not known.
#[derive(Debug)]
pub enum ExecError {
    /// The command was not started.
    Refused(Refusal),
    /// The connection was cut while the command ran. It may still run.
    Cut(io::Error),
    /// The caller's output failed.
    Output(io::Error),
}

impl fmt::Display for ExecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Cut(error) => write!(f, "the connection was cut: {error}"),
            Self::Output(error) => write!(f, "cannot write the output: {error}"),
        }
    }
}

impl std::error::Error for ExecError {}

/// Runs a command in a container without stdin or terminal, and passes its output on until it ends.
///
/// # Errors
/// The command was not started, or its end is not known.
pub fn exec(
    http: &Http,
    target: &ContainerPath,
    command: &[String],
    each: &mut dyn FnMut(Output<'_>) -> io::Result<()>,
) -> Result<CommandEnd, ExecError> {
    let path = exec_path(target, command);
    let mut socket = match http.open_websocket(&path, &PROTOCOLS) {
        Ok((socket, _)) => socket,
        Err(error) => return Err(ExecError::Refused(open_refusal(http, path, error))),
    };
    loop {
        let Some(message) = socket.read().map_err(ExecError::Cut)? else {
            let early = "it was closed before the command's end";
            return Err(ExecError::Cut(io::Error::new(io::ErrorKind::UnexpectedEof, early)));
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

fn exec_path(target: &ContainerPath, command: &[String]) -> String {
    let pod = object_path("/api/v1", &target.namespace, "pods", Some(&target.pod));
    let container = percent_encode(&target.container);
    let words = command.iter().map(|word| format!("&command={}", percent_encode(word)));
    format!("{pod}/exec?container={container}&stdout=true&stderr=true{}", words.collect::<String>())
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
        Ok(_) | Err(_) => Refusal {
            class: RefusalClass::Transient,
            code: status,
            reason: String::new(),
            message: "the server did not open the connection".to_owned(),
            retry_after_ms: None,
        },
    }
}
