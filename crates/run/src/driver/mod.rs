//! The driver process: start, signals, exit status. The engine decides when to signal it.

pub mod pid_1;
pub mod port;
#[cfg_attr(not(target_os = "linux"), path = "no_pty.rs")]
mod pty;
pub mod ready;
mod relay;
mod terminal;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal as SystemSignal};

use crate::driver::relay::Relay;
use crate::driver::terminal::Terminal;
use crate::signals::Signal;
use posse_process::supervisor::{Launch, Running, Supervisor};
use posse_process::{listen, this_program};

/// Values for the driver's environment variables.
#[derive(Clone, Debug, Default)]
pub struct DriverEnv {
    pub app: String,
    pub instance: String,
    pub namespace: String,
    /// The control API's address; `None` if the control API is off.
    pub control: Option<String>,
    pub control_token_file: Option<PathBuf>,
    /// The host that executors dial. The driver listens there, and so on loopback with `--dev`.
    pub host: String,
    /// The port at which executors expect the driver, if posse knows it.
    pub port: Option<u16>,
    /// The driver gets this `host:port` as an open socket.
    pub socket: Option<String>,
    /// Variables of `credentials`.
    pub credentials: Vec<(String, String)>,
    /// The embedded cluster's kubeconfig. `None`: the driver inherits `KUBECONFIG`.
    pub kubeconfig: Option<PathBuf>,
}

impl DriverEnv {
    /// Names and values. A variable without a value is removed from the environment, because it
    /// could come from another posse that started this one.
    fn variables(&self) -> [(&'static str, Option<OsString>); 8] {
        let exe = std::env::current_exe().ok();
        let token_file = self.control_token_file.as_ref();
        [
            ("POSSE_APP", Some(OsString::from(&self.app))),
            ("POSSE_INSTANCE", Some(OsString::from(&self.instance))),
            ("POSSE_NAMESPACE", Some(OsString::from(&self.namespace))),
            ("POSSE_CONTROL", self.control.as_ref().map(OsString::from)),
            ("POSSE_CONTROL_TOKEN_FILE", token_file.map(|path| path.clone().into_os_string())),
            ("POSSE_DRIVER_HOST", Some(OsString::from(&self.host))),
            ("POSSE_DRIVER_PORT", self.port.map(|port| port.to_string().into())),
            ("POSSE_EXE", exe.map(PathBuf::into_os_string)),
        ]
    }

    /// The whole environment: this process's, with these variables.
    pub fn complete(&self) -> Vec<(OsString, OsString)> {
        let mut env: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        for (name, value) in self.variables() {
            match value {
                Some(value) => env.insert(name.into(), value),
                None => env.remove(&OsString::from(name)),
            };
        }
        for (name, value) in &self.credentials {
            env.insert(name.into(), value.into());
        }
        if let Some(kubeconfig) = &self.kubeconfig {
            env.insert("KUBECONFIG".into(), kubeconfig.into());
        }
        env.into_iter().collect()
    }
}

/// The started driver process. Dropping it kills the driver with all of its descendants.
#[derive(Debug)]
pub struct Driver {
    running: Running,
    supervisor: Supervisor,
    /// The terminal that the driver can read. After the supervisor, so that the driver has ended.
    terminal: Option<Terminal>,
    relay: Option<Relay>,
}

/// Why a driver on a terminal does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverStop {
    /// It reads the terminal or sets its modes, and has not got it.
    NeedsTerminal,
    /// It had the terminal, and Ctrl-Z has stopped it.
    Suspended,
}

/// How the driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverEnd {
    /// The exit code; 128 + signal number if a signal killed the driver.
    pub code: u8,
    /// The signal that killed the driver.
    pub signal: Option<i32>,
}

impl DriverEnd {
    fn new(status: ExitStatus) -> Self {
        let signal = status.signal();
        let code = status.code().unwrap_or_else(|| signal.map_or(1, |signal| 128 + signal));
        // Exit codes have 8 bits and signal numbers 7, so the conversion does not fail.
        Self { code: u8::try_from(code).unwrap_or(u8::MAX), signal }
    }
}

