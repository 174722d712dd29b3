//! What the process uses, as Linux says.

use std::fs;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

/// What the process uses now. A value is absent if /proc cannot be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessUsage {
    pub cpu_s: f64,
    pub virtual_bytes: Option<u64>,
    pub resident_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    /// None: no limit.
    pub max_fds: Option<u64>,
}

impl ProcessUsage {
    #[expect(clippy::cast_precision_loss, reason = "seconds of one process")]
    pub(super) fn read() -> Self {
        let cpu = clock_gettime(ClockId::ProcessCPUTime);
        let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
        let mut pages = pages.split(' ').map(|field| field.parse::<u64>().ok());
        let mut bytes = || Some(pages.next()??.saturating_mul(page_size() as u64));
        let (virtual_bytes, resident_bytes) = (bytes(), bytes());
        // The folder itself is open while it is read.
        let open_fds =
            fs::read_dir("/proc/self/fd").ok().map(|fds| (fds.count() as u64).saturating_sub(1));
        Self {
            cpu_s: cpu.tv_sec as f64 + cpu.tv_nsec as f64 / 1e9,
            virtual_bytes,
            resident_bytes,
            open_fds,
            max_fds: getrlimit(Resource::Nofile).current,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let before = ProcessUsage::read();
        let file = fs::File::open("/proc/self/statm").unwrap();
        let after = ProcessUsage::read();
        assert!(after.cpu_s > 0.0 && after.cpu_s >= before.cpu_s);
        let (resident, all) = (after.resident_bytes.unwrap(), after.virtual_bytes.unwrap());
        assert!(resident > 100_000 && resident <= all, "{after:?}");
        assert!(after.open_fds.unwrap() >= 4, "{after:?} {file:?}");
    }
}
