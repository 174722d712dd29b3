//! Attacks on the embedded cluster's port by other users of the machine and by web pages in the user's
//! browser. Each tries to create a pod, that is, to run a command as the user. `.ci/browser` repeats
//! those of web pages in a real browser; `docs/SECURITY.md` lists all.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use posse_testing::trusting;
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};
use serde_json::{Value, json};

use crate::support::access::Access;
use crate::support::embedded::Embedded;
use crate::support::http::Client;
use crate::support::posse::command;
use crate::support::reaper::Guarded;
use crate::support::scene::TempDir;
use crate::support::server::{Server, Who};
use crate::support::wait::{PATIENCE, wait_value};

const PODS: &str = "/api/v1/namespaces/default/pods";
const JSON: &str = "content-type: application/json\r\n";

/// How an attacker speaks to the port.
#[derive(Clone, Copy, Debug)]
enum Wire {
    Plain,
    Tls,
}

struct Door {
    cluster: Embedded,
    access: Access,
    /// `127.0.0.1:PORT`
    address: String,
}

impl Door {
    fn open(args: &[&str]) -> Self {
        let cluster = Embedded::start_with(&[&["--simulate"], args].concat());
        let access = cluster.access(Who::Admin);
        let address = access.url.rsplit('/').next().unwrap().to_owned();
        Self { cluster, access, address }
    }

    /// Sends bytes and returns the whole answer.
    fn raw(&self, wire: Wire, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        // The server may refuse before it has read all, and then cut the connection.
        match wire {
            Wire::Plain => {
                let _ = stream.write_all(request.as_bytes());
                let _ = stream.read_to_string(&mut answer);
            }
            Wire::Tls => {
                let mut tls = StreamOwned::new(self.session(), stream);
                let _ = tls.write_all(request.as_bytes());
                let _ = tls.read_to_string(&mut answer);
            }
        }
        answer
    }

    /// Trusts the cluster, as an attacker may who ignores its certificate.
    fn session(&self) -> ClientConnection {
        let settings = trusting(self.access.ca.as_ref().unwrap());
        ClientConnection::new(settings, ServerName::try_from("127.0.0.1").unwrap()).unwrap()
    }

    /// The status of a request that creates the pod `name`.
    fn create(&self, wire: Wire, headers: &str, name: &str) -> u16 {
        let body = pod(name).to_string();
        self.status(wire, "POST", PODS, headers, &body)
    }

    fn status(&self, wire: Wire, method: &str, path: &str, headers: &str, body: &str) -> u16 {
        let length = body.len();
        let answer = self.raw(
            wire,
            &format!(
                "{method} {path} HTTP/1.1\r\n{headers}connection: close\r\n\
                 content-length: {length}\r\n\r\n{body}"
            ),
        );
        answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_default()
    }

    /// The names of all pods.
    fn pods(&self) -> Vec<String> {
        let list = Client::new(&self.access, "test-admin").get(PODS).ok();
        let items = list["items"].as_array().unwrap();
        items.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    }

    fn bearer(&self) -> String {
        let token = self.access.token.as_ref();
        token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default()
    }

    fn host(&self) -> String {
        format!("host: {}\r\n", self.address)
    }
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
           "spec": {"containers": [{"name": "c", "image": "i", "command": ["id"]}]}})
}

