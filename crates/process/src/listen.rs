//! Opens a TCP port and becomes a program that gets it as an open socket, as programs get theirs from
//! systemd (sd_listen_fds(3)).

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};

/// The hidden command of this program that does it.
pub const COMMAND: &str = "listen";
/// Programs look for the socket at this file descriptor (SD_LISTEN_FDS_START).
const SOCKET_FD: RawFd = 3;

/// Listens at `address`, which is `host:port`, and becomes the program: the process stays the same.
///
/// # Errors
/// The port cannot be opened, or the program cannot be executed.
pub fn exec(address: &str, command: &[OsString]) -> Result<Infallible, String> {
    let [program, args @ ..] = command else { return Err("no program is named".to_owned()) };
    let listener = TcpListener::bind(address)
        .map_err(|error| format!("driver.ready: socket: {address} cannot be opened: {error}"))?;
    let socket = OwnedFd::from(listener);
    // The lowest free one. posse itself has no other file open here.
    if socket.as_raw_fd() != SOCKET_FD {
        return Err(format!(
            "driver.ready: socket: posse was started with file descriptor {SOCKET_FD} open, where the driver expects \
             its socket"
        ));
    }
    fcntl_setfd(&socket, FdFlags::empty()).map_err(|error| format!("socket: {error}"))?;
    let mut command = Command::new(program);
    command.args(args).env("LISTEN_FDS", "1").env("LISTEN_PID", std::process::id().to_string());
    let error = command.env_remove("LISTEN_FDNAMES").exec();
    Err(format!("cannot start {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_taken_port_and_a_taken_descriptor_are_errors() {
        let held = TcpListener::bind("127.77.0.1:0").unwrap();
        let command = ["true".into()];
        let refused = exec(&held.local_addr().unwrap().to_string(), &command).unwrap_err();
        assert!(refused.contains("cannot be opened: Address already in use"), "{refused}");
        let _taken = File::open("/dev/null").unwrap();
        let refused = exec("127.77.0.1:0", &command).unwrap_err();
        assert!(refused.contains("file descriptor 3 open"), "{refused}");
        assert_eq!(exec("127.77.0.1:0", &[]), Err("no program is named".to_owned()));
    }
}
