//! Files through `posse stage serve` and through nginx, both asked by curl: how fast a gigabyte goes
//! in and out, over TLS and without, and what fifty clients at once cost. `cargo bench --bench stage`;
//! nginx is looked for on the PATH, or at $NGINX.

#![allow(unreachable_pub, dead_code)]
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod figures;
#[path = "../tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use figures::memory;
use posse_wire::bundle::hex;
use ring::digest::{SHA256, digest};
use support::reaper::Guarded;
use support::scene::TempDir;
use support::stage::{SHARED, StageServer, TLS, TOKEN, furnish};
use support::wait::{PATIENCE, wait_for};

const FILE_BYTES: u64 = 1 << 30;
const ROUNDS: usize = 5;
const CLIENTS: usize = 50;
/// What each of the clients at once fetches.
const CLIENT_BYTES: u64 = 100 << 20;

fn main() {
    let dir = TempDir::new("stage");
    furnish(dir.path());
    for (name, bytes) in [("large", FILE_BYTES), ("small", CLIENT_BYTES)] {
        // Not sparse: whoever reads holes reads no disk.
        let mut file = File::create(dir.path().join(name)).unwrap();
        std::io::copy(&mut std::io::Read::take(std::io::repeat(b'x'), bytes), &mut file).unwrap();
    }
    for tls in [true, false] {
        compare(&dir, tls);
    }
    crowd(&dir);
}

/// The server's name, where a file is, and where one can be left.
struct Side {
    name: &'static str,
    get: Vec<String>,
    put: Vec<String>,
}

fn compare(dir: &TempDir, tls: bool) {
    let scheme = if tls { "https" } else { "http" };
    let (_stage, ours) = stage_side(dir.path(), tls);
    let (_nginx, theirs) = nginx_side(dir.path(), tls).unzip();
    let sides: Vec<Side> = [ours].into_iter().chain(theirs).collect();
    for what in ["out", "in"] {
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); sides.len()];
        for _ in 0..ROUNDS {
            for (side, rates) in sides.iter().zip(&mut rates) {
                let args = if what == "out" { &side.get } else { &side.put };
                rates.push(rate(dir.path(), args));
            }
        }
        for (side, rates) in sides.iter().zip(&mut rates) {
            rates.sort_by(f64::total_cmp);
            println!(
                "{scheme}, {what}, {}: {:.0} MB/s ({:.0} .. {:.0})",
                side.name,
                rates[ROUNDS / 2],
                rates[0],
                rates[ROUNDS - 1]
            );
        }
    }
}

fn curl(dir: &Path) -> Command {
    let mut curl = Command::new("curl");
    curl.current_dir(dir).args(["-sSf", "--cacert", "ca.pem", "-o", "/dev/null"]);
    curl.stdin(Stdio::null());
    curl
}

