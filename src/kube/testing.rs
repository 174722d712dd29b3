//! Test support: certificates, a scripted HTTP server on loopback with or without TLS, and temporary
//! folders.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    RootCertStore, ServerConfig, ServerConnection, StreamOwned, SupportedProtocolVersion,
};

use super::config::exec_plugin::{ExecPlugin, ExecVersion};
use super::config::{ClientIdentity, Cluster, Server, Sources, Trust};
use super::http::Http;

/// Longer than any step of a test takes. A test that hangs fails after this time.
const PATIENCE: Duration = Duration::from_secs(120);

/// Counts the folders and authorities of all tests.
static N_MADE: AtomicUsize = AtomicUsize::new(0);

/// A folder that is removed at the end of the test.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    pub(super) fn new() -> Self {
        let n = N_MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("posse-kube-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Replaces a file atomically, as the kubelet does: a reader sees the old or the new content.
    pub(super) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        let fresh = self.0.join(format!(".{name}.new"));
        std::fs::write(&fresh, content).unwrap();
        std::fs::rename(&fresh, &path).unwrap();
        path
    }

    /// A plugin that runs this script with /bin/sh. The script is an argument and not the program:
    /// executing a file that was just written fails with ETXTBSY if another thread forks meanwhile.
    pub(super) fn plugin(&self, script: &str) -> ExecPlugin {
        ExecPlugin {
            version: ExecVersion::V1,
            command: PathBuf::from("/bin/sh"),
            args: vec![self.write("plugin", script).to_str().unwrap().to_owned()],
            env: Vec::new(),
            install_hint: None,
            cluster: None,
            timeout: PATIENCE,
        }
    }

    /// A plugin that counts its runs. The first run prints the token `t1`, the ninth fails.
    pub(super) fn counting_plugin(&self, expires: Option<&str>) -> ExecPlugin {
        self.plugin(&self.counting_script("", expires))
    }

    /// As `counting_plugin`, with credentials that are due at once; each run waits until `gate` exists.
    pub(super) fn gated_plugin(&self, gate: &Path) -> ExecPlugin {
        let wait = format!("while ! test -e {}; do sleep 0.01; done;", gate.display());
        self.plugin(&self.counting_script(&wait, Some("2020-01-01T00:00:00Z")))
    }

    fn counting_script(&self, before: &str, expires: Option<&str>) -> String {
        let expiry = expires.map(|at| format!(",\"expirationTimestamp\":\"{at}\""));
        format!(
            "{before} echo >>{runs}; n=$(wc -l <{runs}); test $n = 9 && exit 1\ncat <<END\n\
             {{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\
             \"status\":{{\"token\":\"t$((n))\"{}}}}}\nEND\n",
            expiry.unwrap_or_default(),
            runs = self.path().join("runs").display(),
        )
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Sources that do not depend on the environment of the test process.
pub(super) fn sources<'a>(
    kubeconfig: Option<&'a Path>,
    env: &'a dyn Fn(&str) -> Option<OsString>,
) -> Sources<'a> {
    Sources {
        kubeconfig,
        context: None,
        env,
        service_account_dir: Path::new("/nonexistent"),
        ca_bundles: &[],
    }
}

/// An empty environment.
pub(super) fn no_env(_: &str) -> Option<OsString> {
    None
}

/// A certificate authority.
pub(super) struct Authority {
    pub(super) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Distinct names, so that a certificate of the wrong authority gives UnknownIssuer.
        let name = format!("authority {}", N_MADE.fetch_add(1, Ordering::Relaxed));
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for these names or addresses. Returns it and its key, both PEM.
    pub(super) fn issue(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &self.issuer).unwrap();
        (cert.pem(), key.serialize_pem())
    }

    /// The TLS settings of a server. With `clients` it requires a client certificate of this
    /// authority.
    pub(super) fn server(
        &self,
        names: &[&str],
        versions: &[&'static SupportedProtocolVersion],
        clients: Option<&Self>,
    ) -> Arc<ServerConfig> {
        let (chain, key) = self.issue(names);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                let pem = authority.pem.as_bytes();
                roots.add(CertificateDer::from_pem_slice(pem).unwrap()).unwrap();
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                        .build()
                        .unwrap();
                builder.with_client_cert_verifier(verifier)
            }
        };
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}

/// A client of a plain HTTP server on loopback.
pub(crate) fn plain_client(address: SocketAddr) -> Http {
    let cluster = Cluster {
        server: Server::parse(&format!("http://{address}")).unwrap(),
        namespace: "analytics".to_owned(),
        pod: None,
        trust: Trust::Anything,
        tls_server_name: None,
        proxy: None,
        identity: ClientIdentity::default(),
    };
    Http::connect(cluster).unwrap()
}

