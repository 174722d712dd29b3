//! Chooses the driver's TCP port before the driver starts: looks which port is free on this host, and
//! keeps other posse processes of this host away from it.

use std::fs::{self, File};
use std::io;
use std::iter;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use log::{debug, info, warn};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, bind, sockopt};

use posse_base::files;
use posse_base::system::new_socket;
use posse_control::address;
use posse_core::policy::driver_port;
use posse_wire::config::PortChoice;
use posse_wire::k8s::labels::Selection;

/// How long the first port is awaited if the instance may have run before: the driver of a posse that was
/// killed may still be ending.
const PREDECESSOR_WAIT: Duration = Duration::from_secs(2);
const TRY_INTERVAL: Duration = Duration::from_millis(50);

/// The driver's port. While this value lives, no other posse of this user and host chooses the port. Another
/// program may still open it before the driver does: `ready` looks who listens.
#[derive(Debug)]
pub struct DriverPort {
    pub number: u16,
    _reservation: Option<Reservation>,
}

/// A locked file for a port, in a folder of this user alone: others can neither read which port it is nor
/// take it. Dropping this removes the file.
#[derive(Debug)]
struct Reservation {
    path: PathBuf,
    _lock: File,
}

impl Reservation {
    /// `None` if the folder takes no file: then posse does without.
    ///
    /// # Errors
    /// `AddrInUse`: another posse has reserved the port.
    fn new(folder: &Path, number: u16) -> io::Result<Option<Self>> {
        // A port belongs to a network namespace.
        let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |facts| facts.ino());
        let path = folder.join(format!("driver-port-{namespace}-{number}.lock"));
        let lock = match files::open_or_create(&path) {
            Ok(lock) => lock,
            Err(error) => {
                debug!("the driver's port is not reserved: {}: {error}", path.display());
                return Ok(None);
            }
        };
        let is_locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
        // Another posse may have removed the file since it was opened; one that comes now sees a new one.
        let is_current = || Some(fs::metadata(&path).ok()?.ino() == lock.metadata().ok()?.ino());
        match is_locked && is_current() == Some(true) {
            true => Ok(Some(Self { path, _lock: lock })),
            false => Err(Errno::ADDRINUSE.into()),
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Before the lock ends. A file that stays is used again.
        let _ = fs::remove_file(&self.path);
    }
}

impl DriverPort {
    /// The port for the driver of this instance. `is_new`: the instance has not run before.
    ///
    /// # Errors
    /// The port that the configuration names is in use, or all ports that posse tries are.
    pub fn choose(
        choice: PortChoice,
        namespace: &str,
        selection: &Selection,
        is_new: bool,
    ) -> Result<Self, String> {
        let wait = if is_new { Duration::ZERO } else { PREDECESSOR_WAIT };
        let ports: Vec<u16> = match choice {
            PortChoice::Auto => {
                driver_port::candidates(namespace, &selection.app, &selection.instance).collect()
            }
            PortChoice::Number(number) => vec![number],
        };
        let first = ports.first().copied().unwrap_or_default();
        let port = Self::first_free(&ports, wait).map_err(|error| match choice {
            PortChoice::Auto => format!(
                "driver.port: auto: none of the {} ports from {first} on is free on this host \
                 ({error}): set driver.port to a free one",
                ports.len()
            ),
            PortChoice::Number(number) if is_in_use(&error) => format!(
                "driver.port: {number} is in use on this host, by another program or by the driver \
                 of another posse: end that one, or set `driver.port: auto`"
            ),
            PortChoice::Number(number) => {
                format!("driver.port: {number} cannot be used on this host: {error}")
            }
        })?;
        let number = port.number;
        if number == first || is_new {
            info!("the driver's port is {number}");
        } else {
            warn!(
                "port {first} is in use on this host, so the driver's port is {number}: executors of \
                 an earlier run dial {first} and do not reach the driver"
            );
        }
        Ok(port)
    }

    /// A port of a driver that posse does not start.
    pub fn of_others(number: u16) -> Self {
        Self { number, _reservation: None }
    }

    /// The first of these ports that is free. Waits for the very first one.
    fn first_free(ports: &[u16], wait: Duration) -> io::Result<Self> {
        let mut result = Err(Errno::ADDRINUSE.into());
        for (&number, wait) in
            ports.iter().zip(iter::once(wait).chain(iter::repeat(Duration::ZERO)))
        {
            result = Self::take(number, wait);
            match &result {
                Err(error) if is_in_use(error) => {}
                Ok(_) | Err(_) => break,
            }
        }
        result
    }

    fn take(number: u16, wait: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + wait;
        loop {
            match Self::try_take(number) {
                Err(error) if is_in_use(&error) && Instant::now() < deadline => {
                    thread::sleep(TRY_INTERVAL);
                }
                result => return result,
            }
        }
    }

    fn try_take(number: u16) -> io::Result<Self> {
        // The same for all runs of this user, whatever their environment is.
        let folder = address::first_private(&address::default_folders(None, None));
        // Before the look at the port: two processes that look at once would both find it free.
        let reservation = folder.map(|folder| Reservation::new(&folder, number)).transpose()?;
        check_is_free(number)?;
        Ok(Self { number, _reservation: reservation.flatten() })
    }
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// An error if somebody uses this port at any address of this host.
fn check_is_free(number: u16) -> io::Result<()> {
    // The IPv6 wildcard stands for the IPv4 addresses, too. A host may have no IPv6.
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, number));
    match check_address(AddressFamily::INET6, any) {
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, number));
            Ok(check_address(AddressFamily::INET, any)?)
        }
        result => Ok(result?),
    }
}

