//! `posse run` on a terminal: drivers that read the terminal, and job control. Each test looks at the screen that a person would see.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::folder::{command, text};
use super::pty::Terminal;

const TEMPLATE: &str = r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
    {"name": "w", "image": "i", "command": ["sleep", "100000"]}]}}"#;
const CONFIG: &str = "{app: words, executors: [{group: g, count: 2, template: pod.yaml}], \
                      shutdown: {grace: 60s}}";

/// A new folder with a configuration.
struct Folder(posse_testing::Folder);

impl Folder {
    fn new(config: &str) -> Self {
        let folder = posse_testing::Folder::new();
        folder.write("posse.yaml", config);
        folder.write("pod.yaml", TEMPLATE);
        Self(folder)
    }

    /// A program in this folder.
    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = command(name, self.path(), args);
        command.env("TERM", "xterm").env("NO_COLOR", "1").env("POSSE_LOG", "error");
        command
    }

    fn posse(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_posse"), args)
    }

    /// `posse run --dev` with a driver in `sh`, which waits for files by `wait_for NAME`.
    fn run(&self, flags: &[&str], script: &str) -> Command {
        let script = format!("wait_for() {{ until [ -e $1 ]; do sleep 0.02; done; }}\n{script}");
        let mut run =
            self.posse(&[&["run", "--dev"], flags, &["--", "sh", "-c", &script]].concat());
        run.env("POSSE_LOG", "info");
        run
    }

    fn make(&self, name: &str) {
        self.0.write(name, "");
    }

    /// Waits until a program in the terminal has made this file.
    #[track_caller]
    fn wait_made(&self, terminal: &Terminal, name: &str) {
        let is_there = || if self.path().join(name).exists() { Ok(()) } else { Err(()) };
        terminal.wait(&format!("the file {name}"), is_there);
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

#[track_caller]
fn wait_running(terminal: &Terminal) {
    terminal.wait_line("executors", |line| line.ends_with("all 2 executors are running"));
}

#[test]
fn a_second_ctrl_c_forces_the_end() {
    let folder = Folder::new(CONFIG);
    let run = folder.run(&[], "trap '' INT TERM; : >deaf; while :; do sleep 1; done");
    let mut terminal = Terminal::start(&run, 120);
    wait_running(&terminal);
    folder.wait_made(&terminal, "deaf");
    terminal.press("\x03");
    terminal.wait_line("the stop", |line| line.ends_with("stopping"));
    // A signal within 200 ms of the first one counts as the same.
    while !terminal.is_over() {
        terminal.press("\x03");
    }
    assert_eq!(terminal.expect_end(), 12);
}

#[test]
fn the_driver_finds_a_terminal_of_the_right_size() {
    let folder = Folder::new(CONFIG);
    let script = "[ -t 1 ] && [ -t 2 ] && stty size <&1; [ -t 0 ] && echo keys";
    let mut terminal = Terminal::start(&folder.run(&[], script), 93);
    assert_eq!(terminal.expect_end(), 0);
    let lines = terminal.lines();
    assert!(lines.contains(&"24 93".to_owned()) && lines.contains(&"keys".to_owned()), "{lines:?}");
    // Output to a file goes there directly.
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!("{posse} run --dev -- sh -c '[ -t 1 ] || echo file; echo typed >&2' >out");
    let shell = folder.command("sh", &["-c", &script]);
    let mut terminal = Terminal::start(&shell, 80);
    assert_eq!(terminal.expect_end(), 0);
    assert!(terminal.lines().contains(&"typed".to_owned()), "{:?}", terminal.lines());
    assert_eq!(fs::read_to_string(folder.path().join("out")).unwrap(), "file\n");
}

/// The process is stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
}

