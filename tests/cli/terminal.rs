//! `posse run` on a terminal: the progress line at several widths, drivers that read the terminal, and
//! job control. Each test looks at the screen that a person would see.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use posse_testing::program;
use rustix::process::Signal;
use serde_json::Value;

use super::conventions::wait_for;
use super::pty::Terminal;

const WIDTHS: [u16; 5] = [40, 60, 80, 120, 300];

const TEMPLATE: &str = r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [
    {"name": "w", "image": "i", "command": ["sleep", "100000"]}]}}"#;
const GATED: &str = r#"{"apiVersion": "v1", "kind": "Pod", "spec": {
    "schedulingGates": [{"name": "example.com/gate"}],
    "containers": [{"name": "w", "image": "i", "command": ["sleep", "100000"]}]}}"#;
const CONFIG: &str = "{app: words, executors: [{group: g, count: 2, template: pod.yaml}], \
                      shutdown: {grace: 60s}}";

/// A new folder with a configuration; removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(config: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posse-pty-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        for (name, text) in [("posse.yaml", config), ("pod.yaml", TEMPLATE), ("gated.yaml", GATED)]
        {
            fs::write(path.join(name), text).unwrap();
        }
        Self(path)
    }

    /// A program in this folder with an environment that does not depend on this machine.
    fn command(&self, name: &str, args: &[&str]) -> Command {
        let mut command = program(name);
        command.args(args).current_dir(&self.0).env_clear();
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for name in ["HOME", "XDG_RUNTIME_DIR", "TMPDIR"] {
            command.env(name, &self.0);
        }
        command.env("TERM", "xterm").env("NO_COLOR", "1").env("POSSE_LOG", "error");
        command
    }

    fn posse(&self, args: &[&str]) -> Command {
        self.command(env!("CARGO_BIN_EXE_posse"), args)
    }

    /// `posse run --dev` with a driver in `sh`, which waits for files by `wait_for NAME`.
    fn run(&self, flags: &[&str], script: &str) -> Command {
        let script = format!("wait_for() {{ until [ -e $1 ]; do sleep 0.02; done; }}\n{script}");
        self.posse(&[&["run", "--dev"], flags, &["--", "sh", "-c", &script]].concat())
    }

    fn make(&self, name: &str) {
        fs::write(self.0.join(name), "").unwrap();
    }

    /// Waits until a program in the terminal has made this file.
    #[track_caller]
    fn wait_made(&self, terminal: &Terminal, name: &str) {
        let is_there = || if self.0.join(name).exists() { Ok(()) } else { Err(()) };
        terminal.wait(&format!("the file {name}"), is_there);
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // An error leaves a folder in the system's temporary folder, which does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Words of the progress line, and words of the drivers in these tests.
const OURS: [&str; 4] = ["running", "stopping", "words", "unreachable"];
const THEIRS: [&str; 5] = ["half", "rest", "%", "tail", "typed"];

/// No line has words of both.
fn nothing_is_mixed(lines: &[String]) -> Result<(), String> {
    let has = |line: &str, words: &[&str]| words.iter().any(|word| line.contains(word));
    match lines.iter().find(|line| has(line, &OURS) && has(line, &THEIRS)) {
        Some(line) => Err(format!("mixed: {line}")),
        None => Ok(()),
    }
}

fn anything(_: &[String]) -> Result<(), String> {
    Ok(())
}

/// True for a whole progress line: none of its fields is cut.
fn is_progress_line(line: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
    let is_field = |field: &str| match field.split_once(' ') {
        None => {
            field == "words"
                || field.split_once(':').is_some_and(|(m, s)| is_number(m) && is_number(s))
        }
        Some(("running", counts)) => {
            counts.split_once('/').is_some_and(|(n, of)| is_number(n) && is_number(of))
        }
        Some(("pending" | "lost", n)) => is_number(n),
        Some(("server", rest)) => rest
            .strip_prefix("unreachable ")
            .and_then(|rest| rest.strip_suffix('s'))
            .is_some_and(is_number),
        Some(("stopping:", what)) => {
            let what = what.strip_prefix("waits for ").unwrap_or(what);
            let words = ["executor", "executors", "left"];
            ["driver", "the driver"].contains(&what)
                || what
                    .split_once(' ')
                    .is_some_and(|(n, word)| is_number(n) && words.contains(&word))
        }
        Some(("waiting:", reasons)) => reasons.split(", ").all(|reason| {
            let (what, rest) = reason.split_once(" (").unwrap_or((reason, "g)"));
            !what.is_empty() && rest.ends_with(')')
        }),
        Some(_) if ["again to force", "Ctrl-C again to force"].contains(&field) => true,
        Some((n, "groups waiting")) => is_number(n),
        Some(_) => false,
    };
    line.split("  ").all(is_field)
}

/// Waits for a progress line with these words.
#[track_caller]
fn wait_progress(terminal: &Terminal, words: &[&str]) -> String {
    let is_it = |line: &str| words.iter().all(|word| line.contains(word)) && is_progress_line(line);
    terminal.wait_line(&format!("a progress line with {words:?}"), is_it)
}

#[test]
fn the_line_and_the_drivers_output_never_mix() {
    for width in WIDTHS {
        let folder = Folder::new(CONFIG);
        let run = folder.run(
            &[],
            r#"printf half; wait_for 1; printf ' rest\n'; wait_for 2
               for i in 1 2 3; do printf '\r%s0%%' $i; printf '' >&2; sleep 0.3; done
               wait_for 3; printf '\r100%%\n' >&2; wait_for 4; printf tail; exit 3"#,
        );
        let mut terminal = Terminal::start(&run, width, nothing_is_mixed);
        terminal.wait_line("the half line", |line| line == "half");
        folder.make("1");
        terminal.wait_line("the whole line", |line| line == "half rest");
        wait_progress(&terminal, &["running 2/2"]);
        folder.make("2");
        terminal.wait_line("the bar", |line| line == "30%");
        let lines = terminal.lines();
        assert!(lines.iter().all(|line| !line.contains("running")), "{width}: {lines:?}");
        folder.make("3");
        terminal.wait_line("the end of the bar", |line| line == "100%");
        wait_progress(&terminal, &["running 2/2"]);
        folder.make("4");
        assert_eq!(terminal.expect_end(), 3, "{width}");
        let lines = terminal.lines();
        let shown: Vec<&str> =
            lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        assert_eq!(shown, ["half rest", "100%", "tail"], "{width}");
    }
}

#[test]
fn a_stop_says_what_it_waits_for_and_how_to_force_it() {
    for width in WIDTHS {
        let folder = Folder::new(CONFIG);
        let run = folder.run(&[], "trap '' INT TERM; : >deaf; while :; do sleep 1; done");
        let mut terminal = Terminal::start(&run, width, anything);
        wait_progress(&terminal, &["running 2/2"]);
        folder.wait_made(&terminal, "deaf");
        terminal.press("\x03");
        wait_progress(&terminal, &["stopping: ", "driver", "again to force"]);
        // What the terminal has printed for the key is gone.
        terminal.wait("no ^C", || match terminal.lines().iter().any(|line| line.contains("^C")) {
            true => Err(()),
            false => Ok(()),
        });
        // A signal within 200 ms of the first one counts as the same.
        while !terminal.is_over() {
            terminal.press("\x03");
        }
        assert_eq!(terminal.expect_end(), 12, "{width}");
    }
}

#[test]
fn groups_that_wait_are_counted_on_a_narrow_terminal() {
    let config = "{app: words, executors: [{group: a, count: 1, template: gated.yaml}, \
                  {group: b, count: 1, template: gated.yaml}, \
                  {group: c, count: 1, template: gated.yaml}, \
                  {group: d, count: 1, template: pod.yaml}]}";
    let folder = Folder::new(config);
    for width in WIDTHS {
        let instance = format!("--instance=w{width}");
        let run = folder.run(&[&instance], "while :; do sleep 1; done");
        let mut terminal = Terminal::start(&run, width, anything);
        let want = if width < 80 {
            "3 groups waiting"
        } else {
            "waiting: scheduling gates to be removed (3 groups)"
        };
        wait_progress(&terminal, &["running 1/4", want]);
        terminal.press("\x03");
        terminal.expect_end();
    }
}

#[test]
fn an_outage_is_shown() {
    let folder = Folder::new(CONFIG);
    let kubeconfig = folder.path().join("kubeconfig");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let mut cluster = folder.posse(&["dev", "--simulate", "--kubeconfig", kubeconfig]);
    let mut cluster = cluster.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = |width: u16| {
        let instance = format!("w{width}");
        let args = ["run", "--kubeconfig", kubeconfig, "--instance", &instance];
        Terminal::start(&folder.posse(&args), width, anything)
    };
    wait_for("the cluster", || {
        assert!(cluster.try_wait().unwrap().is_none(), "the cluster runs");
        Path::new(kubeconfig).exists()
    });
    let terminals = WIDTHS.map(start);
    for terminal in &terminals {
        wait_progress(terminal, &["running 2/2"]);
    }
    cluster.kill().unwrap();
    cluster.wait().unwrap();
    for terminal in &terminals {
        wait_progress(terminal, &["running 2/2", "server unreachable"]);
    }
}

/// Events on the same terminal are lines of their own.
#[test]
fn events_are_printed_above_the_line() {
    let folder = Folder::new(CONFIG);
    let run = folder.posse(&["run", "--dev", "--events", "-"]);
    let mut terminal = Terminal::start(&run, 300, |lines| {
        match lines.iter().find(|line| line.contains('{') && line.contains("words  running")) {
            Some(line) => Err(format!("mixed: {line}")),
            None => Ok(()),
        }
    });
    terminal
        .wait_line("an event", |line| line.starts_with('{') && line.contains("executor_running"));
    wait_progress(&terminal, &["running 2/2"]);
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 0);
}

