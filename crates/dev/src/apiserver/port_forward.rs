//! The subresource `pods/portforward`: connections to the ports of a pod. Each one is a pair of SPDY
//! streams (kubectl, directly or in a web socket's messages) or of a web socket's channels.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::apiserver::api::Api;
use crate::apiserver::exec_subresource::send;
use crate::apiserver::spdy::{self, Event, Spdy};
use crate::apiserver::web_socket::{self, Socket, wait_ready};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::StatusError;
use crate::storage::object::{Object, text_at};
use posse_serve::{Request, Responder};

/// The protocol of SPDY streams.
const SPDY_PROTOCOL: &str = "portforward.k8s.io";
/// SPDY in a web socket's messages (KEP-4006).
const TUNNEL_PROTOCOL: &str = "SPDY/3.1+portforward.k8s.io";
/// Two channels for each port of the query: data and errors.
const CHANNEL_PROTOCOL: &str = "v4.channel.k8s.io";

/// Open connections of one client.
const CONNECTIONS_MAX: usize = 128;
/// The ports that a client of web socket channels may name: there are 256 channels.
const PORTS_MAX: usize = 128;
/// A connection on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the pod's end is looked for.
const TICK: Duration = Duration::from_millis(500);
/// A pod's bytes are read in pieces of this size.
const PIECE_BYTES: usize = 32 << 10;
/// What is read of the client before the pod is looked at again.
const EVENTS_MAX: usize = 64;
/// The client is not read while this much waits for a pod.
const PENDING_BYTES_MAX: usize = 256 << 10;

/// A request for a pod's ports.
#[derive(Debug)]
pub(crate) struct PortForward {
    key: Key,
    uid: Box<str>,
    /// Those of the query, for web socket channels.
    ports: Vec<u16>,
}

pub(crate) fn answer(api: &Api, request: &Request, key: &Key) -> Result<PortForward, StatusError> {
    let object = api.lock().store.get(key).cloned();
    let object = object.ok_or_else(|| StatusError::not_found(Kind::Pod, &key.name))?;
    let bad = |message: String| StatusError::bad_request(message);
    if object.node().is_empty() {
        return Err(bad(format!("pod {} does not have a host assigned", key.name)));
    }
    if !web_socket::is_wanted(request) && !spdy::is_wanted(request) {
        return Err(bad("Upgrade request required".to_owned()));
    }
    let ports = request.queries("ports").flat_map(|ports| ports.split(','));
    let ports: Option<Vec<u16>> =
        ports.map(|port| port.parse().ok().filter(|port| *port > 0)).collect();
    let ports = ports.filter(|ports| ports.len() <= PORTS_MAX);
    let ports =
        ports.ok_or_else(|| bad("query parameter \"ports\" must be port numbers".into()))?;
    Ok(PortForward { key: key.clone(), uid: object.uid.clone(), ports })
}

/// The client's end.
enum Client {
    Spdy(Spdy),
    Channels(Socket),
}

/// A connection to the pod. The client knows it by two numbers of streams or channels.
struct Connection {
    data: u32,
    error: u32,
    pod: TcpStream,
    /// Bytes that the pod has not taken yet.
    pending: Vec<u8>,
    /// The client sends no more.
    is_last: bool,
}

struct Session {
    client: Client,
    connections: Vec<Connection>,
    /// Error streams that came before their data streams, with the header `requestID` of both.
    errors: Vec<(String, u32)>,
}

impl PortForward {
    /// Forwards until the client leaves or the pod ends.
    pub(crate) fn serve(
        &self,
        api: &Api,
        request: &Request,
        responder: Responder<'_>,
    ) -> io::Result<()> {
        let offers = |protocol| web_socket::protocols(request).any(|one| one == protocol);
        // kr8s names no protocol, and means the channels.
        let channels = match web_socket::protocols(request).next() {
            Some(_) => offers(CHANNEL_PROTOCOL).then_some(CHANNEL_PROTOCOL),
            None => Some(""),
        };
        let is_socket = web_socket::is_wanted(request);
        let client = if is_socket && offers(TUNNEL_PROTOCOL) {
            Client::Spdy(Spdy::in_messages(Socket::accept(request, TUNNEL_PROTOCOL, responder)?))
        } else if let Some(protocol) = channels.filter(|_| is_socket && !self.ports.is_empty()) {
            Client::Channels(Socket::accept(request, protocol, responder)?)
        } else if !is_socket && spdy::offers(request, SPDY_PROTOCOL) {
            Client::Spdy(Spdy::accept(SPDY_PROTOCOL, responder)?)
        } else {
            let why = format!(
                "unable to upgrade: the protocols are {SPDY_PROTOCOL} of SPDY/3.1, \
                 {TUNNEL_PROTOCOL}, and {CHANNEL_PROTOCOL} with the query parameter \"ports\""
            );
            return send(&StatusError::bad_request(why), responder);
        };
        let mut session = Session { client, connections: Vec::new(), errors: Vec::new() };
        match session.run(self, api) {
            Ok(()) => session.client.close(),
            Err(error) => {
                log::debug!("the client of forwarded ports has left: {error}");
                Ok(())
            }
        }
    }

