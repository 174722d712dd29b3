//! Owns the driver as a child process, and the reaping of processes that posse inherits as PID 1.
//! When to signal and when to give up is the loop's.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal as SystemSignal, WaitId, WaitIdOptions, WaitOptions};

use crate::core::model::time::Millis;
use crate::runtime::signals::Signal;

/// What the driver is told through its environment.
#[derive(Clone, Debug, Default)]
pub struct DriverEnv {
    pub app: String,
    pub instance: String,
    pub namespace: String,
    /// As clients name it; none with the control API off.
    pub control: Option<String>,
    pub control_token_file: Option<PathBuf>,
    /// The embedded cluster's; none leaves the driver the one that it would have anyhow.
    pub kubeconfig: Option<PathBuf>,
}

impl DriverEnv {
    /// Variables and values. What is not known is removed, so that no outer posse's is taken for
    /// this one's.
    fn variables(&self) -> [(&'static str, Option<OsString>); 6] {
        let exe = std::env::current_exe().ok();
        let token_file = self.control_token_file.as_ref();
        [
            ("POSSE_APP", Some(OsString::from(&self.app))),
            ("POSSE_INSTANCE", Some(OsString::from(&self.instance))),
            ("POSSE_NAMESPACE", Some(OsString::from(&self.namespace))),
            ("POSSE_CONTROL", self.control.as_ref().map(OsString::from)),
            ("POSSE_CONTROL_TOKEN_FILE", token_file.map(|path| path.clone().into_os_string())),
            ("POSSE_EXE", exe.map(PathBuf::into_os_string)),
        ]
    }
}

/// The driver, from its start on.
#[derive(Debug)]
pub struct Driver {
    child: Child,
    pid: Pid,
    end: Option<DriverEnd>,
}

/// How the driver ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverEnd {
    /// Its exit code; 128 + the signal where one killed it.
    pub code: u8,
    /// The signal that killed it.
    pub signal: Option<i32>,
}

impl DriverEnd {
    fn new(status: ExitStatus) -> Self {
        let signal = status.signal();
        let code = status.code().unwrap_or_else(|| signal.map_or(1, |signal| 128 + signal));
        // Codes have 8 bits and signals 7, so this holds whatever the driver does.
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
    /// Starts `command` in a process group of its own, with our stdout and stderr. Our stdin too,
    /// but not a terminal: a background process group that reads one is stopped by the system, and
    /// making it the foreground one would send the terminal's ctrl-C past posse. So the driver of
    /// an interactive `posse run` reads an empty input.
    ///
    /// # Errors
    /// There is no command, or the system cannot start it: a mistake in the configuration (exit
    /// code 2), since nothing of the driver ever ran.
    pub fn start(command: &[String], env: &DriverEnv) -> Result<Self, DriverError> {
        let (program, arguments) = command.split_first().ok_or(DriverError::Empty)?;
        let mut process = Command::new(program);
        process.args(arguments).process_group(0);
        if io::stdin().is_terminal() {
            process.stdin(Stdio::null());
        }
        for (name, value) in env.variables() {
            match value {
                Some(value) => process.env(name, value),
                None => process.env_remove(name),
            };
        }
        if let Some(kubeconfig) = &env.kubeconfig {
            process.env("KUBECONFIG", kubeconfig);
        }
        let failed = |error| DriverError::Start { program: program.clone(), error };
        let child = process.spawn().map_err(failed)?;
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, end: None })
    }

    /// Its process, and the number of its process group.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended; none while it runs. Never waits: to be asked at each `Signal::Chld`.
    pub fn poll(&mut self) -> Option<DriverEnd> {
        if self.end.is_none() {
            match self.child.try_wait() {
                Ok(status) => self.end = status.map(DriverEnd::new),
                Err(error) => {
                    // Only when somebody else has reaped it: it has ended, nobody knows how.
                    log::error!("the driver's exit status is lost: {error}");
                    self.end = Some(DriverEnd { code: 1, signal: None });
                }
            }
        }
        self.end
    }

    /// Passes a signal on, once, to the driver and what it started in its group, as a terminal
    /// would do.
    pub fn pass(&self, signal: Signal) {
        let signal = match signal {
            Signal::Chld => return,
            Signal::Hup => SystemSignal::HUP,
            Signal::Int => SystemSignal::INT,
            Signal::Quit => SystemSignal::QUIT,
            Signal::Term => SystemSignal::TERM,
            Signal::Usr1 => SystemSignal::USR1,
            Signal::Usr2 => SystemSignal::USR2,
        };
        self.kill_group(signal);
    }

    /// Asks the whole group to end. Also right after the driver's own end, for what it left behind.
    pub fn terminate_group(&self) {
        self.kill_group(SystemSignal::TERM);
    }

    /// Ends the whole group, now.
    pub fn kill_group_now(&self) {
        self.kill_group(SystemSignal::KILL);
    }

    fn kill_group(&self, signal: SystemSignal) {
        match rustix::process::kill_process_group(self.pid, signal) {
            // Nobody is left in it: that is what most signals are for.
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => log::warn!("cannot signal the driver's process group: {error}"),
        }
    }
}