/// Megabytes a second of a gigabyte.
fn rate(dir: &Path, args: &[String]) -> f64 {
    let begun = Instant::now();
    assert!(curl(dir).args(args).status().expect("curl is there").success(), "{args:?}");
    #[expect(clippy::cast_precision_loss, reason = "a gigabyte is few")]
    let megabytes = FILE_BYTES as f64 / 1e6;
    megabytes / begun.elapsed().as_secs_f64()
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// How a bundle is fetched that was put before.
fn fetch(stage: &StageServer, file: &str) -> Vec<String> {
    let answer = Command::new("curl")
        .current_dir(&stage.dir)
        .args(["-sSf", "--cacert", "ca.pem"])
        .args(put(stage, file))
        .output();
    let answer: serde_json::Value = serde_json::from_slice(&answer.unwrap().stdout).unwrap();
    let (id, secret) = (answer["id"].as_str().unwrap(), answer["secret"].as_str().unwrap());
    let header = format!("authorization: Bearer {secret}");
    words(&["-H", &header, &format!("{}/v1/bundles/{id}", stage.url)])
}

fn put(stage: &StageServer, file: &str) -> Vec<String> {
    let sha256 = hex(digest(&SHA256, &fs::read(stage.dir.join(file)).unwrap()).as_ref());
    let header = format!("authorization: Bearer {TOKEN}");
    let query = format!("namespace=ns&app=bench&file=f&sha256={sha256}");
    let url = format!("{}/v1/bundles?{query}", stage.url);
    words(&["-X", "POST", "-T", file, "-H", &header, &url])
}

fn stage_side(dir: &Path, tls: bool) -> (StageServer, Side) {
    let _ = fs::remove_dir_all(dir.join("store"));
    let stage =
        StageServer::start(dir, &[if tls { &TLS[..] } else { &["--insecure"] }, &SHARED].concat());
    let side = Side { name: "posse", get: fetch(&stage, "large"), put: put(&stage, "large") };
    (stage, side)
}

/// One process, no log, sendfile where it can; it checks no sum and syncs nothing.
fn nginx_side(dir: &Path, tls: bool) -> Option<(Guarded, Side)> {
    let program = std::env::var("NGINX").unwrap_or_else(|_| "nginx".to_owned());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let root = dir.display();
    let (listen, certificate) = match tls {
        true => {
            ("ssl", format!("ssl_certificate {root}/cert.pem; ssl_certificate_key {root}/key.pem;"))
        }
        false => ("", String::new()),
    };
    let config = format!(
        "daemon off; master_process off; pid {root}/nginx.pid; error_log {root}/nginx.log;
         events {{}}
         http {{ access_log off; sendfile on; client_max_body_size 0;
           client_body_temp_path {root}/nginx-body; proxy_temp_path {root}/t1; fastcgi_temp_path {root}/t2;
           uwsgi_temp_path {root}/t3; scgi_temp_path {root}/t4;
           server {{ listen 127.0.0.1:{port} {listen}; {certificate} root {root};
             location /in/ {{ dav_methods PUT; create_full_put_path on; }} }} }}\n"
    );
    fs::write(dir.join("nginx.conf"), config).unwrap();
    let mut nginx = Command::new(program);
    nginx.arg("-c").arg(dir.join("nginx.conf")).arg("-p").arg(dir).stderr(Stdio::null());
    let Ok(process) = Guarded::spawn(&mut nginx) else {
        println!("NOT COMPARED: there is no nginx on the PATH, nor at $NGINX");
        return None;
    };
    wait_for(PATIENCE, "nginx to listen", || {
        std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
    });
    let url = format!("{}://127.0.0.1:{port}", if tls { "https" } else { "http" });
    let side = Side {
        name: "nginx",
        get: words(&[&format!("{url}/large")]),
        put: words(&["-T", "large", &format!("{url}/in/large")]),
    };
    Some((process, side))
}

/// Fifty clients fetch at once, then fifty send.
fn crowd(dir: &TempDir) {
    let _ = fs::remove_dir_all(dir.path().join("store"));
    let stage = StageServer::start(dir.path(), &[&TLS[..], &SHARED].concat());
    println!("posse, nothing to do: {}", memory(stage.pid()));
    let get = fetch(&stage, "small");
    at_once(dir.path(), &get);
    println!("posse, {CLIENTS} clients fetched at once: {}", memory(stage.pid()));
    at_once(dir.path(), &put(&stage, "small"));
    println!("posse, and {CLIENTS} sent at once: {}", memory(stage.pid()));
}

fn at_once(dir: &Path, args: &[String]) {
    let begun = Instant::now();
    let clients: Vec<Child> =
        (0..CLIENTS).map(|_| curl(dir).args(args).spawn().expect("curl is there")).collect();
    for mut client in clients {
        assert!(client.wait().unwrap().success());
    }
    println!(
        "{CLIENTS} clients, {} MB each: {:.1} s",
        CLIENT_BYTES >> 20,
        begun.elapsed().as_secs_f64()
    );
}
