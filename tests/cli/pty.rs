//! A terminal for programs under test: a pseudo-terminal, and the screen that a person would see.

#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use posse_testing::{Wait, program};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

/// Much longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(10);

/// What is on the screen. It has as many lines as needed, so that nothing scrolls away.
struct Screen {
    columns: usize,
    lines: Vec<Vec<char>>,
    line: usize,
    column: usize,
    /// The begun escape sequence.
    sequence: Vec<u8>,
}

impl Screen {
    fn write(&mut self, byte: u8) {
        if self.sequence.is_empty() {
            return self.print(byte);
        }
        self.sequence.push(byte);
        match self.sequence.as_slice() {
            [_, b'['] | [_, b']'] => {}
            [_, b'[', .., b'@'..=b'~'] => self.control(),
            [_, b']', .., 0x07] | [_, b' '..=b'Z' | b'^'..=b'~'] => self.sequence.clear(),
            _ => {}
        }
    }

    fn print(&mut self, byte: u8) {
        match byte {
            0x1b => self.sequence.push(byte),
            b'\r' => self.column = 0,
            b'\n' => self.line += 1,
            0x08 => self.column = self.column.saturating_sub(1),
            b' '.. => {
                if self.column == self.columns {
                    (self.line, self.column) = (self.line + 1, 0);
                }
                let (line, column) = (self.line, self.column);
                self.lines.resize(self.lines.len().max(line + 1), Vec::new());
                let cells = &mut self.lines[line];
                cells.resize(cells.len().max(column + 1), ' ');
                cells[column] = char::from(byte);
                self.column += 1;
            }
            _ => {}
        }
    }

    fn control(&mut self) {
        let sequence = std::mem::take(&mut self.sequence);
        let number = String::from_utf8_lossy(&sequence[2..sequence.len() - 1]).parse();
        match (sequence.last(), number) {
            (Some(b'K'), _) => {
                if let Some(cells) = self.lines.get_mut(self.line) {
                    cells.truncate(self.column);
                }
            }
            (Some(b'A'), number) => self.line = self.line.saturating_sub(number.unwrap_or(1)),
            // Colours, modes and the like.
            _ => {}
        }
    }

    fn text(&self) -> Vec<String> {
        let line = |cells: &Vec<char>| cells.iter().collect::<String>().trim_end().to_owned();
        self.lines.iter().map(line).collect()
    }
}

/// A new pseudo-terminal of this size: this side of it, and that of the program.
fn open(columns: u16, rows: u16) -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let pty = openpt(flags).unwrap();
    grantpt(&pty).unwrap();
    unlockpt(&pty).unwrap();
    let theirs = ioctl_tiocgptpeer(&pty, flags).unwrap();
    resize(&pty, columns, rows);
    (pty, theirs)
}

/// Gives a pseudo-terminal this size.
fn resize(pty: &OwnedFd, columns: u16, rows: u16) {
    tcsetwinsize(pty, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
}

/// A terminal and the program that it controls, which is killed when this is dropped.
pub(super) struct Terminal {
    pty: OwnedFd,
    child: Child,
    screen: Arc<Mutex<Screen>>,
    /// Ends when no program has the terminal any more, and all that was written is on the screen.
    reader: thread::JoinHandle<()>,
}

impl Terminal {
    /// Starts a program as the leader of this terminal's session.
    #[track_caller]
    pub(super) fn start(leader: &Command, columns: u16) -> Self {
        let (pty, theirs) = open(columns, 24);
        let mut command = program("setsid");
        command.arg("--ctty").arg(leader.get_program()).args(leader.get_args()).env_clear();
        command.envs(leader.get_envs().filter_map(|(name, value)| Some((name, value?))));
        if let Some(dir) = leader.get_current_dir() {
            command.current_dir(dir);
        }
        command.stdin(Stdio::from(theirs.try_clone().unwrap()));
        command.stdout(Stdio::from(theirs.try_clone().unwrap()));
        let child = command.stderr(Stdio::from(theirs)).spawn().expect("util-linux is there");
        let columns = usize::from(columns);
        let screen =
            Screen { columns, lines: Vec::new(), line: 0, column: 0, sequence: Vec::new() };
        let screen = Arc::new(Mutex::new(screen));
        let mut output = File::from(pty.try_clone().unwrap());
        let shown = Arc::clone(&screen);
        let reader = thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error means that no program has the terminal any more.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                let mut screen = shown.lock().unwrap();
                bytes[..n].iter().for_each(|byte| screen.write(*byte));
            }
        });
        Self { pty, child, screen, reader }
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.screen.lock().unwrap().text()
    }

    /// Waits until this is true of some line.
    #[track_caller]
    pub(super) fn wait_line(&self, what: &str, is_it: impl Fn(&str) -> bool) -> String {
        let find = || self.lines().iter().find(|line| is_it(line)).cloned();
        self.wait(what, || find().ok_or(()))
    }

    /// Waits until this succeeds.
    #[track_caller]
    pub(super) fn wait<T, E>(&self, what: &str, mut check: impl FnMut() -> Result<T, E>) -> T {
        let mut wait = Wait::new(what, PATIENCE);
        loop {
            if let Ok(found) = check() {
                return found;
            }
            let goes_on = wait.goes_on();
            assert!(goes_on, "waited for {what}; the screen:\n{}", self.lines().join("\n"));
            thread::sleep(STEP);
        }
    }

    /// Types these keys.
    pub(super) fn press(&self, keys: &str) {
        File::from(self.pty.try_clone().unwrap()).write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the size of the terminal.
    pub(super) fn resize(&self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.pty, size).unwrap();
    }

    /// The process id of the program.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program alone.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    /// The modes that a program may change, and the foreground process group.
    pub(super) fn state(&self) -> (String, Option<u32>) {
        let modes = tcgetattr(&self.pty).unwrap();
        let modes = (modes.input_modes, modes.output_modes, modes.local_modes);
        let group = tcgetpgrp(self.pty.as_fd()).ok();
        (format!("{modes:?}"), group.map(|group| group.as_raw_nonzero().get().cast_unsigned()))
    }

    /// True if the program has ended. Waits a little if not.
    pub(super) fn is_over(&mut self) -> bool {
        let is_over = self.child.try_wait().unwrap().is_some();
        if !is_over {
            thread::sleep(STEP);
        }
        is_over
    }

    /// Waits for the end of the program: its exit code, or 128 + signal.
    #[track_caller]
    pub(super) fn expect_end(&mut self) -> i32 {
        let mut wait = Wait::new("the end of the program", PATIENCE);
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            let screen = self.screen.lock().unwrap().text().join("\n");
            assert!(wait.goes_on(), "waited for the end; the screen:\n{screen}");
            thread::sleep(STEP);
        };
        // The program's last output may still be on its way to the screen.
        self.wait("the end of the output", || {
            if self.reader.is_finished() { Ok(()) } else { Err(()) }
        });
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