/// A request that the server received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The request line and headers, without the empty line at the end.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The number of its connection, from 0.
    pub(crate) connection: usize,
}

impl Seen {
    /// The value of a header; its name in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The request line.
    pub(crate) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }
}

/// How the server answers a request.
pub(crate) enum Answer {
    /// Closes the connection without an answer.
    Cut,
    /// Sends these bytes and keeps the connection open.
    Raw(Vec<u8>),
    /// Sends an answer with this status, headers and body.
    Reply(u16, &'static str, Vec<u8>),
    /// Sends these bytes and then nothing until the client closes the connection.
    Stall(Vec<u8>),
    /// Sends these bytes and closes the connection.
    ThenCut(Vec<u8>),
}

type Script = dyn Fn(&Seen) -> Answer + Send + Sync;

struct Inner {
    tls: Mutex<Option<Arc<ServerConfig>>>,
    script: Box<Script>,
    seen: mpsc::Sender<Seen>,
    n_connections: AtomicUsize,
    ended: AtomicBool,
}

/// A scripted HTTP server on loopback.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
    seen: mpsc::Receiver<Seen>,
}

impl TestServer {
    pub(crate) fn start(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (send, seen) = mpsc::channel();
        let inner = Arc::new(Inner {
            tls: Mutex::new(tls),
            script: Box::new(script),
            seen: send,
            n_connections: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for socket in listener.incoming() {
                if accepting.ended.load(Ordering::Relaxed) {
                    return;
                }
                let inner = Arc::clone(&accepting);
                // Several tests make a connection fail on purpose.
                thread::spawn(move || inner.serve(socket?));
            }
        });
        Self { address, inner, seen }
    }

    /// Changes the TLS settings for new connections.
    pub(crate) fn set_tls(&self, tls: Arc<ServerConfig>) {
        *self.inner.tls.lock().unwrap() = Some(tls);
    }

    pub(crate) fn n_connections(&self) -> usize {
        self.inner.n_connections.load(Ordering::Relaxed)
    }

    /// The requests since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.try_iter().collect()
    }

    /// Waits for the next request.
    pub(crate) fn wait(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("a request arrives")
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::Relaxed);
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

impl Inner {
    fn serve(&self, socket: TcpStream) -> io::Result<()> {
        let connection = self.n_connections.fetch_add(1, Ordering::Relaxed);
        socket.set_read_timeout(Some(PATIENCE))?;
        let tls = self.tls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut stream: Box<dyn ReadWrite> = match tls {
            None => Box::new(socket),
            Some(tls) => {
                let connection = ServerConnection::new(tls).map_err(io::Error::other)?;
                Box::new(StreamOwned::new(connection, socket))
            }
        };
        while let Some(seen) = read_request(&mut stream, connection)? {
            let answer = (self.script)(&seen);
            // The test may have ended.
            let _ = self.seen.send(seen);
            match answer {
                Answer::Cut => return Ok(()),
                Answer::Raw(bytes) => stream.write_all(&bytes)?,
                Answer::Reply(status, headers, body) => {
                    let head = format!(
                        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n{headers}\r\n",
                        body.len()
                    );
                    stream.write_all(&[head.as_bytes(), &body].concat())?;
                }
                Answer::Stall(bytes) => {
                    stream.write_all(&bytes)?;
                    stream.flush()?;
                    // Waits until the client closes the connection, or for the read timeout.
                    let _ = stream.read(&mut [0; 1]);
                    return Ok(());
                }
                Answer::ThenCut(bytes) => {
                    stream.write_all(&bytes)?;
                    return stream.flush();
                }
            }
            stream.flush()?;
        }
        Ok(())
    }
}

fn read_request(stream: &mut dyn ReadWrite, connection: usize) -> io::Result<Option<Seen>> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break end;
        }
        let mut buf = [0; 4096];
        match stream.read(&mut buf)? {
            0 => return Ok(None),
            n => bytes.extend_from_slice(&buf[..n]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut seen = Seen { head, body: bytes.split_off(end + 4), connection };
    let length = seen.header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    while seen.body.len() < length {
        let mut buf = [0; 4096];
        match stream.read(&mut buf)? {
            0 => return Ok(None),
            n => seen.body.extend_from_slice(&buf[..n]),
        }
    }
    Ok(Some(seen))
}
