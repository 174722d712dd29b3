//! The peers: how each is started, and what its processes cost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};

use crate::bare_loop;
use crate::figures;
use crate::support::access::Access;
use crate::support::posse::{run_command, said};
use crate::support::real::{Account, Real};
use crate::support::reaper::Guarded;
use crate::support::server::{Server as _, Who};

/// Seconds for which Spark's token is valid.
const TOKEN_S: i64 = 3_600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    Posse,
    Loop,
    LoopBare,
    Job,
    JobTuned,
    Spark,
    SparkTuned,
}

impl Peer {
    pub const ALL: [Self; 7] = [
        Self::Posse,
        Self::Loop,
        Self::LoopBare,
        Self::Job,
        Self::JobTuned,
        Self::Spark,
        Self::SparkTuned,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Posse => "posse",
            Self::Loop => "loop",
            Self::LoopBare => "loop-bare",
            Self::Job => "job",
            Self::JobTuned => "job-tuned",
            Self::Spark => "spark",
            Self::SparkTuned => "spark-tuned",
        }
    }

    pub fn named(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|peer| peer.name() == name);
        found.ok_or_else(|| format!("no peer is named {name}"))
    }

    pub fn about(self) -> &'static str {
        match self {
            Self::Posse => "posse",
            Self::Loop => "loop of POSTs on 32 connections that reads a watch",
            Self::LoopBare => "the same loop without a watch (the limit)",
            Self::Job => "Job, controller manager as shipped (20 calls/s)",
            Self::JobTuned => "Job, controller manager without a limit of calls",
            Self::Spark => "Spark 4.3's allocator, as shipped",
            Self::SparkTuned => "Spark 4.3's allocator, batches of 500 every 100 ms",
        }
    }

    pub fn is_slow(self) -> bool {
        matches!(self, Self::Job | Self::Spark | Self::SparkTuned)
    }

    pub fn has_long_start(self) -> bool {
        !matches!(self, Self::Posse | Self::Loop | Self::LoopBare)
    }

    fn is_spark(self) -> bool {
        matches!(self, Self::Spark | Self::SparkTuned)
    }

    /// The loop replaces nothing. The Job controller waits longer after each failure.
    pub fn failures_max(self) -> usize {
        match self {
            Self::Loop | Self::LoopBare => 0,
            Self::Job | Self::JobTuned => 2,
            Self::Posse | Self::Spark | Self::SparkTuned => usize::MAX,
        }
    }

    pub fn is_installed(self) -> bool {
        !self.is_spark() || python().is_file()
    }
}

/// Where `examples/spark/run.sh install` puts PySpark; of several versions the last one.
fn python() -> PathBuf {
    let home = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/spark");
    let versions = fs::read_dir(&home).into_iter().flatten().flatten().map(|entry| entry.path());
    let pythons = versions.map(|folder| folder.join("venv/bin/python3"));
    pythons.filter(|python| python.exists()).max().unwrap_or(home)
}

/// A process with its children. Ends when dropped.
pub struct Group(Guarded);

impl Group {
    fn members(&self) -> Vec<u32> {
        let is_member = |pid: &u32| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
            let mut fields = after.split_ascii_whitespace();
            // A child that has ended, and that nobody waited for, has no memory.
            let is_over = fields.next() == Some("Z");
            !is_over && fields.nth(1) == Some(&self.0.pid().to_string())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(is_member).collect()
    }

    pub fn is_over(&mut self) -> bool {
        self.0.is_over()
    }

    pub fn cpu(&self) -> Duration {
        self.members().into_iter().map(figures::cpu).sum()
    }

