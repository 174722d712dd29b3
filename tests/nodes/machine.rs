//! The nodes as programs on this machine: kubelet, containerd and containers, and which scenario may
//! end which node.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{
    Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::nodes::cluster::{NODES, PATIENCE, is_ready};
use crate::nodes::wait::wait_value;

/// With at least this many nodes, those from `FIRST_MORTAL` on are only for scenarios that end them, and
/// these scenarios run beside all others.
const NODES_OF_BOTH_KINDS: usize = 4;
const FIRST_MORTAL: usize = 2;
/// Keeps the pods of other scenarios away from a node that will be ended, also those of scenarios that end
/// another one: its value is the name of the node.
fn taint(node: &str) -> String {
    format!("posse.dev/test={node}:NoSchedule")
}

/// With fewer nodes, scenarios that end one have all of them alone.
static ALL_NODES: RwLock<()> = RwLock::new(());
static FREE: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());
static FREED: Condvar = Condvar::new();

fn free() -> MutexGuard<'static, BTreeSet<usize>> {
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The folder of the cluster's processes: that of the kubeconfig.
fn data() -> PathBuf {
    let kubeconfig = PathBuf::from(std::env::var_os(NODES).expect("the runner checks it"));
    kubeconfig.parent().unwrap().to_owned()
}

fn kubectl(args: &[&str]) -> Output {
    let mut kubectl = Command::new("kubectl");
    kubectl.arg("--kubeconfig").arg(std::env::var_os(NODES).expect("the runner checks it"));
    kubectl.args(args).output().expect("kubectl is on the PATH")
}

/// Whether the Node is there and ready.
pub fn is_node_ready(node: &str) -> bool {
    let output = kubectl(&["get", "node", node, "-o", "json"]);
    is_ready(&serde_json::from_slice(&output.stdout).unwrap_or_default())
}

/// The number of nodes. The first caller keeps the other pods away from the nodes that will be ended.
fn n_nodes() -> usize {
    static N: OnceLock<usize> = OnceLock::new();
    *N.get_or_init(|| {
        let n = (0..).take_while(|n| data().join(format!("n{n}/kubelet.pid")).exists()).count();
        if n >= NODES_OF_BOTH_KINDS {
            for node in FIRST_MORTAL..n {
                let node = format!("node-{node}");
                let output = kubectl(&["taint", "node", &node, &taint(&node), "--overwrite"]);
                assert!(output.status.success(), "{node} cannot be tainted");
            }
            *free() = (FIRST_MORTAL..n).collect();
        }
        n
    })
}