/// The process id in the log line of the driver's start.
#[track_caller]
fn driver_pid(terminal: &Terminal) -> u32 {
    let line =
        terminal.wait_line("the driver's start", |line| line.contains("driver started, pid "));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

#[test]
fn an_interactive_driver_has_the_terminal() {
    let folder = Folder::new(CONFIG);
    // A shell, because nobody else would continue a job.
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!("set -m; {posse} run --dev -- python3 -i; echo back; read go; fg");
    let mut shell = folder.command("sh", &["-c", &script]);
    shell.env("POSSE_LOG", "info").env("PYTHON_BASIC_REPL", "1");
    let mut terminal = Terminal::start(&shell, 120);
    let driver = driver_pid(&terminal);
    let shows = |text: &'static str| {
        // A log line may follow the prompt.
        terminal.wait_line(text, |line| line.contains(text));
    };
    shows(">>>");
    terminal.press("import os; 'typed %d %s' % (1 + 1, os.tcgetpgrp(0) == os.getpgrp())\r");
    shows("'typed 2 True'");
    terminal.press("import time; print('a' + 'sleep'); time.sleep(1000)\r");
    shows("asleep");
    terminal.press("\x03");
    shows("KeyboardInterrupt");
    terminal.press("print('still', 40 + 2)\r");
    shows("still 42");
    // Ctrl-Z stops the driver and posse, and gives the terminal back.
    terminal.press("\x1a");
    terminal.wait_line("the shell", |line| line.ends_with("back"));
    assert!(is_stopped(driver));
    let (modes, _) = terminal.state();
    assert!(modes.contains("ICANON") && modes.contains("ECHO"), "{modes}");
    terminal.press("\r");
    terminal.wait("the driver to go on", || if is_stopped(driver) { Err(()) } else { Ok(()) });
    terminal.press("\rprint('again', 6 * 7)\r");
    shows("again 42");
    terminal.press("exit()\r");
    assert_eq!(terminal.expect_end(), 0);
}

/// As `ssh -t` and `kubectl exec -it` start it: the system would let nobody continue it.
#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let folder = Folder::new(CONFIG);
    let script = "trap ': >continued' CONT; : >trapped; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start(&folder.run(&[], script), 80);
    wait_running(&terminal);
    folder.wait_made(&terminal, "trapped");
    terminal.press("\x1a");
    folder.wait_made(&terminal, "continued");
    assert!(!is_stopped(terminal.pid()));
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 130);
}

#[test]
fn a_killed_driver_leaves_the_terminal_as_it_was() {
    let folder = Folder::new(CONFIG);
    // A shell, because after its leader's end a terminal has no foreground.
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!(
        "echo ready; read go; {posse} run --dev -- sh -c 'stty raw -echo; printf typed; read x'; \
         echo code $?; read y"
    );
    let mut shell = folder.command("sh", &["-c", &script]);
    let terminal = Terminal::start(shell.env("POSSE_LOG", "info"), 80);
    terminal.wait_line("the shell", |line| line == "ready");
    let before = terminal.state();
    terminal.press("\r");
    let driver = driver_pid(&terminal);
    terminal.wait("other modes", || if terminal.state() == before { Err(()) } else { Ok(()) });
    let driver = Pid::from_raw(driver.cast_signed()).unwrap();
    kill_process(driver, Signal::KILL).unwrap();
    terminal.wait_line("the exit code", |line| line == "code 137");
    assert_eq!(terminal.state(), before);
}

#[test]
fn ctrl_c_ends_a_driver_that_reads_the_terminal() {
    let folder = Folder::new(CONFIG);
    let mut run = folder.posse(&["run", "--dev", "--", "cat"]);
    let mut terminal = Terminal::start(run.env("POSSE_LOG", "info"), 80);
    driver_pid(&terminal);
    terminal.press("typed\r");
    // What was typed, and what cat has written.
    terminal.wait("the answer", || {
        match terminal.lines().iter().filter(|line| *line == "typed").count() {
            2.. => Ok(()),
            _ => Err(()),
        }
    });
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 130);
    terminal.wait_line("the reason", |line| line.contains("driver ended: killed by signal 2"));
}

/// A driver that never reads the terminal: Ctrl-C ends it, posse and the executors, in order.
#[test]
fn ctrl_c_ends_a_driver_that_does_not_read_the_terminal() {
    let folder = Folder::new(CONFIG);
    let script = "trap 'echo got it; exit 5' INT; : >trapped; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start(&folder.run(&[], script), 80);
    wait_running(&terminal);
    folder.wait_made(&terminal, "trapped");
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 5);
    terminal.wait_line("the driver's word", |line| line.ends_with("got it"));
}

