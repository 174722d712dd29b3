//! Why a container did not start, in the words of the container runtime.

use std::io;

use super::environment::Blocked;

/// Why a container did not start.
#[derive(Debug)]
pub(super) enum NotStarted {
    /// Not now: it is tried again. The reason `ContainerCreating` means that its volumes are not
    /// there yet; the message is then an event's, not the status's.
    Blocked(Blocked),
    Failed(StartFailed),
}

/// A start that failed, in the container runtime's words.
#[derive(Debug)]
pub(super) struct StartFailed(pub(super) String);

pub(super) fn not_started(what: &str) -> StartFailed {
    StartFailed(format!(
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: \
         runc create failed: unable to start container process: {what}: unknown"
    ))
}

/// Why a working directory will not do, in the runtime's words.
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

/// Why a program could not be started, in the runtime's words.
pub(super) fn exec_error(program: &str, error: &io::Error) -> String {
    let named = format!("exec: {program:?}");
    let found = error.kind() != io::ErrorKind::NotFound;
    if !found && program.contains('/') {
        format!("{named}: stat {program}: no such file or directory")
    } else if !found {
        format!("{named}: executable file not found in $PATH")
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        format!("{named}: permission denied")
    } else {
        format!("{named}: {error}")
    }
}