impl fmt::Display for DriverEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.signal {
            Some(signal) => write!(f, "killed by signal {signal}"),
            None => write!(f, "exit code {}", self.code),
        }
    }
}

impl Driver {
    /// Starts a program in its own process group, with posse's stdin, stdout and stderr. What is the
    /// terminal on stdin becomes a terminal that posse copies to and from that one. If posse is in
    /// the background there, the driver gets an empty stdin.
    ///
    /// # Errors
    /// The system cannot start it. Exit code 2, since the driver never ran.
    pub fn start(
        program: &str,
        arguments: &[String],
        env: &DriverEnv,
    ) -> Result<Self, DriverError> {
        let this = this_program().map_err(DriverError::Supervisor)?;
        let arguments = arguments.iter().map(OsString::from);
        let (first, args) = match &env.socket {
            None => (program.into(), arguments.collect()),
            Some(address) => {
                let before = [listen::COMMAND, address, "--", program].map(OsString::from);
                (this.clone().into(), before.into_iter().chain(arguments).collect())
            }
        };
        let launch = Launch { program: first, args, env: env.complete(), dir: OsString::new() };
        let failed = |error| DriverError::Start { program: program.to_owned(), error };
        let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
        let modes = terminal::modes_of_stdin();
        let relayed = modes.as_ref().map(|modes| Relay::start(terminal::open()?, modes));
        let (relay, driver_end) = relayed.transpose().map_err(failed)?.unzip();
        let empty = match modes.is_none() && stdin.is_terminal() {
            true => Some(File::open("/dev/null").map_err(failed)?),
            false => None,
        };
        let files = [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()].map(|file| match &driver_end {
            Some(end) if terminal::is_stdins(file) => end.as_fd(),
            Some(_) | None => file,
        });
        let [stdin, stdout, stderr] = files;
        let files = [empty.as_ref().map_or(stdin, AsFd::as_fd), stdout, stderr];
        let terminal = match (modes, &relay) {
            (Some(modes), Some(relay)) => {
                Some(relay.keys().and_then(|keys| Terminal::start(modes, keys)).map_err(failed)?)
            }
            (Some(_) | None, _) => None,
        };
        let start = match &terminal {
            Some(_) => Supervisor::start_for_terminal,
            None => Supervisor::start,
        };
        let supervisor = start(&this).map_err(DriverError::Supervisor)?;
        let running = match &terminal {
            Some(_) => supervisor.link().run_on_terminal(&launch, files),
            None => supervisor.link().run(&launch, files),
        };
        Ok(Self { running: running.map_err(failed)?, supervisor, terminal, relay })
    }

    /// The process id, which is also the process group's.
    pub fn pid(&self) -> Pid {
        self.running.pid()
    }

    /// The driver's supervisor, which is a child of this process.
    pub fn supervisor(&self) -> Pid {
        self.supervisor.pid()
    }

    /// How the driver ended; `None` while it runs. Never blocks. Call it at each `Signal::Chld`.
    pub fn poll(&mut self) -> Option<DriverEnd> {
        let end = self.running.wait(Some(Duration::ZERO)).map(DriverEnd::new)?;
        if let Some(relay) = &self.relay {
            relay.finish();
        }
        self.take_terminal_back();
        Some(end)
    }

    /// Why the driver was stopped, once for each stop. Call it after `poll`. `None` also if somebody has
    /// stopped a driver that has not got the terminal.
    pub fn take_stop(&mut self) -> Option<DriverStop> {
        let signal = self.running.take_stop()?;
        if self.has_terminal() {
            self.take_terminal_back();
            return Some(DriverStop::Suspended);
        }
        let needs_terminal = matches!(signal, SystemSignal::TTIN | SystemSignal::TTOU);
        (needs_terminal && self.terminal.is_some()).then_some(DriverStop::NeedsTerminal)
    }

    /// True while the driver has the terminal, so that Ctrl-C goes to the driver alone.
    pub fn has_terminal(&self) -> bool {
        self.terminal.as_ref().is_some_and(Terminal::is_lent)
    }

