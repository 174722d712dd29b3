//! `posse map` on the embedded cluster: outputs, exit codes, wrong lines, and going on after a kill -9.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use posse_testing::Wait;
use rustix::process::{Pid, Signal, kill_process_group};

use super::folder::{posse, text};

/// Much longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

struct Folder(posse_testing::Folder);

impl Folder {
    fn new() -> Self {
        Self(posse_testing::Folder::new())
    }

    fn command(&self, args: &[&str], input: &[u8]) -> Command {
        self.posse(&[&["map", "--dev"], args].concat(), input)
    }

    fn posse(&self, args: &[&str], input: &[u8]) -> Command {
        let tasks = self.0.write("tasks", input);
        let mut command = posse(self.0.path(), args);
        command.stdin(File::open(tasks).unwrap());
        command
    }

    fn map(&self, args: &[&str], input: &[u8]) -> Output {
        self.command(args, input).output().unwrap()
    }

    fn config(&self, yaml: &str) {
        self.0.write("posse.yaml", yaml);
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[track_caller]
fn check(output: &Output, code: i32, part: &str) {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(part), "{said}");
}

#[test]
fn each_line_runs_once_and_its_output_has_its_number() {
    let folder = Folder::new();
    let input = b"echo one; echo two >&2\nexit 3\necho $POSSE_KEY '|' 'a  b'";
    let output = folder.map(&["-j", "2", "--resume", "done"], input);
    check(&output, 10, "2 lines succeeded, 1 failed: line 2");
    check(&output, 10, "line 2 failed with exit code 3 (app_error)");
    let printed = text(&output.stdout);
    let lines: BTreeSet<&str> = printed.lines().collect();
    assert_eq!(lines, ["[1] one", "[1] two", "[3] line-3 | a  b"].into());
    let warnings = text(&output.stderr).lines().filter(|line| line.contains(" WARN ")).count();
    assert_eq!(warnings, 1, "{}", text(&output.stderr));
    // The failed line runs again, the others do not.
    let input = b"echo one; echo two >&2\nexit 3\necho $POSSE_KEY '|' 'a  b'\necho new";
    let output = folder.map(&["--resume", "done"], input);
    check(&output, 10, "1 lines succeeded, 2 were done before, 1 failed: line 2");
    assert_eq!(text(&output.stdout), "[4] new\n");
    let output = folder.map(&["--resume", "done"], b"echo another");
    check(&output, 2, "line 1 is another one than in the run that wrote");
}

/// Kubernetes expands `$(X)` and `$$` in a container's arguments.
#[test]
fn a_line_runs_as_it_is_written() {
    let folder = Folder::new();
    let line = "echo '$(POSSE_KEY) $$ $$(POSSE_KEY) $ $(NONE) $'\"$(echo $POSSE_KEY)\"";
    let output = folder.map(&["--resume", "done"], line.as_bytes());
    check(&output, 0, "1 lines succeeded, 0 failed");
    assert_eq!(text(&output.stdout), "[1] $(POSSE_KEY) $$ $$(POSSE_KEY) $ $(NONE) $line-1\n");
    // The file has the line as it is written, so that one of an earlier posse goes on.
    let output = folder.map(&["--resume", "done"], line.as_bytes());
    check(&output, 0, "1 were done before");
}

/// A blank line is none, and keeps its number.
#[test]
fn the_progress_is_that_of_the_lines() {
    let folder = Folder::new();
    let input = b"sleep 3\n\n  \nexit 1\nsleep 3\n";
    let output = folder.map(&["-j", "2", "--progress", "plain"], input);
    check(&output, 10, "2 lines succeeded, 1 failed: line 4");
    let said = text(&output.stderr);
    assert!(said.contains(" of 3 lines done, 1 failed, 2 running"), "{said}");
    assert!(!said.contains("target"), "{said}");
}

#[test]
fn a_line_that_fails_is_tried_again() {
    let folder = Folder::new();
    let line =
        format!("mkdir {}/once 2> /dev/null && exit 1; echo again", folder.0.path().display());
    let output = folder.map(&["--retries", "1"], line.as_bytes());
    check(&output, 0, "1 lines succeeded, 0 failed");
    assert_eq!(text(&output.stdout), "[1] again\n");
}

#[test]
fn a_wrong_line_is_named_after_the_lines_before_it_have_run() {
    for (wrong, part) in [(&b"\xff"[..], "line 2 is not UTF-8"), (b"a\0", "line 2 has a NUL")] {
        let folder = Folder::new();
        let output = folder.map(&[], &[b"echo ok\n", wrong, b"\necho no\n"].concat());
        check(&output, 2, part);
        assert_eq!(text(&output.stdout), "[1] ok\n");
    }
    let folder = Folder::new();
    check(&folder.map(&["--executors", "2"], b"true"), 2, "use -j instead of --executors");
    check(&folder.map(&["-f", "-"], b"true"), 2, "stdin has the tasks");
    folder.config("control: off\n");
    check(&folder.map(&[], b"true"), 2, "posse.yaml: `posse map` needs the control API");
    folder.config("");
    check(&folder.map(&[], b""), 0, "0 lines succeeded, 0 failed");
}

/// Another user may have put a posse.yaml into the folder, such as /tmp.
#[test]
fn a_file_that_nobody_named_is_told_and_runs_no_command_of_credentials() {
    let folder = Folder::new();
    let mark = folder.0.path().join("was-run");
    folder.config(&format!(
        "app: found\ncredentials:\n- {{name: a, every: 1h, mount: /a, secret: found-a, command: \
         [sh, -c, 'touch {}; echo x >{{{{DIR}}}}/x']}}\nexecutors: [{{count: 1, image: i}}]\n",
        mark.display()
    ));
    let told = "posse.yaml, found in this folder; -f names another one";
    let left_out = "the `credentials` of posse.yaml are left out";
    let run = ["run", "--dev", "--command", "sleep 1000"];
    let driver = ["--", "true"];
    let outputs = [
        folder.map(&[], b"echo ran"),
        folder.posse(&[&run[..], &driver].concat(), b"").output().unwrap(),
    ];
    for output in outputs {
        let said = text(&output.stderr);
        check(&output, 0, left_out);
        let (Some(told), Some(started)) = (said.find(told), said.find("driver started")) else {
            panic!("not told: {said}")
        };
        assert!(told < started, "{said}");
        assert!(!mark.exists(), "a command of the file ran: {said}");
    }
    let named = [&run[..], &["-f", "posse.yaml"], &driver].concat();
    let output = folder.posse(&named, b"").output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && mark.exists(), "{said}");
    assert!(!said.contains(told) && !said.contains(left_out), "{said}");
}

