//! TLS and plain HTTP at one port of a cluster.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;

use posse_testing::trusting;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::dev::http::{Fixture, PATIENCE, eventually, start};

/// Connects to `name` and trusts the certificate of the cluster's config map.
fn connect(fixture: &Fixture, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
    let path = "/api/v1/namespaces/default/configmaps/kube-root-ca.crt";
    let map = fixture.object(path);
    let settings = trusting(map["data"]["ca.crt"].as_str().unwrap());
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let session = ClientConnection::new(settings, name).unwrap();
    let stream = TcpStream::connect(fixture.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(session, stream)
}

#[test]
fn both_tls_and_plain_clients_are_served_at_one_port() {
    let fixture = start(|options| options.simulate = true);
    for name in ["127.0.0.1", "::1", "localhost", "kubernetes.default.svc"] {
        let mut client = connect(&fixture, name);
        let body = "x".repeat(100_000);
        let length = body.len();
        write!(client, "POST /version HTTP/1.1\r\nhost: localhost\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\n\r\n")
            .unwrap();
        client.write_all(body.as_bytes()).unwrap();
        write!(client, "GET /version HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .unwrap();
        let mut answers = String::new();
        // The server sent close_notify: without it `read_to_string` returns an error.
        client.read_to_string(&mut answers).unwrap();
        assert!(answers.contains("gitVersion"), "{answers}");
        assert_eq!(answers.matches("HTTP/1.1 ").count(), 2, "{answers}");
    }
    let mut stranger = connect(&fixture, "example.org");
    assert!(stranger.write_all(b"GET /version HTTP/1.1\r\n\r\n").is_err());
    let mut broken = TcpStream::connect(fixture.address).unwrap();
    broken.write_all(&[HANDSHAKE, 3, 1, 0, 4, 1, 2, 3, 4]).unwrap();
    let mut rest = Vec::new();
    let _ = broken.read_to_end(&mut rest);
    assert!(!rest.starts_with(b"HTTP"), "{rest:?}");
}

/// The TLS record type of a handshake.
const HANDSHAKE: u8 = 0x16;

#[test]
fn a_watch_ends_when_its_client_sends_close_notify() {
    let fixture = start(|options| options.simulate = true);
    let mut client = connect(&fixture, "localhost");
    let path = "/api/v1/namespaces/default/pods?watch=true";
    write!(client, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut first = [0; 12];
    client.read_exact(&mut first).unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    client.conn.send_close_notify();
    client.flush().unwrap();
    // The connection's other half stays open: only close_notify ends the watch.
    let mut rest = Vec::new();
    let end = eventually("the end of the watch", || match client.sock.read_to_end(&mut rest) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        end => Some(end),
    });
    assert!(end.is_ok(), "{end:?}");
}
