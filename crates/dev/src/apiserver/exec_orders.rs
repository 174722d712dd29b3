//! What the API server asks of the node for `pods/exec`: a command that is ready to start.

use std::io;
use std::os::fd::OwnedFd;

use crossbeam_channel::Sender;

use crate::schema::kind::Key;
use posse_process::supervisor::Running;

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
