//! Owns the signals that the process gets: turns them into values for the loop. Acts on none.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use signal_hook::consts;
use signal_hook::iterator;

/// A signal that posse acts on or passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Signal {
    /// A child ended: ask the driver, reap the others.
    Chld,
    Hup,
    Int,
    Quit,
    Term,
    Usr1,
    Usr2,
}

impl Signal {
    /// All of them, in the order in which they are handed out.
    pub const ALL: [Self; 7] =
        [Self::Chld, Self::Hup, Self::Int, Self::Quit, Self::Term, Self::Usr1, Self::Usr2];

    /// The system's number.
    #[must_use]
    pub fn number(self) -> i32 {
        match self {
            Self::Chld => consts::SIGCHLD,
            Self::Hup => consts::SIGHUP,
            Self::Int => consts::SIGINT,
            Self::Quit => consts::SIGQUIT,
            Self::Term => consts::SIGTERM,
            Self::Usr1 => consts::SIGUSR1,
            Self::Usr2 => consts::SIGUSR2,
        }
    }

    /// True for those that the driver gets too.
    #[must_use]
    pub fn is_passed_on(self) -> bool {
        self != Self::Chld
    }

    /// True for those that end the run.
    #[must_use]
    pub fn is_stop(self) -> bool {
        matches!(self, Self::Int | Self::Term)
    }

    /// True for those that end a run without a driver of its own, whom else they could concern.
    #[must_use]
    pub fn is_stop_without_driver(self) -> bool {
        self.is_stop() || matches!(self, Self::Hup | Self::Quit)
    }

    fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// The signals that came. They wait as bits, of which there are enough, and the channel only says
/// that there are some: one place in it is enough, so nothing is ever lost to a full queue. As the
/// system does, two of one kind that come before the first is taken count as one.
#[derive(Debug)]
pub struct Signals {
    pending: Arc<AtomicU32>,
    wake: Receiver<()>,
    handle: iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Catches them from here on, but not those that were ignored when the process started: that
    /// is how `nohup` and a shell's `&` ask to be left alone.
    ///
    /// # Errors
    /// The system refuses the handlers or the thread.
    pub fn start() -> io::Result<Self> {
        let ignored = ignored_signals();
        let wanted = Signal::ALL.into_iter().filter(|signal| !is_ignored(ignored, *signal));
        let mut signals = iterator::Signals::new(wanted.map(Signal::number))?;
        let handle = signals.handle();
        let pending = Arc::new(AtomicU32::new(0));
        let (sender, wake) = bounded(1);
        let noted = Arc::clone(&pending);
        let thread = thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for number in signals.forever() {
                note(number, &noted, &sender);
            }
        })?;
        Ok(Self { pending, wake, handle, thread: Some(thread) })
    }

    /// Gives something whenever `take` has something to give.
    #[must_use]
    pub fn wake(&self) -> &Receiver<()> {
        &self.wake
    }

    /// Waits for a signal that ends a server: a terminal that closes is one, too.
    pub fn until_stopped(&self) {
        while !self.take().any(Signal::is_stop_without_driver) {
            if self.wake().recv().is_err() {
                return;
            }
        }
    }

    /// Those that came since the last call, each at most once.
    pub fn take(&self) -> impl Iterator<Item = Signal> + use<> {
        let pending = self.pending.swap(0, Ordering::AcqRel);
        Signal::ALL.into_iter().filter(move |signal| pending & signal.bit() != 0)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed.
            let _ = thread.join();
        }
    }
}

fn note(number: i32, pending: &AtomicU32, wake: &Sender<()>) {
    let Some(signal) = Signal::ALL.into_iter().find(|signal| signal.number() == number) else {
        return;
    };
    // First the bit, then the word: whoever hears the word finds the bit.
    pending.fetch_or(signal.bit(), Ordering::AcqRel);
    match wake.try_send(()) {
        // Full: the word is out already. Disconnected: nobody is interested any more.
        Ok(()) | Err(TrySendError::Full(()) | TrySendError::Disconnected(())) => {}
    }
}

/// The mask of ignored signals, as the kernel tells it; none ignored where it does not.
fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    parse_ignored(&status)
}

fn parse_ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// Only these are ever ignored on purpose; the others are needed.
fn is_ignored(mask: u64, signal: Signal) -> bool {
    let optional = matches!(signal, Signal::Hup | Signal::Int | Signal::Quit);
    optional && mask & (1 << (signal.number() - 1)) != 0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn signals_become_values_and_never_queue_up() {
        let signals = Signals::start().unwrap();
        let me = rustix::process::getpid();
        // Whatever else this process gets meanwhile (its other tests have children) is passed over.
        // Under nohup a HUP would be, too; these two nobody ignores.
        let mut missing = vec![Signal::Usr1, Signal::Usr2];
        for _ in 0..1000 {
            for signal in [rustix::process::Signal::USR1, rustix::process::Signal::USR2] {
                rustix::process::kill_process(me, signal).unwrap();
            }
        }
        while !missing.is_empty() {
            signals.wake().recv_timeout(Duration::from_secs(10)).expect("all of them come");
            let came: Vec<Signal> = signals.take().collect();
            missing.retain(|signal| !came.contains(signal));
        }
    }

    #[test]
    fn reads_what_is_ignored() {
        // SigIgn of a shell's background job under nohup: HUP (1), INT (2), QUIT (3), PIPE (13).
        let mask = parse_ignored("Name:\tx\nSigBlk:\t0\nSigIgn:\t0000000000001007\nSigCgt:\t1\n");
        let ignored: Vec<Signal> =
            Signal::ALL.into_iter().filter(|signal| is_ignored(mask, *signal)).collect();
        assert_eq!(ignored, [Signal::Hup, Signal::Int, Signal::Quit]);
        assert!(!Signal::ALL.into_iter().any(|signal| is_ignored(parse_ignored(""), signal)));
        // TERM (15) cannot be waved away: it is how a cluster ends a pod.
        assert!(!is_ignored(u64::MAX, Signal::Term));
    }
}
