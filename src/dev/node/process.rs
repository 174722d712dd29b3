//! Owns one container's process: its start in a group of its own, its signals, its reaping. A small
//! thread waits for its end without reaping it, so that its id stays ours until we did.

use std::fs::File;
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
use super::start_error::{NotStarted, not_started};
use super::tree;

/// A waiting thread does nothing else.
const WAITER_STACK_BYTES: usize = 64 << 10;
/// The exit code of what was killed by somebody else.
const LOST: i32 = 137;

/// A running process, or one that waits to be reaped.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

impl Process {
    /// Starts a process whose end comes in as an `Input` with that number.
    pub(super) fn start(
        number: u64,
        prepared: Prepared,
        output: PipeWriter,
        inbox: &Sender<Input>,
    ) -> Result<Self, NotStarted> {
        let output = File::from(OwnedFd::from(output));
        let mut child = prepared.spawn(&output, 0)?;
        let inbox = inbox.clone();
        let waits = await_end(child.id(), move || {
            // Refused where the node's thread has ended: it has no more use for this.
            let _ = inbox.send(Input::Ended(number));
        });
        if let Err(error) = waits {
            // Nobody would ever see its end: it must not run.
            let _ = child.kill();
            let _ = child.wait();
            return Err(NotStarted::Failed(not_started(&error.to_string())));
        }
        Ok(Self { child })
    }

    /// The id of its group as well.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn terminate(&self) {
        self.signal_group(Signal::TERM);
    }

    /// Kills the whole container: who left the group, as a driver under `posse run` does, is in it
    /// all the same.
    pub(super) fn kill(&self) {
        let descendants = tree::descendants(self.child.id());
        self.signal_group(Signal::KILL);
        for pid in descendants.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
        {
            // It may have ended with the group.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// The exit code of a process that has ended: 128 + N for signal N. What it left behind in its
    /// group is killed, as a container ends with its first process.
    pub(super) fn reap(mut self) -> i32 {
        self.signal_group(Signal::KILL);
        // Where somebody else has reaped it, a container runtime says 137.
        self.child.wait().map_or(LOST, exit_code)
    }

    /// The group lives at least as long as its first process is not reaped, so the id is ours.
    fn signal_group(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // No such group: all of it has ended.
        let _ = pid.map(|pid| kill_process_group(pid, signal));
    }
}

pub(super) fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(LOST)
}

/// Calls `then` when the process has ended; it still waits to be reaped.
pub(super) fn await_end(id: u32, then: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("no process id"))?;
    let builder = thread::Builder::new().name(format!("dev-wait-{id}"));
    builder.stack_size(WAITER_STACK_BYTES).spawn(move || {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        // An error other than an interruption means that it is gone already.
        while matches!(waitid(WaitId::Pid(pid), options), Err(rustix::io::Errno::INTR)) {}
        then();
    })?;
    Ok(())
}
