//! Owns what an address alone tells about whether executors can dial it. Resolves and connects to
//! nothing: an address that raises no doubt may still be out of their reach.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why other machines will hardly reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// Every container runtime's own bridge on one machine, from outside a cluster.
    DockerBridge,
    /// It ends at the link.
    LinkLocal,
    /// It never leaves the machine.
    Loopback,
    /// Nobody's alone: a group's, or everybody's.
    Multicast,
    /// It says "any", and means nobody to those who dial.
    Unspecified,
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DockerBridge => "an address of this machine's own container bridge",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Unspecified => "an address that stands for any",
        })
    }
}

/// What speaks against `host`, a name or an address, as what executors dial. `is_in_cluster`: the
/// driver runs in a pod, and any private network may be the pods' own.
#[must_use]
pub fn doubt(host: &str, is_in_cluster: bool) -> Option<Doubt> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.split('%').next().unwrap_or_default();
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => of_v4(ip, is_in_cluster),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => of_v4(ip, is_in_cluster),
            None => of_v6(ip),
        },
        Err(_) => {
            let name = bare.trim_end_matches('.').to_ascii_lowercase();
            (name == "localhost" || name.ends_with(".localhost")).then_some(Doubt::Loopback)
        }
    }
}

fn of_v4(ip: Ipv4Addr, is_in_cluster: bool) -> Option<Doubt> {
    match ip.octets() {
        [127, ..] => Some(Doubt::Loopback),
        // All of 0/8 means this network.
        [0, ..] => Some(Doubt::Unspecified),
        [169, 254, ..] => Some(Doubt::LinkLocal),
        [224..=239, ..] | [255, 255, 255, 255] => Some(Doubt::Multicast),
        [172, 17, ..] if !is_in_cluster => Some(Doubt::DockerBridge),
        _ => None,
    }
}

fn of_v6(ip: Ipv6Addr) -> Option<Doubt> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(Doubt::Loopback),
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(Doubt::Unspecified),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some(Doubt::LinkLocal),
        [first, ..] if first & 0xff00 == 0xff00 => Some(Doubt::Multicast),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_tells() {
        use Doubt::{DockerBridge, LinkLocal, Loopback, Multicast, Unspecified};
        for (host, outside, inside) in [
            ("127.0.0.1", Some(Loopback), Some(Loopback)),
            ("127.8.9.1", Some(Loopback), Some(Loopback)),
            ("::1", Some(Loopback), Some(Loopback)),
            ("[::1]", Some(Loopback), Some(Loopback)),
            ("::ffff:127.0.0.1", Some(Loopback), Some(Loopback)),
            ("localhost", Some(Loopback), Some(Loopback)),
            ("LocalHost.", Some(Loopback), Some(Loopback)),
            ("driver.localhost", Some(Loopback), Some(Loopback)),
            ("0.0.0.0", Some(Unspecified), Some(Unspecified)),
            ("0.1.2.3", Some(Unspecified), Some(Unspecified)),
            ("::", Some(Unspecified), Some(Unspecified)),
            ("169.254.1.2", Some(LinkLocal), Some(LinkLocal)),
            ("fe80::1%eth0", Some(LinkLocal), Some(LinkLocal)),
            ("[febf::1]", Some(LinkLocal), Some(LinkLocal)),
            ("224.0.0.1", Some(Multicast), Some(Multicast)),
            ("255.255.255.255", Some(Multicast), Some(Multicast)),
            ("ff02::1", Some(Multicast), Some(Multicast)),
            ("172.17.0.1", Some(DockerBridge), None),
            ("::ffff:172.17.0.1", Some(DockerBridge), None),
            ("172.18.0.1", None, None),
            ("10.1.2.3", None, None),
            ("192.168.0.7", None, None),
            ("fd00::7", None, None),
            ("2001:db8::1", None, None),
            ("203.0.113.9", None, None),
            ("driver.example.com", None, None),
            ("localhost.example.com", None, None),
            ("my-app-driver", None, None),
            ("", None, None),
        ] {
            assert_eq!(doubt(host, false), outside, "{host} from outside");
            assert_eq!(doubt(host, true), inside, "{host} in a cluster");
        }
    }
}