#[test]
fn a_shell_can_move_the_run_between_background_and_foreground() {
    let folder = Folder::new(CONFIG);
    let mut shell = folder.command("sh", &["-i"]);
    let terminal = Terminal::start(shell.env("POSSE_LOG", "info"), 120);
    let posse = env!("CARGO_BIN_EXE_posse");
    terminal.press("PS1='prompt> '\r");
    terminal.wait_line("the prompt", |line| line.ends_with("prompt>"));
    // Not a shell: while it waits for its vfork(2), it is stopped only after its child is.
    let driver = "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\n\
        while not os.path.exists('over'): time.sleep(0.05)\nprint('tail')\n";
    folder.0.write("driver.py", driver);
    terminal.press(&format!("{posse} run --dev -- python3 driver.py &\r"));
    let pid = || fs::read_to_string(folder.path().join("pid")).map_err(drop);
    let pid = terminal.wait("the driver", || pid()?.trim().parse::<u32>().map_err(drop));
    wait_running(&terminal);
    let (_, shell) = terminal.state();
    terminal.press("fg\r");
    terminal.wait("the job", || if terminal.state().1 == shell { Err(()) } else { Ok(()) });
    terminal.press("\x1a");
    terminal.wait("the driver to stop", || if is_stopped(pid) { Ok(()) } else { Err(()) });
    terminal.press("echo is''typed\r");
    terminal.wait_line("the shell's answer", |line| line.ends_with("istyped"));
    terminal.press("bg\r");
    terminal.wait("the driver to go on", || if is_stopped(pid) { Err(()) } else { Ok(()) });
    folder.make("over");
    terminal.wait_line("the driver's word", |line| line.ends_with("tail"));
}

/// bash's `fg` sends nothing to a job that runs. The driver waits for keys without reading, so the system
/// does not stop it in the background.
#[test]
fn a_driver_has_its_keys_again_after_bg_and_fg() {
    let folder = Folder::new(CONFIG);
    let driver = "import os, select, signal\nos.read(0, 99)\n\
        signal.signal(signal.SIGCONT, lambda *_: open('continued', 'w'))\n\
        print('typed', 1, flush=True)\nselect.select([0], [], [])\nprint('typed', 2)\n";
    folder.0.write("driver.py", driver);
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!(
        "set -m; {posse} run --dev -- python3 driver.py; echo back; bg; \
         until [ -e continued ]; do sleep 0.02; done; fg"
    );
    let mut terminal = Terminal::start(&folder.command("bash", &["-c", &script]), 80);
    terminal.press("\r");
    terminal.wait_line("the first key", |line| line == "typed 1");
    terminal.press("\x1a");
    terminal.wait_line("the shell", |line| line.ends_with("back"));
    terminal.wait("the second key", || {
        terminal.press("\r");
        if terminal.lines().iter().any(|line| line == "typed 2") { Ok(()) } else { Err(()) }
    });
    assert_eq!(terminal.expect_end(), 0);
}

/// Killed at the end of the test.
struct Background(Child);