#[test]
fn output_goes_to_a_pipe_as_it_is() {
    let folder = Folder::new();
    let output = folder.map(&[], br"printf 'a\033[1mb\ra\377\n\nend'");
    check(&output, 0, "1 lines succeeded, 0 failed");
    assert_eq!(output.stdout, b"[1] a\x1b[1mb\ra\xff\n[1] \n[1] end\n");
}

/// The log of a long line comes in pieces, and several outputs are read side by side.
#[test]
fn a_long_line_has_one_number() {
    const N: usize = 1_500_000;
    let folder = Folder::new();
    let line = format!("head -c {N} /dev/zero | tr '\\0' x\n");
    let output = folder.map(&["-j", "3"], line.repeat(3).as_bytes());
    check(&output, 0, "3 lines succeeded, 0 failed");
    let printed = text(&output.stdout);
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    let wanted = (1..=3).map(|n| format!("[{n}] {}", "x".repeat(N))).collect::<Vec<_>>();
    assert!(lines == wanted, "{:?}", lines.iter().map(|line| line.len()).collect::<Vec<_>>());
}

/// Output that nobody gets is an error, unless the reader has read enough.
#[test]
fn no_line_runs_when_its_output_cannot_be_written() {
    let folder = Folder::new();
    let input = format!("echo ran >> {}/ran; echo out\n", folder.0.path().display()).repeat(400);
    let mut command = folder.command(&[], input.as_bytes());
    let full = command.stdout(File::options().write(true).open("/dev/full").unwrap());
    check(&full.output().unwrap(), 1, "cannot write the output");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = folder.command(&[], input.as_bytes());
    let closed = command.stdout(writer).output().unwrap();
    assert_eq!(closed.status.code(), Some(0), "{}", text(&closed.stderr));
    assert!(folder.lines("ran").len() < 400, "all lines have run");
}