/// Other users of the machine reach the port, and do not have the token.
pub fn only_the_kubeconfig_opens_the_cluster() {
    for args in [&[][..], &["--rbac"]] {
        let door = Door::open(args);
        assert!(door.access.url.starts_with("https://127.0.0.1:"), "{}", door.access.url);
        let host = door.host();
        for authorization in [
            "",
            "authorization: Bearer\r\n",
            "authorization: Bearer \r\n",
            "authorization: Bearer guess\r\n",
            "authorization: Basic YTpi\r\n",
            "impersonate-user: kubernetes-admin\r\nimpersonate-group: system:masters\r\n",
        ] {
            let headers = format!("{host}{JSON}{authorization}");
            for (method, path, body) in [
                ("POST", PODS, pod("stranger").to_string()),
                ("GET", PODS, String::new()),
                ("GET", "/api/v1/secrets", String::new()),
                ("PUT", "/posse/faults", r#"{"all-429": 100}"#.to_owned()),
                ("DELETE", "/posse/faults", String::new()),
            ] {
                for wire in [Wire::Plain, Wire::Tls] {
                    let status = door.status(wire, method, path, &headers, &body);
                    let want: &[u16] = if args.is_empty() { &[401] } else { &[401, 403] };
                    assert!(
                        want.contains(&status),
                        "{wire:?} {args:?} {headers:?} {path}: {status}"
                    );
                }
            }
        }
        assert_eq!(door.pods(), [] as [&str; 0]);
        let bearer = door.bearer();
        let headers = format!("{host}{JSON}{bearer}");
        assert_eq!(door.status(Wire::Plain, "GET", PODS, &headers, ""), 200);
        assert_eq!(door.create(Wire::Tls, &headers, "own"), 201);
        assert_eq!(door.pods(), ["own"]);
        // The same token for a web page, for another host, and for a body of unknown type.
        let untyped = host.clone();
        for (headers, want) in attacks(&door.address) {
            if headers != untyped {
                let status = door.create(Wire::Tls, &format!("{headers}{bearer}"), "page");
                assert_eq!(status, want, "{args:?} {headers:?}");
            }
        }
        assert_eq!(door.pods(), ["own"]);
        // As in a real server, a body without a type is JSON; no web page has the token.
        assert_eq!(door.create(Wire::Tls, &format!("{untyped}{bearer}"), "untyped"), 201);
    }
}

/// What a web page can make a browser send, and the answer to it.
fn attacks(address: &str) -> Vec<(String, u16)> {
    let host = format!("host: {address}\r\n");
    let port = address.rsplit(':').next().unwrap();
    let mut all = Vec::new();
    // fetch in the mode no-cors, without and with a type; a form.
    for kind in
        ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"]
    {
        all.push((format!("{host}{kind}origin: http://evil.example\r\n"), 403));
        all.push((format!("{host}{kind}origin: null\r\n"), 403));
        all.push((format!("{host}{kind}sec-fetch-site: cross-site\r\n"), 403));
        all.push((format!("{host}{kind}sec-fetch-site: same-site\r\n"), 403));
        all.push((format!("{host}{kind}"), 415));
    }
    // After DNS rebinding the browser calls the request one of the same origin, and any type is allowed.
    for name in ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example"] {
        for sent in [format!("host: {name}:{port}\r\n"), format!("host: {name}\r\n")] {
            all.push((format!("{sent}{JSON}sec-fetch-site: same-origin\r\n"), 403));
            all.push((format!("{sent}{JSON}"), 403));
        }
    }
    all
}

pub fn without_authentication_web_pages_are_refused() {
    let door = Door::open(&["--insecure-no-auth"]);
    assert!(door.access.url.starts_with("https://127.0.0.1:"), "{}", door.access.url);
    assert_eq!(door.access.token, None);
    let host = door.host();
    for (n, wire) in [Wire::Plain, Wire::Tls].into_iter().enumerate() {
        for (headers, want) in attacks(&door.address) {
            assert_eq!(door.create(wire, &headers, "page"), want, "{wire:?} {headers:?}");
        }
        // A WebSocket, which needs no preflight, and a preflight.
        for headers in [
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\norigin: http://evil.example\r\n",
            "origin: http://evil.example\r\naccess-control-request-method: PUT\r\n",
        ] {
            for method in ["GET", "OPTIONS"] {
                let path = format!("{PODS}?watch=true");
                let headers = format!("{host}{headers}");
                assert_eq!(door.status(wire, method, &path, &headers, ""), 403, "{headers:?}");
            }
        }
        assert_eq!(door.pods().len(), n, "{wire:?}");
        assert_eq!(door.create(wire, &format!("{host}{JSON}"), &format!("own-{n}")), 201);
    }
}

