//! Pod addresses: each pod gets its own one in 127.0.0.0/8, so that two pods can listen on one
//! port.

use std::net::Ipv4Addr;

/// Hands out addresses in order. An address is reused only after all the others.
#[derive(Debug)]
pub(super) struct Addresses {
    next: u32,
}

/// 127.0.1.0: the machine itself uses 127.0.0.0/24.
const FIRST: u32 = 0x7F00_0100;
/// 127.255.254.255
const LAST: u32 = 0x7FFF_FEFF;

impl Addresses {
    /// `port` is the API server's: clusters with different ports start at distant addresses.
    pub(super) fn new(port: u16) -> Self {
        const SPREAD: u32 = 40_503;
        let start = u32::from(port).wrapping_mul(SPREAD) & 0xFFFF;
        Self { next: (FIRST + (start << 8)).min(LAST) }
    }

    pub(super) fn take(&mut self) -> Ipv4Addr {
        // Some programs refuse .0 and .255, which look like network and broadcast addresses.
        while matches!(self.next & 0xFF, 0 | 0xFF) || self.next > LAST {
            self.next = if self.next >= LAST { FIRST + 1 } else { self.next + 1 };
        }
        let taken = self.next;
        self.next += 1;
        Ipv4Addr::from(taken)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn addresses_are_loopback_and_unique() {
        for port in [0, 1, 40_000, u16::MAX] {
            let mut addresses = Addresses::new(port);
            let taken: Vec<Ipv4Addr> = (0..70_000).map(|_| addresses.take()).collect();
            assert!(taken.iter().all(|ip| ip.is_loopback() && ip.octets()[3] != 0));
            assert!(taken.iter().all(|ip| *ip != Ipv4Addr::LOCALHOST));
            assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len(), "port {port}");
        }
    }
}