    pub fn rss_kb(&self) -> u64 {
        self.members().into_iter().map(|pid| figures::memory(pid).rss_kb).sum()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // An error means that all of its processes have ended.
        if let Some(pid) = i32::try_from(self.0.pid()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// What every peer gets.
pub struct Start<'a> {
    pub real: &'a Real,
    pub dir: &'a Path,
    pub namespace: &'a str,
    /// Instead of the server's.
    pub url: Option<String>,
    pub executors: u32,
}

impl Start<'_> {
    pub fn peer(&self, peer: Peer) -> Group {
        fs::write(self.file("pod.json"), self.template().to_string()).unwrap();
        fs::write(self.file("kubeconfig"), self.access(Who::Posse).kubeconfig(self.namespace))
            .unwrap();
        Group(match peer {
            Peer::Posse => self.posse(),
            Peer::Loop => self.bare_loop(&[bare_loop::WATCH]),
            Peer::LoopBare => self.bare_loop(&[]),
            Peer::Job => self.job(&[]),
            Peer::JobTuned => self.job(&["--kube-api-qps=10000", "--kube-api-burst=10000"]),
            Peer::Spark => self.spark(&[]),
            Peer::SparkTuned => self.spark(&[
                "spark.kubernetes.allocation.batch.size=500",
                "spark.kubernetes.allocation.batch.delay=101ms",
                "spark.kubernetes.executor.enablePollingWithResourceVersion=true",
            ]),
        })
    }

    fn file(&self, kind: &str) -> PathBuf {
        self.dir.join(format!("{}.{kind}", self.namespace))
    }

    fn access(&self, who: Who) -> Access {
        let access = self.real.access(who);
        Access { url: self.url.clone().unwrap_or_else(|| access.url.clone()), ..access }
    }

    /// The pod of all peers, as a template.
    fn template(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {
            "restartPolicy": "Never", "containers": [{
                "name": "worker", "image": "example.com/worker:1", "command": ["worker"],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}})
    }

    fn spawn(&self, mut command: Command) -> Guarded {
        let log = fs::File::create(self.file("log")).unwrap();
        let errors = log.try_clone().unwrap();
        Guarded::spawn(command.stdin(Stdio::null()).stdout(log).stderr(errors)).unwrap()
    }

    fn settings(&self) -> PathBuf {
        let path = self.file("yaml");
        let settings = json!({
            "app": "peers", "namespace": self.namespace, "driver": {"host": "127.0.0.1"},
            "executors": [{"group": "default", "count": self.executors,
                           "template": self.file("pod.json")}],
            "failures": {"app": "off"},
        });
        fs::write(&path, settings.to_string()).unwrap();
        path
    }

    fn posse_command(&self, words: &[&str]) -> Command {
        let mut command = run_command(self.dir);
        command.args(words).arg("-f").arg(self.settings());
        command.arg("--kubeconfig").arg(self.file("kubeconfig")).env("POSSE_LOG", "info");
        command
    }

    fn posse(&self) -> Guarded {
        self.spawn(self.posse_command(&["run"]))
    }

    fn bare_loop(&self, more: &[&str]) -> Guarded {
        let output = self.posse_command(&["render", "--output", "json"]).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let mut list: Value = serde_json::from_slice(&output.stdout).unwrap();
        let mut pod = list["items"][0].take();
        pod["metadata"]["namespace"] = self.namespace.into();
        fs::write(self.file("body"), bare_loop::body(&mut pod)).unwrap();
        let (kubeconfig, body) = (self.file("kubeconfig"), self.file("body"));
        let mut command = bare_loop::command(&kubeconfig, self.namespace, self.executors, &body);
        command.args(more);
        self.spawn(command)
    }

    fn job(&self, more: &[&str]) -> Guarded {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "peers"},
            "spec": {"parallelism": self.executors, "completions": self.executors,
                     "backoffLimit": 1_000_000, "template": {"spec": self.template()["spec"]}}});
        let path = format!("/apis/batch/v1/namespaces/{}/jobs", self.namespace);
        self.real.client(Who::Admin, "test-admin").post(&path, &job).ok();
        let more = [&["--controllers=job"], more].concat();
        let access = self.access(Who::Admin);
        self.real.spawn_component("kube-controller-manager", &access, &more).unwrap()
    }

    fn spark(&self, more: &[&str]) -> Guarded {
        let account = Account::with_role(self.real, self.namespace, "spark", "cluster-admin");
        let access = account.access(TOKEN_S);
        fs::write(self.file("ca"), access.ca.as_ref().unwrap()).unwrap();
        fs::write(self.file("token"), access.token.as_ref().unwrap()).unwrap();
        let mut command = Command::new(python());
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/peers/spark.py"))
            .arg(format!("k8s://{}", self.url.as_ref().unwrap_or(&access.url)))
            .arg(format!("spark.kubernetes.namespace={}", self.namespace))
            .arg(format!("spark.kubernetes.authenticate.caCertFile={}", self.file("ca").display()))
            .arg(format!(
                "spark.kubernetes.authenticate.oauthTokenFile={}",
                self.file("token").display()
            ))
            .arg(format!("spark.executor.instances={}", self.executors))
            .arg(format!(
                "spark.kubernetes.executor.podTemplateFile={}",
                self.file("pod.json").display()
            ))
            .args(["spark.kubernetes.container.image=example.com/worker:1"])
            .args(["spark.driver.host=127.0.0.1", "spark.ui.enabled=false"])
            .args(["spark.executor.maxNumFailures=1000000"])
            .args(more)
            .current_dir(self.dir);
        self.spawn(command)
    }
}
