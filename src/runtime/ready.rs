//! Owns the waiting for `driver.ready: tcp:PORT`: tries to connect until somebody accepts.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use log::{debug, info};

use crate::core::model::input::Input;
use crate::runtime::inbox::Message;

const TRY_EVERY: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A probe under way; dropping it ends it.
#[derive(Debug)]
pub struct ReadyProbe {
    _stop: Sender<()>,
}

impl ReadyProbe {
    /// Probes `host:port` and tells the inbox once that it accepts.
    ///
    /// # Errors
    /// No thread is to be had.
    pub fn start(address: String, inbox: Sender<Message>) -> io::Result<Self> {
        let (stop, stopped) = bounded(0);
        thread::Builder::new()
            .name("ready".to_owned())
            .spawn(move || probe(&address, &inbox, &stopped))?;
        Ok(Self { _stop: stop })
    }
}

fn probe(address: &str, inbox: &Sender<Message>, stopped: &Receiver<()>) {
    // Ends with the first accept, or when the probe is dropped: the channel is closed then.
    while stopped.recv_timeout(TRY_EVERY) == Err(RecvTimeoutError::Timeout) {
        match accepts(address) {
            Ok(()) => {
                info!("the driver accepts connections at {address}");
                // The loop is over where nobody takes it.
                let _ = inbox.send(Message::Input(Input::DriverReady));
                return;
            }
            Err(error) => debug!("the driver does not accept yet at {address}: {error}"),
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
    fn tells_once_when_somebody_accepts() {
        let (sender, inbox) = bounded(4);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let probe = ReadyProbe::start(address.clone(), sender).unwrap();
        assert!(inbox.recv_timeout(Duration::from_millis(300)).is_err(), "nobody listens yet");
        let _listener = TcpListener::bind(address).unwrap();
        let message = inbox.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(matches!(message, Message::Input(Input::DriverReady)));
        drop(probe);
        assert!(inbox.recv_timeout(Duration::from_secs(10)).is_err(), "told once");
    }
}
