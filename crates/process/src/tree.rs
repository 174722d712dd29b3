//! Reads the process tree of this machine from `/proc`.

use std::fs;

/// The fields of a process's `stat` from the third on. The second field, the process name, may
/// contain spaces and brackets.
pub fn fields(stat: &str) -> Option<Vec<&str>> {
    stat.rsplit_once(") ").map(|(_, rest)| rest.split(' ').collect())
}

/// All processes, each with its `stat`. Processes that end during the call are left out.
pub fn processes() -> impl Iterator<Item = (u32, String)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| Some((pid, fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)))
}

/// All descendants of a process. A process whose parent has ended has another parent in `/proc`, so
/// it is not found.
pub fn descendants(ancestor: u32) -> Vec<u32> {
    let parent = |stat: &str| fields(stat)?.get(1)?.parse().ok();
    let pairs: Vec<(u32, u32)> =
        processes().filter_map(|(pid, stat)| Some((pid, parent(&stat)?))).collect();
    let mut found = vec![ancestor];
    let mut n_visited = 0;
    while let Some(&current) = found.get(n_visited) {
        n_visited += 1;
        for (child, parent) in &pairs {
            if *parent == current && !found.contains(child) {
                found.push(*child);
            }
        }
    }
    found.remove(0);
    found
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_name_may_contain_brackets_and_spaces() {
        assert_eq!(fields("12 (a) b) S 1 77").unwrap(), ["S", "1", "77"]);
        assert_eq!(fields("no"), None);
    }

    #[test]
    fn grandchildren_are_found_and_other_processes_are_not() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'read line; true' & read line; wait"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        while descendants(shell.id()).is_empty() {
            std::thread::yield_now();
        }
        let ours = descendants(std::process::id());
        let theirs = descendants(shell.id());
        assert!(ours.contains(&shell.id()) && theirs.iter().all(|pid| ours.contains(pid)));
        assert!(!theirs.contains(&shell.id()) && !theirs.contains(&std::process::id()));
        drop(shell.stdin.take());
        shell.wait().unwrap();
        assert_eq!(descendants(shell.id()), [0; 0]);
    }
}