#[test]
fn the_driver_finds_a_terminal_of_the_right_size() {
    let folder = Folder::new(CONFIG);
    let script = "[ -t 1 ] && [ -t 2 ] && stty size <&1; [ -t 0 ] && echo keys";
    let mut terminal = Terminal::start(&folder.run(&[], script), 93, anything);
    assert_eq!(terminal.expect_end(), 0);
    let lines = terminal.lines();
    assert!(lines.contains(&"24 93".to_owned()) && lines.contains(&"keys".to_owned()), "{lines:?}");
    // Output to a file goes there directly.
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!("{posse} run --dev -- sh -c '[ -t 1 ] || echo file; echo typed >&2' >out");
    let shell = folder.command("sh", &["-c", &script]);
    let mut terminal = Terminal::start(&shell, 80, nothing_is_mixed);
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
    let mut terminal = Terminal::start(&shell, 120, anything);
    let driver = driver_pid(&terminal);
    let shows = |text: &'static str| {
        terminal.wait_line(text, |line| line == text);
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
    assert!(!terminal.lines().iter().any(|line| line.contains("running 2/2")), "out of its way");
    terminal.press("exit()\r");
    assert_eq!(terminal.expect_end(), 0);
}

/// As `ssh -t` and `kubectl exec -it` start it: the system would let nobody continue it.
#[test]
fn ctrl_z_without_a_shell_stops_nothing() {
    let folder = Folder::new(CONFIG);
    let script = "trap ': >continued' CONT; : >trapped; while :; do sleep 0.1; done";
    let mut terminal = Terminal::start(&folder.run(&[], script), 80, anything);
    wait_progress(&terminal, &["running 2/2"]);
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
    let terminal = Terminal::start(shell.env("POSSE_LOG", "info"), 80, anything);
    terminal.wait_line("the shell", |line| line == "ready");
    let before = terminal.state();
    terminal.press("\r");
    let driver = driver_pid(&terminal);
    terminal.wait("other modes", || if terminal.state() == before { Err(()) } else { Ok(()) });
    let driver = rustix::process::Pid::from_raw(driver.cast_signed()).unwrap();
    rustix::process::kill_process(driver, Signal::KILL).unwrap();
    terminal.wait_line("the exit code", |line| line == "code 137");
    assert_eq!(terminal.state(), before);
}

