//! `posse exec -it` on a terminal: the keys go to the command, Ctrl-C too, and the terminal is as before
//! at the end.

#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};

use posse_testing::{Folder, program};
use rustix::process::Signal;

use super::folder::posse;
use super::pty::Terminal;

const CONFIG: &str = r#"{app: typed, executors: [{count: 1, command: [sleep, "1000"]}]}"#;

/// A run in a folder of its own. Both end when this is dropped.
struct Run {
    folder: Folder,
    child: Child,
}

impl Run {
    fn start() -> Self {
        let folder = Folder::new();
        folder.write("posse.yaml", CONFIG);
        let args = ["run", "--dev", "--control", "unix:control"];
        let mut run = posse(folder.path(), &args);
        run.env("POSSE_LOG", "error");
        let child = run.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let run = Self { folder, child };
        // It also waits for the run, which has no socket yet.
        let wait = run.client(&["wait", "--running", "1", "--timeout", "120s"]).output().unwrap();
        assert!(wait.status.success(), "{}", String::from_utf8_lossy(&wait.stderr));
        run
    }

    fn client(&self, words: &[&str]) -> Command {
        let mut command = posse(self.folder.path(), words);
        command.env("POSSE_CONTROL", format!("unix:{}/control", self.folder.path().display()));
        command.env("TERM", "xterm").env("NO_COLOR", "1").env("POSSE_LOG", "error");
        command
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, Signal::TERM);
        let _ = self.child.wait();
    }
}

/// The modes of the terminal before posse changes them. The shell in it waits for a key first.
#[track_caller]
fn start_after_look(terminal: &Terminal) -> String {
    terminal.wait_line("the shell", |line| line == "begin");
    let (before, _) = terminal.state();
    terminal.press("\r");
    terminal.wait("raw mode", || if terminal.state().0 == before { Err(()) } else { Ok(()) });
    before
}

#[test]
fn a_shell_in_an_executor_has_this_terminal() {
    let run = Run::start();
    // The outer shell leads the session, so that the modes can be compared when posse has ended.
    let exe = env!("CARGO_BIN_EXE_posse");
    let script =
        format!("echo begin; read go; {exe} exec -it 1 -- sh; echo \"code $?\"; read line");
    let mut command = program("sh");
    command.args(["-c", &script]).current_dir(run.folder.path());
    let client = run.client(&[]);
    command.envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = Terminal::start(&command, 100);
    let before = start_after_look(&terminal);
    terminal.press("stty size; tty | wc -l\r");
    terminal.wait_line("the size of the terminal", |line| line.ends_with("24 100"));
    terminal.resize(132, 50);
    // The command's terminal follows a little later.
    terminal.press("until [ \"$(stty size)\" = '50 132' ]; do :; done; echo re''sized\r");
    terminal.wait_line("the new size", |line| line.ends_with("resized"));
    terminal.press("echo run''ning; sleep 1000\r");
    terminal.wait_line("the sleep", |line| line.ends_with("running"));
    terminal.press("\x03");
    terminal.press("echo aft''er\r");
    terminal.wait_line("the prompt after Ctrl-C", |line| line.ends_with("after"));
    terminal.press("exit 5\r");
    terminal.wait_line("the exit code", |line| line.ends_with("code 5"));
    assert_eq!(terminal.state().0, before, "the modes are as before");
    terminal.press("\r");
    assert_eq!(terminal.expect_end(), 0);
}

#[test]
fn a_signal_leaves_the_terminal_as_it_was() {
    let run = Run::start();
    let exe = env!("CARGO_BIN_EXE_posse");
    let script = format!("echo begin; read go; exec {exe} exec -it 1 -- sleep 1000");
    let mut command = program("sh");
    command.args(["-c", &script]).current_dir(run.folder.path());
    let client = run.client(&[]);
    command.envs(client.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let mut terminal = Terminal::start(&command, 80);
    start_after_look(&terminal);
    let (raw, _) = terminal.state();
    terminal.signal(Signal::TERM);
    assert_eq!(terminal.expect_end(), 143);
    assert_ne!(terminal.state().0, raw, "the modes are restored");
}
