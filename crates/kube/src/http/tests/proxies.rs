//! Requests, streams and WebSockets through every kind of proxy.

use std::io::ErrorKind;
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tungstenite::handshake::derive_accept_key;

use super::*;
use crate::config::proxy;
use crate::http::transfer::{Authorities, Peer, Transfer};
use crate::http::websocket::Received;
use crate::testing::sources;

/// How long a proxy waits for one side before it looks at the other one.
const STEP: Duration = Duration::from_millis(5);

trait ReadWrite: std::io::Read + std::io::Write {}
impl<T: std::io::Read + std::io::Write> ReadWrite for T {}

/// A CONNECT proxy, with TLS if there are settings. It reports the head of each request; with `refuses` it answers 407.
fn connect_proxy(
    tls: Option<Arc<ServerConfig>>,
    refuses: bool,
) -> (SocketAddr, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, asked_for) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let (asked, tls) = (asked.clone(), tls.clone());
            thread::spawn(move || serve_connect(client, tls, refuses, &asked));
        }
    });
    (address, asked_for)
}

fn serve_connect(
    client: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    refuses: bool,
    asked: &mpsc::Sender<String>,
) -> Option<()> {
    let socket = client.try_clone().unwrap();
    let mut client: Box<dyn ReadWrite> = match tls {
        Some(tls) => Box::new(StreamOwned::new(ServerConnection::new(tls).unwrap(), client)),
        None => Box::new(client),
    };
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    // The test may be over.
    let _ = asked.send(head);
    if refuses {
        return client.write_all(b"HTTP/1.1 407 No\r\n\r\n").ok();
    }
    let server = TcpStream::connect(target).unwrap();
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").ok()?;
    client.flush().ok()?;
    tunnel(&mut *client, &socket, server)
}

/// A SOCKS5 proxy that alone knows `kube.invalid`. It reports the kind of each address: 1 is IPv4, 3 a name.
fn socks_proxy() -> (SocketAddr, mpsc::Receiver<u8>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, asked_for) = mpsc::channel();
    thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let asked = asked.clone();
            thread::spawn(move || serve_socks(client, &asked));
        }
    });
    (address, asked_for)
}

fn serve_socks(mut client: TcpStream, asked: &mpsc::Sender<u8>) -> Option<()> {
    let mut greeting = [0; 2];
    client.read_exact(&mut greeting).ok()?;
    client.read_exact(&mut vec![0; usize::from(greeting[1])]).ok()?;
    client.write_all(&[5, 0]).ok()?;
    let mut request = [0; 4];
    client.read_exact(&mut request).ok()?;
    let host = match request[3] {
        1 => {
            let mut ip = [0; 4];
            client.read_exact(&mut ip).ok()?;
            std::net::Ipv4Addr::from(ip).to_string()
        }
        3 => {
            let mut length = [0];
            client.read_exact(&mut length).ok()?;
            let mut name = vec![0; usize::from(length[0])];
            client.read_exact(&mut name).ok()?;
            String::from_utf8(name).unwrap().replace("kube.invalid", "127.0.0.1")
        }
        other => panic!("an address of kind {other}"),
    };
    let mut port = [0; 2];
    client.read_exact(&mut port).ok()?;
    let _ = asked.send(request[3]);
    let server = TcpStream::connect((host.as_str(), u16::from_be_bytes(port))).unwrap();
    client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).ok()?;
    let socket = client.try_clone().unwrap();
    tunnel(&mut client, &socket, server)
}

/// Passes bytes in both directions until one side ends. `socket` is that of the client.
fn tunnel(client: &mut dyn ReadWrite, socket: &TcpStream, mut server: TcpStream) -> Option<()> {
    socket.set_read_timeout(Some(STEP)).unwrap();
    server.set_read_timeout(Some(STEP)).unwrap();
    let mut bytes = [0; 16 << 10];
    let has_more = |read: std::io::Result<usize>| match read {
        Ok(0) => None,
        Ok(n) => Some(n),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Some(0),
        Err(_) => None,
    };
    loop {
        let n = has_more(client.read(&mut bytes))?;
        server.write_all(&bytes[..n]).ok()?;
        let n = has_more(server.read(&mut bytes))?;
        client.write_all(&bytes[..n]).ok()?;
        client.flush().ok()?;
    }
}

/// Answers requests, and opens WebSockets that say `ok`.
fn answer(seen: &posse_testing::Seen) -> Answer {
    let Some(key) = seen.header("sec-websocket-key") else { return ok("{}") };
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Protocol: p\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    Answer::Stall([head.as_bytes(), &[0x82, 2], b"ok"].concat())
}

/// A request, a stream and a WebSocket.
#[track_caller]
fn check_all(http: &Http) {
    assert_eq!(get(http).unwrap().status, 200);
    let mut stream =
        http.open_stream("/logs", STREAM_HEAD_TIMEOUT, Duration::from_secs(20)).unwrap();
    let mut text = String::new();
    stream.reader().read_to_string(&mut text).unwrap();
    assert_eq!(text, "{}");
    let (mut socket, protocol) = http.open_websocket("/exec", &["p"], None).unwrap();
    assert_eq!(protocol, "p");
    assert_eq!(socket.read(Duration::from_secs(60)).unwrap(), Received::Message(b"ok"[..].into()));
}

