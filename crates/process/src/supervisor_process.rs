//! The supervisor's own process: starts programs, passes signals on, reports ends, and at last kills
//! all descendants.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, recvmsg};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpgrp, getppid, ioctl_tiocsctty, kill_process,
    kill_process_group, setsid, wait,
};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use signal_hook::consts;

use crate::ignored::IgnoredSignals;
use crate::supervisor::{
    ENDED, FAILED, FILES, LEND_TERMINAL, Launch, MESSAGE_BYTES, START, START_ON_TERMINAL,
    START_TIMEOUT, STARTED, STOPPED,
};
use crate::{system, tree};

/// The limit of a `Launch`. Linux allows 2 MiB of arguments and environment.
const LAUNCH_BYTES_MAX: u64 = 16 << 20;
/// These signals do not end the supervisor: `pkill posse` reaches it, too, and the programs would
/// be without it. Handlers are used, because ignored signals would stay ignored in the programs.
const HANDLED: [i32; 7] = [
    consts::SIGHUP,
    consts::SIGINT,
    consts::SIGQUIT,
    consts::SIGTERM,
    consts::SIGTSTP,
    consts::SIGUSR1,
    consts::SIGUSR2,
];

/// Runs this process as a supervisor until the connection on its standard input is closed. No
/// descendant is left then, except for those that this user may not kill.
///
/// # Errors
/// The caller is not posse.
pub fn enter() -> Result<(), String> {
    let refused = |error: &dyn std::fmt::Display| {
        format!("only posse itself uses this command, to start programs ({error})")
    };
    let control = io::stdin().as_fd().try_clone_to_owned().map_err(|error| refused(&error))?;
    let control = UnixStream::from(control);
    control.peer_addr().map_err(|error| refused(&error))?;
    let ended = prepare().map_err(|error| refused(&error))?;
    let mut inside =
        Inside { control, ended, main: None, programs: Vec::new(), is_on_terminal: false };
    inside.serve();
    inside.kill_all();
    Ok(())
}

