//! The conventions of the command line, on the binary and on a run on the embedded cluster: output
//! formats, `-n` and `-f`, what `scale` and `kill` say, completion in bash, closed pipes.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use posse_testing::{Wait, program};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::folder::{posse, text};

/// Much longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

const CONFIG: &str = "\
app: hands
executors:
- {group: big, count: 2, image: i, command: [sleep, '1000']}
- {group: steady, count: 1, scale_down: pending, image: i, command: [sleep, '1000']}
shutdown: {grace: 1s}
";

/// A folder with the configuration.
pub(super) struct Folder(posse_testing::Folder);

impl Folder {
    pub(super) fn new() -> Self {
        let folder = posse_testing::Folder::new();
        folder.write("posse.yaml", CONFIG);
        Self(folder)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = posse(self.path(), args);
        command.env("TERM", "xterm");
        // posse looks into the host's folders, too, and there may be runs of others.
        if matches!(args.first(), Some(&("events" | "explain" | "kill" | "scale" | "status"))) {
            command.args(["--app", "hands"]);
        }
        command.stdin(Stdio::null());
        command
    }

    pub(super) fn posse(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// The stdout of a command that must succeed.
    #[track_caller]
    pub(super) fn printed(&self, args: &[&str]) -> String {
        let output = self.posse(args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {said}");
        text(&output.stdout)
    }

    fn posse_with_stdin(&self, args: &[&str], stdin: &str) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }
}

/// A run on the embedded cluster, with three executors that run. Ended when dropped.
pub(super) struct Run {
    child: Child,
    pub(super) folder: Folder,
}

impl Run {
    #[track_caller]
    pub(super) fn start() -> Self {
        Self::start_in(Folder::new(), &["run", "--dev"])
    }

    #[track_caller]
    fn start_in(folder: Folder, args: &[&str]) -> Self {
        let log = File::create(folder.path().join("log")).unwrap();
        let child = folder.command(args).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let run = Self { child, folder };
        wait_for("three running executors", || {
            let status = run.folder.posse(&["status", "-o", "json"]);
            let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
            let groups = status["groups"].as_array().map_or(&[][..], Vec::as_slice);
            groups.iter().filter_map(|group| group["running"].as_u64()).sum::<u64>() == 3
        });
        run
    }