impl Drop for Background {
    fn drop(&mut self) {
        // Errors mean that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn ctrl_z_stops_a_run_that_waits_for_its_lease() {
    let folder = Folder::new(CONFIG);
    let start = |args: &[&str]| {
        let mut command = folder.posse(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Background(command.spawn().unwrap())
    };
    let run = ["run", "--kubeconfig", "kubeconfig", "--exclusive"];
    let posse = [&[env!("CARGO_BIN_EXE_posse")], &run[..]].concat().join(" ");
    let script = format!(
        "wait_for() {{ until [ -e $1 ]; do sleep 0.02; done; }}; wait_for kubeconfig; echo served; \
         wait_for held; set -m; {posse}; echo back; read go; fg"
    );
    let mut shell = folder.command("sh", &["-c", &script]);
    let mut terminal = Terminal::start(shell.env("POSSE_LOG", "info"), 300);
    let _cluster = start(&["dev", "--simulate", "--kubeconfig", "kubeconfig"]);
    terminal.wait_line("the cluster", |line| line == "served");
    let _holder = start(&[&run[..], &["--", "sh", "-c", ": >held; sleep 1000"]].concat());
    terminal.wait_line("the wait", |line| line.contains("waiting until the holder"));
    let (_, job) = terminal.state();
    terminal.press("\x1a");
    terminal.wait_line("the shell", |line| line.ends_with("back"));
    terminal.press("\r");
    terminal.wait("the job", || if terminal.state().1 == job { Ok(()) } else { Err(()) });
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 130);
    terminal.wait_line("the holder", |line| line.contains(" of this host held the lease"));
}

/// Without a terminal.
fn output(folder: &Folder, flags: &[&str], script: &str, log: &str) -> Output {
    let mut run = folder.run(flags, script);
    run.env("POSSE_LOG", log).env_remove("NO_COLOR").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn quiet_says_only_errors() {
    let folder = Folder::new(CONFIG);
    let quiet = output(&folder, &["-q"], "echo out", "debug");
    assert_eq!((text(&quiet.stdout).as_str(), text(&quiet.stderr).as_str()), ("out\n", ""));
    let mut terminal = Terminal::start(&folder.run(&["-q"], "sleep 2; echo out"), 80);
    assert_eq!(terminal.expect_end(), 0);
    assert_eq!(terminal.lines(), ["out"]);
}

#[test]
fn verbose_logs_what_posse_does() {
    let folder = Folder::new(CONFIG);
    for (flag, ours, library) in [("-v", true, false), ("-vv", true, true)] {
        let output = output(&folder, &[flag], "true", "off");
        let log = text(&output.stderr);
        assert_eq!(log.contains("DEBUG posse::"), ours, "{flag}: {log}");
        assert_eq!(log.contains("DEBUG ureq::"), library, "{flag}: {log}");
    }
}

#[test]
fn everything_on_stderr_can_be_json() {
    let folder = Folder::new(CONFIG);
    let flags = ["--log-format", "json"];
    for (args, code) in [
        (&[&["run", "--dev"], &flags[..], &["--", "sh", "-c", "sleep 1; exit 3"]].concat()[..], 3),
        (&["--log-format=json", "run", "--dev", "--", "/no/such/file"], 2),
        (&["status", "--app", "nobody", "--log-format", "json"], 1),
        (&["status", "--log-format=json", "--nothing"], 2),
    ] {
        let output = folder.posse(args).env("POSSE_LOG", "info").output().unwrap();
        let log = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{log}");
        assert!(!log.is_empty());
        for line in log.lines() {
            let line: Value = serde_json::from_str(line).expect(line);
            let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["level", "message", "target", "time"], "{line}");
        }
    }
}

#[test]
fn colours_are_used_on_a_terminal_or_on_request() {
    let folder = Folder::new(CONFIG);
    let red = "\x1b[31m";
    for (flag, want) in
        [("--color=auto", false), ("--color=always", true), ("--color=never", false)]
    {
        let output = folder.posse(&["status", "--app", "nobody", flag]).output().unwrap();
        assert_eq!(text(&output.stderr).contains(red), want, "{flag}");
    }
}

/// A credential plugin tells a person where to log in. Nothing of it is a command to the terminal, and its output is
/// never shown.
#[test]
fn a_plugin_that_asks_for_a_log_in_is_seen_on_a_terminal() {
    let folder = Folder::new(CONFIG);
    let plugin = "echo s3cr3t\nprintf 'To sign in, open https://login.example.com/device\\n' >&2\n\
                  printf 'and enter \\033[8mABCD-1234\\n' >&2\nwhile ! test -e done; do sleep 0.05; done\nexit 3\n";
    folder.0.write("dev.sh", plugin);
    let kubeconfig = "{current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}], \
        clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', insecure-skip-tls-verify: true}}], \
        users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1beta1, \
        command: sh, args: [dev.sh], interactiveMode: IfAvailable}}}]}";
    folder.0.write("kc", kubeconfig);
    // In a namespace that no run of this machine has.
    let apps = ["apps", "-n", "nowhere", "--kubeconfig", "kc"];
    let mut terminal = Terminal::start(&folder.posse(&apps), 200);
    terminal.wait_line("the page", |line| line.contains("open https://login.example.com/device"));
    terminal.wait_line("the code", |line| line.contains("and enter \\u{1b}[8mABCD-1234"));
    folder.make("done");
    assert_ne!(terminal.expect_end(), 0);
    assert!(!terminal.lines().concat().contains("s3cr3t"), "{:?}", terminal.lines());

    // Without a terminal it is in the error.
    let output = folder.posse(&apps).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("ended with exit code 3: To sign in, open https://login.example.com/device and enter \\u{1b}[8mABCD-1234"), "{said}");
    assert!(!said.contains("s3cr3t"), "{said}");
}
