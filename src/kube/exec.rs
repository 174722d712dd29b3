//! Owns credential plugins: running one (no shell, a time limit, an output cap) and reading what it
//! prints. Keeps nothing between runs.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;

use super::config::{Secret, header_value};
use super::tls::{CertPair, check_pair};

/// How long a plugin may take; some ask a cloud, which takes seconds.
const EXEC_TIMEOUT: Duration = Duration::from_secs(60);

/// What a plugin may print, in bytes; the rest of a longer output is an error.
const STDOUT_BYTES_MAX: u64 = 1 << 20;

/// How much of a plugin's complaint is kept for the error, in bytes.
const STDERR_BYTES_MAX: u64 = 2 << 10;

/// How often a plugin that closed its output is asked whether it has ended.
const REAP_INTERVAL: Duration = Duration::from_millis(5);

/// A version of the plugin protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExecVersion {
    V1,
    V1beta1,
}

impl ExecVersion {
    pub(super) fn parse(text: &str) -> Option<Self> {
        [Self::V1, Self::V1beta1].into_iter().find(|version| version.as_str() == text)
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }
}

/// A plugin as a kubeconfig describes it, checked.
#[derive(Clone)]
pub(crate) struct ExecPlugin {
    pub(super) version: ExecVersion,
    /// Found on PATH, or a path that was resolved against the kubeconfig's folder.
    pub(super) command: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: Vec<(String, OsString)>,
    pub(super) install_hint: Option<String>,
    /// The `spec.cluster` it is told, as JSON; none where it is told nothing.
    pub(super) cluster: Option<serde_json::Value>,
    pub(super) timeout: Duration,
}

