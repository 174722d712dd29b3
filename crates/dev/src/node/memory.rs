//! Reads how much memory process groups use.

use std::collections::BTreeMap;
use std::fs;

use posse_process::tree;

/// The process groups with their resident bytes and their members. A page that several processes
/// share is counted for each of them, so this is an upper bound. It is cheap to read.
pub(super) fn group_usage() -> BTreeMap<u32, (u64, Vec<u32>)> {
    let mut groups: BTreeMap<u32, (u64, Vec<u32>)> = BTreeMap::new();
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(4096);
    for (pid, stat) in tree::processes() {
        if let Some((group, pages)) = group_and_pages(&stat) {
            let entry = groups.entry(group).or_default();
            entry.0 = entry.0.saturating_add(pages.saturating_mul(page));
            entry.1.push(pid);
        }
    }
    groups
}

/// Fields 5 (process group) and 24 (resident pages) of a process's `stat`, see proc_pid_stat(5).
fn group_and_pages(stat: &str) -> Option<(u32, u64)> {
    let fields = tree::fields(stat)?;
    Some((fields.get(2)?.parse().ok()?, fields.get(21)?.parse().ok()?))
}

/// The bytes that these processes use. Shared pages count once; pages of files do not count,
/// because the kernel can reclaim them. `None` if the kernel does not report it.
pub(super) fn exact_usage(pids: &[u32]) -> Option<u64> {
    let mut sum: u64 = 0;
    for pid in pids {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        sum = sum.saturating_add(anonymous_bytes(&text)?);
    }
    (sum > 0).then_some(sum)
}

fn anonymous_bytes(rollup: &str) -> Option<u64> {
    let kilobytes = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()
    };
    Some((kilobytes("Pss_Anon:")? + kilobytes("Pss_Shmem:")?) << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_and_smaps_rollup_are_parsed() {
        let stat = "12 (a) b) S 1 77 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1000 321 184 1";
        assert_eq!(group_and_pages(stat), Some((77, 321)));
        assert_eq!(group_and_pages("no"), None);
        let rollup = "00-ff ---p 0 00:00 0 [rollup]\nRss:  9 kB\nPss_Anon:      5 kB\n\
                      Pss_File:  7 kB\nPss_Shmem:   2 kB\n";
        assert_eq!(anonymous_bytes(rollup), Some(7 << 10));
        assert_eq!(anonymous_bytes("Rss: 1 kB\n"), None);
        let own = std::process::id();
        let (_, (bytes, _)) = group_usage()
            .into_iter()
            .find(|(_, (_, pids))| pids.contains(&own))
            .expect("this process is in a group");
        assert!(bytes > 0);
    }
}