    /// Gives the terminal to the driver and continues it. False if posse is in the background.
    ///
    /// # Errors
    /// The system refuses it; the driver stays as it is.
    pub fn lend_terminal(&mut self) -> io::Result<bool> {
        let Some(terminal) = self.terminal.as_mut().filter(|_| terminal::is_foreground()) else {
            return Ok(false);
        };
        if !terminal.is_lent() {
            terminal.lend()?;
        }
        self.supervisor.link().lend_terminal();
        Ok(true)
    }

    fn take_terminal_back(&mut self) {
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
        }
    }

    /// Stops the driver's process group, as Ctrl-Z does.
    pub fn suspend(&self) {
        self.supervisor.link().signal(SystemSignal::TSTP);
    }

    /// Continues the driver's process group.
    pub fn resume(&self) {
        self.supervisor.link().signal(SystemSignal::CONT);
    }

    /// Tells the driver if the size of the window has changed.
    pub fn update_window_size(&self) {
        if self.relay.as_ref().is_some_and(Relay::update_size) {
            self.supervisor.link().signal(SystemSignal::WINCH);
        }
    }

    /// Forwards a signal to the driver's process group, as a terminal does.
    pub fn forward(&self, signal: Signal) {
        let signal = match signal {
            // Of posse's own children, and of posse's own job.
            Signal::Chld | Signal::Tstp | Signal::Cont | Signal::Winch => return,
            Signal::Hup => SystemSignal::HUP,
            Signal::Int => SystemSignal::INT,
            Signal::Quit => SystemSignal::QUIT,
            Signal::Term => SystemSignal::TERM,
            Signal::Usr1 => SystemSignal::USR1,
            Signal::Usr2 => SystemSignal::USR2,
        };
        self.supervisor.link().signal(signal);
    }

    /// Sends SIGTERM to the process group; after the driver's end, to all descendants that it left
    /// behind.
    pub fn terminate_group(&self) {
        self.supervisor.link().signal(SystemSignal::TERM);
    }

    /// Sends SIGKILL to the driver and all of its descendants.
    pub fn kill_all_now(&self) {
        self.supervisor.link().signal(SystemSignal::KILL);
    }
}

/// Why the driver could not be started.
#[derive(Debug)]
pub enum DriverError {
    /// The system could not start the program.
    Start { program: String, error: io::Error },
    /// The system could not start this program again.
    Supervisor(io::Error),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Start { program, error } if error.kind() == io::ErrorKind::NotFound => {
                let remedy = match program.find('/') {
                    None => "no such program in PATH",
                    Some(0) => "the file, or the interpreter in its first line, does not exist",
                    Some(_) => {
                        "the file, or the interpreter in its first line, does not exist; its path \
                         starts at the folder in which posse was started"
                    }
                };
                write!(f, "cannot start the driver {program:?}: {remedy}")
            }
            Self::Start { program, error } if error.kind() == io::ErrorKind::PermissionDenied => {
                let remedy = match Path::new(program).is_dir() {
                    true => "it is a folder",
                    false => "it may not be executed: `chmod +x` it, or name its interpreter first",
                };
                write!(f, "cannot start the driver {program:?}: {remedy}")
            }
            Self::Start { program, error } => {
                write!(f, "cannot start the driver {program:?}: {error}")
            }
            Self::Supervisor(error) => {
                write!(f, "cannot start the driver's supervisor, which is this program: {error}")
            }
        }
    }
}