fn through(cluster: &Cluster, url: &str) -> Http {
    Http::connect(Cluster { proxy: Some(proxy::parse(url).unwrap()), ..cluster.clone() }).unwrap()
}

#[test]
fn http_proxies_pass_on_requests_and_websockets() {
    let (folder, authority) = (Folder::new(), Authority::new());
    folder.write("ca", &authority.pem);
    let names = ["kube.internal", "127.0.0.1"];
    let server = TestServer::start(Some(authority.server(&names, &BOTH, None)), answer);
    let named =
        Cluster { tls_server_name: Some("kube.internal".to_owned()), ..cluster(&server, &folder) };
    for tls in [None, Some(authority.server(&["127.0.0.1"], &BOTH, None))] {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (address, asked_for) = connect_proxy(tls, false);
        let http = through(&named, &format!("{scheme}://me:p%40s%2Fs@{address}"));
        check_all(&http);
        for head in asked_for.try_iter() {
            // The proxy gets the server's address, not the name in the certificate.
            assert!(head.starts_with(&format!("CONNECT {} ", server.address)), "{head}");
            assert!(head.contains("Proxy-Authorization: Basic bWU6cEBzL3M=\r\n"), "{head}");
        }
        assert_eq!(server.wait().header("proxy-authorization"), None);
    }
}

#[test]
fn an_https_proxy_has_a_certificate_of_its_own() {
    let (folder, authority, other) = (Folder::new(), Authority::new(), Authority::new());
    folder.write("ca", &authority.pem);
    let server = TestServer::start(Some(authority.server(&["127.0.0.1"], &BOTH, None)), answer);
    let (address, _asked_for) =
        connect_proxy(Some(other.server(&["127.0.0.1"], &BOTH, None)), false);
    let untrusted = through(&cluster(&server, &folder), &format!("https://{address}"));
    let outcome = get(&untrusted);
    let Err(TransportError::Tls { problem, remedy }) = &outcome else { panic!("{outcome:?}") };
    assert!(problem.contains("the proxy: ") && problem.contains("UnknownIssuer"), "{problem}");
    assert!(remedy.contains("the proxy's certificate"), "{remedy}");
    // The authorities of the kubeconfig are for both.
    folder.write("ca", format!("{}{}", authority.pem, other.pem));
    check_all(&through(&cluster(&server, &folder), &format!("https://{address}")));
}

#[test]
fn a_proxy_that_refuses_is_named() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], answer);
    let (address, _asked_for) = connect_proxy(None, true);
    let http = through(&cluster(&server, &folder), &format!("http://me:s3cr3t@{address}"));
    let outcome = http_post(&http);
    assert_not_sent(outcome.clone(), "407");
    let named = format!(" (through the proxy {address})");
    assert_not_sent(outcome.clone(), &named);
    let opened = http.open_websocket("/exec", &["p"], None).map(drop);
    let said = format!("{opened:?}");
    assert!(said.contains("407") && said.to_lowercase().contains("proxy"), "{said}");
    assert!(!format!("{http:?}{outcome:?}{said}").contains("s3cr3t"));
}

#[test]
fn a_proxy_that_is_away_is_named() {
    let folder = Folder::new();
    let server = secure(&folder, &["127.0.0.1"], answer);
    let ca = std::fs::read_to_string(folder.path().join("ca")).unwrap();
    // Not 127.0.0.1: another test could be given the port meanwhile.
    let closed = TcpListener::bind("127.77.0.2:0").unwrap().local_addr().unwrap();
    for url in [format!("http://me:s3cr3t@{closed}"), format!("socks5://{closed}")] {
        let http = through(&cluster(&server, &folder), &url);
        let named = format!(" (through the proxy {closed})");
        assert_not_sent(get(&http), &named);
        let opened = format!("{:?}", http.open_websocket("/exec", &["p"], None).map(drop));
        assert!(opened.contains(&named), "{opened}");
        let env = |name: &str| (name == "HTTPS_PROXY").then(|| url.clone());
        let peer = Peer {
            url: "https://stage.example.com".to_owned(),
            authorities: Authorities::Given(ca.clone()),
            insecure: false,
        };
        let transfer = Transfer::new(&sources(None, &env), &peer).unwrap();
        let told = transfer.get("/f", "t", 0).map(drop).unwrap_err().to_string();
        assert!(told.ends_with(&named), "{told}");
        let said = http.shared.cluster.to_string();
        assert!(said.contains(&format!(", through the proxy {closed}, ")), "{said}");
    }
}

#[test]
fn socks_proxies_pass_on_requests_and_websockets() {
    let (folder, authority) = (Folder::new(), Authority::new());
    folder.write("ca", &authority.pem);
    let server = TestServer::start(Some(authority.server(&["kube.invalid"], &BOTH, None)), answer);
    let url = format!("https://kube.invalid:{}/prefix", server.address.port());
    let named = Cluster { server: Server::parse(&url).unwrap(), ..cluster(&server, &folder) };
    for scheme in ["socks5", "socks5h", "SOCKS5"] {
        let (address, asked_for) = socks_proxy();
        check_all(&through(&named, &format!("{scheme}://{address}")));
        assert!(asked_for.try_iter().all(|asked| asked == 3), "{scheme}");
    }
}