/// The nodes of a scenario that ends none.
#[allow(dead_code, reason = "it is held, not read")]
pub struct SharedNodes(RwLockReadGuard<'static, ()>);

/// Waits until no other scenario ends one of the nodes.
pub fn share_nodes() -> SharedNodes {
    n_nodes();
    SharedNodes(ALL_NODES.read().unwrap_or_else(PoisonError::into_inner))
}

/// A node that the scenario may end.
pub struct MortalNode {
    n: usize,
    /// All nodes, if there are too few for scenarios of both kinds.
    alone: Option<RwLockWriteGuard<'static, ()>>,
}

/// Waits for a node that nobody else uses.
pub fn take_node() -> MortalNode {
    if n_nodes() < NODES_OF_BOTH_KINDS {
        let alone = ALL_NODES.write().unwrap_or_else(PoisonError::into_inner);
        return MortalNode { n: 1, alone: Some(alone) };
    }
    let mut nodes = FREED.wait_while(free(), |nodes| nodes.is_empty()).unwrap();
    MortalNode { n: nodes.pop_first().unwrap(), alone: None }
}

impl Drop for MortalNode {
    /// The next scenario gets the node when it is ready again.
    fn drop(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !is_node_ready(&self.name()) && Instant::now() < deadline {
            thread::sleep(Duration::from_secs(1));
        }
        if self.alone.is_none() {
            free().insert(self.n);
            FREED.notify_one();
        }
    }
}

impl MortalNode {
    /// The name of the Node.
    pub fn name(&self) -> String {
        format!("node-{}", self.n)
    }

    /// The fields of a pod's spec that bring it to this node as long as that lives.
    pub fn preferred(&self) -> Value {
        let term = self.expression("In");
        json!({
            "tolerations": [{ "key": "posse.dev/test", "value": self.name(), "effect": "NoSchedule" }],
            "affinity": { "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution":
                [{ "weight": 100, "preference": { "matchExpressions": [term] } }] } },
        })
    }

    /// The fields of a pod's spec that keep it away from this node.
    pub fn avoided(&self) -> Value {
        let term = self.expression("NotIn");
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution":
            { "nodeSelectorTerms": [{ "matchExpressions": [term] }] } } } })
    }

    fn expression(&self, operator: &str) -> Value {
        json!({ "key": "kubernetes.io/hostname", "operator": operator, "values": [self.name()] })
    }

    /// Kills the kubelet, and with `and_containers` all containers.
    pub fn kill(&self, and_containers: bool) -> Stopped {
        let stopped = self.stop("kubelet");
        if and_containers {
            let node = node(&self.name());
            // A busy containerd refuses some.
            wait_value(PATIENCE, "all containers to end", || {
                let running = node.containers()?;
                running.iter().for_each(|task| node.kill_container(task));
                if running.is_empty() { Ok(()) } else { Err(running.join(" ")) }
            });
        }
        stopped
    }

    fn pid(&self, program: &str) -> String {
        let file = data().join(format!("n{}/{program}.pid", self.n));
        fs::read_to_string(file).unwrap().trim().to_owned()
    }

    /// Kills `kubelet` or `containerd`. Containers live on.
    pub fn stop(&self, program: &'static str) -> Stopped {
        let pid = self.pid(program);
        let words = String::from_utf8(fs::read(format!("/proc/{pid}/cmdline")).unwrap()).unwrap();
        let mut words: Vec<String> =
            words.split('\0').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        // A Node that was deleted comes back as this kubelet registers it.
        if program == "kubelet" && self.alone.is_none() {
            words.retain(|word| !word.starts_with("--register-with-taints"));
            words.push(format!("--register-with-taints={}", taint(&self.name())));
        }
        let mounts = format!("--mount=/proc/{}/ns/mnt", self.pid(partner(program)));
        let working_folder = format!("--wdns={}", data().display());
        let entry = ["nsenter".to_owned(), mounts, working_folder];
        words.splice(0..0, entry);
        let killed = Command::new("kill").args(["-9", &pid]).status().unwrap();
        assert!(killed.success(), "{program} does not run");
        Stopped { n: self.n, program, words }
    }
}

/// The other program of a node. Both see the mounts that belong to the node, and one of them lives on.
fn partner(program: &str) -> &'static str {
    if program == "kubelet" { "containerd" } else { "kubelet" }
}

/// A kubelet or containerd that was killed. It is started again at the end of the scenario.
pub struct Stopped {
    n: usize,
    program: &'static str,
    words: Vec<String>,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let base = data().join(format!("n{}/{}", self.n, self.program));
        let log = fs::OpenOptions::new().append(true).open(base.with_extension("log")).unwrap();
        let mut command = Command::new("setsid");
        // setsid forks only if it leads a group, so the PID is that of the program.
        command.args(&self.words).current_dir(data()).stdin(Stdio::null());
        let mut child = command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        fs::write(base.with_extension("pid"), child.id().to_string()).unwrap();
        // It lives longer than this process, which must not leave a zombie before.
        thread::spawn(move || drop(child.wait()));
    }
}

/// A node, by its containerd.
pub struct NodeContainers {
    socket: PathBuf,
}

/// The containers of a node.
pub fn node(name: &str) -> NodeContainers {
    NodeContainers { socket: data().join(name.replace("node-", "n")).join("containerd.sock") }
}

impl NodeContainers {
    /// Kills the first process of a container, if it runs.
    pub fn kill_container(&self, id: &str) {
        // It may have ended since: then this fails.
        drop(self.ctr(&["tasks", "kill", "-s", "KILL", id.trim_start_matches("containerd://")]));
    }

    /// The ids of the containers that run.
    ///
    /// # Errors
    /// containerd does not answer; it says why.
    pub fn containers(&self) -> Result<Vec<String>, String> {
        // TASK PID STATUS
        let list = self.ctr(&["tasks", "ls"])?;
        let rows = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let running = rows.filter(|row| row.get(2) == Some(&"RUNNING"));
        Ok(running.map(|row| row[0].to_owned()).collect())
    }

    /// Whether the node has this image.
    pub fn has_image(&self, name: &str) -> bool {
        self.ctr(&["images", "ls", "-q"]).unwrap().lines().any(|image| image == name)
    }

    fn ctr(&self, args: &[&str]) -> Result<String, String> {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(&self.socket).args(["-n", "k8s.io"]).args(args);
        let output = command.output().expect("ctr is on the PATH");
        let [told, why] = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        if output.status.success() { Ok(told) } else { Err(why) }
    }
}
