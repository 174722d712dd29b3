//! The readiness probe for `driver.ready: tcp:PORT`: connects until the driver accepts.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info};

use crate::core::model::input::Input;
use crate::runtime::inbox::Message;

const PROBE_INTERVAL: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A running probe. Dropping it ends the probe.
#[derive(Debug)]
pub struct ReadyProbe {
    _stop: Sender<()>,
}

impl ReadyProbe {
    /// Probes `host:port`, and sends `Input::DriverReady` to the inbox after the first success.
    pub fn start(address: String, inbox: Sender<Message>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        thread::Builder::new()
            .name("ready".to_owned())
            .spawn(move || probe(&address, &inbox, &stopped))?;
        Ok(Self { _stop: stop })
    }
}

fn probe(address: &str, inbox: &Sender<Message>, stopped: &Receiver<()>) {
    // Ends after the first success, or when the channel is closed because the probe was dropped.
    while stopped.recv_timeout(PROBE_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        match accepts(address) {
            Ok(()) => {
                info!("the driver accepts connections at {address}");
                // The send fails if the run has ended.
                let _ = inbox.send(Message::Input(Input::DriverReady));
                return;
            }
            Err(error) => {
                debug!("the driver does not accept connections at {address} yet: {error}")
            }
        }
    }
}

fn accepts(address: &str) -> io::Result<()> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for socket in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, CONNECT_TIMEOUT) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_first_success_is_reported_once() {
        let (sender, inbox) = bounded(4);
        // Not 127.0.0.1: another test could be given the port meanwhile.
        let listener = TcpListener::bind("127.77.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let probe = ReadyProbe::start(address.clone(), sender).unwrap();
        assert!(inbox.recv_timeout(Duration::from_millis(300)).is_err(), "not listening yet");
        let _listener = TcpListener::bind(address).unwrap();
        let message = inbox.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(message, Message::Input(Input::DriverReady)));
        drop(probe);
        assert!(inbox.recv_timeout(Duration::from_secs(10)).is_err(), "reported once");
    }
}