/// The feed finds the cluster by what the run says about itself.
#[test]
fn outputs_are_read_from_the_cluster_of_the_run() {
    let folder = Folder::new();
    let feed = "unset KUBECONFIG; exec \"$POSSE_EXE\" map-feed";
    let words = ["run", "--dev", "--command", "sh -c", "--executors", "0", "--", "sh", "-c", feed];
    let output = folder.posse(&words, b"echo one").output().unwrap();
    check(&output, 0, "1 lines succeeded, 0 failed");
    assert_eq!(text(&output.stdout), "[1] one\n");
}

#[test]
fn the_feed_logs_as_it_is_told() {
    let folder = Folder::new();
    let output = folder.map(&["--log-format", "json"], b"exit 3");
    check(&output, 10, "0 lines succeeded, 1 failed: line 1");
    for line in text(&output.stderr).lines() {
        assert!(line.starts_with('{'), "{line}");
    }
    let output = folder.map(&["-q"], b"exit 3");
    assert_eq!((output.status.code(), text(&output.stderr).as_str()), (Some(10), ""));
}

/// As `posse run` does, before its first executor.
#[test]
fn a_refused_template_ends_the_run() {
    let folder = Folder::new();
    folder.config(
        "executors: [{pod: {spec: {containers: [{name: c, image: i, imagePullPolicy: Sometimes}]}}}]",
    );
    check(&folder.map(&[], b"true"), 4, "refuses the template of group default: ");
}

/// What a person sees after Ctrl-C, which the whole process group gets.
#[test]
fn an_interrupted_map_says_what_is_left() {
    let folder = Folder::new();
    let input = "true\nexit 3\necho >> here; sleep 1000\ntrue\ntrue";
    for (args, how) in
        [(&["--resume", "done"][..], "done goes on from here"), (&[], "--resume FILE notes")]
    {
        let input = input.replace("here", &folder.0.path().join("here").display().to_string());
        let mut command = folder.command(&[&["-j", "1"], args].concat(), input.as_bytes());
        command.process_group(0).stdout(Stdio::null()).stderr(Stdio::piped());
        let posse = command.spawn().unwrap();
        let mut wait = Wait::new("the third line to run", PATIENCE);
        while folder.lines("here").is_empty() {
            assert!(wait.goes_on(), "the third line does not run");
            thread::sleep(POLL);
        }
        let group = Pid::from_raw(posse.id().try_into().unwrap()).unwrap();
        kill_process_group(group, Signal::INT).unwrap();
        let output = posse.wait_with_output().unwrap();
        check(&output, 130, "1 lines succeeded, 1 failed: line 2");
        check(&output, 130, "SIGINT: 1 line had begun, and 2 lines that were read had not begun; ");
        check(&output, 130, how);
        let said = text(&output.stderr);
        assert!(!said.contains("config_error") && !said.contains("executor 3 lost"), "{said}");
        fs::remove_file(folder.0.path().join("here")).unwrap();
        let _ = fs::remove_file(folder.0.path().join("done"));
    }
}

/// Lines that ran when posse was killed run again, and no line that was written down does.
#[test]
fn an_interrupted_map_goes_on_where_it_was() {
    const N: usize = 60;
    let folder = Folder::new();
    let line = |n| format!("echo {n} >> {}/ran; sleep 0.05\n", folder.0.path().display());
    let input: String = (1..=N).map(line).collect();
    let mut command = folder.command(&["-j", "3", "--resume", "done"], input.as_bytes());
    let mut posse = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut wait = Wait::new("ten lines to be done", PATIENCE);
    while folder.lines("done").len() < 10 {
        assert!(wait.goes_on(), "ten lines take too long");
        thread::sleep(POLL);
    }
    posse.kill().unwrap();
    posse.wait().unwrap();
    // What still runs ends with posse.
    let number = |line: &String| line.split(' ').next().unwrap().to_owned();
    let done: BTreeSet<String> = folder.lines("done").iter().map(number).collect();
    assert!(done.len() < N, "it was killed too late to show anything");
    let ran = |folder: &Folder| folder.lines("ran");
    let before = ran(&folder).len();
    let output = folder.map(&["-j", "3", "--resume", "done"], input.as_bytes());
    check(&output, 0, "were done before, 0 failed");
    let after = ran(&folder);
    assert!(
        after[before.min(after.len())..].iter().all(|n| !done.contains(n)),
        "{after:?} {done:?}"
    );
    assert_eq!(after.iter().collect::<BTreeSet<_>>().len(), N);
    assert_eq!(folder.lines("done").iter().map(number).collect::<BTreeSet<_>>().len(), N);
}
