//! Tells from an address alone whether executors on other machines can connect to it. Does not
//! resolve names or connect.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address cannot be reached from other machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressProblem {
    /// The default bridge network of Docker, which only its own machine reaches. Not reported
    /// inside a cluster.
    DockerBridge,
    /// A link-local address.
    LinkLocal,
    /// A loopback address.
    Loopback,
    /// A multicast or broadcast address.
    Multicast,
    /// The wildcard address.
    Unspecified,
}

impl fmt::Display for AddressProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DockerBridge => "an address of this machine's own container bridge",
            Self::LinkLocal => "a link-local address",
            Self::Loopback => "a loopback address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Unspecified => "a wildcard address",
        })
    }
}

/// The problem with `host`, a name or an address that executors connect to. `is_in_cluster`: the
/// driver runs in a pod, where any private network may be the pod network.
pub fn find_problem(host: &str, is_in_cluster: bool) -> Option<AddressProblem> {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.split('%').next().unwrap_or_default();
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => problem_of_v4(ip, is_in_cluster),
        Ok(IpAddr::V6(ip)) => match ip.to_ipv4_mapped() {
            Some(ip) => problem_of_v4(ip, is_in_cluster),
            None => problem_of_v6(ip),
        },
        Err(_) => {
            let name = bare.trim_end_matches('.').to_ascii_lowercase();
            (name == "localhost" || name.ends_with(".localhost"))
                .then_some(AddressProblem::Loopback)
        }
    }
}

fn problem_of_v4(ip: Ipv4Addr, is_in_cluster: bool) -> Option<AddressProblem> {
    match ip.octets() {
        [127, ..] => Some(AddressProblem::Loopback),
        // All of 0.0.0.0/8 means "this network" (RFC 1122).
        [0, ..] => Some(AddressProblem::Unspecified),
        [169, 254, ..] => Some(AddressProblem::LinkLocal),
        [224..=239, ..] | [255, 255, 255, 255] => Some(AddressProblem::Multicast),
        [172, 17, ..] if !is_in_cluster => Some(AddressProblem::DockerBridge),
        _ => None,
    }
}

fn problem_of_v6(ip: Ipv6Addr) -> Option<AddressProblem> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, 0, 1] => Some(AddressProblem::Loopback),
        [0, 0, 0, 0, 0, 0, 0, 0] => Some(AddressProblem::Unspecified),
        [first, ..] if first & 0xffc0 == 0xfe80 => Some(AddressProblem::LinkLocal),
        [first, ..] if first & 0xff00 == 0xff00 => Some(AddressProblem::Multicast),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_found_in_addresses_and_names() {
        use AddressProblem::{DockerBridge, LinkLocal, Loopback, Multicast, Unspecified};
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
            assert_eq!(find_problem(host, false), outside, "{host} from outside");
            assert_eq!(find_problem(host, true), inside, "{host} in a cluster");
        }
    }
}
