//! Reaps orphaned processes if posse is PID 1 of its container.

use std::collections::HashMap;

use rustix::process::{Pid, WaitId, WaitIdOptions, WaitOptions};

use posse_base::time::Millis;
use posse_process::tree;

/// A zombie older than this has no owner in this process that waits for it.
const ORPHAN_AGE_MS: u64 = 5_000;

/// Reaps zombies that the kernel reparented to PID 1.
///
/// posse's own children (credential plugins, supervisors of the driver and of containers) are
/// waited for elsewhere and must not be reaped here. The kernel does not tell the two kinds apart,
/// but own children are reaped at once, so only a zombie older than `ORPHAN_AGE_MS` is reaped here.
#[derive(Debug, Default)]
pub struct Reaper {
    /// When each zombie was first seen.
    seen: HashMap<Pid, Millis>,
}

impl Reaper {
    /// `None` if posse is not PID 1: then another process reaps.
    pub fn new() -> Option<Self> {
        rustix::process::getpid().is_init().then(Self::default)
    }

    /// Reaps orphaned zombies. Call it at each `Signal::Chld`, after `Driver::poll`, and again at the
    /// returned time, if any.
    pub fn reap(&mut self, now: Millis, supervisor: Option<Pid>) -> Option<Millis> {
        // Usually there is no zombie, and this check is cheaper than a scan of /proc.
        let me = rustix::process::getpid();
        let zombies = if has_zombie() { zombies(me) } else { Vec::new() };
        for orphan in self.choose(zombies, now, supervisor) {
            // If another thread has reaped it meanwhile, waitpid fails, which is fine.
            if let Ok(Some(_)) = rustix::process::waitpid(Some(orphan), WaitOptions::NOHANG) {
                log::debug!("reaped process {}", orphan.as_raw_nonzero());
            }
        }
        self.seen.values().map(|first| first.after(ORPHAN_AGE_MS)).min()
    }

    /// Removes and returns the zombies that are old enough.
    fn choose(&mut self, zombies: Vec<Pid>, now: Millis, supervisor: Option<Pid>) -> Vec<Pid> {
        let mut still = HashMap::new();
        let mut orphans = Vec::new();
        for pid in zombies {
            let first = *self.seen.get(&pid).unwrap_or(&now);
            if Some(pid) == supervisor {
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

/// True if some child is a zombie. Reaps nothing.
fn has_zombie() -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(rustix::process::waitid(WaitId::All, options), Ok(Some(_)))
}

/// The zombies among the children of `parent`.
fn zombies(parent: Pid) -> Vec<Pid> {
    let zombies = tree::processes().filter(|(_, stat)| is_zombie_of(stat, parent));
    zombies.filter_map(|(pid, _)| Pid::from_raw(i32::try_from(pid).ok()?)).collect()
}

fn is_zombie_of(stat: &str, parent: Pid) -> bool {
    let is_it = |of: &str| of.parse().ok().and_then(Pid::from_raw) == Some(parent);
    matches!(tree::fields(stat).as_deref(), Some(["Z", of, ..]) if is_it(of))
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use posse_testing::Wait;

    use super::*;

    #[test]
    fn only_old_zombies_are_reaped() {
        let pid = |n| Pid::from_raw(n).unwrap();
        let mut reaper = Reaper::default();
        let supervisor = Some(pid(7));
        assert_eq!(reaper.choose(vec![pid(7), pid(8), pid(9)], Millis(0), supervisor), []);
        // 9 was reaped by its owner; 10 is new.
        assert_eq!(reaper.choose(vec![pid(7), pid(8), pid(10)], Millis(4_999), supervisor), []);
        assert_eq!(
            reaper.choose(vec![pid(7), pid(8), pid(10)], Millis(5_000), supervisor),
            [pid(8)]
        );
        assert_eq!(reaper.choose(vec![pid(7), pid(10)], Millis(9_999), supervisor), [pid(10)]);
        assert_eq!(reaper.choose(vec![pid(7)], Millis(99_999), supervisor), []);
    }

    #[test]
    fn zombie_children_are_found() {
        let me = rustix::process::getpid();
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let mut wait = Wait::new("the child to become a zombie", Duration::from_secs(120));
        while !(has_zombie() && zombies(me).contains(&pid)) {
            assert!(wait.goes_on(), "the child did not become a zombie");
        }
        assert!(child.wait().unwrap().success(), "the check has not reaped the child");
        assert!(!zombies(me).contains(&pid));

        let one = Pid::INIT;
        for (stat, want) in [
            ("7 (sh) Z 1 7 7", true),
            ("7 (sh) S 1 7 7", false),
            ("7 (sh) Z 12 7 7", false),
            ("7 (sh) Z", false),
            ("", false),
        ] {
            assert_eq!(is_zombie_of(stat, one), want, "{stat}");
        }
    }
}
