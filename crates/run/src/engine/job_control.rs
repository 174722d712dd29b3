//! Job control on a terminal: who has the terminal, and what Ctrl-Z and a shell's `fg` do.

use log::warn;

use crate::driver::DriverStop;
use crate::engine::Engine;
use crate::signals::Signal;
use posse_base::time::Millis;
use posse_process::job;

/// How often posse looks whether it is in the foreground again, in milliseconds.
const FOREGROUND_CHECK_MS: u64 = 500;

impl Engine<'_> {
    /// Handles a signal of job control. False for other signals.
    pub(super) fn on_terminal_signal(&mut self, signal: Signal) -> bool {
        match signal {
            Signal::Tstp => self.on_stop_key(),
            Signal::Cont => self.on_continued(),
            Signal::Winch => self.update_window(),
            Signal::Chld
            | Signal::Hup
            | Signal::Int
            | Signal::Quit
            | Signal::Term
            | Signal::Usr1
            | Signal::Usr2 => return false,
        }
        true
    }

    /// The driver was stopped: by Ctrl-Z, or because it needs the terminal.
    pub(super) fn on_driver_stopped(&mut self) {
        let stop = self.state.driver.as_mut().and_then(|driver| driver.take_stop());
        match stop {
            Some(DriverStop::NeedsTerminal) => {
                self.state.wants_terminal = true;
                if !self.lend_terminal() {
                    // As a shell does with a background job that reads the terminal.
                    self.suspend();
                }
            }
            Some(DriverStop::Suspended) => self.suspend(),
            None => {}
        }
    }

    /// Ctrl-Z while posse has the terminal, or SIGTSTP from elsewhere.
    fn on_stop_key(&mut self) {
        let Some(driver) = &self.state.driver else { return self.suspend() };
        driver.suspend();
        // A driver with the terminal may go on in spite of it; if not, `on_driver_stopped` follows.
        if !driver.has_terminal() {
            self.suspend();
        }
    }

    /// Stops posse with its job until the shell continues it. Without such a shell the driver goes on.
    fn suspend(&mut self) {
        // Before the stop: the shell may continue the job at once.
        self.state.is_suspended = true;
        if !job::suspend() {
            self.continue_driver();
        }
    }

    fn on_continued(&mut self) {
        if self.state.is_suspended {
            self.continue_driver();
        } else if self.state.wants_terminal {
            // From the background to the foreground.
            self.lend_terminal();
        }
        self.update_window();
    }

    /// Lends the terminal to a driver that runs without it: bash's `fg` does not tell a job that runs.
    pub(super) fn check_foreground(&mut self, now: Millis) {
        let lacks = self.state.driver.as_ref().is_some_and(|driver| !driver.has_terminal());
        let waits = self.state.wants_terminal && !self.state.is_suspended && lacks;
        let still_waits = waits && !self.lend_terminal();
        self.state.foreground_check_at = still_waits.then(|| now.after(FOREGROUND_CHECK_MS));
    }

    /// Lets the driver go on, with the terminal if it has read that before and posse has it.
    fn continue_driver(&mut self) {
        self.state.is_suspended = false;
        if self.state.wants_terminal && self.lend_terminal() {
            return;
        }
        if let Some(driver) = &self.state.driver {
            driver.resume();
        }
    }

    /// Gives the terminal to the driver, which goes on. False if posse is in the background.
    fn lend_terminal(&mut self) -> bool {
        let Some(driver) = &mut self.state.driver else { return true };
        driver.lend_terminal().unwrap_or_else(|error| {
            warn!("the driver stands still, because it cannot have the terminal: {error}");
            self.state.wants_terminal = false;
            true
        })
    }

    fn update_window(&self) {
        if let Some(driver) = &self.state.driver {
            driver.update_window_size();
        }
    }
}
