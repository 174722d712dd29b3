//! Reads from `/proc` which signals this process ignores.

use std::fs;

/// The signals that this process ignored at a moment, by their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IgnoredSignals(u64);

impl IgnoredSignals {
    /// The signals that this process ignores now; none if `/proc` cannot be read.
    pub fn now() -> Self {
        Self::parse(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// `status` is the text of `/proc/PID/status`.
    pub fn parse(status: &str) -> Self {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    /// True if the signal with this number is ignored.
    pub fn contains(self, number: i32) -> bool {
        u32::try_from(number - 1).ok().and_then(|shift| 1_u64.checked_shl(shift)).unwrap_or(0)
            & self.0
            != 0
    }
}
