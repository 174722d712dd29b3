//! One container's process: start, signals and reaping.
//!
//! A small thread waits for the end of each process without reaping it, so that the process id
//! stays valid until `Process::reap`.

use std::io::{self, PipeWriter};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::thread;

use crossbeam_channel::Sender;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};

use super::Input;
use super::start::Prepared;
use super::start_error::{StartError, runtime_error};
use super::tree;
use crate::dev::apiserver::exec_orders::CommandIo;

const WAITER_STACK_BYTES: usize = 64 << 10;
/// The exit code that a container runtime reports if it does not know the real one.
const UNKNOWN_EXIT_CODE: i32 = 137;

/// A process that is running or has not been reaped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

impl Process {
    /// Starts a process. Its end is sent to `inbox` as `Input::Ended(number)`.
    pub(super) fn start(
        number: u64,
        prepared: Prepared,
        output: PipeWriter,
        inbox: &Sender<Input>,
    ) -> Result<Self, StartError> {
        let io = CommandIo::output(OwnedFd::from(output))
            .map_err(|error| StartError::Failed(runtime_error(&error.to_string())))?;
        let mut child = prepared.spawn(&io, 0)?;
        let inbox = inbox.clone();
        let waits = await_end(child.id(), move || {
            // A send error means that the node's thread has ended.
            let _ = inbox.send(Input::Ended(number));
        });
        if let Err(error) = waits {
            // Without the thread the process's end would never be seen.
            let _ = child.kill();
            let _ = child.wait();
            return Err(StartError::Failed(runtime_error(&error.to_string())));
        }
        Ok(Self { child })
    }

    /// The process id, which is also the id of its group.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn terminate(&self) {
        self.signal_group(Signal::TERM);
    }

    /// Kills the whole container, including processes that left the group, as a driver under
    /// `posse run` does.
    pub(super) fn kill(&self) {
        let descendants = tree::descendants(self.child.id());
        self.signal_group(Signal::KILL);
        for pid in descendants.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        {
            // An error means that the process has ended.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The exit code of a process that has ended: 128 + N for signal N. The rest of its process
    /// group is killed, because a container ends with its first process.
    pub(super) fn reap(mut self) -> i32 {
        self.signal_group(Signal::KILL);
        self.child.wait().map_or(UNKNOWN_EXIT_CODE, exit_code)
    }

    /// The group id is valid, because the first process is not reaped yet.
    fn signal_group(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // An error means that the whole group has ended.
        let _ = pid.map(|pid| kill_process_group(pid, signal));
    }
}

pub(super) fn exit_code(status: ExitStatus) -> i32 {
    status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal))
        .unwrap_or(UNKNOWN_EXIT_CODE)
}

/// Calls `then` when the process has ended. Does not reap it.
pub(super) fn await_end(id: u32, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no process id"))?;
    let builder = thread::Builder::new().name(format!("dev-wait-{id}"));
    builder.stack_size(WAITER_STACK_BYTES).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // An error other than EINTR means that the process is gone.
        while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
        then();
    })?;
    Ok(())
}