/// Why the driver did not start.
#[derive(Debug)]
pub enum DriverError {
    /// The command has no words.
    Empty,
    /// The system said no.
    Start { program: String, error: io::Error },
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("driver.command is empty"),
            Self::Start { program, error } if error.kind() == io::ErrorKind::NotFound => {
                let remedy = if program.contains('/') {
                    "there is no such file, or what its first line names is missing"
                } else {
                    "there is no such program in PATH"
                };
                write!(f, "cannot start the driver {program:?}: {remedy}")
            }
            Self::Start { program, error } => {
                write!(f, "cannot start the driver {program:?}: {error}")
            }
        }
    }
}

impl std::error::Error for DriverError {}

/// As PID 1, posse gets the children of processes that ended before them, and has to reap them.
///
/// Children of posse itself (the driver, credential plugins, local pods) have owners here that
/// wait for them, and must be left alone. The system does not tell the two kinds apart, but an
/// owner reaps at once: so only a zombie that stays one for `ORPHAN_AGE_MS` is nobody's.
#[derive(Debug)]
pub struct Reaper {
    /// When each zombie was first seen.
    seen: HashMap<Pid, Millis>,
}

impl Reaper {
    /// None where we are not PID 1: then there is another who reaps.
    #[must_use]
    pub fn new() -> Option<Self> {
        rustix::process::getpid().is_init().then(Self::always)
    }

    fn always() -> Self {
        Self { seen: HashMap::new() }
    }

    /// Reaps what is nobody's. To be called at each `Signal::Chld`, after `Driver::poll`, and at
    /// the time that it returned, if any.
    pub fn reap(&mut self, now: Millis, driver: Option<Pid>) -> Option<Millis> {
        // Mostly there is none, and to ask for one is cheaper than to look at all processes.
        let me = rustix::process::getpid();
        let zombies = if has_zombie() { zombies(Path::new("/proc"), me) } else { Vec::new() };
        for orphan in self.choose(zombies, now, driver) {
            // It may have found an owner after all; then there is nothing to reap.
            if let Ok(Some(_)) = rustix::process::waitpid(Some(orphan), WaitOptions::NOHANG) {
                log::debug!("reaped process {}", orphan.as_raw_nonzero());
            }
        }
        self.seen.values().map(|first| first.after(ORPHAN_AGE_MS)).min()
    }

    /// Those that have been seen for long enough, which are forgotten here.
    fn choose(&mut self, zombies: Vec<Pid>, now: Millis, driver: Option<Pid>) -> Vec<Pid> {
        let mut still = HashMap::new();
        let mut orphans = Vec::new();
        for pid in zombies {
            let first = *self.seen.get(&pid).unwrap_or(&now);
            if Some(pid) == driver {
                continue;
            }
            if now.since(first) >= ORPHAN_AGE_MS {
                orphans.push(pid);
            } else {
                still.insert(pid, first);
            }
        }
        self.seen = still;
        orphans
    }
}

/// True where some child has ended and was not reaped; it stays as it is.
fn has_zombie() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_)))
}

/// The zombies among the children of `parent`, as a /proc tells them.
fn zombies(proc: &Path, parent: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir(proc) else { return Vec::new() };
    let mut zombies = Vec::new();
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if is_zombie_of(&stat, parent) {
            zombies.push(pid);
        }
    }
    zombies
}

/// `7 (a name, with anything in it) Z 1 ...`
fn is_zombie_of(stat: &str, parent: Pid) -> bool {
    let Some((_, rest)) = stat.rsplit_once(") ") else { return false };
    let mut fields = rest.split(' ');
    fields.next() == Some("Z")
        && fields.next().and_then(|ppid| ppid.parse().ok()).and_then(Pid::from_raw) == Some(parent)
}

