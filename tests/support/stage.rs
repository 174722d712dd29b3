//! A `posse stage serve` for tests with its folder, certificate and token, and the `put` and `get`
//! clients.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::certs::{Authority, Pair};
use super::posse::command;
use super::reaper::Guarded;
use super::runner;
use super::wait::{PATIENCE, wait_value};

/// What lets clients in.
pub const TOKEN: &str = "t0ken-of-this-test";

/// A running stage server. Ends when dropped.
pub struct StageServer {
    process: Guarded,
    pub dir: PathBuf,
    pub url: String,
    log: PathBuf,
}

/// Writes `token`, `ca.pem`, `cert.pem` and `key.pem` into a folder.
pub fn furnish(dir: &Path) -> Authority {
    let authority = Authority::new("stage-ca");
    let Pair { cert, key } = authority.server();
    for (name, text) in
        [("token", TOKEN), ("ca.pem", &authority.cert), ("cert.pem", &cert), ("key.pem", &key)]
    {
        fs::write(dir.join(name), text).expect("the folder can be written");
    }
    authority
}

pub const TLS: [&str; 4] = ["--cert", "cert.pem", "--key", "key.pem"];
pub const SHARED: [&str; 2] = ["--token-file", "token"];

impl StageServer {
    /// Starts one in `dir`, with its store in `store`.
    #[track_caller]
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        Self::start_logging(dir, args, "debug")
    }

    /// With this POSSE_LOG.
    #[track_caller]
    pub fn start_logging(dir: &Path, args: &[&str], level: &str) -> Self {
        let (out, log) = (dir.join("stage.out"), dir.join("stage.log"));
        let _ = fs::remove_file(&out);
        let file = |path| File::options().create(true).append(true).open(path);
        let mut command = command(dir);
        command.args(["stage", "serve", "--listen", "127.0.0.1:0", "--dir", "store"]).args(args);
        command.env("POSSE_LOG", level);
        command.stdout(File::create(&out).expect("the folder can be written"));
        command.stderr(file(&log).expect("the folder can be written"));
        runner::show_on_failure(&log);
        let mut process = Guarded::spawn(&mut command).expect("the binary can be started");
        let url = wait_value(PATIENCE, "the stage server to say where it is", || {
            assert!(!process.is_over(), "it ended at its start");
            let text = fs::read_to_string(&out).unwrap_or_default();
            text.strip_suffix('\n').map(str::to_owned).ok_or("nothing yet")
        });
        Self { process, dir: dir.to_owned(), url, log }
    }

    pub fn address(&self) -> SocketAddr {
        let (_, address) = self.url.split_once("://").expect("a URL");
        address.parse().expect("an address")
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).expect("the log is there")
    }

    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Its peak memory in kB.
    pub fn peak_kb(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
        number.and_then(|number| number.parse().ok()).expect("Linux tells it")
    }

    /// The files of complete bundles, and all other files.
    pub fn stored(&self) -> (Vec<PathBuf>, Vec<PathBuf>) {
        let entries = fs::read_dir(self.dir.join("store")).expect("the store is there");
        let paths = entries.map(|entry| entry.expect("it can be listed").path());
        paths
            .filter(|path| !path.ends_with(".lock"))
            .partition(|path| path.extension().is_some_and(|ending| ending == "bundle"))
    }

    /// `posse stage put` of these files for an application.
    pub fn put(&self, namespace: &str, app: &str, args: &[&str]) -> Output {
        let mut put = Command::new(env!("CARGO_BIN_EXE_posse"));
        put.current_dir(&self.dir).env_clear().args(["stage", "put", "--url", &self.url]);
        put.args(["-n", namespace, "--app", app]).args(args);
        put.output().expect("the binary can be started")
    }

    /// Uploads a file; returns what `get` needs.
    #[track_caller]
    pub fn put_one(&self, namespace: &str, app: &str, file: &str) -> Value {
        let args = ["--ca", "ca.pem", "--token-file", "token", file];
        let done = self.put(namespace, app, &args);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        serde_json::from_slice(&done.stdout).expect("a ticket is JSON")
    }

    /// `posse stage get` into `out`.
    pub fn get(&self, args: &[&str]) -> Output {
        let mut get = Command::new(env!("CARGO_BIN_EXE_posse"));
        get.current_dir(&self.dir).env_clear().args(["stage", "get", "--dir", "out"]).args(args);
        get.output().expect("the binary can be started")
    }
}