impl std::error::Error for DriverError {}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::thread;

    use super::*;
    use posse_testing::{Folder, PATIENCE, Wait};

    /// Not a test: `Supervisor::start` runs this program, and the name of this function is what it asks for.
    #[test]
    fn supervise() {
        if std::env::args().nth(1).as_deref() == Some(posse_process::supervisor::COMMAND) {
            posse_process::enter().unwrap();
        }
    }

    fn sh(script: &str) -> Driver {
        let env = DriverEnv {
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            control: Some("unix:/s".into()),
            control_token_file: None,
            host: "::1".into(),
            port: Some(7077),
            socket: None,
            credentials: Vec::new(),
            kubeconfig: Some("/kubeconfig".into()),
        };
        Driver::start("sh", &["-c".to_owned(), script.to_owned()], &env).unwrap()
    }

    /// Waits for the driver's end by polling; the engine waits for SIGCHLD instead.
    fn end(driver: &mut Driver) -> DriverEnd {
        let mut wait = Wait::new("the driver's end", PATIENCE);
        loop {
            if let Some(end) = driver.poll() {
                return end;
            }
            assert!(wait.goes_on(), "the driver never ended");
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn wait_for(path: &Path) -> String {
        let mut wait = Wait::new(path.display().to_string(), PATIENCE);
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text,
                Ok(_) | Err(_) => thread::park_timeout(Duration::from_millis(2)),
            }
            assert!(wait.goes_on(), "{} was not written", path.display());
        }
    }

    #[test]
    fn exit_statuses_become_exit_codes() {
        for (script, code, signal) in [
            ("exit 0", 0, None),
            ("exit 3", 3, None),
            ("exit 255", 255, None),
            ("kill -9 $$", 137, Some(9)),
            ("kill -TERM $$", 143, Some(15)),
        ] {
            let mut driver = sh(script);
            let want = DriverEnd { code, signal };
            assert_eq!(end(&mut driver), want, "{script}");
            assert_eq!(driver.poll(), Some(want), "polled again: {script}");
        }
    }

    #[test]
    fn the_driver_gets_its_environment_variables() {
        let folder = Folder::new();
        let file = folder.path().join("env");
        let script = format!(
            "echo \"$POSSE_APP $POSSE_INSTANCE $POSSE_NAMESPACE $POSSE_CONTROL \
             $POSSE_DRIVER_HOST $POSSE_DRIVER_PORT ${{POSSE_CONTROL_TOKEN_FILE-unset}} $KUBECONFIG $POSSE_EXE $(cut -d' ' -f5 /proc/$$/stat) $$\" \
             > {}",
            file.display()
        );
        let mut driver = sh(&script);
        assert_eq!(end(&mut driver).code, 0);
        let exe = std::env::current_exe().unwrap();
        let pid = driver.pid().as_raw_nonzero();
        let want = format!(
            "w a1b2c ns unix:/s ::1 7077 unset /kubeconfig {} {pid} {pid}\n",
            exe.display()
        );
        assert_eq!(fs::read_to_string(file).unwrap(), want);
    }

    #[test]
    fn signals_reach_the_whole_process_group() {
        let folder = Folder::new();
        let (ready, got) = (folder.path().join("ready"), folder.path().join("got"));
        let script = format!(
            "trap 'echo usr1 > {got}' USR1; trap '' TERM; sleep 1000 & echo $! > {ready}; \
             while :; do wait $!; done",
            got = got.display(),
            ready = ready.display()
        );
        let mut driver = sh(&script);
        let grandchild = wait_for(&ready).trim().parse().ok().and_then(Pid::from_raw).unwrap();
        driver.forward(Signal::Chld);
        driver.forward(Signal::Usr1);
        assert_eq!(wait_for(&got), "usr1\n");
        // USR1 has ended the grandchild, which has no trap. The driver ignores TERM.
        driver.terminate_group();
        assert_eq!(driver.poll(), None);
        driver.kill_all_now();
        assert_eq!(end(&mut driver).signal, Some(9));
        // A signal to an ended group is not an error.
        driver.kill_all_now();
        let mut wait = Wait::new("the end of the grandchild", PATIENCE);
        while is_running(grandchild) {
            assert!(wait.goes_on(), "the grandchild outlived the group");
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// A zombie counts as ended.
    fn is_running(pid: Pid) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn a_command_that_cannot_start_is_an_error() {
        let folder = Folder::new();
        let plain = folder.path().join("plain");
        fs::write(&plain, "text").unwrap();
        let start = |program: &str| {
            let env = DriverEnv::default();
            Driver::start(program, &[], &env).expect_err("it cannot start").to_string()
        };
        assert!(start("no-such-program-here").contains("in PATH"));
        assert!(start("/no/such/file").contains("does not exist"));
        let relative = start("./no-such-file");
        assert!(relative.ends_with("its path starts at the folder in which posse was started"));
        assert!(start(plain.to_str().unwrap()).contains("it may not be executed"));
        assert!(start(folder.path().to_str().unwrap()).contains("it is a folder"));
    }
}
