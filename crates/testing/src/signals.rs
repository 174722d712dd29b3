//! Programs that tests start, with the signals that a shell gives a program in the foreground.

use std::ffi::OsStr;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};

use posse_process::ignored::IgnoredSignals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU};

/// A program that ignores no signal, however this test program was started.
pub fn program(program: impl AsRef<OsStr>) -> Command {
    let_children_hear_signals();
    Command::new(program)
}

/// Programs that are started from now on ignore no signal. A child inherits what its parent ignores, and
/// `sh -c 'cargo test &'` ignores SIGINT and SIGQUIT (POSIX, Shell Command Language, 2.11), `nohup`
/// SIGHUP. A signal with a handler has its default action again after exec (signal(7)), so a handler
/// that does nothing is the way to tell the children without unsafe code.
pub fn let_children_hear_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let ignored = IgnoredSignals::now();
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU] {
            if ignored.contains(signal) {
                let flag = Arc::new(AtomicBool::default());
                signal_hook::flag::register(signal, flag).unwrap();
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also a test of its own; the one below starts it with ignored signals.
    #[test]
    fn a_program_of_a_test_ignores_no_signal() {
        let output = program("cat").arg("/proc/self/status").output().unwrap();
        let ignored = IgnoredSignals::parse(&String::from_utf8_lossy(&output.stdout));
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU] {
            assert!(!ignored.contains(signal), "signal {signal}");
        }
    }

    #[test]
    fn a_program_of_a_test_in_the_background_ignores_no_signal() {
        let script = "trap '' HUP INT QUIT TERM TSTP TTIN TTOU; \
                      exec \"$0\" --exact signals::tests::a_program_of_a_test_ignores_no_signal";
        let output =
            Command::new("sh").args(["-c", script]).arg(std::env::current_exe().unwrap()).output();
        let said = String::from_utf8(output.unwrap().stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
    }
}
