//! Which TCP ports posse tries for its driver. A restarted posse tries the same ports in the same order, so
//! that the executors which it adopts reach the driver at the port that they know.

use crate::model::hash::stable_hash;

/// The first of the ports that posse may choose.
const LOWEST_PORT: u16 = 20_000;
/// How many ports posse may choose from. They are below the ports that Linux gives to outgoing connections
/// (from 32768), and below the node ports of Kubernetes (from 30000).
const N_PORTS: u16 = 10_000;
/// How many of them one run tries.
pub const TRIES_MAX: u16 = 100;

/// The ports of this instance, in the order in which posse tries them.
pub fn candidates(namespace: &str, app: &str, instance: &str) -> impl Iterator<Item = u16> {
    // A slash is in none of the three names.
    let hash = stable_hash(&format!("{namespace}/{app}/{instance}"));
    let first = u16::try_from(hash % u64::from(N_PORTS)).unwrap_or(0);
    (0..TRIES_MAX).map(move |i| LOWEST_PORT + (first + i) % N_PORTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(namespace: &str, app: &str, instance: &str) -> Vec<u16> {
        candidates(namespace, app, instance).collect()
    }

    #[test]
    fn a_restarted_run_tries_the_same_ports() {
        // A port that changes with the version of posse would separate adopted executors from their driver.
        assert_eq!(ports("default", "queue", "a1b2c")[..2], [24_606, 24_607]);
        assert_eq!(ports("default", "queue", "a1b2c"), ports("default", "queue", "a1b2c"));
    }

    #[test]
    fn each_name_changes_the_ports() {
        let ours = ports("n", "a", "i");
        for other in [ports("m", "a", "i"), ports("n", "b", "i"), ports("n", "a", "j")] {
            assert_ne!(ours[0], other[0]);
        }
        assert_ne!(ports("n", "a-b", "c"), ports("n", "a", "b-c"));
    }

    #[test]
    fn all_ports_are_in_the_range_and_differ() {
        for n in 0..2_000 {
            let mut ports = ports("n", "a", &n.to_string());
            assert!(ports.iter().all(|port| (20_000..30_000).contains(port)), "{ports:?}");
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), usize::from(TRIES_MAX));
        }
    }
}
