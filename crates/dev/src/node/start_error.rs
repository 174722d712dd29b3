//! Errors of a container's start, worded as containerd and runc word them.

use std::io;

use super::environment::Blocked;

/// Why a container or a command in it did not start.
#[derive(Debug)]
pub(super) enum StartError {
    /// The start is tried again later. If the reason is `ContainerCreating`, the volumes are not
    /// ready and the message belongs into an event, not into the status.
    Blocked(Blocked),
    /// In the words of runc for a container that could not start.
    Failed(String),
}

pub(super) fn failed(what: impl std::fmt::Display) -> StartError {
    StartError::Failed(format!(
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: \
         runc create failed: unable to start container process: {what}: unknown"
    ))
}

/// The message of runc for a working directory that cannot be entered.
pub(super) fn chdir_error(working_dir: &str, error: &io::Error) -> String {
    let why = match error.kind() == io::ErrorKind::NotFound {
        true => "no such file or directory".to_owned(),
        false => error.to_string(),
    };
    format!(
        "error during container init: chdir to cwd ({working_dir:?}) set in config.json failed: \
         {why}"
    )
}

/// The message of runc for a program that could not be executed.
pub(super) fn exec_error(program: &str, error: &io::Error) -> String {
    let prefix = format!("exec: {program:?}");
    let exists = error.kind() != io::ErrorKind::NotFound;
    if !exists && program.contains('/') {
        format!("{prefix}: stat {program}: no such file or directory")
    } else if !exists {
        format!("{prefix}: executable file not found in $PATH")
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        format!("{prefix}: permission denied")
    } else {
        format!("{prefix}: {error}")
    }
}
