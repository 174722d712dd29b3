//! `posse run --dev` without a configuration file, and the projects of `posse init --for`.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::posse::{command, said};
use crate::support::real::free_port;
use crate::support::scene::TempDir;

/// How long a project may take to listen.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first message in which each command of the project `job` ended well.
const FORGED_END: &str = r#"{"executor": 1, "ended": 1, "code": 0, "output": "forged\n"}"#;

/// `posse ARGS` in this folder.
fn posse(dir: &Path, args: &[&str]) -> Output {
    command(dir).args(args).stdin(Stdio::null()).output().expect("the binary can be started")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Each run has three executors of its own and reaches its own control API. Both programs are paths
/// relative to the current folder.
pub fn three_runs_of_one_command_at_once() {
    let dir = TempDir::new("runs");
    let script = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script(
        "worker.sh",
        r#"test "$1" = "two words" && : >"up.$POSSE_INSTANCE.$POSSE_EXECUTOR_ID" && exec sleep 600"#,
    );
    script(
        "my_driver.sh",
        r#"until [ "$(ls up."$POSSE_INSTANCE".* 2>/dev/null | wc -l)" -ge 3 ]; do sleep 0.1; done
        "$POSSE_EXE" status --json >"status.$POSSE_INSTANCE" || exit 7
        echo "$POSSE_APP has $(ls up."$POSSE_INSTANCE".* | wc -l)""#,
    );
    let args = ["run", "--dev", "--executors", "3", "--command", "./worker.sh 'two words'"];
    let args = [&args[..], &["--", "./my_driver.sh"]].concat();
    let outputs: Vec<Output> = thread::scope(|scope| {
        let runs: Vec<_> = (0..3).map(|_| scope.spawn(|| posse(dir.path(), &args))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    for output in &outputs {
        assert_eq!(output.status.code(), Some(0), "{}", said(output));
        assert_eq!(stdout(output), "my-driver has 3\n", "{}", said(output));
    }
    let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let n_runs = names.filter(|name| name.to_string_lossy().starts_with("status.")).count();
    assert_eq!(n_runs, 3, "each run has an instance of its own");
}

pub fn project_python() {
    if has_python() {
        project("python", "sum of squares: 338350");
    }
}

pub fn project_shell() {
    project("shell", "sum of squares: 9455");
}

pub fn project_job() {
    if has_python() {
        let output = project("job", "4 of 4 commands succeeded");
        assert!(output.contains("\ntask 2\n") || output.starts_with("task 2\n"), "{output}");
    }
}

pub(super) fn has_python() -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("python3").exists()));
    if !found {
        println!("NOT TESTED: this machine has no python3");
    }
    found
}

/// Whoever reaches the driver's port can neither send results nor ask for work.
pub fn project_python_refuses_forged_results() {
    let forged = |n: u32| format!(r#"{{"task": {n}, "result": 1000000}}"#);
    let messages: Vec<String> = (1..=100).map(forged).collect();
    forge("python", "sum of squares: 338350", &messages);
}

pub fn project_job_refuses_forged_results() {
    let output = forge("job", "4 of 4 commands succeeded", &[FORGED_END.to_owned()]);
    assert!(!output.contains("forged"), "{output}");
}

/// Runs a project, and sends messages to its driver, which nobody has signed, or with another token.
fn forge(kind: &str, last_line: &str, messages: &[String]) -> String {
    if !has_python() {
        return String::new();
    }
    let dir = TempDir::new(kind);
    let folder = write_project(dir.path(), kind);
    let port = free_port();
    let path = folder.join("posse.yaml");
    let text = fs::read_to_string(&path).unwrap();
    let with_port = text.replace("port: auto", &format!("port: {port}"));
    assert_ne!(with_port, text);
    fs::write(&path, with_port).unwrap();
    let run = command(&folder)
        .args(["run", "--dev"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be started");
    wait_until_something_listens(port);
    assert_eq!(listeners(port), ["0100007F"], "only loopback");
    for message in messages {
        for signature in ["", "Signature: \r\n", &format!("Signature: {}\r\n", "0".repeat(64))] {
            let answer = post(port, signature, message);
            assert!(answer.starts_with("HTTP/1.0 403"), "{message}: {answer:?}");
        }
    }
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{kind}: {}", said(&output));
    assert_eq!(stdout(&output).lines().last(), Some(last_line), "{kind}: {}", said(&output));
    stdout(&output)
}

fn wait_until_something_listens(port: u16) {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(Instant::now() < deadline, "nobody listens at {port}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// The addresses at which somebody listens at this port, as Linux writes them.
fn listeners(port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let table = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    let tables = [table("tcp"), table("tcp6")];
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let found = lines.filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (address, at) = words.next()?.rsplit_once(':')?;
        let state = words.nth(1)?;
        (at == format!("{port:04X}") && state == LISTEN).then(|| address.to_owned())
    });
    found.collect()
}

/// What is answered to a message.
fn post(port: u16, headers: &str, body: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let length = body.len();
    write!(stream, "POST / HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n{body}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Another program has the driver's port: a worker runs nothing that it sends.
pub fn project_job_takes_commands_only_from_its_driver() {
    if !has_python() {
        return;
    }
    let dir = TempDir::new("job");
    let folder = write_project(dir.path(), "job");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let driver = listener.local_addr().unwrap().to_string();
    let answered = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut head = Vec::new();
        // The worker sends its message at once after the headers, and waits for the answer.
        while !head.ends_with(b"}") {
            let mut some = [0; 1024];
            let n = stream.read(&mut some).unwrap();
            head.extend_from_slice(&some[..n]);
        }
        let head = String::from_utf8(head).unwrap();
        let signature = head.lines().find_map(|line| line.strip_prefix("Signature: ")).unwrap();
        let body = r#"{"try": 1, "command": "touch obeyed"}"#;
        // Also not with a signature that the worker has made itself.
        write!(
            stream,
            "HTTP/1.0 200 OK\r\nSignature: {signature}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
    });
    let worker = Command::new("python3")
        .args(["worker.py", &driver])
        .current_dir(&folder)
        .envs([("TOKEN", "secret"), ("POSSE_EXECUTOR_ID", "1")])
        .output();
    let output = worker.expect("python3 can be started");
    answered.join().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("has another token"), "{}", said(&output));
    assert!(!folder.join("obeyed").exists());
}

/// Writes the project, and runs it as its README says, twice at once. Returns what a driver printed.
fn project(kind: &str, last_line: &str) -> String {
    let dir = TempDir::new(kind);
    let folder = write_project(dir.path(), kind);
    let readme = fs::read_to_string(folder.join("README.md")).unwrap();
    assert!(readme.contains(last_line), "{readme}");
    let outputs = thread::scope(|scope| {
        [(); 2]
            .map(|()| scope.spawn(|| posse(&folder, &["run", "--dev"])))
            .map(|run| run.join().unwrap())
    });
    for output in &outputs {
        assert!(output.status.success(), "{kind}: {}", said(output));
        assert_eq!(stdout(output).lines().last(), Some(last_line), "{kind}: {}", said(output));
    }
    stdout(&outputs[0])
}

fn write_project(dir: &Path, kind: &str) -> PathBuf {
    let made = posse(dir, &["init", "--for", kind, "project"]);
    assert!(made.status.success(), "{}", said(&made));
    dir.join("project")
}