impl std::fmt::Debug for ExecPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Arguments and environment may hold secrets.
        f.debug_struct("ExecPlugin")
            .field("version", &self.version)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// What a plugin gave.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) token: Option<Secret>,
    pub(super) client_cert: Option<CertPair>,
    pub(super) expires: Option<SystemTime>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawCredential {
    api_version: Option<String>,
    kind: Option<String>,
    status: Option<RawStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawStatus {
    token: Option<String>,
    client_certificate_data: Option<String>,
    client_key_data: Option<String>,
    expiration_timestamp: Option<String>,
}

impl ExecPlugin {
    /// The time a plugin is given unless a test says otherwise.
    pub(super) const TIMEOUT: Duration = EXEC_TIMEOUT;

    /// Runs it and reads what it prints; none of that is in the error.
    pub(super) fn run(&self) -> Result<Issued, String> {
        let output = self.output().map_err(|problem| self.blame(&problem))?;
        self.read(&output).map_err(|problem| self.blame(&problem))
    }

    fn blame(&self, problem: &str) -> String {
        let command = self.command.display();
        match &self.install_hint {
            Some(hint) => format!("credential plugin {command}: {problem}; {}", hint.trim()),
            None => format!("credential plugin {command}: {problem}"),
        }
    }

    fn output(&self) -> Result<Vec<u8>, String> {
        let mut child = self.spawn().map_err(|e| format!("cannot be run: {e}"))?;
        let deadline = Instant::now() + self.timeout;
        let ended = self.collect(&mut child, deadline);
        if ended.is_err() {
            end(&mut child);
        }
        ended
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut info = serde_json::json!({
            "apiVersion": self.version.as_str(),
            "kind": "ExecCredential",
            "spec": {"interactive": false},
        });
        if let Some(cluster) = &self.cluster {
            info["spec"]["cluster"] = cluster.clone();
        }
        Command::new(&self.command)
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env("KUBERNETES_EXEC_INFO", info.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // So that a time-out ends what it started as well.
            .process_group(0)
            .spawn()
    }

    fn collect(&self, child: &mut Child, deadline: Instant) -> Result<Vec<u8>, String> {
        let stdout = drain(child.stdout.take(), STDOUT_BYTES_MAX)?;
        let stderr = drain(child.stderr.take(), STDERR_BYTES_MAX)?;
        let late = || format!("not done after {} s", self.timeout.as_secs_f32());
        let wait = |pipe: &mpsc::Receiver<Drained>| {
            pipe.recv_timeout(deadline.saturating_duration_since(Instant::now()))
                .map_err(|_| late())
        };
        let printed = wait(&stdout)?;
        let complaint = wait(&stderr)?;
        match reap(child, deadline).map_err(|_| late())? {
            Some(status) if !status.success() => {
                let complaint = String::from_utf8_lossy(&complaint.bytes);
                Err(match complaint.trim() {
                    "" => status.to_string(),
                    complaint => format!("{status}: {complaint}"),
                })
            }
            // Somebody else may have reaped it, as PID 1 does: then the output must speak.
            Some(_) | None if printed.whole => Ok(printed.bytes),
            Some(_) | None => Err(format!("printed more than {STDOUT_BYTES_MAX} bytes")),
        }
    }

    fn read(&self, output: &[u8]) -> Result<Issued, String> {
        // serde's own words can quote the value, which may be the secret.
        let raw: RawCredential = serde_json::from_slice(output).map_err(|e| {
            format!("printed no ExecCredential (line {}, column {})", e.line(), e.column())
        })?;
        let version = self.version.as_str();
        if raw.kind.as_deref() != Some("ExecCredential") {
            return Err("printed something whose kind is not ExecCredential".to_owned());
        }
        if raw.api_version.as_deref() != Some(version) {
            return Err(format!("printed another apiVersion than the kubeconfig's {version}"));
        }
        let status = raw.status.ok_or_else(|| "printed no status".to_owned())?;
        let expires = status.expiration_timestamp.as_deref().map(timestamp).transpose()?;
        let client_cert = pair(status.client_certificate_data, status.client_key_data)?;
        let token = status.token.filter(|token| !token.is_empty()).map(Secret::new);
        if let Some(token) = &token {
            header_value(token.reveal()).map_err(|e| format!("status.token {e}"))?;
        }
        if token.is_none() && client_cert.is_none() {
            return Err("printed neither status.token nor status.clientCertificateData".to_owned());
        }
        Ok(Issued { token, client_cert, expires })
    }
}

fn timestamp(text: &str) -> Result<SystemTime, String> {
    text.parse::<jiff::Timestamp>()
        .map(SystemTime::from)
        .map_err(|_| "status.expirationTimestamp is not an RFC 3339 time".to_owned())
}

fn pair(chain: Option<String>, key: Option<String>) -> Result<Option<CertPair>, String> {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    match (given(chain), given(key)) {
        (Some(chain), Some(key)) => {
            let pair = CertPair { chain: chain.into_bytes(), key: key.into_bytes() };
            check_pair(&pair, ("status.clientCertificateData", "status.clientKeyData"))
                .map_err(|e| e.to_string())?;
            Ok(Some(pair))
        }
        (None, None) => Ok(None),
        (Some(_), None) | (None, Some(_)) => {
            Err("printed a client certificate without its key, or the key alone".to_owned())
        }
    }
}

struct Drained {
    bytes: Vec<u8>,
    /// False when there was more than fits.
    whole: bool,
}

/// Reads a pipe on a thread of its own, which ends with the pipe: nobody has to wait for it.
fn drain(
    pipe: Option<impl Read + Send + 'static>,
    bytes_max: u64,
) -> Result<mpsc::Receiver<Drained>, String> {
    let mut pipe = pipe.expect("the child was given a pipe");
    let (send, receive) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("exec-output".to_owned())
        .spawn(move || {
            let mut bytes = Vec::new();
            let kept = pipe.by_ref().take(bytes_max).read_to_end(&mut bytes);
            // What does not fit is still taken, or the plugin would block on it.
            let rest = io::copy(&mut pipe, &mut io::sink());
            let whole = kept.is_ok() && rest.is_ok_and(|n_rest| n_rest == 0);
            // Nobody listens any more when the time is up.
            let _ = send.send(Drained { bytes, whole });
        })
        .map_err(|e| format!("no thread for its output: {e}"))?;
    Ok(receive)
}

/// The exit status; none where somebody else took it; an error when the time is up.
fn reap(child: &mut Child, deadline: Instant) -> Result<Option<ExitStatus>, ()> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Some(status)),
            Err(_) => return Ok(None),
            Ok(None) if Instant::now() >= deadline => return Err(()),
            Ok(None) => thread::sleep(REAP_INTERVAL),
        }
    }
}

/// Ends a plugin and all that it started; its exit is taken so that no zombie stays.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    if let (Ok(None), Some(group)) = (child.try_wait(), group) {
        // It may have ended by itself meanwhile.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = child.wait();
}