/// Becomes a subreaper. The returned stream can be read when a child has ended.
fn prepare() -> io::Result<UnixStream> {
    system::adopt_orphans()?;
    let ignored = IgnoredSignals::now();
    let flag = Arc::new(AtomicBool::new(false));
    for signal in HANDLED.into_iter().filter(|signal| !ignored.contains(*signal)) {
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    let (ended, sender) = UnixStream::pair()?;
    ended.set_nonblocking(true)?;
    signal_hook::low_level::pipe::register(consts::SIGCHLD, sender)?;
    Ok(ended)
}

struct Inside {
    control: UnixStream,
    /// Readable when a child has ended.
    ended: UnixStream,
    /// The program that leads the process group, while it runs.
    main: Option<Pid>,
    programs: Vec<Program>,
    /// The main program is on a terminal, which controls the session of this process.
    is_on_terminal: bool,
}

/// A program that was asked for and runs.
struct Program {
    pid: Pid,
    /// `None` if the other end was closed; then the program is killed.
    channel: Option<UnixStream>,
}

enum Request {
    Start { files: [OwnedFd; FILES], on_terminal: bool },
    Signal(Signal),
    LendTerminal,
    Unknown,
    End,
}

impl Inside {
    fn serve(&mut self) {
        loop {
            let Ok((has_request, closed)) = self.wait() else { return };
            self.reap();
            for program in self.programs.iter_mut().filter(|one| closed.contains(&one.pid)) {
                program.channel = None;
                // It is not reaped yet, so its id is still valid.
                let _ = kill_process(program.pid, Signal::KILL);
            }
            if !has_request {
                continue;
            }
            match self.receive() {
                Request::Start { files, on_terminal } => self.start(files, on_terminal),
                Request::Signal(signal) => self.signal(signal),
                Request::LendTerminal => self.lend_terminal(),
                Request::Unknown => {}
                Request::End => return,
            }
        }
    }

    /// Waits for a request, the end of a child, or the end of a channel. True if there is a request;
    /// also the programs whose channels were closed.
    fn wait(&self) -> rustix::io::Result<(bool, Vec<Pid>)> {
        let channels: Vec<(Pid, &UnixStream)> = self
            .programs
            .iter()
            .filter_map(|program| Some((program.pid, program.channel.as_ref()?)))
            .collect();
        let mut fds = vec![
            PollFd::new(&self.control, PollFlags::IN),
            PollFd::new(&self.ended, PollFlags::IN),
        ];
        // Without flags, poll(2) reports only that the other end was closed.
        fds.extend(channels.iter().map(|(_, stream)| PollFd::new(*stream, PollFlags::empty())));
        retry_on_intr(|| poll(&mut fds, None))?;
        let mut is_ready = fds.iter().map(|fd| !fd.revents().is_empty());
        let (has_request, _) = (is_ready.next().unwrap_or(false), is_ready.next());
        let closed = channels.iter().zip(is_ready).filter(|(_, is_closed)| *is_closed);
        Ok((has_request, closed.map(|((pid, _), _)| *pid).collect()))
    }

    fn receive(&self) -> Request {
        let mut request = [START];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = retry_on_intr(|| {
            let mut bytes = [IoSliceMut::new(&mut request)];
            recvmsg(&self.control, &mut bytes, &mut ancillary, system::RECEIVE)
        });
        if received.map_or(0, |received| received.bytes) == 0 {
            return Request::End;
        }
        let [request] = request;
        let on_terminal = match request {
            START => false,
            START_ON_TERMINAL => true,
            LEND_TERMINAL => return Request::LendTerminal,
            number => {
                let signal = Signal::from_named_raw(i32::from(number));
                return signal.map_or(Request::Unknown, Request::Signal);
            }
        };
        let mut files = Vec::with_capacity(FILES);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                files.extend(received);
            }
        }
        let start = |files| Request::Start { files, on_terminal };
        files.try_into().map_or(Request::Unknown, start)
    }

    fn start(&mut self, [channel, stdin, stdout, stderr]: [OwnedFd; FILES], on_terminal: bool) {
        let mut channel = UnixStream::from(channel);
        let session = match on_terminal {
            true => self.begin_session(&stdin),
            false => Ok(()),
        };
        let started = session.and_then(|()| self.spawn(&mut channel, [stdin, stdout, stderr]));
        let message = match &started {
            Ok(pid) => (STARTED, pid.as_raw_nonzero().get()),
            Err(error) => (FAILED, error.raw_os_error().unwrap_or(Errno::INVAL.raw_os_error())),
        };
        // An error means that posse has closed the channel, which `wait` reports.
        let _ = write_message(&mut channel, message);
        if let Ok(pid) = started {
            self.programs.push(Program { pid, channel: Some(channel) });
        }
    }

    /// Begins a session with this controlling terminal, whose foreground is this process for now.
    fn begin_session(&mut self, terminal: &OwnedFd) -> io::Result<()> {
        setsid()?;
        ioctl_tiocsctty(terminal)?;
        self.is_on_terminal = true;
        Ok(())
    }

    /// Brings the main program to the foreground, and continues it.
    fn lend_terminal(&self) {
        // Not kept open: posse notices when the last program has closed it.
        let terminal = File::options().read(true).write(true).open("/dev/tty");
        let (Ok(terminal), Some(main)) = (terminal, self.main) else { return };
        // In the background the system would stop this process (SIGTTOU). A program that had the
        // terminal still has it.
        if tcgetpgrp(&terminal) != Ok(getpgrp()) || tcsetpgrp(&terminal, main).is_ok() {
            let _ = kill_process_group(main, Signal::CONT);
        }
    }

    fn spawn(
        &mut self,
        channel: &mut UnixStream,
        [stdin, stdout, stderr]: [OwnedFd; 3],
    ) -> io::Result<Pid> {
        channel.set_read_timeout(Some(START_TIMEOUT))?;
        let mut launch = Vec::new();
        channel.take(LAUNCH_BYTES_MAX).read_to_end(&mut launch)?;
        let mut command = Launch::decode(&launch).ok_or(io::ErrorKind::InvalidData)?.command();
        command.stdin(stdin).stdout(stdout).stderr(stderr);
        command.process_group(self.main.map_or(0, |main| main.as_raw_nonzero().get()));
        let pid = Pid::from_child(&command.spawn()?);
        self.main.get_or_insert(pid);
        Ok(pid)
    }

    fn signal(&mut self, signal: Signal) {
        match self.main {
            _ if signal == Signal::KILL => self.kill_all(),
            Some(main) => {
                let _ = kill_process_group(main, signal);
            }
            None => {
                for pid in descendants() {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }

    /// Reaps all children that have ended. True if there are others.
    fn reap(&mut self) -> bool {
        let mut bytes = [0; 64];
        // The bytes only say that this must be done; more of them do no harm.
        while matches!((&self.ended).read(&mut bytes), Ok(1..)) {}
        loop {
            match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
                Ok(Some((pid, status))) => match status.stopping_signal() {
                    Some(signal) => self.on_stop(pid, signal),
                    None => self.on_end(pid, status),
                },
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    fn on_end(&mut self, pid: Pid, status: WaitStatus) {
        if self.main == Some(pid) {
            self.main = None;
        }
        let Some(at) = self.programs.iter().position(|program| program.pid == pid) else { return };
        let Some(mut channel) = self.programs.swap_remove(at).channel else { return };
        // An error means that nobody waits for the end.
        let _ = write_message(&mut channel, (ENDED, status.as_raw()));
        wake_posse();
    }

    /// Reports that the main program was stopped, if it is on a terminal, or asks for one.
    fn on_stop(&mut self, pid: Pid, signal: i32) {
        let asks = [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&signal);
        if self.main != Some(pid) || !(self.is_on_terminal || asks) {
            return;
        }
        let program = self.programs.iter_mut().find(|program| program.pid == pid);
        if let Some(channel) = program.and_then(|program| program.channel.as_mut()) {
            // An error means that nobody waits for the program.
            let _ = write_message(channel, (STOPPED, signal));
            wake_posse();
        }
    }

    /// Kills descendants until none is left, or none that this user may kill.
    fn kill_all(&mut self) {
        if let Some(main) = self.main {
            // Also without /proc.
            let _ = kill_process_group(main, Signal::KILL);
        }
        while self.reap() {
            // Processes may start others until they are killed, so one look is not enough.
            let n_killed =
                descendants().filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count();
            if n_killed == 0 {
                return;
            }
            if let Ok(Some((pid, status))) = retry_on_intr(|| wait(WaitOptions::empty())) {
                self.on_end(pid, status);
            }
        }
    }
}

/// All descendants of this process, as far as /proc shows them.
fn descendants() -> impl Iterator<Item = Pid> {
    let own = std::process::id();
    // The /proc of another PID namespace has other numbers.
    let is_ours = std::fs::read_link("/proc/self")
        .is_ok_and(|pid| pid.to_str() == Some(own.to_string().as_str()));
    let found = if is_ours { tree::descendants(own) } else { Vec::new() };
    found.into_iter().filter_map(|pid| Pid::from_raw(i32::try_from(pid).ok()?))
}

/// As the kernel does for the parent of a process that has ended or was stopped.
fn wake_posse() {
    if let Some(posse) = getppid() {
        let _ = kill_process(posse, Signal::CHILD);
    }
}

fn write_message(channel: &mut UnixStream, (tag, number): (u8, i32)) -> io::Result<()> {
    let mut message = [tag; MESSAGE_BYTES];
    let [_, rest @ ..] = &mut message;
    *rest = number.to_le_bytes();
    channel.write_all(&message)
}