/// Binds a socket to this address for a moment. It does not listen, so nobody can connect to it.
fn check_address(family: AddressFamily, address: SocketAddr) -> rustix::io::Result<()> {
    let socket = new_socket(family, SocketType::STREAM)?;
    // As most servers do: connections of an earlier driver that are in TIME_WAIT do not matter.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if family == AddressFamily::INET6 {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    bind(&socket, &address)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr as UnixAddr, UnixDatagram};

    use std::collections::BTreeSet;

    use super::*;
    use posse_testing::{Folder, PATIENCE};

    fn selection(instance: &str) -> Selection {
        Selection { app: "port-test".to_owned(), instance: instance.to_owned() }
    }

    /// The port that a run of this instance gets.
    fn choose(choice: PortChoice, instance: &str) -> Result<DriverPort, String> {
        DriverPort::choose(choice, &namespace(), &selection(instance), true)
    }

    /// Other processes of this host may take ports at any time, so the names are those of this test.
    fn namespace() -> String {
        format!("ns-{}", std::process::id())
    }

    #[test]
    fn the_driver_can_listen_at_its_port() {
        let port = choose(PortChoice::Auto, "a").unwrap();
        let listener = TcpListener::bind(("0.0.0.0", port.number)).unwrap();
        drop(listener);
        assert!(TcpStream::connect(("127.0.0.1", port.number)).is_err(), "posse does not listen");
    }

    #[test]
    fn two_runs_that_want_one_port_get_two() {
        let first = choose(PortChoice::Auto, "b").unwrap();
        // Nobody listens yet: the first driver has not started.
        let second = choose(PortChoice::Auto, "b").unwrap();
        assert_ne!(first.number, second.number);
        let number = first.number;
        let said = choose(PortChoice::Number(number), "c").unwrap_err();
        assert!(
            said.starts_with(&format!("driver.port: {number} is in use on this host")),
            "{said}"
        );
        drop(first);
        assert_eq!(choose(PortChoice::Auto, "b").unwrap().number, number, "it is free again");
    }

    /// Others read the names of abstract sockets in /proc/net/unix, and can bind all of them.
    #[test]
    fn names_of_abstract_sockets_neither_block_nor_tell_the_port() {
        let abstract_name = |number: u16| {
            let name = UnixAddr::from_abstract_name(format!("posse-driver-port-{number}")).unwrap();
            UnixDatagram::bind_addr(&name)
        };
        let wanted: Vec<u16> =
            driver_port::candidates(&namespace(), "port-test", "names").collect();
        let names = || {
            let text = fs::read_to_string("/proc/net/unix").unwrap();
            let names = text.lines().filter_map(|line| line.split(' ').next_back());
            names.filter(|name| name.starts_with('@')).map(str::to_owned).collect::<BTreeSet<_>>()
        };
        let held: Vec<UnixDatagram> =
            wanted.iter().filter_map(|number| abstract_name(*number).ok()).collect();
        // With those of others, some of which may have these digits, and the held ones: a process that another test starts
        // keeps a copy of them until it runs its own program.
        let before = names();
        let port = choose(PortChoice::Auto, "names").unwrap();
        assert!(wanted.contains(&port.number));
        let number = port.number.to_string();
        let told = names().difference(&before).find(|name| name.contains(&number)).cloned();
        drop(held);
        assert_eq!(told, None, "the port can be read");
    }

    #[test]
    fn a_reservation_goes_with_its_run_and_a_lost_one_is_taken() {
        let folder = Folder::new();
        let reserve = || Reservation::new(folder.path(), 20_000);
        let first = reserve().unwrap().unwrap();
        assert_eq!(reserve().unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        // Of a posse that was killed.
        let path = reserve().unwrap().unwrap().path.clone();
        fs::write(&path, "").unwrap();
        assert!(reserve().unwrap().is_some());
        assert!(Reservation::new(Path::new("/proc/none"), 1).unwrap().is_none(), "no folder");
    }

    #[test]
    fn a_port_that_somebody_listens_at_is_in_use() {
        for address in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "there may be no IPv6, but not {address}");
                continue;
            };
            let number = listener.local_addr().unwrap().port();
            let said = choose(PortChoice::Number(number), "d").unwrap_err();
            assert!(said.contains("is in use on this host"), "{address}: {said}");
        }
    }

    #[test]
    fn a_restarted_run_waits_for_the_driver_before_it() {
        let number = choose(PortChoice::Auto, "e").unwrap().number;
        let listener = TcpListener::bind(("127.0.0.1", number)).unwrap();
        DriverPort::take(number, TRY_INTERVAL).unwrap_err();
        let end = thread::spawn(move || {
            thread::sleep(TRY_INTERVAL);
            drop(listener);
        });
        assert_eq!(DriverPort::take(number, PATIENCE).unwrap().number, number);
        end.join().unwrap();
    }

    #[test]
    fn a_connection_of_an_earlier_driver_does_not_matter() {
        let number = choose(PortChoice::Auto, "f").unwrap().number;
        let listener = TcpListener::bind(("127.0.0.1", number)).unwrap();
        let client = TcpStream::connect(("127.0.0.1", number)).unwrap();
        // The side that closes first keeps the connection in TIME_WAIT.
        drop(listener.accept().unwrap());
        drop(listener);
        drop(client);
        assert_eq!(choose(PortChoice::Number(number), "f").unwrap().number, number);
    }
}
