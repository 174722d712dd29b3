//! One container's process: its start, its signals, its end.
//!
//! It runs under a supervisor of its own, so its descendants end with it. A small thread waits for
//! that.

use std::io::PipeWriter;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;

use crossbeam_channel::Sender;
use rustix::process::{Pid, Signal};

use super::Input;
use super::start::Prepared;
use super::start_error::{StartError, failed};
use crate::apiserver::exec_orders::{CommandIo, UNKNOWN_EXIT_CODE, exit_code};
use posse_process::supervisor::{Link, Supervisor};

const WAITER_STACK_BYTES: usize = 64 << 10;

/// A container's process.
#[derive(Debug)]
pub(super) struct Process {
    /// Also the id of its group.
    pub(super) pid: Pid,
    /// For commands that run in the container.
    pub(super) link: Link,
}

impl Process {
    /// Starts a process. `runner` is this program. After the end of the process and all of its
    /// descendants, its exit code is sent to `inbox` as `Input::Ended(number, code)`.
    pub(super) fn start(
        number: u64,
        prepared: Prepared,
        output: PipeWriter,
        runner: &Path,
        inbox: &Sender<Input>,
    ) -> Result<Self, StartError> {
        let io = CommandIo::output(OwnedFd::from(output)).map_err(failed)?;
        let supervisor = Supervisor::start(runner).map_err(failed)?;
        let mut running = prepared.spawn(&io, supervisor.link())?;
        let process = Self { pid: running.pid(), link: supervisor.link().clone() };
        let inbox = inbox.clone();
        let builder = thread::Builder::new().name(format!("dev-wait-{number}"));
        // Without the thread, the process is killed here.
        let waits = builder.stack_size(WAITER_STACK_BYTES).spawn(move || {
            let end = running.wait(None);
            // As a container ends with its first process.
            drop(supervisor);
            // A send error means that the node's thread has ended.
            let _ = inbox.send(Input::Ended(number, end.map_or(UNKNOWN_EXIT_CODE, exit_code)));
        });
        waits.map_err(failed)?;
        Ok(process)
    }

    pub(super) fn terminate(&self) {
        self.link.signal(Signal::TERM);
    }

    /// Kills the whole container.
    pub(super) fn kill(&self) {
        self.link.signal(Signal::KILL);
    }
}