/// Any owner has reaped its child by then.
const ORPHAN_AGE_MS: u64 = 5_000;

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::control::tests::Folder;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn sh(script: &str) -> Driver {
        let command = ["sh", "-c", script].map(str::to_owned);
        let env = DriverEnv {
            app: "w".into(),
            instance: "a1b2c".into(),
            namespace: "ns".into(),
            control: Some("unix:/s".into()),
            control_token_file: None,
            kubeconfig: Some("/kubeconfig".into()),
        };
        Driver::start(&command, &env).unwrap()
    }

    /// The loop waits for SIGCHLD; a test may look again and again.
    fn end(driver: &mut Driver) -> DriverEnd {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(end) = driver.poll() {
                return end;
            }
            assert!(Instant::now() < deadline, "the driver never ended");
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    fn wait_for(path: &Path) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match fs::read_to_string(path) {
                Ok(text) if text.ends_with('\n') => return text,
                Ok(_) | Err(_) => thread::park_timeout(Duration::from_millis(2)),
            }
            assert!(Instant::now() < deadline, "{} never came", path.display());
        }
    }

    #[test]
    fn ends_become_exit_codes() {
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
            assert_eq!(driver.poll(), Some(want), "asked again: {script}");
        }
    }

    #[test]
    fn the_driver_knows_where_it_is() {
        let folder = Folder::new();
        let file = folder.path().join("env");
        let script = format!(
            "echo \"$POSSE_APP $POSSE_INSTANCE $POSSE_NAMESPACE $POSSE_CONTROL \
             ${{POSSE_CONTROL_TOKEN_FILE-unset}} $KUBECONFIG $POSSE_EXE $(cut -d' ' -f5 /proc/$$/stat) $$\" \
             > {}",
            file.display()
        );
        let mut driver = sh(&script);
        assert_eq!(end(&mut driver).code, 0);
        let exe = std::env::current_exe().unwrap();
        let pid = driver.pid().as_raw_nonzero();
        let want = format!("w a1b2c ns unix:/s unset /kubeconfig {} {pid} {pid}\n", exe.display());
        assert_eq!(fs::read_to_string(file).unwrap(), want);
    }

    #[test]
    fn signals_reach_the_whole_group_and_kill_ends_it() {
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
        driver.pass(Signal::Chld);
        driver.pass(Signal::Usr1);
        assert_eq!(wait_for(&got), "usr1\n");
        // USR1 has ended the grandchild, which has no trap; the driver itself is deaf to TERM.
        driver.terminate_group();
        assert_eq!(driver.poll(), None);
        driver.kill_group_now();
        assert_eq!(end(&mut driver).signal, Some(9));
        // Signals to a group that is gone are no error, and reach nobody.
        driver.kill_group_now();
        let deadline = Instant::now() + PATIENCE;
        while is_running(grandchild) {
            assert!(Instant::now() < deadline, "the grandchild outlived the group");
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// A zombie that nobody reaps is over, too.
    fn is_running(pid: Pid) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn a_command_that_cannot_start_says_why() {
        let folder = Folder::new();
        let plain = folder.path().join("plain");
        fs::write(&plain, "text").unwrap();
        let start = |words: &[&str]| {
            let command: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            Driver::start(&command, &DriverEnv::default()).expect_err("it cannot start").to_string()
        };
        assert_eq!(start(&[]), "driver.command is empty");
        assert!(start(&["no-such-program-here"]).contains("in PATH"));
        assert!(start(&["/no/such/file"]).contains("no such file"));
        assert!(start(&[plain.to_str().unwrap()]).to_lowercase().contains("permission denied"));
    }

    #[test]
    fn reaps_only_what_nobody_waits_for() {
        let pid = |n| Pid::from_raw(n).unwrap();
        let mut reaper = Reaper::always();
        let driver = Some(pid(7));
        assert_eq!(reaper.choose(vec![pid(7), pid(8), pid(9)], Millis(0), driver), []);
        // 9 was reaped by its owner, 10 is new, and its number is no proof of age.
        assert_eq!(reaper.choose(vec![pid(7), pid(8), pid(10)], Millis(4_999), driver), []);
        assert_eq!(reaper.choose(vec![pid(7), pid(8), pid(10)], Millis(5_000), driver), [pid(8)]);
        assert_eq!(reaper.choose(vec![pid(7), pid(10)], Millis(9_999), driver), [pid(10)]);
        assert_eq!(reaper.choose(vec![pid(7)], Millis(99_999), driver), []);
    }

    #[test]
    fn finds_zombies_of_ours() {
        let me = rustix::process::getpid();
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let deadline = Instant::now() + PATIENCE;
        while !(has_zombie() && zombies(Path::new("/proc"), me).contains(&pid)) {
            assert!(Instant::now() < deadline, "it never became one");
        }
        assert!(child.wait().unwrap().success(), "looking has not reaped it");
        assert!(!zombies(Path::new("/proc"), me).contains(&pid));

        let one = Pid::INIT;
        for (stat, want) in [
            ("7 (sh) Z 1 7 7", true),
            ("7 (a) R 1) Z 1 7 7", true),
            ("7 (sh) S 1 7 7", false),
            ("7 (sh) Z 12 7 7", false),
            ("7 (sh) Z", false),
            ("", false),
        ] {
            assert_eq!(is_zombie_of(stat, one), want, "{stat}");
        }
    }
}