    /// The pod, while it runs.
    fn pod(&self, api: &Api) -> Option<Arc<Object>> {
        let object = api.lock().store.get(&self.key).cloned();
        object.filter(|object| object.uid == self.uid && !object.is_terminal())
    }

    /// Servers that listen on localhost only are on the machine's address: pods have no network of
    /// their own.
    fn connect(&self, api: &Api, port: u16) -> Result<TcpStream, String> {
        let to =
            |address: IpAddr| TcpStream::connect_timeout(&(address, port).into(), CONNECT_TIMEOUT);
        let pod = self.pod(api).ok_or_else(|| "the pod is not running".to_owned());
        let connected = pod.and_then(|pod| {
            let ip = text_at(&pod.value(), "/status/podIP").parse().unwrap_or(LOOPBACK);
            to(ip)
                .or_else(|_| to(LOOPBACK))
                .map_err(|error| format!("dial tcp {ip}:{port}, then {LOOPBACK}:{port}: {error}"))
        });
        let ready = connected.and_then(|stream| {
            stream.set_nonblocking(true).map(|()| stream).map_err(|error| error.to_string())
        });
        // The kubelet's words.
        ready.map_err(|why| {
            format!(
                "error forwarding port {port} to pod {}, uid {}: {why}",
                self.key.name, self.uid
            )
        })
    }
}

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Session {
    fn run(&mut self, forward: &PortForward, api: &Api) -> io::Result<()> {
        let mut is_open = true;
        if let Client::Channels(socket) = &mut self.client {
            for (channel, port) in (0..=u8::MAX).step_by(2).zip(&forward.ports) {
                socket.send_on(channel, &port.to_le_bytes())?;
                socket.send_on(channel + 1, &port.to_le_bytes())?;
            }
            for (data, port) in (0..).step_by(2).zip(&forward.ports) {
                self.open(forward, api, *port, data, data + 1)?;
            }
        }
        while is_open && forward.pod(api).is_some() {
            let is_all = self.take_input(forward, api)?;
            self.feed();
            let may_read = !is_all && !self.is_full();
            let ready = self.wait(if may_read { Duration::ZERO } else { TICK })?;
            self.send_output(&ready)?;
            // The kubelet closes a web socket when its connections are over.
            is_open = matches!(self.client, Client::Spdy(_)) || !self.connections.is_empty();
        }
        Ok(())
    }

    /// Connects to the pod, or tells the client why that is impossible.
    fn open(
        &mut self,
        forward: &PortForward,
        api: &Api,
        port: u16,
        data: u32,
        error: u32,
    ) -> io::Result<()> {
        match forward.connect(api, port) {
            Ok(pod) => {
                let pending = Vec::new();
                self.connections.push(Connection { data, error, pod, pending, is_last: false });
                Ok(())
            }
            Err(why) => {
                self.client.send(error, why.as_bytes(), true)?;
                self.client.send(data, &[], true)
            }
        }
    }

    fn is_full(&self) -> bool {
        self.connections.iter().any(|one| one.pending.len() >= PENDING_BYTES_MAX)
    }

    /// Takes input while there is room; true if no more has arrived.
    fn take_input(&mut self, forward: &PortForward, api: &Api) -> io::Result<bool> {
        for _ in 0..EVENTS_MAX {
            if self.is_full() {
                break;
            }
            match self.client.read_now() {
                Ok(Event::Opened(stream, headers)) => {
                    let header = |name: &str| {
                        let found = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
                        found.map(|(_, value)| value.clone()).unwrap_or_default()
                    };
                    let request = header("requestID");
                    if self.connections.len() + self.errors.len() >= CONNECTIONS_MAX {
                        return Err(io::Error::other("the client opens too many connections"));
                    }
                    if header("streamType") == "error" {
                        self.errors.push((request, stream));
                        continue;
                    }
                    let error = self.errors.iter().position(|(id, _)| *id == request);
                    let error = error.map(|at| self.errors.swap_remove(at).1);
                    match (error, header("port").parse()) {
                        (Some(error), Ok(port)) => self.open(forward, api, port, stream, error)?,
                        _ => self.client.send(stream, &[], true)?,
                    }
                }
                Ok(Event::Data(stream, bytes, is_last)) => {
                    if let Some(known) = self.connections.iter_mut().find(|one| one.data == stream)
                    {
                        known.pending.extend_from_slice(&bytes);
                        known.is_last |= is_last;
                    }
                }
                Ok(Event::Reset(stream)) => {
                    self.connections.retain(|one| one.data != stream);
                    self.errors.retain(|(_, error)| *error != stream);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Gives the pod what it can take.
    fn feed(&mut self) {
        for one in &mut self.connections {
            while !one.pending.is_empty() {
                match one.pod.write(&one.pending) {
                    Ok(n) => drop(one.pending.drain(..n)),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    // The pod reads no more; the end of its side follows.
                    Err(_) => one.pending.clear(),
                }
            }
            if one.pending.is_empty() && std::mem::take(&mut one.is_last) {
                // An error means that the connection has ended.
                let _ = one.pod.shutdown(Shutdown::Write);
            }
        }
    }

    /// Waits until something can be read or written; says which connections can be read.
    fn wait(&self, at_most: Duration) -> io::Result<Vec<bool>> {
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(self.connections.len() + 1);
        for one in &self.connections {
            let writes = if one.pending.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::new(&one.pod, PollFlags::IN | writes));
        }
        if !self.is_full() {
            match &self.client {
                Client::Spdy(spdy) => fds.push(PollFd::new(spdy, PollFlags::IN)),
                Client::Channels(socket) => fds.push(PollFd::new(socket, PollFlags::IN)),
            }
        }
        wait_ready(&mut fds, at_most)?;
        let can_read =
            |fd: &PollFd<'_>| fd.revents().difference(PollFlags::OUT) != PollFlags::empty();
        Ok(fds.iter().take(self.connections.len()).map(can_read).collect())
    }

    fn send_output(&mut self, ready: &[bool]) -> io::Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut still_open = Vec::new();
        for (mut one, is_ready) in std::mem::take(&mut self.connections).into_iter().zip(ready) {
            if !is_ready {
                still_open.push(one);
                continue;
            }
            match one.pod.read(&mut piece) {
                Ok(n) if n > 0 => {
                    self.client.send(one.data, piece.get(..n).unwrap_or_default(), false)?;
                    still_open.push(one);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => still_open.push(one),
                Ok(_) | Err(_) => {
                    self.client.send(one.data, &[], true)?;
                    self.client.send(one.error, &[], true)?;
                }
            }
        }
        self.connections = still_open;
        Ok(())
    }
}

impl Client {
    fn read_now(&mut self) -> io::Result<Event> {
        match self {
            Self::Spdy(spdy) => spdy.read_now(),
            Self::Channels(socket) => {
                let message = socket.read_now()?;
                let (channel, bytes) = message.split_first().unwrap_or((&u8::MAX, &[]));
                Ok(Event::Data(u32::from(*channel), bytes.to_vec(), false))
            }
        }
    }

    fn send(&mut self, stream: u32, bytes: &[u8], is_last: bool) -> io::Result<()> {
        match self {
            Self::Spdy(spdy) => spdy.send(stream, bytes, is_last),
            // Channels have no end of their own.
            Self::Channels(_) if bytes.is_empty() => Ok(()),
            Self::Channels(socket) => {
                socket.send_on(u8::try_from(stream).map_err(io::Error::other)?, bytes)
            }
        }
    }

    fn close(self) -> io::Result<()> {
        match self {
            Self::Spdy(spdy) => spdy.close(),
            Self::Channels(socket) => socket.close(),
        }
    }
}