pub fn headers_that_two_programs_read_differently_are_refused() {
    let door = Door::open(&[]);
    let (host, bearer) = (door.host(), door.bearer());
    let wrong = "authorization: Bearer guess\r\n";
    for headers in [
        format!("{host}{JSON}{bearer}{wrong}"),
        format!("{host}{JSON}{wrong}{bearer}"),
        format!("{host}{JSON}{bearer}{bearer}"),
        format!("{host}{host}{JSON}{bearer}"),
        format!("host: evil.example\r\n{host}{JSON}{bearer}"),
        format!("{host}{JSON}{JSON}{bearer}"),
        format!("{host}{JSON}{bearer}content-length: 5\r\n"),
        format!("{host}{JSON}{bearer}x: y\nx: z\r\n"),
        format!("{host}{JSON}{bearer}").replace("\r\n", "\n"),
    ] {
        assert_eq!(door.create(Wire::Tls, &headers, "twice"), 400, "{headers:?}");
    }
    assert_eq!(door.pods(), [] as [&str; 0]);
    let (_, port) = door.address.split_once(':').unwrap();
    let target = format!("http://evil.example:{port}{PODS}");
    let headers = format!("{host}{bearer}");
    assert_eq!(door.status(Wire::Tls, "GET", &target, &headers, ""), 403, "a proxy's target");
}

/// The account's token is what clients in a pod have.
pub fn an_account_token_opens_the_cluster() {
    let door = Door::open(&[]);
    let admin = Client::new(&door.access, "test-admin");
    let body =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let issued = admin.post("/api/v1/namespaces/default/serviceaccounts/default/token", &body).ok();
    let token = issued["status"]["token"].as_str().unwrap().to_owned();
    let account = Access { token: Some(token), ..door.access.clone() };
    let pod_client = Client::new(&account, "test-pod");
    assert_eq!(pod_client.post(PODS, &pod("by-account")).code, 201);
    assert_eq!(door.pods(), ["by-account"]);
    let mut strange = account;
    strange.token = strange.token.map(|token| format!("{token}x"));
    assert_eq!(Client::new(&strange, "test-pod").get(PODS).code, 401);
    // The token's server is the one that issued it.
    drop(door.cluster);
}

pub fn the_driver_gets_a_kubeconfig_that_works() {
    let dir = TempDir::new("doors");
    let script = "cp \"$KUBECONFIG\" copy && stat -c %a \"$KUBECONFIG\" > mode && mv copy driver; exec sleep 600";
    let settings = json!({
        "app": "doors", "driver": {"command": ["sh", "-c", script]},
        "executors": [{"count": 1, "image": "none:1", "command": ["sleep", "600"]}],
    });
    fs::write(dir.path().join("posse.yaml"), settings.to_string()).unwrap();
    let mut run = command(dir.path());
    run.args(["run", "--dev"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = Guarded::spawn(&mut run).unwrap();
    let copy = dir.path().join("driver");
    let access = wait_value(PATIENCE, "the driver's kubeconfig", || {
        assert!(!run.is_over(), "posse ended");
        copy.exists().then(|| Access::from_kubeconfig(&copy)).ok_or("none yet")
    });
    assert_eq!(fs::read_to_string(dir.path().join("mode")).unwrap(), "600\n");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o077, 0);
    assert!(access.url.starts_with("https://") && access.token.is_some(), "{}", access.url);
    assert_eq!(Client::new(&access, "test-driver").get(PODS).code, 200);
    let stranger = Access { token: None, ..access };
    assert_eq!(Client::new(&stranger, "test-stranger").post(PODS, &pod("stranger")).code, 401);
    run.signal(Signal::TERM);
    wait_value(PATIENCE, "posse to end", || run.status().ok_or("it still runs"));
}
