//! Runs a program and fails if it leaves anything behind: a process, a file in the temporary folder, or a
//! mount below it. A port at which somebody listens needs no look of its own: it belongs to a process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper,
    set_parent_process_death_signal, wait,
};

/// Set in the environment of a program that runs within `play`.
const WATCHED: &str = "POSSE_TESTS_WATCHED";
/// The time for ends that the program does not wait for.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// For the `main` of a test program: runs `tests` in a process of its own, which `watch` watches.
pub fn play(tests: impl FnOnce() -> ExitCode) -> ExitCode {
    if env::var_os(WATCHED).is_some() {
        set_parent_process_death_signal(Some(Signal::KILL)).expect("Linux has it");
        return tests();
    }
    let this = env::current_exe().expect("/proc is mounted");
    watch(Command::new(this).args(env::args_os().skip(1)).env(WATCHED, "1"))
}

/// Runs a program with a temporary folder of its own. Whatever descendant of it loses its parent becomes a
/// child of this process, so that none is missed.
pub fn watch(command: &mut Command) -> ExitCode {
    let folder = env::temp_dir().join(format!("posse-{}", getpid()));
    fs::create_dir(&folder).expect("the folder for temporary files is writable");
    set_child_subreaper(Some(getpid())).expect("Linux has it");
    let child = command.env("TMPDIR", &folder).spawn();
    let child = Pid::from_child(&child.unwrap_or_else(|e| panic!("{command:?}: {e}")));
    let code = loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => break exit_code(status),
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("a child of this process is lost: {error}"),
        }
    };
    let mut left = end_processes();
    left.extend(mounts_below(&folder));
    if code == 0 {
        left.extend(files_in(&folder));
    }
    // A program that fails may leave files for its report.
    if code == 0 && left.is_empty() {
        fs::remove_dir(&folder).expect("it is empty");
        return ExitCode::SUCCESS;
    }
    eprintln!("files are kept in {}", folder.display());
    left.iter().for_each(|what| eprintln!("LEFT BEHIND: {what}"));
    ExitCode::from(if code == 0 { 1 } else { code })
}

/// As a shell has it.
fn exit_code(status: WaitStatus) -> u8 {
    let number = |n: i32| u8::try_from(n).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => number(code),
        (None, Some(signal)) => number(128 + signal),
        (None, None) => u8::MAX,
    }
}

/// Waits for the ends of all children. Those that do not end in time are killed, and named.
fn end_processes() -> BTreeSet<String> {
    let (began, mut left) = (Instant::now(), BTreeSet::new());
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some(_)) | Err(Errno::INTR) => continue,
            Err(_) => return left,
            Ok(None) => thread::sleep(STEP),
        }
        if began.elapsed() > LEAVE_LIMIT {
            for (pid, name) in children() {
                // An error means that it has just ended.
                let _ = kill_process(pid, Signal::KILL);
                left.insert(format!("process {pid}: {name}"));
            }
            thread::sleep(STEP);
        }
    }
}

/// The children that run, with their command lines.
fn children() -> Vec<(Pid, String)> {
    let parent = getpid().to_string();
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let of = |folder: PathBuf| -> io::Result<Option<(Pid, String)>> {
        let stat = fs::read_to_string(folder.join("stat"))?;
        // "pid (name) state parent ...", and the name may contain anything.
        let mut facts = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let is_ours = facts.next() != Some("Z") && facts.next() == Some(parent.as_str());
        let pid = stat.split(' ').next().and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw);
        let words = fs::read(folder.join("cmdline"))?;
        let line = String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned();
        Ok(pid.filter(|_| is_ours).map(|pid| (pid, line)))
    };
    folders.filter_map(|folder| of(folder).ok().flatten()).collect()
}

fn mounts_below(folder: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let below = format!(" {}/", folder.display());
    table.lines().filter(|line| line.contains(&below)).map(|line| format!("mount {line}")).collect()
}

fn files_in(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("the program has removed its temporary folder");
    files.flatten().map(|file| format!("file {}", file.path().display())).collect()
}
