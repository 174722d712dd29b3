//! The job of this process: the process group that a shell stops and continues.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, getpgrp, kill_process_group};

use crate::tree;

/// Stops this process with its whole group, until the shell continues them. False: they go on, because
/// nobody would continue them.
pub fn suspend() -> bool {
    // Not SIGTSTP: this process handles it.
    !is_orphaned(getpgrp()) && kill_process_group(getpgrp(), Signal::STOP).is_ok()
}

/// True if no process of the group has a parent in another group of its session, which could continue it
/// (POSIX: orphaned process group). SIGTSTP does not stop such a group, but SIGSTOP does. The first
/// process of a terminal is in such a group, and that of a container.
fn is_orphaned(group: Pid) -> bool {
    let group = group.as_raw_nonzero().get().unsigned_abs();
    let numbers = |stat: &str| {
        let fields = tree::fields(stat)?;
        let number = |n: usize| fields.get(n)?.parse().ok();
        Some([number(1)?, number(2)?, number(3)?])
    };
    // Parent, group and session of each process.
    let all: HashMap<u32, [u32; 3]> =
        tree::processes().filter_map(|(pid, stat)| Some((pid, numbers(&stat)?))).collect();
    !all.values().filter(|[_, own, _]| *own == group).any(|[parent, own, session]| {
        all.get(parent).is_some_and(|[_, other, its]| other != own && its == session)
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::os::unix::process::CommandExt as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Each program says a line when it is where it belongs.
    #[track_caller]
    fn check(mut command: Command, want: bool) {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(is_orphaned(Pid::from_child(&child)), want, "{command:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
    }

    #[test]
    fn a_group_whose_parents_are_in_other_sessions_is_orphaned() {
        let sh = |program: &str, args: &[&str]| {
            let mut command = Command::new(program);
            command.args(args);
            command
        };
        let mut job = sh("sh", &["-c", "echo ready; read line"]);
        job.process_group(0);
        check(job, false);
        check(sh("setsid", &["sh", "-c", "echo ready; read line"]), true);
        // The child has a parent in its own group.
        check(sh("setsid", &["sh", "-c", "sh -c 'echo ready; read line'; true"]), true);
    }
}
