//! Commands that run again and again beside the driver: each has a thread. What their output means is known to
//! `scale` and `idle`.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info, warn};

use crate::inbox::Message;
use crate::worker::Worker;
use posse_core::model::input::Input;
use posse_process::command::{Output, RunningCommand, run_with};
use posse_wire::config::polled::PolledCommand;

/// How long the command may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a run waits at its end for the threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The stack of such a thread, bytes.
const STACK_BYTES: usize = 256 << 10;

/// A command and what to do with its output.
pub struct Reader {
    pub command: PolledCommand,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// How much of its output is wanted, in bytes.
    pub output_bytes_max: usize,
    /// For messages: `the command of ...`.
    pub what: String,
    /// What follows from a failure, for the message about it.
    pub consequence: &'static str,
    /// What an output means, or a failure, as a phrase that begins with a verb. None: the run need not know.
    pub read: ReadOutput,
}

impl fmt::Debug for Reader {
    /// Without the environment, because it may contain secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("what", &self.what).finish_non_exhaustive()
    }
}

/// The error is what is wrong with the output, or what was given.
pub type ReadOutput =
    Box<dyn FnMut(Result<Output, String>) -> (Option<Input>, Option<String>) + Send>;

/// The running threads.
#[derive(Debug, Default)]
pub struct PolledCommands(Vec<PolledThread>);

#[derive(Debug)]
struct PolledThread {
    /// Closing it ends the pause and the thread.
    _stop: Sender<()>,
    running: RunningCommand,
    worker: Worker,
}

impl PolledCommands {
    /// Starts a thread.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn start(
        &mut self,
        name: &'static str,
        reader: Reader,
        inbox: &Sender<Message>,
    ) -> io::Result<()> {
        let (stop, stopped) = bounded(0);
        let running = RunningCommand::default();
        let (inbox, of_thread) = (inbox.clone(), running.clone());
        let body = move || repeat(reader, &inbox, &of_thread, &stopped);
        let worker = Worker::start(name, STACK_BYTES, body)?;
        self.0.push(PolledThread { _stop: stop, running, worker });
        Ok(())
    }

    /// Ends the commands and the threads.
    pub fn stop(self) {
        // First, so that no thread takes the end of its command for a failure.
        let stopped = self.0.into_iter().map(|thread| (thread.running, thread.worker));
        let stopped: Vec<(RunningCommand, Worker)> = stopped.collect();
        for (running, _) in &stopped {
            running.close();
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        for (_, worker) in stopped {
            if !worker.join_by(deadline) {
                debug!("a command that runs again and again does not end");
            }
        }
    }
}

/// Runs the command until the run ends. The first failure is told, and the recovery.
fn repeat(
    mut reader: Reader,
    inbox: &Sender<Message>,
    running: &RunningCommand,
    stopped: &Receiver<()>,
) {
    let PolledCommand { command, every_ms } = &reader.command;
    let pause = Duration::from_millis(*every_ms);
    let mut is_broken = false;
    loop {
        let output =
            run_with(command, reader.env.clone(), TIMEOUT, running, reader.output_bytes_max);
        if stopped.try_recv().is_err_and(|error| error.is_disconnected()) {
            return;
        }
        let (input, failure) = (reader.read)(output.map_err(|failure| failure.to_string()));
        let Reader { what, consequence, .. } = &reader;
        match &failure {
            None if is_broken => info!("{what} works again"),
            Some(error) if !is_broken => warn!("{what} {error}; {consequence}"),
            None | Some(_) => {}
        }
        is_broken = failure.is_some();
        // A send fails if the run has ended.
        if input.is_some_and(|input| inbox.send(Message::Input(input)).is_err())
            || stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout)
        {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::{Folder, Wait};

    #[test]
    fn no_group_complains_of_a_command_that_the_stop_has_ended() {
        let folder = Folder::new();
        let (inbox, messages) = bounded(8);
        let marks = ["a", "b", "c"].map(|name| folder.path().join(name));
        let mut threads = PolledCommands::default();
        for mark in &marks {
            let script = format!(": >{}; exec sleep 600", mark.display());
            let command = ["sh", "-c", &script].map(str::to_owned).into();
            let reader = Reader {
                command: PolledCommand { command, every_ms: 0 },
                env: std::env::vars_os().collect(),
                output_bytes_max: 1,
                what: "a command".to_owned(),
                consequence: "nothing",
                read: Box::new(|_| (Some(Input::WatchOpened), None)),
            };
            threads.start("polled", reader, &inbox).unwrap();
        }
        let mut wait = Wait::new("the commands to run", Duration::from_secs(120));
        while !marks.iter().all(|mark| mark.exists()) {
            assert!(wait.goes_on(), "the commands never ran");
            std::thread::park_timeout(Duration::from_millis(2));
        }
        threads.stop();
        assert!(messages.is_empty(), "{:?}", messages.try_recv());
    }
}