    fn end(&mut self) {
        signal(&self.child, Signal::TERM);
        self.child.wait().unwrap();
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            self.end();
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

#[track_caller]
pub(super) fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let mut wait = Wait::new(what, PATIENCE);
    while !is_there() {
        assert!(wait.goes_on(), "{what} did not come");
        thread::sleep(POLL);
    }
}

#[test]
fn every_listing_has_the_formats_of_kubectl() {
    let run = Run::start();
    let of = |args: &[&str]| run.folder.printed(args);
    for command in [&["status"][..], &["apps"], &["events"], &["explain"], &["explain", "1"]] {
        let with = |format: &str| of(&[command, &["-o", format]].concat());
        assert!(!of(command).starts_with('{'), "{command:?} prints a table");
        assert!(!with("wide").is_empty(), "{command:?}");
        let json = with("json");
        let lines = if command == ["events"] { json.lines().collect() } else { vec![&*json] };
        for line in lines {
            serde_json::from_str::<Value>(line).unwrap();
        }
        let alias = of(&[command, &["--json"]].concat());
        assert!(alias.starts_with(['{', '[']), "{command:?} --json: {alias}");
        assert!(with("yaml").starts_with("---\n"), "{command:?}");
        assert!(!with("name").contains(' '), "{command:?}");
    }
    assert_eq!(of(&["apps", "hands", "-o", "name"]), "hands\n");
    assert_eq!(of(&["explain", "-o", "name"]), "big\nsteady\n");
    assert_eq!(of(&["status", "-o", "name"]).lines().count(), 3);
    let events = of(&["events", "-o", "name"]);
    assert_eq!(events.lines().filter(|name| *name == "executor_running").count(), 3, "{events}");
    let table = of(&["events"]);
    assert!(table.starts_with("TIME UTC  EVENT  "), "{table}");
    let status = of(&["status"]);
    assert!(status.contains("\nno driver process\n") && status.contains("  LOST  "), "{status}");
    let refused = run.folder.posse(&["status", "-o", "json", "--json"]);
    assert_eq!(refused.status.code(), Some(2), "one format only");
}

/// A run on this host needs no cluster. That a kubeconfig is named and missing is told, where it would be read.
#[test]
fn a_local_run_is_listed_and_stopped_without_a_kubeconfig() {
    let mut run = Run::start();
    let said = |run: &Run, args: &[&str]| {
        let output = run.folder.command(args).env("KUBECONFIG", "missing").output().unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, listed, told) = said(&run, &["apps", "hands"]);
    assert!(listed.contains("\nhands  Local"), "{listed}");
    assert!(told.contains("kubeconfig missing: $KUBECONFIG names this file"), "{told}");
    assert_eq!(code, Some(1));
    let (code, stopped, told) = said(&run, &["stop", "hands"]);
    assert_eq!(
        (code, stopped.as_str(), told.as_str()),
        (Some(0), "application hands stopped\n", "")
    );
    assert!(run.child.try_wait().unwrap().is_some(), "it has ended when the command ends");
    assert_eq!(said(&run, &["stop", "hands"]).0, Some(2), "nothing is left on this host");
}

/// The stop of a run that is killed meanwhile, or that has to leave its pods, is not called one.
#[test]
fn a_local_stop_tells_what_may_be_left() {
    let folder = Folder::new();
    let mut dev = folder.command(&["dev", "--simulate", "--fault", "write-500=100"]);
    dev.args(["--kubeconfig", "kubeconfig"]).stdout(Stdio::null()).stderr(Stdio::null());
    let cluster = Run { child: dev.spawn().unwrap(), folder };
    let kubeconfig = cluster.folder.path().join("kubeconfig");
    wait_for("the cluster", || kubeconfig.exists());
    for (timeout, is_killed, want) in [
        ("600s", true, "its run ended without a word"),
        ("1s", false, "pods not confirmed deleted: 3;"),
    ] {
        let folder = Folder::new();
        let config = CONFIG.replace("grace: 1s", &format!("timeout: {timeout}"));
        folder.0.write("posse.yaml", config);
        let args = ["run", "--kubeconfig", kubeconfig.to_str().unwrap()];
        let mut run = Run::start_in(folder, &args);
        let mut stop = run.folder.command(&["stop", "hands"]);
        let stop = stop.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        if is_killed {
            wait_for("the stop", || run.folder.printed(&["events"]).contains("stopping"));
            signal(&run.child, Signal::KILL);
        }
        let output = stop.wait_with_output().unwrap();
        assert_eq!(run.child.wait().unwrap().code(), (!is_killed).then_some(12));
        let told = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout)), (Some(12), String::new()));
        assert!(told.contains(want) && told.contains("`posse cleanup --app hands`"), "{told}");
    }
}

#[test]
fn scale_and_kill_say_what_they_did() {
    let run = Run::start();
    let said = |args: &[&str]| {
        let output = run.folder.posse(args);
        (output.status.code(), text(&output.stdout) + &text(&output.stderr))
    };
    let (code, words) = said(&["scale", "--group", "steady", "0"]);
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains("posse ends none of them: with scale_down: pending"), "{words}");
    let (code, words) = said(&["scale", "--group", "nope", "3"]);
    let want = "posse: there is no such group: nope; the groups are: big, steady\n";
    assert_eq!((code, words.as_str()), (Some(1), want));
    let (code, words) = said(&["kill", "99"]);
    assert_eq!((code, words.as_str()), (Some(1), "no such executor: 99\n"));
    // An executor that nobody named would end.
    let (code, words) = said(&["kill", "--target", "1", "99"]);
    assert!(code == Some(1) && words.contains("the target was not changed"), "{code:?}: {words}");
    let status: Value = serde_json::from_str(&run.folder.printed(&["status", "--json"])).unwrap();
    assert_eq!(status["groups"][0]["target"], 2, "{status}");
    let (code, words) = said(&["kill", "1"]);
    assert_eq!((code, words.as_str()), (Some(0), "killed: 1 (posse replaces them)\n"));
    wait_for("the loss", || run.folder.printed(&["events"]).contains("killed by a call"));
}

