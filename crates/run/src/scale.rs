//! Runs the commands that set the targets of groups: for each group with `scale` a thread runs the command
//! again and again. `core` turns its numbers into targets.

use std::io;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info, warn};

use crate::credentials::command::{RunningCommand, run};
use crate::inbox::Message;
use crate::run::settings::GroupSettings;
use crate::worker::Worker;
use posse_base::clock::Clock;
use posse_base::text::sanitize;
use posse_core::machines::queue_scaling::QueueScaler;
use posse_core::model::ids::GroupName;
use posse_core::model::input::Input;
use posse_wire::config::scale::ScaleCommand;

/// How long a run waits at its end for the threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);
/// The stack of such a thread, bytes.
const STACK_BYTES: usize = 256 << 10;
/// What is shown of an output that is no number, in bytes.
const SHOWN_BYTES_MAX: usize = 80;

/// The running threads.
#[derive(Debug, Default)]
pub struct ScaleThreads(Vec<ScaleThread>);

#[derive(Debug)]
struct ScaleThread {
    /// Closing it ends the pause and the thread.
    _stop: Sender<()>,
    running: RunningCommand,
    worker: Worker,
}

impl ScaleThreads {
    /// Starts a thread for each group with a command. `env`: the variables of `credentials`, which the
    /// driver gets too.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        groups: &[GroupSettings],
        env: &[(String, String)],
        clock: Clock,
        inbox: &Sender<Message>,
    ) -> io::Result<Self> {
        let mut threads = Self::default();
        for group in groups {
            let Some(scale) = group.scale.clone() else { continue };
            let (stop, stopped) = bounded(0);
            let running = RunningCommand::default();
            let reader = QueueReader {
                group: group.spec.name.clone(),
                scaler: QueueScaler::new(scale.rule),
                scale,
                env: env.to_vec(),
                clock,
                inbox: inbox.clone(),
                running: running.clone(),
                stopped,
            };
            let worker = Worker::start("scale", STACK_BYTES, move || reader.run())?;
            threads.0.push(ScaleThread { _stop: stop, running, worker });
        }
        Ok(threads)
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
                debug!("a command of `scale` does not end");
            }
        }
    }
}

/// One group's thread.
struct QueueReader {
    group: GroupName,
    scale: ScaleCommand,
    env: Vec<(String, String)>,
    scaler: QueueScaler,
    clock: Clock,
    inbox: Sender<Message>,
    running: RunningCommand,
    stopped: Receiver<()>,
}

impl QueueReader {
    fn run(mut self) {
        let timeout = Duration::from_millis(self.scale.timeout_ms);
        let pause = Duration::from_millis(self.scale.every_ms);
        let mut is_broken = false;
        loop {
            let output = run(&self.scale.command, &self.env, timeout, &self.running);
            let output = output.map_err(|failure| failure.to_string());
            if self.stopped.try_recv().is_err_and(|error| error.is_disconnected()) {
                return;
            }
            let outcome = output
                .and_then(|output| number(&output))
                .map(|n_entries| self.scaler.target(n_entries, self.clock.now()));
            match &outcome {
                Ok(_) if is_broken => {
                    info!("group {}: the command of `scale` works again", self.group);
                }
                Err(error) if !is_broken => {
                    let group = &self.group;
                    warn!("group {group}: the command of `scale` {error}; the target stays");
                }
                Ok(_) | Err(_) => {}
            }
            is_broken = outcome.is_err();
            let read = Input::QueueRead { group: self.group.clone(), outcome };
            // It fails if the run has ended.
            if self.inbox.send(Message::Input(read)).is_err()
                || self.stopped.recv_timeout(pause) != Err(RecvTimeoutError::Timeout)
            {
                return;
            }
        }
    }
}

/// The number that a command printed.
fn number(output: &str) -> Result<u64, String> {
    let text = output.trim();
    text.parse().map_err(|_| match text {
        "" => "printed nothing instead of a number".to_owned(),
        text => format!("printed `{}` instead of a whole number", sanitize(text, SHOWN_BYTES_MAX)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_core::machines::queue_scaling::QueueRule;
    use posse_testing::{Folder, Wait};

    #[test]
    fn no_group_complains_of_a_command_that_the_stop_has_ended() {
        let folder = Folder::new();
        let (inbox, messages) = bounded(8);
        let marks = ["a", "b", "c"].map(|name| folder.path().join(name));
        let threads = marks.each_ref().map(|mark| {
            let script = format!(": >{}; exec sleep 600", mark.display());
            let rule = QueueRule { per_executor: 1, idle_after_ms: 0 };
            let command = ["sh", "-c", &script].map(str::to_owned).into();
            let scale = ScaleCommand { command, rule, every_ms: 0, timeout_ms: 600_000 };
            let (stop, stopped) = bounded(0);
            let running = RunningCommand::default();
            let reader = QueueReader {
                group: GroupName::from("g"),
                scaler: QueueScaler::new(rule),
                scale,
                env: Vec::new(),
                clock: Clock::start(),
                inbox: inbox.clone(),
                running: running.clone(),
                stopped,
            };
            let worker = Worker::start("scale", STACK_BYTES, move || reader.run()).unwrap();
            ScaleThread { _stop: stop, running, worker }
        });
        let mut wait = Wait::new("the commands to run", Duration::from_secs(120));
        while !marks.iter().all(|mark| mark.exists()) {
            assert!(wait.goes_on(), "the commands never ran");
            std::thread::park_timeout(Duration::from_millis(2));
        }
        ScaleThreads(threads.into()).stop();
        assert!(messages.is_empty(), "{:?}", messages.try_recv());
    }

    #[test]
    fn one_whole_number_is_accepted() {
        assert_eq!(number("45\n"), Ok(45));
        assert_eq!(number(" 0 "), Ok(0));
        for (output, want) in [
            ("", "printed nothing instead of a number"),
            ("\n", "printed nothing instead of a number"),
            ("-1", "printed `-1` instead of a whole number"),
            ("4.5", "printed `4.5` instead of a whole number"),
            ("4 5", "printed `4 5` instead of a whole number"),
            ("\x1b[2J", "printed `\\u{1b}[2J` instead of a whole number"),
            ("99999999999999999999", "printed `99999999999999999999` instead of a whole number"),
        ] {
            assert_eq!(number(output), Err(want.to_owned()), "{output:?}");
        }
    }
}
