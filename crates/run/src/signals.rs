//! Signals that the process receives, as values on a channel.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use signal_hook::consts;
use signal_hook::iterator;

use posse_process::ignored::IgnoredSignals;

/// A signal that posse handles or forwards to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// A child process ended: poll the driver, reap orphans.
    Chld,
    Hup,
    Int,
    Quit,
    Term,
    Usr1,
    Usr2,
    /// Ctrl-Z on a terminal.
    Tstp,
    /// A shell continues this process.
    Cont,
    /// The terminal's window has another size.
    Winch,
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SIG{}", format!("{self:?}").to_uppercase())
    }
}

impl Signal {
    /// All signals, in the order in which `take` returns them.
    pub const ALL: [Self; 10] = [
        Self::Chld,
        Self::Hup,
        Self::Int,
        Self::Quit,
        Self::Term,
        Self::Usr1,
        Self::Usr2,
        Self::Tstp,
        Self::Cont,
        Self::Winch,
    ];

    /// The number of the signal in the system.
    pub fn number(self) -> i32 {
        match self {
            Self::Chld => consts::SIGCHLD,
            Self::Hup => consts::SIGHUP,
            Self::Int => consts::SIGINT,
            Self::Quit => consts::SIGQUIT,
            Self::Term => consts::SIGTERM,
            Self::Usr1 => consts::SIGUSR1,
            Self::Usr2 => consts::SIGUSR2,
            Self::Tstp => consts::SIGTSTP,
            Self::Cont => consts::SIGCONT,
            Self::Winch => consts::SIGWINCH,
        }
    }

    /// The exit code of a process that this signal ended, as a shell reports it.
    pub fn exit_code(self) -> u8 {
        // The numbers of these signals are below 32 on every Linux.
        u8::try_from(128 + self.number()).unwrap_or(u8::MAX)
    }

    /// True for signals that end the run.
    pub fn is_stop(self) -> bool {
        matches!(self, Self::Int | Self::Term)
    }

    /// True for signals that end a run without a driver process. With one, SIGHUP and SIGQUIT are only
    /// forwarded.
    pub fn is_stop_without_driver(self) -> bool {
        self.is_stop() || matches!(self, Self::Hup | Self::Quit)
    }

    /// True for the signals of job control and windows, which only a run on a terminal handles.
    fn is_of_terminal(self) -> bool {
        matches!(self, Self::Tstp | Self::Cont | Self::Winch)
    }

    fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// Received signals. They are stored as bits, and the channel only wakes the reader, so its capacity
/// of one is enough and no signal is lost. A signal that arrives twice before it is taken counts
/// once, as in the system.
#[derive(Debug)]
pub struct Signals {
    pending: Arc<AtomicU32>,
    wake: Receiver<()>,
    handle: iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Installs the handlers, except for those of job control. SIGHUP, SIGINT and SIGQUIT stay ignored
    /// if they were ignored at the start of the process, as under `nohup` or a shell's `&`.
    pub fn start() -> io::Result<Self> {
        Self::of(|signal| !signal.is_of_terminal())
    }

    /// The same with the signals of job control.
    pub fn start_with_job_control() -> io::Result<Self> {
        Self::of(|_| true)
    }

    fn of(is_wanted: fn(Signal) -> bool) -> io::Result<Self> {
        let ignored = IgnoredSignals::now();
        let wanted = Signal::ALL.into_iter();
        let wanted = wanted.filter(|signal| is_wanted(*signal) && !is_ignored(ignored, *signal));
        let mut signals = iterator::Signals::new(wanted.map(Signal::number))?;
        let handle = signals.handle();
        let pending = Arc::new(AtomicU32::new(0));
        let (sender, wake) = bounded(1);
        let received = Arc::clone(&pending);
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                record(number, &received, &sender);
            }
        })?;
        Ok(Self { pending, wake, handle, thread: Some(thread) })
    }

    /// True if `take` will return a signal that ends a run whose driver is not running yet.
    pub fn has_stop(&self) -> bool {
        let pending = self.pending.load(Ordering::SeqCst);
        Signal::ALL.iter().any(|one| one.is_stop_without_driver() && pending & one.bit() != 0)
    }

    /// Receives a message whenever `take` has signals to return.
    pub fn wake(&self) -> &Receiver<()> {
        &self.wake
    }

    /// Waits for a signal that ends a command without a driver, such as `posse dev`.
    pub fn until_stopped(&self) {
        while !self.take().any(Signal::is_stop_without_driver) {
            if self.wake().recv().is_err() {
                return;
            }
        }
    }

    /// The signals since the last call, each at most once.
    pub fn take(&self) -> impl Iterator<Item = Signal> + use<> {
        let pending = self.pending.swap(0, Ordering::AcqRel);
        Signal::ALL.into_iter().filter(move |signal| pending & signal.bit() != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

fn record(number: i32, pending: &AtomicU32, wake: &Sender<()>) {
    let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.number() == number) else {
        return;
    };
    // The bit must be set before the wake-up is sent.
    pending.fetch_or(signal.bit(), Ordering::AcqRel);
    match wake.try_send(()) {
        // Full: a wake-up is already on its way. Disconnected: the run has ended.
        Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
    }
}

/// Only these signals may stay ignored; posse needs the others.
fn is_ignored(ignored: IgnoredSignals, signal: Signal) -> bool {
    let optional = matches!(signal, Signal::Hup | Signal::Int | Signal::Quit | Signal::Tstp);
    optional && ignored.contains(signal.number())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn signals_are_received_and_do_not_queue_up() {
        let signals = Signals::start().unwrap();
        let me = rustix::process::getpid();
        // Other signals are skipped, such as SIGCHLD of other tests' children. SIGHUP may be ignored
        // under nohup; these two are not.
        let mut missing = vec![Signal::Usr1, Signal::Usr2];
        for _ in 0..1000 {
            for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
                rustix::process::kill_process(me, signal).unwrap();
            }
        }
        while !missing.is_empty() {
            signals.wake().recv_timeout(Duration::from_secs(120)).expect("both signals arrive");
            let came: Vec<Signal> = signals.take().collect();
            missing.retain(|signal| !came.contains(signal));
        }
    }

    #[test]
    fn ignored_signals_are_read_from_proc() {
        // SigIgn of a shell's background job under nohup: HUP (1), INT (2), QUIT (3), PIPE (13).
        let mask =
            IgnoredSignals::parse("Name:\tx\nSigBlk:\t0\nSigIgn:\t0000000000001007\nSigCgt:\t1\n");
        let ignored: Vec<Signal> =
            Signal::ALL.into_iter().filter(|signal| is_ignored(mask, *signal)).collect();
        assert_eq!(ignored, [Signal::Hup, Signal::Int, Signal::Quit]);
        let none = IgnoredSignals::parse("");
        assert!(!Signal::ALL.into_iter().any(|signal| is_ignored(none, signal)));
        // TERM (15) is never left ignored: the kubelet ends pods with it.
        let all = IgnoredSignals::parse("SigIgn:\tffffffffffffffff\n");
        assert!(!is_ignored(all, Signal::Term) && is_ignored(all, Signal::Hup));
    }
}