#[test]
fn a_reader_that_has_read_enough_is_no_error() {
    let run = Run::start();
    for args in [
        &["--help"][..],
        &["render"],
        &["status"],
        &["status", "-o", "json"],
        &["events"],
        &["events", "-o", "json", "--follow"],
        &["explain", "1"],
        &["apps"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = run.folder.command(args).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn a_dash_is_the_configuration_on_stdin() {
    let folder = Folder::new();
    fs::remove_file(folder.path().join("posse.yaml")).unwrap();
    for flag in ["-f", "--config"] {
        let output = folder.posse_with_stdin(&["render", flag, "-", "-o", "json"], CONFIG);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let pods: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(pods["items"].as_array().unwrap().len(), 2);
    }
    for command in ["render", "check", "run", "submit"] {
        let output = folder.posse_with_stdin(&[command, "-f", "-"], "app: a\nexecutorss: []\n");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("stdin:2:1: executorss: unknown key"), "{said}");
    }
    // The driver of `render --driver` reads the text twice.
    let output = folder.posse_with_stdin(
        &["render", "--driver", "-f", "-"],
        &format!("{CONFIG}driver: {{posse_image: p}}\n"),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("scale_down"), "the Secret or ConfigMap has the text");
}

#[test]
fn the_namespace_may_stand_before_the_command() {
    let folder = Folder::new();
    let namespace = |args: &[&str]| {
        let pods: Value = serde_json::from_str(&folder.printed(args)).unwrap();
        pods["items"][0]["metadata"]["namespace"].clone()
    };
    assert_eq!(namespace(&["-n", "quiet", "render", "-o", "json"]), "quiet");
    assert_eq!(namespace(&["render", "-o", "json", "-n", "quiet"]), "quiet");
    let refused = folder.posse(&["-n", "quiet", "statsu"]);
    let said = text(&refused.stderr);
    assert!(said.contains("did you mean `status`?"), "{said}");
}

#[test]
fn placeholders_and_kinds_are_corrected() {
    let folder = Folder::new();
    let config = "{app: a, executors: [{template: pod.yaml}]}";
    folder.0.write("posse.yaml", config);
    let refused = |template: &str, words: &str| {
        folder.0.write("pod.yaml", template);
        let output = folder.posse(&["render"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(words), "{said}");
    };
    let pod = |arg: &str| {
        format!("{{kind: Pod, spec: {{containers: [{{name: w, image: i, args: ['{arg}']}}]}}}}")
    };
    refused(&pod("{{ EXECUTOR_ID }}"), "write {{EXECUTOR_ID}}, in capitals and without spaces");
    refused(&pod("{{slot}}"), "write {{SLOT}}");
    refused("{apiVersion: apps/v1, kind: Deployment, spec: {}}", "use its spec.template");
}

#[test]
fn bash_completes_commands_flags_and_names() {
    let run = Run::start();
    let script = "posse() { \"$POSSE\" \"$@\"; }\n\
        eval \"$(posse completions bash)\"\n\
        try() { COMP_WORDS=(posse \"$@\"); COMP_CWORD=$#; _clap_complete_posse posse \"${!#}\"; echo \"${COMPREPLY[*]:0:3}\"; }\n\
        try stat; try status --outp; try scale hands --group st; try kill hands ''; try apps h\n";
    let mut bash = program("bash");
    let output = bash
        .args(["-c", script])
        .env("POSSE", env!("CARGO_BIN_EXE_posse"))
        .env("XDG_RUNTIME_DIR", run.folder.path())
        .env("HOME", run.folder.path())
        .env_remove("KUBECONFIG")
        .output()
        .unwrap();
    let want = "status\n--output\nsteady\n1 2 3\nhands\n";
    assert_eq!(text(&output.stdout), want, "{}", text(&output.stderr));
}

#[test]
fn help_fits_its_width_and_has_examples() {
    let folder = Folder::new();
    for command in [
        "apps",
        "check",
        "cleanup",
        "completions",
        "events",
        "explain",
        "kill",
        "logs",
        "render",
        "run",
        "scale",
        "status",
        "stop",
        "submit",
    ] {
        let help = folder.printed(&[command, "--help"]);
        let widest = help.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{command}: {widest} columns\n{help}");
        let examples = help.split("\nExamples:\n").nth(1).unwrap_or_else(|| panic!("{help}"));
        assert!(examples.matches("posse ").count() >= 3, "three examples:\n{help}");
    }
    for command in [&["--help"][..], &["dev", "--help"], &["stage", "put", "--help"]] {
        let help = folder.printed(command);
        assert!(help.lines().all(|line| line.chars().count() <= 80), "{help}");
    }
    let help = folder.printed(&["run", "--help"]);
    for heading in ["Configuration:", "API server:", "Embedded cluster:", "Exit codes:"] {
        assert!(help.contains(&format!("\n{heading}\n")), "{heading}\n{help}");
    }
}

#[test]
fn the_manual_has_a_page_for_each_command() {
    let folder = Folder::new();
    folder.printed(&["man", "pages"]);
    let page = fs::read_to_string(folder.path().join("pages/posse-status.1")).unwrap();
    assert!(page.contains("\n.TH posse-status 1 "), "{page}");
}
