//! What executors cost: what their pods reserve on nodes, times how long they have had it.

/// What one pod reserves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reserved {
    /// Thousandths of a core.
    pub cpu_milli: u64,
    pub memory_bytes: u64,
}

/// The cost of some pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    cpu_milli_s: u128,
    memory_byte_s: u128,
}

impl Cost {
    /// What a pod has cost from one second to another. Clocks differ: an end before the start is no time at all.
    pub fn of(reserved: Reserved, from_s: i64, until_s: i64) -> Self {
        let seconds = u128::try_from(i128::from(until_s) - i128::from(from_s)).unwrap_or(0);
        Self {
            cpu_milli_s: u128::from(reserved.cpu_milli) * seconds,
            memory_byte_s: u128::from(reserved.memory_bytes) * seconds,
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_milli_s: self.cpu_milli_s.saturating_add(other.cpu_milli_s),
            memory_byte_s: self.memory_byte_s.saturating_add(other.memory_byte_s),
        }
    }

    /// Hours of one core.
    pub fn cpu_hours(self) -> f64 {
        self.cpu_milli_s as f64 / (1_000 * SECONDS_PER_HOUR) as f64
    }

    /// Hours of one gibibyte.
    pub fn memory_hours(self) -> f64 {
        self.memory_byte_s as f64 / (BYTES_PER_GIB * SECONDS_PER_HOUR) as f64
    }
}

const SECONDS_PER_HOUR: u64 = 3_600;
const BYTES_PER_GIB: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_costs_what_it_reserves_for_its_time() {
        let pod = Reserved { cpu_milli: 500, memory_bytes: 2 << 30 };
        for (from_s, until_s, cpu_hours, memory_hours) in [
            (0, 3_600, 0.5, 2.0),
            (-1_800, 1_800, 0.5, 2.0),
            (10, 10, 0.0, 0.0),
            (10, 5, 0.0, 0.0),
            (0, 36, 0.005, 0.02),
        ] {
            let cost = Cost::of(pod, from_s, until_s);
            assert_eq!((cost.cpu_hours(), cost.memory_hours()), (cpu_hours, memory_hours));
        }
        let hour = Cost::of(pod, 0, 3_600);
        assert_eq!(hour.plus(hour).plus(Cost::default()).cpu_hours(), 1.0);
        let most = Reserved { cpu_milli: u64::MAX, memory_bytes: u64::MAX };
        let long = Cost::of(most, i64::MIN, i64::MAX);
        assert!(long.plus(long).memory_hours() > 0.0);
    }
}
