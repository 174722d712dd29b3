//! What the API server asks of the node for `pods/exec`: a command that is ready to start.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crossbeam_channel::Sender;

use crate::schema::kind::Key;
use posse_process::supervisor::Running;

/// The exit code that a container runtime reports if it does not know the real one.
pub(crate) const UNKNOWN_EXIT_CODE: i32 = 137;

/// The exit code that a shell reports: 128 + N for signal N.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    let signal = status.signal().map(|signal| 128 + signal);
    status.code().or(signal).unwrap_or(UNKNOWN_EXIT_CODE)
}

/// The files of a command. Without `stdin` it reads an empty file.
#[derive(Debug)]
pub(crate) struct CommandIo {
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
}

impl CommandIo {
    /// Both outputs go to the same file.
    pub(crate) fn output(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { stdin: None, stdout: file.try_clone()?, stderr: file })
    }
}

/// Starts a command in a container; an error has the words of a container runtime.
pub(crate) type StartCommand = Box<dyn FnOnce(CommandIo) -> Result<Running, String> + Send>;

/// Asks the node to prepare a command.
#[derive(Debug)]
pub(crate) struct ExecOrder {
    pub(crate) key: Key,
    pub(crate) uid: Box<str>,
    pub(crate) container: String,
    pub(crate) command: Vec<String>,
    /// Gets the command, or why the node has no such container.
    pub(crate) answer: Sender<Result<StartCommand, String>>,
}
