//! Attacks on `posse stage serve` from outside, against the binary.

use std::fs;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use posse_testing::trusting;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

use super::stage::text;
use crate::support::scene::TempDir;
use crate::support::stage::{SHARED, StageServer, TLS, TOKEN, furnish};
use crate::support::wait::{PATIENCE, wait_for};

/// More connections than the server has slots.
const ATTACKERS: usize = 160;

/// A TLS connection whose bytes the test sends when it wants to.
struct Tls {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl Tls {
    fn connect(server: &StageServer, config: &Arc<ClientConfig>) -> io::Result<Self> {
        let mut tcp = TcpStream::connect(server.address())?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let mut tls = ClientConnection::new(Arc::clone(config), name).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        Ok(Self { tcp, tls })
    }

    fn records(&mut self, plain: &[u8]) -> Vec<u8> {
        self.tls.writer().write_all(plain).unwrap();
        let mut bytes = Vec::new();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        let records = self.records(plain);
        self.tcp.write_all(&records)
    }
}

/// The first line of the answer to a GET, over TLS.
fn get(server: &StageServer, config: &Arc<ClientConfig>, path: &str) -> io::Result<String> {
    let mut client = Tls::connect(server, config)?;
    client
        .send(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    rustls::Stream::new(&mut client.tls, &mut client.tcp).read_to_end(&mut answer)?;
    Ok(text(&answer).lines().next().unwrap_or_default().to_owned())
}

/// Clients that send single bytes of TLS records hold no slot for long: probes are answered, and
/// others store and fetch files.
pub fn stage_slow_clients() {
    let dir = TempDir::new("slow");
    furnish(dir.path());
    let server = StageServer::start(dir.path(), &[&TLS[..], &SHARED].concat());
    let config = trusting(&fs::read_to_string(dir.path().join("ca.pem")).unwrap());
    fs::write(dir.path().join("f"), "content").unwrap();
    let ticket = server.put_one("ns", "wc", "f");
    fs::write(dir.path().join("ticket"), ticket.to_string()).unwrap();

    let head = format!(
        "POST /v1/bundles?namespace=ns&app=wc&file=f&sha256={} HTTP/1.1\r\nhost: x\r\n\
         authorization: Bearer {TOKEN}\r\ncontent-length: 1000\r\n\r\n",
        "0".repeat(64)
    );
    let mut slow: Vec<(TcpStream, Vec<u8>)> = Vec::new();
    for _ in 0..ATTACKERS {
        // Above the limit the server may refuse it.
        if let Ok(mut client) = Tls::connect(&server, &config)
            && client.send(head.as_bytes()).is_ok()
        {
            let record = client.records(&[b'x'; 1000]);
            slow.push((client.tcp, record));
        }
    }
    println!("    {} slow uploads", slow.len());
    let is_over = Arc::new(AtomicBool::new(false));
    let dripping = {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            for i in 0..900 {
                for (tcp, record) in &mut slow {
                    // The server may have closed it.
                    let _ = tcp.write_all(&record[i..=i]);
                }
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::park_timeout(Duration::from_millis(100));
            }
        })
    };
    for _ in 0..20 {
        let answer = get(&server, &config, "/healthz").expect("an answer in TLS");
        assert_eq!(answer, "HTTP/1.1 200 OK");
    }
    let begun = Instant::now();
    let done = server.get(&["--secret-file", "ticket"]);
    assert!(done.status.success(), "{}", text(&done.stderr));
    server.put_one("ns", "wc", "f");
    println!("    stored and fetched beside them within {:?}", begun.elapsed());
    is_over.store(true, Ordering::Relaxed);
    dripping.join().unwrap();
    assert_eq!(get(&server, &config, "/readyz").unwrap(), "HTTP/1.1 200 OK");
}

/// Silent uploads that announce a lot reserve nothing, and empty bundles count.
pub fn stage_quota_attacks() {
    let dir = TempDir::new("quota");
    furnish(dir.path());
    let limits = ["--insecure", "--namespace-bytes-max", "64Ki"];
    let server = StageServer::start(dir.path(), &[&limits[..], &SHARED].concat());
    let file = |name: &str| dir.path().join(name);
    fs::write(file("half"), vec![b'h'; 32 << 10]).unwrap();
    let head = format!(
        "POST /v1/bundles?namespace=ns&app=wc&file=f&sha256={} HTTP/1.1\r\nhost: x\r\n\
         authorization: Bearer {TOKEN}\r\ncontent-length: 65536\r\n\r\n",
        "0".repeat(64)
    );
    let silent = || {
        let mut stream = TcpStream::connect(server.address()).unwrap();
        stream.write_all(head.as_bytes()).unwrap();
        stream
    };
    let held = silent();
    wait_for(PATIENCE, "the silent upload to have begun", || !server.stored().1.is_empty());
    let put = |args: &[&str]| {
        let good = ["--token-file", "token", "--timeout", "0s"];
        let done = server.put("ns", "wc", &[&good[..], args].concat());
        (done.status.code(), text(&done.stderr))
    };
    let (code, why) = put(&["half"]);
    assert_eq!(code, Some(0), "{why}");
    drop(held);
    let mut n_stored = 1;
    let refusal = loop {
        let name = format!("empty{n_stored}");
        fs::write(file(&name), "").unwrap();
        match put(&[&name]) {
            (Some(0), _) => n_stored += 1,
            (_, why) => break why,
        }
        assert!(n_stored < 20, "empty bundles count for nothing");
    };
    // 32 KiB and eight times 4 KiB.
    assert_eq!(n_stored, 9, "{refusal}");
    assert!(refusal.contains("65536 of 65536 bytes are used (403)"), "{refusal}");
}

/// `put` writes its ticket to a new file: never through a link, and for its user alone.
pub fn stage_ticket_and_links() {
    let dir = TempDir::new("links");
    furnish(dir.path());
    let server = StageServer::start(dir.path(), &[&TLS[..], &SHARED].concat());
    let file = |name: &str| dir.path().join(name);
    fs::write(file("f"), "content").unwrap();
    fs::write(file("victim"), "precious").unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    fs::set_permissions(file("victim"), open).unwrap();
    for link in ["ticket", "ticket.new"] {
        symlink(file("victim"), file(link)).unwrap();
    }
    let args = ["--ca", "ca.pem", "--token-file", "token", "--secret-file", "ticket", "f"];
    let done = server.put("ns", "wc", &args);
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(fs::read(file("victim")).unwrap() == b"precious", "the ticket went through a link");
    let facts = fs::symlink_metadata(file("ticket")).unwrap();
    assert!(facts.is_file() && facts.mode() & 0o777 == 0o600, "{facts:?}");
    // A file that was there with a mode for all is replaced, not kept.
    fs::remove_file(file("ticket.new")).unwrap();
    fs::set_permissions(file("ticket"), std::os::unix::fs::PermissionsExt::from_mode(0o666))
        .unwrap();
    assert!(server.put("ns", "wc", &args).status.success());
    assert_eq!(fs::metadata(file("ticket")).unwrap().mode() & 0o777, 0o600);
}