#[test]
fn ctrl_c_ends_a_driver_that_reads_the_terminal() {
    let folder = Folder::new(CONFIG);
    let mut run = folder.posse(&["run", "--dev", "--", "cat"]);
    let mut terminal = Terminal::start(run.env("POSSE_LOG", "info"), 80, anything);
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
    let mut terminal = Terminal::start(&folder.run(&[], script), 80, anything);
    wait_progress(&terminal, &["running 2/2"]);
    folder.wait_made(&terminal, "trapped");
    terminal.press("\x03");
    assert_eq!(terminal.expect_end(), 5);
    terminal.wait_line("the driver's word", |line| line.ends_with("got it"));
}

/// A background process does not draw; in the foreground it does.
#[test]
fn a_shell_can_move_the_run_between_background_and_foreground() {
    let folder = Folder::new(CONFIG);
    let shell = folder.command("sh", &["-i"]);
    let terminal = Terminal::start(&shell, 120, |lines| {
        let is_ours = |line: &String| line.contains("prompt>") && line.contains("running");
        match lines.iter().find(|line| is_ours(line)) {
            Some(line) => Err(format!("drawn behind the prompt: {line}")),
            None => Ok(()),
        }
    });
    let posse = env!("CARGO_BIN_EXE_posse");
    terminal.press("PS1='prompt> '\r");
    terminal.wait_line("the prompt", |line| line.ends_with("prompt>"));
    // Not a shell: while it waits for its vfork(2), it is stopped only after its child is.
    let driver = "import os, time\nopen('new', 'w').write(str(os.getpid()))\nos.rename('new', 'pid')\n\
        while not os.path.exists('over'): time.sleep(0.05)\nprint('tail')\n";
    fs::write(folder.path().join("driver.py"), driver).unwrap();
    terminal.press(&format!("{posse} run --dev -- python3 driver.py &\r"));
    let pid = || fs::read_to_string(folder.path().join("pid")).map_err(drop);
    let pid = terminal.wait("the driver", || pid()?.trim().parse::<u32>().map_err(drop));
    terminal.press("fg\r");
    wait_progress(&terminal, &["running 2/2"]);
    terminal.press("\x1a");
    terminal.wait("the driver to stop", || if is_stopped(pid) { Ok(()) } else { Err(()) });
    terminal.press("echo is''typed\r");
    terminal.wait_line("the shell's answer", |line| line.ends_with("istyped"));
    terminal.press("bg\r");
    terminal.wait("the driver to go on", || if is_stopped(pid) { Err(()) } else { Ok(()) });
    folder.make("over");
    terminal.wait_line("the driver's word", |line| line.ends_with("tail"));
    terminal.press("exit\r");
    terminal.expect_rule();
}

