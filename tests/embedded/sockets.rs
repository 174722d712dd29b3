//! Web sockets: watches, and what clients may do wrong. That commands work is shown with third-party clients.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::protocol::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::{Message, WebSocket};

use crate::support::embedded::Embedded;
use crate::support::http::Client;
use crate::support::scene::TempDir;
use crate::support::server::{Server as _, Who};
use crate::support::wait::{PATIENCE, wait_for, wait_value};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

struct Cluster {
    server: Embedded,
    client: Client,
    /// `127.0.0.1:PORT`; it speaks plain HTTP.
    address: String,
}

impl Cluster {
    fn start() -> Self {
        let server = Embedded::start_with(&["--insecure-no-auth"]);
        let access = server.access(Who::Admin);
        let address = access.url.rsplit('/').next().unwrap().to_owned();
        Self { client: Client::new(&access, "test-admin"), server, address }
    }

    fn stream(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn web_socket(&self, path: &str, protocol: &str) -> WebSocket<TcpStream> {
        let mut request = format!("ws://{}{path}", self.address).into_client_request().unwrap();
        if !protocol.is_empty() {
            request.headers_mut().insert("sec-websocket-protocol", protocol.parse().unwrap());
        }
        tungstenite::client(request, self.stream()).unwrap().0
    }

    /// Creates a pod and waits until it runs.
    fn run(&self, name: &str) {
        self.client
            .post(
                PODS,
                &json!({"metadata": {"name": name}, "spec": {"containers": [
                    {"name": "c", "image": "x", "command": ["sleep", "600"]}]}}),
            )
            .ok();
        wait_value(PATIENCE, "the pod to run", || {
            let pod = self.client.get(&format!("{PODS}/{name}")).ok();
            if pod["status"]["phase"] == "Running" {
                Ok(())
            } else {
                Err(pod["status"].to_string())
            }
        });
    }
}

/// True if the server closes the connection. What it sent before is dropped.
fn ends(mut stream: TcpStream) -> bool {
    let mut piece = [0; 4096];
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn event(socket: &mut WebSocket<TcpStream>) -> Value {
    let message = socket.read().unwrap();
    assert!(message.is_text(), "{message:?}");
    serde_json::from_str(message.to_text().unwrap()).unwrap()
}

pub fn watches_are_messages_of_a_web_socket() {
    let cluster = Cluster::start();
    let map = |n: &str| json!({"metadata": {"name": "m"}, "data": {"n": n}});
    let version = cluster.client.get(MAPS).ok()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap();
    let path = format!("{MAPS}?watch=true&resourceVersion={version}");
    let mut socket = cluster.web_socket(&path, "");
    cluster.client.post(MAPS, &map("1")).ok();
    cluster.client.merge_patch(&format!("{MAPS}/m"), &map("2")).ok();
    cluster.client.delete(&format!("{MAPS}/m"), &json!({})).ok();
    for (kind, n) in [("ADDED", "1"), ("MODIFIED", "2"), ("DELETED", "2")] {
        let event = event(&mut socket);
        assert_eq!((&event["type"], &event["object"]["data"]["n"]), (&kind.into(), &n.into()));
    }
    // Several events at once are messages of their own, and the end is a proper one.
    let mut socket = cluster.web_socket(&format!("{path}&timeoutSeconds=1"), "");
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        assert_eq!(event(&mut socket)["type"], kind);
    }
    let normal = CloseFrame { code: CloseCode::Normal, reason: "".into() };
    assert_eq!(socket.read().unwrap(), Message::Close(Some(normal)));
    // A refused watch is an HTTP answer.
    let request = format!("ws://{}{MAPS}?watch=true&labelSelector=!!", cluster.address);
    match tungstenite::client(request, cluster.stream()) {
        Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(answer))) => {
            assert_eq!(answer.status(), 400);
        }
        other => panic!("{other:?}"),
    }
}

pub fn unknown_protocols_are_refused_with_the_known_ones() {
    let cluster = Cluster::start();
    cluster.run("a");
    let exec = format!("{PODS}/a/exec?command=true&stdout=true");
    let socket = "upgrade: websocket\r\nsec-websocket-protocol: channel.k8s.io\r\n";
    for (headers, says) in [
        (socket, "v5.channel.k8s.io"),
        // What kubectl before 1.31 speaks.
        ("upgrade: SPDY/3.1\r\n", "Upgrade request required"),
    ] {
        let mut stream = cluster.stream();
        let request = format!(
            "POST {exec} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\n{headers}connection: \
             close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        assert!(answer.starts_with("HTTP/1.1 400 "), "{headers}: {answer}");
        assert!(answer.contains(says), "{headers}: {answer}");
    }
}

pub fn garbage_ends_a_connection_and_nothing_else() {
    let cluster = Cluster::start();
    cluster.run("a");
    let exec = format!("{PODS}/a/exec?command=sleep&command=600&stdout=true");
    // Bytes that are no web socket's, and a message of 2 MiB.
    for bytes in [vec![0xFF; 32], [&[0x82, 0xFF, 0, 0, 0, 0, 0, 0x20, 0, 0][..], &[0; 9]].concat()]
    {
        for (path, protocol) in [(&exec, "v4.channel.k8s.io"), (&format!("{MAPS}?watch=true"), "")]
        {
            let socket = cluster.web_socket(path, protocol);
            let mut stream = socket.get_ref().try_clone().unwrap();
            stream.write_all(&bytes).unwrap();
            assert!(ends(stream), "{path}");
        }
    }
    cluster.client.get(&format!("{PODS}/a")).ok();
}

/// The command gets the rest of its input and a moment to end: clients that upload a file leave at once.
pub fn a_client_that_leaves_ends_its_command() {
    let cluster = Cluster::start();
    cluster.run("a");
    let dir = TempDir::new("left");
    let file = |name: &str| dir.path().join(name);
    let exec = |script: &str| {
        let query = format!(
            "command=sh&command=-c&command={}",
            utf8_percent_encode(script, NON_ALPHANUMERIC)
        );
        let path = format!("{PODS}/a/exec?{query}&stdin=true&stdout=true");
        cluster.web_socket(&path, "v4.channel.k8s.io")
    };
    let mut upload =
        exec(&format!("cat >{0}; mv {0} {1}", file("new").display(), file("all").display()));
    let message = [&[0], vec![b'x'; 32 << 10].as_slice()].concat();
    for _ in 0..16 {
        upload.send(Message::Binary(message.clone().into())).unwrap();
    }
    upload.close(None).unwrap();
    drop(upload);
    wait_for(PATIENCE, "the upload to end", || file("all").exists());
    assert_eq!(fs::metadata(file("all")).unwrap().len(), 16 * (32 << 10));

    let pid = file("pid");
    let stays = exec(&format!("echo $$ >{}; exec sleep 600", pid.display()));
    let process = wait_value(PATIENCE, "the command to run", || {
        let text = fs::read_to_string(&pid).unwrap_or_default();
        text.trim().parse::<u32>().map_err(|error| error.to_string())
    });
    drop(stays);
    let path = format!("/proc/{process}");
    wait_for(PATIENCE, "the command to end", || !fs::exists(&path).unwrap());
    drop(cluster.server);
}
