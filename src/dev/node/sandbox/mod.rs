//! Owns how a container's process comes to see its volumes: the process is this program itself,
//! started again, which moves into a mount namespace of its own, mounts there what it is told and
//! then becomes the container's program. Same process id, same group. Decides nothing about what is
//! mounted where.

mod inside;
mod tree;

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use super::environment::CommandLine;
use crate::dev::storage::object::text_at;

pub use inside::enter;

/// How long a container may take from its start to its program: mounts of folders that hang.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(10);
/// What the container's side says at most: one line of words.
const REPORT_BYTES_MAX: u64 = 64 << 10;
/// Said by the container's side when all that is left is to become the program.
const READY: &[u8] = b"ready\n";

/// The hidden command that a container starts as.
pub const COMMAND: &str = "dev-container";

/// A folder or a file of this machine, and where a container sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) target: String,
    pub(super) read_only: bool,
}

/// What a container sees otherwise than the machine's other processes do.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    /// This program.
    pub(super) runner: PathBuf,
    /// A folder for this container alone: mounts are put together in it, unseen by others.
    pub(super) folder: PathBuf,
    pub(super) mounts: Vec<Mount>,
}

/// Why a container's process did not become its program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// In the words that a container runtime has for it.
    Failed(String),
    /// The machine gives no namespaces.
    NoNamespace(String),
}

/// The connection to a process that was started and is not yet its program.
#[derive(Debug)]
pub(super) struct HandOver {
    stream: UnixStream,
    plan: Vec<u8>,
}

impl Sandbox {
    /// The command that becomes the container's program. Drop it after the start: as long as it
    /// is there the hand-over does not end.
    pub(super) fn command(&self, line: &CommandLine) -> io::Result<(Command, HandOver)> {
        for part in [ROOT, SPARE] {
            let folder = self.folder.join(part);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(HAND_OVER_TIMEOUT))?;
        ours.set_write_timeout(Some(HAND_OVER_TIMEOUT))?;
        let mut command = Command::new(&self.runner);
        command.arg0("posse").arg(COMMAND).stdin(Stdio::from(OwnedFd::from(theirs)));
        let plan = self.plan(line)?.to_string().into_bytes();
        Ok((command, HandOver { stream: ours, plan }))
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

impl HandOver {
    /// Tells the process what to do, and waits until it has become the program.
    pub(super) fn finish(mut self) -> Result<(), Trouble> {
        let failed = |error: io::Error| {
            Trouble::Failed(format!("the container's process does not answer: {error}"))
        };
        let told = self.stream.write_all(&self.plan);
        told.and_then(|()| self.stream.shutdown(Shutdown::Write)).map_err(failed)?;
        let mut report = Vec::new();
        // The end comes when the process becomes the program, or ends.
        self.stream.take(REPORT_BYTES_MAX).read_to_end(&mut report).map_err(failed)?;
        match report.strip_prefix(READY) {
            Some([]) => Ok(()),
            Some(trouble) => Err(trouble_of(trouble)),
            None => Err(trouble_of(&report)),
        }
    }
}

/// Where the container's root is put together, and where one folder of it is.
const ROOT: &str = "root";
const SPARE: &str = "spare";

fn trouble_of(report: &[u8]) -> Trouble {
    let Ok(report) = serde_json::from_slice::<Value>(report) else {
        return Trouble::Failed("the container's process ended before its program".to_owned());
    };
    let message = text_at(&report, "/message").to_owned();
    match text_at(&report, "/trouble") {
        "namespace" => Trouble::NoNamespace(message),
        _ => Trouble::Failed(message),
    }
}

impl Trouble {
    fn report(&self) -> Value {
        match self {
            Self::Failed(message) => json!({ "trouble": "failed", "message": message }),
            Self::NoNamespace(message) => json!({ "trouble": "namespace", "message": message }),
        }
    }
}