/// bash's `fg` sends nothing to a job that runs. The driver waits for keys without reading, so the system
/// does not stop it in the background.
#[test]
fn a_driver_has_its_keys_again_after_bg_and_fg() {
    let folder = Folder::new(CONFIG);
    let driver = "import os, select, signal\nos.read(0, 99)\n\
        signal.signal(signal.SIGCONT, lambda *_: open('continued', 'w'))\n\
        print('typed', 1, flush=True)\nselect.select([0], [], [])\nprint('typed', 2)\n";
    fs::write(folder.path().join("driver.py"), driver).unwrap();
    let posse = env!("CARGO_BIN_EXE_posse");
    let script = format!(
        "set -m; {posse} run --dev -- python3 driver.py; echo back; bg; \
         until [ -e continued ]; do sleep 0.02; done; fg"
    );
    let mut terminal = Terminal::start(&folder.command("bash", &["-c", &script]), 80, anything);
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
    let mut terminal = Terminal::start(shell.env("POSSE_LOG", "info"), 300, anything);
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

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Without a terminal.
fn output(folder: &Folder, flags: &[&str], script: &str, log: &str) -> Output {
    let mut run = folder.run(flags, script);
    run.env("POSSE_LOG", log).env_remove("NO_COLOR").stdin(Stdio::null()).output().unwrap()
}

#[test]
fn plain_progress_is_log_lines() {
    let folder = Folder::new(CONFIG);
    // The driver ends when it has seen the line.
    let log = folder.path().join("log");
    let script = r#"n=0; until grep -q "running 2/2" log || [ $n -gt 6000 ]; do
        n=$((n + 1)); sleep 0.02; done"#;
    let mut run = folder.run(&["--progress", "plain"], script);
    run.stderr(fs::File::create(&log).unwrap()).stdin(Stdio::null()).status().unwrap();
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.lines().any(|line| line.ends_with("INFO words  running 2/2")), "{log}");
    assert!(!log.contains(|c: char| c.is_control() && c != '\n'), "{log:?}");
    let lines: Vec<&str> = log.lines().map(|line| line.split_once("INFO").unwrap().1).collect();
    let is_repeated = lines.windows(2).any(|pair| pair[0] == pair[1]);
    assert!(!is_repeated, "only changes: {log}");
}

#[test]
fn quiet_says_only_errors() {
    let folder = Folder::new(CONFIG);
    let quiet = output(&folder, &["-q", "--progress", "plain"], "echo out", "debug");
    assert_eq!((text(&quiet.stdout).as_str(), text(&quiet.stderr).as_str()), ("out\n", ""));
    let mut terminal = Terminal::start(&folder.run(&["-q"], "sleep 2; echo out"), 80, |lines| {
        if lines.concat().contains("running") { Err(lines.concat()) } else { Ok(()) }
    });
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
    let flags = ["--log-format", "json", "--progress=plain"];
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
