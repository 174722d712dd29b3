//! Clusters in the process of the tests, and a plain HTTP client for them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use posse_dev::{Cluster, Options};
use posse_testing::Wait;
use serde_json::{Value, json};

pub const PODS: &str = "/api/v1/namespaces/default/pods";
pub const JSON: &str = "application/json";
pub const MERGE: &str = "application/merge-patch+json";

/// Much longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A complete answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
    /// False if the connection was cut before the end of the answer.
    pub whole: bool,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| Value::String(self.body.clone()))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// Sends one request on its own connection.
pub fn send(address: SocketAddr, method: &str, path: &str, body: Option<(&str, &str)>) -> Reply {
    read_reply(&mut request(address, method, path, body))
}

/// Sends one request on its own connection and returns the unread answer.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: Option<(&str, &str)>,
) -> BufReader<TcpStream> {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n");
    if let Some((media_type, text)) = body {
        head.push_str(&format!("content-type: {media_type}\r\ncontent-length: {}\r\n", text.len()));
    }
    head.push_str("\r\n");
    head.push_str(body.map(|(_, text)| text).unwrap_or_default());
    stream.write_all(head.as_bytes()).expect("the server reads");
    BufReader::new(stream)
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer");
    line.trim_end().to_owned()
}

pub fn read_reply(reader: &mut impl BufRead) -> Reply {
    let status = line(reader).split(' ').nth(1).and_then(|code| code.parse().ok());
    let mut headers = Vec::new();
    loop {
        let line = line(reader);
        let Some((name, value)) = line.split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut reply =
        Reply { status: status.expect("a status"), headers, body: String::new(), whole: true };
    let mut bytes = Vec::new();
    if reply.header("transfer-encoding").is_some() {
        reply.whole = read_chunks(reader, &mut bytes);
    } else {
        let length = reply.header("content-length").and_then(|length| length.parse().ok());
        reader.take(length.unwrap_or(0)).read_to_end(&mut bytes).expect("a body");
    }
    reply.body = String::from_utf8(bytes).expect("text");
    reply
}

/// False if the last chunk is missing.
fn read_chunks(reader: &mut impl BufRead, bytes: &mut Vec<u8>) -> bool {
    loop {
        let head = line(reader);
        let Ok(length) = u64::from_str_radix(&head, 16) else { return false };
        if length == 0 {
            return true;
        }
        reader.take(length).read_to_end(bytes).expect("a chunk");
        line(reader);
    }
}

/// Calls `ask` until it returns a value; panics after `PATIENCE`.
#[track_caller]
pub fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let mut wait = Wait::new(what, PATIENCE);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(wait.goes_on(), "{what} did not come about");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A cluster without authentication.
pub struct Fixture {
    // Stopped when dropped.
    pub cluster: Cluster,
    pub address: SocketAddr,
}

/// Starts a cluster with changed options.
pub fn start(change: impl FnOnce(&mut Options)) -> Fixture {
    // Containers run under a supervisor, which is posse itself and not this test program.
    let runner = Some(env!("CARGO_BIN_EXE_posse").into());
    let mut options = Options { insecure_no_auth: true, runner, ..Options::default() };
    change(&mut options);
    let cluster = Cluster::start(options).expect("a cluster");
    let address = cluster.url().trim_start_matches("https://").parse().expect("an address");
    Fixture { cluster, address }
}

impl Fixture {
    pub fn get(&self, path: &str) -> Reply {
        send(self.address, "GET", path, None)
    }

    pub fn delete(&self, path: &str) -> Reply {
        send(self.address, "DELETE", path, None)
    }

    pub fn post(&self, path: &str, body: &Value) -> Reply {
        send(self.address, "POST", path, Some((JSON, &body.to_string())))
    }

    #[track_caller]
    pub fn created(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body);
        assert_eq!(reply.status, 201, "{}", reply.body);
        reply.json()
    }

    /// Creates a pod.
    #[track_caller]
    pub fn create(&self, pod: &Value) -> Value {
        self.created(PODS, pod)
    }

    #[track_caller]
    pub fn patch(&self, path: &str, patch: &Value) {
        let reply = send(self.address, "PATCH", path, Some((MERGE, &patch.to_string())));
        assert_eq!(reply.status, 200, "{}", reply.body);
    }

    pub fn object(&self, path: &str) -> Value {
        self.get(path).json()
    }

    pub fn items(&self, path: &str) -> Vec<Value> {
        self.object(path)["items"].as_array().cloned().unwrap_or_default()
    }

    #[track_caller]
    pub fn until(&self, path: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let mut last = Value::Null;
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(&format!("{path}: {what}"), || {
                last = self.object(path);
                is(&last).then(|| last.clone())
            })
        }));
        found.unwrap_or_else(|_| panic!("{path}: {what}: {}", last["status"]))
    }

    #[track_caller]
    pub fn pod(&self, name: &str, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until(&format!("{PODS}/{name}"), what, is)
    }

    #[track_caller]
    pub fn in_phase(&self, name: &str, phase: &str) -> Value {
        self.pod(name, phase, |pod| pod["status"]["phase"] == phase)
    }

    #[track_caller]
    pub fn gone(&self, name: &str) {
        self.pod(name, "gone", |reply| reply["code"] == 404);
    }

    pub fn log(&self, name: &str, query: &str) -> String {
        self.get(&format!("{PODS}/{name}/log?{query}")).body
    }
}

/// A condition of an object; `null` if there is none.
pub fn condition<'a>(object: &'a Value, name: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == name);
    found.unwrap_or(&Value::Null)
}

pub fn is_ready(object: &Value) -> bool {
    condition(object, "Ready")["status"] == "True"
}

/// `$$` in a script stands for `$`, as in every command of a pod.
pub fn container(name: &str, script: &str) -> Value {
    json!({ "name": name, "image": "none", "command": ["sh", "-c", script] })
}

pub fn pod(name: &str, script: &str) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 30,
            "containers": [container("c", script)],
        },
    })
}

/// The status of the main container.
pub fn status(pod: &Value) -> &Value {
    &pod["status"]["containerStatuses"][0]
}
