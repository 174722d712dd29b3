//! Starts containers in their own mount namespace, in which they see their volumes.
//!
//! The container's process is first this program itself (`COMMAND`). It enters a new mount
//! namespace, mounts the volumes and then executes the container's program, so process id and group
//! stay the same.

mod inside;
mod tree;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::CommandLine;
use crate::storage::object::text_at;

pub use inside::enter;

/// How long a container may take until it executes its program. A mount can hang.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of the error report that the container's process sends.
const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Sent by the container's process just before it executes the program.
const READY: &[u8] = b"ready\n";

/// The hidden command of this program that starts a container.
pub const COMMAND: &str = "dev-container";

/// A bind mount: a folder or file of this machine, and its path in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) read_only: bool,
}

/// The mounts of a container, and what is needed to make them.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    /// This program.
    pub(super) runner: PathBuf,
    /// A folder of this container, in which its root file system is mounted.
    pub(super) folder: PathBuf,
    pub(super) mounts: Vec<Mount>,
}

/// Why a container's process did not execute its program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SandboxError {
    /// The message of a container runtime.
    Failed(String),
    /// This user cannot create a mount namespace.
    NoNamespace(String),
}

/// The connection to a started process that has not executed its program yet.
#[derive(Debug)]
pub(super) struct Handover {
    stream: UnixStream,
    plan: Vec<u8>,
}

impl Sandbox {
    /// The connection to the container's process, which runs `runner` with `COMMAND`, and that
    /// process's standard input. Drop the latter after the start: its close ends `Handover::finish`.
    ///
    /// The process opens `stdin` by its path in /proc, because its own stdin is the connection.
    pub(super) fn handover(
        &self,
        line: &CommandLine,
        stdin: Option<&OwnedFd>,
    ) -> io::Result<(OwnedFd, Handover)> {
        for part in [ROOT, SCRATCH] {
            let folder = self.folder.join(part);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
        ours.set_write_timeout(Some(HANDOVER_TIMEOUT))?;
        let mut plan = self.plan(line)?;
        if let Some(stdin) = stdin {
            let path = format!("/proc/{}/fd/{}", std::process::id(), stdin.as_raw_fd());
            plan["stdin"] = path.into();
        }
        let plan = plan.to_string().into_bytes();
        Ok((theirs.into(), Handover { stream: ours, plan }))
    }

    fn plan(&self, line: &CommandLine) -> io::Result<Value> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let mounts: Vec<Value> = self
            .mounts
            .iter()
            .map(|mount| {
                json!({
                    "source": text(&mount.source),
                    "target": mount.target,
                    "readOnly": mount.read_only,
                })
            })
            .collect();
        Ok(json!({
            "folder": text(&self.folder),
            "mounts": mounts,
            "program": line.program,
            "args": line.args,
            "startedIn": text(&std::env::current_dir()?),
            "workingDir": line.working_dir,
        }))
    }
}

impl Handover {
    /// Sends the plan to the process and waits until it executes the program or fails.
    pub(super) fn finish(mut self) -> Result<(), SandboxError> {
        let failed = |error: io::Error| {
            SandboxError::Failed(format!("no answer from the container's process: {error}"))
        };
        let sent = self.stream.write_all(&self.plan);
        sent.and_then(|()| self.stream.shutdown(Shutdown::Write)).map_err(failed)?;
        let mut report = Vec::new();
        // The connection is closed when the process executes the program (close-on-exec) or ends.
        self.stream.take(REPORT_BYTES_MAX).read_to_end(&mut report).map_err(failed)?;
        match report.strip_prefix(READY) {
            Some([]) => Ok(()),
            Some(error) => Err(parse_error(error)),
            None => Err(parse_error(&report)),
        }
    }
}

/// Subfolders of `Sandbox::folder`: the container's root, and the mount point for building a
/// folder.
const ROOT: &str = "root";
const SCRATCH: &str = "scratch";

fn parse_error(report: &[u8]) -> SandboxError {
    let Ok(report) = serde_json::from_slice::<Value>(report) else {
        return SandboxError::Failed(
            "the container's process ended before it executed its program".to_owned(),
        );
    };
    let message = text_at(&report, "/message").to_owned();
    match text_at(&report, "/error") {
        "namespace" => SandboxError::NoNamespace(message),
        _ => SandboxError::Failed(message),
    }
}

impl SandboxError {
    fn report(&self) -> Value {
        match self {
            Self::Failed(message) => json!({ "error": "failed", "message": message }),
            Self::NoNamespace(message) => json!({ "error": "namespace", "message": message }),
        }
    }
}
